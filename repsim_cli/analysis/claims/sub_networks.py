"""Claims on the layers of single models: where known functions are computed, and which layers form sub-networks.

Models 0, E and L of Gao et al. 2024 are known by their labels: see `modular.of_letter`. The paper counts blocks from 1:
its Resid-Post1 is resid_post@0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float

from repsim_cli.analysis.claims.finding import Finding, record, untestable
from repsim_cli.analysis.claims.modular import of_letter
from repsim_cli.analysis.sub_networks import block_of

Square = Float[np.ndarray, "n n"]


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Of every model under one measure: the names of its layers and the distances between them (of similarities how far
    they are below the largest), both in the order of the network, and to every target.

    clusters: how many spectral clusters were found; agreement: the adjusted Rand index of groups that were given and as
    many spectral clusters.
    """

    names: Mapping[str, Sequence[str]]
    own: Mapping[str, Square]
    targets: Mapping[str, Mapping[str, Float[np.ndarray, " l"]]] = field(default_factory=dict)
    clusters: Mapping[str, int] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)

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
    ranks = [_rank(found, "c3", layer) for layer in ("resid_post@1", "resid_post@2")]
    if any(isinstance(rank, str) for rank in ranks):
        return untestable(statistic, threshold, next(rank for rank in ranks if isinstance(rank, str)))
    value = float(max(rank for rank in ranks if not isinstance(rank, str)))
    return Finding(statistic, threshold, value <= threshold, value)


def layer_wise_training_gives_three_groups(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: Model L has predominantly 3 groupings of layers, as many as functions trained."""
    statistic, threshold, model = "spectral clusters of Model L", 3.0, found.label("l")
    if model not in found.clusters:
        return untestable(statistic, threshold, f"needs {model} and options.sub_networks, with clusters to be chosen")
    value = float(found.clusters[model])
    return Finding(statistic, threshold, value == threshold, value)


def layer_wise_groups_are_the_published(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: in Model L layers 20 to 44 and 52 to 72, 12 to 19 and 45 to 51, and the rest."""
    statistic, threshold = "adjusted Rand index of three spectral clusters of Model L and the published groups", 0.5
    model = found.label("l")
    if model not in found.agreement:
        return untestable(statistic, threshold, f"needs options.sub_networks.given of {model}")
    value = found.agreement[model]
    return Finding(statistic, threshold, value >= threshold, value)


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
    inside = last[:, None] & last
    pairs = np.triu(np.ones_like(inside), 1)
    values = found.own[model]
    value = float(values[inside & pairs].mean() / values[~inside & pairs].mean())
    return Finding(statistic, threshold, value <= threshold, value)


def layer_wise_distances_are_larger(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: distances are larger in Model L than in Model E."""
    statistic, threshold = "mean distance between layers: Model L minus Model E", 0.0
    models = [found.label(letter) for letter in "le"]
    if absent := _absent(found, *models):
        return untestable(statistic, threshold, absent)
    if min(len(found.own[model]) for model in models) < 2:
        return untestable(statistic, threshold, "needs two layers of each")
    means = [float(_cells(found.own[model]).mean()) for model in models]
    return Finding(statistic, threshold, means[0] > means[1], means[0] - means[1])


def training_changes_the_pattern(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: the patterns of Models L and E differ."""
    statistic, threshold = "Spearman's rho between the distances of Model L and of Model E, pair by pair", 0.5
    models = [found.label(letter) for letter in "le"]
    if absent := _absent(found, *models):
        return untestable(statistic, threshold, absent)
    if list(found.names[models[0]]) != list(found.names[models[1]]):
        return untestable(statistic, threshold, "the two models have different layers")
    one, other = (_cells(found.own[model]) for model in models)
    if min(len(np.unique(one)), len(np.unique(other))) < 2:
        return untestable(statistic, threshold, "needs three layers that are not all as far apart")
    value = float(np.asarray(scipy.stats.spearmanr(one, other))[0])
    return Finding(statistic, threshold, value <= threshold, value)


def attention_makes_the_first_differences(found: Layers) -> Finding:
    """Gao et al. 2024, section 5.1: in Model 0 the major differences occur at the attention scores and patterns."""
    statistic, threshold = "of the two largest distances of consecutive layers of Model 0, at scores or patterns", 2.0
    model = found.label("0")
    if absent := _absent(found, model):
        return untestable(statistic, threshold, absent)
    attention = [name.startswith(("attn_scores", "pattern")) for name in found.names[model]]
    if not any(attention):
        return untestable(statistic, threshold, "no attention map is among the layers")
    if len(attention) < 3:
        return untestable(statistic, threshold, "needs three layers")
    largest = found.own[model].diagonal(1).argsort()[-2:]
    value = float(sum(attention[i] or attention[i + 1] for i in largest))
    return Finding(statistic, threshold, value >= threshold, value)


def _cells(values: Square) -> np.ndarray:
    return values[np.triu_indices(len(values), k=1)]


def _absent(found: Layers, *labels: str) -> str:
    """Which of the models are not there, in words."""
    absent = [label for label in labels if label not in found.own]
    return f"needs {' and '.join(absent)}" if absent else ""


def _rank(found: Layers, target: str, layer: str) -> int | str:
    """1 and the layers of Model L that are nearer to the target, or why there is none. Equal layers (the output of a
    block is the input of the next) have one rank."""
    model = found.label("l")
    values = found.targets.get(model, {}).get(target)
    if values is None or layer not in found.names[model]:
        return f"needs {model} with {layer}, and options.targets with {target}"
    own = values[list(found.names[model]).index(layer)]
    return 1 + int((values < own).sum())


def _nearest(found: Layers, target: str, layer: str) -> Finding:
    statistic, threshold = f"rank of {layer} of Model L by distance to {target}", 1.0
    rank = _rank(found, target, layer)
    if isinstance(rank, str):
        return untestable(statistic, threshold, rank)
    return Finding(statistic, threshold, rank <= threshold, float(rank))


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
