"""Measures what the rows of a head and of a tail share beyond the right answers, whatever a stitch layer makes of them.

A stitch layer that is fitted can drive a tail with rows that hold the right answers and noise (Smith et al. 2025). So
the rows of both sides are compared themselves, after the mean of all rows with the same answer is taken from each: the
label of the sequence, or the next token. Each side is predicted from the other by ridge regression that is fitted on
the sequences that stitch layers are fitted on, and scored on those of the evaluation. Features have unit variance, so
that a few large ones do not decide. Of such noise this is 0, in both directions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.data.base import Sequences
from repsim_cli.studies.stitching.evaluate import (
    Estimate,
    Head,
    PassSettings,
    Shared,
    Stitch,
    estimate_ratio,
    take_labels,
)
from repsim_cli.studies.stitching.models import Layer, Whole, make_input_batch
from repsim_cli.studies.stitching.noise import alter, find_answers

ROWS = 2048  # of each side, to fit on and to score
FEWEST = 32  # rows, or there is no number
# over the summed variance of the rows that are fitted; infinite: the mean alone predicts
PENALTIES = [float("inf"), *(10.0 ** (-half / 2) for half in range(-2, 15))]
NOTHING = 1e-12  # of the largest variance of a feature, below which another is rounding


class Decomposition(NamedTuple):
    """The decomposition of the products of some features."""

    values: Float[Tensor, " d"]
    vectors: Float[Tensor, "d d"]


@dataclass(frozen=True)
class StitchSide:
    """Rows of one side without the means of their answers, features scaled by the variance of those to fit on."""

    fit: Float[Tensor, "n d"]
    held: Float[Tensor, "m d"]

    @property
    def half(self) -> int:
        return len(self.fit) // 2

    @cached_property
    def solved(self) -> dict[int, Decomposition]:
        """Decomposes the first half of the rows to fit on, and all, by how many these are."""
        sizes = (self.half, len(self.fit))
        return {n: Decomposition(*torch.linalg.eigh(self.fit[:n].T @ self.fit[:n])) for n in sizes}


def measure_shared(
    heads: Mapping[Head, Whole],
    tails: Mapping[str, Whole],
    stitches: Iterable[Stitch],
    parts: tuple[Sequences, Sequences],
    documents: Int[np.ndarray, " N"],
    passes: PassSettings,
) -> dict[Stitch, Shared]:
    """Measures every stitch, or none where too few rows have an answer that another has.

    parts: the sequences to fit on, and those of the evaluation. documents: of each of the latter.
    """
    by_pair: dict[tuple[Head, str], list[Stitch]] = {}
    for stitch in stitches:
        by_pair.setdefault((stitch.head, stitch.tail), []).append(stitch)
    answers = [DrawnRows(part, passes.seed) for part in parts]
    if min(int(part.kept.sum()) for part in answers) < FEWEST:
        return {}
    found = {}
    for (head, tail), some in passes.progress([*by_pair.items()], label="rows that are shared", unit="pairs"):
        ats, intos = ({getattr(stitch, name) for stitch in some} for name in ("at", "into"))
        rows = [part.rows(heads[head], ats, head.kind, passes) for part in answers]
        others = [part.rows(tails[tail], intos, "model", passes) for part in answers]
        sides = {at: standardise_side([x[at] for x in rows], answers) for at in ats}
        of_tail = {into: standardise_side([x[into] for x in others], answers) for into in intos}
        owners = documents[answers[1].owners[answers[1].kept]]
        for stitch in some:
            x, y = sides[stitch.at], of_tail[stitch.into]
            found[stitch] = Shared(estimate_shared_variance(x, y, owners), estimate_shared_variance(y, x, owners))
    return found


class DrawnRows:
    """Rows drawn from sequences under the seed, the same of every model.

    owners: the sequence of each. kept: whether another row has its answer, so that a mean can be taken from it.
    """

    def __init__(self, sequences: Sequences, seed: int):
        self.sequences = sequences
        order = np.random.default_rng(seed).permutation(np.flatnonzero(sequences.mask.ravel()))[:ROWS]
        self.owners, self.places = np.divmod(np.sort(order), sequences.mask.shape[1])
        self.used = np.unique(self.owners)
        whole = make_input_batch(sequences, self.used)
        answers = find_answers(whole, take_labels(sequences, self.used))
        self.answers = answers[np.searchsorted(self.used, self.owners), self.places]
        _, self.which, counts = self.answers.unique(return_inverse=True, return_counts=True)
        self.kept = (counts[self.which] > 1).numpy()

    @torch.no_grad()
    def rows(
        self, whole: Whole, layers: Iterable[Layer], kind: str, passes: PassSettings
    ) -> dict[Layer, Float[Tensor, "n d"]]:
        layers = sorted(set(layers))
        parts: dict[Layer, list[Tensor]] = {layer: [] for layer in layers}
        for start in range(0, len(self.used), passes.batch_size):
            batch = self.used[start : start + passes.batch_size]
            inputs, labels = make_input_batch(self.sequences, batch), take_labels(self.sequences, batch)
            streams = alter(kind, whole.streams(inputs, layers), inputs, labels, passes.seed + start)
            here = np.isin(self.owners, batch)
            at = np.searchsorted(batch, self.owners[here]), self.places[here]
            for layer in layers:
                parts[layer].append(streams[layer][at].double().cpu())
        return {layer: torch.cat(rows) for layer, rows in parts.items()}


def standardise_side(rows: Sequence[Float[Tensor, "_ d"]], drawn: Sequence[DrawnRows]) -> StitchSide:
    fit, held = (subtract_group_means(x, part.which)[part.kept] for x, part in zip(rows, drawn, strict=True))
    variance = fit.square().mean(0)
    scale = torch.where(variance > NOTHING * variance.max(), variance.rsqrt(), 0.0)
    return StitchSide(fit * scale, held * scale)


def subtract_group_means(rows: Float[Tensor, "n d"], groups: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Takes the mean of their group from rows."""
    sums = rows.new_zeros(int(groups.max()) + 1, rows.shape[1]).index_add_(0, groups, rows)
    return rows - (sums / groups.bincount()[:, None])[groups]


