"""Every claim on planted truth, on planted falsehood and on noise: it holds, it fails, and noise seldom does either."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from helpers.nights import nightly

from repsim_cli.base import registry
from repsim_cli.engine.curves import make_curve as curve_of
from repsim_cli.findings import evidence
from repsim_cli.findings.boundaries import ModelBlocks, Parted
from repsim_cli.findings.claims import FAILS, HOLDS, UNCLEAR, UNTESTABLE, find_claims, judge
from repsim_cli.findings.distances import GroupDistances, cluster_by_average_linkage, compute_recovery
from repsim_cli.findings.evidence import (
    DEEP,
    Evidence,
    compare_outer_thirds,
    compute_trend_p,
    list_permutations,
    negate_evidence,
    require_shared_trend,
    weigh_by_jackknife,
    weigh_by_sign_test,
    weigh_by_standard_error,
    weigh_lone_value,
    weigh_mean,
    weigh_mean_difference,
    weigh_rank_correlation,
)
from repsim_cli.findings.groups import Depths
from repsim_cli.findings.layer_maps import ClaimMap, compute_largest_noise_correlation, find_trained
from repsim_cli.findings.partitions import find_spectral_clusters
from repsim_cli.findings.sub_networks import Clustered
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM, Facts, Table
from repsim_cli.studies.classifiers.finding import OVERLAP
from repsim_cli.studies.classifiers.finding_variants import VariantScores
from repsim_cli.studies.layers.columns import DIMENSION, SAME_CLASS
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes.finding import Probed
from repsim_cli.studies.probes.finding_targets import Near
from repsim_cli.studies.similarity.finding_feature_maps import PUBLISHED, Network
from repsim_cli.studies.training_run.finding_ranks import COLUMNS

ALL = {claim.name: claim for claim in find_claims(registry.claims.names())}
TRUTH, FALSEHOOD, NOISE = 1, -1, 0  # the sign of a planted effect
# what takes seconds for each verdict
CLUSTERED = (
    "layer_wise_training_gives_three_groups",
    "trained_resnet_has_three_or_four_sub_networks",
    "random_resnet_has_no_sub_networks",
)
DRAWS, RATE = 100, 0.13  # of noise, and the share that may hold, or fail: a level of 5 % exceeds it once in 2000
Make = Callable[[int, np.random.Generator], tuple]


def symmetric(rng, size, noise=0.05):
    values = rng.normal(0, noise, (size, size))
    return (values + values.T) / 2


# classifiers: HANS spreads more, less, or by just the threshold more than accuracy does


def classifiers(sign, rng):
    spread = {TRUTH: 0.1, FALSEHOOD: 0.004, NOISE: 0.03}[sign]
    return ([{OVERLAP: rng.normal(0.7, spread), "accuracy": rng.normal(0.98, 0.01)} for _ in range(20)],)


def shapes(ratio):
    """A model of the shape of Pythia 2.8b whose heads are as many times as wide as those of two others."""
    more = {"kind": "live", "layers": [], "widths": [], "blocks": 32, "parameters": 1}
    others = {label: Facts(family="gpt_neox", width=64, head_width=1000, **more) for label in "ab"}
    return {"m": Facts(family="gpt_neox", width=2560, head_width=round(1000 * ratio), **more), **others}


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
    """Of cells, and of pairs of models."""
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


# probes of three seeds with 700 rows held out; errors of rows


def probed(training, linear, mlp) -> Make:
    """linear, mlp: by sign, the true errors of c1, c2 and c3, of three seeds."""

    def made(sign, rng):
        def drawn(errors):
            return {(f"m{seed}", f"c{i}"): rng.binomial(700, e) / 700
                    for seed in range(3) for i, e in enumerate(errors[sign], 1)}  # fmt: skip

        return (Probed(lowest=drawn(linear), mlp=drawn(mlp), trained={training: ["m0", "m1", "m2"]}),)

    return made


PERFECT = {TRUTH: (0, 0, 0), FALSEHOOD: (0.5, 0.9, 0.5), NOISE: (0, 0, 0.01)}
MISSED = {TRUTH: (0.5, 0.9, 0), FALSEHOOD: (0.01, 0.02, 0), NOISE: (0.97, 0.95, 0.9)}
LEARNED = {TRUTH: (0, 0, 0), FALSEHOOD: (0, 0, 0), NOISE: (0.97, 0.95, 0.9)}  # noise: a model that learned nothing


# stitches of three models of each kind at three blocks


def stitches(way) -> Make:
    """way(head, tail): what such a stitch costs more, times the sign."""

    def made(sign, rng):
        models = {"gelu": ["g", "h", "i"], "solu": ["s", "t", "u"]}
        kinds = {name: f"{kind}, 3 blocks" for kind, names in models.items() for name in names}
        records = [
            {
                "head": head, "tail": tail, "head layer": f"resid_post@{block}", "tail layer": f"resid_post@{block}",
                "penalty": 0.5 + sign * way(head, tail) + rng.normal(0, 0.02), "penalty se": 0.02,
            }
            for head in kinds for tail in kinds for block in range(3)
        ]  # fmt: skip
        return records, kinds

    return made


def is_solu(name):
    return name in "stu"


# layers of Models L, E and 0: three blocks of ten, and one block

POINTS = [*(f"q@{{}}.h{i}" for i in range(3)), "attn_scores@{}", "pattern@{}", "z@{}", "mlp_pre@{}", "mlp_post@{}", "mlp_out@{}", "resid_post@{}"]  # fmt: skip
THREE = [point.format(block) for block in range(3) for point in POINTS]
ONE = [*(f"q@0.h{i}" for i in range(10)), *(f"attn_scores@0.h{i}" for i in range(4)), *(f"mlp_out@{i}" for i in range(15))]  # fmt: skip
NUMBER = np.arange(30) // 10


def apart(values):
    values = np.abs(values)
    np.fill_diagonal(values, 0)
    return values


def layers(**models):
    """Distances by how models were trained, of three seeds."""
    trained = {
        {"by_block": BY_BLOCK, "end_to_end": END_TO_END, "one_sum": ONE_SUM}[key]: [x() for _ in range(3)]
        for key, x in models.items()
    }
    return (TrainedLayers(names={key: ONE if key == ONE_SUM else THREE for key in trained}, apart=trained),)


def target(name, *points) -> Make:
    """The named layers are the nearest, the farthest, or anywhere, in each of five seeds."""

    def made(sign, rng):
        names = [f"{point}{copy}" for copy in ("", "_") for point in THREE]

        def seed():
            values = rng.uniform(1, 2, 60)
            values[[names.index(point) for point in points]] -= 5 * sign
            return Near(names=names, values={name: values})

        return ([seed() for _ in range(5)],)

    return made


def groups_of_layers(sign, rng):
    """Three groups, five, or none, in each of five seeds."""
    groups = {TRUTH: NUMBER, FALSEHOOD: np.arange(30) // 6, NOISE: np.zeros(30)}[sign]

    def count():
        values = apart(1 + symmetric(rng, 30, 0.1) + 2 * (groups[:, None] != groups))
        return find_spectral_clusters(values, False, count=None).count

    return (Clustered(counts=[count() for _ in range(5)]),)


def published_groups(sign, rng):
    """Found as they were given, less alike than under any shift, or anywhere, in all of five seeds."""
    given = np.repeat([2, 1, 0, 1, 0, 2], [3, 2, 9, 1, 6, 9])
    other = np.repeat([0, 1, 2], [19, 5, 6])
    labels, given = {
        TRUTH: (given, given),
        FALSEHOOD: (other, np.roll(given, 6)),
        NOISE: (other, np.roll(given, rng.integers(30))),
    }[sign]
    return (Clustered(labels=[labels] * 5, given=given),)


def end(sign, rng):
    last = (NUMBER[:, None] == 2) & (NUMBER == 2)
    return layers(end_to_end=lambda: apart(2 + symmetric(rng, 30, 0.3) - 1.5 * sign * last))


def larger(sign, rng):
    def at(level):
        return lambda: apart(3 + symmetric(rng, 30, 0.3) + rng.normal(0, 0.1) + level)

    return layers(by_block=at(sign), end_to_end=at(0))


def patterns(sign, rng):
    """Layers as points: of two networks, or of one. Noise: no pattern at all."""
    if sign == NOISE:
        noise = lambda: apart(1 + symmetric(rng, 30, 0.3))  # noqa: E731
        return layers(by_block=noise, end_to_end=noise)
    points = [np.column_stack([3 * np.arange(30), rng.normal(0, 20, (30, 8))]) for _ in range(2)]
    distances = [np.linalg.norm(x[:, None] - x, axis=-1) for x in points]
    of = distances[1 if sign == TRUTH else 0]
    return layers(
        by_block=lambda: distances[0] + apart(symmetric(rng, 30, 1)),
        end_to_end=lambda: of + apart(symmetric(rng, 30, 1)),
    )


def at_attention(sign, rng):
    attention = np.array([name.startswith("attn") for name in ONE])
    steps = np.arange(len(ONE) - 1)

    def seed():
        values = apart(2 + symmetric(rng, len(ONE), 0.3))
        values[steps, steps + 1] += sign * (attention[:-1] | attention[1:])
        return values

    return layers(one_sum=seed)


# the layers of a ResNet9

RESNET = [
    f"{kind}@{block}" for block in range(8) for kind in ("conv", "norm", "relu", *["pool"] * (block in (4, 7)))
] + ["linear@8"]


def resnet(rng, groups=None, steps=None, level=1.0, names=RESNET):
    """Distances between the layers, larger between groups, or at some steps."""
    size = len(names)
    values = level + symmetric(rng, size, 0.1)
    if groups is not None:
        number = np.arange(size) * groups // size
        values += 2 * (number[:, None] != number)
    if steps is not None:
        values[np.arange(size - 1), np.arange(1, size)] += steps
    return Network(names, apart(values))


def resnet_groups(trained, random) -> Make:
    """trained, random: how many groups the layers of each of five seeds are in, by the sign; None: in none."""
    return lambda sign, rng: tuple(
        [resnet(rng, groups[sign], names=RESNET[::2]) for _ in range(5)] for groups in (trained, random)
    )


def separated(sign, rng):
    return tuple([resnet(rng, level=level + rng.normal(0, 0.1)) for _ in range(3)] for level in (2 + sign, 2))


def published_steps(sign, rng):
    seeds = [resnet(rng, steps=sign * np.isin(RESNET[1:], PUBLISHED)) for _ in range(3)]
    return seeds, [resnet(rng) for _ in range(3)]


# training curves of five sizes


def curves(quantity, value) -> Make:
    """value(size, layer): at 20 % of training, times the sign; 0 at the end."""

    def made(sign, rng):
        def at_20(size, layer):
            return float(rng.normal(0.5, 0.02) + sign * value(size, layer))

        return (
            [sized(quantity, size, {0: [0.0] * 6, 20: [at_20(size, k) for k in range(6)], 100: [0.0] * 6})
             for size in range(1, 6)],
        )  # fmt: skip

    return made


def sized(quantity, size, values):
    """The curve of a model of so many parameters; values: by step, of every layer."""
    points = [f"attn_out@{k}" for k in range(len(values[100]))]
    return curve_of(
        quantity=quantity, label="", point="attn_out", model=f"m{size}", parameters=size, steps=[0, 20, 100],
        layers=points, values=values,
    )  # fmt: skip


def all_along(quantity) -> Make:
    """Ranks over all of training."""

    def made(sign, rng):
        levels = {size: [float(rng.normal(0.5, 0.02) + sign * 0.1 * size) for _ in range(6)] for size in range(1, 6)}
        return ([sized(quantity, size, dict.fromkeys((0, 20, 100), level)) for size, level in levels.items()],)

    return made


def matthews(sign, rng):
    level = {TRUTH: 0.85, FALSEHOOD: 0.1, NOISE: 0.5}[sign]
    kinds = [(f"m{size}", kind) for size in range(5) for kind in ("parameters", "gradients")]
    rows = [[model, "attn_out", kind, 6, 3, 3, 3, rng.normal(level, 0.1), ""] for model, kind in kinds]
    return (Table(columns=COLUMNS, rows=rows),)


# accuracies of four tasks with blocks frozen, as a share of 2000 examples


def frozen(bottom, top) -> Make:
    """bottom, top: by sign, the true accuracy lost."""

    def made(sign, rng):
        lost = {"none": 0.0, "top 2": top[sign], "bottom 2": bottom[sign]}
        return (
            VariantScores(
                {
                    task: {variant: rng.binomial(2000, 0.9 - x, 1) / 2000 for variant, x in lost.items()}
                    for task in "abcd"
                },
                "none",
            ),
        )

    return made


def cut(variant) -> Make:
    """The variant loses nothing, ten points, or just the threshold, of 12 blocks in four tasks."""

    def made(sign, rng):
        lost = {"none": 0.0, variant: {TRUTH: -0.03, FALSEHOOD: 0.1, NOISE: 0.005}[sign]}
        values = {task: {name: rng.binomial(2000, 0.9 - x, 1) / 2000 for name, x in lost.items()} for task in "abcd"}
        return (VariantScores(values, "none", blocks=dict.fromkeys("abcd", 12)),)

    return made


# views of rows


def shifts(base, tuned) -> Make:
    """base, tuned: by sign, the true KL of the third of five blocks, of a base and of three models."""

    def made(sign, rng):
        def kl(level):
            return (0.01 + level[sign] * rng.lognormal(0, 0.1) * (np.arange(5) == 2)).tolist()

        return {"base": kl(base), **{f"tuned{i}": kl(tuned) for i in range(3)}}, "base"

    return made


# classifiers of 12 blocks under one measure: a base, and three seeds each of a dense and of two sparse trainings

TUNED = [f"{name}_{seed}" for name in ("dense", "half", "most") for seed in range(3)]
ENTRIES = {label: label[:-2] for label in TUNED}
SPARSITY = dict.fromkeys(TUNED[:3], 0.0) | dict.fromkeys(TUNED[3:6], 0.5) | dict.fromkeys(TUNED[6:], 0.9)


def in_blocks(rng, cut, gap=1.0, level=1.0):
    """12 blocks, farther apart by `gap` between those before the cut and those after it, as they would be found."""
    after = (np.arange(12) >= cut).astype(int)
    values = apart(level + symmetric(rng, 12) + gap * (after[:, None] != after))
    return ModelBlocks(apart=values, cut=cut, labels=after * (gap > 0), clearness=gap + rng.normal(0, 0.1))


def parted(base, tuned) -> Make:
    """base(sign, rng), tuned(sign, rng, label): the blocks of a model."""

    def made(sign, rng):
        models = {"base": base(sign, rng), **{label: tuned(sign, rng, label) for label in TUNED}}
        return (Parted(models=models, base="base", sparsity=SPARSITY, entries=ENTRIES),)

    return made


def flat(sign, rng):
    return in_blocks(rng, 8, gap=0.0)


def anywhere(rng):
    return 1 + int(11 * rng.random())


def by_sparsity(sign, rng, label):
    return in_blocks(rng, 8, level=3 - sign * SPARSITY[label])


def by_seed(sign, rng, label):
    """Falsehood: the first seed parts after the second block, the others later."""
    return in_blocks(rng, {TRUTH: 8, FALSEHOOD: (2, 6, 10)[int(label[-1])], NOISE: anywhere(rng)}[sign])


def measures_of(gap, other) -> Make:
    """gap: between the blocks under Gromov-Wasserstein, by sign. other(sign, rng, cut): blocks under another measure,
    where those under Gromov-Wasserstein have their boundary at `cut`."""

    def made(sign, rng):
        cuts = {label: anywhere(rng) if sign == NOISE else 8 for label in TUNED}
        own = {label: in_blocks(rng, cut, gap[sign]) for label, cut in cuts.items()}
        others = {label: other(sign, rng, cut) for label, cut in cuts.items()}
        return ({"gromov_wasserstein": Parted(models=own), "cka": Parted(models=others)},)

    return made


def clearer(sign, rng, cut):
    return in_blocks(rng, cut, {TRUTH: 0.1, FALSEHOOD: 1.0, NOISE: 0.3}[sign])


# three trainings of eight checkpoints: the mean distance and a quantity


def course(quantity, sign_of=1) -> Make:
    def made(sign, rng):
        def model():
            distance = np.arange(8) + rng.normal(0, 0.1, 8)
            grows = {TRUTH: distance, FALSEHOOD: -distance, NOISE: rng.normal(size=8)}[sign] * sign_of
            return {"distance": distance.tolist(), quantity: grows.tolist()}

        return ({name: model() for name in "abc"},)

    return made


# neurons of four models, and dictionaries


def universal_neurons(sign, rng):
    """Of 1000 neurons 50, none, or as many as the threshold over models."""
    share = {TRUTH: np.full(4, 0.05), FALSEHOOD: np.zeros(4), NOISE: rng.normal(0.01, 0.004, 4).clip(0)}[sign]
    return (
        {
            a: {b: (np.arange(1000) + 0.5 < 1000 * share[i]) * 1.0 for b in "abcd" if b != a}
            for i, a in enumerate("abcd")
        },
    )


def excesses(sign, rng):
    own = {a: rng.normal(0.1 * sign, 0.02) for a in "abcd"}
    return ({a: {b: np.full(10, own[a] + own[b]) for b in "abcd" if b != a} for a in "abcd"},)


def seeds_of_dictionaries(sign, rng):
    return ({model: rng.normal(0.5 - 0.2 * sign, 0.05, 2).tolist() for model in "abc"},)


def of_pairs(sign, rng):
    """Of every pair of four models, two pairs of layers."""
    own = dict(zip("abcd", rng.normal(0, 0.02, 4), strict=True))
    return (
        {(a, b): (0.3 * sign + own[a] + own[b] + rng.normal(0, 0.05, 2)).tolist() for a, b in combinations("abcd", 2)},
    )


# noise has no clusters, does not reach full accuracy, is no small head, and has no rank correlation of a half
FALSE_OF_NOISE = (
    "clusters_are_the_groups",
    "all_models_reach_full_accuracy",
    "pythia_2_8b_has_a_small_head",
    "end_to_end_training_ends_alike",
    "falls_with_layer_distance",
    "localization_rises_with_depth",
    "layer_wise_groups_are_the_published",
    "trained_resnet_changes_at_the_published_layers",
    "larger_models_converge_earlier",
    "larger_models_have_larger_parameter_rank",
    "larger_models_have_larger_gradient_rank",
    "rank_keeps_falling_in_small_models",
    "sparser_models_differ_less",
    "boundaries_are_stable_over_seeds",
    "distances_grow_in_training",
    "distances_grow_with_accuracy",
    "distances_grow_with_f1",
    "distances_grow_as_loss_falls",
    "layer_wise_training_gives_three_groups",
    "trained_resnet_has_three_or_four_sub_networks",
    "c1_is_nearest_to_the_first_block",
    "c2_is_nearest_to_the_second_block",
    "c_is_near_the_last_blocks",
)


def over_depth(column, bump):
    """Five models of eight blocks, and their embeddings; bump: over the share of the depth."""

    def make(sign, rng):
        at = np.linspace(0, 1, 8)
        values = {label: 5 + sign * bump(at) + rng.normal(0, 0.1, 8) + rng.normal(0, 1) for label in "abcde"}
        return (
            {
                label: [{"layer": "embed", column: 99.0}]
                + [{"layer": f"resid_post@{i}", column: float(x)} for i, x in enumerate(row)]
                for label, row in values.items()
            },
        )

    return make


TABLE: dict[str, Make] = {
    "seeds_differ_beyond_their_training": classifiers,
    "groups_differ_late": late,
    "groups_alike_early": early,
    "between_groups_cost_late": late,
    "within_groups_cost_little": little,
    "early_layers_cost_little": little,
    "between_group_distances_are_larger": between,
    "clusters_are_the_groups": other_clusters,
    "falls_with_layer_distance": one_map(-0.1 * STEPS),
    "early_layers_agree": one_map(-0.1 * (BLOCK[:, None] + BLOCK)),
    "pythia_2_8b_stands_apart": pythias,
    "same_family_is_closer": one_map(0.2 * SAME_FAMILY),
    "lower_layers_agree_across_families": one_map(-0.1 * (BLOCK[:, None] + BLOCK)),
    "adjacent_layers_are_closer": one_map(-0.1 * STEPS * SAME_MODEL),
    "top_attention_changes_most": lambda sign, rng: (found := changed(sign, rng), found.values["cka"]),
    "neurons_are_block_diagonal": shared("neuronsim", "cka", SAME_FAMILY),
    "single_heads_match_across_families": shared("attention_cka", "attention_js", SAME_FAMILY),
    "neurons_differ_between_models": shared("neuronsim", "cka", SAME_MODEL),
    "localization_rises_with_depth": localized(0.1 * BLOCK),
    "top_layers_change_most": lambda sign, rng: (changed(sign, rng),),
    "tasks_diverge_at_the_top": diverged,
    "fine_tuning_delocalizes_the_top": localized(0.5 * (OWNERS == "a"), base="a"),
    "all_models_reach_full_accuracy": lambda sign, rng: (
        {"m": {"c_accuracy": 1.0 if sign == TRUTH else rng.uniform()}},
    ),
    "pythia_2_8b_has_a_small_head": lambda sign, rng: (shapes(rng.uniform(0.9, 1.1) - 0.5 * (sign > 0)),),
    "linear_probes_find_all_sums_in_model_l": probed(BY_BLOCK, PERFECT, PERFECT),
    "linear_probes_find_the_last_sum_in_model_e": probed(END_TO_END, PERFECT, PERFECT),
    "mlp_probes_find_all_sums_in_model_e": probed(END_TO_END, PERFECT, PERFECT),
    "linear_probes_miss_inner_sums_in_model_e": probed(END_TO_END, MISSED, LEARNED),
    "solu_into_gelu_costs_more": stitches(lambda head, tail: 0.2 * (is_solu(head) and not is_solu(tail))),
    "solu_stitches_better_to_itself": stitches(lambda head, tail: 0.2 * (head == tail and not is_solu(head))),
    "crossing_costs_more_than_gelu_to_itself": stitches(lambda head, tail: 0.2 * (is_solu(head) != is_solu(tail))),
    "c1_is_nearest_to_the_first_block": target("c1", "resid_post@0"),
    "c2_is_nearest_to_the_second_block": target("c2", "resid_post@1"),
    "c_is_near_the_last_blocks": target("c3", "resid_post@1", "resid_post@2"),
    "layer_wise_training_gives_three_groups": groups_of_layers,
    "layer_wise_groups_are_the_published": published_groups,
    "end_to_end_training_ends_alike": end,
    "layer_wise_distances_are_larger": larger,
    "training_changes_the_pattern": patterns,
    "attention_makes_the_first_differences": at_attention,
    "trained_resnet_has_three_or_four_sub_networks": resnet_groups({1: 3, -1: 5, 0: None}, {1: 3, -1: 3, 0: 3}),
    "random_resnet_has_no_sub_networks": resnet_groups({1: 3, -1: 3, 0: None}, {1: None, -1: 3, 0: None}),
    "training_separates_the_layers": separated,
    "trained_resnet_changes_at_the_published_layers": published_steps,
    "larger_models_converge_earlier": curves("cka to last", lambda size, layer: 0.1 * size),
    "earlier_layers_converge_faster": curves("cka to last", lambda size, layer: -0.1 * layer),
    "larger_models_have_larger_parameter_rank": all_along("parameters"),
    "larger_models_have_larger_gradient_rank": all_along("gradients"),
    "rank_keeps_falling_in_small_models": curves("parameters", lambda size, layer: -0.1 * size),
    "early_attention_has_large_rank": matthews,
    "fine_tuning_shifts_distances": shifts({1: 0.1, -1: 1, 0: 0.5}, {1: 1, -1: 0.1, 0: 0.5}),
    "freezing_the_bottom_costs_less": frozen({1: 0.0, -1: 0.1, 0: 0.05}, {1: 0.1, -1: 0.0, 0: 0.05}),
    "frozen_bottom_layers_cost_little": frozen({1: -0.03, -1: 0.1, 0: 0.01}, {1: 0, -1: 0, 0: 0}),
    "freezing_two_thirds_costs_little": cut("bottom 8"),
    "a_third_of_the_blocks_is_enough": cut("first 4"),
    "fine_tuning_parts_blocks": parted(flat, lambda sign, rng, label: in_blocks(rng, 8, gap=0.0, level=1 + 0.5 * sign)),
    "sparser_models_differ_less": parted(flat, by_sparsity),
    "boundaries_are_stable_over_seeds": parted(flat, by_seed),
    "gromov_wasserstein_is_clearest": measures_of({1: 1.0, -1: 0.1, 0: 0.3}, clearer),
    "distances_grow_in_training": course("step"),
    "distances_grow_with_accuracy": course("accuracy"),
    "distances_grow_with_f1": course("f1"),
    "distances_grow_as_loss_falls": course("loss", -1),
    "neurons_match_better_than_rotated_bases": excesses,
    "one_percent_of_neurons_are_universal": universal_neurons,
    "seeds_share_few_latents": seeds_of_dictionaries,
    "feature_spaces_are_alike": of_pairs,
    "one_code_serves_other_models": of_pairs,
    "dimension_peaks_inside": over_depth(DIMENSION, lambda at: 1 - 4 * (at - 0.5) ** 2),
    "middle_layers_tell_classes_better": over_depth(SAME_CLASS, lambda at: -at),
}


def test_every_claim_is_tested():
    assert sorted(TABLE) == sorted(ALL)


@pytest.mark.parametrize("name", TABLE)
def test_planted_truth_and_falsehood(name):
    for seed in range(1 if name in CLUSTERED else 5):
        rng = np.random.default_rng(seed)
        assert ALL[name](*TABLE[name](TRUTH, rng)).verdict == HOLDS
        assert ALL[name](*TABLE[name](FALSEHOOD, rng)).verdict == FAILS


@pytest.mark.parametrize("name", nightly(TABLE, *CLUSTERED))
def test_noise_seldom_holds(name):
    rng = np.random.default_rng(1)
    words = [ALL[name](*TABLE[name](NOISE, rng)).verdict for _ in range(DRAWS)]
    assert words.count(HOLDS) <= RATE * DRAWS
    if name not in FALSE_OF_NOISE:
        assert words.count(FAILS) <= RATE * DRAWS


def test_the_rule():
    def verdict(value, above, below, **more):
        return judge(value, 0.5, Evidence(above, below, "cases", **more)).verdict

    assert verdict(0.6, 0.05, 0.95) == HOLDS
    assert verdict(0.6, 0.06, 0.94) == UNCLEAR
    assert verdict(0.4, 0.05, 0.95) == UNCLEAR  # told from chance, but on the other side of the threshold
    assert verdict(0.4, 0.95, 0.05) == FAILS
    assert verdict(0.4, 0.7, 0.3) == UNCLEAR
    below = judge(-0.6, -0.5, Evidence(0.99, 0.01, "", se=0.1), published="below")
    assert (below.verdict, below.p, below.opposite_p, below.se) == (HOLDS, 0.01, 0.99, 0.1)
    few = judge(1.0, 0.0, Evidence(1 / 6, 1.0, "6 orders", smallest=1 / 6, units=3, needs="5 models"))
    assert (few.verdict, few.value, few.units) == (UNTESTABLE, 1.0, 3)
    assert few.why == "no p below 0.17 can be reached (6 orders); needs 5 models"
    two = judge(1.0, 0.0, weigh_mean([1.0, 1.1], 0.0, "pair of models"))
    assert (two.verdict, two.why, two.p) == (UNTESTABLE, "needs 3 pairs of models, got 2 pairs of models", None)


def test_a_verdict_says_its_units_and_the_p_that_decided():
    claim = ALL["frozen_bottom_layers_cost_little"]
    found = claim.verdict("accuracy", *TABLE[claim.name](FALSEHOOD, np.random.default_rng(0)))
    assert (found.verdict, found.unit, found.units, found.over) == (FAILS, "task", 4, "4 tasks")
    assert found.decided == found.opposite_p < 0.05 < found.p
    (scores,) = TABLE[claim.name](TRUTH, np.random.default_rng(0))
    alone = {"a": {name: np.array([x[0], x[0] + 0.001, x[0] - 0.002]) for name, x in scores.values["a"].items()}}
    seeds = claim.verdict("accuracy", scores._replace(values=alone))
    assert (seeds.unit, seeds.units, seeds.over) == ("seed", 3, "3 seeds")


def test_a_verdict_says_what_its_p_rests_on():
    """Where p follows from value, threshold and error the number of units is enough."""
    claim = ALL["earlier_layers_converge_faster"]
    found = claim.verdict("cka", *TABLE[claim.name](FALSEHOOD, np.random.default_rng(0)))
    assert "steps of the curve that they share" in found.basis
    assert found.over in found.basis
    plain = replace(found, why=f"standard error over {found.over}")
    assert plain.basis == found.over
    assert replace(found, verdict=UNTESTABLE).basis == found.over


def test_three_sizes_are_too_few():
    (five,) = TABLE["larger_models_converge_earlier"](TRUTH, np.random.default_rng(0))
    three = ALL["larger_models_converge_earlier"](five[:3])
    assert (three.verdict, three.value, three.units) == (UNTESTABLE, pytest.approx(1.0), 3)
    assert three.why == "no p below 0.34 can be reached (3 models against a true rho of 0.5); needs 5 models"


def test_too_few_models():
    few = {
        "one_percent_of_neurons_are_universal": ({"a": {"b": np.ones(3)}, "b": {"a": np.ones(3)}},),
        "seeds_share_few_latents": ({"a": [0.1]},),
        "feature_spaces_are_alike": ({},),
        "one_code_serves_other_models": ({("a", "b"): [0.1]},),
        "middle_layers_tell_classes_better": ({"a": [{"layer": "resid_post@0", SAME_CLASS: None}]},),
    }
    whys = [ALL[name](*given).why for name, given in few.items()]
    assert whys == [
        "needs 3 models, got 2 models",
        "needs 3 models, got 1 model",
        "needs layers of 3 models with features that correlate",
        "needs 3 models, got 2 models",
        "needs data with classes",
    ]


def test_errors_and_chance():
    rng = np.random.default_rng(0)
    values, others = rng.normal(1.0, 1, 12), rng.normal(0.0, 2, 5)
    one = weigh_mean(values, 0.5, "model")
    left_out = weigh_by_jackknife(values.mean(), 0.5, [np.delete(values, i).mean() for i in range(12)], "model")
    t = {"alternative": "greater"}
    assert left_out.above == pytest.approx(one.above) == scipy.stats.ttest_1samp(values, 0.5, **t).pvalue
    welch = scipy.stats.ttest_ind(values, others, equal_var=False, **t).pvalue
    assert weigh_mean_difference(values, others, "seed").above == pytest.approx(welch)
    pooled = scipy.stats.ttest_ind([0.3], others, **t).pvalue  # one value has no spread of its own
    assert weigh_lone_value(0.3, others, "model").above == negate_evidence(weigh_lone_value(0.3, others, "model")).below
    assert weigh_lone_value(0.3, others, "model").above == pytest.approx(pooled)
    assert (
        weigh_by_standard_error(1.0, 0.0, 0.0, 3, "", 4).above,
        weigh_by_standard_error(0.0, 0.0, 0.0, 3, "", 4).above,
    ) == (0.0, 0.5)
    assert weigh_by_sign_test(5, 5, "seed").above == weigh_by_sign_test(5, 5, "seed").smallest == 1 / 32
    assert weigh_by_jackknife(1.0, 0.0, [1.0, 1.0, float("nan")], "model").needs == "4 models"
    assert [len(each) for each in list_permutations([2, 3])[0]] == [12, 12]
    assert list_permutations([7, 6])[1] == "2,000 drawn"
    assert compare_outer_thirds(np.array([3.0, 2, 1, 0, 0, 0])) == 2.5


def test_a_rank_correlation_against_a_true_one():
    """Against 0 as the exact permutations; against 0.5 a true 0.1 fails with as many as 200."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 7))
    rho, found = weigh_rank_correlation(x, y, 0.0, "model")
    exact = scipy.stats.permutation_test(
        (x,), lambda order: scipy.stats.spearmanr(order, y)[0], permutation_type="pairings", alternative="greater"
    )
    assert rho == pytest.approx(scipy.stats.spearmanr(x, y)[0])
    assert found.above == pytest.approx(exact.pvalue, abs=0.02)
    x = rng.normal(size=200)
    rho, found = weigh_rank_correlation(x, 0.1 * x + rng.normal(size=200), 0.5, "model")
    assert judge(rho, 0.5, found).verdict == FAILS
    tied, found = weigh_rank_correlation([0, 0, 0, 1, 1, 1], [1.0, 2, 3, 4, 5, 6], 0.5, "model")
    assert tied == pytest.approx(scipy.stats.spearmanr([0, 0, 0, 1, 1, 1], [1, 2, 3, 4, 5, 6])[0])
    assert found.above > weigh_rank_correlation(range(6), range(6), 0.5, "model")[1].above  # with ties it says less


