"""Examples -> a token sequence each, padded on the right."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.data.base import Sequences, draw
from repsim_cli.data.copies import find_equal_texts


def pad(
    texts: Sequence[tuple[str, ...]],
    tokenizer: Any,
    *,
    length: int,
    sequences: int,
    seed: int,
    source: str,
    whole: bool = False,
) -> Sequences:
    """`sequences` examples (texts or pairs of texts), drawn under the seed, in the data set's order.

    The tokenizer's template adds special tokens and joins pairs. Longer examples are cut to `length`, a pair where it
    is longest, and counted.
    whole: pad to `length`, not to the longest example.
    """
    drawn = draw(len(texts), sequences, seed)
    extra = tokenizer.num_special_tokens_to_add(pair=len(texts[0]) == 2)
    if length <= extra:
        raise BadInput(f"extract.length: too short for {extra} special tokens and a word, got {length}; raise it")
    encoded = _encode(tokenizer, [texts[i] for i in drawn], truncation=False)
    long = [i for i, tokens in enumerate(encoded["input_ids"]) if len(tokens) > length]
    if long:
        cut = _encode(tokenizer, [texts[drawn[i]] for i in long], truncation=True, max_length=length)
        for name, rows in encoded.items():
            for i, row in zip(long, cut[name], strict=True):
                rows[i] = row

    lengths = np.array([len(tokens) for tokens in encoded["input_ids"]])
    mask = np.arange(length if whole else lengths.max()) < lengths[:, None]

    def fill_table(name: str, fill: int) -> np.ndarray:
        table = np.full(mask.shape, fill, np.int32)
        table[mask] = np.fromiter(chain.from_iterable(encoded[name]), np.int32)
        return table

    ids = fill_table("input_ids", next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None))
    text = fill_table("special_tokens_mask", 1) == 0
    if not text.any(1).all():
        bare = texts[int(drawn[int(text.any(1).argmin())])]
        raise BadInput(f"{source}: an example has no tokens, got {bare!r:.80}; leave it out of the data")
    return Sequences(
        inputs=ids,
        segments=fill_table("token_type_ids", 0) if "token_type_ids" in encoded else None,
        mask=mask,
        text=text,
        document=np.where(text, drawn[:, None], -1).astype(np.int32),
        position=np.where(text, text.cumsum(1) - 1, -1).astype(np.int32),
        documents=len(texts),
        copies=find_equal_texts((int(i), texts[i]) for i in drawn),
        available=len(texts),
        example=drawn,
        truncated=len(long),
    )


def _encode(tokenizer: Any, texts: Sequence[tuple[str, ...]], **settings: Any) -> dict[str, list[list[int]]]:
    """A list per example, by name. Examples are texts, or pairs of texts."""
    sides = (list(side) for side in zip(*texts, strict=True))
    return dict(tokenizer(*sides, return_special_tokens_mask=True, verbose=False, **settings))
