"""What the page of a run says first: what was asked, what a stitch costs, and whether layers are told apart."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from repsim_cli.base.registry import pages
from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.report.studies import Said, list_table_records
from repsim_cli.runs.content import Results

Row = Mapping[str, Any]
ROUNDING = 5e-6  # nats below which a loss, with its error, is none


@pages.register("stitching", "Can the later blocks of one model go on from the first blocks of another?")
def say_stitching(whole: Results) -> Iterator[Said]:
    rows = list_table_records(whole, "stitching", "penalty")
    sequences = whole.about.get("evaluation_sequences")  # over which errors of runs of before are
    freedom = None if sequences is None else sequences - 1
    yield from say_stitches(rows, whole.about.get("freedom", freedom))


def say_stitches(rows: Sequence[Row], freedom: int | None) -> Iterator[tuple[str, str]]:
    """Says, for each head and tail, after which layer a stitch costs least, beside a stitch of the tail into itself,
    which layers are not told apart from it, and after which it costs most. rows: of stitches with a penalty. freedom:
    of the errors, None where they are known."""
    equal = [row for row in rows if row["head layer"] == row["tail layer"]]
    for (head, tail), some in groupby(
        sorted(
            equal,
            key=lambda row: (
                row["head"].startswith(f"{row['tail']} ("),
                row["head"] == row["tail"],
                row["head"],
                row["tail"],
            ),
        ),
        key=lambda row: (row["head"], row["tail"]),
    ):
        known = sorted(some, key=lambda row: row["penalty"])
        least, most = known[0], known[-1]
        alike = list_alike([row["penalty"] for row in known], [row["penalty se"] for row in known], 0, freedom)
        told = say_others([row["head layer"] for row in known], alike, 0)
        apart = len(known) - 1 not in alike
        other = f"{'; ' if told else ', and '}{_say_lost(most['penalty'])} after {most['head layer']}" if apart else ""
        yield (
            f"{head} into {tail}",
            f"{tail} goes on from {head} at {_say_own(least)} after {least['head layer']}{_say_beyond_itself(least)}"
            f"{told}{other}"
            f"{_say_misled(known)}",
        )


def _say_own(row: Row) -> str:
    """Says what the tail loses beside its own blocks alone."""
    if _is_rounding(row["penalty"], row["penalty se"]):
        return "the loss that it has alone"
    return f"a loss of {_say_lost(row['penalty'])} than alone{_say_error(row['penalty se'])}"


def _say_beyond_itself(row: Row) -> str:
    """Says what another head costs beyond what stitching the tail into itself does; empty where that is not known, or
    nothing."""
    if (beyond := row.get("beyond itself")) is None or _is_rounding(beyond, row["beyond itself se"]):
        return ""
    return f", {_say_lost(beyond)} than {row['tail']} from itself there{_say_error(row['beyond itself se'])}"


def _is_rounding(value: float, error: float | None) -> bool:
    return max(abs(value), error or 0.0) < ROUNDING


def _say_error(error: float | None) -> str:
    return "" if error is None else f" (se {round(error, 5):.2g})"


def _say_misled(rows: Sequence[Row]) -> str:
    """Says where stitches work without shared rows, or that the tail itself knows nothing; nothing of runs before that
    was measured."""
    if all("kept" in row and row["kept"] is None for row in rows):
        return f"; but {rows[0]['tail']} alone knows no more of the right answers than how often each comes"
    layers = [row["head layer"] for row in rows if row.get("misleads") == "yes"]
    if not layers:
        return ""
    return f"; but beyond the right answers its rows explain almost nothing of those of the tail ({', '.join(layers)})"


def _say_lost(penalty: float) -> str:
    """A penalty in words: that of a better stitch is negative, and rounding is none."""
    return f"{round(abs(penalty), 5):.2g} nats {'less' if penalty < -ROUNDING else 'more'}"
