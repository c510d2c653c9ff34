"""Comparison from Python: the same numbers as the command line, and models that are left as they were."""

import json
import re
import shutil
from dataclasses import replace

import datasets
import numpy as np
import pandas
import pytest
import torch
from helpers.texts import TEXTS
from torch import nn

import repsim_cli
from repsim_cli.api.entries import make_data_entry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.config.binding import bind_model
from repsim_cli.models.checkpoints import find_shipped

SMALL = {"extract.sequences": 8, "extract.batch_rows": 400}


@pytest.fixture(scope="module")
def of_texts():
    return repsim_cli.compare({"a": "tiny_a", "b": str(find_shipped("tiny_b"))}, TEXTS, settings=SMALL)


@pytest.mark.slow
def test_the_same_bits_as_both_commands(of_texts, repsim, newest, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    words = [f"{key}={value}" for key, value in SMALL.items()]
    other = f"+model.b={{kind: transformers, path: {find_shipped('tiny_b')}}}"
    code, _, err = repsim(
        "run",
        "model=[]",
        "+model.a={kind: shipped, name: tiny_a}",
        other,
        "data=local_text",
        f"data.path={file}",
        *words,
    )
    assert code == 0, err
    for measure in of_texts.measures:
        by_command = repsim_cli.load(newest()).matrix("a", "b", measure)
        np.testing.assert_array_equal(of_texts.matrix("a", "b", measure).values, by_command.values)
    code, out, err = repsim("compare", "tiny_a", find_shipped("tiny_b"), "--data", file, "--measure", "cka_unbiased")
    assert code == 0, err
    assert re.search(
        r"\n  data: all \d+ sequences of .*texts.jsonl\n  rows: without the first 4 places; no direction above 5 % of the variance \(what",
        out,
    ), out
    assert out.count("\n") <= 20
    assert re.search(
        r"^    closest: block \d of tiny_a and block \d of tiny_b, 0\.\d{2}; block \d and block ", out, re.M
    )
    whole = repsim_cli.compare(["tiny_a", str(find_shipped("tiny_b"))], TEXTS, measures=["cka_unbiased"])
    by_command = repsim_cli.load(newest()).matrix("tiny_a", "tiny_b")
    np.testing.assert_array_equal(by_command.values, whole.matrix("tiny_a", "tiny_b").values)
    assert repsim("run", "--from", newest(), "measure=[cka]")[0] == 0  # its configuration is one like any other


@pytest.mark.slow
@pytest.mark.drawn
def test_a_comparison_ends_with_its_page(repsim, newest):
    code, out, err = repsim(
        "compare",
        "tiny_a",
        "tiny_a_step100",
        "--measure",
        "cka",
        "--set",
        "extract.sequences=4",
        "extract.layers=[0,-1]",
    )
    assert code == 0, err
    assert out.splitlines()[-1].endswith("/report.html")
    assert (newest() / "report.html").is_file()
    assert any((newest() / "figures").iterdir())


def test_comparisons_of_one_second_have_a_folder_each(repsim, tmp_path, monkeypatch):
    import datetime

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr(datetime, "datetime", Stopped)
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 3)))
    first = tmp_path / "outputs/2026-01-01/00-00-00-compare"
    first.mkdir(parents=True)
    (first / "manifest.json").touch()
    code, _, err = repsim("compare", tmp_path / "a.npy", tmp_path / "a.npy", "--measure", "cka")
    assert code == 0, err
    assert repsim("compare", tmp_path / "a.npy", "nowhere.npy", "--measure", "cka")[0] == 2
    assert sorted(each.name for each in first.parent.iterdir()) == [first.name, f"{first.name}-2"]


def test_two_rows_are_too_few():
    """Biased CKA is 1 for any two rows of any models."""
    with pytest.raises(BadInput, match="data: cka needs at least 3 rows, got 2; give more rows"):
        repsim_cli.compare({"a": np.eye(2), "b": np.ones((2, 2)) - np.eye(2)}, measures=["cka"])


