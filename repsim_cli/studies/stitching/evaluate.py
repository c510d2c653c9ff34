"""The performance that stitched models lose: a head runs once per batch, its tails on the streams of that pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.data.base import Sequences
from repsim_cli.data.labels import match_labels
from repsim_cli.engine.proportions import count_like_freedom
from repsim_cli.findings.extremes import find_width
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.results import Progress, quiet
from repsim_cli.studies.stitching.models import (
    Auto,
    Inputs,
    Layer,
    Whole,
    list_output_names,
    make_input_batch,
    name_layer,
)
from repsim_cli.studies.stitching.noise import alter

HeadKind = Literal["model", "random", "shuffled", "noise"]
SCORES = ("loss", "correct", "kl", "differs")
WORKS = 0.5  # share of what the tail knows that is kept, from which on a stitch works
LITTLE = 0.1  # share of the tail's rows beyond the answers that is almost nothing


class Head(NamedTuple):
    """A model as a head: as it is, with its weights shuffled, with the rows of every batch shuffled, or with noise
    about a centre for each right answer in place of its rows."""

    model: str
    kind: HeadKind = "model"

    def __str__(self) -> str:
        return {
            "model": self.model,
            "random": f"{self.model} (random weights)",
            "shuffled": f"{self.model} (rows shuffled)",
            "noise": f"{self.model} (answers and noise)",
        }[self.kind]


class Stitch(NamedTuple):
    """Blocks 0..at of the head before blocks into+1..last of the tail."""

    head: Head
    tail: str
    at: Layer
    into: Layer

    def __str__(self) -> str:
        place = name_layer(self.at) if self.at == self.into else f"{name_layer(self.at)} into {name_layer(self.into)}"
        return f"{self.head} -> {self.tail}, {place}"


class Predicted(NamedTuple):
    """Predictions: the log-probabilities of each, the answer given, the right one, and its sequence in the batch."""

    log_p: Float[Tensor, "p c"]
    answer: Int[Tensor, " p"]
    right: Int[Tensor, " p"]
    sequence: Int[Tensor, " p"]


@dataclass(frozen=True)
class PredictionTask:
    """What models predict: the next token, or the class of a sequence.

    outputs, labels: of classifiers, the class that each output and each label of the data stands for. Where several
    outputs stand for the same class their probabilities are added; the answer is the class of the most probable output.
    """

    auto: Auto
    outputs: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()

    def predict(self, logits: Tensor, inputs: Inputs, labels: Int[Tensor, " b"] | None) -> Predicted:
        log_p = logits.float().log_softmax(-1)
        device = log_p.device
        if not self.outputs:
            inside = inputs.mask[:, 1:].to(device)
            log_p = log_p[:, :-1][inside]
            right = inputs.ids[:, 1:].to(device)[inside]
            return Predicted(log_p, log_p.argmax(1), right, inside.nonzero()[:, 0])
        assert labels is not None
        stands_for = torch.tensor(self.outputs, device=device)
        answer = stands_for[log_p.argmax(1)]
        if list(self.outputs) != list(range(len(self.outputs))):
            classes = [log_p[:, stands_for == code].logsumexp(1) for code in range(max(self.outputs) + 1)]
            log_p = torch.stack(classes, dim=1)
        right = torch.tensor(self.labels, device=device)[labels.to(device)]
        return Predicted(log_p, answer, right, torch.arange(len(labels), device=device))


def make_next_token_task() -> PredictionTask:
    return PredictionTask("AutoModelForCausalLM")


def make_classification_task(
    models: Mapping[str, Any], labels: Sequence[str], outputs: Sequence[str] | None = None
) -> PredictionTask:
    """Labels of the data, matched by name with the outputs of the models (Source by label), which must agree.

    outputs: their names, where the models' configs give none.
    """
    scored = match_labels(check_outputs(models, outputs), labels, f"model.{next(iter(models))}")
    return PredictionTask(
        "AutoModelForSequenceClassification", tuple(scored.model.tolist()), tuple(scored.data.tolist())
    )


def check_outputs(models: Mapping[str, Any], outputs: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of the models' outputs. Raises BadInput where they differ in order or number, or have no names."""
    known = {label: tuple(outputs or ()) or list_output_names(source) for label, source in models.items()}
    first = next(iter(models))
    for label, source in models.items():
        names, count = known[label], int(getattr(getattr(source.skeleton, "config", None), "num_labels", 0))
        if len(names) != count:
            raise BadInput(
                f"model.{label}: its outputs and their names differ in number, got {list(names)} for {count} "
                "outputs; name them in its entry (labels: [NAME, ...])"
            )
        if names != known[first]:
            raise BadInput(
                f"model.{label}: its labels differ in order or number, got {list(names)} and {list(known[first])} of "
                f"'{first}'; stitch classifiers with the same labels"
            )
    return known[first]


