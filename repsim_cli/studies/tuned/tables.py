"""What the blocks of models change, as results.json has it."""

from collections.abc import Callable, Mapping
from typing import Any

from repsim_cli.engine.cached import Tensors
from repsim_cli.runs.content import (
    CARRIED,
    DIRECTIONS,
    OF_BLOCKS,
    OF_BLOCKS_COLUMNS,
    OF_WEIGHTS,
    OWN,
    Table,
    omit_nan,
)
from repsim_cli.studies.tuned.changes import decode_json

HELD = "no, its weights were rounded to 16 bits"
LEAST = 4  # times rounding, from which a change has a direction


def make_block_tables(changes: Mapping[str, Tensors], shown: Callable[[Any], str]) -> dict[str, Table]:
    """The tables of blocks, weights and directions of all models whose blocks were run; none where none were. shown:
    tokens as text."""
    of_blocks, of_weights, directions = [], [], []
    for label, change in changes.items():
        if OWN not in change:
            continue
        means = {kind: [*map(omit_nan, change[kind].double().nanmean(1).tolist())] for kind in (OWN, CARRIED)}
        weights, rounding = [*map(omit_nan, change["weights"].tolist())], change["rounding"][:, 0].tolist()
        restored = [*map(omit_nan, change["restored"].tolist())] if "restored" in change else [None] * len(rounding)
        for block, least in enumerate(rounding):
            beyond = HELD if change["held"][block] else "yes" if change["above"][block] else "no"
            measured = (means[OWN][block], means[CARRIED][block], weights[block], least)
            of_blocks.append([label, block, *measured, beyond, restored[block]])
            norm = float(change["norm"][block])
            if "promoted" in change and norm > LEAST * least:
                up, down = change["promoted"][block].tensor_split(2)
                tokens = [" ".join(f"'{shown([token])}'" for token in side.tolist()) for side in (up, down)]
                directions.append([label, block, norm, omit_nan(float(change["share"][block])), *tokens])
        of_weights += [[label, *row] for row in decode_json(change["tensors"])]
    columns = ["model", "block", "norm", "share of the change"]
    tables = {
        OF_BLOCKS: Table(columns=OF_BLOCKS_COLUMNS, rows=of_blocks),
        DIRECTIONS: Table(columns=[*columns, "promotes", "demotes"], rows=directions),
        OF_WEIGHTS: Table(columns=["model", "tensor", "block", "relative change"], rows=of_weights),
    }
    return {name: table for name, table in tables.items() if table.rows}
