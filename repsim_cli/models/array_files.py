"""Files with a named (n, d) array per layer, and with ids and documents of the rows: which there are, and how rows
are read."""

import json
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.files import open_npy, refuse
from repsim_cli.data.files import read_npz_arrays, read_saved

Shapes = dict[str, tuple[tuple[int, ...], str]]
# as numpy and safetensors name them
FLOATS = ("float16", "float32", "float64", "float128", "longdouble", "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2")


def make_natural_key(name: str) -> list[Any]:
    """Sort key: numbers by value, so that layer 10 follows layer 9.

    >>> sorted(["h10", "h9"], key=make_natural_key)
    ['h9', 'h10']
    """
    parts = enumerate(re.split(r"(\d+)", name))  # every second part is digits, of any length
    return [(0, len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (1, 0, part) for index, part in parts]


Reader = Callable[[str, slice], Tensor]


def check(file: Path, read: Reader) -> Reader:
    """Raises RunFailed where rows cannot be read, as from a damaged chunk."""

    def rows_of(name: str, rows: slice) -> Tensor:
        problem, got = f"{file}: rows of '{name}' cannot be read", f"{rows.start} to {rows.stop - 1}"
        with refuse(problem, got, "write the file again", RunFailed):
            return read(name, rows)

    return rows_of


def convert_to_float32(array: np.ndarray) -> Tensor:
    """float32 from any float in any byte order; values beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(array.astype(np.float32, copy=False))


# what may be ids or documents: text and whole numbers
Ids = Mapping[str, Callable[[], Sequence[Any]]]


IDS, DOCUMENTS = ("ids", "id"), ("documents", "document")


def _open_npy(file: Path) -> tuple[Shapes, Reader, Ids]:
    """Opens a .npy file: a single layer, called `rows`, since it has no name in the file."""
    array = open_npy(file)
    return {"rows": (array.shape, array.dtype.name)}, lambda _, rows: convert_to_float32(np.array(array[rows])), {}


def _open_npz(file: Path) -> tuple[Shapes, Reader, Ids]:
    arrays = read_npz_arrays(file)
    shapes = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    arrays = {
        name: np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array for name, array in arrays.items()
    }
    ids = {name: array.tolist for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "iuU"}
    return shapes, lambda name, rows: convert_to_float32(arrays[name][rows]), ids


def _open_safetensors(file: Path) -> tuple[Shapes, Reader, Ids]:
    """Opens a safetensors file, whose rows are read and not mapped: of mapped files the system reads up to megabytes
    ahead in every layer, more than a small memory holds until it is used."""
    import safetensors

    archive = safetensors.safe_open(file, framework="pt")
    slices = {name: archive.get_slice(name) for name in archive.keys()}  # noqa: SIM118
    shapes = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    whole = [name for name, (shape, kind) in shapes.items() if len(shape) == 1 and kind[0] in "IU"]
    ids = {name: lambda name=name: slices[name][:].tolist() for name in whole}
    descriptor = os.open(file, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    size = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    header = json.loads(os.pread(descriptor, size, 8))

    def read(name: str, rows: slice) -> Tensor:
        first, last, _ = rows.indices(shapes[name][0][0])
        x = torch.empty(last - first, *shapes[name][0][1:], dtype=slices[name][:0].dtype)
        start = 8 + size + header[name]["data_offsets"][0] + first * x[:1].nbytes
        left = x.view(torch.uint8).numpy().reshape(-1).data
        while left:
            if not (count := os.preadv(descriptor, [left], start)):
                raise EOFError("the file was cut off")
            start, left = start + count, left[count:]
        return x.float()

    weakref.finalize(read, os.close, descriptor)
    return shapes, read, ids


def _open_hdf5(file: Path) -> tuple[Shapes, Reader, Ids]:
    import h5py

    archive = h5py.File(file, "r")
    sets = {name: node for name, node in archive.items() if isinstance(node, h5py.Dataset)}
    shapes = {name: (node.shape or (), node.dtype.name) for name, node in sets.items()}
    text = {name: node for name, node in sets.items() if len(node.shape or ()) == 1 and node.dtype.kind in "iuO"}
    ids = {
        name: lambda node=node: [each.decode() if isinstance(each, bytes) else each for each in node[()].tolist()]
        for name, node in text.items()
    }
    return shapes, lambda name, rows: convert_to_float32(sets[name][rows]), ids


def _open_table(file: Path) -> tuple[Shapes, Reader, Ids]:
    """Opens a .parquet file or a folder of `datasets`, in which a layer is a column of lists of floats."""
    import datasets
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    if file.is_dir():
        whole = read_saved(file)
        if isinstance(whole, datasets.DatasetDict):
            raise BadInput(
                f"path: a folder of several splits, got {', '.join(map(str, whole))}; name the folder of one"
            )
        opened = whole.with_format("arrow")[:]
    else:
        opened = pyarrow.parquet.read_table(file, memory_map=True)
    table: Any = opened
    shapes: Shapes = {}
    ids: dict[str, Callable[[], Sequence[Any]]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        if pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
            width = len(column[0]) if len(column) and column[0].is_valid else 0
            shapes[name] = (
                (len(column), width),
                {"halffloat": "float16", "float": "float32", "double": "float64"}.get(
                    str(kind.value_type), str(kind.value_type)
                ),
            )
        elif pyarrow.types.is_integer(kind) or pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            ids[name] = column.to_pylist
        elif name in (*IDS, *DOCUMENTS):
            shapes[name] = ((len(column),), str(kind))
    if not any(len(shape) > 1 for shape, _ in shapes.values()):
        names = table.column_names
        has = ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "") or "no column"
        raise BadInput(
            f"path: no column of vectors in '{file}', got {has}; write the vector of a row as a list of floats"
        )

    @cache
    def check(name: str) -> None:
        """Raises BadInput where vectors differ in length, or a row has none."""
        widths = np.array(
            pyarrow.compute.call_function("list_value_length", [table.column(name)]), np.float64
        )  # nan: none
        odd = np.flatnonzero(widths != widths[0])
        if len(odd):
            numbers = "none" if np.isnan(widths[odd[0]]) else f"{widths[odd[0]]:.0f} numbers"
            raise BadInput(
                f"path: vectors of '{name}' must have one length, got {numbers} in row {odd[0]} and {widths[0]:.0f} in "
                "row 0; drop such rows"
            )

    def read(name: str, rows: slice) -> Tensor:
        check(name)
        some = table.column(name).slice(rows.start or 0, rows.stop - (rows.start or 0)).combine_chunks()
        return convert_to_float32(np.array(some.flatten()).reshape(len(some), -1))

    return shapes, read, ids


# by suffix; .parquet also opens a folder written by `Dataset.save_to_disk`
OPENERS = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    ".hdf5": _open_hdf5,
    ".h5": _open_hdf5,
    ".parquet": _open_table,
}
