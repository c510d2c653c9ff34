"""All inner products of the representations of one batch, for all measures that are made of them, in one pass over
tiles (`measures/inner.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.expected import RowPlaces, compute_products_and_means
from repsim_cli.engine.prepared import Batch, Grams, PreparedProducts
from repsim_cli.engine.undefined import Lack, Matrix, Undefined, list_undefined_cells, mask, raise_first
from repsim_cli.measures import InnerProduct, Measure, OfHsic
from repsim_cli.measures.base import (
    attribute_warnings,
    compute_self_products,
    restrict_to_other_documents,
    run_with_label,
)
from repsim_cli.measures.inner import compute_products_from_tiles
from repsim_cli.measures.kernels import AnyKernel, Documents, Kernel, Packed, State, prepare_states, prepare_together


def compute_unnormalised_hsic(
    measures: Mapping[str, Measure],
    representations: Batch,
    names: Sequence[str],
    *,
    tile: int,
    lack: Lack = raise_first,
    documents: Documents | None = None,
) -> dict[str, Matrix]:
    """HSIC of all pairs, not normalised: sums over batches add up. lack, documents: as in `compute_all_pairs`."""
    measures = {label: restrict_to_other_documents(measure, documents) for label, measure in measures.items()}
    count, sums = len(representations), {}
    without: dict[str, Undefined] = {}
    for label, prepared in prepare_inner_products(measures, representations, names, tile, without):
        measure = prepared.measure
        measure.check(names, [x.shape for x in representations], None)
        scale = torch.tensor([s.features.scale**2 for s in prepared.states[measure.row]]).to(prepared.cross)
        hsic = prepared.cross.diagonal_scatter(prepared.norms)
        hsic = hsic * scale[:, None] * scale[None, :] / check_of_hsic(measure).terms(prepared.rows)
        sums[label], without[label] = mask(hsic, prepared.undefined), prepared.undefined
    for label, undefined in without.items():
        sums.setdefault(label, torch.full((count, count), torch.nan, dtype=torch.float64))
        lack(label, undefined)
    return sums


def check_of_hsic(measure: Measure) -> OfHsic:
    """The measure; raises BadInput where it is not made of HSIC."""
    if not isinstance(measure, OfHsic):
        raise BadInput(
            f"extract.estimate: ratio_of_sums sums HSIC, and {measure.name} is not made of HSIC; use per_batch or full"
        )
    return measure


def prepare_inner_products(
    measures: Mapping[str, Measure],
    representations: Batch,
    names: Sequence[str],
    tile: int,
    without: dict[str, Undefined],
    places: RowPlaces | None = None,
) -> Iterator[tuple[str, PreparedProducts]]:
    """The measures that are inner products, prepared; all of them in a single pass over tiles. without: is given the
    cells of measures that cannot prepare any representation, which are left out."""
    inner = {label: measure for label, measure in measures.items() if isinstance(measure, InnerProduct)}
    n, count = len(representations[0]), len(representations)
    made, failed = _prepare_kernels(inner, representations, names)
    for label, measure in list(inner.items()):
        if not (made[measure.row] and made[measure.column]):
            without[label] = list_undefined_cells(failed[measure.row], failed[measure.column], count)
            del inner[label]
    stands = {kernel: next(iter(of)) for kernel, of in made.items() if of}
    at_place = {kernel: [a if a in made[kernel] else stand for a in range(count)] for kernel, stand in stands.items()}
    states = {kernel: [made[kernel][a] for a in at] for kernel, at in at_place.items()}
    grams = [x for x in representations if isinstance(x, Grams)]
    fine = all(isinstance(x, Tensor) and x.dtype == torch.float64 for x in representations)
    dtype = torch.float64 if fine else torch.float32  # whose rounding passes for nothing
    wanted, means = [(measure.row, measure.column) for measure in inner.values()], {}
    if grams:
        kernels = [kernel for kernel, _ in wanted if isinstance(kernel, Kernel)]  # all: others cannot be in files
        crosses = [
            compute_products_from_tiles([grams[a].tiles[kernel] for a in at_place[kernel]], n, tile)
            for kernel in kernels
        ]
    else:
        crosses, means = compute_products_and_means(wanted, states, n, tile, places)
    for (label, measure), cross in zip(inner.items(), crosses, strict=True):
        norms = compute_self_products(measure, cross, n, dtype)
        undefined = list_undefined_cells(failed[measure.row], failed[measure.column], count)
        given = {"names": names, "rows": n, "tile": tile, "undefined": undefined}
        given["expected"] = means.get((measure.row, measure.column))
        yield label, PreparedProducts(measure=measure, states=states, cross=cross, norms=norms, **given)


def _prepare_kernels(
    inner: Mapping[str, InnerProduct], representations: Batch, names: Sequence[str]
) -> tuple[dict[AnyKernel, dict[int, State]], dict[AnyKernel, dict[int, Degenerate]]]:
    """Prepares every representation for every kernel of these measures. Returns the states by kernel and
    representation, and why others could not be prepared."""
    kernels = list(dict.fromkeys(kernel for measure in inner.values() for kernel in (measure.row, measure.column)))
    sharing: dict[Any, list[str]] = {}  # the measures that are made of the same features
    for label, measure in inner.items():
        for feature in {_find_maker(measure.row), _find_maker(measure.column)}:
            sharing.setdefault(feature, []).append(label)
    made: dict[AnyKernel, dict[int, State]] = {kernel: {} for kernel in kernels}
    failed: dict[AnyKernel, dict[int, Degenerate]] = {kernel: {} for kernel in kernels}
    ready = prepare_together(kernels, representations)
    for a, (x, name) in enumerate(zip(representations, names, strict=True)):
        features: dict[Any, Any] = {}
        for kernel in kernels:
            if kernel in ready and isinstance(state := ready[kernel][a], State):
                made[kernel][a] = state
                continue
            try:
                with attribute_warnings(sharing[_find_maker(kernel)]):
                    made[kernel][a] = run_with_label(name, partial(_prepare_state, kernel, x, features))
            except Degenerate as error:
                failed[kernel][a] = error
    return made, failed


def _prepare_state(kernel: AnyKernel, x: Tensor | Grams, features: dict[Any, Any]) -> State:
    if isinstance(x, Grams):
        assert isinstance(kernel, Kernel)
        return x.state(kernel)
    return prepare_states([kernel], x, features)[kernel]


def _find_maker(kernel: AnyKernel) -> Any:
    """The function of a representation that kernels may share."""
    return kernel.cells if isinstance(kernel, Packed) else kernel.features
