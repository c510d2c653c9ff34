"""Maps as files: two tensors and a record, in safetensors; and the rows of files, mapped into another file."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, create_npy, expand_path, open_npy, refuse
from repsim_cli.base.registry import did_you_mean
from repsim_cli.runs.results import write
from repsim_cli.studies.vectors.scores import MAIN

RECORD, TENSORS, SCHEMA = "repsim_vector_map", ("bias", "weight"), 1
BLOCK = 65_536  # rows that are mapped at a time


@dataclass(frozen=True, repr=False)
class VectorMap:
    """x @ weight + bias. record: which models, layers and data it was fitted on, how well it does, and its sha256."""

    weight: Float[np.ndarray, "d_x d_y"]
    bias: Float[np.ndarray, " d_y"]
    record: Mapping[str, Any]

    def __repr__(self) -> str:
        old, new = (f"{self.record[side]['layer']} of {self.record[side]['model']}" for side in ("from", "to"))
        before, after = self.weight.shape
        return f"<repsim map ({self.record['kind']}) from {old} to {new}, {before} to {after} numbers>"

    def __call__(self, rows: np.ndarray, first: int = 0) -> Float[np.ndarray, "n d_y"]:
        """Maps rows (n, d_x) of floats to float32. first: the number of the first of these rows, for messages.

        Raises BadInput for rows of another width, and for numbers that are not finite.
        """
        self.check(rows)
        with np.errstate(over="ignore"):
            given = rows.astype(np.float32)
        if not (finite := np.isfinite(given).all(1)).all():
            raise BadInput(f"rows: numbers must be finite, got others in row {first + int(finite.argmin())}; drop them")
        return given @ self.weight.astype(np.float32, copy=False) + self.bias.astype(np.float32, copy=False)

    def check(self, rows: np.ndarray) -> None:
        """Raises BadInput for rows of another width, or of no floats."""
        if rows.ndim != 2 or rows.shape[1] != len(self.weight) or rows.dtype.kind != "f":
            raise BadInput(
                f"rows: numbers (n, {len(self.weight)}) are mapped, got {rows.dtype.name} {rows.shape}; the map is for "
                f"{self.record['from']['layer']} of {self.record['from']['model']}"
            )

    def save(self, path: str | Path) -> Path:
        """Writes the map; returns the file."""
        file = check_target(path)
        tensors = {"weight": np.ascontiguousarray(self.weight, np.float32), "bias": np.asarray(self.bias, np.float32)}
        record = {**self.record, "schema": SCHEMA, "sha256": _hash(tensors)}
        write(file, safetensors.numpy.save(tensors, {RECORD: json.dumps(record, allow_nan=False)}))
        return file


def check_target(path: str | Path) -> Path:
    """Finds the file of a map. Raises BadInput where none can be written."""
    file = expand_path(path)
    if file.suffix != ".safetensors" or not file.absolute().parent.is_dir():
        raise BadInput(f"map: it is written as .safetensors in a folder that exists, got '{path}'; rename it")
    return file


def _hash(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in TENSORS:
        digest.update(f"{name} {tensors[name].shape}".encode() + tensors[name].tobytes())
    return digest.hexdigest()


def load_map(path: Any) -> VectorMap:
    """Reads a map that `save` wrote. Raises BadInput for any other file, and for one whose numbers were changed."""
    file = expand_path(path)
    if not file.is_file():
        raise BadInput(f"map: no such file, got '{path}'; repsim map fit writes one")
    problem, advice = f"{file}: not a map of repsim map fit", "fit it again"
    with refuse(problem, file.name, advice), safetensors.safe_open(check_readable(file), framework="numpy") as archive:
        record = json.loads((archive.metadata() or {}).get(RECORD, "null"))
        names = tuple(sorted(archive.keys()))
        tensors = {name: archive.get_tensor(name) for name in names} if names == TENSORS else {}
    sides = [record.get(side) for side in ("from", "to")] if isinstance(record, dict) else [None]
    if not tensors or not all(isinstance(side, dict) and {"model", "layer"} <= side.keys() for side in sides):
        raise BadInput(f"{problem}, got {', '.join(names)[:60] or 'nothing'}; {advice}")
    weight, bias = tensors["weight"], tensors["bias"]
    fits = weight.ndim == 2 and weight.shape[1:] == bias.shape
    if not fits or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise BadInput(f"{problem}, got a matrix {weight.shape} and an offset {bias.shape}; {advice}")
    if record.get("schema") != SCHEMA or record.get("sha256") != _hash(tensors):
        raise BadInput(f"{file}: a map that was changed after it was written, got another sha256; {advice}")
    return VectorMap(weight, bias, record)


def choose_best_map(maps: Sequence[VectorMap]) -> VectorMap:
    """Chooses the map that keeps most of the neighbours that new vectors have."""
    return max(maps, key=lambda each: each.record["held out"][MAIN]["value"])


def map_file(given: VectorMap, rows: str | Path, out: str | Path, array: str | None = None) -> tuple[str, int]:
    """Maps the rows of a file into another file of the same format; all else in it stays. Returns the name of the array
    and the number of rows. array: its name, where the file has several of that width."""
    source, target = expand_path(rows), expand_path(out)
    if not source.is_file():
        raise BadInput(f"rows: no such file, got '{rows}'; check the path")
    if source.suffix not in FORMATS:
        raise BadInput(f"rows: unknown kind of file, got '{rows}'; use {', '.join(FORMATS)}")
    if target.suffix != source.suffix or not target.absolute().parent.is_dir():
        raise BadInput(f"out: a {source.suffix} file in a folder that exists is written, got '{out}'; rename it")
    if target.exists():
        raise BadInput(f"out: the file exists, got '{out}'; name a new one")
    return FORMATS[source.suffix](given, check_readable(source), target, array)


def _choose_array(given: VectorMap, shapes: Mapping[str, tuple[int, ...]], array: str | None, file: Path) -> str:
    """Names the array of the width of the map, or the one that is named."""
    if array is not None and array not in shapes:
        raise BadInput(f"array: no such array in '{file}', got '{array}'; {did_you_mean(array, shapes)}")
    fitting = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] == len(given.weight)]
    if array is None and len(fitting) != 1:
        raise BadInput(
            f"{file}: one array of rows of {len(given.weight)} numbers is needed, got "
            f"{', '.join(fitting)[:80] or 'none of that width'}; name it with --array"
        )
    return fitting[0] if array is None else array


def _check_some(source: Path, rows: int) -> None:
    """Raises BadInput where there is no row, as in a file that was never filled."""
    if not rows:
        raise BadInput(f"rows: no row to map, got a file without rows in '{source}'; write it again")


@contextmanager
def _rename_when_whole(target: Path) -> Iterator[Path]:
    """A file that takes the name once it is whole."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        partial.unlink(missing_ok=True)


