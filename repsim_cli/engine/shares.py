"""What a linear similarity is made of: the token, what is shared beyond it, and rows whose token has no partner.

The estimand. Over rows of different documents the linear CKA of x and y is |C|^2 / (|C_xx| |C_yy|), where C is the
covariance of x and y and |.| the Frobenius norm. By the law of total covariance C is a sum, of

    token: the covariance of the means that a token has in x and in y,
    rest: the covariance within a token, the mean over tokens by their share of the rows,
    alone: the covariance within the class of all rows whose token stands in no other document; what of it is the
        token and what is not, no data can tell.

The share of each part C_k is <C, C_k> / (|C_xx| |C_yy|). Shares add up to the value, need no order of the parts (they
are the Shapley values of the quadratic game), and may be negative, where parts work against each other.

The rest is split further by twins, untrained models of the same shapes: `untrained` is the share of the covariance
within a token between the best linear read-outs of x and of y from the features of both twins, `learned` what is left,
that is, beyond linear read-outs of untrained models.

The estimate. Covariances are means over pairs of rows of different documents, of one token for the rest, so that
effects of documents do not enter. Inner products are taken between disjoint sets of documents: C of a fold with C_k of
the other folds, which has no bias. Folds and groups are stretches of documents that follow each other: neighbours may
be alike on both sides, and folds at random would have that in common. Read-outs of x, of y, the covariance of features
and C are each from a fold of their own. Intervals are Student's t from a jackknife that leaves out groups of documents.

The test of the rest. Under its null nothing is shared among rows of one token, whatever documents share: the covariance
within a token of half of the documents is the direction, and that of the other half along it has mean 0. Its jackknife
t, one-sided, is a cross U-statistic (Shekhar et al. 2023), which needs no exchange of rows. It is not given where
documents stay alike for so long, on both sides, that the covariance of their effects has more than MOST times the
variance that independent ones would give it.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.engine.validity import find_range

FOLDS, GROUPS = 4, 20  # of documents; groups are within folds
LEAST = 40  # documents, from which on intervals cover
CONSTANT = 1e-5  # of the variance, that rows of one token may differ by rounding
MOST = 1.5
EACH = 10  # pairs of rows beyond the number of tokens for each feature that is read out
VALUE, TOKEN, REST, ALONE = "value", "token", "rest", "alone"
UNTRAINED, LEARNED = "untrained", "learned"
PARTS = (VALUE, TOKEN, REST, ALONE)

Codes = Int[np.ndarray, " n"]
Some = Int[np.ndarray, " k"]  # numbers of some of the n rows
Rows = Float[Tensor, "n _"]
Jackknifed = Float[np.ndarray, " g"]  # a number with all documents, then without each group of them


class Cells(NamedTuple):
    """Some rows by class and document, for covariances within classes over pairs of rows of different documents.

    rows: their numbers. cell: of each row; of_class, part: of each cell, its class, and that with the group of its
    document; of_part, group: of each part. counts: of rows, by cell. total: rows of all classes; sizes: those of each
    group.
    """

    rows: Int[Tensor, " m"]
    cell: Int[Tensor, " m"]
    of_class: Int[Tensor, " c"]
    part: Int[Tensor, " c"]
    of_part: Int[Tensor, " p"]
    group: Int[Tensor, " p"]
    counts: Float[Tensor, " c"]
    total: float
    sizes: Float[Tensor, " g"]


class Fold(NamedTuple):
    """All rows of some documents, and by class those that have a partner, and those that have none."""

    whole: Cells
    within: Cells
    alone: Cells


def _sum_by_group(x: Tensor, of: Tensor, count: int | None = None) -> Tensor:
    """Adds what belongs together."""
    size = (int(of.max()) + 1 if len(of) else 0) if count is None else count
    return x.new_zeros(size, *x.shape[1:]).index_add_(0, of, x)


def _build_cells(rows: Some, classes: Codes, documents: Codes, groups: Codes, total: Int[np.ndarray, " t"]) -> Cells:
    """Groups these rows into cells by class, document and group of documents.

    classes, documents, groups: of all rows of the sample. total: rows whose number the covariance is a mean over.
    """
    most = documents.max() + 1
    keys, cell = np.unique((classes[rows] * GROUPS + groups[rows]) * most + documents[rows], return_inverse=True)
    parts, part = np.unique(keys // most, return_inverse=True)
    _, of_part = np.unique(parts // GROUPS, return_inverse=True)
    codes = (rows, cell, of_part[part], part, of_part, parts % GROUPS)
    sizes = np.bincount(groups[total], minlength=GROUPS).astype(float)
    counts = np.bincount(cell, minlength=len(keys)).astype(float)
    given = [torch.from_numpy(np.ascontiguousarray(each, np.int64)) for each in codes]
    return Cells._make([*given, torch.from_numpy(counts), float(len(total)), torch.from_numpy(sizes)])


def fold_rows(rows: Some, tokens: Codes, documents: Codes, groups: Codes) -> Fold:
    """The cells of these rows; tokens, documents and groups are of all rows of the sample."""
    most = documents.max() + 1
    stands_in = np.bincount(np.unique(tokens[rows] * most + documents[rows]) // most, minlength=tokens.max() + 1)
    has = stands_in[tokens[rows]] > 1
    none = np.zeros_like(tokens)
    return Fold(
        _build_cells(rows, none, documents, groups, rows),
        _build_cells(rows[has], tokens, documents, groups, rows),
        _build_cells(rows[~has], none, documents, groups, rows),
    )


def compute_class_covariance(cells: Cells, x: Rows, y: Rows) -> Float[Tensor, "p q"]:
    """Computes the covariance of the columns of x (n, p) and y (n, q) within classes: the mean, over classes by their
    share of all rows, of (x_i - x_j)(y_i - y_j)' / 2 over pairs of rows of different documents."""
    n, squares = _sum_by_group(cells.counts, cells.of_class), _sum_by_group(cells.counts**2, cells.of_class)
    pairs = n**2 - squares
    weight = torch.where(pairs > 0, n / cells.total / pairs.clamp_min(1), 0.0)
    of_row = cells.of_class[cells.cell]
    per_row = weight[of_row] * (n[of_row] - cells.counts[cells.cell])
    x, y = x[cells.rows], y[cells.rows]
    in_cells = _sum_by_group(x, cells.cell), _sum_by_group(y, cells.cell)
    in_classes = [_sum_by_group(each, cells.of_class) for each in in_cells]
    scales = per_row, weight[cells.of_class], -weight
    left = torch.cat(
        [z * scale[:, None].to(z) for z, scale in zip((x, in_cells[0], in_classes[0]), scales, strict=True)]
    )
    return left.T @ torch.cat([y, in_cells[1], in_classes[1]])


