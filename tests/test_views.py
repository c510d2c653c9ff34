"""Histograms of distances, neighbours and couplings: hand-computed values, independent formulas, claims, the study."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist
from scipy.stats import entropy
from test_config import composed

from repsim_cli.analysis.claims import views as claims
from repsim_cli.analysis.couplings import BEST, PUBLISHED, Plan, matched
from repsim_cli.analysis.histograms import divergence, histograms, spread
from repsim_cli.analysis.neighbourhoods import chance, nearest, overlap, plane
from repsim_cli.config import validate
from repsim_cli.errors import BadConfig, Degenerate
from repsim_cli.measures.gromov import gromov_objective, space

FAST = ("hardware.threads=1", "measure=[]")
OWN = ("study=views", "extract=pooled", *FAST)


def rows(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def test_divergence_by_hand():
    """Of four distances 3 and 1 fall into the bins, or 1 and 2 of three: shares with half a distance added to each."""
    a, b = np.array([3, 1]), np.array([1, 2])
    p, q = (3.5 / 5, 1.5 / 5), (1.5 / 4, 2.5 / 4)
    expected = p[0] * np.log(p[0] / q[0]) + p[1] * np.log(p[1] / q[1])
    assert divergence(a, b) == pytest.approx(expected, abs=1e-15)
    assert divergence(b, a) == pytest.approx(entropy(q, p), abs=1e-15)
    assert divergence(a, b) != divergence(b, a)
    assert divergence(a, a) == 0
    far = divergence(np.array([10, 0]), np.array([0, 10]))
    assert far == pytest.approx(10 / 11 * np.log(21), abs=1e-12)


@pytest.mark.parametrize("scale", ["none", "mean"])
def test_histograms_share_their_bins(scale):
    """More rows than one block of distances has; the far layer says where the bins end."""
    layers = [rows(600, 3), 4 * rows(600, 5, seed=1)]
    spreads = [spread(x) for x in layers]
    found = histograms(layers, spreads, bins=20, scale=scale)
    plain = [pdist(x.numpy()) for x in layers]
    for one, own in zip(spreads, plain, strict=True):
        np.testing.assert_allclose(one, [own.mean(), own.std(), own.max()], rtol=1e-10)
    scaled = [own / own.mean() if scale == "mean" else own for own in plain]
    edges = np.linspace(0, max(own.max() for own in scaled), 21)
    np.testing.assert_allclose(found.edges, edges, rtol=1e-12)
    for counts, own in zip(found.counts, scaled, strict=True):
        assert counts.sum() == 600 * 599 // 2
        # a distance may lie on an edge but for rounding
        assert np.abs(counts - np.histogram(own, edges)[0]).sum() <= 2
    larger = histograms(
        [layers[0], 3 * layers[0]], [spread(x) for x in (layers[0], 3 * layers[0])], bins=9, scale="mean"
    )
    assert np.abs(larger.counts[0] - larger.counts[1]).sum() <= 2


def test_nearest():
    x = torch.tensor([[0.0], [1.0], [-1.0], [5.0], [5.5]])
    assert nearest(x, 2).tolist() == [[1, 2], [0, 2], [0, 1], [4, 1], [3, 1]]  # of 1 and -1 the earlier one first
    x = rows(60, 4)
    expected = cdist(x, x) + np.diag(np.full(60, np.inf))
    assert nearest(x, 7).tolist() == expected.argsort(1)[:, :7].tolist()


def test_overlap_and_what_chance_gives():
    a = np.array([[0, 1, 2, 3, 4]] * 3)
    b = np.array([[4, 3, 2, 1, 0], [0, 1, 2, 8, 9], [5, 6, 7, 8, 9]])
    np.testing.assert_allclose(overlap(a, b), [1, 3 / 7, 0])
    # all pairs of sets of 2 among 5 others
    sets = np.array(list(itertools.combinations(range(5), 2)))
    each = [overlap(sets, np.roll(sets, step, 0)) for step in range(len(sets))]
    assert chance(6, 2) == pytest.approx(np.mean(each), abs=1e-12)
    assert chance(4, 3) == 1


def test_the_plane_keeps_clusters_and_its_seed():
    """Two groups of rows, far apart."""
    x = rows(20, 5)
    x[:10] += 30
    one = plane(x, perplexity=4.0, seed=0)
    assert one.shape == (20, 2)
    assert np.array_equal(one, plane(x, perplexity=4.0, seed=0))
    assert not np.array_equal(one, plane(x, perplexity=7.0, seed=0))
    around = nearest(torch.from_numpy(one), 5)
    assert ((around < 10) == (np.arange(20) < 10)[:, None]).all()


@pytest.mark.parametrize("step", [lambda x: plane(x, perplexity=2.0, seed=0), lambda x: nearest(x, 2), spread])
def test_rows_that_differ_by_rounding_alone_are_refused(step):
    constant = torch.ones(8, 3) + 1e-7 * rows(8, 3).float()
    with pytest.raises(Degenerate, match=r"all rows are equal but for rounding, got a spread of .*; drop this layer"):
        step(constant)
    with pytest.raises(Degenerate, match="all rows are equal, got a constant representation; drop this layer"):
        step(torch.ones(8, 3))


@pytest.mark.parametrize("first", [0, 1])
def test_a_coupling_is_laid_out_by_its_sides(first):
    """The second side is the first in another order, turned around: each row must find itself, whichever side of the
    two the solver puts first."""
    x = rows(12, 3, seed=4)
    order = np.random.default_rng(1).permutation(12)
    turn = torch.linalg.qr(rows(3, 3, seed=2)).Q
    sides = [x, 2 * x[torch.from_numpy(order)] @ turn][:: 1 if first == 0 else -1]
    a, b = (space(side, cost_scale="mean") for side in sides)
    expected = np.zeros((12, 12))
    expected[order, np.arange(12)] = 1 / 12
    for found in matched(a, b, restarts=0, seed=0).values():
        np.testing.assert_array_equal(found.coupling, expected if first == 0 else expected.T)
        assert found.is_permutation
        assert found.objective == pytest.approx(0, abs=1e-20)
        assert found.diagonal == pytest.approx((order == np.arange(12)).mean())


def test_the_best_coupling_is_no_worse_than_that_from_pots_start():
    """And both have their objectives as they are laid out: rows of the first side as rows."""
    x = rows(14, 6, seed=5)
    y = x + 0.3 * rows(14, 6, seed=6)  # rows stay near themselves, which POT's start does not know
    for given in ((x, 3 * y), (3 * y, x)):
        one, other = (space(side, cost_scale="mean") for side in given)
        found = matched(one, other, restarts=20, seed=0)
        assert found[BEST].objective < found[PUBLISHED].objective
        assert (found[PUBLISHED].start, found[BEST].start) == ("pot", "identity")
        assert found[BEST].diagonal == pytest.approx(1)
        for way, plan in found.items():
            own = gromov_objective(one.distances, other.distances, plan.coupling)
            assert plan.objective == pytest.approx(own, rel=1e-9)
            plain = matched(*(space(side, cost_scale="none") for side in given), restarts=20, seed=0)
            np.testing.assert_array_equal(plain[way].coupling, plan.coupling)  # whatever the scale of the distances
        turned = gromov_objective(one.distances, other.distances, found[PUBLISHED].coupling.T)
        assert found[PUBLISHED].objective != pytest.approx(turned, rel=1e-3)
    codes = np.array([0, 0, 1])
    assert Plan(np.eye(3)[[1, 0, 2]] / 3, 0.0, "pot", 0.0).within(codes) == pytest.approx(1)
    assert Plan(np.eye(3)[[2, 1, 0]] / 3, 0.0, "pot", 0.0).within(codes) == pytest.approx(1 / 3)
    assert not Plan(np.full((3, 3), 1 / 9), 0.0, "pot", 0.0).is_permutation


SHIFTS = {"base": [0.1, 0.02, 0.05], "tuned": [0.1, 0.2, 1.6]}


@pytest.mark.parametrize(
    ("name", "shifts", "base", "verdict", "value"),
    [
        ("base_distances_stay", SHIFTS, "base", "holds", 0.1),
        ("base_distances_stay", SHIFTS, None, "not testable here", None),
        ("base_distances_stay", {**SHIFTS, "base": []}, "base", "not testable here", None),
        ("fine_tuning_shifts_distances", SHIFTS, "base", "holds", 1.5),
        ("fine_tuning_shifts_distances", {"base": [0.1]}, "base", "not testable here", None),
        ("distances_shift_late", SHIFTS, "base", "not testable here", 1.0),
        ("distances_shift_late", {"base": [0.1], "tuned": [0.1, 0.2]}, "base", "not testable here", None),
    ],
)
def test_claims_on_distances(name, shifts, base, verdict, value):
    (one,) = claims.shift_verdicts([name], shifts, [shifts] * 10, base)
    assert one["verdict"] == verdict
    assert one["value"] == (None if value is None else pytest.approx(value))
    assert one["why"]


def test_neighbours_without_any_relation_are_no_change():
    """Random neighbours overlap less than the threshold, and so do the published ones."""
    rng, by_chance = np.random.default_rng(0), chance(16, 5)
    around = np.array([[rng.permutation(15)[:5] for _ in range(16)] for _ in range(9)])
    kept = overlap(around[:1], around)[1:]
    few, many = (claims.overlap_verdicts(["neighbours_change"], {"plane": [x]}, by_chance)[0] for x in (kept, kept * 0 + 0.5))  # fmt: skip
    assert (few["measure"], few["verdict"]) == ("neighbours, plane", "unclear")
    assert few["value"] == pytest.approx(by_chance, abs=0.03)
    assert (many["verdict"], many["value"]) == ("fails", 0.5)


def table(found, name):
    columns = found["tables"][name]["columns"]
    return [dict(zip(columns, row, strict=True)) for row in found["tables"][name]["rows"]]


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
    assert repsim("run", "-q", *words, *small, "measure=[cka]", "+options.by_layer=true")[0] == 0  # views have no such
    asked = [f"+options.claims=[{','.join(claims.VIEW_CLAIMS)}]", "base=tiny_a_step100", "+options.restarts=3"]
    asked += ["+options.pairs=[[embed,resid_post@3],[resid_post@3,embed]]", "+options.samples=[0,9]"]
    code, _, err = repsim("run", "-q", "--from", newest(), "study=views", *asked)
    assert code == 0, err
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert manifest["models_run"] == []
    assert list(manifest["models"]) == ["tiny_a_step100", "tiny_a"]  # --from keeps their order
    assert manifest["rows"] == 48
    found = json.loads((newest() / "results.json").read_text())
    drawn, layers = found["views"]["batch"], ["embed", "resid_post@0", "resid_post@3"]
    assert len(drawn["rows"]) == len(set(drawn["rows"])) == 16
    names = ["entailment", "neutral", "contradiction"]
    assert [names.index(name) for name in drawn["classes"]] == sorted(names.index(name) for name in drawn["classes"])
    # histograms: counts, KL one way and the other, the claims' statistic without the embeddings
    own = found["views"]["histograms"][1]
    counts = np.load(newest() / own["counts"])
    assert (own["model"], own["layers"], own["rows"]) == ("tiny_a", layers, 40)
    assert counts.sum(1).tolist() == [40 * 39 / 2] * 3
    shares = (counts + 0.5) / (counts + 0.5).sum(1, keepdims=True)
    expected = [entropy(shares[i], shares[i - 1]) for i in (1, 2)]
    assert own["kl"] == pytest.approx(expected)
    lines = [one for one in table(found, "distances") if one["model"] == "tiny_a"]
    assert [one["KL(layer || previous)"] for one in lines] == [None, *own["kl"]]
    assert lines[2]["KL(previous || layer)"] == pytest.approx(entropy(shares[1], shares[2]))
    verdicts = {(one["name"], one["measure"]): one["value"] for one in found["claims"]}
    by_base = found["views"]["histograms"][0]["kl"]
    # the embeddings are no block
    assert verdicts["base_distances_stay", "histograms of distances"] == pytest.approx(by_base[1])
    # neighbours: those of the saved planes, and their means with and without the first layer
    own = found["views"]["neighbours"][1]
    around = [nearest(torch.from_numpy(x), 5)[[0, 9]] for x in np.load(newest() / own["planes"])]
    sets = [[set(row.tolist()) for row in one] for one in around]
    kept = [[len(a & b) / len(a | b) for a, b in zip(one, sets[0], strict=True)] for one in sets]
    shown = [one for one in table(found, "neighbours of tiny_a") if one["space"] == "t-SNE plane"]
    labels = [f"row {drawn['rows'][i]} ({drawn['classes'][i]})" for i in (0, 9)]
    assert [[one[label] for label in labels] for one in shown] == kept
    means = {(one["model"], one["space"], one["sample"]): one for one in table(found, "neighbours kept")}
    mean = means["tiny_a", "t-SNE plane", labels[1]]
    assert mean["mean with the first layer"] == pytest.approx(np.mean([row[1] for row in kept]))
    assert mean["mean without it"] == pytest.approx(np.mean([row[1] for row in kept[1:]]))
    assert mean["by chance"] == pytest.approx(0.21441, abs=1e-5)
    # couplings: a pair and its mirror image are each other's transpose
    couplings = [one for one in found["views"]["couplings"] if one["model"] == "tiny_a"]
    plans = [np.load(newest() / one["coupling"]) for one in couplings]
    assert [one["starts"] for one in couplings] == [PUBLISHED, BEST] * 2
    np.testing.assert_array_equal(plans[0], plans[2].T)
    assert couplings[0]["objective"] == couplings[2]["objective"]
    np.testing.assert_allclose(plans[0].sum(0), 1 / 16)
    assert couplings[0]["diagonal"] == pytest.approx(np.trace(plans[0]))
    assert {name for name, _ in verdicts} == set(claims.VIEW_CLAIMS)
    for name in ("histograms-01-tiny_a", "neighbours-01-tiny_a", "couplings-01-tiny_a", "by-layer-neighbours_kept"):
        assert (newest() / "figures" / f"{name}.png").is_file()
    assert "neighbours kept" in (newest() / "report.html").read_text()


def test_activations_from_files(repsim, newest, tmp_path):
    """Of another program, without classes: numbers again from the arrays. The full space has its own neighbours."""
    arrays = {f"h{i}": rows(20, 4, seed=i).numpy() for i in range(3)}
    arrays["h3"] = arrays["h0"][:, ::-1] * 5
    np.savez(tmp_path / "stored.npz", **arrays)
    words = (*OWN, "model=[]", f"+model.m={{kind: precomputed, path: {tmp_path / 'stored.npz'}}}", "extract.rows=20")
    code, _, err = repsim("run", "-q", *words, "+options.batch=20", "+options.distance_scale=mean", "seed=3")
    assert code == 0, err
    found = json.loads((newest() / "results.json").read_text())
    assert found["views"]["batch"] == {"rows": list(range(20)), "classes": None}
    lines = table(found, "distances")
    assert [one["mean"] for one in lines] == pytest.approx([pdist(x).mean() for x in arrays.values()])
    counts = np.load(newest() / found["views"]["histograms"][0]["counts"])
    assert np.abs(counts[0] - counts[3]).sum() <= 2  # of one shape
    full = [one for one in table(found, "neighbours of m") if one["space"] == "full space"]
    samples = [name for name in full[0] if name.startswith("row ")]
    assert len(samples) == 3
    assert all(full[3][name] == 1 for name in samples)
    assert table(found, "couplings")[0]["within classes"] is None
    assert len(found["views"]["couplings"]) == 2 * 5


def test_a_constant_layer_is_named(repsim, tmp_path):
    np.savez(tmp_path / "stored.npz", h0=rows(20, 4).numpy(), h1=np.ones((20, 4)))
    words = (*OWN, "model=[]", f"+model.m={{kind: precomputed, path: {tmp_path / 'stored.npz'}}}", "extract.rows=20")
    code, _, err = repsim("run", *words)
    assert code == 1
    assert "h1 of 'm': all rows are equal, got a constant representation; drop this layer" in err
    assert "extract.rows: a batch needs 30 rows, got 20; raise" in repsim("run", *words, "+options.batch=30")[2]


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
    code, out, _ = repsim("run", *words)
    assert code == 0
    assert "figure: " in out
    found = json.loads((newest() / "results.json").read_text())
    assert list(found["views"]) == ["batch", "histograms", "neighbours", "couplings"]
    assert len(table(found, "couplings")) == 2 * 5
    # layers follow each other as in the network, whatever the order of the hook points
    own = found["views"]["histograms"][0]
    ordered = ["resid_pre@0", "pattern@0.h0", "resid_post@0", "resid_pre@1", "pattern@1.h0", "resid_post@1"]
    assert own["layers"] == ordered
    counts = np.load(newest() / own["counts"])
    assert (counts[2] == counts[3]).all()  # the same stream
    assert own["kl"][2] == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=[]"], "model: no model is selected, got none; e.g. model=[tiny_a,tiny_b]"),
        (["extract.estimate=per_batch"], "extract.estimate: views are of one sample of rows, got per_batch; use full"),
        (["extract.layers=[2]"], "extract.hook_points, model.tiny_a: layers are compared with each other, got 1; read two or more"),
        (["+options.claims=[neighbors_change]"], "options.claims: unknown claim, got 'neighbors_change'; did you mean 'neighbours_change'?"),
        (["+options.claims=[neighbours_change]", "+options.views=[histograms]"], "options.claims: neighbours_change is about neighbours, got views ['histograms']; add it to options.views"),
        (["+options.pairs=[[embed,resid_post@1]]"], "options.pairs, model.tiny_a: no such layer, got 'embed'; known: resid_post@0"),
        (["+options.pairs=[[resid_post@1,resid_pots@2]]"], "options.pairs, model.tiny_a: no such layer, got 'resid_pots@2'; did you mean 'resid_post@2'"),
        (["+options.pairs=[[resid_post@1]]"], "options.pairs: two layers make a pair, got ['resid_post@1']; give [[LAYER, LAYER], ...]"),
        (["extract.sequences=10"], "extract.rows: a batch needs 16 rows, got 10; raise extract.rows and extract.sequences, or lower options.batch"),
        (["extract.rows=1", "+options.views=[histograms]"], "extract.rows: a distance needs 2 rows, got 1; raise"),
        (["+options.batch=2"], "options.batch: neighbours and couplings need 3 rows, got 2; raise it"),
        (["+options.k=16"], "options.k: not below the 16 rows of the batch, got 16; lower it"),
        (["+options.perplexity=30"], "options.perplexity: not below the 16 rows of the batch, got 30.0; lower it"),
        (["+options.samples=[16]"], "options.samples: not distinct places from 0 to 15 of the batch, got [16]; name others"),
        (["+options.samples=[3,3]"], "options.samples: not distinct places from 0 to 15 of the batch, got [3, 3]; name others"),
        (["+options.views=[histogram]"], "options.views.0: wrong value, got 'histogram'; give 'histograms', 'neighbours' or 'couplings'"),
        (["+options.bins=1"], "options.bins: wrong value, got 1; give greater than or equal to 2"),
        (["hardware.memory_gb=0.3"], "hardware.memory_gb: the run needs about 0.6"),
        (["model=[modsum_targets]", "model.modsum_targets.coding=scalar", "data=modular_pairs", "extract=modsum"], "options.views: a plane needs 2 features, got 1 (c1 of 'modsum_targets'); leave this layer out, or drop neighbours"),
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


def test_the_published_studies_share_their_activations():
    whole = [composed(f"experiment=yelp_{name}") for name in ("histograms", "neighbors", "couplings")]
    assert whole[0].extract == whole[1].extract == whole[2].extract
    assert whole[0].model == whole[1].model == whole[2].model
    assert (whole[0].extract.length, whole[0].extract.hook_points) == (256, ["embed", "resid_post"])
    dense = whole[0].model.bert_yelp_gao.recipe
    recipe = (dense.length, dense.epochs, dense.batch_size, dense.learning_rate, dense.weight_decay)
    assert recipe == (256, 1.0, 16, 2e-5, 0.0)
    assert (whole[1].options.batch, whole[1].options.k, whole[2].options.batch) == (16, 5, 16)
