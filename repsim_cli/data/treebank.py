"""Treebanks as sentences of words: the Penn Treebank (one sentence a line) and UD English EWT (CoNLL-U)."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.registry import data
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Data, Sequences, draw
from repsim_cli.data.copies import find_equal_texts
from repsim_cli.data.files import find_file, lines_of
from repsim_cli.data.hub import HubTable, read_hub_records
from repsim_cli.data.network import download
from repsim_cli.data.padding import pad
from repsim_cli.data.text import read
from repsim_cli.data.words import WordTally, align, cut_common_stretches, make_sentence_passage

Words = Literal["surface", "syntactic"]
NO_LABEL = "_"
LABELS = ("upos", "xpos", "deprel")
Split = Literal["train", "validation", "test"]

PTB_FILES = {"train": "ptb.train.txt", "validation": "ptb.valid.txt", "test": "ptb.test.txt"}
PTB_HUB = HubTable("ptb-text-only/ptb_text_only", "penn_treebank", "refs/convert/parquet")
EWT_FILES = {
    "train": "en_ewt-ud-train.conllu",
    "validation": "en_ewt-ud-dev.conllu",
    "test": "en_ewt-ud-test.conllu",
}
EWT_WEB = "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/master"


class Word(NamedTuple):
    """A word of CoNLL-U; where it is written as one but has several parts, their labels are joined by `+`."""

    form: str
    upos: str = NO_LABEL
    xpos: str = NO_LABEL
    deprel: str = NO_LABEL


@dataclass(frozen=True)
class Treebank(Data):
    """Sentences of words; each sentence is a sequence, its words joined by spaces.

    read(): the words of each. annotated(): the same with the labels of words; None: there are none.
    """

    worded: ClassVar[bool] = True

    read: Callable[[], Iterator[list[str]]]
    source: str
    chat: bool = False
    public: bool = False
    annotated: Callable[[], Iterator[list[Word]]] | None = None

    def sentences(self) -> list[list[str]]:
        """Lists all sentences; `Sequences.example` is an index into this list."""
        return self._sentences()[0]

    def _sentences(self) -> tuple[list[list[str]], int]:
        """The sentences with words, and the number of those without."""
        sentences = list(self.read())
        filled = [words for words in sentences if words]
        if not filled:
            raise BadInput(f"{self.source}: it has no sentences, got white space or nothing; give another file")
        return filled, len(sentences) - len(filled)

    def labels_of_words(self) -> dict[str, list[list[str]]]:
        """Parts of speech (`upos`, universal, and `xpos`, of the treebank) and relations (`deprel`), where there are
        any."""
        sentences = [] if self.annotated is None else [words for words in self.annotated() if words]
        tags = {name: [[getattr(word, name) for word in words] for words in sentences] for name in LABELS}
        return {name: labels for name, labels in tags.items() if any(set(some) != {NO_LABEL} for some in labels)}

    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        if extract.unit in WORDS:
            return self.align({"the model": tokenizer}, extract, seed)["the model"]
        return pad(
            [(" ".join(words),) for words in self.sentences()],
            tokenizer,
            length=extract.length,
            sequences=extract.sequences,
            seed=seed,
            source=self.source,
        )

    def align(self, tokenizers: Mapping[str, Any], extract: Extract, seed: int) -> dict[str, Sequences]:
        sentences, empty = self._sentences()
        tally = WordTally(Counter({"no word": empty} if empty else {}))
        drawn = draw(len(sentences), extract.sequences, seed).tolist()
        passages = (make_sentence_passage(i, sentences[i]) for i in drawn)
        made = list(cut_common_stretches(passages, tokenizers, extract, tally, whole=True))
        given = align(made, tokenizers, extract, tally, self.source, len(sentences))
        # of all sentences those that are left out come with no larger number
        some = len(sentences) if extract.sequences < len(sentences) else None
        copies = find_equal_texts((i, tuple(sentences[i])) for i in drawn)
        return {label: replace(each, available=some or len(each.mask), copies=copies) for label, each in given.items()}


def _open_treebank(
    path: str | None,
    split: str,
    files: dict[str, str],
    suffixes: tuple[str, ...],
    where: str,
    read_file: Callable[[Path], Iterator[list[Word]]],
    read_web: Callable[[], Iterator[list[Word]]],
) -> Treebank:
    """Opens a treebank from a file or a folder of the official files (checked at once, up to the first sentence), or
    from the web."""
    if path is None:
        return make_treebank(read_web, f"{where}, {split}", public=True)
    folder = expand_path(path)
    file = find_file(str(folder / files[split]) if folder.is_dir() else path, suffixes)
    next(read_file(file), None)
    return make_treebank(lambda: read_file(file), str(file))


def make_treebank(read: Callable[[], Iterator[list[Word]]], source: str, public: bool = False) -> Treebank:
    def forms() -> Iterator[list[str]]:
        return ([word.form for word in words] for words in read())

    return Treebank(forms, source, annotated=read, public=public)


@data.register("ptb")
def ptb(*, path: str | None = None, split: Split = "validation", column: str = "sentence") -> Treebank:
    """The Penn Treebank in Mikolov's form: one sentence per line, words split by spaces.

    path: a .txt file with one sentence per line, a .jsonl or .parquet file, or a folder with ptb.train.txt,
        ptb.valid.txt and ptb.test.txt; null: download from the hub.
    split: which sentences are read, where the hub or a folder has all.
    column: the field of .jsonl, or the column of .parquet, that holds the sentence.
    """
    return _open_treebank(
        path,
        split,
        PTB_FILES,
        (".txt", ".jsonl", ".jsonl.zst", ".parquet"),
        PTB_HUB.hub,
        lambda file: (list(map(Word, line.split())) for line in read(file, column, "line")),
        lambda: (list(map(Word, record.fields[column].split())) for record in read_hub_records(PTB_HUB, split)),
    )


@data.register("ewt")
def ewt(*, path: str | None = None, split: Split = "validation", words: Words = "surface") -> Treebank:
    """UD English EWT, or any other treebank in CoNLL-U.

    path: a .conllu file, or the folder of the official files; null: download from the treebank's repository.
    split: which sentences are read, where the repository or a folder has all.
    words: `surface`: words as they are written (`don't`); `syntactic`: their parts (`do`, `n't`).
    """
    return _open_treebank(
        path,
        split,
        EWT_FILES,
        (".conllu",),
        EWT_WEB,
        lambda file: read_conllu(file, words),
        lambda: read_conllu(download(f"{EWT_WEB}/{EWT_FILES[split]}"), words),
    )


@data.register("embedded_sentences")
def embedded_sentences() -> Treebank:
    """240 sentences of the validation split of the embedded text (Jargon File 4.4.7, public domain), in CoNLL-U."""
    file = Path(str(resources.files("repsim_cli"))) / "assets" / "text" / "jargon.conllu"
    return make_treebank(
        lambda: read_conllu(file, "surface"), "Jargon File 4.4.7 (public domain), sentences", public=True
    )


_ID = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})|\.(?P<empty>\d{1,9}))?")


def read_conllu(file: Path, words: Words) -> Iterator[list[Word]]:
    """The sentences of a CoNLL-U file.

    A range line (`1-2`) holds the written form of the words that it covers; empty nodes (`8.1`) are not in the text.
    """
    sentence: list[Word] = []
    last = covered = 0  # the number of the last word; of the last word that a range covers
    with lines_of(file) as lines:
        for number, line in enumerate(chain(lines, [""]), 1):  # the file's end ends a sentence too
            line = line.rstrip("\r\n")
            if not line.strip():
                if covered > last:
                    raise BadInput(f"{file}, line {number}: the sentence ends early, got {last} for {covered}; fix it")
                if sentence:
                    yield sentence
                sentence, last, covered = [], 0, 0
                continue
            if line.startswith("#"):
                continue
            fields = line.split("\t")
            match = _ID.fullmatch(fields[0])
            if len(fields) != 10 or match is None or not fields[1].strip():
                raise BadInput(
                    f"{file}, line {number}: not a line of CoNLL-U, got {line[:60]!r}; ten columns, tab-separated, "
                    "the first a word's number (1, 1-2 or 1.1), the second its form"
                )
            first, end = int(match["first"]), int(match["last"] or match["first"])
            if match["empty"]:
                continue
            if first != last + 1 or end < first or (match["last"] and first <= covered):
                raise BadInput(
                    f"{file}, line {number}: words out of order, got {fields[0]} after {last}; number them from 1"
                )
            if match["last"]:
                covered = end
            else:
                last = first
            # the sentence has either the range or its words
            labels = (fields[3], fields[4], fields[7])
            if (match["last"] is not None or first > covered) if words == "surface" else match["last"] is None:
                sentence.append(Word(fields[1], *labels))
            elif words == "surface":
                written, *before = sentence[-1]
                sentence[-1] = Word(written, *map(join_labels, before, labels))


def join_labels(before: str, part: str) -> str:
    """Joins the labels of the parts of a word that is written as one, up to this part."""
    return part if before == NO_LABEL else f"{before}+{part}"
