"""The outputs of whole models: logits of classifiers, next-token logits of language models."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repsim_cli.data.base import Sequences
from repsim_cli.errors import RunFailed


def outputs(
    model: nn.Module, sequences: Sequences, *, segments: bool, batch_size: int, first: int = 0
) -> Iterator[Float[Tensor, "b ..."]]:
    """Logits of `batch_size` sequences at a time from `first` on, float32, on the model's device: (b, classes) of a
    classifier, (b, places, vocabulary) of a language model. Batches are cut to the longest of their sequences.

    segments: whether the model receives token types (which text of a pair). Raises RunFailed unless all are finite.
    """
    device = next(model.parameters()).device
    for start in range(first, len(sequences.ids), batch_size):
        mask = sequences.mask[start : start + batch_size]
        rows = (slice(start, start + batch_size), slice(int(mask.sum(1).max())))
        arrays: dict[str, Any] = {"input_ids": sequences.ids, "attention_mask": sequences.mask}
        if segments and sequences.segments is not None:
            arrays["token_type_ids"] = sequences.segments
        given = {name: torch.from_numpy(array[rows]).to(device).long() for name, array in arrays.items()}
        with torch.no_grad():
            logits = model(**given).logits.float()
        if not torch.isfinite(logits).all():
            raise RunFailed(
                f"outputs are not finite, got {float(logits[~torch.isfinite(logits)][0])} in sequences {start} to "
                f"{start + len(mask) - 1}; check the model's weights and its head"
            )
        yield logits
