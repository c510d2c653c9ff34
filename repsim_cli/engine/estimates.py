"""Estimates over a stream of batches: one batch, means over batches with their errors, or ratios of sums."""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.engine.expected import RowPlaces
from repsim_cli.engine.one_by_one import convert_to_numpy
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.prepared import Batch, Prepared, SimilarityMatrix, Statistics
from repsim_cli.engine.processes import PairWork
from repsim_cli.engine.products import check_of_hsic, compute_unnormalised_hsic
from repsim_cli.engine.undefined import Matrix, Reasons, Undefined, Wanted, compute_defined_values
from repsim_cli.measures import Measure
from repsim_cli.measures.base import MeasureWarning, attribute_warnings, clamp_to_bounds
from repsim_cli.measures.kernels import Documents


@dataclass
class Mean:
    """Running mean and standard error of matrices (Welford), one number per pair however many were added."""

    mean: Tensor
    squares: Tensor
    count: int = 0

    @classmethod
    def like(cls, values: Tensor) -> "Mean":
        """The mean of no values yet."""
        return cls(torch.zeros_like(values), torch.zeros_like(values))

    def add(self, values: Tensor) -> None:
        self.count += 1
        delta = values - self.mean
        self.mean += delta / self.count
        self.squares += delta * (values - self.mean)

    @property
    def se(self) -> Tensor | None:
        if self.count < 2:
            return None
        return (self.squares / (self.count - 1) / self.count).sqrt()


def check_estimate(measure: Measure, estimate: str) -> None:
    """Raises BadInput where the estimate is not defined for the measure."""
    if estimate == "moments" and measure.moments is None:
        raise BadInput(
            f"extract.estimate: {measure.name} is not a function of second moments, got moments; use full or per_batch"
        )
    if estimate == "sampled" and getattr(measure, "of_rows", None) is None:
        raise BadInput(
            f"extract.estimate: {measure.name} is not a mean over rows of what the nearest rows of each say, got "
            "sampled; use full or per_batch"
        )
    if estimate == "ratio_of_sums":
        check_of_hsic(measure)


Key = tuple[str] | tuple[str, str]  # (label,) of values, (label, statistic)
Beside = Callable[[int, Any, Mapping[Key, Tensor]], Mapping[Key, Tensor]]  # of a Batch and of its values
State = dict[str, Tensor]
Notices = dict[str, list[str]]  # by the label of a measure