def _npy(given: VectorMap, source: Path, target: Path, array: str | None) -> tuple[str, int]:
    """Maps blocks of rows: a store may be larger than memory."""
    with refuse(f"{source}: not a complete .npy file of numbers", source.name, "write it again"):
        rows = open_npy(source)
    given.check(rows)
    _check_some(source, len(rows))
    with _rename_when_whole(target) as partial:
        out = create_npy(partial, np.dtype(np.float32), (len(rows), len(given.bias)))
        for start in range(0, len(rows), BLOCK):
            out[start : start + BLOCK] = given(rows[start : start + BLOCK], start)
        out.flush()
    return "rows", len(rows)


def _safetensors(given: VectorMap, source: Path, target: Path, array: str | None) -> tuple[str, int]:
    with refuse(f"{source}: not a complete .safetensors file", source.name, "write it again"):
        tensors = safetensors.numpy.load_file(source)
        with safetensors.safe_open(source, framework="numpy") as archive:
            about = archive.metadata()
    name = _choose_array(given, {name: tensor.shape for name, tensor in tensors.items()}, array, source)
    _check_some(source, len(tensors[name]))
    tensors[name] = given(tensors[name])
    write(target, safetensors.numpy.save(tensors, about))
    return name, len(tensors[name])


def _parquet(given: VectorMap, source: Path, target: Path, array: str | None) -> tuple[str, int]:
    """Maps batches of rows; columns that are not mapped are copied."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with refuse(f"{source}: not a parquet file", source.name, "check the file"):
        table = pq.ParquetFile(source)
    _check_some(source, table.metadata.num_rows)
    first = next(table.iter_batches(batch_size=1))
    shapes = {
        field.name: (table.metadata.num_rows, len(first.column(field.name)[0]))
        for field in table.schema_arrow
        if _is_list(field.type) and first.column(field.name)[0].is_valid
    }
    name = _choose_array(given, shapes, array, source)
    place = table.schema_arrow.get_field_index(name)
    schema = table.schema_arrow.set(place, pa.field(name, pa.list_(pa.float32())))

    def map_batch(batch: Any, first_row: int) -> Any:
        column = batch.column(place)
        flat = np.asarray(column.flatten())
        if column.null_count or len(flat) != len(column) * len(given.weight):
            raise BadInput(f"{source}: vectors of '{name}' must have {len(given.weight)} numbers each; drop other rows")
        rows = given(flat.astype(np.float32).reshape(len(column), -1), first_row)
        values = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]).cast(schema.field(place).type)
        return pa.record_batch([values if i == place else batch.column(i) for i in range(len(schema))], schema=schema)

    done = 0
    with _rename_when_whole(target) as partial, pq.ParquetWriter(partial, schema) as writer:
        for batch in table.iter_batches(batch_size=BLOCK):
            writer.write_batch(map_batch(batch, done))
            done += len(batch)
    return name, table.metadata.num_rows


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


FORMATS: Mapping[str, Callable[[VectorMap, Path, Path, str | None], tuple[str, int]]] = {
    ".npy": _npy,
    ".parquet": _parquet,
    ".safetensors": _safetensors,
}
