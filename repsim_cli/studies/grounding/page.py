"""What the page of a run says first: what was asked, and what was found."""

from collections.abc import Iterator

from repsim_cli.base.registry import pages
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results
from repsim_cli.studies.grounding.grading import FEWEST


@pages.register("grounding", "Which measure sees differences between models that are known to be there?")
def say_best_measures(whole: Results) -> Iterator[Said]:
    """Says which measures have the best mean ranks, and whether the first is ahead of any."""
    rows = list_table_records(whole, "measures by grade", "mean rank")
    if rows:
        best = (
            row["measure"]
            + f" {row['mean rank']:.1f}"
            + ("" if None in (row["low"], row["high"]) else f" ({row['low']:.1f} to {row['high']:.1f})")
            for row in rows[:3]
        )
        ahead = rows[0].get("ahead of")
        told = f"the first is ahead of {ahead or 'none'} of the others, pair by pair"
        if ahead is None:
            told = f"which are ahead of others is told of {FEWEST} models of each test or more"
        yield "", f"Best mean ranks of {len(rows)} measures over tests with known answers: {', '.join(best)}; {told}"
