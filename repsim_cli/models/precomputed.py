"""Activations that another program wrote: .npz, .safetensors or HDF5, one named (n, d) array per layer."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repsim_cli.errors import BadInput
from repsim_cli.models.source import Precomputed
from repsim_cli.models.transformers import hash_files
from repsim_cli.registry import did_you_mean, models

Shapes = dict[str, tuple[tuple[int, ...], str]]


@models.register("precomputed")
def precomputed(*, path: str, layers: list[str] | None = None) -> Precomputed:
    """path: the file. layers: which arrays, in layer order; by default all, in natural order of their names.

    Rows are paired by number with those of the other models of the run.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise BadInput(f"path: no such file, got '{path}'; check the path")
    openers = {".npz": _open_npz, ".safetensors": _open_safetensors, ".hdf5": _open_hdf5, ".h5": _open_hdf5}
    if file.suffix not in openers:
        raise BadInput(f"path: unknown kind of file, got '{path}'; use {', '.join(openers)}")
    try:
        shapes, read = openers[file.suffix](file)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        reason = "it holds Python objects" if "pickle" in str(error) else error
        raise BadInput(
            f"path: not a whole {file.suffix} file of numbers, got '{path}' ({reason}); write it again"
        ) from None
    names = layers if layers is not None else sorted(shapes, key=natural)
    for name in names:
        if name not in shapes:
            raise BadInput(f"layers: no such array, got '{name}'; {did_you_mean(name, shapes)}")
        shape, kind = shapes[name]
        if len(shape) != 2 or 0 in shape or not kind.lower().startswith(("f", "bf")):
            raise BadInput(f"path: array '{name}' must be (n, d) of floats, got {kind} {shape}; write it so")
    if not names:
        raise BadInput(f"path: no arrays at its top level, got '{path}'; write one (n, d) array per layer")
    rows = {shapes[name][0][0] for name in names}
    if len(rows) != 1:
        raise BadInput(f"path: arrays have different numbers of rows, got {sorted(rows)}; write paired rows")
    return Precomputed(
        names=names,
        rows=rows.pop(),
        widths=[shapes[name][0][1] for name in names],
        read=read,
        identity=lambda: {"source": str(file), "weights_hash": hash_files([file])},
    )


def natural(name: str) -> list[Any]:
    """Sort key: numbers by value, so that layer 10 follows layer 9.

    >>> sorted(["h10", "h9"], key=natural)
    ['h9', 'h10']
    """
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


Reader = Callable[[str, slice], Tensor]


def _open_npz(file: Path) -> tuple[Shapes, Reader]:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    shapes = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    return shapes, lambda name, rows: torch.from_numpy(arrays[name][rows]).float()


def _open_safetensors(file: Path) -> tuple[Shapes, Reader]:
    import safetensors

    try:
        archive = safetensors.safe_open(file, framework="pt")
    except safetensors.SafetensorError as error:
        raise ValueError(error) from error
    slices = {name: archive.get_slice(name) for name in archive.keys()}  # noqa: SIM118
    shapes = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    return shapes, lambda name, rows: slices[name][rows].float()


def _open_hdf5(file: Path) -> tuple[Shapes, Reader]:
    import h5py

    archive = h5py.File(file, "r")
    sets = {name: node for name, node in archive.items() if isinstance(node, h5py.Dataset)}
    shapes = {name: (node.shape, node.dtype.name) for name, node in sets.items()}
    return shapes, lambda name, rows: torch.from_numpy(sets[name][rows]).float()
