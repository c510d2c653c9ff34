"""Which neurons and directions count: one rule, on rows like those of a trained language model."""

import numpy as np
import pytest
import torch
from helpers.streamed import STREAMED

from repsim_cli import measures
from repsim_cli.engine.moments import compute_pairs_from_moments
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import rank
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.bases import drop_dead_neurons, thin_svd
from repsim_cli.measures.subspaces import make_projector_features

SPANS = ["mean_cca", "yanai_cca", "pillai_trace", "eigenspace_overlap", "gulp", "gaussian_mutual_information"]
WIDTHS = [24, 20, 16]
RANKS = [21, 17, 13]
ignore_dead = pytest.mark.filterwarnings("ignore:.*dead neurons were dropped")


def language_model_like(n=600):
    """float32, after a LayerNorm (which leaves one direction of rounding), with a massive feature and neurons of std
    1e-32; and beside it a neuron that varies by rounding and a dead one."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(n, 12, generator=generator)
    flicker = torch.tensor(0.7).where(base[:, :1] > 0, torch.tensor(0.7).nextafter(torch.tensor(1.0)))
    found = []
    for d in (width - 2 for width in WIDTHS):
        x = base @ torch.randn(12, d, generator=generator) + 0.5 * torch.randn(n, d, generator=generator)
        x[:, 2] *= 40
        weight, bias = torch.rand(d, generator=generator) + 0.5, torch.randn(d, generator=generator)
        weight[5:7], bias[5:7] = 1e-32, 3e-32
        bias[3] = 3000
        x = torch.nn.functional.layer_norm(x, (d,), weight, bias)
        found.append(torch.cat([x, flicker, torch.full((n, 1), 0.7)], 1))
    return found


def value(name, x, y):
    return measures.get(name)(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_counts(dtype):
    """Read as either type: all but the neuron of rounding, the dead one, and the direction that the LayerNorm takes."""
    for x, d, r in zip(language_model_like(), WIDTHS, RANKS, strict=True):
        with pytest.warns(MeasureWarning, match=f"dead neurons were dropped, got 2 of {d} without variance"):
            assert drop_dead_neurons(x.to(dtype)).eps == rank.SINGLE
        with pytest.warns(MeasureWarning):
            assert thin_svd(x.to(dtype)).u.shape[1] == make_projector_features(x.to(dtype)).values.shape[1] == r


@ignore_dead
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_rank_in_the_whole_family(dtype):
    x, y, _ = (side.to(dtype) for side in language_model_like())
    pillai = value("pillai_trace", x, y)
    assert value("pillai_trace", x, x) == pytest.approx(RANKS[0], abs=1e-5)
    assert value("gulp", x, y) ** 2 == pytest.approx(RANKS[0] + RANKS[1] - 2 * pillai, abs=1e-5)
    assert value("yanai_cca", x, y) == pytest.approx(pillai / RANKS[1], abs=1e-6)
    assert value("eigenspace_overlap", x, y) == pytest.approx(pillai / RANKS[0], abs=1e-6)
    rho = torch.linalg.svdvals(thin_svd(x).u.T @ thin_svd(y).u)
    assert float(rho.square().sum()) == pytest.approx(pillai, abs=1e-5)
    assert value("mean_cca", x, y) == pytest.approx(float(rho.mean()), abs=1e-6)
    assert measures.get("svcca", variance=1.0)(x, y) == pytest.approx(float(rho.mean()), abs=1e-6)


@ignore_dead
@pytest.mark.parametrize("scale", [1e-20, 1e20])
@pytest.mark.parametrize("name", [*SPANS, "mixedsim", "neuronsim"])
def test_the_units_of_a_neuron_do_not_matter(name, scale):
    x, y, _ = (side.double() for side in language_model_like())
    scaled = x.clone()
    scaled[:, 4] *= scale
    for a, b in ((x, y), (y, x)):
        changed = [scaled if side is x else side for side in (a, b)]
        assert value(name, *changed) == pytest.approx(value(name, a, b), abs=1e-9)
    # where only the space of the predictors matters
    assert value("linear_regression", y, scaled) == pytest.approx(value("linear_regression", y, x), abs=1e-9)


@ignore_dead
@pytest.mark.parametrize("room", [1.0, 1e9])
def test_moments_are_full_after_a_layer_norm(room):
    xs = language_model_like()
    bound = {name: measures.get(name) for name in STREAMED}
    exact = compute_all_pairs(bound, [x.double() for x in xs])
    for name, single in compute_all_pairs(bound, xs).items():
        np.testing.assert_allclose(single, exact[name], atol=1e-6, err_msg=name)
    parts = lambda chosen: ([xs[a][i : i + 128] for a in chosen] for i in range(0, len(xs[0]), 128))  # noqa: E731
    found, notices = compute_pairs_from_moments(bound, parts, names="abc", widths=WIDTHS, room=room)
    for name in STREAMED:
        np.testing.assert_allclose(found[name].values, exact[name], atol=1e-9, err_msg=name)
    assert notices == [
        f"{name}: dead neurons were dropped, got 2 of {d} without variance"
        for name, d in zip("abc", WIDTHS, strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fewer_rows_than_features(dtype):
    """All directions of centred rows but one, by falling variance."""
    x = torch.randn(30, 80, generator=torch.Generator().manual_seed(0), dtype=dtype)
    basis, centred = thin_svd(x), x.double() - x.double().mean(0)
    torch.testing.assert_close(basis.s, torch.linalg.svdvals(centred)[:29])
    torch.testing.assert_close(basis.u @ basis.loadings, centred)
    torch.testing.assert_close(basis.u.T @ basis.u, torch.eye(29, dtype=torch.float64))


def test_float64_keeps_what_float32_cannot_tell():
    """Directions of 1e-9 count in rows of float64, for which second moments say that they cannot tell."""
    x = np.random.default_rng(0).normal(size=(200, 4))
    x[:, 3] = x[:, 2] + 1e-9 * x[:, 3]
    x = torch.from_numpy(x)
    assert thin_svd(x).u.shape[1] == make_projector_features(x).values.shape[1] == 4
    assert thin_svd(x.float()).u.shape[1] == make_projector_features(x.float()).values.shape[1] == 3
    for given, expected in ((x, ["a", "b"]), (x.float(), [])):
        notices = compute_pairs_from_moments(
            {"mean_cca": measures.get("mean_cca")},
            lambda _, rows=given: [[rows, rows]],
            names="ab",
            widths=[4, 4],
            room=1000.0,
        )[1]
        assert notices == [
            f"{name}: directions were left out whose variance is within the rounding of second moments, got 1 of 4; use "
            "the estimate full"
            for name in expected
        ]