class Estimate(NamedTuple):
    """A mean and its standard error over evaluation documents."""

    value: float
    se: float


class Shared(NamedTuple):
    """Shares of variance beyond the right answers on evaluation rows, at most 1, and 0 for noise: of the tail's
    rows that the head's explain, and of the head's that the tail's explain."""

    forward: Estimate
    back: Estimate


@dataclass(frozen=True)
class StitchScores:
    """Sums over the predictions in every evaluation sequence. weights: their number (1 for a label).

    alone[tail][score]: of the tail model by itself. stitched[stitch][score]: of stitched models. Scores are loss (nats)
    and correct (a count); of stitched models also kl (of the tail's outputs from theirs, nats) and differs (how many
    answers differ from the tail's). answers: how often each right answer comes. shared: of stitches that are fitted,
    unless too few rows have an answer that another has. documents: of each sequence, by which errors are; None: each
    sequence is one.
    """

    weights: Float[np.ndarray, " N"]
    alone: dict[str, dict[str, Float[np.ndarray, " N"]]]
    stitched: dict[Stitch, dict[str, Float[np.ndarray, " N"]]]
    answers: Int[np.ndarray, " a"]
    shared: Mapping[Stitch, Shared] = field(default_factory=dict)
    documents: Int[np.ndarray, " N"] | None = None

    @property
    def independent(self) -> int:
        """Counts the documents that errors are over, of sequences without documents these."""
        return len(sum_by_unit(self.weights, self.documents))

    @property
    def freedom(self) -> int:
        """Counts the degrees of freedom of errors: few where few documents have most of the predictions."""
        return count_like_freedom(sum_by_unit(self.weights, self.documents))

    def estimate(self, stitch: Stitch, score: str) -> Estimate:
        return self._mean(self.stitched[stitch][score])

    def estimate_alone(self, tail: str, score: str) -> Estimate:
        return self._mean(self.alone[tail][score])

    def penalty(self, stitch: Stitch, score: Literal["loss", "correct"] = "loss") -> Estimate:
        """The penalty of a stitch, against the tail alone: loss added, or accuracy lost."""
        sign = 1 if score == "loss" else -1
        return self._mean(sign * (self.stitched[stitch][score] - self.alone[stitch.tail][score]))

    def compare_with_itself(self, stitch: Stitch) -> Estimate | None:
        """Compares the loss with that of the tail stitched into itself at the same layers, which gains what a stitch
        layer learns of the text alone; None where that was not stitched, or is this stitch."""
        own = stitch._replace(head=Head(stitch.tail))
        if own == stitch or own not in self.stitched:
            return None
        return self._mean(self.stitched[stitch]["loss"] - self.stitched[own]["loss"])

    def compute_kept(self, stitch: Stitch) -> float | None:
        """Computes which share of what the tail knows of the answers a stitched model keeps: 1 where nothing is lost, 0
        where no more is known than how often each answer comes; None where the tail itself knows no more."""
        known = self.compute_known(stitch.tail)
        return 1 - self.penalty(stitch).value / known if known > 0 else None

    def compute_known(self, tail: str) -> float:
        """Computes how many nats a tail alone knows of an answer beyond how often each comes."""
        shares = self.answers / self.answers.sum()
        return -float((shares * np.log(shares)).sum()) - self.estimate_alone(tail, "loss").value

    def is_misled(self, stitch: Stitch) -> bool:
        """Says whether the stitch works although the two sides share almost nothing beyond the right answers."""
        kept, shared = self.compute_kept(stitch), self.shared.get(stitch)
        if kept is None or shared is None:
            return False
        return kept >= WORKS and shared.forward.value + find_width(2, self.freedom) * shared.forward.se < LITTLE

    def _mean(self, sums: Float[np.ndarray, " N"]) -> Estimate:
        """The mean over predictions, with the standard error of a ratio of sums over documents."""
        return estimate_ratio(sums, self.weights, self.documents)