def compute_covariance_products(cells: Cells, x: Rows, y: Rows, other: Float[Tensor, "p q"]) -> Jackknifed:
    """Computes the inner product of `compute_class_covariance` and another matrix, and the same without each group of
    documents. What has a partner in the group alone is then taken to be like the others."""
    u, y = x[cells.rows] @ other, y[cells.rows]
    dots = (u * y).sum(1).double()
    cells_u, cells_y = _sum_by_group(u, cells.cell), _sum_by_group(y, cells.cell)
    parts_u, parts_y = _sum_by_group(cells_u, cells.part), _sum_by_group(cells_y, cells.part)
    whole_u, whole_y = _sum_by_group(parts_u, cells.of_part), _sum_by_group(parts_y, cells.of_part)
    own = _sum_by_group(dots, cells.cell)
    # columns: rows, pairs of one document, x'y, x'y times the rows of its cell, products of cells
    columns = [cells.counts, cells.counts**2, own, own * cells.counts, (cells_u * cells_y).sum(1).double()]
    in_parts = _sum_by_group(torch.stack(columns, 1), cells.part)
    in_classes = _sum_by_group(in_parts, cells.of_part)
    squared = (whole_u * whole_y).sum(1).double()
    mixed = (whole_u[cells.of_part] * parts_y + parts_u * whole_y[cells.of_part] - parts_u * parts_y).sum(1).double()
    n, value = _average_within_classes(in_classes, squared)
    left, without = _average_within_classes(in_classes[cells.of_part] - in_parts, squared[cells.of_part] - mixed)
    in_groups = partial(_sum_by_group, of=cells.group, count=len(cells.sizes))
    known, share = torch.where(value.isfinite(), n, 0.0), (n * value).nan_to_num(0.0)
    rows, known_left = n.sum() - in_groups(in_parts[:, 0]), torch.where(without.isfinite(), left, 0.0)
    partnered = known.sum() + in_groups(known_left - known[cells.of_part])
    each = share.sum() + in_groups((left * without).nan_to_num(0.0) - share[cells.of_part])
    each = each * torch.where(partnered > 0, rows / partnered, 0.0) / (cells.total - cells.sizes)
    return torch.cat([share.sum()[None] / cells.total, each]).numpy()


