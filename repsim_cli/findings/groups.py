"""Named groups of models: all pairs within each group and between groups, by depth, with bands and p values.

A model stands in many pairs, so pairs are not independent. Bands here are over models, not over pairs: t intervals
from the jackknife, which leaves out a model with all its pairs. p values permute the groups' labels over the models.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.base.plain import find_free_key, slug
from repsim_cli.base.settings import Members
from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.lines import PANEL, draw_levels, draw_light_grid, mark_gaps, name_bands
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, analysis
from repsim_cli.findings.chance import list_chance_levels
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import LEVEL, weigh_by_jackknife
from repsim_cli.findings.jackknife import compute_t_interval, estimate_standard_error, satterthwaite
from repsim_cli.findings.layers import read_block_number, read_hook_point
from repsim_cli.findings.permuted_groups import (
    Permuted,
    compute_labelling_separations,
    compute_separation,
    leave_out_each,
    number_groups,
    say_why_untestable,
)
from repsim_cli.runs.content import Axis, Band, Curve, Facts, Measured

Pairs = list[tuple[int, int]]
Kind = tuple[str, str]  # the groups that a pair's models come from

FEWEST = 3  # models of a group below which their spread is not known
LATE, EARLY = 0.75, 0.5  # beyond, and up to which share of the blocks a depth is late or early
ALIKE = 0.25  # share of the late gap that an early gap may have


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Similarity of models of one group, and of models of two, by depth, for each measure and hook point. It has no
    settings."""


@dataclass(frozen=True)
class Depths:
    """values[a, b, l]: of models a and b (in the order of the groups) at their l-th depth; its mirror image, where
    it differs, is the same pair the other way, and a pair's value is the mean of both. The diagonal is not read.

    shares: of the blocks that lie at or below each depth, in (0, 1].
    """

    groups: Members
    values: Float[np.ndarray, "m m l"]
    shares: Float[np.ndarray, " l"]
    larger_is_closer: bool

    @property
    def symmetric(self) -> Float[np.ndarray, "m m l"]:
        return (self.values + self.values.transpose(1, 0, 2)) / 2


# ---- the layers that are counterparts ----


class PointLayers(NamedTuple):
    """The layers of one hook point: their places among the model's, and the share of blocks at or below each."""

    places: list[int]
    shares: list[float]


def group_layers_by_point(model: Facts) -> dict[str, PointLayers]:
    """Groups the layers of a model by hook point, e.g. `mlp_out`; stored activations are one point."""
    if model.blocks is None:
        count = len(model.layers)
        return {"layers": PointLayers(list(range(count)), [(i + 1) / count for i in range(count)])}
    points: dict[str, PointLayers] = {}
    for i, name in enumerate(model.layers):
        point, block = points.setdefault(read_hook_point(name), PointLayers([], [])), read_block_number(name)
        point.places.append(i)
        point.shares.append(0.0 if block is None else (block + 1) / model.blocks)
    return points


def select_counterpart_similarities(
    layers: LayerMap, models: Sequence[str], places: Sequence[int]
) -> Float[np.ndarray, "m m l"]:
    """Selects the similarity of layers at the same place, of these models in this order. places: among those of each
    model."""
    starts = np.array([layers.places[model].start for model in models], int)
    at = starts[:, None] + np.array(places)
    return layers.values[at[:, None], at[None]]


class AtPoint(NamedTuple):
    """What the groups have under one measure at one hook point. name: `MEASURE, POINT`. layers: their names."""

    name: str
    measure: Measured
    point: str
    layers: list[str]
    depths: Depths


def list_depths_at_points(run: Finished) -> Iterator[AtPoint]:
    """Lists the depths of the models at every measure and hook point; without groups, of no models."""
    models = [model for members in run.groups.values() for model in members]
    for label, layers in run.maps.items():
        first = run.models[next(iter(models or layers.places))]
        for point, (places, shares) in group_layers_by_point(first).items():
            values = select_counterpart_similarities(layers, models, places)
            depths = Depths(run.groups, values, np.array(shares), layers.measure.larger_is_closer)
            names = [first.layers[place] for place in places]
            yield AtPoint(f"{label}, {point}", layers.measure, point, names, depths)


# ---- pairs of models ----


def pair_models_by_group(groups: Members) -> dict[Kind, Pairs]:
    """Pairs all different models, in no order, by their groups: as places in the order of the groups."""
    starts = np.cumsum([0, *(len(members) for members in groups.values())])
    places = {name: range(starts[i], starts[i + 1]) for i, name in enumerate(groups)}
    return {
        (a, b): list(itertools.combinations(places[a], 2) if a == b else itertools.product(places[a], places[b]))
        for a, b in itertools.combinations_with_replacement(places, 2)
    }


