"""Layers by their names: blocks, hook points, and the order of the network."""

import re
from collections.abc import Sequence

import numpy as np


def order_layers(names: Sequence[str]) -> list[int]:
    """Places of the layers in the order of the network: by block, within a block as they came; what is of no block
    stays before the blocks, but for the final norm.

    >>> names = ["resid_post@0", "resid_post@1", "q@0.h0", "q@1.h0", "embed"]
    >>> [names[i] for i in order_layers(names)]
    ['embed', 'resid_post@0', 'q@0.h0', 'resid_post@1', 'q@1.h0']
    """
    outside = {"final_norm": np.inf}
    depths = [outside.get(name, -1) if (block := read_block_number(name)) is None else block for name in names]
    return sorted(range(len(names)), key=lambda i: depths[i])


def read_block_number(name: str) -> int | None:
    """The block of a hook point, None for what is of none.

    >>> read_block_number("q@3.h2"), read_block_number("embed")
    (3, None)
    """
    match = re.search(r"@(\d+)", name)
    return int(match[1]) if match else None


def read_hook_point(name: str) -> str:
    """The hook point of a layer without its block.

    >>> read_hook_point("mlp_out@3"), read_hook_point("q@3.h2"), read_hook_point("embed")
    ('mlp_out', 'q', 'embed')
    """
    return name.partition("@")[0]
