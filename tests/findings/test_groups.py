"""Groups of models: pairs, bands, permuted labels, distances and clusters, on planted groups and on none."""

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from helpers.grouped_models import models, planted, symmetric

from repsim_cli import measures
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.findings.analyse import add_part, find_analysis_card
from repsim_cli.findings.analysis import Finished, Part
from repsim_cli.findings.distances import (
    build_linkage_tree,
    cluster_models,
    combine_layer_distances,
    compute_adjusted_rand,
    compute_recovery,
    convert_to_angles,
    make_group_distances,
)
from repsim_cli.findings.evidence import list_group_arrangements
from repsim_cli.findings.groups import (
    Depths,
    group_layers_by_point,
    make_curves,
    pair_models_by_group,
)
from repsim_cli.findings.permuted_groups import compute_labelling_separations, compute_separation, find_smallest_p
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import Facts, Matrix, Measured, Results, Side

GROUPS = {"a": ["u", "v", "w"], "b": ["x", "y"]}


def test_every_pair_stands_in_one_kind():
    found = pair_models_by_group(GROUPS)
    assert {kind: len(pairs) for kind, pairs in found.items()} == {("a", "a"): 3, ("a", "b"): 6, ("b", "b"): 1}
    assert sorted(itertools.chain(*found.values())) == list(itertools.combinations(range(5), 2))
    published = pair_models_by_group(models(10, 10))
    assert [len(pairs) for pairs in published.values()] == [45, 100, 45]


def by_depth(depths, *, level=0.95, bounds=(None, None)):
    """The curves by kind of pair."""
    layers = [f"h{i}" for i in range(len(depths.shares))]
    made = make_curves("cka", "CKA", "layers", layers, depths, level=level, bounds=bounds)
    return {tuple(curve.about["pairs_of"]): curve for curve in made.values()}


def test_means_by_depth_take_both_directions_of_a_pair():
    values = np.random.default_rng(0).normal(size=(5, 5, 2))
    found = by_depth(Depths(GROUPS, values, np.array([0.5, 1.0]), True))
    between = [(values[i, j] + values[j, i]) / 2 for i in range(3) for j in (3, 4)]
    curve = found["a", "b"]
    np.testing.assert_allclose(curve.mean, np.mean(between, 0))
    np.testing.assert_allclose(list(curve.lines.values()), between)
    assert list(curve.lines)[1] == "u and y"
    assert (curve.at, curve.about["shares"]) == (["h0", "h1"], [0.5, 1.0])
    assert list(found["b", "b"].lines) == ["x and y"]
    # of two models nothing tells how they vary
    assert [list(each.bands) for each in found.values()] == [["models"], [], []]


@pytest.mark.parametrize("sizes", [(3, 3), (4, 3), (5, 5), (10, 4), (20, 3)])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_bands_cover_what_they_promise(sizes, noise):
    """Values made of an effect of each of two models, and of noise of the pair: many pairs, but few models."""
    rng, count = np.random.default_rng(1), sum(sizes)
    depths = 400  # as many draws
    effects, pairs = rng.normal(size=(count, depths)), noise * symmetric(rng, count, depths) / 2**0.5
    values = effects[:, None] + effects[None] + pairs
    for curve in by_depth(Depths(models(*sizes), values, np.ones(depths), True)).values():
        band = curve.bands["models"]
        covers = np.mean((np.array(band.low) <= 0) & (np.array(band.high) >= 0))
        error = (0.95 * 0.05 / depths) ** 0.5
        assert covers >= 0.95 - 3 * error
        if not noise:
            assert covers <= 0.95 + 3 * error


def test_bands_are_t_intervals_without_each_model():
    values = symmetric(np.random.default_rng(2), 7, 2)
    depths = Depths(models(4, 3), values, np.array([0.5, 1.0]), True)
    found = by_depth(depths, level=0.9)
    within = [
        np.mean([values[i, j, 1] for i, j in itertools.combinations(range(4), 2) if model not in (i, j)])
        for model in range(4)
    ]
    band, half = found["a", "a"].bands["models"], scipy.stats.t.ppf(0.95, 3) * np.std(within) * 3**0.5
    mean = found["a", "a"].mean[1]
    np.testing.assert_allclose([band.low[1], band.high[1]], [mean - half, mean + half])
    assert band.of == "90 % over models"
    across = [
        np.var([np.mean(np.delete(values[:4, 4:, 1], i, axis)) for i in range(count)]) * (count - 1)
        for axis, count in ((0, 4), (1, 3))
    ]
    freedom = sum(across) ** 2 / (across[0] ** 2 / 3 + across[1] ** 2 / 2)
    band, half = found["a", "b"].bands["models"], scipy.stats.t.ppf(0.95, freedom) * sum(across) ** 0.5
    np.testing.assert_allclose(band.high[1] - found["a", "b"].mean[1], half)


