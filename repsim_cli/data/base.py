"""What every data kind provides: the sequences that models run on, and which places become rows."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int, Shaped

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import EveryData, Extract

Modality = Literal["text", "images", "sound", "numbers"]


@dataclass(frozen=True)
class Labels:
    """names[codes[i]] is the label of sequence i; the names are in the order of the data set."""

    codes: Int[np.ndarray, " N"]
    names: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        return {name: int((self.codes == code).sum()) for code, name in enumerate(self.names)}


@dataclass(frozen=True)
class Sequences:
    """N sequences of L places each: tokens, or the patches of an image.

    inputs: the model's input, token ids (N, L) or pixel values (N, channels, height, width).
    mask: False where padded (on the right).
    text: True for tokens of documents and patches of images, False for padding and for tokens that the tokenizer, its
    chat template or packing added, whatever their ids.
    document, position: the row id of each place: its document (or example, or image) and its place there (-1 where
    not text).
    documents: how many were read.
    copies: by a document or example that has the text of one before it, the number of that one.
    available: how many sequences these were drawn from, where they are counted.
    segments: which text of a pair a token belongs to, if the tokenizer tells.
    example: the number in the data set of the example behind each sequence; None where sequences are packed.
    truncated: how many examples were cut to L.
    dropped: how many examples were left out, by reason.
    word: the number (from 0) of the word that the token is a piece of, ascending within a sequence, -1 elsewhere.
    Position is then the same, and document the sentence, document or example. Of a text whose words are aligned with
    those of another, position is the number of the word in that one: it is the order of rows.
    split: how many sentences or examples span several sequences.
    lost: how many words were left out, alone or with their sentence.
    words_dropped: how many words were left out alone, by reason.
    skip: places that the settings of the run leave out (`extract.skip`, `skip_tokens`); None: none.
    left_out: places without a row because some model of the run skips it; with pooled rows, all places of a sequence.
    spelled: how many tokens of the text are special ones of the tokenizer, which the text spells out or which stand for
    what the tokenizer does not know, by token.
    """

    inputs: Shaped[np.ndarray, "N ..."]
    mask: Bool[np.ndarray, "N L"]
    text: Bool[np.ndarray, "N L"]
    document: Int[np.ndarray, "N L"]
    position: Int[np.ndarray, "N L"]
    documents: int
    copies: Mapping[int, int] = field(default_factory=dict)
    available: int | None = None
    segments: Int[np.ndarray, "N L"] | None = None
    example: Int[np.ndarray, " N"] | None = None
    labels: Labels | None = None
    truncated: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    word: Int[np.ndarray, "N L"] | None = None
    split: int = 0
    lost: int = 0
    words_dropped: Mapping[str, int] = field(default_factory=dict)
    skip: Bool[np.ndarray, "N L"] | None = None
    left_out: Bool[np.ndarray, "N L"] | None = None
    spelled: Mapping[str, int] = field(default_factory=dict)

    @property
    def ids(self) -> Int[np.ndarray, "N L"]:
        """Token ids, of text."""
        return self.inputs

    @property
    def of_one(self) -> bool:
        """Tells whether all text is of one document."""
        return len(np.unique(self.document[self.text])) == 1

    def join_copies(self, documents: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Numbers documents as these, which may be -1, but copies of a text as the first of them."""
        same = np.arange(2 + max(self.documents, documents.max(initial=0)), dtype=documents.dtype)
        same[-1] = -1
        same[list(self.copies)] = list(self.copies.values())
        return same[documents]

    def take(self, rows: slice | Int[np.ndarray, " n"], places: int | None = None) -> "Sequences":
        """A selection of the sequences, in this order. places: how many of the first places of each are kept; None:
        all."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {
            name: array[rows, :places] if array.ndim == 2 else array[rows]
            for name, array in arrays.items()
            if isinstance(array, np.ndarray)
        }
        labels = None if self.labels is None else replace(self.labels, codes=self.labels.codes[rows])
        return replace(self, **taken, labels=labels)

    def hash(self) -> str:
        """sha256 of inputs, mask and row ids: equal means the same rows in the same order."""
        digest = hashlib.sha256()
        for name in ("inputs", "segments", "mask", "text", "document", "position", "example", "word"):
            array = getattr(self, name)
            if array is not None:
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class Data(ABC):
    """A data set of a run.

    source: where a reader of the results finds the data.
    running: it is running text, documents without labels.
    worded: it consists of sentences of words.
    chat: each text is put into the chat template of the model.
    public: its texts ship with the package, are made by it or come from a public address, so that a run may keep some.
    columned: it has two columns of text, which are read one by one.
    """

    modality: ClassVar[Modality] = "text"
    running: ClassVar[bool] = False
    worded: ClassVar[bool] = False
    columned: ClassVar[bool] = False
    source: str
    chat: bool = False
    public: bool = False

    @property
    def modalities(self) -> frozenset[Modality]:
        """The modalities of the models that may read it."""
        return frozenset({self.modality})

    @property
    def labelled(self) -> bool:
        """Tells whether its examples have classes."""
        return False

    @property
    def spanned(self) -> bool:
        """Tells whether it marks spans in its texts."""
        return False

    @abstractmethod
    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        """The sequences for a model with this tokenizer. Raises BadInput for data that cannot be used."""

    def packs(self, extract: Extract) -> bool:
        """Tells whether documents are joined and cut into sequences, whose ends then depend on the tokenizer."""
        return self.running and not self.chat and extract.unit in ("token", "sequence")

    def sentences(self) -> list[list[str]]:
        """Lists all sentences; `Sequences.example` is an index into this list. Raises BadInput where data are not
        `worded`."""
        raise BadInput(
            f"data: sentences of words are needed, got {self.source}; use data=embedded_sentences, ptb or ewt"
        )

    def labels_of_examples(self) -> dict[str, list[str]]:
        """The labels of all examples, by the name of what they say; `Sequences.example` is an index into each list."""
        return {}

    def ids_of_examples(self) -> list[str] | None:
        """The ids of all examples, by which stored activations are paired; None where the data has none."""
        return None

    def labels_of_words(self) -> dict[str, list[list[str]]]:
        """The labels of all words of `sentences`, by the name of what they say."""
        return {}

    def align(self, tokenizers: Mapping[str, Any], extract: Extract, seed: int) -> dict[str, Sequences]:
        """The sequences of text for models with these tokenizers: the same words for all. Raises BadInput where there
        are not words."""
        raise BadInput(f"extract.unit: these data have no words, got word for {self.source}; use token or mean")


def apply_keys(data: Data, keys: EveryData) -> Data:
    """The data of an entry that has these keys. Raises BadInput for keys that the data cannot have."""
    if not keys.chat:
        return data
    if data.modality != "text":
        raise BadInput(f"chat: only texts are put into a chat template, got {data.modality}; drop it")
    return replace(data, chat=True)  # type: ignore[type-var]


def draw(total: int, wanted: int, seed: int) -> Int[np.ndarray, " N"]:
    """Indices of `wanted` of `total` examples or rows (at most all), drawn under the seed, ascending."""
    return np.sort(np.random.default_rng(seed).permutation(total)[:wanted])
