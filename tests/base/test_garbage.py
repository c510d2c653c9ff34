"""Garbage is not searched for while a command imports, and is searched for while it computes and in programs."""

import gc

import pytest

from repsim_cli.base import garbage


@pytest.fixture(autouse=True)
def _as_before():
    yield
    gc.enable()
    gc.unfreeze()


def test_what_is_made_meanwhile_is_left_out():
    gc.unfreeze()
    garbage.pause()
    assert not gc.isenabled()
    garbage.resume()
    assert gc.isenabled()
    left_out = gc.get_freeze_count()
    assert left_out > 1000
    kept = [[] for _ in range(100)]
    garbage.resume()
    assert gc.get_freeze_count() <= left_out, "nothing that a program makes later"
    assert len(kept) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["list", "run"], ["run", "measure=[cka]", "analyses={}", "model=[tiny_a,tiny_b]", "extract.sequences=4"]]
)
def test_a_command_that_computes_searches(repsim, words):
    garbage.pause()
    code, _, err = repsim(*words)
    assert (code, err.count("error")) == (0, 0)
    assert gc.isenabled()
