"""Roughly how long a run will take: operations of forward passes and pairs over the speed of the device.

The constants were fitted to single measures of 1000 rows and to short runs, on a single CPU thread.
"""

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repsim_cli.activations.batching import count_passes
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import say_duration
from repsim_cli.base.settings import Hardware
from repsim_cli.data.network import stay_offline
from repsim_cli.engine.bounds import convert_to_gb, describe_disk_use
from repsim_cli.measures import InnerProduct, Measure, Pairwise
from repsim_cli.measures.cards import Slow
from repsim_cli.measures.products import are_features_cheaper, have_feature_products
from repsim_cli.models.source import Source

SIDE = 1024  # of the matrices whose product is timed
ASSUMED = {"float32": 1e13, "float16": 1e14, "bfloat16": 1e14}  # operations per second of a GPU that this machine lacks
EFFICIENCY = 0.5  # of a forward pass, relative to a large matrix product
OF_LIST, OF_CELL = 800, 400  # operations of a pair of rows of a layer, where nearest rows are found, and elsewhere
OF_FEATURES = 20  # of a row and a pair of features
SOLVED = 0.05  # seconds of a pair of a slow measure, however few rows it has
THIN = 500  # rows of a slow measure whose products take as long as its other work
CALL = 3e-4  # seconds of a block's forward pass beside its operations
START, FIGURE = 6.0, 0.4  # seconds
EACH = 1.2  # seconds of a figure of one pair of models; figures=all draws those of all pairs


@dataclass(frozen=True)
class Cost:
    """The operations of a part of a run, and the seconds that they take, roughly."""

    operations: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.operations + other.operations, self.seconds + other.seconds)

    def __rmul__(self, times: int | float) -> "Cost":
        return Cost(times * self.operations, times * self.seconds)


def estimate_products(operations: float, hardware: Hardware, *, efficiency: float = 1.0) -> Cost:
    """Estimates matrix products in float32. efficiency: relative to a large one."""
    return Cost(operations, operations / (efficiency * _look_up_speed(hardware)))


def estimate_forward_cost(
    models: Iterable[Source], sequences: int, length: int, hardware: Hardware, *, vocabularies: bool = False
) -> Cost:
    """Estimates one forward pass of all sequences through each model. vocabularies: through its output head too."""
    models, count = list(models), count_passes(sequences, length, hardware)
    operations = count_forward_operations(models, sequences, length, vocabularies=vocabularies)
    calls = CALL * count * sum(model.layers for model in models)
    return Cost(operations, operations / (EFFICIENCY * _look_up_speed(hardware, hardware.dtype)) + calls)


def count_forward_operations(
    models: Iterable[Source], sequences: int, length: int, *, vocabularies: bool = False
) -> float:
    """Counts the operations of forward passes: two for each weight and token, and those of attention."""
    operations = 0.0
    for model in models:
        table = model.vocabulary * model.width
        weights = max(model.parameters - table, 0) + table * vocabularies
        attention = 2 * model.layers * length * model.width
        operations += 2.0 * sequences * length * (weights + attention)
    return operations


def estimate_training(layers: int, width: int, tokens: int, steps: int, hardware: Hardware) -> Cost:
    """Estimates a training that reads `tokens` in all: three forward passes of blocks of 12 width^2 weights."""
    calls = Cost(0.0, 4 * CALL * steps * layers)
    return estimate_products(6.0 * tokens * layers * 12 * width**2, hardware, efficiency=EFFICIENCY) + calls


def describe_trainings(models: Iterable[Source], hardware: Hardware, *, figures: int = 10) -> dict[str, Any]:
    """Describes, for a plan, the trainings whose models are not in the cache, each once, and what they take at most."""
    models, missing = list(models), {}
    disk = describe_disk_use({"weights": sum(4.0 * model.parameters for model in models)})
    try:
        with stay_offline():
            for model in models:
                for key, work in (model.work() if model.work else {}).items():
                    if key not in missing:
                        missing[key] = model, work()
    except BadInput as error:
        return {"trainings": f"not known before the data can be read ({error})", "disk, GB": disk}
    costs = [
        estimate_training(model.layers, model.width, work.tokens, work.steps, hardware)
        for model, work in missing.values()
    ]
    whole = sum(costs, Cost())
    return {
        "trainings": f"{len(missing)} not in the cache",
        "steps, at most": sum(work.steps for _, work in missing.values()),
        "disk, GB": disk,
        "operations": {"training": f"{whole.operations:.2g}"},
        "time, roughly": describe_times({"training": whole.seconds}, hardware, figures=figures),
    }


