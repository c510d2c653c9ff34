"""Texts with marked words -> token sequences that tell which word each token is a piece of.

Words are what models with different tokenizers have in common: every model reads the same stretches of the same texts,
one row per word. A word is located by its characters in the text, which is tokenized as it is written.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import regex
from jaxtyping import Bool, Int

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences

NONE, ADDED = -1, -2  # a token of the text but of no word; a token that is not of the text, as the template's
AT_ONCE = 1 << 16  # characters tokenized at a time
TWO, LOST, ORDER = "a token of two words", "a word without a token", "pieces out of order"

_BOUNDARY = regex.compile(r"\b", regex.WORD)
_IN_WORDS = regex.compile(r"[\p{L}\p{N}]")
_APART = re.compile(r"\S+")  # what str.split finds, as the programs that align words do
_INNER = regex.compile(r"[^\p{P}\p{S}](?:.*[^\p{P}\p{S}])?")


def find_word_spans(text: str) -> Int[np.ndarray, "w 2"]:
    """The words of a text by the default rules of Unicode (UAX 29): their first character, and the one behind the last.

    A segment is a word if it has a letter or a digit: `don't`, `3.14` and `e.g` are words, punctuation and emoji are
    not. Han and kana outside katakana have a word per character, and so have Thai, Lao, Khmer and Burmese, which need a
    dictionary.

    >>> text = "3.14 isn't (a) word"
    >>> [text[a:b] for a, b in find_word_spans(text)]
    ['3.14', "isn't", 'a', 'word']
    """
    cuts = [0, *(match.start() for match in _BOUNDARY.finditer(text)), len(text)]
    spans = [(a, b) for a, b in pairwise(cuts) if a < b and has_letters(text[a:b])]
    return np.asarray(spans, int).reshape(-1, 2)


def find_spaced_word_spans(text: str) -> Int[np.ndarray, "w 2"]:
    """Finds the words of a text that white space separates, as programs that align words number them, each without the
    punctuation around it (a word of punctuation alone as it is): its first character, and the one behind the last.

    >>> text = '"Well-known," (e.g.) 3.5 % - no'
    >>> [text[a:b] for a, b in find_spaced_word_spans(text)]
    ['Well-known', 'e.g', '3.5', '%', '-', 'no']
    """
    found = (each.span() for each in _APART.finditer(text))
    spans = [inner.span() if (inner := _INNER.search(text, *span)) else span for span in found]
    return np.asarray(spans, int).reshape(-1, 2)


def has_letters(text: str) -> bool:
    """Tells whether a letter or a digit stands in it."""
    return _IN_WORDS.search(text) is not None


class Passage(NamedTuple):
    """A text, or a pair of texts, with the words in it that are rows.

    document: its number in the data. first: the number of its first word there.
    words: the first character of each word and the one behind its last, ascending, in the text or in both texts with a
    character between them.
    """

    document: int
    texts: tuple[str, ...]
    words: Int[np.ndarray, "w 2"]
    first: int = 0

    def part(self, start: int, stop: int) -> "Passage":
        """The words from start to stop, and the text around them up to the neighbouring words, cut at white space."""
        (text,) = self.texts
        begin, end = self._cut(text, start), self._cut(text, stop)
        part = text[begin:end].rstrip() if stop < len(self.words) else text[begin:]
        return Passage(self.document, (part,), self.words[start:stop] - begin, self.first + start)

    def _cut(self, text: str, word: int) -> int:
        """Finds the place where the text is cut before a word: after the last white space before it, if there is any
        since the word before."""
        if word == 0:
            return 0
        if word == len(self.words):
            return len(text)
        end, start = int(self.words[word - 1, 1]), int(self.words[word, 0])
        space = next((i for i in range(start, end, -1) if text[i - 1].isspace()), None)
        return start if space is None else space


def mark_spans(document: int, text: str, spans: Sequence[Sequence[int]]) -> Passage:
    """A text with spans of its characters, ascending."""
    return Passage(document, (text,), np.asarray(spans, int).reshape(-1, 2))


def make_sentence_passage(document: int, words: Sequence[str]) -> Passage:
    """Words joined by spaces."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return Passage(document, (" ".join(words),), np.stack([ends - [len(word) for word in words], ends], 1))


