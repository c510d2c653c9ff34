"""Rows of local files by column: tables of text, whatever separates their columns, JSON lines, parquet."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.data.files import LONGEST, lines_of, parse_json_line
from repsim_cli.data.hub import DataRow, read_parquet_records

DELIMITERS = ",;\t|"

Lines = list[tuple[int, list[str]]]


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


def read_delimited(file: Path, text: str, names: Sequence[str], delimiter: str | None = None) -> Lines:
    """Reads (line number, fields) of a file of columns that are separated by a delimiter, with or without quotes.

    The way of reading it is the first that gives every line as many fields as the first line has, the names of columns
    among them; else the one that does so for most lines.
    names: of columns that the first line must have. delimiter: None: sniffed.
    """
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\0\r\n"'):
        raise BadInput(f"delimiter: not one character between columns, got {delimiter!r}; e.g. ','")
    before = "\t" if file.name.endswith((".tsv", ".txt")) else ","
    marks = [delimiter] if delimiter else sorted(DELIMITERS, key=lambda mark: mark != before)
    best: Lines = []
    rank, broken = (False, 0.0, False), ""
    for mark, quoting in ((mark, quoting) for mark in marks for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE)):
        lines, problem = _parse_delimited_lines(text, mark, quoting)
        if not lines or problem:
            broken = broken or problem
            continue
        wide = len(lines[0][1])
        full = sum(len(fields) == wide for _, fields in lines) / len(lines)
        reached = (set(names) <= set(lines[0][1]), full, wide > 1)
        if reached > rank:
            best, rank = lines, reached
        if rank == (True, 1.0, True):
            break
    if broken and rank[1] < 1:
        raise BadInput(f"{file}, {broken}; close its quotes, or double those inside quotes")
    return best


def _parse_delimited_lines(text: str, delimiter: str, quoting: Any) -> tuple[Lines, str]:
    """The lines that are not empty, and where and why reading them failed, or an empty string."""
    before = csv.field_size_limit(LONGEST)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    lines: Lines = []
    try:
        lines.extend((reader.line_num, fields) for fields in reader if fields)
    except csv.Error as error:
        return lines, f"line {reader.line_num}: not a line of a table, got '{error}'"
    finally:
        csv.field_size_limit(before)
    return lines, ""
