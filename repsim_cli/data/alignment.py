"""Which words of two texts stand for each other: a file in Pharaoh format says so, or a rule."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, expand_path
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.data.files import lines_of
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.words import NONE, find_spaced_word_spans, find_word_spans, has_letters

SAME = "same"  # the rule that words are linked which are equal, upper and lower case alike
LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
BARE, UNLINKED, SEVERAL = "a word without letter or digit", "a word without link", "a word in several links"
PARTNER = "a word whose aligned word is not read"


class Links(NamedTuple):
    """Links of words with a letter or a digit of two texts, by the numbers of the words from 0. alone: those of which
    both words have no other, by the first word. linked: the words of each text that have any."""

    alone: Int[np.ndarray, "k 2"]
    linked: tuple[Collection[int], Collection[int]]


def link(pairs: Sequence[tuple[int, int]], texts: Sequence[Sequence[str]]) -> Links:
    """Links the pairs of words that are given.

    >>> english, french = ["the", "red", "house", "."], ["rouge", "la", "maison", "la", "."]
    >>> link([(0, 1), (1, 0), (2, 2), (2, 3), (3, 4)], (english, french)).alone.tolist()
    [[0, 1], [1, 0]]
    """
    worded = {(i, j) for i, j in pairs if has_letters(texts[0][i]) and has_letters(texts[1][j])}
    first, second = (Counter(pair[side] for pair in worded) for side in (0, 1))
    return _make_links([(i, j) for i, j in worded if first[i] == second[j] == 1], first, second)


def link_equal(texts: Sequence[Sequence[str]]) -> Links:
    """Links words that are equal, upper and lower case alike.

    >>> link_equal((["The", "cat", "sees", "a", "cat"], ["a", "cat", ",", "sees", "the"])).alone.tolist()
    [[0, 4], [2, 3], [3, 0]]
    """
    folded = [[word.casefold() if has_letters(word) else "" for word in text] for text in texts]
    first, second = (Counter(filter(None, text)) for text in folded)
    place = {word: j for j, word in enumerate(folded[1])}
    alone = [(i, place[word]) for i, word in enumerate(folded[0]) if first[word] == second[word] == 1]
    known = [{number for number, word in enumerate(text) if word in first and word in second} for text in folded]
    return _make_links(alone, known[0], known[1])


def _make_links(alone: Sequence[tuple[int, int]], first: Collection[int], second: Collection[int]) -> Links:
    return Links(np.asarray(sorted(alone), int).reshape(-1, 2), (first, second))


@dataclass(frozen=True)
class Alignment:
    """The links of pairs of texts. source: the rule, or the file. lines: of a file, the number of the line of each
    example and what it says."""

    source: str
    lines: Sequence[tuple[int, str]] = ()

    def find(self, number: int, texts: tuple[str, ...]) -> Links:
        """Finds the links of an example, by its number."""
        words = [[text[a:b] for a, b in find_spaced_word_spans(text)] for text in texts]
        if self.source == SAME:
            return link_equal(words)
        line, said = self.lines[number]
        return link(list(_read_links(said, [len(some) for some in words], f"{self.source}, line {line}")), words)


def _read_links(line: str, counts: Sequence[int], where: str) -> Iterator[tuple[int, int]]:
    for said in line.split():
        found = LINK.fullmatch(said)
        if found is None:
            raise BadInput(
                f"{where}: not a link, got '{said:.40}'; write numbers of words from 0, such as 0-0 1-2, and leave "
                "links out that are only possible (0p2, 0-2?)"
            )
        i, j = (int(number) for number in found.groups())
        if i >= counts[0] or j >= counts[1]:
            raise BadInput(
                f"{where}: no such word, got {said} of texts with {counts[0]} and {counts[1]} words; number from 0 "
                "what white space separates"
            )
        yield i, j


def read_alignment(name: str, pairs: Examples) -> Alignment:
    """Reads and checks the alignment of all pairs. Raises BadInput for a file that does not fit them."""
    if name == SAME:
        return Alignment(SAME)
    file = expand_path(name)
    if file.is_dir():
        raise BadInput(f"alignment: it is a folder, got '{name}'; name the file of links in it")
    if not file.is_file():
        raise BadInput(
            f"alignment: no such file, got '{name}'; give a file with a line of links per pair, such as 0-0 1-2, or "
            f"'{SAME}' for equal words"
        )
    alignment = Alignment(name, list(_read_example_lines(check_readable(file), pairs)))
    for number, example in enumerate(pairs.examples()[0]):
        alignment.find(number, example.texts)
    return alignment


def _read_example_lines(file: Path, pairs: Examples) -> Iterator[tuple[int, str]]:
    with lines_of(file) as lines:
        number = 0
        for number, (line, pair) in enumerate(zip_longest(lines, pairs.read()), 1):
            if line is None or pair is None:
                fewer = "fewer" if line is None else "more"
                raise BadInput(
                    f"{file}: {fewer} lines than pairs of texts, got {_count(file)} lines for "
                    f"{sum(1 for _ in pairs.read())} pairs; write a line for each, empty where no words are linked"
                )
            if isinstance(pair, Example):
                yield number, line


def _count(file: Path) -> int:
    with lines_of(file) as lines:
        return sum(1 for _ in lines)


@dataclass(frozen=True, kw_only=True)
class Aligned(Examples):
    """A column of pairs of texts whose words are aligned.

    A row is a word of the first text and the one that is linked with it: the words of both columns are the same rows,
    in the order of the first text. pairs: both texts. columns: each text by itself. place: which of them this is.
    """

    pairs: Examples
    columns: tuple[Examples, Examples]
    place: int
    alignment: Alignment

    def count_unspaced(self) -> int:
        """Counts the texts without white space that have several words, if they are most of the column; else 0."""
        examples, _ = self.pairs.examples()
        texts = [example.texts[self.place] for example in examples]
        count = sum(len(text.split()) == 1 and len(find_word_spans(text)) > 1 for text in texts)
        return count if count > len(texts) / 2 else 0

    def align(self, tokenizers: Mapping[str, Any], extract: Extract, seed: int) -> dict[str, Sequences]:
        """Sequences with aligned words alone, of the first stretch of each text: the same pairs of words for all
        models. Raises BadInput where no link is left."""
        made = [column.align(tokenizers, extract, seed) for column in self.columns]
        read = [_list_read_words(next(iter(of_models.values()))) for of_models in made]
        examples, _ = self.pairs.examples()
        kept: dict[int, Int[np.ndarray, "k 2"]] = {}
        reasons = Counter[str]()
        for number, words in read[self.place].items():
            links = self.alignment.find(number, examples[number].texts)
            there = [np.isin(links.alone[:, side], read[side].get(number, [])) for side in (0, 1)]
            kept[number] = links.alone[there[0] & there[1]]
            reasons.update(_why_not(words, links, kept[number], self.place, examples[number].texts[self.place]))
        kept = {number: links for number, links in kept.items() if len(links)}
        if not kept:
            why = ", ".join(f"{count} {_name_many(reason, count)}" for reason, count in reasons.items())
            give = "a file of links" if self.alignment.source == SAME else "links of single words of the same texts"
            raise BadInput(
                f"data.alignment: no word of {self.source} has a link to one other word alone, got {why}; give {give}"
            )
        return {label: _keep(given, kept, self.place, reasons, extract) for label, given in made[self.place].items()}


def _name_many(reason: str, count: int) -> str:
    """Names words by a reason, after their number."""
    return reason.replace("a word", "word" if count == 1 else "words", 1)


def _find_first_sequences(given: Sequences) -> tuple[Int[np.ndarray, " e"], Int[np.ndarray, " e"]]:
    """Finds the examples, and the first sequence of each."""
    assert given.example is not None
    return np.unique(given.example, return_index=True)


def _list_read_words(given: Sequences) -> dict[int, Int[np.ndarray, " w"]]:
    """Lists by example the words in its first sequence."""
    assert given.word is not None
    return {
        number: np.setdiff1d(given.word[row], [NONE])
        for number, row in zip(*(each.tolist() for each in _find_first_sequences(given)), strict=True)
    }


def _why_not(
    words: Int[np.ndarray, " w"], links: Links, kept: Int[np.ndarray, "k 2"], place: int, text: str
) -> Iterator[str]:
    """Says of each word that is read and is not a row, why."""
    spans = find_spaced_word_spans(text).tolist()
    for word in np.setdiff1d(words, kept[:, place]).tolist():
        if word in links.alone[:, place]:
            yield PARTNER
        elif word in links.linked[place]:
            yield SEVERAL
        else:
            yield UNLINKED if has_letters(text[slice(*spans[word])]) else BARE


def _keep(
    given: Sequences, kept: Mapping[int, Int[np.ndarray, "k 2"]], place: int, reasons: Counter[str], extract: Extract
) -> Sequences:
    """The first sequences of the examples that have links, with these words alone, which have the positions of those of
    the first text."""
    numbers, firsts = _find_first_sequences(given)
    some = given.take(firsts[np.isin(numbers, list(kept))])
    assert some.example is not None
    assert some.word is not None
    assert given.word is not None
    word, position = some.word.copy(), some.position.astype(np.int32)
    for row, number in enumerate(some.example.tolist()):
        to = np.full(int(word[row].max()) + 2, NONE)  # the last: of no word
        to[kept[number][:, place]] = kept[number][:, 0]
        of_first = to[word[row]]
        word[row, of_first == NONE] = NONE
        if place:
            position[row] = of_first
    behind = _count_words(given) - _count_words(given.take(firsts))
    left_out = reasons + Counter({f"a word behind the first {extract.length} tokens": behind})
    without = +Counter({"no aligned words": len(numbers) - len(some.example)})
    return replace(
        some,
        word=word,
        position=position,
        split=0,
        lost=given.lost + left_out.total(),
        dropped={**given.dropped, **without},
        words_dropped={**given.words_dropped, **left_out},
    )


def _count_words(given: Sequences) -> int:
    assert given.word is not None
    return sum(len(np.setdiff1d(words, [NONE])) for words in given.word)
