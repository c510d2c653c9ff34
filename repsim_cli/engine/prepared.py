"""A batch of representations, what measures prepare of it, and the matrices that follow."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.undefined import Cell, Matrix, Undefined, Wanted
from repsim_cli.measures import InnerProduct, Measure, Pairwise
from repsim_cli.measures.features import PreparedFeatures
from repsim_cli.measures.inner import Tiles
from repsim_cli.measures.kernels import AnyKernel, Documents, Kernel, State


@dataclass(frozen=True, kw_only=True)
class SimilarityMatrix:
    """values[a, b]: the entry (row a, column b) of all representations against all, float64.

    se: standard errors of the mean over batches (None for one batch or another estimate). rows: rows used.
    statistics: means over batches of what was observed beside the values. notices: the measure's warnings.
    undefined: by cell, why it has no value; values are NaN there.
    """

    values: Matrix
    se: Matrix | None
    estimate: str
    rows: int
    batches: int
    statistics: dict[str, Tensor]
    notices: Sequence[str] = ()
    undefined: Mapping[Cell, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Grams:
    """A representation whose rows are gone: the tiles of its matrices, and the scales that were divided out, NaN for a
    constant one."""

    rows: int
    tiles: Mapping[Kernel, Tiles]
    scales: Mapping[Kernel, float]

    def __len__(self) -> int:
        return self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and 0, since the number of features is not known any more."""
        return self.rows, 0

    def state(self, kernel: Kernel) -> State:
        if math.isnan(self.scales[kernel]):
            raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
        return State(PreparedFeatures(torch.empty(self.rows, 0), self.scales[kernel]))


Batch = Sequence[Tensor] | Sequence[Grams]


@dataclass(frozen=True, kw_only=True)
class OfBatch:
    """The representations of one batch as one measure sees them, while they are held.

    details: further numbers of every pair, of a slow measure. documents: of the rows, where pairs of rows of one
    document are left out.
    """

    names: Sequence[str]
    rows: int
    tile: int
    details: Mapping[str, Matrix] = field(default_factory=dict)
    documents: Documents | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedProducts(OfBatch):
    """For an inner product. states: of every representation, by kernel. cross: all inner products; norms: squared.
    undefined: the cells of representations that could not be prepared, for which others stand in. expected: the mean
    inner products over random pairings, where they were asked for."""

    measure: InnerProduct
    states: Mapping[AnyKernel, Sequence[State]]
    cross: Matrix
    norms: Tensor
    undefined: Undefined
    expected: Matrix | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedStates(OfBatch):
    """For a pairwise measure. states: of every representation. left: which pairs are compared; None: all."""

    measure: Pairwise
    states: Sequence[Any]
    left: Wanted | None = None


Prepared = PreparedProducts | PreparedStates


Observe = Callable[[str, Measure, Prepared, Matrix], None]
Statistics = Callable[[int, Measure, Prepared, Matrix], dict[str, Tensor]]
