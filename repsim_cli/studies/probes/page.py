"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

from repsim_cli.base.plain import say_count
from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results

LEVEL = 0.05  # p up to which a probe tells a target


@pages.register("probes", "Which layers know a target, and which of them tell it linearly?")
def say_probe_errors(whole: Results) -> Iterator[Said]:
    """Says which layer tells each target best, if any is shown to tell it better than the largest class, or the mean of
    numbers; in runs of before it was tested, whether its error is lower."""
    for row in list_table_records(whole, "nearest to the targets", "lowest error"):
        model, lowest, p = row["model"], row["lowest error"], row.get("p of any layer")
        largest = row["error of the largest class"]
        if largest is not None:
            guess, beside, known = "its largest class", "the largest class alone has", largest
        elif p is None:
            guess, beside, known = "labels without meaning", "with labels without meaning", row.get("control")
        else:  # the error of numbers is 1 - R^2
            guess, beside, known = "its mean", "the mean alone has 1, labels without meaning", row.get("control")
        against = "" if known is None else f"; {beside} {known:.2g}"
        tested = "" if p is None else f" (p {p:.2g} for the best of {say_count(row['layers'], 'layer')})"
        numbers = f"error {lowest:.2g} ({row['probe']}){against}{tested}"
        constant = 1.0 if largest is None and p is not None else known  # the error of the best constant answer
        worse = constant is not None and lowest >= constant
        if worse or (p is not None and p > LEVEL):
            tells = "tells" if worse else "is shown to tell"
            yield model, f"No layer of {model} {tells} {row['target']} better than {guess}: {numbers}"
            continue
        others = row.get("others as near") or 0
        ties = f" and as well at {others} other layer{'s' if others > 1 else ''}" if others else ""
        untold = row.get("not told apart") or 0
        more = f"; {say_count(untold, 'layer')} not told apart from it" if untold else ""
        yield model, f"{model} tells {row['target']} best at {row['nearest']}{ties}: {numbers}{more}"
