"""The study of views: stored activations, gaps, what is refused, and its plan."""

import itertools
import json

import numpy as np
import pytest
import torch
from helpers.composing import composed
from helpers.viewed_rows import counted, rows
from scipy.spatial.distance import pdist
from scipy.stats import entropy

from repsim_cli.base.errors import BadConfig
from repsim_cli.config.run import validate
from repsim_cli.studies.views.couplings import BEST, PUBLISHED
from repsim_cli.studies.views.neighbourhoods import find_nearest_rows

FAST = ("hardware.threads=1", "measure=[]")


OWN = ("study=views", "extract=pooled", *FAST)


def table(found, name):
    columns = found["tables"][name]["columns"]
    return [dict(zip(columns, row, strict=True)) for row in found["tables"][name]["rows"]]


@pytest.mark.slow
@pytest.mark.drawn
def test_stored_activations_are_analysed_and_no_model_runs(repsim, newest):
    """The activations of another study's run; every number again from the files."""
    words = ("model=[tiny_a_step100,tiny_a]", "data=overlap_nli", "extract=pooled", "hardware.threads=1")
    small = (
        "extract.sequences=48",
        "extract.rows=40",
        "extract.hook_points=[embed,resid_post]",
        "extract.layers=[0,3]",
    )
    others = ("measure=[cka]", "+options.within=false", "+analyses.localization={}")  # views have no such
    assert repsim("run", "-q", *words, *small, *others)[0] == 0
    asked = ["claims=[fine_tuning_shifts_distances]", "base=tiny_a_step100", "+options.neighbours={samples: [0, 9]}"]
    asked += ["+options.couplings={pairs: [[embed, resid_post@3], [resid_post@3, embed]], restarts: 3}"]
    code, _, err = repsim("run", "-q", "--from", newest(), "study=views", *asked)
    assert code == 0, err
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert manifest["models_run"] == []
    assert list(manifest["models"]) == ["tiny_a_step100", "tiny_a"]  # --from keeps their order
    assert manifest["rows"] == 48
    found = json.loads((newest() / "results.json").read_text())
    drawn, layers = found["about"]["batch"], ["embed", "resid_post@0", "resid_post@3"]
    assert len(drawn["rows"]) == len(set(drawn["rows"])) == 16
    names = ["entailment", "neutral", "contradiction"]
    assert [names.index(name) for name in drawn["classes"]] == sorted(names.index(name) for name in drawn["classes"])
    assert len(set(drawn["texts"])) == 16  # of data that are public; without what the tokenizer adds
    assert all(text and "[" not in text and text == " ".join(text.split()) for text in drawn["texts"])
    # histograms: counts, KL in one direction and the other, the claims' statistic without the embeddings
    matrix = found["matrices"]["histograms of tiny_a"]
    counts = np.load(newest() / matrix["values"])
    assert (matrix["rows"], matrix["n"]) == ({"model": "tiny_a", "layers": layers}, 40)
    assert counts.sum(1).tolist() == [40 * 39 / 2] * 3
    assert np.load(newest() / matrix["details"]["left out"]).sum(2).tolist() == [[36 * 35 / 2] * 3] * 10
    shares = (counts + 0.5) / (counts + 0.5).sum(1, keepdims=True)
    expected = [entropy(shares[i], shares[i - 1]) for i in (1, 2)]
    kl = {model: found["curves"][f"KL from previous layer, {model}"] for model in manifest["models"]}
    assert kl["tiny_a"]["lines"]["KL"] == pytest.approx(expected)
    assert (kl["tiny_a"]["at"], kl["tiny_a"]["y"]["unit"]) == (layers[1:], "nats")
    lines = [line for line in table(found, "distances") if line["model"] == "tiny_a"]
    assert [line["KL(layer || previous)"] for line in lines] == [None, *kl["tiny_a"]["lines"]["KL"]]
    assert lines[2]["KL(previous || layer)"] == pytest.approx(entropy(shares[1], shares[2]))
    # the embeddings are no block; one model is no spread
    verdicts = {claim["name"]: (claim["verdict"], claim["value"]) for claim in found["claims"]}
    blocks = [kl[model]["lines"]["KL"][1] for model in ("tiny_a", "tiny_a_step100")]
    expected = np.log(blocks[0]) - np.log(blocks[1])
    assert verdicts == {"fine_tuning_shifts_distances": ("not testable here", pytest.approx(expected))}
    # neighbours: those of the saved planes, and their means with and without the first layer
    matrix = found["matrices"]["neighbours of tiny_a"]
    nearby = [find_nearest_rows(torch.from_numpy(x), 5) for x in np.load(newest() / matrix["values"])]
    np.testing.assert_array_equal(np.load(newest() / matrix["details"]["t-SNE plane"]), nearby)
    sets = [[set(row.tolist()) for row in around[[0, 9]]] for around in nearby]
    kept = [[len(a & b) / len(a | b) for a, b in zip(around, sets[0], strict=True)] for around in sets]
    shown = [line for line in table(found, "neighbours of tiny_a") if line["space"] == "t-SNE plane"]
    labels = [f"row {drawn['rows'][i]} ({drawn['classes'][i]})" for i in (0, 9)]
    assert [[line[label] for label in labels] for line in shown] == kept
    means = {(line["model"], line["space"], line["sample"]): line for line in table(found, "neighbours kept")}
    mean = means["tiny_a", "t-SNE plane", labels[1]]
    assert mean["mean overlap with the first layer"] == pytest.approx(np.mean([row[1] for row in kept]))
    assert mean["mean overlap without it"] == pytest.approx(np.mean([row[1] for row in kept[1:]]))
    assert mean["overlap by chance"] == pytest.approx(0.21441, abs=1e-5)
    # the share is of all rows, and counts rows, not the overlap of two sets
    (line,) = [x for x in table(found, "neighbours that stay") if (x["model"], x["space"]) == ("tiny_a", "t-SNE plane")]
    first, *later = [[set(row.tolist()) for row in around] for around in nearby]
    stay = [len(a & b) / 5 for around in later for a, b in zip(around, first, strict=True)]
    assert line["share that stays"] == pytest.approx(np.mean(stay))
    each = np.mean(np.reshape(stay, (len(later), 16)), axis=1)
    assert (line["lowest"], line["lowest in"]) == (
        pytest.approx(each.min()),
        matrix["rows"]["layers"][each.argmin() + 1],
    )
    assert (line["rows"], line["nearest"], line["by chance"]) == (16, 5, pytest.approx(5 / 15))
    assert line["p"] <= 0.05
    # couplings: a pair and its mirror image are each other's transpose
    couplings = [m for m in found["matrices"].values() if m["about"].get("model") == "tiny_a"]
    plans = [np.load(newest() / coupling["values"]) for coupling in couplings]
    assert [coupling["about"]["starts"] for coupling in couplings] == [PUBLISHED, BEST] * 2
    np.testing.assert_array_equal(plans[0], plans[2].T)
    assert couplings[0]["about"]["objective"] == couplings[2]["about"]["objective"]
    np.testing.assert_allclose(plans[0].sum(0), 1 / 16)
    shown = [line for line in table(found, "couplings") if line["model"] == "tiny_a"]
    assert [line["on the diagonal"] for line in shown] == pytest.approx([np.trace(plan) for plan in plans])
    same = np.equal.outer(drawn["classes"], drawn["classes"])
    assert [line["within classes"] for line in shown] == pytest.approx([plan[same].sum() for plan in plans])
    for name in ("histograms-01-tiny_a", "neighbours-01-tiny_a", "couplings-01-tiny_a", "by-layer-neighbours_kept"):
        assert (newest() / "figures" / f"{name}.png").is_file()
    assert "neighbours kept" in (newest() / "report.html").read_text()


