"""The all-pairs engine: streams, estimates, standard errors, errors that name the layer."""

import itertools

import numpy as np
import pytest
import reference
import torch

from repsim_cli import measures
from repsim_cli.base import gram as symmetric
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.estimates import check_estimate, estimate_all_pairs
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import inner
from repsim_cli.measures.centring import centre_rows


def streamed(batches):
    return lambda seen: iter(batches[seen:])


def representations(n=96, widths=(5, 8, 13), dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(n, 4, generator=generator, dtype=dtype)
    return [
        base @ torch.randn(4, d, generator=generator, dtype=dtype) + torch.randn(n, d, generator=generator, dtype=dtype)
        for d in widths
    ]


def test_per_batch_is_the_mean_with_its_standard_error():
    xs = representations()
    batches = [[x[i : i + 24] for x in xs] for i in range(0, 96, 24)]
    matrices, _ = estimate_all_pairs(
        {"m": measures.get("cka_unbiased")}, streamed(batches), names="abc", estimate="per_batch"
    )
    matrix = matrices["m"]
    singles = np.array(
        [[[reference.cka_unbiased(a.numpy(), b.numpy()) for b in batch] for a in batch] for batch in batches]
    )
    np.testing.assert_allclose(matrix.values, singles.mean(0), atol=1e-12)
    np.testing.assert_allclose(matrix.se, singles.std(0, ddof=1) / 2, atol=1e-12)
    assert (matrix.rows, matrix.batches, matrix.estimate) == (96, 4, "per_batch")


def test_one_batch_has_no_standard_error():
    matrices, _ = estimate_all_pairs(
        {"m": measures.get("cka")}, streamed([representations()]), names="abc", estimate="full"
    )
    matrix = matrices["m"]
    assert matrix.se is None


@pytest.mark.nightly
def test_float32_all_pairs_are_within_2e_6_of_float64():
    xs = representations(n=1500, widths=(64, 96, 200))
    for name in measures.available():
        card = measures.card(name)
        if card.equal_widths or card.labelled or card.infinite_to_itself:
            continue
        # transport takes n^3 per pair, ripser more; the geometry score looks at 1e-4 of the distances with 100 rows
        rows = 100 if "wasserstein" in name or name in ("coot", "rtd") else 1500
        if name == "geometry_score":
            continue
        exact = compute_all_pairs({name: measures.get(name)}, [x[:rows] for x in xs])[name]
        single = compute_all_pairs({name: measures.get(name)}, [x[:rows].float() for x in xs])[name]
        off = ~torch.eye(3, dtype=torch.bool)
        assert float(((single - exact) / exact.abs().clamp_min(1))[off].abs().max()) < 2e-6, name


def test_ratio_of_sums_does_not_depend_on_the_scale_of_a_batch():
    """Sums are in HSIC's own units: a batch ten times larger weighs 10^4 times more on both sides alike."""
    xs = representations()
    small, large = [x[:48] for x in xs], [10 * x[48:] for x in xs]
    matrices, _ = estimate_all_pairs(
        {"m": measures.get("cka")}, streamed([small, large]), names="abc", estimate="ratio_of_sums"
    )
    matrix = matrices["m"]
    centred = [[x - x.mean(0) for x in batch] for batch in (small, large)]
    hsic = sum(
        torch.stack([torch.stack([(a.T @ b).square().sum() for b in batch]) for a in batch]) / 47**2
        for batch in centred
    )
    expected = hsic / hsic.diagonal().sqrt()[:, None] / hsic.diagonal().sqrt()[None]
    torch.testing.assert_close(matrix.values, expected, atol=1e-11, rtol=0)


def test_ratio_of_sums_is_for_hsic_only():
    with pytest.raises(BadInput, match="ratio_of_sums sums HSIC, and procrustes is not made of HSIC; use per_batch"):
        check_estimate(measures.get("procrustes"), "ratio_of_sums")


def test_a_degenerate_layer_is_named():
    xs = representations()
    xs[1] = torch.ones(96, 3, dtype=torch.float64)
    with pytest.raises(Degenerate, match="^middle: all rows are equal"):
        compute_all_pairs({"m": measures.get("cka")}, xs, ["first", "middle", "last"])


def test_self_similarity_that_is_not_positive_is_named():
    """One row apart from the rest: U-centring leaves nothing of it."""
    x = torch.zeros(5, 2, dtype=torch.float64)
    x[0] = 1
    with pytest.raises(Degenerate, match="^odd: cka_unbiased: self-similarity is not positive"):
        compute_all_pairs({"m": measures.get("cka_unbiased")}, [x, representations(n=5)[0]], ["odd", "other"])


def test_no_batch_is_an_error():
    with pytest.raises(BadInput, match="no batch could be filled, got too few rows; lower batch_rows"):
        estimate_all_pairs({"m": measures.get("cka")}, streamed([]), names="abc", estimate="per_batch")


@pytest.mark.parametrize("estimate", ["per_batch", "ratio_of_sums"])
def test_a_saved_state_goes_on_with_the_same_bits(estimate):
    xs = representations()
    batches = [[x[i : i + 24] for x in xs] for i in range(0, 96, 24)]
    chosen, states = {"m": measures.get("cka_unbiased")}, []

    def save(state):
        states.append({name: tensor.clone() for name, tensor in state.items()})

    whole = estimate_all_pairs(chosen, streamed(batches), names="abc", estimate=estimate, save=save)[0]["m"]
    assert len(states) == 4
    for state in states[:3]:
        again = estimate_all_pairs(chosen, streamed(batches), names="abc", estimate=estimate, state=state)[0]["m"]
        assert torch.equal(again.values, whole.values)
        assert (again.se is None and whole.se is None) or torch.equal(again.se, whole.se)
        assert (again.rows, again.batches) == (96, 4)


@pytest.mark.parametrize(("n", "side"), [(1000, 512), (513, 512), (300, 1000), (7, 2), (1, 1)])
def test_tiles_cover_every_cell_on_and_above_the_diagonal_once(n, side):
    seen = np.zeros((n, n), dtype=int)
    bands = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    for rows, columns in itertools.chain.from_iterable(inner.split_band_into_tiles(band, n) for band in bands):
        assert rows == columns or rows.stop <= columns.start
        seen[rows, columns] += 1
        if rows != columns:
            seen[columns, rows] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_centred_rows_are_made_when_asked_for(dtype):
    """No copy is held, and an offset of 3000 leaves the digits of float64 or float32."""
    x = torch.randn(700, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 5] += 3000
    x = x.to(dtype)
    before, made = x.clone(), centre_rows(x)
    exact = x.double() - x.double().mean(0)
    exact -= exact.mean(0)
    exact /= exact.square().sum(1).mean().sqrt()
    assert made.x is x
    assert float((made.values.double() - exact).abs().max()) < 10 * torch.finfo(dtype).eps
    torch.testing.assert_close(made.block(slice(100, 130)), made.values[100:130], rtol=0, atol=0)
    assert torch.equal(x, before)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("n", "d"), [(5, 3), (64, 2000), (300, 500)])
