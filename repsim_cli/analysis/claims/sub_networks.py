"""Claims on the layers of single models: where known functions are computed, and which layers form sub-networks.

Models 0, E and L of Gao et al. 2024 are known by their labels: see `modular.of_letter`. The paper counts blocks from 1:
its Resid-Post1 is resid_post@0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.analysis.claims.finding import FAILS, HOLDS, UNCLEAR, Finding, judged, record, untestable
from repsim_cli.analysis.claims.modular import of_letter
from repsim_cli.analysis.distances import adjusted_rand
from repsim_cli.findings.evidence import (
    GROUPS,
    LEVEL,
    Evidence,
    by_chance,
    by_jackknife,
    over_cells,
    ranks,
    without,
)
from repsim_cli.findings.layers import block_of
from repsim_cli.findings.maps import ranked_cells, ranked_distances

Square = Float[np.ndarray, "n n"]


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Of every model under one measure: the names of its layers and the distances between them (of similarities how far
    they are below the largest), both in the order of the network, and to every target.

    clusters: how many spectral clusters were found. as_given: the group of every layer in as many spectral clusters as
    groups were given, and in these.
    """

    names: Mapping[str, Sequence[str]]
    own: Mapping[str, Square]
    targets: Mapping[str, Mapping[str, Float[np.ndarray, " l"]]] = field(default_factory=dict)
    clusters: Mapping[str, int] = field(default_factory=dict)
    as_given: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)

    def label(self, letter: str) -> str:
        """Of the model of that letter; the published one where it is absent."""
        return of_letter(letter, self.names) or f"modsum_{letter}"


def c1_is_nearest_to_the_first_block(found: Layers) -> Finding:
    """Gao et al. 2024, table 1: of all representations of Model L, the output of block 1 is the nearest to c1."""
    return _nearest(found, "c1", "resid_post@0")


def c2_is_nearest_to_the_second_block(found: Layers) -> Finding:
    """Gao et al. 2024, table 1: of all representations of Model L, the output of block 2 is the nearest to c2."""
    return _nearest(found, "c2", "resid_post@1")


def c_is_near_the_last_blocks(found: Layers) -> Finding:
    """Gao et al. 2024, table 1: nearest to c in Model L are the outputs of blocks 2 and 3, and 7 others as near."""
    statistic, threshold = "rank by distance to c3 of the further one of resid_post@1 and resid_post@2", 9.0
    ranked = [_ranked(found, "c3", layer) for layer in ("resid_post@1", "resid_post@2")]
    for one in ranked:
        if isinstance(one, str):
            return untestable(statistic, threshold, one)
    rank, nearer, as_near = max(one for one in ranked if not isinstance(one, str))
    layers = len(found.targets[found.label("l")]["c3"])

    def both(count: int) -> float:
        """The chance that two layers are among so many."""
        return count * (count - 1) / (layers * (layers - 1))

    evidence = Evidence(1 - both(nearer), both(as_near), _any_layer(layers, "any two"), smallest=both(2))
    return judged(statistic, threshold, float(rank), evidence, published="below")


