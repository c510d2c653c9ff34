"""Inner products of Gram matrices from products of features, where there are many more rows than features.

<XX', YY'> = |X'Y|^2 takes n d_x d_y operations, where the cells of both matrices take n^2 d. Gram matrices of features
without column means, plus o_i + o_j, with 0 on the diagonal, have the inner product
|X'Y|^2 + 2 n o.p + 2 sum(o) sum(p) - sum_i (|x_i|^2 + 2 o_i) (|y_i|^2 + 2 p_i).

With 0 where two rows are of one document, the products of these cells are taken out of |X'Y|^2. With r_i = -x_i.S_d and
s_i the row sums of what is left of both (S_d: the sum of the rows of its document), O_d and P_d those of the offsets
over a document, and m_i the rows of that of row i, the rest is
2 o.s + 2 p.r + 2 sum_i (n - m_i) o_i p_i + 2 sum(o) sum(p) - 2 sum_d O_d P_d.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.gram import gram_matrix, squared_norms
from repsim_cli.measures.features import AnyFeatures, CentredRows
from repsim_cli.measures.kernels import AnyKernel, Documents, Kernel, State, keep_gram

SUMMED = 2048  # rows whose products are summed in float32, before the sum is added in float64
WIDE = 2048  # features of a side of a product
LONGEST = 256  # rows of a document whose cells are taken out
TOGETHER = 128  # rows of whole documents that are multiplied with each other, where no document has more
BLOCK = 1024  # rows whose sums are taken at a time
CHEAPER = 2.0  # how many times the operations of cells must be those of features
# least share of |X'X|^2 that the squared norm without diagonal is: beside few heavy rows others lose their digits
LEFT = {torch.float32: 1 / 16, torch.float64: 1e-6}


def have_feature_products(row: AnyKernel, column: AnyKernel) -> bool:
    """Tells whether inner products of two kernels follow from products of features."""
    if not (isinstance(row, Kernel) and isinstance(column, Kernel) and row.documents is column.documents):
        return False
    if row.documents is not None and int(row.documents.bincount().max()) > LONGEST:
        return False
    plain = row.cells is keep_gram and column.cells is keep_gram
    return plain or (row.offsets is not None and column.offsets is not None)


def are_features_cheaper(rows: Sequence[int], columns: Sequence[int], n: int, together: int = 0) -> bool:
    """Tells whether products of features of these widths take far fewer operations than n^2 cells.

    together: rows that each is multiplied with, to take these cells out.

    >>> are_features_cheaper([64, 64], [64, 64], 1000), are_features_cheaper([768] * 12, [768] * 12, 4096)
    (True, False)
    """
    of_cell = max(sum(rows), sum(columns)) + len(rows) * len(columns)
    return CHEAPER * n * (sum(rows) * sum(columns) + together * of_cell) <= n**2 * of_cell


def compute_products_of_features(
    row: AnyKernel, column: AnyKernel, states: Mapping[AnyKernel, Sequence[State]], n: int
) -> Float[Tensor, "a b"] | None:
    """Computes cross[a, b] = <M_a, N_b> over all (n, n) cells, float64; None where cells have to be computed, are
    cheaper or keep more digits."""
    if not have_feature_products(row, column):
        return None
    rows, columns = states[row], states[column]
    widths, of_columns = ([state.features.width for state in side] for side in (rows, columns))
    documents = row.documents if isinstance(row, Kernel) else None
    together = 0 if documents is None else max(TOGETHER, int(documents.bincount().max()))
    if not are_features_cheaper(widths, of_columns, n, together):
        return None
    hollow = isinstance(row, Kernel) and row.offsets is not None
    sides = (row,) if rows is columns else (row, column)
    if hollow and not all(_keeps_digits(kernel, state) for kernel in sides for state in states[kernel]):
        return None
    cross = sum_squared_products(*([state.features for state in side] for side in (rows, columns)))
    if not hollow:
        return cross
    if documents is not None:
        return cross + _leave_out_documents(documents, (row, rows), (column, columns))
    (o, left), (p, right) = (_take_offsets(kernel, states[kernel]) for kernel in (row, column))
    return cross + 2 * n * o @ p.T + 2 * o.sum(1)[:, None] * p.sum(1) - left @ right.T


def _leave_out_documents(
    documents: Documents, left: tuple[AnyKernel, Sequence[State]], right: tuple[AnyKernel, Sequence[State]]
) -> Float[Tensor, "a b"]:
    """Computes what the cells of two rows of one document, and the offsets of the others, add to |X'Y|^2."""
    sizes = documents.bincount()
    (o, r), (p, s) = (
        (_read_offsets(kernel, of), torch.stack([sum_rows_apart(state.features, documents) for state in of]))
        for kernel, of in (left, right)
    )
    summed = [x.new_zeros(len(x), len(sizes)).index_add_(1, documents, x) for x in (o, p)]
    others = len(documents) - sizes[documents].double()
    offsets = o @ s.T + r @ p.T + (o * others) @ p.T + o.sum(1)[:, None] * p.sum(1)
    own = sum_own_products([state.features for state in left[1]], [state.features for state in right[1]], documents)
    return 2 * (offsets - summed[0] @ summed[1].T) - own


