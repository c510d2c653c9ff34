"""Probes: errors that a plain use of scikit-learn gives, the study that fits them, and the claims on what it finds."""

import numpy as np
import pytest
from helpers.timers import set_timers
from scipy.stats import binomtest, ttest_1samp
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.data.modular import modular_pairs
from repsim_cli.findings.claims import find_claims
from repsim_cli.runs import reader
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.studies.modular_sums.model import modular_targets
from repsim_cli.studies.modular_sums.recipe import ModularRecipe
from repsim_cli.studies.modular_sums.train import modular
from repsim_cli.studies.probes import study
from repsim_cli.studies.probes.finding import count_untold_layers, find_nearest_layer, judge_claims
from repsim_cli.studies.probes.study import Probes
from repsim_cli.studies.probes.targets import decode_classes, make_label_targets
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

DRAW = np.random.default_rng(0)
CLASSES = DRAW.integers(0, 4, 120)
X = (np.eye(4)[CLASSES] @ DRAW.normal(size=(4, 6)) + 0.6 * DRAW.normal(size=(120, 6))).astype(np.float32)
SPLIT = make_split(120, 0.75, 0)


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
    assert compare_with_guess("class", y, predicted, whole) == pytest.approx(binomtest(2, 3, 0.5, "greater").pvalue)
    assert compare_with_guess("class", y, np.zeros(20), rows) == 1.0
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


MODELS = {"m": modular(recipe=ModularRecipe(moduli=[5])), "t": modular_targets(moduli=[5])}
GIVEN = {
    "model": MODELS, "data": modular_pairs(numbers=5), "hardware": Hardware(), "seed": 0, "targets": "t",
    "extract": Extract(hook_points=["resid_post"], unit="sequence", length=2, estimate="full"),
    "probes": ["linear_regression"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": {"t": MODELS["t"]}}, "model: no model to probe is selected, got the targets alone; e.g. model="),
        ({"model": {"t": MODELS["t"]}, "targets": None}, "options.targets: the labels of the data need a model that is run on it, got stored"),
        ({"labels": ["label"]}, r"options.labels: targets are stored, got \['label'\] beside 't'; drop one"),
        ({"targets": None}, "options.probes: labels of the data are no numbers, got linear_regression; use a class"),
        ({"targets": "m"}, "options.targets: no stored representations of this name, got 'm'; "),
        ({"model": {"m": MODELS["m"]}}, "options.targets: no stored .* got 't'; select one, e.g. modsum_targets"),
        ({"probes": []}, "options.probes: none is selected; choose of linear_regression, "),
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


def conllu(sentences):
    """Words with their parts of speech."""
    lines = (
        "".join(f"{i}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n" for i, (word, tag) in enumerate(some, 1))
        for some in sentences
    )
    return "\n".join(lines)


NOUNS, VERBS = ["dog", "cat", "man", "girl"], ["sees", "likes", "knows"]


def test_parts_of_speech_are_told_from_words(repsim, newest, tmp_path):
    """Words that recur are told from embeddings, and so is a random class of each type of word: there is no
    selectivity."""
    draw = np.random.default_rng(0)
    sentences = [
        [
            ("the", "DET"),
            (draw.choice(NOUNS), "NOUN"),
            (draw.choice(VERBS), "VERB"),
            ("a", "DET"),
            (draw.choice(NOUNS), "NOUN"),
        ]
        for _ in range(40)
    ]
    (tmp_path / "a.conllu").write_text(conllu(sentences))
    words = (
        "-q", "study=probes", "model=[tiny_a]", "data=ewt", f"data.path={tmp_path}/a.conllu", "extract=words",
        "extract.skip=0", "hardware.processes=1",
    )  # fmt: skip
    code, _, err = repsim("run", *words, "extract.hook_points=[embed]", "options.splits=3")
    assert code == 0, err
    found = reader.read_results(newest())
    described = found.tables["targets"]
    assert [row[:3] for row in described.rows] == [["upos", 3, "DET"]]
    assert described.column("its share") == [pytest.approx(0.4)]
    assert found.about["error of the largest class"] == {"upos": pytest.approx(0.6)}
    (row,) = found.tables["probes"].rows
    assert row[:4] == ["tiny_a", "embed", "upos", "ridge_classification"]
    assert row[4] == 0
    assert row[6] < 0.1
    documents = reader.read_array(newest(), found.about["document of every row"])
    held_out = reader.read_array(newest(), found.about["whether it is held out, by split"]).astype(bool)
    assert held_out.shape == (3, 200)
    assert all(not {*documents[some]} & {*documents[~some]} and len({*documents[some]}) == 8 for some in held_out)


def test_labels_of_examples(repsim, newest):
    """All that generated pairs have, in one command; the layers of a language model know the construction."""
    words = (
        "-q", "study=probes", "model=[tiny_a]", "data=overlap_hans", "extract=pooled", "extract.sequences=120",
        "extract.layers=[0,1]", "options.probes=[ridge_classification]", "options.splits=2", "hardware.processes=1",
        "options.labels=[heuristic,label]",
    )  # fmt: skip
    code, _, err = repsim("run", *words)
    assert code == 0, err
    found = reader.read_results(newest())
    assert found.about["classes"] == {"heuristic": 3, "label": 2}
    best = found.tables["nearest to the targets"]
    assert best.column("target") == ["heuristic", "label"]
    assert best.column("lowest error")[0] < best.column("error of the largest class")[0] - 0.1
    assert best.column("selectivity")[0] > 0.1
    assert best.column("layers") == [2, 2]
    assert all(0 < p <= 1 for p in best.column("p of any layer"))
    curve = found.curves["heuristic, ridge_classification, tiny_a"]
    assert curve.at == ["resid_post@0", "resid_post@1"]
    assert curve.bands["labels"].of == "range over 2 splits"


@pytest.mark.parametrize(
    ("name", "unit", "wanted", "message"),
    [
        ("digits", "mean", None, "options.labels: all rows have the same label, got '0'; choose other labels"),
        ("digits", "mean", ["labels"], "options.labels: the data has no such labels, got 'labels'; did you mean 'label'"),
        ("ewt", "token", None, "data: it has no labels of rows that are a token, got .*a.conllu; its words have upos: use"),
        ("embedded_sentences", "mean", None, "data: it has no labels of rows that are a mean, got .*; use labelled data"),
    ],
)  # fmt: skip
def test_labels_that_rows_lack(tmp_path, name, unit, wanted, message):
    (tmp_path / "a.conllu").write_text(conllu([[("a", "DET")]]))
    data = registry.data.get(name).function(**({"path": f"{tmp_path}/a.conllu"} if name == "ewt" else {}))
    ids, whole = np.ones((3, 1), int), np.ones((3, 1), bool)
    given = Sequences(ids, whole, whole, ids, ids, documents=3, example=np.array([0, 10, 20]))
    extract = Extract(hook_points=["embed"], unit=unit, padding="keep")
    with pytest.raises(BadInput, match=message):
        make_label_targets(data, given, extract, np.arange(3), np.arange(3), wanted)


def test_groups_stay_on_one_side(tmp_path):
    """A table's groups are a target, or what a split does not cut."""
    rows = [f"text {i},{'ab'[i % 2]},topic{i % 7}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,group", *rows]))
    data = registry.data.get("table").function(path=f"{tmp_path}/a.csv", label="label", group="group")
    ids, whole = np.ones((40, 1), int), np.ones((40, 1), bool)
    given = Sequences(ids, whole, whole, ids, ids, documents=40, example=np.arange(40))
    extract, numbers = Extract(hook_points=["embed"], unit="mean"), np.arange(40)
    both = make_label_targets(data, given, extract, numbers, numbers, None)
    assert {name: len(names) for name, names in both.names.items()} == {"label": 2, "group": 7}
    together = make_label_targets(data, given, extract, numbers, numbers, None, "group")
    assert list(together.classes) == ["label"]
    for seed in range(5):
        split = together.split(0.7, seed)
        assert {i % 7 for i in split.fitted}.isdisjoint({i % 7 for i in split.held_out})
        assert len(split.fitted) + len(split.held_out) == 40
    cut = both.split(0.7, 0)
    assert not {i % 7 for i in cut.fitted}.isdisjoint({i % 7 for i in cut.held_out})
    with pytest.raises(
        BadInput, match="options.keep_together: the data has no such labels, got 'topic'; known: group, lab"
    ):
        make_label_targets(data, given, extract, numbers, numbers, None, "topic")
    with pytest.raises(
        BadInput, match="options.keep_together: no other labels are left as targets, got 'group'; drop it"
    ):
        make_label_targets(data, given, extract, numbers, numbers, ["group"], "group")


