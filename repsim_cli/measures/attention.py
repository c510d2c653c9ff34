"""Attention maps: which heads attend alike (best match), and what the heads of a layer encode together (distributed).

Everything is computed for all heads of all layers of all models at once, from sums over batches of sentences, so that
memory does not grow with the text. Heads are matched by sums per pair of heads. The distributed measures treat a layer
as the matrix of its (sentence, query, key) cells by its heads, and need only its second moments.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure
from repsim_cli.measures.bases import Variance
from repsim_cli.measures.cards import Card, Invariance, Moments, Totals, Unit
from repsim_cli.measures.cca import make_projection_weighted_moments, make_svcca_moments
from repsim_cli.measures.hsic import OF_COVARIANCES
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.moments import Second
from repsim_cli.measures.of_attention import OfAttention
from repsim_cli.measures.rank import SINGLE

HEADS: frozenset[Invariance] = frozenset({"permutation_of_heads"})
Zeros = Literal["drop", "keep", "refuse"]
HeadMatrix = Float[Tensor, "h h"]

_CELLS = 512  # cells per block, which for a few hundred heads fits into a core's cache
_NEAR = 1e-9  # squared distances below this share of the squared norms are computed again, from differences
_CONSTANT = 1e-13  # share of the sum of squares below which variance is float64 rounding
_PAIRS = 4096  # pairs of heads whose differences are held at a time


def average_best_matches(similarity: HeadMatrix, layers: Sequence[slice]) -> Matrix:
    """Entry [a, b]: the mean over a's heads of the similarity to the best head of b."""
    best = torch.stack([similarity[:, heads].amax(1) for heads in layers], 1)
    return torch.stack([best[heads].mean(0) for heads in layers])


def match_heads(
    unit: Unit, sums: Callable[[AttentionMaps], dict[str, Tensor]], heads: Callable[[Totals], HeadMatrix]
) -> Measure:
    """The measure that matches heads by their pairwise similarity."""

    def layers(totals: Totals, places: Sequence[slice]) -> Matrix:
        return average_best_matches(heads(totals), places)

    return OfAttention(unit=unit, sums=sums, layers=layers, heads=heads)