def test_activations_from_files(repsim, newest, tmp_path):
    """Files of another program, without classes: numbers again from the arrays. The full space has its own
    neighbours."""
    arrays = {f"h{i}": rows(20, 4, seed=i).numpy() for i in range(3)}
    arrays["h3"] = arrays["h0"][:, ::-1] * 5
    np.savez(tmp_path / "stored.npz", **arrays)
    words = (*OWN, "model=[]", f"+model.m={{kind: precomputed, path: {tmp_path / 'stored.npz'}}}", "extract.rows=20")
    code, _, err = repsim("run", "-q", *words, "+options.batch=20", "+options.histograms={scale: mean}", "seed=3")
    assert code == 0, err
    found = json.loads((newest() / "results.json").read_text())
    assert found["about"]["batch"] == {"rows": list(range(20)), "classes": None, "texts": None}
    lines = table(found, "distances")
    assert [one["mean"] for one in lines] == pytest.approx([pdist(x).mean() for x in arrays.values()])
    counts = np.load(newest() / found["matrices"]["histograms of m"]["values"])
    assert np.abs(counts[0] - counts[3]).sum() <= 2  # of one shape
    full = [one for one in table(found, "neighbours of m") if one["space"] == "full space"]
    samples = [name for name in full[0] if name.startswith("row ")]
    assert len(samples) == 3
    assert all(full[3][name] == 1 for name in samples)
    assert table(found, "couplings")[0]["within classes"] is None
    assert len(table(found, "couplings")) == 2 * 5


