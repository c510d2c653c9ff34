"""Activations written by another program: .npz, .safetensors or HDF5 with a named (n, d) array per layer; tables with a
column of vectors per layer; or an array per sentence: HDF5 in the format of contextual-corr-analysis (Wu et al. 2020)
and of the ELMo tools, and the files of vLLM."""

import json
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.files import readable, refusing
from repsim_cli.base.registry import did_you_mean, models
from repsim_cli.base.settings import LARGEST, NotNegative
from repsim_cli.data.files import existing, local, npz_arrays, saved
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.source import Precomputed, PrecomputedIds, PrecomputedWords, Sentence

AT_ONCE = 2**30  # bytes of a file that is read through before the run; of larger ones, values are checked as they pass
Shapes = dict[str, tuple[tuple[int, ...], str]]
# as numpy and safetensors name them
FLOATS = ("float16", "float32", "float64", "float128", "longdouble", "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2")


@models.register("precomputed")
def precomputed(
    *, path: str, layers: list[str] | None = None, ids: str | None = None, layer_ids: list[NotNegative] | None = None
) -> Precomputed:
    """Activations of your own: float arrays (n, d), one per layer, or per sentence one array of all layers.

    Rows with ids are paired by id with those of the other models of the run, other rows by number. In a file with an
    array per sentence a row is a word, paired by sentence and word, and the layers are embed, layer@0, layer@1, ...
    A folder of files of vLLM is such: a prompt is a sentence, a token a word.

    path: an .npy (one layer), .npz, .safetensors, .hdf5, .h5 or .parquet file, a folder written by
        `Dataset.save_to_disk`, or a folder of the .safetensors files that vLLM's extract_hidden_states writes.
    layers: the names of the arrays or columns, in the order of the layers; null: all, in natural order (h9 before h10).
    ids: the array or column of the ids, text or whole numbers; null: `ids` or `id`, where there is one.
    layer_ids: of files of vLLM, the eagle_aux_hidden_state_layer_ids that it was started with: 0 is the embeddings, 1
        the output of the first block, here `resid_post@0`.
    Example: repsim run model=[] +model.mine='{kind: precomputed, path: FILE}' extract.estimate=full
    """
    place = local(path)
    prompts = _prompts(place)
    if bool(prompts) != (layer_ids is not None):
        raise BadInput(
            "layer_ids: files of vLLM do not say which layers they hold, got none; give the "
            "eagle_aux_hidden_state_layer_ids that it was started with, of which 0 is the embeddings"
            if prompts
            else f"layer_ids: of files of vLLM with `hidden_states` and `token_ids`, got '{path}'; drop it"
        )
    if layer_ids is not None:
        known = ["embed" if number == 0 else f"resid_post@{number - 1}" for number in layer_ids]
        return _of_sentences(_prompt_file(place, prompts, known), layers, known)
    openers = {
        ".npy": _open_npy,
        ".npz": _open_npz,
        ".safetensors": _open_safetensors,
        ".hdf5": _open_hdf5,
        ".h5": _open_hdf5,
        ".parquet": _open_table,
    }
    file = place if place.is_dir() else existing(path, list(openers))
    what = f"complete {file.suffix} file of numbers" if file.is_file() else "folder of a data set, nor of files of vLLM"
    broken = (f"path: not a {what}", path, "write it again")
    with refusing(*broken):
        if file.suffix in (".hdf5", ".h5") and (archive := _sentence_file(file)) is not None:
            return _of_sentences(archive, layers)
        shapes, read, integers = openers[file.suffix if file.is_file() else ".parquet"](file)
    key = ids or next((name for name in IDS if name in integers), None)
    if key is not None and key not in integers:
        raise BadInput(f"ids: no array of text or whole numbers, got '{key}'; {did_you_mean(key, integers)}")
    names = layers if layers is not None else sorted((name for name in shapes if name != key), key=natural)
    for name in names:
        if name not in shapes:
            raise BadInput(f"layers: no such array, got '{name}'; {did_you_mean(name, shapes)}")
        shape, kind = shapes[name]
        if name in IDS and len(shape) < 2:
            raise BadInput(f"ids: '{name}' must be text or whole numbers, got {kind} {shape}; write it as such")
        if len(shape) != 2 or 0 in shape or kind not in FLOATS:
            raise BadInput(
                f"path: array '{name}' must be (n, d) of floats, got {kind} {shape}; write it in this form, or name "
                "the others in `layers`"
            )
    if not names:
        raise BadInput(f"path: no arrays at its top level, got '{path}'; write one (n, d) array per layer")
    rows = {shapes[name][0][0] for name in names}
    if len(rows) != 1:
        raise BadInput(f"path: arrays have different numbers of rows, got {sorted(rows)}; write paired rows")
    with refusing(*broken):  # external storage that is missing, or a filter that is not installed
        for name in names:
            read(name, slice(1))
    files = [file] if file.is_file() else sorted(place.rglob("*.arrow"))
    stored = Precomputed(
        names=names,
        rows=rows.pop(),
        widths=[shapes[name][0][1] for name in names],
        read=_checked(file, read),
        identity=lambda: {"source": str(file), "weights_hash": hash_files(files)},
    )
    if 4 * stored.rows * sum(stored.widths) <= AT_ONCE:
        for name in names:
            problem, got = f"path: rows of '{name}' in '{path}' cannot be read", f"0 to {stored.rows - 1}"
            with refusing(problem, got, "write the file again"):
                x = read(name, slice(0, stored.rows))
            _check_finite(place, name, x)
    return stored if key is None else _with_ids(stored, key, integers[key]())


