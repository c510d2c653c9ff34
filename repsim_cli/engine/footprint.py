"""Estimates what a comparison takes before it runs: memory, disk, passes over the rows, operations."""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from repsim_cli.activations.batching import count_passes
from repsim_cli.activations.diagnostics import MOST
from repsim_cli.activations.rows import AT_ONCE
from repsim_cli.base.settings import OF_SAMPLE
from repsim_cli.engine.batch_memory import Bytes, PlannedBatch, estimate_batch_memory
from repsim_cli.engine.bounds import (
    bound_pass,
    bound_sequence_length,
    check_disk,
    check_rows_fit,
    count_activation_bytes,
    count_all_rows,
    count_most_rows,
)
from repsim_cli.engine.chance import ORDERS
from repsim_cli.engine.checks import are_documents_known
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.cost import (
    Cost,
    estimate_feature_products,
    estimate_forward_cost,
    estimate_moments_cost,
    estimate_pairs_cost,
    estimate_sampled,
    takes_features,
)
from repsim_cli.engine.extraction import Extraction, count_sequences, find_sequence_length
from repsim_cli.engine.grams import BatchShape, group_layers, list_kernels
from repsim_cli.engine.left_out import estimate_left_out_cost, find_left_out_measures
from repsim_cli.engine.moments import BYTES, SUMMED, are_exact_in_single, plan_passes
from repsim_cli.engine.sampled import CELLS, TOGETHER
from repsim_cli.measures import InnerProduct, Measure, Pairwise
from repsim_cli.measures.kernels import Packed
from repsim_cli.measures.near_rows import count_block_rows
from repsim_cli.measures.nearest import count_neighbours
from repsim_cli.models.sizes import goes_by_block, list_models_alone
from repsim_cli.runs import cache, results

STORED_ALONE = 0.4e9  # bytes of Python and its libraries where no model runs
WORKER = 0.25e9  # bytes of a process that solves pairs, beside those of libraries, which it shares
DOCUMENT = 400  # rows that two documents have where text is cut into sequences: as in the shipped text
RESERVE = 0.01  # of the memory limit that cross products leave: page tables, fragments of the heap


def check_fits(comparison: Comparison, memory: Callable[[int], Mapping[str, float]] | None = None) -> None:
    """Calls `note_unfit` where memory or disk do not suffice. memory(rows): as `estimate_comparison_memory`."""
    needed = memory or (lambda rows: estimate_comparison_memory(comparison, rows))
    key = "rows" if comparison.extract.estimate in OF_SAMPLE else "batch_rows"
    check_rows_fit(needed, count_rows_per_comparison(comparison), comparison.hardware, comparison.live, key=key)
    check_disk(
        _count_packed(comparison),
        results.find_outputs_root(),
        "REPSIM_OUTPUTS: the packed Gram matrices",
        f"hardware.memory_gb={_estimate_whole_gb(comparison) + 0.1:.1f} needs none, or read fewer layers or less text",
    )
    check_disk(
        _count_uncached_bytes(comparison),
        results.find_outputs_root(),
        "REPSIM_OUTPUTS: the rows of models that run one after the other",
        "read fewer layers or less text",
    )


def count_rows_per_comparison(comparison: Comparison) -> int:
    """Rows that are compared at a time."""
    extract = comparison.extract
    return (
        min(extract.rows, count_most_rows(comparison.models, extract))
        if extract.estimate in OF_SAMPLE
        else extract.batch_rows
    )


def estimate_comparison_memory(comparison: Comparison, rows: int) -> Bytes:
    """Bytes of weights, activations of a forward batch, a batch of the layers that are read together, Gram tiles."""
    if (groups := group_layers_by_memory(comparison, rows)) is None:
        return _estimate_memory(comparison, rows)
    return _estimate_memory(comparison, rows, max(sum(comparison.layers[a].width for a in group) for group in groups))


def count_cross_product_bytes(comparison: Comparison) -> float:
    """Bytes for the cross products of second moments in one pass over the rows."""
    return estimate_comparison_memory(comparison, count_rows_per_comparison(comparison)).get("cross products", 0.0)