def sum_by_unit(sums: Float[np.ndarray, " n"], units: Int[np.ndarray, " n"] | None) -> Float[np.ndarray, " u"]:
    """Sums what is of one unit, in the order of the units; None: each is one by itself."""
    return sums if units is None else np.bincount(np.unique(units, return_inverse=True)[1], sums)


def estimate_ratio(
    sums: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], units: Int[np.ndarray, " n"] | None = None
) -> Estimate:
    """Estimates a ratio of sums, with its standard error over units, as of `sum_by_unit`; two units or more."""
    sums, weights = (sum_by_unit(each, units) for each in (sums, weights))
    count, total = len(sums), weights.sum()
    mean = sums.sum() / total
    spread = np.square(sums - mean * weights).sum() * count / (count - 1)
    return Estimate(float(mean), float(np.sqrt(spread) / total))


def take_labels(sequences: Sequences, rows: slice | Int[np.ndarray, " b"]) -> Int[Tensor, " b"] | None:
    return None if sequences.labels is None else torch.from_numpy(sequences.labels.codes[rows]).long()


@dataclass(frozen=True)
class PassSettings:
    """How all sequences run.

    batch_size: sequences per forward pass. seed: of the order of shuffled rows. entry: of the cache, where the scores
    of every batch are kept, from which a killed run resumes.
    """

    batch_size: int
    seed: int = 0
    progress: Progress = quiet
    entry: Entry | None = None


@torch.no_grad()
def evaluate_stitches(
    heads: Mapping[Head, Whole],
    tails: Mapping[str, Whole],
    stitches: Sequence[Stitch],
    sequences: Sequences,
    task: PredictionTask,
    passes: PassSettings,
    maps: Mapping[Stitch, nn.Module] = {},
) -> StitchScores:
    """Scores of stitched models and of their tails on all sequences; at least two sequences.

    Every model runs once per batch, up to its deepest layer that is needed; then the tail of every stitch runs.
    maps: the stitch layers; the identity where there is none.
    """
    if len(sequences.ids) < 2:
        raise BadInput(f"data: no evaluation rows are left, got {len(sequences.ids)} sequences; give more data")
    order = list(dict.fromkeys(stitch.tail for stitch in stitches))
    batch_size, entry = passes.batch_size, passes.entry
    starts = range(0, len(sequences.ids), batch_size)
    parts: list[dict[str, Tensor]] = []
    cut: dict[tuple[str, Layer], Any] = {}
    for start in passes.progress(starts, label="stitched models", unit="batches"):
        name = f"{start:08d}"
        if entry is not None and name in entry.files:
            parts.append(safetensors.torch.load_file(entry.files[name]))
            continue
        rows = slice(start, start + batch_size)
        inputs = make_input_batch(sequences, rows)
        labels = take_labels(sequences, rows)
        streams = Streams(heads, tails, stitches, inputs, labels, passes.seed + start)
        parts.append(_score_batch(streams, {label: tails[label] for label in order}, stitches, task, maps, cut))
        if entry is not None:
            entry.write(name, partial(safetensors.torch.save_file, parts[-1]))
    if entry is not None and not entry.complete:
        entry.finish(stitches=len(stitches))
    whole = {key: torch.cat([part[key] for part in parts], dim=-1).numpy() for key in parts[0]}
    return StitchScores(
        whole["weights"],
        {label: dict(zip(SCORES[:2], whole["own"][i][:2], strict=True)) for i, label in enumerate(order)},
        {stitch: dict(zip(SCORES, whole["stitched"][i], strict=True)) for i, stitch in enumerate(stitches)},
        count_answers(sequences, task),
    )


