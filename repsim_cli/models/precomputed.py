"""Activations written by another program: .npz, .safetensors or HDF5 with a named (n, d) array per layer; or HDF5 with
an array per sentence, the format of contextual-corr-analysis (Wu et al. 2020) and of the ELMo tools."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repsim_cli.data.files import existing, npz_arrays
from repsim_cli.errors import BadInput, RunFailed
from repsim_cli.files import refusing
from repsim_cli.models.source import Precomputed, PrecomputedWords, Sentence
from repsim_cli.models.transformers import hash_files
from repsim_cli.registry import did_you_mean, models

Shapes = dict[str, tuple[tuple[int, ...], str]]
# as numpy and safetensors name them
FLOATS = ("float16", "float32", "float64", "float128", "longdouble", "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2")


@models.register("precomputed")
def precomputed(*, path: str, layers: list[str] | None = None) -> Precomputed:
    """Activations of your own: float arrays (n, d), one per layer, or per sentence one array of all layers.

    Rows are paired by number with those of the other models of the run. In a file with an array per sentence a row is a
    word, paired by sentence and word, and the layers are embed, layer@0, layer@1, ...

    path: an .npz, .safetensors, .hdf5 or .h5 file.
    layers: the names of the arrays, in the order of the layers; null: all, in natural order (h9 before h10).
    Example: repsim run model=[] +model.mine='{kind: precomputed, path: FILE}' extract.estimate=full
    """
    openers = {".npz": _open_npz, ".safetensors": _open_safetensors, ".hdf5": _open_hdf5, ".h5": _open_hdf5}
    file = existing(path, list(openers))
    broken = (f"path: not a complete {file.suffix} file of numbers", path, "write it again")
    with refusing(*broken):
        if file.suffix in (".hdf5", ".h5") and (archive := _sentence_file(file)) is not None:
            return _of_sentences(archive, layers)
        shapes, read = openers[file.suffix](file)
    names = layers if layers is not None else sorted(shapes, key=natural)
    for name in names:
        if name not in shapes:
            raise BadInput(f"layers: no such array, got '{name}'; {did_you_mean(name, shapes)}")
        shape, kind = shapes[name]
        if len(shape) != 2 or 0 in shape or kind not in FLOATS:
            raise BadInput(f"path: array '{name}' must be (n, d) of floats, got {kind} {shape}; write it in this form")
    if not names:
        raise BadInput(f"path: no arrays at its top level, got '{path}'; write one (n, d) array per layer")
    rows = {shapes[name][0][0] for name in names}
    if len(rows) != 1:
        raise BadInput(f"path: arrays have different numbers of rows, got {sorted(rows)}; write paired rows")
    with refusing(*broken):  # external storage that is missing, or a filter that is not installed
        for name in names:
            read(name, slice(1))
    return Precomputed(
        names=names,
        rows=rows.pop(),
        widths=[shapes[name][0][1] for name in names],
        read=_checked(file, read),
        identity=lambda: {"source": str(file), "weights_hash": hash_files([file])},
    )


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


def _open_npz(file: Path) -> tuple[Shapes, Reader]:
    arrays = npz_arrays(file)
    shapes = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    return shapes, lambda name, rows: _floats(arrays[name][rows])


def _open_safetensors(file: Path) -> tuple[Shapes, Reader]:
    import safetensors

    archive = safetensors.safe_open(file, framework="pt")
    slices = {name: archive.get_slice(name) for name in archive.keys()}  # noqa: SIM118
    shapes = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    return shapes, lambda name, rows: slices[name][rows].float()


def _open_hdf5(file: Path) -> tuple[Shapes, Reader]:
    import h5py

    archive = h5py.File(file, "r")
    sets = {name: node for name, node in archive.items() if isinstance(node, h5py.Dataset)}
    shapes = {name: (node.shape or (), node.dtype.name) for name, node in sets.items()}
    return shapes, lambda name, rows: _floats(sets[name][rows])


INDEX = "sentence_to_index"


class SentenceFile(NamedTuple):
    """A file with an array (layers, words, width) per sentence, or (words, width) if there is a single layer.

    keys: the key of the array for the text of a sentence (its words joined by spaces).
    words: the number of words of every array.
    """

    file: Path
    arrays: Mapping[str, Any]
    keys: dict[str, str]
    words: dict[str, int]
    layers: int
    width: int


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


def _of_sentences(archive: SentenceFile, layers: list[str] | None) -> PrecomputedWords:
    """All sentences of the file, in the order of their keys."""
    known = ["embed", *(f"layer@{i}" for i in range(archive.layers - 1))]
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
        identity=lambda: {"source": str(archive.file), "weights_hash": hash_files([archive.file])},
        sentences=sentences,
        ordered=ordered,
    )
