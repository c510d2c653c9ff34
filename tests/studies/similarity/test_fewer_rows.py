"""Values on samples of the rows: what the same samples give alone, with their spread and the level of chance."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from safetensors.numpy import load_file

from repsim_cli import measures
from repsim_cli.base.errors import BadInput
from repsim_cli.data.base import draw
from repsim_cli.runs.content import FEWER_ROWS
from repsim_cli.studies.similarity.fewer_rows import DRAWS, list_sample_sizes
from repsim_cli.studies.similarity.finding_fewer_rows import CHANGES

N = 520


@pytest.fixture
def stored(tmp_path):
    """h1 of b is h0 of a with noise; the others share nothing."""
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=(3, N, 6)).astype(np.float32)
    np.savez(tmp_path / "a.npz", h0=x, h1=y)
    np.savez(tmp_path / "b.npz", h0=z, h1=x + rng.normal(size=x.shape).astype(np.float32))
    models = [f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in "ab"]
    return ["model=[]", *models, "hardware.threads=1"], x, np.load(tmp_path / "b.npz")["h1"]


def records(folder, name):
    table = json.loads((folder / "results.json").read_text())["tables"][name]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@pytest.mark.slow
@pytest.mark.drawn
def test_values_are_those_of_the_samples(repsim, newest, stored, tmp_path):
    words, x, y = stored
    code, _, err = repsim(
        "run",
        "-q",
        *words,
        "measure=[mutual_knn,cka]",
        "extract.estimate=full",
        f"extract.rows={N}",
        "analyses.fewer_rows={}",
    )
    assert code == 0, err
    folder = newest()
    for name, of_chance in (("mutual_knn", lambda n: 10 / (n - 1)), ("cka", None)):
        found = [row for row in records(folder, FEWER_ROWS) if row["measure"] == name]
        assert [row["rows"] for row in found] == [*list_sample_sizes(N), N] == [130, 260, N]
        assert {(row["layer a"], row["layer b"]) for row in found} == {("h0", "h1")}
        assert [row["samples"] for row in found] == [DRAWS, DRAWS, 1]
        measure = measures.get(name)
        for row in found[:-1]:
            samples = [draw(N, row["rows"], seed) for seed in range(1, 1 + DRAWS)]
            values = np.array([measure(x[rows], y[rows]) for rows in samples])
            assert row["value"] == pytest.approx(values.mean(), abs=1e-6)
            assert row["se"] == pytest.approx(values.std(ddof=1) / 2, abs=1e-6)
            if of_chance:
                assert row["chance"] == pytest.approx(of_chance(row["rows"]), rel=0.02)
        assert found[-1]["value"] == pytest.approx(measure(x, y), abs=1e-6)
        (change,) = [row for row in records(folder, CHANGES) if row["measure"] == name]
        assert change["change"] == pytest.approx(found[-1]["value"] - found[-2]["value"])
        assert change["fewer rows"] == 260
        assert change["change"] < 0  # both fall with more rows
        wide = scipy.stats.t.ppf(0.975, DRAWS - 1) * change["se of the change"]
        assert [change["low"], change["high"]] == pytest.approx([change["change"] - wide, change["change"] + wide])
        assert (folder / "figures" / f"fewer-rows-{name}.png").is_file()
    kept = [load_file(file) for file in (tmp_path / "cache" / "matrices").glob("*/matrix-*")]
    assert len(kept) == 2 * (1 + 2 * DRAWS)
    assert sum("observed scatter" in matrix for matrix in kept) == 2  # of all rows: samples need no such error


def test_a_long_run_of_sampled_rows_ends_with_its_own_error(repsim, newest, stored):
    words, _, _ = stored
    words = [*words, "measure=[mutual_knn]", "extract.estimate=sampled", "extract.rows=200", "analyses.fewer_rows={}"]
    code, out, err = repsim("run", *words, "dry_run=true")
    assert code == 0, err
    assert "fewer rows" in out
    code, _, err = repsim("run", "-q", *words)
    assert code == 0, err
    *_, last = records(newest(), FEWER_ROWS)
    assert (last["rows"], last["samples"]) == (N, 1)
    assert 0 < last["se"] < 0.03


def test_refused(repsim, stored, tmp_path):
    code, _, err = repsim(
        "run", *stored[0], "analyses.fewer_rows={}", "extract.estimate=per_batch", "extract.batch_rows=64"
    )
    assert code == 2
    assert "analyses.fewer_rows: samples of the rows are compared, got extract.estimate=per_batch; use full or" in err


def test_a_run_without_it_says_so():
    from repsim_cli.findings.analysis import Finished
    from repsim_cli.runs.content import Results
    from repsim_cli.studies.similarity.finding_fewer_rows import FewerRows, fewer_rows

    with pytest.raises(BadInput, match="the run has no values of fewer rows; run it again with analyses.fewer"):
        fewer_rows(Finished(folder=Path(), manifest={}, results=Results(study="similarity")), FewerRows(), [])


def test_warnings_are_of_all_rows_alone(repsim, newest, tmp_path):
    few = np.random.default_rng(0).integers(0, 3, (N, 2)).astype(np.float32)  # many rows are equal
    models = []
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", h0=few)
        models.append(f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}")
    words = ["measure=[mutual_knn]", "extract.estimate=full", f"extract.rows={N}", "analyses.fewer_rows={}"]
    code, _, err = repsim("run", "-q", "model=[]", *models, *words)
    assert code == 0, err
    told = [text for text in json.loads((newest() / "manifest.json").read_text())["warnings"] if "equally near" in text]
    assert len(told) == 1
    assert f"in 1 more layer (there {N}): {N} of {N} rows" in told[0]
