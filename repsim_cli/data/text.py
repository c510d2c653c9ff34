"""Raw text: local files, the text that ships with the package, and the Pile."""

import io
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Literal

from repsim_cli.data.network import knock
from repsim_cli.data.packing import Text
from repsim_cli.errors import BadInput
from repsim_cli.files import readable
from repsim_cli.registry import data, did_you_mean

SUFFIXES = (".txt", ".jsonl", ".jsonl.zst", ".parquet")


@data.register("local_text")
def local_text(
    *,
    path: str,
    column: str = "text",
    sample_by: Literal["document", "paragraph", "line"] = "document",
) -> Text:
    """Local text: .txt, .jsonl, .jsonl.zst or .parquet.

    column: where the text stands in .jsonl and .parquet. sample_by: what one document of a .txt file is.
    """
    file = existing(path, SUFFIXES)

    def documents() -> Generator[str, None, None]:
        empty = True
        for text in read(file, column, sample_by):
            if text.strip():
                empty = False
                yield text
        if empty:
            raise BadInput(f"{path}: no text in it, got nothing or white space alone; give a file with text")

    with closing(documents()) as first:
        next(first)
    return Text(documents, str(path))


@data.register("embedded_text")
def embedded_text(*, split: Literal["train", "validation"] = "validation") -> Text:
    """The Jargon File 4.4.7 (public domain), an entry a document; every tenth entry is the validation split."""
    file = Path(str(resources.files("repsim_cli"))) / "assets" / "text" / "jargon.jsonl.zst"

    def documents() -> Generator[str, None, None]:
        for index, text in enumerate(read(file, "text", "document")):
            if (index % 10 == 9) == (split == "validation"):
                yield text

    return Text(documents, f"Jargon File 4.4.7 (public domain), {split}")


@data.register("pile")
def pile(*, files: str = "hf://datasets/monology/pile-uncopyrighted/val.jsonl.zst") -> Text:
    """The Pile's validation documents, streamed from the hub (its copyrighted parts left out by the mirror).

    files: where the .jsonl.zst shards are; a local path or pattern works too.
    """

    def documents() -> Generator[str, None, None]:
        import datasets
        import datasets.exceptions

        datasets.disable_progress_bars()
        try:
            if "://" in files:
                knock()
            stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
            for record in stream:
                if record["text"].strip():
                    yield record["text"]
        except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadInput(
                f"data: the Pile could not be read, got '{files}' ({reason}); check the network, or download "
                "the file and set data.files to its path, or use data=local_text data.path=FILE"
            ) from error

    return Text(documents, files)


def existing(path: str, suffixes: Sequence[str]) -> Path:
    """The file of this path. Raises BadInput where there is none, or none of the suffixes fits."""
    file = Path(path).expanduser()
    if not file.exists():
        near = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
        hint = f"; {did_you_mean(file.name, near)}" if 0 < len(near) <= 20 else "; check the path"
        raise BadInput(f"path: no such file, got '{path}'{hint}")
    if not file.is_file():
        raise BadInput(f"path: not a file, got '{path}'; name one file")
    if not file.name.endswith(tuple(suffixes)):
        raise BadInput(f"path: unknown kind of file, got '{path}'; use {', '.join(suffixes)}")
    return readable(file)


def read(file: Path, column: str, sample_by: str) -> Iterator[str]:
    """The texts of a local file, one at a time; errors name the file and the line."""
    if file.name.endswith(".parquet"):
        yield from _read_parquet(file, column)
    elif file.name.endswith(".txt"):
        yield from _read_txt(file, sample_by)
    else:
        with lines_of(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _field(line, column, f"{file}, line {number}")


@contextmanager
def lines_of(file: Path) -> Iterator[Iterator[str]]:
    """The lines of a UTF-8 file, packed (.zst) or not."""
    import zstandard

    def checked(stream: io.TextIOBase) -> Iterator[str]:
        try:
            yield from stream
        except UnicodeDecodeError as error:
            raise BadInput(f"{file}: not UTF-8, got byte {error.object[error.start]:#04x}; convert it") from None
        except (zstandard.ZstdError, EOFError) as error:
            raise BadInput(f"{file}: not a whole .zst file, got '{error}'; download it again") from None

    with file.open("rb") as raw:
        stream = io.BufferedReader(_Unpacked(raw)) if file.name.endswith(".zst") else raw
        with io.TextIOWrapper(stream, encoding="utf-8") as text:
            yield checked(text)


class _Unpacked(io.RawIOBase):
    """The contents of a .zst file of any number of frames; EOFError where the last one is cut off, which
    zstandard's own reader takes for the end."""

    def __init__(self, raw: BinaryIO):
        self.raw, self.waiting = raw, b""
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        while not self.waiting:
            unread = self.frame.unused_data if self.frame is not None and self.frame.eof else b""
            packed = unread or self.raw.read(1 << 16)
            if not packed:
                if self.frame is not None and not self.frame.eof:
                    raise EOFError("the file ends inside a frame")
                return 0
            if self.frame is None or self.frame.eof:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.waiting = self.frame.decompress(packed)
        count = min(len(buffer), len(self.waiting))
        buffer[:count], self.waiting = self.waiting[:count], self.waiting[count:]
        return count


def _field(line: str, column: str, where: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: not JSON, got {line[:40]!r} ({error.msg}); one JSON object a line") from None
    if not isinstance(record, dict) or column not in record:
        known = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
        raise BadInput(f"{where}: no column '{column}', got {known}; set data.column")
    if not isinstance(record[column], str):
        raise BadInput(f"{where}: column '{column}' is not text, got {record[column]!r:.40}; set data.column")
    return record[column]


def _read_txt(file: Path, sample_by: str) -> Iterator[str]:
    with lines_of(file) as lines:
        if sample_by == "line":
            yield from (line.rstrip("\n") for line in lines)
        elif sample_by == "document":
            yield "".join(lines)
        else:
            paragraph: list[str] = []
            for line in lines:
                if line.strip():
                    paragraph.append(line)
                elif paragraph:
                    yield "".join(paragraph)
                    paragraph = []
            yield "".join(paragraph)


def _read_parquet(file: Path, column: str) -> Iterator[str]:
    import pyarrow

    with parquet(file) as table:
        kinds = {f.name: f.type for f in table.schema_arrow}
        if column not in kinds:
            raise BadInput(f"{file}: no column '{column}', got {', '.join(kinds)}; set data.column")
        if not pyarrow.types.is_string(kinds[column]) and not pyarrow.types.is_large_string(kinds[column]):
            raise BadInput(f"{file}: column '{column}' is not text, got {kinds[column]}; set data.column")
        for batch in table.iter_batches(columns=[column]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)


@contextmanager
def parquet(file: Path) -> Iterator[Any]:
    """The file, opened by pyarrow."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise BadInput(f"{file}: not a parquet file, got '{error}'; check the file") from None
    with table:
        yield table