def test_bands_stay_within_what_a_measure_can_be():
    values = np.random.default_rng(3).uniform(0.9, 1, size=(3, 3, 5))
    band = by_depth(Depths(models(3), values, np.ones(5), True), bounds=(0.0, 1.0))["a", "a"].bands["models"]
    assert max(band.high) == 1.0
    assert min(band.low) >= 0.0


def test_depths_are_shares_of_the_blocks():
    layers = ["embed", "mlp_out@0", "mlp_out@3", "q@1.h0", "q@1.h1", "module:lm_head"]
    points = group_layers_by_point(Facts(kind="live", family="bert", layers=layers, widths=[4] * 6, blocks=4))
    assert points == {
        "embed": ([0], [0.0]),
        "mlp_out": ([1, 2], [0.25, 1.0]),
        "q": ([3, 4], [0.5, 0.5]),
        "module:lm_head": ([5], [0.0]),
    }
    stored = Facts(kind="stored", family="a", layers=["in@5", "out@9"], widths=[4, 4])
    assert group_layers_by_point(stored) == {"layers": ([0, 1], [0.5, 1.0])}


def test_arrangements_are_all_of_their_sizes():
    labels, exact = list_group_arrangements(np.array([0, 0, 1, 1, 1, 2]), 0)
    assert exact
    assert len(labels) == len(np.unique(labels, axis=0)) == 60
    assert (np.sort(labels, axis=1) == [0, 0, 1, 1, 1, 2]).all()
    own = np.repeat([0, 1], 12)
    labels, exact = list_group_arrangements(own, 0)
    assert not exact
    assert len(labels) == 10_000
    assert (labels[0] == own).all()
    assert (labels.sum(1) == 12).all()
    assert find_smallest_p(models(10, 10)) == 2 / 184_756
    assert find_smallest_p(models(3, 2)) == 0.1
    assert find_smallest_p(models(12, 12)) == 1e-4


def test_separation_is_between_minus_within():
    values = symmetric(np.random.default_rng(3), 5)[..., 0]
    within = [values[i, j] for i, j in ((0, 1), (0, 2), (1, 2), (3, 4))]
    between = [values[i, j] for i in range(3) for j in (3, 4)]
    found = compute_separation(values, GROUPS, 0)
    assert found.value == pytest.approx(np.mean(between) - np.mean(within))
    labels, _ = list_group_arrangements(np.array([0, 0, 0, 1, 1]), 0)
    assert found.p == np.mean(compute_labelling_separations(values, labels) >= found.value - 1e-12)
    assert (found.arrangements, found.exact) == (10, True)


def test_adjusted_rand_is_scikit_learns():
    rng = np.random.default_rng(4)
    labels, found = rng.integers(0, 3, (20, 9)), rng.integers(0, 4, 9)
    expected = [sklearn.metrics.adjusted_rand_score(row, found) for row in labels]
    np.testing.assert_allclose(compute_adjusted_rand(labels, found), expected, atol=1e-12)
    assert compute_adjusted_rand(np.array([[0, 1, 2], [1, 0, 2]]), np.array([4, 5, 6])).tolist() == [1, 1]


def test_distances_by_hand():
    cosines = np.ones((2, 2, 3))
    cosines[0, 1] = cosines[1, 0] = [0.5, 0.0, 1 + 1e-9]
    third, half = np.pi / 3, np.pi / 2
    np.testing.assert_allclose(
        combine_layer_distances(convert_to_angles(cosines)), np.hypot(third, half) * (1 - np.eye(2))
    )
    assert convert_to_angles(np.array([[[-1.0]]])).item() == np.pi
    with pytest.raises(BadInput, match=r"no cosine, got 1.2; arccos needs values from -1 to 1"):
        convert_to_angles(cosines * 1.2)