@contextmanager
def file_warnings(notices: Notices, labels: Iterable[str]) -> Iterator[None]:
    """Files the warnings of measures under the measures that issued them, or under all of these labels."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MeasureWarning)
        yield
    for notice in caught:
        if isinstance(notice.message, MeasureWarning):
            for label in notice.message.measures or labels:
                notices[label] = keep_first_notices([*notices.get(label, []), str(notice.message)])
        else:
            warnings.warn(notice.message, notice.category, stacklevel=2)


def keep_first_notices(notices: Iterable[str]) -> list[str]:
    """The first of each kind: numbers may differ between batches.

    >>> keep_first_notices(["x: got 3 of 8", "y: got 3 of 8", "x: got 4 of 8"])
    ['x: got 3 of 8', 'y: got 3 of 8']
    """
    first: dict[str, str] = {}
    for notice in notices:
        first.setdefault(re.sub(r"\d[\d.]* ", "# ", notice), notice)
    return list(first.values())


def join_warnings(matrices: Iterable[SimilarityMatrix]) -> list[str]:
    """The warnings of several measures."""
    return keep_first_notices(notice for matrix in matrices for notice in matrix.notices)


def say_notices(matrices: Mapping[str, SimilarityMatrix]) -> Iterator[str]:
    """Says every warning of measures once, after the measures that gave it. Where it is of several layers, the first is
    named, and the range of the first number is that of the others."""
    kinds: dict[str, list[str]] = {}
    for notice in join_warnings(matrices.values()):
        layer, _, text = notice.partition("': ")  # LAYER of 'MODEL': TEXT
        kinds.setdefault(re.sub(r"\d[\d.]* ", "# ", text) if text and " of '" in layer else notice, []).append(notice)
    for first, *others in kinds.values():
        labels = ", ".join(label for label, made in matrices.items() if {first, *others} & set(made.notices))
        layer, _, text = first.partition("': ")
        yield f"{labels}: {layer}', and {_say_others(others)}: {text}" if others else f"{labels}: {first}"


def _say_others(notices: Sequence[str]) -> str:
    """Says how many more layers have the same warning, and the range of the first number in it.

    >>> _say_others(["b of 'm': 4 of 9 rows", "c of 'm': 2 of 9 rows"]), _say_others(["b of 'm': all rows"])
    ('likewise in 2 more layers (there 2 to 4)', 'likewise in 1 more layer')
    """
    found = [
        number for notice in notices for number in re.findall(r"\d+(?:\.\d+)?(?= )", notice.partition("': ")[2])[:1]
    ]
    ends = list(dict.fromkeys([min(found, key=float), max(found, key=float)])) if found else []
    there = f" (there {' to '.join(ends)})" if ends else ""
    return f"likewise in {len(notices)} more layer{'s' * (len(notices) > 1)}{there}"


def estimate_all_pairs(
    measures: Mapping[str, Measure],
    batches: Callable[[int], Iterable[Batch]],
    *,
    names: Sequence[str],
    estimate: str,
    tile: int = 512,
    labels: Callable[[int], Tensor | None] = lambda batch: None,
    statistics: Statistics = lambda *_: {},
    beside: Beside = lambda *_: {},
    each: Callable[[int, Mapping[str, Matrix]], None] = lambda batch, values: None,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
    wanted: Wanted | None = None,
    work: PairWork | None = None,
    places: Callable[[int], RowPlaces | None] = lambda batch: None,
    documents: Callable[[int], Documents | None] = lambda batch: None,
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Estimates every measure for all pairs, from a stream of batches of R tensors (n, d_r) with paired rows.

    Returns the matrices by label, and the warnings of the measures.

    batches(k): the stream from batch k on; of representations that do not fit into memory together, as
        `grams.pack_batches` makes it.
    estimate: `full`: one batch. `per_batch`: the mean of the batches' values, with its standard error.
        `ratio_of_sums`: HSIC of each batch (biased: / (n-1)^2, unbiased: / (n (n-3))), summed, then normalised.
    labels(batch): a class code per row, for measures that need them.
    statistics(batch, measure, prepared, values), beside(batch, representations, values): further values, averaged over
        the batches that have them.
    each(batch, values): called after every batch.
    save(state): called after every batch; from a saved `state` the estimate resumes with the same bits.
    wanted: as in `compute_all_pairs`. A cell that has no value in a batch has none: the matrices say why.
    work: where the pairs of slow measures are solved; their details are among the statistics.
    places(batch): of its rows, where the means of inner products over random pairings are wanted.
    documents(batch): of its rows, where pairs of rows of one document are left out.
    """
    for measure in measures.values():
        check_estimate(measure, estimate)
    undefined = Reasons(list(measures), wanted)
    means, seen, rows, notices = decode_state(state, undefined)
    summed = estimate == "ratio_of_sums"
    shared: dict[str, Any] = {"names": names, "tile": tile, "lack": undefined.add}
    sum_hsic = partial(compute_unnormalised_hsic, measures, **shared)
    compute = partial(compute_all_pairs, measures, wanted=wanted, work=work, **shared)
    for batch in batches(seen):
        undefined.where = "" if estimate == "full" else f"batch {seen + 1}: "
        with file_warnings(notices, measures):
            if summed:
                sums = sum_hsic(batch, documents=documents(seen))
                values = {(label,): hsic for label, hsic in sums.items()}
            else:
                here = {"labels": labels(seen), "places": places(seen), "documents": documents(seen)}
                values = _observe(partial(compute, batch, batch=seen, **here), partial(statistics, seen))
                values |= beside(seen, batch, values)
        rows, seen = rows + len(batch[0]), seen + 1
        for key, value in values.items():
            means.setdefault(key, Mean.like(value.cpu())).add(value.cpu())
        each(seen - 1, {label: values[label,] for label in measures})
        save(encode_state(means, seen, rows, notices, undefined))
        if work is not None:
            for label, measure in measures.items():
                work.show(label, partial(_compute_so_far, measure if summed else None, means[label,].mean, names), seen)
    if not rows:
        raise BadInput("extract: no batch could be filled, got too few rows; lower batch_rows or add data")
    matrices, undefined.where = {}, ""
    for label, measure in measures.items():
        mean = means[label,]
        matrices[label] = SimilarityMatrix(
            values=compute_from_sums(measure, mean.mean, names, partial(undefined.add, label)) if summed else mean.mean,
            se=None if summed else mean.se,
            estimate=estimate,
            rows=rows,
            batches=seen,
            statistics={key[1]: m.mean for key, m in means.items() if key[0] == label and key[1:]},
            notices=notices.get(label, []),
            undefined=undefined.cells[label],
        )
    return matrices, join_warnings(matrices.values())


