"""The maps of a run that is still computing: what they hold, when they are written, and that nothing else changes."""

import os

import numpy as np
import pytest
import torch
from helpers.timers import set_timers

from repsim_cli import measures
from repsim_cli.cli import follow
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.processes import PairWork
from repsim_cli.report.record import record
from repsim_cli.runs import reader, results, so_far
from repsim_cli.runs.content import Measured

CARD = {"symmetric": True, "larger_is_closer": True, "bounds": [0.0, 1.0], "label": "CKA"}
NAMES = [("a", "x"), ("a", "y"), ("b", "x")]


def writer(folder, card=CARD, **changed):
    estimate = {"kind": "full", "rows": 0, "rows_available": 40, "batches": 4}
    measured = Measured(name="cka", label="cka", settings={}, estimate=estimate, card=card, matrices=[])
    given = {"names": NAMES, "measures": {"cka": measured}, "rows": 10, "batches": 4, "cells": 9, **changed}
    return so_far.Writer(folder=folder, **given)


@pytest.fixture
def always(monkeypatch):
    """Files are written whenever more is known."""
    set_timers(monkeypatch, due=True)


@pytest.mark.parametrize("estimate", ["per_batch", "ratio_of_sums"])
def test_the_map_so_far_is_that_of_the_batches_so_far(tmp_path, estimate):
    draw = torch.Generator().manual_seed(0)
    batches = [[torch.randn(24, d, generator=draw) for d in (3, 4, 5)] for _ in range(3)]
    chosen, shown = {"m": measures.get("cka_unbiased")}, {}

    def show(label, values, done):
        if done:
            shown[done] = np.array(values())

    def estimated(count, **more):
        return estimate_all_pairs(chosen, lambda k: batches[k:count], names="abc", estimate=estimate, **more)[0]["m"]

    with PairWork(folder=tmp_path, show=show) as work:
        whole = estimated(3, work=work)
    assert torch.equal(whole.values, estimated(3).values)
    assert list(shown) == [1, 2, 3]
    for count, values in shown.items():
        np.testing.assert_array_equal(values, estimated(count).values.numpy())


def test_a_full_disk_is_left_to_the_run(tmp_path, always, monkeypatch):
    def write(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(so_far, "write", write)
    writer(tmp_path)("cka", lambda: np.zeros((3, 3)), 1)
    assert so_far.read(tmp_path) == []


def test_what_cannot_be_read_is_no_map(tmp_path):
    for content in (b"", b"PK", b"\x93NUMPY"):
        (tmp_path / results.SO_FAR).write_bytes(content)
        assert so_far.read(tmp_path) == []


def test_the_maps_of_two_models_have_the_names_of_results(tmp_path, always):
    values = np.array([[1.0, 0.5, np.nan], [np.nan, 1.0, np.nan], [np.nan, np.nan, np.nan]])
    writer(tmp_path)("cka", lambda: values, 0)
    (given,) = so_far.read(tmp_path)
    assert given.state == "4 of 9 cells"
    measured, arrays = so_far.split_into_pairs(given)
    ((only, array),) = zip(measured.matrices, arrays.values(), strict=True)
    assert (only.rows.model, only.rows.layers, only.columns.model) == ("a", ["x", "y"], "a")
    np.testing.assert_array_equal(array, [[1.0, 0.5], [0.5, 1.0]])
    one_way = {**CARD, "symmetric": False}
    writer(tmp_path, one_way)("cka", lambda: np.arange(9.0).reshape(3, 3), 3)
    (given,) = so_far.read(tmp_path)
    assert given.state == "mean over 3 of 4 batches"
    measured, arrays = so_far.split_into_pairs(given)
    assert [(m.rows.model, m.columns.model) for m in measured.matrices] == [
        ("a", "a"),
        ("a", "b"),
        ("b", "a"),
        ("b", "b"),
    ]
    np.testing.assert_array_equal(list(arrays.values())[2], [[6.0, 7.0]])


def test_a_killed_run_resumes_without_its_map(tmp_path):
    run = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
    (run.folder / results.SO_FAR).write_bytes(b"old")
    run.lock.release()
    assert record(run.folder)["so_far"] == {}
    again = results.reopen(run.folder)
    assert not (run.folder / results.SO_FAR).exists()
    (run.folder / results.SO_FAR).write_bytes(b"new")
    again.finish("failed", "out of luck")
    assert not (run.folder / results.SO_FAR).exists()
    assert results.SO_FAR not in reader.read_manifest(run.folder)["files"]


def test_a_terminal_shows_shades(tmp_path, always):
    """Close is dark, whichever way the measure goes; what is not known is a dot; layers are averaged where room ends."""
    values = np.array([[1.0, 0.5, np.nan], [np.nan, 1.0, np.nan], [np.nan, np.nan, 0.0]])
    distance = {**CARD, "larger_is_closer": False}
    shown = []
    for card in (CARD, distance):
        writer(tmp_path, card)("cka", lambda: values, 0)
        shown.append(follow.draw_terminal_maps(so_far.read(tmp_path), os.terminal_size((80, 24))))
    assert shown[0] == [
        "cka: 5 of 9 cells, mean 0.600, lowest 0.000, highest 1.000",
        "a ██▒▒··",
        "  ▒▒██··",
        "b ····  ",
        "cka: █ close, · not known yet",
    ]
    assert shown[1][1:4] == ["a   ▒▒··", "  ▒▒  ··", "b ····██"]
    writer(tmp_path)("cka", lambda: values, 0)
    small = follow.draw_terminal_maps(so_far.read(tmp_path), os.terminal_size((24, 6)))
    assert small == ["cka: 5 of 9 cells, mean", "a ██··", "b ··  ", "cka: █ close, · not kno"]
    assert follow.draw_terminal_maps([], os.terminal_size((80, 24))) == []


def test_a_terminal_draws_in_place(capsys):
    assert follow.redraw_lines("INFO data\n", [], ["1", "2"]) == ("INFO data\n1\n2\n", ["1", "2"])
    assert follow.redraw_lines("", ["1", "2"], ["1", "2"]) == ("", ["1", "2"])
    assert follow.redraw_lines("", ["1", "2"], []) == ("\x1b[2F\x1b[J", [])
