"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

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
    for row in list_table_records(whole, "variants", "change", "mean"):
        error = "" if row["standard error of rows"] is None else f" (se {row['standard error of rows']:.2g})"
        yield row["task"], f"{row['task']}, {row['variant']}: {row['mean']:.4g}, {row['change']:+.2g}{error}"
