"""Permutations of a run in blocks: units of work that leave their values in the cache, where the run finds them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import safetensors.torch

from repsim_cli.activations.cached import Identities
from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.data.base import Sequences
from repsim_cli.engine.cached import NULLS
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.footprint import count_compared, plan_memory
from repsim_cli.engine.matrices import draw_permutations, make_cache_content
from repsim_cli.engine.permuted import TOGETHER
from repsim_cli.engine.rows import open_rows
from repsim_cli.runs.cache import Entry, use
from repsim_cli.runs.results import Run, quiet

BLOCK = 1e12  # operations of a block: about ten seconds of a core


def split_permutations(comparison: Comparison) -> dict[str, list[range]]:
    """The permutations of each measure in blocks of about BLOCK operations; measures that need fewer have none."""
    if comparison.significance.method != "permutation":
        return {}
    count, pairs = comparison.significance.permutations, len(comparison.layers) * (len(comparison.layers) + 1) // 2
    blocks = {}
    for label, bound in comparison.measures.items():
        none, all_of_them = (count_compared(comparison, [bound], pairs, number).operations for number in (0, count))
        operations = all_of_them - none
        if operations > BLOCK:
            # whole passes, so that what is computed together does not depend on blocks
            size = TOGETHER * max(1, round(BLOCK / operations * count / TOGETHER))
            blocks[label] = [range(first, min(first + size, count)) for first in range(0, count, size)]
    return blocks


def permute_ahead(
    run: Run,
    comparison: Comparison,
    label: str,
    block: range,
    sequences: Mapping[str, Sequences],
    identities: Identities,
) -> bool:
    """Computes a block of the permutations of a measure, in all batches, into the cache; whether it was missing."""
    comparison = comparison.count_rows(run, sequences)
    if label not in comparison.measures:  # the rows do not suit it
        return False
    comparison = plan_memory(comparison.add_clusters(run, sequences))
    exchanged = comparison.exchanged
    assert exchanged is not None
    bound, content = comparison.measures[label], make_cache_content(comparison, sequences, identities)
    unit, matrix = content.make_null_key(bound, block), content.make_matrix_key(bound)
    if unit is None or matrix is None or Entry("matrices", matrix).known:
        return False
    with use(NULLS, [unit]) as entries:
        entry = entries[unit]
        if entry.complete:
            return False
        with open_rows(run, comparison, sequences, identities=identities, diagnose=False) as rows:
            null = draw_permutations(
                replace(comparison, measures={label: bound}), sequences, partial(_note_outside, block)
            )
            for batch, representations in enumerate(rows.stream(quiet)):
                name = f"{batch:05d}"
                if name in entry.files or not len(exchanged.rows(batch)):
                    continue
                try:
                    values = null(batch, representations, {}).get((label, "null"))
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
                if values is None:  # no two layers have a value
                    continue
                values = values[block.start : block.stop]
                parts = {"null": values.contiguous()}
                entry.write(name, lambda path, parts=parts: safetensors.torch.save_file(parts, path))
        entry.finish()
        return True


def _note_outside(block: range, batch: int, label: str, shape: Any) -> np.ndarray:
    """Notes of permutations, where those outside the block need no values."""
    noted = np.zeros(shape)
    noted[block.start : block.stop] = np.nan
    return noted
