"""Settings in which the configs of two models differ, beside what was found."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

# settings that change nothing that a pass of a loaded model computes
IDLE = re.compile(
    r"(^|\.)_|version$|architectures|dtype$|label|_token_id$|dropout|_pdrop$|initializer|^output_|return_dict"
    r"|use_cache|checkpointing|pretraining_tp|quantization|task_specific|problem_type|chunk_size|name_or_path"
)
# words in the settings that may be behind a kind of fault
BEHIND = {
    "epsilon": "eps",
    "rotary": "rope|rotary|theta",
    "positions": "position|alibi",
    "mask": "window|causal|decoder|attention",
    "activation": "act",
    "cap": "cap",
    "factor": "scal|mult|head_dim",
    "residual": "scal|mult|residual",
    "router": "expert|router|top",
}
LONGEST = 40  # characters of a value


def list_different_settings(reference: nn.Module, candidate: nn.Module, kind: str | None) -> list[str]:
    """Says which settings differ, and how; first those that may be behind a fault of this kind. None for modules
    without a config; of models of two types those that both have."""
    configs = [getattr(model, "config", None) for model in (reference, candidate)]
    if not all(hasattr(config, "to_dict") for config in configs):
        return []
    a, b = (dict(_flatten_settings(config.to_dict())) for config in configs)  # type: ignore[union-attr]
    one_type = a.get("model_type") == b.get("model_type")
    keys = [key for key in {**a, **b} if one_type or (key in a and key in b)]
    said = BEHIND.get(kind or "", "$^")
    differ = sorted((key for key in keys if a.get(key) != b.get(key)), key=lambda key: not re.search(said, key))
    return [
        f"{key} is {_say_value(a.get(key))} in the reference and {_say_value(b.get(key))} in the candidate"
        for key in differ
    ]


def _flatten_settings(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flatten_settings(value, f"{name}.")
        elif not IDLE.search(name):
            yield name, value


def _say_value(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
