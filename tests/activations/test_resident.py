"""Which models are in memory at a time, and that the numbers do not depend on it."""

import gc
import json
import weakref

import numpy as np
import pytest

from repsim_cli.activations import stored
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Hardware
from repsim_cli.engine import rows as sample
from repsim_cli.models.sizes import are_resident_together, count_resident_bytes, count_weight_bytes

WORDS = ["run", "model=[tiny_a,tiny_b]", "extract.sequences=8", "extract.batch_rows=200", "measure=[cka_unbiased]",
         "extract.normalise=none"]  # fmt: skip


@pytest.fixture
def most_alive(monkeypatch):
    """The largest number of models that were in memory at a time."""
    load, alive, most = sample.load_model, [], [0]

    def counted(reading, study):
        module = load(reading, study)
        gc.collect()
        alive.append(weakref.ref(module))
        most[0] = max(most[0], sum(one() is not None for one in alive))
        return module

    monkeypatch.setattr(sample, "load_model", counted)
    return most


def values(run):
    (measured,) = json.loads((run / "results.json").read_text())["measures"]
    return [np.load(run / matrix["values"]) for matrix in measured["matrices"]]


@pytest.mark.parametrize("cache", ["true", "false"])
def test_one_model_at_a_time_gives_the_same_bits(repsim, newest, most_alive, cache):
    found = {}
    for resident in ("one", "all"):
        code, _, err = repsim(*WORDS, f"cache={cache}", f"hardware.resident={resident}")
        assert code == 0, err
        found[resident] = values(newest())
        assert most_alive == [1 if resident == "one" or cache == "true" else 2]
        assert not (newest() / "activations").exists()
    assert len(found["one"]) == len(found["all"]) > 0
    for one, other in zip(found["one"], found["all"], strict=True):
        assert np.array_equal(one, other)


def test_rows_that_cannot_be_kept_are_refused(repsim, monkeypatch):
    monkeypatch.setattr(stored.Recorder, "write", lambda *given: None)
    code, _, err = repsim(*WORDS, "cache=false", "hardware.resident=one")
    assert code == 1
    assert "model.tiny_a: its rows cannot be kept while the next model runs, got no room at " in err
    assert "use hardware.resident=all" in err


def test_models_that_fit_into_half_of_the_memory_are_together():
    sources = [models.get("shipped").function(name=name) for name in ("tiny_a", "tiny_b")]
    sizes = [4.0 * source.parameters for source in sources]
    assert [count_weight_bytes(source, "float32") for source in sources] == sizes
    assert count_weight_bytes(sources[0], "bfloat16") == sizes[0] / 2
    for share, together in ((1.9, False), (2.1, True)):
        hardware = Hardware(memory_gb=share * sum(sizes) / 1e9)
        assert are_resident_together(sources, hardware) is together
        assert count_resident_bytes(sources, hardware) == (sum(sizes) if together else max(sizes))
    small = Hardware(memory_gb=1e-6, resident="all")
    assert are_resident_together(sources, small)
    assert not are_resident_together(sources, Hardware(resident="one"))
    assert count_resident_bytes(sources, Hardware(resident="one"), together=True) == sum(sizes)
