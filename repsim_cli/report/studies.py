"""What a run of a study found, in few sentences, by the `page.py` of its question; what those are made with."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from repsim_cli.base.plain import write_percent
from repsim_cli.base.registry import pages
from repsim_cli.runs.content import Results, Table

Said = tuple[str, str]  # whom or what a sentence is about, and the sentence
MOST = 6  # sentences, and tokens that one names
ALL = "repsim show RUN --json"  # where all sentences stand


def say_main_findings(whole: Results) -> list[str]:
    """Says what a run of a study found, in few sentences; empty for a study that has none."""
    return pick_main(list_findings(whole))


def list_findings(whole: Results) -> list[Said]:
    """Lists all sentences on what a run of a study found; empty for a study that has none."""
    return list(pages.get(whole.study).function(whole)) if pages.own(whole.study) else []


def find_question(study: str) -> str | None:
    """Finds what a study asks, in a sentence; None for comparisons of layers, whose question names their models."""
    return pages.get(study).card if pages.own(study) else None


def pick_main(said: Sequence[Said], most: int = MOST) -> list[str]:
    """Picks the first sentences of each in turn, in their order, and says how many are left and where they stand.

    >>> pick_main([*[("a", f"a {i}") for i in range(6)], ("b", "b 0")])
    ['a 0', 'a 1', 'a 2', 'a 3', 'a 4', 'b 0', 'and 1 more: repsim show RUN --json']
    """
    before: Counter[str] = Counter()
    turns = []
    for place, (who, _) in enumerate(said):
        turns.append((before[who], place))
        before[who] += 1
    picked = sorted(place for _, place in sorted(turns)[:most])
    left = len(said) - len(picked)
    return [said[place][1] for place in picked] + ([f"and {left} more: {ALL}"] if left else [])


def list_table_records(whole: Results, name: str, *needed: str) -> list[dict[str, Any]]:
    """The rows of a table by their columns; without those that lack a value that a sentence needs."""
    table = whole.tables.get(name, Table(columns=[], rows=[]))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in rows if all(row.get(column) is not None for column in needed)]


def format_percent(share: float) -> str:
    return write_percent(share, ".3g")
