"""Rows of local files by column: tables of text, JSON lines, parquet."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.data.files import lines_of, parse_json_line
from repsim_cli.data.hub import DataRow, read_parquet_records


def read_file_records(
    file: Path, columns: Any = (), *, given: bool = False, kind: str | None = None
) -> Iterator[DataRow]:
    """The rows of a local file, by column; a row with too few or too many fields has none.

    columns: of a file without a header. A first line that names them all is taken as a header, unless the user gave
    the columns; then a line without tabs is split at spaces, except within the last column.
    kind: a file name that tells the format, where the file's name does not.
    """
    name = kind or file.name
    if name.endswith(".parquet"):
        yield from read_parquet_records(file)
    elif name.endswith((".jsonl", ".jsonl.zst")):
        yield from _read_json_records(file)
    else:
        rows = _split_table_lines(file, quoted=name.endswith(".csv"), parts=len(columns) if given else 0)
        header = tuple(columns)
        for number, row in rows:
            if not header or (number == 1 and not given and set(header) <= set(row)):
                header = tuple(row)
                continue
            where = f"{file}, line {number}"
            yield DataRow(where, dict(zip(header, row, strict=True)) if len(row) == len(header) else {})


def _split_table_lines(file: Path, quoted: bool, parts: int) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields): comma-separated with quotes, or tab-separated with quotes kept."""
    with lines_of(file) as lines:
        if quoted:
            reader = csv.reader(lines)
            try:
                yield from ((reader.line_num, row) for row in reader if row)
            except csv.Error as error:
                raise BadInput(f"{file}, line {reader.line_num}: not CSV, got '{error}'; write it again") from None
        else:
            for number, line in enumerate(lines, 1):
                text = line.rstrip("\r\n")
                spaced = parts > 1 and "\t" not in text
                if text:
                    yield number, text.split(" ", parts - 1) if spaced else text.split("\t")


def _read_json_records(file: Path) -> Iterator[DataRow]:
    with lines_of(file) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}, line {number}"
            yield DataRow(where, parse_json_line(line, where))
