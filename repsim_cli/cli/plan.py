"""The plan of a run: all of it for a dry run, in a line before a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

ROWS = ("rows, at most", "rows")


def plan_lines(name: str, plan: Mapping[str, Any], misfits: Sequence[str]) -> list[str]:
    """The plan of a dry run, a line per fact; then why the run itself would be refused."""
    lines = [f"plan of {name} (nothing was run)"]
    for key, value in plan.items():
        if isinstance(value, dict):
            lines.append(f"  {key}")
            lines += [f"    {inner}: {v}" for inner, v in value.items()]
        else:
            lines.append(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if misfits:
        lines.append("  does not run here")
        lines += [f"    {problem}" for problem in dict.fromkeys(misfits)]
    return lines


def plan_in_short(plan: Mapping[str, Any]) -> str:
    """The plan of a run in a line: what is read, how often, and roughly how long it takes.

    >>> plan_in_short({"layers": 12, "rows, at most": 8192, "forward passes": 16, "time, roughly": {"in all": "8 s"}})
    'plan: 12 layers, 8,192 rows at most, 16 forward passes, roughly 8 s'
    """
    rows = next((f"{plan[key]:,} rows{key[4:].replace(',', '')}" for key in ROWS if isinstance(plan.get(key), int)), "")
    counts = [f"{plan[key]:,} {key}" for key in ("layers", "forward passes") if plan.get(key)]
    took = plan.get("time, roughly", {}).get("in all", "")
    parts = [*counts[:1], rows, *counts[1:], f"roughly {took.split(',')[0]}" if took else ""]
    return f"plan: {', '.join(filter(None, parts))}"
