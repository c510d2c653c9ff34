"""While models run on the other rows, a map of the first ones is shown; the results are those of a run without it."""

import numpy as np
import pytest
from helpers.timers import set_timers

import repsim_cli
from repsim_cli.cli.follow import describe_progress
from repsim_cli.engine import first_look
from repsim_cli.runs import results, so_far

MEASURES = ["cka_unbiased", "mutual_knn"]
SETTINGS = {"extract.length": 64, "extract.sequences": 36, "extract.layers": [0, -1]}


@pytest.fixture
def maps(monkeypatch, tmp_path):
    """The maps that are shown, with how many rows the whole run has; nothing else is shown in time."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    shown, write = [], so_far.Writer._write
    set_timers(monkeypatch, due=False)

    def watched(writer):
        write(writer)
        shown.append((so_far.read(writer.folder), writer.of))

    monkeypatch.setattr(so_far.Writer, "_write", watched)
    return shown


def compared(**more):
    return repsim_cli.compare(["tiny_a", "tiny_b"], rows="tokens", measures=MEASURES, settings=SETTINGS | more)


@pytest.mark.slow
@pytest.mark.parametrize("normalise", ["none", "directions"])
def test_the_map_of_the_first_rows(maps, monkeypatch, tmp_path, normalise):
    given = {"extract.normalise": normalise, "extract.pairs": "all", "extract.estimate": "full"}
    whole = compared(**given)
    (shown, total), *others = maps
    assert not others
    (first,) = shown  # nearest rows of few rows say something else
    count = first.measured.estimate["rows"]
    assert first.measured.label == "cka_unbiased"
    assert first_look.FEW <= count <= 2 * first_look.FEW <= total
    assert first.state == f"the first {count:,} of {total:,} rows"
    assert first.state in describe_progress(first)
    assert np.isfinite(first.values).all()
    np.testing.assert_allclose(first.values.diagonal(), 1, atol=1e-6)
    values = whole.matrix("tiny_a", "tiny_b", measure="cka_unbiased").values
    here = [i for i, (model, _) in enumerate(first.names) if model == "tiny_a"]
    there = [i for i, (model, _) in enumerate(first.names) if model == "tiny_b"]
    assert np.abs(first.values[np.ix_(here, there)] - values).max() < 0.1  # of fewer rows
    monkeypatch.setattr(first_look.FirstLook, "watch", lambda look, stream, remedies: stream)
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "other"))
    without = compared(**given)
    for measure in MEASURES:
        kept, again = (x.matrix("tiny_a", "tiny_b", measure=measure).values for x in (whole, without))
        np.testing.assert_array_equal(kept, again)
    assert len(maps) == 1


def test_a_sample_of_some_of_the_rows(maps):
    compared(**{"extract.rows": 600, "extract.estimate": "full"})
    ((shown, total),) = maps
    assert first_look.FEW <= shown[0].measured.estimate["rows"] <= 2 * first_look.FEW
    assert total > 1024


@pytest.mark.slow
def test_batches_whose_scales_are_not_known_yet(maps):
    compared(**{"extract.normalise": "directions", "extract.batch_rows": 512})
    ((shown, _),) = maps
    assert [each.measured.label for each in shown] == ["cka_unbiased"]


@pytest.mark.slow
def test_batches_show_themselves(maps):
    compared(**{"extract.normalise": "none", "extract.batch_rows": 512})
    assert maps == []


def test_few_rows_have_no_first_ones(maps):
    compared(**{"extract.sequences": 12})
    assert maps == []


@pytest.mark.slow
def test_what_fails_in_the_first_rows_is_left_to_the_run(maps, monkeypatch):
    def fails(self, rows, measures):
        raise results.BadInput("of these rows alone")

    monkeypatch.setattr(first_look.FirstLook, "_compare", fails)
    assert np.isfinite(compared().matrix("tiny_a", "tiny_b", measure="cka_unbiased").values).all()
    assert maps == []
