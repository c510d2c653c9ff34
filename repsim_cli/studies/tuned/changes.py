"""What differs between a model and its base, token by token: the rows of every layer, and what is predicted next."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.activations.places import mark_kept_rows, mark_read_places
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.engine.behind import UNFINISHED
from repsim_cli.runs.content import COSINE, KL, NEXT, RELATIVE

# the letters that byte-level tokenizers write bytes as: printable ones as themselves, the others from U+0100 on
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(OTHERS)}
CELLS = 2**22  # logits that are worked on at a time, in float64
TOKENS = ["model", "by", "value", "text before", "token", "text after", "next in the base", "next"]
TEXTS = ["model", "by", "mean over tokens", "tokens", "text"]
PART = "part of a character: "
BEFORE, AFTER, EXCERPT = 10, 5, 30  # tokens of text that are shown
# why a token has no value
WITHOUT = {RELATIVE: "a row of zeros in the base has no relative change", COSINE: "a row of zeros has no direction"}
ROUNDED = {KL: 1e-8, RELATIVE: 1e-6}  # what rows of float32 differ by


def compute_row_changes(
    base: Float[Tensor, "n d"], tuned: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """|tuned - base| / |base| of every row, from 0 on, and the cosine of the two rows, in float64.

    NaN where there is none (see WITHOUT).
    """
    base, tuned = base.double(), tuned.double()
    norms, others = base.norm(dim=1), tuned.norm(dim=1)
    relative = ((tuned - base).norm(dim=1) / norms).where(norms > 0, torch.nan)
    # a row of zeros over its norm is NaN; rounding leaves 1 + 1e-16
    cosine = ((base / norms[:, None]) * (tuned / others[:, None])).sum(1).clamp(-1, 1)
    return relative, cosine


def compute_logit_divergences(
    base: Float[Tensor, "n c"], tuned: Float[Tensor, "n c"], cells: int = CELLS
) -> Float[Tensor, " n"]:
    """KL(base || tuned) of the distributions that two models' logits give, in nats, from 0 on, in float64. cells:
    logits that are worked on at a time."""
    step = max(1, cells // base.shape[1])
    parts = []
    for p, q in zip(base.split(step), tuned.split(step), strict=True):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        parts.append((p.exp() * (p - q)).sum(-1))
    return torch.cat(parts).clamp(min=0)  # rounding leaves -1e-17


class Change:
    """The changes in one model, token by token, gathered batch by batch: numbers alone, no rows."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}

    def add(self, layers: int, base: Sequence[Tensor], tuned: Sequence[Tensor]) -> None:
        """Adds the rows of `layers` layers of the base and of the model, and the logits after these where both have
        any."""
        pairs = [compute_row_changes(x, y) for x, y in zip(base[:layers], tuned[:layers], strict=True)]
        for kind, values in zip((RELATIVE, COSINE), zip(*pairs, strict=True), strict=True):
            self._note(kind, torch.stack(values).float())
        if len(base) > layers and len(tuned) > layers:
            common = min(base[-1].shape[1], tuned[-1].shape[1])  # vocabularies may be padded
            p, q = base[-1][:, :common], tuned[-1][:, :common]
            self._note(KL, compute_logit_divergences(p, q)[None])
            self._note(NEXT, torch.stack([p.argmax(1), q.argmax(1)]))

    def _note(self, kind: str, values: Tensor) -> None:
        self.parts.setdefault(kind, []).append(values.cpu())

    def tensors(self) -> dict[str, Tensor]:
        """Joins the batches, by kind: (layers, n); of KL (1, n), of the next tokens (2, n)."""
        return {kind: torch.cat(parts, 1) for kind, parts in self.parts.items()}


def find_lacking(change: Mapping[str, Tensor]) -> Iterator[tuple[str, int, int, str]]:
    """Finds the layers of which tokens have no value: (kind, layer, how many tokens, why)."""
    for kind, why in WITHOUT.items():
        counts = change[kind].isnan().sum(1).tolist()
        yield from ((kind, layer, count, why) for layer, count in enumerate(counts) if count)