def test_what_all_share_must_be_steady():
    rng = np.random.default_rng(0)
    line, bend = np.linspace(0, 1, 12), np.cos(np.linspace(0.3, 3.8, 12))
    assert compute_trend_p(line + rng.normal(0, 0.03, 12))[0] < 0.05 < compute_trend_p(bend)[1]
    over = weigh_mean([1.0, 1.1, 0.9], 0.0, "model")  # the models agree
    alike = [bend + rng.normal(0, 0.01, 12) for _ in range(3)]
    assert over.above < 0.05 < require_shared_trend(over, alike).above
    assert require_shared_trend(over, [line + rng.normal(0, 0.03, 12) for _ in range(3)]).above < 0.05
    few = require_shared_trend(over, [line[: DEEP - 1]] * 3)
    assert (few.smallest, few.needs) == (1.0, "6 layers or checkpoints")


def test_untrained_twins_are_subtracted():
    """a and b have a twin each, which falls with the layers between as they do; without d's twin nothing is taken."""
    falls = np.where(SAME_MODEL, -0.1 * STEPS, 0.0)
    given = whole({"cka": falls}, untrained=frozenset({"a2", "b2", "c2"}))
    given = replace(given, families={name: name[0] for name in NAMES})
    seven = find_trained(given, falls)
    assert "no untrained twin" in seven.note
    assert list(seven.whole.models) == ["a", "b", "c", "d"]
    six = given.keep_layers(OWNERS != "d")
    values = falls[np.ix_(OWNERS != "d", OWNERS != "d")]
    left = find_trained(six, values)
    assert "beyond" in left.note
    assert left.values.shape == (24, 24)
    assert not left.values.any()
    found = ALL["adjacent_layers_are_closer"](six, values)
    assert (found.verdict, found.value, found.units) == (UNCLEAR, 0.0, 3)
    assert (
        ALL["adjacent_layers_are_closer"](given, falls + symmetric(np.random.default_rng(0), 56, 0.01)).verdict == HOLDS
    )
    none = replace(given, untrained=frozenset(NAMES))
    assert ALL["early_layers_agree"](none, falls).why == "needs 3 trained models of 6 layers or more"


