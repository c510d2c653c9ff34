"""The floor of the token: a measure between two tables of random vectors per token, in the place of two layers.

Rows of one token are then alike on both sides, and nothing else is shared: what is left is the input, without a model.
One number per measure, whatever the layers: tables are as wide as these are in the median. Random vectors of different
tokens are the nearer to orthogonal the wider they are, so that the width counts: of very wide tables CKA is 1. A trace
of noise of each row keeps rows of one token from being equal, so that no tie between neighbours goes by the index.
Of tokens the same is known of tables with a vector per pair of a token and the one before it.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repsim_cli.activations.exchange import combine
from repsim_cli.activations.places import list_row_identities, list_row_tokens
from repsim_cli.base.errors import Degenerate
from repsim_cli.data.base import Sequences
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.estimates import Beside, Key
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.measures import Measure
from repsim_cli.measures.base import MeasureWarning

FLOOR, OF_PAIRS = "floor", "floor of pairs"  # the statistics of a batch
BATCHES = 2  # of a run, from which it is taken
NOISE = 0.1  # of rows, in standard deviations of a table
OF = "two tables of {} random numbers per {}"


def compute_median_width(comparison: Comparison) -> int:
    """Counts the features of the tables: those of the layers, in the median."""
    return int(np.median([layer.width for layer in comparison.layers]))


def draw_token_tables(tokens: np.ndarray, width: int, seed: list[int]) -> list[Tensor]:
    """Draws rows (n, width) of two tables of normal vectors, one per token, independent of each other."""
    _, codes = np.unique(tokens, return_inverse=True)
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(2):
        table = rng.standard_normal((codes.max() + 1, width), dtype=np.float32)
        noise = rng.standard_normal((len(codes), width), dtype=np.float32)
        made.append(torch.from_numpy(table[codes] + NOISE * noise))
    return made


def make_floor_observer(
    comparison: Comparison, sequences: Mapping[str, Sequences], labels: Callable[[int], Tensor | None]
) -> Beside | None:
    """Makes what observes the floor beside the values of a batch; None where rows are not tokens or words of texts."""
    given = next(iter(sequences.values()), None)
    tokens = None if given is None else list_row_identities(given, comparison.extract)
    if tokens is None or not comparison.significance.floor:
        return None
    known = {FLOOR: tokens}
    if given is not None and comparison.extract.unit == "token":
        known[OF_PAIRS] = combine(tokens, 1 + list_row_tokens(given, comparison.extract, before=True))
    measures = {label: measure for label, measure in comparison.measures.items() if measure.card.paired}
    device, width = comparison.hardware.device, compute_median_width(comparison)

    def observe(batch: int, representations: Any, *_: Any) -> Mapping[Key, Tensor]:
        found: dict[Key, Tensor] = {}
        if batch >= BATCHES:
            return found
        rows = comparison.numbers(batch)
        of_rows = {"labels": labels(batch), "documents": comparison.documents_apart(batch)}
        for what, codes in known.items():
            xs = [x.to(device) for x in draw_token_tables(codes[rows], width, [comparison.seed, batch])]
            for label, measure in measures.items():
                if (value := _average_both_directions(measure, xs, comparison.hardware.tile, of_rows)) is not None:
                    found[label, what] = value
        return found

    return observe


def combine_observers(parts: Sequence[Beside | None]) -> Beside:
    """Observes what all of these do."""
    given = [part for part in parts if part is not None]
    return lambda *batch: {key: value for part in given for key, value in part(*batch).items()}


def _average_both_directions(measure: Measure, xs: list[Tensor], tile: int, given: Mapping[str, Any]) -> Tensor | None:
    """Computes the mean of both directions; None where the measure has no value."""
    wanted = ~torch.eye(2, dtype=torch.bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasureWarning)  # of the tables
        try:
            values = compute_all_pairs({"m": measure}, xs, tile=tile, wanted=wanted, lack=lambda *_: None, **given)["m"]
        except Degenerate:
            return None
    value = values[wanted].mean().cpu()
    return value if bool(value.isfinite()) else None


def record(matrix: SimilarityMatrix, comparison: Comparison) -> dict[str, Any] | None:
    """Makes what results.json says of it; None where it is not known."""
    if FLOOR not in matrix.statistics:
        return None
    unit, width = comparison.extract.unit, compute_median_width(comparison)
    about = {"unit": unit, "of": OF.format(width, unit), "width": width, "batches": min(BATCHES, matrix.batches)}
    pairs = {"pairs": float(matrix.statistics[OF_PAIRS])} if OF_PAIRS in matrix.statistics else {}
    return {"value": float(matrix.statistics[FLOOR]), **about, **pairs}
