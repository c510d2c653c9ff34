"""In which layer the two texts of a pair find each other, beside what chance and shared tokens give."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.plain import find_free_key, write_interval, write_share
from repsim_cli.figures.lines import draw_quantities
from repsim_cli.figures.panels import list_models, set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.answering import make_layer_namer
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.findings.layers import order_layers
from repsim_cli.runs.content import CHANCE, FOUND, Axis, Band, Curve, Measured, Table, omit_nan
from repsim_cli.studies.parallel.columns import BY_TEXT, BY_TOKENS, HIGH, LOW, RETRIEVAL

Way = tuple[str, str]  # from a column to a column
Ways = Mapping[Way, Mapping[str, Sequence[Mapping[str, Any]]]]
OF = "95 % over texts"
WIDE = 2 * 1.96  # standard errors that an interval spans
ACROSS = "the same layer across columns"


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """The layer in which pairs find each other best, and similarity across columns by layer. There are no settings."""


def group_by_way(table: Table) -> dict[Way, dict[str, list[dict[str, Any]]]]:
    """Lists by way between the columns and by model the rows of its layers, in their order, of models with
    themselves."""
    ways: dict[Way, dict[str, list[dict[str, Any]]]] = {}
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        if row["model"] == row["other model"]:
            ways.setdefault((row["from"], row["to"]), {}).setdefault(row["model"], []).append(row)
    return {
        way: {model: [rows[i] for i in order_layers([row["layer"] for row in rows])] for model, rows in models.items()}
        for way, models in ways.items()
    }


def name_row_unit(run: Finished) -> str:
    """Names what rows are."""
    return "words" if run.manifest["data"]["unit"] == "word" else "texts"


def say_answers(ways: Ways, rows_are: str) -> Iterator[list[str]]:
    """Says of each model in which layer pairs find each other best, over both ways."""
    there, back = ways.values()
    (first, second), *_ = ways
    for model, rows in there.items():
        word, _ = make_layer_namer([row["layer"] for row in rows])
        best = find_best_layer(rows, back[model])
        row, other, last = rows[best], back[model][best], rows[-1]
        alike = list_alike([each[RETRIEVAL] for each in rows], [(each[HIGH] - each[LOW]) / WIDE for each in rows], best)
        told = say_others([word(each["layer"]) for each in rows], alike, best)
        end = f"; at {word(last['layer'])} {write_share(last[RETRIEVAL])}" if row is not last else ""
        yield [
            model,
            f"{write_interval(row[RETRIEVAL], row[LOW], row[HIGH])} of {row['rows']:,} {rows_are} find their pair at "
            f"{word(row['layer'])} ({first} to {second}; back {write_share(other[RETRIEVAL])}), where chance "
            f"gives {row[CHANCE]:.2g}{_of_text(row)} and {BY_TOKENS} {write_share(row[BY_TOKENS])}{end}{told}",
        ]


def _of_text(row: Mapping[str, Any]) -> str:
    return "" if row[BY_TEXT] is None else f", the {BY_TEXT} {write_share(row[BY_TEXT])}"


def find_best_layer(there: Sequence[Mapping[str, Any]], back: Sequence[Mapping[str, Any]]) -> int:
    """Finds the layer of most pairs, both ways together, the first of equal ones."""
    return int(np.argmax([a[RETRIEVAL] + b[RETRIEVAL] for a, b in zip(there, back, strict=True)]))


def find_highest(ways: Ways) -> Mapping[str, Any]:
    """Finds the row of most pairs of all models, layers and ways, the first of equal ones."""
    return max(
        (row for models in ways.values() for rows in models.values() for row in rows), key=lambda row: row[RETRIEVAL]
    )


def make_retrieval_curves(ways: Ways) -> Iterator[Curve]:
    """Draws over the layers of each model how often a text finds its translation, beside what chance and shared tokens
    find."""
    drawn = [row for models in ways.values() for rows in models.values() for row in rows]
    most = max(max(row[HIGH], row[BY_TOKENS]) for row in drawn)
    for (first, second), models in ways.items():
        tokens = sorted(row[BY_TOKENS] for row, *_ in models.values())
        known = next(iter(models.values()))[0]
        levels = {name: known[name] for name in (CHANCE, BY_TEXT) if known[name] is not None}
        levels[BY_TOKENS] = [tokens[0], float(np.median(tokens)), tokens[-1]]
        for model, rows in models.items():
            yield Curve(
                x=Axis(name="layer"),
                y=Axis(name=f"pairs found, {first} to {second}"),
                at=[row["layer"] for row in rows],
                lines={RETRIEVAL: [row[RETRIEVAL] for row in rows]},
                bands={RETRIEVAL: Band(low=[row[LOW] for row in rows], high=[row[HIGH] for row in rows], of=OF)},
                bounds=[0.0, 1.0 if most > 0.5 else None],
                about={"quantity": f"{RETRIEVAL} {first} to {second}", "model": model, "levels": levels},
            )


def make_column_curves(run: Finished, measured: Measured, columns: Way) -> Iterator[Curve]:
    """Draws the value of every layer of a model on one column with the same layer on the other."""
    names = {f"{model} on {column}": (model, column) for model in _list_retrieval_models(run) for column in columns}
    made: dict[str, tuple[list[str], np.ndarray, np.ndarray | None]] = {}
    for matrix in measured.matrices:
        (one, left), (other, right) = names[matrix.rows.model], names[matrix.columns.model]
        if one == other and left != right and one not in made:
            order = order_layers(matrix.rows.layers)
            chance = run.array(matrix.details[CHANCE]).diagonal() if CHANCE in matrix.details else None
            made[one] = [matrix.rows.layers[i] for i in order], run.array(matrix.values).diagonal()[order], chance
    drawn = [chance for *_, chance in made.values() if chance is not None]
    levels = {CHANCE: [float(end(np.concatenate(drawn))) for end in (np.min, np.median, np.max)]} if drawn else {}
    for model, (layers, values, _) in made.items():
        yield Curve(
            x=Axis(name="layer"),
            y=Axis(name=f"{measured.card['label']}, {ACROSS}"),
            at=layers,
            lines={ACROSS: [*map(omit_nan, values)]},
            about={"quantity": f"{measured.label} {ACROSS}", "model": model, "levels": levels},
        )


def _list_retrieval_models(run: Finished) -> list[str]:
    return list(dict.fromkeys(run.results.tables[RETRIEVAL].column("model")))


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """parallel: pairs found by layer, both ways, and similarity across columns"""
    groups: dict[str, list[Curve]] = {}
    for curve in run.results.curves.values():
        if curve.analysis == "parallel":
            groups.setdefault(curve.about["quantity"], []).append(curve)
    yield "parallel", partial(_draw, list(groups.values()), run)


def _draw(groups: Sequence[Sequence[Curve]], run: Finished) -> Any:
    figure = draw_quantities(groups, ())
    ways = group_by_way(run.results.tables[RETRIEVAL])
    models = list(next(iter(ways.values())))
    row = find_highest(ways)
    word, _ = make_layer_namer([each["layer"] for each in next(iter(ways.values()))[row["model"]]])
    means, what = ", each column's mean removed" if run.options.get("centred") else "", name_row_unit(run)
    set_headline(
        figure,
        f"{list_models(models)}: at most {write_share(row[RETRIEVAL])} of the {what} find their pair ({row['model']}, "
        f"{word(row['layer'])}, {row['from']} to {row['to']})",
        f"nearest by cosine of {row['rows']:,} {what} in the other column{means}; chance "
        f"{row[CHANCE]:.2g}{_of_text(row)}, {BY_TOKENS} {write_share(row[BY_TOKENS])}",
    )
    return figure


@analysis(studies=("parallel",), unasked=lambda planned: True, figures=draw_figures)
def parallel(run: Finished, options: ParallelOptions, claims: Sequence[Claim]) -> Part:
    """Says where pairs find each other, and draws how alike layers are across columns."""
    ways = group_by_way(run.results.tables[RETRIEVAL])
    curves: dict[str, Curve] = {}
    columns = next(iter(ways))
    for curve in [
        *make_retrieval_curves(ways),
        *(each for measured in run.results.measures for each in make_column_curves(run, measured, columns)),
    ]:
        curves[find_free_key(f"{curve.about['quantity']}, {curve.about['model']}", curves)] = curve
    found = list(say_answers(ways, name_row_unit(run)))
    return Part(tables={FOUND: Table(columns=["model", "what"], rows=found)}, curves=curves)