def estimate_shared_variance(x: StitchSide, y: StitchSide, owners: Int[np.ndarray, " m"]) -> Estimate:
    """Held-out share of the variance of y that x explains, with its standard error over the owners of held rows.

    The penalty is the one that predicts the second half of the rows to fit on best from the first.
    """
    half, whole = x.half, len(x.fit)
    guesses = predict_by_ridge(x.solved[half], x.fit[:half].T @ y.fit[:half], x.fit[half:])
    errors = [(y.fit[half:] - guess).square().sum() for guess in guesses]
    best = int(torch.stack(errors).argmin())
    (guess,) = predict_by_ridge(x.solved[whole], x.fit.T @ y.fit, x.held, PENALTIES[best : best + 1])
    error, total = ((rows**2).sum(1).numpy() for rows in (y.held - guess, y.held))
    lost = estimate_ratio(error, total, owners)
    return Estimate(1 - lost.value, lost.se)


def predict_by_ridge(
    x: Decomposition, products: Float[Tensor, "d e"], new: Float[Tensor, "m d"], penalties: Sequence[float] = PENALTIES
) -> Iterator[Float[Tensor, "m e"]]:
    """Predicts new rows by ridge regression without intercept, for every penalty. products: of x and y."""
    values = x.values.clamp_min(0)
    of_y, of_new, size = x.vectors.T @ products, new @ x.vectors, float(values.sum())
    for penalty in penalties:
        weights = torch.zeros_like(values) if not size or penalty == float("inf") else 1 / (values + penalty * size)
        yield (of_new * weights) @ of_y