@pytest.mark.parametrize("name", ["cka", "cka_unbiased", "cka_rbf"])
def test_distances_are_a_metric(name):
    """Distances are of means over batches, negative ones among them."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(4, 8, 30, 2, generator=generator)
    batches = []
    for _ in range(3):
        noise = torch.randn(4, 8, 30, 2, generator=generator)
        batches.append(
            [(x * (i % 2)) + y for i, (x, y) in enumerate(zip(shared.flatten(0, 1), noise.flatten(0, 1), strict=True))]
        )
    found, _ = estimate_all_pairs(
        {"m": measures.get(name)}, lambda seen: iter(batches), names=[str(i) for i in range(32)], estimate="per_batch"
    )
    values = found["m"].values.numpy()
    if name == "cka_unbiased":
        assert (values < 0).any()
    at = np.arange(32).reshape(8, 4)
    whole = combine_layer_distances(convert_to_angles(values[at[:, None], at[None]]))
    assert (whole >= 0).all()
    assert (whole == whole.T).all()
    for i, j, k in itertools.permutations(range(8), 3):
        assert whole[i, k] <= whole[i, j] + whole[j, k] + 1e-9


def test_planted_groups_are_found():
    rng = np.random.default_rng(5)
    groups = models(5, 5)
    found = make_group_distances(groups, combine_layer_distances(planted(rng)), 0)
    for agreed in found.agreement.values():
        assert vars(agreed) == {
            "value": 1.0,
            "p": pytest.approx(2 / 252),
            "opposite_p": 1.0,
            "arrangements": 252,
            "exact": True,
            "models": 10,
            "wide": "",
        }
    assert list(found.clusters) == ["hierarchical", "spectral"]
    assert build_linkage_tree(found.values).shape == (9, 4)


def test_no_groups_are_not_found():
    """p values of groups that are not there are spread over (0, 1]."""
    rng = np.random.default_rng(6)
    groups = models(5, 5)
    whole = [combine_layer_distances(planted(rng, apart=0.0)) for _ in range(60)]
    apart = [compute_separation(one, groups, 0).p for one in whole]
    found = [compute_recovery(groups, own, 0).p for one in whole for own in cluster_models(one, 2).values()]
    assert np.mean(np.array(apart) <= 0.05) <= 0.12
    assert np.mean(np.array(found) <= 0.05) <= 0.12
    assert 0.3 < np.mean(apart) < 0.7


def test_copies_have_no_clusters(tmp_path):
    copies = Depths(models(2, 2), np.ones((4, 4, 3)), np.ones(3), True)
    run, message = (
        folder_of(copies, tmp_path),
        "half of the pairs of models are the same, got a median of 0; drop copies",
    )
    with pytest.raises(BadInput, match=f"^cka, layers: {message}"):
        find_analysis_card("distances").compute(run, find_analysis_card("distances").options(), [])


def test_matrices_whose_names_give_one_file_name_have_two_files(tmp_path):
    run = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
    side = Side(model="models", layers=["a"])
    made = {name: (np.full((1, 1), value), Matrix(rows=side, columns=side)) for name, value in (("a b", 1.0), ("a_b", 2.0))}  # fmt: skip
    found = add_part(run, Results(study="similarity"), "distances", Part(matrices=made), {})
    assert [reader.read_array(run.folder, x.values).item() for x in found.matrices.values()] == [1.0, 2.0]
    run.discard()


def folder_of(depths, folder):
    """A finished run of CKA between stored layers of these models."""
    names = [f"h{i}" for i in range(len(depths.shares))]
    labels = [label for members in depths.groups.values() for label in members]
    sides = [Side(model=label, layers=names) for label in labels]
    (folder / "arrays").mkdir()
    matrices = []
    for i, j in itertools.combinations_with_replacement(range(len(labels)), 2):
        file = f"arrays/{i}-{j}.npy"
        np.save(folder / file, np.diag(depths.values[i, j]))
        matrices.append(Matrix(rows=sides[i], columns=sides[j], values=file))
    card = {"label": "CKA", "larger_is_closer": True, "symmetric": True, "is_metric": False, "cosine": True}
    measured = Measured(name="cka", label="cka", settings={}, estimate={}, card=card, matrices=matrices)
    about = asdict(Facts(kind="stored", family="", layers=names, widths=[1] * len(names)))
    manifest = {"seed": 0, "models": labels, "facts": dict.fromkeys(labels, about), "groups": depths.groups}
    return Finished(folder=folder, manifest=manifest, results=Results(study="similarity", measures=[measured]))
