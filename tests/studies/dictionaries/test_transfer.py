"""Dictionaries of a base in other models: exact ones, copies, hand-made passes, whole runs, and what is refused."""

import json
import re

import numpy as np
import pytest
import torch
from scipy.stats import special_ortho_group

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.engine.proportions import count_like_freedom
from repsim_cli.findings.extremes import find_width
from repsim_cli.studies.dictionaries.columns import COLUMNS, FREEDOM
from repsim_cli.studies.dictionaries.finding_transfer import _draw, make_curves, say_dictionary_worth
from repsim_cli.studies.dictionaries.formats import Dictionary, save
from repsim_cli.studies.dictionaries.spliced import Told
from repsim_cli.studies.dictionaries.worth import (
    average,
    check_told,
    compute_explained_share,
    jackknife,
    make_worth_cells,
    subtract,
)

WIDTH = 64  # of the shipped models
READ = ("data=embedded", "extract.sequences=24", "extract.length=32", "extract.skip=4", "extract.normalise=none")


def exact(bias=0.0):
    """Says every row: a latent for either sign of each coordinate of a rotation."""
    turn = torch.from_numpy(special_ortho_group.rvs(WIDTH, random_state=0)).float()
    both = torch.cat([turn, -turn], 1)
    return Dictionary(both, torch.zeros(2 * WIDTH), both.T, torch.full((WIDTH,), bias), torch.zeros(2 * WIDTH))


def table(newest):
    found = json.loads((newest() / "results.json").read_text())["tables"]["dictionaries in models"]
    return {(row[0], row[1]): dict(zip(found["columns"], row, strict=True)) for row in found["rows"]}


def run(repsim, *words):
    return repsim("run", "study=dictionary_transfer", "measure=[]", "base=tiny_a", *READ, *words)


def test_exact_dictionaries_lose_nothing_and_copies_do_not_differ(repsim, newest, tmp_path):
    save(exact(bias=0.3), tmp_path / "exact")
    some = exact()
    part = Dictionary(some.encoder[:, :40], some.encoder_bias[:40], some.decoder[:40], some.bias, some.threshold[:40])
    save(part, tmp_path / "part")
    code, out, err = run(
        repsim,
        "model=[tiny_a]",
        "+model.copy={kind: shipped, name: tiny_a}",
        f"+options.dictionaries={{exact: {{path: '{tmp_path}/exact', layer: resid_post@2}}, "
        f"part: {{path: '{tmp_path}/part', layer: mlp_out@1}}, again: {{path: '{tmp_path}/exact', layer: resid_post@2}}}}",
    )
    assert code == 0, err
    rows = table(newest)
    for model in ("tiny_a", "copy"):
        row = rows[model, "exact"]
        assert row["explained"] == pytest.approx(1, abs=1e-5)
        assert row["recovered"] == pytest.approx(1, abs=1e-3)
        assert row["active"] == pytest.approx(WIDTH, abs=0.5)
        assert row["explained shuffled"] < 0.5
        assert list(rows[model, "again"].values())[2:] == list(row.values())[2:]
    for name in ("exact", "part"):
        same = rows["copy", name]
        assert (same["explained minus base"], same["recovered minus base"]) == (0, 0)
        assert same["KL"] == rows["tiny_a", name]["KL"]
    assert rows["tiny_a", "part"]["explained"] < 0.9
    assert "exact in copy: explains 1.00 of the variance, not told apart from the base (1.00; " in out


