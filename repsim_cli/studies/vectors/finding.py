"""What maps between vectors of two models keep, and how many rows they need for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from repsim_cli.base.plain import find_free_key, slug, write_interval, write_share
from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.layout import SHADED
from repsim_cli.figures.lines import draw_levels, mark_gaps, name_bands
from repsim_cli.figures.panels import make_panels, set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import KEPT, Axis, Band, Curve, Table
from repsim_cli.studies.vectors.scores import (
    AS_THEY_ARE,
    AT,
    BEFORE,
    BY_CHANCE,
    DEPENDENT,
    DIRECTION,
    MAIN,
    PROBE,
    RENEWED,
    VECTOR_MAPS,
    name_pair,
)

Row = Mapping[str, Any]
BESIDE = (BY_CHANCE, AS_THEY_ARE, BEFORE, RENEWED)  # what is not a map
OF = "95 % over held-out documents"
PANEL, GAPS = (2.9, 1.9), (0.6, 0.75)  # inches


@dataclass(frozen=True, kw_only=True)
class VectorMapOptions:
    """What each map keeps, and the scores against the number of fitted rows. There are no settings."""


def group_by_pair(table: Table) -> dict[str, list[Row]]:
    """Lists the rows of each pair of layers, by its name."""
    pairs: dict[str, list[Row]] = {}
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        name = name_pair(*(row[key] for key in ("from", "from layer", "to", "to layer")))
        pairs.setdefault(name, []).append(row)
    return pairs


def find_full_fits(rows: Sequence[Row], score: str) -> dict[str, Row]:
    """Finds for each kind of map its row of this score, of the map that all rows were fitted for."""
    return {row["map"]: row for row in rows if row["score"] == score}  # sizes ascend


def find_best_kind(rows: Sequence[Row]) -> str:
    """Names the kind of map that keeps most of the new neighbours."""
    maps = {kind: row["value"] for kind, row in find_full_fits(rows, MAIN).items() if kind not in BESIDE}
    return max(maps, key=lambda kind: maps[kind])


def say_chance(rows: Sequence[Row]) -> str:
    """Says whether the best map keeps more than random pairings of documents reach."""
    best, chance = find_full_fits(rows, MAIN)[find_best_kind(rows)], find_full_fits(rows, MAIN)[BY_CHANCE]
    return "" if best["value"] > chance["high"] else ", no more than chance"


def say_reach(rows: Sequence[Row]) -> str:
    return f"random pairings reach {find_full_fits(rows, MAIN)[BY_CHANCE]['high']:.2g}"


def say_map_scores(rows: Sequence[Row], *, doubtful: bool = False) -> str:
    """Says in a sentence how well old vectors find their neighbours through the best map, and how well with none and
    after embedding all texts anew. rows: one for each map and score. doubtful: whether rows depend on each other."""
    kind = find_best_kind(rows)
    by_score = {row["score"]: row for row in rows if row["map"] == kind}
    new, fit = by_score[MAIN], by_score["R^2"]
    left = find_full_fits(rows, MAIN).get(AS_THEY_ARE)
    old = by_score[MAIN.replace("new", "old")]
    again = find_full_fits(rows, MAIN.replace("new", "old"))[RENEWED]
    return (
        f"mapped by {kind} they find {_write(new)} of the {max(AT)} nearest that new vectors would{say_chance(rows)} "
        f"({say_reach(rows)}), and {write_share(old['value'])} of the old ones (new vectors: "
        f"{write_share(again['value'])}); R^2 {_write(fit)}, from {new['rows']:,} rows"
        + ("; new rows may keep far less (see the warnings)" if doubtful else "")
        + ("" if left is None else f"; without a map {write_share(left['value'])}")
        + "".join(f"; {each}" for each in _read(rows, by_score))
    )


def _write(row: Row) -> str:
    return write_interval(row["value"], row["low"], row["high"])


def _read(rows: Sequence[Row], by_score: Mapping[str, Row]) -> Iterator[str]:
    """Says what a probe and a direction are worth that were carried over, where the data has labels."""
    for name in (PROBE, DIRECTION):
        if name in by_score:
            beside, row = find_full_fits(rows, name), by_score[name]
            others = {"in the old model": BEFORE, "fitted anew": RENEWED, "the largest class": BY_CHANCE}
            said = ", ".join(
                f"{what} {write_share(beside[kind]['value'])}" for what, kind in others.items() if kind in beside
            )
            yield (f"a {name.partition(':')[0]} that is carried over is right for {_write(row)} of new rows ({said})")


def make_curves(name: str, rows: Sequence[Row]) -> Iterator[Curve]:
    """A curve per score: a line per kind of map over the number of fitted rows."""
    for score in dict.fromkeys(row["score"] for row in rows):
        of = [row for row in rows if row["score"] == score]
        levels = {row["map"]: _list_level(row) for row in of if row["map"] in BESIDE}
        lines: dict[str, list[Row]] = {}
        for row in of:
            if row["map"] not in levels:
                lines.setdefault(row["map"], []).append(row)
        yield Curve(
            x=Axis(name="rows that the map is fitted on"),
            y=Axis(name=score),
            at=[row["rows"] for row in next(iter(lines.values()))],
            lines={kind: [row["value"] for row in each] for kind, each in lines.items()},
            bands={
                kind: Band(low=[row["low"] for row in each], high=[row["high"] for row in each], of=OF)
                for kind, each in lines.items()
            },
            bounds=[None, 1.0],
            about={"quantity": score, "pair": name, "levels": levels},
        )


def _list_level(row: Row) -> float | list[float]:
    """Gives a value, and of chance what it reaches to both sides."""
    return [row["low"], row["value"], row["high"]] if row["map"] == BY_CHANCE else row["value"]


def draw_figures(run: Finished, all_figures: bool) -> Iterator[Job]:
    """maps-PAIR: every score against the number of rows that the maps were fitted on"""
    for name, rows in group_by_pair(run.results.tables[VECTOR_MAPS]).items():
        drawn = [curve for curve in run.results.curves.values() if curve.about.get("pair") == name]
        doubt = f"; {DEPENDENT}" * (name in run.results.about.get(DEPENDENT, ()))
        yield slug("maps", name), partial(_draw, name, drawn, rows, doubt)


def _draw(name: str, drawn: Sequence[Curve], rows: Sequence[Row], doubt: str) -> Any:
    figure, axes = make_panels(len(drawn), 3, *PANEL, gaps=GAPS)
    beside = [kind for kind in BESIDE if any(kind in curve.about["levels"] for curve in drawn)]
    for panel, curve in zip(axes, drawn, strict=True):
        for (kind, values), style in zip(curve.lines.items(), choose_line_styles(len(curve.lines)), strict=True):
            band = curve.bands[kind]
            panel.fill_between(
                curve.at, mark_gaps(band.low), mark_gaps(band.high), color=style["color"], alpha=0.15, linewidth=0
            )
            panel.plot(curve.at, mark_gaps(values), **style, markersize=3.5, linewidth=1.3, label=kind)
        draw_levels(panel, curve.about["levels"], names=beside)
        panel.set_xscale("log", base=2)
        panel.set_xticks(curve.at, [f"{at:,}" for at in curve.at], fontsize=7)
        panel.set_xticks([], minor=True)
        low = min(0.0, *(min(values) for values in curve.lines.values()))  # type: ignore[type-var]
        panel.set_ylim(max(low, -1.0), 1.02)
        panel.set_title(str(curve.y), loc="left", fontsize=9)
        panel.tick_params(axis="y", labelsize=7)
        panel.grid(alpha=0.25, linewidth=0.5)
        if panel in axes[-3:]:
            panel.set_xlabel(str(curve.x), fontsize=8)
    last = axes[min(2, len(axes) - 1)]
    name_bands(last, [OF])
    add_legend_beside(last)
    kind = find_best_kind(rows)
    row = find_full_fits(rows, MAIN)[kind]
    set_headline(
        figure,
        f"{name}: {kind} keeps {write_share(row['value'])} of the {max(AT)} nearest neighbours of new vectors"
        f"{say_chance(rows)}",
        f"{row['rows held out']:,} rows of {row['documents held out']:,} documents held out; {say_reach(rows)}; "
        f"{SHADED}{OF}{doubt}",
    )
    return figure


@analysis(studies=("vector_map",), unasked=lambda planned: True, figures=draw_figures)
def vector_map(run: Finished, options: VectorMapOptions, claims: Sequence[Claim]) -> Part:
    """Says what maps keep of the neighbours, and draws it against the number of rows."""
    pairs = group_by_pair(run.results.tables[VECTOR_MAPS])
    made: dict[str, Curve] = {}
    for name, rows in pairs.items():
        for curve in make_curves(name, rows):
            made[find_free_key(f"{curve.about['quantity']}, {name}", made)] = curve
    dependent = run.results.about.get(DEPENDENT, ())
    said = [[name, say_map_scores(rows, doubtful=name in dependent)] for name, rows in pairs.items()]
    return Part(tables={KEPT: Table(columns=["vectors", "what"], rows=said)}, curves=made)
