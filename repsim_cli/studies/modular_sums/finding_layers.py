"""What is published of the layers of models that learned modular sums: Models 0, E and L of Gao et al. 2024, known by
how they were trained. The paper counts blocks from 1: its Resid-Post1 is resid_post@0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    FEWEST,
    find_rho_step,
    log_of,
    normalise_ranks,
    weigh_against_null,
    weigh_mean,
    weigh_mean_difference,
)
from repsim_cli.findings.layers import order_layers, read_block_number
from repsim_cli.findings.partitions import Square, convert_to_distances
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM

HALF = -0.693147  # the logarithm of a half
LEAST, FOUR = 4, "needs four layers of each"
ORDERED = 0.3  # rank correlation of distances with the layers between, from which they are a pattern


@dataclass(frozen=True, kw_only=True)
class ModularLayers:
    """Claims on the distances between the layers of models that learned modular sums. It has no settings."""


@dataclass(frozen=True, kw_only=True)
class TrainedLayers:
    """The layers of models, by how these were trained: their names, and for each seed the distances between them (of
    similarities how far they are below the largest), both in the order of the network."""

    names: Mapping[str, Sequence[str]]
    apart: Mapping[str, Sequence[Square]]

    def say_missing(self, *trainings: str) -> str:
        """Says why a claim on models with these trainings cannot be tested; empty where all are there."""
        absent = [training for training in trainings if training not in self.apart]
        return f"needs {FEWEST} seeds trained {' and '.join(absent)}" if absent else ""


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="Model E: log of the mean distance within the last block over that of all other pairs, mean over seeds",
    threshold=HALF,
    unit="seed",
    published="below",
    of=(END_TO_END,),
)
def end_to_end_training_ends_alike(models: TrainedLayers) -> Weighed | Untestable:
    """In Model E all layers from 64 on, those of block 3, are similar."""
    if missing := models.say_missing(END_TO_END):
        return Untestable(missing)
    blocks = [read_block_number(name) for name in models.names[END_TO_END]]
    last = np.array([block == blocks[-1] for block in blocks])
    if blocks[-1] is None or last.all() or last.sum() < 2:
        return Untestable("needs a last block of two layers, and one before it")
    pairs, inside = np.triu(np.ones((len(blocks), len(blocks)), bool), 1), last[:, None] & last
    shares = [log_of(x[inside & pairs].mean()) - log_of(x[~inside & pairs].mean()) for x in models.apart[END_TO_END]]
    # seeds may share layers that wander and come back: from layer to layer they must move less in the last block, too
    steps = np.mean([x.diagonal(1) for x in models.apart[END_TO_END]], axis=0)
    at = last[:-1] & last[1:]
    shared = float(scipy.stats.mannwhitneyu(steps[at], steps[~at], alternative="less").pvalue)
    over = weigh_mean(shares, HALF, "seed")
    return Weighed(float(np.mean(shares)), replace(over, below=max(over.below, shared)))


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="log of the mean distance between layers: mean over seeds of Model L minus that of Model E",
    threshold=0.0,
    unit="seed",
    of=(BY_BLOCK, END_TO_END),
)
def layer_wise_distances_are_larger(models: TrainedLayers) -> Weighed | Untestable:
    """Distances are larger in Model L than in Model E."""
    if missing := models.say_missing(BY_BLOCK, END_TO_END):
        return Untestable(missing)
    if min(len(x) for training in (BY_BLOCK, END_TO_END) for x in models.apart[training]) < LEAST:
        return Untestable(FOUR)
    by_block, end_to_end = (
        [log_of(_take_pair_distances(x).mean()) for x in models.apart[training]] for training in (BY_BLOCK, END_TO_END)
    )
    return Weighed(float(np.mean(by_block) - np.mean(end_to_end)), weigh_mean_difference(by_block, end_to_end, "seed"))


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="Spearman's rho between the distances of Model L and of Model E, pair by pair, mean over seeds of both",
    threshold=0.5,
    unit="pair of models",
    published="below",
    of=(BY_BLOCK, END_TO_END),
)
def training_changes_the_pattern(models: TrainedLayers) -> Weighed | Untestable:
    """The patterns of Models L and E differ."""
    trainings = (BY_BLOCK, END_TO_END)
    if missing := models.say_missing(*trainings):
        return Untestable(missing)
    if list(models.names[BY_BLOCK]) != list(models.names[END_TO_END]):
        return Untestable("the two models have different layers")
    counts = [len(models.apart[training]) for training in trainings]
    if counts[0] != counts[1]:
        return Untestable(f"needs as many seeds trained {BY_BLOCK} as {END_TO_END}, got {counts[0]} and {counts[1]}")
    if len(models.names[BY_BLOCK]) < LEAST:
        return Untestable(FOUR)
    for training in trainings:  # two matrices of noise differ, too
        found = [_correlate_order(x) for x in models.apart[training]]
        if not min(found) >= ORDERED:
            return Untestable(
                f"the distances of a model trained {training} do not grow with the layers between "
                f"(rho = {min(found):.2g}, {ORDERED} is needed): no pattern"
            )
    # each model is in one pair
    both = zip(*(models.apart[training] for training in trainings), strict=True)
    rhos = [float(normalise_ranks(_take_pair_distances(x)) @ normalise_ranks(_take_pair_distances(y))) for x, y in both]
    step = find_rho_step(len(models.names[BY_BLOCK]))
    return Weighed(float(np.mean(rhos)), weigh_mean(rhos, 0.5, "pair of models", step))


def _correlate_order(values: Square) -> float:
    """Spearman's rho of the distances and the number of layers between; NaN where all are equal."""
    a, b = np.triu_indices(len(values), k=1)
    return float(normalise_ranks(_take_pair_distances(values)) @ normalise_ranks(b - a))


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="mean distance of consecutive layers of Model 0: at scores or patterns minus elsewhere, mean over seeds",
    threshold=0.0,
    unit="seed",
    of=(ONE_SUM,),
)
def attention_makes_the_first_differences(models: TrainedLayers) -> Weighed | Untestable:
    """In Model 0 the major differences occur at the attention scores and patterns."""
    if missing := models.say_missing(ONE_SUM):
        return Untestable(missing)
    attention = np.array([name.startswith(("attn_scores", "pattern")) for name in models.names[ONE_SUM]])
    if not attention.any():
        return Untestable("no attention map is among the layers")
    at = attention[:-1] | attention[1:]
    if len(attention) < 3 or at.all():
        return Untestable("needs three layers, and two in a row that are not attention maps")
    steps = [x.diagonal(1) for x in models.apart[ONE_SUM]]
    gaps = [float(each[at].mean() - each[~at].mean()) for each in steps]
    # seeds may share large steps that are anywhere: no shift of the attention maps along the layers does as well
    mean, shifts = np.mean(steps, axis=0), [np.roll(at, by) for by in range(len(at))]
    shifted = np.array([mean[here].mean() - mean[~here].mean() for here in shifts])
    shared = weigh_against_null(float(np.mean(gaps)), shifted, "", len(gaps), "")
    over = weigh_mean(gaps, 0.0, "seed")
    above, below = max(over.above, shared.above), max(over.below, shared.below)
    return Weighed(float(np.mean(gaps)), replace(over, above=above, below=below))


def _take_pair_distances(values: Square) -> np.ndarray:
    """The distances of all pairs of layers."""
    return values[np.triu_indices(len(values), k=1)]


@analysis(studies=("similarity",), within=True)
def modular_layers(run: Finished, options: ModularLayers, claims: Sequence[Claim]) -> Part:
    verdicts = []
    for label, layers in run.maps.items():
        names: dict[str, list[str]] = {}
        apart: dict[str, list[Square]] = {}
        for training, models in run.trained.items():
            for place in (layers.places[model] for model in models if model in layers.places):
                order = order_layers(layers.names[place])
                its = [layers.names[place][i] for i in order]
                if names.setdefault(training, its) == its:
                    values = convert_to_distances(layers.values[place, place], layers.measure.larger_is_closer)
                    apart.setdefault(training, []).append(values[np.ix_(order, order)])
        verdicts += [each.verdict(label, TrainedLayers(names=names, apart=apart)) for each in claims]
    return Part(claims=verdicts)
