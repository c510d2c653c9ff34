"""Models in .gguf files, the format of llama.cpp, which transformers reads with the package gguf.

Quantized weights are dequantized to float32. Config and tokenizer come from the file too.
"""

import copy
import functools
import importlib.util
import logging
import math
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, refuse

SUFFIX = ".gguf"
# of a vocabulary, what transformers reads by itself and not with this reader
UNREAD = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges")
ROWS = 128  # of a quantized tensor that are dequantized at a time
Content = TypeVar("Content")
log = logging.getLogger("repsim")


def is_gguf(where: str | Path) -> bool:
    return Path(where).suffix.lower() == SUFFIX


_known: dict[tuple[Any, str], tuple[tuple[int, ...], Any]] = {}  # by function and file: the file's state, its content


def read_once(read: Callable[[str], Content], where: str) -> Content:
    """Reads a file by `read`, once per process while it stays the same: a vocabulary of 260,000 tokens takes seconds.
    The content is shared, so do not change it."""
    status, key = Path(where).stat(), (read, str(Path(where).resolve()))
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key not in _known or _known[key][0] != state:
        _known[key] = state, read(where)
    return _known[key][1]


def forget(read: Callable[[str], Any], where: str) -> None:
    """Lets go of what `read_once` keeps of a file."""
    _known.pop((read, str(Path(where).resolve())), None)


def derive_merges(
    vocab: Mapping[str, int],
    vocab_scores: Mapping[str, float] | None = None,
    skip_tokens: Iterable[str] | None = None,
) -> list[tuple[str, str]]:
    """Derives the merges of a vocabulary as transformers does (`generate_merges`): all ways to put a token together
    from two, the best score first, else the first token; then by the lengths of both.

    >>> derive_merges({"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}, {"ab": -1.0, "aba": -2.0})
    [('a', 'b'), ('ab', 'a'), ('a', 'ba')]
    """
    skipped = set(skip_tokens or ())
    known = {token for token in vocab if token not in skipped}
    found, lengths, scores = list[tuple[str, str]](), list[int](), list[float]()
    for token, score in (vocab if vocab_scores is None else vocab_scores).items():
        for cut in range(1, len(token)) if token not in skipped else ():
            if (left := token[:cut]) in known and (right := token[cut:]) in known:
                found.append((left, right))
                lengths.append(cut)
                scores.append(score)
    rests = [len(right) for _, right in found]
    sign = 1 if vocab_scores is None else -1
    return [found[place] for place in np.lexsort([sign * np.array(key) for key in (rests, lengths, scores)])]


def check(file: Path) -> Path:
    """The file. Raises BadInput where it is incomplete or one of several parts."""
    if importlib.util.find_spec("gguf") is None:
        raise BadInput("path: .gguf files need the package gguf, which is not installed; pip install -e '.[gguf]'")
    read_once(_check, str(check_readable(file)))
    return file


def _check(file: str) -> None:
    reader = _make_fast_reader()
    with refuse("path: not a complete .gguf file", file, "copy it again"):
        read = read_once(reader, file)
    parts = read.fields.get("split.count")
    count = 1 if parts is None else parts.contents()
    if not isinstance(count, int) or not 0 <= count <= 1:
        raise BadInput(f"path: one of {count} parts, got '{file}'; join them with llama-gguf-split --merge")
    scaled = sorted(tensor.name for tensor in read.tensors if tensor.name.startswith("rope_f"))
    if scaled:
        log.warning(
            "%s: transformers does not read how its rotary frequencies are scaled, got %s; activations differ from "
            "those of the model in the transformers format",
            file,
            scaled[0],
        )


@contextmanager
def isolate_file(file: str | Path) -> Iterator[dict[str, Any]]:
    """The arguments of from_pretrained for a file, as if nothing lay beside it: transformers would mix in the tokenizer
    of the folder."""
    _make_fast_reader()
    with tempfile.TemporaryDirectory(prefix="repsim-") as folder:
        link = Path(folder) / "model.gguf"
        link.symlink_to(Path(file).absolute())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": link.name, "local_files_only": True}