def make_text_passage(
    document: int,
    texts: tuple[str, ...],
    first: int = 0,
    find: Callable[[str], Int[np.ndarray, "w 2"]] = find_word_spans,
) -> Passage:
    """A text or a pair of texts, with the words that are found in it."""
    behind = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]
    words = [find(text) + at for text, at in zip(texts, behind, strict=True)]
    return Passage(document, texts, np.concatenate(words), first)


class Pieces(NamedTuple):
    """A passage under one tokenizer.

    tokens: their ids, words (from 0 in the passage, NONE or ADDED) and segments.
    segmented: whether the tokenizer gives segments.
    lost: the words that it cannot tell apart, each with the reason.
    order: whether the pieces of the words are in their order.
    """

    tokens: Int[np.ndarray, "3 s"]
    segmented: bool
    lost: Mapping[int, str]
    order: bool

    @property
    def length(self) -> int:
        return self.tokens.shape[1]


def check_offsets(tokenizer: Any) -> None:
    """Raises BadInput for a tokenizer that does not tell where its tokens are in the text."""
    if not tokenizer.is_fast:
        raise BadInput(
            f"tokenizer: words are found by character offsets, got {type(tokenizer).__name__} without any; "
            "save a fast tokenizer (tokenizer.json), or use extract.unit=mean"
        )


