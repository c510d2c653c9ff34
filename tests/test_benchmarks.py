"""Benchmarks that need a machine or minutes of their own: that they run."""

import importlib.util
import inspect
import itertools
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import few_rows
import layers
import levels
import numpy as np
import pytest
import vector_maps
from helpers.nights import slow

from repsim_cli import measures
from repsim_cli.findings.claims import UNTESTABLE

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_the_script_for_a_gpu_runs_small_on_a_cpu():
    words, given = [sys.executable, ROOT / "benchmarks" / "gpu.py"], {"cwd": ROOT, "capture_output": True, "text": True}
    ended = subprocess.run([*words, "--small", "pairs", "forwards", "blocks", "memory"], **given, check=True)
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[4:6]] == ["| A", "| B"]
    assert "the CPU, small sizes: no figures" in ended.stdout
    ended = subprocess.run([*words, "nothing"], **given, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert ended.returncode == 2
    assert "no such part, got nothing; choose from pairs, forwards" in ended.stderr


def accuracy():
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_sample_of_the_table_of_few_rows_holds():
    cells = {tuple(row.split("|")[1:3]): row for row in accuracy_page() if row.startswith("| `")}
    at_4 = {key: float(row.split("|")[6]) for key, row in cells.items() if "refused" not in row}
    for name, correlation in (("procrustes", 0.0), ("ridge", 0.9)):
        printed = at_4[f" `{name}` ", f" {correlation:g} "]
        assert few_rows.mean(name, 256, correlation, draws=1) == pytest.approx(printed, abs=0.03)


def test_a_row_of_the_table_of_planted_rotations_holds():
    page = (ROOT / "experiments" / "vector_map.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| 0.3 |"))
    printed = [float(cell) for cell in row.strip("| ").split("|")[1:]]
    found = vector_maps.drawn(0.3, 0)
    forms = [vector_maps.expected(kind, 0.3) for kind in ("rotation", "affine")]
    of = [found["rotation"][0], forms[0], found["affine"][0], forms[1]]
    assert [*of, found["rotation"][1], found["affine"][1], found["true"][1]] == pytest.approx(printed, abs=0.01)


def accuracy_page():
    page = (ROOT / "docs" / "accuracy.md").read_text()
    return page.split(few_rows.BEGIN)[1].split(few_rows.END)[0].splitlines()


SAMPLE = ["cka", "cka_unbiased", "cka_rbf", "rsa", "rsa_euclidean", "distance_correlation", "procrustes", "euclidean"]


def test_a_sample_of_the_table_of_accuracy_holds():
    """A few times the number that is written there, for processors differ in their last digits."""
    script = accuracy()
    page = script.PAGE.read_text().split(script.BEGIN)[1].split(script.END)[0]
    rows = {cells[1].strip(" `"): cells[2:-1] for cells in (line.split("|") for line in page.splitlines()) if cells[1:]}
    names = [name for name in measures.available() if not measures.card(name).infinite_to_itself]
    assert set(rows) - {"measure", "---"} >= set(names)
    assert set(SAMPLE) <= set(names)
    assert [kind.strip() for kind in rows["measure"]] == list(script.KINDS)
    for name in SAMPLE:
        for kind, written in zip(script.KINDS, rows[name], strict=True):
            found = script.difference(name, kind, draws=1)
            assert found <= max(5 * float(written), 5e-7), (name, kind)


def promises_of(promises):
    """What the promises of one draw are about: of a claim its name."""
    return promises[0].of.partition(":")[0]


@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
@pytest.mark.parametrize(
    "part", slow(levels.PARTS, "levels_nulls", "levels_sentences", "levels_shares", "levels_shared")
)
def test_every_promise_is_drawn_once(part):
    """Whether promises are kept takes thousands of draws of each: `python benchmarks/levels.py`."""
    made = importlib.import_module(part)
    rng, testable = np.random.default_rng(0), {}
    for draw, promises in itertools.groupby(made.PROMISES, key=lambda promise: promise.draw):
        few = {"samples": 2} if "samples" in inspect.signature(draw).parameters else {}
        drawn, of = draw(rng, **few), promises_of(promises := [*promises])
        testable[of] = testable.get(of, False) or drawn != UNTESTABLE
        for promise in promises:
            assert promise.draws >= 100
            assert math.isfinite(promise.number(drawn)), (promise.of, promise.setting)
    assert all(testable.values()), testable  # what is never tested keeps any level


def test_the_table_of_promises(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["levels.py", "q, where", "--tiny", "--jobs", "1"])
    with pytest.raises(SystemExit) as ended:
        levels.main()
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert (ended.value.code, len(rows)) == (0, 4)
    assert head == "| promise | setting | kind | nominal | simulated | error | draws | kept | s |"
    assert rows[0].startswith("| q, where it is given | models of 3 and 3 layers, 199 permutations | level | 0.05 |")
    assert rows[-1].startswith("2 promises, kept: safe side: 1, yes: 1; ")


def test_whether_a_promise_is_kept():
    def kept(kind, nominal, mean, error):
        return levels.kept(levels.Promise("", "", kind, nominal, 2, float), levels.Simulated(mean, error, 0.0))

    rates = [kept("level", 0.05, mean, 0.005) for mean in (0.02, 0.04, 0.064, 0.066)]
    assert rates == ["safe side", "yes", "yes", "NO"]
    assert [kept("level", 0.05, mean, 0.01) for mean in (0.02, 0.069, 0.071)] == ["safe side", "yes", "NO"]
    assert [kept("cover", 0.95, mean, 0.005) for mean in (0.92, 0.94, 0.98)] == ["NO", "yes", "safe side"]
    assert [kept("power", 0.05, mean, 0.1) for mean in (0.79, 0.8)] == ["NO", "yes"]
    assert [kept("value", 0.0, mean, 0.1) for mean in (-0.4, -0.2, 0.4)] == ["NO", "yes", "NO"]


def test_errors_of_planted_dimensions_are_printed(capsys):
    layers.covered("plane", partial(layers.plane, count=100, dim=3), np.arange(100), 3, draws=4)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["plane, k = 1", "plane, k = 4"]
    assert 0 <= layers.stand_out(0.1, 1) <= 1