def _observe(
    compute: Callable[..., dict[str, Matrix]], statistics: Callable[[Measure, Prepared, Matrix], dict[str, Tensor]]
) -> dict[Key, Tensor]:
    """The values of one batch, and the statistics observed beside them. compute: `compute_all_pairs`, which takes what
    observes."""
    observed: dict[Key, Tensor] = {}

    def observe(label: str, measure: Measure, prepared: Prepared, values: Matrix) -> None:
        with attribute_warnings([label]):
            more = {**prepared.details, **statistics(measure, prepared, values)}
        observed.update({(label, key): value for key, value in more.items()})

    values = compute(observe=observe)
    return {**{(label,): value for label, value in values.items()}, **observed}


def compute_from_sums(
    measure: Measure, hsic: Matrix, names: Sequence[str], lack: Callable[[Undefined], None] = lambda undefined: None
) -> Matrix:
    """The measure from HSICs that were summed over batches, NaN where they are. lack: is told of further cells."""
    kept = [a for a in range(len(hsic)) if hsic[a, a].isfinite()]
    values, at_kept = torch.full_like(hsic, torch.nan), torch.tensor(kept, dtype=torch.long)
    if kept:
        some, undefined = hsic[at_kept][:, at_kept], Undefined()
        given = [names[a] for a in kept], undefined
        values[at_kept[:, None], at_kept] = compute_defined_values(
            check_of_hsic(measure), some, some.diagonal(), (), (), *given
        )
        lack({(kept[a], kept[b]): error for (a, b), error in undefined.items()})
    return clamp_to_bounds(measure, values)


def _compute_so_far(summed: Measure | None, mean: Tensor, names: Sequence[str]) -> np.ndarray:
    """The values of a mean over some batches, of HSIC for the measure `summed`; NaN where that has no value yet."""
    if summed is None:
        return convert_to_numpy(mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasureWarning)
        return convert_to_numpy(compute_from_sums(summed, mean, names))


def encode_state(means: Mapping[Any, Mean], seen: int, rows: int, notices: Notices, undefined: Reasons) -> State:
    state: State = {
        "seen": torch.tensor([seen, rows]),
        "notices": torch.tensor(list(json.dumps(notices).encode()), dtype=torch.uint8),
        "undefined": torch.tensor(list(undefined.dump()), dtype=torch.uint8),
    }
    for parts, mean in means.items():
        key = "\t".join(parts)
        count = torch.tensor(mean.count)
        state |= {f"{key}.mean": mean.mean, f"{key}.squares": mean.squares, f"{key}.count": count}
    return state


def decode_state(state: State | None, undefined: Reasons) -> tuple[dict[Any, Mean], int, int, Notices]:
    """The means, how many batches and rows they are of, and the warnings that `encode_state` wrote; without a state,
    those of no batch yet. undefined: takes the cells without a value."""
    if state is None:
        return {}, 0, 0, {}
    stored = [key.removesuffix(".mean") for key in state if key.endswith(".mean")]
    means: dict[Any, Mean] = {
        tuple(key.split("\t")): Mean(state[f"{key}.mean"], state[f"{key}.squares"], int(state[f"{key}.count"]))
        for key in stored
    }
    seen, rows = (int(count) for count in state["seen"])
    undefined.load(bytes(state["undefined"].tolist()))
    return means, seen, rows, json.loads(bytes(state["notices"].tolist()))