def test_the_best_of_many_independent_neurons():
    rng = np.random.default_rng(0)
    found = [np.abs(np.corrcoef(rng.normal(size=(21, 50)))[0, 1:]).max() for _ in range(400)]
    assert np.mean(found) == pytest.approx(compute_largest_noise_correlation(20, 50), abs=0.01)


def test_localization_leaves_fresh_models_and_embeddings_out():
    """Both rise with depth here, what is left does not."""
    fresh = ~np.isin(OWNERS, ["a", "b", "c"])
    rises = 0.1 * fresh * BLOCK + 0.3 * (BLOCK > 0) - 0.01 * ~fresh * BLOCK
    neurons = np.full((56, 56), 0.4) + rises[:, None]
    points = ["embed" if block == 0 else f"resid_post@{block - 1}" for block in BLOCK]
    found = replace(whole({"neuronsim": neurons, "svcca": np.full((56, 56), 0.5)}), names=points)
    claim = ALL["localization_rises_with_depth"]
    assert (claim(found).units, claim(found).verdict) == (7, UNCLEAR)
    only = claim(replace(found, untrained=frozenset({"a2", "b2", "c2", "d"})))
    assert (only.verdict, only.value, only.units) == (FAILS, pytest.approx(-1.0), 3)
    none = claim(replace(found, untrained=frozenset(NAMES)))
    assert (none.verdict, none.why) == (UNTESTABLE, "needs trained models")