RUN = (
    "-q", "experiment=tiny/modsum_probes", "model=[modsum_tiny_l,modsum_tiny_targets]", "model.modsum_tiny_l.recipe.moduli=[7,5]",
    "model.modsum_tiny_targets.moduli=[7,5]", "model.modsum_tiny_l.recipe.epochs=1", "data.numbers=7", "extract.rows=49",
    "extract.hook_points=[resid_post,pattern.h*]", "extract.layers=[1]", "hardware.threads=1", "hardware.processes=1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.drawn
def test_a_run_that_was_killed_goes_on(repsim, newest, monkeypatch):
    assert repsim("run", *RUN)[0] == 0
    whole = reader.read_results(newest())
    plain, calls = study.fit_unit, []

    def stopping(*given):
        calls.append(given[0])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return plain(*given)

    with monkeypatch.context() as patch:
        set_timers(patch, due=True)
        patch.setattr(study, "fit_unit", stopping)
        assert repsim("run", *RUN, "name=again")[0] == 130
    monkeypatch.setattr(study, "fit_unit", lambda *given: calls.append(given[0]) or plain(*given))
    code, _, err = repsim("run", *RUN, "name=again", "resume=latest", "options.train_share=0.7")
    assert (code, "no unfinished run of this configuration" in err) == (2, True)
    calls.clear()
    assert repsim("run", *RUN, "name=again", "resume=latest")[0] == 0
    assert len(calls) == 5 + 5 * 2 * 2 - 3
    found = reader.read_results(newest())
    assert (found.tables, found.matrices, found.about, found.claims) == (
        whole.tables, whole.matrices, whole.about, whole.claims
    )  # fmt: skip
    assert not (newest() / study.DONE).exists()
    rows = found.tables["probes"].rows
    assert len(rows) == 5 * 2 * 3
    matrix = found.matrices["mlp_classification, modsum_tiny_l"]
    values = reader.read_array(newest(), matrix.values)
    assert values.shape == (5, 2)
    assert [row[4] for row in rows if row[3] == "mlp_classification"] == list(values.T.ravel())
    for name in ("probes-modsum_tiny_l", "by-layer-c1_mlp_classification"):
        assert (newest() / "figures" / f"{name}.png").is_file()
    assert matrix.about["settings"]["parameters"]["max_iter"] == 200


def test_layers_of_equal_probes_are_seldom_told_apart():
    """Twelve layers that are wrong for one row in ten."""
    rng = np.random.default_rng(0)
    told = [count_untold_layers(rng.binomial(100, 0.1, 12) / 100, 100) < 11 for _ in range(300)]
    assert np.mean(told) <= 0.05
    assert count_untold_layers(np.array([0.0, 0.02, 0.5]), 100) == 1
