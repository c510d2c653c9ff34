"""Layers of one model and its blocks, as claims read them, with planted effects."""

import numpy as np
from helpers.planted_effects import FALSEHOOD, NOISE, TRUTH, Make, apart, symmetric

from repsim_cli.findings.boundaries import ModelBlocks, Parted
from repsim_cli.findings.partitions import find_spectral_clusters
from repsim_cli.findings.sub_networks import Clustered
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes.finding_targets import Near
from repsim_cli.studies.similarity.finding_feature_maps import PUBLISHED, Network

# layers of Models L, E and 0: three blocks of ten, and one block

POINTS = [*(f"q@{{}}.h{i}" for i in range(3)), "attn_scores@{}", "pattern@{}", "z@{}", "mlp_pre@{}", "mlp_post@{}", "mlp_out@{}", "resid_post@{}"]  # fmt: skip
THREE = [point.format(block) for block in range(3) for point in POINTS]
ONE = [*(f"q@0.h{i}" for i in range(10)), *(f"attn_scores@0.h{i}" for i in range(4)), *(f"mlp_out@{i}" for i in range(15))]  # fmt: skip
NUMBER = np.arange(30) // 10


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

    seeds = [apart(1 + symmetric(rng, 30, 0.1) + 2 * (groups[:, None] != groups)) for _ in range(5)]
    counts = [find_spectral_clusters(values, False, count=None).count for values in seeds]
    return (Clustered(counts=counts, apart=seeds),)


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
    return in_blocks(rng, {TRUTH: 8, FALSEHOOD: (2, 6, 10)[int(label[-1])], NOISE: anywhere(rng)}[sign], gap=3.0)


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
