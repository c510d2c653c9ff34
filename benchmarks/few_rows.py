"""What measures give for few rows per feature, where the truth is planted: the table of docs/accuracy.md.

    python benchmarks/few_rows.py            prints the table
    python benchmarks/few_rows.py --write    puts it into docs/accuracy.md

Two Gaussian representations of 64 independent features; each feature of one is correlated with one direction of the
other. Means over draws of rows; none deviates by more than 0.01 from the mean of other draws.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- table: python benchmarks/few_rows.py --write -->", "<!-- end of few rows -->"
WIDTH, DRAWS = 64, 6
PER_FEATURE = (0.5, 1, 2, 4, 8, 16, 64)
CORRELATIONS = (0.0, 0.5, 0.9)
TRUTH = {
    "procrustes": lambda r: np.sqrt(2 - 2 * r),
    "linear_regression": lambda r: r**2,
    "ridge": lambda r: r**2,
    "cka_unbiased": lambda r: r**2,
}


def mean(name: str, rows: int, correlation: float, draws: int = DRAWS) -> float | None:
    """The mean over draws; None where the measure refuses so few rows."""
    values = []
    for seed in range(draws):
        draw = np.random.default_rng([seed, rows, round(100 * correlation)])
        x, noise = draw.normal(size=(2, rows, WIDTH))
        turned = x @ np.linalg.qr(draw.normal(size=(WIDTH, WIDTH)))[0]
        try:
            values.append(measures.get(name)(x, correlation * turned + np.sqrt(1 - correlation**2) * noise))
        except Degenerate:
            return None
    return float(np.mean(values))


def table() -> str:
    rows = [["measure", "correlation", *(f"{ratio:g}" for ratio in PER_FEATURE), "truth"]]
    rows.append(["---"] * len(rows[0]))
    for name, truth in TRUTH.items():
        for correlation in CORRELATIONS:
            found = [mean(name, round(ratio * WIDTH), correlation) for ratio in PER_FEATURE]
            cells = ["refused" if value is None else f"{value:.2f}" for value in found]
            rows.append([f"`{name}`", f"{correlation:g}", *cells, f"{truth(correlation):.2f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("-0.00", "0.00")


def main() -> None:
    torch.set_num_threads(1)
    made = table()
    if sys.argv[1:] != ["--write"]:
        print(made)
        return
    before, after = PAGE.read_text().split(BEGIN)[0], PAGE.read_text().split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
