"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results


@pages.register("architecture", "How are the models built, and does one stand apart from the others?")
def say_odd_architectures(whole: Results) -> Iterator[Said]:
    """Says which models stand apart in their shape."""
    rows = list_table_records(whole, "architecture")
    apart = [
        (row["model"], f"{row['model']} stands apart in {row['stands apart']}") for row in rows if row["stands apart"]
    ]
    yield from apart or (
        [("", f"No model of {len(rows)} stands apart from its neighbours in its shape")] if rows else []
    )
