"""A reference in a file: its inputs, what its parts take and give, their rounding, and sketches of its weights. Another
machine or another version then needs no reference model."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from repsim_cli.base.documents import find_misfit
from repsim_cli.base.environment import read_versions
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import give_usual_rights, refuse
from repsim_cli.models import precision
from repsim_cli.studies.verify import weights
from repsim_cli.studies.verify.configs import read_settings
from repsim_cli.studies.verify.found import OUT
from repsim_cli.studies.verify.inputs import PROBES, Batch
from repsim_cli.studies.verify.reference import Call, Points, Precisions, record_pass, record_points, sketch_left
from repsim_cli.studies.verify.rounding import Places
from repsim_cli.studies.verify.tokens import digest_tokenizer
from repsim_cli.studies.verify.units import ModelUnit, split_into_units

KEY, SCHEMA = "repsim_verify", 4
INSIDE = 2**30  # bytes of the points inside parts, from which on sketches of them are kept
SAME = 1e-6  # of a sketch
FACTS = {  # what the file says of itself
    "schema": int,
    "label": str,
    "dtype": str,
    "blocks": int,
    "batches": [{"name": str, "order": [str], "again": {str: {str: str}}, "checksums": {str: {str: str}}}],
    "weights": {str: [float]},
    "ids": {str: [int]},
    "tokenizer": {str: str},
    "settings": {str: str},
}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in precision.UNIT}


def sketch_weights(x: Tensor) -> list[float]:
    """Three sums of a tensor: of its values, their squares, and their products with fixed numbers."""
    flat = x.detach().double().flatten().cpu()
    fixed = torch.cos(torch.arange(len(flat), dtype=torch.float64))
    return [float(flat.sum()), float(flat.square().sum()), float(flat @ fixed)]


def save(
    file: Path, model: nn.Module, batches: Sequence[Batch], label: str, tokenizer: Any = None, inside: int = INSIDE
) -> None:
    """Runs the reference and writes the file: what each part takes and gives on each input, and on the first what each
    module inside does; part by part, until that is more than `inside` bytes, and from there on sketches of it."""
    named = weights.name_weights(model)
    lost = next((f"{said} in {name}" for name, x in named.items() if (said := weights.say_not_finite(x))), None)
    if lost is not None:
        raise BadInput(f"{label}: weights that are not finite, got {lost}; nothing is told from them")
    units, dtype = split_into_units(model), precision.find_main_dtype(model)
    precisions, room = Precisions(dtype, precision.choose_twin_dtype(dtype, dtype)), inside
    tensors: dict[str, Tensor] = {}
    about: list[dict[str, Any]] = []
    for number, batch in enumerate(batches):
        calls = record_pass(model, units, batch, precisions)
        again: dict[str, dict[str, str]] = {}
        checksums: dict[str, dict[str, str]] = {}
        for key, call in calls.items() if number == 0 else ():
            if key == OUT or next(call.unit.module.children(), None) is None:
                continue
            places, fits = Places(batch.mask), room > 0
            with torch.no_grad():
                points = record_points(call, places, precisions, free=not fits)
            points = points if fits else sketch_left(points, places)
            room -= sum(x.nbytes for x in points.refs.values())
            again[key] = points.again
            if points.checksums is not None:
                checksums[key] = points.checksums
            for kind, several in (("inside", points.refs), ("inside_rounding", points.floors)):
                tensors |= {f"{number}/{key}/{kind}/{name}": x for name, x in several.items()}
        for name, x in {**batch.given, "": batch.mask}.items():
            tensors[f"{number}/given/{name}"] = x
        for key, call in calls.items():
            parts = {"in": {} if call.entry is None else {"": call.entry}, "out": call.out, "rounding": call.floor}
            for kind, several in parts.items():
                for name, x in several.items():
                    tensors[f"{number}/{key}/{kind}/{name}"] = x
        about.append({"name": batch.name, "order": list(calls), "again": again, "checksums": checksums})
    facts = {
        "schema": SCHEMA,
        "label": label,
        "versions": read_versions(),
        "dtype": str(dtype).removeprefix("torch."),
        "blocks": sum(unit.block is not None for unit in units),
        "batches": about,
        "weights": {name: sketch_weights(x) for name, x in named.items() if x.is_floating_point()},
        "ids": {} if tokenizer is None else {t: tokenizer(t, verbose=False)["input_ids"] for t in PROBES.values()},
        "tokenizer": {} if tokenizer is None else digest_tokenizer(tokenizer),
        "settings": read_settings(model),
    }
    partial = file.with_name(f".{file.name}.partial")
    save_file({name: x.contiguous().clone() for name, x in tensors.items()}, partial, {KEY: json.dumps(facts)})
    give_usual_rights(partial)
    partial.replace(file)


@dataclass(frozen=True)
class Saved:
    """A reference from a file. batches: its inputs; calls: what its parts took and gave on each, by their keys. ids,
    tokenizer: of some texts, and digests of what decides ids; empty where it has no tokenizer. settings: of its
    config."""

    label: str
    dtype: torch.dtype
    blocks: int
    batches: list[Batch]
    calls: list[dict[str, Call]]
    sketches: dict[str, list[float]]
    ids: dict[str, list[int]]
    tokenizer: dict[str, str]
    settings: dict[str, str]

    @property
    def sketched(self) -> list[str]:
        """Lists the parts of whose inside sketches are kept."""
        return [key for key, call in self.calls[0].items() if call.points and call.points.checksums is not None]

    def match(self, units: Sequence[ModelUnit]) -> list[dict[str, Call]]:
        """The calls with the candidate's units in place of the reference's, which are not there."""
        own = {unit.key: unit for unit in units}
        return [
            {key: replace(call, unit=own.get(key.partition(" (call")[0], call.unit)) for key, call in calls.items()}
            for calls in self.calls
        ]

    def list_differing(self, model: nn.Module) -> weights.Tensors:
        """The weights of common names by their sketches."""
        theirs = {name: x for name, x in weights.name_weights(model).items() if x.is_floating_point()}
        shared = [name for name in theirs if name in self.sketches]
        differ = []
        for name in shared:
            a, b = self.sketches[name], sketch_weights(theirs[name])
            size = max(a[1], b[1]) ** 0.5
            off = max(abs(a[i] - b[i]) for i in (0, 2)) / max(size * theirs[name].numel() ** 0.5, 1e-30)
            if not (off <= SAME and abs(a[1] - b[1]) <= SAME * max(a[1], b[1])):  # NaN is not a sum either
                differ.append((name, 0, theirs[name].numel(), off if math.isfinite(off) else 1e30))
        return weights.Tensors(len(shared), differ, [], [])


def is_saved(file: Path) -> bool:
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    try:
        with safetensors.safe_open(file, "pt") as opened:
            return KEY in (opened.metadata() or {})
    except safetensors.SafetensorError:
        return False


def load(file: Path) -> Saved:
    """Reads a reference that --save wrote. Raises BadInput for a file of another version, or a damaged one."""
    with refuse(f"{file}: a reference of --save that cannot be read", file.name, "save it again"):
        with safetensors.safe_open(file, "pt") as opened:
            facts = json.loads(opened.metadata()[KEY])
            if isinstance(facts, dict) and facts.get("schema") != SCHEMA:
                got = str(facts.get("schema"))[:20]
                raise BadInput(f"{file}: not of this version, got schema {got}; save it again with --save")
            if (problem := find_misfit(facts, FACTS)) is not None:
                raise ValueError(problem)
            held: dict[str, dict[str, Tensor]] = {}
            for name in opened.keys():  # noqa: SIM118
                number, key, rest = name.split("/", 2)
                held.setdefault(f"{number}/{key}", {})[rest] = opened.get_tensor(name)
        return _read(facts, held)


def _read(facts: dict[str, Any], held: dict[str, dict[str, Tensor]]) -> Saved:
    batches, calls = [], []
    for number, about in enumerate(facts["batches"]):
        given = dict(held[f"{number}/given"])
        mask = given.pop("")
        if mask.dtype != torch.bool or mask.ndim != 2 or given["input_ids"].shape != mask.shape:
            raise ValueError(f"inputs of {number} that are not (rows, tokens) with a mask")
        batches.append(Batch(about["name"], given, mask))
        of_batch = {}
        for key in about["order"]:
            parts = held.get(f"{number}/{key}", {})
            by_kind = {
                kind: {name.partition("/")[2]: x for name, x in parts.items() if name.partition("/")[0] == kind}
                for kind in ("in", "out", "rounding", "inside", "inside_rounding")
            }
            again = about["again"].get(key, {})
            inside = by_kind["inside"], by_kind["inside_rounding"], again, about["checksums"].get(key)
            points = Points(*inside) if by_kind["inside"] else None
            unit, entry = ModelUnit(key, "", nn.Identity()), by_kind["in"].get("")
            of_batch[key] = Call(unit, (), {}, entry, by_kind["out"], by_kind["rounding"], kept=True, points=points)
        if OUT not in of_batch or "" not in of_batch[OUT].out:
            raise ValueError(f"no output of inputs {number}")
        calls.append(of_batch)
    if facts["dtype"] not in DTYPES:
        raise ValueError(f"the precision {facts['dtype']}")
    if not batches or any(len(sums) != 3 for sums in facts["weights"].values()):
        raise ValueError("no inputs, or weights without their three sums")
    dtype = DTYPES[facts["dtype"]]
    said = (facts[name] for name in ("weights", "ids", "tokenizer", "settings"))
    return Saved(facts["label"], dtype, facts["blocks"], batches, calls, *said)
