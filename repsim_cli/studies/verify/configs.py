"""Settings in which the configs of two models differ, beside what was found."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

# settings that change nothing that a pass of a loaded model computes
IDLE = re.compile(
    r"(^|\.)_|version$|architectures|dtype$|label|_token_id$|dropout|_pdrop$|initializer|^output_|return_dict"
    r"|use_cache|use_mems|checkpointing|pretraining_tp|quantization|task_specific|problem_type|chunk_size|name_or_path"
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
TYPE = "model_type"


def read_settings(model: nn.Module) -> dict[str, str]:
    """Reads the settings of a model's config that its passes depend on; none of a module without a config."""
    config = getattr(model, "config", None)
    return dict(_flatten_settings(config.to_dict())) if hasattr(config, "to_dict") else {}  # type: ignore[union-attr]


def list_different_settings(
    reference: Mapping[str, str], candidate: Mapping[str, str], kind: str | None = None
) -> list[str]:
    """Says which settings differ, and how; first those that may be behind a fault of this kind. None where one side has
    none; of models of two types those that both have."""
    alike = reference.get(TYPE) == candidate.get(TYPE)
    keys = {**reference, **candidate} if alike else [key for key in reference if key in candidate]
    said = BEHIND.get(kind or "", "$^")
    differ = [key for key in keys if reference.get(key) != candidate.get(key)] if reference and candidate else []
    return [
        f"{key} is {_shorten(reference.get(key, 'not there'))} in the reference and "
        f"{_shorten(candidate.get(key, 'not there'))} in the candidate"
        for key in sorted(differ, key=lambda key: not re.search(said, key))
    ]


def _flatten_settings(settings: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _flatten_settings(value, f"{name}.")
        elif not IDLE.search(name):
            yield name, repr(value)


def _shorten(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
