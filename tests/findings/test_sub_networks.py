"""Sub-networks: planted ones are found, none where there are none; targets; pairs within models alone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
import torch
from helpers.nights import nightly
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import SpectralClustering

from repsim_cli import measures
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.figures.heatmap import merge_head_names
from repsim_cli.findings import map_figures, sub_networks
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.partitions import (
    MARGIN,
    SURROGATES,
    cluster_eigenvectors,
    compare_partitions,
    convert_to_affinities,
    decompose_walk,
    divide,
    draw_surrogates,
    find_contiguous_segments,
    find_spectral_clusters,
    parse_ranges,
    silhouette,
)
from repsim_cli.findings.sub_networks import (
    Clustered,
    SubNetworks,
    choose_clustered,
    find_sub_networks,
    layer_wise_groups_are_the_published,
    layer_wise_training_gives_three_groups,
    make_curves,
    make_tables,
)
from repsim_cli.runs import reader
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM, Matrix, Measured, Results, Side
from repsim_cli.studies.modular_sums import finding_layers as modular_layers
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes import finding_targets as targets
from repsim_cli.studies.probes.finding_targets import Near

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
    return [find_spectral_clusters(values, larger, count=None), find_contiguous_segments(values, larger, count=None)]


@given(SIZES, SEEDS)
def test_planted_groups_are_found(sizes, seed):
    labels, values = planted(sizes, seed)
    for found in both_ways(values):
        assert found.labels.tolist() == labels.tolist()
        assert found.count == len(sizes) == max(found.scores, key=lambda k: found.scores[k])
        assert found.scores[len(sizes)] == pytest.approx(
            sklearn.metrics.silhouette_score(values, labels, metric="precomputed")
        )
        assert found.scores[len(sizes)] > max(found.reference.values()) + MARGIN
    similarities = 1 - values / 2
    np.fill_diagonal(similarities, 1)
    for found in both_ways(similarities, larger=True):
        assert found.labels.tolist() == labels.tolist()


@given(SEEDS, st.floats(1e-6, 1e6))
def test_relabelling_and_scaling_change_nothing(seed, scale):
    labels, values = planted((8, 12, 10), seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    before, moved = (
        find_spectral_clusters(x, False, count=None) for x in (values, scale * values[np.ix_(order, order)])
    )
    assert compare_partitions(moved.labels, labels[order]) == 1
    np.testing.assert_allclose(list(moved.scores.values())[:2], list(before.scores.values())[:2], atol=1e-6)
    before, moved = (find_contiguous_segments(x, False, count=None) for x in (values, scale * values[::-1, ::-1]))
    np.testing.assert_allclose(list(before.scores.values()), list(moved.scores.values()), atol=1e-9)
    assert compare_partitions(before.labels, moved.labels[::-1]) == 1


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
        assert [found.count for found in both_ways(values)] == [1, 1], name
    assert [found.count for found in both_ways(1 - steps / 30, larger=True)] == [1, 1]


@pytest.mark.parametrize("layers", nightly([12, 31], 31))
def test_noise_and_random_walks_seldom_have_groups(layers):
    """The rule's rate of error: what MARGIN is set by (`benchmarks/clusterings.py`)."""
    made = [walk(layers, seed) for seed in range(30)] + [planted((layers,), seed, noise=0.6)[1] for seed in range(30)]
    found = np.array([[groups.count > 1 for groups in both_ways(values)] for values in made])
    assert found.reshape(2, 30, 2).mean(1).max() <= 0.1


@pytest.mark.parametrize("layers", [8, 12])
def test_groups_of_small_similarities_are_found(layers):
    """Mutual nearest neighbours: 0.25 within, 0.02, which is chance, between; from 1 all are nearly as far."""
    late, rng = np.arange(layers) >= layers // 2, np.random.default_rng(0)
    noise = mirrored(rng.normal(0, 0.02, (layers, layers)))
    planted_values = np.where(late[:, None] == late, 0.25, 0.02) + noise
    for values, count in ((planted_values, 2), (0.02 + noise, 1)):
        np.fill_diagonal(values, 1)
        assert [groups.count for groups in both_ways(values, larger=True)] == [count, count]


