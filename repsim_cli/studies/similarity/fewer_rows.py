"""Measures the closest layers of a run on fewer of its rows, for the analysis `fewer_rows`."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import OF_SAMPLE, Significance
from repsim_cli.data.base import Sequences
from repsim_cli.engine import chance, footprint
from repsim_cli.engine.bounds import count_all_rows
from repsim_cli.engine.checks import check_rows
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.cost import Cost
from repsim_cli.engine.matrices import Matrices, compute_matrices
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.record import say_why_unknown
from repsim_cli.engine.without_value import NoValue
from repsim_cli.measures import Measure
from repsim_cli.runs.content import FEWER_ROWS, Table
from repsim_cli.runs.results import Run

LEAST, MOST = 125, 32_768  # rows
DRAWS = 4  # samples of each number of rows
COLUMNS = ["measure", "model a", "layer a", "model b", "layer b", "rows", "value", "se", "chance", "samples"]
NOTED = ("models_run", "matrices_cached")  # in the manifest, of the run's own maps

Pair = tuple[int, int]  # layers


def check(comparison: Comparison) -> None:
    """Raises BadInput where rows are not sampled."""
    if (estimate := comparison.extract.estimate) not in OF_SAMPLE:
        raise BadInput(
            f"analyses.fewer_rows: samples of the rows are compared, got extract.estimate={estimate}; use full or "
            "sampled"
        )


def list_sample_sizes(rows: int) -> list[int]:
    """Halves the rows, from few on.

    >>> list_sample_sizes(4096), list_sample_sizes(1_000_000)
    ([128, 256, 512, 1024, 2048], [244, 488, 976, 1953, 3906, 7812, 15625, 31250])
    """
    halves = [rows >> i for i in range(1, rows.bit_length())]
    return [half for half in reversed(halves) if LEAST <= half <= MOST]


def estimate_samples_cost(comparison: Comparison) -> Cost:
    """Estimates the cost of all samples: of `full` at half of the rows, and so on."""
    full = replace(comparison, extract=replace(comparison.extract, estimate="full", at_most=["rows"]))
    each = [
        footprint.estimate_costs(replace(full, extract=replace(full.extract, rows=size)), comparison.pairs)[
            "similarity"
        ]
        for size in list_sample_sizes(
            _count_own_rows(comparison, count_all_rows(comparison.models, comparison.data, comparison.extract))
        )
    ]
    return sum((DRAWS * x for x in each), Cost())


def _count_own_rows(comparison: Comparison, total: int) -> int:
    """Counts the rows of the run's own values."""
    return total if comparison.extract.estimate == "sampled" else min(total, comparison.extract.rows)


def compare_on_fewer_rows(
    run: Run, comparison: Comparison, sequences: Mapping[str, Sequences], matrices: Matrices
) -> dict[str, Table]:
    """Measures the closest layers of every two models, or of the only one, on all rows and on random samples of fewer:
    the mean over samples, its standard error as far as these differ, and the level of chance.

    matrices: of all rows. The activations come from the cache; without one, the models run again for each sample.
    """
    noted = {key: run.manifest.get(key) for key in NOTED}
    last = _count_own_rows(comparison, comparison.total)
    closest = {label: list(_find_closest_layer_pairs(comparison, label, matrix)) for label, matrix in matrices.items()}
    rows: list[list[Any]] = []
    for size in list_sample_sizes(last):
        drawn: dict[str, list[Values]] = {label: [] for label in matrices}
        for seed in range(comparison.seed + 1, comparison.seed + 1 + DRAWS):
            for label, values in _sample(run, comparison, sequences, size, seed).items():
                drawn[label].append(values)
        for label, samples in drawn.items():
            rows += _tabulate_sampled_pairs(comparison, label, closest[label], size, samples)
    for label, matrix in matrices.items():
        rows += _tabulate_sampled_pairs(
            comparison, label, closest[label], last, [_take_values_with_chance(comparison, label, matrix)]
        )
    run.manifest.update(noted)
    order = list(matrices)
    return {FEWER_ROWS: Table(columns=COLUMNS, rows=sorted(rows, key=lambda row: order.index(row[0])))}


Values = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]  # values, standard errors, chance


def _sample(
    run: Run, comparison: Comparison, sequences: Mapping[str, Sequences], size: int, seed: int
) -> dict[str, Values]:
    """Measures a sample of `size` rows by the measures that take so small a sample and have a value."""
    extract = replace(comparison.extract, estimate="full", rows=size, at_most=["rows"])
    measures = dict(_select_suitable_measures(comparison, size))
    if not measures:
        return {}
    alone = Significance(clusters=comparison.significance.clusters, chance=comparison.significance.chance, floor=False)
    sampled = replace(comparison, extract=extract, seed=seed, measures=measures, significance=alone, groups=None)
    try:
        sampled = replace(sampled, scatter=False).add_clusters(run, sequences)
        made, _ = compute_matrices(run, sampled, sequences, identities=run.manifest["models"], tell=False)
    except (BadInput, NoValue, RunFailed) as error:
        run.warn(f"fewer_rows: {size} rows are left out ({error})")
        return {}
    return {label: _take_values_with_chance(sampled, label, matrix) for label, matrix in made.items()}


def _select_suitable_measures(comparison: Comparison, size: int) -> Iterator[tuple[str, Measure]]:
    for label, measure in comparison.measures.items():
        try:
            check_rows(measure, comparison.layers, size)
        except BadInput:
            continue
        yield label, measure


def _take_values_with_chance(comparison: Comparison, label: str, matrix: SimilarityMatrix) -> Values:
    level = chance.compute_chance_level(
        matrix, comparison.units, say_why_unknown(comparison, comparison.measures[label])
    ).cells
    found = matrix.values, matrix.statistics.get("se", matrix.se), level
    values, se, by_chance = (None if part is None else part.cpu().numpy() for part in found)
    assert values is not None
    return values, se, by_chance


def _find_closest_layer_pairs(comparison: Comparison, label: str, matrix: SimilarityMatrix) -> Iterator[Pair]:
    """Finds the closest layers of every two models; of a single one, two of its own."""
    card, places = comparison.measures[label].card, list(comparison.places)
    values = matrix.values.cpu().numpy() * (1 if card.larger_is_closer else -1)
    values[np.diag_indices(len(values))] = np.nan
    blocks = [*itertools.combinations(places, 2)] or [(places[0], places[0])]
    for a, b in blocks:
        block = values[a, b]
        if not np.isnan(block).all():
            i, j = np.unravel_index(np.nanargmax(block), block.shape)
            yield int(a.start + i), int(b.start + j)


def _tabulate_sampled_pairs(
    comparison: Comparison, label: str, closest: Sequence[Pair], size: int, samples: Sequence[Values]
) -> list[list[Any]]:
    rows, layers = [], comparison.layers
    for a, b in closest:
        values = np.array([sample[0][a, b] for sample in samples])
        if not len(values) or not np.isfinite(values).all():
            continue
        levels = [float(sample[2][a, b]) for sample in samples if sample[2] is not None]
        se = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        if len(values) == 1 and samples[0][1] is not None:
            se = float(samples[0][1][a, b])
        level = float(np.mean(levels)) if levels and np.isfinite(levels).all() else None
        which = [layers[a].model, layers[a].name, layers[b].model, layers[b].name]
        rows.append([label, *which, size, float(values.mean()), se, level, len(values)])
    return rows
