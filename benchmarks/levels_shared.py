"""Promises of claims over depth or training: that what all units share is any one curve makes none of them hold.

Each is fed with units that follow one random walk over layers or checkpoints, with little noise of their own; claims on
distances between layers with one walk in one or eight directions. Models of one suite, and seeds of one recipe, may
share such a curve, and what it happens to do is no finding.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from levels import Promise
from levels_claims import DRAWS, LEVEL, said
from levels_made import Make, Rng, by_distance, by_pairs, courses, to_base, trainings, whole
from scipy.spatial.distance import pdist, squareform

from repsim_cli.findings.boundaries import Parted, find_model_blocks
from repsim_cli.findings.claims import FAILS, HOLDS
from repsim_cli.findings.partitions import divide_in_two, find_spectral_clusters
from repsim_cli.findings.sub_networks import Clustered, SubNetworks, find_sub_networks
from repsim_cli.findings.walks import say_beyond_walks
from repsim_cli.runs.content import END_TO_END, ONE_SUM, Table
from repsim_cli.studies.layers.columns import DIMENSION, SAME_CLASS
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes.finding_targets import Near
from repsim_cli.studies.similarity.finding_feature_maps import Network
from repsim_cli.studies.training_run.finding_ranks import COLUMNS, compute_matthews

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from findings.test_claims import CLUSTERED, FALSE_OF_NOISE
from helpers.planted_layers import ONE, RESNET, THREE

NOISE, SEEDS = 0.1, 5  # of the walk's own spread; seeds of a recipe
SLOW, SLOW_DRAWS = (*CLUSTERED, "boundaries_are_stable_over_seeds"), 100
# what a walk makes false: layers that converge early are as often of large rank as others
FALSE_OF_A_WALK = (*FALSE_OF_NOISE, *CLUSTERED, "early_attention_has_large_rank")


# how the steps of layers that wander are drawn
STEPS: dict[str, Callable[[Rng, int, int], np.ndarray]] = {
    "": lambda rng, n, k: rng.normal(size=(n, k)),
    ", some steps large (t of 3)": lambda rng, n, k: rng.normal(size=(n, k)) * (3 / rng.chisquare(3, (n, 1))) ** 0.5,
    ", steps that grow": lambda rng, n, k: rng.normal(size=(n, k)) * np.exp(np.linspace(0, 2, n))[:, None],
    ", on and on": lambda rng, n, k: rng.normal(size=(n, k)) + 1,
}
# how distances of layers are those of places
WARPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda apart: apart,
    ", squared": np.square,  # as one minus CKA
    ", saturating": lambda apart: 1 - np.exp(-1.5 * apart / np.median(apart)),
}
WALKS = [(steps, warp) for steps in STEPS for warp in WARPS if steps or warp]  # beside normal ones


def walk(rng: Rng, count: int, layers: int) -> np.ndarray:
    """(count, layers): one random walk, with noise of each."""
    shared = rng.normal(size=layers).cumsum()
    return shared + NOISE * shared.std() * rng.normal(size=(count, layers))


def wander(rng: Rng, layers: int, directions: int, steps: str = "", warp: str = "") -> list[np.ndarray]:
    """Distances between layers that wander, of seeds that share where."""
    places = STEPS[steps](rng, layers, directions).cumsum(0)
    own = NOISE * places.std() * rng.normal(size=(SEEDS, *places.shape))
    return [WARPS[warp](squareform(pdist(places + each))) for each in own]


def over_depth(column: str, models: int, layers: int) -> Make:
    def made(rng: Rng) -> tuple:
        curves = walk(rng, models, layers)
        rows = {
            f"m{i}": [{"layer": f"resid_post@{k}", column: float(x)} for k, x in enumerate(curve)]
            for i, curve in enumerate(curves)
        }
        return (rows,)

    return made


def localized(models: int, layers: int) -> Make:
    """The rows of neuronsim follow the walk, svcca is flat."""

    def made(rng: Rng) -> tuple:
        rows = walk(rng, models, layers).ravel()
        flat = np.zeros((len(rows), len(rows)))
        given = whole(flat, models, layers, 99, name="svcca")
        return (given.__class__(**{**vars(given), "values": {"svcca": flat, "neuronsim": flat + rows[:, None]}}),)

    return made


def measured(quantity: str, models: int, checkpoints: int) -> Make:
    """Distances over the checkpoints follow the walk, and the quantity grows."""

    def made(rng: Rng) -> tuple:
        (found,) = courses(walk, models, checkpoints)(rng)
        sign = -1 if quantity == "loss" else 1
        return ({model: x | {quantity: [sign * float(i) for i in range(checkpoints)]} for model, x in found.items()},)

    return made


def early_and_large(models: int, layers: int) -> Make:
    """Layers are early, and of large rank, where walks are above their medians."""

    def made(rng: Rng) -> tuple:
        early, *ranks = (walk(rng, models, layers) for _ in range(3))
        above = [x > np.median(x, axis=1, keepdims=True) for x in (early, *ranks)]
        rows = []
        for i in range(models):
            for kind, large in zip(("parameters", "gradients"), above[1:], strict=True):
                found = compute_matthews(above[0][i].tolist(), large[i].tolist(), ("early", "large"))
                rows.append([f"m{i}", "attn_out", kind, layers, 0, 0, 0, *found])
        return (Table(columns=COLUMNS, rows=rows),)

    return made


def near(target: str, layers: int) -> Make:
    def made(rng: Rng) -> tuple:
        names = [f"resid_post@{i // 4}" if i % 4 == 3 else f"mlp_out@{i}" for i in range(layers)]
        return ([Near(names=names, values={target: np.abs(x)}) for x in walk(rng, SEEDS, layers)],)

    return made


def modular(training: str, names: list[str], directions: int) -> Make:
    def made(rng: Rng) -> tuple:
        return (TrainedLayers(names={training: names}, apart={training: wander(rng, len(names), directions)}),)

    return made


def bounded(layers: int, directions: int, *walk: str) -> Make:
    def made(rng: Rng) -> tuple:
        blocks = {f"m{i}": find_model_blocks(x, False) for i, x in enumerate(wander(rng, layers, directions, *walk))}
        models = {label: each for label, each in blocks.items() if each is not None}
        return (Parted(models=models, base="m", entries=dict.fromkeys(models, "m")),)

    return made


def clustered(directions: int, *walk: str) -> Make:
    def made(rng: Rng) -> tuple:
        seeds = wander(rng, 16, directions, *walk)
        counts = [find_spectral_clusters(x, False, count=None).count for x in seeds]
        return (Clustered(counts=counts, apart=seeds),)

    return made


def published_groups(rng: Rng) -> tuple:
    """The same groups in all seeds, between the places where a walk crosses its thirds."""
    places = rng.normal(size=30).cumsum()
    labels = np.digitize(places, np.quantile(places, [1 / 3, 2 / 3]))
    return (Clustered(labels=[labels] * SEEDS, given=np.repeat([2, 1, 0, 1, 0, 2], [3, 2, 9, 1, 6, 9])),)


def resnets(layers: list[str], directions: int, *walk: str) -> Make:
    def made(rng: Rng) -> tuple:
        return tuple([Network(layers, x) for x in wander(rng, len(layers), directions, *walk)] for _ in range(2))

    return made


# by claim what is drawn, in words and as a function; claims that are not here compare models, groups, sizes or tasks
# at one place, or a mean over all layers
SHARED: dict[str, dict[str, Make]] = {
    "falls_with_layer_distance": {"3 models, 10 layers": by_distance(walk, 3, 10)},
    "adjacent_layers_are_closer": {"3 models, 10 layers": by_distance(walk, 3, 10)},
    "early_layers_agree": {"3 models, 10 layers": by_pairs(walk, 3, 10)},
    "lower_layers_agree_across_families": {"4 models, 16 layers": by_pairs(walk, 4, 16, families=2)},
    "top_layers_change_most": {"3 models, 10 layers": to_base(walk, 3, 10)},
    "top_attention_changes_most": {"3 models, 10 layers": to_base(walk, 3, 10, one=False)},
    "tasks_diverge_at_the_top": {"4 models, 10 layers": by_pairs(walk, 4, 10, families=1, base="m0")},
    "localization_rises_with_depth": {"3 models, 10 layers": localized(3, 10)},
    "earlier_layers_converge_faster": {"3 models, 10 layers": trainings(walk, 3, 10)},
    "distances_grow_in_training": {"3 models, 10 checkpoints": measured("step", 3, 10)},
    "distances_grow_with_accuracy": {"3 models, 10 checkpoints": measured("accuracy", 3, 10)},
    "distances_grow_with_f1": {"3 models, 10 checkpoints": measured("f1", 3, 10)},
    "distances_grow_as_loss_falls": {"3 models, 10 checkpoints": measured("loss", 3, 10)},
    "dimension_peaks_inside": {f"{m} models, {n} layers": over_depth(DIMENSION, m, n) for m, n in ((3, 10), (5, 32))},
    "middle_layers_tell_classes_better": {
        f"{m} models, {n} layers": over_depth(SAME_CLASS, m, n) for m, n in ((3, 10), (5, 32))
    },
    "early_attention_has_large_rank": {"3 models, 12 layers": early_and_large(3, 12)},
    "c1_is_nearest_to_the_first_block": {"5 seeds, 40 layers": near("c1", 40)},
    "c2_is_nearest_to_the_second_block": {"5 seeds, 40 layers": near("c2", 40)},
    "c_is_near_the_last_blocks": {f"5 seeds, {n} layers": near("c3", n) for n in (12, 40)},
    "end_to_end_training_ends_alike": {f"30 layers, {k} directions": modular(END_TO_END, THREE, k) for k in (1, 8)},
    "attention_makes_the_first_differences": {f"29 layers, {k} directions": modular(ONE_SUM, ONE, k) for k in (1, 8)},
    "layer_wise_groups_are_the_published": {"30 layers": published_groups},
    "boundaries_are_stable_over_seeds": {
        **{f"{n} blocks, {k} directions": bounded(n, k) for n, k in ((8, 1), (16, 2), (24, 8))},
        **{f"12 blocks, 2 directions{''.join(walk)}": bounded(12, 2, *walk) for walk in WALKS},
    },
    "layer_wise_training_gives_three_groups": {
        **{f"16 layers, {k} directions": clustered(k) for k in (1, 2)},
        **{f"16 layers, 2 directions{''.join(walk)}": clustered(2, *walk) for walk in WALKS},
    },
    "trained_resnet_changes_at_the_published_layers": {"27 layers": resnets(RESNET, 1)},
    "trained_resnet_has_three_or_four_sub_networks": {
        f"14 layers, 2 directions{''.join(walk)}": resnets(RESNET[::2], 2, *walk) for walk in [("", ""), *WALKS]
    },
    "random_resnet_has_no_sub_networks": {"14 layers, 2 directions": resnets(RESNET[::2], 2)},
}


def of_claim(name: str, setting: str, make: Callable[[Rng], tuple]) -> list[Promise]:
    draw, draws = partial(said, name, make), SLOW_DRAWS if name in SLOW else DRAWS
    verdicts = (HOLDS,) if name in FALSE_OF_A_WALK else (HOLDS, FAILS)
    setting = f"one walk that all share, {setting}"
    return [Promise(f"claim {name}: {x} by chance", setting, "level", LEVEL, draws, draw, x) for x in verdicts]


def of_groups(layers: int, directions: int, steps: str = "", power: int = 1) -> list[Promise]:
    """Promises of the groups of the layers of one model that wander in few directions. power: of the distances: 2 as
    one minus CKA."""

    def draw_apart(rng: Rng) -> np.ndarray:
        return squareform(pdist(STEPS[steps](rng, layers, directions).cumsum(0))) ** power

    def draw(method: Literal["spectral", "segments"], rng: Rng) -> str:
        names = [f"resid_post@{i}" for i in range(layers)]
        return find_sub_networks(draw_apart(rng), names, False, SubNetworks(method=method), None).walks.get(
            method, "no"
        )

    def draw_boundary(rng: Rng) -> str:
        blocks = find_model_blocks(draw_apart(rng), False)
        assert blocks is not None
        return say_beyond_walks(blocks.apart, divide_in_two(blocks.apart), divide_in_two) if blocks.clear else "no"

    setting = f"{layers} layers that wander in {directions} directions{steps}{', squared' * (power == 2)}"
    draws: dict[str, Callable[[Rng], str]] = {
        "sub-networks, spectral": partial(draw, "spectral"),
        "sub-networks, segments": partial(draw, "segments"),
        "boundary": draw_boundary,
    }
    return [
        Promise(f"{of}: clearer than walks by chance", setting, "level", LEVEL, 5 * SLOW_DRAWS, each, "yes")
        for of, each in draws.items()
    ]


SETTINGS = [(name, setting, make) for name, of in SHARED.items() for setting, make in of.items()]
PROMISES: list[Promise] = [
    *(promise for name, setting, make in SETTINGS for promise in of_claim(name, setting, make)),
    *(promise for layers in (8, 24) for directions in (1, 2, 3) for promise in of_groups(layers, directions)),
    *(
        promise
        for steps in STEPS
        for power in (1, 2)
        if steps or power == 2
        for promise in of_groups(12, 2, steps, power)
    ),
]
