"""Transport of few rows: how far the order of the rows changes a value, as the cards of the measures say.

    python benchmarks/orders.py [MEASURE ...]         by default gromov_wasserstein, augmented_gromov_wasserstein, coot

Pairs of layers of the shipped models, on the means of the shipped texts, of as many rows as the table says, drawn under
a seed; each pair as it is and with the rows of one side in three other orders. above: orders with a value more than
0.1 % above that of the pair as it is. most: the largest ratio of both. Seconds are CPU seconds of one thread for each
value.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from transformers import AutoModel, AutoTokenizer

from repsim_cli import measures
from repsim_cli.data.text import embedded_text
from repsim_cli.models.checkpoints import SHIPPED

MEASURES = ("gromov_wasserstein", "augmented_gromov_wasserstein", "coot")
ROWS = (20, 50, 100)
MODELS, LENGTH = ("tiny_a", "tiny_a_step100", "tiny_b"), 64
PAIRS, ORDERS = 16, 3


def layers() -> list[np.ndarray]:
    """The mean of each text's tokens, of every layer of every model."""
    texts = [text[: LENGTH * 8] for text in embedded_text().documents()]
    made = []
    for name in MODELS:
        tokenizer, model = (kind.from_pretrained(SHIPPED / name) for kind in (AutoTokenizer, AutoModel))
        means = []
        for text in texts:
            given = tokenizer(text, return_tensors="pt", truncation=True, max_length=LENGTH)
            with torch.no_grad():
                hidden = model(input_ids=given["input_ids"], output_hidden_states=True).hidden_states
            means.append(torch.stack([each[0].mean(0) for each in hidden]))
        made += [*torch.stack(means, 1).double().numpy()]
    return made


def pairs(count: int, of: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray, np.random.Generator]]:
    draw = np.random.default_rng(count)
    for _ in range(PAIRS):
        first, second = draw.choice(len(of), 2, replace=False)
        rows = draw.choice(len(of[0]), count, replace=False)
        yield of[first][rows], of[second][rows], draw


def main() -> None:
    of = layers()
    print("| measure | rows | above | most | seconds |\n| --- | --- | --- | --- | --- |")
    for name in sys.argv[1:] or MEASURES:
        measure = measures.get(name)
        measure(of[0][:20], of[1][:20])  # compiles
        for count in ROWS:
            ratios, start = [], time.process_time()
            for x, y, draw in pairs(count, of):
                value = measure(x, y)
                ratios += [measure(x, y[draw.permutation(count)]) / value for _ in range(ORDERS)]
            spent = (time.process_time() - start) / PAIRS / (1 + ORDERS)
            above = np.mean(np.array(ratios) > 1.001)
            print(f"| `{name}` | {count} | {above:.0%} | {max(ratios):.3f} | {spent:.3f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
