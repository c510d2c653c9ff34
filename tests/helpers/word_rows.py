"""Rows of words, and which words they are."""

import numpy as np

from repsim_cli.activations.places import count_kept_rows
from repsim_cli.base.settings import Extract


def extract(**settings):
    return Extract(**{"hook_points": ["embed", "resid_post"], "unit": "word", "length": 32, **settings})


def grid(sequences, settings):
    """(sentence, word) of every row."""
    ends = [np.flatnonzero(np.append(np.diff(w[w >= 0]), 1)) for w in sequences.word]
    rows = [(d[w >= 0][e], w[w >= 0][e]) for d, w, e in zip(sequences.document, sequences.word, ends, strict=True)]
    assert sum(len(d) for d, _ in rows) == count_kept_rows(sequences, settings).sum()
    return [(int(i), int(j)) for document, word in rows for i, j in zip(document, word, strict=True)]
