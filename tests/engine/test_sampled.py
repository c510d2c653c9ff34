"""Neighbours of sampled rows among all: the value of all rows but for the sample, whose error is given."""

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli import measures
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine import sampled as sampled_rows
from repsim_cli.engine.estimates import check_estimate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.sampled import QueryRows, compute_sampled

NAMES = ["mutual_knn", "jaccard_knn", "rank_similarity", "rank_jaccard", "lcs_knn", "edit_distance_knn"]
N = 600


def sides(n=N, offset=1e3):
    """Two layers of different widths that share a signal, far from the origin, with rows that are equal."""
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(n, 4, generator=generator)
    found = [signal @ torch.randn(4, d, generator=generator) + torch.randn(n, d, generator=generator) for d in (9, 14)]
    found[0][:, 2] += offset
    for x in found:
        x[n // 2 : n // 2 + 9] = x[:9]
    return found


def sampled(xs, m, seed=0, names=NAMES, size=70, documents=None, **settings):
    n = len(xs[0])
    rows = np.sort(np.random.default_rng(seed).choice(n, m, replace=False))
    asked = QueryRows(torch.from_numpy(rows), n, documents)
    bound = {name: measures.get(name, **settings) for name in names}
    stream = lambda: ([x[i : i + size] for x in xs] for i in range(0, n, size))  # noqa: E731
    return compute_sampled(bound, stream, asked, names="ab", seed=seed)


@pytest.mark.parametrize("k", [7, 0.02])
@pytest.mark.parametrize("size", [7, 250, N])
def test_all_rows_sampled_is_full(size, k):
    """Batches change nothing, nor do the equal rows that they tear apart."""
    xs = sides()
    exact = compute_all_pairs({name: measures.get(name, k=k) for name in NAMES}, xs)
    found = sampled(xs, N, size=size, k=k)
    for name in NAMES:
        np.testing.assert_allclose(found[name].values, exact[name], atol=1e-6, err_msg=name)
        assert found[name].se.max() == 0
        assert (found[name].rows, found[name].batches, found[name].estimate) == (N, 1, "sampled")


@pytest.mark.slow
def test_more_rows_than_are_compared_at_a_time():
    n = sampled_rows.TOGETHER + 2100
    assert (n - sampled_rows.TOGETHER) * n > sampled_rows.CELLS
    xs = sides(n)
    exact = compute_all_pairs({name: measures.get(name) for name in NAMES[:2]}, xs)
    found = sampled(xs, n, size=700, names=NAMES[:2])
    for name in NAMES[:2]:
        np.testing.assert_allclose(found[name].values, exact[name], atol=1e-6, err_msg=name)


def test_neighbours_of_other_documents():
    xs, documents = sides(), torch.arange(N) // 20
    exact = compute_all_pairs({name: measures.get(name) for name in NAMES}, xs, documents=documents)
    found = sampled(xs, N, documents=documents)
    for name in NAMES:
        np.testing.assert_allclose(found[name].values, exact[name], atol=1e-6, err_msg=name)
    with pytest.raises(Degenerate, match="10 rows beside those of a row's own document are needed, got 8"):
        sampled([x[:20] for x in xs], 5, documents=(torch.arange(20) >= 12).long())


@pytest.mark.slow
def test_the_mean_over_samples_is_the_value_and_the_error_its_spread():
    xs = sides()
    exact = compute_all_pairs({name: measures.get(name) for name in NAMES}, xs)
    drawn = [sampled(xs, 80, seed) for seed in range(20)]
    error = 1 / (2 * (len(drawn) - 1)) ** 0.5  # of a standard deviation, relative to it
    for name in NAMES:
        values = torch.stack([found[name].values[0, 1] for found in drawn])
        se = torch.stack([found[name].se[0, 1] for found in drawn])
        assert abs(values.mean() - exact[name][0, 1]) < 3 * values.std() / len(drawn) ** 0.5, name
        assert abs(values.std() / se.mean() - 1) < 3 * error, name


def test_chance_is_that_of_rows_at_random():
    """What layers that share nothing have, and k / (n - 1) of the share of common neighbours."""
    generator = torch.Generator().manual_seed(1)
    xs = [torch.randn(60, d, generator=generator) for d in (8, 8)]
    found = sampled(xs, 60)
    for name in NAMES:
        level = float(found[name].statistics["drawn"][0, 1])
        values = [
            float(measures.get(name)(torch.randn(60, 8, generator=generator), torch.randn(60, 8, generator=generator)))
            for _ in range(40)
        ]
        assert level == pytest.approx(np.mean(values), rel=0.1), name
    assert float(found["mutual_knn"].statistics["drawn"][0, 1]) == pytest.approx(10 / 59, rel=0.05)
    documents = torch.arange(60) // 6
    apart = sampled(xs, 60, names=["mutual_knn"], documents=documents)["mutual_knn"]
    assert float(apart.statistics["drawn"][0, 1]) == pytest.approx(10 / 54, rel=0.05)


def test_ties_are_warned_of():
    xs = [torch.ones(40, 3) * (torch.arange(40) % 2)[:, None], torch.randn(40, 3)]
    assert sampled(xs, 20, names=["mutual_knn"])["mutual_knn"].notices == [
        "a: 20 of 20 rows have several equally near rows for the last of 10 places, which go by index, the same in "
        "every layer; leave out layers that see no context (embed), and rows that occur twice"
    ]


@pytest.mark.parametrize("name", ["cknna", "cycle_knn", "second_order_cosine", "cka"])
def test_others_need_all_rows(name):
    with pytest.raises(BadInput, match=f"extract.estimate: {name} is not a mean over rows of what the nearest rows of"):
        check_estimate(measures.get(name), "sampled")
    with pytest.raises(BadInput, match="extract: no row is left"):
        sampled([x[:0] for x in sides()], 0)


def stored(folder, n=3000):
    for name, x in zip("ab", sides(n), strict=True):
        np.save(folder / f"{name}.npy", x.numpy())
    return ["model=[]", *(f"+model.{x}={{kind: precomputed, path: {folder / x}.npy}}" for x in "ab")]


def test_a_run(repsim, newest, tmp_path):
    words = [*stored(tmp_path), "measure=[mutual_knn]", "hardware.threads=1"]
    assert repsim("run", *words, "extract.estimate=full", "extract.rows=3000")[0] == 0
    folder = newest()
    whole = np.load(folder / recorded(folder)["measures"][0]["matrices"][1]["values"]).item()
    code, out, err = repsim("run", *words, "extract.estimate=sampled", "extract.rows=1000")
    assert code == 0, err
    assert "k = 10 of 3,000 rows, changes with their number" in out
    folder = newest()
    (found,) = recorded(folder)["measures"]
    estimate = {key: found["estimate"][key] for key in ("kind", "rows", "rows_available", "batches")}
    assert estimate == {"kind": "sampled", "rows": 1000, "rows_available": 3000, "batches": 1}
    value, se = (np.load(folder / found["matrices"][1][key]).item() for key in ("values", "se"))
    assert 0 < se < 0.01
    assert abs(value - whole) < 4 * se
    assert (found["chance"]["units"], found["chance"]["orders"]) == ("rows", 8)


def test_refused(repsim, tmp_path):
    words = ["run", *stored(tmp_path, 200), "measure=[mutual_knn]", "extract.estimate=sampled"]
    code, _, err = repsim(*words, "significance=permutation", "significance.clusters=row")
    assert code == 2
    assert "significance: values of sampled rows have their standard error and no null, got estimate sampled" in err
    code, out, err = repsim(*words, "dry_run=true")
    assert code == 0, err
    assert "passes over the rows: 2, for the neighbours of 200 sampled rows among all" in out
