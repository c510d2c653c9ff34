"""Which layers are closest to a known function of the input."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.findings.analysis import Finished, LayerMap, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FLIPS, weigh_by_sign_test
from repsim_cli.findings.layers import order_layers
from repsim_cli.runs.content import BY_BLOCK, Table

LISTED = 10  # layers per target
ALIKE = 0.1  # share of the best value up to which another layer is as close
CLOSEST, RANKED = "closest to targets", "layers by target"
COLUMNS = {
    CLOSEST: ["measure", "model", "target", "closest", "value", "others within 10 %"],
    RANKED: ["measure", "model", "target", "rank", "layer", "value"],
}


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The layers of every model that are closest to each known function of the input (`options.targets`). There are no
    settings.
    """


@dataclass(frozen=True, kw_only=True)
class Near:
    """How near the layers of a model are to each target, under one measure. names: of its layers, in the order of the
    network. values: by target, of each layer."""

    names: Sequence[str] = ()
    values: Mapping[str, Float[np.ndarray, " l"]] = field(default_factory=dict)
    larger_is_closer: bool = False

    def distances(self, target: str) -> Float[np.ndarray, " l"]:
        """The distance of each layer to a target; of similarities their negative."""
        return -self.values[target] if self.larger_is_closer else self.values[target]


def read_target_values(layers: LayerMap, targets: str) -> dict[str, Near]:
    """Reads the values of every model's layers for each target, by model. targets: the label of the stored targets."""
    rows, by_model = layers.places[targets], {}
    for model, place in layers.places.items():
        if model == targets:
            continue
        order = order_layers(layers.names[place])
        block = layers.values[rows, place][:, order]
        values = dict(zip(layers.names[rows], block, strict=True))
        names = [layers.names[place][i] for i in order]
        by_model[model] = Near(names=names, values=values, larger_is_closer=layers.measure.larger_is_closer)
    return by_model


def rank_layers(distances: Float[np.ndarray, " l"]) -> list[int]:
    """Places of the layers from the closest on; equal ones keep their order."""
    return distances.argsort(kind="stable").tolist()


def count_near_ties(distances: Float[np.ndarray, " l"]) -> int:
    """Counts the layers beside the closest one that are within 10 % of its value.

    >>> count_near_ties(np.array([0.5, 0.2, 0.21, 0.22, 0.23]))
    2
    """
    best = distances.min()
    return int((np.abs(distances - best) <= ALIKE * abs(best) + 1e-12).sum()) - 1


def make_tables(every: Mapping[str, Mapping[str, Near]]) -> dict[str, Table]:
    """The closest layers of every model. every: by measure and model."""
    rows: dict[str, list[list[Any]]] = {table: [] for table in COLUMNS}
    for measure, models in every.items():
        for model, layers in models.items():
            for target, values in layers.values.items():
                distances, about = layers.distances(target), [measure, model, target]
                places = rank_layers(distances)[:LISTED]
                best = places[0]
                rows[CLOSEST].append([*about, layers.names[best], float(values[best]), count_near_ties(distances)])
                rows[RANKED] += [[*about, k, layers.names[i], float(values[i])] for k, i in enumerate(places, 1)]
    return {name: Table(columns=COLUMNS[name], rows=lines) for name, lines in rows.items()}


# ---- claims: of models that were trained block by block, seeds of Model L; the paper counts blocks from 1 ----

SHARE = "share of the seeds of Model L in which {}"


def _claim_nearest(what: str) -> Any:
    return claim(
        "Gao et al. 2024, table 1", statistic=SHARE.format(what), threshold=0.5, unit="seed", of=(BY_BLOCK,)
    )  # fmt: skip


@_claim_nearest("resid_post@0 is the nearest to c1")
def c1_is_nearest_to_the_first_block(models: Sequence[Near]) -> Weighed | Untestable:
    """Of all representations of Model L, the output of block 1 is the nearest to c1."""
    return _count_among_nearest(models, "c1", ["resid_post@0"], 1)


@_claim_nearest("resid_post@1 is the nearest to c2")
def c2_is_nearest_to_the_second_block(models: Sequence[Near]) -> Weighed | Untestable:
    """Of all representations of Model L, the output of block 2 is the nearest to c2."""
    return _count_among_nearest(models, "c2", ["resid_post@1"], 1)


@_claim_nearest("resid_post@1 and resid_post@2 are among the nine nearest to c3")
def c_is_near_the_last_blocks(models: Sequence[Near]) -> Weighed | Untestable:
    """Nearest to c in Model L are the outputs of blocks 2 and 3, and 7 others as near."""
    return _count_among_nearest(models, "c3", ["resid_post@1", "resid_post@2"], 9)


def _count_among_nearest(models: Sequence[Near], target: str, named: Sequence[str], first: int) -> Weighed | Untestable:
    """Computes the share of models in which each of these layers is among the `first` nearest, ties included."""
    known = [model for model in models if target in model.values and set(named) <= set(model.names)]
    if not known:
        layers = " and ".join(named)
        return Untestable(f"needs {FLIPS} models trained {BY_BLOCK} with {layers}, and options.targets with {target}")
    hits = 0
    for model in known:
        distances = model.distances(target)
        hits += all((distances < distances[list(model.names).index(layer)]).sum() < first for layer in named)
    over = weigh_by_sign_test(hits, len(known), "seed")
    # seeds may share an order of layers that is any: it seldom has just these among the first
    layers, few = min(len(model.names) for model in known), len(named)
    shared = math.comb(first, few) / math.comb(max(layers, first), few)
    how = f"{over.how}, and by chance among {layers} layers"
    return Weighed(hits / len(known), replace(over, above=max(over.above, shared), how=how))


@analysis(studies=("similarity",), unasked=lambda planned: bool(planned.options.get("targets")), within=True)
def targets(run: Finished, options: TargetOptions, claims: Sequence[Claim]) -> Part:
    functions = run.options.get("targets")
    every = {label: read_target_values(layers, functions) if functions else {} for label, layers in run.maps.items()}
    trained = run.trained.get(BY_BLOCK, [])
    verdicts = [
        each.verdict(label, [models[model] for model in trained if model in models])
        for label, models in every.items()
        for each in claims
    ]
    return Part(tables=make_tables(every) if functions else {}, claims=verdicts)
