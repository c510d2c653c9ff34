"""Maps of which some cells have an effect, with their nulls."""

import numpy as np
import torch

from repsim_cli import measures
from repsim_cli.activations.segments import Segments
from repsim_cli.engine import significance as judging
from repsim_cli.engine.prepared import SimilarityMatrix


def planted(seed, cells=64, true=20, draws=199, effect=4.0):
    """Statistics of a map, which share a factor, and their joint null; the first `true` cells have an effect."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=cells))  # nulls of different widths
    values = (rng.normal(size=(draws + 1, cells)) + rng.normal(size=(draws + 1, 1))) * scales
    values[0, :true] += effect * scales[:true]
    return torch.from_numpy(values[0]), torch.from_numpy(values[1:])


def judged_of(observed, null, settings, places):
    """The significance of a map from its statistics and their null."""
    statistics = {"tested": observed, "null": null, "away": null.mean(0)}
    matrix = SimilarityMatrix(values=observed, se=None, estimate="full", rows=40, batches=1, statistics=statistics)
    return judging.judge_significance(settings, measures.get("cka"), matrix, Segments([], 40, 1.0), places)
