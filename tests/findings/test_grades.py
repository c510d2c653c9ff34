"""Grades of measures: an oracle has 1 in every test, noise has chance, and the scores are those of the definitions."""

import numpy as np
import pytest
from recorded import recorded

from repsim_cli import results
from repsim_cli.content import Facts, Measured, Results
from repsim_cli.errors import BadInput
from repsim_cli.findings import grades
from repsim_cli.findings.analysis import Finished, LayerMap
from repsim_cli.findings.grades import Grades, Models

LAYERS, MEMBERS = 5, 4
GROUPS = np.repeat([0, 1, 2], MEMBERS)


def oracle(seed=0):
    """Layers are the more similar the closer they are, models of a group are alike, and metrics say how far models are."""
    metric = np.random.default_rng(seed).permutation(np.arange(12)) / 12.0
    depth = np.arange(LAYERS)
    apart = np.abs(depth[:, None] - depth) + 0.05 * np.abs(metric[:, None, None, None] - metric[None, :, None, None])
    return Models(-apart - 0.1 * (GROUPS[:, None] != GROUPS)[..., None, None], GROUPS, metric)


def noise(seed):
    rng = np.random.default_rng(seed)
    return Models(rng.normal(size=(12, 12, LAYERS, LAYERS)), GROUPS, rng.normal(size=12))


def constant():
    return Models(np.ones((12, 12, LAYERS, LAYERS)), GROUPS, np.arange(12.0))


@pytest.mark.parametrize("name", grades.TESTS)
def test_an_oracle_has_one_and_noise_has_chance(name):
    test = grades.TESTS[name]
    assert test.score(oracle()) == pytest.approx(1)
    scores = [test.score(noise(seed)) for seed in range(100)]
    error = np.std(scores, ddof=1) / 10
    chance = test.chance(noise(0))
    # average precision of few pairs is a little above the share of positives
    expected = np.mean([_precision_of_noise(seed) for seed in range(300)]) if name == "separation" else chance
    assert abs(np.mean(scores) - expected) < 4 * error
    assert np.mean(scores) < 0.7


def _precision_of_noise(seed):
    """The definition of average precision on random scores: of 6 positives among 38 pairs."""
    hits = np.random.default_rng([seed, 1]).permutation([1] * 6 + [0] * 32)
    return float(np.mean((hits.cumsum() / np.arange(1, 39))[hits == 1]))


def test_a_constant_measure_gains_nothing():
    scores = {name: test.score(constant()) for name, test in grades.TESTS.items()}
    assert scores["identification"] == pytest.approx(1 / LAYERS)
    assert scores["monotonicity"] == 0.5
    assert scores["separation"] == pytest.approx(6 / 38)
    assert scores["conformity"] == 0
    assert np.isnan(scores["order of layers"])
    assert np.isnan(scores["differences"])


def test_scores_by_hand():
    block = np.array([[1.0, 0.8, 0.9], [0.3, 0.2, 0.1], [0.0, 0.5, 0.7]])
    models = Models(np.stack([np.stack([block, block]), np.stack([block, block])]), np.zeros(2, int), np.zeros(2))
    # the largest of each row: 0, 0, 2
    assert grades.identification(models) == pytest.approx(2 / 3)
    # both directions averaged: 0-1 0.55, 0-2 0.45, 1-2 0.3; layer 0 and layer 2 see two layers on a side
    assert grades.monotonicity(models) == pytest.approx((1 + 0) / 2)
    assert grades.order_of_layers(models) == pytest.approx((1 - 1) / 2)
    last = np.array([[1, 0.9, 0.2, 0.5], [0.9, 1, 0.4, 0.1], [0.2, 0.4, 1, 0.3], [0.5, 0.1, 0.3, 1]])
    models = Models(last[..., None, None], np.array([0, 0, 1, 1]), np.array([0.1, 0.3, 0.9, 0.2]))
    # group 0: 0.9 is first of five; group 1: 0.3 is third of 0.5, 0.4, 0.3, 0.2, 0.1
    assert grades.separation(models) == pytest.approx((1 + 1 / 3) / 2)
    assert grades.conformity(models) == pytest.approx((1 + 2 / 4) / 2)


