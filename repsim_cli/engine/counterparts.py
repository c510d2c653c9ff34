"""Every representation of the left side with the representation at the same place on the right side."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.estimates import Mean, Notices, compute_from_sums, file_warnings, keep_first_notices
from repsim_cli.engine.pairs import compute_all_pairs, group_by_preparation
from repsim_cli.engine.products import compute_unnormalised_hsic
from repsim_cli.engine.undefined import Lack, Reasons
from repsim_cli.measures import InnerProduct, Measure
from repsim_cli.measures.base import compute_self_products, compute_values_from_products, run_with_label
from repsim_cli.measures.inner import State as KernelState
from repsim_cli.measures.kernels import Kernel, keep_gram, prepare_states

STRIP_ROWS = 1024  # rows of one float32 product of features


@dataclass(frozen=True, kw_only=True)
class Counterparts:
    """values[r]: the entry (row r, column r) alone; se: standard errors, where there are several batches. undefined: by
    r, why it has no value; it is NaN there."""

    values: Float[Tensor, " r"]
    se: Float[Tensor, " r"] | None
    rows: int
    batches: int
    undefined: Mapping[int, str]


def estimate_counterparts(
    measures: Mapping[str, Measure],
    batches: Iterable[tuple[Sequence[Tensor], Sequence[Tensor]]],
    *,
    names: Sequence[tuple[str, str]],
    estimate: str,
    tile: int = 512,
    labels: Callable[[int], Tensor | None] = lambda batch: None,
    kept: dict[Any, Any] | None = None,
) -> tuple[dict[str, Counterparts], list[str]]:
    """Computes every measure of representation r of one side with representation r of the other, batch by batch.

    Estimates, labels and warnings as in `estimate_all_pairs`. names: of both sides of each pair.
    kept: what was prepared of the right side, reused by later calls with the same right side; for a single batch.
    """
    means: dict[str, Mean] = {}
    notices: Notices = {}
    seen = rows = 0
    sides: list[dict[Any, Any]] = [({} if kept is None else kept.setdefault(i, {})) for i in range(len(names))]
    undefined = [Reasons(list(measures)) for _ in names]
    for left, right in batches:
        made = []
        for x, y, both, side, reasons in zip(left, right, names, sides, undefined, strict=True):
            reasons.where = "" if estimate == "full" else f"batch {seen + 1}: "
            with file_warnings(notices, measures):
                if estimate == "ratio_of_sums":
                    made.append(compute_unnormalised_hsic(measures, (x, y), both, tile=tile, lack=reasons.add))
                else:
                    given = labels(seen), {} if kept is None else side, reasons.add
                    made.append(_compare_pair(measures, (x, y), both, tile, *given))
        rows, seen = rows + len(left[0]), seen + 1
        for label in measures:
            values = torch.stack([pair[label].cpu() for pair in made])
            means.setdefault(label, Mean.like(values)).add(values)
    if not rows:
        raise BadInput("extract: no batch could be filled, got too few rows; lower batch_rows or add data")
    estimates = {}
    for label, mean in means.items():
        values, se = mean.mean, mean.se
        if estimate == "ratio_of_sums":
            hsic = zip(values, names, undefined, strict=True)
            values = torch.stack(
                [compute_from_sums(measures[label], x, both, partial(why.add, label))[0, 1] for x, both, why in hsic]
            )
            se = None
        why = {r: next(iter(x.cells[label].values())) for r, x in enumerate(undefined) if values[r].isnan()}
        estimates[label] = Counterparts(values=values, se=se, rows=rows, batches=seen, undefined=why)
    return estimates, keep_first_notices(itertools.chain.from_iterable(notices.values()))


def _compare_pair(
    measures: Mapping[str, Measure],
    pair: tuple[Tensor, Tensor],
    names: tuple[str, str],
    tile: int,
    labels: Tensor | None,
    kept: dict[Any, Any],
    lack: Lack,
) -> dict[str, Tensor]:
    """Computes every measure of one pair, NaN where it has no value. Measures that are not inner products are computed
    in one direction only."""
    narrow = max(x.shape[1] for x in pair) < len(pair[0])
    values, inner = {}, {}

    def compute_one(label: str, step: Callable[[], float | Tensor]) -> None:
        try:
            values[label] = torch.as_tensor(step(), dtype=torch.float64)
        except Degenerate as error:
            values[label] = torch.tensor(torch.nan, dtype=torch.float64)
            lack(label, {(0, 1): error})

    for label, measure in measures.items():
        if isinstance(measure, InnerProduct) and narrow and _has_plain_gram(measure):
            compute_one(label, partial(_compute_from_features, measure, pair, names, kept))
        elif isinstance(measure, InnerProduct):
            inner[label] = measure
    values |= {
        label: matrix[0, 1] for label, matrix in compute_all_pairs(inner, pair, names, tile=tile, lack=lack).items()
    }
    for group in group_by_preparation(measures):
        some = next(iter(group.values()))
        for measure in group.values():
            measure.check(names, [x.shape for x in pair], labels)
        try:
            x, y = (some.prepare_named(side, name, labels) for side, name in zip(pair, names, strict=True))
        except Degenerate as error:
            for label in group:
                values[label] = torch.tensor(torch.nan, dtype=torch.float64)
                lack(label, {(0, 1): error})
            continue
        for label, measure in group.items():
            compute_one(label, partial(run_with_label, f"{names[0]} and {names[1]}", partial(measure.compare, x, y)))
    return values


def _has_plain_gram(measure: InnerProduct) -> bool:
    """Tells whether the measure takes the plain Gram matrix of its features on both sides."""
    kernel = measure.row
    return kernel is measure.column and isinstance(kernel, Kernel) and kernel.cells is keep_gram


def _compute_from_features(
    measure: InnerProduct, pair: tuple[Tensor, Tensor], names: tuple[str, str], kept: dict[Any, Any]
) -> Float[Tensor, ""]:
    """<XX', YY'> = |X'Y|^2: with fewer features than rows no (n, n) tile is made. Sums in float64, strip by strip.

    kept: the prepared y and |Y'Y|^2, by kernel.
    """
    measure.check(names, [x.shape for x in pair], None)
    kernel = measure.row

    def state_of(x: Tensor, name: str) -> KernelState:
        return run_with_label(name, partial(prepare_states, [kernel], x, {}))[kernel]

    def product(left: KernelState, right: KernelState) -> Tensor:
        parts = zip(left.features.values.split(STRIP_ROWS), right.features.values.split(STRIP_ROWS), strict=True)
        total = sum((a.mT @ b).double() for a, b in parts)
        assert isinstance(total, Tensor)
        return total.square().sum().cpu()

    if kernel not in kept:
        other = state_of(pair[1], names[1])
        kept[kernel] = other, product(other, other)
    state, (other, yy) = state_of(pair[0], names[0]), kept[kernel]
    xy = product(state, other)
    cross = torch.stack([product(state, state), xy, xy, yy]).reshape(2, 2)
    states = [state, other]
    norms = compute_self_products(measure, cross, len(pair[0]), torch.promote_types(pair[0].dtype, torch.float32))
    try:
        return compute_values_from_products(measure, cross, norms, states, states)[0, 1]
    except Degenerate as error:
        raise Degenerate(f"{names[int(cross.diagonal().argmin())]}: {measure.name}: {error}") from None
