"""Sub-networks: planted ones are found, none where there are none; targets; pairs within models alone."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from repsim_cli.plots.heatmap import together
from sklearn.cluster import SpectralClustering

from repsim_cli import measures
from repsim_cli.analysis import targets
from repsim_cli.analysis.claims import sub_networks as claims
from repsim_cli.analysis.claims.sub_networks import LAYER_CLAIMS, Layers, layer_verdicts
from repsim_cli.analysis.sub_networks import (
    affinities,
    agreement,
    clusters,
    decomposed,
    divided,
    found_in,
    parsed,
    segments,
    spectral,
    tables,
)
from repsim_cli.errors import BadInput
from repsim_cli.settings import SubNetworks
from repsim_cli.similarity import all_pairs

SEEDS = st.integers(0, 10_000)
SIZES = st.sampled_from([(8, 12, 10), (15, 15), (6, 6, 6, 6, 6), (20, 10), (4, 9, 7)])


def mirrored(values):
    values = np.triu(values, 1)
    return values + values.T


def planted(sizes, seed, contrast=4.0, noise=0.15):
    """Distances of layers in groups: those between are `contrast` times those within."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    same = labels[:, None] == labels
    drawn = np.random.default_rng(seed).normal(size=same.shape)
    return labels, mirrored(np.where(same, 1 / contrast, 1.0) * np.exp(noise * drawn))


def walk(layers, seed):
    """Distances along a random walk: no blocks."""
    x = np.random.default_rng(seed).normal(size=(layers, 20)).cumsum(0)
    return np.linalg.norm(x[:, None] - x, axis=2)


def both_ways(values, larger=False):
    return [
        spectral(values, larger, count=None, by="eigengap"),
        spectral(values, larger, count=None, by="silhouette"),
        segments(values, larger, count=None),
    ]


@given(SIZES, SEEDS)
def test_planted_groups_are_found(sizes, seed):
    labels, values = planted(sizes, seed)
    for found in both_ways(values):
        assert found.labels.tolist() == labels.tolist()
        assert found.count == len(sizes)
        assert found.scores[len(sizes)] > found.reference[len(sizes)]
    gap = spectral(values, False, count=None, by="eigengap")
    assert gap.eigenvalues is not None
    assert gap.scores[len(sizes)] == pytest.approx(gap.eigenvalues[len(sizes)] - gap.eigenvalues[len(sizes) - 1])
    similarities = 1 - values / 2
    np.fill_diagonal(similarities, 1)
    assert segments(similarities, True, count=None).labels.tolist() == labels.tolist()


