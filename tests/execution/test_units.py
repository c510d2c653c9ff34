"""What workers compute ahead of a run is what the run would have computed."""

import contextlib
import json
import logging
import shutil
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.ahead import PAIRS, STITCHES, numbers
from helpers.composing import composed

from repsim_cli.config.run import build_from_keys, validate
from repsim_cli.engine import permutations, significance
from repsim_cli.engine import rows as sample
from repsim_cli.engine.permuted import TOGETHER
from repsim_cli.engine.rows import load_model
from repsim_cli.execution import units
from repsim_cli.runs import folders, reader, results

STEPS = (
    "study=convergence", "model=[tiny_a_series]", "measure=[cka_unbiased]", "extract.sequences=8", "extract.layers=[0,-1]",
    "extract.batch_rows=256", "hardware.threads=1",
)  # fmt: skip


SHARDS = (
    "model=[tiny_a,tiny_b]", "measure=[cka_unbiased]", "extract.sequences=7", "extract.batch_rows=128",
    "extract.layers=[0,-1]", "hardware.batch_size=1", "hardware.processes=5", "hardware.threads=1",
)  # fmt: skip


NULLS = (
    "model=[tiny_a,tiny_b]", "measure=[cka_unbiased,procrustes]", "extract=pooled", "extract.sequences=40", "extract.rows=40",
    "extract.estimate=full", "extract.layers=[0,-1]", "significance=permutation", "significance.permutations=39",
    "hardware.threads=1",
)  # fmt: skip


class Here:
    """Performs units in this process, one after the other."""

    def __init__(self, work):
        self.work, self.units, self.done = work, [], []

    def perform(self, given, label):
        self.units += given
        self.done += [(unit.kind, self.work(unit.kind, unit.args)) for unit in given]

    def again(self):
        self.done = [(unit.kind, self.work(unit.kind, unit.args)) for unit in self.units]


@contextlib.contextmanager
def here(make, run, *, name, session, config, threads, price):
    made.append(
        Here(units.open_session(json.loads(json.dumps(config)), threads))
    )  # the configuration as workers get it
    yield made[-1]


