"""Scores of models, probes, stitches, trainings and neurons, as claims read them, with planted effects."""

from itertools import combinations

import numpy as np
from helpers.planted_effects import FALSEHOOD, NOISE, TRUTH, Make

from repsim_cli.engine.curves import make_curve as curve_of
from repsim_cli.runs.content import Facts, Table
from repsim_cli.studies.classifiers.finding import OVERLAP
from repsim_cli.studies.classifiers.finding_variants import VariantScores
from repsim_cli.studies.probes.finding import Probed
from repsim_cli.studies.training_run.finding_ranks import COLUMNS

# classifiers: HANS spreads more, less, or by just the threshold more than accuracy does


def classifiers(sign, rng):
    spread = {TRUTH: 0.1, FALSEHOOD: 0.004, NOISE: 0.03}[sign]
    return ([{OVERLAP: rng.normal(0.7, spread), "accuracy": rng.normal(0.98, 0.01)} for _ in range(20)],)


def shapes(ratio):
    """A model of the shape of Pythia 2.8b whose heads are as many times as wide as those of two others."""
    more = {"kind": "live", "layers": [], "widths": [], "blocks": 32, "parameters": 1}
    others = {label: Facts(family="gpt_neox", width=64, head_width=1000, **more) for label in "ab"}
    return {"m": Facts(family="gpt_neox", width=2560, head_width=round(1000 * ratio), **more), **others}


# probes of five seeds with 700 rows held out; errors of rows


def probed(training, linear, mlp) -> Make:
    """linear, mlp: by sign, the true errors of c1, c2 and c3, of five seeds."""

    def made(sign, rng):
        def drawn(errors):
            return {(f"m{seed}", f"c{i}"): rng.binomial(700, e) / 700
                    for seed in range(5) for i, e in enumerate(errors[sign], 1)}  # fmt: skip

        return (Probed(lowest=drawn(linear), mlp=drawn(mlp), trained={training: [f"m{i}" for i in range(5)]}),)

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
    """Universal neurons of 1000: 50, none, or as many as the threshold over models."""
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
    """Two pairs of layers of every pair of four models."""
    own = dict(zip("abcd", rng.normal(0, 0.02, 4), strict=True))
    return (
        {(a, b): (0.3 * sign + own[a] + own[b] + rng.normal(0, 0.05, 2)).tolist() for a, b in combinations("abcd", 2)},
    )


def over_depth(column, bump):
    """Five models of 16 blocks, and their embeddings; bump: over the share of the depth."""

    def make(sign, rng):
        at = np.linspace(0, 1, 16)
        values = {label: 5 + sign * bump(at) + rng.normal(0, 0.1, 16) + rng.normal(0, 1) for label in "abcde"}
        return (
            {
                label: [{"layer": "embed", column: 99.0}]
                + [{"layer": f"resid_post@{i}", column: float(x)} for i, x in enumerate(row)]
                for label, row in values.items()
            },
        )

    return make
