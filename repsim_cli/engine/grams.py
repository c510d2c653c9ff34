"""Batches of layers whose rows do not fit into memory together, for measures that are made of HSIC.

Groups of layers are read one after another. Of each batch of a layer only the tiles of its matrices are kept, in files:
2.4 MB for 1024 rows and a measure, whatever the width. Then the batches are compared from these files, with the same
bits as from rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.files import create_npy
from repsim_cli.engine.prepared import Grams
from repsim_cli.measures import Measure, OfHsic
from repsim_cli.measures.base import restrict_to_other_documents, run_with_label
from repsim_cli.measures.inner import Tiles, collect_matrix_tiles, count_tile_cells
from repsim_cli.measures.kernels import Documents, Kernel, prepare_states

Stream = Callable[[Sequence[int]], Iterable[Sequence[Tensor]]]
Keep = Callable[[Sequence[int], Callable[[Path], None]], Path]


class BatchShape(NamedTuple):
    """The rows of a batch, and the side of its tiles."""

    batches: int
    rows: int
    tile: int

    @property
    def size(self) -> int:
        """Bytes of a layer and kernel."""
        return self.batches * (4 * count_tile_cells(self.rows, self.tile) + 8 * (self.rows + 1))


def list_kernels(measures: Mapping[str, Measure]) -> list[Kernel] | None:
    """The kernels of the measures; None where one needs more than tiles."""
    made = [measure.row for measure in measures.values() if isinstance(measure, OfHsic)]
    kernels = [kernel for kernel in dict.fromkeys(made) if isinstance(kernel, Kernel)]
    return kernels if len(made) == len(measures) else None


def make_kernel_lister(
    measures: Mapping[str, Measure], documents: Callable[[int], Documents | None] = lambda batch: None
) -> Callable[[int], list[Kernel]]:
    """Gives the kernels of a batch. documents: as in `estimate_all_pairs`."""

    def kernels_at(batch: int) -> list[Kernel]:
        these = documents(batch)
        return (
            list_kernels({label: restrict_to_other_documents(measure, these) for label, measure in measures.items()})
            or []
        )

    return kernels_at


def group_layers(widths: Sequence[int], most: float) -> list[list[int]]:
    """Layers in order, in groups of at most `most` features, or of a single layer.

    >>> group_layers([4, 4, 4, 9, 2], most=8.0)
    [[0, 1], [2], [3], [4]]
    """
    groups: list[list[int]] = []
    for layer, width in enumerate(widths):
        if groups and sum(widths[a] for a in groups[-1]) + width <= most:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def pack_batches(
    keep: Keep,
    kernels_at: Callable[[int], Sequence[Kernel]],
    groups: Sequence[Sequence[int]],
    stream: Stream,
    shape: BatchShape,
    *,
    names: Sequence[str],
    device: str = "cpu",
) -> Callable[[int], Iterator[list[Grams]]]:
    """The batches of all layers, from batch k on, in a form that `estimate_all_pairs` takes instead of rows.

    stream(layers): a fresh stream of batches of these layers. keep(layers, save): the folder of the files of a group,
    which save(folder) makes where an earlier run has not. kernels_at(batch): the same, but for their documents.
    """
    kernels = kernels_at(0)

    def save(group: Sequence[int], folder: Path) -> None:
        folder.mkdir()
        files = {
            layer: [_create_layer_files(stem, shape) for stem in _name_layer_files(folder, layer, kernels)]
            for layer in group
        }
        for batch, rows in enumerate(stream(group)):
            here = kernels_at(batch)
            for layer, x in zip(group, rows, strict=True):
                try:
                    states = run_with_label(names[layer], partial(prepare_states, here, x, {}))
                except Degenerate:  # all rows are equal
                    for _, diagonal in files[layer]:
                        diagonal[batch, -1] = np.nan
                    continue
                for kernel, (cells, diagonal) in zip(here, files[layer], strict=True):
                    tiles = collect_matrix_tiles(kernel, states[kernel], shape.rows, shape.tile)
                    cells[batch] = tiles.cells.cpu().numpy()
                    diagonal[batch, :-1] = tiles.diagonal.cpu().numpy()
                    diagonal[batch, -1] = states[kernel].features.scale

    folders = {layer: folder for group in groups for folder in [keep(group, partial(save, group))] for layer in group}
    files = [[_open(stem) for stem in _name_layer_files(folders[a], a, kernels)] for a in range(len(names))]

    def batches(first: int) -> Iterator[list[Grams]]:
        for batch in range(first, shape.batches):
            yield [_read_batch_grams(kernels, layer, batch, device) for layer in files]

    return batches


Files = tuple[np.ndarray, np.ndarray]  # cells of every batch; their diagonals, each followed by the scale


def _name_layer_files(folder: Path, layer: int, kernels: Sequence[Kernel]) -> list[str]:
    """The paths of a layer's files, one for each kernel, without what `_open` adds to them."""
    return [str(folder / f"{layer:05d}-{k}") for k in range(len(kernels))]


def _create_layer_files(stem: str, shape: BatchShape) -> Files:
    """Empty arrays that are mapped from files."""
    widths = {"cells": (np.float32, count_tile_cells(shape.rows, shape.tile)), "diagonal": (np.float64, shape.rows + 1)}
    cells, diagonal = (
        create_npy(Path(f"{stem}-{part}.npy"), dtype, (shape.batches, width)) for part, (dtype, width) in widths.items()
    )
    return cells, diagonal


def _open(stem: str) -> Files:
    cells, diagonal = (np.load(f"{stem}-{part}.npy", mmap_mode="c") for part in ("cells", "diagonal"))
    return cells, diagonal


def _read_batch_grams(kernels: Sequence[Kernel], layer: Sequence[Files], batch: int, device: str) -> Grams:
    tiles, scales = {}, {}
    for kernel, (cells, diagonal) in zip(kernels, layer, strict=True):
        parts = (cells[batch], diagonal[batch, :-1])
        tiles[kernel] = Tiles(*(torch.from_numpy(np.asarray(part)).to(device) for part in parts))
        scales[kernel] = float(diagonal[batch, -1])
    return Grams(rows=layer[0][1].shape[1] - 1, tiles=tiles, scales=scales)
