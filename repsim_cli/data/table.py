"""One's own examples: a table of texts, labels and groups, in a file, in a folder of `datasets`, or on the hub."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.registry import data, did_you_mean
from repsim_cli.data.files import decode, decode_cell, find_file, lines_of, parse_json_line
from repsim_cli.data.hub import HubTable, read_hub_records, read_parquet_records, read_stored
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.records import read_delimited

DELIMITED = (".csv", ".tsv", ".txt")
SUFFIXES = (*DELIMITED, ".jsonl", ".jsonl.zst", ".parquet")
Column = Annotated[int, Field(ge=0, le=10_000)] | str


class Row(NamedTuple):
    """where: its place, for error messages. fields: by the names of columns, in files without a header by their
    numbers; None where there are too few or too many."""

    where: str
    fields: dict[Any, Any] | None


@data.register("table")
def table(  # noqa: PLR0913 - keys of YAML
    *,
    path: str,
    text: Column = "text",
    second: Column | None = None,
    label: Column | None = None,
    group: Column | None = None,
    groups: list[str] | None = None,
    id: Column | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    split: str = "train",
    subset: str | None = None,
) -> Examples:
    """A table of your own, with an example in each row: a text or a pair of texts, a label, a group.

    Columns are given by name, or by number from 0. The whole table is read at once. Examples without text or without
    label are left out and counted.

    path: a .csv, .tsv, .txt, .jsonl, .jsonl.zst or .parquet file, a folder written by `Dataset.save_to_disk`, or the id
        of a data set on the hub.
    text: the column of the text.
    second: the column of the second text of a pair; null: single texts.
    label: the column of the label: the target `label` of probes, and the class of every row in figures and in measures
        of labelled rows; null: none.
    group: the column of a group, such as a topic or a source: the target `group` of probes; without `label` also the
        class of every row; null: none.
    groups: only the examples of these groups; null: all.
    id: the column of the ids, by which stored activations with ids are paired with the examples; null: none.
    header: whether the first line of a .csv, .tsv or .txt file names the columns; null: it does if a column is given by
        name, or if the first line is 0, 1, 2, and so on.
    delimiter: what separates the columns of such a file; null: comma, semicolon, tab or |, as the file is.
    encoding: of such a file, such as latin-1; null: by the byte order mark, UTF-8, or sniffed.
    split: of a folder or data set with splits.
    subset: the configuration of a data set on the hub; null: its default.
    Example: repsim run data=table data.path=FILE data.text=0 extract=pooled
    """
    if groups is not None and group is None:
        raise BadInput(f"groups: no column of groups is named, got {groups}; set data.group")
    columns = {"text": text, "second": second, "label": label, "group": group, "id": id}
    given = {key: column for key, column in columns.items() if column is not None}
    source, rows = open_table(path, given, header, delimiter, encoding, split, subset)
    read = list(_make_row_examples(rows, given))
    if groups is not None:
        known = {example.group for example in read if isinstance(example, Example)}
        for name in groups:
            if name not in known:
                raise BadInput(f"groups: no such group, got '{name}'; {did_you_mean(name, filter(None, known))}")
        read = [example for example in read if not isinstance(example, Example) or example.group in groups]
    names = sorted({example.label for example in read if isinstance(example, Example) and example.label is not None})
    examples = Examples(lambda: iter(read), tuple(names), source)
    ids = Counter(example.id for example in examples.examples()[0])  # refuses an empty table
    if id is not None and (twice := next((each for each, count in ids.items() if count > 1), None)) is not None:
        raise BadInput(
            f"id: examples have different ids, got '{twice}' {ids[twice]} times; number them, or drop data.id"
        )
    return examples


def _make_row_examples(rows: Iterator[Row], columns: dict[str, Column]) -> Iterator[Example | str]:
    """Yields the example of each row, or the reason why it is left out."""
    for row in rows:
        if row.fields is None:
            yield "missing or surplus columns"
            continue
        given = {key: _read_column_text(row, key, column) for key, column in columns.items()}
        texts = tuple(given[key] for key in ("text", "second") if key in given)
        empty = next((key for key in ("label", "group", "id") if given.get(key) == ""), None)
        if not all(text.strip() for text in texts):
            yield "an empty text"
        elif empty is not None:
            yield f"no {empty}"
        else:
            yield Example(texts, given.get("label", given.get("group")), group=given.get("group"), id=given.get("id"))


def _name_key(key: str) -> str:
    """Names the setting of a column, and the flag where a command has one."""
    return "data.text (--column)" if key == "text" else f"data.{key}"


def _read_column_text(row: Row, key: str, column: Column) -> str:
    """The text in a column. Raises BadInput where there is no such column, or no text in it."""
    assert row.fields is not None
    if column not in row.fields:
        known = [name for name in row.fields if isinstance(name, str)] or list(row.fields)
        running = "" if len(known) > 1 else "; where it is running text and not a table, say data=local_text"
        raise BadInput(
            f"{row.where}: no column '{column}', got {', '.join(map(repr, known)):.160}; set {_name_key(key)} to a "
            f"name, or to a number from 0 where the file has no header{running}"
        )
    value = decode_cell(row.fields[column], row.where, column)
    if isinstance(value, dict | list):
        raise BadInput(f"{row.where}: column '{column}' is not text, got {value!r:.60}; set {_name_key(key)}")
    return "" if value is None else str(value).strip() if key not in ("text", "second") else str(value)


def open_table(
    path: str,
    columns: dict[str, Column],
    header: bool | None,
    delimiter: str | None,
    encoding: str | None,
    split: str,
    subset: str | None,
) -> tuple[str, Iterator[Row]]:
    """Opens a table: the name that results give it, and its rows."""
    place = expand_path(path)
    if place.is_dir():
        return f"{path}, {split}", (Row(*record) for record in read_stored(place, split))
    if not place.exists() and path.count("/") == 1 and not path.startswith((".", "~", "/")) and not place.suffix:
        name = f"{path}, {subset}" if subset else path
        return f"{name}, {split}", (Row(*record) for record in read_hub_records(HubTable(path, subset), split))
    file = find_file(path, SUFFIXES)
    if file.name.endswith(DELIMITED):
        text, code = decode(file, encoding)
        by_name = [column for column in columns.values() if isinstance(column, str)]
        rows = _read_delimited_rows(file, text, by_name, bool(by_name) or None if header is None else header, delimiter)
        return str(path) if code.startswith("utf-8") else f"{path} ({code})", rows
    if file.name.endswith(".parquet"):
        return str(path), (Row(*record) for record in read_parquet_records(file))
    return str(path), _read_json_rows(file)


def _read_delimited_rows(
    file: Path, text: str, names: list[str], headed: bool | None, delimiter: str | None
) -> Iterator[Row]:
    """headed: None: the first line names the columns if it counts them."""
    lines = read_delimited(file, text, names if headed else [], delimiter)
    if headed is None:
        headed = bool(lines) and lines[0][1] == [str(place) for place in range(len(lines[0][1]))]
    header = lines[0][1] if headed and lines else []
    if twice := [name for name, count in Counter(header).items() if count > 1 and name in names]:
        raise BadInput(f"{file}, line 1: two columns of one name, got '{twice[0]}'; give it by its number, from 0")
    wide = len(lines[0][1]) if lines else 0
    for number, fields in lines[1 if headed else 0 :]:
        by_name = dict(enumerate(fields)) | dict(zip(header, fields, strict=False))
        yield Row(f"{file}, line {number}", by_name if len(fields) == wide else None)


def _read_json_rows(file: Path) -> Iterator[Row]:
    with lines_of(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{file}, line {number}"
                yield Row(where, parse_json_line(line, where))