def _score_batch(
    streams: "Streams",
    tails: Mapping[str, Whole],
    stitches: Sequence[Stitch],
    task: PredictionTask,
    maps: Mapping[Stitch, nn.Module],
    cut: dict[tuple[str, Layer], Any],
) -> dict[str, Tensor]:
    """Scores of every sequence of a batch: `own` of the tails and `stitched` of the stitches, both SCORES in their
    order, and `weights`, the number of predictions. cut: of the tails, what was made of them before."""
    inputs, labels, count = streams.inputs, streams.labels, len(streams.inputs.ids)
    alone: list[Tensor] = []
    stitched: dict[Stitch, Tensor] = {}
    weights = torch.empty(0)
    for label, tail in tails.items():
        uncut = task.predict(_cut(cut, tail, tail.depth - 1)(streams.last(tail), inputs), inputs, labels)
        weights = _sum_by_sequence(torch.ones(len(uncut.right)), uncut, count)
        alone.append(_score_sequences(uncut, uncut, count))
        for stitch in (stitch for stitch in stitches if stitch.tail == label):
            stream = streams.take(stitch).to(tail.device)
            layer = maps.get(stitch)
            with tail.autocast():
                stream = stream if layer is None else layer(stream)
            logits = _cut(cut, tail, stitch.into)(stream, inputs)
            stitched[stitch] = _score_sequences(task.predict(logits, inputs, labels), uncut, count)
            if not torch.isfinite(stitched[stitch]).all():
                raise RunFailed(f"{stitch}: its outputs are not finite; use hardware.dtype=float32")
    of_stitches = torch.stack([stitched[stitch] for stitch in stitches])
    return {"weights": weights, "own": torch.stack(alone), "stitched": of_stitches}


def count_answers(sequences: Sequences, task: PredictionTask) -> Int[np.ndarray, " a"]:
    if sequences.labels is None:
        answers = sequences.ids[:, 1:][sequences.mask[:, 1:]]
    else:
        answers = np.array(task.labels)[sequences.labels.codes]
    return np.unique(answers, return_counts=True)[1]


def _cut(cut: dict[tuple[str, Layer], Any], tail: Whole, after: Layer) -> Any:
    """The tail after a layer, made once."""
    key = (tail.label, after)
    if key not in cut:
        cut[key] = tail.tail(after)
    return cut[key]


class Streams:
    """The streams of one batch: of every model that is a head or a tail, from one forward pass of each."""

    def __init__(
        self,
        heads: Mapping[Head, Whole],
        tails: Mapping[str, Whole],
        stitches: Sequence[Stitch],
        inputs: Inputs,
        labels: Int[Tensor, " b"] | None,
        seed: int,
    ):
        self.heads, self.inputs, self.labels, self.seed = heads, inputs, labels, seed
        wanted: dict[int, set[Layer]] = {}
        models: dict[int, Whole] = {}
        for stitch in stitches:
            for whole, layer in (
                (heads[stitch.head], stitch.at),
                (tails[stitch.tail], tails[stitch.tail].depth - 1),
            ):
                models[id(whole)] = whole
                wanted.setdefault(id(whole), set()).add(layer)
        self.streams = {key: whole.streams(inputs, sorted(wanted[key])) for key, whole in models.items()}

    def last(self, tail: Whole) -> Tensor:
        return self.streams[id(tail)][tail.depth - 1]

    def take(self, stitch: Stitch) -> Tensor:
        stream = self.streams[id(self.heads[stitch.head])][stitch.at]
        return alter(stitch.head.kind, {stitch.at: stream}, self.inputs, self.labels, self.seed)[stitch.at]


def _sum_by_sequence(values: Tensor, predicted: Predicted, count: int) -> Float[Tensor, " b"]:
    sequence = predicted.sequence.cpu()
    return torch.zeros(count, dtype=torch.float64).index_add_(0, sequence, values.double().cpu())


def _score_sequences(given: Predicted, alone: Predicted, count: int) -> Float[Tensor, "4 b"]:
    """SCORES summed over each sequence."""
    loss = -given.log_p.gather(1, given.right[:, None])[:, 0]
    kl = nn.functional.kl_div(given.log_p, alone.log_p, reduction="none", log_target=True).sum(1)
    values = (loss, given.answer == given.right, kl, given.answer != alone.answer)
    return torch.stack([_sum_by_sequence(value, given, count) for value in values])
