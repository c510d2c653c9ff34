"""Which layers stand out: where texts take most directions, where tokens move straightest, which block does least."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.plain import name_blocks
from repsim_cli.figures.lines import draw_quantities
from repsim_cli.figures.panels import list_models, set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.answering import make_layer_namer
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, HALVES, require_all_parts, require_shared_trend, weigh_mean
from repsim_cli.findings.extremes import combine_with_best, list_within
from repsim_cli.findings.layers import read_block_number
from repsim_cli.runs.content import OF_LAYER_DIFFERENCES, OF_LAYER_ERRORS, STANDS_OUT, Axis, Curve, Table
from repsim_cli.studies.layers.columns import (
    ALIKE,
    BY_CHANCE,
    COSINE,
    CURVATURE,
    DIMENSION,
    DOCUMENTS,
    DOCUMENTS_WITHOUT,
    ENTROPY,
    GROUPS,
    INFLUENCE,
    KL_WITHOUT,
    OF_LAYER,
    RANK,
    SAME_CLASS,
    STANDING_OUT,
)

MEANT = {
    DIMENSION: "intrinsic dimension of texts",
    RANK: "effective rank of texts",
    ENTROPY: "entropy of a text's tokens, share of the most",
    CURVATURE: "curvature of a text's path, degrees",
    COSINE: "mean cosine of two texts",
    ALIKE: "CKA with the layer before",
    INFLUENCE: "influence of the block (1 - cosine)",
    SAME_CLASS: "neighbours of the same class",
    KL_WITHOUT: "KL without the block, nats",
}
FORMS = {
    DIMENSION: "texts take most directions at {where} (intrinsic dimension {span}{end})",
    CURVATURE: "tokens move straightest at {where} ({span} degrees{end})",
    SAME_CLASS: "most neighbours share a class at {where} ({span}{end})",
    KL_WITHOUT: "the next token changes least without {where} (KL {span} nats{end})",
    INFLUENCE: "rows turn least at {where} (1 - cosine {span}{end})",
}
OF_LAST = {DIMENSION: "dimension", RANK: "rank", ALIKE: "CKA", SAME_CLASS: "classes"}  # of last tokens, in the note
BLOCK = "block "
DIGITS = 3  # of numbers in a sentence, at least
SAID = 2  # models of which the title says where
INDEPENDENT = 120.0  # degrees between steps from one random row to the next
Layers = Sequence[Mapping[str, Any]]
Rows = Mapping[str, Layers]


@dataclass(frozen=True, kw_only=True)
class LayersOptions:
    """Every number of a layer over depth, and the layers that stand out. There are no settings."""


def group_by_model(table: Table) -> Rows:
    """Lists the rows of each model, in the order of its layers."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        rows.setdefault(row["model"], []).append(row)
    return rows


def find_best(layers: Layers, column: str) -> int | None:
    """Finds the layer that stands out by a number, highest or lowest as `STANDING_OUT` has it; None where no two layers
    have it."""
    known = [i for i, row in enumerate(layers) if row[column] is not None]
    return (max if STANDING_OUT[column] else min)(known, key=lambda i: layers[i][column]) if len(known) > 1 else None


def read_apart(tables: Mapping[str, Table]) -> Rows:
    """Reads, of each layer and number, the standard error of its difference from the layer that stands out; of a run
    without these, of two that are taken to be independent."""
    if OF_LAYER_DIFFERENCES in tables:
        return group_by_model(tables[OF_LAYER_DIFFERENCES])
    rows, errors = (group_by_model(tables[name]) for name in (OF_LAYER, OF_LAYER_ERRORS))
    apart: dict[str, list[dict[str, Any]]] = {model: [{} for _ in layers] for model, layers in rows.items()}
    for model, layers in rows.items():
        for column in STANDING_OUT:
            best = find_best(layers, column)
            of = [row[column] for row in errors[model]]
            for row, error in zip(apart[model], of if best is None else combine_with_best(of, best), strict=True):
                row[column] = error
    return apart


def count_freedom(about: Mapping[str, Any], column: str) -> int | None:
    """Counts the degrees of freedom of the errors of a number: of the documents, or groups of them, less one; None
    where they are not known."""
    documents = about.get(DOCUMENTS_WITHOUT if column == KL_WITHOUT else DOCUMENTS)
    if documents is None:
        return None
    return (min(documents, GROUPS) if column == DIMENSION else documents) - 1


