"""What the similarity of layers at the same depth is made of, drawn by depth, and said in a sentence."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import say_count, slug
from repsim_cli.figures.heatmap import name_by_block
from repsim_cli.figures.lines import NAMED, draw_light_grid
from repsim_cli.figures.panels import make_panels, name_panels, set_headline
from repsim_cli.figures.texts import shorten_names
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.answering import make_layer_namer
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import BUDGET, BY_TOKEN, CHANCE, MADE_OF, P_BEYOND, Table

PANEL, ACROSS = (3.4, 2.2), 3  # inches; panels side by side
ALPHA = 0.05  # of p beyond the token
MOST = 10  # characters of the name of a layer
# of each table the parts that are stacked, with their names and colours
STACKED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    BUDGET: {
        "token": ("the token", "#8c8c8c"),
        "untrained": ("untrained models of these shapes", "#56B4E9"),
        "learned": ("learned", "#D55E00"),
        "rest": ("beyond the token", "#E69F00"),
        "alone": ("rows whose token has no partner", "#dddddd"),
    },
    BY_TOKEN: {
        CHANCE: ("chance", "#dddddd"),
        "same token": ("of the same token", "#8c8c8c"),
        "other tokens": ("of other tokens", "#D55E00"),
    },
}
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The shares of the token, of untrained models and of training in the similarity of layers at the same depth, and
    the layers that share most beyond the first two in a sentence; of runs with significance.budget=true."""

    def check(self, planned: Planned) -> None:
        if not planned.budget:
            raise BadInput("values are not split into their parts; run with significance.budget=true")


