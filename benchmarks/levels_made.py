"""What claims are given: maps, curves and tables of models with nothing to find in them, and with a planted effect."""

from collections.abc import Callable
from itertools import combinations

import numpy as np

from repsim_cli.engine.curves import make_curve as curve_of
from repsim_cli.findings.boundaries import ModelBlocks, Parted
from repsim_cli.findings.distances import GroupDistances
from repsim_cli.findings.groups import Depths
from repsim_cli.findings.layer_maps import ClaimMap
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.studies.classifiers.finding import OVERLAP
from repsim_cli.studies.classifiers.finding_variants import VariantScores
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes.finding import Probed

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
