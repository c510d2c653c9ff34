"""Diagnostics of layers against plain numpy, and that they depend on the rows alone, not on how these pass."""

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from repsim_cli.activations.diagnostics import CELLS, MOST, Diagnosis, measure_spread
from repsim_cli.activations.readings import Layer
from repsim_cli.activations.rows import HeldRows, RowBlock
from repsim_cli.runs.content import DIAGNOSTICS, PLACES


def skewed(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Correlated features with an offset, one feature and two rows that are larger than the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 5
    x[:, d // 2] *= 4
    x[[1, n // 2]] *= 10
    return x


@pytest.mark.parametrize(("n", "d"), [(300, 7), (120, 150)])
def test_the_spread_is_that_of_plain_numpy(n, d):
    x = skewed(n, d)
    found = measure_spread(torch.from_numpy(x).float())
    covariance = np.cov(x.T)
    norms = np.sort(((x - x.mean(0)) ** 2).sum(1))
    assert found is not None
    assert found.feature == np.diag(covariance).argmax()
    assert found.share == pytest.approx(np.diag(covariance).max() / np.trace(covariance), rel=1e-5)
    assert found.rows_share == pytest.approx(norms[-(n // 100) :].sum() / norms.sum(), rel=1e-5)


def slow_participation(x: np.ndarray) -> float:
    """The ratio from the differences u, v of all pairs of pairs of different rows."""
    fours = list(itertools.permutations(x, 4))
    lengths = [((a - b) @ (a - b)) * ((c - d) @ (c - d)) for a, b, c, d in fours]
    return np.mean(lengths) / np.mean([((a - b) @ (c - d)) ** 2 for a, b, c, d in fours])


@pytest.mark.parametrize(("n", "d"), [(4, 3), (7, 2), (8, 30)])
def test_the_participation_ratio_is_that_of_all_differences_of_rows(n, d):
    x = skewed(n, d)
    found = measure_spread(torch.from_numpy(x))
    assert found is not None
    assert found.participation == pytest.approx(min(slow_participation(x), d))


@pytest.mark.parametrize(("n", "d"), [(70, 20_000), (600, 600), (2000, 60)])
def test_the_participation_ratio_is_not_that_of_few_rows(n, d):
    """The ratio of independent features is their number; that of the sample's covariance matrix is n at most."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(n, d)))
    found = measure_spread(x)
    assert found is not None
    assert found.participation == pytest.approx(d, rel=0.1)
    line = measure_spread(x[:, :1] * torch.ones(1, d))
    assert line is not None
    assert line.participation == pytest.approx(1)
    few = measure_spread(x[:3])
    assert few is not None
    assert few.participation is None


def test_too_few_rows_have_no_largest_percent_and_equal_rows_no_spread():
    found = measure_spread(torch.from_numpy(skewed(99, 5)))
    assert found is not None
    assert found.rows_share is None
    assert measure_spread(torch.full((200, 4), 3.3)) is None


@pytest.mark.parametrize(("n", "d"), [(120, 300), (300, 20)])
def test_the_spread_of_rows_of_any_size_and_of_rounding(n, d):
    x = torch.from_numpy(skewed(n, d)).float()
    expected = measure_spread(x)
    assert expected is not None
    for size in (1e-20, 1e20):
        found = measure_spread(x * size)
        assert found is not None
        assert found.feature == expected.feature
        np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-4)
    rounding = torch.linspace(-1e-8, 1e-8, n)[:, None].double() * x.double() / x.abs().max()
    assert measure_spread((3.3 + rounding).float()) is None


def diagnosed(
    rows: dict[Layer, torch.Tensor],
    size: int,
    places: np.ndarray | None,
    total: int,
    kinds: Sequence[type] = (RowBlock,),
) -> list[list]:
    """The table of rows that pass in blocks of this size. kinds: of the blocks, by turns."""
    diagnosis = Diagnosis({"a": places}, total, seed=0)
    layers = list(rows)
    stream = (kinds[i // size % len(kinds)](i, [x[i : i + size] for x in rows.values()]) for i in range(0, total, size))
    for _ in diagnosis.watch(stream, layers):
        pass
    assert not diagnosis.lacks(layers)
    return diagnosis.tables(layers)[DIAGNOSTICS].rows


def assert_close(row: list, other: list, rel: float) -> None:
    """The same names and gaps, and numbers within a relative tolerance."""
    for a, b in zip(row, other, strict=True):
        assert a == (pytest.approx(b, rel=rel) if isinstance(b, float) else b)


def test_the_table_does_not_depend_on_how_rows_pass_and_has_norms_by_place():
    total = 2 * MOST + 100
    rows = {Layer("a", "resid_post@0", 6): torch.from_numpy(skewed(total, 6)).float()}
    rows[Layer("b", "h", 3)] = rows[Layer("a", "resid_post@0", 6)][:, :3].clone()
    places = np.arange(total) % 12 + 2  # places 0 and 1 are never rows
    tables = [diagnosed(rows, size, places, total) for size in (total, 1000, 77)]
    first, stored = tables[0]
    for a, b in tables[1:]:
        assert_close(a, first, 1e-12)
        assert_close(b, stored, 1e-12)
    assert first[:4] == ["a", "resid_post@0", MOST, 6]
    norms = np.linalg.norm(rows[Layer("a", "resid_post@0", 6)].numpy(), axis=1)
    means = [norms[places == place].mean() for place in range(2, PLACES)] + [norms[places >= PLACES].mean()]
    assert first[8:10] == [None, None]
    assert first[10:] == pytest.approx(means, rel=1e-5)
    assert stored[8:-1] == [None] * PLACES  # without places all rows are elsewhere
    assert stored[-1] == pytest.approx(np.linalg.norm(rows[Layer("b", "h", 3)].numpy(), axis=1).mean(), rel=1e-5)


@pytest.mark.parametrize("kinds", [(HeldRows,), (RowBlock, HeldRows), (HeldRows, RowBlock)])
def test_rows_that_stay_in_memory_give_the_same_table(kinds):
    rows = {Layer("a", "h", 6): torch.from_numpy(skewed(300, 6)).float()}
    assert diagnosed(rows, 100, None, 300, kinds) == diagnosed(rows, 100, None, 300)


def table_of(folder) -> dict:
    return json.loads((folder / "results.json").read_text())["tables"][DIAGNOSTICS]


SMALL = ("extract.sequences=8", "extract.batch_rows=256", "hardware.threads=1")


@pytest.mark.slow
def test_all_estimates_diagnose_the_same_rows(repsim, newest):
    tables = []
    for words in (
        ["extract.estimate=per_batch", "measure=[cka]"],
        ["extract.estimate=full", "measure=[cka]"],
        ["extract.estimate=moments", "measure=[neuronsim]", "hardware.batch_size=3"],
        ["extract.estimate=per_batch", "measure=[cka]", "cache=false"],
    ):
        code, _, err = repsim("run", "model=[tiny_a]", *SMALL, *words)
        assert code == 0, err
        tables.append(table_of(newest())["rows"])
    for table in tables[1:]:
        assert len(table) == 6
        for row, first in zip(table, tables[0], strict=True):
            assert_close(row, first, 1e-4)


def test_they_come_from_the_cache_where_no_model_runs(repsim, newest, tmp_path):
    words = ("run", "model=[tiny_a]", *SMALL, "measure=[cka]", "extract.estimate=full")
    assert repsim(*words)[0] == 0
    first = table_of(newest())
    assert repsim(*words)[0] == 0
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert (manifest["models_run"], manifest["matrices_cached"]) == ([], ["cka"])
    assert table_of(newest()) == first
    for entry in (tmp_path / "cache" / "diagnostics").glob("*/*"):
        entry.unlink()  # without them the cached activations are read once more, and no model runs
    assert repsim(*words)[0] == 0
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert (manifest["models_run"], manifest["matrices_cached"]) == ([], ["cka"])
    assert table_of(newest()) == first


@pytest.mark.parametrize(("width", "kept"), [(4, 300), (CELLS // 300, 300), (CELLS // 150, 150), (CELLS, 100)])
def test_fewer_rows_of_wide_layers(width, kept):
    layer = Layer("a", "conv", width)
    diagnosis = Diagnosis({}, 300, seed=0)
    assert len(diagnosis._choose_rows(layer.width).unique()) == kept
