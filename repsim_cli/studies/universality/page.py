"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results


@pages.register("universality", "Are models of different training as alike as seeds of one training?")
def say_universality(whole: Results) -> Iterator[Said]:
    """Gives the verdict of every measure on every factor."""
    for measure, rows in groupby(list_table_records(whole, "universality of factors"), key=lambda row: row["measure"]):
        found = [f"{row['factor']} {row['verdict']}{_say_way(row)}" for row in rows]
        first = f"{found[0]}{' of the way from untrained to seeds' * (', ' in found[0])}"
        yield measure, f"By {measure}: {'; '.join([first, *found[1:]])}"


def _say_way(row: dict[str, Any]) -> str:
    """The shares of the way from untrained models to seeds, of the values that differ most."""
    ends = [row.get(f"{end} share of seeds") for end in ("least", "largest")]
    return "" if None in ends else f", {ends[0]:.2f} to {ends[1]:.2f}"