def tokenize_passages(tokenizer: Any, passages: Sequence[Passage]) -> list[Pieces]:
    """Tokenizes each passage, with the tokenizer's special tokens; a token is a piece of the word that it overlaps."""
    given = tokenizer(
        *map(list, zip(*(passage.texts for passage in passages), strict=True)),
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    segments = given.get("token_type_ids")
    stretches = []
    for i, passage in enumerate(passages):
        ids, added = np.asarray(given["input_ids"][i]), np.asarray(given["special_tokens_mask"][i], bool)
        spans = np.asarray(given["offset_mapping"][i]).reshape(-1, 2)
        if len(passage.texts) == 2:
            second = np.asarray([number == 1 for number in given.sequence_ids(i)])
            spans = spans + np.where(second, len(passage.texts[0]) + 1, 0)[:, None]
        word, lost, order = _assign_tokens_to_words(spans, added, passage.words)
        segment = np.zeros_like(ids) if segments is None else np.asarray(segments[i])
        tokens = np.stack([ids, word, segment]).astype(np.int32)
        stretches.append(Pieces(tokens, segments is not None, lost, order))
    return stretches


def _assign_tokens_to_words(
    spans: Int[np.ndarray, "s 2"], added: Bool[np.ndarray, " s"], words: Int[np.ndarray, "w 2"]
) -> tuple[Int[np.ndarray, " s"], dict[int, str], bool]:
    """The word of every token, the words that cannot be told apart, and whether the pieces are in order."""
    first = np.searchsorted(words[:, 1], spans[:, 0], side="right")
    last = np.searchsorted(words[:, 0], spans[:, 1], side="left") - 1
    inside = ~added & (spans[:, 1] > spans[:, 0])
    word = np.where(added, ADDED, np.where(inside & (first == last), first, NONE))
    of_words = word[word >= 0]
    lost = dict.fromkeys(np.setdiff1d(np.arange(len(words)), of_words).tolist(), LOST)
    for token in np.flatnonzero(inside & (last > first)):
        lost |= dict.fromkeys(range(first[token], last[token] + 1), TWO)
    return word, lost, not (np.diff(of_words) < 0).any()


class Stretch(NamedTuple):
    """A passage under every tokenizer, and the words in it that are not rows."""

    passage: Passage
    given: list[Pieces]
    lost: Mapping[int, str]


@dataclass
class WordTally:
    """What is left out: passages and words by reason, and words in all. split: passages read in several stretches."""

    dropped: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    split: int = 0


def cut_common_stretches(
    passages: Iterable[Passage], tokenizers: Mapping[str, Any], extract: Extract, tally: WordTally, *, whole: bool
) -> Iterator[Stretch]:
    """The same stretches of the passages for every tokenizer.

    A passage with more than `length` tokens under any tokenizer is refused, or split for all of them before the first
    word that does not fit, as often as needed; a pair of texts is left out. So is, for all tokenizers, what one of them
    drops or merges: single words, or the passage (`whole`).
    """
    length = extract.length
    for label, tokenizer in tokenizers.items():
        extra = tokenizer.num_special_tokens_to_add()
        if length <= extra:
            raise BadInput(
                f"extract.length: too short for {extra} special tokens and a word of '{label}', got {length}; raise it"
            )
    for some in _batch_passages(passages, tally):
        tokenized = [tokenize_passages(tokenizer, some) for tokenizer in tokenizers.values()]
        for passage, given in zip(some, zip(*tokenized, strict=True), strict=True):
            made = [(passage, list(given))]
            if max(part.length for part in given) > length:
                if extract.long == "refuse":
                    raise _explain_too_long(passage, dict(zip(tokenizers, given, strict=True)), length)
                if len(passage.texts) == 2:
                    tally.dropped[f"a pair of more than {length} tokens"] += 1
                    tally.lost += len(passage.words)
                    continue
                made = list(_split_parts(passage, tokenizers, list(given), length))
                tally.split += len(made) > 1
            yield from _drop_lost(made, tally, whole)


def _batch_passages(passages: Iterable[Passage], tally: WordTally) -> Iterator[list[Passage]]:
    """The passages with words, some at a time."""
    some: list[Passage] = []
    size = 0
    for passage in passages:
        if not len(passage.words):
            tally.dropped["no word"] += 1
            continue
        some.append(passage)
        size += sum(map(len, passage.texts))
        if size >= AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _drop_lost(parts: Sequence[tuple[Passage, list[Pieces]]], tally: WordTally, whole: bool) -> Iterator[Stretch]:
    """The parts of a passage without what some tokenizer loses."""
    reason = next(filter(None, (_say_why_left_out(pieces, whole) for _, some in parts for pieces in some)), None)
    if reason is not None:
        tally.dropped[reason] += 1
        tally.lost += sum(len(passage.words) for passage, _ in parts)
        return
    for passage, some in parts:
        yield Stretch(passage, some, {word: reason for pieces in some for word, reason in pieces.lost.items()})


def _say_why_left_out(pieces: Pieces, whole: bool) -> str | None:
    """Says why a passage is left out, if it is."""
    if whole and pieces.lost:
        return TWO if TWO in pieces.lost.values() else LOST
    return None if pieces.order else ORDER


def _explain_too_long(passage: Passage, given: Mapping[str, Pieces], length: int) -> BadInput:
    label = max(given, key=lambda label: given[label].length)
    return BadInput(
        f"extract.length: text {passage.document} ({' '.join(passage.texts)!r:.60}) has {given[label].length} tokens "
        f"for '{label}', got a length of {length}; raise it, or cut long texts with extract.long=split"
    )


def _split_parts(
    passage: Passage, tokenizers: Mapping[str, Any], given: list[Pieces], length: int
) -> Iterator[tuple[Passage, list[Pieces]]]:
    """Parts of as many words as fit under every tokenizer. Each is tokenized as a separate text."""
    # the number of tokens of the text up to the last piece of each word
    reach = [np.maximum.accumulate(whole.tokens[1][whole.tokens[1] != ADDED]) for whole in given]
    counts = [np.searchsorted(r, np.arange(len(passage.words)), side="right") for r in reach]
    extra = [tokenizer.num_special_tokens_to_add() for tokenizer in tokenizers.values()]
    first = 0
    while first < len(passage.words):
        fits = [
            int(np.searchsorted(ends, (ends[first - 1] if first else 0) + length - more, side="right"))
            for ends, more in zip(counts, extra, strict=True)
        ]
        stop = max(min(fits), first + 1)
        while True:
            part = passage.part(first, stop)
            parts = [tokenize_passages(tokenizer, [part])[0] for tokenizer in tokenizers.values()]
            if stop == first + 1 or max(each.length for each in parts) <= length:
                break
            stop -= 1
        yield part, parts
        first = stop


def align(
    chosen: Sequence[Stretch],
    tokenizers: Mapping[str, Any],
    extract: Extract,
    tally: WordTally,
    source: str,
    documents: int,
) -> dict[str, Sequences]:
    """A sequence for each stretch, by tokenizer: the same words for all. Raises BadInput where no word is left."""
    kept = [stretch for stretch in chosen if len(stretch.lost) < len(stretch.passage.words)]
    for stretch in chosen:
        tally.words.update(stretch.lost.values())
    if not kept:
        why = ", ".join(
            f"{count} with {reason}" for reason, count in _name_reasons(tally.dropped + tally.words, extract).items()
        )
        raise BadInput(
            f"{source}: no {extract.unit} is left, got {why}; use other data, or models with other tokenizers"
        )
    tally.lost += tally.words.total()
    return {
        label: _pad(kept, place, tokenizer, extract, tally, documents)
        for place, (label, tokenizer) in enumerate(tokenizers.items())
    }


def _name_reasons(reasons: Mapping[str, int], extract: Extract) -> dict[str, int]:
    return {reason.replace("word", extract.unit): count for reason, count in reasons.items()}


def _pad(
    kept: Sequence[Stretch], place: int, tokenizer: Any, extract: Extract, tally: WordTally, documents: int
) -> Sequences:
    """The sequences for one tokenizer, padded on the right to the longest."""
    longest = min(extract.length, max(stretch.given[place].length for stretch in kept))
    fill = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
    shape = (len(kept), longest)
    segmented = kept[0].given[place].segmented
    most = max(stretch.passage.first + len(stretch.passage.words) for stretch in kept)
    # narrow types: these arrays grow with the number of texts
    ids, word = np.full(shape, fill, np.int32), np.full(shape, NONE, np.min_scalar_type(-most - 1))
    mask, text = np.zeros(shape, bool), np.zeros(shape, bool)
    segments = np.zeros(shape, np.int8) if segmented else None
    example = np.asarray([stretch.passage.document for stretch in kept])
    cut = 0
    for row, stretch in enumerate(kept):
        tokens = stretch.given[place].tokens
        if tokens.shape[1] > extract.length:
            tokens, cut = _cut(tokens, extract.length, "last" if extract.piece == "last" else "first"), cut + 1
        inside = slice(0, tokens.shape[1])
        of_rows = (tokens[1] >= 0) & ~np.isin(tokens[1], list(stretch.lost))
        ids[row, inside], mask[row, inside], text[row, inside] = tokens[0], True, tokens[1] != ADDED
        word[row, inside] = np.where(of_rows, tokens[1] + stretch.passage.first, NONE)
        if segments is not None:
            segments[row, inside] = tokens[2]
    return Sequences(
        inputs=ids,
        segments=segments,
        mask=mask,
        text=text,
        document=np.broadcast_to(example[:, None], shape),
        position=word,
        word=word,
        example=example,
        truncated=cut,
        documents=documents,
        dropped=_name_reasons(tally.dropped, extract),
        words_dropped=_name_reasons(tally.words, extract),
        split=tally.split,
        lost=tally.lost,
    )


def _cut(tokens: Int[np.ndarray, "3 s"], length: int, keep: str) -> Int[np.ndarray, "3 l"]:
    """Cuts a word with too many tokens to the first or last that fit, and what the template adds."""
    of_text = np.flatnonzero(tokens[1] != ADDED)
    fits = length - (tokens.shape[1] - len(of_text))
    left_out = of_text[fits:] if keep == "first" else of_text[: len(of_text) - fits]
    return np.delete(tokens, left_out, axis=1)
