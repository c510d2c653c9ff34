"""Tables of neighbours: ties, near-ties in float32, permuted rows; and what the measures make of them."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from repsim_cli import measures
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import near_rows, nearest, neighbours
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.centring import centre
from repsim_cli.measures.spectrum import find_k_nearest_rows

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [
    "mutual_knn", "jaccard_knn", "second_order_cosine", "rank_similarity", "rank_jaccard",
    "cycle_knn", "lcs_knn", "edit_distance_knn", "cknna",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
@pytest.mark.parametrize("name", NAMES)
def test_exact_ties_go_by_index(name):
    """c5 has duplicated rows: the values of exact ties, not only the range over tie-breaks."""
    case = np.load(GOLDEN / "inputs" / "c5.npz")
    entry = next(
        e
        for e in json.loads((GOLDEN / "values.json").read_text())
        if (e["measure"], e["case"], e["settings"].get("k")) == (name, "c5", 10)
    )
    expected = entry["value"] if isinstance(entry["value"], dict) else {"x_to_y": entry["value"]}
    assert measures.get(name)(case["x"], case["y"]) == pytest.approx(expected["x_to_y"], abs=1e-9)


def test_the_order_of_near_ties_is_that_of_float64():
    """Cosines a few 1e-8 apart: float32 alone would put half of the neighbours in the wrong places."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, generator=generator)
    x[:, 0] += 3e4 * torch.randn(60, generator=generator).sign()
    table, exact = (nearest.find_neighbours(side, k=5) for side in (x, x.double()))
    assert torch.equal(table.lists, exact.lists)
    torch.testing.assert_close(table.similarities.double(), exact.similarities, atol=1e-6, rtol=0)
    units = nearest.normalise_centred_rows(x).float()
    alone = (units @ units.T).fill_diagonal_(-2).topk(5, dim=1).indices.T
    assert (alone != exact.lists).double().mean() > 0.2


@pytest.mark.parametrize("of_documents", [False, True])
def test_rows_with_few_candidates_are_ordered_as_among_all(of_documents):
    """Near-ties, equal rows and a row without direction, among so many rows that candidates are picked."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(900, 12, generator=generator)
    x[:300] = x[300:600] + 1e-4 * torch.randn(300, 12, generator=generator)
    x[600:640] = x[640:680]
    units = nearest.normalise_centred_rows(x)
    units[5] = 0
    documents = torch.randperm(900, generator=generator) // 40 if of_documents else None
    (rows, cosines), *_ = near_rows.compute_cosines(units.float())
    if documents is not None:
        near_rows.leave_out_documents(cosines, rows, documents)
    best = near_rows.select_most_similar(cosines, rows, 5)
    points = near_rows.add_missing_directions(units)
    candidates, others = near_rows.select_candidates(cosines, rows, best[0])
    assert len(candidates.rows) > 20
    assert others.tolist() == [5]
    left_out = partial(near_rows.find_left_out, documents)
    ((some, (values, lists)),) = near_rows.order_candidates(points, candidates, 5)
    for number, (expected, exact) in near_rows.list_nearest_rows(points, some, 5, left_out):
        at = (some[None] == number[:, None]).nonzero()[:, 1]
        torch.testing.assert_close(values[at], expected, atol=1e-14, rtol=0)
        assert torch.equal(lists[at, :5], exact[:, :5])  # the sixth only says whether the fifth is tied


def test_blocks_of_cosines_are_those_of_all_rows():
    units = nearest.normalise_centred_rows(torch.randn(3000, 3, generator=torch.Generator().manual_seed(0)))
    rows, blocks = zip(*near_rows.compute_cosines(units), strict=True)
    assert len(blocks) == 2
    assert torch.cat(rows).tolist() == list(range(3000))
    torch.testing.assert_close(torch.cat(blocks), units @ units.T, atol=1e-14, rtol=0)


@pytest.mark.parametrize("massive", [1e5, 1e7])
def test_massive_features_leave_the_order_of_neighbours(massive):
    """One feature so large that all cosines are 1 or -1 to ten digits and more: the order is that of the other
    features."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 30, generator=generator, dtype=torch.float64)
    x[:, 3] += massive * torch.where(torch.rand(80, generator=generator) > 0.2, 0.25, -1.0)
    units = nearest.normalise_centred_rows(x).numpy().astype(np.longdouble)
    squares = ((units[:, None] - units[None]) ** 2).sum(2)
    np.fill_diagonal(squares, np.inf)
    expected = squares.argsort(1)[:, :5].T
    assert nearest.find_neighbours(x, k=5).lists.tolist() == expected.tolist()
    x, _ = centre(x)
    squares = ((x[:, None] - x[None]) ** 2).sum(2).fill_diagonal_(torch.inf)
    assert find_k_nearest_rows(x, 5).tolist() == squares.argsort(1)[:, :5].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_come_in_index_order(dtype):
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(4, 6, generator=generator).to(dtype)
    x = kinds[torch.arange(48) % 4] * 1.0
    with pytest.warns(MeasureWarning, match="48 of 48 rows have several equally near rows for the last of 5 places"):
        table = nearest.find_neighbours(x, k=5)
    assert table.lists[:, 0].tolist() == [4, 8, 12, 16, 20]
    assert table.lists[:, 9].tolist() == [1, 5, 13, 17, 21]