def test_fewer_texts_than_usual_are_a_warning_only_where_more_were_requested():
    few = "extract.rows: 1024 rows were requested, the data have"
    for settings, warnings in (
        ({}, []),
        (
            {"extract.sequences": 200, "extract.rows": 1024},
            [
                "extract.sequences: 120 texts in memory gave 120 sequences, 200 were requested; all are used",
                f"{few} 120; all are used",
            ],
        ),
        (
            {"extract.sequences": 50},
            ["extract.sequences: 50 rows are all that 50 sequences have; raise extract.sequences for more"],
        ),
        ({"extract.sequences": 120}, []),
    ):
        found = repsim_cli.compare(
            ["tiny_a", "tiny_b"], TEXTS, measures=["cka"], rows="pooled", layers=["embed"], settings=settings
        )
        assert [warning for warning in found.warnings if warning.startswith("extract.")] == warnings


def test_tables(tmp_path):
    """A file with columns, a folder of `datasets` and an id of the hub are tables; settings of one may be given."""
    (tmp_path / "a.csv").write_text("review,stars\nfine,5\n")
    for given, entry in {
        str(tmp_path / "a.csv"): {"kind": "table", "path": str(tmp_path / "a.csv")},
        str(tmp_path): {"kind": "table", "path": str(tmp_path)},
        "someone/reviews": {"kind": "table", "path": "someone/reviews"},
    }.items():
        assert make_data_entry(given) == entry
    settings = {"path": "a.csv", "text": "review"}
    assert make_data_entry(settings) == {"kind": "table", **settings}


def test_a_result_in_all_forms(of_texts, tmp_path):
    assert of_texts.measures == ["cka_unbiased", "mutual_knn"]
    matrix = of_texts.matrix("a", "b")
    assert matrix.values.shape == (6, 6)
    assert matrix.rows == [f"resid_post@{layer}" for layer in range(6)]
    np.testing.assert_array_equal(of_texts.matrix("b", "a").values, matrix.values.T)
    row, column, value = of_texts.closest("a", "b")
    assert matrix.values[matrix.rows.index(row), matrix.columns.index(column)] == value == matrix.values.max()
    frame = of_texts.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 2 * 3 * 36  # measures, pairs of models, pairs of layers
    at = frame[(frame.measure == "cka_unbiased") & (frame.model == "a") & (frame.other_model == "b")]
    np.testing.assert_array_equal(at.value.to_numpy().reshape(6, 6), matrix.values)
    figure = of_texts.plot("mutual_knn")
    assert len(figure.axes) >= 1
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    html = of_texts._repr_html_()
    assert "mutual_knn" in html
    assert "<img" in html
    assert not (of_texts.folder / "figures").exists()  # they are drawn when it is saved
    saved = of_texts.save(tmp_path / "kept")
    again = repsim_cli.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.matrix("a", "b").values, matrix.values)
    assert (saved.folder / "report.html").is_file()
    assert "figures/cka_unbiased-all.png" in again.manifest["files"]
    assert (again.save(tmp_path / "copy").folder / "figures" / "cka_unbiased-all.png").is_file()
    with pytest.raises(BadInput, match="save: it exists, got '.*kept'; name a new folder"):
        of_texts.save(tmp_path / "kept")
    with pytest.raises(BadInput, match="no such pair of models, got 'a' and 'c'; known: a, b"):
        of_texts.matrix("a", "c")
    with pytest.raises(BadInput, match="measure: not of this run, got 'cka'; known: cka_unbiased, mutual_knn"):
        of_texts.matrix("a", "b", "cka")
    with pytest.raises(BadInput, match="measure: not of this run, got 'rsa'"):
        of_texts.plot("rsa")


