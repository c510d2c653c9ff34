"""Inputs that reveal: beside the text, what ordinary text does not show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from repsim_cli.base.arrays import convert_to_tensor
from repsim_cli.base.errors import BadInput
from repsim_cli.models.seq2seq import shift

TEXT, VOCABULARY = "text", "every row of the vocabulary"
LONGEST = 2048  # tokens of a row that goes beyond windows
ROWS, LENGTH, SHORT = 4, 64, 32  # of text, and the longest of the rows that are padded
BEYOND = 24  # tokens behind the end of a window
PROBES = {
    "digits": "3.14159 and 2718281828, 1,024 of 65536; 0x7f 007",
    "scripts": "Größe naïve Ελληνικά русский язык 日本語の文章 العربية हिन्दी 🙂",
    "white space": "  two  spaces,\n\n\ta tab and a line's end \r\n",
}


@dataclass(frozen=True)
class Batch:
    """Inputs of a pass. given: by the names of the model's arguments, the only one by "" where it has none. mask: what
    is not padding."""

    name: str
    given: Mapping[str, Any]
    mask: Bool[Tensor, "b s"]

    @property
    def ids(self) -> Tensor | None:
        return self.given.get("input_ids")

    def run(self, model: nn.Module) -> Tensor:
        """The logits of a model, or the first tensor that it returns."""
        # a cache of keys would grow where a block runs again
        plain = {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}
        with torch.no_grad():
            return _take_output_tensor(
                model(self.given[""], **plain) if "" in self.given else model(**{**plain, **self.given})
            )


def _take_output_tensor(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out
    if (logits := getattr(out, "logits", None)) is not None:
        return logits
    return _take_output_tensor(next(iter(out.values())) if isinstance(out, Mapping) else out[0])


@dataclass(frozen=True)
class InputShape:
    """What a model of token ids takes. vocabulary: the ids that it knows. context: the longest row; None: no limit.
    windows: lengths beyond which it does something else. special: the ids of special tokens."""

    vocabulary: int
    context: int | None
    windows: Sequence[int]
    special: Sequence[int]
    pad: int


WINDOWS = ("sliding_window", "original_max_position_embeddings", "window_size", "attention_window")


def read_input_shape(model: nn.Module, tokenizer: Any = None) -> InputShape | None:
    """Reads from the config which token ids a model takes; None where it says nothing of token ids."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else None
    vocabulary = getattr(config, "vocab_size", None)
    if not isinstance(vocabulary, int):
        return None
    context = getattr(config, "max_position_embeddings", None)
    context = context if isinstance(context, int) and context > 0 else None
    # RoBERTa counts positions from the padding id, so that the first ones are lost
    starts = (getattr(module, "padding_idx", None) for name, module in model.named_modules() if "position_emb" in name)
    context = context and context - max((start + 1 for start in starts if isinstance(start, int)), default=0)
    pad = getattr(config, "pad_token_id", None)
    special = list(getattr(tokenizer, "all_special_ids", None) or [])
    special = special or [getattr(config, f"{name}_token_id", None) for name in ("bos", "eos")]
    scaled = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    lengths = [getattr(config, name, None) for name in WINDOWS] + [
        value.get(name) if isinstance(value, Mapping) else None
        for name in WINDOWS
        for value in (scaled, *(scaled.values() if isinstance(scaled, Mapping) else ()))
    ]
    return InputShape(
        vocabulary,
        context,
        sorted({length for length in lengths if isinstance(length, int) and length > 0}),
        [token for token in special if isinstance(token, int) and 0 <= token < vocabulary],
        pad if isinstance(pad, int) and 0 <= pad < vocabulary else 0,
    )