def map_in_threads(step: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
    """The value of the step for every part, in order, each on a single thread: short operations share threads badly."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(step, parts)
    finally:
        torch.set_num_threads(threads)


def sum_difference_norms(maps: AttentionMaps) -> dict[str, Tensor]:
    """Sums |A - B|_F over sentences, for every pair of heads, from |A|^2 + |B|^2 - 2 <A, B> in float64."""
    total = maps.cells.new_zeros((len(maps.cells),) * 2, dtype=torch.float64)
    for distances in map_in_threads(_compute_head_distances, maps.sentences()):
        total += distances
    return {"sum": total, "count": torch.tensor(len(maps.lengths))}


def _compute_head_distances(sentence: Float[Tensor, "h t t"]) -> HeadMatrix:
    flat = sentence.double().flatten(1)
    cross = flat @ flat.T
    size = cross.diagonal()[:, None] + cross.diagonal()[None]
    squared = size - 2 * cross
    # where the difference cancels, the root is accurate to half the digits at most
    for pairs in (squared < _NEAR * size).triu(1).nonzero().split(_PAIRS):
        i, j = pairs.unbind(1)
        squared[i, j] = squared[j, i] = (flat[i] - flat[j]).square().sum(1)
    return squared.fill_diagonal_(0).sqrt()


@measures.register(
    "attention_norm",
    Card(
        label="attention norm",
        larger_is_closer=True,
        bounds=(None, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=HEADS,
        minimum_rows=1,
        cost="h^2 T^2 per sentence of T words, for all h heads of all layers",
        source="Wu et al. 2020, appendix A.4, as their code has it: 1 - mean norm",
        reads="attention",
        note="Row a, column b: a's heads, each with its best of b. Falls with the length of sentences.",
    ),
)
def attention_norm() -> Measure:
    """Mean over x's heads of the best of y's by 1 - mean over sentences of |A - B|_F (Frobenius), at most 1.

    Heads that look at the other word against heads that look at their own: each of the four cells differs by 1.

    >>> from repsim_cli import measures
    >>> own, other = [[[1., 0.], [0., 1.]]], [[[0., 1.], [1., 0.]]]
    >>> measures.get("attention_norm")([own], [other])
    -1.0
    """
    return match_heads("sentences", sum_difference_norms, lambda totals: 1 - totals["sum"] / totals["count"])


def sum_row_correlations(maps: AttentionMaps) -> dict[str, Tensor]:
    """Sums the Pearson correlations of the rows of every pair of heads (`sum`), over the words that attend unevenly
    under both, and counts these words (`shared`)."""
    heads = len(maps.cells)
    total, shared = (maps.cells.new_zeros(heads, heads, dtype=torch.float64) for _ in range(2))
    for correlation, words in map_in_threads(_correlate_sentence_rows, maps.sentences()):
        total += correlation
        shared += words
    return {"sum": total, "shared": shared, "count": torch.tensor(sum(maps.lengths))}


def _correlate_sentence_rows(sentence: Float[Tensor, "h t t"]) -> tuple[HeadMatrix, HeadMatrix]:
    rounding = 8 * torch.finfo(sentence.dtype).eps
    sentence = sentence.double()
    deviations = sentence - sentence.mean(2, keepdim=True)
    size = torch.linalg.vector_norm(deviations, dim=2, keepdim=True)
    uneven = size > rounding * torch.linalg.vector_norm(sentence, dim=2, keepdim=True)
    unit = torch.where(uneven, deviations / size, 0.0).flatten(1)
    defined = uneven[:, :, 0].double()
    return unit @ unit.T, defined @ defined.T


def compute_mean_row_correlation(totals: Totals) -> HeadMatrix:
    shared = totals["shared"]
    if not bool((shared > 0).all()):
        raise Degenerate(
            "two heads have no word in common that attends unevenly, so no row correlates, got words in sentences of "
            "one word or with uniform attention alone; give longer sentences, or use attention_js"
        )
    # rounding can move the correlation of a row with itself away from 1
    return (totals["sum"] / shared).clamp(-1, 1)


@measures.register(
    "attention_pearson",
    Card(
        label="attention Pearson",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=HEADS,
        minimum_rows=2,
        cost="h^2 T^2 per sentence of T words, for all h heads of all layers",
        source="Wu et al. 2020, appendix A.4, with population deviations throughout",
        reads="attention",
        note="Row a, column b: a's heads, each with its best of b. Words that attend to all alike are left out.",
    ),
)
def attention_pearson() -> Measure:
    """Mean over x's heads of the best of y's by the mean over words of the correlation of their rows, in [-1, 1].

    A row correlates over all words of its sentence. A row of equal weights (in a sentence of one word, every one) has
    no correlation: its word is left out of the mean, where the authors' code counts one of a lone word as 0.

    >>> from repsim_cli import measures
    >>> own, other = [[[1., 0.], [0., 1.]]], [[[0., 1.], [1., 0.]]]
    >>> round(measures.get("attention_pearson")([own], [other]), 12)
    -1.0
    """
    return match_heads("words", sum_row_correlations, compute_mean_row_correlation)


def sum_entropy_terms(maps: AttentionMaps) -> dict[str, Tensor]:
    """Sums w log w with w = p + q over cells, for every pair of heads, in the precision of the cells."""
    cells = maps.cells
    cells = cells[:, cells.any(0)].clamp_min(torch.finfo(cells.dtype).tiny)  # so that 0 log 0 is 0
    total = cells.new_zeros((len(cells),) * 2, dtype=torch.float64)
    for part in map_in_threads(_sum_block_pairs, cells.split(_CELLS, dim=1)):
        total += part
    return {"sum": total.triu() + total.triu(1).T, "count": torch.tensor(sum(maps.lengths))}


def _sum_block_pairs(cells: Float[Tensor, "h c"]) -> HeadMatrix:
    """The upper triangle of the sums over a block of cells."""
    cells = cells.contiguous()
    total = cells.new_zeros((len(cells),) * 2, dtype=torch.float64)
    sums, logs = torch.empty_like(cells), torch.empty_like(cells)
    for i in range(len(cells)):
        w, log = sums[i:], logs[i:]
        torch.add(cells[i:], cells[i], out=w)
        torch.log(w, out=log)
        total[i, i:] = w.mul_(log).sum(1)
    return total


def jensen_shannon(totals: Totals) -> HeadMatrix:
    """1 - the mean divergence over words; with E = sum w log w it is E_pp / 4 + E_qq / 4 - E_pq / 2."""
    total = totals["sum"]
    entropies = total.diagonal() / 4
    return 1 - (entropies[:, None] + entropies[None] - total / 2) / totals["count"]


@measures.register(
    "attention_js",
    Card(
        label="attention Jensen-Shannon",
        larger_is_closer=True,
        bounds=(1 - 0.6931471805599453, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=HEADS,
        minimum_rows=1,
        cost="h^2 / 2 T^2 logarithms per sentence of T words, for all h heads of all layers",
        source="Wu et al. 2020, appendix A.4, as 1 - divergence in nats",
        reads="attention",
        note="Row a, column b: a's heads, each with its best of b. Lowest, 1 - log 2, where they share no word.",
    ),
)
def attention_js() -> Measure:
    """Mean over x's heads of the best of y's by 1 - mean over words of the Jensen-Shannon divergence of their rows.

    In nats, so that two rows that share no word score 1 - log 2.

    >>> from repsim_cli import measures
    >>> own, other = [[[1., 0.], [0., 1.]]], [[[0., 1.], [1., 0.]]]
    >>> round(measures.get("attention_js")([own], [other]), 6)
    0.306853
    """
    return match_heads("words", sum_entropy_terms, jensen_shannon)


@cache
def make_moment_sums(zeros: Zeros) -> Callable[[AttentionMaps], dict[str, Tensor]]:
    """The sums of second moments under a convention for zeros; a function each, which measures share."""
    return partial(_sum_head_moments, zeros)


def _sum_head_moments(zeros: Zeros, maps: AttentionMaps) -> dict[str, Tensor]:
    """Sums a_h and a_h a_h' over cells, for every pair of heads; `left_out`: the number of cells that are left out."""
    cells = maps.cells
    if zeros == "refuse":
        masked = torch.stack([(cells[heads] == 0).all(0) for heads in maps.layers])
        some = int((masked.any(0) & ~masked.all(0)).sum())
        if some:
            raise Degenerate(
                f"some layers can attend where others are masked, got {some} of {cells.shape[1]} cells; use "
                "zeros=drop or keep, or compare models of the same kind, causal or not"
            )
    if zeros == "drop":
        cells = cells[:, (cells != 0).all(0)]
    product = cells.new_zeros((len(cells),) * 2, dtype=torch.float64)
    total = cells.new_zeros(len(cells), dtype=torch.float64)
    for squares, sums in map_in_threads(_sum_block_moments, cells.split(_CELLS, dim=1)):
        product += squares
        total += sums
    count = cells.shape[1]
    left_out = maps.cells.shape[1] - count
    return {"product": product, "sum": total, "count": torch.tensor(count), "left_out": torch.tensor(left_out)}


def _sum_block_moments(cells: Float[Tensor, "h c"]) -> tuple[HeadMatrix, Float[Tensor, " h"]]:
    cells = cells.double()
    return cells @ cells.T, cells.sum(1)


def compute_scatter_matrix(totals: Totals) -> HeadMatrix:
    """Computes, for every pair of heads, the sum over cells of products of centred weights."""
    mean = totals["sum"] / totals["count"]
    return totals["product"] - totals["count"] * torch.outer(mean, mean)


def distribute(of_moments: Moments, zeros: Zeros) -> Measure:
    """A measure of the second moments of cells by heads."""

    def layers(totals: Totals, places: Sequence[slice]) -> Matrix:
        whole, cells = compute_scatter_matrix(totals), int(totals["count"])
        states = []
        for heads in places:
            cells_of = whole[heads, heads]
            # for equal weights, rounding of the sums leaves this much
            if not float(cells_of.trace()) > _CONSTANT * float(totals["product"][heads, heads].trace()):
                raise Degenerate(
                    f"all attention weights of a layer are equal, got no variance in heads {heads.start} to "
                    f"{heads.stop - 1}; give longer sentences, or leave the model out"
                )
            sizes = totals["product"].diagonal()[heads].sqrt()
            states.append(of_moments.prepare(Second(cells_of, sizes, cells, SINGLE)))
        values = torch.empty(len(places), len(places), dtype=torch.float64)
        for a, rows in enumerate(places):
            for b, columns in enumerate(places[: a + 1]):
                values[a, b], values[b, a] = of_moments.compare(states[a], states[b], whole[rows, columns])
        return values

    return OfAttention(unit="cells", sums=make_moment_sums(zeros), layers=layers)


@measures.register(
    "attention_cka",
    Card(
        label="attention CKA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=HEADS,
        minimum_rows=2,
        cost="h^2 T^2 per sentence of T words, for all h heads of all layers",
        source="Wu et al. 2020, section 3.5: linear CKA (biased) of cells by heads",
        reads="attention",
    ),
)
def attention_cka(*, zeros: Zeros = "drop") -> Measure:
    """Linear CKA of two layers, whose rows are all (sentence, query, key) cells and whose columns are heads, in [0, 1].

    zeros: what becomes of cells that a causal mask sets to 0: `drop` leaves out those that are 0 in any head of any
        layer of the run; `keep` uses all cells; `refuse` stops where one layer is masked and another is not.

    One head each: the squared correlation of their cells, of which the third is 0 in y.

    >>> from repsim_cli import measures
    >>> x, y = [[[.8, .2], [.2, .8]]], [[[.8, .2], [0., 1.]]]
    >>> [round(measures.get("attention_cka", zeros=zeros)([x], [y]), 6) for zeros in ("keep", "drop")]
    [0.941176, 0.942308]
    """
    return distribute(OF_COVARIANCES, zeros)


@measures.register(
    "attention_svcca",
    Card(
        label="attention SVCCA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=HEADS,
        minimum_rows=3,
        cost="h^2 T^2 per sentence of T words, for all h heads of all layers",
        source="Wu et al. 2020, section 3.5: svsim of cells by heads, centred, not z-scored",
        reads="attention",
        note="1: the leading directions span the same space.",
    ),
)
def attention_svcca(*, variance: Variance = 0.99, zeros: Zeros = "drop") -> Measure:
    """Mean canonical correlation of the fewest directions of cells by heads that hold `variance`, in [0, 1].

    variance: the share of each layer's variance that the directions hold.
    zeros: what becomes of cells that a causal mask sets to 0: `drop` leaves out those that are 0 in any head of any
        layer of the run; `keep` uses all cells; `refuse` stops where one layer is masked and another is not.

    >>> from repsim_cli import measures
    >>> x, y = [[[.8, .2], [.2, .8]]], [[[.8, .2], [0., 1.]]]
    >>> round(measures.get("attention_svcca", zeros="keep")([x], [y]) ** 2, 6)
    0.941176
    """
    return distribute(make_svcca_moments(variance), zeros)


@measures.register(
    "attention_pwcca",
    Card(
        label="attention PWCCA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=HEADS,
        minimum_rows=4,
        cost="h^2 T^2 per sentence of T words, for all h heads of all layers",
        source="Wu et al. 2020, section 3.5: pwsim (PWCCA after truncation) of cells by heads, centred, not z-scored",
        reads="attention",
        note="Row a, column b: weighted by a.",
    ),
)
def attention_pwcca(*, variance: Variance = 0.99, zeros: Zeros = "drop") -> Measure:
    """attention_svcca's correlations, weighted by how much of x's heads lies along their directions, in [0, 1].

    variance: the share of each layer's variance that the directions hold.
    zeros: what becomes of cells that a causal mask sets to 0: `drop` leaves out those that are 0 in any head of any
        layer of the run; `keep` uses all cells; `refuse` stops where one layer is masked and another is not.

    >>> from repsim_cli import measures
    >>> x, y = [[[.8, .2], [.2, .8]]], [[[.8, .2], [0., 1.]]]
    >>> round(measures.get("attention_pwcca", zeros="keep")([x], [y]) ** 2, 6)
    0.941176
    """
    return distribute(make_projection_weighted_moments(variance), zeros)
