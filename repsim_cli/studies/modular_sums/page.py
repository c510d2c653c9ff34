"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, format_percent, list_table_records
from repsim_cli.runs.content import Results


@pages.register("modular_training", "Did the models learn to add modulo a prime?")
def say_modular_accuracies(whole: Results) -> Iterator[Said]:
    """Says how well models that add learned each sum."""
    for row in list_table_records(whole, "training", "validation accuracy"):
        right = f"{format_percent(row['validation accuracy'])} of the validation rows"
        after = "" if row["kept after"] is None else f" after {row['kept after']} epochs"
        yield row["model"], f"{row['model']} has {row['stage']} right in {right}{after}"
