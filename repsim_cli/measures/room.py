"""Checks that all distances between rows fit into the memory."""

import math

import psutil

from repsim_cli.base.errors import BadInput


def check_room(name: str, squares: float, rows: int) -> None:
    """Raises BadInput where a measure needs more memory than is available. squares: how many (n, n) matrices of float64
    it takes; rows: n."""
    if not squares:
        return
    need, room = 8.0 * squares * rows**2, float(psutil.virtual_memory().available)
    if need > room:
        raise BadInput(
            f"{name}: the distances between all rows need about {need / 1e9:.2f} GB, got {rows} rows and "
            f"{room / 1e9:.2f} GB available; give at most {math.isqrt(int(room / 8.0 / squares))} rows"
        )