def layer_wise_training_gives_three_groups(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: Model L has predominantly 3 groupings of layers, as many as functions trained."""
    statistic, threshold, model = "spectral clusters of Model L", 3.0, found.label("l")
    if model not in found.clusters:
        return untestable(statistic, threshold, f"needs {model} and options.sub_networks, with clusters to be chosen")
    count = found.clusters[model]
    if count == 1:
        return Finding(statistic, threshold, UNCLEAR, 1.0, "no clusters are told from a smooth gradient")
    why = "more than one cluster is found in about 5 % of gradients and noise"
    return Finding(statistic, threshold, HOLDS if count == threshold else FAILS, float(count), why)


def layer_wise_groups_are_the_published(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: in Model L layers 20 to 44 and 52 to 72, 12 to 19 and 45 to 51, and the rest."""
    statistic, threshold = "adjusted Rand index of three spectral clusters of Model L and the published groups", 0.5
    model = found.label("l")
    if model not in found.as_given:
        return untestable(statistic, threshold, f"needs options.sub_networks.given of {model}")
    own, given = (np.unique(labels, return_inverse=True)[1] for labels in found.as_given[model])
    shifted = np.stack([np.roll(given, by) for by in range(len(given))])
    values = adjusted_rand(shifted, own)
    how = f"{len(given)} shifts of the given groups along the layers"
    return judged(statistic, threshold, float(values[0]), by_chance(float(values[0]), values, how))


def end_to_end_training_ends_alike(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: in Model E all layers from 64 on, those of block 3, are similar."""
    statistic, threshold = "Model E: mean distance within the last block over that of all other pairs", 0.5
    model = found.label("e")
    if absent := _absent(found, model):
        return untestable(statistic, threshold, absent)
    blocks = [block_of(name) for name in found.names[model]]
    last = np.array([block == blocks[-1] for block in blocks])
    if blocks[-1] is None or last.all() or last.sum() < 2:
        return untestable(statistic, threshold, "needs a last block of two layers, and one before it")
    values, pairs = found.own[model], np.triu(np.ones((len(blocks), len(blocks)), bool), 1)

    def share(here: np.ndarray) -> float:
        inside = here[:, None] & here
        return float(values[inside & pairs].mean() / values[~inside & pairs].mean())

    shares = np.array([share(np.roll(last, by)) for by in range(len(blocks))])  # neighbours stay neighbours
    evidence = by_chance(float(shares[0]), shares, f"{len(shares)} shifts of the block along the layers")
    return judged(statistic, threshold, float(shares[0]), evidence, published="below")


def layer_wise_distances_are_larger(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: distances are larger in Model L than in Model E."""
    statistic, threshold = "mean distance between layers: Model L minus Model E", 0.0
    models = [found.label(letter) for letter in "le"]
    if absent := _absent(found, *models):
        return untestable(statistic, threshold, absent)
    one, other = (found.own[model] for model in models)
    if min(len(one), len(other)) < 4:
        return untestable(statistic, threshold, "needs four layers of each")
    value = float(_cells(one).mean() - _cells(other).mean())
    groups = min(GROUPS, len(one), len(other))
    left_out = [
        float(_cells(one, kept).mean() - _cells(other, its).mean())
        for kept, its in zip(without(len(one), groups), without(len(other), groups), strict=True)
    ]
    return judged(statistic, threshold, value, by_jackknife(value, threshold, left_out, OVER_LAYERS))


def training_changes_the_pattern(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: the patterns of Models L and E differ."""
    statistic, threshold = "Spearman's rho between the distances of Model L and of Model E, pair by pair", 0.5
    models = [found.label(letter) for letter in "le"]
    if absent := _absent(found, *models):
        return untestable(statistic, threshold, absent)
    if list(found.names[models[0]]) != list(found.names[models[1]]):
        return untestable(statistic, threshold, "the two models have different layers")
    one, other = (found.own[model] for model in models)
    if min(len(np.unique(_cells(x))) for x in (one, other)) < 2 or len(one) < 4:
        return untestable(statistic, threshold, "needs four layers that are not all as far apart")
    for model, x in zip(models, (one, other), strict=True):  # two matrices of noise differ, too
        _, ordered = over_cells([ranked_cells(x)], ranked_distances)
        if ordered.above > LEVEL:
            why = f"the distances of {model} do not grow with the layers between (p = {ordered.above:.2g}): no pattern"
            return untestable(statistic, threshold, why)

    def rho(kept: np.ndarray) -> float:
        return float(ranks(_cells(one, kept)) @ ranks(_cells(other, kept)))

    value = rho(np.arange(len(one)))
    left_out = [rho(kept) for kept in without(len(one))]
    return judged(statistic, threshold, value, by_jackknife(value, threshold, left_out, OVER_LAYERS), published="below")


def attention_makes_the_first_differences(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: in Model 0 the major differences occur at the attention scores and patterns."""
    statistic = "mean distance of consecutive layers of Model 0: at scores or patterns minus elsewhere"
    model = found.label("0")
    if absent := _absent(found, model):
        return untestable(statistic, 0.0, absent)
    attention = np.array([name.startswith(("attn_scores", "pattern")) for name in found.names[model]])
    if not attention.any():
        return untestable(statistic, 0.0, "no attention map is among the layers")
    at = attention[:-1] | attention[1:]
    if len(attention) < 3 or at.all():
        return untestable(statistic, 0.0, "needs three layers, and two in a row that are no attention map")
    steps = found.own[model].diagonal(1)
    shifted = np.stack([np.roll(at, by) for by in range(len(at))])
    values = (shifted @ steps) / at.sum() - (~shifted @ steps) / (~at).sum()
    how = f"{len(at)} shifts of the attention maps along the layers"
    return judged(statistic, 0.0, float(values[0]), by_chance(float(values[0]), values, how))


OVER_LAYERS = "standard error over the layers, a tenth of neighbours left out at a time"


def _cells(values: Square, kept: np.ndarray | slice = slice(None)) -> np.ndarray:
    """The distances of all pairs of some layers."""
    own = values[kept][:, kept]
    return own[np.triu_indices(len(own), k=1)]


def _absent(found: Layers, *labels: str) -> str:
    """Which of the models are not there, in words."""
    absent = [label for label in labels if label not in found.own]
    return f"needs {' and '.join(absent)}" if absent else ""


def _ranked(found: Layers, target: str, layer: str) -> tuple[int, int, int] | str:
    """Of a layer of Model L its rank by distance to the target, how many are nearer, and how many are as near, itself
    included; or why there is none. Equal layers (the output of a block is the input of the next) have one rank."""
    model = found.label("l")
    values = found.targets.get(model, {}).get(target)
    if values is None or layer not in found.names[model]:
        return f"needs {model} with {layer}, and options.targets with {target}"
    own = values[list(found.names[model]).index(layer)]
    nearer = int((values < own).sum())
    return 1 + nearer, nearer, int((values <= own).sum())


def _nearest(found: Layers, target: str, layer: str) -> Finding:
    statistic, threshold = f"rank of {layer} of Model L by distance to {target}", 1.0
    ranked = _ranked(found, target, layer)
    if isinstance(ranked, str):
        return untestable(statistic, threshold, ranked)
    (rank, nearer, as_near), layers = ranked, len(found.targets[found.label("l")][target])
    evidence = Evidence(1 - nearer / layers, as_near / layers, _any_layer(layers, "any"), smallest=1 / layers)
    return judged(statistic, threshold, float(rank), evidence, published="below")


def _any_layer(layers: int, which: str) -> str:
    return f"{which} of {layers} layers may be the nearest by chance"


LAYER_CLAIMS: dict[str, Callable[[Layers], Finding]] = {
    function.__name__: function
    for function in (
        c1_is_nearest_to_the_first_block,
        c2_is_nearest_to_the_second_block,
        c_is_near_the_last_blocks,
        layer_wise_training_gives_three_groups,
        layer_wise_groups_are_the_published,
        end_to_end_training_ends_alike,
        layer_wise_distances_are_larger,
        training_changes_the_pattern,
        attention_makes_the_first_differences,
    )
}


def layer_verdicts(names: Sequence[str], measure: str, found: Layers) -> list[dict[str, Any]]:
    """Claims on the layers of single models, as results.json keeps them."""
    claims = [LAYER_CLAIMS[name] for name in names if name in LAYER_CLAIMS]
    return [record(claim, measure, claim(found)) for claim in claims]