def plan_memory(comparison: Comparison) -> Comparison:
    """Adds what of it is in memory together."""
    return replace(comparison, room=count_cross_product_bytes(comparison), groups=group_layers_by_memory(comparison))


def group_layers_by_memory(comparison: Comparison, rows: int | None = None) -> list[list[int]] | None:
    """The groups of layers whose batches are in memory together, where those of all layers do not fit and tiles in
    files can stand for them; else None. rows: of a batch."""
    rows, limit = rows or count_rows_per_comparison(comparison), comparison.hardware.memory_limit
    widths = [layer.width for layer in comparison.layers]
    if sum(_estimate_memory(comparison, rows).values()) <= limit or not _needs_only_grams(comparison):
        return None
    every, none = (sum(_estimate_memory(comparison, rows, features).values()) for features in (sum(widths), 0))
    return group_layers(widths, sum(widths) * (limit - none) / (every - none))


def _needs_only_grams(comparison: Comparison) -> bool:
    """Tells whether tiles of Gram matrices are all that the run needs of the rows."""
    tested = comparison.significance.method != "none" or comparison.significance.jackknife
    inner = comparison.extract.estimate != "moments" and list_kernels(comparison.measures) is not None
    return not comparison.side_by_side and inner and not tested


def _estimate_whole_gb(comparison: Comparison) -> float:
    """Memory with the rows of all layers."""
    return sum(_estimate_memory(comparison, count_rows_per_comparison(comparison)).values()) / 1e9


def _estimate_memory(comparison: Comparison, rows: int, group: int | None = None) -> Bytes:
    """`estimate_comparison_memory` by its parts, of the step that needs most: reading the rows, or comparing them.
    group: the features of the layers that are read together; None: of all layers."""
    extract, hardware = comparison.extract, comparison.hardware
    everything = sum(layer.width for layer in comparison.layers)
    features = everything if group is None else group
    passing = bound_pass(comparison.live, extract, hardware, everything, together=comparison.side_by_side)
    parts = {"Python and its libraries": 0.5e9 if comparison.live else STORED_ALONE, "weights": passing.pop("weights")}
    reading = {**passing, "diagnostics": 4.0 * min(MOST, count_most_rows(comparison.models, extract)) * features}
    if extract.estimate == "moments":
        return _estimate_moments_memory(comparison, {**parts, **reading}, rows, features)
    if extract.estimate == "sampled":
        return _estimate_sampled_memory(comparison, {**parts, **reading}, rows, features)
    of_rows, batch = 4.0 * rows * features, plan_batch(comparison, rows, group)
    compared = {
        **estimate_batch_memory(batch),
        "processes": WORKER * hardware.workers if hardware.workers > 1 and comparison.slow else 0.0,
        "values": 8.0 * 2 * batch.layers**2 * (1 + comparison.significance.permutations * batch.permuted),
        "pairs left out": _count_pair_bytes(comparison, rows),
    }
    block = passing["forward"] / 2 if comparison.live else 4.0 * extract.batch_rows * features
    reading["remedies"] = 2 * block * bool(extract.remedies)
    if extract.estimate == "full":
        steps = {**reading, "rows": of_rows + block * (not comparison.live)}, {"rows": of_rows, **compared}
    else:  # the next batch is read while this one is held
        steps = ({**reading, "rows": 2 * of_rows, **compared},)
    return {part: size for part, size in (parts | max(steps, key=lambda step: sum(step.values()))).items() if size}


def _is_row_a_document(comparison: Comparison) -> bool:
    return comparison.significance.clusters == "row" or not are_documents_known(comparison.models)


