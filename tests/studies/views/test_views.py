"""Histograms of distances, neighbours and couplings: hand-computed values, independent formulas, claims."""

import itertools
import re

import numpy as np
import pytest
import torch
from helpers.viewed_rows import counted, rows
from scipy.spatial.distance import cdist, pdist
from scipy.stats import entropy

from repsim_cli.base.errors import Degenerate
from repsim_cli.findings.analysis import Finished
from repsim_cli.measures.gromov_descents import compute_gromov_objective
from repsim_cli.measures.gromov_spaces import prepare_space
from repsim_cli.runs.content import Matrix, Results, Side
from repsim_cli.studies.views import finding_couplings as coupling_findings
from repsim_cli.studies.views import finding_histograms as histogram_findings
from repsim_cli.studies.views import finding_neighbours as neighbour_findings
from repsim_cli.studies.views.couplings import BEST, PUBLISHED, match_rows
from repsim_cli.studies.views.finding_couplings import (
    find_fixed_tail,
    is_permutation,
    measure_class_mass,
    measure_diagonal_mass,
)
from repsim_cli.studies.views.finding_histograms import (
    compute_consecutive_divergences,
    compute_histogram_divergence,
    estimate_divergence_errors,
    fine_tuning_shifts_distances,
    measure_new_shares,
    select_between_blocks,
)
from repsim_cli.studies.views.finding_neighbours import (
    compute_chance_overlap,
    compute_jaccard_overlap,
    measure_staying_shares,
)
from repsim_cli.studies.views.histograms import (
    make_distance_histograms,
    make_jackknife_subsets,
    measure_distance_spreads,
)
from repsim_cli.studies.views.neighbourhoods import find_nearest_rows, project_to_plane
from repsim_cli.studies.views.page import say_shifts


def test_divergence_by_hand():
    """Four distances, of which 3 and 1 fall into the bins, or 1 and 2 of three: shares with half a distance added to
    each."""
    a, b = np.array([3, 1]), np.array([1, 2])
    p, q = (3.5 / 5, 1.5 / 5), (1.5 / 4, 2.5 / 4)
    expected = p[0] * np.log(p[0] / q[0]) + p[1] * np.log(p[1] / q[1])
    assert compute_histogram_divergence(a, b) == pytest.approx(expected, abs=1e-15)
    assert compute_histogram_divergence(b, a) == pytest.approx(entropy(q, p), abs=1e-15)
    assert compute_histogram_divergence(a, b) != compute_histogram_divergence(b, a)
    assert compute_histogram_divergence(a, a) == 0
    far = compute_histogram_divergence(np.array([10, 0]), np.array([0, 10]))
    assert far == pytest.approx(10 / 11 * np.log(21), abs=1e-12)


def test_layers_that_are_drawn_alike_are_not_told_apart():
    """Layers of one Gaussian: no layer is said to change most, and nearest rows stay as often as their p says."""
    rng, p_values = np.random.default_rng(0), []
    for _ in range(40):
        layers = [torch.from_numpy(rng.normal(size=(60, 8))) for _ in range(4)]
        of = make_jackknife_subsets(60)
        spread = [measure_distance_spreads(x, of) for x in layers]
        counts = make_distance_histograms(layers, of, spread, bins=20, scale="none").counts
        values, errors = compute_consecutive_divergences(counts[0]), estimate_divergence_errors(counts[1:])
        lines = [
            {"model": "m", "layer": f"l{i}", "KL(layer || previous)": value, "± KL(layer || previous)": error}
            for i, (value, error) in enumerate(zip(values, errors.tolist(), strict=True))
        ]
        ((_, said),) = say_shifts(lines)
        assert "at no layer more than at the others" in said
        p_values.append(measure_staying_shares(np.stack([find_nearest_rows(x[:16], 5) for x in layers]))[1])
    assert np.mean(np.array(p_values) <= 0.05) < 0.15
    # a layer that spreads is named
    layers[2] *= 3
    spread = [measure_distance_spreads(x, of) for x in layers]
    counts = make_distance_histograms(layers, of, spread, bins=20, scale="none").counts
    for line, value, error in zip(
        lines, compute_consecutive_divergences(counts[0]), estimate_divergence_errors(counts[1:]), strict=True
    ):
        line |= {"KL(layer || previous)": value, "± KL(layer || previous)": float(error)}
    ((_, said),) = say_shifts(lines)
    assert said.startswith("m: distances of rows change most at l")
    assert "leaves empty" not in said
    for line, new in zip(lines, measure_new_shares(counts[0]), strict=True):
        line["in bins empty before"] = new
    ((_, said),) = say_shifts(lines)
    assert re.search(r"nats \(se \S+\) \(\d+ % of them lie in bins that the layer before leaves empty: KL says", said)