def test_stitches_of_three_pairs():
    """Each SoLU model is in one pair with a GELU model of its depth; two pairs are too few."""
    kinds = {f"{kind}{depth}": f"{kind}_ln, {depth} blocks" for kind in ("gelu", "solu") for depth in (1, 2, 3)}
    records = [
        {"head": f"{kind}{n}", "tail": f"{kind}{n}", "head layer": f"resid_post@{k}", "tail layer": f"resid_post@{k}",
         "penalty": level + 0.01 * n}
        for kind, level in (("gelu", 0.3), ("solu", 0.1)) for n in (1, 2, 3) for k in range(n)
    ]  # fmt: skip
    claim = ALL["solu_stitches_better_to_itself"]
    found = claim(records, kinds)
    assert (found.verdict, found.value, found.units) == (HOLDS, pytest.approx(0.2), 3)
    two = claim([one for one in records if "1" not in one["head"]], kinds)
    assert (two.verdict, two.why) == (UNTESTABLE, "needs 3 pairs of models, got 2 pairs of models")


def test_an_inner_sum_that_no_probe_tells_is_no_finding():
    claim = ALL["linear_probes_miss_inner_sums_in_model_e"]
    seeds = ["e0", "e1", "e2"]
    linear = {(m, c): e + 0.01 * i for i, m in enumerate(seeds) for c, e in (("c1", 0.97), ("c2", 0.92), ("c3", 0.0))}
    told = Probed(lowest=linear, mlp=dict.fromkeys(linear, 0.0), trained={END_TO_END: seeds})
    assert claim(told).verdict == HOLDS
    assert claim(replace(told, mlp=linear)).verdict == UNCLEAR
    beside = claim(replace(told, mlp={}))
    assert (beside.verdict, "without an MLP" in beside.why) == (UNCLEAR, True)
    assert claim(replace(told, lowest=dict.fromkeys(linear, 0.0), mlp={})).verdict == FAILS
    assert (
        claim(replace(told, trained={END_TO_END: seeds[:1]})).why
        == "needs 3 seeds, got 1 seed, and MLPs with a mean error of 0"
    )