def make_token_rows(texts: Iterable[str], tokenizer: Any, shape: InputShape) -> list[list[int]]:
    """Rows of equal length from the beginnings of texts; short texts follow each other in a row."""
    length = min(LENGTH, shape.context or LENGTH)
    rows, row = [], list[int]()
    for text in islice(texts, 64 * ROWS):
        row += tokenizer(text, verbose=False)["input_ids"][:length]
        if len(row) >= length:
            rows.append(row[:length])
            row = []
        if len(rows) == ROWS:
            break
    return rows or [row]


def make_batches(
    shape: InputShape, text: Sequence[Sequence[int]] = (), more: Mapping[str, Sequence[int]] | None = None
) -> list[Batch]:
    """The batches of a model of token ids. text: rows of one length; none: random ids. more: further rows, by what they
    are."""
    draw = torch.Generator().manual_seed(0)

    def random(count: int) -> list[int]:
        drawn = torch.randint(shape.vocabulary - 1, (count,), generator=draw)
        return (drawn + (drawn >= shape.pad)).tolist()

    most = shape.context or LONGEST
    length = min(len(text[0]) if text else LENGTH, most)
    name = TEXT if text else "rows of random tokens"
    text = text or [random(length) for _ in range(ROWS)]
    rows = {
        "random tokens": random(min(BEYOND, most)),
        "half a text": list(text[0])[: min(SHORT, max(1, length // 2))],
        "one token alone": random(1),
        "one token repeated": random(1) * min(12, most),
        "special tokens": [each for token in shape.special[:8] for each in (token, *random(1))][:most],
        **{name: list(row)[: min(SHORT, most)] for name, row in (more or {}).items()},
    }
    rows = {name: row for name, row in rows.items() if row}
    beyond = [window + BEYOND for window in shape.windows if window + BEYOND <= min(most, LONGEST)]
    long = max([*beyond, min(most, 4 * length)])
    return [
        make_padded_batch(name, [row[:length] for row in text], shape.pad),
        make_padded_batch("padding on the right", rows.values(), shape.pad),
        make_padded_batch("padding on the left", rows.values(), shape.pad, left=True),
        *([make_padded_batch(f"a row of {long} tokens", [random(long)], shape.pad)] if long > length else []),
    ]


def make_padded_batch(name: str, rows: Iterable[Sequence[int]], pad: int, *, left: bool = False) -> Batch:
    """Rows of any length, padded on one side."""
    rows = list(rows)
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), pad)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for number, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(len(row))
        ids[number, place], mask[number, place] = torch.tensor(row), True
    return Batch(name, {"input_ids": ids, "attention_mask": mask.long()}, mask)


def add_decoder_inputs(batch: Batch, config: Any) -> Batch:
    """The batch of an encoder-decoder, whose decoder reads the same tokens behind its start."""
    decoded, behind = shift(config, batch.given["input_ids"], batch.mask)
    return Batch(
        batch.name,
        {**batch.given, "decoder_input_ids": decoded, "decoder_attention_mask": behind.long()},
        batch.mask,
    )


def read_batch(name: str, inputs: Any) -> Batch:
    """A batch of a torch module: a tensor or an array, a tuple whose first item is one, or a mapping of arguments.

    Raises BadInput for others, and for one without items.
    """
    inputs = inputs[0] if isinstance(inputs, tuple | list) and inputs else inputs
    by_name = dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}
    by_name = {key: convert_to_tensor(name, x) if isinstance(x, np.ndarray) else x for key, x in by_name.items()}
    first = next((x for x in by_name.values() if isinstance(x, Tensor)), None)
    if first is None or not first.ndim or not first.numel():
        got = type(inputs).__name__ if first is None else f"one of shape {tuple(first.shape)}"
        raise BadInput(f"texts: no batch with items, got {got} as {name}; give texts, or tensors of a torch module")
    whole = torch.ones(first.shape[:2] if not first.is_floating_point() else (len(first), 1), dtype=torch.bool)
    mask = by_name.get("attention_mask")
    return Batch(name, by_name, whole if mask is None or mask.shape != whole.shape else mask.bool())
