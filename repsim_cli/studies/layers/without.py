"""What the next token loses where a block is left out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import tensors
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import LOGITS
from repsim_cli.base.errors import BadInput
from repsim_cli.data.base import Sequences
from repsim_cli.models.calls import Hooks, entering
from repsim_cli.models.loading import like_inputs
from repsim_cli.models.source import Source, backbone_path
from repsim_cli.models.transformers import predicts_next

HEAD = "AutoModelForCausalLM"
CELLS = 2**24  # logits that are compared at a time


class Lost(NamedTuple):
    """Without each block, of every text the mean over its tokens that have a next one: KL(whole || without it) in nats,
    and how much more the loss is. units: what errors are over, of each text."""

    kl: Float[np.ndarray, "blocks s"]
    loss: Float[np.ndarray, "blocks s"]
    units: Int[np.ndarray, " s"]


def refusal(source: Source) -> str | None:
    """Says why no block of a model can be left out; None: they can."""
    if not predicts_next(source):
        return "it has no output head for the next token"
    table = source.architecture
    if table is None or table.stacks or not table.depth:
        return f"no single stack of blocks is known in {source.model_type}"
    return "its blocks share their weights" if table.shared is not None else None


def lost(
    model: nn.Module,
    source: Source,
    batches: Sequence[Sequences],
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    count: Callable[[np.ndarray], None],
) -> Lost:
    """model: with its head. batches: of sequences that have tokens with a next one. count: called with the mask of
    every pass."""
    assert source.architecture is not None
    blocks: Any = source.modules(model.get_submodule(backbone_path(model, source)))[source.architecture.blocks]
    parts = []
    for batch in progress(batches):
        places, wanted = _following(batch)
        with_all = _logits(model, source, batch, places)
        count(batch.mask)
        found = []
        for block in blocks:
            hooks = Hooks()
            hooks.after(block, _as_it_came)
            try:
                without = _logits(model, source, batch, places)
            finally:
                hooks.remove()
            count(batch.mask)
            found.append(torch.stack(_compared(with_all, without, wanted.to(with_all.device))).cpu())
        text = torch.from_numpy(places.nonzero()[0])
        sums = torch.zeros(len(blocks), 2, len(places), dtype=torch.float64).index_add(2, text, torch.stack(found))
        parts.append(sums / torch.from_numpy(places.sum(1)))
    kl, loss = torch.cat(parts, 2).unbind(1)
    return Lost(kl.numpy(), loss.numpy(), np.arange(kl.shape[1]))


def _following(batch: Sequences) -> tuple[Bool[np.ndarray, "N L"], Tensor]:
    """Finds the places whose next place has a token of the same document, and the ids of these tokens."""
    places = np.zeros_like(batch.mask, dtype=bool)
    places[:, :-1] = batch.text[:, :-1] & batch.text[:, 1:] & (batch.document[:, :-1] == batch.document[:, 1:])
    return places, torch.from_numpy(np.roll(batch.ids, -1, 1)[places]).long()


def has_next(sequences: Sequences) -> Bool[np.ndarray, " N"]:
    """Tells which sequences have a token with a next one."""
    return np.asarray(_following(sequences)[0].any(1))


def _logits(model: nn.Module, source: Source, batch: Sequences, places: np.ndarray) -> Float[Tensor, "n c"]:
    inputs, mask, more = tensors(batch, source, like_inputs(model))
    with capture(model, source, [LOGITS]) as read:
        return read(inputs, mask, **more)[LOGITS][torch.from_numpy(places).to(inputs.device)]


def _as_it_came(args: tuple, kwargs: dict, out: Any) -> Any:
    """Gives what a block that does nothing would give."""
    found = entering(args, kwargs)
    if found is None:
        raise BadInput("options.without: a block takes no stream; set options.without=0")
    return (found[1], *out[1:]) if isinstance(out, tuple) else found[1]


def _compared(whole: Tensor, without: Tensor, wanted: Tensor) -> list[Tensor]:
    """Computes KL, and how much more the loss is, by row."""
    step, parts = max(1, CELLS // whole.shape[1]), []
    for p, q, ids in zip(whole.split(step), without.split(step), wanted.split(step), strict=True):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)  # rounding leaves -1e-17
        more = (p - q).gather(1, ids[:, None])[:, 0]
        parts.append(torch.stack([kl, more]))
    return [*torch.cat(parts, 1)]