def make_curves(
    quantity: str,
    label: str,
    point: str,
    layers: list[str],
    depths: Depths,
    *,
    level: float,
    bounds: Sequence[float | None] = (None, None),
) -> dict[str, Curve]:
    """Makes, by name, one curve per kind of pair: a line per pair of models, their mean, and a band of `level` over
    models, not with fewer than 3 in a group. label: of the axis. bounds: of the values, and so of the band."""
    values = depths.symmetric
    names = [model for members in depths.groups.values() for model in members]
    by_name: dict[str, Curve] = {}
    for kind, pairs in pair_models_by_group(depths.groups).items():
        places = np.array(pairs)
        lines, bands = values[places[:, 0], places[:, 1]], {}
        if min(len(depths.groups[name]) for name in kind) >= FEWEST:
            counts = np.array([len(depths.groups[name]) for name in dict.fromkeys(kind)])
            error = estimate_standard_error(
                _average_without_each(lines, places, kind), float(satterthwaite(1 / counts, counts))
            )
            low, high = map(np.asarray, compute_t_interval(lines.mean(0), error, level, bounds))
            of = f"{100 * level:g} % over models"
            bands["models"] = Band(low=low.tolist(), high=high.tolist(), of=of)
        by_name[find_free_key(f"{quantity}, {point}, {'-'.join(kind)}", by_name)] = Curve(
            x=Axis(name="layer"),
            y=Axis(name=label),
            at=layers,
            lines={f"{names[i]} and {names[j]}": line for (i, j), line in zip(pairs, lines.tolist(), strict=True)},
            mean=lines.mean(0).tolist(),
            bands=bands,
            bounds=list(bounds),
            about={"quantity": quantity, "point": point, "pairs_of": list(kind), "shares": depths.shares.tolist()},
        )
    return by_name


def _average_without_each(
    lines: Float[np.ndarray, "p l"], places: Int[np.ndarray, "p 2"], kind: Kind
) -> list[Float[np.ndarray, "m l"]]:
    """The mean over pairs without each model, by its group."""
    sides = [places] if kind[0] == kind[1] else [places[:, 0], places[:, 1]]
    return [np.array([lines[~(places == i).any(1)].mean(0) for i in np.unique(side)]) for side in sides]


# ---- groups against all other ways to group the models ----


# ---- claims ----


def measure_late_gap(depths: Depths) -> Weighed | Untestable:
    """Measures how far apart the groups are in late layers: positive where models of one group are closer."""
    late = depths.shares > LATE
    why = say_why_untestable(depths.groups) or ("" if late.any() else "no layer lies beyond 75 % of the depth")
    if why:
        return Untestable(why)
    apart = _compute_separation(depths, late)
    return Weighed(apart.value, apart.evidence)


def _compute_separation(depths: Depths, at: np.ndarray) -> Permuted:
    values = depths.symmetric[..., at].mean(2)
    return compute_separation(-values if depths.larger_is_closer else values, depths.groups, seed=0)


@claim(
    "Brown et al. 2023, figure 2 right",
    statistic="similarity beyond 75 % of the depth: pairs within groups minus pairs between",
    threshold=0.0,
    unit="model",
    across="groups",
)
def groups_differ_late(depths: Depths) -> Weighed | Untestable:
    """In late layers models of two groups are less similar than models of one."""
    return measure_late_gap(depths)


@claim(
    "Brown et al. 2023, figure 2 right",
    statistic="|within minus between| in the first half of the depth, as a share of the same beyond 75 %",
    threshold=ALIKE,
    unit="model",
    published="below",
    across="groups",
)
def groups_alike_early(depths: Depths) -> Weighed | Untestable:
    """In early layers similarity does not tell the groups apart."""
    early, late = depths.shares <= EARLY, depths.shares > LATE
    if not early.any() or not late.any():
        return Untestable("needs layers in the first half and beyond 75 % of the depth")
    if why := say_why_untestable(depths.groups):
        return Untestable(why)
    apart = _compute_separation(depths, late)
    if apart.value <= 0 or apart.p > LEVEL:
        return Untestable(f"the groups do not differ in late layers (p = {apart.p:.2g})")
    numbers, sign = number_groups(depths.groups), -1 if depths.larger_is_closer else 1
    sides = [sign * depths.symmetric[..., at].mean(2) for at in (early, late)]

    def compute_both_gaps(kept: np.ndarray) -> np.ndarray:
        return np.array([compute_labelling_separations(x[np.ix_(kept, kept)], numbers[kept][None])[0] for x in sides])

    gap = compute_both_gaps(np.arange(len(numbers)))
    left_out = np.array([compute_both_gaps(kept) for kept in leave_out_each(len(numbers))])
    # alike: the early gap lies above the negative and below the positive share of the late one
    above = weigh_by_jackknife(gap[0] - ALIKE * gap[1], 0.0, left_out @ [1, -ALIKE], "model")
    below = weigh_by_jackknife(gap[0] + ALIKE * gap[1], 0.0, left_out @ [1, ALIKE], "model")
    share = weigh_by_jackknife(float(gap[0] / gap[1]), ALIKE, left_out[:, 0] / left_out[:, 1], "model")
    p, opposite = max(above.below, below.above), min(1.0, 2 * min(above.above, below.below))
    return Weighed(float(abs(gap[0] / gap[1])), replace(share, above=opposite, below=p))


