"""The hook points of every type of model, as they are listed, without building any: `repsim list architecture`.

The file is written by scripts/architectures from the tables; the tests hold it to them.
"""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "architectures.yaml"
HEADER = "# The hook points of every type. Written by scripts/architectures.\n"
# what a block may have; the rest, of experts and of decoders that read an encoder, is named where it is there
USUAL = (
    "embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "q", "k", "v", "z", "pattern", "mlp_pre",
    "mlp_post", "final_norm",
)  # fmt: skip
MORE = ("router", "cross_out")


PARTS = {"q", "k", "v", "z", "pattern"}


def describe_type(source: Any) -> dict[str, Any]:
    """Describes what a type of model reads, which hook points each of its stacks of blocks lacks, with the reason, and
    which it has beside the usual.

    some: why some of the blocks lack a hook point that others have.
    """
    stacks = source.architecture.stacks or {"blocks": source.architecture}
    return {"reads": source.modality, **{name: _stack(table) for name, table in stacks.items()}}


def _stack(table: Any) -> dict[str, Any]:
    missing = {kind: why for (kind, _), why in table.missing.items()}
    there = {"embed", *table.block, *(["final_norm"] if table.final_norm else [])}
    reasons = {"final_norm": "no norm follows the blocks", **table.lacks}
    kinds = {
        "lacks": {kind: reasons[kind] for kind in USUAL if kind not in there},
        "some": {kind: missing[kind] for kind in USUAL if kind in missing},
        "more": [kind for kind in MORE if kind in there],
    }
    return {name: value for name, value in kinds.items() if value}


def read() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def select_stacks(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: stack for name, stack in entry.items() if name != "reads"}


def count_model_types(content: dict[str, Any]) -> dict[str, int]:
    """Counts the types of model that have hook points (`types`), those that read text or sound (`texts`), and of these
    those that give q, k, v, z and pattern in every stack (`attention`)."""
    texts = [entry for entry in content["types"].values() if entry["reads"] != "images"]
    whole = [not any(PARTS & {*stack.get("lacks", ())} for stack in select_stacks(entry).values()) for entry in texts]
    return {"types": len(content["types"]), "texts": len(texts), "attention": sum(whole)}


def describe_model_types() -> Iterator[str]:
    """The list, one line per type."""
    content = read()
    types, refused = content["types"], content["refused"]
    width, number = max(map(len, (*types, *refused))), count_model_types(content)
    yield (
        f"{number['types']} types of transformers have hook points, {number['texts']} of them of text or sound, "
        f"{number['attention']} of these with q, k, v, z and pattern. A line names what a type lacks, and why; all is"
    )
    yield f"  {', '.join(USUAL)}"
    yield from (f"{name:{width}}  {_describe(entry)}" for name, entry in types.items())
    yield f"{len(refused)} types are read by module:NAME alone:"
    yield from (f"{name:{width}}  {why}" for name, why in refused.items())
    yield (
        "For any other type, the residual stream is guessed from the modules, and checked in the first forward pass. "
        "`repsim describe model MODEL` says it of a model."
    )


def _describe(entry: dict[str, Any]) -> str:
    texts = {name: _say_stack(stack) for name, stack in select_stacks(entry).items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _say_stack(stack: dict[str, Any]) -> str:
    text = "all"
    if "lacks" in stack:
        text += f" but {_list_kinds_by_reason(stack['lacks'])}"
    if "some" in stack:
        text += f"; in some blocks not {_list_kinds_by_reason(stack['some'])}"
    return f"{text}; also {', '.join(stack['more'])}" if "more" in stack else text


def _list_kinds_by_reason(lacking: dict[str, str]) -> str:
    """Kinds by their reason."""
    kinds: dict[str, list[str]] = {}
    for kind, why in lacking.items():
        kinds.setdefault(why, []).append(kind)
    return ", ".join(f"{' '.join(each)} ({why})" for why, each in kinds.items())
