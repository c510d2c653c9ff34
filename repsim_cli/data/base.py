"""What every data kind gives: sequences that models are run on, with the places that become rows."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int, Shaped

from repsim_cli.settings import Extract

Modality = Literal["text", "images", "numbers"]


@dataclass(frozen=True)
class Labels:
    """names[codes[i]] is the label of sequence i; the order of the names is the data set's own."""

    codes: Int[np.ndarray, " N"]
    names: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        return {name: int((self.codes == code).sum()) for code, name in enumerate(self.names)}


@dataclass(frozen=True)
class Sequences:
    """N sequences of L places each: tokens, or the patches of an image.

    inputs: what the model is given, token ids (N, L) or pixel values (N, channels, height, width). segments: which
    text of a pair a token is of, where the tokenizer says so. mask: False where padded (on the right).
    text: True for tokens of documents and patches of images, False for special tokens and padding. document,
    position: the row id of each place, its document (or example, or image) and its place in it (-1 where not
    text). documents: how many were read. example: the number in the data set of the example that each sequence
    is (of); None where sequences are packed. truncated: examples cut to L. dropped: examples left
    out, by reason.
    word: for every place the number (from 0) of the word of its sentence that the token is a piece of, ascending
    within a sequence, -1 elsewhere; position is the same there, document the sentence of every place. split: of
    sentences, how many are several sequences.
    lost: words of sentences that are left out.
    """

    inputs: Shaped[np.ndarray, "N ..."]
    mask: Bool[np.ndarray, "N L"]
    text: Bool[np.ndarray, "N L"]
    document: Int[np.ndarray, "N L"]
    position: Int[np.ndarray, "N L"]
    documents: int
    segments: Int[np.ndarray, "N L"] | None = None
    example: Int[np.ndarray, " N"] | None = None
    labels: Labels | None = None
    truncated: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    word: Int[np.ndarray, "N L"] | None = None
    split: int = 0
    lost: int = 0

    @property
    def ids(self) -> Int[np.ndarray, "N L"]:
        """Token ids, of text."""
        return self.inputs

    def take(self, rows: Int[np.ndarray, " n"]) -> "Sequences":
        """Some of the sequences, in this order."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        taken = {name: array[rows] for name, array in arrays.items() if isinstance(array, np.ndarray)}
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
    """A data set of a run. source: what a reader of the results must know to find it again.

    running: running text, documents without labels.
    worded: it has sentences of words, and so `aligned` sequences for several tokenizers at once.
    """

    modality: ClassVar[Modality] = "text"
    running: ClassVar[bool] = False
    worded: ClassVar[bool] = False
    source: str

    @abstractmethod
    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        """What a model with this tokenizer is run on. Raises BadInput for data that cannot be used."""

    def packs(self, extract: Extract) -> bool:
        """Whether documents are joined and cut into sequences, whose ends then depend on the tokenizer."""
        return self.running and extract.unit in ("token", "sequence")

    def sentences(self) -> list[list[str]]:
        """All sentences of words, where it has some; `Sequences.example` counts in this list."""
        raise NotImplementedError

    def aligned(self, tokenizers: Mapping[str, Any], extract: Extract, seed: int) -> dict[str, Sequences]:
        """What models with these tokenizers are run on, the same words of the same sentences for all."""
        raise NotImplementedError


def draw(total: int, wanted: int, seed: int) -> Int[np.ndarray, " N"]:
    """The numbers of `wanted` of `total` examples or rows (at most all), drawn under the seed, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(total)[:wanted])
