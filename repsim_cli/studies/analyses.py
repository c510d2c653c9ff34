"""What follows from the finished map of all layers of all models: each function gives a part of results.json."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repsim_cli.activations.rows import Reading
from repsim_cli.analysis import targets as of_targets
from repsim_cli.analysis.agreement import agreement
from repsim_cli.analysis.claims.finding import record
from repsim_cli.analysis.claims.groups import GROUP_CLAIMS
from repsim_cli.analysis.claims.layers import CLAIMS, verdict
from repsim_cli.analysis.claims.maps import MAP_CLAIMS, MAPS_CLAIMS, Map, map_verdicts
from repsim_cli.analysis.claims.sub_networks import LAYER_CLAIMS, Layers, layer_verdicts
from repsim_cli.analysis.distances import tables as tables_of
from repsim_cli.analysis.groups import Depths, Members
from repsim_cli.analysis.localization import base_curve, curve, localization, other_means, to_base
from repsim_cli.analysis.solved import summary
from repsim_cli.analysis.sub_networks import FEWEST, Labels, distances, found_in, in_order
from repsim_cli.analysis.sub_networks import tables as tables_of_groups
from repsim_cli.measures import Measure
from repsim_cli.measures.base import Audit
from repsim_cli.models.source import AnySource, Source, families
from repsim_cli.results import Run
from repsim_cli.settings import SubNetworks
from repsim_cli.similarity import SimilarityMatrix
from repsim_cli.studies.grouped import Distances, counterparts, curves, points_of
from repsim_cli.studies.record import places_of

OF_MAPS = {**CLAIMS, **MAP_CLAIMS, **MAPS_CLAIMS, **LAYER_CLAIMS}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """values: (layers, layers) of every measure, by its label in the run. rows: that are compared at a time. base: the
    model that others come from."""

    models: Mapping[str, AnySource]
    readings: Sequence[Reading]
    measures: Mapping[str, Measure]
    values: Mapping[str, np.ndarray]
    rows: int
    claims: Sequence[str]
    base: str | None

    @property
    def names(self) -> list[str]:
        return [layer.name for reading in self.readings for layer in reading.layers]

    @property
    def places(self) -> dict[str, slice]:
        return dict(zip((reading.label for reading in self.readings), places_of(self.readings), strict=True))

    @property
    def similarities(self) -> dict[str, np.ndarray]:
        """Of the measures that are larger for closer layers."""
        return {label: x for label, x in self.values.items() if self.measures[label].card.larger_is_closer}


@dataclass(frozen=True)
class Part:
    """Tables, curves and claims, and what stands under keys of its own."""

    tables: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Any] = field(default_factory=dict)
    claims: Sequence[dict[str, Any]] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


def joined(parts: Sequence[Part]) -> dict[str, Any]:
    """The parts as keys of results.json."""
    return {
        "tables": {name: table for part in parts for name, table in part.tables.items()},
        "curves": {name: one for part in parts for name, one in part.curves.items()},
        "claims": [claim for part in parts for claim in part.claims],
        **{key: value for part in parts for key, value in part.more.items()},
    }


def tested(found: Compared) -> Part:
    """Claims on the matrix of each measure, and on the map under all of them."""
    owners = [reading.label for reading in found.readings for _ in reading.layers]
    plain = [
        verdict(claim, label, owners, values)
        for claim in found.claims
        if claim in CLAIMS
        for label, values in found.similarities.items()
    ]
    labels = {found.measures[label].name: label for label in found.similarities}
    whole = Map(
        models=found.places,
        families=families(found.models),
        values={name: found.values[label] for name, label in labels.items()},
        names=found.names,
        widths=[layer.width for reading in found.readings for layer in reading.layers],
        rows=found.rows,
        base=found.base,
        untrained=frozenset(m for m, one in found.models.items() if isinstance(one, Source) and not one.trained),
    )
    return Part(claims=plain + map_verdicts(found.claims, whole, labels))


PAIRS_SOLVED, AUDIT = "pairs solved one by one", "audit of pairs by another solver"


def solved(run: Run, found: Compared, matrices: Mapping[str, SimilarityMatrix]) -> Part:
    """How the pairs of slow measures were solved: means over batches, pairs of a layer with itself left out."""
    names = [str(layer) for reading in found.readings for layer in reading.layers]
    rows, audits = [], []
    for label, matrix in matrices.items():
        slow, numbers = found.measures[label].slow, {k: v.cpu().numpy() for k, v in matrix.statistics.items()}
        if slow is None or not slow.details or len(names) < 2:
            continue
        rows += [[label, *row] for row in summary(slow.details, found.values[label], numbers)]
        if slow.audit is not None and "audit_value" in numbers:
            rows_of, wrong, notice = audited(label, slow.audit, names, numbers)
            audits += rows_of
            checked = f"audited pairs not {slow.audit.claim} what {slow.audit.solver} finds, of {len(rows_of)}"
            rows.append([label, checked, wrong])
            if notice is not None:
                run.warn(notice)
    tables = {
        PAIRS_SOLVED: {"columns": ["measure", "number", "value"], "rows": rows},
        AUDIT: {"columns": AUDIT_COLUMNS, "rows": audits},
    }
    return Part(tables={name: table for name, table in tables.items() if table["rows"]})


AUDIT_COLUMNS = ["measure", "layer a", "layer b", "value", "reference", "relative difference", "tied distances"]


def audited(
    label: str, audit: Audit, names: Sequence[str], numbers: Mapping[str, np.ndarray]
) -> tuple[list[list[Any]], int, str | None]:
    """The pairs that another solver solved too; how many break the measure's claim where costs are not tied, and a
    warning where some do."""
    rows, wrong = [], []
    for a, b in np.argwhere(~np.isnan(numbers["audit_reference"])):
        value, reference, tied = (float(numbers[f"audit_{key}"][a, b]) for key in ("value", "reference", "tied"))
        off = (value - reference) / reference if reference else value
        rows.append([label, names[a], names[b], value, reference, off, "yes" if tied else "no"])
        if not tied and not audit.agrees(value, reference):
            wrong.append(rows[-1])
    if not wrong:
        return rows, 0, None
    _, a, b, value, reference, *_ = max(wrong, key=lambda row: abs(row[5]))
    return (
        rows,
        len(wrong),
        (
            f"{label}: {len(wrong)} of {len(rows)} audited pairs are not {audit.claim} what {audit.solver} finds, "
            f"e.g. {a} and {b}: {value:.10g}, {reference:.10g} by {audit.solver}"
        ),
    )


def agreed(run: Run, found: Compared) -> Part:
    """Which measures tell the same story."""
    one = agreement({label: (x, found.measures[label].card.larger_is_closer) for label, x in found.values.items()})
    table = one.pop("table")
    arrays = {key: run.write_array(f"agreement-{key}", one.pop(key)) for key in ("rho", "linkage")}
    return Part(tables={"agreement of measures": table}, more={"agreement": {**one, **arrays}})


def by_layer(found: Compared) -> Part:
    """A number per layer: means over all other layers, and localization where its two measures are there."""

    def lines() -> Iterator[tuple[str, dict[str, Any]]]:
        for label, values in found.values.items():
            means = f"mean {label}"
            yield means, curve(f"{means} over all other layers", other_means(values), found.places, found.names)
        both = {found.measures[label].name: values for label, values in found.values.items()}
        if {"neuronsim", "svcca"} <= set(both):
            scores = localization(both["neuronsim"], both["svcca"])
            yield "localization", curve("localization: neuronsim - svcca", scores, found.places, found.names)

    return Part(curves=dict(lines()))


def with_base(found: Compared, base: str) -> Part:
    """The similarity of every layer to the same layer of the base."""
    lines = {}
    for label, values in found.values.items():
        same = to_base(values, found.places, base)
        if same:
            layers = found.names[found.places[base]]
            lines[f"{label} with {base}"] = base_curve(found.measures[label].card.label, same, base, layers)
    return Part(curves=lines)


def by_groups(run: Run, found: Compared, members: Members, *, distances: bool, level: float, seed: int) -> Part:
    """Curves by depth and claims of the groups, and where they are asked for distances between the models."""
    lines, claims, between = {}, [], Distances()
    for label, values in found.values.items():
        measure = found.measures[label]
        for point, (places, shares) in points_of(found.readings[0]).items():
            own = counterparts(values, found.readings, point)
            depths = Depths(members, own, np.array(shares), measure.card.larger_is_closer)
            layers = [found.readings[0].layers[i].name for i in places]
            lines |= curves(label, measure.card.label, point, layers, depths, level, seed)
            name = f"{label}, {point}"
            asked = [GROUP_CLAIMS[word] for word in found.claims if word in GROUP_CLAIMS]
            claims += [record(claim, name, claim(depths)) for claim in asked]
            if distances:
                between.add(run, name, measure, depths, found.claims, seed)
    more = {"groups": run.manifest["groups"], **({"distances": between.found} if distances else {})}
    return Part(tables_of(between.found) if distances else {}, lines, claims + between.claims, more)


def of_single_models(
    found: Compared, *, targets: str | None, groups: SubNetworks | None, given: Mapping[str, Labels]
) -> Part:
    """What the layers of each model say alone: the closest to every target, sub-networks, and claims on both."""
    places = {label: place for label, place in found.places.items() if label != targets}
    orders = {label: in_order(found.names[place]) for label, place in places.items()}
    names = {label: [found.names[place][i] for i in orders[label]] for label, place in places.items()}
    near, looked, claims = {}, {}, []
    for label, values in found.values.items():
        larger = found.measures[label].card.larger_is_closer
        own = {model: values[place, place] for model, place in places.items()}
        to_targets: dict[str, dict[str, np.ndarray]] = {model: {} for model in places}
        if targets is not None:
            for number, target in enumerate(found.names[found.places[targets]], found.places[targets].start):
                for model, place in places.items():
                    to_targets[model][target] = values[number, place][orders[model]]
            near[label] = (to_targets, larger)
        if groups is not None:
            looked[label] = {
                model: found_in(matrix, found.names[places[model]], larger, groups, given.get(model))
                for model, matrix in own.items()
                if len(matrix) >= FEWEST
            }
        spectral = {m: one for m, one in looked.get(label, {}).items() if "spectral" in one["groups"]}
        layers = Layers(
            names=names,
            own={model: distances(x, larger)[np.ix_(orders[model], orders[model])] for model, x in own.items()},
            targets={m: {t: -x if larger else x for t, x in each.items()} for m, each in to_targets.items()},
            clusters={}
            if groups is None or groups.clusters is not None
            else {m: one["groups"]["spectral"]["count"] for m, one in spectral.items()},
            as_given={
                m: (one["as many as given"]["spectral"], given[m].tolist()) for m, one in spectral.items() if m in given
            },
        )
        claims += layer_verdicts(found.claims, label, layers)
    tables = {**(of_targets.tables(near, names) if near else {}), **(tables_of_groups(looked) if groups else {})}
    return Part(tables, claims=claims, more={"sub_networks": looked} if groups else {})
