"""Sub-networks: planted ones are found, none where there are none, and their affinities, segments and surrogates."""

import itertools

import numpy as np
import pytest
import sklearn.metrics
from helpers.nights import nightly
from helpers.sub_network_matrices import mirrored, planted
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import SpectralClustering

from repsim_cli.base.errors import BadInput
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
    SubNetworks,
    find_sub_networks,
)

SEEDS = st.integers(0, 10_000)


SIZES = st.sampled_from([(8, 12, 10), (15, 15), (6, 6, 6, 6, 6), (20, 10), (4, 9, 7)])


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


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.5, 0.9])
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
