"""Probes: errors that a plain use of scikit-learn gives, and the claims on them."""

import numpy as np
import pytest
from helpers.split_targets import CLASSES, DRAW, SPLIT, X
from scipy.stats import binomtest, ttest_1samp
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.claims import find_claims
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.studies.probes.finding import find_nearest_layer, judge_claims
from repsim_cli.studies.probes.targets import decode_classes
from repsim_cli.training.probes import (
    PENALTIES,
    PROBES,
    Targets,
    combine_tests,
    compare_with_guess,
    find_largest_class,
    fit_linear,
    fit_probe,
    make_split,
)


def test_the_split():
    """Rows are documents; the split's draws are those that published numbers rest on."""
    draw = np.random.default_rng(0)
    order, shuffled = draw.permutation(120), draw.permutation(120)
    np.testing.assert_array_equal(np.concatenate([SPLIT.fitted, SPLIT.held_out]), order)
    np.testing.assert_array_equal(SPLIT.shuffled, shuffled)
    assert (len(SPLIT.fitted), len(SPLIT.held_out)) == (90, 30)
    assert not np.array_equal(SPLIT.fitted, make_split(120, 0.75, 1).fitted)
    for share in (0.01, 0.99):
        with pytest.raises(
            BadInput, match=rf"two documents \(examples, sentences\) are needed .*, got {share} of 120; change it"
        ):
            make_split(120, share, 0)


def test_documents_stay_whole():
    """Documents stay on one side, and in the control of labels of documents with one class; types of words too."""
    documents = np.repeat([7, 3, 5, 9, 1, 4], [20, 5, 30, 25, 10, 30])
    split = Targets({"c": CLASSES}, {}, documents, documents).split(0.5, 0)
    assert not {*documents[split.fitted]} & {*documents[split.held_out]}
    assert len({*documents[split.fitted]}) == len({*documents[split.held_out]}) == 3
    assert sorted([*split.fitted, *split.held_out]) == list(range(120))
    given = [{*documents[split.shuffled[documents == document]]} for document in (7, 3, 5, 9, 1, 4)]
    assert sorted(next(iter(some)) for some in given) == [1, 3, 4, 5, 7, 9]
    types = DRAW.integers(0, 30, 120)
    drawn = Targets({"c": CLASSES}, {}, documents, types, typed=True).split(0.5, 0).shuffled
    assert all(len({*drawn[types == one]}) == 1 for one in types)
    assert len({*drawn}) > 15


def test_the_largest_class_is_that_of_the_rows_that_errors_are_of():
    classes = np.where(np.isin(np.arange(120), SPLIT.fitted), 2, 3 * (CLASSES > 0))
    assert find_largest_class(classes, SPLIT) == (3, np.mean(CLASSES[SPLIT.held_out] > 0))


def test_a_probe_is_held_against_the_best_constant_answer():
    """Classes have McNemar's test; documents count once each; numbers have Student's."""
    y = np.array([0] * 12 + [1] * 8)
    predicted = y.copy()
    predicted[:2] = 1  # ten of the other class right, two of the largest wrong
    rows = np.arange(20)
    assert compare_with_guess("class", y, predicted, rows) == pytest.approx(binomtest(8, 10, 0.5, "greater").pvalue)
    whole = np.repeat(np.arange(5), 4)  # three documents of the largest class, two of the other
    by_student = ttest_1samp([-2, 0, 0, 4, 4], 0, alternative="greater").pvalue
    assert compare_with_guess("class", y, predicted, whole) == pytest.approx(by_student)
    assert compare_with_guess("class", y, np.zeros(20), rows) == 1.0
    # all rows of nine short documents right, and none of a long one, which has the largest class
    y, of = np.repeat([0, 1], [90, 18]), np.repeat(np.arange(10), [90] + 9 * [2])
    assert compare_with_guess("class", y, np.ones(108), of) > 0.5
    # a row in ten wrong in each of twenty documents, ten of either class
    y, of = np.repeat([0, 1], 100), np.repeat(np.arange(20), 10)
    assert compare_with_guess("class", y, np.where(np.arange(200) % 10, y, 1 - y), of) < 0.01
    assert (
        compare_with_guess("class", np.arange(4) % 2, np.arange(4) % 2, np.repeat([0, 1], 2)) == 0.25
    )  # of two documents
    draw = np.random.default_rng(1)
    number = draw.normal(size=60)
    near = number + 0.7 * draw.normal(size=60)
    saved = (number - number.mean()) ** 2 - (number - near) ** 2
    by_document = saved.reshape(20, 3).sum(1)
    expected = ttest_1samp(by_document, 0, alternative="greater").pvalue
    assert compare_with_guess("number", number, near, np.repeat(np.arange(20), 3)) == pytest.approx(expected)
    assert compare_with_guess("number", number, np.full(60, number.mean()), np.arange(60)) == 1.0
    assert combine_tests([0.02]) == 0.02
    assert combine_tests([0.02, 0.04]) == pytest.approx(0.06)
    assert combine_tests([0.7, 0.8]) == 1.0
    assert combine_tests([0.7, None]) is None


