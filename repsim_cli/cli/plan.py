"""The plan of a run: all of it for a dry run, in a line before a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

import psutil

FEWER = "take fewer rows (extract.sequences, extract.rows, extract.batch_rows)"
# by part of the memory of a plan, what makes it smaller
LESS = {
    "weights": "take fewer models, or hardware.by_block=always",
    "forward": "set a smaller hardware.batch_size",
    "rows": FEWER,
    "distances": FEWER,
    "pairs left out": FEWER,
    "matrices": "take fewer rows, measures or layers",
    "cross products": "take fewer layers",
    "processes": "set hardware.processes=1",
    "null": "set fewer significance.permutations",
    "chance": "set significance.chance=false",
}
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
    lines += _say_memory_room(plan.get("memory, GB", {}), psutil.virtual_memory().available / 1e9)
    if misfits:
        lines.append("  does not run here")
        lines += [f"    {problem}" for problem in dict.fromkeys(misfits)]
    return lines


def _say_memory_room(memory: Mapping[str, float], free: float) -> list[str]:
    """Says whether the memory of a plan, in GB by part, is there, in one number; where it is not, what makes it
    smaller.

    >>> _say_memory_room({"weights": 1.0, "rows": 9.0, "in all": 10.0, "limit": 12.0}, 11.0)
    ['  memory: 10.0 GB fit into the 12.0 GB that the run may use (11.0 GB are free now)']
    """
    if "limit" not in memory:
        return []
    need, limit = memory["in all"], memory["limit"]
    if need <= min(limit, free):
        return [
            f"  memory: {need:.1f} GB fit into the {limit:.1f} GB that the run may use ({free:.1f} GB are free now)"
        ]
    room = f"{free:.1f} GB that are free now" if free < limit else f"{limit:.1f} GB that the run may use"
    part = max(memory.keys() - {"in all", "limit"}, key=lambda part: memory[part])
    less = f": {LESS[part]}" if part in LESS else ""
    return [f"  memory: {need:.1f} GB do not fit into the {room}; {part} take {memory[part]:.1f} GB of them{less}"]


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