def test_rhos_of_samples_are_those_of_independent_ranks_and_of_their_true_one():
    """Seven independent units: the exact share of orders whose rho is at least 0.75 is 0.033 (tables of Spearman's
    rho); of many units the mean is the true one."""
    null = evidence._list_untied(7, 0.0)
    assert np.abs(null).max() <= 1 + 1e-12
    assert abs(null.mean()) < 4 / np.sqrt(6 * len(null))
    exact = np.mean([scipy.stats.spearmanr(range(7), order)[0] >= 0.75 - 1e-9 for order in permutations(range(7))])
    assert (null >= 0.75 - 1e-9).mean() == pytest.approx(exact, abs=4 * np.sqrt(exact / len(null)))
    assert evidence._list_untied(200, 0.5).mean() == pytest.approx(0.5, abs=0.01)
    assert evidence._list_untied(200, -0.3).mean() == pytest.approx(-0.3, abs=0.01)


def test_steps_that_resemble_the_next_ones_count_less():
    """By hand, and on curves that wander with steps of one direction for a while: no more than 5 % are a trend."""
    curve = np.array([0.0, 1.0, 1.5, 3.0, 3.2, 5.0, 4.5, 7.0, 7.5, 9.0])
    steps = np.diff(curve)
    off = steps - steps.mean()
    r = off[:-1] @ off[1:] / (off @ off) + evidence.UPPER / 3
    left = 9 * (1 - max(r, 0)) / (1 + max(r, 0))
    t = steps.mean() / np.sqrt(off @ off / 8 / left)
    rises, falls = evidence.compute_trend_p(curve)
    assert rises == pytest.approx(scipy.stats.t.sf(t, left - 1))
    assert falls == pytest.approx(scipy.stats.t.cdf(t, left - 1))
    rng = np.random.default_rng(0)
    for alike in (0.0, 0.3, 0.6):
        noise = rng.normal(size=(1000, 75))
        wander = scipy.signal.lfilter([1], [1, -alike], noise, axis=1)[:, 50:].cumsum(1)
        assert np.mean([evidence.compute_trend_p(curve)[0] <= 0.05 for curve in wander]) <= 0.05 + 0.03
