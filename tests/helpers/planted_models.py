"""Models whose similarities are planted: an oracle and noise."""

import numpy as np

from repsim_cli.studies.grounding import scores
from repsim_cli.studies.grounding.scores import Models, Truncated

LAYERS, MEMBERS, CUTS = 5, 4, 6
GROUPS = np.repeat([0, 1, 2], MEMBERS)
ACCURACY = np.random.default_rng(0).permutation(np.arange(12)) / 12.0
LOST = np.linspace(0, 0.5, CUTS)  # accuracy by the number of deleted components
WHOLE = 0.9 + 0.001 * np.arange(12)


def apart():
    away = np.abs(ACCURACY[:, None] - ACCURACY)
    return {scores.ACCURACY: away, scores.DIVERGENCE: away**2, scores.DISAGREEMENT: away / 2}


def truncated(similar):
    whole = np.tile(WHOLE[:, None], LAYERS)
    return Truncated(similar=similar, accuracy=whole[..., None] - LOST, whole=whole)


def oracle():
    """Layers are the more similar the closer they are, models of a group are alike, distances follow the differences of
    models, and deletions are seen where they damage."""
    depth, away = np.arange(LAYERS), np.abs(ACCURACY[:, None] - ACCURACY)
    far = np.abs(depth[:, None] - depth) + 0.05 * away[..., None, None]
    similar = -far - 0.1 * (GROUPS[:, None] != GROUPS)[..., None, None]
    return Models(
        similar=similar, groups=GROUPS, apart=apart(), truncated=truncated(np.tile(-10 * LOST, (12, LAYERS, 1)))
    )


def noise(seed):
    rng = np.random.default_rng(seed)
    return Models(
        similar=rng.normal(size=(12, 12, LAYERS, LAYERS)), groups=GROUPS, apart=apart(),
        truncated=truncated(rng.normal(size=(12, LAYERS, CUTS))),
    )  # fmt: skip
