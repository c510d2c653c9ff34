"""Copies of a text: which there are, and where so many are read that they are warned of."""

from collections.abc import Callable, Hashable, Iterable, Iterator

import numpy as np
from jaxtyping import Int

from repsim_cli.data.base import Sequences

MANY = 0.1  # share of texts, from which on copies are warned of
COMPARED = 1 << 20  # characters of a document that are compared


def find_equal_texts(texts: Iterable[tuple[int, Hashable]]) -> dict[int, int]:
    """Finds, of numbered texts, those that equal one before them, and the number of the first such one.

    >>> find_equal_texts([(0, "a"), (1, "b"), (4, "a"), (7, "a")])
    {4: 0, 7: 0}
    """
    first: dict[Hashable, int] = {}
    return {number: same for number, text in texts if (same := first.setdefault(text, number)) != number}


def number_texts(documents: Iterable[str], copies: dict[int, int], size: int = COMPARED) -> Iterator[tuple[int, str]]:
    """Numbers texts, and notes of each that has the text of one before it the number of that one in `copies`.

    size: documents are compared by this many of their first characters, and by their length.
    """
    first: dict[tuple[int, int], int] = {}
    for number, document in enumerate(documents):
        text = document.strip()
        if (same := first.setdefault((len(text), hash(text[:size])), number)) != number:
            copies[number] = same
        yield number, document


def find_equal_sequences(sequences: Sequences) -> Int[np.ndarray, " N"]:
    """Finds for each sequence the first one of the same tokens, which may be itself."""
    tokens = (ids[text].tobytes() for ids, text in zip(sequences.ids, sequences.text, strict=True))
    copies = find_equal_texts(enumerate(tokens))
    return np.array([copies.get(place, place) for place in range(len(sequences.text))], dtype=np.int64)


def count_copied_texts(sequences: Sequences) -> tuple[int, int]:
    """Counts, of the texts that are read, those that are copies of one of these, and all."""
    read = np.unique(sequences.document[sequences.text])
    return len(read) - len(np.unique(sequences.join_copies(read))), len(read)


def warn_of_copies(
    copies: int, count: int, warn: Callable[[str], None], what: str, then: str = "errors are over those that differ"
) -> None:
    """Warns where many texts are copies of others. what: whose text it is, as the warning begins. then: what becomes of
    errors."""
    if copies > MANY * count:
        warn(
            f"{what}: {copies:,} of {count:,} texts are copies of others, and {then}; drop the copies, which count in "
            "every mean"
        )
