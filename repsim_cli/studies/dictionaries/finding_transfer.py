"""Says what a dictionary of the base is worth in each model, beside the base and a shuffled dictionary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from repsim_cli.base.plain import write_percent, write_share
from repsim_cli.figures.lines import draw_quantities
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.extremes import find_width
from repsim_cli.runs.content import REUSED, Axis, Curve, Table
from repsim_cli.studies.dictionaries.columns import (
    BY_SHUFFLED,
    DEAD,
    EXPLAINED,
    FREEDOM,
    FROM_BASE,
    IN_MODELS,
    MORE,
    RECOVERED,
)

Row = Mapping[str, Any]
MEANT = {
    EXPLAINED: "share of the variance that is explained",
    RECOVERED: "share of the loss that is recovered",
    DEAD: "share of latents that are never active",
}
NAMED = 2  # models in the title


@dataclass(frozen=True, kw_only=True)
class DictionaryTransferOptions:
    """Says what each dictionary is worth in each model. There are no settings."""


def list_table_rows(table: Table) -> list[Row]:
    return [dict(zip(table.columns, values, strict=True)) for values in table.rows]


def say_dictionary_worth(row: Row, base: Row) -> str:
    """Says what a dictionary is worth in a model, beside the base."""
    said = [_say(row, base, EXPLAINED, "explains", "of the variance")]
    if row[RECOVERED] is not None:
        said.append(_say(row, base, RECOVERED, "recovers", f"of the loss ({row[MORE]:+.3f} nats)"))
    elif row[MORE] is not None:
        said.append(f"costs {row[MORE]:+.3f} nats, of which no share is said: the mean row costs too little")
    return "; ".join([*said, f"{write_percent(row[DEAD])} of latents are dead ({write_percent(base[DEAD])})"])


def _say(row: Row, base: Row, score: str, verb: str, of: str) -> str:
    beside = f"{row[f'{score} {BY_SHUFFLED}']:.2f} shuffled"
    return f"{verb} {write_share(row[score])} {of}, {_say_difference_from_base(row, base, score)} ({beside})"


def _say_difference_from_base(row: Row, base: Row, score: str) -> str:
    """Says how far a score is from the base's, with the error of their difference over documents."""
    if base[score] is None:
        return "which is not known of the base"
    apart, error = row[f"{score} {FROM_BASE}"], row[f"± {score} {FROM_BASE}"]
    if error is None:
        return f"{write_share(base[score])} in the base"
    if abs(apart) <= find_width(2, row.get(FREEDOM, row["documents"] - 1)) * error:
        return f"not told apart from the base ({write_share(base[score])}; {apart:+.3f}, se {error:.3f})"
    return f"{abs(apart):.3f} (se {error:.3f}) {'more' if apart > 0 else 'less'} than in the base"


def pair_with_base(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Pairs the rows of models that are not the base with those of the same dictionary in the base."""
    base = {row["dictionary"]: row for row in rows if row["model"] == rows[0]["model"]}
    for row in rows:
        if row["model"] != rows[0]["model"]:
            yield row, base[row["dictionary"]]


def make_curves(rows: Sequence[Row]) -> Iterator[Curve]:
    """Draws each score over the dictionaries of a model, where it has one. rows: one for each dictionary."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    for score, meant in MEANT.items():
        for model in models:
            of = [row for row in rows if row["model"] == model]
            if all(row[score] is None for row in of):
                continue
            errors = [row.get(f"± {score}") for row in of]
            yield Curve(
                x=Axis(name="layer"),
                y=Axis(name=meant),
                at=[row["dictionary"] for row in of],
                lines={score: [row[score] for row in of]},
                errors={score: errors} if any(error is not None for error in errors) else {},
                bounds=[None, 1.0],
                about={"quantity": score, "model": model},
            )


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """dictionaries: what each dictionary explains and recovers, and its dead latents, a line per model"""
    groups: dict[str, list[Curve]] = {}
    for curve in run.results.curves.values():
        if curve.analysis == "dictionary_transfer":
            groups.setdefault(curve.about["quantity"], []).append(curve)
    yield "dictionaries", partial(_draw, list(groups.values()), list_table_rows(run.results.tables[IN_MODELS]))


def _draw(groups: Sequence[Sequence[Curve]], rows: Sequence[Row]) -> Any:
    figure = draw_quantities(groups, ())
    least = min((row for row, _ in pair_with_base(rows)), key=lambda row: row[EXPLAINED], default=rows[0])
    base, *others = (row for row in rows if row["dictionary"] == least["dictionary"])
    named = sorted(others, key=lambda row: row["model"] != least["model"])[:NAMED]
    whose = [f"{write_share(row[EXPLAINED])} of that of {row['model']}" for row in named]
    set_headline(
        figure,
        f"{least['dictionary']}: a dictionary of {base['model']} explains {write_share(base[EXPLAINED])} of its "
        "variance" + "".join(f", {each}" for each in whose),
        f"the dictionary that explains least in one of the models; shuffled ones explain "
        f"{max(row[f'{EXPLAINED} {BY_SHUFFLED}'] for row in rows):.2f} at most",
    )
    return figure


@analysis(studies=("dictionary_transfer",), unasked=lambda planned: True, figures=draw_figures)
def dictionary_transfer(run: Finished, options: DictionaryTransferOptions, claims: Sequence[Claim]) -> Part:
    """Says what each dictionary of the base is worth in the other models, and draws it."""
    rows = list_table_rows(run.results.tables[IN_MODELS])
    said = [
        [f"{row['dictionary']} in {row['model']}", say_dictionary_worth(row, base)]
        for row, base in pair_with_base(rows)
    ]
    return Part(
        tables={REUSED: Table(columns=["dictionary", "what"], rows=said)},
        curves={f"{curve.about['quantity']}, {curve.about['model']}": curve for curve in make_curves(rows)},
    )
