"""Rows with classes to probe for."""

import numpy as np

from repsim_cli.training.probes import (
    make_split,
)

DRAW = np.random.default_rng(0)


CLASSES = DRAW.integers(0, 4, 120)


X = (np.eye(4)[CLASSES] @ DRAW.normal(size=(4, 6)) + 0.6 * DRAW.normal(size=(120, 6))).astype(np.float32)


SPLIT = make_split(120, 0.75, 0)
