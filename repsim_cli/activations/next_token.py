"""The next token: where a text has one, and what predicts it worse than the whole model does."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import make_input_tensors
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import LOGITS
from repsim_cli.data.base import Sequences
from repsim_cli.data.copies import find_equal_sequences, warn_of_copies
from repsim_cli.models.loading import make_input_template
from repsim_cli.models.source import Source

HEAD = "AutoModelForCausalLM"
CELLS = 2**24  # logits that are compared at a time


class Following(NamedTuple):
    """The places whose next place has a token of the same document, and the ids of these tokens, in order."""

    places: Bool[np.ndarray, "N L"]
    ids: Int[Tensor, " n"]


def find_next(batch: Sequences) -> Following:
    places = np.zeros_like(batch.mask, dtype=bool)
    places[:, :-1] = batch.text[:, :-1] & batch.text[:, 1:] & (batch.document[:, :-1] == batch.document[:, 1:])
    return Following(places, torch.from_numpy(np.roll(batch.ids, -1, 1)[places]).long())


def has_next(sequences: Sequences) -> Bool[np.ndarray, " N"]:
    """Tells which sequences have a token with a next one."""
    return np.asarray(find_next(sequences).places.any(1))


def number_documents(sequences: Sequences, warn: Callable[[str], None], what: str) -> Int[np.ndarray, " N"]:
    """Numbers what errors are over: the document of each sequence, for copies of a text that of the first; where there
    is one document, warns and numbers the sequences. what: whose text it is, as the warning begins."""
    same, count = find_equal_sequences(sequences), len(sequences.text)
    warn_of_copies(count - len(np.unique(same)), count, warn, what)
    if not sequences.of_one:
        return sequences.join_copies(sequences.document[np.arange(count), sequences.text.argmax(1)])[same]
    warn(
        f"{what}: the text is one document, got its {len(sequences.text):,} sequences in place of documents; "
        "errors may be too small where sequences next to each other are alike; data.sample_by=paragraph makes "
        "documents"
    )
    return same


def compute_logits_at(model: nn.Module, source: Source, batch: Sequences, places: np.ndarray) -> Float[Tensor, "n c"]:
    """Runs a model with its output head and the hooks that it has now, and takes its logits at these places."""
    inputs, mask, more = make_input_tensors(batch, source, make_input_template(model))
    with capture(model, source, [LOGITS]) as read:
        return read(inputs, mask, **more)[LOGITS][torch.from_numpy(places).to(inputs.device)]


def compare_next_tokens(
    whole: Float[Tensor, "n c"], changed: Float[Tensor, "n c"], wanted: Int[Tensor, " n"]
) -> list[Tensor]:
    """Computes KL(whole || changed) in nats, and how much more the loss is, by row."""
    step, parts = max(1, CELLS // whole.shape[1]), []
    for p, q, ids in zip(whole.split(step), changed.split(step), wanted.split(step), strict=True):
        p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)  # rounding leaves -1e-17
        more = (p - q).gather(1, ids[:, None])[:, 0]
        parts.append(torch.stack([kl, more]))
    return [*torch.cat(parts, 1)]


def average_by_sequence(values: Float[Tensor, "... n"], places: Bool[np.ndarray, "N L"]) -> Float[Tensor, "... N"]:
    """Averages values of places over those of each sequence."""
    sequence = torch.from_numpy(places.nonzero()[0])
    sums = torch.zeros(*values.shape[:-1], len(places), dtype=torch.float64)
    return sums.index_add(-1, sequence, values.double()) / torch.from_numpy(places.sum(1))
