"""The level of chance of a measure, for colour bars, curves and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repsim_cli.base.plain import write_percent

MOST = 0.95  # of the rows: of fewer it is said


@dataclass(frozen=True, kw_only=True)
class Chance:
    """What a colour bar says of chance. low, high: over the cells. middle: their median."""

    low: float
    middle: float
    high: float


def choose_chance_level(
    record: Mapping[str, Any] | None, null: Mapping[str, Any] | None, drawn: Sequence[np.ndarray], across: np.ndarray
) -> tuple[Chance | None, str]:
    """The level of chance, and what it is; where it is not known, that of untrained models.

    record: what chance is of, as `Measured.chance`; None in runs that were made before it was known. null: how
    significance was tested. drawn: its levels for the cells of each matrix. across: the values between a trained and an
    untrained model.
    """
    cells = np.concatenate([np.empty(0), *(part.ravel() for part in drawn)])
    if (cells := cells[np.isfinite(cells)]).size:
        if record is not None:
            return _mark_at(cells), f"chance, {say_pairings(record)}"
        if null:
            some = f" of {write_percent(share)} of the rows" if (share := null.get("share", 1)) < 1 else ""
            return _mark_at(cells), f"closer than {100 * (1 - null['alpha']):g} % of random pairings{some}"
    if not null and (across := across[np.isfinite(across)]).size:
        return _mark_at(across), "untrained, between a trained and an untrained model"
    return None, ""


def say_pairings(record: Mapping[str, Any]) -> str:
    """Says what chance is the mean over, and of which rows, where these are not nearly all.

    >>> say_pairings({"units": "documents", "partnered": 0.8, "batches": 3})
    'random pairings of documents, 80 % of the rows'
    """
    share = record.get("partnered", 1.0)
    return f"random pairings of {record['units']}" + (f", {write_percent(share)} of the rows" if share < MOST else "")


def _mark_at(cells: np.ndarray) -> Chance:
    return Chance(low=float(cells.min()), middle=float(np.median(cells)), high=float(cells.max()))
