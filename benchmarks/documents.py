"""`cka_unbiased` across documents: products of features, without the cells of each document, against all cells.

Command: python benchmarks/documents.py [ROWS:WIDTH:DOCUMENT ...]     (5000:64:50 20000:64:50 50000:64:50 by default)

Four layers of so many rows and features, in documents of DOCUMENT rows that have something in common; one thread, CPU
seconds. Errors are the largest differences from float64.
"""

import sys
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor

from repsim_cli import measures
from repsim_cli.base.memory import keep_freed
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import inner

LAYERS, SHARED = 4, 16


def draw(rows: int, width: int, document: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    documents = torch.arange(rows) // document
    of_documents = torch.randn(int(documents.max()) + 1, SHARED, generator=generator)
    signal = torch.randn(rows, SHARED, generator=generator) + of_documents[documents]
    turns = [torch.randn(SHARED, width, generator=generator) for _ in range(LAYERS)]
    return [signal @ turn + 2 * torch.randn(rows, width, generator=generator) for turn in turns], documents


def timed(step: Callable[[], dict[str, Tensor]]) -> tuple[Tensor, float]:
    start = time.process_time()
    values = step()["m"]
    return values, time.process_time() - start


def compare(rows: int, width: int, document: int) -> str:
    layers, documents = draw(rows, width, document)

    def compute(xs: list[Tensor]) -> dict[str, Tensor]:
        return compute_all_pairs({"m": measures.get("cka_unbiased")}, xs, documents=documents)

    features, taken = timed(lambda: compute(layers))
    with patch.object(inner, "compute_products_of_features", lambda *_: None):
        cells, of_cells = timed(lambda: compute(layers))
    exact = compute([x.double() for x in layers])["m"]
    errors = [f"{float((values - exact).abs().max()):.1e}" for values in (cells, features)]
    return f"| {rows:,} x {width} | {document} | {of_cells:.2f} | {taken:.2f} | {errors[0]} | {errors[1]} |"


def main(cases: list[str]) -> None:
    torch.set_num_threads(1)
    keep_freed()
    compute_all_pairs({"m": measures.get("cka_unbiased")}, [torch.randn(9, 4)] * 2)  # loads what is needed
    print("| rows | rows of a document | cells, CPU s | features, CPU s | error of cells | of features |")
    print("| --- " * 6 + "|")
    for case in cases:
        print(compare(*map(int, case.split(":"))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["5000:64:50", "20000:64:50", "50000:64:50"])