def say_answers(rows: Rows, apart: Rows, about: Mapping[str, Any]) -> Iterator[list[str]]:
    """Says of each model which layers stand out: those that cannot be told apart from the first of them.

    apart: standard errors of the difference from it.
    about: how many documents these are over.
    """
    for model, layers in rows.items():
        found = [
            say_extreme(layers, apart[model], column, count_freedom(about, column))
            for column in FORMS
            if column != INFLUENCE or all(row[KL_WITHOUT] is None for row in layers)
        ]
        if any(found):
            yield [model, "; ".join(filter(None, found))]


def say_extreme(layers: Layers, apart: Layers, column: str, freedom: int | None = None) -> str:
    """Says where a number is highest or lowest; empty where no two layers have it.

    apart: standard errors of the difference from that layer.
    freedom: of these.
    """
    best = find_best(layers, column)
    if best is None:
        return ""
    known = [i for i, row in enumerate(layers) if row[column] is not None]
    numbers, errors = ([rows[i][column] for i in known] for rows in (layers, apart))
    alike = [known[place] for place in list_within(numbers, errors, known.index(best), freedom)]
    values, last = [layers[i][column] for i in alike], known[-1]
    beside = None if last in alike else layers[last][column]
    low, high, end = write_apart(min(values), max(values), beside)
    span = low if low == high else f"{low} to {high}"
    if column == SAME_CLASS and layers[best][BY_CHANCE] is not None:
        span += f", chance {layers[best][BY_CHANCE]:.3g}"
    word, _ = make_layer_namer([row["layer"] for row in layers])
    if len(alike) == len(known):
        return f"no layer stands out by {MEANT[column].partition(',')[0]} ({span})"
    end = "" if beside is None else f"; {end} at {word(layers[last]['layer'])}, the last"
    where = [word(layers[i]["layer"]) for i in alike]
    blocks = [int(name.removeprefix(BLOCK)) for name in where if name.startswith(BLOCK)]
    others = [name for name in where if not name.startswith(BLOCK)]
    named = ("one of " if len(alike) > 1 else "") + ", ".join([*others, *([name_blocks(blocks)] if blocks else [])])
    return FORMS[column].format(where=named, span=span, end=end)


def write_apart(low: float, high: float, beside: float | None) -> tuple[str, str, str]:
    """Writes the ends of a range and the number beside it, which is told apart from these, with so many digits that it
    differs from them.

    >>> write_apart(116.7, 116.7, 117.2), write_apart(1.0, 1.26, None)
    (('116.7', '116.7', '117.2'), ('1', '1.26', ''))
    """
    digits = DIGITS
    while beside not in (None, low, high) and f"{beside:.{digits}g}" in (f"{low:.{digits}g}", f"{high:.{digits}g}"):
        digits += 1
    return f"{low:.{digits}g}", f"{high:.{digits}g}", "" if beside is None else f"{beside:.{digits}g}"


class Depth(NamedTuple):
    """The blocks of a model by their share of the depth, and a number of each."""

    shares: np.ndarray
    values: np.ndarray


def list_deep_blocks(rows: Rows, column: str) -> list[Depth]:
    """Lists a number of the blocks of every model that has it in enough blocks to tell a half of the depth."""
    found = []
    for layers in rows.values():
        values = [
            row[column] for row in layers if read_block_number(row["layer"]) is not None and row[column] is not None
        ]
        if len(values) >= HALVES:
            found.append(Depth(np.linspace(0, 1, len(values)), np.array(values, float)))
    return found


def compare_middle_blocks(models: Sequence[Depth], where: Callable[[np.ndarray], np.ndarray]) -> list[float]:
    """Computes by model the mean of a number over blocks in the middle half of the depth less that over others. where:
    which shares of the depth are those of the others."""
    return [float(values[np.abs(at - 0.5) <= 0.25].mean() - values[where(at)].mean()) for at, values in models]


@claim(
    "Cheng et al. 2025, abstract",
    statistic="intrinsic dimension, mean over the middle half of the depth: minus that of the first quarter, or of the "
    "last, the lower of both",
    threshold=0.0,
    unit="model",
)
def dimension_peaks_inside(rows: Rows) -> Weighed | Untestable:
    """Texts take more directions in the middle of a model than at both of its ends."""
    models = list_deep_blocks(rows, DIMENSION)
    if not models:
        return Untestable(f"needs {FEWEST} models with an intrinsic dimension of {HALVES} blocks or more")
    ends = [
        compare_middle_blocks(models, lambda at: at < 0.25),
        compare_middle_blocks(models, lambda at: at > 0.75),
    ]
    # models may share a curve that peaks anywhere: it must rise steadily in its first half, and fall in its last
    parts = [
        require_shared_trend(weigh_mean(gaps, 0.0, "model"), [sign * values for _, values in models], half=half)
        for half, (gaps, sign) in enumerate(zip(ends, (1, -1), strict=True))
    ]
    means = [float(np.mean(gaps)) for gaps in ends]
    return Weighed(min(means), replace(require_all_parts(parts), se=parts[int(np.argmin(means))].se))


