"""Shows a map of the first rows of a run while models run on the others."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from repsim_cli.activations.remedies import Remedies
from repsim_cli.activations.rows import RowBlock
from repsim_cli.base.errors import RepsimError
from repsim_cli.engine.comparison import NONE, Comparison
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.one_by_one import convert_to_numpy
from repsim_cli.engine.record import make_map_writer
from repsim_cli.measures import InnerProduct, Measure
from repsim_cli.runs.results import Run

FEW = 512  # rows


@dataclass
class FirstLook:
    """Compares the first rows that pass, once, by the measures to which few rows are enough for a first look: inner
    products. Shared neighbours are not among them: the fewer rows there are, the more they share."""

    run: Run
    comparison: Comparison
    _taken: list[RowBlock] = field(default_factory=list)
    _done: bool = False

    def watch(self, stream: Iterator[RowBlock], remedies: Remedies) -> Iterator[RowBlock]:
        """Passes on the stream of all layers as models give it, unchanged."""
        for block in stream:
            if not self._done:
                self._taken += remedies.rows(iter([block]))
                self._look()
            yield block

    def _look(self) -> None:
        whole = self.comparison
        measures = {
            label: bound
            for label, bound in whole.measures.items()
            if isinstance(bound, InnerProduct) and not bound.card.labelled
        }
        self._done = not measures or whole.total < 2 * FEW
        if self._done or sum(len(taken.rows[0]) for taken in self._taken) < FEW:
            return
        self._done = True
        rows = [torch.cat(parts)[: 2 * FEW] for parts in zip(*(taken.rows for taken in self._taken), strict=True)]
        self._taken.clear()
        with suppress(RepsimError):  # of all rows, the run says what is wrong
            self._compare(rows, measures)

    def _compare(self, rows: Sequence[Tensor], measures: Mapping[str, Measure]) -> None:
        whole = self.comparison
        extract = replace(whole.extract, estimate="full", rows=len(rows[0]))
        first = replace(whole, measures=measures, significance=NONE, extract=extract, total=extract.rows, whole=None)
        if whole.apart is not None:
            first = replace(first, apart=whole.apart[: first.total])
        matrices, _ = estimate_all_pairs(
            measures,
            lambda _: [self._apply_remedies(rows)],
            names=first.names,
            estimate="full",
            tile=first.hardware.tile,
            wanted=first.wanted,
            documents=first.documents_apart,
        )
        show = make_map_writer(self.run, first, of=whole.total)
        for label, matrix in matrices.items():
            show(label, partial(convert_to_numpy, matrix.values), 1)

    def _apply_remedies(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Applies the remedies of the run, with the scales and directions of these rows."""
        layers, remedies = self.comparison.layers, Remedies(self.comparison.extract, None)
        if remedies.extract.features_changed:
            remedies.measure(iter([RowBlock(0, list(rows))]), layers)
        (block,) = remedies.apply(iter([RowBlock(0, list(rows))]), layers)
        return block.rows
