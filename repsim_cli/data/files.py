"""Local files of unknown origin: the one place where each kind is opened and its lines and records are read.

Everything here raises BadInput for a file whose content does not match its name.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from repsim_cli.base.documents import read
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, expand_path, find_inside, refuse
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Hardware

LONGEST = 1 << 27  # characters of a line
MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# those that spreadsheets write; the codes of Western and Central Europe cannot be told apart, the Western one is meant
ENCODINGS = ("cp1252", "cp932", "gb18030", "cp949", "big5", "cp1251")
SNIFFED = 1 << 20  # bytes that tell the encoding


def find_file(path: str, suffixes: Sequence[str], key: str = "path") -> Path:
    """The file at this path, that of a key. Raises BadInput where there is none, or where it has none of the
    suffixes."""
    file = expand_path(path)
    if not file.exists():
        near = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        hint = f"; {did_you_mean(file.name, near)}" if 0 < len(near) <= 20 else "; check the path"
        raise BadInput(f"{key}: no such file, got '{path}'{hint}")
    if not file.is_file():
        raise BadInput(f"{key}: not a file, got '{path}'; name one file")
    if not file.name.endswith(tuple(suffixes)):
        raise BadInput(f"{key}: unknown kind of file, got '{path}'; use {', '.join(suffixes)}")
    return check_readable(file)


@contextmanager
def lines_of(file: Path, longest: int = LONGEST) -> Iterator[Iterator[str]]:
    """The lines of a UTF-8 file, compressed (.zst) or not, without a byte-order mark. longest: characters of a line."""
    import zstandard

    def check(stream: io.TextIOBase) -> Iterator[str]:
        number = 0
        try:
            while line := stream.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise BadInput(f"{file}, line {number}: too long, got more than {longest} characters; split it")
                yield line
        except UnicodeDecodeError as error:
            got = error.object[error.start]
            raise BadInput(f"{file}: not UTF-8, got byte {got:#04x}; iconv -f ENCODING -t UTF-8 converts it") from None
        except (zstandard.ZstdError, EOFError) as error:
            raise BadInput(f"{file}: not a complete .zst file, got '{error}'; download it again") from None

    with file.open("rb") as raw:
        stream = io.BufferedReader(_Unpacked(raw)) if file.name.endswith(".zst") else raw
        with io.TextIOWrapper(stream, encoding="utf-8-sig") as text:
            yield check(text)


class _Unpacked(io.RawIOBase):
    """The contents of a .zst file with any number of frames. Raises EOFError where the last frame is incomplete, which
    the reader of zstandard takes for the end."""

    def __init__(self, raw: BinaryIO):
        self.raw, self.waiting = raw, memoryview(b"")
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        while not self.waiting:
            unread = self.frame.unused_data if self.frame is not None and self.frame.eof else b""
            # small reads: a byte may expand to 32 thousand
            packed = unread or self.raw.read(1 << 13)
            if not packed:
                if self.frame is not None and not self.frame.eof:
                    raise EOFError("the file ends inside a frame")
                return 0
            if self.frame is None or self.frame.eof:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.waiting = memoryview(self.frame.decompress(packed))
        count = min(len(buffer), len(self.waiting))
        buffer[:count], self.waiting = self.waiting[:count], self.waiting[count:]
        return count


def decode(file: Path, encoding: str | None = None) -> tuple[str, str]:
    """The text of a file, and its encoding: as given, by its byte order mark, UTF-8, or sniffed."""
    raw = file.read_bytes()
    known = encoding or next((name for mark, name in MARKS.items() if raw.startswith(mark)), None)
    if known is not None:
        with refuse(f"{file}: not {known}", file.name, "set data.encoding"):
            return raw.decode(known), known
    try:
        return raw.decode(), "utf-8"
    except UnicodeDecodeError:
        from charset_normalizer import from_bytes

        best = from_bytes(raw[:SNIFFED], cp_isolation=list(ENCODINGS)).best()
        if best is None:
            raise BadInput(f"{file}: no known encoding, got {raw[:20]!r}; set data.encoding") from None
        with refuse(f"{file}: not {best.encoding}", file.name, "set data.encoding"):
            return raw.decode(best.encoding), best.encoding


def parse_json_line(line: str, where: str) -> dict[str, Any]:
    """The object in a line of JSON."""
    problem = f"{where}: not JSON"
    with refuse(problem, line.strip()[:40], "one JSON object a line"):
        record = json.loads(line)
    if not isinstance(record, dict):
        raise BadInput(f"{where}: not an object, got {line.strip()[:40]!r}; one JSON object a line")
    if "\\u" in line:  # half of a surrogate pair is not text
        with refuse(problem, line.strip()[:40], "write it again"):
            json.dumps(record, ensure_ascii=False).encode()
    return record


def read_json_file(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    with refuse(f"path: {file.name} cannot be used", file, "fix it"):
        content = json.loads(read(file))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of an object")
    return content


def read_saved(folder: Path) -> Any:
    """Reads what `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, from files of the folder alone."""
    documents = (("state.json", "_data_files"), ("dataset_dict.json", "splits"))
    for file, key in ((file, key) for name, key in documents for file in folder.rglob(name)):
        for named in read_json_file(file).get(key) or ():
            name = named.get("filename") if isinstance(named, dict) else named
            if (place := find_inside(file.parent, name, links=True)) is None:
                raise BadInput(f"path: {file.name} names a file outside its folder, got '{name}'; write it again")
            if place.exists() and not place.is_dir():
                check_readable(place)
    import datasets

    return datasets.load_from_disk(str(folder))


def decode_cell(value: Any, where: str, column: Any) -> Any:
    """The value of a cell, and text where it is bytes, as which parquet files may keep text. Raises BadInput for other
    bytes."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadInput(
            f"{where}: column '{column}' is not text, got bytes that are not UTF-8 ({value!r:.40}); name another column"
        ) from None


@contextmanager
def parquet(file: Path) -> Iterator[Any]:
    """The file, opened by pyarrow."""
    import pyarrow.parquet

    with refuse(f"{file}: not a parquet file", file.name, "check the file"):
        table = pyarrow.parquet.ParquetFile(file)
    with table:
        yield table


def read_parquet_rows(file: Path, table: Any, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of an opened file, by column."""
    batches = table.iter_batches(columns=columns)
    while True:
        with refuse(f"{file}: not a complete parquet file", file.name, "download it again"):
            batch = next(batches, None)
            rows = None if batch is None else batch.to_pylist()
        if rows is None:
            return
        yield from rows


def _read_archive_array(file: Path, archive: Any, name: str) -> Any:
    """A member of an opened .npz file. Raises BadInput for Python objects."""
    try:
        return archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise BadInput(
            f"{file}: '{name}' is of Python objects, got dtype object; save numbers, ids with .astype(str)"
        ) from None


def read_npz_arrays(file: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of an .npz file. Nothing is unpickled."""
    with (
        refuse(f"{file}: not a complete .npz file of numbers", file.name, "write it again with numpy.savez"),
        zipfile.ZipFile(file),  # what is not an archive, numpy would take for a pickle
        np.load(file, allow_pickle=False) as archive,
    ):
        size, most = sum(member.file_size for member in archive.zip.infolist()), Hardware().memory_limit
        if size > most:
            raise BadInput(f"{file}: larger than memory, got {size / 1e9:.1f} GB for {most / 1e9:.1f} GB; split it")
        arrays = {name: _read_archive_array(file, archive, name) for name in archive.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise BadInput(f"{file}: not an array, got the member '{name}'; write the file again with numpy.savez")
    return arrays
