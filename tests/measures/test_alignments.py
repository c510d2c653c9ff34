"""The map that a measure gives attains its value, whatever the representations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, Degenerate

ROTATED = ["procrustes", "procrustes_size_and_shape", "shape_angular", "bures_similarity", "aligned_cosine"]
MATCHED = ["neuronsim", "hard_correlation_match", "permutation_procrustes"]
CANONICAL = [
    "mean_cca",
    "svcca",
    "pwcca",
    "pwsim",
    "gaussian_mutual_information",
    "yanai_cca",
    "pillai_trace",
    "eigenspace_overlap",
]
ALL = [
    *ROTATED,
    *MATCHED,
    *CANONICAL,
    "soft_correlation_match",
    "mixedsim",
    "linear_regression",
    "soft_matching",
    "gromov_wasserstein",
    "gromov_wasserstein_entropic",
    "wasserstein",
    "coot",
    "augmented_gromov_wasserstein",
]


def sides(seed, wide=5, narrow=3, dead=True):
    """Two representations that share some of their features, of different widths; one neuron is dead."""
    draw = np.random.default_rng(seed)
    shared = draw.normal(size=(40, 3))
    x, y = (shared @ draw.normal(size=(3, d)) + draw.normal(size=(40, d)) + 3 for d in (wide, narrow))
    if dead:
        x[:, 1] = 2.0
    return torch.from_numpy(x), torch.from_numpy(y)


def is_coupling(mass, n, m):
    assert mass.shape == (n, m)
    torch.testing.assert_close(mass.sum(1), torch.full((n,), 1 / n, dtype=mass.dtype))
    torch.testing.assert_close(mass.sum(0), torch.full((m,), 1 / m, dtype=mass.dtype))


def of_distances(x, y, mass):
    """The objective of Gromov-Wasserstein."""
    distances = [torch.cdist(s, s) for s in (x, y)]
    p, q = (d / d[torch.triu_indices(len(d), len(d), 1).unbind()].mean() for d in distances)
    costs = (p[:, None, :, None] - q[None, :, None, :]) ** 2
    return float(torch.einsum("ikjl,ik,jl->", costs, mass, mass))


def attained(name, x, y):
    """The value that the map gives, from its definition."""
    measure = measures.get(name)
    found = measure.align(x, y)
    if name in ("coot", "augmented_gromov_wasserstein"):
        for part, (n, m) in ((found.rows, (len(x), len(y))), (found.neurons, (x.shape[1], y.shape[1]))):
            is_coupling(part.mass, n, m)
        squares = (x[:, None, :, None] - y[None, :, None, :]) ** 2
        transported = float(torch.einsum("ijpq,ij,pq->", squares, found.rows.mass, found.neurons.mass))
        return transported if name == "coot" else (transported + of_distances(x, y, found.rows.mass)) / 2
    x, y = x - x.mean(0), y - y.mean(0)
    a, b = x / x.norm(), y / y.norm()
    if name in ROTATED:
        for turn in (found.left, found.right):
            torch.testing.assert_close(turn @ turn.T, torch.eye(len(turn), dtype=turn.dtype))  # nothing is stretched
        p, q = (x, y) if name == "procrustes_size_and_shape" else (a, b)
        p, q = p @ found.left, q @ found.right
        inner = float((p * q).sum())
        return {
            "shape_angular": np.arccos(min(1, inner)),
            "bures_similarity": inner,
            "aligned_cosine": float(torch.cosine_similarity(p, q).mean()),
        }.get(name, float((p - q).norm()))
    if name in ("linear_regression", "mixedsim"):
        fitted = y @ found.weights
        if name == "linear_regression":
            return 1 - float((x - fitted).square().sum() / x.square().sum())
        return float(torch.cosine_similarity(x, fitted, dim=0)[x.norm(dim=0) > 1e-9].mean())
    if name == "soft_correlation_match":
        r = [torch.cosine_similarity(x[:, part.left], y[:, part.right], dim=0) for part in found]
        return float(r[0].mean() + r[1].mean()) / 2
    if name in CANONICAL:
        p, q = x @ found.left, y @ found.right
        for side in (p, q):
            torch.testing.assert_close(side.T @ side, torch.eye(side.shape[1], dtype=side.dtype))
        torch.testing.assert_close((p * q).sum(0), found.correlations)
        rho, ranks = (p * q).sum(0), [int(torch.linalg.matrix_rank(side)) for side in (x, y)]
        if name == "gaussian_mutual_information":
            return float(-torch.log(1 - rho**2).sum() / 2)
        if name in ("yanai_cca", "pillai_trace", "eigenspace_overlap"):
            whole = {"yanai_cca": min(ranks), "pillai_trace": 1, "eigenspace_overlap": max(ranks)}[name]
            return float((rho**2).sum()) / whole
        weights = (p.T @ x).abs().sum(1) if name in ("pwcca", "pwsim") else torch.ones(p.shape[1], dtype=p.dtype)
        return float(rho @ weights / weights.sum())
    if name in ("neuronsim", "hard_correlation_match"):
        r = torch.cosine_similarity(x[:, found.left], y[:, found.right], dim=0)
        return float(r.abs().mean() if name == "neuronsim" else r.mean())
    if name == "permutation_procrustes":
        rest = [set(range(s.shape[1])) - set(i.tolist()) for s, i in ((a, found.left), (b, found.right))]
        alone = sum(float(s[:, sorted(i)].square().sum()) for s, i in zip((a, b), rest, strict=True))
        return float(((a[:, found.left] - b[:, found.right]).square().sum() + alone) ** 0.5)
    mass = found.mass
    is_coupling(mass, *mass.shape)
    if name == "wasserstein":
        return float((mass * torch.cdist(x, y)).sum())
    if name == "soft_matching":
        p, q = (s[:, s.norm(dim=0) > 1e-9] for s in (x, y))
        return float((mass * ((p / p.norm(dim=0)).T @ (q / q.norm(dim=0)))).sum())
    return of_distances(x, y, mass)


@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
@pytest.mark.parametrize("name", ALL)
@given(seed=st.integers(0, 10**6), swap=st.booleans(), dead=st.booleans())
@settings(max_examples=10, deadline=None)
def test_the_map_attains_the_value(name, seed, swap, dead):
    x, y = sides(seed, dead=dead, narrow=5 if name == "wasserstein" else 3)
    x, y = (y, x) if swap else (x, y)
    if name == "wasserstein":  # in the units of the activations
        x, y = x - x.mean(0), y - y.mean(0)
    assert attained(name, x, y) == pytest.approx(measures.get(name)(x, y), abs=1e-6)


def test_planted_maps_are_found():
    x, _ = sides(0, dead=False)
    draw = np.random.default_rng(1)
    order = torch.from_numpy(draw.permutation(5))
    turn = torch.linalg.qr(torch.from_numpy(draw.normal(size=(5, 5)))).Q
    torch.testing.assert_close(measures.get("procrustes").align(x, 2 * x @ turn + 1).left, turn)
    matched = measures.get("hard_correlation_match").align(x, 3 * x[:, order])
    assert order[matched.right].tolist() == matched.left.tolist()
    assert measures.get("mean_cca").align(x, x @ turn).correlations.tolist() == pytest.approx([1] * 5)
    rows = torch.from_numpy(draw.permutation(40))
    mass = measures.get("gromov_wasserstein").align(x, x[rows]).mass
    assert (mass.argmax(0) == rows).all()


def test_measures_without_a_map():
    x, y = sides(0)
    assert {name for name in registry.measures.names() if getattr(measures.get(name), "aligned", None)} == set(ALL)
    for name in ("cka", "rsa", "mutual_knn", "gulp"):
        with pytest.raises(
            BadInput, match=f"{name}: it compares what it makes of each side alone, .*; use procrustes, "
        ):
            measures.get(name).align(x, y)
    with pytest.raises(Degenerate, match="procrustes: x and y must be"):
        measures.get("procrustes").align(x, y[:5])
