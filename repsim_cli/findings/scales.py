"""Similarity over scale: one measure at several values of one of its numbers, as a curve with its area."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.plain import find_free_key, slug
from repsim_cli.figures.frame import choose_line_styles
from repsim_cli.figures.lines import draw_light_grid, mark_gaps, name_lines
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, Planned, analysis
from repsim_cli.findings.chance import list_chance_levels
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.layers import order_layers
from repsim_cli.runs.content import Axis, Curve, Table

COLUMNS = ["measure", "over", "from", "to", "model", "other", "area", "of chance", "at the first", "at the last"]
FEWEST = 3  # values of a number that make a curve
WIDE = 4  # the largest over the smallest value, from which on the axis is logarithmic
PANEL = (3.4, 2.4)  # inches


@dataclass(frozen=True, kw_only=True)
class Scales:
    """The curve of each measure that has several values of one of its numbers, and its area. It has no settings."""


class ScaleFamily(NamedTuple):
    """Labels of measures that differ in one number alone, by its value, in its order."""

    name: str
    over: str
    labels: dict[float | int, str]


def find_scale_families(entries: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[ScaleFamily]:
    """The families of three or more, of the names and settings of measures by label.

    >>> entries = {f"knn{k}": ("mutual_knn", {"k": k, "rows": "centred"}) for k in (20, 5, 10)}
    >>> find_scale_families({**entries, "cka": ("cka", {})})
    [ScaleFamily(name='mutual_knn', over='k', labels={5: 'knn5', 10: 'knn10', 20: 'knn20'})]
    """
    found: dict[Any, dict[float | int, str]] = {}
    for label, (name, settings) in entries.items():
        for over, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = tuple((key, repr(x)) for key, x in sorted(settings.items()) if key != over)
                found.setdefault((name, over, others), {}).setdefault(value, label)
    return [
        ScaleFamily(name, over, dict(sorted(labels.items())))
        for (name, over, _), labels in found.items()
        if len(labels) >= FEWEST
    ]


def is_swept(planned: Planned) -> bool:
    return bool(find_scale_families(planned.settings))


def average_at_equal_depth(layers: LayerMap) -> dict[tuple[str, str], float]:
    """Averages each two models over layers of the same relative depth; a single model over each layer and the next."""
    ordered = {model: np.arange(place.start, place.stop)[order_layers(layers.names[place])]
               for model, place in layers.places.items()}  # fmt: skip
    if len(ordered) == 1:
        ((model, places),) = ordered.items()
        return {(model, model): float(layers.values[places[:-1], places[1:]].mean())} if len(places) > 1 else {}
    found = {}
    for (a, of_a), (b, of_b) in combinations(ordered.items(), 2):
        few, many = sorted((of_a, of_b), key=len)
        paired = many[np.linspace(0, len(many) - 1, len(few)).round().astype(int)]
        found[a, b] = float(np.mean([layers.values[few, paired], layers.values[paired, few]]))
    return {pair: value for pair, value in found.items() if np.isfinite(value)}


def average_line_height(at: Sequence[float | int], values: Sequence[float]) -> float:
    """The mean height of the line over its axis, which is logarithmic where the values span a factor of four.

    >>> average_line_height([1, 10, 100], [0.0, 1.0, 0.0]), average_line_height([1, 2, 3], [0.0, 1.0, 1.0])
    (0.5, 0.75)
    """
    x = np.log(at) if is_logarithmic(at) else np.asarray(at, float)
    middles = np.convolve(values, [0.5, 0.5], "valid")
    return float(middles @ np.diff(x) / (x[-1] - x[0]))


def is_logarithmic(at: Iterable[float | int]) -> bool:
    return min(at) > 0 and max(at) >= WIDE * min(at)


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """over-scale-MEASURE"""
    for name, curve in run.results.curves.items():
        if curve.analysis == "scales":
            yield slug("over-scale", name), partial(_draw, curve)


def _draw(curve: Curve) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL)
    panel = figure.add_axes((0, 0, 1, 1))
    lines = []
    for (name, values), style in zip(curve.lines.items(), choose_line_styles(len(curve.lines)), strict=True):
        lines += panel.plot(curve.at, mark_gaps(values), **style, markersize=3.5, linewidth=1.3, label=name)
    if chance := curve.about["chance"]:
        lines += panel.plot(curve.at, mark_gaps(chance), ":", color="grey", linewidth=1.2, label="chance")
    if is_logarithmic(curve.at):
        panel.set_xscale("log")
    panel.set_xticks(curve.at, [f"{at:g}" for at in curve.at], fontsize=7)
    panel.set_xticks([], minor=True)
    panel.set_xlabel(str(curve.x), fontsize=8)
    panel.set_ylabel(str(curve.y), fontsize=8, parse_math=False)
    draw_light_grid(panel)
    name_lines(panel, lines)
    set_headline(figure, f"{curve.y} over {curve.x}", curve.about["of"])
    return figure


@analysis(studies=("similarity",), unasked=is_swept, figures=draw_figures)
def scales(run: Finished, options: Scales, claims: Sequence[Claim]) -> Part:
    """Says how similar models are at every value of a number of a measure (neighbours, bandwidth, mass), beside chance
    at that value, and on the whole."""
    rows, curves = [], {}
    measured = {label: (layers.measure.name, layers.measure.settings) for label, layers in run.maps.items()}
    for family in find_scale_families(measured):
        maps = [run.maps[label] for label in family.labels.values()]
        values = [average_at_equal_depth(layers) for layers in maps]
        levels = [next(iter(list_chance_levels(run, layers).values()), None) for layers in maps]
        chance = [level[1] for level in levels if level is not None]
        chance = chance if len(chance) == len(maps) else []
        at = list(family.labels)
        lines = {}
        for pair in values[0]:
            if all(pair in each for each in values):
                line = lines[" and ".join(dict.fromkeys(pair))] = [each[pair] for each in values]
                of_chance = average_line_height(at, chance) if chance else None
                rows.append(
                    [
                        family.name,
                        family.over,
                        at[0],
                        at[-1],
                        *pair,
                        average_line_height(at, line),
                        of_chance,
                        line[0],
                        line[-1],
                    ]
                )
        if lines:
            curves[find_free_key(f"{family.name} over {family.over}", curves)] = Curve(
                x=Axis(name=family.over),
                y=Axis(name=maps[0].measure.card["label"]),
                at=at,
                lines=lines,
                about={
                    "quantity": f"{family.name} over {family.over}",
                    "chance": chance,
                    "of": _describe_mean(maps[0]),
                },
            )
    return Part(tables={"similarity over scale": Table(columns=COLUMNS, rows=rows)}, curves=curves)


def _describe_mean(layers: LayerMap) -> str:
    return (
        "mean over layers of the same relative depth" if len(layers.places) > 1 else "mean over each layer and the next"
    )