def group_rows_by_pair(table: Table) -> list[list[Row]]:
    """The rows of a table by pair of models, and by measure where there are several."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [list(group) for _, group in groupby(rows, key=lambda row: (row.get("measure"), *_read_model_pair(row)))]


def _read_model_pair(row: Row) -> tuple[str, str]:
    return row["model a"], row["model b"]


def say_most_shared(rows: Sequence[Row]) -> str:
    """The layers of two models that surely share most beyond the token and untrained models, in a sentence; empty where
    no layers have a value.

    >>> row = {"layer a": "resid_post@6", "layer b": "resid_post@6", "value": 0.72, "± value": 0.01}
    >>> row |= {"token": 0.54, "untrained": 0.04}
    >>> say_most_shared([{**row, "learned": 0.1348, "± learned": 0.0211, "alone": 0.0052, "rest": None}])
    'of 0.72 in block 6, 0.54 is the token, 0.04 untrained models of these shapes, 0.13 [0.11, 0.16] learned; 0.01 in rows whose token has no partner'
    >>> say_most_shared([{**row, "rest": 0.18, "± rest": 0.02, "learned": None, "untrained": None, "alone": 0.0}])
    'of 0.72 in block 6, 0.54 is the token, 0.18 [0.16, 0.20] beyond it, no untrained twin telling what was learned'
    >>> sure, unsure = ({**row, "learned": x, "± learned": e, "alone": 0.0} for x, e in ((0.13, 0.09), (0.50, 1.02)))
    >>> say_most_shared([unsure, sure]) == say_most_shared([sure])
    True
    """  # noqa: E501
    known = [row for row in rows if row["value"] is not None and row["± value"] is not None]
    known = [row for row in known if row["learned"] is not None] or known  # of some layers without a twin
    if not known:
        return ""
    row = max(known, key=_compute_lower_end)
    if row["learned"] is None:
        of = f"{_say_interval(row, 'rest')} beyond it, no untrained twin telling what was learned"
    else:
        of = f"{row['untrained']:z.2f} untrained models of these shapes, {_say_interval(row, 'learned')} learned"
    alone = f"; {row['alone']:z.2f} in rows whose token has no partner" if abs(row["alone"]) >= 0.005 else ""
    tested = [row[P_BEYOND] for row in rows if row.get(P_BEYOND) is not None]
    found = (
        f"; p < {ALPHA} beyond the token in {sum(p < ALPHA for p in tested)} of {len(tested)} pairs" if tested else ""
    )
    return f"of {row['value']:z.2f} in {_say_where(row, rows)}, {row['token']:z.2f} is the token, {of}{alone}{found}"


def _say_interval(row: Row, part: str) -> str:
    """Says a share with its interval, of `significance.level`."""
    share, half = row[part], row[f"± {part}"]
    return f"{share:z.2f} [{share - half:z.2f}, {share + half:z.2f}]"


def say_neighbours(rows: Sequence[Row]) -> str:
    """The same of shared neighbours, where the most are of other tokens."""
    known = [row for row in rows if row["value"] is not None]
    if not known:
        return ""
    row = max(known, key=lambda row: row["other tokens"])
    return (
        f"of {row['value']:z.2f} in {_say_where(row, rows)} by {row['measure']}, {row[CHANCE]:z.2f} is chance, "
        f"{row['same token']:z.2f} neighbours of the same token, {row['other tokens']:z.2f} of other tokens"
    )


def _compute_lower_end(row: Row) -> float:
    """The lower end of the interval: the largest share may be the one that is known least."""
    part = "rest" if row["learned"] is None else "learned"
    return row[part] - (row[f"± {part}"] or 0.0)


def _say_where(row: Row, rows: Sequence[Row]) -> str:
    """Names the layers of a row, so that no other of the rows has the same name."""
    word, _ = make_layer_namer([each[side] for each in rows for side in ("layer a", "layer b")])
    first, second = word(row["layer a"]), word(row["layer b"])
    return first if first == second else f"{first} of {row['model a']} and {second} of {row['model b']}"


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """budget, by-token_MEASURE: a panel per pair of models"""
    for name, stacked in STACKED.items():
        if name in run.results.tables:
            groups = group_rows_by_pair(run.results.tables[name])
            for measure, pairs in groupby(groups, key=lambda rows: rows[0].get("measure")):
                file = "budget" if measure is None else slug("by-token", measure)
                yield file, partial(draw_parts_by_depth, list(pairs), stacked, _write_headline(run, measure))


def _write_headline(run: Finished, measure: str | None) -> str:
    about = run.results.about["budget"]
    what = "Linear CKA over rows of different documents" if measure is None else f"Shared neighbours, {measure}"
    return f"{what}, by what it is made of\n{say_count(about['rows'], 'row')} of {about['documents']:,} documents"


def draw_parts_by_depth(pairs: Sequence[Sequence[Row]], stacked: Mapping[str, tuple[str, str]], title: str) -> Any:
    """A panel per pair of models: the parts on top of each other, negative ones below zero, and the value with its
    interval."""
    figure, axes = make_panels(len(pairs), min(ACROSS, len(pairs)), *PANEL, gaps=(0.5, 0.75))
    for panel, rows in zip(axes, pairs, strict=True):
        _draw(panel, rows, stacked)
    name_panels(axes, [" x ".join(_read_model_pair(rows[0])) for rows in pairs])
    axes[0].set_ylabel("value, by its parts", fontsize=8)
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    last = axes[min(ACROSS, len(axes)) - 1]
    last.legend(handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, fontsize=7)
    set_headline(figure, title)
    return figure


def _draw(panel: Any, rows: Sequence[Row], stacked: Mapping[str, tuple[str, str]]) -> None:
    at, above, below = np.arange(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    for part, (label, colour) in stacked.items():
        heights = np.array([row[part] if row[part] is not None else math.nan for row in rows])
        if np.isnan(heights).all():
            continue
        heights = np.nan_to_num(heights)
        panel.bar(at, heights, 0.9, bottom=np.where(heights < 0, below, above), color=colour, label=label, linewidth=0)
        above, below = above + heights.clip(0), below + heights.clip(None, 0)
    values = np.array([math.nan if row["value"] is None else row["value"] for row in rows])
    errors = np.array([math.nan if row.get("± value") is None else row["± value"] for row in rows])
    known = bool(np.isfinite(errors).any())
    shown = "the value" + (", with its interval" if known else "")
    panel.errorbar(at, values, errors if known else None, fmt="k.", markersize=3, linewidth=0.8, label=shown)
    names, unit = name_by_block([row["layer a"] for row in rows])
    step = -(-len(rows) // NAMED)
    panel.set_xticks(
        at[::step], shorten_names(names, MOST)[::step], rotation=0 if unit else 90, fontsize=7, parse_math=False
    )
    panel.set_xlabel(unit and f"{unit} of {rows[0]['model a']}", fontsize=7, parse_math=False)
    panel.tick_params(axis="y", labelsize=7)
    panel.axhline(0, color="0.3", linewidth=0.6)
    draw_light_grid(panel)


@analysis(studies=("similarity",), unasked=lambda planned: planned.budget, figures=draw_figures)
def budget(run: Finished, options: Budget, claims: Sequence[Claim]) -> Part:
    tables = run.results.tables
    say = say_most_shared if BUDGET in tables else say_neighbours
    groups = group_rows_by_pair(tables.get(BUDGET) or tables[BY_TOKEN])
    sentences = [[" x ".join(_read_model_pair(rows[0])), sentence] for rows in groups if (sentence := say(rows))]
    return Part(tables={MADE_OF: Table(columns=["models", "what"], rows=sentences)})
