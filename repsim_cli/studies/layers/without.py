"""What the next token loses where a block is left out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from repsim_cli.activations.next_token import average_by_sequence, compare_next_tokens, compute_logits_at, find_next
from repsim_cli.base.errors import BadInput
from repsim_cli.data.base import Sequences
from repsim_cli.models.calls import Hooks, find_entering
from repsim_cli.models.source import Source, find_backbone_path
from repsim_cli.models.transformers import predicts_next


class BlockLosses(NamedTuple):
    """Without each block, of every text the mean over its tokens that have a next one: KL(whole || without it) in nats,
    and how much more the loss is. units: what errors are over, of each text."""

    kl: Float[np.ndarray, "blocks s"]
    loss: Float[np.ndarray, "blocks s"]
    units: Int[np.ndarray, " s"]


def say_why_unskippable(source: Source) -> str | None:
    """Says why no block of a model can be left out; None: they can."""
    if not predicts_next(source):
        return "it has no output head for the next token"
    table = source.architecture
    if table is None or table.stacks or not table.depth:
        return f"no single stack of blocks is known in {source.model_type}"
    return "its blocks share their weights" if table.shared is not None else None


def compute_block_losses(
    model: nn.Module,
    source: Source,
    batches: Sequence[Sequences],
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    count: Callable[[np.ndarray], None],
) -> BlockLosses:
    """model: with its head. batches: of sequences that have tokens with a next one. count: called with the mask of
    every pass."""
    assert source.architecture is not None
    blocks: Any = source.modules(model.get_submodule(find_backbone_path(model, source)))[source.architecture.blocks]
    parts = []
    for batch in progress(batches):
        places, wanted = find_next(batch)
        with_all = compute_logits_at(model, source, batch, places)
        count(batch.mask)
        found = []
        for block in blocks:
            hooks = Hooks()
            hooks.call_after(block, _skip_block)
            try:
                without = compute_logits_at(model, source, batch, places)
            finally:
                hooks.remove()
            count(batch.mask)
            found.append(torch.stack(compare_next_tokens(with_all, without, wanted.to(with_all.device))).cpu())
        parts.append(average_by_sequence(torch.stack(found), places))
    kl, loss = torch.cat(parts, 2).unbind(1)
    return BlockLosses(kl.numpy(), loss.numpy(), np.arange(kl.shape[1]))


def _skip_block(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """Gives what a block that does nothing would give."""
    found = find_entering(args, kwargs)
    if found is None:
        raise BadInput("options.without: a block takes no stream; set options.without=0")
    return (found[1], *out[1:]) if isinstance(out, tuple) else found[1]