@pytest.mark.parametrize(
    ("documents", "layers", "probe", "strength"),
    [
        (60, 6, "linear_classification", 0),
        (300, 12, "linear_classification", 0),
        (150, 4, "linear_regression", 0),
        (300, 6, "linear_classification", 1),
        (300, 6, "linear_regression", 2),
    ],
)
def test_random_labels_are_told_by_no_layer(documents, layers, probe, strength):
    """The best of several layers is said to tell labels that are not there in at most 5 % of cases; those that are, it
    tells. Each document has two rows; classes are equally frequent, so that the largest of fitted rows is the smallest
    of the others."""
    told = 0
    for seed in range(30):
        draw = np.random.default_rng(seed)
        document = np.repeat(np.arange(documents), 2)
        classes = draw.permutation(np.resize([0, 1, 2], documents))[document]
        x = draw.normal(size=(documents, 8))[document] + draw.normal(size=(2 * documents, 8))
        x = x + 2 * strength * np.eye(3, 8)[classes]
        split = Targets({"c": classes}, {}, document, document).split(0.8, seed)
        task, p = PROBES[probe].task, []
        for _ in range(layers):
            x = x + 0.5 * np.tanh(x @ draw.normal(size=(8, 8)))
            p.append(fit_linear(x, {"c": classes}, [task], split)["c", task].p)
        told += layers * min(p) <= 0.05
    assert told >= 27 if strength else told <= 3


def test_linear_probes_are_those_of_scikit_learn():
    """All targets at once are fitted as each alone."""
    other = (CLASSES + DRAW.integers(0, 2, 120)) % 3
    found = fit_linear(X, {"c1": CLASSES, "c2": other}, ["number", "class"], SPLIT)
    given, held_out = X.astype(float)[SPLIT.fitted], X.astype(float)[SPLIT.held_out]
    for name, y in (("c1", CLASSES), ("c2", other)):
        plain = LinearRegression().fit(given, y[SPLIT.fitted])
        assert found[name, "number"].error == pytest.approx(1 - plain.score(held_out, y[SPLIT.held_out]))
        assert found[name, "number"].fitted_error == pytest.approx(1 - plain.score(given, y[SPLIT.fitted]))
        codes = LinearRegression().fit(given, np.eye(y.max() + 1)[y[SPLIT.fitted]])
        wrong = np.mean(codes.predict(held_out).argmax(1) != y[SPLIT.held_out])
        assert found[name, "class"].error == pytest.approx(wrong)


def test_mlps_are_those_of_scikit_learn():
    rows = X
    with pytest.warns(match="Stochastic Optimizer"):
        plain = MLPClassifier(random_state=3).fit(rows[SPLIT.fitted], CLASSES[SPLIT.fitted])
    one = fit_probe(PROBES["mlp_classification"], X, CLASSES, SPLIT, 3)
    assert one.error == pytest.approx(1 - plain.score(rows[SPLIT.held_out], CLASSES[SPLIT.held_out]))
    assert not one.converged
    y = (CLASSES - CLASSES[SPLIT.fitted].mean()) / CLASSES[SPLIT.fitted].std()
    with pytest.warns(match="Stochastic Optimizer"):
        plain = MLPRegressor(random_state=3).fit(rows[SPLIT.fitted], y[SPLIT.fitted])
    one = fit_probe(PROBES["mlp_regression"], X, CLASSES, SPLIT, 3)
    assert one.error == pytest.approx(1 - plain.score(rows[SPLIT.held_out], y[SPLIT.held_out]))


def test_the_ridge_is_that_of_least_squares_with_a_penalty():
    """The closed form, with the penalty of the lowest error on rows that are left out one by one."""
    given = X.astype(float)
    mean, deviation = given[SPLIT.fitted].mean(0), given[SPLIT.fitted].std(0)
    x = (given - mean) / deviation
    codes = 2.0 * np.eye(4)[CLASSES] - 1
    a, y = x[SPLIT.fitted], codes[SPLIT.fitted]
    best = np.inf, None
    for penalty in PENALTIES:
        hat = a @ np.linalg.solve(a.T @ a + penalty * np.eye(6), a.T) + 1 / len(a)
        left_out = np.mean(((y - hat @ y) / (1 - hat.diagonal()[:, None])) ** 2)
        weights = np.linalg.solve(a.T @ a + penalty * np.eye(6), a.T @ (y - y.mean(0)))
        best = min(best, (left_out, weights), key=lambda pair: pair[0])
    answers = (x @ best[1] + y.mean(0)).argmax(1)
    found = fit_probe(PROBES["ridge_classification"], given, CLASSES, SPLIT, 0)
    assert found.error == pytest.approx(np.mean(answers[SPLIT.held_out] != CLASSES[SPLIT.held_out]))
    assert found.fitted_error == pytest.approx(np.mean(answers[SPLIT.fitted] != CLASSES[SPLIT.fitted]))


