"""Documents -> packed token sequences of equal length with every token's place in its document, or a sequence each."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Data, Sequences, draw
from repsim_cli.data.copies import number_texts
from repsim_cli.data.padding import pad
from repsim_cli.data.words import Passage, WordTally, align, cut_common_stretches, make_text_passage, mark_spans

PIECE = 1 << 20  # characters tokenized at a time
Spans = list[list[int]]  # the first character of each, and the one behind its last
WINDOW = 1 << 14  # characters cut into stretches at a time


@dataclass(frozen=True)
class Text(Data):
    """Raw text. documents(): a new pass over the documents, as strings, in a fixed order. spans(): the same, each with
    the spans that are marked in it.

    Tokens are read from packed sequences, words from stretches of documents. A pooled row is a document, cut to
    `length` tokens. In a chat template documents are not packed; tokens are read from each as for a pooled row.
    """

    running: ClassVar[bool] = True

    documents: Callable[[], Generator[str, None, None]]
    source: str
    spans: Callable[[], Iterator[tuple[str, Spans]]] | None = None
    chat: bool = False
    public: bool = False

    @property
    def spanned(self) -> bool:
        return self.spans is not None

    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        if extract.unit in WORDS:
            return self.align({"the model": tokenizer}, extract, seed)["the model"]
        if self.packs(extract):
            return pack(
                self,
                tokenizer,
                length=extract.length,
                sequences=extract.sequences,
                pool=extract.pool,
                separator=extract.separator,
                seed=seed,
            )
        # the first piece of a long document has more tokens than any model can read
        texts = [(next(split_document(document)),) for document in islice(self.documents(), extract.pool)]
        if len(texts) == 1 and extract.unit != "token":
            raise BadInput(
                f"extract.unit: a pooled row is a document, got one document in {self.source}; give a table or .jsonl "
                "with a text per row, split a .txt file (repsim run data.sample_by=paragraph), or use rows of tokens"
            )
        return pad(texts, tokenizer, length=extract.length, sequences=extract.sequences, seed=seed, source=self.source)

    def align(self, tokenizers: Mapping[str, Any], extract: Extract, seed: int) -> dict[str, Sequences]:
        """`sequences` stretches of at most `length` tokens, drawn under the seed from the first `pool` of the text."""
        tally, copies = WordTally(), dict[int, int]()
        cut = cut_common_stretches(
            self._passages(extract, copies), tokenizers, replace(extract, long="split"), tally, whole=False
        )
        made = list(islice(cut, extract.pool))
        tally.split = 0  # documents are cut on purpose
        chosen = [made[i] for i in draw(len(made), extract.sequences, seed)]
        documents = made[-1].passage.document + 1 if made else 0
        sequences = align(chosen, tokenizers, extract, tally, self.source, documents)
        more = {"available": len(made), "copies": copies}
        return {label: replace(given, **more) for label, given in sequences.items()}

    def _passages(self, extract: Extract, copies: dict[int, int]) -> Iterator[Passage]:
        if extract.unit == "span":
            assert self.spans is not None, "extract.unit=span needs data with spans"
            for number, (document, spans) in enumerate(self.spans()):
                yield mark_spans(number, document, spans)
            return
        for number, document in number_texts(self.documents(), copies):
            first = 0
            for text in split_document(document, WINDOW):
                passage = make_text_passage(number, (text,), first)
                yield passage
                first += len(passage.words)


def find_separator_id(tokenizer: Any, separator: str) -> int | None:
    """The id that precedes each document; None without a separator, or where `auto` finds none."""
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
    joint = find_separator_id(tokenizer, separator)
    rows: list[np.ndarray] = []
    pending = np.empty((3, 0), np.int64)
    documents, copies = 0, dict[int, int]()
    for document, same, first, place, tokens in _tokenize(text, tokenizer):
        documents = document + 1
        if same != document:
            copies[document] = same
        placed = np.stack([tokens, np.full_like(tokens, document), place + np.arange(len(tokens))])
        if joint is not None and first:
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
    ids, document, position = np.stack([rows[i] for i in draw(len(rows), sequences, seed)], axis=1)
    padding = position == -2
    return Sequences(
        inputs=ids,
        mask=~padding,
        text=document >= 0,
        document=document,
        position=np.where(padding, -1, position),
        documents=documents,
        copies=copies,
        available=len(rows),
    )


def _tokenize(text: Text, tokenizer: Any) -> Iterator[tuple[int, int, bool, int, np.ndarray]]:
    """Yields (document, the first of the same text, whether it begins here, place of its first token here, tokens).

    Long documents come in pieces, so that memory and time depend on the pool alone.
    """
    copies: dict[int, int] = {}
    for number, document in number_texts(text.documents(), copies):
        place, same = 0, copies.get(number, number)
        for index, piece in enumerate(split_document(document)):
            ids = tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            yield number, same, index == 0, place, np.asarray(ids, np.int64)
            place += len(ids)


def split_document(document: str, size: int = PIECE) -> Iterator[str]:
    """Splits a long document before white space where possible, as byte-level tokenizers do.

    >>> list(split_document("one two three", size=6))
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