def sum_rows_apart(features: AnyFeatures, documents: Documents) -> Float[Tensor, " n"]:
    """Sums the rows of a Gram matrix of features without column means, without the cells of two rows of one document,
    float64."""
    blocks = [slice(start, start + BLOCK) for start in range(0, len(documents), BLOCK)]
    some = features.block(slice(1))
    sums = some.new_zeros(int(documents.max()) + 1, some.shape[1])
    for rows in blocks:
        sums.index_add_(0, documents[rows], features.block(rows))
    return -torch.cat([(features.block(rows) * sums[documents[rows]]).sum(1) for rows in blocks]).double()


def sum_own_products(
    rows: Sequence[AnyFeatures], columns: Sequence[AnyFeatures], documents: Documents
) -> Float[Tensor, "a b"]:
    """Sums, for every pair of Gram matrices, the products of their cells in which both rows are of one document;
    float64."""
    same = len(rows) == len(columns) and all(a is b for a, b in zip(rows, columns, strict=True))
    total = torch.zeros(len(rows), len(columns), dtype=torch.float64, device=documents.device)
    for some in _group_documents(documents):
        of = documents[some]
        apart = of[:, None] != of
        grams = [
            torch.stack([gram_matrix(features.block(some)).masked_fill_(apart, 0) for features in side]).flatten(1)
            for side in ((rows,) if same else (rows, columns))
        ]
        total += grams[0].double() @ grams[-1].double().T
    return total


def _group_documents(documents: Documents) -> Iterator[Int[Tensor, " rows"]]:
    """Lists the rows of whole documents, of at most TOGETHER rows together where no document has more."""
    group, count, sizes = list[int](), 0, documents.bincount().tolist()
    for size in sizes:
        if not group or count + size > TOGETHER:
            group.append(0)
            count = 0
        group[-1] += size
        count += size
    yield from documents.argsort(stable=True).split(group)


def compute_diagonals(kernel: AnyKernel, states: Sequence[State]) -> Float[Tensor, "r n"]:
    """Computes the diagonals of the matrices whose inner products follow from products of features."""
    norms = torch.stack([_compute_row_norms(state.features) for state in states])
    return norms if isinstance(kernel, Kernel) and kernel.cells is keep_gram else torch.zeros_like(norms)


def _compute_row_norms(features: AnyFeatures) -> Float[Tensor, " n"]:
    return features.norms if isinstance(features, CentredRows) else squared_norms(features.values)