def finished(tmp_path, maps, groups=None):
    """A run of models of LAYERS blocks; maps: by measure the similarities of `Models` and whether larger is closer."""
    models = [f"m{i}" for i in range(12)]
    names = [f"resid_post@{i}" for i in range(LAYERS)]
    facts = Facts(kind="live", family="bert", layers=names, widths=[8] * LAYERS, blocks=LAYERS)
    manifest = {
        "facts": {model: vars(facts) for model in models},
        "models": {
            model: {"metrics": {"accuracy": float(x)}} for model, x in zip(models, oracle().metric, strict=True)
        },
        **({"groups": groups} if groups else {}),
    }
    run = Finished(folder=tmp_path, manifest=manifest, results=Results(study="similarity"))
    run.__dict__["maps"] = {}
    for label, (similar, larger) in maps.items():
        measured = Measured(
            name=label, label=label, settings={}, estimate={}, card={"label": label, "larger_is_closer": larger},
            matrices=[],
        )  # fmt: skip
        whole = similar.transpose(0, 2, 1, 3).reshape(12 * LAYERS, 12 * LAYERS) * (1 if larger else -1)
        places = {model: slice(i * LAYERS, (i + 1) * LAYERS) for i, model in enumerate(models)}
        run.__dict__["maps"][label] = LayerMap(measured, whole, names * 12, [8] * 12 * LAYERS, places)
    return run


@pytest.mark.parametrize("larger", [True, False])
def test_the_oracle_is_first_in_both_directions(tmp_path, larger):
    members = {name: [f"m{i}" for i in np.flatnonzero(group == GROUPS)] for group, name in enumerate("abc")}
    run = finished(tmp_path, {"noise": (noise(0).similar, True), "oracle": (oracle().similar, larger)}, members)
    part = grades.grades(run, Grades(), [])
    best, worst = part.tables["measures by grade"].rows
    assert best[:2] == ["oracle", 1.0]
    assert worst[:2] == ["noise", 2.0]
    assert best[4] == worst[4] == len(grades.TESTS)
    for measure, test, of, point, score, low, high, chance, rank, models in part.tables["grades"].rows:
        assert (of, point, models) == ("", "resid_post", 12)
        assert low <= score <= high
        assert rank == (1 if measure == "oracle" else 2)
        assert chance == pytest.approx(grades.TESTS[test].chance(oracle()))


def test_without_groups_all_models_are_seeds_of_one(tmp_path):
    rows = grades.grades(finished(tmp_path, {"oracle": (oracle().similar, True)}), Grades(), []).tables["grades"].rows
    assert [row[1] for row in rows] == ["identification", "monotonicity", "order of layers", "differences"]


def test_nothing_to_grade(tmp_path):
    run = finished(tmp_path, {})
    with pytest.raises(BadInput, match="no test applies, got a run without two models of the same layers"):
        grades.grades(run, Grades(), [])


def test_a_run_is_graded(repsim, newest):
    """Two seeds of one language model."""
    words = ("model=[tiny_a,tiny_b]", "measure=[cka_unbiased,mutual_knn,magnitude_difference]", "extract.sequences=16")
    code, _, err = repsim("run", *words, "analyses.grades={}", "extract.estimate=full", "extract.rows=500")
    assert code == 0, err
    tables = recorded(newest())["tables"]
    scores = {(row[0], row[1]): row[4] for row in tables["grades"]["rows"]}
    values = results.read_array(newest(), recorded(newest())["measures"][0]["matrices"][1]["values"])
    same = [*(values.argmax(1) == np.arange(6)), *(values.argmax(0) == np.arange(6))]
    assert scores["cka_unbiased", "identification"] == pytest.approx(np.mean(same))
    assert scores["cka_unbiased", "order of layers"] > 0.5
    assert len(tables["measures by grade"]["rows"]) == 3
