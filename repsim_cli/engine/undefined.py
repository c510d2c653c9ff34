"""Cells without a value: pairs of representations for which a measure is undefined, and why.

A representation that a measure cannot prepare (a constant layer) must not end what is computed of all others: the state
of another one takes its place, so that nothing else changes, and its cells are NaN in the end.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures import InnerProduct
from repsim_cli.measures.base import compute_values_from_products

Cell = tuple[int, int]
Undefined = dict[Cell, Degenerate]
Lack = Callable[[str, Undefined], None]  # is told the cells without a value of the measure of this label
Matrix = Float[Tensor, "r r"]
Wanted = Bool[Tensor, "r r"]


def raise_first(label: str, undefined: Undefined) -> None:
    """Raises the first error, for a caller that needs every cell."""
    for error in undefined.values():
        raise error


def make_with_stand_ins(make: Callable[[int], Any], places: Iterable[int]) -> tuple[list[Any], dict[int, Degenerate]]:
    """Makes something of each representation, or of another one where it raises Degenerate; returns these errors too.

    places: 0, 1, ... of all representations.

    >>> def make(place):
    ...     if place == 1:
    ...         raise Degenerate("constant")
    ...     return "abc"[place]
    >>> make_with_stand_ins(make, range(3))
    (['a', 'a', 'c'], {1: Degenerate('constant')})
    """
    made: dict[int, Any] = {}
    failed: dict[int, Degenerate] = {}
    for place in places:
        try:
            made[place] = make(place)
        except Degenerate as error:
            failed[place] = error
    return [made.get(place, next(iter(made.values()), None)) for place in range(len(made) + len(failed))], failed


def list_undefined_cells(rows: Mapping[int, Degenerate], columns: Mapping[int, Degenerate], count: int) -> Undefined:
    """Lists all cells of these rows and columns, with the error of the row or else of the column.

    >>> list(list_undefined_cells({1: Degenerate("")}, {}, 2))
    [(1, 0), (1, 1)]
    """
    cells = {(a, b): error for a, error in rows.items() for b in range(count)}
    return cells | {(a, b): error for b, error in columns.items() for a in range(count) if a not in rows}


def mask(values: Tensor, undefined: Undefined) -> Tensor:
    """A copy with NaN in these cells of the last two dimensions."""
    if not undefined:
        return values
    values = values.clone()
    values[..., *torch.tensor([*undefined]).T] = torch.nan
    return values


def compute_defined_values(
    measure: InnerProduct,
    cross: Matrix,
    norms: Float[Tensor, " k"],
    rows: Sequence[Any],
    columns: Sequence[Any],
    names: Sequence[str],
    undefined: Undefined,
) -> Matrix:
    """`compute_values_from_products`; where a representation is undefined with itself, its cells are NaN and added to
    `undefined`."""

    def compute(places: list[int]) -> Matrix:
        some = cross[places][:, places]
        sides = (states and [states[a] for a in places] for states in (rows, columns))
        return compute_values_from_products(measure, some, norms[places] if len(norms) else norms, *sides)

    try:
        return compute_values_from_products(measure, cross, norms, rows, columns)
    except Degenerate:
        places = range(len(cross))
        alone = make_with_stand_ins(lambda a: compute([a]), places)[1]
        left = [a for a in places if a not in alone]
        values = torch.full_like(cross, torch.nan)
        if left:
            values[torch.tensor(left)[:, None], torch.tensor(left)] = compute(left)
        errors = {a: Degenerate(f"{names[a]}: {measure.name}: {error}") for a, error in alone.items()}
        undefined.update(list_undefined_cells(errors, errors, len(cross)))
        return values


@dataclass
class Reasons:
    """Keeps why a measure has no value, by its label and by cell: the first reason counts. where: begins those that are
    added. wanted: which cells are asked for."""

    labels: Sequence[str]
    wanted: Wanted | None = None
    where: str = ""

    def __post_init__(self) -> None:
        self.cells: dict[str, dict[Cell, str]] = {label: {} for label in self.labels}

    def add(self, label: str, undefined: Undefined) -> None:
        for cell, error in undefined.items():
            if self.wanted is None or self.wanted[cell]:
                self.cells[label].setdefault(cell, f"{self.where}{error}")

    def dump(self) -> bytes:
        return json.dumps(
            {label: [[*cell, why] for cell, why in of.items()] for label, of in self.cells.items()}
        ).encode()

    def load(self, text: bytes) -> None:
        self.cells = {label: {(a, b): why for a, b, why in of} for label, of in json.loads(text).items()}