def test_a_claim_on_a_view_that_was_not_made(repsim, newest, tmp_path):
    """Asked for with the run: not testable, with what it needs."""
    np.savez(tmp_path / "stored.npz", **{f"h{i}": rows(20, 4, seed=i).numpy() for i in range(3)})
    words = (*OWN, "model=[]", f"+model.m={{kind: precomputed, path: {tmp_path / 'stored.npz'}}}", "extract.rows=20")
    words += ("+options.histograms=null", "+options.neighbours=null", "claims=[fine_tuning_shifts_distances]")
    assert repsim("run", "-q", *words)[0] == 0
    found = json.loads((newest() / "results.json").read_text())
    assert {matrix["about"]["kind"] for matrix in found["matrices"].values()} == {"couplings"}
    assert sorted(found["analyses"]) == ["couplings", "diagnostics", "histograms"]  # one by its view, one by the claim
    (verdict,) = found["claims"]
    why = "needs a run that made histograms of distances (options.histograms={})"
    assert (verdict["verdict"], verdict["why"]) == ("not testable here", why)


@pytest.mark.parametrize(
    "constant",
    [
        pytest.param("h2", marks=[pytest.mark.drawn, pytest.mark.slow]),
        "h0",
        pytest.param("h4", marks=pytest.mark.nightly),
    ],
)
def test_a_constant_layer_is_left_out_and_listed(repsim, newest, tmp_path, constant):
    names = [f"h{i}" for i in range(5)]
    for model, flat in (("m", constant), ("other", None)):
        layers = {name: np.ones((20, 4)) if name == flat else rows(20, 4, i).numpy() for i, name in enumerate(names)}
        np.savez(tmp_path / f"{model}.npz", **layers)
    words = [*OWN, "model=[]", "extract.rows=20"]
    words += [f"+model.{x}={{kind: precomputed, path: {tmp_path / x}.npz}}" for x in ("m", "other")]
    code, _, err = repsim("run", "-q", *words, "claims=[fine_tuning_shifts_distances]", "base=m", "figures=all")
    assert code == 0, err
    found = json.loads((newest() / "results.json").read_text())
    assert "NaN" not in (newest() / "results.json").read_text()
    why = f"{constant} of 'm': all rows are equal, got a constant representation; drop this layer or change the data"
    views = ("histograms", "neighbours", "couplings")
    assert found["tables"]["cells without a value"]["rows"] == [
        [view, "m", "m", constant, constant, why] for view in views
    ]
    for view in views:
        assert f"{view}: 1 of 10 layers without a value: {constant} of 'm': all rows are equal" in found["warnings"]
    # histograms: a gap there, and after it; the other layers are as they are without it
    counts = np.load(newest() / found["matrices"]["histograms of m"]["values"])
    assert np.isnan(counts).all(1).tolist() == [name == constant for name in names]
    gaps = [constant in pair for pair in itertools.pairwise(names)]
    assert [x is None for x in found["curves"]["KL from previous layer, m"]["lines"]["KL"]] == gaps
    shown = [line for line in table(found, "distances") if line["model"] == "m"]
    assert [line["mean"] is None for line in shown] == [name == constant for name in names]
    kept = [torch.from_numpy(np.load(tmp_path / "m.npz")[name]) for name in names if name != constant]
    np.testing.assert_array_equal(counts[~np.isnan(counts).any(1)], counted(kept, 50, "none").counts[0])
    # neighbours and couplings: of the other layers
    assert found["matrices"]["neighbours of m"]["rows"]["layers"] == [name for name in names if name != constant]
    pairs = {
        (x["rows"]["model"], x["columns"]["model"])
        for x in found["matrices"].values()
        if x["about"].get("model") == "m"
    }
    assert len(pairs) == 5
    assert constant not in {name for pair in pairs for name in pair}
    (claim,) = found["claims"]  # has a value, of two models
    assert claim["value"] is not None
    for name in ("histograms-00-m", "neighbours-00-m", "couplings-00-m") if constant == "h2" else ():
        (file,) = (newest() / "figures").glob(f"{name}*.svg")
        assert "hatched: no value" in file.read_text() or f"no value: {constant}" in file.read_text()


