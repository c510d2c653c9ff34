"""Makes the matrices of estimates for which all rows pass in order, and are never in memory together."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from repsim_cli.data.base import draw
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.moments import compute_pairs_from_moments
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.processes import PairWork, map_state_from_files
from repsim_cli.engine.rows import Rows
from repsim_cli.engine.sampled import QueryRows, compute_sampled
from repsim_cli.runs.results import Run

Matrices = dict[str, SimilarityMatrix]


def compute_from_moments(run: Run, rows: Rows, comparison: Comparison) -> Matrices:
    """Makes the matrices from second moments: later passes read what the first one stored in the cache, and what is
    prepared of each layer stays in files."""
    progress = partial(run.progress, label="activations and second moments", unit="batches")
    passes = partial(rows.stream_layers, progress=progress)
    names, widths = comparison.names, [layer.width for layer in comparison.layers]
    with PairWork(folder=run.folder) as work:
        given = {"names": names, "widths": widths, "room": comparison.room, "keep": partial(map_state_from_files, work)}
        return compute_pairs_from_moments(comparison.measures, passes, **given)[0]


def compute_from_neighbours(run: Run, rows: Rows, comparison: Comparison) -> Matrices:
    """Makes the matrices from the neighbours of some rows among all, which pass twice."""
    progress = partial(run.progress, label="activations and neighbours", unit="batches")
    asked = draw(comparison.total, comparison.extract.rows, comparison.seed)
    return compute_sampled(
        comparison.measures,
        partial(rows.stream_layers, range(len(comparison.layers)), progress),
        QueryRows(torch.from_numpy(asked), comparison.total, comparison.documents_apart(0)),
        names=comparison.names,
        seed=comparison.seed,
        unrelated=comparison.units is not None,
    )


BY_ESTIMATE: Mapping[str, Callable[[Run, Rows, Comparison], Matrices]] = {
    "moments": compute_from_moments,
    "sampled": compute_from_neighbours,
}