def _check_finite(file: Path, name: str, x: Tensor) -> None:
    """Raises BadInput for a value that is no number, or too large to be squared and summed."""
    low, high = x.aminmax()  # NaN if there is one
    if not (low >= -LARGEST and high <= LARGEST):
        row, column = (~(x.abs() <= LARGEST)).nonzero()[0].tolist()
        raise BadInput(
            f"path: a value is not finite, or too large to be squared, got {float(x[row, column]):g} in row {row} of "
            f"'{name}' in '{file}' (read as float32); write numbers there, or drop the row"
        )


def _with_ids(stored: Precomputed, key: str, ids: Sequence[Any]) -> PrecomputedIds:
    """Raises BadInput where the ids are not one for each row, each once."""
    if len(ids) != stored.rows:
        raise BadInput(f"ids: '{key}' has another number of rows, got {len(ids)} for {stored.rows}; write one a row")
    named = ["" if each is None else str(each) for each in ids]
    if "" in named:
        raise BadInput(f"ids: '{key}' must have an id for each row, got none for row {named.index('')}; fill it in")
    twice = next((each for each, count in Counter(named).items() if count > 1), None)
    if twice is not None:
        first, second = [number for number, each in enumerate(named) if each == twice][:2]
        raise BadInput(f"ids: '{key}' must differ between rows, got '{twice}' for rows {first} and {second}; drop one")
    return PrecomputedIds(**{f.name: getattr(stored, f.name) for f in fields(stored)}, ids=named)