def _average_within_classes(columns: Float[Tensor, "c 5"], squared: Float[Tensor, " c"]) -> tuple[Tensor, Tensor]:
    """The rows of each class and their mean, NaN where no two rows are of different documents."""
    n, squares, own, weighted, in_cells = columns.T
    pairs = n**2 - squares
    value = (n * own - weighted - squared + in_cells) / torch.where(pairs > 0.5, pairs, torch.nan)
    return n, value


class Design(NamedTuple):
    """How the rows of a sample are split. folds: each fold of documents; others: all but it. groups: of documents, by
    fold. read: by fold the cells of its partnered rows, and those without each of its groups. alone: the share of rows
    without a partner. halves: the documents of a test, those that give its direction first. tokens, documents: of all
    rows."""

    folds: Sequence[Fold]
    others: Sequence[Fold]
    groups: Sequence[np.ndarray]
    read: Sequence[Mapping[int, Cells]]
    alone: float
    halves: tuple[Fold, Fold]
    tokens: Codes
    documents: Codes

    @property
    def features(self) -> int:
        """The number of features that can be read out."""
        free = min(len(each[WHOLE].rows) - len(each[WHOLE].of_class.unique()) for each in self.read)
        return free // EACH


WHOLE = -1  # beside the numbers of groups: without none


