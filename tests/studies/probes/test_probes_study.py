"""The study of probes: its targets, labels and groups, what it refuses, and a run that was killed."""

import numpy as np
import pytest
from helpers.split_targets import CLASSES, SPLIT, X
from helpers.timers import set_timers

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.data.modular import modular_pairs
from repsim_cli.runs import reader
from repsim_cli.studies.modular_sums.model import modular_targets
from repsim_cli.studies.modular_sums.recipe import ModularRecipe
from repsim_cli.studies.modular_sums.train import modular
from repsim_cli.studies.probes import study
from repsim_cli.studies.probes.finding import count_untold_layers
from repsim_cli.studies.probes.study import Probes
from repsim_cli.studies.probes.targets import make_label_targets
from repsim_cli.training.probes import (
    fit_linear,
)

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
        ({"targets": None}, "options.probes: labels of the data are not numbers, got linear_regression; use a class"),
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
    assert len({*documents}) == len({tuple(each) for each in sentences})  # copies of a sentence are one
    fifth = pytest.approx(len({*documents}) / 5, abs=1)
    assert all(not {*documents[some]} & {*documents[~some]} and len({*documents[some]}) == fifth for some in held_out)


@pytest.mark.slow
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
    """Twelve layers that are wrong for one row in ten: in rows by themselves, and in whole documents of unequal
    length, in each layer others."""
    rng = np.random.default_rng(0)
    for count, sd in ((100, 0.0), (40, 1.0), (12, 1.0)):
        told = []
        for _ in range(200):
            rows = np.maximum(1, rng.lognormal(2 * (sd > 0), sd, count).round().astype(int))
            wrong = rng.binomial(rows, rng.beta(0.3, 2.7, (12, count)) if sd else 0.1, (12, count))
            told.append(count_untold_layers(wrong, rows) < 11)
        assert np.mean(told) <= 0.05

    rows = rng.integers(5, 15, 40)
    better, worse = (rng.binomial(rows, share) for share in (0.1, 0.35))
    assert count_untold_layers(np.stack([better, better, worse]), rows) == 1
    assert count_untold_layers(np.array([[0], [9], [9]]), np.array([10])) == 2  # of one document nothing follows


def test_copies_of_a_text_are_on_one_side(repsim, newest, tmp_path):
    """Labels without meaning, the same for both copies: a probe that has seen one would tell the other."""
    texts = [f"the {number}th word is {number * 7919 % 101}" for number in range(40)]
    lines = ["text,label", *(f"{text},{'ab'[number % 3 == 0]}" for number, text in enumerate(texts))]
    (tmp_path / "t.csv").write_text("\n".join([*lines, *lines[1:]]))
    words = (
        "-q", "study=probes", "model=[tiny_a]", "data=table", f"data.path={tmp_path / 't.csv'}", "data.text=text",
        "data.label=label", "extract=pooled", "extract.sequences=80", "extract.layers=[0]", "hardware.processes=1",
        "options.probes=[ridge_classification]",
    )  # fmt: skip
    code, _, err = repsim("run", *words)
    assert code == 0, err
    about = reader.read_results(newest()).about
    documents = np.load(newest() / about["document of every row"])
    (held_out,) = np.load(newest() / about["whether it is held out, by split"]).astype(bool)
    assert len({*documents}) == 40
    assert not {*documents[held_out]} & {*documents[~held_out]}
    assert any("40 of 80 texts are copies" in each for each in reader.read_manifest(newest())["warnings"])