@claim(
    "Skean et al. 2025, abstract",
    statistic="share of the nearest texts that are of the same class, mean over the middle half of the depth: minus "
    "that after the last block",
    threshold=0.0,
    unit="model",
)
def middle_layers_tell_classes_better(rows: Rows) -> Weighed | Untestable:
    """The nearest texts share a class more often in the middle of a model than at its end."""
    models = list_deep_blocks(rows, SAME_CLASS)
    if not models:
        return Untestable(f"needs data with classes, and {FEWEST} models of {HALVES} blocks or more")
    gaps = compare_middle_blocks(models, lambda at: at == 1)
    over = require_shared_trend(weigh_mean(gaps, 0.0, "model"), [-values for _, values in models], half=1)
    return Weighed(float(np.mean(gaps)), over)


def make_curves(rows: Rows, errors: Rows) -> Iterator[Curve]:
    """Makes a curve of each quantity over the layers of each model in which two layers or more have a value.

    rows: by model, a row of the table per layer.
    errors: their standard errors.
    """
    for column, meant in MEANT.items():
        for model, layers in rows.items():
            values = [row[column] for row in layers]
            if sum(value is not None for value in values) < 2:
                continue
            of = [row[column] for row in errors[model]]
            yield Curve(
                x=Axis(name="layer"),
                y=Axis(name=meant),
                at=[row["layer"] for row in layers],
                lines={column: values},
                errors={column: of} if any(error is not None for error in of) else {},
                bounds=[0.0, None],
                about={"quantity": column, "model": model, **_find_reference_levels(column, layers)},
            )


def _find_reference_levels(column: str, layers: Layers) -> dict[str, Any]:
    levels = {SAME_CLASS: {"chance": layers[0][BY_CHANCE]}, CURVATURE: {"independent rows": INDEPENDENT}}
    return {"levels": levels[column]} if column in levels else {}


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """layers: a panel per number, a line per model"""
    groups: dict[str, list[Curve]] = {}
    for curve in run.results.curves.values():
        if curve.analysis == "layers":
            groups.setdefault(curve.about["quantity"], []).append(curve)
    if groups:
        yield "layers", partial(_draw, list(groups.values()), run)


def _draw(groups: Sequence[Sequence[Curve]], run: Finished) -> Any:
    figure = draw_quantities(groups, (KL_WITHOUT,))
    rows, apart, k = (
        group_by_model(run.results.tables[OF_LAYER]),
        read_apart(run.results.tables),
        run.results.about["k"],
    )
    freedom = count_freedom(run.results.about, DIMENSION)
    found = [(model, say_extreme(layers, apart[model], DIMENSION, freedom)) for model, layers in rows.items()]
    drawn = {curves[0].about["quantity"] for curves in groups}
    of_last = [short for quantity, short in OF_LAST.items() if quantity in drawn]
    set_headline(
        figure,
        *(
            [f"{model}: {what}" for model, what in found]
            if len(found) <= SAID
            else [f"Layers of {list_models(list(rows))}"]
        ),
        f"dimension of neighbours {k} and {2 * k}; {', '.join(of_last)}: last tokens of texts; others: all tokens",
    )
    return figure


@analysis(studies=("layers",), unasked=lambda planned: True, figures=draw_figures)
def layers(run: Finished, options: LayersOptions, claims: Sequence[Claim]) -> Part:
    """Draws every number of a layer over depth, and says which layers stand out."""
    rows, errors = (group_by_model(run.results.tables[name]) for name in (OF_LAYER, OF_LAYER_ERRORS))
    trained = {model: of for model, of in rows.items() if model not in run.untrained}
    said = list(say_answers(rows, read_apart(run.results.tables), run.results.about))
    return Part(
        claims=[each.verdict("layers", trained) for each in claims],
        tables={STANDS_OUT: Table(columns=["model", "what"], rows=said)},
        curves={f"{curve.about['quantity']}, {curve.about['model']}": curve for curve in make_curves(rows, errors)},
    )
