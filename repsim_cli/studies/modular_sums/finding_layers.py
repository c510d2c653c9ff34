"""What is published of the layers of models that learned modular sums: Models 0, E and L of Gao et al. 2024, known by
how they were trained. The paper counts blocks from 1: its Resid-Post1 is resid_post@0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import GROUPS, LEVEL, by_chance, by_jackknife, over_cells, ranks, without
from repsim_cli.findings.layers import block_of, in_order
from repsim_cli.findings.maps import ranked_cells, ranked_distances
from repsim_cli.findings.partitions import Square, distances
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM

OVER_LAYERS = "standard error over the layers, a tenth of neighbours left out at a time"


@dataclass(frozen=True, kw_only=True)
class ModularLayers:
    """Claims on the distances between the layers of models that learned modular sums. It has no settings."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """By how a model was trained: the names of its layers and the distances between them (of similarities how far they
    are below the largest), both in the order of the network."""

    names: Mapping[str, Sequence[str]]
    apart: Mapping[str, Square]

    def missing(self, *trainings: str) -> str:
        """Why a claim on models with this training cannot be tested; empty where all are there."""
        absent = [training for training in trainings if training not in self.apart]
        return f"needs {' and '.join(f'a model trained {training}' for training in absent)}" if absent else ""


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="Model E: mean distance within the last block over that of all other pairs",
    threshold=0.5,
    published="below",
    of=(END_TO_END,),
)
def end_to_end_training_ends_alike(models: Layers) -> Weighed | Untestable:
    """In Model E all layers from 64 on, those of block 3, are similar."""
    if missing := models.missing(END_TO_END):
        return Untestable(missing)
    blocks = [block_of(name) for name in models.names[END_TO_END]]
    last = np.array([block == blocks[-1] for block in blocks])
    if blocks[-1] is None or last.all() or last.sum() < 2:
        return Untestable("needs a last block of two layers, and one before it")
    values, pairs = models.apart[END_TO_END], np.triu(np.ones((len(blocks), len(blocks)), bool), 1)

    def share(here: np.ndarray) -> float:
        inside = here[:, None] & here
        return float(values[inside & pairs].mean() / values[~inside & pairs].mean())

    shares = np.array([share(np.roll(last, by)) for by in range(len(blocks))])  # neighbours stay neighbours
    how = f"{len(shares)} shifts of the block along the layers"
    return Weighed(float(shares[0]), by_chance(float(shares[0]), shares, how))


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="mean distance between layers: Model L minus Model E",
    threshold=0.0,
    of=(BY_BLOCK, END_TO_END),
)
def layer_wise_distances_are_larger(models: Layers) -> Weighed | Untestable:
    """Distances are larger in Model L than in Model E."""
    if missing := models.missing(BY_BLOCK, END_TO_END):
        return Untestable(missing)
    by_block, end_to_end = models.apart[BY_BLOCK], models.apart[END_TO_END]
    if min(len(by_block), len(end_to_end)) < 4:
        return Untestable("needs four layers of each")
    value = float(_cells(by_block).mean() - _cells(end_to_end).mean())
    groups = min(GROUPS, len(by_block), len(end_to_end))
    left_out = [
        float(_cells(by_block, kept).mean() - _cells(end_to_end, others).mean())
        for kept, others in zip(without(len(by_block), groups), without(len(end_to_end), groups), strict=True)
    ]
    return Weighed(value, by_jackknife(value, 0.0, left_out, OVER_LAYERS))


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="Spearman's rho between the distances of Model L and of Model E, pair by pair",
    threshold=0.5,
    published="below",
    of=(BY_BLOCK, END_TO_END),
)
def training_changes_the_pattern(models: Layers) -> Weighed | Untestable:
    """The patterns of Models L and E differ."""
    trainings = (BY_BLOCK, END_TO_END)
    if missing := models.missing(*trainings):
        return Untestable(missing)
    if list(models.names[BY_BLOCK]) != list(models.names[END_TO_END]):
        return Untestable("the two models have different layers")
    by_block, end_to_end = (models.apart[training] for training in trainings)
    if min(len(np.unique(_cells(x))) for x in (by_block, end_to_end)) < 2 or len(by_block) < 4:
        return Untestable("needs four layers that are not all as far apart")
    for training, x in zip(trainings, (by_block, end_to_end), strict=True):  # two matrices of noise differ, too
        _, ordered = over_cells([ranked_cells(x)], ranked_distances)
        if ordered.above > LEVEL:
            return Untestable(
                f"the distances of the model trained {training} do not grow with the layers between "
                f"(p = {ordered.above:.2g}): no pattern"
            )

    def rho(kept: np.ndarray) -> float:
        return float(ranks(_cells(by_block, kept)) @ ranks(_cells(end_to_end, kept)))

    value = rho(np.arange(len(by_block)))
    left_out = [rho(kept) for kept in without(len(by_block))]
    return Weighed(value, by_jackknife(value, 0.5, left_out, OVER_LAYERS))


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="mean distance of consecutive layers of Model 0: at scores or patterns minus elsewhere",
    threshold=0.0,
    of=(ONE_SUM,),
)
def attention_makes_the_first_differences(models: Layers) -> Weighed | Untestable:
    """In Model 0 the major differences occur at the attention scores and patterns."""
    if missing := models.missing(ONE_SUM):
        return Untestable(missing)
    attention = np.array([name.startswith(("attn_scores", "pattern")) for name in models.names[ONE_SUM]])
    if not attention.any():
        return Untestable("no attention map is among the layers")
    at = attention[:-1] | attention[1:]
    if len(attention) < 3 or at.all():
        return Untestable("needs three layers, and two in a row that are no attention map")
    steps = models.apart[ONE_SUM].diagonal(1)
    shifted = np.stack([np.roll(at, by) for by in range(len(at))])
    values = (shifted @ steps) / at.sum() - (~shifted @ steps) / (~at).sum()
    how = f"{len(at)} shifts of the attention maps along the layers"
    return Weighed(float(values[0]), by_chance(float(values[0]), values, how))


def _cells(values: Square, kept: np.ndarray | slice = slice(None)) -> np.ndarray:
    """The distances of all pairs of some layers."""
    part = values[kept][:, kept]
    return part[np.triu_indices(len(part), k=1)]


@analysis(studies=("similarity",), within=True)
def modular_layers(run: Finished, options: ModularLayers, claims: Sequence[Claim]) -> Part:
    verdicts = []
    for label, layers in run.maps.items():
        names, apart = {}, {}
        for training, model in run.trained.items():
            if (place := layers.places.get(model)) is not None:
                order = in_order(layers.names[place])
                names[training] = [layers.names[place][i] for i in order]
                values = distances(layers.values[place, place], layers.measure.larger_is_closer)
                apart[training] = values[np.ix_(order, order)]
        verdicts += [each.verdict(label, Layers(names=names, apart=apart)) for each in claims]
    return Part(claims=verdicts)