def test_a_transformers_model_is_left_as_it_was(of_texts):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(find_shipped("tiny_a"))
    model.train()
    model.config.use_cache = True
    before, random = {name: x.clone() for name, x in model.state_dict().items()}, torch.random.get_rng_state()
    found = repsim_cli.compare({"a": model, "b": "tiny_b"}, TEXTS, settings=SMALL)
    np.testing.assert_array_equal(found.matrix("a", "b").values, of_texts.matrix("a", "b").values)
    assert model.training
    assert model.config.use_cache
    assert all(weights.requires_grad for weights in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    # what it says of the model in memory cannot be run again elsewhere
    assert json.loads((found.folder / "manifest.json").read_text())["models"]["a"]["source"].startswith("in memory")
    with pytest.raises(BadConfig, match="key: the model was in the memory of another process, got '[0-9a-f]+'; call"):
        bind_model("a", {"kind": "memory", "key": "0f"})


def test_tables_in_memory_are_read_by_their_column(of_texts):
    frame = pandas.DataFrame({"label": 1, "text": TEXTS})
    found = repsim_cli.compare({"a": "tiny_a", "b": str(find_shipped("tiny_b"))}, frame, settings=SMALL)
    np.testing.assert_array_equal(found.matrix("a", "b").values, of_texts.matrix("a", "b").values)
    split = datasets.Dataset.from_dict({"text": TEXTS})
    for data, message in (
        (frame.rename(columns={"text": "review"}), "data: no column 'text', got label, review; rename one"),
        (datasets.DatasetDict({"train": split}), "data: several splits, got train; give one of them"),
    ):
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare(["tiny_a", "tiny_b"], data)
    for alone in ("tiny_a", nn.Linear(2, 2)):
        with pytest.raises(BadInput, match=r"models: a list or a mapping, got '(tiny_a|Linear).*; put it into a list"):
            repsim_cli.compare(alone)


def test_arrays_of_other_types():
    x = np.random.default_rng(0).normal(size=(50, 4))
    for kind in (">f4", ">f8", np.longdouble, np.float16):
        assert repsim_cli.compare({"a": x, "b": x.astype(kind)}, measures=["cka"]).matrix("a", "b").values > 0.999


def test_arrays():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 6))
    found = repsim_cli.compare(
        {"x": x, "y": {"l1": x @ draw.normal(size=(6, 6)), "l2": torch.randn(200, 3)}}, measures=["mean_cca"]
    )
    assert found.matrix("y", "x").rows == ["l1", "l2"]
    assert found.matrix("y", "x").values[0, 0] == pytest.approx(1.0)
    for wrong, message in [
        ({"x": np.arange(6)}, "models.x: array 'rows': not \\(n, d\\), got torch.int64 \\(6,\\); give it"),
        ({"x": {"a": x, "b": x[:5]}}, "models.x: arrays: layers have different numbers of rows, got \\[5, 200\\]"),
        ({"x": {}}, "models.x: arrays: no layer; give {layer: array}"),
        ({"x": 3}, "models.x: not a model, got int; give a folder"),
        ({}, "models: none is named; name two"),
    ]:  # fmt: skip
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare(wrong)


def test_the_level_of_chance_of_a_comparison(repsim, newest, tmp_path):
    draw = np.random.default_rng(0)
    shared = draw.normal(size=(60, 4))
    for label in "ab":
        np.savez(tmp_path / f"{label}.npz", h0=shared @ draw.normal(size=(4, 6)), h1=draw.normal(size=(60, 5)))
    words = ["compare", tmp_path / "a.npz", tmp_path / "b.npz", "--measure", "cka_unbiased"]
    code, out, err = repsim(*words)
    assert code == 0, err
    assert "  chance: 0.00, the mean of random pairings of rows, a single pairing within 0.033 (sd)\n" in out
    code, _, err = repsim(*words, "--significance", "permutation")
    assert code == 2
    assert "or declare the rows independent with significance.clusters=row" in err
    code, out, err = repsim(*words, "--significance", "permutation", "--set", "significance.clusters=row")
    assert code == 0, err
    result = repsim_cli.load(newest())
    chance = result.chance("b", "a", "cka_unbiased")
    assert "chance 0.00; calibrated 0.847, p 0.005, family-wise p 0.005\n" in out
    assert "  chance: 0.00, the mean of random pairings of rows, a single pairing within 0.033 (sd)\n" in out
    assert -0.1 < chance.low <= chance.middle <= chance.high < 0.3
    values = result.matrix("a", "b").values
    assert values[0, 0] > chance.high > values[1, 1]
    code, out, err = repsim(*words[:-1], "linear_regression")
    assert code == 0, err
    assert "\n    a x b\n" in out
    assert "\n    b x a\n" in out  # the measure has a direction
    code, _, err = repsim(*words, "--significance", "permutaton")
    assert (code, err) == (2, "error: significance: no such name, got 'permutaton'; did you mean 'permutation'?\n")


