"""The nearest of some rows among all: cosines block by block, again in float64 where their order is uncertain."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.gram import multiply_into
from repsim_cli.measures.kernels import Documents

BLOCK = 4096  # rows of the similarity matrix held at a time, where they are not more than _HELD
_HELD = 1 << 23  # cells of it: of more memory every page would be zeroed anew for every block
_EXACT = 1024  # rows computed again in float64 at a time, of a quarter of these cells
_SEEN = 100  # rows whose median stands for the median of all
_TILE = 512
_FEW = 1 / 64  # share of the rows: distances to fewer, picked one by one, take less time than products with all
_TIE = 1e-13  # of the squares in a squared distance: rows whose distances differ by less are equally near
_NEAR = {torch.float32: 3e-6, torch.float64: 2e-12}  # similarities closer than this may have lost their order

Best = tuple[Float[Tensor, "b m"], Int[Tensor, "b m"]]


def count_block_rows(n: int, most: int = BLOCK, cells: int = _HELD) -> int:
    """Counts the rows that are compared with n rows at a time.

    >>> count_block_rows(10_000), count_block_rows(100_000)
    (838, 83)
    """
    return max(1, min(most, cells // max(n, 1)))


def compute_cosines(
    units: Float[Tensor, "n d"], most: int = BLOCK
) -> Iterator[tuple[Int[Tensor, " b"], Float[Tensor, "b n"]]]:
    """Blocks of at most `most` rows, each with its products with all rows. Of two blocks, what they have in common is
    computed once, and kept."""
    before, blocks = None, torch.arange(len(units), device=units.device).split(count_block_rows(len(units), most))
    for rows in blocks:
        products = compute_block_cosines(units, int(rows[0]), len(rows), before)
        if len(blocks) == 2 and before is None:
            before = products[:, len(rows) :].T.contiguous()
        yield rows, products


def compute_block_cosines(
    units: Float[Tensor, "n d"], start: int, size: int, before: Float[Tensor, "b s"] | None = None
) -> Float[Tensor, "b n"]:
    """Products of a block of rows with all rows; within the block, half are computed and mirrored. before: those with
    the rows before it, where they are known."""
    products = units.new_empty(size, len(units))
    stop = start + size
    if before is None:
        multiply_into(products[:, :start], units[start:stop], units[:start])
    else:
        products[:, :start] = before
    for i in range(start, stop, _TILE):
        rows, after = slice(i - start, i - start + _TILE), min(i + _TILE, stop)
        multiply_into(products[rows, i:], units[i:after], units[i:])
        products[after - start :, i:after] = products[rows, after:stop].T
    return products


def leave_out_documents(cosines: Float[Tensor, "b n"], rows: Int[Tensor, " b"], documents: Documents) -> None:
    """Puts minus infinity where these rows meet rows of their documents."""
    size = _TILE if cosines.device.type == "cpu" else len(rows)
    for some, block in zip(rows.split(size), cosines.split(size), strict=True):
        of = documents[some]
        inside = ((documents >= of.min()) & (documents <= of.max())).nonzero()[:, 0]  # few, as usual of rows in order
        columns = slice(int(inside[0]), int(inside[-1]) + 1)
        block[:, columns].masked_fill_(of[:, None] == documents[columns], -torch.inf)


class Candidates(NamedTuple):
    """For some rows, all those that can be among their nearest, in the order of rows, and others. absent: which of them
    are left out."""

    rows: Int[Tensor, " c"]
    among: Int[Tensor, "c m"]
    absent: Bool[Tensor, "c m"]


def select_candidates(
    cosines: Float[Tensor, "b n"], rows: Int[Tensor, " b"], values: Float[Tensor, "b m"], few: float = _FEW
) -> tuple[Candidates, Int[Tensor, " others"]]:
    """Selects the candidates of the rows whose largest cosines (values) leave their order uncertain. Returns these, and
    the uncertain rows with more candidates than twice the values, or all of them where that is more than this share of
    the rows."""
    within, count = _NEAR[values.dtype], 2 * values.shape[1]
    unsure = (values[:, :-1] - values[:, 1:] < within).any(1).nonzero()[:, 0]
    if count > few * cosines.shape[1]:
        return Candidates(rows[:0], rows[:0, None], cosines[:0, :1].bool()), rows[unsure]
    best, among = cosines[unsure].topk(count, dim=1)
    whole = best[:, -1] < values[unsure, -1] - within
    among, order = among[whole].sort(dim=1)
    return Candidates(rows[unsure[whole]], among, best[whole].gather(1, order) == -torch.inf), rows[unsure[~whole]]


def order_candidates(
    points: Float[Tensor, "n d"], candidates: Candidates, k: int
) -> Iterator[tuple[Int[Tensor, " c"], Best]]:
    """The same as `list_nearest_rows`, for rows that have candidates."""
    size = max(1, _HELD // 8 // (candidates.among.shape[1] * points.shape[1]))
    for start in range(0, len(candidates.rows), size):
        rows, among, absent = (part[start : start + size] for part in candidates)
        near = (points[among] - points[rows, None]).square_().sum(2) / -2
        best, where = find_ordered(near, absent, k, near.new_ones(len(rows)))
        yield rows, (best, among.gather(1, where))


def add_missing_directions(units: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
    """Adds a coordinate for each row without a direction, which makes it orthogonal to every other row."""
    lost = (units[:, 0] == 0).nonzero()[:, 0]  # those that can be
    lost = lost[(units[lost] == 0).all(1)]
    directions = torch.zeros(len(units), len(lost)).to(units)
    directions[lost, torch.arange(len(lost), device=lost.device)] = 1
    return torch.cat([units, directions], 1) if len(lost) else units


LeftOut = Bool[Tensor, "b n"]


def find_left_out(documents: Documents | None, rows: Int[Tensor, " b"]) -> LeftOut | Int[Tensor, " b"]:
    """Finds what is left out for these rows: the rows themselves, or by cell those of their documents."""
    return rows if documents is None else documents[rows, None] == documents


def list_nearest_rows(
    x: Float[Tensor, "n d"], rows: Int[Tensor, " b"], k: int, left_out: Callable[[Tensor], Tensor] = lambda rows: rows
) -> Iterator[tuple[Int[Tensor, " c"], Best]]:
    """Blocks of these rows, each with minus half the squared distances to its k + 1 nearest rows and their indices;
    equally near rows are ordered by index."""
    for block, near, squares in compute_block_nearness(x, rows):
        yield block, find_ordered(near, left_out(block), k, squares)


def compute_block_distances(
    x: Float[Tensor, "n d"], left_out: Callable[[Tensor], Tensor]
) -> Iterator[tuple[Int[Tensor, " c"], Float[Tensor, "c n"]]]:
    """Blocks of all rows, each with the squared distances to all rows; infinite to those that are left out."""
    for block, near, _ in compute_block_nearness(x, torch.arange(len(x), device=x.device)):
        squared, away = near.mul_(-2).clamp_min_(0), left_out(block)
        cells = away if away.dtype == torch.bool else away[:, None] == torch.arange(len(x), device=x.device)
        yield block, squared.masked_fill_(cells, torch.inf)


def compute_block_nearness(
    x: Float[Tensor, "n d"], rows: Int[Tensor, " b"]
) -> Iterator[tuple[Int[Tensor, " c"], Float[Tensor, "c n"], Float[Tensor, " c"]]]:
    """Blocks of these rows, each with minus half the squared distances to all rows, and with the rows' squared norms.

    Rows are taken relative to the median row of their side, so that a massive feature, which is alike in all rows of a
    side, does not cost the others digits.
    """
    if not len(rows):
        return
    distinct, which = find_distinct_rows(x)
    some = x[:: len(x) // _SEEN + 1]
    positive = x[:, int(some.abs().mean(0).argmax())] > 0
    for side in (positive, ~positive):
        of_side = rows[side[rows]]
        if not len(of_side):
            continue
        seen = side.nonzero()[:, 0]
        points = distinct - x[seen[:: len(seen) // _SEEN + 1]].median(0).values
        squares = points.square().sum(1)
        for block in of_side.split(count_block_rows(len(x), _EXACT, _HELD // 4)):
            places = which[block]
            # every distinct row once, so that equal rows are equally near to the last bit
            near = torch.addmm(squares, points[places], points.T, beta=-0.5).sub_(squares[places, None] / 2)
            yield block, near if distinct is x else near[:, which], squares[places]


def find_distinct_rows(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "m d"], Int[Tensor, " n"]]:
    """(the distinct rows, the index of every row among them); x itself where all are."""
    # a single column usually tells rows apart, and sorting whole rows is slow
    column = x[:, int(x.abs().amax(0).argmax())]
    if len(column.unique()) < len(x):
        distinct, which = torch.unique(x, dim=0, return_inverse=True)
        if len(distinct) < len(x):
            return distinct, which
    return x, torch.arange(len(x), device=x.device)


def select_most_similar(similarity: Float[Tensor, "b n"], left_out: Tensor, k: int) -> Best:
    """The k + 1 largest of every row, or all that are not left out: (values, indices), in any order where equal.
    left_out: as of `find_left_out`."""
    if left_out.dtype == torch.bool:
        similarity.masked_fill_(left_out, -torch.inf)
    else:
        similarity.scatter_(1, left_out[:, None], -torch.inf)
    best = similarity.topk(min(k + 1, similarity.shape[1] - 1), dim=1)
    return best.values, best.indices


def find_ordered(near: Float[Tensor, "b n"], left_out: Tensor, k: int, squares: Float[Tensor, " b"]) -> Best:
    """Selects as `select_most_similar` does, from minus half the squared distances of rows with these squared norms.
    Values that differ by rounding alone count as equal, and equal values are ordered by index."""
    values, indices = select_most_similar(near, left_out, k)
    tolerance = _TIE * (squares[:, None] - 2 * values[:, -1:])
    tied = (values[:, :-1] - values[:, 1:] <= tolerance).any(1).nonzero()[:, 0]
    if len(tied):
        count, last, those, within = values.shape[1], values[tied, -1:], near[tied], tolerance[tied]
        above = those > last + within
        equal = ~above & (those >= last - within)
        chosen = above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))
        columns = chosen.nonzero()[:, 1].view(-1, count)
        best, order = those.gather(1, columns).sort(dim=1, descending=True)
        first = torch.nn.functional.pad(best[:, :-1] - best[:, 1:] > within, (1, 0), value=True)
        places = torch.arange(count, device=best.device)
        group = torch.where(first, places, 0).cummax(1).values
        columns = columns.gather(1, order)
        indices[tied] = columns.gather(1, (group * near.shape[1] + columns).argsort(1))
        values[tied] = best.gather(1, group)
    return values, indices
