"""Raw text: local files, the text that ships with the package, and the Pile."""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.registry import data
from repsim_cli.data.files import decode_cell, find_file, lines_of, parquet, parse_json_line, read_parquet_rows
from repsim_cli.data.network import check_hub
from repsim_cli.data.packing import Spans, Text
from repsim_cli.data.records import read_file_records

SUFFIXES = (".txt", ".jsonl", ".jsonl.zst", ".parquet")
TABLES = (".csv", ".tsv")
SPLITS: dict[str, Callable[[int], bool]] = {
    "train": lambda index: index % 10 != 9,
    "train_even": lambda index: index % 10 != 9 and index % 2 == 0,
    "train_odd": lambda index: index % 10 != 9 and index % 2 == 1,
    "validation": lambda index: index % 10 == 9,
}


@data.register("local_text")
def local_text(
    *,
    path: str,
    column: str = "text",
    spans: str | None = None,
    sample_by: Literal["document", "paragraph", "line"] = "document",
) -> Text:
    """Text files of your own: .txt, .jsonl, .jsonl.zst or .parquet.

    path: the file.
    column: the field of .jsonl, or the column of .parquet, that holds the text.
    spans: the field or column that holds the spans of each text, [[START, END], ...] in characters from 0, END behind
        the last; they ascend and do not overlap. `extract.unit=span` has a row for each. null: none.
    sample_by: what a document of a .txt file is: the whole file (`document`), a `paragraph` (between blank lines), or a
        `line`.
    Example: repsim run data=local_text data.path=FILE
    """
    if path.endswith(TABLES) and expand_path(path).is_file():
        raise BadInput(f"path: a table, got '{path}'; say data=table data.path={path} data.text=COLUMN")
    file = find_file(path, SUFFIXES)

    def documents() -> Generator[str, None, None]:
        empty = True
        for text in read(file, column, sample_by):
            if text.strip():
                empty = False
                yield text
        if empty:
            raise BadInput(f"{path}: it has no text, got white space or nothing; give a file with text")

    with closing(documents()) as first:
        next(first)
    if spans is None:
        return Text(documents, str(path))
    if file.name.endswith(".txt"):
        raise BadInput(f"spans: a .txt file has none, got '{spans}'; write .jsonl with the texts and their spans")
    next(read_spans(file, column, spans), None)
    return Text(documents, str(path), lambda: read_spans(file, column, spans))


@data.register("embedded_text")
def embedded_text(
    *,
    split: Literal["train", "train_even", "train_odd", "validation"] = "validation",
    shuffle_words: bool = False,
) -> Text:
    """The Jargon File 4.4.7 (public domain), which ships with the package; each entry is a document.

    split: `validation` is every tenth entry, `train` the others, on which the shipped models were trained; `train_even`
        and `train_odd` are its halves, entry by entry.
    shuffle_words: put the words of every entry in a random order, the same in every pass.
    """

    def documents() -> Generator[str, None, None]:
        order = np.random.default_rng(0)
        for index, text in enumerate(_read_jargon()):
            if SPLITS[split](index):
                yield " ".join(order.permutation(text.split())) if shuffle_words else text

    shuffled = ", words shuffled" if shuffle_words else ""
    return Text(documents, f"Jargon File 4.4.7 (public domain), {split}{shuffled}", public=True)


@cache
def _read_jargon() -> list[str]:
    """The entries of the text that ships, of which every pass takes a part."""
    file = Path(str(resources.files("repsim_cli"))) / "assets" / "text" / "jargon.jsonl.zst"
    return [*read(file, "text", "document")]


PILE = "hf://datasets/monology/pile-uncopyrighted/val.jsonl.zst"


@data.register("pile")
def pile(*, files: str = PILE) -> Text:
    """Validation documents of the Pile, streamed from the hub; this mirror leaves copyrighted parts out.

    files: the address of the .jsonl.zst files, or a local path or pattern.
    """

    def documents() -> Generator[str, None, None]:
        import datasets
        import datasets.exceptions

        datasets.disable_progress_bars()
        logging.getLogger("datasets").setLevel(logging.CRITICAL)  # its message is part of the error
        try:
            if "://" in files:
                check_hub()
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

    return Text(documents, files, public=files == PILE)  # of another address nothing says so


def read(file: Path, column: str, sample_by: str) -> Iterator[str]:
    """The texts of a local file, one by one; errors name the file and the line."""
    if file.name.endswith(".parquet"):
        yield from _read_parquet(file, column)
    elif file.name.endswith(".txt"):
        yield from _read_txt(file, sample_by)
    else:
        with lines_of(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _read_text_field(line, column, f"{file}, line {number}")


def read_spans(file: Path, column: str, spans: str) -> Iterator[tuple[str, Spans]]:
    """The texts of a file of records that hold any, each with its spans."""
    for record in read_file_records(file):
        for key, name in (("column", column), ("spans", spans)):
            if name not in record.fields:
                known = ", ".join(record.fields) or "none"
                raise BadInput(f"{record.where}: no column '{name}', got {known}; set data.{key}")
        text, marks = decode_cell(record.fields[column], record.where, column), record.fields[spans] or []
        if isinstance(text, str) and text.strip():
            end = 0
            for mark in marks if isinstance(marks, list) else [marks]:
                if not _is_span(mark) or not end <= mark[0] < mark[1] <= len(text):
                    raise BadInput(
                        f"{record.where}: not a span of the text behind the one before, got {mark!r:.40} after {end}; "
                        f"write [START, END] with {end} <= START < END <= {len(text)}"
                    )
                end = mark[1]
            yield text, marks


def _is_span(mark: Any) -> bool:
    return isinstance(mark, list) and len(mark) == 2 and all(type(place) is int for place in mark)


def _read_text_field(line: str, column: str, where: str) -> str:
    record = parse_json_line(line, where)
    if column not in record:
        raise BadInput(f"{where}: no column '{column}', got {', '.join(record) or 'none'}; set data.column")
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
        kind = kinds[column]
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not any(is_kind(kind) for is_kind in _list_text_tests(pyarrow.types)):
            raise BadInput(f"{file}: column '{column}' is not text, got {kinds[column]}; set data.column")
        for number, row in enumerate(read_parquet_rows(file, table, [column])):
            if row[column] is not None:
                yield decode_cell(row[column], f"{file}, row {number}", column)


def _list_text_tests(types: Any) -> list[Callable[[Any], bool]]:
    """Tells types of columns that may hold text; in some files it is bytes."""
    names = (f"is_{size}{kind}" for kind in ("string", "binary") for size in ("", "large_"))
    views = (f"is_{kind}_view" for kind in ("string", "binary"))
    return [getattr(types, name) for name in (*names, *views) if hasattr(types, name)]  # views came later
