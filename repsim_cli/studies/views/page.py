"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from repsim_cli.base.plain import write_percent, write_share
from repsim_cli.base.registry import pages
from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results

Rows = Sequence[Mapping[str, Any]]
PARTS = 10  # of the rows, left out in turn for the errors of distances
LEVEL = 0.05  # p up to which rows stay more than by chance
FEW = 0.05  # distances in bins that were empty, of which KL says little more than how many

ASKED = "What do the rows of a layer look like: their distances, their neighbours, and how layers match them?"


@pages.register("views", ASKED)
def say_views(whole: Results) -> Iterator[Said]:
    """Says how many rows layers couple with themselves, how many neighbours stay, and where distances change most."""
    yield from say_couplings(list_table_records(whole, "couplings", "on the diagonal", "by chance"))
    needed = "share that stays", "by chance", "p", "rows", "nearest"
    yield from say_staying(list_table_records(whole, "neighbours that stay", *needed))
    yield from say_shifts(list_table_records(whole, "distances", "KL(layer || previous)"))


def say_couplings(rows: Rows) -> Iterator[Said]:
    """Says of each pair of layers how many rows are coupled with themselves, and how often random permutations keep as
    many."""
    for (model, first, second), some in groupby(rows, key=lambda row: (row["model"], row["rows"], row["columns"])):
        plans = list(some)
        said = ", ".join(
            f"{write_share(plan['on the diagonal'])} ({plan['starts']}, found from {plan['from']}{_say_p(plan)})"
            for plan in plans
        )
        of = f"of {round(1 / plans[0]['by chance'])} rows, {plans[0]['by chance']:.2f} by chance"
        yield model, f"{model}, {first} and {second}: rows coupled with themselves, {said}; {of}"


def _say_p(plan: Mapping[str, Any]) -> str:
    return "" if plan.get("p") is None else f", p {plan['p']:.2g}"


def say_staying(rows: Rows) -> Iterator[Said]:
    """Says how many of the nearest rows of the first layer stay in later ones, and whether more than by chance."""
    for row in rows:
        near = f"of the {row['nearest']} rows nearest to each of {row['rows']} in the first layer"
        known = f"({row['space']}; by chance {write_percent(row['by chance'])}, p {row['p']:.2g})"
        more = "no more than by chance, " * (row["p"] > LEVEL)
        stay = f"{more}{write_percent(row['share that stays'])} stay in later ones{_say_fewest(row)}"
        yield row["model"], f"{row['model']}: {near} {stay} {known}"


def _say_fewest(row: Mapping[str, Any]) -> str:
    """Says in which layer fewest stay; nothing of runs before that was counted."""
    if row.get("lowest") is None or f"{row['lowest']:.2f}" == f"{row['share that stays']:.2f}":
        return ""
    return f", at the least {write_percent(row['lowest'])} in {row['lowest in']}"


def say_shifts(rows: Rows) -> Iterator[Said]:
    """Says of each model at which layer distances change most, and which others are not told apart from it."""
    for model, some in groupby(rows, key=lambda row: row["model"]):
        layers = list(some)
        values = [row["KL(layer || previous)"] for row in layers]
        errors = [row.get("± KL(layer || previous)") for row in layers]
        most = max(range(len(values)), key=values.__getitem__)
        alike = list_alike(values, errors, most, PARTS - 1)
        if len(alike) == len(values) > 1:
            of = f"{min(values):.2g} to {values[most]:.2g} nats"
            yield model, f"{model}: distances of rows change by KL {of}, at no layer more than at the others"
            continue
        known = "" if errors[most] is None else f" (se {errors[most]:.2g})"
        others = say_others([row["layer"] for row in layers], alike, most)
        new = layers[most].get("in bins empty before") or 0
        bins = "bins that the layer before leaves empty"
        where = f"{write_percent(new)} of them lie in {bins}: KL says how these are filled"
        at = f"{layers[most]['layer']}, KL {values[most]:.2g} nats{known}{f' ({where})' * (new > FEW)}"
        said = f"distances of rows change most at {at}{others}"
        yield model, f"{model}: {said}"
