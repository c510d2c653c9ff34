"""Counts the bytes that comparing a batch holds beside its rows: prepared states, tiles, the level of chance.

It follows `pairs.py`: all inner products together, then the other measures, group by group, where a group shares what
it prepares. Each group lets this go before the next begins, so only the largest step counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from repsim_cli.engine.behind import MOST
from repsim_cli.engine.chance import SAMPLED
from repsim_cli.engine.cost import takes_features
from repsim_cli.engine.expected import ROOM
from repsim_cli.engine.pairs import group_by_preparation
from repsim_cli.engine.permuted import TOGETHER
from repsim_cli.measures import InnerProduct, Measure, Pairwise
from repsim_cli.measures.cards import Slow
from repsim_cli.measures.inner import count_largest_tile
from repsim_cli.measures.kernels import Kernel, Packed
from repsim_cli.measures.near_rows import count_block_rows
from repsim_cli.measures.nearest import count_neighbours
from repsim_cli.measures.products import SUMMED, WIDE

Bytes = dict[str, float]  # by part

SINGLE, DOUBLE = 4.0, 8.0  # bytes of a number
LISTED = 120.0  # bytes of a neighbour while those of all layers are compared
RANKED, FITTED = 21.0, 12.0  # bytes of a pair of rows while distances are ranked, and while a kernel is fitted to them
MOVED = 18.0  # the same while ranked distances are brought into another order
NEAR = 33.0  # bytes of a number of a layer while its neighbours are found: four copies in float64
PREPARED = 24.0  # the same while another measure prepares it: three copies
CHECKED = 400.0  # the same while its documents are checked for a null, where each row is one: spectra of them
MULTIPLIED = 20.0  # of a product of two features: its sum, a part of it, and its square
AUDITED = 18.0  # matrices of float64 that a second solver holds


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """What a batch holds. rows, layers: how many. features: of all layers that are in memory together. widest: of a
    layer.
    places: of the rows, by which inner products are summed for the level of chance, and pairings: how many are drawn
    for it; 0: it is not wanted. permuted: whether p values come from permutations. alone: whether each row is a
    document. filed: whether tiles come from files, layers being in memory in groups."""

    measures: Sequence[Measure]
    rows: int
    layers: int
    features: int
    widest: int
    tile: int
    workers: int
    places: float = 0.0
    pairings: int = 0
    permuted: bool = False
    alone: bool = False
    filed: bool = False

    @property
    def packed(self) -> float:
        """Bytes of the ranked distances of a layer."""
        return SINGLE * self.rows**2 / 2


def estimate_batch_memory(batch: PlannedBatch) -> Bytes:
    """Estimates the step that needs most, by part."""
    inner = [measure for measure in batch.measures if isinstance(measure, InnerProduct)]
    others = group_by_preparation({str(number): measure for number, measure in enumerate(batch.measures)})
    steps = list[Bytes]()
    if not batch.filed:  # `behind.py`
        steps.append({"preparing": count_preparing(replace(batch, rows=min(batch.rows, MOST)), near=True)})
    if batch.permuted:
        steps.append(
            {
                "null": SINGLE * batch.rows * batch.features
                + (CHECKED if batch.alone else PREPARED) * batch.rows * batch.widest
            }
        )
    steps += _list_product_steps(batch, inner) if inner else ()
    steps += [step for group in others for step in _list_group_steps(batch, [*group.values()])]
    return max(steps, key=lambda step: sum(step.values()), default={})


def count_states_of_products(batch: PlannedBatch, measures: Sequence[InnerProduct]) -> float:
    """Counts the bytes of all representations as these measures prepare them, together."""
    kernels = list_distinct_kernels(measures)
    copies = {kernel.features: kernel.copies for kernel in kernels if isinstance(kernel, Kernel)}
    packed = sum(isinstance(kernel, Packed) for kernel in kernels)
    # centred rows and fits hold numbers of every row
    of_rows = 3 * DOUBLE * batch.rows * batch.layers * (len(kernels) - packed)
    return SINGLE * sum(copies.values()) * batch.rows * batch.features + batch.packed * packed * batch.layers + of_rows


def count_states(batch: PlannedBatch, measure: Pairwise) -> float:
    """Counts the bytes of all representations as a measure prepares them; those of slow measures lie in files."""
    if measure.slow is not None:
        return 0.0
    lists = 0 if measure.cubes is not None else count_neighbours(measure.settings.get("k", 0), batch.rows)
    of_rows = SINGLE * measure.copies * batch.features + 9.0 * lists * batch.layers
    squares = measure.maps * batch.widest**2 + measure.squares * batch.rows**2
    return batch.rows * of_rows + DOUBLE * squares * batch.layers


def list_distinct_kernels(measures: Sequence[InnerProduct]) -> list[Kernel | Packed]:
    return list(dict.fromkeys(kernel for measure in measures for kernel in (measure.row, measure.column)))


def _list_product_steps(batch: PlannedBatch, measures: Sequence[InnerProduct]) -> Iterator[Bytes]:
    """Preparing one layer after another; the tiles of all; the mean over pairings; some pairings drawn."""
    rows, layers, kernels = batch.rows, batch.layers, list_distinct_kernels(measures)
    held = {"states": count_states_of_products(batch, measures)}
    of_layer = SINGLE * rows * batch.widest
    all_tiled = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    whole = any(kernel.whole for kernel in all_tiled)
    copied = any(kernel.copies for kernel in all_tiled)
    ranked = len(all_tiled) < len(kernels)
    yield {**held, "preparing": max(of_layer, copied * 6 * of_layer, (RANKED * ranked + FITTED * whole) * rows**2)}
    by_cell = list_distinct_kernels([measure for measure in measures if not _takes_features(batch, measure)])
    if len(by_cell) < len(kernels):
        side = min(batch.features, WIDE)
        yield {**held, "products": MULTIPLIED * side**2 + 4 * SINGLE * SUMMED * side}
    tiled = [kernel for kernel in by_cell if isinstance(kernel, Kernel)]
    cells = count_largest_tile(rows, batch.tile) if by_cell else 0
    band = SINGLE * min(rows, batch.tile) * batch.features * len({kernel.features for kernel in tiled})
    # beside those of the kernels, as they are weighted for chance or brought to float64 for `behind.py`
    tiles = SINGLE * layers * cells * (max(len(tiled), len(by_cell) - len(tiled)) + 2 * (not batch.filed)) + band
    places = min(batch.places, ROOM / (SINGLE * max(layers * rows, 1)))
    by_place = SINGLE * layers * places * rows * bool(by_cell)
    sums = len(by_cell) * (by_place + DOUBLE * layers * places**2)
    yield {**held, "tiles": tiles, "chance": sums}
    yield {**held, "chance": sums + by_place + 2 * DOUBLE * layers * places**2 * bool(by_cell)}
    drawn = ranked * MOVED * rows**2 + batch.pairings * max(ranked * batch.packed, of_layer * bool(all_tiled))
    drawn += SINGLE * (SAMPLED + batch.pairings) * cells
    yield {**held, "chance": drawn * bool(batch.pairings)}
    if batch.permuted:
        again = ranked * batch.packed * layers + bool(all_tiled) * SINGLE * rows * batch.features
        moved = TOGETHER * (again + SINGLE * layers * cells)
        yield {**held, "tiles": tiles, "null": SINGLE * rows * batch.features + moved + ranked * MOVED * rows**2}


def _takes_features(batch: PlannedBatch, measure: InnerProduct) -> bool:
    """Tells whether a measure comes from products of features: then no cell is needed, of its values nor for the level
    of chance."""
    widths = [batch.features // batch.layers] * batch.layers
    return (batch.alone or not batch.places) and not batch.filed and takes_features(measure, widths, batch.rows)


def count_preparing(batch: PlannedBatch, *, near: bool) -> float:
    """Counts the bytes that are needed while a layer is prepared. near: while its nearest rows are found."""
    block = min(batch.rows, count_block_rows(batch.rows))
    return batch.rows * (NEAR * batch.widest + SINGLE * block if near else PREPARED * batch.widest)


def _list_group_steps(batch: PlannedBatch, measures: Sequence[Pairwise]) -> Iterator[Bytes]:
    """Preparing one layer after another; comparing pairs; counting or drawing some pairings."""
    first, rows = measures[0], batch.rows
    held = {"states": count_states(batch, first)}
    near = first.cubes is None
    preparing = count_preparing(batch, near=near)
    solved = max(_count_solved(measure.slow, batch) if measure.slow else 0.0 for measure in measures)
    wide = max(measure.wide_squares for measure in measures) * batch.widest**2
    matrices = DOUBLE * max(solved, wide)
    yield {**held, "preparing": preparing}
    yield {**held, "matrices": matrices}
    paired = any(measure.card.paired for measure in measures) and batch.pairings > 0
    lists = batch.layers * rows * count_neighbours(first.settings.get("k", 0), rows) if near else 0.0
    overlaps = LISTED * lists * any(measure.overlap is not None for measure in measures)
    in_memory = count_states(batch, replace(first, slow=None))
    moved = 0.0 if near else in_memory * min(SAMPLED, batch.layers) / batch.layers
    if paired:
        yield {**held, "matrices": matrices, "chance": max(overlaps, moved)}
    if batch.permuted:
        yield {**held, "matrices": matrices, "null": SINGLE * rows * batch.features + held["states"]}


def _count_solved(slow: Slow, batch: PlannedBatch) -> float:
    """Counts the cells of the matrices of pairs that are solved at a time, or of one by a second solver."""
    return max(slow.squares * batch.workers, AUDITED * (slow.audit is not None)) * float(slow.side(batch.rows)) ** 2
