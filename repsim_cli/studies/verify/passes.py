"""All passes through both models: each batch after the other through whole models, or all batches together through one
part of both after the other, where models stay on the disk."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.base.memory import trim
from repsim_cli.runs.results import Progress
from repsim_cli.studies.verify import weights
from repsim_cli.studies.verify.found import OUT, Finding
from repsim_cli.studies.verify.inputs import VOCABULARY, Batch
from repsim_cli.studies.verify.kinds import describe
from repsim_cli.studies.verify.lockstep import Pass
from repsim_cli.studies.verify.reference import Call, Gate, Precisions, record_pass
from repsim_cli.studies.verify.replay import Replayed, replay_pass
from repsim_cli.studies.verify.rounding import Places, have_same_values, judge
from repsim_cli.studies.verify.saved import Saved
from repsim_cli.studies.verify.sides import InMemory
from repsim_cli.studies.verify.units import ModelUnit, find_unit_key, hook_units
from repsim_cli.studies.verify.weights import Tensors


@dataclass(frozen=True)
class Passes:
    """What both models do.

    results: of each batch. tensors: their weights. rows: a finding in the rows of the vocabulary. out: what the
    candidate gives for the first batch by itself.
    """

    results: list[Replayed]
    tensors: Tensors
    rows: Finding | None
    out: Callable[[], Tensor]


@dataclass(frozen=True)
class VerifyRun:
    """What is run, and how. labels: of the reference and the candidate."""

    batches: Sequence[Batch]
    precisions: Precisions
    labels: tuple[str, str]
    progress: Progress


def run_whole(reference: InMemory | Saved, candidate: InMemory, run: VerifyRun) -> Passes:
    """Runs every batch through both models, parts of the candidate on what the reference gave them. Raises BadInput
    where a model does not repeat itself, and RunFailed where one does not run."""
    first, last = run.batches[0], run.batches[-1]
    for label, side in zip(run.labels, (reference, candidate), strict=True):
        if isinstance(side, InMemory):
            with run_or_refuse(label, last):
                _check_repeats([last.run(side.model) for _ in range(2)], side.model, label)
    if isinstance(reference, Saved):
        tensors, units, kept = (
            reference.list_differing(candidate.model),
            candidate.units,
            reference.match(candidate.units),
        )
    else:
        tensors, units, kept = weights.compare(reference.weights, candidate.weights), reference.units, []
        _check_finite(tensors, run.labels[0])
    inside = {find_unit_key(name, units) for name, *_ in tensors.differ} - {""}
    results, outs = [], []
    for number, batch in enumerate(run.progress(run.batches, label="verify", unit="batches")):
        if isinstance(reference, Saved):
            calls = kept[number]
        else:
            with run_or_refuse(run.labels[0], batch):
                calls = record_pass(reference.model, units, batch, run.precisions)
        with run_or_refuse(run.labels[1], batch):
            results.append(replay_pass(candidate.model, candidate.units, batch, calls, run.precisions, inside=inside))
        outs.append(calls[OUT].out[""])
    _check_outputs(outs, run.labels[0])
    rows = (
        None
        if isinstance(reference, Saved)
        else _check_vocabulary_rows(reference.model, candidate.model, run.precisions.coarse)
    )
    return Passes(results, tensors, rows, partial(first.run, candidate.model))


def run_by_part(reference: InMemory, candidate: InMemory, run: VerifyRun) -> Passes:
    """Does what `run_whole` does, with the weights of one part of each model in memory. Raises the same."""
    first, compared = run.batches[0], WeightComparison(reference, candidate)
    calls: list[dict[str, Call]] = [{} for _ in run.batches]

    def start(side: int, batch: Batch, go: Callable[..., Any], **more: Any) -> Pass:
        return Pass(lambda gate: _guard(run.labels[side], batch, partial(go, gate=gate, **more)))

    records, replays = [], []
    for batch, into in zip(run.batches, calls, strict=True):
        record = partial(record_pass, reference.model, reference.units, batch, run.precisions, calls=into)
        replay = partial(replay_pass, candidate.model, candidate.units, batch, into, run.precisions)
        records.append(start(0, batch, record))
        replays.append(start(1, batch, replay, inside=compared.inside))
    again, *free = (start(side, first, partial(_run_plain, (reference, candidate)[side], first)) for side in (0, 1, 1))
    theirs = [*zip(replays, calls, strict=True), *((each, calls[0]) for each in free)]
    with ExitStack() as stack:
        every = (*records, again, *replays, *free)
        for each in every:
            stack.callback(each.close)
        for each in every:
            each.step()
        parts = iter(run.progress(reference.units, label="verify, by block", unit="parts"))
        for _ in run_together([*records, again], theirs, compared):
            next(parts, None)
        stack.callback(list, parts)
    compared.rest()
    _check_finite(compared.tensors(), run.labels[0])
    _check_outputs([of_batch[OUT].out[""] for of_batch in calls], run.labels[0])
    _check_repeats([calls[0][OUT].out[""], again.result], reference.model, run.labels[0])
    _check_repeats([each.result for each in free], candidate.model, run.labels[1])
    with _load_embedding(reference), _load_embedding(candidate):
        rows = _check_vocabulary_rows(reference.model, candidate.model, run.precisions.coarse)
    return Passes([each.result for each in replays], compared.tensors(), rows, lambda: free[0].result)


class WeightComparison:
    """The weights of both models, part by part. inside: the units in which any differs."""

    def __init__(self, reference: InMemory, candidate: InMemory):
        self.reference, self.candidate, self.inside = reference, candidate, set[str]()
        self.found: dict[str, Tensors] = {}
        self.norms: dict[str, float] = {}

    def add(self, key: str) -> None:
        """Compares a part that is loaded in both."""
        if key in self.found:
            return
        ours = self.reference.find_weights(key)
        self.found[key] = weights.compare(ours, self.candidate.find_weights(key))
        self.norms |= weights.compute_weight_norms(ours)
        if self.found[key].differ and key:
            self.inside.add(key)

    def rest(self) -> None:
        """Adds what no pass runs."""
        units = (*self.reference.units, *self.candidate.units)
        for key in sorted({*(unit.key for unit in units), ""} - self.found.keys()):
            with self.reference.load(key), self.candidate.load(key):
                self.add(key)

    def tensors(self) -> Tensors:
        """Joins the comparisons of all parts, tensors in the order of the models."""
        found = [*self.found.values()]
        ours, theirs = ({name: i for i, name in enumerate(x.weights)} for x in (self.reference, self.candidate))
        alone = [
            {name for each in found for name in getattr(each, f"only_{side}")} for side in ("reference", "candidate")
        ]
        if both := alone[0] & alone[1]:  # the parts have other keys
            pair = ({name: side.weights[name] for name in both} for side in (self.reference, self.candidate))
            found.append(weights.compare(*pair))
        return Tensors(
            sum(each.common for each in found),
            sorted((tensor for each in found for tensor in each.differ), key=lambda tensor: ours[tensor[0]]),
            sorted(alone[0] - both, key=lambda name: ours[name]),
            sorted(alone[1] - both, key=lambda name: theirs[name]),
            {name: self.norms[name] for name in ours},
            [said for each in found for said in each.lost],
            {name: dtype for each in found for name, dtype in each.rounded.items()},
            sorted((tensor for each in found for tensor in each.slight), key=lambda tensor: ours[tensor[0]]),
            [said for each in found for said in each.shaped],
        )


def run_together(
    ours: Sequence[Pass], theirs: Sequence[tuple[Pass, dict[str, Call]]], compared: WeightComparison
) -> Iterator[str]:
    """Brings all passes to their ends through one part after the other, and yields its key. theirs: the passes of the
    candidate, each with the calls that it needs; what the reference has run is dropped once a replay has used it."""

    def list_ready() -> list[tuple[Pass, dict[str, Call]]]:
        """The passes of the candidate in front of what the reference has run, or never runs."""
        over = all(each.at is None for each in ours)
        return [(each, known) for each, known in theirs if each.at is not None and (each.at in known or over)]

    while waiting := [each for each, _ in list_ready()] or [each for each in ours if each.at is not None]:
        part = waiting[0].part
        with compared.reference.load(part):
            for each in ours:
                if each.part == part:
                    each.step()
                    trim()
            with compared.candidate.load(part):
                compared.add(part)
                used = [(each, each.at, known) for each, known in list_ready() if each.part == part]
                for each, _, _ in used:
                    each.step()
                    trim()
        for _, at, known in used:
            if at in known and at != OUT:
                known[at] = Call(known[at].unit, (), {}, None)
        yield part


def _run_plain(side: InMemory, batch: Batch, *, gate: Gate) -> Tensor:
    with hook_units(side.units, lambda key, *_: gate(key), lambda *_: None):
        return batch.run(side.model)


def _guard(label: str, batch: Batch, go: Callable[[], Any]) -> Any:
    with run_or_refuse(label, batch):
        return go()


@contextmanager
def run_or_refuse(label: str, batch: Batch) -> Iterator[None]:
    """Turns what the model raises inside the block into RunFailed.

    label: the model's.
    batch: what it runs on.
    """
    try:
        yield
    except RepsimError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        what = f"{type(error).__name__} ({why})"
        raise RunFailed(f"{label}: it fails on {batch.name}, got {what}; run it alone on such input") from error


def _check_finite(tensors: Tensors, label: str) -> None:
    if tensors.lost:
        rest = f" and {len(tensors.lost) - 1} tensors more" if len(tensors.lost) > 1 else ""
        raise BadInput(f"{label}: weights that are not finite, got {tensors.lost[0]}{rest}; nothing is told from them")


def _check_outputs(outs: Sequence[Tensor], label: str) -> None:
    """Raises BadInput where no row of any output tells anything."""
    if not any(torch.isfinite(out).any() for out in outs):
        raise BadInput(f"{label}: no value of its output is finite on this input; give other input")


def _check_repeats(outs: Sequence[Tensor], model: nn.Module, label: str) -> None:
    first, again = outs
    if not have_same_values(first, again):
        why = "it is in training mode; call eval()" if model.training else "look for random numbers in its forward pass"
        raise BadInput(f"{label}: two passes on the same input differ, got other values; {why}")


def find_embeddings(model: nn.Module) -> nn.Embedding | None:
    try:
        found: Any = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None  # type: ignore
    except NotImplementedError:
        return None
    return found if isinstance(found, nn.Embedding) else None


def _load_embedding(side: InMemory) -> AbstractContextManager[None]:
    """Loads the part with the embeddings while the context lasts."""
    wanted = find_embeddings(side.model)
    return side.load(next((unit.key for unit in side.units if wanted in [*unit.module.modules()]), ""))


def _check_vocabulary_rows(reference: nn.Module, candidate: nn.Module, dtype: torch.dtype) -> Finding | None:
    """Runs every row of the vocabulary through both embeddings; the finding where they differ, else None."""
    ours, theirs = find_embeddings(reference), find_embeddings(candidate)
    if ours is None or theirs is None:
        return None
    ids = torch.arange(min(ours.num_embeddings, theirs.num_embeddings))[None]
    batch = Batch(VOCABULARY, {"input_ids": ids}, torch.ones_like(ids, dtype=torch.bool))
    with torch.no_grad():
        r, c = ours(ids), theirs(ids)
    if r.shape != c.shape:
        raise BadInput(f"models: not comparable, got widths {r.shape[-1]} and {c.shape[-1]}; give two of one shape")
    found = judge(c, r, None, dtype, Places(batch.mask))
    return describe(Finding("embed", ModelUnit("embed", "", ours), "", found, batch, c, r)) if found.faulty else None
