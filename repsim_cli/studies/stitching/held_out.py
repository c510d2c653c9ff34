"""Which sequences are kept for the evaluation of stitched models, and which ones train."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from repsim_cli.activations.next_token import number_documents
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Several
from repsim_cli.data.base import Sequences

Held = Several | Literal["auto"] | None
USUAL = 64  # sequences that are kept for evaluation


def count_held_out(evaluation: Held, sequences: int, fitted: bool) -> int:
    """Counts the sequences that are kept for evaluation.

    evaluation: None: all; `auto`: 64, at most half of them where anything is fitted.
    """
    if evaluation == "auto":
        return min(USUAL, sequences // 2 if fitted else sequences)
    return sequences if evaluation is None else evaluation


def split_sequences(sequences: Sequences, evaluation: Held, fitted: bool) -> tuple[Sequences, Sequences]:
    """The first sequences for training and the last `evaluation` (as in `count_held_out`) for evaluation; none
    of a document is in both, unless there is only one.

    fitted: whether anything is fitted on the first ones, which are left out otherwise. Raises BadInput where a side is
    empty.
    """
    count = len(sequences.ids)
    evaluation = count_held_out(evaluation, count, fitted)
    if fitted and count <= evaluation:
        raise BadInput(
            f"options.evaluation: no evaluation rows are left beside the training, got {count} sequences for "
            f"{evaluation}; lower options.evaluation, or give more data"
        )
    held = np.arange(max(count - evaluation, 0), count)
    if not fitted:
        return sequences.take(held[:0]), sequences.take(held)
    if sequences.of_one:
        return sequences.take(np.arange(held[0])), sequences.take(held)
    documents = np.unique(sequences.document[held][sequences.text[held]])
    shared = np.any(np.isin(sequences.document, documents) & sequences.text, axis=1)
    train = np.flatnonzero(~shared[: held[0]])
    if not len(train):
        raise BadInput(
            f"options.evaluation: no training rows are left beside the documents of the evaluation, got {count} "
            "sequences; give more data, or shorter documents (of local text data.sample_by=paragraph)"
        )
    return sequences.take(train), sequences.take(held)


def number_evaluated(held: Sequences, warn: Callable[[str], None]) -> Int[np.ndarray, " N"]:
    """Numbers the documents of the evaluation sequences, as `number_documents`. Raises BadInput where there is one
    text alone."""
    documents = number_documents(held, warn, "options.evaluation")
    if len(np.unique(documents)) < 2:
        raise BadInput(
            f"options.evaluation: errors are over texts that differ, got one text for {len(held.ids)} sequences; raise "
            "it, or give more data"
        )
    return documents


def identify_sequences(sequences: Sequences) -> list[Any]:
    labels = sequences.labels
    return [sequences.hash(), None if labels is None else [labels.codes.tolist(), list(labels.names)]]