def estimate_pairs_cost(
    measures: Iterable[Measure],
    widths: list[int],
    pairs: int,
    rows: int,
    hardware: Hardware,
    *,
    batches: float = 1.0,
    permutations: int = 0,
) -> Cost:
    """Estimates comparing pairs of layers of these widths. rows: of each batch.

    Inner products cost a Gram matrix per layer and a sum over cells per pair. Lists of neighbours cost a table per
    layer and a count per pair. Slow measures cost the products of square matrices that they declare, and the work of
    THIN of their rows; beyond `Beyond.rows` rows, what that says. All others cost a decomposition per layer, and a
    product and a decomposition per pair, unless they declare their `work`.
    """
    n, d, whole = float(rows), sum(widths) / len(widths), Cost()
    count = batches * pairs * (1 + permutations)
    for measure in measures:
        if isinstance(measure, Pairwise) and measure.work is not None:
            of_layer, of_pair = measure.work(rows)
            whole += estimate_products(batches * len(widths) * of_layer + count * of_pair, hardware)
            continue
        cubes = measure.cubes if isinstance(measure, Pairwise) else None
        lists = isinstance(measure, Pairwise) and cubes is None
        of_rows = lists or measure.slow or isinstance(measure, InnerProduct)
        prepared = 2 * n**2 * d + (OF_LIST if lists else OF_CELL) * n**2 if of_rows else OF_FEATURES * n * d**2
        each = 0.0
        if measure.slow:
            prepared, each = _count_slow_operations(measure.slow, rows, d, prepared)
        whole += batches * estimate_products(len(widths) * prepared, hardware)
        if measure.slow:
            workers, operations = min(hardware.workers, max(pairs, 1)), count * each
            whole += Cost(operations, (operations / measure_speed("cpu", threads=1)[0] + SOLVED * count) / workers)
        else:
            features = 0 if cubes is None else 4 * n * d**2 + cubes * d**3
            each = features + 1e5 * n if isinstance(measure, Pairwise) else 2 * n**2
            whole += estimate_products(count * each, hardware)
    return whole


def takes_features(measure: Measure, widths: Sequence[int], rows: int) -> bool:
    """Tells whether the values of layers of these widths come from products of features, where no cell is needed."""
    if not isinstance(measure, InnerProduct):
        return False
    return have_feature_products(measure.row, measure.column) and are_features_cheaper(widths, widths, rows)


def estimate_feature_products(widths: Sequence[int], rows: int, hardware: Hardware, *, times: float) -> Cost:
    """Estimates products of the features of all layers, and preparing these. times: how many products."""
    preparing = OF_FEATURES * sum(width**2 for width in widths)
    return estimate_products(times * rows * (sum(widths) ** 2 + preparing), hardware)


def _count_slow_operations(slow: Slow, rows: int, width: float, prepared: float) -> tuple[float, float]:
    """Operations of a state, which are `prepared` where all distances are held, and of a pair."""
    if slow.beyond is not None and rows > slow.beyond.rows:
        return slow.beyond.operations(rows, width)
    return prepared, 2.0 * rows**2 * (rows + THIN) * slow.products


def estimate_distances_cost(widths: list[int], rows: int, hardware: Hardware) -> Cost:
    """The distances of all rows of these layers, in float64, and their histograms with and without each tenth of the
    rows."""
    return estimate_products(rows**2 * (4.0 * sum(widths) + 7000 * len(widths)), hardware)


def estimate_moments_cost(
    measures: Iterable[Measure], widths: list[int], pairs: int, rows: int, hardware: Hardware
) -> Cost:
    """Exact second moments: half of all covariances, in float64 at half the speed, and one or two decompositions per
    pair."""
    features, count = float(sum(widths)), len(list(measures))
    return estimate_products(2 * rows * features**2 + count * pairs * 40 * (features / len(widths)) ** 3, hardware)


def estimate_sampled(widths: Sequence[int], sampled: int, rows: int, hardware: Hardware) -> Cost:
    """The neighbours of sampled rows among all, from products in float64, and the search of the nearest."""
    return estimate_products(2.0 * sampled * rows * (2 * sum(widths) + 400 * len(widths)), hardware)