def test_one_table_serves_all(monkeypatch):
    made = []
    monkeypatch.setitem(nearest.UNITS, "centred", lambda x, f=nearest.normalise_centred_rows: made.append(1) or f(x))
    layers = [torch.randn(30, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    compute_all_pairs({name: measures.get(name) for name in NAMES}, layers)
    assert len(made) == 3


@pytest.mark.parametrize("name", NAMES)
def test_permuted_table_is_that_of_permuted_rows(name):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(30, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    order = torch.randperm(30, generator=generator)
    measure = measures.get(name, k=3)
    assert isinstance(measure, measures.Pairwise)
    moved = measure.compare(measure.prepare(x), measure.permute(measure.prepare(y), order))
    assert moved == pytest.approx(measure(x, y[order]), abs=1e-12)
    assert moved != pytest.approx(measure(x, y), abs=1e-6)


def test_all_pairs_in_pieces(monkeypatch):
    """Pairs are the same however little is held at a time."""
    layers = [torch.randn(30, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    wanted = {name: measures.get(name) for name in NAMES}
    whole = compute_all_pairs(wanted, layers)
    for module, limit, size in (
        (near_rows, "_TILE", 3),
        (nearest, "_CELLS", 60),
        (neighbours, "_HOT", 500),
        (neighbours, "_GATHERED", 500),
    ):
        monkeypatch.setattr(module, limit, size)
    units = nearest.normalise_centred_rows(layers[0])
    tables = [nearest.find_neighbours_and_ties(units, torch.float32, layers[0], k=5, most=most)[0] for most in (30, 7)]
    assert torch.equal(tables[0].lists, tables[1].lists)
    pieces = compute_all_pairs(wanted, layers)
    for name in NAMES:
        torch.testing.assert_close(pieces[name], whole[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_two_sides_of_different_layers(name):
    """compare_all takes the rows' and the columns' representations apart."""
    measure = measures.get(name, k=4)
    states = [
        measure.prepare(torch.randn(20, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        for seed in range(5)
    ]
    if measure.compare_all is not None:
        found = measure.compare_all(states[:2], states[2:])
        single = torch.tensor([[measure.compare(a, b) for b in states[2:]] for a in states[:2]], dtype=torch.float64)
        torch.testing.assert_close(found, single, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("name", "best"), [("lcs_knn", 10.0), ("cknna", 1.0)])
def test_value_of_a_layer_with_itself(name, best):
    x = np.random.default_rng(0).normal(size=(40, 6))
    assert measures.get(name)(x, x) == pytest.approx(best, abs=1e-12)


def test_mutual_is_jaccard_row_by_row():
    """J = m / (2 - m): equal where every row has the same overlap."""
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.random.default_rng(1).normal(size=(12, 3))
    assert measures.get("mutual_knn", k=11)(x, y) == measures.get("jaccard_knn", k=11)(x, y) == 1.0
    assert measures.get("jaccard_knn", k=3)(x, y) < measures.get("mutual_knn", k=3)(x, y)


def test_cknna_without_self_similarity():
    """All rows equally near each other: nothing is left after centring."""
    x = np.random.default_rng(0).normal(size=(5, 2))
    with pytest.raises(
        Degenerate, match=r"cknna: no self-similarity, got 0 for representation 0 of 1; use more rows or"
    ):
        measures.get("cknna", k=4)(x, np.eye(5))


@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
@pytest.mark.parametrize("name", ["mutual_knn", "msid", "rsa_euclidean"])
def test_equal_distances_tie_whatever_the_rounding(name):
    """A grid, and the same grid a third as large and elsewhere: no measure of neighbours or ranks may see rounding."""
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), -1).reshape(-1, 3)
    measure = measures.get(name, **({"k": 3} if name == "mutual_knn" else {}))
    for other in (grid / 3 + 0.1, grid[:, ::-1], 7 * grid):
        assert measure(grid, other) == pytest.approx(measure(grid, grid), abs=1e-9)


def test_rank_correlations_of_discrete_rows_are_those_of_exact_ties():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, size=(60, 5)).astype(float)
    y = x.copy()
    y[:, 0] = rng.integers(0, 2, size=60)
    squared = [((z[:, None] - z[None]) ** 2).sum(-1)[np.triu_indices(60, 1)] for z in (x, y)]
    expected = scipy.stats.spearmanr(*squared)[0]
    assert measures.get("rsa_euclidean")(x, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_k_is_a_number_or_a_share_of_the_rows(name):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40, 6))
    assert measures.get(name, k=0.1)(x, y) == measures.get(name, k=4)(x, y)
    with pytest.raises(Degenerate, match=f"{name} needs at least 11 rows"):
        measures.get(name, k=0.1)(x[:10], y[:10])
    with pytest.raises(BadInput, match=f"{name}.k: wrong value, got 1.5; give a whole number from 1, or a number"):
        measures.get(name, k=1.5)
    almost = measures.get(name, k=0.9)
    assert np.isfinite(almost(x[: almost.rows_needed], y[: almost.rows_needed]))


@pytest.mark.parametrize("name", NAMES)
def test_cards_say_what_falls_with_rows(name):
    """A rotation with noise, of few and of more rows."""
    rng = np.random.default_rng(0)
    values = []
    for n in (64, 64, 64, 64, 512):
        x = rng.normal(size=(n, 32))
        y = x @ np.linalg.qr(rng.normal(size=(32, 32)))[0] + rng.normal(size=x.shape) / np.sqrt(3)
        values.append(float(measures.get(name)(x, y)))
    assert (values[-1] < np.mean(values[:-1]) - 0.03) == measures.card(name).falls_with_rows
