"""Models of a Python program: transformers models, arrays, recorded modules. Configurations name them by a key that
this process alone can resolve."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from repsim_cli.base.arrays import convert_to_tensor, hash_tensors
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import models
from repsim_cli.data.memory import explain_gone
from repsim_cli.models.configs import build_source_from_config
from repsim_cli.models.loading import WHOLE, Loading, disable_cache, place_model
from repsim_cli.models.source import AnySource, Precomputed, Source
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.models.transformers import list_types_with_head

HELD: dict[str, AnySource] = {}


@models.register("memory")
def memory(*, key: str) -> AnySource:
    """A model of a Python program that called `repsim_cli.compare`; no command can open it.

    key: its hash.
    Example: repsim_cli.compare({"mine": module, "other": "tiny_a"}, texts)
    """
    if key not in HELD:
        raise explain_gone("key: the model", key)
    return HELD[key]


def hold(model: AnySource) -> dict[str, str]:
    """The entry of a configuration that stands for it from now on, in this process."""
    key = model.identity()["weights_hash"]
    HELD[key] = model
    return {"kind": "memory", "key": key}


def wrap_transformers(model: Any, tokenizer: Any = None) -> Source:
    """A transformers model, with a head or without, which is copied when it runs.

    tokenizer: None: that of the folder or hub id that the model was loaded from.

    Raises BadInput where its backbone is not the one that transformers builds from its config.
    """
    backbone = model.base_model
    where = str(getattr(model, "name_or_path", "") or "")

    def copy_module(module: Any, eager: bool = False, how: Loading = WHOLE) -> Any:
        twin = place_model(copy.deepcopy(module), how).requires_grad_(False)
        if eager:
            twin.set_attn_implementation("eager")
        return disable_cache(twin)

    def tokens() -> Any:
        if tokenizer is None and not where:
            raise BadInput("tokenizer: a model made in memory has none; give (model, tokenizer)")
        return load_tokenizer(where) if tokenizer is None else tokenizer

    def copy_with_head(auto: str, how: Loading = WHOLE) -> nn.Module:
        if model is backbone or model.config.model_type not in list_types_with_head(auto):
            raise BadInput(f"model: it has no head for {auto}, got a {type(model).__name__}; give the whole model")
        return copy_module(model, how=how)

    weights = hash_tensors(model.state_dict().items())
    made = build_source_from_config(
        model.config,
        tokens,
        lambda eager, how=WHOLE: copy_module(backbone, eager, how),
        lambda: {"source": f"in memory, a {type(model).__name__}", "weights_hash": weights},
        None,
        with_head=copy_with_head,
    )
    if type(made.skeleton) is not type(backbone):
        raise BadInput(
            f"model: its backbone is not the one of its config, got {type(backbone).__name__} and not "
            f"{type(made.skeleton).__name__}; give a model of an auto class of transformers"
        )
    return made


def wrap_arrays(arrays: Mapping[Any, Any]) -> Precomputed:
    """Arrays, tensors or tables (n, d) of real numbers by layer, in order, with paired rows. Raises BadInput for
    others."""
    if not arrays:
        raise BadInput("arrays: no layer; give {layer: array}")
    rows: dict[str, Tensor] = {}
    for name, array in arrays.items():
        if not isinstance(name, str) or not name.strip():
            raise BadInput(f"arrays: layers are named by text, got {name!r:.60}; give {{'layer 1': array}}")
        x = convert_to_tensor(f"array '{name}'", array).cpu()
        if x.ndim != 2 or 0 in x.shape:
            raise BadInput(f"array '{name}': not (n, d), got {x.dtype} {tuple(x.shape)}; give it in this form")
        rows[name] = x
    counts = sorted({len(x) for x in rows.values()})
    if len(counts) != 1:
        raise BadInput(f"arrays: layers have different numbers of rows, got {counts}; give paired rows")
    return Precomputed(
        names=list(rows),
        rows=counts[0],
        widths=[x.shape[1] for x in rows.values()],
        read=lambda name, part: rows[name][part].float(),
        identity=lambda: {"source": "arrays in memory", "weights_hash": hash_tensors(rows.items())},
        constant={name for name, x in rows.items() if len(x) > 1 and bool((x == x[0]).all())},
    )
