"""Lines: a number per layer or per step, a colour per model."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.heatmap import name_by_block
from repsim_cli.figures.layout import SHADED
from repsim_cli.figures.panels import list_models, make_panels, set_headline
from repsim_cli.figures.texts import shorten_names
from repsim_cli.runs.content import Band, Curve, omit_nan

PANEL = (4.4, 3.2)  # inches
UNKNOWN = "chance is not known here"
NAMED = 14  # layers up to which each has its name
MOST = 24  # characters of it
FEW, MANY = 6, 14  # lines beyond which they have their names at their ends, and up to which there is room for these
TITLES = {
    "row": "row mean: its neurons, in the others",
    "column": "column mean: the others' neurons, in it",
    "same layer": "with the base",
    "other seeds": "with other seeds of the training",
    "other trainings": "with other trainings",
    "t-SNE plane": "in the plane of a t-SNE",
    "full space": "in the full space",
    "labels": "labels",
    "control": "control: labels without meaning",
}


def list_layer_figures(
    curves: Mapping[str, Curve], analysis: str, seeds: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """by-layer-QUANTITY for the curves over layers that an analysis made, with those of all models in one figure; and
    by-layer-QUANTITY-seeds with the means and ranges over seeds. seeds: by model the training that several share."""
    kept = [curve for curve in curves.values() if curve.analysis == analysis and curve.x.name == "layer"]
    for quantity in dict.fromkeys(curve.about["quantity"] for curve in kept):
        models = [curve for curve in kept if curve.about["quantity"] == quantity]
        yield slug("by-layer", quantity), partial(draw_by_layer, models)
        if len(merged := merge_seeds(models, seeds)) < len(models):
            yield slug("by-layer", quantity, "seeds"), partial(draw_by_layer, merged)


def merge_seeds(curves: Sequence[Curve], seeds: Mapping[str, str]) -> list[Curve]:
    """The curves of seeds of one training as one: their mean, with the range over seeds as a band. Curves of other
    models, and over other layers, stay as they are."""
    by_training: dict[Any, list[Curve]] = {}
    for curve in curves:
        model = curve.about["model"]
        by_training.setdefault((seeds.get(model, model), tuple(curve.at), tuple(curve.lines)), []).append(curve)
    return [_merge(name, members) for (name, *_), members in by_training.items()]


def _merge(name: str, curves: Sequence[Curve]) -> Curve:
    if len(curves) == 1:
        return curves[0]
    lines, bands = {}, {}
    for way in curves[0].lines:
        values = np.array([mark_gaps(curve.lines[way]) for curve in curves])
        mean, low, high = ([*map(omit_nan, line)] for line in (values.mean(0), values.min(0), values.max(0)))
        lines[way], bands[way] = mean, Band(low=low, high=high, of="range over seeds")
    about = {**curves[0].about, "model": f"{name} (mean of {len(curves)} seeds)"}
    return replace(curves[0], lines=lines, bands=bands, errors={}, about=about)


def draw_by_layer(curves: Sequence[Curve]) -> Any:
    """A panel per line of the curves (`row`, `column`); each curve is of one model."""
    from matplotlib.figure import Figure

    ways = list(curves[0].lines)
    # of a symmetric measure row and column are the same
    if len(ways) == 2 and all(_have_same_values(*curve.lines.values()) for curve in curves):
        ways = ways[:1]
    figure = Figure(figsize=(len(ways) * PANEL[0], PANEL[1]))
    axes = figure.subplots(1, len(ways), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.1})[0]
    drawn: list[Any] = []
    for panel, way in zip(axes, ways, strict=True):
        drawn = _draw_models(panel, curves, way, choose_line_styles(len(curves)))
        if len(ways) > 1:
            panel.set_title(TITLES[way], loc="left", fontsize=9)
    start_at_zero([*axes])
    name_bands(axes[-1], [band.of for curve in curves for band in curve.bands.values()])
    if any(curve.errors for curve in curves):
        name_bands(axes[-1], ["one standard error"])
    axes[0].set_ylabel(str(curves[0].y), fontsize=8, parse_math=False)
    name_lines(axes[-1], drawn)
    set_headline(figure, _say_seen(curves))
    return figure


def _say_seen(curves: Sequence[Curve]) -> str:
    """The title of lines over layers: of which models, and what."""
    models = list(dict.fromkeys(curve.about["model"] for curve in curves))
    return f"{list_models(models)}: {curves[0].y} over depth".replace("\n", " ")


def draw_quantities(groups: Sequence[Sequence[Curve]], logarithmic: Collection[str]) -> Any:
    """A panel per quantity; in each, a line per model over its layers. logarithmic: the quantities on such an axis."""
    figure, axes = make_panels(len(groups), min(2, len(groups)), 3.1, 2.1, gaps=(0.6, 0.9))
    models = list(dict.fromkeys(curve.about["model"] for curves in groups for curve in curves))
    style_of = dict(zip(models, choose_line_styles(len(models)), strict=True))
    for panel, curves in zip(axes, groups, strict=True):
        _draw_models(panel, curves, next(iter(curves[0].lines)), [style_of[curve.about["model"]] for curve in curves])
        panel.set_title(str(curves[0].y), loc="left", fontsize=9, parse_math=False)
        if curves[0].about["quantity"] in logarithmic:
            low, high = panel.dataLim.intervaly
            panel.set_yscale("log")
            panel.set_ylim(min(1.0, low if low > 0 else 1.0) / 1.1, max(10.0, high) * 1.1)  # a decade at least
            panel.yaxis.set_major_formatter("{x:g}")
        elif curves[0].bounds[1] is not None:
            _limit_below(panel, curves[0].bounds[1])
        else:
            start_at_zero([panel])
    drawn = [curve for curves in groups for curve in curves]
    shaded = [band.of for curve in drawn for band in curve.bands.values()]
    shaded += ["one standard error"] * any(curve.errors for curve in drawn)
    named = min(1, len(axes) - 1)
    for model in models:
        if all(curve.about["model"] != model for curve in groups[named]):
            axes[named].plot([], [], **style_of[model], markersize=3.5, linewidth=1.3, label=model)
    name_bands(axes[named], shaded)
    add_legend_beside(axes[named])
    return figure


def _limit_below(panel: Any, top: float) -> None:
    """Ends an axis at `top`, or above where values are (shares of a loss can be), and at 0, or where values are below;
    those below `-top` would hide all others, so that they are marked at its end with what they are."""
    low, high = max(min(0.0, float(panel.dataLim.y0)), -top), max(top, float(panel.dataLim.y1))
    for line in panel.get_lines():
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
            if y < low:
                panel.plot(x, low, marker="v", color=line.get_color(), markersize=5, clip_on=False)
                panel.annotate(
                    f"{y:.3g}", (x, low), xytext=(0, 5), textcoords="offset points",
                    fontsize=6, ha="center", color=line.get_color(),
                )  # fmt: skip
    panel.set_ylim(1.05 * low, high + 0.02 * top)


def _draw_models(panel: Any, curves: Sequence[Curve], line: str, styles: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A line of each curve over its layers, in the style of its model. Returns the lines."""
    drawn = []
    longest = max((curve.at for curve in curves), key=len)
    names, said = name_by_block(longest)
    for curve, style in zip(curves, styles, strict=True):
        for low, high in _select_bands(curve, line):
            panel.fill_between(range(len(curve.at)), low, high, color=style["color"], alpha=0.15, linewidth=0)
        values, name = mark_gaps(curve.lines[line]), curve.about["model"]
        drawn += panel.plot(range(len(curve.at)), values, **style, markersize=3.5, linewidth=1.3, label=name)
    draw_levels(panel, curves[0].about.get("levels"))
    if all(curve.at == longest[: len(curve.at)] for curve in curves):
        at, shown = range(0, len(longest), -(-len(longest) // NAMED)), shorten_names(names, MOST)
        panel.set_xticks(at, [shown[i] for i in at], rotation=0 if said else 90, fontsize=7, parse_math=False)
        panel.set_xlabel(said, parse_math=False)
    else:
        panel.set_xlabel("layer, in order")
    panel.tick_params(axis="y", labelsize=7)
    panel.grid(alpha=0.25, linewidth=0.5)
    return drawn


def start_at_zero(panels: Sequence[Any]) -> None:
    """Lets the y axis that panels share begin at 0 where no value is below it, and end at 1 where what is drawn comes
    near: small differences then look small."""
    low, high = (float(end([x.dataLim.intervaly[k] for x in panels])) for k, end in enumerate((np.min, np.max)))
    if not np.isfinite([low, high]).all() or low < 0:
        return
    panels[0].set_ylim(0, 1.02 if 0.5 < high <= 1 else 1.05 * high if high > 0 else 1.0)


def name_lines(panel: Any, lines: Sequence[Any]) -> None:
    """Names lines in a legend, or at their ends where they are more than FEW and there is room; what else has a name is
    in the legend."""
    others = [handle for handle in panel.get_legend_handles_labels()[0] if handle not in lines]
    if not FEW < len(lines) <= MANY:
        add_legend_beside(panel)
        return
    height = panel.get_ylim()[1] - panel.get_ylim()[0]
    ends = [(float(line.get_ydata()[-1]) - panel.get_ylim()[0]) / height for line in lines]
    order = sorted(range(len(lines)), key=lambda i: ends[i])
    for i, at in zip(order, _spread_places([ends[i] for i in order], 1 / MANY), strict=True):
        panel.annotate(
            lines[i].get_label(), (1, at), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points",
            color=lines[i].get_color(), fontsize=7, va="center", parse_math=False, annotation_clip=False,
        )  # fmt: skip
    if others:
        add_legend_beside(panel, handles=others, loc="upper left", bbox_to_anchor=(0, -0.2))


def _spread_places(places: Sequence[float], least: float) -> list[float]:
    """Places in order, moved as little as needed to be so far apart, within 0 and 1.

    >>> [round(place, 2) for place in _spread_places([0.1, 0.12, 0.99], 0.1)]
    [0.1, 0.2, 0.99]
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place if np.isfinite(place) else 0.5, moved[-1] + least if moved else 0.0))
    top = 1.0
    for i in range(len(moved))[::-1]:
        moved[i] = min(moved[i], top)
        top = moved[i] - least
    return moved


def find_shared_levels(curves: Sequence[Curve]) -> dict[str, list[float]] | None:
    """Finds what chance gives over curves that each have one level: lowest, median and highest, by what it is.
    None where none of them is about chance.
    """
    about = [curve.about["levels"] for curve in curves if curve.about.get("levels") is not None]
    names = dict.fromkeys(name for levels in about for name in levels)
    values = {name: [levels[name] for levels in about if name in levels] for name in names}
    return {name: [min(x), float(np.median(x)), max(x)] for name, x in values.items()} if about else None


LEVELS = (":", (0, (6, 2)), (0, (6, 2, 1, 2)), (0, (2, 1, 1, 1, 1, 1)))  # dashes of levels


def draw_levels(
    panel: Any, levels: Mapping[str, Any] | None, *, upright: bool = False, names: Sequence[str] = ()
) -> None:
    """Lines with dashes of their own and their ranges: of every level its value, or its low, middle and high value.
    Where there is none the legend says that chance is not known; None: nothing is said. upright: the lines, where
    values go along x. names: of the levels of all panels, which have a place in this one's legend."""
    if levels is None:
        return
    line, span = (panel.axvline, panel.axvspan) if upright else (panel.axhline, panel.axhspan)
    for name, level in levels.items():
        low, middle, high = level if isinstance(level, list) else [level] * 3
        dashes = LEVELS[list(names or levels).index(name) % len(LEVELS)]
        line(middle, color="grey", linestyle=dashes, linewidth=1.2, label=name)
        if low < high:
            span(low, high, color="grey", alpha=0.12, linewidth=0)
    for name in names:
        if name not in levels:
            panel.plot([], [], color="grey", linestyle=LEVELS[names.index(name) % len(LEVELS)], label=name)
    if not levels:
        panel.plot([], [], " ", label=UNKNOWN)


def name_bands(panel: Any, shaded: Collection[str]) -> None:
    """Puts what is shaded into the legend: the inner band, which is darker, first.
    shaded: what each band is; of more than three, the first three.
    """
    for words, grey in zip(dict.fromkeys(shaded), (0.45, 0.2, 0.1), strict=False):
        panel.fill_between([], [], [], color="grey", alpha=grey, linewidth=0, label=SHADED + words)


def _select_bands(curve: Curve, way: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The bands of a curve that are of no other line, and one standard error about this line."""
    for name, band in curve.bands.items():
        if name == way or name not in curve.lines:
            yield mark_gaps(band.low), mark_gaps(band.high)
    if way in curve.errors:
        line, error = mark_gaps(curve.lines[way]), mark_gaps(curve.errors[way])
        yield line - error, line + error


def _have_same_values(first: Sequence[float | int | None], second: Sequence[float | int | None]) -> bool:
    return np.allclose(mark_gaps(first), mark_gaps(second), equal_nan=True)


def mark_gaps(values: Sequence[float | int | None]) -> np.ndarray:
    """The values as floats; NaN in place of None, where a line breaks."""
    return np.array([np.nan if value is None else value for value in values], float)


def draw_light_grid(axes: Any) -> None:
    """A light grid, without the frame's top and right."""
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