def test_a_model_without_two_layers_is_left_out_and_a_run_of_none_fails(repsim, newest, tmp_path):
    flat = np.ones((20, 4))
    np.savez(tmp_path / "m.npz", h0=rows(20, 4).numpy(), h1=flat, h2=flat)
    np.savez(tmp_path / "other.npz", h0=rows(20, 4).numpy(), h1=rows(20, 4, 1).numpy())
    words = (*OWN, "model=[]", f"+model.m={{kind: precomputed, path: {tmp_path / 'm.npz'}}}", "extract.rows=20")
    code, _, err = repsim("run", "-q", *words)
    assert code == 1
    assert "options: no view has a value for two layers, got h1 of 'm': all rows are equal; h2 of 'm'" in err
    both = (*words, f"+model.other={{kind: precomputed, path: {tmp_path / 'other.npz'}}}")
    code, _, err = repsim("run", "-q", *both, "claims=[fine_tuning_shifts_distances]", "base=m")
    assert code == 0, err
    found = json.loads((newest() / "results.json").read_text())
    assert {x["rows"]["model"] for name, x in found["matrices"].items() if "coupling" not in name} == {"other"}
    named = (*both, "+options.couplings={pairs: [[h0, h1]]}", "+options.histograms=null", "+options.neighbours=null")
    assert repsim("run", "-q", *named)[0] == 0
    assert "extract.hook_points, model" not in err
    assert "extract.rows: a batch needs 30 rows, got 20; raise" in repsim("run", *words, "+options.batch=30")[2]


