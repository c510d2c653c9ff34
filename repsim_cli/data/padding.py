"""Examples -> a token sequence each, padded on the right."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.data.base import Labels, Sequences, draw
from repsim_cli.errors import BadInput

SPECIAL = ("bos", "eos", "cls", "sep", "pad")


def pad(
    texts: Sequence[tuple[str, ...]],
    tokenizer: Any,
    *,
    length: int,
    sequences: int,
    seed: int,
    source: str,
    labels: tuple[Sequence[int], tuple[str, ...]] | None = None,
    dropped: Mapping[str, int] | None = None,
    whole: bool = False,
) -> Sequences:
    """`sequences` examples (texts or pairs of texts), drawn under the seed, in the data set's order.

    The tokenizer's template adds special tokens and joins pairs. Longer examples are cut to `length`, a pair where it
    is longest, and counted.
    labels: (codes, names) of all examples.
    dropped: examples left out before, by reason.
    whole: pad to `length`, not to the longest example.
    """
    drawn = draw(len(texts), sequences, seed)
    extra = tokenizer.num_special_tokens_to_add(pair=len(texts[0]) == 2)
    if length <= extra:
        raise BadInput(f"extract.length: too short for {extra} special tokens and a word, got {length}; raise it")
    encoded = [_encode(tokenizer, texts[i], truncation=False) for i in drawn]
    long = [i for i, example in enumerate(encoded) if len(example["input_ids"]) > length]
    for i in long:
        encoded[i] = _encode(tokenizer, texts[drawn[i]], truncation=True, max_length=length)

    longest = length if whole else max(len(example["input_ids"]) for example in encoded)
    special = {getattr(tokenizer, f"{name}_token_id") for name in SPECIAL}
    fill = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
    shape = (len(drawn), longest)
    ids, segments = np.full(shape, fill, np.int32), np.zeros(shape, np.int32)
    mask, text = np.zeros(shape, bool), np.zeros(shape, bool)
    for row, example in enumerate(encoded):
        tokens = np.asarray(example["input_ids"], np.int32)
        inside = slice(0, len(tokens))
        ids[row, inside], mask[row, inside] = tokens, True
        segments[row, inside] = example.get("token_type_ids", 0)
        # special tokens that the text spells out are no rows either
        added = np.asarray(example["special_tokens_mask"], bool)
        text[row, inside] = ~added & ~np.isin(tokens, [i for i in special if i is not None])
        if not text[row].any():
            raise BadInput(
                f"{source}: an example has no tokens, got {texts[drawn[row]]!r:.80}; leave it out of the data"
            )
    return Sequences(
        inputs=ids,
        segments=segments if "token_type_ids" in encoded[0] else None,
        mask=mask,
        text=text,
        document=np.where(text, drawn[:, None], -1).astype(np.int32),
        position=np.where(text, text.cumsum(1) - 1, -1).astype(np.int32),
        documents=len(texts),
        example=drawn,
        labels=None if labels is None else Labels(np.asarray(labels[0])[drawn], labels[1]),
        truncated=len(long),
        dropped=dict(dropped or {}),
    )


def _encode(tokenizer: Any, texts: tuple[str, ...], **settings: Any) -> dict[str, Any]:
    return dict(tokenizer(*texts, return_special_tokens_mask=True, verbose=False, **settings))
