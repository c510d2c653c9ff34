"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator
from itertools import groupby

from repsim_cli.base.plain import escape
from repsim_cli.base.registry import pages
from repsim_cli.report.studies import MOST, Said, list_table_records
from repsim_cli.runs.content import Results


@pages.register("tuned", "What did further training change: at which layers, for which tokens, in what is predicted?")
def say_tuned(whole: Results) -> Iterator[Said]:
    """Says at which single tokens of the texts the outputs change most."""
    for (model, by), rows in groupby(
        list_table_records(whole, "tokens that change most", "value"), key=lambda row: (row["model"], row["by"])
    ):
        most = ", ".join(f"{escape(row['token'])} {row['value']:.2g}" for row in [*rows][:MOST])
        yield model, f"{model}: the largest changes at single tokens of the texts, by {by}: {most}"
