"""Tells whether batches are alike, as those of documents in any order are: texts in the order of their topics give
batches of one topic each, and values that are those of a topic."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.engine.estimates import Beside, Key

SKETCH = 16  # random directions in which the means of a batch are kept
APART = 5.0  # times what documents in any order give: batches whose means differ by more are not alike
FEWEST = 3  # batches
UNLIKE = "batches"  # the name of what is observed
WARNING = (
    "extract.estimate: documents that follow each other are alike, so that batches differ by more than those of "
    "documents in any order; values and errors are of such batches, not of all rows; use extract.estimate=full, or "
    "give the texts in random order"
)


def make_batches_observer(label: str, documents: Callable[[int], np.ndarray], seed: int) -> Beside:
    """Makes what observes by layer, in random directions, the mean over the documents of a batch, its square, and the
    variance of means of that number of documents. label: of a measure. documents(batch): of its rows."""

    def observe(batch: int, representations: Any, *_values: Any) -> Mapping[Key, Tensor]:
        _, of, sizes = np.unique(documents(batch), return_inverse=True, return_counts=True)
        count, found = len(sizes), []
        if count < 2:
            return {}
        for x in representations:
            signs = np.random.default_rng(seed).choice([-1.0, 1.0], (x.shape[1], SKETCH))
            rows = (x @ torch.from_numpy(signs).to(x)).double()
            sums = rows.new_zeros(count, SKETCH).index_add_(0, torch.from_numpy(of).to(x.device), rows)
            means = sums / torch.from_numpy(sizes)[:, None].to(rows)
            mean = means.mean(0)
            spread = (means - mean).square().sum() / (count - 1) / count
            found.append(torch.cat([mean, mean.square().sum()[None], spread[None]]).cpu())
        return {(label, UNLIKE): torch.stack(found)}

    return observe


def are_batches_apart(found: Float[Tensor, "r found"], batches: int, places: Sequence[slice]) -> bool:
    """Tells whether batches of two models, or the only one, differ by more than documents in any order give.

    found: means over batches, by layer, of what `make_batches_observer` gives. places: of the layers of each model.
    """
    if batches < FEWEST:
        return False
    mean, square, spread = found[:, :SKETCH], found[:, SKETCH], found[:, SKETCH + 1]
    between = (square - mean.square().sum(1)) * batches / (batches - 1)
    unlike = between > APART * spread
    models = sum(bool(unlike[place].any()) for place in places)
    return models >= min(2, len(places))
