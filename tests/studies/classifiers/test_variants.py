"""What variants of a training cost: the published table of freezing, tasks and seeds as units, bad options, a run."""

import numpy as np
import pytest
from helpers.composing import composed
from helpers.tiny_classifiers import TINY_FINETUNED

from repsim_cli.base.errors import BadConfig
from repsim_cli.config.run import validate
from repsim_cli.findings.claims import FAILS, HOLDS, UNCLEAR, UNTESTABLE, find_claims
from repsim_cli.runs.content import Facts
from repsim_cli.runs.reader import read_manifest, read_results
from repsim_cli.studies.classifiers.finding_variants import VariantScores, list_entry_models, tabulate

# Wu et al. 2020, table 1: accuracy in per cent on SST-2, MNLI, QNLI and QQP
TASKS = ("SST-2", "MNLI", "QNLI", "QQP")
PUBLISHED = {
    "BERT": {
        "none": (92.43, 84.05, 91.40, 91.00),
        "top 4": (91.86, 82.86, 91.09, 90.97),
        "bottom 4": (92.43, 84.16, 91.85, 90.86),
        "top 6": (91.97, 82.53, 90.13, 90.61),
        "bottom 6": (93.00, 84.00, 91.80, 90.71),
    },
    "XLNet": {
        "none": (93.92, 85.97, 90.35, 90.55),
        "top 4": (92.89, 85.55, 87.96, 90.92),
        "bottom 4": (93.12, 86.04, 90.65, 89.36),
        "top 6": (93.12, 84.84, 87.88, 90.75),
        "bottom 6": (93.92, 85.64, 90.99, 89.02),
    },
}


def published(*models):
    return {
        f"{model}, {task}": {
            variant: np.array([accuracies[i] / 100]) for variant, accuracies in PUBLISHED[model].items()
        }
        for model in models
        for i, task in enumerate(TASKS)
    }


def judged(name, values):
    (claim,) = find_claims([name])
    return claim(VariantScores(values, "none"))


@pytest.mark.parametrize(
    ("models", "gap", "gap_verdict", "lost", "lost_verdict"),
    [
        (["BERT"], 0.00849, HOLDS, -0.00157, HOLDS),
        (["XLNet"], 0.00604, UNCLEAR, 0.00305, UNCLEAR),
        (["BERT", "XLNet"], 0.00726, UNCLEAR, 0.00074, HOLDS),
    ],
)
def test_the_published_table(models, gap, gap_verdict, lost, lost_verdict):
    bottom = judged("freezing_the_bottom_costs_less", published(*models))
    assert (bottom.verdict, bottom.value) == (gap_verdict, pytest.approx(gap, abs=1e-5))
    assert bottom.why == "standard error over 4 tasks"  # of both models together
    cost = judged("frozen_bottom_layers_cost_little", published(*models))
    assert (cost.verdict, cost.value) == (lost_verdict, pytest.approx(lost, abs=1e-5))


def test_a_single_task_is_judged_over_its_seeds():
    seeds = {"none": [0.90, 0.91, 0.92], "top 2": [0.80, 0.80, 0.83], "bottom 2": [0.89, 0.91, 0.92]}
    one = {"task": {variant: np.array(values) for variant, values in seeds.items()}}
    bottom = judged("freezing_the_bottom_costs_less", one)
    gaps = [0.09, 0.11, 0.09]
    assert (bottom.verdict, bottom.why) == (HOLDS, "standard error over 3 seeds")
    assert (bottom.value, bottom.se) == pytest.approx((np.mean(gaps), np.std(gaps, ddof=1) / 3**0.5))
    cost = judged("frozen_bottom_layers_cost_little", one)
    assert (cost.verdict, cost.value) == (UNCLEAR, pytest.approx(0.01 / 3))
    costly = {"task": {**one["task"], "bottom 3": np.array([0.5, 0.5, 0.5])}}  # the largest number counts
    assert judged("frozen_bottom_layers_cost_little", costly).verdict == FAILS


