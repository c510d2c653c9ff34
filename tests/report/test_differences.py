"""`repsim diff`: what two runs rest on is said first; numbers stand in units of their standard errors too."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from repsim_cli.report import differences
from repsim_cli.runs import reader, results

EARLIER = Path(__file__).parents[1] / "earlier" / "similarity"


@pytest.fixture
def runs(tmp_path):
    return [shutil.copytree(EARLIER, tmp_path / name) for name in ("first", "second")]


def changed(folder, change):
    """A manifest as if the run had read something else."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_other_texts_models_and_settings_come_before_the_numbers(runs, repsim):
    first, second = runs
    changed(second, lambda manifest: manifest["data"].update(hash="0" * 64, source="corpus.txt"))
    changed(second, lambda manifest: manifest["models"]["tiny_a"].update(weights_hash="0" * 64, source="elsewhere"))
    changed(second, lambda manifest: manifest["models"]["tiny_b"].update(source="elsewhere"))
    text = (second / "config.yaml").read_text()
    (second / "config.yaml").write_text(
        text.replace("sequences: 24", "sequences: 32").replace("name: sim", "name: other")
    )
    code, out, err = repsim("diff", first, second)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == f"{second} minus {first}"
    read = "24 sequences of {}, "
    assert lines[1].startswith(f"  other texts: {read.format('Jargon File 4.4.7 (public domain), validation')}")
    assert f" | {read.format('corpus.txt')}" in lines[1]
    assert lines[1].endswith("; differences are of the texts too")
    assert lines[2:5] == [
        "  model tiny_a: other weights or rows",
        "  settings, first | second:",
        "    extract.sequences: 24 | 32",
    ]
    assert "largest         0 (0 se)" in lines[5]


def test_units_are_the_errors_of_both_runs(runs, repsim):
    first, second = runs
    (measured, *_) = reader.read_results(first).measures
    matrix = next(m for m in measured.matrices if m.rows.model != m.columns.model)
    values, se = (reader.read_array(first, path) for path in (matrix.values, matrix.se))
    moved = values.copy()
    moved[0, 1] += 0.05
    with results.amend(second) as writer:
        writer.write_array(Path(matrix.values).stem, moved)
    found, unmatched = differences.compare_runs(first, second)
    (of,) = [d for d in found if d.measure == measured.label and d.rows != d.columns]
    assert not unmatched
    assert of.where == (matrix.rows.layers[0], matrix.columns.layers[1])
    assert of.in_errors.max() == pytest.approx(0.05 / (np.sqrt(2) * se[0, 1]))
    code, out, err = repsim("diff", first, second)
    assert code == 0, err
    assert out.splitlines()[1] == "  the same settings, texts, models"
    assert f"largest      0.05 ({0.05 / (np.sqrt(2) * se[0, 1]):.2g} se)" in out
    assert f" at {of.where[0]} x {of.where[1]}\n" in out
    assert {tuple(row["where"]) for row in differences.tabulate_differences(found) if row["largest"]} == {of.where}
    assert of._replace(error=None).in_errors is None
    code, out, err = repsim("diff", second, first)
    assert "largest     -0.05 (" in out


def test_models_of_one_run_alone(runs):
    first, second = runs
    changed(second, lambda manifest: manifest["models"].pop("tiny_b"))
    assert differences.find_input_differences(first, second).models == {"tiny_b": "in the first run alone"}
    assert differences.find_input_differences(second, first).models == {"tiny_b": "in the second run alone"}