@functools.cache
def _make_fast_reader() -> Any:
    """The reader of the package gguf, replaced by one that gives the same several times faster, as are other parts of
    it and of transformers.

    The package walks through the tokens of a vocabulary as slices of a memory map, and dequantizes 16 rows at a time;
    transformers reads all fields for a config, for a tokenizer and again for weights, byte by byte, asks for the names
    of all tensors once per module, and derives merges from a vocabulary in seconds.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as checkpoints
    from transformers.integrations.gguf import gguf_tokenizer_mapping, reader

    class Reader(gguf.GGUFReader):
        def __init__(self, *args: Any, **settings: Any):
            super().__init__(*args, **settings)
            for name in UNREAD:
                self.fields.pop(name, None)

        def _get_field_parts(self, orig_offs: int, raw_type: Any) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order == "S":
                return super()._get_field_parts(orig_offs, raw_type)
            found = _read_array_parts(self, orig_offs)
            return super()._get_field_parts(orig_offs, raw_type) if found is None else found

    given: Any = checkpoints
    load, value_of = given.load_gguf_checkpoint, given._gguf_parse_value

    def load_config_only(file: str) -> dict[str, Any]:
        return {"config": load(file)["config"]}  # all that is asked for

    def load_checkpoint(gguf_checkpoint_path: str, return_tensors: bool = False, **settings: Any) -> dict[str, Any]:
        if not return_tensors:
            return copy.deepcopy(read_once(load_config_only, gguf_checkpoint_path))
        try:
            return load(gguf_checkpoint_path, return_tensors=True, **settings)
        finally:
            forget(Reader, gguf_checkpoint_path)  # it holds the weights as they are mapped into memory

    def value(content: Any, types: Any) -> Any:
        is_text = isinstance(types, list) and types[-1] == gguf.GGUFValueType.STRING
        return bytes(content).decode() if is_text else value_of(content, types)

    given.load_gguf_checkpoint, given._gguf_parse_value = load_checkpoint, value
    given.tqdm = lambda items, **settings: items  # its progress bar cannot be silenced otherwise
    files: Any = reader
    files._mapped = lambda file: np.memmap(file, mode="r", dtype=np.uint8).view(np.ndarray)
    vocabularies: Any = gguf_tokenizer_mapping
    vocabularies.generate_merges = derive_merges
    package: Any = gguf
    package.GGUFReader = lambda file: read_once(Reader, str(file))
    package.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    package.quants._apply_over_grouped_rows = _apply_by_rows
    return Reader


def _read_array_parts(reader: Any, start: int) -> tuple[int, list[Any], list[int], list[Any]] | None:
    """Reads an array of numbers or texts, as `_get_field_parts` of the package gives it; None for others."""
    from gguf import GGUFValueType as Kind

    content: Any = reader.data.view(np.ndarray)
    kind, length = struct.unpack_from("=IQ", content, start)
    head, offset = [reader._get(start, np.uint32), reader._get(start + 4, np.uint64)], start + 12
    if kind in reader.gguf_scalar_to_np:
        scalar = np.dtype(reader.gguf_scalar_to_np[kind])
        values = content[offset : offset + scalar.itemsize * length].view(scalar)
        if len(values) < length:
            raise ValueError("it ends within an array")
        items, offset = list(values[:, None]), offset + scalar.itemsize * length
    elif kind == Kind.STRING:
        items = []
        for _ in range(length):
            (size,) = struct.unpack_from("=Q", content, offset)
            items.append(content[offset + 8 : offset + 8 + size])
            offset += 8 + size
    else:
        return None
    return offset - start, [*head, *items], list(range(2, 2 + length)), [Kind.ARRAY, Kind(kind)]


def _apply_by_rows(
    func: Callable[[np.ndarray], np.ndarray], arr: np.ndarray, otype: Any, oshape: Sequence[int]
) -> np.ndarray:
    """Applies what works row by row to some rows at a time. Parameters are named as in the package."""
    rows = arr.reshape(-1, arr.shape[-1]).view(np.ndarray)
    made = np.empty((len(rows), math.prod(oshape) // max(len(rows), 1)), otype)
    for start in range(0, len(rows), ROWS):
        part = made[start : start + ROWS]
        part[:] = func(rows[start : start + ROWS]).reshape(part.shape)
    return made.reshape(oshape)