@given(SEEDS, st.floats(1e-6, 1e6))
def test_relabelling_and_scaling_change_nothing(seed, scale):
    labels, values = planted((8, 12, 10), seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    for by in ("eigengap", "silhouette"):
        moved = spectral(scale * values[np.ix_(order, order)], False, count=None, by=by)
        assert agreement(moved.labels, labels[order]) == 1
        before = spectral(values, False, count=None, by=by)
        np.testing.assert_allclose(list(moved.scores.values())[:2], list(before.scores.values())[:2], atol=1e-6)
    one, other = (segments(x, False, count=None) for x in (values, scale * values[::-1, ::-1]))
    np.testing.assert_allclose(list(one.scores.values()), list(other.scores.values()), atol=1e-9)
    assert agreement(one.labels, other.labels[::-1]) == 1


def test_networks_without_blocks_have_none():
    at = np.arange(30)
    steps = np.abs(at[:, None] - at).astype(float)
    rng = np.random.default_rng(0)
    smooth = {
        "constant": 1 - np.eye(30),
        "all equal": np.zeros((30, 30)),
        "a line": steps,
        "its squares": steps**2,
        "its roots": steps**0.5,
        "levelling off": 1 - np.exp(-steps / 5),
        "ever faster": np.abs((at[:, None] / 30) ** 2 - (at / 30) ** 2),
        "a noisy line": mirrored(steps * np.exp(0.2 * rng.normal(size=(30, 30)))),
        "noise": mirrored(np.exp(0.3 * rng.normal(size=(30, 30)))),
    }
    for name, values in smooth.items():
        assert [found.count for found in both_ways(values)] == [1, 1, 1], name
    assert [found.count for found in both_ways(1 - steps / 30, larger=True)] == [1, 1, 1]


@pytest.mark.parametrize("layers", [12, 31])
def test_random_walks_seldom_have_groups(layers):
    """The rule's rate of error: what `least` is set by."""
    found = [
        (spectral(values, False, count=None, by="eigengap").count, segments(values, False, count=None).count)
        for values in (walk(layers, seed) for seed in range(60))
    ]
    assert (np.array(found) > 1).mean(0).max() <= 0.07


@given(st.integers(4, 7), SEEDS)
def test_segments_are_the_best_of_all(layers, seed):
    values = mirrored(np.random.default_rng(seed).random((layers, layers)))
    costs, starts = divided(values, layers)

    def cost(ends):
        pieces = [range(a, b) for a, b in itertools.pairwise(ends)]
        return sum(sum(values[i, j] for i, j in itertools.combinations(p, 2)) / len(p) for p in pieces)

    for count in range(1, layers + 1):
        cuts = itertools.combinations(range(1, layers), count - 1)
        assert costs[count - 1] == pytest.approx(min(cost([0, *cut, layers]) for cut in cuts), abs=1e-12)
        assert cost([*starts[count - 1], layers]) == pytest.approx(costs[count - 1], abs=1e-12)


def test_as_many_as_asked_for():
    _, values = planted((8, 12, 10), 0)
    for count in (2, 5):
        assert spectral(values, False, count=count, by="eigengap").count == count
        assert segments(values, False, count=count).count == count


def test_a_layer_and_its_copy_are_no_sub_network():
    values = 1 - np.eye(31)
    values[4, 5] = values[5, 4] = 0
    near = affinities(values, False)
    assert near[4, 5] == 4 * near[0, 1]
    assert near.diagonal().tolist() == [0] * 31
    assert [found.count for found in both_ways(values)] == [1, 1, 1]
    assert affinities(np.array([[1, -0.2], [-0.2, 1]]), True).tolist() == [[0, 0], [0, 0]]


@given(SIZES, SEEDS)
def test_clusters_are_scikit_learns(sizes, seed):
    _, values = planted(sizes, seed, contrast=2.0, noise=0.4)
    near = affinities(values, False)
    _, vectors = decomposed(near)
    for count in (2, 3, 5):
        theirs = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
        assert agreement(clusters(vectors[:, :count]), theirs.fit_predict(near)) == 1


@given(SEEDS)
def test_agreement_is_scikit_learns(seed):
    one, other = np.random.default_rng(seed).integers(0, 4, (2, 15))
    assert agreement(one, other) == pytest.approx(sklearn.metrics.adjusted_rand_score(one, other))
    assert agreement([0] * 5, ["a"] * 5) == 1


def test_given_groups_hold_every_layer_once():
    assert parsed(["2-3", "0 1 4"], 5).tolist() == [1, 1, 0, 0, 1]
    for groups, message in (
        (["0-5"], r"no range of its 5 layers, got '0-5'; write e.g. 0-4"),
        (["x"], r"no range of its 5 layers, got 'x'; write e.g. 0-4"),
        (["0-4", "2"], r"a layer is in one group only, got '2' again; drop it"),
        (["0-2 4"], r"all of its 5 layers are needed, got none for 3; put it in a group"),
    ):
        with pytest.raises(BadInput, match=message):
            parsed(groups, 5)


def test_what_is_recorded_is_in_the_order_of_the_network():
    labels, values = planted((6, 6), 0)
    names = [f"{kind}@{block}" for kind in "abcdef" for block in range(2)]
    shuffled = [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]  # by kind, as hook points are asked for
    found = found_in(
        values[np.ix_(shuffled, shuffled)], names, False, SubNetworks(), parsed(["0-2 6-8", "3-5 9-11"], 12)
    )
    assert found["layers"] == [f"{kind}@{block}" for block in range(2) for kind in "abcdef"]
    assert [names[i] for i in found["order"]] == found["layers"]
    np.testing.assert_allclose(found["consecutive"], values.diagonal(1))
    for groups in found["groups"].values():
        assert groups["labels"] == labels.tolist()
        assert groups["boundaries"] == [6]
    own = pytest.approx(sklearn.metrics.adjusted_rand_score(labels, [0, 0, 0, 1, 1, 1] * 2))
    assert found["agreement"] == {
        "spectral and segments": 1,
        "spectral and transformer blocks": 1,
        "segments and transformer blocks": 1,
        **{f"{one} and given": own for one in ("spectral", "segments", "spectral, as many,", "segments, as many,")},
    }
    rows = tables({"gw": {"m": found}})["sub-networks"]["rows"]
    assert [row[:5] for row in rows] == [
        ["gw", "m", "spectral", 2, "0-5, 6-11"],
        ["gw", "m", "segments", 2, "0-5, 6-11"],
    ]
    one = found_in(values, [f"h{i}" for i in range(12)], False, SubNetworks(method="segments", clusters=3), None)
    assert list(one["groups"]) == ["segments"]
    assert one["groups"]["segments"]["count"] == 3
    assert one["agreement"] == {}


def test_closest_layers():
    near = {"m": {"c1": np.array([0.5, 0.2, 0.21, 0.9])}}
    found = targets.tables({"gw": (near, False), "cka": (near, True)}, {"m": ["a", "b", "c", "d"]})
    assert found["closest to targets"]["rows"] == [["gw", "m", "c1", "b", 0.2, 1], ["cka", "m", "c1", "d", 0.9, 0]]
    ranked = found["layers by target"]["rows"]
    assert [row[4] for row in ranked] == ["b", "c", "a", "d", "d", "a", "c", "b"]
    assert ranked[1] == ["gw", "m", "c1", 2, "c", 0.21]
    assert targets.ranking(np.ones(3), False) == targets.ranking(np.ones(3), True) == [0, 1, 2]


def test_claims_on_single_models():
    names = [f"{kind}@{block}" for block in range(3) for kind in ("resid_pre", "attn_scores.h0", "resid_post")]
    at = np.arange(9)
    steps = np.abs(at[:, None] - at).astype(float)
    flat = np.ones((9, 9)) - np.eye(9)
    ends = np.where((at[:, None] > 5) & (at > 5), 0.1, 1.0) * flat
    one = Layers(
        names={"modsum_l": names, "modsum_e": names, "modsum_0": names[:3]},
        own={"modsum_l": steps, "modsum_e": ends, "modsum_0": mirrored(np.array([[0, 3, 9], [0, 0, 2.0], [0, 0, 0]]))},
        targets={"modsum_l": {"c1": np.abs(at - 2.0), "c2": np.abs(at - 4.0), "c3": np.abs(at - 5.5)}},
        clusters={"modsum_l": 3},
        as_given={"modsum_l": ([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2, 1])},
    )
    found = {row["name"]: row for row in layer_verdicts(list(LAYER_CLAIMS), "gw", one)}
    expected = {
        "c1_is_nearest_to_the_first_block": 1,
        "c2_is_nearest_to_the_second_block": 2,
        "c_is_near_the_last_blocks": 5,
        "layer_wise_training_gives_three_groups": 3,
        "layer_wise_groups_are_the_published": sklearn.metrics.adjusted_rand_score([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2, 1]),
        "end_to_end_training_ends_alike": 0.1,
        "layer_wise_distances_are_larger": steps.sum() / 72 - ends.sum() / 72,
        "training_changes_the_pattern": None,
        "attention_makes_the_first_differences": None,
    }  # fmt: skip
    assert {name: row["value"] for name, row in found.items()} == pytest.approx(expected)
    assert found["c1_is_nearest_to_the_first_block"]["verdict"] == "not testable here"
    why = "no p below 0.11 can be reached (any of 9 layers may be the nearest by chance); needs more"
    assert found["c1_is_nearest_to_the_first_block"]["why"] == why
    assert found["layer_wise_distances_are_larger"]["verdict"] == "holds"
    why = "the distances of modsum_e do not grow with the layers between (p = 0.081): no pattern"
    assert found["training_changes_the_pattern"]["why"] == why
    # tiny models are the same by letter; without what a claim needs it is not testable
    none = Layers(names={"modsum_tiny_e": names[:3], "modsum_tiny_l": names}, own={"modsum_tiny_e": flat[:3, :3], "modsum_tiny_l": flat})  # fmt: skip
    verdicts = layer_verdicts(list(LAYER_CLAIMS), "gw", none)
    why = {row["name"]: row["why"] for row in verdicts if row["verdict"] == "not testable here"}
    assert why == {
        "c1_is_nearest_to_the_first_block": "needs modsum_tiny_l with resid_post@0, and options.targets with c1",
        "c2_is_nearest_to_the_second_block": "needs modsum_tiny_l with resid_post@1, and options.targets with c2",
        "c_is_near_the_last_blocks": "needs modsum_tiny_l with resid_post@1, and options.targets with c3",
        "layer_wise_training_gives_three_groups": "needs modsum_tiny_l and options.sub_networks, with clusters to be chosen",
        "layer_wise_groups_are_the_published": "needs options.sub_networks.given of modsum_tiny_l",
        "end_to_end_training_ends_alike": "needs a last block of two layers, and one before it",
        "layer_wise_distances_are_larger": "needs four layers of each",
        "training_changes_the_pattern": "the two models have different layers",
        "attention_makes_the_first_differences": "needs modsum_0",
    }
    plain = Layers(names={"modsum_0": ["resid_pre@0", "z@0.h0"]}, own={"modsum_0": flat[:2, :2]})
    assert claims.attention_makes_the_first_differences(plain).why == "no attention map is among the layers"
    assert claims.layer_wise_distances_are_larger(plain).why == "needs modsum_l and modsum_e"
    # too few layers give no number at all
    for count in (1, 2):
        few = Layers(
            names={f"modsum_{letter}": ["pattern@0.h0", "z@0.h0"][:count] for letter in "0el"},
            own={f"modsum_{letter}": flat[:count, :count] for letter in "0el"},
        )
        assert claims.training_changes_the_pattern(few).why == "needs four layers that are not all as far apart"
        why = "needs three layers, and two in a row that are no attention map"
        assert claims.attention_makes_the_first_differences(few).why == why
        assert claims.layer_wise_distances_are_larger(few).why == "needs four layers of each"


def test_pairs_that_are_not_wanted_are_skipped():
    x = [torch.randn(12, 3, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    of = torch.tensor([0, 0, 1, 1])
    wanted = of[:, None] == of
    for name in ("gromov_wasserstein", "hard_correlation_match", "mutual_knn", "cka"):
        bound = {name: measures.get(name)}
        whole, part = (all_pairs(bound, x, wanted=which)[name] for which in (None, wanted))
        torch.testing.assert_close(part[wanted], whole[wanted], rtol=0, atol=0)
        if name == "gromov_wasserstein":
            assert part[~wanted].isnan().all()


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Two synthetic networks: in one each of three blocks makes a new representation that its layers hardly change; in
    the other all layers are alike. And a function of the input that the second block computes."""
    folder = tmp_path_factory.mktemp("networks")
    rng = np.random.default_rng(0)

    def layers(sources, noise):
        made = [source + noise * rng.normal(size=source.shape) for source in sources for _ in range(12 // len(sources))]
        return {f"h{i}": x.astype(np.float32) for i, x in enumerate(made)}

    blocks = [
        rng.normal(size=(40, 20)),
        rng.choice([-5, 5], (40, 1)) + rng.normal(size=(40, 3)) / 9,
        rng.exponential(size=(40, 1)),
    ]
    for name, arrays in (
        ("blocks", layers(blocks, 0.02)),
        ("even", layers([rng.normal(size=(40, 6))], 0.5)),
        ("sums", {"c1": blocks[1].astype(np.float32)}),
        ("short", {"c1": blocks[1][:30].astype(np.float32)}),
    ):
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def words(networks, *labels, **options):
    entries = [f"+model.{label}={{kind: precomputed, path: {networks / label}.npz}}" for label in labels]
    given = [f"+options.{key}={value}" for key, value in options.items()]
    return ["run", "model=[]", *entries, "extract.estimate=full", "extract.rows=40", "hardware.threads=1", *given]


@pytest.mark.drawn
def test_planted_networks_from_the_command_line(repsim, networks):
    measure = "measure=[gromov_wasserstein,cka]"
    options = {"within": "true", "targets": "sums", "sub_networks": "{given: {blocks: [0-3, 4-7, 8-11]}}"}
    code, out, err = repsim(*words(networks, "blocks", "even", "sums", **options), measure)
    assert code == 0, err
    folder = Path(next(line.split(": ", 1)[1] for line in out.splitlines() if line.strip().startswith("folder: ")))
    results = json.loads((folder / "results.json").read_text())
    for measure in results["measures"]:
        sides = [(m["rows"]["model"], m["columns"]["model"]) for m in measure["matrices"]]
        assert sides == [("blocks", "blocks"), ("blocks", "sums"), ("even", "even"), ("even", "sums"), ("sums", "sums")]
    found = results["sub_networks"]["gromov_wasserstein"]
    assert list(found) == ["blocks", "even"]
    for groups in found["blocks"]["groups"].values():
        assert groups["boundaries"] == [4, 8]
    assert found["blocks"]["agreement"]["spectral and given"] == 1
    assert [groups["count"] for groups in found["even"]["groups"].values()] == [1, 1]
    closest = {tuple(row[:3]): row[3:5] for row in results["tables"]["closest to targets"]["rows"]}
    for measure in results["measures"]:
        own = measure["matrices"][1]
        values = np.load(folder / own["values"])[:, 0]
        best = values.argmin() if measure["name"] == "gromov_wasserstein" else values.argmax()
        assert closest[measure["label"], "blocks", "c1"] == [f"h{best}", pytest.approx(values[best])]
        assert 4 <= best < 8
    figures = {file.stem for file in (folder / "figures").glob("*.png")}
    assert {"gromov_wasserstein-blocks-layers", "cka-even-layers", "cka-00-02-blocks-sums"} <= figures
    assert not [name for name in figures if name.endswith("-all") or name.startswith("cka-00-00")]
    assert "gromov_wasserstein-blocks-layers.png" in out


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (("blocks", "sums"), {"targets": "sum"}, "options.targets: no such model, got 'sum'; did you mean"),
        (("sums",), {"targets": "sums"}, "options.targets: a model to compare with is needed, got 'sums' alone; add one"),
        (("blocks", "even"), {"within": "true", "by_layer": "true"}, "options.within: options.by_layer needs the layers of all models, got pairs within models alone; drop one"),
        (("blocks", "even"), {"within": "true", "claims": "[early_layers_agree]"}, "options.within: options.claims needs the layers of all models"),
        (("sums",), {"sub_networks": "{}"}, "options.sub_networks: 4 layers of a model are needed, got 1; read more"),
        (("blocks",), {"sub_networks": "{clusters: 13}"}, "options.sub_networks.clusters: more than the layers of 'blocks', got 13 of 12; lower it"),
        (("blocks",), {"sub_networks": "{given: {block: [0-11]}}"}, "options.sub_networks.given: no such model, got 'block'; did you mean"),
        (("blocks",), {"sub_networks": "{given: {blocks: [0-10]}}"}, "options.sub_networks.given.blocks: all of its 12 layers are needed, got none for 11; put it in a group"),
        (("blocks",), {"sub_networks": "{method: spectra}"}, "options.sub_networks.method: wrong value, got 'spectra'; give"),
        (("blocks", "short"), {"targets": "short"}, "model: models have different numbers of rows, got blocks: 40, short: 30; rows must be paired"),
    ],
)  # fmt: skip
def test_what_is_asked_of_single_models_is_checked(repsim, networks, labels, options, message):
    code, _, err = repsim(*words(networks, *labels, **options), "measure=[cka]")
    assert code == 2
    assert err.startswith(f"error: {message}")


def test_heads_stand_together_on_crowded_axes():
    names = [f"q@{block}.h{head}" for block in range(2) for head in range(4)]
    assert together([*names, "resid_post@1"]) == [(1.5, "q@0"), (5.5, "q@1"), (8.0, "resid_post@1")]