def estimate_neurons_cost(widths: Sequence[Sequence[int]], rows: int, rotations: int, hardware: Hardware) -> Cost:
    """The products of all neurons of different models in float64, and rotations of all layers. widths: of the layers
    of each model."""
    neurons = [sum(layers) for layers in widths]
    pairs = sum(neurons) ** 2 - sum(count**2 for count in neurons)
    squares, cubes = (sum(width**power for layers in widths for width in layers) for power in (2, 3))
    rotated = sum((sum(neurons) - sum(layers)) * sum(width**2 for width in layers) for layers in widths)
    return estimate_products(2.0 * (rows * (pairs + 2 * squares) + rotations * (2 * rotated + 40 * cubes)), hardware)


def estimate_dictionaries_cost(features: int, width: int, rows: int, hardware: Hardware) -> Cost:
    """Estimates training dictionaries: three passes through an encoder and a decoder. features: of all of them
    together. rows: of each."""
    return estimate_products(3 * 4.0 * features * width * rows, hardware, efficiency=EFFICIENCY)


def describe_needs(
    costs: Mapping[str, Cost],
    hardware: Hardware,
    *,
    memory: Mapping[str, float],
    disk: Mapping[str, float] | None = None,
    activations: float = 0.0,
    figures: int = 10,
) -> dict[str, Any]:
    """Describes what every plan ends with: memory and disk, operations and time.

    memory, disk: bytes by part. activations: bytes of those in the cache.
    """
    return {
        "memory, GB": {**convert_to_gb(memory), "limit": round(hardware.memory_limit / 1e9, 3)},
        "disk, GB": describe_disk_use(disk or {}, activations),
        "operations": {part: f"{each.operations:.2g}" for part, each in costs.items()},
        "time, roughly": describe_times(
            {part: each.seconds for part, each in costs.items()}, hardware, figures=figures
        ),
    }


def describe_times(parts: Mapping[str, float], hardware: Hardware, *, figures: int = 10) -> dict[str, str]:
    """Says, for a plan, how long each part and the whole take, and where the speed is from.

    parts: seconds by what takes them.
    figures: how many are drawn.
    """
    whole = {**parts, "start, figures, report": START + FIGURE * figures}
    speed, source = measure_speed(hardware.device, threads=hardware.threads)
    aside = "downloads" if "training" in parts else "downloads and training"
    return {
        **{part: say_duration(seconds) for part, seconds in whole.items()},
        "in all": f"{say_duration(sum(whole.values()))}, within a factor of about 3, without {aside}",
        "at": f"{speed / 1e9:,.0f} GFLOP/s in float32, {source}",
    }


def estimate_drawing(models: int, measures: int) -> dict[str, str]:
    """Estimates, for a plan, what drawing every figure of a comparison takes: of each pair of models one per measure,
    and one of all measures.

    >>> estimate_drawing(3, 2)
    {'all figures, beside that': '23 s, about 19 of them'}
    """
    pairs = models * (models + 1) // 2
    count = measures * (pairs + 2) + (models * (models - 1) // 2) * -(-measures // 12) * (measures > 1)
    return {"all figures, beside that": f"{say_duration(EACH * count)}, about {count:,} of them"}


def _look_up_speed(hardware: Hardware, dtype: str = "float32") -> float:
    return measure_speed(hardware.device, dtype, hardware.threads)[0]


@functools.cache
def measure_speed(device: str, dtype: str = "float32", threads: int | None = None) -> tuple[float, str]:
    """Operations per second of a matrix product, the best of several, and how this is known. threads: of the CPU, whose
    own time counts, so that other load on the machine does not."""
    try:
        x = torch.rand(SIDE, SIDE, device=device, dtype=getattr(torch, dtype))
    except (RuntimeError, AssertionError):
        return ASSUMED[dtype], f"assumed for '{device}', which this machine lacks"
    best, before = float("inf"), torch.get_num_threads()
    on_cpu, side_by_side = x.device.type == "cpu", threads or before
    clock = time.process_time if on_cpu else time.perf_counter
    torch.set_num_threads(side_by_side)
    for _ in range(4):  # the first warms up
        start = clock()
        (x @ x)[0, 0].item()
        taken = (clock() - start) / (side_by_side if on_cpu else 1)
        best = min(best, taken)
        if on_cpu and taken > 1:  # bfloat16 on processors that lack it: more of them tell no more
            break
    torch.set_num_threads(before)
    return 2 * SIDE**3 / best, f"measured on '{device}'" + on_cpu * " in CPU time, as if nothing else ran"
