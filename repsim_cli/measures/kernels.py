"""Defines kernels, symmetric (n, n) matrices of representations, and prepares representations for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.features import AnyFeatures, PreparedFeatures, StackedRows, find_stacks, stack_rows

Documents = Int[Tensor, " n"]  # of every row, from 0


def keep_gram(fit: Any, gram: Tensor, rows: slice, columns: slice) -> Tensor:
    return gram


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A symmetric (n, n) matrix M per representation, from the Gram matrix of its features.

    features(x): runs once per representation, for all kernels that share the function.
    fit(features): what the cells need from the whole matrix (row sums, a bandwidth); its tensors have an entry per row.
    cells(fit, gram, rows, columns): the tile of M from that of the Gram matrix, which it may overwrite.
    whole: whether the fit temporarily holds an (n, n) matrix.
    copies: how many copies of the rows the features hold, for the estimate of memory.
    together(xs): the features of several representations at once, each or why it has none; fit and cells then take
        several too, (l, n) and (l, a, b). On a GPU a step that is started has a price, so that layers go together.
    offsets(fit): the o, where M is the Gram matrix of features without column means, plus o_i + o_j, with 0 on the
        diagonal: products of features then tell inner products, as they do where cells are those of the Gram matrix.
    documents: of the rows whose pairs are left out; the fit then takes them too, and is made anew for other orders of
        the rows. Kernels that differ in them alone are equal, since a batch of rows has one list of documents.
    """

    features: Callable[[Tensor], AnyFeatures]
    fit: Callable[..., Any] = lambda features: None
    cells: Callable[[Any, Tensor, slice, slice], Tensor] = keep_gram
    whole: bool = False
    copies: float = 0.0
    together: Callable[[Sequence[Tensor]], list[Any]] | None = None
    offsets: Callable[[Any], Tensor] | None = None
    documents: Documents | None = field(default=None, compare=False)

    def fit_to(self, features: AnyFeatures) -> Any:
        return self.fit(features) if self.documents is None else self.fit(features, self.documents)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A symmetric (n, n) matrix with zero diagonal per representation: cells(x) -> its cells i < j, row by row.

    left_out: which cells are of two rows of one document, where these are left out; cells(x, left_out) are 0 there. As
        with the documents of a `Kernel`, matrices that differ in this alone are equal.
    """

    cells: Callable[..., PreparedFeatures]
    left_out: Bool[Tensor, " cells"] | None = field(default=None, compare=False)

    def make(self, x: Tensor) -> PreparedFeatures:
        return self.cells(x) if self.left_out is None else self.cells(x, self.left_out)


AnyKernel = Kernel | Packed


class State(NamedTuple):
    """A representation prepared for a kernel."""

    features: AnyFeatures
    fit: Any = None


def prepare_states(kernels: Sequence[AnyKernel], x: Tensor, made: dict[Any, Any]) -> dict[AnyKernel, State]:
    """x prepared for every kernel; `make` collects features that several kernels share."""
    states: dict[AnyKernel, State] = {}
    for kernel in kernels:
        make = kernel.cells if isinstance(kernel, Packed) else kernel.features
        if make not in made:
            made[make] = kernel.make(x) if isinstance(kernel, Packed) else make(x)
        states[kernel] = State(made[make], None if isinstance(kernel, Packed) else kernel.fit_to(made[make]))
    return states


def prepare_together(kernels: Sequence[AnyKernel], xs: Sequence[Any]) -> dict[AnyKernel, list[State | Degenerate]]:
    """Prepares the representations for the kernels that take several at once; gives the state of each, or why it has
    none. On a CPU there are none, since it is no faster there."""
    if not all(isinstance(x, Tensor) and x.device.type != "cpu" for x in xs):
        return {}
    made: dict[Any, list[Any]] = {}
    found: dict[AnyKernel, list[State | Degenerate]] = {}
    for kernel in kernels:
        if isinstance(kernel, Kernel) and kernel.together is not None and kernel.documents is None:
            if kernel.together not in made:
                made[kernel.together] = kernel.together(xs)
            found[kernel] = _fit_together(kernel, made[kernel.together])
    return found


def _fit_together(kernel: Kernel, made: Sequence[Any]) -> list[State | Degenerate]:
    states: list[State | Degenerate] = []
    for at in find_stacks(made):
        first, several = made[at.start], at.stop > at.start + 1
        if isinstance(first, Degenerate):
            states.append(first)
            continue
        fit = kernel.fit(stack_rows(made[at]) if several else first)
        fits = fit.unbind() if several and fit is not None else [fit] * (at.stop - at.start)
        states += map(State, made[at], fits)
    return states


class Stack(NamedTuple):
    """Representations that are computed together: their places among all, their features, and what was fitted to them
    for every kernel. On a CPU it is one representation."""

    at: slice
    features: AnyFeatures | StackedRows
    fits: Mapping[Kernel, Any]

    def view(self, buffer: Float[Tensor, "r cells"], shape: tuple[int, int]) -> Float[Tensor, "*l a b"]:
        """Views the tile of these representations in a buffer."""
        if isinstance(self.features, StackedRows):
            return buffer[self.at].unflatten(1, shape)
        return buffer[self.at.start].view(shape)


def stack_states(kernels: Sequence[Kernel], states: Mapping[Any, Sequence[State]]) -> list[Stack]:
    """Puts the representations into stacks. kernels: of the same features."""
    parts, stacks = [state.features for state in states[kernels[0]]], []
    for at in find_stacks(parts) if all(k.together for k in kernels) else (slice(r, r + 1) for r in range(len(parts))):
        if at.stop == at.start + 1:
            stacks.append(Stack(at, parts[at.start], {kernel: states[kernel][at.start].fit for kernel in kernels}))
            continue
        fits = {kernel: [state.fit for state in states[kernel][at]] for kernel in kernels}
        joined = {kernel: None if some[0] is None else torch.stack(some) for kernel, some in fits.items()}
        stacks.append(Stack(at, stack_rows(parts[at]), joined))  # pyright: ignore[reportArgumentType] - CentredRows alone
    return stacks