@pytest.mark.parametrize("offset", [0.5, 0.75, 0.9])
def test_what_all_distances_have_in_common_makes_no_groups(offset):
    made = [offset + (1 - offset) * values / values.max() for values in (walk(24, seed) for seed in range(20))]
    for values in made:
        np.fill_diagonal(values, 0)
    assert np.mean([[groups.count > 1 for groups in both_ways(values)] for values in made]) <= 0.1


def test_weak_groups_that_return_are_found():
    """Groups are runs of layers apart, as attention maps are; under noise, and with a layer's copy."""
    labels = np.repeat([0, 1, 0, 2, 1, 2], [6, 3, 5, 4, 4, 5])
    same = labels[:, None] == labels
    for seed in range(10):
        values = mirrored(
            np.where(same, 1 / 3, 1.0) * np.exp(0.4 * np.random.default_rng(seed).normal(size=same.shape))
        )
        values[4], values[:, 4] = values[3], values[:, 3]
        values[4, 4] = 0
        assert compare_partitions(find_spectral_clusters(values, False, count=None).labels, labels) > 0.8


def test_surrogates_have_the_gradient_and_the_noise():
    steps = np.abs(np.arange(9)[:, None] - np.arange(9)).astype(float)
    for other in draw_surrogates(steps):
        np.testing.assert_array_equal(other, steps)
    noisy = mirrored(steps * np.exp(0.1 * np.random.default_rng(0).normal(size=steps.shape)))
    made = np.stack(list(draw_surrogates(noisy)))
    assert len(made) == SURROGATES
    upper = np.triu_indices(9, 1)
    spread = (np.log(made / np.where(steps > 0, steps, 1), where=made > 0, out=np.zeros_like(made)))[:, *upper].std()
    assert spread == pytest.approx(0.1, rel=0.35)
    np.testing.assert_array_equal(made, made.transpose(0, 2, 1))
    np.testing.assert_array_equal(made, list(draw_surrogates(noisy)))


@given(SEEDS, st.integers(2, 6))
def test_silhouette_is_scikit_learns(seed, count):
    rng = np.random.default_rng(seed)
    labels = np.unique(np.append(np.arange(count), rng.integers(0, count, 6)), return_inverse=True)[1]
    values = mirrored(rng.random((len(labels), len(labels))) * (rng.random((len(labels), len(labels))) > 0.2))
    expected = sklearn.metrics.silhouette_score(values, labels, metric="precomputed")
    assert silhouette(values, labels) == pytest.approx(expected)
    assert silhouette(values, np.zeros(len(labels), int)) == 0


@given(st.integers(4, 7), SEEDS)
def test_segments_are_the_best_of_all(layers, seed):
    values = mirrored(np.random.default_rng(seed).random((layers, layers)))
    costs, starts = divide(values, layers)

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
        assert find_spectral_clusters(values, False, count=count).count == count
        assert find_contiguous_segments(values, False, count=count).count == count


def test_a_layer_and_its_copy_are_no_sub_network():
    values = 1 - np.eye(31)
    values[4, 5] = values[5, 4] = 0
    near = convert_to_affinities(values, False)
    assert near[4, 5] == 4 * near[0, 1]
    assert near.diagonal().tolist() == [0] * 31
    assert [found.count for found in both_ways(values)] == [1, 1]
    assert convert_to_affinities(np.array([[1, -0.2], [-0.2, 1]]), True).tolist() == [[0, 0], [0, 0]]


def test_affinities_are_inverse_distances_from_a_quarter_of_their_median_on():
    """Distances 0, 1, 2, 4, 8 and 16, whose median is 4 without the 0; both directions are averaged."""
    values = mirrored(np.array([[0, 0, 4, 16], [0, 0, 1, 8], [0, 0, 0, 2], [0, 0, 0, 0.0]]))
    near = convert_to_affinities(values + np.triu(values) - np.tril(values), False)
    expected = mirrored(np.array([[0, 1, 1 / 4, 1 / 16], [0, 0, 1, 1 / 8], [0, 0, 0, 1 / 2], [0, 0, 0, 0]]))
    np.testing.assert_allclose(near, expected)


def test_layers_of_which_most_are_the_same_have_surrogates():
    """The first and the last, the only ones so far apart, may be the same too."""
    at = np.array([0, 1] + [0] * 9)
    values = np.abs(at[:, None] - at).astype(float)
    assert all(np.isfinite(other).all() and (other >= 0).all() for other in draw_surrogates(values))


