"""Promises of claims: each is fed with what its units give where there is nothing to find, and with a planted effect.

Nulls: curves over 6 to 48 layers that wander (autocorrelation 0 to 0.95), of each model or shared by all; smooth bends
shared by all; models, or seeds of one base, that differ in the scale of their values by log-normal factors; pairs that
share models; tasks that several models share. A threshold other than 0 is tested with values that scatter about it.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
from levels import LEAST, Promise

from repsim_cli.base import registry
from repsim_cli.engine.curves import make_curve as curve_of
from repsim_cli.findings.boundaries import ModelBlocks, Parted
from repsim_cli.findings.claims import FAILS, HOLDS, Claim, find_claims
from repsim_cli.findings.distances import GroupDistances
from repsim_cli.findings.groups import Depths
from repsim_cli.findings.layer_maps import ClaimMap
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.studies.classifiers.finding import OVERLAP
from repsim_cli.studies.classifiers.finding_variants import VariantScores
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes.finding import Probed

CLAIMS: dict[str, Claim] = {each.name: each for each in find_claims(registry.claims.names())}
DRAWS, POWER_DRAWS, LEVEL = 2000, 500, 0.05
LENGTHS, AUTOCORRELATIONS, SCALES = (6, 12, 24, 48), (0.0, 0.5, 0.8, 0.95), (0.05, 0.3, 0.8)
Rng = np.random.Generator
Make = Callable[[Rng], tuple]


def wandering(rng: Rng, count: int, layers: int, r: float) -> np.ndarray:
    """(count, layers): stationary autoregressive curves of variance 1."""
    steps = rng.normal(size=(count, layers)) * np.sqrt(1 - r * r)
    steps[:, 0] /= np.sqrt(1 - r * r)
    for layer in range(1, layers):
        steps[:, layer] += r * steps[:, layer - 1]
    return steps


def bends(rng: Rng, count: int, layers: int) -> np.ndarray:
    """(count, layers): smooth curves of two to four half waves of any phase."""
    at = np.linspace(0, 1, layers)
    waves, phase = rng.uniform(1, 2, (count, 1)), rng.random((count, 1))
    return np.sqrt(2) * np.cos(2 * np.pi * (waves * at + phase))


def line(layers: int) -> np.ndarray:
    return np.linspace(-1, 1, layers)


Curves = Callable[[Rng, int, int], np.ndarray]


def own(r: float) -> Curves:
    return lambda rng, count, layers: wandering(rng, count, layers, r)


def shared(r: float, noise: float = 0.1) -> Curves:
    return lambda rng, count, layers: wandering(rng, 1, layers, r) + noise * rng.normal(size=(count, layers))


def shared_bend(rng: Rng, count: int, layers: int) -> np.ndarray:
    return bends(rng, 1, layers) + 0.02 * rng.normal(size=(count, layers))


def scaled(sd: float) -> Curves:
    return lambda rng, count, layers: wandering(rng, count, layers, 0.8) * rng.lognormal(0, sd, (count, 1))


def of_one_base(rng: Rng, count: int, layers: int) -> np.ndarray:
    """Draws curves of seeds of one base. What it gives to all of them has no trend: an even curve."""
    given = wandering(rng, 1, layers, 0.8)
    return (given + given[:, ::-1]) / 2 + 0.5 * wandering(rng, count, layers, 0.8)


def planted(slope: float) -> Curves:
    return lambda rng, count, layers: slope * line(layers) + 0.1 * rng.normal(size=(count, layers))


# ---- what claims are given ----


def whole(values: np.ndarray, models: int, layers: int, families: int, name: str = "cka", **more) -> ClaimMap:
    labels = [f"m{i}" for i in range(models)]
    return ClaimMap(
        models={label: slice(layers * i, layers * (i + 1)) for i, label in enumerate(labels)},
        families={label: f"f{i % families}" for i, label in enumerate(labels)},
        values={name: values},
        names=[f"resid_post@{i}" for _ in labels for i in range(layers)],
        widths=[32] * len(values),
        rows=4000,
        **more,
    )


def by_pairs(curves: Curves, models: int, layers: int, families: int = 99, **more) -> Make:
    """The similarity at equal depth of every pair of models follows a curve."""

    def made(rng: Rng) -> tuple:
        values = np.zeros((models * layers, models * layers))
        pairs = [*combinations(range(models), 2)]
        for (a, b), curve in zip(pairs, -curves(rng, len(pairs), layers), strict=True):
            at = np.arange(layers)
            values[a * layers + at, b * layers + at] = values[b * layers + at, a * layers + at] = curve
        given = whole(values, models, layers, families, **more)
        return given, values

    return made


def by_distance(curves: Curves, models: int, layers: int) -> Make:
    """Makes models within each of which similarity follows a curve over the layers between, with noise of cells."""

    def made(rng: Rng) -> tuple:
        values = np.zeros((models * layers, models * layers))
        apart = np.abs(np.arange(layers)[:, None] - np.arange(layers))
        for i, curve in enumerate(-curves(rng, models, layers)):
            noise = 0.1 * rng.normal(size=(layers, layers))
            part = slice(i * layers, (i + 1) * layers)
            values[part, part] = curve[apart] + (noise + noise.T) / 2
        return whole(values, models, layers, 99), values

    return made


def to_base(curves: Curves, models: int, layers: int, one: bool = True) -> Make:
    """The similarity of every model with the first, its base, follows a curve."""

    def made(rng: Rng) -> tuple:
        values = np.zeros((layers * (models + 1),) * 2)
        at = np.arange(layers)
        for i, curve in enumerate(-curves(rng, models, layers), 1):
            values[at, i * layers + at] = values[i * layers + at, at] = curve
        given = whole(values, models + 1, layers, 1, base="m0")
        return (given,) if one else (given, values)

    return made


def trainings(curves: Curves, models: int, layers: int) -> Make:
    """The mean similarity of layers before the last checkpoint follows a curve over the layers."""

    def made(rng: Rng) -> tuple:
        names = [f"attn_out@{i}" for i in range(layers)]
        found = []
        for i, curve in enumerate(curves(rng, models, layers)):
            values = {0: (-curve).tolist(), 20: (-curve).tolist(), 100: [0.0] * layers}
            found.append(
                curve_of(quantity="cka to last", label="", point="attn_out", model=f"m{i}", parameters=i + 1,
                         steps=[0, 20, 100], layers=names, values=values)
            )  # fmt: skip
        return (found,)

    return made


def courses(curves: Curves, models: int, checkpoints: int) -> Make:
    def made(rng: Rng) -> tuple:
        found = curves(rng, models, checkpoints)
        return ({f"m{i}": {"step": [*range(checkpoints)], "distance": x.tolist()} for i, x in enumerate(found)},)

    return made


def sizes(count: int, r: float) -> Make:
    """Models of so many sizes, with a true rank correlation."""

    def made(rng: Rng) -> tuple:
        x, noise = rng.normal(size=(2, count))
        pearson = 2 * np.sin(np.pi * r / 6)
        y = pearson * x + np.sqrt(1 - pearson**2) * noise
        found = [
            curve_of(quantity="cka to last", label="", point="attn_out", model=f"m{i}", parameters=1 + int(place),
                     steps=[0, 20, 100], layers=["attn_out@0"], values={0: [value], 20: [value], 100: [0.0]})
            for i, (place, value) in enumerate(zip(x.argsort().argsort(), y.tolist(), strict=True))
        ]  # fmt: skip
        return (found,)

    return made


def blocks(models: int, sd: float, gap: float = 0.0, base: str | None = "m0", r: float = 0.0) -> Make:
    """Distances between six blocks, of models that differ in their scale; gap: of the logarithm, to the base."""

    def made(rng: Rng) -> tuple:
        every = {}
        for i in range(models):
            noise = rng.uniform(0.5, 1.5, (6, 6))
            level = np.exp(sd * rng.normal() + gap * (i > 0)) * (1 + r * i)
            every[f"m{i}"] = ModelBlocks(apart=level * (noise + noise.T), cut=3, labels=np.zeros(6, int), clearness=1.0)
        return (Parted(models=every, base=base),)

    return made


def modular(sd: float, seeds: int, larger: float = 0.0) -> Make:
    def made(rng: Rng) -> tuple:
        names = [f"{point}@{block}" for block in range(3) for point in ("q", "attn_scores", "mlp_out", "resid_post")]

        def square(by: float = 0.0) -> np.ndarray:
            noise = rng.uniform(0.5, 1.5, (12, 12))
            return (noise + noise.T) * np.exp(sd * rng.normal() + by)

        by = {BY_BLOCK: larger, END_TO_END: 0.0, ONE_SUM: 0.0}
        apart = {training: [square(gap) for _ in range(seeds)] for training, gap in by.items()}
        return (TrainedLayers(names=dict.fromkeys(by, names), apart=apart),)

    return made


def groups(models: int, effect: float, sd: float = 0.0, early: float = 0.0, level: float = 0.0) -> Make:
    """Two groups of so many models; pairs share models. effect: what pairs of two groups are farther apart, late."""

    def made(rng: Rng) -> tuple:
        count = 2 * models
        labels = {"one": [f"a{i}" for i in range(models)], "two": [f"b{i}" for i in range(models)]}
        across = np.arange(count)[:, None] // models != np.arange(count) // models
        own = rng.normal(0, 0.1, (count, 1)) * rng.lognormal(0, sd, (count, 1))
        noise = rng.normal(0, 0.05, (count, count, 4))
        values = level + (own + own.T)[..., None] + (noise + noise.transpose(1, 0, 2)) / 2
        shift = np.array([early, early, 0.0, effect])
        return (Depths(labels, values + across[..., None] * shift, np.array([0.25, 0.5, 0.75, 1.0]), False),)

    return made


def scattered(models: int, spread: float, shift: float, larger: int = 0) -> Make:
    """Distances between models of two groups: of one centre unless there is a shift, the second spread as much more."""

    def made(rng: Rng) -> tuple:
        labels = {"one": [f"a{i}" for i in range(models)], "two": [f"b{i}" for i in range(models + larger)]}
        second = np.arange(2 * models + larger) >= models
        places = rng.normal(size=(len(second), 8)) * np.where(second, spread, 1.0)[:, None]
        places[second, 0] += shift
        return (GroupDistances(labels, np.linalg.norm(places[:, None] - places, axis=-1)),)

    return made


def seeds(count: int, hans: float) -> Make:
    """Accuracies whose standard deviation is 0.01, and on HANS `hans`."""

    def made(rng: Rng) -> tuple:
        both = np.stack([0.7 + hans * rng.normal(size=count), 0.98 + 0.01 * rng.normal(size=count)], 1).tolist()
        return ([{OVERLAP: x, "accuracy": y} for x, y in both],)

    return made


def tasks(count: int, lost: float, sd: float = 0.02) -> Make:
    """Accuracy lost with the bottom or the top frozen: of every task its own, of two models together."""

    def made(rng: Rng) -> tuple:
        of_task = rng.normal(0, sd, (2, count))
        values = {
            f"{model}, {task}": {
                "none": np.array([0.9]),
                "bottom 2": np.array([0.9 - lost + of_task[0, task] + rng.normal(0, 0.002)]),
                "top 2": np.array([0.9 + of_task[1, task] + rng.normal(0, 0.002)]),
            }
            for task in range(count)
            for model in "ab"
        }
        return (VariantScores(values, "none"),)

    return made


def probed(training: str, count: int, error: float, sd: float) -> Make:
    """The error of the best layer, of every seed; held-out rows are shared by targets and layers."""

    def made(rng: Rng) -> tuple:
        of_seed = np.clip(rng.normal(error, sd, count), 0, 1)
        lowest = {(f"m{i}", f"c{k}"): float(e) for i, e in enumerate(of_seed) for k in (1, 2)}
        return (Probed(lowest=lowest, mlp=lowest, trained={training: [f"m{i}" for i in range(count)]}),)

    return made


def pairs_of(models: int, mean: float, sd: float = 0.0) -> Make:
    """A value of every pair of models, in two layers of which the second is much like the first."""

    def made(rng: Rng) -> tuple:
        own = rng.normal(size=models) * rng.lognormal(0, sd, models) / 10
        found = {}
        for a, b in combinations(range(models), 2):
            value = mean + own[a] + own[b] + rng.normal(0, 0.05)
            found[f"m{a}", f"m{b}"] = [float(value), float(value + rng.normal(0, 0.01))]
        return (found,)

    return made


# ---- the promises ----


def said(name: str, make: Make, rng: Rng) -> str:
    return CLAIMS[name](*make(rng)).verdict


def level(name: str, setting: str, make: Make, verdicts: tuple[str, ...] = (HOLDS, FAILS)) -> list[Promise]:
    draw = partial(said, name, make)
    return [Promise(f"claim {name}: {x} by chance", setting, "level", LEVEL, DRAWS, draw, x) for x in verdicts]


def power(name: str, setting: str, make: Make, verdict: str = HOLDS) -> Promise:
    return Promise(f"claim {name}: {verdict}", setting, "power", LEAST, POWER_DRAWS, partial(said, name, make), verdict)


# claims on curves, by how they are given them: over units of their own, over pairs of units, and others of both kinds
OVER_UNITS, OVER_PAIRS = "top_layers_change_most", "early_layers_agree"
ON_CURVES: dict[str, Callable[[Curves, int, int], Make]] = {
    OVER_UNITS: to_base,
    OVER_PAIRS: by_pairs,
    "adjacent_layers_are_closer": by_distance,
    "earlier_layers_converge_faster": trainings,
    "lower_layers_agree_across_families": partial(by_pairs, families=4),
    "top_attention_changes_most": partial(to_base, one=False),
    "tasks_diverge_at_the_top": partial(by_pairs, families=1, base="m0"),
}
KINDS: dict[str, Curves] = {
    "log-normal scale, sd 0.8": scaled(0.8),
    "curve that all share, autocorrelation 0.8": shared(0.8),
    "smooth bend that all share": shared_bend,
}
MORE: dict[str, Curves] = {
    "seeds of one base": of_one_base,
    **{f"log-normal scale, sd {sd}": scaled(sd) for sd in SCALES[:-1]},
    **{f"curve that all share, autocorrelation {r}": shared(r) for r in (0.0, 0.5, 0.95)},
}


def of_curves() -> list[Promise]:
    found: list[Promise] = []
    for name, make in ON_CURVES.items():
        both, slow = name in (OVER_UNITS, OVER_PAIRS), name == "earlier_layers_converge_faster"
        kinds = KINDS | MORE if both else {} if slow else KINDS
        for kind, curves in kinds.items():
            found += level(name, f"4 models, 12 layers, {kind}", make(curves, 4, 12))
        for layers in LENGTHS if name == OVER_UNITS else (6, 24) if both else (12,):
            for r in AUTOCORRELATIONS if name == OVER_UNITS else (0.8, 0.95) if both else (0.8,):
                found += level(name, f"5 models, {layers} layers, autocorrelation {r}", make(own(r), 5, layers))
        found.append(power(name, "4 models, 12 layers, a line of 20 times the noise", make(planted(1), 4, 12)))
    return found


def of_thresholds() -> list[Promise]:
    name, steps = "larger_models_converge_earlier", "distances_grow_in_training"
    found = [x for count in (5, 8, 12) for x in level(name, f"{count} sizes, true rho 0.5", sizes(count, 0.5))]
    found += [
        power(name, "8 sizes, true rho 0.98", sizes(8, 0.98)),
        power(name, "40 sizes, true rho 0.1", sizes(40, 0.1), FAILS),
        power(steps, "3 trainings, 12 checkpoints, a line of 20 times the noise", courses(planted(1), 3, 12)),
        power(steps, "3 trainings that fall", courses(planted(-1), 3, 12), FAILS),
    ]
    for r in AUTOCORRELATIONS:
        found += level(steps, f"3 trainings, 12 checkpoints, autocorrelation {r}", courses(own(r), 3, 12), (HOLDS,))
        found += level(
            steps, f"3 trainings that share it, autocorrelation {r}", courses(shared(r), 3, 12), (HOLDS,)
        )  # fmt: skip
        setting = f"4 models, 12 layers, autocorrelation {r}"
        found += level("falls_with_layer_distance", setting, by_distance(own(r), 4, 12), (HOLDS,))
    found.append(power("falls_with_layer_distance", "4 models, 12 layers, a line", by_distance(planted(1), 4, 12)))
    return found


def of_units() -> list[Promise]:
    found: list[Promise] = []
    for sd in SCALES:
        found += level("fine_tuning_parts_blocks", f"base and 4 models, log sd {sd}", blocks(5, sd))
        found += level("layer_wise_distances_are_larger", f"3 + 3 seeds, log sd {sd}", modular(sd, 3))
        found += level("attention_makes_the_first_differences", f"4 seeds, log sd {sd}", modular(sd, 4))
        found += level("groups_differ_late", f"4 + 4 models, log sd {sd}", groups(4, 0.0, sd))
        found += level("one_code_serves_other_models", f"4 models, log sd {sd}", pairs_of(4, 0.0, sd))
    found += level("one_code_serves_other_models", "3 models", pairs_of(3, 0.0))
    apart = "between_group_distances_are_larger"
    for count, larger, spread in ((4, 0, 3.0), (5, 0, 2.0), (4, 4, 3.0), (8, -4, 3.0)):
        setting = f"{count} + {count + larger} models of one centre, the others spread {spread:g} times as much"
        found += level(apart, setting, scattered(count, spread, 0.0, larger), (HOLDS,))
    found.append(power(apart, "5 + 5 models of one spread, apart by 4 of it", scattered(5, 1.0, 4.0)))
    found += level("groups_alike_early", "5 + 5 models, a quarter of the late gap", groups(5, 1.0, 0.0, 0.25))
    found += level("early_layers_cost_little", "4 + 4 models at 0.02", groups(4, 0.0, 0.0, 0.0, 0.02))
    found += level("within_groups_cost_little", "4 + 4 models at 0.02", groups(4, 0.0, 0.0, 0.0, 0.02))
    for count in (8, 12, 20):
        found += level("seeds_differ_beyond_their_training", f"{count} seeds at 0.02", seeds(count, 0.03))
    found += level("freezing_the_bottom_costs_less", "4 tasks of two models each", tasks(4, 0.0))
    found += level("frozen_bottom_layers_cost_little", "4 tasks of two models each, at 0.01", tasks(4, 0.01))
    for count in (3, 5):
        found += level(
            "linear_probes_find_all_sums_in_model_l", f"{count} seeds at 0.01", probed(BY_BLOCK, count, 0.01, 0.002)
        )
    return [
        *found,
        power("fine_tuning_parts_blocks", "base and 4 models, log sd 0.3, 4 times the distance", blocks(5, 0.3, 1.4)),
        power("layer_wise_distances_are_larger", "3 + 3 seeds, log sd 0.3, 3 times", modular(0.3, 3, 1.1)),
        power("groups_differ_late", "4 + 4 models, 0.2", groups(4, 0.2)),
        power("groups_alike_early", "5 + 5 models, none early", groups(5, 1.0)),
        power("one_code_serves_other_models", "4 models, 0.5", pairs_of(4, 0.5)),
        power("seeds_differ_beyond_their_training", "10 seeds, 0.1", seeds(10, 0.1)),
        power("frozen_bottom_layers_cost_little", "4 tasks, 5 points", tasks(4, -0.05), HOLDS),
        power("frozen_bottom_layers_cost_little", "4 tasks, 8 points lost", tasks(4, 0.08), FAILS),
        power("linear_probes_find_all_sums_in_model_l", "5 seeds, none", probed(BY_BLOCK, 5, 0.0, 0.0)),
    ]


PROMISES: list[Promise] = of_curves() + of_thresholds() + of_units()
