"""The outputs of whole models: logits of classifiers, next-token logits of language models."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import limit_padding, measure_lengths
from repsim_cli.base.errors import RunFailed
from repsim_cli.data.base import Sequences


def compute_logits(
    model: nn.Module,
    sequences: Sequences,
    batches: Iterable[Int[np.ndarray, " _"]],
    *,
    segments: bool,
    tally: Callable[[Bool[np.ndarray, "_ _"]], None] = lambda mask: None,
) -> Iterator[Float[Tensor, "_ ..."]]:
    """Logits of each batch of sequences, float32, on the model's device: (b, classes) of a classifier, (b, places,
    vocabulary) of a language model. Batches are cut to the longest of their sequences.

    batches: the numbers of their sequences. segments: whether the model receives token types (which text of a pair).
    tally: receives the mask of each batch. Raises RunFailed unless all are finite.
    """
    for batch in batches:
        given = sequences.take(batch, int(sequences.mask[batch].sum(1).max()))
        logits = _compute_batch_logits(model, given, segments)
        tally(given.mask)
        if not torch.isfinite(logits).all():
            raise RunFailed(
                f"outputs are not finite, got {float(logits[~torch.isfinite(logits)][0])} in sequences {batch[0]} to "
                f"{batch[-1]}; check the model's weights and its head"
            )
        yield logits


@torch.no_grad()
def _compute_batch_logits(model: nn.Module, given: Sequences, segments: bool) -> Float[Tensor, "b ..."]:
    device = next(model.parameters()).device
    if given.inputs.ndim == 4:
        return model(pixel_values=torch.from_numpy(given.inputs).to(device)).logits.float()
    arrays: dict[str, Any] = {"input_ids": given.ids, "attention_mask": given.mask}
    if segments and given.segments is not None:
        arrays["token_type_ids"] = given.segments
    return model(**{name: torch.from_numpy(array).to(device).long() for name, array in arrays.items()}).logits.float()


def limit_output_padding(model: nn.Module, sequences: Sequences, *, segments: bool) -> float:
    """The largest share of a batch's places that may be padding without a change of the outputs."""

    def compute_token_logits(given: Sequences) -> list[Tensor]:
        logits = _compute_batch_logits(model, given, segments)
        return [logits if logits.ndim == 2 else logits[torch.from_numpy(given.mask).to(logits.device)]]

    return limit_padding(
        compute_token_logits, sequences, measure_lengths(sequences.mask), next(model.parameters()).dtype
    )


def batch_in_order(sequences: Sequences, batch_size: int) -> Iterator[Int[np.ndarray, " b"]]:
    """Batches of consecutive sequences."""
    for start in range(0, len(sequences.inputs), batch_size):
        yield np.arange(start, min(start + batch_size, len(sequences.inputs)))
