"""Sentences of words -> token sequences that tell which word each token is a piece of.

Words are what models with different tokenizers have in common: every model reads the same stretches of the same
sentences, one row per word. The words of a sentence are joined by spaces and located by character offsets.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from repsim_cli.data.base import Sequences, draw
from repsim_cli.errors import BadInput

NONE, ADDED = -1, -2  # a token of the text but of no word; a token that the tokenizer's template adds
AT_ONCE = 256  # sentences tokenized at a time


class Pieces(NamedTuple):
    """A stretch of a sentence under one tokenizer.

    tokens: their ids, words (from 0 in the stretch, NONE or ADDED) and segments.
    segmented: whether the tokenizer gives segments.
    lost: why the words cannot be told apart; None where they can.
    """

    tokens: Int[np.ndarray, "3 s"]
    segmented: bool
    lost: str | None

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


def pieces(tokenizer: Any, sentences: Sequence[Sequence[str]]) -> list[Pieces]:
    """Each whole sentence, with the tokenizer's special tokens; a token is a piece of the word that it overlaps."""
    given = tokenizer(
        [" ".join(words) for words in sentences],
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    segments = given.get("token_type_ids")
    stretches = []
    for i, words in enumerate(sentences):
        ids, added = np.asarray(given["input_ids"][i]), np.asarray(given["special_tokens_mask"][i], bool)
        spans = np.asarray(given["offset_mapping"][i]).reshape(-1, 2)
        word, lost = _words(spans, added, words)
        segment = np.zeros_like(ids) if segments is None else np.asarray(segments[i])
        stretches.append(Pieces(np.stack([ids, word, segment]).astype(np.int32), segments is not None, lost))
    return stretches


def _words(
    spans: Int[np.ndarray, "s 2"], added: Bool[np.ndarray, " s"], words: Sequence[str]
) -> tuple[Int[np.ndarray, " s"], str | None]:
    """The word of every token, and why words cannot be told apart (None where they can)."""
    lengths = np.asarray([len(word) for word in words])
    ends = (lengths + 1).cumsum() - 1
    starts = ends - lengths
    first = np.searchsorted(ends, spans[:, 0], side="right")
    last = np.searchsorted(starts, spans[:, 1], side="left") - 1
    inside = ~added & (spans[:, 1] > spans[:, 0])
    word = np.where(added, ADDED, np.where(inside & (first == last), first, NONE))
    of_words = word[word >= 0]
    if (inside & (last > first)).any():
        return word, "a token of two words"
    if len(np.unique(of_words)) < len(words):
        return word, "a word without a token"
    if (np.diff(of_words) < 0).any():
        return word, "pieces out of order"
    return word, None


class Stretch(NamedTuple):
    """Words of a sentence, from `first` on, under every tokenizer."""

    sentence: int
    first: int
    given: list[Pieces]


def align(
    sentences: Sequence[Sequence[str]],
    tokenizers: Mapping[str, Any],
    *,
    length: int,
    long: Literal["split", "refuse"],
    keep: Literal["first", "last"],
    sequences: int,
    seed: int,
    source: str,
    dropped: Mapping[str, int],
) -> dict[str, Sequences]:
    """`sequences` sentences, drawn under the seed, in the order of the data: the same stretches for every tokenizer.

    A sentence with more than `length` tokens under any tokenizer is refused, or split for all of them before the first
    word that does not fit, as often as needed. Of a single word that is longer, the `keep` pieces that fit are kept. A
    sentence in which a tokenizer drops a word or merges two is left out for all, and counted by reason.
    """
    for label, tokenizer in tokenizers.items():
        extra = tokenizer.num_special_tokens_to_add()
        if length <= extra:
            raise BadInput(
                f"extract.length: too short for {extra} special tokens and a word of '{label}', got {length}; raise it"
            )
    drawn = draw(len(sentences), sequences, seed)
    left_out: Counter[str] = Counter(dropped)
    kept: list[Stretch] = []
    split = lost = 0
    for start in range(0, len(drawn), AT_ONCE):
        numbers: list[int] = drawn[start : start + AT_ONCE].tolist()
        tokenized = [pieces(tokenizer, [sentences[i] for i in numbers]) for tokenizer in tokenizers.values()]
        for number, given in zip(numbers, zip(*tokenized, strict=True), strict=True):
            stretches = [Stretch(number, 0, list(given))]
            if max(whole.length for whole in given) > length:
                if long == "refuse":
                    raise _too_long(number, sentences[number], dict(zip(tokenizers, given, strict=True)), length)
                stretches = list(_split(number, sentences[number], tokenizers, list(given), length))
                split += len(stretches) > 1
            reason = next((part.lost for stretch in stretches for part in stretch.given if part.lost), None)
            if reason is not None:
                left_out[reason] += 1
                lost += len(sentences[number])
                continue
            kept += stretches
    if not kept:
        why = ", ".join(f"{count} with {reason}" for reason, count in left_out.items())
        raise BadInput(f"{source}: no sentence is left, got {why}; use other data, or models with other tokenizers")
    return {
        label: _padded(
            kept,
            place,
            tokenizer,
            length,
            keep,
            {"documents": len(sentences), "dropped": dict(left_out), "split": split, "lost": lost},
        )
        for place, (label, tokenizer) in enumerate(tokenizers.items())
    }


def _too_long(number: int, words: Sequence[str], given: Mapping[str, Pieces], length: int) -> BadInput:
    label = max(given, key=lambda label: given[label].length)
    return BadInput(
        f"extract.length: sentence {number} ({' '.join(words)!r:.60}) has {given[label].length} tokens for '{label}', "
        f"got a length of {length}; raise it, or cut long sentences with extract.long=split"
    )


def _split(
    number: int, words: Sequence[str], tokenizers: Mapping[str, Any], given: list[Pieces], length: int
) -> Iterator[Stretch]:
    """Stretches of as many words as fit under every tokenizer. Each is tokenized as a separate text."""
    # the number of tokens of the text up to the last piece of each word
    reach = [np.maximum.accumulate(whole.tokens[1][whole.tokens[1] != ADDED]) for whole in given]
    counts = [np.searchsorted(r, np.arange(len(words)), side="right") for r in reach]
    extra = [tokenizer.num_special_tokens_to_add() for tokenizer in tokenizers.values()]
    first = 0
    while first < len(words):
        fits = [
            int(np.searchsorted(ends, (ends[first - 1] if first else 0) + length - more, side="right"))
            for ends, more in zip(counts, extra, strict=True)
        ]
        stop = max(min(fits), first + 1)
        while True:
            parts = [pieces(tokenizer, [words[first:stop]])[0] for tokenizer in tokenizers.values()]
            if stop == first + 1 or max(part.length for part in parts) <= length:
                break
            stop -= 1
        yield Stretch(number, first, parts)
        first = stop


def _padded(
    stretches: list[Stretch], place: int, tokenizer: Any, length: int, keep: str, counts: Mapping[str, Any]
) -> Sequences:
    """The sequences for one tokenizer, padded on the right to the longest."""
    longest = min(length, max(stretch.given[place].length for stretch in stretches))
    fill = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
    shape = (len(stretches), longest)
    segmented = stretches[0].given[place].segmented
    most = max(stretch.first + stretch.given[place].tokens[1].max() for stretch in stretches)
    # narrow types: these arrays grow with the number of sentences
    ids, word = np.full(shape, fill, np.int32), np.full(shape, NONE, np.min_scalar_type(-int(most) - 2))
    mask, text = np.zeros(shape, bool), np.zeros(shape, bool)
    segments = np.zeros(shape, np.int8) if segmented else None
    example = np.asarray([stretch.sentence for stretch in stretches])
    cut = 0
    for row, stretch in enumerate(stretches):
        tokens = stretch.given[place].tokens
        if tokens.shape[1] > length:
            tokens, cut = _cut(tokens, length, keep), cut + 1
        inside = slice(0, tokens.shape[1])
        of_text = tokens[1] != ADDED
        ids[row, inside], mask[row, inside], text[row, inside] = tokens[0], True, of_text
        word[row, inside] = np.where(tokens[1] >= 0, tokens[1] + stretch.first, NONE)
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
        **counts,
    )


def _cut(tokens: Int[np.ndarray, "3 s"], length: int, keep: str) -> Int[np.ndarray, "3 l"]:
    """Of a word with too many tokens, the first or last that fit, and what the template adds."""
    of_text = np.flatnonzero(tokens[1] != ADDED)
    fits = length - (tokens.shape[1] - len(of_text))
    left_out = of_text[fits:] if keep == "first" else of_text[: len(of_text) - fits]
    return np.delete(tokens, left_out, axis=1)