made: list[Here] = []


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (PAIRS, {"activations": 2, "pairs": 6}),
        pytest.param(
            (*PAIRS, "study=similarity", "options.within=true"),
            {"activations": 2, "pairs": 4},
            marks=pytest.mark.slow,
        ),
        (STITCHES, {"stitches": 6}),
        (STEPS, {"checkpoint": 3}),
        (SHARDS, {"shard": 4, "activations": 2}),
        (NULLS, {"activations": 2, "pairs": 3, "permutations": 7}),
        pytest.param(
            (*NULLS, "extract.estimate=per_batch", "extract.batch_rows=20"),
            {"activations": 2, "pairs": 3, "permutations": 5},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_units_leave_what_the_run_then_finds(repsim, tmp_path, monkeypatch, words, count):
    made.clear()
    assert repsim("run", *words, "name=alone")[0] == 0
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(units, "start_driver", here)
    monkeypatch.setattr(permutations, "BLOCK", 1e6)
    assert repsim("run", *words, "name=ahead", "hardware.executor=processes")[0] == 0
    alone, ahead = (folders.find(name) for name in ("alone", "ahead"))
    assert numbers(alone) == numbers(ahead)
    (driver,) = made
    kinds = [kind for kind, _ in driver.done]
    assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == count
    assert all(computed for _, computed in driver.done)
    manifest = reader.read_manifest(ahead)
    assert manifest.get("models_run", []) == []  # the run itself loads no model for rows
    driver.again()
    assert not any(computed for _, computed in driver.done)  # all is there


@pytest.mark.slow
def test_a_run_draws_no_permutation_that_workers_have_drawn(repsim, monkeypatch):
    left = []
    permuted = significance.permute_pairs
    monkeypatch.setattr(
        significance,
        "permute_pairs",
        lambda prepared, orders, progress, noted: (
            left.append(int(np.isnan(noted).any((1, 2)).sum())),
            permuted(prepared, orders, progress, noted),
        )[1],
    )
    monkeypatch.setattr(units, "start_driver", here)
    monkeypatch.setattr(permutations, "BLOCK", 1e6)
    made.clear()
    assert repsim("run", *NULLS, "hardware.executor=processes")[0] == 0
    assert left == [32, 7, 8, 8, 8, 8, 7, 0, 0]  # of each unit, and of the run for two measures


def test_few_permutations_are_left_to_the_run():
    comparison = validate(composed(*NULLS)).study.comparison
    assert permutations.split_permutations(comparison) == {}
    more = replace(comparison, significance=replace(comparison.significance, permutations=10**6))
    ((label, blocks),) = permutations.split_permutations(more).items()
    assert label == "procrustes"  # a millisecond each; CKA takes a second for all of them
    assert [number for block in blocks for number in block] == list(range(10**6))
    assert all(block.start % TOGETHER == 0 for block in blocks)


@pytest.mark.slow
def test_shards_are_put_together_without_the_model(repsim, tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(
        sample, "load_model", lambda reading, given: (loads.append(reading.label), load_model(reading, given))[1]
    )
    monkeypatch.setattr(units, "start_driver", here)
    made.clear()
    assert repsim("run", *SHARDS, "hardware.executor=processes")[0] == 0
    assert loads == ["tiny_a"] * 2 + ["tiny_b"] * 2
    (driver,) = made
    # a shard that is lost is computed by the unit that puts them together
    shutil.rmtree(tmp_path / "cache" / "activations")
    first, *_, whole = (unit for unit in driver.units if unit.args["label"] == "tiny_a")
    assert [driver.work(unit.kind, unit.args) for unit in (first, whole)] == [True, True]
    assert loads[4:] == ["tiny_a"] * 2
    (entry,) = (file for file in (tmp_path / "cache" / "activations").iterdir() if file.is_dir())  # no shard remains
    # shards leave out what a run that was cut off had recorded
    (record,), (window, *_) = entry.glob("entry-*"), sorted(entry.glob("0*"))
    record.unlink()
    window.unlink()
    shards = [unit for unit in driver.units if unit.kind == "shard" and unit.args["label"] == "tiny_a"]
    assert [driver.work(unit.kind, unit.args) for unit in (*shards, whole)] == [True, False, True]
    assert loads[6:] == ["tiny_a"]


def test_activations_that_the_cache_would_drop_are_left_to_the_run(tmp_path, monkeypatch, caplog):
    run = results.create(tmp_path / "run", name="run", study="similarity", seed=0, command=[], overrides=[])
    keys = validate(composed("model=[tiny_a,tiny_b]", "measure=[cka,procrustes]")).keys.model_dump()
    checked, asked = build_from_keys(keys), []
    driver = SimpleNamespace(perform=lambda given, label: asked.extend(unit.name for unit in given))
    monkeypatch.setattr(logging.getLogger("repsim"), "propagate", True)
    units.perform_phases(checked, run, driver)
    pairs = [f"procrustes of tiny_{i} and tiny_{j}" for i, j in ("aa", "ab", "bb")]
    assert asked == ["activations of tiny_a", "activations of tiny_b", *pairs]
    monkeypatch.setattr("repsim_cli.runs.cache.limit", lambda: 1000)
    asked.clear()
    units.perform_phases(checked, run, driver)
    assert asked == []
    assert "it does not hold the activations of all models, which are left to the run itself" in caplog.text


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_engines_leave_what_the_run_then_finds(repsim, tmp_path, monkeypatch, engine):
    if engine == "ray" and find_spec("ray") is None:
        pytest.skip("needs the extra `ray`")
    pairs = (*PAIRS, "hardware.batch_size=1")
    assert repsim("run", *pairs, "name=alone")[0] == 0
    alone = numbers(folders.find("alone"))
    for workers, count in ((1, 8), (4, 12)):  # four workers share the rows of two models
        monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / f"cache-{workers}"))
        words = [f"hardware.executor={engine}", f"hardware.processes={workers}"]
        words += ["hardware.address=local"] if engine == "ray" else []
        assert repsim("run", *pairs, f"name=on-{workers}", *words)[0] == 0
        run = folders.find(f"on-{workers}")
        assert numbers(run) == alone
        about = reader.read_manifest(run)["executor"]
        assert (about["name"], about["units"], about["computed"], about["attempts"]) == (engine, count, count, count)
