"""Probes: errors that a plain use of scikit-learn gives, the study that fits them, and the claims on what it finds."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from repsim_cli import results
from repsim_cli.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.data.modular import modular_pairs
from repsim_cli.errors import BadInput
from repsim_cli.findings.claims import known
from repsim_cli.findings.probes import nearest, verdicts
from repsim_cli.models.modular import modular_targets
from repsim_cli.settings import Extract, Hardware
from repsim_cli.studies import probes as study
from repsim_cli.studies.probes import Probes, classes_of
from repsim_cli.training.modular import ModularRecipe, modular
from repsim_cli.training.probes import PROBES, fit, fit_linear, split_of

DRAW = np.random.default_rng(0)
CLASSES = DRAW.integers(0, 4, 120)
X = (np.eye(4)[CLASSES] @ DRAW.normal(size=(4, 6)) + 0.6 * DRAW.normal(size=(120, 6))).astype(np.float32)
SPLIT = split_of(120, 0.75, 0)


def test_the_split():
    assert (len(SPLIT.fitted), len(SPLIT.held_out)) == (90, 30)
    assert sorted([*SPLIT.fitted, *SPLIT.held_out]) == sorted(SPLIT.shuffled) == list(range(120))
    assert not np.array_equal(SPLIT.fitted, split_of(120, 0.75, 1).fitted)
    for share in (0.01, 0.99):
        with pytest.raises(BadInput, match=f"two rows are needed on either side, got {share} of 120; change it"):
            split_of(120, share, 0)


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
    one = fit(PROBES["mlp_classification"], X, CLASSES, SPLIT, 3)
    assert one.error == pytest.approx(1 - plain.score(rows[SPLIT.held_out], CLASSES[SPLIT.held_out]))
    assert not one.converged
    y = (CLASSES - CLASSES[SPLIT.fitted].mean()) / CLASSES[SPLIT.fitted].std()
    with pytest.warns(match="Stochastic Optimizer"):
        plain = MLPRegressor(random_state=3).fit(rows[SPLIT.fitted], y[SPLIT.fitted])
    one = fit(PROBES["mlp_regression"], X, CLASSES, SPLIT, 3)
    assert one.error == pytest.approx(1 - plain.score(rows[SPLIT.held_out], y[SPLIT.held_out]))


@pytest.mark.parametrize("name", ["linear_regression", "linear_classification", "logistic_classification"])
def test_what_is_there_is_found_and_a_control_is_not(name):
    clean = np.eye(4)[CLASSES].astype(np.float32)
    probe = PROBES[name]

    def error(y):
        if probe.linear:
            return fit_linear(clean, {"c": y}, [probe.task], SPLIT)["c", probe.task].error
        return fit(probe, clean, y, SPLIT, 0).error

    assert error(CLASSES) == pytest.approx(0, abs=1e-12)
    assert error(CLASSES[SPLIT.shuffled]) > 0.6


def test_classes_of_targets():
    codes = np.array([2, 0, 1])
    np.testing.assert_array_equal(classes_of("c", np.eye(3)[codes]), codes)
    np.testing.assert_array_equal(classes_of("c", codes[:, None] + 5.0), codes)
    for wrong in (np.eye(3) * 2, np.ones((3, 2)), np.array([[0.5], [1]])):
        with pytest.raises(BadInput, match="options.targets: 'c' is neither one whole number nor one 1 among zeros"):
            classes_of("c", wrong)
    with pytest.raises(BadInput, match="options.targets: 'c' has one class only, got 0; give more rows, or drop it"):
        classes_of("c", np.zeros((3, 1)))


def test_the_nearest_layers():
    layers = ["mlp_post@0", "resid_post@0", "q@1.h0"]
    control = np.array([0.9, 0.8, 0.7])
    assert nearest(layers, np.array([0.0, 0.009, 0.5]), control) == [True, "resid_post@0", 1, 0.0, 0.8]
    assert nearest(layers, np.array([0.3, 0.31, 0.5]), control) == [False, "mlp_post@0", 0, 0.3, 0.9]


def test_claims():
    """By the lowest error of each target; the last target is the one that Model E was trained on. Models are known by
    their training, not by their labels."""
    found_all = {("layers", c): 0.0 for c in ("c1", "c2", "c3")}
    lowest = {
        "linear_regression": {**found_all, ("whole", "c1"): 0.5, ("whole", "c2"): 0.9, ("whole", "c3"): 0.005},
        "mlp_classification": {**found_all, ("whole", "c1"): 0.0, ("whole", "c2"): 0.04, ("whole", "c3"): 0.0},
    }
    claims = known(
        [
            "linear_probes_find_all_sums_in_model_l", "linear_probes_miss_inner_sums_in_model_e",
            "linear_probes_find_the_last_sum_in_model_e", "mlp_probes_find_all_sums_in_model_e",
        ]
    )  # fmt: skip
    trained = {BY_BLOCK: "layers", END_TO_END: "whole"}
    found = {each.name: each for each in verdicts(claims, lowest, 700, trained)}
    assert {name: (each.verdict, each.value, each.measure) for name, each in found.items()} == {
        "linear_probes_find_all_sums_in_model_l": ("holds", 0.0, "linear_regression"),
        "linear_probes_miss_inner_sums_in_model_e": ("holds", 0.5, "linear_regression"),
        "linear_probes_find_the_last_sum_in_model_e": ("holds", 0.005, "linear_regression"),
        "mlp_probes_find_all_sums_in_model_e": ("fails", 0.04, "mlp_classification"),
    }
    mlp = found["mlp_probes_find_all_sums_in_model_e"]
    assert mlp.opposite_p == pytest.approx(binomtest(28, 700, 0.01, alternative="greater").pvalue)
    alone = verdicts(claims, {"linear_regression": {("modsum_e", "c1"): 0.0}}, 700, {ONE_SUM: "modsum_e"})
    assert {each.verdict for each in alone} == {"not testable here"}


MODELS = {"m": modular(recipe=ModularRecipe(moduli=[5])), "t": modular_targets(moduli=[5])}
GIVEN = {
    "model": MODELS, "data": modular_pairs(numbers=5), "hardware": Hardware(), "seed": 0, "targets": "t",
    "extract": Extract(hook_points=["resid_post"], unit="sequence", length=2, estimate="full"),
    "probes": ["linear_regression"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": {"t": MODELS["t"]}}, "model: no model to probe is selected, got none that is run; e.g. model="),
        ({"targets": "m"}, "options.targets: no stored representations of this name, got 'm'; "),
        ({"model": {"m": MODELS["m"]}}, "options.targets: no stored .* got 't'; select one, e.g. modsum_targets"),
        ({"model": {**MODELS, "u": MODELS["t"]}}, "model.u: stored representations beside the targets, got 'u'; drop it"),
        ({"probes": []}, "options.probes: none is selected, got \\[\\]; choose of linear_regression, "),
        ({"probes": ["mlp"]}, "options.probes: no such probe, got 'mlp'; "),
        ({"hardware": Hardware(memory_gb=0.1)}, "hardware.memory_gb: the run needs about .* GB, got a limit of 0.10 GB; hardware.memory_gb=.* would do"),
        ({"extract": Extract(hook_points=["resid_post"], unit="sequence", length=2)}, "extract.estimate: probes are fitted on one sample, got per_batch; use full"),
    ],
)  # fmt: skip
def test_what_the_study_refuses(more, message):
    with pytest.raises(BadInput, match=message):
        Probes(**{**GIVEN, **more})


def test_classes_that_lie_far_apart_have_a_column_each():
    far = np.array([5, 7, 50_000])[CLASSES % 3]
    found, dense = (fit_linear(X, {"t": classes}, ["class"], SPLIT)["t", "class"] for classes in (far, CLASSES % 3))
    assert found == dense


RUN = (
    "-q", "experiment=tiny/modsum_probes", "model=[modsum_tiny_l,modsum_tiny_targets]", "model.modsum_tiny_l.recipe.moduli=[7,5]",
    "model.modsum_tiny_targets.moduli=[7,5]", "model.modsum_tiny_l.recipe.epochs=1", "data.numbers=7", "extract.rows=49",
    "extract.hook_points=[resid_post,pattern.h*]", "extract.layers=[1]", "hardware.threads=1", "hardware.processes=1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.drawn
def test_a_run_that_was_killed_goes_on(repsim, newest, monkeypatch):
    assert repsim("run", *RUN)[0] == 0
    whole = results.read_results(newest())
    plain, calls = study.fit_unit, []

    def stopping(*given):
        calls.append(given[0])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return plain(*given)

    with monkeypatch.context() as patch:
        patch.setattr(study, "SAVE_EVERY", 0.0)
        patch.setattr(study, "fit_unit", stopping)
        assert repsim("run", *RUN, "name=again")[0] == 130
    monkeypatch.setattr(study, "fit_unit", lambda *given: calls.append(given[0]) or plain(*given))
    code, _, err = repsim("run", *RUN, "name=again", "resume=latest", "options.train_share=0.7")
    assert (code, "no unfinished run of this configuration" in err) == (2, True)
    calls.clear()
    assert repsim("run", *RUN, "name=again", "resume=latest")[0] == 0
    assert len(calls) == 5 + 5 * 2 * 2 - 3
    found = results.read_results(newest())
    assert (found.tables, found.matrices, found.about, found.claims) == (
        whole.tables, whole.matrices, whole.about, whole.claims
    )  # fmt: skip
    assert not (newest() / study.DONE).exists()
    rows = found.tables["probes"].rows
    assert len(rows) == 5 * 2 * 3
    matrix = found.matrices["mlp_classification, modsum_tiny_l"]
    values = results.read_array(newest(), matrix.values)
    assert values.shape == (5, 2)
    assert [row[4] for row in rows if row[3] == "mlp_classification"] == list(values.T.ravel())
    assert (newest() / "figures" / "probes-modsum_tiny_l.png").is_file()
    assert matrix.about["settings"]["parameters"]["max_iter"] == 200
