"""Documents -> packed token sequences of one length, with the place of every token in its document."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from repsim_cli.data.text import Text
from repsim_cli.errors import BadInput

PIECE = 1 << 20  # characters tokenized at a time


@dataclass(frozen=True)
class Sequences:
    """N packed sequences of L tokens.

    ids: token ids. mask: False where padded (right side of the last sequence of a text). text: True for tokens
    of documents, False for separators and padding. document, position: the row id of each token, its document
    and its place in it (-1 for separators and padding).
    """

    ids: Int[np.ndarray, "N L"]
    mask: Bool[np.ndarray, "N L"]
    text: Bool[np.ndarray, "N L"]
    document: Int[np.ndarray, "N L"]
    position: Int[np.ndarray, "N L"]
    documents: int

    def hash(self) -> str:
        """sha256 of ids, mask and row ids: equal means the same rows in the same order."""
        digest = hashlib.sha256()
        for array in (self.ids, self.mask, self.document, self.position):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def separator_id(tokenizer: Any, separator: str) -> int | None:
    """The id put before each document; None where the tokenizer has none and none was insisted on."""
    if separator == "none":
        return None
    wanted = ("eos", "sep", "bos") if separator == "auto" else (separator,)
    for name in wanted:
        token = getattr(tokenizer, f"{name}_token_id")
        if token is not None:
            return token
    if separator == "auto":
        return None
    raise BadInput(
        f"extract.separator: the tokenizer has no {separator} token, got '{separator}'; "
        "use auto, or none to join documents directly"
    )


def pack(text: Text, tokenizer: Any, *, length: int, sequences: int, pool: int, separator: str, seed: int) -> Sequences:
    """`sequences` packed sequences, drawn under the seed from the first `pool` of the text, in text order.

    Documents are joined, each after a separator, and cut every `length` tokens; the tail is padded.
    """
    joint = separator_id(tokenizer, separator)
    rows: list[np.ndarray] = []
    pending = np.empty((3, 0), np.int64)
    documents = 0
    for document, first, place, tokens in _tokenized(text, tokenizer):
        documents = document + 1
        placed = np.stack([tokens, np.full_like(tokens, document), place + np.arange(len(tokens))])
        if joint is not None:
            placed[1:, tokens == joint] = -1
            if first:
                placed = np.concatenate([[[joint], [-1], [-1]], placed], axis=1)
        pending = np.concatenate([pending, placed], axis=1)
        whole = min(pending.shape[1] // length, pool - len(rows))
        rows += [pending[:, i * length : (i + 1) * length].astype(np.int32) for i in range(whole)]
        pending = pending[:, whole * length :]
        if len(rows) == pool:
            break
    if len(rows) < pool and pending.shape[1]:
        fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (joint or 0)
        tail = np.stack([np.full(length, fill), np.full(length, -1), np.full(length, -2)]).astype(np.int32)
        tail[:, : pending.shape[1]] = pending
        rows.append(tail)
    if not rows:
        raise BadInput(f"{text.source}: no tokens, got {documents} documents; give a text with words")
    drawn = np.random.default_rng(seed).permutation(len(rows))[:sequences]
    ids, document, position = np.stack([rows[i] for i in np.sort(drawn)], axis=1)
    padding = position == -2
    return Sequences(
        ids=ids,
        mask=~padding,
        text=document >= 0,
        document=document,
        position=np.where(padding, -1, position),
        documents=documents,
    )


def _tokenized(text: Text, tokenizer: Any) -> Iterator[tuple[int, bool, int, np.ndarray]]:
    """(document, whether it begins here, place of the first token in it, tokens).

    Long documents come in pieces, so that memory and time are bounded by what the pool takes.
    """
    for number, document in enumerate(text.documents()):
        place = 0
        for index, piece in enumerate(pieces(document)):
            ids = tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            yield number, index == 0, place, np.asarray(ids, np.int64)
            place += len(ids)


def pieces(document: str, size: int = PIECE) -> Iterator[str]:
    """Cuts a long document before white space where there is some, which byte-level tokenizers cut at too.

    >>> list(pieces("one two three", size=6))
    ['one', ' two', ' three']
    """
    start = 0
    while len(document) - start > size:
        # not at the start itself, or the piece would be empty
        space = max(document.rfind(" ", start + 1, start + size), document.rfind("\n", start + 1, start + size))
        end = space if space > 0 else start + size
        yield document[start:end]
        start = end
    yield document[start:]