@pytest.mark.parametrize(
    ("variants", "bottom", "cost"),
    [
        ({"none": [0.9]}, "no task has variants `top N` and `bottom N` of equal N", "no task has a variant `bottom N`"),
        ({"none": [0.9], "top 4": [0.9], "bottom 6": [0.9]}, "no task has variants `top N` and", "needs 3 seeds with a value, got 1 seed"),
        ({"none": [0.9], "top 4": [0.9], "bottom 4": [0.9]}, "needs 3 seeds with a value, got 1 seed", "needs 3 seeds with a value, got 1 seed"),
        ({"none": [0.9, 0.8], "top 4": [0.9], "bottom 4": [0.9, 0.9]}, "needs 3 seeds with a value, got 1 seed", "needs 3 seeds with a value, got 1 seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_tested(variants, bottom, cost):
    one = {"task": {variant: np.array(values) for variant, values in variants.items()}}
    verdicts = judged("freezing_the_bottom_costs_less", one), judged("frozen_bottom_layers_cost_little", one)
    assert verdicts[0].verdict == UNTESTABLE
    assert [verdict.why.startswith(why) for verdict, why in zip(verdicts, (bottom, cost), strict=True)] == [True, True]


def test_an_entry_stands_for_its_seeds():
    about = {label: Facts(kind="live", family="bert", layers=[], widths=[], entry="a") for label in ("a_0", "a_1")}
    about["a_2"] = Facts(kind="live", family="bert", layers=[], widths=[])
    assert [list_entry_models(entry, about) for entry in ("a", "a_2", "b")] == [["a_0", "a_1"], ["a_2"], []]


def test_the_table_by_hand():
    values = {"task": {"none": np.array([0.8, 0.9]), "top 1": np.array([0.7, 0.9]), "other": np.array([0.75])}}
    none, top, other = tabulate(VariantScores(values, "none", rows={"task": 100})).rows
    assert none == ["task", "none", 2, pytest.approx(0.85), pytest.approx(0.1 / 2**0.5), None, None]
    error = ((0.85 * 0.15 + 0.8 * 0.2) / 100) ** 0.5
    assert top == ["task", "top 1", 2, pytest.approx(0.8), pytest.approx(0.2 / 2**0.5), pytest.approx(-0.05), pytest.approx(error)]  # fmt: skip
    assert other[2:6] == [1, 0.75, None, pytest.approx(-0.1)]
    assert tabulate(VariantScores(values, "none")).rows[1][-1] is None


OPTIONS = "+analyses.variants={models: {pairs: {none: tiny_nli_0, other: tiny_nli_1}}}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{models: {}}", "analyses.variants.models: no task is named; write {TASK: {VARIANT: ENTRY}}"),
        ("{models: {a: {top: tiny_nli}}}", "analyses.variants.models.a: the reference is not among its variants, got 'top'; name 'none', or"),
        ("{models: {a: {none: tiny_nli, b: tiny_nly}}}", "analyses.variants.models.a.b: no such model, got 'tiny_nly'; did you mean 'tiny_nli_"),
    ],
)  # fmt: skip
def test_bad_options(options, message):
    with pytest.raises(BadConfig, match=message):
        validate(composed("experiment=tiny/finetune_nli", *TINY_FINETUNED, f"+analyses.variants={options}"))


@pytest.mark.drawn
def test_variants_of_a_run(trained_once, repsim, newest):
    code, _, err = repsim("run", "experiment=tiny/finetune_nli", *TINY_FINETUNED, OPTIONS)
    assert code == 0, err
    assert read_manifest(newest())["facts"]["tiny_nli_1"]["entry"] == "tiny_nli"
    found = read_results(newest())
    accuracies = found.tables["classifiers"].column("accuracy")
    table = found.tables["variants"]
    assert table.column("mean") == accuracies
    assert table.column("change") == [None, pytest.approx(accuracies[1] - accuracies[0])]
    error = sum(share * (1 - share) / 60 for share in accuracies) ** 0.5  # of 60 evaluation examples
    assert table.column("standard error of rows") == [None, pytest.approx(error)]
    assert (newest() / "figures" / "variants.png").is_file()
    # another metric, afterwards
    code, _, err = repsim("analyse", newest(), OPTIONS.replace("{models", "{metric: loss, models"))
    assert code == 0, err
    loss = read_results(newest()).tables["classifiers"].column("loss")
    assert read_results(newest()).tables["variants"].column("mean") == loss
    code, _, err = repsim("analyse", newest(), OPTIONS.replace("{models", "{metric: hats, models"))
    assert code == 2
    assert "metric: 'tiny_nli_0' was saved without it, got hats; known: accuracy, loss, hans_accuracy" in err


# Gao et al. 2024, tables 6 and 7: BERT of 12 blocks on Yelp, whose test split has 38,000 reviews
YELP = {
    "none": 0.9787,
    "bottom 7": 0.9747,
    "bottom 8": 0.9743,
    "bottom 11": 0.9311,
    "first 4": 0.9786,
    "first 1": 0.9711,
}


def test_the_published_freezing_and_cutting():
    values = {"yelp": {variant: np.array([accuracy]) for variant, accuracy in YELP.items()}}
    frozen, cut = find_claims(["freezing_two_thirds_costs_little", "a_third_of_the_blocks_is_enough"])
    yelp = VariantScores(values, "none", blocks={"yelp": 12}, rows={"yelp": 38_000})
    found = frozen(yelp)
    one = "needs 3 seeds with a value, got 1 seed"  # rows of one model say nothing of another
    assert (found.verdict, found.value, found.why) == (UNTESTABLE, pytest.approx(0.0044), one)
    assert (cut(yelp).verdict, cut(yelp).value) == (UNTESTABLE, pytest.approx(0.0001))
    deeper = yelp._replace(blocks={"yelp": 16})  # 11 of 16 are two thirds, 5 a third
    assert (frozen(deeper).verdict, frozen(deeper).value) == (UNTESTABLE, pytest.approx(0.0476))
    assert cut(deeper).why == "no task has a variant `first N` with N a third of the blocks"
    assert frozen(yelp._replace(blocks={})).why == "no task has a variant `bottom N` with N two thirds of the blocks"
    seeds = {"none": [0.9, 0.91, 0.92], "first 4": [0.899, 0.91, 0.919]}
    several = {"yelp": {variant: np.array(accuracies) for variant, accuracies in seeds.items()}}
    found = cut(yelp._replace(values=several))
    assert (found.verdict, found.why) == (HOLDS, "standard error over 3 seeds")