def plan_batch(comparison: Comparison, rows: int, group: int | None = None) -> PlannedBatch:
    """Plans a batch. group: the features of the layers in memory; None: of all. Groups have no level of chance."""
    extract, significance = comparison.extract, comparison.significance
    widths = [layer.width for layer in comparison.layers]
    batches = 1 if extract.estimate == "full" else max(1, _count_extracted_rows(comparison) // max(rows, 1))
    wanted = significance.chance and extract.estimate in ("full", "per_batch") and group is None
    by_row = _is_row_a_document(comparison)
    # all rows share one place, or two documents have it, usually
    longest = max(extract.length, DOCUMENT * comparison.data.packs(extract)) if comparison.live else rows
    places = 1 if by_row else min(rows / 2, longest)
    return PlannedBatch(
        measures=list(comparison.measures.values()),
        rows=rows,
        layers=len(widths),
        features=sum(widths) if group is None else group,
        widest=max(widths),
        tile=comparison.hardware.tile,
        workers=comparison.hardware.workers,
        places=float(wanted * (places + 1)),
        pairings=wanted * -(-ORDERS // batches),
        permuted=significance.method == "permutation",
        alone=by_row,
        filed=group is not None,
    )


def _count_pair_bytes(comparison: Comparison, rows: int) -> float:
    """Bytes that say which pairs of rows are of one document: of all cells for ranked distances, whose cells are then
    taken out and put back, and of a block of rows for neighbours."""
    apart = _select_apart(comparison).values()
    ranked = any(isinstance(m, InnerProduct) and isinstance(m.row, Packed) for m in apart)
    near = any(isinstance(m, Pairwise) for m in apart)
    return ranked * 6.0 * rows**2 + near * float(min(rows, count_block_rows(rows)) * rows)


def _select_apart(comparison: Comparison) -> dict[str, Measure]:
    """Picks the measures for which pairs of rows of one document may be left out."""
    told = are_documents_known(comparison.models) and comparison.significance.clusters != "row"
    if comparison.extract.pairs == "all" or not told:
        return {}
    return {label: measure for label, measure in comparison.measures.items() if measure.apart is not None}


def describe_planned_pairs(comparison: Comparison) -> str:
    """Says, for a plan, which pairs of rows each measure will use."""
    wanted, measures, apart = comparison.extract.pairs, comparison.measures, _select_apart(comparison)
    if not apart:
        return "all"
    others = ", ".join(label for label in measures if label not in apart)
    few = "; all, where a batch has rows of too few documents" if wanted == "auto" else ""
    return f"of different documents ({', '.join(apart)}){f'; all ({others})' if others else ''}{few}"


def describe_planned_chance(comparison: Comparison) -> str:
    """Says, for a plan, how the level of chance of each measure will be known."""
    if not comparison.significance.chance:
        return "no (significance.chance=false)"
    paired = {label: m for label, m in comparison.measures.items() if m.card.paired}
    exact = [
        label for label, m in paired.items() if isinstance(m, InnerProduct) or (isinstance(m, Pairwise) and m.overlap)
    ]
    others = [label for label in paired if label not in exact]
    ways = {"exact": exact, "one level, from pairings of a few layers": others}
    return "; ".join(f"{way}: {', '.join(labels)}" for way, labels in ways.items() if labels) or "no"


def _estimate_moments_memory(comparison: Comparison, parts: Bytes, rows: int, features: int) -> Bytes:
    """The same with second moments, whose cross products take what the rest leaves, if they need it."""
    widths = [layer.width for layer in comparison.layers]
    least = BYTES * max(widths) ** 2
    copies, at_once = 1 + bool(comparison.extract.remedies), rows if comparison.live else min(rows, AT_ONCE)
    of_rows = 4.0 * copies * at_once * features + 1.5 * BYTES * AT_ONCE * features
    if are_exact_in_single(comparison.measures.values()):
        of_rows += 4.0 * (SUMMED * features + max(widths) ** 2)
    # layers are decomposed one by one, once the rows have passed
    parts = {**parts, "rows": max(of_rows, 10.0 * least - parts["diagnostics"])}
    products = BYTES * sum(a * b for a, b in itertools.combinations_with_replacement(widths, 2))
    left = int((1 - RESERVE) * comparison.hardware.memory_limit - sum(parts.values()))
    return {**parts, "cross products": float(max(least, min(products, left)))}


def _estimate_sampled_memory(comparison: Comparison, parts: Bytes, rows: int, features: int) -> Bytes:
    """The same with `rows` sampled rows, whose neighbours are found among the rows of a stream."""
    widest, total = max(layer.width for layer in comparison.layers), _count_extracted_rows(comparison)
    k = max(count_neighbours(measure.settings["k"], total) for measure in comparison.measures.values())
    passing = max(TOGETHER, min(comparison.extract.batch_rows, AT_ONCE))
    return {
        **parts,
        "rows": 4.0 * 2 * passing * features + BYTES * (rows * features + rows * features / 2 + 2 * passing * widest),
        "neighbours": 2.0 * BYTES * (k + 1) * rows * len(comparison.layers)
        + 2.25 * BYTES * min(CELLS, rows * passing)
        + 2.0 * passing * rows,
        "documents": 2.0 * BYTES * total,
    }


def list_by_block(comparison: Comparison) -> list[str]:
    """Lists the models that are run by block."""
    return [
        label
        for label, source in comparison.live.items()
        if not comparison.side_by_side and goes_by_block(source, comparison.hardware)
    ]


def count_passes_of_models(extraction: Extraction) -> int:
    """Forward passes of all models, each over all sequences."""
    each = count_passes(count_sequences(extraction), find_sequence_length(extraction), extraction.hardware)
    return len(extraction.live) * each


def estimate_passes_cost(extraction: Extraction) -> Cost:
    """Estimates the cost of a forward pass of all sequences through every live model."""
    models, count = extraction.live.values(), count_sequences(extraction)
    return estimate_forward_cost(models, count, find_sequence_length(extraction), extraction.hardware)


def count_forward_passes(comparison: Comparison) -> int:
    return _count_model_runs(comparison) * count_passes_of_models(comparison)


def describe_rows_and_passes(comparison: Comparison) -> dict[str, Any]:
    """Says, for a plan, how many rows there are, and how often they are read."""
    most = count_most_rows(comparison.models, comparison.extract)
    return {
        "tokens": count_sequences(comparison) * bound_sequence_length(comparison.live, comparison.extract)
        if comparison.live
        else 0,
        "forward passes": count_forward_passes(comparison),
        **({"rows, at most": most} if most < sys.maxsize else {}),
        "passes over the rows": _describe_row_passes(comparison),
        **({"processes": comparison.hardware.workers} if comparison.slow else {}),
    }


def _count_row_passes(comparison: Comparison) -> int:
    """Counts how often the rows of all layers are read."""
    if comparison.extract.estimate != "moments":
        return 2 if comparison.extract.estimate == "sampled" else 1
    return len(plan_passes([layer.width for layer in comparison.layers], count_cross_product_bytes(comparison)))


def _count_packed(comparison: Comparison) -> float:
    """Bytes of tiles in files."""
    extract = comparison.extract
    batches = 1 if extract.estimate == "full" else _count_extracted_rows(comparison) // extract.batch_rows
    kernels, groups = list_kernels(comparison.measures) or [], group_layers_by_memory(comparison)
    shape = BatchShape(batches, count_rows_per_comparison(comparison), comparison.hardware.tile)
    return 0.0 if groups is None else float(shape.size * len(comparison.layers) * len(kernels))


def _describe_row_passes(comparison: Comparison) -> str:
    """Says how often the rows are read, and what is kept of them meanwhile."""
    if comparison.extract.estimate == "sampled":
        return f"2, for the neighbours of {count_rows_per_comparison(comparison):,} sampled rows among all"
    if comparison.extract.estimate != "moments":
        if (groups := group_layers_by_memory(comparison)) is None:
            return "1, a batch of all layers at a time"
        size = _count_packed(comparison) / 1e9
        return f"1, layers in {len(groups)} groups, packed Gram matrices of {size:.3g} GB in files"
    products = BYTES * sum(a.width * b.width for a, b in itertools.combinations_with_replacement(comparison.layers, 2))
    room, count = count_cross_product_bytes(comparison), len(comparison.layers) * (len(comparison.layers) + 1) // 2
    at_a_time = f", {room / 1e9:.3g} GB at a time" if room < products else ""
    return f"{_count_row_passes(comparison)}, for {count} cross products of {products / 1e9:.3g} GB{at_a_time}"


def _count_extracted_rows(extraction: Extraction) -> int:
    return count_all_rows(extraction.models, extraction.data, extraction.extract)


def count_stored(extraction: Extraction) -> float:
    """Bytes of the activations of live models, where the cache is on."""
    return extraction.cache * count_activation_bytes(
        extraction.models, extraction.readings, extraction.data, extraction.extract
    )


def stays_in_cache(extraction: Extraction) -> bool:
    """Tells whether the activations of all live models stay in the cache."""
    return extraction.cache and count_stored(extraction) <= cache.limit()


def _count_model_runs(comparison: Comparison) -> int:
    """Counts the runs of each model: one, unless its activations do not stay in the cache."""
    alone = list_models_alone(comparison.live, comparison.hardware)
    return 1 if stays_in_cache(comparison) or len(alone) == len(comparison.live) else _count_row_passes(comparison)


def _count_uncached_bytes(comparison: Comparison) -> float:
    """Bytes of the rows of models that run one after the other, where the cache does not take them."""
    if comparison.side_by_side or stays_in_cache(comparison):
        return 0.0
    all_alone = comparison.extract.features_changed
    alone = comparison.live if all_alone else list_models_alone(comparison.live, comparison.hardware)
    return (
        4.0
        * _count_extracted_rows(comparison)
        * sum(layer.width for layer in comparison.layers if layer.model in alone)
    )


def estimate_disk(comparison: Comparison) -> Bytes:
    """Estimates the bytes that packed Gram matrices and prepared layers take in the run folder."""
    states = 2.0 * BYTES * sum(layer.width**2 for layer in comparison.layers)
    return {
        "packed Gram matrices": _count_packed(comparison),
        "prepared layers": states if comparison.extract.estimate == "moments" else 0.0,
    }


def estimate_costs(comparison: Comparison, pairs: int) -> dict[str, Cost]:
    """Estimates the cost of the forward passes, and roughly that of comparing pairs of layers and of errors that take
    values again. pairs: how many."""
    extract, hardware = comparison.extract, comparison.hardware
    widths, bounds = [layer.width for layer in comparison.layers], list(comparison.measures.values())
    if extract.estimate == "moments":
        similarity = estimate_moments_cost(bounds, widths, pairs, _count_extracted_rows(comparison), hardware)
    elif extract.estimate == "sampled":
        similarity = estimate_sampled(
            widths, count_rows_per_comparison(comparison), _count_extracted_rows(comparison), hardware
        )
    else:
        permutations = comparison.significance.permutations if comparison.significance.method == "permutation" else 0
        similarity = count_compared(comparison, bounds, pairs, permutations)
    costs = {
        "forward passes": _count_model_runs(comparison) * estimate_passes_cost(comparison),
        "similarity": similarity,
    }
    if find_left_out_measures(comparison):
        costs["errors"] = estimate_left_out_cost(comparison, count_rows_per_comparison(comparison))
    return costs


def count_compared(comparison: Comparison, bounds: Sequence[Measure], pairs: int, permutations: int) -> Cost:
    """Estimates the cost of comparing pairs of layers on all rows, as they are and permuted. pairs: how many."""
    whole = comparison.extract.estimate == "full"
    batches = 1.0 if whole else max(_count_extracted_rows(comparison) / comparison.extract.batch_rows, 1.0)
    widths = [layer.width for layer in comparison.layers]
    rows = count_rows_per_comparison(comparison)
    cells = comparison.significance.chance and not _is_row_a_document(comparison)
    multiplied = [measure for measure in bounds if not cells and takes_features(measure, widths, rows)]
    others = [measure for measure in bounds if measure not in multiplied]
    hardware, times = comparison.hardware, len(multiplied) * batches * (1 + permutations)
    cost = estimate_pairs_cost(others, widths, pairs, rows, hardware, batches=batches, permutations=permutations)
    return cost + estimate_feature_products(widths, rows, hardware, times=times)