def test_the_error_of_a_divergence_is_a_jackknife():
    counts = np.random.default_rng(1).integers(1, 30, (10, 2, 6)).astype(float)
    each = [compute_histogram_divergence(b, a) for a, b in counts]
    expected = np.sqrt(9 / 10 * np.sum((np.array(each) - np.mean(each)) ** 2))
    np.testing.assert_allclose(estimate_divergence_errors(counts), [expected])


def test_rows_that_random_permutations_keep():
    """All orders of five, counted; and many rows."""
    kept = [sum(i == j for i, j in enumerate(order)) for order in itertools.permutations(range(5))]
    for least in range(6):
        assert find_fixed_tail(least, 5) == pytest.approx(np.mean([x >= least for x in kept]), abs=1e-15)
    assert find_fixed_tail(0, 400) == pytest.approx(1)
    assert find_fixed_tail(3, 400) == pytest.approx(1 - 2.5 / np.e, abs=1e-12)  # Poisson of mean 1


@pytest.mark.parametrize("scale", ["none", "mean"])
def test_histograms_share_their_bins(scale):
    """More rows than one block of distances has; the far layer says where the bins end."""
    layers = [rows(600, 3), 4 * rows(600, 5, seed=1)]
    every = np.ones((1, 600), bool)
    plain = [pdist(x.numpy()) for x in layers]
    for x, distances in zip(layers, plain, strict=True):
        expected = [distances.mean(), distances.std(), distances.max()]
        np.testing.assert_allclose(measure_distance_spreads(x, every), [expected], rtol=1e-10)
    made = counted(layers, 20, scale)
    scaled = [distances / distances.mean() if scale == "mean" else distances for distances in plain]
    edges = np.linspace(0, max(distances.max() for distances in scaled), 21)
    np.testing.assert_allclose(made.edges, edges, rtol=1e-12)
    for counts, distances in zip(made.counts[0], scaled, strict=True):
        assert counts.sum() == 600 * 599 // 2
        # a distance may lie on an edge but for rounding
        assert np.abs(counts - np.histogram(distances, edges)[0]).sum() <= 2
    ((one, other),) = counted([layers[0], 3 * layers[0]], 9, "mean").counts
    assert np.abs(one - other).sum() <= 2