def test_groups_are_chosen_by_name_and_changed_by_key(of_texts):
    settings = {"extract": "pooled", "significance": {"clusters": "row"}}
    found = repsim_cli.compare(["tiny_a"], TEXTS, measures=["cka"], settings=settings)
    assert found.results.measures[0].estimate["rows"] == len(TEXTS)
    given = {"extract": {"sequences": 8, "batch_rows": 400}}
    again = repsim_cli.compare({"a": "tiny_a", "b": "tiny_b"}, TEXTS, settings=given)
    np.testing.assert_array_equal(again.matrix("a", "b").values, of_texts.matrix("a", "b").values)


def test_a_plot_is_laid_out_as_figures_of_runs_are(of_texts):
    figure = of_texts.plot()
    figure.get_tightbbox()
    lowest = min(text.get_window_extent().y0 for text in figure.texts if text.get_text())
    assert lowest > max(axes.get_window_extent().y1 for axes in figure.axes)  # the title is above the map


@pytest.mark.slow
def test_any_run_is_shown_by_a_notebook(of_texts):
    """Shows a pair of a run whose pairs of models are not all there; of one without models or measures, what it has."""
    whole = of_texts.results

    def change(manifest, measures):
        found = repsim_cli.Result(of_texts.folder)
        vars(found)["results"] = replace(whole, measures=measures)
        vars(found)["manifest"] = {key: of_texts.manifest[key] for key in manifest} | {"warnings": ["One."]}
        return found

    (across,) = [each for each in whole.measures[0].matrices if each.rows.model != each.columns.model]
    (alone, *_) = [each for each in whole.measures[0].matrices if each.rows.model == each.columns.model]
    for matrices in ([across], [alone], [alone, across]):
        found = change(["models", "study", "name"], [replace(whole.measures[0], matrices=matrices)])
        assert found.plot().axes
        assert "<img" in found._repr_html_()
    found = change(["study", "name"], [])
    assert repr(found) == "<repsim result of compare; 1 warning>"
    assert "<img" not in found._repr_html_()
    with pytest.raises(BadInput, match="measure: this run has none, got the study similarity; read its sentences"):
        found.plot()


def test_a_result_that_cannot_be_saved(of_texts, tmp_path, monkeypatch):
    def fail(source, target):
        (target / "figures").mkdir(parents=True)
        raise shutil.Error([(str(source / "a"), str(target / "a"), "[Errno 28] No space left on device")])

    monkeypatch.setattr(shutil, "copytree", fail)
    said = r"save: not all could be copied to '.*', got '\[Errno 28\] No space left on device'; name another place"
    with pytest.raises(BadInput, match=said):
        of_texts.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_few_rows_are_a_warning(tmp_path):
    draw = np.random.default_rng(0)
    for rows, warned in ((29, True), (30, False)):
        a, b = draw.normal(size=(2, rows, 4))
        found = repsim_cli.compare({"a": a, "b": b}, measures=["mutual_knn"])
        assert any(warning.startswith(f"{rows} rows are few: ") for warning in found.warnings) is warned
    file = tmp_path / "whole.png"
    found.plot().savefig(file, dpi=100)
    cut = tmp_path / "cut.png"
    found.plot().savefig(cut, dpi=100, bbox_inches=None)
    assert file.stat().st_size > cut.stat().st_size  # names and titles stand outside the size of the figure


def test_ids_that_are_python_objects(tmp_path):
    ids, x = np.array([f"i{i}" for i in range(40)]), np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "a.npz", ids=ids, h=x)
    np.savez(tmp_path / "b.npz", ids=ids.astype(object), h=x)
    with pytest.raises(
        BadInput, match=r"b.npz: 'ids' is of Python objects, got dtype object; save numbers, ids with .astype\(str\)"
    ):
        repsim_cli.compare([str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])


def test_models_are_no_runs(repsim, tmp_path, tiny_folder):
    """`compare` is of models, `diff` of runs; each says so."""
    for model in ("tiny_a", str(tiny_folder("gpt2")), "x.npy"):
        code, _, err = repsim("diff", model, "latest")
        assert (code, err) == (
            2,
            f"error: diff: only for runs, got the model '{model}'; use repsim compare MODEL MODEL\n",
        )
    code, _, err = repsim("diff", "nosuch", "latest")
    assert (code, err[:22]) == (2, "error: RUN: no runs in")
