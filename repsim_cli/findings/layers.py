"""Layers by their names: blocks, hook points, and the order of the network."""

import re
from collections.abc import Sequence

import numpy as np


def in_order(names: Sequence[str]) -> list[int]:
    """Places of the layers in the order of the network: by block, within a block as they came; what is of no block
    stays before the blocks, but for the final norm.

    >>> names = ["resid_post@0", "resid_post@1", "q@0.h0", "q@1.h0", "embed"]
    >>> [names[i] for i in in_order(names)]
    ['embed', 'resid_post@0', 'q@0.h0', 'resid_post@1', 'q@1.h0']
    """
    outside = {"final_norm": np.inf}
    depths = [outside.get(name, -1) if (block := block_of(name)) is None else block for name in names]
    return sorted(range(len(names)), key=lambda i: depths[i])


def block_of(name: str) -> int | None:
    """The block of a hook point, None for what is of none.

    >>> block_of("q@3.h2"), block_of("embed")
    (3, None)
    """
    match = re.search(r"@(\d+)", name)
    return int(match[1]) if match else None


def point_of(name: str) -> str:
    """The hook point of a layer without its block.

    >>> point_of("mlp_out@3"), point_of("q@3.h2"), point_of("embed")
    ('mlp_out', 'q', 'embed')
    """
    return name.partition("@")[0]