@given(SIZES, SEEDS)
def test_clusters_are_scikit_learns(sizes, seed):
    _, values = planted(sizes, seed, contrast=2.0, noise=0.4)
    near = convert_to_affinities(values, False)
    vectors = decompose_walk(near)
    for count in (2, 3, 5):
        theirs = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
        assert compare_partitions(cluster_eigenvectors(vectors[:, :count]), theirs.fit_predict(near)) == 1


@given(SEEDS)
def test_agreement_is_scikit_learns(seed):
    one, other = np.random.default_rng(seed).integers(0, 4, (2, 15))
    assert compare_partitions(one, other) == pytest.approx(sklearn.metrics.adjusted_rand_score(one, other))
    assert compare_partitions([0] * 5, ["a"] * 5) == 1


def test_given_groups_hold_every_layer_once():
    assert parse_ranges(["2-3", "0 1 4"], 5).tolist() == [1, 1, 0, 0, 1]
    for groups, message in (
        (["0-5"], r"no range of its 5 layers, got '0-5'; write e.g. 0-4"),
        (["x"], r"no range of its 5 layers, got 'x'; write e.g. 0-4"),
        (["0-4", "2"], r"a layer is in one group only, got '2' again; drop it"),
        (["0-2 4"], r"all of its 5 layers are needed, got none for 3; put it in a group"),
    ):
        with pytest.raises(BadInput, match=message):
            parse_ranges(groups, 5)


@pytest.mark.parametrize("directions", [1, 2])
def test_layers_that_wander_in_few_directions_are_no_clearer_than_walks(directions):
    """They fall into groups far more often than in one draw of 20, but not more clearly than other walks do."""
    rng, groups, beyond = np.random.default_rng(directions), 0, 0
    for _ in range(20):
        x = rng.normal(size=(20, directions)).cumsum(0)
        apart = np.linalg.norm(x[:, None] - x, axis=2)
        found = find_sub_networks(apart, [f"h{i}" for i in range(20)], False, SubNetworks(method="segments"), None)
        groups += found.groups["segments"].count > 1
        beyond += found.walks.get("segments") == "yes"
    assert groups >= 5
    assert beyond <= 3


