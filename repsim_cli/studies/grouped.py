"""What studies over named groups of models share: which models, curves by depth, distances, and claims on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.activations.inputs import named
from repsim_cli.activations.rows import Reading
from repsim_cli.analysis.claims.finding import record
from repsim_cli.analysis.claims.groups import DISTANCE_CLAIMS
from repsim_cli.analysis.distances import angles, between_models, distances
from repsim_cli.analysis.groups import Depths, Members, by_depth, resolve, ties
from repsim_cli.errors import BadInput, Degenerate, RunFailed
from repsim_cli.measures import Measure
from repsim_cli.models.source import AnySource, Precomputed
from repsim_cli.results import Run, slug
from repsim_cli.settings import Group, Ranked


def listed(groups: Mapping[str, Group]) -> dict[str, list[str]]:
    """The models of the groups where all are named; none where some are chosen by a metric, in the run."""
    if any(isinstance(group, Ranked) for group in groups.values()):
        return {}
    return {name: list(group) for name, group in groups.items() if not isinstance(group, Ranked)}


def of_groups(models: Mapping[str, AnySource], members: Members) -> dict[str, AnySource]:
    """The models that stand in groups, in their order: no other needs to be run. All of them without groups."""
    return {label: models[label] for group in members.values() for label in group} or dict(models)


def check_metrics(groups: Mapping[str, Group], models: Mapping[str, AnySource]) -> None:
    """Raises BadInput where models are to be ranked that have no metrics."""
    for name, by in {name: group.by for name, group in groups.items() if isinstance(group, Ranked)}.items():
        for label, source in models.items():
            if isinstance(source, Precomputed) or source.metrics is None:
                raise BadInput(
                    f"groups.{name}.by: '{label}' has no metrics, got {by}; name the models of the group, or "
                    "use fine-tuned ones, which are saved with theirs"
                )


def chosen(run: Run, groups: Mapping[str, Group], models: Mapping[str, AnySource]) -> dict[str, list[str]]:
    """The models of every group, those by metric resolved, and noted in the manifest."""
    ranked = list(dict.fromkeys(group.by for group in groups.values() if isinstance(group, Ranked)))
    metrics = {
        label: named(label, source.metrics)
        for label, source in (models if ranked else {}).items()
        if not isinstance(source, Precomputed) and source.metrics is not None
    }
    members = resolve(groups, metrics)
    run.manifest["groups"] = {
        name: {label: {by: metrics[label][by] for by in ranked} for label in labels} for name, labels in members.items()
    }
    for tie in ties(groups, members, metrics):
        run.warn(tie)
    return members


class Point(NamedTuple):
    """The layers of one hook point: their places among the model's, and the share of blocks at or below each."""

    places: list[int]
    shares: list[float]


def points_of(reading: Reading) -> dict[str, Point]:
    """By hook point, e.g. `mlp_out`; stored activations are one point."""
    if isinstance(reading.source, Precomputed):
        count = len(reading.layers)
        return {"layers": Point(list(range(count)), [(i + 1) / count for i in range(count)])}
    found: dict[str, Point] = {}
    for i, point in enumerate(reading.points):
        one = found.setdefault(str(point) if point.layer is None else point.kind, Point([], []))
        one.places.append(i)
        one.shares.append(0.0 if point.layer is None else (point.layer + 1) / reading.source.layers)
    return found


def curves(
    quantity: str, label: str, point: str, layers: list[str], depths: Depths, level: float, seed: int
) -> dict[str, Any]:
    """One curve per kind of pair, by name, as results.json keeps them."""
    return {
        f"{quantity}, {point}, {'-'.join(kind)}": {
            "quantity": quantity,
            "label": label,
            "point": point,
            "pairs_of": list(kind),
            "layers": layers,
            "shares": depths.shares.tolist(),
            **curve,
        }
        for kind, curve in by_depth(depths, level=level, seed=seed).items()
    }


def counterparts(values: np.ndarray, readings: Sequence[Reading], point: str) -> np.ndarray:
    """(m, m, l): of layer l of this point, from the matrix of all layers of all models."""
    starts = np.cumsum([0, *(len(reading.layers) for reading in readings)])[:-1]
    at = starts[:, None] + np.array(points_of(readings[0])[point].places)
    return values[at[:, None], at[None]]


@dataclass
class Distances:
    """Distances between models, added up measure by measure and point by point."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def add(self, run: Run, name: str, measure: Measure, depths: Depths, wanted: Sequence[str], seed: int) -> None:
        try:
            values = distances(depths.values if measure.card.is_metric else angles(depths.values))
            one = between_models(depths.groups, values, seed)
        except Degenerate as error:
            raise RunFailed(f"{name}: {error}") from error
        self.claims += [
            record(claim, name, claim(depths.groups, values, one))
            for claim in (DISTANCE_CLAIMS[word] for word in wanted if word in DISTANCE_CLAIMS)
        ]
        arrays = {"values": values, "linkage": one.pop("linkage")}
        label = measure.card.label if measure.card.is_metric else f"arccos {measure.card.label}"
        self.found[name] = {
            "label": label,
            "groups": {group: list(models) for group, models in depths.groups.items()},
            **one,
            **{key: run.write_array(f"distances-{len(self.found)}-{slug(name)}-{key}", x) for key, x in arrays.items()},
        }
