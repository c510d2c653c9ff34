"""Units of work: pairs of layers that are solved one by one, and permutations."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.engine import matrices
from repsim_cli.engine.cached import Content, is_solved_singly, open_pairs
from repsim_cli.engine.clusters import cluster_rows
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.extraction import Extraction
from repsim_cli.engine.permutations import permute_ahead, split_permutations
from repsim_cli.engine.processes import PairWork
from repsim_cli.engine.recording import RowWorker
from repsim_cli.engine.rows import open_rows
from repsim_cli.engine.undefined import Wanted
from repsim_cli.engine.unit import Kinds, Unit
from repsim_cli.runs.results import Run, quiet


def list_pair_units(comparison: Comparison) -> list[Unit]:
    """A unit per measure that solves its pairs one by one and pair of models."""
    wanted, places, labels = comparison.wanted, comparison.places, list(comparison.models)
    return [
        Unit(
            kind="pairs",
            name=f"{measure} of {labels[i]} and {labels[j]}",
            args={"measure": measure, "models": [labels[i], labels[j]]},
        )
        for measure, bound in comparison.measures.items()
        if is_solved_singly(bound, comparison.extract.estimate)
        for i, j in itertools.product(range(len(labels)), repeat=2)
        if i <= j or not bound.card.symmetric
        if wanted is None or bool(wanted[places[i], places[j]].any())
    ]


def list_permutation_units(comparison: Comparison) -> list[Unit]:
    """A unit per block of the permutations of a measure."""
    return [
        Unit(
            kind="permutations",
            name=f"permutations {block.start} to {block.stop - 1} of {measure}",
            args={"measure": measure, "first": block.start, "stop": block.stop},
        )
        for measure, blocks in split_permutations(comparison).items()
        for block in blocks
    ]


class PairWorker(RowWorker[Comparison]):
    """Solves and permutes the pairs of a comparison on a worker."""

    @property
    def kinds(self) -> Kinds:
        return {**super().kinds, "pairs": self.solve, "permutations": self.permute}

    def solve(self, run: Run, measure: str, models: list[str]) -> bool:
        part, identities = self.take_models(run, models)
        sequences, bound = self.sequences, part.measures[measure]
        every, total = self.extraction, Extraction.count_rows(self.extraction, run, sequences).total
        clusters = cluster_rows(every.significance, every.readings, every.data, sequences, every.extract, total)
        fitted = part.extract.fit_to(total)
        part = replace(part, measures={measure: bound}, total=total, whole=clusters.whole, extract=fitted)
        content = Content.collect(part, sequences, identities, by=matrices.__name__)
        wanted = _mark_wanted_pairs(part, models, bound.card.symmetric)
        with open_pairs(run, part.measures, content, wanted) as known:
            if all(entry.complete for pairs in known.values() for entry in pairs.entries.values()):
                return False
            with (
                open_rows(run, part, sequences, identities=identities, diagnose=False) as rows,
                PairWork(folder=run.folder, known=known, seed=None) as work,
            ):
                try:
                    estimate_all_pairs(
                        part.measures,
                        lambda seen: rows.stream(quiet, seen=seen),
                        names=part.names,
                        estimate=part.extract.estimate,
                        tile=part.hardware.tile,
                        labels=part.labels(sequences),
                        wanted=wanted,
                        work=work,
                    )
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
            return True

    def permute(self, run: Run, measure: str, first: int, stop: int) -> bool:
        comparison, identities = self.take_models(run, list(self.extraction.models))
        return permute_ahead(run, comparison, measure, range(first, stop), self.sequences, identities)


def _mark_wanted_pairs(comparison: Comparison, models: Sequence[str], symmetric: bool) -> Wanted:
    """Marks the pairs of layers that are compared: those of the first and the second model that the run wants."""
    at, count = list(comparison.models), len(comparison.layers)
    i, j = (comparison.places[at.index(label)] for label in models)
    block = torch.zeros(count, count, dtype=torch.bool)
    block[i, j] = True
    if symmetric:
        block[j, i] = True
    return block if comparison.wanted is None else block & comparison.wanted
