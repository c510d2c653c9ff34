"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator
from itertools import groupby

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results

ASKED = "What do the rows of a layer look like: their distances, their neighbours, and how layers match them?"


@pages.register("views", ASKED)
def say_views(whole: Results) -> Iterator[Said]:
    """Says how many rows layers couple with themselves, how many neighbours stay, and where distances change most."""
    by_pair = groupby(
        list_table_records(whole, "couplings", "on the diagonal", "by chance"),
        key=lambda row: (row["model"], row["rows"], row["columns"]),
    )
    for (model, first, second), some in by_pair:
        rows = list(some)
        said = ", ".join(f"{row['on the diagonal']:.2f} ({row['starts']}, found from {row['from']})" for row in rows)
        of = f"of {round(1 / rows[0]['by chance'])} rows, {rows[0]['by chance']:.2f} by chance"
        yield model, f"{model}, {first} and {second}: rows coupled with themselves, {said}; {of}"
    kept = list_table_records(whole, "neighbours kept", "mean without it", "by chance")
    by_space = groupby(kept, key=lambda row: (row["model"], row["space"]))
    for (model, space), some in by_space:
        rows = list(some)
        mean = sum(row["mean without it"] for row in rows) / len(rows)
        chance = f"{space}; by chance {rows[0]['by chance']:.2f}"
        yield model, f"{model}: {mean:.2f} of the neighbours of the first layer stay in later ones ({chance})"
    column = "KL(layer || previous)"
    for model, some in groupby(list_table_records(whole, "distances", column), key=lambda row: row["model"]):
        most = max(some, key=lambda row: row[column])
        yield model, f"{model}: distances of rows change most at {most['layer']}, KL {most[column]:.2g} nats"
