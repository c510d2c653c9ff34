"""Two ways to the same number: measures that theory ties to each other, and to what they are made of."""

import numpy as np
import pytest
import reference
import torch
from helpers.drawn_rows import draw

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.bases import decompose, drop_dead_neurons, nuclear_norm, thin_svd
from repsim_cli.measures.pointwise import euclidean_distance
from repsim_cli.measures.subspaces import make_projector_features

SEEDS = range(5)


def sides(seed, narrow=5):
    """Two representations of different widths."""
    x, y = draw(seed)
    return x, np.tanh(y[:, :narrow])


def value(name, x, y, **settings):
    return measures.get(name, **settings)(x, y)


def centred(z):
    return z - z.mean(0)


def squared_correlations(x, y):
    """rho^2 as eigenvalues of Cx^-1 Cxy Cy^-1 Cyx."""
    x, y = centred(x), centred(y)
    m = np.linalg.solve(x.T @ x, x.T @ y) @ np.linalg.solve(y.T @ y, y.T @ x)
    return np.sort(np.linalg.eigvals(m).real)[::-1][: min(x.shape[1], y.shape[1])]


@pytest.mark.parametrize("seed", SEEDS)
def test_biased_cka_is_rv_normalised_ensd_and_a_distance_covariance_ratio(seed):
    x, y = sides(seed)
    cka = value("cka", x, y)
    a, b = centred(x), centred(y)
    rv = np.trace(a.T @ b @ b.T @ a) / np.sqrt(np.trace((a.T @ a) @ (a.T @ a)) * np.trace((b.T @ b) @ (b.T @ b)))
    assert cka == pytest.approx(rv, abs=1e-12)
    ratios = value("ensd", x, x) * value("ensd", y, y)
    assert cka == pytest.approx(value("ensd", x, y) / np.sqrt(ratios), abs=1e-12)

    def covariance(p, q):
        """Distance covariance (V-statistic) of squared Euclidean distances."""
        d, e = (((z[:, None] - z[None]) ** 2).sum(2) for z in (p, q))
        d, e = (m - m.mean(0) - m.mean(1)[:, None] + m.mean() for m in (d, e))
        return (d * e).mean()

    assert cka == pytest.approx(covariance(x, y) / np.sqrt(covariance(x, x) * covariance(y, y)), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_bures_similarity_is_the_cosine_of_the_angular_shape_distance(seed):
    x, y = sides(seed)
    similarity = value("bures_similarity", x, y)
    assert similarity == pytest.approx(np.cos(value("shape_angular", x, y)), abs=1e-12)
    assert similarity == pytest.approx(1 - value("procrustes", x, y) ** 2 / 2, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_size_and_shape_is_procrustes_of_unit_norms(seed):
    x, y = sides(seed)
    units = [centred(z) / np.linalg.norm(centred(z)) for z in (x, y)]
    assert value("procrustes_size_and_shape", *units) == pytest.approx(value("procrustes", x, y), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_measures_of_the_sum_of_squared_correlations(seed):
    x, y = sides(seed)
    total = squared_correlations(x, y).sum()
    assert value("pillai_trace", x, y) == pytest.approx(total, abs=1e-10)
    assert value("yanai_cca", x, y) == pytest.approx(total / 5, abs=1e-10)
    assert value("eigenspace_overlap", x, y) == pytest.approx(total / 7, abs=1e-10)
    assert value("gulp", x, y) ** 2 == pytest.approx(7 + 5 - 2 * total, abs=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_gulp_is_the_difference_of_ridge_smoothers(seed):
    """lam > 0, more features than rows: G = K (K + n lam)^-1 of Gram matrices of trace n."""
    rng = np.random.default_rng(seed)
    smoothers = []
    raw = rng.normal(size=(20, 30)), rng.normal(size=(20, 25))
    for z in raw:
        gram = centred(z) @ centred(z).T
        gram *= 20 / np.trace(gram)
        smoothers.append(gram @ np.linalg.inv(gram + 20 * 0.1 * np.eye(20)))
    expected = np.linalg.norm(smoothers[0] - smoothers[1])
    assert value("gulp", *raw, lam=0.1) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_regression_from_the_singular_vectors(seed):
    x, y = sides(seed)
    u, s, _ = np.linalg.svd(centred(x), full_matrices=False)
    v = np.linalg.svd(centred(y), full_matrices=False)[0]
    explained = (s**2 * ((v.T @ u) ** 2).sum(0)).sum() / (s**2).sum()
    assert value("linear_regression", x, y) == pytest.approx(explained, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_neuron_against_all_is_a_regression(seed):
    """mixedsim of one neuron is r, linear_regression r^2."""
    x, y = sides(seed)
    one = x[:, :1]
    assert value("mixedsim", one, y) ** 2 == pytest.approx(value("linear_regression", one, y), abs=1e-12)
    assert value("mixedsim", one, y) == pytest.approx(value("mean_cca", one, y), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_unbiased_hsic_does_not_see_offsets(seed):
    x, y = sides(seed)
    assert value("cka_unbiased", x, y) == pytest.approx(value("cka_unbiased", centred(x), centred(y)), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_svcca_and_pwsim_of_all_the_variance_are_cca(seed):
    x, y = sides(seed)
    assert value("svcca", x, y, variance=1.0) == pytest.approx(value("mean_cca", x, y), abs=1e-12)
    assert value("pwsim", x, y, variance=1.0) == pytest.approx(value("pwcca", x, y), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_matchings_of_equally_many_neurons_are_transports(seed):
    """Birkhoff: the best transport between as many neurons is a matching; a copy of every neuron splits its mass."""
    x, y = draw(seed)
    hard, soft = value("hard_correlation_match", x, y), value("soft_matching", x, y)
    assert soft == pytest.approx(hard, abs=1e-12)
    assert value("soft_matching", np.hstack([x, x]), y) == pytest.approx(soft, abs=1e-12)


def test_factorisations_agree():
    """Eigenvectors, refined and not, Cholesky and SVD: one space, one order, whatever the condition."""
    rng = np.random.default_rng(0)
    for decades in (0, 1.5, 3, 4.5, 9, 14):
        scales = np.geomspace(1, 10.0**-decades, 12)
        x = torch.from_numpy(rng.normal(size=(90, 12)) @ np.linalg.qr(rng.normal(size=(12, 12)))[0] * scales)
        x = x @ torch.from_numpy(np.linalg.qr(rng.normal(size=(12, 12)))[0])
        u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        basis = thin_svd(x)
        eye = torch.eye(basis.u.shape[1], dtype=torch.float64)
        torch.testing.assert_close(basis.u.T @ basis.u, eye, atol=1e-11, rtol=0)
        torch.testing.assert_close(basis.u @ basis.loadings, x - x.mean(0), atol=1e-12, rtol=0)
        torch.testing.assert_close(basis.s, s[: len(basis.s)], atol=1e-11, rtol=1e-4)
        # the first 4 directions are those of an SVD, in order
        lead = torch.linalg.svdvals(basis.u[:, :4].T @ u[:, :4])
        torch.testing.assert_close(lead, torch.ones(4, dtype=torch.float64), atol=1e-9, rtol=0)
        for features in (make_projector_features(x).values, decompose(drop_dead_neurons(x), torch.float32).u):
            assert float(torch.linalg.matrix_norm(features @ features.T - basis.u @ basis.u.T)) < 2e-9


FAMILIES = [
    ("mean_cca", "svcca", "pwcca", "pwsim", "mixedsim"),
    ("neuronsim", "hard_correlation_match", "soft_correlation_match", "soft_matching"),
    ("procrustes", "procrustes_size_and_shape", "shape_angular", "bures_similarity", "aligned_cosine"),
    ("permutation_procrustes",),
    ("euclidean",),
    ("cosine",),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_prepares_is_shared(family):
    assert len({measures.get(name).prepare for name in family}) == 1


@pytest.mark.parametrize("name", [name for family in FAMILIES for name in family])
def test_a_permuted_state_is_the_state_of_permuted_rows(name):
    x, y = (torch.from_numpy(side) for side in draw(1))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    measure = measures.get(name)
    found = measure.compare(measure.permute(measure.prepare(x), order), measure.prepare(y))
    assert found == pytest.approx(measure(x[order], y), abs=1e-10)


@pytest.mark.parametrize(
    "name",
    [name for family in FAMILIES for name in family if measures.get(name).compare_all is not None],
)
def test_all_against_others_is_all_pairs(name):
    """compare_all of two different lists, as for a null distribution: every entry is (row a, column b)."""
    (x, y), (z, _) = (map(torch.from_numpy, draw(seed)) for seed in (1, 2))
    measure = measures.get(name)
    rows, columns = ([measure.prepare(side) for side in some] for some in ((x, y), (z, x, y)))
    expected = [[measure(a, b) for b in (z, x, y)] for a in (x, y)]
    np.testing.assert_allclose(measure.compare_all(rows, columns), expected, atol=1e-10)


def test_rank_counts_not_width():
    """A neuron that is the sum of two others adds nothing."""
    x, y = sides(0)
    more = np.hstack([x, x[:, :1] + x[:, 1:2]])
    for name in ("mean_cca", "yanai_cca", "pillai_trace", "eigenspace_overlap", "gulp", "linear_regression"):
        assert value(name, y, more) == pytest.approx(value(name, y, x), abs=1e-9)


@pytest.mark.parametrize("bandwidth", [0.2, 0.4, 3.0])
def test_the_bandwidth_of_a_gaussian_kernel(bandwidth):
    x, y = draw(0)
    expected = reference.cka_rbf(x, y, bandwidth)
    assert value("cka_rbf", x, y, bandwidth=bandwidth) == pytest.approx(expected, abs=1e-10)
    assert abs(expected - value("cka_rbf", x, y)) > 1e-3


@pytest.mark.parametrize("name", ["mean_cca", "yanai_cca", "gulp", "svcca", "mixedsim", "soft_matching"])
def test_dead_neurons_are_dropped_with_a_warning(name):
    x, y = draw(0)
    dead = np.insert(x, 2, 0.7, axis=1)
    with pytest.warns(MeasureWarning, match=r"x: dead neurons were dropped, got 1 of 8 without variance"):
        found = value(name, dead, y)
    assert found == pytest.approx(value(name, x, y), abs=1e-10)


def test_undefined_projection_weights():
    """k_x + k_y > n - 1: correlations of 1 whatever the data."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(13, 7)), rng.normal(size=(13, 6))
    for name, settings in (("pwcca", {}), ("pwsim", {"variance": 1.0})):
        with pytest.raises(Degenerate, match=r"1 whatever the data, got 7 \+ 6 directions in 13 rows; use more rows"):
            value(name, x, y, **settings)
    assert 0 < value("pwcca", x[:, :6], y) < 1


def test_gulp_without_a_ridge_needs_rows():
    x = np.random.default_rng(0).normal(size=(6, 7))
    with pytest.raises(Degenerate, match=r"x: gulp with lam=0 needs more rows than features, got 6 rows of 7 features"):
        value("gulp", x, x[:, :3])


def test_rows_without_a_direction():
    x, y = draw(0)
    x[3] = 0
    with pytest.raises(Degenerate, match=r"x: rows of zeros have no direction, got 1; drop these rows or use euclid"):
        value("cosine", x, y)
    half = np.random.default_rng(0).integers(-9, 9, size=(20, 7)).astype(float)
    around = np.vstack([half, -half, np.zeros(7)])
    with pytest.warns(MeasureWarning, match=r"rows at the mean have no direction, got 1; left out"):
        found = value("aligned_cosine", around, 2 * around)
    assert found == pytest.approx(1, abs=1e-12)


def test_nuclear_norm_keeps_its_digits():
    """float32: by eigenvalues, which lose the small singular values; where these matter, by SVD."""
    rng = np.random.default_rng(0)
    q, r = (np.linalg.qr(rng.normal(size=(60, 60)))[0] for _ in "ab")
    for sigma in (np.ones(60), np.geomspace(1, 1e-6, 60), np.r_[1, np.full(59, 1e-9)], np.r_[np.ones(5), np.zeros(55)]):
        m = torch.from_numpy(q * sigma @ r)
        assert nuclear_norm(m) == pytest.approx(sigma.sum(), rel=1e-14)
        single = m.float()
        exact = float(torch.linalg.svdvals(single.double()).sum())
        assert nuclear_norm(single) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("name", ["procrustes", "shape_angular", "permutation_procrustes", "gulp"])
@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
def test_small_distances_keep_their_digits(name, distance):
    """A little noise: twice of it is twice as far, in float64 and in float32 (whose rounding is noise of 1e-7)."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(200, 6)))
    noise = torch.from_numpy(rng.normal(size=(200, 6)))
    near, far = x + distance / 10 * noise, x + distance / 5 * noise
    found = compute_all_pairs({name: measures.get(name)}, [x, near, far])[name][0]
    assert float(found[2] / found[1]) == pytest.approx(2, rel=distance)
    single = compute_all_pairs({name: measures.get(name)}, [side.float() for side in (x, near, far)])[name][0]
    torch.testing.assert_close(single, found, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("distance", [1.0, 1e-3, 1e-6])
def test_close_rows_keep_their_digits(distance):
    """Rows with a common offset that is large beside their distances."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 6)) + 100
    states = [torch.from_numpy(x + k * distance * rng.normal(size=(200, 6))).float() for k in (0, 1, 3)]
    exact = torch.tensor([[euclidean_distance(a, b) for b in states] for a in states], dtype=torch.float64)
    found = compute_all_pairs({"e": measures.get("euclidean"), "c": measures.get("cosine")}, states)
    torch.testing.assert_close(found["e"], exact, atol=0, rtol=1e-6)
    double = compute_all_pairs({"c": measures.get("cosine")}, [x.double() for x in states])["c"]
    torch.testing.assert_close(found["c"], double, atol=0, rtol=1e-6)
