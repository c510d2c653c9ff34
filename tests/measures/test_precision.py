"""What the precision and the size of the numbers may change: ties, neighbours, rows of 1e-200."""

import numpy as np
import pytest
import reference
import torch

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import distance_ranks
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.centring import choose_power_of_two
from repsim_cli.measures.hsic import centre_on_inner_half
from repsim_cli.measures.rank import SINGLE, find_relative_precision

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HALVES = [(torch.float16, 2**-10), (torch.bfloat16, 2**-7)]


def parallel(groups: int, n: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Two representations with the same groups of parallel rows, whose lengths differ."""
    draw = np.random.default_rng(seed)
    of, lines = draw.integers(0, groups, n), draw.normal(size=(groups, 16))
    return [torch.from_numpy((draw.random((n, 1)) + 0.3) * lines[of]).to(dtype) for _ in range(2)]


def of_pair(name: str, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    return [measures.get(name)(x, y), float(compute_all_pairs({"m": measures.get(name)}, [x, y])["m"][0, 1])]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [60, 500])  # the distances of 500 rows are ranked by bins
def test_distances_that_are_equal_but_for_the_rounding_of_the_rows_tie(dtype, n):
    for groups in (2,) if dtype == torch.bfloat16 else (2, 3):  # rounding to bfloat16 mixes the distances of three
        for seed in range(3):
            assert of_pair("rsa", *parallel(groups, n, dtype, seed)) == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_nothing_is_ranked_where_all_distances_tie(dtype):
    with pytest.raises(Degenerate, match="x: all (distances between rows|rows) are equal, got (one value|a constant)"):
        measures.get("rsa")(*parallel(1, 60, dtype))


@pytest.mark.parametrize(("dtype", "eps"), HALVES)
def test_the_precision_of_numbers_is_that_of_the_coarsest_type_that_holds_them(dtype, eps):
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert find_relative_precision(x) == torch.finfo(torch.float64).eps
    assert find_relative_precision(x.float()) == find_relative_precision(x.float().double()) == SINGLE
    assert (
        find_relative_precision(x.to(dtype))
        == find_relative_precision(x.to(dtype).float())
        == find_relative_precision(x.to(dtype).double())
        == eps
    )
    assert find_relative_precision((8 * x).round().to(dtype)) == SINGLE  # whole numbers are not rounded ones


def test_a_run_of_close_cells_is_one_tie_and_a_crowd_is_not():
    cells = torch.tensor([0.0, 1.0, 1.1, 5.0, 5.1, 5.2, 5.3], dtype=torch.float64)
    assert distance_ranks.rank_exactly(cells, 0.2, 0.01).tolist() == [1, 2.5, 2.5, 4, 5, 6, 7]


def test_many_ties_in_bins_are_ranked_exactly():
    """More of them than are looked at one by one, and ties at the edges of bins."""
    draw = torch.Generator().manual_seed(0)
    for values in (3, 40):
        exact = torch.randint(0, values, (100_000,), generator=draw)
        cells = (exact / values + 1e-8 * torch.rand(len(exact), generator=draw)).float()
        found = distance_ranks.rank_distances(cells).values.double()
        expected = distance_ranks.rank_distances(exact.double()).values
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


SCALED = [name for name in measures.available() if "isotropic_scaling" in measures.card(name).invariant_to]


@pytest.mark.filterwarnings("ignore:.*no complex of 12 landmarks")
@pytest.mark.parametrize("name", SCALED)
def test_sizes_change_nothing_where_scale_does_not_count(name):
    draw = np.random.default_rng(0)
    n = {"gromov_wasserstein_entropic": 8, "gromov_wasserstein": 20}.get(name, 40)
    shared = draw.normal(size=(n, 3))
    x, y = (shared @ draw.normal(size=(3, 7)) + draw.normal(size=(n, 7)) for _ in range(2))
    measure = measures.get(name, **reference.SETTINGS.get(name, {}))
    labels = {"labels": np.arange(n) % 4} if measures.card(name).labelled else {}
    expected = measure(x, y, **labels)
    for size in (1e-200, 1e-30, 1e-22, 1e22, 1e200):
        assert measure(size * x, y, **labels) == pytest.approx(expected, abs=1e-9)
    if not measures.card(name).infinite_to_itself:
        codes = {key: torch.from_numpy(value) for key, value in labels.items()}
        x, y = (torch.from_numpy(side).float() for side in (x, y))
        expected = compute_all_pairs({"m": measure}, [x, y], **codes)["m"]
        for size in (1e-22, 1e22):
            found = compute_all_pairs({"m": measure}, [size * x, y], **codes)["m"]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_sizes_that_count_have_an_end():
    x = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(Degenerate, match="x: too large to be squared and summed, got .*e.199 in row 0; fix the array"):
        measures.get("stress")(1e200 * x, x)
    with pytest.raises(Degenerate, match="x: not finite, got inf in row 0; fix the array"):
        measures.get("cka")(np.inf * abs(x), x)


@pytest.mark.parametrize("name", ["rsa", "uniformity_difference", "concentricity_difference"])
def test_a_small_row_is_no_row_of_zeros(name):
    x, y = np.random.default_rng(0).normal(size=(2, 20, 5))
    small = x * np.where(np.arange(20) == 3, 1e-180, 1)[:, None]
    assert np.isfinite(measures.get(name)(small, y))
    with pytest.raises(Degenerate, match="rows (of zeros|without variance)"):
        measures.get(name)(np.where(np.arange(20) == 3, 0, 1)[:, None] * x, y)


def test_units_are_powers_of_two_and_their_inverses_are_numbers():
    for dtype in (torch.float32, torch.float64):
        ends = torch.finfo(dtype)
        for size in (0.0, ends.smallest_normal, ends.tiny / 4, 1.0, 7.3, ends.max):
            unit = choose_power_of_two(torch.full((3, 2), size, dtype=dtype))
            assert float(torch.frexp(unit).mantissa) == 0.5
            assert 0 < float(1 / unit) < torch.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mutual_knn", "jaccard_knn", "rank_similarity", "cknna"])
def test_neighbours_that_rounding_decides_are_warned_of(name, dtype):
    """Rows on a line have two directions."""
    draw = torch.Generator().manual_seed(0)
    line = torch.randn(300, 1, generator=draw, dtype=dtype) * torch.randn(1, 64, generator=draw, dtype=dtype)
    other = torch.randn(300, 64, generator=draw, dtype=dtype)
    with pytest.warns(MeasureWarning, match=r"x: rounding decides the neighbours of \d+ of 300 rows: the last of 10 "):
        measures.get(name)(line, other)
    measures.get(name)(other, other.to(torch.bfloat16))  # a warning would be an error


def test_neighbours_along_a_line_that_rounding_decides():
    """Steps of float32 are even, in another direction than that of a feature."""
    draw = np.random.default_rng(0)
    x = (np.arange(300)[:, None] * draw.normal(size=(1, 64))).astype(np.float32)
    with pytest.warns(MeasureWarning, match="rounding decides|equally near"):
        measures.get("msid")(x, draw.normal(size=(300, 3)))


@pytest.mark.parametrize("kind", ["lattice", "line", "steps"])
@pytest.mark.parametrize("d", [8, 64])
def test_mutual_information_does_not_depend_on_a_rotation_in_float32(kind, d):
    draw = np.random.default_rng(0)
    x = {
        "lattice": lambda: draw.integers(0, 3, (200, d)),
        "line": lambda: draw.normal(size=(200, 1)) * draw.normal(size=(1, d)),
        "steps": lambda: draw.integers(0, 50, (200, 1)) * draw.normal(size=(1, d)),
    }[kind]().astype(np.float32)
    turned = x @ np.linalg.qr(draw.normal(size=(d, d)))[0].astype(np.float32)
    measure = measures.get("mutual_information")
    assert measure(x, turned) == pytest.approx(measure(x, x), abs=1e-9)


def test_a_far_row_leaves_the_others_their_distances():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 48, generator=draw)
    assert centre_on_inner_half(x - x.mean(0)) is None
    x[7] *= 1000
    y = x + torch.randn(30, 48, generator=draw)
    single, exact = (
        compute_all_pairs({"m": measures.get("cka_rbf")}, sides)["m"] for sides in ([x, y], [x.double(), y.double()])
    )
    torch.testing.assert_close(single, exact, atol=5e-7, rtol=0)
