"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results


@pages.register("finetune", "How accurate are the classifiers, and do they agree?")
def say_classifier_accuracies(whole: Results) -> Iterator[Said]:
    """Says how accurate classifiers are, and what each variant changes."""
    for row in list_table_records(whole, "over seeds", "lowest", "highest"):
        if row["metric"] != "loss":
            models = len(whole.tables["classifiers"].rows)
            yield "", f"{row['metric']} of {models} models: {row['lowest']:.4g} to {row['highest']:.4g}"
    rows = list_table_records(whole, "variants", "mean")
    wholes = {row["task"]: row for row in rows if row["change"] is None}
    for row in rows:
        if row["change"] is not None:
            error = row["standard error of rows"]
            sides = [row, *filter(None, [wholes.get(row["task"])])]
            known = [*([] if error is None else [f"se of the rows {error:.2g}"]), _say_seeds(sides)]
            said = f"{row['task']}, {row['variant']}: {row['mean']:.4g}, {row['change']:+.2g}"
            yield row["task"], f"{said} ({'; '.join(known)})"


def _say_seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says how far the seeds of variants differ, which the error of the rows does not know."""
    spreads = [(row.get("standard deviation"), row["variant"]) for row in rows]
    known = [f"{spread:.2g} of {variant}" for spread, variant in spreads if spread is not None]
    return f"standard deviation of seeds {', '.join(known)}" if known else "how far seeds differ is not known"