def test_gram_matrices_by_either_library(monkeypatch, fast, n, d):
    product = symmetric.find_onednn_product()
    if fast and product is None:
        pytest.skip("oneDNN is not used on this processor")
    monkeypatch.setattr(symmetric, "find_onednn_product", lambda: product if fast else None)
    for x in (torch.randn(n, d, generator=torch.Generator().manual_seed(0)), torch.ones(d, 2 * n)[:, ::2].T):
        gram = symmetric.gram_matrix(x)
        assert torch.equal(gram, gram.T)
        exact = x.double() @ x.double().T
        assert float((gram.double() - exact).abs().max()) < 2e-6 * float(exact.diagonal().mean())


@pytest.mark.parametrize(("n", "d", "offset"), [(64, 5000, 3000), (200, 300, 0), (130, 1500, 3000)])
def test_wide_rows_have_the_gram_matrix_of_float64(n, d, offset):
    """A column far from zero leaves the digits of float32."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    x[:, 5] += offset
    made, exact = centre_rows(x), x.double() - x.double().mean(0)
    exact /= exact.square().sum(1).mean().sqrt()
    assert made.gram is not None
    torch.testing.assert_close(made.gram.double(), exact @ exact.T, rtol=0, atol=3e-6)
    torch.testing.assert_close(made.norms, exact.square().sum(1), rtol=3e-6, atol=0)
    torch.testing.assert_close(made.values.double(), exact, rtol=0, atol=1e-6)
    assert made.scale == pytest.approx(float((x.double() - x.double().mean(0)).square().sum(1).mean().sqrt()), rel=1e-6)


@pytest.mark.parametrize("change", [lambda x: x * 1e-14, lambda x: x * 1e16, lambda x: 1e6 + x])
def test_wide_rows_of_extreme_size_are_centred_before_they_are_multiplied(change):
    x = change(torch.randn(20, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).float()
    made = centre_rows(x)
    assert made.gram is None
    exact = x.double() - x.double().mean(0)
    exact /= exact.square().sum(1).mean().sqrt()
    torch.testing.assert_close(made.values.double(), exact, rtol=0, atol=1e-6)


def test_a_tile_of_packed_cells():
    n = 9
    square = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    square = (square + square.T).fill_diagonal_(0)
    cells = inner.pack_cells(square)
    for rows, columns in ((slice(0, 4), slice(0, 4)), (slice(0, 9), slice(0, 9)), (slice(5, 9), slice(1, 6))):
        assert torch.equal(inner.unpack_tile(cells, n, rows, columns), square[rows, columns])