def test_an_interrupted_training_is_no_fit(monkeypatch):
    """scikit-learn ends it with a warning."""

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(MLPClassifier, "_update_no_improvement_count", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_probe(PROBES["mlp_classification"], X, CLASSES, SPLIT, 0)


def test_fitted_rows_of_one_class_are_refused_where_a_probe_needs_two():
    rare = np.zeros(len(CLASSES), int)
    rare[SPLIT.held_out[0]] = 1
    with pytest.raises(
        BadInput, match=r"extract\.rows: a probe is fitted on rows of two classes, got one in the \d+ rows"
    ):
        fit_probe(PROBES["logistic_classification"], X, rare, SPLIT, 0)
    found = fit_probe(PROBES["ridge_classification"], X, rare, SPLIT, 0)
    assert found.error == pytest.approx(1 / len(SPLIT.held_out))


@pytest.mark.parametrize(
    "name", ["linear_regression", "linear_classification", "ridge_classification", "logistic_classification"]
)
def test_what_is_there_is_found_and_a_control_is_not(name):
    clean = np.eye(4)[CLASSES].astype(np.float32)
    probe = PROBES[name]

    def error(y):
        if probe.linear:
            return fit_linear(clean, {"c": y}, [probe.task], SPLIT)["c", probe.task].error
        return fit_probe(probe, clean, y, SPLIT, 0).error

    assert error(CLASSES) == pytest.approx(0, abs=1e-12)
    assert error(CLASSES[SPLIT.shuffled]) > 0.6


def test_classes_of_targets():
    codes = np.array([2, 0, 1])
    np.testing.assert_array_equal(decode_classes("c", np.eye(3)[codes]), codes)
    np.testing.assert_array_equal(decode_classes("c", codes[:, None] + 5.0), codes)
    for wrong in (np.eye(3) * 2, np.ones((3, 2)), np.array([[0.5], [1]])):
        with pytest.raises(BadInput, match="options.targets: 'c' is neither one whole number nor one 1 among zeros"):
            decode_classes("c", wrong)
    with pytest.raises(BadInput, match="options.targets: 'c' has one class only, got 0; give more rows, or drop it"):
        decode_classes("c", np.zeros((3, 1)))


def test_the_nearest_layers():
    layers = ["mlp_post@0", "resid_post@0", "q@1.h0"]
    control = np.array([0.9, 0.8, 0.7])
    assert find_nearest_layer(layers, np.array([0.0, 0.009, 0.5]), control) == [True, "resid_post@0", 1, 0.0, 0.8]
    assert find_nearest_layer(layers, np.array([0.3, 0.31, 0.5]), control) == [False, "mlp_post@0", 0, 0.3, 0.9]


def test_claims():
    """Claims go by the lowest error of each target; the last target is the one that Model E was trained on. Models are
    known by their training, not by their labels."""
    found_all = {("layers", c): 0.0 for c in ("c1", "c2", "c3")}
    lowest = {
        "linear_regression": {**found_all, ("whole", "c1"): 0.5, ("whole", "c2"): 0.9, ("whole", "c3"): 0.005},
        "mlp_classification": {**found_all, ("whole", "c1"): 0.0, ("whole", "c2"): 0.04, ("whole", "c3"): 0.0},
    }
    lowest = {
        probe: {(f"{model}{seed}", c): e * (1 + 0.01 * seed) for (model, c), e in of.items() for seed in range(-1, 4)}
        for probe, of in lowest.items()
    }
    claims = find_claims(
        [
            "linear_probes_find_all_sums_in_model_l", "linear_probes_miss_inner_sums_in_model_e",
            "linear_probes_find_the_last_sum_in_model_e", "mlp_probes_find_all_sums_in_model_e",
        ]
    )  # fmt: skip
    trained = {BY_BLOCK: [f"layers{seed}" for seed in range(-1, 4)], END_TO_END: ["whole-1", "whole0", "whole1"]}
    found = {each.name: each for each in judge_claims(claims, lowest, trained)}
    assert {name: (each.verdict, round(each.value or 0.0, 9), each.measure) for name, each in found.items()} == {
        "linear_probes_find_all_sums_in_model_l": ("holds", 0.0, "linear_regression"),
        "linear_probes_miss_inner_sums_in_model_e": ("holds", 0.5, "linear_regression"),
        "linear_probes_find_the_last_sum_in_model_e": ("holds", 0.005, "linear_regression"),
        "mlp_probes_find_all_sums_in_model_e": ("fails", 0.04, "mlp_classification"),
    }
    mlp = found["mlp_probes_find_all_sums_in_model_e"]
    assert mlp.opposite_p == mlp.decided == pytest.approx(ttest_1samp([0.0396, 0.04, 0.0404], 0.01).pvalue / 2)
    assert mlp.over == "3 seeds"
    alone = judge_claims(claims, lowest, {BY_BLOCK: ["layers0"], END_TO_END: ["whole0"], ONE_SUM: ["modsum_e"]})
    assert {each.verdict for each in alone} == {"not testable here"}
