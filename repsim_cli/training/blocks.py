"""Which blocks of an encoder train, and how many it has."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Positive
from repsim_cli.models.source import Source


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """The blocks that do not train. Raises BadInput where none is named.

    bottom: the number of blocks from the first; the embeddings do not train either, so that no gradient is computed
        below the others. null: none.
    top: the number of blocks up to the last; the pooler and the final norm above them still train. null: none.
    """

    bottom: Positive | None = None
    top: Positive | None = None

    def __post_init__(self) -> None:
        if (self.bottom, self.top) == (None, None):
            raise BadInput("bottom, top: no blocks are named; set one, or freeze: null")


def is_frozen(source: Source, freeze: Freeze) -> Callable[[str], bool]:
    """Makes the test by which a weight of the backbone does not train, given its name.

    Raises BadInput where the model has fewer blocks, or blocks that cannot be told apart.
    """
    table, bottom, top = source.architecture, freeze.bottom or 0, freeze.top or 0
    if table is None or table.stacks or table.shared:
        why = "layers share weights" if table is not None and table.shared else "it has no single list of blocks"
        raise BadInput(
            f"recipe.freeze: {why}, got model_type {source.model_type}; use another encoder, or freeze: null"
        )
    if bottom + top > source.layers:
        raise BadInput(f"recipe.freeze: more blocks than the encoder has, got {bottom + top}; at most {source.layers}")
    above = () if table.final_norm is None else (f"{table.final_norm.module}.",)

    def is_frozen(name: str) -> bool:
        if name.startswith(f"{table.blocks}."):
            number = int(name.removeprefix(f"{table.blocks}.").split(".")[0])
            return number < bottom or number >= source.layers - top
        return bottom > 0 and not name.startswith(above) and "pooler" not in name

    return is_frozen


def freeze_blocks(backbone: nn.Module, is_frozen: Callable[[str], bool]) -> None:
    for name, weights in backbone.named_parameters():
        weights.requires_grad_(not is_frozen(name))


def keep_first_blocks(config: Any, count: int) -> Any:
    """A copy of the config with the first `count` blocks alone. Raises BadInput where it has fewer."""
    depth = getattr(config, "num_hidden_layers", 0)
    if count > depth:
        raise BadInput(f"blocks: more than the encoder has, got {count}; at most {depth}")
    if getattr(config, "num_hidden_groups", 1) > 1:
        raise BadInput(f"blocks: layers share weights by their number, got {count} of {depth}; use another encoder")
    shorter = copy.deepcopy(config)
    shorter.num_hidden_layers = count
    if getattr(config, "layer_types", None) is not None:
        shorter.layer_types = config.layer_types[:count]
    return shorter
