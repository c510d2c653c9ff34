"""Which layers a view leaves out, as a finished run lists them."""

from repsim_cli.findings.analysis import Finished
from repsim_cli.runs.content import WITHOUT_VALUE

MOST = 3  # names in a title


def name_left_out(run: Finished, view: str, model: str) -> str:
    """Names the layers of a model without a value in a view, for the end of a title; empty where all have one."""
    table = run.results.tables.get(WITHOUT_VALUE)
    names = [row[3] for row in (table.rows if table else ()) if row[:2] == [view, model]]
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"\nleft out, no value: {', '.join(names[:MOST])}{more}" if names else ""
