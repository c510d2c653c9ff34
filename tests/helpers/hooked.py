"""Activations of tiny models at hook points, and how close they must be."""

import torch

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand

LENGTH, DEPTH, HEADS, WIDTH = 12, 3, 4, 32


def close(a, b, atol=3e-5):
    torch.testing.assert_close(a, b, atol=atol * float(b.abs().max().clamp_min(1)), rtol=0)


def by_head(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def activations(source, names, ids, mask, model=None):
    with capture(model or source.load(True), source, expand(names, "all", source)) as reader:
        return {str(point): x for point, x in reader(ids, mask).items()}


def some_ids(seed=1):
    """Two sequences, the second one padded on the right."""
    ids = torch.randint(1, 400, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 8:] = False
    return ids.masked_fill(~mask, 0), mask