# ---- figures ----

ALIKE_BY_LAYER = "How alike groups of models are, layer by layer"


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """QUANTITY-POINT-groups"""
    yield from list_group_figures(run.results.curves, "groups", ALIKE_BY_LAYER)


def list_group_figures(every: Mapping[str, Curve], analysis: str, title: str) -> Iterator[Job]:
    """QUANTITY-POINT-groups for the curves of kinds of pairs that an analysis made."""
    by_figure: dict[tuple[str, str], list[Curve]] = {}
    for curve in every.values():
        if curve.analysis == analysis and "pairs_of" in curve.about:
            by_figure.setdefault((curve.about["quantity"], curve.about["point"]), []).append(curve)
    for (quantity, point), kept in by_figure.items():
        yield slug(quantity, point, "groups"), partial(_draw_by_depth, kept, title)


def _draw_by_depth(every: Sequence[Curve], title: str = ALIKE_BY_LAYER) -> Any:
    """A line and a band over models for each kind of pair; single pairs where there is no band."""
    from matplotlib.figure import Figure

    first = every[0]
    layers, about = first.at, first.about
    figure = Figure(figsize=PANEL)
    axes = figure.add_axes((0, 0, 1, 1))
    at = np.arange(len(layers))
    late = [i for i, share in enumerate(about["shares"]) if share > LATE]
    if late:
        axes.axvspan(late[0] - 0.5, at[-1] + 0.5, color="0.94", linewidth=0, label="beyond 75 % of the depth")
    for curve, style in zip(every, choose_line_styles(len(every)), strict=True):
        colour = style["color"]
        pairs, mean = len(curve.lines), mark_gaps(curve.mean or [])
        label = f"{' – '.join(curve.about['pairs_of'])} ({pairs} {'pair' if pairs == 1 else 'pairs'})"
        axes.plot(at, mean, **style, markersize=4, linewidth=1.6, label=label, zorder=3)
        if band := curve.bands.get("models"):
            low, high = mark_gaps(band.low), mark_gaps(band.high)
            axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
            for edge in (low, high):
                axes.plot(at, edge, color=colour, alpha=0.6, linewidth=0.6)
        else:
            lines = np.transpose([mark_gaps(line) for line in curve.lines.values()])
            axes.plot(at, lines, color=colour, alpha=0.3, linewidth=0.6)
    draw_levels(axes, about.get("levels"))
    axes.set_xlim(-0.5, at[-1] + 0.5)
    step = -(-len(at) // 24)
    names = [name.rpartition("@")[2] for name in layers[::step]]
    axes.set_xticks(at[::step], names, fontsize=8, parse_math=False)
    axes.set_xlabel("block" if "@" in layers[0] else "layer")
    axes.set_ylabel(str(first.y), parse_math=False)
    draw_light_grid(axes)
    name_bands(axes, [curve.bands["models"].of for curve in every if "models" in curve.bands])
    add_legend_beside(axes, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    set_headline(
        figure,
        title,
        f"{about['quantity']}, {about['point']}; mean over pairs",
    )
    return figure


@analysis(studies=("similarity",), unasked=lambda planned: bool(planned.groups), figures=draw_figures)
def groups(run: Finished, options: Groups, claims: Sequence[Claim]) -> Part:
    lines: dict[str, Curve] = {}
    verdicts = []
    for name, measure, point, layers, depths in list_depths_at_points(run):
        if run.groups:
            label = measure.card["label"]
            bounds = measure.card["bounds"]
            made = make_curves(measure.label, label, point, layers, depths, level=run.level, bounds=bounds)
            levels = list_chance_levels(run, run.maps[measure.label])
            lines |= {name: replace(x, about={**x.about, "levels": levels}) for name, x in made.items()}
        verdicts += [each.verdict(name, depths) for each in claims]
    return Part(curves=lines, claims=verdicts)
