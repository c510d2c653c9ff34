"""Float32 against float64: every measure on several kinds of rows, as the table of docs/accuracy.md.

    python benchmarks/accuracy.py            prints the table
    python benchmarks/accuracy.py --write    puts it into docs/accuracy.md

A number is the largest difference, over the pairs of three representations and two draws, between all pairs of float32
rows and of the same numbers in float64, relative where the value is above 1.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import MeasureWarning

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- table: python benchmarks/accuracy.py --write -->", "<!-- end of the table -->"
WIDTHS, EQUAL = (48, 64, 96), (48, 48, 48)
ROWS, FEW = 400, 60  # rows; of measures that solve a problem of n^3 operations and more for every pair
SETTINGS: dict[str, dict[str, Any]] = {"geometry_score": {"landmarks": 12, "repeats": 50}, "rtd": {"subsets": 1}}


def gaussian(draw: np.random.Generator, n: int, widths: Sequence[int]) -> list[np.ndarray]:
    shared = draw.normal(size=(n, 12))
    return [shared @ draw.normal(size=(12, d)) / 3 + draw.normal(size=(n, d)) for d in widths]


def low_rank(draw: np.random.Generator, n: int, widths: Sequence[int]) -> list[np.ndarray]:
    return [x[:, :6] @ draw.normal(size=(6, x.shape[1])) for x in gaussian(draw, n, widths)]


def huge_row(draw: np.random.Generator, n: int, widths: Sequence[int]) -> list[np.ndarray]:
    return [x * np.where(np.arange(n) == 7, 1000, 1)[:, None] for x in gaussian(draw, n, widths)]


def massive_feature(draw: np.random.Generator, n: int, widths: Sequence[int]) -> list[np.ndarray]:
    return [x * np.where(np.arange(x.shape[1]) == 5, 300, 1) for x in gaussian(draw, n, widths)]


def offset(draw: np.random.Generator, n: int, widths: Sequence[int]) -> list[np.ndarray]:
    return [x + 3000 * (np.arange(x.shape[1]) == 5) for x in gaussian(draw, n, widths)]


def duplicates(draw: np.random.Generator, n: int, widths: Sequence[int]) -> list[np.ndarray]:
    return [x[np.arange(n) // 2] for x in gaussian(draw, n, widths)]


KINDS: dict[str, Callable[..., list[np.ndarray]]] = {
    "Gaussian": gaussian,
    "rank 6": low_rank,
    "a row 1000 times the others": huge_row,
    "a feature 300 times the others": massive_feature,
    "an offset of 3000": offset,
    "every row twice": duplicates,
}


def difference(name: str, kind: str, draws: int = 2) -> float | None:
    """The largest difference, or None where the measure refuses such rows."""
    card = measures.card(name)
    measure = measures.get(name, **SETTINGS.get(name, {}))
    n = FEW if getattr(measure, "slow", None) is not None or name == "rtd" else ROWS
    labels = torch.arange(n) % 4 if card.labelled else None
    largest = 0.0
    for seed in range(draws):
        made = KINDS[kind](np.random.default_rng(seed), n, EQUAL if card.equal_widths or n == FEW else WIDTHS)
        single = [torch.from_numpy(x.astype(np.float32)) for x in made]

        def value(xs: list[Tensor]) -> Tensor:
            return compute_all_pairs({name: measure}, xs, labels=labels)[name]

        try:
            exact = value([x.double() for x in single])
            off = ~torch.eye(3, dtype=torch.bool)
            largest = max(largest, float(((value(single) - exact) / exact.abs().clamp_min(1))[off].abs().max()))
        except Degenerate:
            return None
    return largest


def table() -> str:
    rows = [["measure", *KINDS], ["---"] * (1 + len(KINDS))]
    for name in measures.available():
        if not measures.card(name).infinite_to_itself:
            found = (difference(name, kind) for kind in KINDS)
            rows.append([f"`{name}`", *("refused" if x is None else f"{x:.0e}" if x else "0" for x in found)])
            print(" ".join(rows[-1]), file=sys.stderr)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", MeasureWarning)
    made = table()
    if sys.argv[1:] != ["--write"]:
        print(made)
        return
    before, after = PAGE.read_text().split(BEGIN)[0], PAGE.read_text().split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
