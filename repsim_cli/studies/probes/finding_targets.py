"""Which layers are closest to a known function of the input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.findings.analysis import Finished, LayerMap, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import Evidence
from repsim_cli.findings.layers import in_order
from repsim_cli.runs.content import BY_BLOCK, Table

LISTED = 10  # layers per target
ALIKE = 0.1  # share of the best value up to which another layer is as close
CLOSEST, RANKED = "closest to targets", "layers by target"
COLUMNS = {
    CLOSEST: ["measure", "model", "target", "closest", "value", "others within 10 %"],
    RANKED: ["measure", "model", "target", "rank", "layer", "value"],
}


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The layers of every model that are closest to each known function of the input (`options.targets`). There are no
    settings.
    """


@dataclass(frozen=True, kw_only=True)
class Near:
    """Of one model under one measure. names: of its layers, in the order of the network. values: by target, of each
    layer."""

    names: Sequence[str] = ()
    values: Mapping[str, Float[np.ndarray, " l"]] = field(default_factory=dict)
    larger_is_closer: bool = False

    def distances(self, target: str) -> Float[np.ndarray, " l"]:
        """Of similarities the negative."""
        return -self.values[target] if self.larger_is_closer else self.values[target]


def near(layers: LayerMap, targets: str) -> dict[str, Near]:
    """By model, the values of its layers and each target, which is the row. targets: the label of these functions."""
    rows, by_model = layers.places[targets], {}
    for model, place in layers.places.items():
        if model == targets:
            continue
        order = in_order(layers.names[place])
        block = layers.values[rows, place][:, order]
        values = dict(zip(layers.names[rows], block, strict=True))
        names = [layers.names[place][i] for i in order]
        by_model[model] = Near(names=names, values=values, larger_is_closer=layers.measure.larger_is_closer)
    return by_model


def ranking(distances: Float[np.ndarray, " l"]) -> list[int]:
    """Places of the layers from the closest on; equal ones keep their order."""
    return distances.argsort(kind="stable").tolist()


def alike(distances: Float[np.ndarray, " l"]) -> int:
    """How many layers beside the closest one are within 10 % of its value.

    >>> alike(np.array([0.5, 0.2, 0.21, 0.22, 0.23]))
    2
    """
    best = distances.min()
    return int((np.abs(distances - best) <= ALIKE * abs(best) + 1e-12).sum()) - 1


def tables(every: Mapping[str, Mapping[str, Near]]) -> dict[str, Table]:
    """The closest layers of every model. every: by measure and model."""
    rows: dict[str, list[list[Any]]] = {table: [] for table in COLUMNS}
    for measure, models in every.items():
        for model, layers in models.items():
            for target, values in layers.values.items():
                distances, about = layers.distances(target), [measure, model, target]
                places = ranking(distances)[:LISTED]
                best = places[0]
                rows[CLOSEST].append([*about, layers.names[best], float(values[best]), alike(distances)])
                rows[RANKED] += [[*about, k, layers.names[i], float(values[i])] for k, i in enumerate(places, 1)]
    return {name: Table(columns=COLUMNS[name], rows=lines) for name, lines in rows.items()}


# ---- claims: of the model that was trained block by block, Model L; the paper counts blocks from 1 ----


@claim(
    "Gao et al. 2024, table 1",
    statistic="rank of resid_post@0 of Model L by distance to c1",
    threshold=1.0,
    published="below",
    of=(BY_BLOCK,),
)
def c1_is_nearest_to_the_first_block(model: Near) -> Weighed | Untestable:
    """Of all representations of Model L, the output of block 1 is the nearest to c1."""
    return _nearest(model, "c1", "resid_post@0")


@claim(
    "Gao et al. 2024, table 1",
    statistic="rank of resid_post@1 of Model L by distance to c2",
    threshold=1.0,
    published="below",
    of=(BY_BLOCK,),
)
def c2_is_nearest_to_the_second_block(model: Near) -> Weighed | Untestable:
    """Of all representations of Model L, the output of block 2 is the nearest to c2."""
    return _nearest(model, "c2", "resid_post@1")


@claim(
    "Gao et al. 2024, table 1",
    statistic="rank by distance to c3 of the further one of resid_post@1 and resid_post@2",
    threshold=9.0,
    published="below",
    of=(BY_BLOCK,),
)
def c_is_near_the_last_blocks(model: Near) -> Weighed | Untestable:
    """Nearest to c in Model L are the outputs of blocks 2 and 3, and 7 others as near."""
    ranked = [_ranked(model, "c3", layer) for layer in ("resid_post@1", "resid_post@2")]
    for answer in ranked:
        if isinstance(answer, Untestable):
            return answer
    nearer, as_near = max(answer for answer in ranked if not isinstance(answer, Untestable))
    layers = len(model.names)

    def both(count: int) -> float:
        """The chance that two layers are among so many."""
        return count * (count - 1) / (layers * (layers - 1))

    evidence = Evidence(1 - both(nearer), both(as_near), _any_layer(layers, "any two"), smallest=both(2))
    return Weighed(float(1 + nearer), evidence)


def _ranked(model: Near, target: str, layer: str) -> tuple[int, int] | Untestable:
    """How many layers are nearer to the target than this one, and how many are as near, itself included. Equal layers
    (the output of a block is the input of the next) have one rank."""
    if target not in model.values or layer not in model.names:
        return Untestable(f"needs a model trained {BY_BLOCK} with {layer}, and options.targets with {target}")
    distances = model.distances(target)
    distance = distances[list(model.names).index(layer)]
    return int((distances < distance).sum()), int((distances <= distance).sum())


def _nearest(model: Near, target: str, layer: str) -> Weighed | Untestable:
    ranked = _ranked(model, target, layer)
    if isinstance(ranked, Untestable):
        return ranked
    (nearer, as_near), layers = ranked, len(model.names)
    evidence = Evidence(1 - nearer / layers, as_near / layers, _any_layer(layers, "any"), smallest=1 / layers)
    return Weighed(float(1 + nearer), evidence)


def _any_layer(layers: int, which: str) -> str:
    return f"{which} of {layers} layers may be the nearest by chance"


@analysis(studies=("similarity",), unasked=lambda planned: bool(planned.options.get("targets")), within=True)
def targets(run: Finished, options: Targets, claims: Sequence[Claim]) -> Part:
    functions = run.options.get("targets")
    every = {label: near(layers, functions) if functions else {} for label, layers in run.maps.items()}
    trained = run.trained.get(BY_BLOCK, "")
    verdicts = [each.verdict(label, models.get(trained, Near())) for label, models in every.items() for each in claims]
    return Part(tables=tables(every) if functions else {}, claims=verdicts)
