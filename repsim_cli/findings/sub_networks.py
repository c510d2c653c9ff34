"""Sub-networks: groups of a model's layers that are close to each other and far from the rest (Gao et al. 2024, section
5.2), and figures of the layers of single models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Several
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.distances import compute_adjusted_rand
from repsim_cli.findings.evidence import FEWEST as FEWEST_UNITS
from repsim_cli.findings.evidence import FLIPS, LEVEL, ROUNDING, weigh_by_sign_test, weigh_mean
from repsim_cli.findings.layers import order_layers, read_block_number
from repsim_cli.findings.partitions import (
    FEWEST,
    Labels,
    Partition,
    Square,
    compare_partitions,
    convert_to_distances,
    find_contiguous_segments,
    find_segment_ways,
    find_spectral_clusters,
    find_spectral_ways,
    have_groups,
    list_layer_ranges,
    parse_ranges,
)
from repsim_cli.findings.sub_network_figures import NEXT, draw_sub_networks
from repsim_cli.findings.walks import make_group_finder, require_beyond_walks, say_beyond_walks
from repsim_cli.runs.content import BEYOND_WALKS, BY_BLOCK, Axis, Curve, Numbers, Table

LABELS = "sub-networks"  # what a curve is of
COLUMNS = ["measure", "model", "found by", "sub-networks", "layers", "silhouette", "without groups", BEYOND_WALKS]
AGREEMENT = ["measure", "model", "partitions", "adjusted Rand"]
WAYS = {"spectral": find_spectral_ways, "segments": find_segment_ways}


@dataclass(frozen=True, kw_only=True)
class SubNetworks:
    """Groups of a model's layers that are close to each other and far from the rest, from its matrix of all layers.

    method: `spectral` clusters, contiguous `segments`, or both.
    clusters: how many groups; null: as many as the data suggest, possibly one.
    given: groups to compare with, by model: {LABEL: [0-11 73-92, 12-72]}, ranges of its layers in the order of the
        network, from 0.
    """

    method: Literal["spectral", "segments", "both"] = "both"
    clusters: Several | None = None
    given: dict[str, list[str]] | None = None

    def check(self, planned: Planned) -> None:
        count, targets = self.clusters or 1, planned.options.get("targets")
        depths = {label: len(about.layers) for label, about in planned.models.items() if label != targets}
        if max(depths.values(), default=0) < FEWEST:
            raise BadInput(f"{FEWEST} layers of a model are needed, got {max(depths.values(), default=0)}; read more")
        for label, depth in depths.items():
            if FEWEST <= depth < count:
                raise BadInput(f"clusters: more than the layers of '{label}', got {count} of {depth}; lower it")
        for label, groups in (self.given or {}).items():
            if label not in depths:
                raise BadInput(f"given: no such model, got '{label}'; {did_you_mean(label, depths)}")
            try:
                parse_ranges(groups, depths[label])
            except BadInput as error:
                raise BadInput(f"given.{label}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """The sub-networks of one model under one measure.

    layers: their names, in the order of the network; all else is in this order.
    apart: the distances between them.
    following: (n - 1,) the measure's value of each layer and the next one, both directions averaged.
    groups: by method.
    as_given: by method, the group of every layer in as many groups as were given.
    walks: by method that found several groups by itself, "yes" or "no": whether they are clearer than those of layers
        that wander.
    agreement: adjusted Rand indices of the two methods, with the model's blocks where every layer is of one of
        several that have more layers, and with the given groups, also of as many groups as these are; none where both
        are one group, which agree whatever the layers are like.
    """

    layers: list[str]
    apart: Square
    following: list[float]
    groups: Mapping[str, Partition]
    as_given: Mapping[str, Labels] = field(default_factory=dict)
    walks: Mapping[str, str] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)


def find_sub_networks(
    values: Square, names: Sequence[str], larger_is_closer: bool, options: SubNetworks, given: Labels | None
) -> OfModel:
    """Finds the groups of layers of one model in every way that is asked for.

    values, names: of its layers, in any order. given: the group of every layer, in network order.
    """
    order = order_layers(names)
    names = [names[i] for i in order]
    values = values[np.ix_(order, order)]
    makers: dict[str, Callable[[int | None], Partition]] = {}
    if options.method != "segments":
        makers["spectral"] = lambda count: find_spectral_clusters(values, larger_is_closer, count=count)
    if options.method != "spectral":
        makers["segments"] = lambda count: find_contiguous_segments(values, larger_is_closer, count=count)
    groups = {method: make(options.clusters) for method, make in makers.items()}
    apart = convert_to_distances(values, larger_is_closer)
    walks = {
        method: say_beyond_walks(
            apart, found.labels, make_group_finder(WAYS[method](larger_is_closer), larger_is_closer)
        )
        for method, found in groups.items()
        if options.clusters is None and found.count > 1
    }
    sides: dict[str, tuple[Sequence[Any] | np.ndarray, ...]] = {}
    if len(groups) == 2:
        sides[" and ".join(groups)] = tuple(x.labels for x in groups.values())
    blocks = [read_block_number(name) for name in names]
    if None not in blocks and 1 < len(set(blocks)) < len(blocks):
        sides |= {f"{method} and blocks": (x.labels, blocks) for method, x in groups.items()}
    as_given = {}
    if given is not None:
        as_given = {method: make(len(np.unique(given))).labels for method, make in makers.items()}
        sides |= {f"{method} and given": (x.labels, given) for method, x in groups.items()}
        sides |= {f"{method}, as many, and given": (labels, given) for method, labels in as_given.items()}
    return OfModel(
        layers=names,
        apart=apart,
        following=((values + values.T) / 2).diagonal(1).tolist(),
        groups=groups,
        as_given=as_given,
        walks=walks,
        agreement={name: compare_partitions(*pair) for name, pair in sides.items() if have_groups(*pair)},
    )


ByModel = Mapping[str, Mapping[str, OfModel]]  # by measure and model


def make_tables(every: ByModel) -> dict[str, Table]:
    rows, agreed = [], []
    for measure, models in every.items():
        for model, layers in models.items():
            for method, groups in layers.groups.items():
                count, named = groups.count, ", ".join(list_layer_ranges(groups.labels.tolist()))
                score = [groups.scores.get(count), groups.reference.get(count)]
                rows.append([measure, model, method, count, named, *score, layers.walks.get(method)])
            agreed += [[measure, model, pair, value] for pair, value in layers.agreement.items()]
    found = {"sub-networks": Table(columns=COLUMNS, rows=rows)}
    return found | ({"agreement of sub-networks": Table(columns=AGREEMENT, rows=agreed)} if agreed else {})


def make_curves(every: ByModel, labels: Mapping[str, str]) -> dict[str, Curve]:
    """Makes, for every model, curves of the group of each layer, of its similarity to the next one, and of the
    silhouettes by the number of groups, also of surrogates without groups. labels: of axes, by measure."""
    return {
        f"{of}, {measure}, {model}": replace(
            curve,
            about={
                "quantity": f"{of}, {measure}",
                "of": of,
                "measure": measure,
                "model": model,
                "as walks": [method for method, beyond in layers.walks.items() if beyond == "no"],
            },
        )
        for measure, models in every.items()
        for model, layers in models.items()
        for of, curve in _build_layer_curves(layers, labels[measure])
    }


def _build_layer_curves(layers: OfModel, label: str) -> Iterator[tuple[str, Curve]]:
    names, layer = layers.layers, Axis(name="layer")
    groups: dict[str, Numbers] = {method: x.labels.tolist() for method, x in layers.groups.items()}
    groups |= {f"{method}, as many as given": labels.tolist() for method, labels in layers.as_given.items()}
    yield LABELS, Curve(x=layer, y=Axis(name="sub-network"), at=names, lines=groups)
    following: dict[str, Numbers] = {NEXT: [*layers.following]}
    yield NEXT, Curve(x=layer, y=Axis(name=label), at=names[:-1], lines=following)
    for method, x in layers.groups.items():
        scores: dict[str, Numbers] = {"silhouette": [*x.scores.values()], "without groups": [*x.reference.values()]}
        axis = Axis(name="number of groups")
        yield f"scores of {method}", Curve(x=axis, y=Axis(name="silhouette"), at=list(x.scores), lines=scores)


# ---- claims ----


@dataclass(frozen=True)
class Clustered:
    """Spectral clusters of the models that were trained block by block. counts: how many, where the data choose the
    number. labels: the cluster of every layer, in the number of groups that was given. given: the given group of every
    layer. apart: the distances between the layers of each model."""

    counts: Sequence[int] = ()
    labels: Sequence[Labels] = ()
    given: Labels | None = None
    apart: Sequence[Square] = ()


def choose_clustered(models: Sequence[OfModel], options: SubNetworks, given: Labels | None) -> Clustered:
    models = [layers for layers in models if "spectral" in layers.groups]
    counts = [layers.groups["spectral"].count for layers in models] if options.clusters is None else []
    return Clustered(
        counts,
        [layers.as_given["spectral"] for layers in models if layers.as_given],
        given,
        [layers.apart for layers in models],
    )


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="share of the seeds of Model L with three spectral clusters",
    threshold=0.5,
    unit="seed",
    of=(BY_BLOCK,),
)
def layer_wise_training_gives_three_groups(models: Clustered) -> Weighed | Untestable:
    """Model L has predominantly 3 groupings of layers, as many as functions trained."""
    if not models.counts:
        return Untestable(
            f"needs {FLIPS} models trained {BY_BLOCK}, and sub_networks with spectral clusters to be chosen"
        )
    three = sum(count == 3 for count in models.counts)
    evidence = weigh_by_sign_test(three, len(models.counts), "seed")
    if evidence.above <= LEVEL:
        # seeds may share layers that wander: then as many groups are seldom found
        evidence = require_beyond_walks(evidence, models.apart, lambda count: count == 3)
    return Weighed(three / len(models.counts), evidence)


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="adjusted Rand index of three spectral clusters of Model L and the published groups, mean over seeds",
    threshold=0.5,
    unit="seed",
    of=(BY_BLOCK,),
)
def layer_wise_groups_are_the_published(models: Clustered) -> Weighed | Untestable:
    """In Model L layers 20 to 44 and 52 to 72, 12 to 19 and 45 to 51, and the rest."""
    if models.given is None or not models.labels:
        return Untestable(f"needs sub_networks.given of a model trained {BY_BLOCK}, and {FEWEST_UNITS} seeds of it")
    given = np.unique(models.given, return_inverse=True)[1]
    shifted = np.stack([np.roll(given, by) for by in range(len(given))])
    agreed = [compute_adjusted_rand(shifted, np.unique(labels, return_inverse=True)[1]) for labels in models.labels]
    by_shift = np.mean(agreed, axis=0)
    over = weigh_mean([each[0] for each in agreed], 0.5, "seed")
    # seeds may share groups that are anywhere: so far along the layers they must not be as near the given ones
    shared = float((by_shift >= by_shift[0] - ROUNDING).mean())
    return Weighed(float(by_shift[0]), replace(over, above=max(over.above, shared)))


# ---- figures ----


def are_drawn(run: Finished, whole: bool) -> bool:
    """Tells whether the layers of each model have a figure: on demand, or where there are few models."""
    models = {curve.about["model"] for curve in run.results.curves.values() if curve.analysis == "sub_networks"}
    return bool(models) and (whole or len(models) <= FEW)


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """NAME-MODEL-layers of every measure and model"""
    by_model = {
        (curve.about["of"], curve.about["measure"], curve.about["model"]): curve
        for curve in run.results.curves.values()
        if curve.analysis == "sub_networks"
    }
    for measure in run.results.measures if are_drawn(run, whole) else ():
        for matrix in (matrix for matrix in measure.matrices if matrix.rows == matrix.columns):
            labels, following = (by_model.get((of, measure.label, matrix.rows.model)) for of in (LABELS, NEXT))
            if labels is not None and following is not None:
                name = slug(measure.label, matrix.rows.model, "layers")
                yield name, partial(draw_sub_networks, run, measure, matrix, labels, following)


@analysis(studies=("similarity",), figures=draw_figures, within=True)
def sub_networks(run: Finished, options: SubNetworks, claims: Sequence[Claim]) -> Part:
    targets, trained = run.options.get("targets"), run.trained.get(BY_BLOCK, [])
    every: dict[str, dict[str, OfModel]] = {}
    verdicts = []
    for label, layers in run.maps.items():
        deep = {m: at for m, at in layers.places.items() if m != targets and at.stop - at.start >= FEWEST}
        given = {
            m: parse_ranges(x, deep[m].stop - deep[m].start) for m, x in (options.given or {}).items() if m in deep
        }
        of_seeds = next((given[model] for model in trained if model in given), None)
        if of_seeds is not None:  # seeds of one recipe have the same layers
            given = {**{model: of_seeds for model in trained if model in deep}, **given}
        every[label] = {
            model: find_sub_networks(
                layers.values[place, place],
                layers.names[place],
                layers.measure.larger_is_closer,
                options,
                given.get(model),
            )
            for model, place in deep.items()
        }
        models = choose_clustered([every[label][model] for model in trained if model in deep], options, of_seeds)
        verdicts += [each.verdict(label, models) for each in claims]
    labels = {label: layers.measure.card["label"] for label, layers in run.maps.items()}
    return Part(tables=make_tables(every), curves=make_curves(every, labels), claims=verdicts)
