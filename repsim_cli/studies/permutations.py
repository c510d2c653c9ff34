"""Permutations of a run in blocks: units of work that leave their values in the cache, where the run finds them."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch

from repsim_cli import significance as judging
from repsim_cli.activations.cached import Identities
from repsim_cli.cache import Entry, using
from repsim_cli.data.base import Sequences
from repsim_cli.errors import Degenerate, RunFailed
from repsim_cli.results import Run, quiet
from repsim_cli.studies.cached import NULLS
from repsim_cli.studies.matrices import clusters_of, content_of
from repsim_cli.studies.sample import batch_labels, opened

if TYPE_CHECKING:
    from repsim_cli.studies.similarity import Similarity

BLOCK = 1e12  # operations of a block: about ten seconds of a core


def blocks_of(study: "Similarity") -> dict[str, list[range]]:
    """The permutations of each measure in blocks of about BLOCK operations; measures that need fewer have none."""
    if study.significance.method != "permutation":
        return {}
    count, pairs = study.significance.permutations, len(study.layers) * (len(study.layers) + 1) // 2
    blocks = {}
    for label, bound in study.measures.items():
        none, all_of_them = (study.compared([bound], pairs, number).operations for number in (0, count))
        operations = all_of_them - none
        if operations > BLOCK:
            # whole passes, so that what is computed together does not depend on blocks
            size = judging.TOGETHER * max(1, round(BLOCK / operations * count / judging.TOGETHER))
            blocks[label] = [range(first, min(first + size, count)) for first in range(0, count, size)]
    return blocks


def permuted_ahead(
    run: Run, study: "Similarity", label: str, block: range, sequences: Mapping[str, Sequences], identities: Identities
) -> bool:
    """Computes a block of the permutations of a measure, in all batches, into the cache; whether it was missing."""
    total = study.counted(run, sequences)
    if label not in study.measures:  # the rows do not suit it
        return False
    clusters = clusters_of(study.significance, study.readings, sequences, study.extract, total)
    trading = study.trading(run, clusters)
    assert trading is not None
    measure = {label: study.measures[label]}
    wanted, room = study.wanted(), study.room()
    content = content_of(study, study.significance, sequences, identities, clusters, trading, wanted, room)
    unit, matrix = content.of_null(measure[label], block), content.of_matrix(measure[label])
    if unit is None or matrix is None or Entry("matrices", matrix).known:
        return False
    with using(NULLS, [unit]) as entries:
        entry = entries[unit]
        if entry.complete:
            return False
        with opened(run, study, sequences, total, clusters.whole, identities=identities, diagnose=False) as rows:
            null = judging.drawn(
                study.significance,
                measure,
                trading,
                names=[str(layer) for layer in study.layers],
                seed=study.seed,
                tile=study.hardware.tile,
                labels=batch_labels(sequences, study.extract, rows.numbers),
                notes=partial(_only, block),
            )
            for batch, representations in enumerate(rows.stream(quiet)):
                name = f"{batch:05d}"
                if name in entry.files or not len(trading.rows(batch)):
                    continue
                try:
                    values = null(batch, representations).get((label, "null"))
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
                if values is None:  # no two layers have a value
                    continue
                values = values[block.start : block.stop]
                parts = {"null": values.contiguous()}
                entry.write(name, lambda path, parts=parts: safetensors.torch.save_file(parts, path))
        entry.finish()
        return True


def _only(block: range, batch: int, label: str, shape: Any) -> np.ndarray:
    """Notes of permutations of which those outside the block need no values."""
    noted = np.zeros(shape)
    noted[block.start : block.stop] = np.nan
    return noted
