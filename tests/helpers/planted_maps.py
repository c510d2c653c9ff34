"""Maps of all layers, and distances between groups of models, with planted effects."""

from dataclasses import replace

import numpy as np
from helpers.planted_effects import FALSEHOOD, NOISE, TRUTH, Make, symmetric

from repsim_cli.findings.distances import GroupDistances, cluster_by_average_linkage, compute_recovery
from repsim_cli.findings.groups import Depths
from repsim_cli.findings.layer_maps import ClaimMap, compute_largest_noise_correlation

# groups of five models each, at four depths

GROUPS = {"one": [f"a{i}" for i in range(5)], "two": [f"b{i}" for i in range(5)]}
BETWEEN = np.arange(10)[:, None] // 5 != np.arange(10) // 5


def depths(rng, shift, noise=0.05):
    """shift: (10, 10, 4), added to noise of pairs and of models."""
    values = np.stack([symmetric(rng, 10, noise) for _ in range(4)], 2) + shift
    model = rng.normal(0, noise / 2, 10)
    values += (model[:, None] + model)[..., None]
    return Depths(GROUPS, values, np.array([0.25, 0.5, 0.75, 1.0]), larger_is_closer=False)


def late(sign, rng):
    return (depths(rng, sign * BETWEEN[..., None] * np.array([0, 0, 0, 1.0])),)


def early(sign, rng):
    """Early, the groups are apart by nothing, by as much as late, or by just the share that counts as alike."""
    share = {TRUTH: 0.0, FALSEHOOD: 1.0, NOISE: 0.25}[sign]
    return (depths(rng, BETWEEN[..., None] * np.array([share, share, 0, 1.0])),)


def little(sign, rng):
    cost = {TRUTH: 0.0, FALSEHOOD: 0.3, NOISE: 0.02}[sign]
    return (depths(rng, cost, noise=0.005),)


def between(sign, rng):
    return clustered(np.abs(symmetric(rng, 10, 0.2)) + 2 + sign * BETWEEN)


def other_clusters(sign, rng):
    """Falsehood: two clusters that are not the groups."""
    apart = {TRUTH: BETWEEN, FALSEHOOD: np.arange(10)[:, None] % 2 != np.arange(10) % 2, NOISE: np.zeros((10, 10))}
    return clustered(np.abs(symmetric(rng, 10, 0.2)) + 2 + apart[sign])


def clustered(values):
    np.fill_diagonal(values, 0)
    return (
        GroupDistances(
            GROUPS,
            values,
            agreement={"hierarchical": compute_recovery(GROUPS, cluster_by_average_linkage(values, 2), 0)},
        ),
    )


# maps of all layers of all models: seven models of eight layers, of four families

NAMES = ["a", "a2", "b", "b2", "c", "c2", "d"]
PLACES = {name: slice(8 * i, 8 * i + 8) for i, name in enumerate(NAMES)}
OWNERS = np.repeat(NAMES, 8)
FAMILIES = {name: name[0] for name in NAMES}
BLOCK = np.tile(np.arange(8), 7)
STEPS = np.abs(BLOCK[:, None] - BLOCK)
SAME_MODEL = OWNERS[:, None] == OWNERS
SAME_FAMILY = np.array([[FAMILIES[a] == FAMILIES[b] for b in OWNERS] for a in OWNERS])


def noise_of_pairs(rng, noise=0.05):
    """Noise of cells, and of pairs of models."""
    place = np.repeat(np.arange(7), 8)
    return symmetric(rng, 56, noise) + symmetric(rng, 7, noise)[np.ix_(place, place)]


def whole(values, **more):
    points = [f"resid_post@{block}" for block in BLOCK]
    return ClaimMap(models=PLACES, families=FAMILIES, values=values, names=points, widths=[32] * 56, rows=4000, **more)


def of_one_shape(values, **more):
    return replace(whole(values, **more), families=dict.fromkeys(NAMES, "one"))


def one_map(effect, **more) -> Make:
    def made(sign, rng):
        values = noise_of_pairs(rng) + 0.5 + sign * effect
        return whole({"cka": values}, **more), values

    return made


def pythias(sign, rng):
    names = ["pythia_1b", "pythia_1_4b", "pythia_2_8b", "pythia_6_9b"]
    places = {name: slice(6 * i, 6 * i + 6) for i, name in enumerate(names)}
    odd = np.repeat(np.arange(4) == 2, 6)
    values = 0.5 + symmetric(rng, 24) - 0.3 * sign * (odd[:, None] | odd)
    of = {"families": dict.fromkeys(names, "gpt_neox"), "names": [], "widths": [32] * 24, "rows": 4000}
    return ClaimMap(models=places, values={"cka": values}, **of), values


def shared(less, more, same) -> Make:
    """One measure keeps more across families than the other does, less, or as much."""

    def made(sign, rng):
        kept = {TRUTH: (0.2, 0.5), FALSEHOOD: (0.5, 0.2), NOISE: (0.4, 0.4)}[sign]
        floors = {"neuronsim": compute_largest_noise_correlation(32, 4000), "cka": 32 / 3999}
        values = {
            name: np.where(same, 0.5, 0.5 * share) + floors.get(name, 0) + noise_of_pairs(rng, 0.02)
            for name, share in zip((less, more), kept, strict=True)
        }
        return (whole(values),)

    return made


def localized(effect, **more) -> Make:
    def made(sign, rng):
        neurons = 0.4 + noise_of_pairs(rng) + sign * effect[:, None]
        return (whole({"neuronsim": neurons, "svcca": 0.6 + noise_of_pairs(rng)}, **more),)

    return made


def changed(sign, rng):
    """a is the base; all others lose more of it in later layers."""
    same = (STEPS == 0) & ((OWNERS[:, None] == "a") | (OWNERS == "a"))
    return of_one_shape({"cka": 0.9 + noise_of_pairs(rng) - sign * 0.1 * same * BLOCK}, base="a")


def diverged(sign, rng):
    """a is the base; b and c are of the entries of b2 and c2: those of other entries share less in later layers."""
    entries = {name: name[0] for name in NAMES if name != "a"}
    other = np.array([[entries.get(x, x) != entries.get(y, y) for y in OWNERS] for x in OWNERS])
    values = 0.9 + noise_of_pairs(rng) - sign * 0.1 * other * (STEPS == 0) * BLOCK
    return of_one_shape({"cka": values}, base="a", entries=entries), values
