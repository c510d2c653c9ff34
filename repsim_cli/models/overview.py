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


def of(source: Any) -> dict[str, Any]:
    """What a type reads; of each stack, the usual hook points that it lacks, with the reason, and those it has beside.

    some: why some of the blocks lack a hook point that others have.
    """
    stacks = source.architecture.stacks or {"blocks": source.architecture}
    return {"reads": source.modality, **{name: _stack(table) for name, table in stacks.items()}}


def _stack(table: Any) -> dict[str, Any]:
    some = {kind: why for (kind, _), why in table.missing.items() if kind in USUAL}
    there = {"embed", *table.block, *(["final_norm"] if table.final_norm else [])}
    reasons = {"final_norm": "no norm follows the blocks", **table.lacks}
    return {
        "lacks": {kind: reasons[kind] for kind in USUAL if kind not in there},
        "some": some,
        "more": [kind for kind in MORE if kind in there],
    }


def read() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def lines() -> Iterator[str]:
    """The list, one line per type."""
    content = read()
    types, refused = content["types"], content["refused"]
    width = max(map(len, (*types, *refused)))
    texts = sum(entry["reads"] != "images" for entry in types.values())
    whole = sum(has_all(entry) for entry in types.values())
    yield f"{len(types)} types of transformers have hook points, {texts} of them of text and sound, {whole} with all of:"
    yield f"  {', '.join(USUAL)}"
    for name, entry in types.items():
        yield f"{name:{width}}  {_described(entry)}"
    yield f"{len(refused)} types are read by module:NAME alone:"
    for name, why in refused.items():
        yield f"{name:{width}}  {why}"
    yield "Of any other type the stream is found by structure, with a warning; describe model MODEL says it of a model."


def has_all(entry: dict[str, Any]) -> bool:
    """Whether every stack of a type has all usual hook points of attention and of the stream."""
    needed = {"resid_pre", "resid_post", "q", "k", "v", "z", "pattern"}
    return not any(needed & set(stack["lacks"]) for name, stack in entry.items() if name != "reads")


def _described(entry: dict[str, Any]) -> str:
    stacks = {name: stack for name, stack in entry.items() if name != "reads"}
    texts = {name: _of_stack(stack) for name, stack in stacks.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _of_stack(stack: dict[str, Any]) -> str:
    text = "all"
    if stack["lacks"]:
        text += f" but {_reasons(stack['lacks'])}"
    if stack["some"]:
        text += f"; not in every block {_reasons(stack['some'])}"
    return f"{text}; also {', '.join(stack['more'])}" if stack["more"] else text


def _reasons(lacking: dict[str, str]) -> str:
    """Kinds by their reason."""
    kinds: dict[str, list[str]] = {}
    for kind, why in lacking.items():
        kinds.setdefault(why, []).append(kind)
    return ", ".join(f"{' '.join(each)} ({why})" for why, each in kinds.items())
