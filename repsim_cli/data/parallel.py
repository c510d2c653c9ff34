"""Two texts per row: languages, paraphrases, prompts; from a table, from two files line by line, or from pairs."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import data
from repsim_cli.base.settings import Extract
from repsim_cli.data.alignment import Aligned, Alignment, read_alignment
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.files import find_file, lines_of
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.table import Column, table
from repsim_cli.data.words import find_spaced_word_spans

EMPTY = "an empty text"
NEEDED = "examples of two texts are needed"
ADVICE = "give a table (data.path), two files (data.path and data.other) or pairs (data.pairs)"


@dataclass(frozen=True)
class Parallel(Data):
    """Pairs of texts, of which each column is read by itself. names: of the two columns. alignment: of their words,
    where these are paired."""

    columned: ClassVar[bool] = True
    pairs: Examples
    names: tuple[str, str]
    alignment: Alignment | None = None
    chat: bool = False

    @property
    def source(self) -> str:  # type: ignore[override]
        return self.pairs.source

    @property
    def public(self) -> bool:  # type: ignore[override]
        return self.pairs.public

    def columns(self) -> dict[str, Examples]:
        """Makes examples with one text each from every column, by its name: the same examples in the same order."""
        made = {name: self._column(place) for place, name in enumerate(self.names)}
        if self.alignment is None:
            return made
        first, second = (replace(column, find=find_spaced_word_spans) for column in made.values())
        more: dict[str, Any] = {"pairs": self.pairs, "columns": (first, second), "alignment": self.alignment}
        return {
            name: Aligned(**{each.name: getattr(column, each.name) for each in fields(Examples)}, place=place, **more)
            for place, (name, column) in enumerate(made.items())
        }

    def _column(self, place: int) -> Examples:
        def read() -> Iterator[Example | str]:
            for each in self.pairs.read():
                yield each if isinstance(each, str) else replace(each, texts=(each.texts[place],))

        source = f"{self.source}, {self.names[place]}"
        return replace(self.pairs, read=read, source=source, chat=self.chat)

    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        raise BadInput(say_how_columns_are_read(self.source))


def say_how_columns_are_read(source: str) -> str:
    """Says which study reads two columns, for studies that read one."""
    return (
        f"data: two columns of text are read one by one by study=parallel, got {source}; use that study "
        "(experiment=parallel), or data=table with data.second, where a pair is one sequence"
    )


@data.register("parallel")
def parallel(
    *,
    path: str | None = None,
    first: Column = "first",
    second: Column = "second",
    other: str | None = None,
    group: Column | None = None,
    pairs: Data | None = None,
    alignment: str | None = None,
) -> Parallel:
    """Two texts per row, such as a sentence in two languages, a paraphrase, or one prompt written in two ways.

    Rows of which a text is empty are left out of both columns and counted.

    path: a table with a column for each text (.csv, .tsv, .txt, .jsonl, .jsonl.zst, .parquet, a folder of `datasets` or
        an id of the hub); with `other` a file with a text per line.
    first: the column of the first text, by name or by number from 0; with `other` or `pairs` what it is called.
    second: the same of the second text.
    other: a file with the second text of each line of `path`; null: both are columns of one table.
    group: a column of a table by which rows depend on each other, such as a topic or a document, for
        significance.clusters=group; null: none.
    pairs: examples of two texts, such as {kind: mnli}, read where no path is given; null: none.
    alignment: which words of two texts stand for each other, where rows are words (extract.unit=word). A file in
        Pharaoh format, as fast_align, SimAlign and awesome-align write it: a line per pair of texts, those left out
        too, of links FIRST-SECOND (`0-0 1-2 2-1`) of words, which white space separates, numbered from 0. `same`: equal
        words, upper and lower case alike. Words whose only link is to a word without another are rows; null: none, rows
        are texts.
    Example: repsim run experiment=parallel extract=words data.path=FILE data.first=en data.second=de
        data.alignment=same
    """
    if path is None and pairs is None:
        raise BadInput(f"path: no pairs of texts; {ADVICE}")
    if path is None and other is not None:
        raise BadInput(f"other: it is the second file beside data.path, got {other} alone; {ADVICE}")
    if group is not None and (other is not None or path is None):
        raise BadInput(f"group: only a table has columns, got '{group}'; drop it")
    one, two = (name if isinstance(name, str) else f"column {name}" for name in (first, second))
    if one == two:
        raise BadInput(f"second: two columns are compared, got '{second}' twice; name another one")
    if path is None:
        given = _of_examples(pairs)
    elif other is not None:
        given = _pair_lines(path, other)
    else:
        given = table(path=path, text=first, second=second, group=group)
    return Parallel(given, (one, two), None if alignment is None else read_alignment(alignment, given))


def _of_examples(pairs: Data | None) -> Examples:
    if not isinstance(pairs, Examples):
        raise BadInput(f"pairs: {NEEDED}, got {pairs.source if pairs else 'none'}; e.g. {{kind: mnli}}")
    known = pairs

    def read() -> Iterator[Example | str]:
        for each in known.read():
            if isinstance(each, Example) and len(each.texts) != 2:
                raise BadInput(f"pairs: {NEEDED}, got single texts of {known.source}; {ADVICE}")
            yield each

    return replace(pairs, read=read)


def _pair_lines(first: str, second: str) -> Examples:
    files = [_find_text_file(key, name) for key, name in (("path", first), ("other", second))]

    def read() -> Iterator[Example | str]:
        with lines_of(files[0]) as left, lines_of(files[1]) as right:
            for number, both in enumerate(zip_longest(left, right), 1):
                if None in both:
                    short = files[0 if both[0] is None else 1]
                    raise BadInput(f"{short}: fewer lines than the other file, got {number - 1}; a line is a pair")
                texts = tuple(line.rstrip("\r\n") for line in both)
                yield Example(texts, None) if all(text.strip() for text in texts) else EMPTY

    examples = Examples(read, (), f"{first} and {second}").keep()
    examples.examples()  # refuses files that do not fit each other, before any weight loads
    return examples


def _find_text_file(key: str, name: str) -> Path:
    """Finds the file of lines of a key. Raises BadInput for a table: its lines are not texts."""
    file = find_file(name, (Path(name).suffix,), key)
    if file.suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        raise BadInput(f"{file}: two files have a text per line, got a table; give both columns of one table")
    return file