@pytest.mark.slow
def test_models_of_modular_sums(repsim, newest, tmp_path):
    """Any model and data: rows of two tokens in one, an attention pattern among the layers."""
    words = (
        "model=[modsum_0]",
        "model.modsum_0.recipe.moduli=[7]",
        "model.modsum_0.recipe.epochs=2",
        "data=modular_pairs",
    )
    words += ("data.numbers=7", "extract=modsum", "extract.rows=30", "study=views", *FAST)
    words += (
        "model.modsum_0.recipe.blocks=2",
        "extract.hook_points=[resid_pre,pattern.h0,resid_post]",
        "extract.sequences=49",
    )
    assert repsim("run", *words)[0] == 0
    found = json.loads((newest() / "results.json").read_text())
    assert sorted(found["analyses"]) == ["couplings", "diagnostics", "histograms", "neighbours"]
    assert len(table(found, "couplings")) == 2 * 5
    # layers follow each other as in the network, whatever the order of the hook points
    matrix = found["matrices"]["histograms of modsum_0"]
    ordered = ["resid_pre@0", "pattern@0.h0", "resid_post@0", "resid_pre@1", "pattern@1.h0", "resid_post@1"]
    assert matrix["rows"]["layers"] == ordered
    counts = np.load(newest() / matrix["values"])
    assert (counts[2] == counts[3]).all()  # the same stream
    assert found["curves"]["KL from previous layer, modsum_0"]["lines"]["KL"][2] == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=[]"], "model: no model is selected; e.g. model=[tiny_a,tiny_b]"),
        (["extract.estimate=per_batch"], "extract.estimate: views are of one sample of rows, got per_batch; use full"),
        (["extract.layers=[2]"], "extract.hook_points, model.tiny_a: layers are compared with each other, got 1; read two or more"),
        (["claims=[fine_tuning_shifts_distance]"], "claims: unknown claim, got 'fine_tuning_shifts_distance'; did you mean 'fine_tuning_shifts_distances' or"),
        (["+options.couplings.pairs=[[embed,resid_post@1]]"], "options.couplings.pairs, model.tiny_a: no such layer, got 'embed'; known: resid_post@0"),
        (["+options.couplings.pairs=[[resid_post@1,resid_pots@2]]"], "options.couplings.pairs, model.tiny_a: no such layer, got 'resid_pots@2'; did you mean 'resid_post@2'"),
        (["+options.couplings.pairs=[[resid_post@1]]"], "options.couplings.pairs: two layers make a pair, got ['resid_post@1']; give [[LAYER, LAYER], ...]"),
        (["extract.sequences=10"], "extract.rows: a batch needs 16 rows, got 10; raise extract.rows and extract.sequences, or lower options.batch"),
        (["extract.rows=2", "+options.neighbours=null", "+options.couplings=null"], "extract.rows: histograms need 3 rows, got 2; raise extract.rows and extract.sequences"),
        (["+options.batch=2"], "options.batch: neighbours and couplings need 3 rows, got 2; raise it"),
        (["+options.neighbours.k=16"], "options.neighbours.k: not below the 16 rows of the batch, got 16; lower it"),
        (["+options.neighbours.perplexity=30"], "options.neighbours.perplexity: not below the 16 rows of the batch, got 30.0; lower it"),
        (["+options.neighbours.samples=[16]"], "options.neighbours.samples: not distinct places from 0 to 15 of the batch, got [16]; name others"),
        (["+options.neighbours.samples=[3,3]"], "options.neighbours.samples: not distinct places from 0 to 15 of the batch, got [3, 3]; name others"),
        (["+options.histogram={}"], "options.histogram: unknown key, got {}; did you mean 'histograms'?"),
        ([f"+options.{view}=null" for view in ("histograms", "neighbours", "couplings")], "options: no view is made, all are null: histograms, neighbours, couplings; set one of them to {}"),
        (["+options.histograms.bins=1"], "options.histograms.bins: wrong value, got 1; give greater than or equal to 2"),
        (["hardware.memory_gb=0.3"], "hardware.memory_gb: the run needs about 0.6"),
        (["model=[modsum_targets]", "model.modsum_targets.coding=scalar", "data=modular_pairs", "extract=modsum"], "options.neighbours: a plane needs 2 features, got 1 (c1 of 'modsum_targets'); leave this layer out, or set options.neighbours=null"),
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_refused(overrides, message):
    with pytest.raises(BadConfig) as caught:
        validate(composed("model=[tiny_a]", "data=overlap_nli", *OWN, *overrides))
    assert message in str(caught.value)


def test_the_advice_on_memory_fits():
    words = ("model=[tiny_a]", "data=overlap_nli", *OWN, "extract.sequences=1000000", "hardware.memory_gb=0.9")
    with pytest.raises(BadConfig, match=r"extract.rows=\d+ would fit") as caught:
        validate(composed(*words, "extract.rows=900000"))
    advice = str(caught.value).split("; ")[-1].removesuffix(" would fit")
    validate(composed(*words, advice))


def test_the_plan_says_what_would_run():
    study = validate(composed("experiment=tiny/yelp_couplings")).study
    found = study.plan()
    assert (found["layers"], found["views"], found["rows, at most"]) == (14, ["couplings"], 400)
    assert found["forward passes, unless stored"] == 100


VIEWS = ("histograms", "neighbours", "couplings")


TINY = [f"experiment=tiny/yelp_{name}" for name in ("histograms", "neighbors", "couplings")]


def test_the_published_studies_share_their_activations():
    whole = [composed(f"experiment=yelp_{name}") for name in ("histograms", "neighbors", "couplings")]
    assert whole[0].extract == whole[1].extract == whole[2].extract
    assert whole[0].model == whole[1].model == whole[2].model
    assert (whole[0].extract.length, whole[0].extract.hook_points) == (256, ["embed", "resid_post"])
    dense = whole[0].model.bert_yelp_gao.recipe
    recipe = (dense.length, dense.epochs, dense.batch_size, dense.learning_rate, dense.weight_decay)
    assert recipe == (256, 1.0, 16, 2e-5, 0.0)
    assert [config.options.batch for config in whole[1:]] == [16, 16]
    assert whole[1].options.neighbours == {"k": 5, "perplexity": 5.0}
    assert [validate(config).study.views for config in map(composed, TINY)] == [[name] for name in VIEWS]