@pytest.mark.parametrize("scale", ["none", "mean"])
def test_histograms_without_a_tenth_of_the_rows(scale):
    """Histograms are as if these rows had never been there: their bins end at the largest distance that is left."""
    layers = [rows(600, 3), 4 * rows(600, 5, seed=1)]
    of = make_jackknife_subsets(600)
    assert of.sum(1).tolist() == [600, *[540] * 10]
    assert (~of[1:]).sum(0).tolist() == [1] * 600
    assert np.flatnonzero(~of[3]).tolist() == list(range(120, 180))
    made = counted(layers, 20, scale, of)
    for subset, kept in enumerate(of):
        alone = counted([x[torch.from_numpy(kept)] for x in layers], 20, scale)
        assert np.abs(made.counts[subset] - alone.counts[0]).sum() <= 2
    assert (made.counts[1:].sum(2) == 540 * 539 // 2).all()
    assert make_jackknife_subsets(4).sum(1).tolist() == [4, 3, 3, 3, 3]


def test_rows_that_are_left_may_all_be_equal():
    x = torch.zeros(3, 2)
    x[2] = 1
    made = counted([x, 2 * x], 4, "mean", make_jackknife_subsets(3))
    assert (made.counts.sum(2) == [[3, 3], *[[1, 1]] * 3]).all()


def test_shifts_between_blocks():
    counts = np.array([[3.0, 1], [1, 3], [1, 3], [0, 4]])
    kl = compute_consecutive_divergences(counts)
    assert kl == [
        compute_histogram_divergence(counts[1], counts[0]),
        0,
        compute_histogram_divergence(counts[3], counts[2]),
    ]
    names = ["embed", "resid_post@0", "resid_post@1", "mlp_out@1"]
    assert select_between_blocks(names, kl) == [0]
    assert select_between_blocks(["h0", "h1", "h2", "h3"], kl) == kl  # activations of another program


def test_nearest():
    x = torch.tensor([[0.0], [1.0], [-1.0], [5.0], [5.5]])
    assert find_nearest_rows(x, 2).tolist() == [
        [1, 2],
        [0, 2],
        [0, 1],
        [4, 1],
        [3, 1],
    ]  # of 1 and -1 the earlier one first
    x = rows(60, 4)
    expected = cdist(x, x) + np.diag(np.full(60, np.inf))
    assert find_nearest_rows(x, 7).tolist() == expected.argsort(1)[:, :7].tolist()


def test_overlap_and_what_chance_gives():
    a = np.array([[0, 1, 2, 3, 4]] * 3)
    b = np.array([[4, 3, 2, 1, 0], [0, 1, 2, 8, 9], [5, 6, 7, 8, 9]])
    np.testing.assert_allclose(compute_jaccard_overlap(a, b), [1, 3 / 7, 0])
    # all pairs of sets of 2 among 5 others
    sets = np.array(list(itertools.combinations(range(5), 2)))
    each = [compute_jaccard_overlap(sets, np.roll(sets, step, 0)) for step in range(len(sets))]
    assert compute_chance_overlap(6, 2) == pytest.approx(np.mean(each), abs=1e-12)
    assert compute_chance_overlap(4, 3) == 1


def test_the_plane_keeps_clusters_and_its_seed():
    """Two groups of rows, far apart."""
    x = rows(20, 5)
    x[:10] += 30
    one = project_to_plane(x, perplexity=4.0, seed=0)
    assert one.shape == (20, 2)
    assert np.array_equal(one, project_to_plane(x, perplexity=4.0, seed=0))
    assert not np.array_equal(one, project_to_plane(x, perplexity=7.0, seed=0))
    around = find_nearest_rows(torch.from_numpy(one), 5)
    assert ((around < 10) == (np.arange(20) < 10)[:, None]).all()


@pytest.mark.parametrize(
    "step",
    [
        lambda x: project_to_plane(x, perplexity=2.0, seed=0),
        lambda x: find_nearest_rows(x, 2),
        lambda x: measure_distance_spreads(x, make_jackknife_subsets(8)),
    ],
)
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
    a, b = (prepare_space(side, cost_scale="mean") for side in sides)
    expected = np.zeros((12, 12))
    expected[order, np.arange(12)] = 1 / 12
    for plan in match_rows(a, b, restarts=0, seed=0).values():
        np.testing.assert_array_equal(plan.coupling, expected if first == 0 else expected.T)
        assert is_permutation(plan.coupling)
        assert plan.objective == pytest.approx(0, abs=1e-20)
        assert measure_diagonal_mass(plan.coupling) == pytest.approx((order == np.arange(12)).mean())


def test_the_best_coupling_is_no_worse_than_that_from_pots_start():
    """Both have their objectives as they are laid out: rows of the first side as rows."""
    x = rows(14, 6, seed=5)
    y = x + 0.3 * rows(14, 6, seed=6)  # rows stay near themselves, which POT's start does not know
    for given in ((x, 3 * y), (3 * y, x)):
        one, other = (prepare_space(side, cost_scale="mean") for side in given)
        found = match_rows(one, other, restarts=20, seed=0)
        assert found[BEST].objective < found[PUBLISHED].objective
        assert (found[PUBLISHED].start, found[BEST].start) == ("pot", "principal_axes")
        assert measure_diagonal_mass(found[BEST].coupling) == pytest.approx(1)
        for way, plan in found.items():
            own = compute_gromov_objective(one.distances, other.distances, plan.coupling)
            assert plan.objective == pytest.approx(own, rel=1e-9)
            plain = match_rows(*(prepare_space(side, cost_scale="none") for side in given), restarts=20, seed=0)
            np.testing.assert_array_equal(plain[way].coupling, plan.coupling)  # whatever the scale of the distances
        turned = compute_gromov_objective(one.distances, other.distances, found[PUBLISHED].coupling.T)
        assert found[PUBLISHED].objective != pytest.approx(turned, rel=1e-3)


def test_what_a_coupling_keeps():
    classes = ["a", "a", "b"]
    assert measure_class_mass(np.eye(3)[[1, 0, 2]] / 3, classes) == pytest.approx(1)
    assert measure_class_mass(np.eye(3)[[2, 1, 0]] / 3, classes) == pytest.approx(1 / 3)
    assert not is_permutation(np.full((3, 3), 1 / 9))
    assert not is_permutation(np.array([[0.5, 0], [0.5, 0]]))


GAP = float("nan")


SHIFTS = {"base": [0.1, 0.02, 0.05], **{f"tuned{i}": [0.1, 0.2, 1.5 + 0.1 * i] for i in range(3)}}


@pytest.mark.parametrize(
    ("by_model", "base", "verdict", "value"),
    [
        (SHIFTS, "base", "holds", np.log([1.5, 1.6, 1.7]).mean() - np.log(0.1)),
        (SHIFTS, None, "not testable here", None),
        ({**SHIFTS, "base": []}, "base", "not testable here", None),
        ({"base": [0.1]}, "base", "not testable here", None),
        ({"base": [0.1], "tuned": [0.1]}, "base", "not testable here", 0.0),
        # without a value at some layers, or of the base
        ({**SHIFTS, "base": [GAP, GAP, 0.05]}, "base", "holds", np.log([1.5, 1.6, 1.7]).mean() - np.log(0.05)),
        ({**SHIFTS, "base": [GAP] * 3}, "base", "not testable here", None),
        ({"tuned": [GAP, 0.1]}, "base", "not testable here", None),
    ],
)
def test_a_claim_on_distances(by_model, base, verdict, value):
    judged = fine_tuning_shifts_distances(by_model, base)
    assert judged.verdict == verdict
    assert judged.value == (None if value is None else pytest.approx(value))
    assert judged.why


@pytest.mark.parametrize(("count", "whole", "each"), [(3, False, 3), (4, False, 0), (4, True, 4)])
@pytest.mark.parametrize("topic", [histogram_findings, neighbour_findings, coupling_findings])
def test_figures_of_single_models_where_these_are_few(tmp_path, topic, count, whole, each):
    kind = topic.__name__.rpartition(".finding_")[2]
    sides = [Side(model=f"m{i}", layers=["h0", "h1"]) for i in range(count)]
    about = [{"kind": kind, "model": side.model} for side in sides]
    matrices = {x["model"]: Matrix(rows=side, columns=side, about=x) for side, x in zip(sides, about, strict=True)}
    run = Finished(folder=tmp_path, manifest={}, results=Results(study="views", matrices=matrices))
    assert [name for name, _ in topic.draw_figures(run, whole)] == [f"{kind}-{i:02d}-m{i}" for i in range(each)]
