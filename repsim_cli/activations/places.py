"""Which places of sequences are rows of a run, and what is known of each row."""

import numpy as np
from jaxtyping import Bool, Int

from repsim_cli.activations.segments import BOTH, DOCUMENT, SEQUENCE
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Data, Sequences

Places = tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]


def mark_read_places(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """Marks the places that are read. Tokens: only those of documents (`drop`), or all (`keep`). Words: the pieces that
    stand for them. Pooled rows: the places that are pooled, never padding or what is skipped (unless nothing else is
    there: such a row is left out)."""
    if extract.unit in WORDS:
        return _find_word_pieces(sequences)[extract.piece]
    if extract.unit == "token":
        return sequences.text if extract.padding == "drop" else np.ones_like(sequences.text)
    if extract.unit in ("mean", "sequence"):
        return _drop_skipped(sequences, sequences.text if extract.padding == "drop" else sequences.mask)
    order = _drop_skipped(sequences, sequences.mask)
    order = order if extract.unit == "first" else order[:, ::-1]
    alone = order & (order.cumsum(1) == 1)
    return alone if extract.unit == "first" else alone[:, ::-1].copy()


def _drop_skipped(sequences: Sequences, places: Bool[np.ndarray, "N L"]) -> Bool[np.ndarray, "N L"]:
    """The places that are not skipped; of a sequence without any, all of them."""
    if sequences.skip is None:
        return places
    left = places & ~sequences.skip
    return np.where(left.any(1, keepdims=True), left, places)


def _find_word_pieces(sequences: Sequences) -> dict[str, Bool[np.ndarray, "N L"]]:
    """Marks the places of the last, the first and all pieces of words, by `extract.piece`."""
    word = sequences.word
    assert word is not None, "extract.unit=word needs sequences that say of which word each token is"
    pieces = word >= 0
    # words ascend: a piece is the first of its word if all before belong to lower words, the last if all after belong
    # to higher ones
    before = np.maximum.accumulate(word, 1)
    after = np.minimum.accumulate(np.where(pieces, word, np.iinfo(word.dtype).max)[:, ::-1], 1)[:, ::-1]
    first, last = pieces.copy(), pieces.copy()
    first[:, 1:] &= word[:, 1:] > before[:, :-1]
    last[:, :-1] &= word[:, :-1] < after[:, 1:]
    return {"last": last, "first": first, "mean": pieces}


def mark_row_places(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """Marks one place for every row that models give, unless rows are pooled sequences: then all that are pooled."""
    if extract.unit in WORDS and extract.piece == "mean":
        return _find_word_pieces(sequences)["first"]
    return mark_read_places(sequences, extract)


def count_given_rows(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " N"]:
    """Counts the rows that models give for each sequence: its places or words, or one if any place is pooled."""
    places = mark_row_places(sequences, extract)
    return places.any(1).astype(int) if extract.pooled else places.sum(1)


def order_places(sequences: Sequences, places: Bool[np.ndarray, "N L"], extract: Extract) -> Places:
    """Lists the sequences and the places of rows, in row order: words by their positions, which need not be the
    order of their places; others place by place."""
    sequence, place = places.nonzero()
    if extract.unit in WORDS:
        order = np.lexsort((sequences.position[sequence, place], sequence))
        return sequence[order], place[order]
    return sequence, place


def _of_run(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """Marks places as `mark_row_places` does, without those of rows that the run leaves out."""
    places = mark_row_places(sequences, extract)
    return places if sequences.left_out is None else places & ~sequences.left_out


def _order_row_places(sequences: Sequences, extract: Extract) -> Places:
    return order_places(sequences, _of_run(sequences, extract), extract)


def list_row_places(sequences: Sequences, extract: Extract) -> Int[np.ndarray, "n 2"]:
    """The sequence and the place of every row of the run, in row order; of a pooled row its first place."""
    if extract.pooled:
        places = _of_run(sequences, extract)
        return np.argwhere(places & (places.cumsum(1) == 1))
    return np.stack(_order_row_places(sequences, extract), 1)


def find_rows(sequences: Sequences, extract: Extract) -> Int[np.ndarray, "N L"]:
    """Finds the row of the run that each place of text is a part of, -1 where it is of none: all tokens of a text, and
    all pieces of a word."""
    sequence, place = list_row_places(sequences, extract).T
    if extract.pooled:
        rows = np.full(len(sequences.text), -1)
        rows[sequence] = np.arange(len(sequence))
        return np.where(sequences.text, rows[:, None], -1)
    assert sequences.word is not None
    rows = np.full((len(sequences.word), int(sequences.word.max()) + 2), -1)  # the last column: of no word
    rows[sequence, sequences.word[sequence, place]] = np.arange(len(sequence))
    return rows[np.arange(len(rows))[:, None], sequences.word]


def count_kept_rows(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " N"]:
    """Counts the rows of the run from each sequence: those of `count_given_rows` that no model leaves out."""
    places = _of_run(sequences, extract)
    return places.any(1).astype(int) if extract.pooled else places.sum(1)


def mark_kept_rows(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, " n"] | None:
    """Marks the rows that models give and that are rows of the run; None: all are."""
    if sequences.left_out is None:
        return None
    places = mark_row_places(sequences, extract)
    if extract.pooled:
        return ~np.all(sequences.left_out, axis=1)[np.any(places, axis=1)]
    return ~sequences.left_out[order_places(sequences, places, extract)]


def list_row_labels(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"] | None:
    """The label code of every row of the run, in row order; None where the data has none."""
    if sequences.labels is None:
        return None
    return np.repeat(sequences.labels.codes, count_kept_rows(sequences, extract))


def list_row_examples(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """The number in the data set of the example or sentence of every row of the run, in row order."""
    assert sequences.example is not None
    return np.repeat(sequences.example, count_kept_rows(sequences, extract))


def list_row_words(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """The number in its sentence of every row of the run that is a word, in row order."""
    assert sequences.word is not None
    return sequences.word[_order_row_places(sequences, extract)]


def list_row_documents(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """The document or sentence of every row of the run, in row order; of copies of a text, the first. For pooled rows,
    their sequence."""
    if extract.unit in ("token", *WORDS):
        return sequences.join_copies(sequences.document[_order_row_places(sequences, extract)])
    return np.flatnonzero(count_kept_rows(sequences, extract))


def list_row_positions(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"] | None:
    """The place of every row in its sequence, which counts special tokens; None for pooled rows, which have none."""
    if extract.unit not in ("token", *WORDS):
        return None
    return _order_row_places(sequences, extract)[1]


def list_row_tokens(sequences: Sequences, extract: Extract, before: bool = False) -> Int[np.ndarray, " n"]:
    """The token id of every row of the run that is a token or word (of its last or first piece), in row order. before:
    that of the place before it, -1 where it is the first of its sequence."""
    ids = sequences.ids
    if before:
        ids = np.concatenate([np.full_like(ids[:, :1], -1), ids[:, :-1]], axis=1)
    return ids[_order_row_places(sequences, extract)].astype(np.int64)


def list_row_identities(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"] | None:
    """Lists the token of every row of the run, or a number for its word (equal where all pieces are), in row order;
    None for pooled rows and images."""
    if extract.unit not in ("token", *WORDS) or sequences.inputs.ndim != 2:
        return None
    if extract.unit == "token":
        return list_row_tokens(sequences, extract)
    assert sequences.word is not None
    known: dict[bytes, int] = {}
    ids, of = sequences.ids, sequences.word
    words = (ids[at][of[at] == of[at, place]].tobytes() for at, place in list_row_places(sequences, extract))
    return np.array([known.setdefault(pieces, len(known)) for pieces in words], dtype=np.int64)


def list_row_properties(data: Data, sequences: Sequences, extract: Extract) -> dict[str, list[str]]:
    """Lists the labels of every row of the run, those of its example or its word, in row order, by name."""
    if sequences.example is None:
        return {}
    examples = list_row_examples(sequences, extract)
    found = {name: [labels[i] for i in examples] for name, labels in data.labels_of_examples().items()}
    if extract.unit == "word" and sequences.word is not None:
        at = list(zip(examples, list_row_words(sequences, extract), strict=True))
        found |= {name: [labels[i][j] for i, j in at] for name, labels in data.labels_of_words().items()}
    return found


def mark_row_beginnings(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """Marks every row of the run that is the first of its document or sequence: DOCUMENT + SEQUENCE of `segments.py`,
    one of them, or 0."""
    if extract.unit not in ("token", *WORDS):
        return np.full(count_kept_rows(sequences, extract).sum(), BOTH)
    places = _of_run(sequences, extract)
    first = places & (places.cumsum(1) == 1)
    document = np.where(places, sequences.document, -1)
    # a document that begins inside a sequence, wherever its first row is in it
    before = np.maximum.accumulate(np.where(places, np.arange(places.shape[1]), -1), 1)[:, :-1]
    changed = np.zeros_like(places)
    changed[:, 1:] = document[:, 1:] != np.take_along_axis(document, before.clip(0), 1)
    begins = np.where(first, _begins_in_sequence(sequences, first), changed)
    return (DOCUMENT * begins + SEQUENCE * first)[_order_row_places(sequences, extract)]


def _begins_in_sequence(sequences: Sequences, first: Bool[np.ndarray, "N L"]) -> Bool[np.ndarray, "N 1"]:
    """Tells for each sequence whether the document of its first row begins in it, at that row or before."""
    at = first.argmax(1)[:, None]
    same = sequences.document == np.take_along_axis(sequences.document, at, 1)
    before = np.arange(first.shape[1]) <= at
    return (same & before & (sequences.position == 0)).any(1, keepdims=True)


def have_same_rows(a: Sequences, b: Sequences, extract: Extract) -> bool:
    """Tells whether two models see the same rows in the same order. Pooled examples are equal whatever their tokens."""
    if not np.array_equal(count_given_rows(a, extract), count_given_rows(b, extract)):
        return False
    if extract.unit in WORDS:
        places = [order_places(x, mark_row_places(x, extract), extract) for x in (a, b)]
        rows_a, rows_b = ([y[at] for y in (x.position, x.document)] for x, at in zip((a, b), places, strict=True))
        return np.array_equal(rows_a, rows_b)
    if extract.unit != "token" and a.example is not None and b.example is not None:
        return np.array_equal(a.example, b.example)
    places = np.array_equal(a.document, b.document) and np.array_equal(a.position, b.position)
    # pixel values differ where models normalise them differently
    return places and (a.inputs.ndim != 2 or np.array_equal(a.inputs, b.inputs))