def natural(name: str) -> list[Any]:
    """Sort key: numbers by value, so that layer 10 follows layer 9.

    >>> sorted(["h10", "h9"], key=natural)
    ['h9', 'h10']
    """
    parts = enumerate(re.split(r"(\d+)", name))  # every second part is digits, of any length
    return [(0, len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (1, 0, part) for index, part in parts]


Reader = Callable[[str, slice], Tensor]


def _checked(file: Path, read: Reader) -> Reader:
    """Raises RunFailed where rows cannot be read, as from a damaged chunk."""

    def rows_of(name: str, rows: slice) -> Tensor:
        problem, got = f"{file}: rows of '{name}' cannot be read", f"{rows.start} to {rows.stop - 1}"
        with refusing(problem, got, "write the file again", RunFailed):
            return read(name, rows)

    return rows_of


def _floats(array: np.ndarray) -> Tensor:
    """float32 from any float in any byte order; values beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(array.astype(np.float32, copy=False))


# what may be ids: text and whole numbers
Ids = Mapping[str, Callable[[], Sequence[Any]]]
IDS = ("ids", "id")


def _open_npy(file: Path) -> tuple[Shapes, Reader, Ids]:
    """One layer, which has no name in the file."""
    array = np.load(file, mmap_mode="r", allow_pickle=False)
    return {"rows": (array.shape, array.dtype.name)}, lambda _, rows: _floats(np.array(array[rows])), {}


def _open_npz(file: Path) -> tuple[Shapes, Reader, Ids]:
    arrays = npz_arrays(file)
    shapes = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    arrays = {
        name: np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array for name, array in arrays.items()
    }
    ids = {name: array.tolist for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "iuU"}
    return shapes, lambda name, rows: _floats(arrays[name][rows]), ids


def _open_safetensors(file: Path) -> tuple[Shapes, Reader, Ids]:
    """Rows are read and not mapped, without reading ahead: for mapped files the system reads up to megabytes ahead in
    every layer, more than a small memory holds until it is used."""
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
    return shapes, lambda name, rows: _floats(sets[name][rows]), ids


def _open_table(file: Path) -> tuple[Shapes, Reader, Ids]:
    """A column of lists of floats per layer, of a .parquet file or a folder of `datasets`."""
    import datasets
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    if file.is_dir():
        whole = saved(file)
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
        elif name in IDS:
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
        return _floats(np.array(some.flatten()).reshape(len(some), -1))

    return shapes, read, ids


INDEX = "sentence_to_index"


class SentenceFile(NamedTuple):
    """A file with an array (layers, words, width) per sentence, or (words, width) if there is a single layer.

    keys: the key of the array for the text of a sentence (its words joined by spaces).
    words: the number of words of every array.
    parts: the files, where `file` is a folder.
    """

    file: Path
    arrays: Mapping[str, Any]
    keys: dict[str, str]
    words: dict[str, int]
    layers: int
    width: int
    parts: Sequence[Path] = ()


class Prompt(NamedTuple):
    """What vLLM stores of a prompt."""

    file: Path

    def layer(self, number: int) -> np.ndarray:
        """The array (tokens, width) of a layer."""
        import safetensors

        with safetensors.safe_open(self.file, framework="pt") as archive:
            return archive.get_slice(STATES)[:, number : number + 1][:, 0].float().numpy()


STATES, TOKENS = "hidden_states", "token_ids"


def _prompts(place: Path) -> list[Path]:
    """The files of vLLM there, one per prompt; none where the first file is another."""
    import safetensors

    files = sorted(place.glob("*.safetensors"), key=lambda file: natural(file.name)) if place.is_dir() else [place]
    if not files or files[0].suffix != ".safetensors" or not files[0].is_file():
        return []
    with refusing("path: not a complete .safetensors file of numbers", files[0], "write it again"):
        names = set(safetensors.safe_open(readable(files[0]), framework="pt").keys())
    return files if names == {STATES, TOKENS} else []


def _prompt_file(place: Path, files: Sequence[Path], known: Sequence[str]) -> SentenceFile:
    """All prompts as sentences, whose words are their token ids. Raises BadInput for files of other layers."""
    import safetensors

    if len(set(known)) < len(known):
        raise BadInput(f"layer_ids: a layer is named twice, got {', '.join(known)}; give the ids that vLLM was given")
    texts: dict[str, str] = {}
    words: dict[str, int] = {}
    width = None
    for file in files:
        with (
            refusing("path: not a file of hidden states of vLLM", file, "write it again"),
            safetensors.safe_open(file, framework="pt") as archive,
        ):
            tokens, shape = archive.get_tensor(TOKENS).tolist(), tuple(archive.get_slice(STATES).get_shape())
        if len(shape) != 3 or shape[0] != len(tokens) or shape[2] != (width or shape[2]):
            raise BadInput(
                f"path: hidden states must be ({len(tokens)} tokens, layers, {width or 'd'}), got {shape} in '{file}'; "
                "write it again"
            )
        if shape[1] != len(known):
            raise BadInput(
                f"layer_ids: one id for each layer of the files, got {len(known)} for {shape[1]} in '{file}'; give the "
                "eagle_aux_hidden_state_layer_ids that vLLM was started with, of which 0 is the embeddings"
            )
        width = shape[2]
        texts[" ".join(map(str, tokens))], words[file.name] = file.name, len(tokens)
    assert width is not None
    arrays = {file.name: Prompt(file) for file in files}
    return SentenceFile(place, arrays, texts, words, len(known), width, files)


def write_sentences(path: Path, sentences: Iterable[tuple[Sequence[str], np.ndarray]]) -> None:
    """Writes an HDF5 file with an array per sentence, from (words, array (layers, words, d)), in the given order.

    Equal sentences share the index entry of the last of them, as in the original format.
    """
    import h5py

    index = {}
    with h5py.File(path, "w") as archive:
        for number, (words, array) in enumerate(sentences):
            if array.ndim != 3 or array.shape[1] != len(words):
                raise BadInput(
                    f"sentence {number}: its array must be (layers, {len(words)}, d), got {array.shape}; one row a word"
                )
            archive[str(number)] = np.asarray(array, np.float32)
            index[" ".join(words)] = str(number)
        archive[INDEX] = np.array([json.dumps(index).encode()])


def _sentence_file(file: Path) -> SentenceFile | None:
    """The file; None where it has another format."""
    import h5py

    archive: Any = h5py.File(file, "r")
    if INDEX not in archive:
        return None
    keys = json.loads(np.asarray(archive[INDEX]).ravel()[0])
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise BadInput(f"path: {INDEX} is not a mapping of sentences to arrays, got {str(keys)[:60]}; write it again")
    arrays = {key: archive[key] for key in sorted(archive, key=natural) if key != INDEX}
    shapes = {key: (1, *a.shape) if len(a.shape) == 2 else a.shape for key, a in arrays.items()}
    kinds = {key: a.dtype.name for key, a in arrays.items()}
    bad = next((k for k, shape in shapes.items() if len(shape) != 3 or 0 in shape or kinds[k] not in FLOATS), None)
    if bad is not None or not shapes:
        got = f"{kinds[bad]} {shapes[bad]} at '{bad}'" if bad else "no array"
        raise BadInput(f"path: sentences must be arrays (layers, words, d), got {got} in '{file}'; write it again")
    first = next(iter(shapes.values()))
    odd = next((key for key, shape in shapes.items() if (shape[0], shape[2]) != (first[0], first[2])), None)
    lost = next((key for key in keys.values() if key not in arrays), None)
    if odd is not None or lost is not None:
        got = f"{shapes[odd]} at '{odd}' after {first}" if odd else f"no array '{lost}'"
        raise BadInput(
            f"path: sentences differ in layers or width, or are absent, got {got} in '{file}'; write it again"
        )
    return SentenceFile(file, arrays, keys, {key: shape[1] for key, shape in shapes.items()}, first[0], first[2])


def _of_sentences(archive: SentenceFile, layers: list[str] | None, known: list[str] | None = None) -> PrecomputedWords:
    """All sentences of the file, in the order of their keys. known: the names of its layers."""
    known = known or ["embed", *(f"layer@{i}" for i in range(archive.layers - 1))]
    for name in layers or ():
        if name not in known:
            raise BadInput(f"layers: no such layer, got '{name}'; {did_you_mean(name, known)}")
    texts = {key: text for text, key in archive.keys.items()}
    whole = [Sentence(texts.get(key, ""), words) for key, words in archive.words.items()]
    names = layers or known
    return _rows_of(archive, names, [known.index(name) for name in names], list(archive.words), whole)


def _rows_of(
    archive: SentenceFile, names: list[str], numbers: list[int], keys: list[str], sentences: Sequence[Sentence]
) -> PrecomputedWords:
    """The words of these sentences as rows."""
    ends = np.cumsum([archive.words[key] for key in keys])
    place = dict(zip(names, numbers, strict=True))

    def read(name: str, rows: slice) -> Tensor:
        first, last = np.searchsorted(ends, [rows.start, min(rows.stop, ends[-1]) - 1], side="right")
        parts = []
        for number in range(first, last + 1):
            array = archive.arrays[keys[number]]
            if isinstance(array, Prompt):
                parts.append(array.layer(place[name]))
            else:
                parts.append(array[place[name]] if array.ndim == 3 else array[()])
        start = ends[first] - len(parts[0])
        return _floats(np.concatenate(parts)[rows.start - start : rows.stop - start])

    def ordered(wanted: Sequence[Sentence]) -> PrecomputedWords:
        chosen = []
        for number, sentence in enumerate(wanted):
            key = archive.keys.get(sentence.text)
            if key is None:
                raise BadInput(
                    f"path: sentence {number} is not in '{archive.file}', got {sentence.text!r:.60}; write it there"
                )
            if archive.words[key] != sentence.words:
                raise BadInput(
                    f"path: sentence {number} has different words in '{archive.file}', got {archive.words[key]} for "
                    f"{sentence.words} ({sentence.text!r:.60}); write it again from the same words"
                )
            chosen.append(key)
        return _rows_of(archive, names, numbers, chosen, wanted)

    return PrecomputedWords(
        names=names,
        rows=int(ends[-1]),
        widths=[archive.width] * len(names),
        read=_checked(archive.file, read),
        identity=lambda: {
            "source": str(archive.file),
            "weights_hash": hash_files(list(archive.parts) or [archive.file]),
        },
        sentences=sentences,
        ordered=ordered,
    )