def _keeps_digits(kernel: AnyKernel, state: State) -> bool:
    """Tells whether the squared norm of a matrix without cells is enough of that of its Gram matrix."""
    features, norms = state.features, _compute_row_norms(state.features)
    n, least, square = len(norms), LEFT[features.block(slice(1)).dtype], float(norms.sum()) ** 2
    documents = kernel.documents if isinstance(kernel, Kernel) else None
    own = norms if documents is None else norms.new_zeros(int(documents.max()) + 1).index_add_(0, documents, norms)
    taken = float(own.square().sum())  # of documents, no less than that
    if documents is None:
        explained = taken * 2 / (n - 2) - square / ((n - 1) * (n - 2))
    else:
        explained = -2 * float(_read_offsets(kernel, [state])[0] @ sum_rows_apart(features, documents))
    if taken + explained <= (1 - least) * square / features.width:  # |X'X|^2 is no less than that
        return True
    if documents is not None:
        taken = float(sum_own_products([features], [features], documents))
    return taken + explained <= (1 - least) * float(sum_squared_products([features], [features]))


def _read_offsets(kernel: AnyKernel, states: Sequence[State]) -> Float[Tensor, "r n"]:
    """Reads the offsets of representations, float64."""
    assert isinstance(kernel, Kernel)
    assert kernel.offsets is not None
    return torch.stack([kernel.offsets(state.fit).double() for state in states])


def _take_offsets(kernel: AnyKernel, states: Sequence[State]) -> tuple[Float[Tensor, "r n"], Float[Tensor, "r n"]]:
    """Takes the offsets of representations, and what they add up to on the diagonal, float64."""
    offsets = _read_offsets(kernel, states)
    return offsets, torch.stack([_compute_row_norms(state.features) for state in states]) + 2 * offsets


def sum_squared_products(
    rows: Sequence[AnyFeatures], columns: Sequence[AnyFeatures], *, wide: int = WIDE
) -> Float[Tensor, "a b"]:
    """Computes |X_a'Y_b|^2 of all pairs, float64, from few rows and `wide` features at a time."""
    same = len(rows) == len(columns) and all(a is b for a, b in zip(rows, columns, strict=True))
    found = rows[0].block(slice(1)).new_zeros(len(rows), len(columns), dtype=torch.float64)
    groups = _group_features(rows, wide)
    for i, left in enumerate(groups):
        for right in groups[i:] if same else _group_features(columns, wide):
            product = _multiply(rows, left, columns, right, alike=same and left is right).square_()
            for (a, _), strip in zip(left, product.split(_count_features(left)), strict=True):
                for (b, _), part in zip(right, strip.split(_count_features(right), 1), strict=True):
                    found[a, b] += part.sum()
                    if same and left is not right:
                        found[b, a] += part.sum()
    return found


Group = list[tuple[int, slice]]  # representations, and which of their features


def _group_features(parts: Sequence[AnyFeatures], wide: int) -> list[Group]:
    """Cuts the features of representations into groups of at most `wide`."""
    groups, left = list[Group](), 0
    for a, features in enumerate(parts):
        for start in range(0, features.width, wide):
            piece = slice(start, min(start + wide, features.width))
            if piece.stop - piece.start > left:
                groups.append([])
                left = wide
            groups[-1].append((a, piece))
            left -= piece.stop - piece.start
    return groups


def _count_features(group: Group) -> list[int]:
    return [piece.stop - piece.start for _, piece in group]


def _multiply(
    rows: Sequence[AnyFeatures], left: Group, columns: Sequence[AnyFeatures], right: Group, *, alike: bool
) -> Float[Tensor, "d e"]:
    """Multiplies the features of two groups over the rows. alike: they are one group."""
    first = rows[0].block(slice(1))
    total = first.new_zeros(sum(_count_features(left)), sum(_count_features(right)), dtype=torch.float64)
    for start in range(0, rows[0].rows, SUMMED):
        some = slice(start, start + SUMMED)
        x = torch.cat([rows[a].block(some)[:, piece] for a, piece in left], 1)
        if alike:
            total += gram_matrix(x.T)
        else:
            total += x.T @ torch.cat([columns[b].block(some)[:, piece] for b, piece in right], 1)
    return total