class Texts:
    """The text around the rows of a run, one token each."""

    def __init__(self, tokenizer: Any, sequences: Sequences, extract: Extract):
        self.tokenizer, self.sequences = tokenizer, sequences
        left = mark_kept_rows(sequences, extract)
        self.sequence, self.place = (
            x if left is None else x[left] for x in mark_read_places(sequences, extract).nonzero()
        )

    def tokens(self, changes: Mapping[str, Mapping[str, Tensor]], most: int) -> Iterator[list[Any]]:
        """A line for each of the tokens that change most, of every model, by each quantity."""
        for label, change in changes.items():
            following = change.get(NEXT)
            for by, values, least in measure_token_changes(change):
                for row in _find_largest_values(values, least, lambda row: self._begin(row).tobytes(), most):
                    ids, at = self._ids(int(self.sequence[row])), int(self.place[row])
                    around = (ids[max(0, at - BEFORE) : at], ids[at : at + 1], ids[at + 1 : at + 1 + AFTER])
                    predicted = [None] * 2 if following is None else [self.quote(i) for i in following[:, row]]
                    before, own, after = around
                    yield [
                        label,
                        by,
                        float(values[row]),
                        self.show(before),
                        *map(self.quote, own),
                        self.show(after),
                        *predicted,
                    ]

    def texts(self, changes: Mapping[str, Mapping[str, Tensor]], most: int) -> Iterator[list[Any]]:
        """A line for each of the sequences that change most on average over their tokens."""
        total = len(self.sequences.ids)
        for label, change in changes.items():
            for by, values, least in measure_token_changes(change):
                sequence, values = (x[np.isfinite(values)] for x in (self.sequence, values))
                counts = np.bincount(sequence, minlength=total)
                sums = np.bincount(sequence, values, total)
                means = np.divide(sums, counts, out=np.full(total, -np.inf), where=counts > 0)
                for number in _find_largest_values(means, least, lambda number: self._ids(number).tobytes(), most):
                    ids = self._ids(number)
                    cut = " ..." if len(ids) > EXCERPT else ""
                    yield [label, by, float(means[number]), int(counts[number]), self.show(ids[:EXCERPT]) + cut]

    def _ids(self, number: int) -> np.ndarray:
        """The tokens of a sequence."""
        return self.sequences.ids[number][self.sequences.mask[number]]

    def _begin(self, row: int) -> np.ndarray:
        """The tokens of a row's sequence up to it."""
        return self._ids(int(self.sequence[row]))[: int(self.place[row]) + 1]

    def quote(self, token: Any) -> str:
        """Decodes a token in quotes, between which white space is seen; a part of a character is named."""
        shown = self.show([token])
        return shown if shown.startswith(PART) else f"'{shown}'"

    def show(self, ids: Any) -> str:
        """Decodes tokens into one line of text; what cannot be printed is escaped, and of a single token that is a part
        of a character the bytes are named, as the tokenizer has them."""
        text = self.tokenizer.decode([int(i) for i in ids], clean_up_tokenization_spaces=False)
        if UNFINISHED in text and len(ids) == 1:
            return f"{PART}{name_bytes(self.tokenizer.convert_ids_to_tokens(int(ids[0])))}"
        return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)


def name_bytes(piece: str) -> str:
    """Names the bytes of a token in hexadecimal, where its name stands for bytes; else gives the name.

    >>> name_bytes("âĢ"), name_bytes("<0xE2>"), name_bytes("▁a")
    ('e2 80', 'e2', '▁a')
    """
    if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
        return match[1].lower()
    if all(letter in BYTES for letter in piece):
        return bytes(BYTES[letter] for letter in piece).hex(" ")
    return piece


def measure_token_changes(change: Mapping[str, Tensor]) -> Iterator[tuple[str, np.ndarray, float]]:
    """Measures by how much every token changes: in its outputs, and in its layers; NaN where no layer has a value. Last
    the largest change that may be rounding."""
    if KL in change:
        yield f"{KL}, nats", change[KL][0].numpy(), ROUNDED[KL]
    yield f"{RELATIVE}, mean over layers", change[RELATIVE].double().nanmean(0).numpy(), ROUNDED[RELATIVE]


def _find_largest_values(values: np.ndarray, least: float, text: Callable[[int], bytes], most: int) -> list[int]:
    """Finds the places of the largest finite values above the least; equal values (to three digits) of the same text
    count once."""
    order = (i for i in np.argsort(-values, kind="stable").tolist() if np.isfinite(values[i]) and values[i] > least)
    first: dict[Any, int] = {}
    for i in order:
        first.setdefault((f"{values[i]:.3g}", text(i)), i)
        if len(first) == most:
            break
    return list(first.values())


def encode_json(value: Any) -> Tensor:
    """Encodes a value that is not a number (as JSON) into a tensor of bytes, since the cache holds tensors."""
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def decode_json(value: Tensor) -> Any:
    return json.loads(bytes(value.tolist()))
