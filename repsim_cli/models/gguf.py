"""Models in .gguf files, the format of llama.cpp, which transformers reads with the package gguf.

Quantized weights are dequantized to float32. Config and tokenizer come from the file too.
"""

import functools
import importlib.util
import logging
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import readable, refusing

SUFFIX = ".gguf"
# of a vocabulary, what transformers reads by itself and not with this reader
UNREAD = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges")
Content = TypeVar("Content")
log = logging.getLogger("repsim")


def is_gguf(where: str | Path) -> bool:
    return Path(where).suffix == SUFFIX


_known: dict[tuple[Any, str], tuple[tuple[int, ...], Any]] = {}  # by function and file: the file's state, its content


def once(read: Callable[[str], Content], where: str) -> Content:
    """What `read` gives of a file, which is read once per process while it stays the same: a vocabulary of 260,000
    tokens takes seconds. The content is shared, so do not change it."""
    status, key = Path(where).stat(), (read, str(Path(where).resolve()))
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key not in _known or _known[key][0] != state:
        _known[key] = state, read(where)
    return _known[key][1]


def checked(file: Path) -> Path:
    """The file. Raises BadInput where it is incomplete or one of several parts."""
    if importlib.util.find_spec("gguf") is None:
        raise BadInput("path: .gguf files need the package gguf, got none; pip install -e '.[gguf]'")
    once(_check, str(readable(file)))
    return file


def _check(file: str) -> None:
    reader = _reader()
    with refusing("path: not a complete .gguf file", file, "copy it again"):
        read = reader(file)
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
def by_itself(file: str | Path) -> Iterator[dict[str, Any]]:
    """The arguments of from_pretrained for a file, as if nothing lay beside it: transformers would mix in the tokenizer
    of the folder."""
    _reader()
    with tempfile.TemporaryDirectory(prefix="repsim-") as folder:
        link = Path(folder) / "model.gguf"
        link.symlink_to(Path(file).absolute())
        yield {"pretrained_model_name_or_path": folder, "gguf_file": link.name, "local_files_only": True}


@functools.cache
def _reader() -> Any:
    """The reader of the package gguf, replaced by one that gives the same several times faster.

    The package walks through the tokens of a vocabulary as slices of a memory map, transformers reads all fields for a
    config and again for weights, byte by byte, and asks for the names of all tensors once per module.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils

    kinds: Any = gguf.GGUFValueType

    class Reader(gguf.GGUFReader):
        def __init__(self, *args: Any, **settings: Any):
            super().__init__(*args, **settings)
            for name in UNREAD:
                self.fields.pop(name, None)

        def _get_field_parts(self, orig_offs: int, raw_type: Any) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != kinds.ARRAY or self.byte_order == "S":
                return super()._get_field_parts(orig_offs, raw_type)
            content: Any = self.data.view(np.ndarray)
            scalars: Any = self.gguf_scalar_to_np
            kind, length = struct.unpack_from("=IQ", content, orig_offs)
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            offset = orig_offs + 12
            if kind in scalars:
                size = np.dtype(scalars[kind]).itemsize * length
                values = content[offset : offset + size].view(scalars[kind])
                if len(values) < length:
                    raise ValueError("it ends within an array")
                items, offset = list(values[:, None]), offset + size
            elif kind == kinds.STRING:
                items = []
                for _ in range(length):
                    (size,) = struct.unpack_from("=Q", content, offset)
                    items.append(content[offset + 8 : offset + 8 + size])
                    offset += 8 + size
            else:
                return super()._get_field_parts(orig_offs, raw_type)
            return offset - orig_offs, [*head, *items], list(range(2, 2 + length)), [kinds.ARRAY, kinds(kind)]

    value_of = modeling_gguf_pytorch_utils._gguf_parse_value  # pyright: ignore[reportPrivateImportUsage]

    def value(content: Any, types: Any) -> Any:
        is_text = isinstance(types, list) and types[-1] == kinds.STRING
        return bytes(content).decode() if is_text else value_of(content, types)

    modeling_gguf_pytorch_utils._gguf_parse_value = value  # pyright: ignore[reportPrivateImportUsage]
    gguf.GGUFReader = Reader
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    # its progress bar cannot be silenced otherwise
    modeling_gguf_pytorch_utils.tqdm = lambda items, **settings: items  # pyright: ignore[reportPrivateImportUsage]
    return Reader
