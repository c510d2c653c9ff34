"""All pairs of attention layers, from one pass over sentences."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.estimates import Notices, State, file_warnings, join_warnings
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.undefined import Matrix, Reasons, Undefined
from repsim_cli.measures import OfAttention
from repsim_cli.measures.base import run_with_label


def estimate_attention(
    measures: Mapping[str, OfAttention],
    batches: Callable[[int], Iterable[AttentionMaps]],
    layers: Sequence[slice],
    *,
    names: Sequence[str],
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Computes every measure of attention for all pairs of layers, from a stream of batches of sentences.

    Returns the matrices by label, and the warnings of the measures.

    batches(k): the stream from batch k on, each with the maps of all heads of all layers. layers: the heads of each
    layer. Measures that need the same sums share them: a few numbers per pair of heads, however long the text. In the
    result, `rows` counts what the measure averages over; `statistics` has `heads`, the similarity of all heads, where
    heads are matched and all have a value. names: of the layers. state, save: as in `estimate_all_pairs`.
    """
    sums = {label: measure.sums for label, measure in measures.items()}
    kinds = list(dict.fromkeys(sums.values()))
    firsts = [next(label for label, summed in sums.items() if summed is kind) for kind in kinds]
    totals: list[dict[str, Tensor]] = [{} for _ in kinds]
    seen, labels = 0, torch.tensor(list("\t".join(measures).encode()), dtype=torch.uint8)
    if state is not None and torch.equal(state["measures"], labels):
        seen = int(state["seen"])
        totals = [{k.split("\t")[1]: v for k, v in state.items() if k.startswith(f"{i}\t")} for i in range(len(kinds))]
    for maps in batches(seen):
        for total, kind, first in zip(totals, kinds, firsts, strict=True):
            for key, value in run_with_label(first, partial(kind, maps)).items():
                total[key] = total[key] + value.cpu() if key in total else value.cpu()
        seen += 1
        sums_so_far = {f"{i}\t{k}": v for i, total in enumerate(totals) for k, v in total.items()}
        save({"seen": torch.tensor(seen), "measures": labels, **sums_so_far})
    matrices: dict[str, SimilarityMatrix] = {}
    notices: Notices = {}
    undefined = Reasons(list(measures))
    for label, measure in measures.items():
        total = totals[kinds.index(sums[label])]
        with file_warnings(notices, [label]):
            try:
                run_with_label(label, partial(measure.check_count, total))
                values = run_with_label(label, partial(measure.layers, total, layers))
                heads = {} if measure.heads is None else {"heads": measure.heads(total)}
            except Degenerate:
                values, heads = compute_layer_pairs(measure, total, layers, names, partial(undefined.add, label)), {}
        matrices[label] = SimilarityMatrix(
            values=values,
            se=None,
            estimate="full",
            rows=int(total["count"]),
            batches=1,
            statistics=heads | {key: total[key] for key in ("left_out",) if key in total},
            notices=notices.get(label, []),
            undefined=undefined.cells[label],
        )
    return matrices, join_warnings(matrices.values())


def compute_layer_pairs(
    measure: OfAttention,
    totals: Mapping[str, Tensor],
    layers: Sequence[slice],
    names: Sequence[str],
    lack: Callable[[Undefined], None],
) -> Matrix:
    """Computes the measure of every two layers from the sums of their heads alone; NaN where it has no value."""
    count = len(layers)
    values = torch.full((count, count), torch.nan, dtype=torch.float64)
    alone: Undefined = {}
    for a, b in sorted(itertools.product(range(count), repeat=2), key=lambda cell: cell[0] != cell[1]):
        if error := alone.get((a, a)) or alone.get((b, b)):
            lack({(a, b): error})
            continue
        both = list(dict.fromkeys((a, b)))
        sizes = [layers[place].stop - layers[place].start for place in both]
        ends = [0, *itertools.accumulate(sizes)]
        heads = torch.cat([torch.arange(layers[place].start, layers[place].stop) for place in both])
        some = {key: x[heads] if x.ndim == 1 else x for key, x in totals.items()}
        some |= {key: x[heads][:, heads] for key, x in totals.items() if x.ndim == 2}
        try:
            measure.check_count(some)
            values[a, b] = measure.layers(some, [slice(*ends) for ends in itertools.pairwise(ends)])[0, -1]
        except Degenerate as error:
            named = Degenerate(f"{' and '.join(names[place] for place in both)}: {measure.name}: {error}")
            alone |= {(a, a): named} if a == b else {}
            lack({(a, b): named})
    return values
