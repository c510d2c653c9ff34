"""Rows that do not fill whole batches: they are one sample, in equal batches, or said to be left out."""

import json

import numpy as np
import pytest

from repsim_cli.base.settings import Extract
from repsim_cli.runs import reader


@pytest.mark.parametrize(
    ("total", "estimate", "rows", "batches"),
    [
        (512, "full", 512, 1),
        (1024, "full", 1024, 1),
        (1983, "full", 1983, 1),
        (2048, "per_batch", 1024, 2),
        (7936, "per_batch", 1024, 7),  # 768 rows, less than a tenth, are left out
        (2300, "per_batch", 766, 3),
        (3071, "per_batch", 1023, 3),
    ],
)
def test_batches_that_suit_the_rows(total, estimate, rows, batches):
    fitted = Extract(hook_points=["embed"], at_most=["batch_rows"]).fit_to(total)
    size = fitted.rows if fitted.estimate == "full" else fitted.batch_rows
    assert (fitted.estimate, size, total // size) == (estimate, rows, batches)
    assert fitted.fit_to(total) == fitted


def test_batches_that_are_asked_for_stay():
    asked = Extract(hook_points=["embed"])
    assert asked.fit_to(1983) is asked
    summed = Extract(hook_points=["embed"], estimate="ratio_of_sums", at_most=["batch_rows"])
    assert (summed.fit_to(500).estimate, summed.fit_to(500).batch_rows) == ("ratio_of_sums", 500)


@pytest.mark.parametrize(
    ("words", "estimate", "said"),
    [
        ((), ("full", 1629, 1), ""),
        (("extract.batch_rows=700",), ("per_batch", 1400, 2), "extract.batch_rows: 229 of 1,629 rows are left out, since"),
        (("extract.batch_rows=1000",), ("per_batch", 1000, 1), "extract.batch_rows: 629 of 1,629 rows are left out"),
        (("extract.rows=300",), ("full", 1629, 1), "extract.rows: only for extract.estimate=full, got 300 with per_batch"),
    ],
)  # fmt: skip
def test_a_run_on_1629_rows(repsim, newest, tmp_path, words, estimate, said):
    draws = np.random.default_rng(0)
    for name in ("one", "two"):
        np.savez(tmp_path / f"{name}.npz", a=draws.normal(size=(1629, 4)), b=draws.normal(size=(1629, 3)))
    given = [f"model.{name}={tmp_path / name}.npz" for name in ("one", "two")]
    given += ["extract.skip=0", "extract.normalise=none", "extract.pairs=all", "measure=[cka]", *words]
    code, out, err = repsim("run", *given, "dry_run=true")
    assert code == 0, err
    planned = "per_batch" if words and "batch" in words[0] else "full"
    assert f"estimate: {planned}\n" in out
    code, _, err = repsim("run", *given)
    assert code == 0, err
    (measured,) = reader.read_results(newest()).measures
    told = measured.estimate
    assert (told["kind"], told["rows"], told["batches"], told["rows_available"]) == (*estimate, 1629)
    warnings = json.loads((newest() / "manifest.json").read_text())["warnings"]
    assert any(text.startswith(said) for text in warnings) if said else not warnings