def test_errors_are_those_of_leaving_out_documents():
    rng = np.random.default_rng(0)
    sums, documents = rng.random((2, 30)) + np.array([[0.2], [2.0]]), rng.permutation(np.repeat(np.arange(6), 5))
    value, error = jackknife(compute_explained_share, sums, documents)
    assert value == pytest.approx(1 - sums[0].sum() / sums[1].sum())
    without = [1 - sums[0][documents != i].sum() / sums[1][documents != i].sum() for i in range(6)]
    assert error == pytest.approx(np.sqrt(5 / 6 * np.square(without - np.mean(without)).sum()))
    assert jackknife(compute_explained_share, sums, np.zeros(30, int)) == (pytest.approx(value), None)
    assert jackknife(average, np.stack([np.full(30, np.nan), np.ones(30)]), documents) == (None, None)
    both = jackknife(subtract, np.stack([*sums, *sums]), documents)
    assert both == (0, 0)
    lacking = np.where(documents == 2, np.nan, sums)
    assert jackknife(compute_explained_share, lacking, documents)[0] == pytest.approx(
        1 - sums[0][documents != 2].sum() / sums[1][documents != 2].sum()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "base: the model that the dictionaries are of is needed; set base=LABEL"),
        (("base=tiny_a", "extract=words"), "extract.unit: dictionaries say tokens, got word; use extract=tokens"),
        (("base=tiny_a", "extract.sequences=7"), "extract.sequences: errors are over texts, got 7; read 8 or more"),
        (("base=tiny_a", "options.recipe.k=600"), "k: more active latents than there are, got 600 of 512; lower k"),
        (("base=tiny_a", "+options.dictionaries.x={path: /none, layer: resid_post@1}"),
         "options.dictionaries.x.path: no dictionary in the folder, got '/none'; name one with sae_weights"),
        (("base=tiny_a", "+options.dictionaries.x={path: /none, layer: resid_post@9}"),
         "options.dictionaries.x: resid_post@9: layer out of range, got 9; the model has layers 0 to 5"),
        (("base=tiny_a", "+options.dictionaries.x={path: FOLDER, layer: mlp_post@1}"),
         "options.dictionaries: 'x' says 64 features, got 256 at mlp_post@1 of 'tiny_a'; compare models of one base"),
        (("base=tiny_a", "+options.dictionaries.x={path: FOLDER, layer: pattern@1}"),
         "model.tiny_a: what passes at pattern@1 of gpt_neox cannot be replaced; use resid_post, mlp_out or attn_out"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(repsim, tmp_path, words, message):
    save(exact(), tmp_path / "given")
    words = [word.replace("FOLDER", str(tmp_path / "given")) for word in words]
    code, _, err = repsim("run", "study=dictionary_transfer", "measure=[]", "model=[tiny_a,tiny_b]", *words)
    assert code == 2
    assert message in err


def test_problems_of_several_dictionaries_are_said_together(repsim):
    given = "+options.dictionaries={x: {path: /none, layer: resid_post@9}, y: {path: /no, layer: resid_post@1}}"
    code, _, err = repsim("run", "study=dictionary_transfer", "measure=[]", "model=[tiny_a]", "base=tiny_a", given)
    assert code == 2
    assert re.findall(r"^error: options.dictionaries.([^ ]*)", err, re.M) == ["x:", "x.path:", "y.path:"]


def test_what_says_nothing_is_no_number():
    ones = np.ones(3)
    told = Told(ones, {"dictionary": ones, "shuffled": ones}, ones, ones, None, None, np.ones(4, bool))
    check_told(told, "a@resid_post@1")
    with pytest.raises(BadInput, match="a@resid_post@1: its rows are all the same, got 3 of them; leave it out"):
        check_told(told._replace(squares=0 * ones), "a@resid_post@1")
    with pytest.raises(RunFailed, match="a@resid_post@1: what the dictionary says is not finite; use hardware.dtype"):
        check_told(told._replace(left={"dictionary": np.inf * ones}), "a@resid_post@1")


DRAWS = 400


def test_one_document_of_most_rows_leaves_one_degree_of_freedom():
    """Taken for twelve alike, they tell dictionaries apart by noise in 11 of 100 cases."""
    rows = np.array([150.0, *[6.0] * 11])
    told = Told(
        rows, {kind: 0.1 * rows for kind in ("dictionary", "shuffled")}, rows, rows, None, None, np.ones(4, bool)
    )
    for each, freedom in ((told, 1), (told._replace(squares=np.ones(12)), 11)):
        row = dict(zip(COLUMNS[4:], make_worth_cells(each, told, np.arange(12)), strict=True))
        assert row[FREEDOM] == freedom


@pytest.mark.parametrize(
    ("count", "length", "tail", "giant"), [(8, 2, 0.3, 0), (30, 1, 0.8, 0), (100, 3, 0.3, 0), (12, 1, 0.3, 60)]
)
def test_models_that_do_not_differ_are_seldom_told_apart(count, length, tail, giant):
    """Documents of unequal length, whose sequences are alike, with few that have most of the variance."""
    rng, told, held = np.random.default_rng([count, length]), 0, 0
    for _ in range(DRAWS):
        documents = np.repeat(np.arange(count), [1 + giant, *(1 + rng.poisson(length, count - 1))])
        size = np.exp(0.5 * rng.normal(size=count)[documents] + tail * rng.normal(size=len(documents)))
        of_both, sums = 0.3 + 0.1 * rng.normal(size=count)[documents], []
        for _ in range(2):
            own = 0.05 * rng.normal(size=count)[documents] + 0.05 * rng.normal(size=len(documents))
            sums += [np.clip(of_both + own, 0, 1.5) * size, size]
        apart, error = jackknife(subtract, np.stack(sums), documents)
        width = find_width(2, count_like_freedom(np.bincount(documents, size)))
        told += abs(apart) > width * error
        value, error = jackknife(compute_explained_share, np.stack(sums[:2]), documents)
        held += abs(value - 0.7) < width * error
    error = (0.05 * 0.95 / DRAWS) ** 0.5  # binomial, of the nominal 5 % that miss
    assert told / DRAWS < 0.05 + 3 * error
    assert held / DRAWS > 0.95 - 3 * error
    assert giant or held / DRAWS < 0.95 + 3 * error


def tell_losses(of_mean, of_said):
    """What is told of a dictionary in a model, of 12 documents, with these losses of the next token."""
    ones, loss = np.ones(12), {"dictionary": of_said, "shuffled": of_mean, "mean": of_mean}
    left = {"dictionary": 0.1 * ones, "shuffled": ones}
    return Told(ones, left, ones, ones, loss, loss, np.ones(4, bool))


@pytest.mark.parametrize("which", ["model", "base"])
def test_no_share_of_a_loss_that_is_within_its_error_of_nothing(which):
    """The mean row costs nothing to a model that predicts nothing: a share of that is any number."""
    noise = np.random.default_rng(0).normal(size=12)
    noise += 0.05 - noise.mean()
    predicts, predicts_nothing = tell_losses(2 + 0.1 * noise, 0.2 + 0.1 * noise), tell_losses(noise, 0.5 * noise)
    base, model = (predicts, predicts_nothing) if which == "model" else (predicts_nothing, predicts)
    of_base, row = (
        dict(
            zip(COLUMNS, [label, "d", "resid_post@1", 12, *make_worth_cells(told, beside, np.arange(12))], strict=True)
        )
        for label, told, beside in (("a", base, None), ("b", model, base))
    )
    assert row["recovered minus base"] is None
    assert (row["recovered"] is None, of_base["recovered"] is None) == (which == "model", which == "base")
    said = say_dictionary_worth(row, of_base)
    if which == "model":
        assert "costs +0.025 nats, of which no share is said: the mean row costs too little" in said
    else:
        assert "recovers 0.90 of the loss (+0.205 nats), which is not known of the base" in said


def test_the_figure_names_the_worst_model_and_marks_what_is_beyond_its_axis():
    def row(model, layer, explained, recovered):
        numbers = {"explained": explained, "explained shuffled": -1.0, "recovered": recovered, "dead": 0.5}
        return dict.fromkeys(COLUMNS) | {"model": model, "dictionary": layer, **numbers}

    rows = [row(model, "1", 0.9, 0.8) for model in ("base", "b", "c")] + [row("worst", "1", -180.0, None)]
    rows += [row(model, "2", 0.9, 1.5) for model in ("base", "b", "c", "worst")]
    rows += [row("lone", layer, 0.5, None) for layer in ("1", "2")]
    drawn = list(make_curves(rows))
    groups = [[curve for curve in drawn if curve.about["quantity"] == score] for score in ("explained", "recovered")]
    assert groups[1][3].lines["recovered"] == [None, 1.5]
    figure = _draw(groups, rows)
    explained, recovered = figure.axes[:2]
    assert "lone" in [text.get_text() for text in recovered.get_legend().get_texts()]  # it has no line in this panel
    assert explained.get_ylim() == pytest.approx((-1.05, 1.02))
    assert [text.get_text() for text in explained.texts] == ["-180"]
    assert recovered.get_ylim()[1] > 1.5
    assert "-180.00 of that of worst" in " ".join(text.get_text() for text in figure.texts)
