"""How far values of one sample scatter by the clusters of rows that were drawn: standard errors, and differences of
layers of the same rows."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.plain import join_into_ranges
from repsim_cli.engine.prepared import Prepared, PreparedProducts
from repsim_cli.engine.proportions import count_like
from repsim_cli.measures import Measure
from repsim_cli.measures.base import MeasureWarning, is_cosine
from repsim_cli.measures.inner import Matrix, compute_matrix_tile

GROUPS = 512  # clusters whose influence is held: if there are more, neighbours are merged
NEIGHBOURS = 1.7  # times the scatter by own rows, at most: 1.3 to 1.7 times in simulations of 180 to 600 rows
FEW = 0.25  # of the documents: where fewer would say as much of a layer, errors are warned of
MOST = 10_000  # rows, whose cells are computed once more; of more rows, as many cells
RUNS = 32  # of neighbouring clusters, which stand for all where there are more rows
LEAST = 8  # clusters that may stand for all
LAYERS = 4  # whose values say how far all scatter
PAIRS = 10  # of models, whose closest layers have errors of their own
# how far, of how many degrees of freedom, of the closest layers, over how many clusters
SCATTER, FREEDOM, CLOSEST, CLUSTERS = "scatter", "freedom", "closest", "documents"
COUNTS = FREEDOM, CLUSTERS


def jackknife(prepared: PreparedProducts, values: Matrix, clusters: np.ndarray) -> Matrix:
    """Standard errors of a normalised inner product from the infinitesimal jackknife over clusters of rows.

    The weight of row i changes <M_a, M_b> by twice its share h_i = sum_j M_a,ij M_b,ij. The influence on the ratio
    follows by the chain rule, and its squares add up over clusters (Efron 1982, section 6), times n / (n - 1) for n
    clusters; of one cluster there is none (NaN). It is the spread of the value at this number of clusters, for t with
    n - 1 degrees of freedom. It says nothing of how far the value is from that of infinitely many on average: with few
    clusters values of CKA are too large. `docs/significance.md` has what such intervals cover.
    """
    shares = compute_document_shares(prepared, clusters)
    warn_of_few(shares.diagonal(dim1=1, dim2=2) / prepared.norms.cpu(), clusters)
    influence = convert_to_influence(shares, prepared, values)
    count = len(influence)
    few = count / (count - 1) if count > 1 else math.nan
    return (few * influence.square().sum(0)).sqrt()


def warn_of_few(shares: Float[Tensor, "clusters r"], clusters: np.ndarray) -> None:
    """Warns where few documents make most of a layer: then other documents may give another value, and the error of
    these does not know it. shares: of the squared norm of every layer."""
    sums = shares.sum(0)
    alike = sums.square() / shares.square().sum(0)  # as many as would say as much, were all alike (Kish)
    count = len(shares)
    few = alike[(alike < FEW * count) & (sums > 0)]
    if len(few) and count > 2:
        warnings.warn(
            MeasureWarning(
                f"few documents make most of {len(few)} of {len(alike)} layers: as much as "
                f"{float(few.min()):.1f} of {count} that are alike; standard errors are too small, and intervals hold "
                "the value of other documents too seldom; take more documents, leave out those with the largest "
                "norms, or compare remedies by analyses.robustness={}"
            ),
            stacklevel=2,
        )


def compute_influence(
    prepared: PreparedProducts, values: Matrix, clusters: np.ndarray
) -> Float[Tensor, "clusters r r"]:
    """Computes the influence of clusters on normalised inner products, as `jackknife` has it; of at most GROUPS."""
    return convert_to_influence(compute_document_shares(prepared, clusters), prepared, values)


def compute_document_shares(prepared: PreparedProducts, clusters: np.ndarray) -> Float[Tensor, "clusters r r"]:
    """Computes the part that the rows of each cluster have in the inner products of layers; of at most GROUPS."""
    kernel, n = prepared.measure.row, prepared.rows
    states = prepared.states[kernel]
    _, ids = np.unique(clusters, return_inverse=True)
    groups = torch.from_numpy(ids * min(GROUPS, ids.max() + 1) // (ids.max() + 1))
    count = int(groups.max()) + 1
    shares = torch.zeros(count, len(states), len(states), dtype=torch.float64)
    for rows, columns in combinations_with_replacement(_cut(0, n, prepared.tile), 2):
        block = torch.stack([compute_matrix_tile(kernel, state, rows, columns, n) for state in states], 1)
        shares.index_add_(0, groups[rows], torch.bmm(block, block.mT).double().cpu())
        if rows != columns:  # its mirror image
            block = block.permute(2, 1, 0).contiguous()
            shares.index_add_(0, groups[columns], torch.bmm(block, block.mT).double().cpu())
    return shares


def choose_clusters(clusters: np.ndarray, share: float) -> np.ndarray:
    """Chooses whole clusters with about this share of the rows, in runs of neighbours that lie evenly apart; tells of
    each, in their order, whether it is chosen.

    >>> choose_clusters(np.arange(128), 0.5)[:8].tolist()
    [True, True, False, False, True, True, False, False]
    """
    _, sizes = np.unique(clusters, return_counts=True)
    middles = (sizes.cumsum() - sizes / 2) / sizes.sum()
    return middles * RUNS % 1 < share


def compute_chosen_shares(
    prepared: PreparedProducts, clusters: np.ndarray, chosen: np.ndarray
) -> Float[Tensor, "clusters r r"]:
    """Computes the part that the rows of the chosen clusters have in the inner products of layers."""
    kernel, n, tile = prepared.measure.row, prepared.rows, prepared.tile
    states, ids = prepared.states[kernel], np.unique(clusters, return_inverse=True)[1]
    number = torch.from_numpy((chosen.cumsum() - 1)[ids])
    shares = torch.zeros(int(chosen.sum()), len(states), len(states), dtype=torch.float64)
    for run in join_into_ranges(np.flatnonzero(chosen[ids]).tolist()):
        for start in run[::tile]:
            rows = slice(start, min(start + tile, run.stop))
            # the diagonal is in one tile
            columns = [rows, *_cut(0, rows.start, tile), *_cut(rows.stop, n, tile)]
            for block in columns:
                cells = torch.stack([compute_matrix_tile(kernel, state, rows, block, n) for state in states], 1)
                shares.index_add_(0, number[rows], torch.bmm(cells, cells.mT).double().cpu())
    return shares


def _cut(start: int, stop: int, tile: int) -> list[slice]:
    return [slice(i, min(i + tile, stop)) for i in range(start, stop, tile)]


def convert_to_influence(
    shares: Float[Tensor, "clusters r r"], prepared: PreparedProducts, values: Matrix
) -> Float[Tensor, "clusters r r"]:
    """Converts parts of inner products to the influence on the ratio, by the chain rule."""
    squares = prepared.norms.cpu()
    relative = shares.diagonal(dim1=1, dim2=2) / squares
    norms = squares.sqrt()[:, None] * squares.sqrt()
    return 2 * shares / norms - values.cpu() * (relative[:, :, None] + relative[:, None, :])


def read_scatter(statistics: Mapping[str, Tensor]) -> dict[str, float]:
    """Reads what `measure_scatter` gave, if anything."""
    names = [name for name in (SCATTER, FREEDOM, CLOSEST, CLUSTERS) if name in statistics]
    return {name: int(statistics[name]) if name in COUNTS else float(statistics[name]) for name in names}


def measure_scatter(
    measure: Measure,
    prepared: Prepared,
    values: Matrix,
    clusters: np.ndarray,
    most: int = MOST,
    models: Sequence[slice] = (),
) -> dict[str, Tensor]:
    """Measures how far values of layers scatter with the clusters that were drawn: the standard error of the difference
    of two values on the same rows, over the square root of two, as a median over values of a few layers; and the
    standard error of the closest layers of two models, which few rows may bring together, as a median over pairs of
    models. Values that share a layer differ less, and are used only where there are no others. Empty for measures that
    are neither normalised inner products nor means over rows, and where there are no two values.

    Of inner products of more than `most` rows some clusters stand for all, so that as many cells are computed as of
    `most` rows; empty where these are fewer than LEAST. Of means over rows what a cluster does as neighbours of others'
    rows is not measured: NEIGHBOURS stands for it. models: the layers of each.
    """
    spread = list(combinations(choose_layers(len(values)), 2))
    closest = find_closest_layers(values if measure.card.larger_is_closer else -values, models)
    pairs = list(dict.fromkeys([*spread, *closest]))
    if not pairs:
        return {}
    if isinstance(prepared, PreparedProducts):
        if not is_cosine(measure):
            return {}
        layers = sorted({layer for pair in pairs for layer in pair})
        states = {prepared.measure.row: [prepared.states[prepared.measure.row][layer] for layer in layers]}
        some = replace(prepared, states=states, norms=prepared.norms[layers])
        part = 1.0
        if prepared.rows <= most:
            shares = compute_document_shares(some, clusters)
        else:
            chosen = choose_clusters(clusters, most**2 / prepared.rows**2)
            if chosen.sum() < LEAST:
                return {}
            shares, part = compute_chosen_shares(some, clusters, chosen), chosen.mean()
        influence = convert_to_influence(shares, some, values[layers][:, layers]) / math.sqrt(part)
        influences = [influence[:, layers.index(a), layers.index(b)] for a, b in pairs]
    else:
        if (of_rows := prepared.measure.of_rows) is None:
            return {}
        _, ids = np.unique(clusters, return_inverse=True)
        of, influences = torch.from_numpy(ids), list[Tensor]()
        for a, b in pairs:
            rows = of_rows([prepared.states[a]], [prepared.states[b]])[0, 0].double().cpu()
            rows = NEIGHBOURS * (rows - rows.mean())
            influences.append(rows.new_zeros(int(of.max()) + 1).index_add_(0, of, rows) / len(rows))
    by_pair = dict(zip(pairs, influences, strict=True))
    sizes = np.unique(clusters, return_counts=True)[1]
    return describe_scatter({pair: by_pair[pair] for pair in spread}, sizes, [by_pair[pair] for pair in closest])


def describe_scatter(
    spread: Mapping[tuple[int, int], Float[Tensor, " clusters"]],
    sizes: Int[np.ndarray, " documents"],
    closest: Sequence[Float[Tensor, " clusters"]] = (),
) -> dict[str, Tensor]:
    """Describes the influence of clusters on values by their scatter with its degrees of freedom, the error of those of
    the closest layers, no less than the scatter of most, and the number of clusters; empty where the scatter is not
    known. sizes: the rows of documents. closest: of every two models."""
    if (differences := list_differences(spread)) is None:
        return {}
    stacked = torch.stack(differences)
    count = stacked.shape[1]
    squares = stacked.square().sum(1) * count / (count - 1) / 2
    counts = {FREEDOM: count_freedom(stacked, sizes), CLUSTERS: float(count)}
    found = {SCATTER: squares.mean().sqrt(), **{name: torch.tensor(number) for name, number in counts.items()}}
    errors = [(each.square().sum() * count / (count - 1)).sqrt() for each in closest if each.isfinite().all()]
    return found | ({CLOSEST: torch.stack(errors).median().max(squares.median().sqrt())} if errors else {})


def find_closest_layers(closeness: Matrix, models: Sequence[slice]) -> list[tuple[int, int]]:
    """Finds the two layers of every two models, of at most PAIRS of these, that are the closest; none where no two of
    theirs have a value.

    >>> find_closest_layers(torch.tensor([[9., 1, 2], [1, 9, 3], [2, 3, 9]]), [slice(0, 2), slice(2, 3)])
    [(1, 2)]
    """
    of_two = list(combinations(models, 2))
    found = []
    for place in np.unique(np.linspace(0, len(of_two) - 1, PAIRS).round().astype(int)) if of_two else ():
        rows, columns = of_two[place]
        block = closeness[rows, columns].cpu().nan_to_num(nan=-math.inf)
        if block.numel() and block.max() > -math.inf:
            row, column = divmod(int(block.argmax()), block.shape[1])
            found.append((rows.start + row, columns.start + column))
    return found


def choose_layers(count: int) -> list[int]:
    """Chooses the layers whose values say how far all scatter."""
    return np.unique(np.linspace(0, count - 1, LAYERS).round().astype(int)).tolist()


def list_differences(
    influences: Mapping[tuple[int, int], Float[Tensor, " clusters"]],
) -> list[Float[Tensor, " clusters"]] | None:
    """Lists the influences of clusters on the differences of values of pairs of layers; None where there are no two
    values, or no two clusters."""
    known = {pair: each for pair, each in influences.items() if each.isfinite().all()}
    beside = list(combinations(known, 2))
    apart = [(a, b) for a, b in beside if not {*a} & {*b}] or beside
    if not apart or len(known[apart[0][0]]) < 2:
        return None
    return [known[a] - known[b] for a, b in apart]


def count_freedom(influences: Float[Tensor, "pairs clusters"], sizes: Int[np.ndarray, " documents"]) -> float:
    """Counts the degrees of freedom of the sum of all squares of influences, whose scatter over clusters their own
    kurtosis says: of few large ones few, and no more than of as many documents of one size as say as much. At least 1.

    sizes: the rows of each document.

    >>> count_freedom(torch.tensor([[1.0, -1.0, 1.0, -1.0]]), np.full(4, 9))
    3.0
    >>> round(count_freedom(torch.tensor([[9.0, *[-0.1] * 90]]), np.full(91, 9)), 1)
    2.1
    """
    pairs, count = influences.shape
    squares = influences.double().square().sum(0)
    most, total = pairs * min(count - 1, count_like(sizes) - 1), float(squares.sum())
    excess = count * float(squares.square().sum()) / total**2 - 1 if total else 0.0
    return float(max(1, min(most, 2 * count / excess) if excess > 0 else most))
