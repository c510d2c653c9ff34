"""What a measure gives between representations of which the relation is known: layers of the same and of other models,
layers with components deleted, fewer rows; and the CPU time that it takes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.training.probes import PROBES, Split, fit_probe

FEWEST = 16  # rows of the smallest subset
Place = tuple[str, str]  # a test and a hook point


@dataclass(frozen=True, kw_only=True)
class GradedLayers:
    """Layers on the same n rows. compared: of a test at a hook point, the places of layer l of model m among `rows`.
    truncated: those layers with fewer and fewer components, by how many are left. labels: a
    class per row."""

    names: Sequence[str]
    rows: Sequence[Float[Tensor, "n _"]]
    compared: Mapping[Place, Int[np.ndarray, "_ _"]]
    truncated: Mapping[Place, Sequence[Mapping[int, Float[Tensor, "n _"]]]]
    labels: Int[Tensor, " n"] | None = None

    def first(self, rows: int) -> "GradedLayers":
        """Cuts all layers and labels to the first `rows`."""
        return GradedLayers(
            names=self.names,
            rows=[x[:rows] for x in self.rows],
            compared=self.compared,
            truncated={
                place: [{left: x[:rows] for left, x in each.items()} for each in models]
                for place, models in self.truncated.items()
            },
            labels=None if self.labels is None else self.labels[:rows],
        )

    @property
    def wanted(self) -> Bool[Tensor, "r r"]:
        """The pairs that some test compares."""
        wanted = torch.zeros(len(self.rows), len(self.rows), dtype=torch.bool)
        for places in self.compared.values():
            at = torch.from_numpy(places.ravel())
            wanted[at[:, None], at[None]] = True
        return wanted


class PairCost(NamedTuple):
    """The cost of comparing. seconds: of CPU time per pair. rho: Spearman's, of the similarities on these rows and
    those on all rows."""

    rows: int
    pairs: int
    seconds: float
    rho: float


@dataclass(kw_only=True)
class Measurement:
    """The values of a measure, by test and hook point. compared: between all its layers, model by model. truncated:
    of each of them, whole and with components deleted, the k-th most of them left. failed: why there is none."""

    compared: dict[Place, Float[np.ndarray, "_ _"]] = field(default_factory=dict)
    truncated: dict[Place, Float[np.ndarray, "_ _"]] = field(default_factory=dict)
    failed: dict[Place, str] = field(default_factory=dict)
    costs: list[PairCost] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def make_measurement(measure: Measure, layers: GradedLayers) -> Measurement:
    """Computes everything that the tests need of a measure; tests whose layers it cannot compare are in `failed`."""
    made = Measurement()
    try:
        values, seconds, notices = _measure_wanted_pairs(
            measure, layers.names, layers.rows, layers.wanted, layers.labels
        )
    except Degenerate:
        # some layer has no value: the tests that do without it are left
        for place, places in layers.compared.items():
            at = places.ravel()
            some = [layers.rows[i] for i in at]
            try:
                every = torch.ones(len(at), len(at), dtype=torch.bool)
                names = [str(layers.names[i]) for i in at]
                part, _, _ = _measure_wanted_pairs(measure, names, some, every, layers.labels)
            except Degenerate as error:
                made.failed[place] = str(error)
            else:
                made.compared[place] = part.cpu().numpy()
    else:
        made.notices = list(notices)
        for place, places in layers.compared.items():
            at = places.ravel()
            made.compared[place] = values.cpu().numpy()[np.ix_(at, at)]
        made.costs = _measure_pair_costs(measure, layers, values, seconds)
    for place, models in layers.truncated.items():
        if place in made.failed:
            continue
        try:
            whole = [layers.rows[i] for i in layers.compared[place].ravel()]
            made.truncated[place] = _compare_with_truncated(measure, whole, models, layers.labels)
        except Degenerate as error:
            made.failed[place] = f"components deleted: {error}"
    return made


def _measure_wanted_pairs(
    measure: Measure,
    names: Sequence[str],
    rows: Sequence[Tensor],
    wanted: Bool[Tensor, "r r"],
    labels: Tensor | None,
) -> tuple[Float[Tensor, "r r"], float, Sequence[str]]:
    """Computes the wanted pairs, the seconds of CPU time that they took, and the measure's warnings. Raises Degenerate
    where a pair has no finite value."""
    began = time.process_time()
    matrices, notices = estimate_all_pairs(
        {measure.name: measure},
        lambda seen: [rows],
        names=names,
        estimate="full",
        labels=lambda batch: labels,
        wanted=wanted,
    )
    values = matrices[measure.name].values
    for why in matrices[measure.name].undefined.values():
        raise Degenerate(why)
    if not torch.isfinite(values[wanted]).all():
        raise Degenerate("a value is not finite")
    return values, time.process_time() - began, notices


def _measure_pair_costs(
    measure: Measure, layers: GradedLayers, whole: Float[Tensor, "r r"], seconds: float
) -> list[PairCost]:
    """Measures the cost of a pair on all rows, on half of them, and so on, down to the fewest that the measure
    takes."""
    one_by_one = isinstance(measure, Pairwise) and measure.compare_all is None
    computed = layers.wanted if one_by_one else torch.ones_like(layers.wanted)
    pairs = int((computed.triu() if measure.card.symmetric else computed).sum())
    above = layers.wanted.triu(1)
    rows = len(layers.rows[0])
    costs = [PairCost(rows, pairs, seconds / pairs, 1.0)]
    while (rows := rows // 2) >= FEWEST:
        some = layers.first(rows)
        try:
            values, seconds, _ = _measure_wanted_pairs(measure, some.names, some.rows, some.wanted, some.labels)
        except Degenerate:
            break
        rho = _spearman(values[above], whole[above])
        if rho is None:
            break
        costs.append(PairCost(rows, pairs, seconds / pairs, rho))
    return costs


def _spearman(x: Tensor, y: Tensor) -> float | None:
    if not (x.max() > x.min() and y.max() > y.min()):
        return None
    return float(np.corrcoef(scipy.stats.rankdata(x.cpu().numpy()), scipy.stats.rankdata(y.cpu().numpy()))[0, 1])


def _compare_with_truncated(
    measure: Measure,
    whole: Sequence[Tensor],
    truncated: Sequence[Mapping[int, Tensor]],
    labels: Tensor | None,
) -> Float[np.ndarray, "m k"]:
    rows = []
    for x, cut in zip(whole, truncated, strict=True):
        given = [x, *cut.values()]
        wanted = torch.zeros(len(given), len(given), dtype=torch.bool)
        wanted[0] = wanted[:, 0] = True
        names = ["whole layer", *(f"{left} components" for left in cut)]
        values, _, _ = _measure_wanted_pairs(measure, names, given, wanted, labels)
        rows.append(((values[0, 1:] + values[1:, 0]) / 2).cpu().numpy())
    return np.array(rows)


def truncate_layers(layers: Sequence[Float[Tensor, "n _"]]) -> list[dict[int, Float[Tensor, "n _"]]]:
    """Removes from every layer its smallest principal components. Result: by how many are left, half of those of the
    narrowest layer, a quarter, ..., 1 (Ding et al. 2021)."""
    most = min(min(x.shape) for x in layers)
    numbers = [most >> halvings for halvings in range(1, most.bit_length())]
    return [_truncate(x, numbers) for x in layers]


def _truncate(x: Float[Tensor, "n d"], numbers: Sequence[int]) -> dict[int, Float[Tensor, "n d"]]:
    mean = x.double().mean(0)
    u, s, v = torch.linalg.svd(x.double() - mean, full_matrices=False)
    return {left: ((u[:, :left] * s[:left]) @ v[:left] + mean).to(x.dtype) for left in numbers}


def measure_probe_accuracy(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], seed: int) -> float:
    """Fits a logistic regression on half of the rows and measures its accuracy on the other half."""
    order = np.random.default_rng(seed).permutation(len(x))
    split = Split(order[: len(x) // 2], order[len(x) // 2 :], order, np.arange(len(x)))
    return 1 - fit_probe(PROBES["logistic_classification"], x.double().cpu().numpy(), labels.numpy(), split, seed).error