def make_design(tokens: Codes, documents: Codes, *, twins: bool = True) -> Design:
    """Splits rows by their documents, LEAST or more, numbered from 0 in the order of the text.
    tokens: by row. twins: whether features of twins will be read out."""
    groups = _number_document_stretches(documents, GROUPS)
    of_fold = np.split(np.arange(GROUPS), FOLDS)
    inside = [np.isin(groups, of) for of in of_fold]
    parts = [[fold_rows(np.flatnonzero(rows), tokens, documents, groups) for rows in (each, ~each)] for each in inside]
    folds, others = zip(*parts, strict=True)
    read = [
        {g: fold_rows(np.flatnonzero(rows & (groups != g)), tokens, documents, groups).within for g in (WHOLE, *of)}
        for rows, of in zip(inside, of_fold, strict=True)
        if twins
    ]
    alone = float(np.mean([len(each.alone.rows) / each.alone.total for each in others]))
    within = _number_document_stretches(documents, 2 * GROUPS)
    halves = [np.flatnonzero(within // GROUPS == each) for each in (0, 1)]
    direction, judged = (fold_rows(half, tokens, documents, within % GROUPS) for half in halves)
    return Design(folds, others, of_fold, read, alone, (direction, judged), tokens, documents)


def _number_document_stretches(documents: Codes, count: int) -> Codes:
    """Gives each row the number of its stretch, of `count` stretches with about equally many documents each."""
    return documents * count // (documents.max() + 1)


def compute_part_products(given: Design, x: Rows, y: Rows) -> Float[np.ndarray, "3 g"]:
    """<C, C>, <C, rest> and <C, alone>, each without bias, with all documents and without each group of them."""
    found = np.zeros((3, 1 + GROUPS))
    for one, others in zip(given.folds, given.others, strict=True):
        whole = compute_class_covariance(one.whole, x, y)
        for k, part in enumerate(others):
            ours = compute_covariance_products(one.whole, x, y, compute_class_covariance(part, x, y))
            # a group is in the fold or among the others: what is without it is then another, and the other the same
            found[k] += ours + compute_covariance_products(part, x, y, whole) - ours[0]
    return found / FOLDS


def compute_squared_norm(given: Design, x: Rows) -> Jackknifed:
    """<C_xx, C_xx>, as `compute_part_products`."""
    found = np.zeros(1 + GROUPS)
    for one, others in zip(given.folds, given.others, strict=True):
        ours = compute_covariance_products(one.whole, x, x, compute_class_covariance(others.whole, x, x))
        found += (
            ours + compute_covariance_products(others.whole, x, x, compute_class_covariance(one.whole, x, x)) - ours[0]
        )
    return found / FOLDS


def read_out(given: Design, x: Rows, y: Rows, features: Rows) -> Jackknifed:
    """<C, C_untrained>, as `compute_part_products`, where C_untrained is the covariance within a token between linear
    read-outs of x and of y from these features, at most `given.features` of them."""
    share = 1 - given.alone
    blocks = [{g: _read(cells, x, y, features, share) for g, cells in of_fold.items()} for of_fold in given.read]
    found = np.zeros(1 + GROUPS)
    for e, one in enumerate(given.folds):
        left = [k for k in range(FOLDS) if k != e]
        whole = compute_class_covariance(one.whole, x, y)
        at_whole = {(k, g): block.of_x.T @ whole for k in left for g, block in blocks[k].items()}

        def term(without: int, left: list[int] = left, known: Mapping[tuple[int, int], Tensor] = at_whole) -> float:
            g = [without if without in of else WHOLE for of in given.groups]
            return float(np.mean([
                float(((known[a, g[a]] @ blocks[b][g[b]].of_y) * blocks[c][g[c]].shared).sum())
                for a, b, c in permutations(left)
            ]))  # fmt: skip

        read, orders = torch.zeros_like(whole), list(permutations(left))
        for a, b, c in orders:
            read += blocks[a][WHOLE].of_x @ blocks[c][WHOLE].shared @ blocks[b][WHOLE].of_y.T
        ours = compute_covariance_products(one.whole, x, y, read / len(orders))
        others = np.array([term(g) for g in range(GROUPS)])
        own = np.isin(np.arange(GROUPS), given.groups[e])
        found += np.r_[ours[0], np.where(own, ours[1:], others)]
    return found / FOLDS


def compute_p_beyond(given: Design, x: Rows, y: Rows) -> float:
    """Tests whether x and y share something beyond the token; NaN where rows of one token are all alike, or documents
    that follow each other are, so that they count as too few."""
    direction, judged = given.halves
    if (
        not (_varies_within_tokens(direction, x) and _varies_within_tokens(direction, y))
        or _estimate_inflation(given, x, y) > MOST
    ):
        return math.nan
    whole, *left = compute_covariance_products(judged.within, x, y, compute_class_covariance(direction.within, x, y))
    error = _estimate_jackknife_error(np.array(left))
    return float(scipy.stats.t.sf(whole / error, GROUPS - 1)) if error > 0 else math.nan


def _varies_within_tokens(given: Fold, x: Rows) -> bool:
    """Tells whether rows of one token differ, by a few random directions."""
    seen = x @ torch.randn(x.shape[1], 4, generator=torch.Generator().manual_seed(0)).to(x)
    within, whole = (
        float(compute_class_covariance(cells, seen, seen).trace()) for cells in (given.within, given.whole)
    )
    return within > CONSTANT * whole


def _estimate_inflation(given: Design, x: Rows, y: Rows) -> float:
    """Estimates how much larger the variance of a covariance of effects of documents is than of independent ones: by
    Bartlett's formula from how alike documents are that are so far apart in the text, within tokens."""
    alike = [find_range(_compute_document_effects(given, z)) for z in (x, y)]
    return 1 + 2 * float((alike[0] * alike[1]).sum())


def _compute_document_effects(given: Design, x: Rows) -> Float[Tensor, "d p"]:
    """Averages by document what rows differ by from the mean of their token."""
    tokens, documents = (torch.from_numpy(each) for each in (given.tokens, given.documents))
    x = x.double()
    x = x - (_sum_by_group(x, tokens) / tokens.bincount().clamp_min(1)[:, None])[tokens]
    means = _sum_by_group(x, documents) / documents.bincount()[:, None]
    return means - means.mean(0)


def _estimate_jackknife_error(without: Float[np.ndarray, " g"]) -> float:
    """The standard error of a number, from what it is without each group of documents."""
    return float(np.sqrt((GROUPS - 1) / GROUPS * np.square(without - without.mean()).sum()))


class Read(NamedTuple):
    """Of one fold: the read-outs of x (p, k) and of y (q, k), and the covariance of the features (k, k)."""

    of_x: Tensor
    of_y: Tensor
    shared: Tensor


def _read(cells: Cells, x: Rows, y: Rows, features: Rows, share: float) -> Read:
    """Fits linear read-outs of x and of y from the features, on the rows of these cells.

    share: of the rows that have a partner, wherever it is; the covariance of the features is that of these.
    """
    shared = compute_class_covariance(cells, features, features).double()
    solved = torch.linalg.pinv(shared, hermitian=True)
    of_x, of_y = ((solved @ compute_class_covariance(cells, features, z).double()).T for z in (x, y))
    return Read(of_x.to(x), of_y.to(y), (shared * (share * cells.total / max(len(cells.rows), 1))).to(x))


def compute_twin_features(given: Design, twins: Sequence[Rows]) -> Rows:
    """The features of twins that are read out: the leading principal directions of each within a token, at unit
    variance, as many as rows allow."""
    each = given.features // len(twins)
    kept = []
    for z in twins:
        within = torch.stack([compute_class_covariance(others.within, z, z) for others in given.others]).sum(0).double()
        values, vectors = torch.linalg.eigh(within)
        known = values > values[-1] * 1e-6
        chosen = vectors[:, known][:, -each:] / values[known][-each:].sqrt()
        kept.append(z @ chosen.to(z))
    return torch.cat(kept, 1)


class Share(NamedTuple):
    """A share and half of the width of its interval."""

    value: float
    half: float


def compute_part_shares(
    parts: Mapping[str, Jackknifed], norms: tuple[Jackknifed, Jackknifed], level: float
) -> dict[str, Share]:
    """The share of each part, with an interval of this level. Shares of layers without variance are NaN."""
    size = norms[0] * norms[1]
    scale = np.sqrt(np.where((norms[0] > 0) & (size > 0), size, np.nan))
    wide = float(scipy.stats.t.ppf((1 + level) / 2, GROUPS - 1))
    found = {}
    for name, part in parts.items():
        whole, left = (part / scale)[0], (part / scale)[1:]
        found[name] = Share(float(whole), wide * _estimate_jackknife_error(left))
    return found


def split_shares(products: Float[np.ndarray, "3 g"], untrained: Jackknifed | None = None) -> dict[str, Jackknifed]:
    """The parts of `compute_part_products`, by name; untrained: of `read_out`."""
    value, rest, alone = products
    parts = {VALUE: value, TOKEN: value - rest - alone}
    parts |= {REST: rest} if untrained is None else {UNTRAINED: untrained, LEARNED: rest - untrained}
    return {**parts, ALONE: alone}


def compute_neighbour_shares(
    first: Int[np.ndarray, "k n"],
    second: Int[np.ndarray, "k n"],
    tokens: Codes,
    others: int | Codes,
) -> Float[np.ndarray, " 4"]:
    """Counts the neighbours that rows share, by share of k: all, what random pairing would share, and beyond it those
    of the row's own token and those of other tokens. They add up, and are not a split into causes.

    first, second: the k nearest of every row in x and in y. others: how many rows each could have."""
    k, n = first.shape
    shared = np.zeros((k, n), bool)
    for each in second:
        shared |= first == each
    own = tokens[first] == tokens
    by_chance = k / np.broadcast_to(others, n)
    of_token = ((own.sum(0) + (tokens[second] == tokens).sum(0)) / 2 * by_chance / k).mean()
    same, chance = (shared & own).sum() / (k * n), float(by_chance.mean())
    value = shared.mean()
    return np.array([value, chance, same - of_token, value - same - (chance - of_token)])