@pytest.mark.parametrize("larger", [False, True])
def test_planted_groups_are_clearer_than_walks(larger):
    x = 6 * np.eye(3)[np.arange(24) // 8] + np.random.default_rng(0).normal(size=(24, 3))
    apart = np.linalg.norm(x[:, None] - x, axis=2)
    values = apart.max() - apart if larger else apart
    found = find_sub_networks(values, [f"h{i}" for i in range(24)], larger, SubNetworks(), None)
    assert found.walks == {"spectral": "yes", "segments": "yes"}
    chosen = find_sub_networks(values, [f"h{i}" for i in range(24)], larger, SubNetworks(clusters=3), None)
    assert chosen.walks == {}  # nothing was found


def test_what_is_recorded_is_in_the_order_of_the_network():
    labels, values = planted((6, 6), 0)
    names = [f"{kind}@{block}" for kind in "abcdef" for block in range(2)]
    shuffled = [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]  # by kind, as hook points are asked for
    given = parse_ranges(["0-2 6-8", "3-5 9-11"], 12)
    found = find_sub_networks(values[np.ix_(shuffled, shuffled)], names, False, SubNetworks(), given)
    assert found.layers == [f"{kind}@{block}" for block in range(2) for kind in "abcdef"]
    np.testing.assert_allclose(found.following, values.diagonal(1))
    assert [groups.labels.tolist() for groups in found.groups.values()] == [labels.tolist()] * 2
    own = pytest.approx(sklearn.metrics.adjusted_rand_score(labels, [0, 0, 0, 1, 1, 1] * 2))
    assert found.agreement == {
        "spectral and segments": 1,
        "spectral and transformer blocks": 1,
        "segments and transformer blocks": 1,
        **{f"{one} and given": own for one in ("spectral", "segments", "spectral, as many,", "segments, as many,")},
    }
    made = make_tables({"gw": {"m": found}})
    assert [row[:5] for row in made["sub-networks"].rows] == [
        ["gw", "m", "spectral", 2, "0-5, 6-11"],
        ["gw", "m", "segments", 2, "0-5, 6-11"],
    ]
    lines = make_curves({"gw": {"m": found}}, {"gw": "GW"})
    assert lines["sub-networks, gw, m"].at == found.layers
    assert lines["sub-networks, gw, m"].lines == {
        **dict.fromkeys(["spectral", "segments"], labels.tolist()),
        **dict.fromkeys(["spectral, as many as given", "segments, as many as given"], labels.tolist()),
    }
    following = lines["to the next layer, gw, m"]
    assert (following.at, str(following.y)) == (found.layers[:-1], "GW")
    scores = lines["scores of spectral, gw, m"]
    assert (scores.at, scores.lines["silhouette"]) == ([2, 3, 4, 5, 6], list(found.groups["spectral"].scores.values()))
    assert scores.lines["without groups"] == list(found.groups["spectral"].reference.values())
    of_it = choose_clustered([found], SubNetworks(), given)
    assert (of_it.counts, [x.tolist() for x in of_it.labels], of_it.given) == ([2], [labels.tolist()], given)
    assert choose_clustered([found], SubNetworks(clusters=2), None).counts == []
    assert choose_clustered([], SubNetworks(), None) == Clustered([], [], None, [])
    one = find_sub_networks(
        values, [f"h{i}" for i in range(12)], False, SubNetworks(method="segments", clusters=3), None
    )
    assert list(one.groups) == ["segments"]
    assert one.groups["segments"].count == 3
    assert one.agreement == {}
    gradient = np.abs(np.arange(12)[:, None] - np.arange(12.0))
    none = find_sub_networks(gradient, [f"h{i}" for i in range(12)], False, SubNetworks(), None)
    assert (none.groups["spectral"].count, none.agreement) == (1, {})  # one group each: no agreement
    assert list(make_tables({"gw": {"m": none}})) == ["sub-networks"]
    assert [name.partition(",")[0] for name in make_curves({"gw": {"m": one}}, {"gw": "GW"})] == [
        "sub-networks",
        "to the next layer",
        "scores of segments",
    ]


@pytest.mark.parametrize(("count", "overview"), [(3, True), (4, False)])
def test_few_models_have_figures_of_their_layers(tmp_path, count, overview):
    """The overview has them; on demand all models have."""
    labels = [f"m{i}" for i in range(count)]
    found = {label: find_sub_networks(planted((6, 6), 0)[1], [f"h{i}" for i in range(12)], False, SubNetworks(), None) for label in labels}  # fmt: skip
    lines = {name: replace(curve, analysis="sub_networks") for name, curve in make_curves({"cka": found}, {"cka": "CKA"}).items()}  # fmt: skip
    sides = [Side(model=label, layers=found[label].layers) for label in labels]
    matrices = [Matrix(rows=side, columns=side) for side in sides]
    measured = Measured(name="cka", label="cka", settings={}, estimate={}, card={}, matrices=matrices)
    whole = Results(study="similarity", measures=[measured], curves=lines)
    run = Finished(folder=tmp_path, manifest={}, results=whole)
    names = [f"cka-{label}-layers" for label in labels]
    assert [name for name, _ in sub_networks.draw_figures(run, False)] == (names if overview else [])
    assert [name for name, _ in sub_networks.draw_figures(run, True)] == names
    assert [name for name, _ in map_figures.draw_figures(run, False)] == ([] if overview else ["cka-panels"])


def test_closest_layers():
    near = {"names": ["a", "b", "c", "d"], "values": {"c1": np.array([0.5, 0.2, 0.21, 0.9])}}
    found = targets.make_tables({"gw": {"m": Near(**near)}, "cka": {"m": Near(**near, larger_is_closer=True)}})
    assert found["closest to targets"].rows == [["gw", "m", "c1", "b", 0.2, 1], ["cka", "m", "c1", "d", 0.9, 0]]
    ranked = found["layers by target"].rows
    assert [row[4] for row in ranked] == ["b", "c", "a", "d", "d", "a", "c", "b"]
    assert ranked[1] == ["gw", "m", "c1", 2, "c", 0.21]
    assert targets.rank_layers(np.ones(3)) == [0, 1, 2]


def test_claims_on_targets():
    names = [f"{kind}@{block}" for block in range(14) for kind in ("resid_pre", "attn_scores.h0", "resid_post")]
    at = np.arange(42)
    near = Near(names=names, values={"c1": np.abs(at - 2.0), "c2": np.abs(at - 4.0), "c3": np.abs(at - 5.5)})
    claims = (
        targets.c1_is_nearest_to_the_first_block,
        targets.c2_is_nearest_to_the_second_block,
        targets.c_is_near_the_last_blocks,
    )
    found = [claim([near] * 5) for claim in claims]
    assert [judgement.value for judgement in found] == [1, 0, 1]
    similar = Near(names=names, values={c: -x for c, x in near.values.items()}, larger_is_closer=True)
    assert [claim([similar] * 5) for claim in claims] == found
    assert [(judgement.verdict, judgement.units) for judgement in found] == [("holds", 5), ("fails", 5), ("holds", 5)]
    few = Near(names=names[:9], values={c: x[:9] for c, x in near.values.items()})
    assert [claim([few] * 5).verdict for claim in claims] == ["unclear", "fails", "unclear"]  # 1 in 9 is by chance
    why = (
        "no p below 0.5 can be reached (1 seed, each as likely so as not, and by chance among 42 layers); needs 5 seeds"
    )
    assert (claims[0]([near]).verdict, claims[0]([near]).why) == ("not testable here", why)
    assert [claim([Near()]).why for claim in claims] == [
        "needs 5 models trained block by block with resid_post@0, and options.targets with c1",
        "needs 5 models trained block by block with resid_post@1, and options.targets with c2",
        "needs 5 models trained block by block with resid_post@1 and resid_post@2, and options.targets with c3",
    ]


def test_claims_on_sub_networks():
    three = layer_wise_training_gives_three_groups
    counts = ([3] * 5, [4] * 5, [3, 3, 3, 1, 1], [3])
    apart = [planted((8, 12, 10), seed)[1] for seed in range(5)]
    verdicts = [three(Clustered(x, apart=apart[: len(x)])).verdict for x in counts]
    assert verdicts == ["holds", "fails", "unclear", "not testable here"]
    why = "needs 5 models trained block by block, and sub_networks with spectral clusters to be chosen"
    assert three(Clustered()).why == why
    labels, given = [0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2, 1]
    published = layer_wise_groups_are_the_published(Clustered(labels=[np.array(labels)], given=np.array(given)))
    assert published.value == pytest.approx(sklearn.metrics.adjusted_rand_score(labels, given))
    assert (published.verdict, published.why) == ("not testable here", "needs 3 seeds with a value, got 1 seed")
    why = "needs sub_networks.given of a model trained block by block, and 3 seeds of it"
    assert layer_wise_groups_are_the_published(Clustered([3])).why == why


def test_claims_on_the_layers_of_single_models():
    names = [f"{kind}@{block}" for block in range(3) for kind in ("resid_pre", "attn_scores.h0", "resid_post")]
    at = np.arange(9)
    steps = np.abs(at[:, None] - at).astype(float)
    flat = np.ones((9, 9)) - np.eye(9)
    ends = [np.where((at[:, None] > 5) & (at > 5), near, 1.0) * flat for near in (0.09, 0.1, 0.11)]
    whole = TrainedLayers(
        names={BY_BLOCK: names, END_TO_END: names, ONE_SUM: names[:3]},
        apart={
            BY_BLOCK: [steps * x for x in (0.9, 1, 1.1)],
            END_TO_END: ends,
            ONE_SUM: [mirrored(np.array([[0, 3, 9], [0, 0, 2.0], [0, 0, 0]]))],
        },
    )
    alike, larger = modular_layers.end_to_end_training_ends_alike, modular_layers.layer_wise_distances_are_larger
    pattern, first = modular_layers.training_changes_the_pattern, modular_layers.attention_makes_the_first_differences
    assert alike(whole).value == pytest.approx(np.log([0.09, 0.1, 0.11]).mean())
    assert (alike(whole).verdict, alike(whole).units) == ("holds", 3)
    sums = [np.log([x.sum() for x in found]).mean() for found in (whole.apart[BY_BLOCK], ends)]
    assert larger(whole).value == pytest.approx(sums[0] - sums[1])
    assert larger(whole).verdict == "holds"
    assert (pattern(whole).verdict, pattern(whole).units, first(whole).value) == ("holds", 3, None)
    even = replace(whole, apart={**whole.apart, END_TO_END: [flat] * 3})
    assert "end to end do not grow with the layers between (rho = nan, 0.3 is needed)" in pattern(even).why
    other = TrainedLayers(
        names={END_TO_END: names[:3], BY_BLOCK: names}, apart={END_TO_END: [flat[:3, :3]], BY_BLOCK: [flat]}
    )
    assert alike(other).why == "needs a last block of two layers, and one before it"
    assert larger(other).why == "needs four layers of each"
    assert pattern(other).why == "the two models have different layers"
    assert first(other).why == "needs 3 seeds trained on one sum"
    fewer = replace(whole, apart={**whole.apart, END_TO_END: whole.apart[END_TO_END][:2]})
    assert pattern(fewer).why == "needs as many seeds trained block by block as end to end, got 3 and 2"
    plain = TrainedLayers(names={ONE_SUM: ["resid_pre@0", "z@0.h0"]}, apart={ONE_SUM: [flat[:2, :2]]})
    assert first(plain).why == "no attention map is among the layers"
    assert larger(plain).why == "needs 3 seeds trained block by block and end to end"
    # too few layers give no number at all
    for count in (1, 2):
        trainings = (ONE_SUM, END_TO_END, BY_BLOCK)
        few = TrainedLayers(
            names=dict.fromkeys(trainings, ["pattern@0.h0", "z@0.h0"][:count]),
            apart={training: [flat[:count, :count]] for training in trainings},
        )
        assert pattern(few).why == "needs four layers of each"
        assert first(few).why == "needs three layers, and two in a row that are no attention map"
        assert larger(few).why == "needs four layers of each"


def test_pairs_that_are_not_wanted_are_skipped():
    x = [torch.randn(12, 3, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    of = torch.tensor([0, 0, 1, 1])
    wanted = of[:, None] == of
    for name in ("gromov_wasserstein", "hard_correlation_match", "mutual_knn", "cka"):
        bound = {name: measures.get(name)}
        whole, part = (compute_all_pairs(bound, x, wanted=which)[name] for which in (None, wanted))
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


def words(networks, *labels, **settings):
    """settings: options of the study, or whole keys."""
    entries = [f"+model.{label}={{kind: precomputed, path: {networks / label}.npz}}" for label in labels]
    whole = ("claims", "+analyses")
    given = [f"{'' if key.startswith(whole) else '+options.'}{key}={value}" for key, value in settings.items()]
    return ["run", "model=[]", *entries, "extract.estimate=full", "extract.rows=40", "hardware.threads=1", *given]


@pytest.mark.slow
@pytest.mark.drawn
def test_planted_networks_from_the_command_line(repsim, newest, networks):
    options = ["+options.within=true", "+options.targets=sums"]
    given = "+analyses.sub_networks={given: {blocks: [0-3, 4-7, 8-11]}}"
    wanted = "claims=[layer_wise_training_gives_three_groups,attention_makes_the_first_differences,c_is_near_the_last_blocks]"
    code, out, err = repsim(*words(networks, "blocks", "even", "sums"), *options, given, wanted, "measure=[gromov_wasserstein,cka]")  # fmt: skip
    assert code == 0, err
    folder, found = newest(), reader.read_results(newest())
    for measure in found.measures:
        sides = [(m.rows.model, m.columns.model) for m in measure.matrices]
        assert sides == [("blocks", "blocks"), ("blocks", "sums"), ("even", "even"), ("even", "sums"), ("sums", "sums")]
    rows = {tuple(row[:3]): row[3:5] for row in found.tables["sub-networks"].rows if row[0] == "gromov_wasserstein"}
    assert {model for _, model, _ in rows} == {"blocks", "even"}
    assert rows["gromov_wasserstein", "blocks", "segments"] == [3, "0-3, 4-7, 8-11"]
    assert rows["gromov_wasserstein", "blocks", "spectral"] == [3, "0-3, 4-7, 8-11"]
    assert rows["gromov_wasserstein", "even", "spectral"] == [1, "0-11"]
    agreed = {tuple(row[:3]): row[3] for row in found.tables["agreement of sub-networks"].rows}
    assert agreed["gromov_wasserstein", "blocks", "spectral and given"] == 1
    assert found.curves["sub-networks, cka, even"].analysis == "sub_networks"
    closest = {tuple(row[:3]): row[3:5] for row in found.tables["closest to targets"].rows}
    for measure in found.measures:
        values = np.load(folder / measure.matrices[1].values)[:, 0]
        best = values.argmin() if measure.name == "gromov_wasserstein" else values.argmax()
        assert closest[measure.label, "blocks", "c1"] == [f"h{best}", pytest.approx(values[best])]
        assert 4 <= best < 8
    assert {verdict.name: verdict.why for verdict in found.claims} == {
        "layer_wise_training_gives_three_groups": "needs 5 models trained block by block, and sub_networks with spectral clusters to be chosen",
        "attention_makes_the_first_differences": "needs 3 seeds trained on one sum",
        "c_is_near_the_last_blocks": "needs 5 models trained block by block with resid_post@1 and resid_post@2, and options.targets with c3",
    }  # fmt: skip
    figures = {file.stem for file in (folder / "figures").glob("*.png")}
    assert figures == {
        *(f"{name}-{model}-layers" for name in ("gromov_wasserstein", "cka") for model in ("blocks", "even")),
        *(f"measures-{model}-{model}" for model in ("blocks", "even")),
    }
    assert "gromov_wasserstein-blocks-layers.png" in out
    assert repsim("plot", newest(), "--all")[0] == 0
    figures = {file.stem for file in (folder / "figures").glob("*.png")}
    assert "cka-00-02-blocks-sums" in figures
    # what is made anew keeps its claims, and its options where no others are given
    code, _, err = repsim("analyse", newest(), "+analyses.sub_networks={clusters: 2}")
    assert code == 0, err
    assert repsim("analyse", newest(), "claims=[layer_wise_groups_are_the_published]")[0] == 0
    again = reader.read_results(newest())
    assert again.analyses["sub_networks"]["options"]["clusters"] == 2
    assert {row[3] for row in again.tables["sub-networks"].rows} == {2}
    names = {verdict.name for verdict in again.claims}
    assert names == {verdict.name for verdict in found.claims} | {"layer_wise_groups_are_the_published"}
    assert not [name for name in figures if name.endswith("-all") or name.startswith("cka-00-00")]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (("blocks", "sums"), {"targets": "sum"}, "options.targets: no such model, got 'sum'; did you mean"),
        (("sums",), {"targets": "sums"}, "options.targets: a model to compare with is needed, got 'sums' alone; add one"),
        (("blocks", "even"), {"within": "true", "+analyses.localization": "{}"}, "options.within: analyses.localization needs the layers of all models, got pairs within models alone; drop one"),
        (("blocks", "even"), {"within": "true", "claims": "[early_layers_agree]"}, "options.within: claims needs the layers of all models"),
        (("sums",), {"+analyses.sub_networks": "{}"}, "analyses.sub_networks: 4 layers of a model are needed, got 1; read more"),
        (("blocks",), {"+analyses.sub_networks": "{clusters: 13}"}, "analyses.sub_networks.clusters: more than the layers of 'blocks', got 13 of 12; lower it"),
        (("blocks",), {"+analyses.sub_networks": "{given: {block: [0-11]}}"}, "analyses.sub_networks.given: no such model, got 'block'; did you mean"),
        (("blocks",), {"+analyses.sub_networks": "{given: {blocks: [0-10]}}"}, "analyses.sub_networks.given.blocks: all of its 12 layers are needed, got none for 11; put it in a group"),
        (("blocks",), {"+analyses.sub_networks": "{method: spectra}"}, "analyses.sub_networks.method: wrong value, got 'spectra'; give"),
        (("blocks", "short"), {"targets": "short"}, "model: models have different numbers of rows, got blocks: 40, short: 30; rows must be paired"),
    ],
)  # fmt: skip
def test_what_is_asked_of_single_models_is_checked(repsim, networks, labels, options, message):
    code, _, err = repsim(*words(networks, *labels, **options), "measure=[cka]")
    assert code == 2
    assert err.startswith(f"error: {message}")


def test_heads_stand_together_on_crowded_axes():
    names = [f"q@{block}.h{head}" for block in range(2) for head in range(4)]
    assert merge_head_names([*names, "resid_post@1"]) == [(1.5, "q@0"), (5.5, "q@1"), (8.0, "resid_post@1")]
