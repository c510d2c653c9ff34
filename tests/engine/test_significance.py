"""Settings of significance, and runs that tell what is significant."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.recorded import recorded
from helpers.unrelated import independent

from repsim_cli import measures
from repsim_cli.activations import segments
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Significance
from repsim_cli.engine import corrections
from repsim_cli.engine import significance as judging
from repsim_cli.runs import reader


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["significance=closed_form", "measure=[mutual_knn]"], "significance.method: mutual_knn has no closed form"),
        (
            ["significance=closed_form", "measure=[cka]"],
            "tokens of a document depend on each other and the closed form",
        ),
        (
            ["significance=permutation", "measure=[cka]", "extract.estimate=ratio_of_sums"],
            "sums over batches have no null, got ratio_of_sums; use extract.estimate=per_batch or full",
        ),
        (
            ["significance.jackknife=true", "measure=[cka]"],
            "significance.jackknife: it needs a single sample, got per_batch",
        ),
        (
            ["significance.jackknife=true", "extract.estimate=full", "measure=[mutual_knn]"],
            "mutual_knn is not a normalised inner product",
        ),
        (
            ["significance=permutation", "measure=[magnitude_difference]"],
            "magnitude_difference does not depend on how rows are paired, so that random pairs are not a null for it",
        ),
        (["measure=[tolerance_difference]"], "tolerance_difference needs a label per row, got data without labels"),
        (
            ["significance.bands=true", "extract.estimate=full"],
            "significance.bands: they need several batches, got full; use extract.estimate=per_batch, or significance.jack",
        ),
        (["significance.permutations=5"], "significance.permutations: wrong value, got 5"),
        (
            ["significance=closed_form", "significance.family=max_t", "significance.clusters=row", "measure=[cka]"],
            "significance.family: max_t needs permutations, got closed_form; use holm, or significance=permutation",
        ),
        (
            ["significance=permutation", "significance.family=holm", "measure=[cka]"],
            "Holm's correction of 36 cells cannot reach 0.05 with p values of at least 1/200, got 199; give at least 719",
        ),
        (["significance=permutations"], "did you mean"),
    ],
)
def test_bad_settings(repsim, words, message):
    code, _, err = repsim("run", *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("of", "layers", "name", "cells"),
    [
        ("run", [3, 5], "cka", 28),
        ("map", [3, 5], "cka", 15),
        ("map", [2, 5, 4], "cka", 20),
        ("map", [5], "cka", 10),
        ("map", [2], "cka", 1),
        ("map", [5], "neuronsim", 20),
        ("map", [3, 5], "neuronsim", 20),
        ("run", [3, 5], "neuronsim", 56),
    ],
)
def test_so_many_permutations_are_needed_as_the_largest_family_has_cells(of, layers, name, cells):
    """A pair of layers is one cell, and two of a measure that differs between the directions."""
    card, total = measures.card(name), sum(layers)
    ends = np.cumsum(layers)
    places = [slice(int(end - count), int(end)) for end, count in zip(ends, layers, strict=True)]
    families = corrections.group_into_families(torch.ones(total, total), card, places, of)
    assert max(int(family.sum()) for family in families) == cells
    enough = Significance(method="permutation", family="holm", family_of=of, permutations=20 * cells - 1)
    corrections.check_family(enough, layers, card.symmetric)
    message = f"correction of {cells} cells cannot reach 0.05 .* give at least {20 * cells - 1}"
    with pytest.raises(BadInput, match=message):
        corrections.check_family(replace(enough, permutations=20 * cells - 2), layers, card.symmetric)


def test_a_measure_in_both_directions_has_two_tests_per_pair():
    """A pair of layers counts once under a symmetric measure, twice under an asymmetric one."""
    p = torch.full((3, 3), 0.01, dtype=torch.float64)
    both = {}
    for name in ("cka", "neuronsim"):
        among = corrections.group_into_families(p, measures.card(name), [slice(0, 3)], "map")
        both[name] = corrections.correct(p, p, None, measures.card(name), among)[0]
    off = ~torch.eye(3, dtype=torch.bool)
    assert both["cka"][off].tolist() == pytest.approx([0.03] * 6)
    assert both["neuronsim"][off].tolist() == pytest.approx([0.06] * 6)
    assert both["cka"].diagonal().tolist() == both["neuronsim"].diagonal().tolist() == [0.01] * 3


@pytest.mark.slow
def test_a_run_with_permutations(repsim, newest):
    small = ("model=[tiny_a,tiny_b]", "extract.sequences=16", "extract.batch_rows=400", "significance.permutations=19")
    code, _, err = repsim("run", "significance=permutation", "significance.bands=true", *small)
    assert code == 0, err
    found = recorded(newest())
    (warned,) = [one for one in found["warnings"] if one.startswith("significance: p values and calibrated")]
    for measure in found["measures"]:
        null = measure["null"]
        assert {**null, "segments": 0, "share": 0} == {
            "method": "permutation", "permutations": 19, "clusters": "document", "alpha": 0.05, "family": "max_t",
            "family_of": "map", "families": 3, "permutations_for_q": 719, "segments": 0, "share": 0,
        }  # fmt: skip
        assert null["segments"] >= 10
        assert 0 < null["share"] < 1
        assert f"of {100 * null['share']:.0f} % of the rows, in {null['segments']} segments" in warned
        for matrix in measure["matrices"]:
            assert matrix.get("q") is None  # with 19 permutations none of 36 cells could be told
            keys = ("p", "p_family", "calibrated", "tested", "values", "low", "high")
            parts = {key: reader.read_array(newest(), matrix[key]) for key in keys}
            assert parts["p"].min() >= 0.05 - 1e-12
            assert (parts["tested"] != parts["values"]).any()
            assert (parts["p_family"] >= parts["p"] - 1e-12).all()
            assert parts["p_family"].max() <= 1
            if matrix["rows"]["model"] == matrix["columns"]["model"]:
                for key in ("p", "p_family"):
                    assert (parts[key] == parts[key].T).all()
                    assert (parts[key].diagonal() == parts["p"].diagonal()).all()
            assert (parts["low"] <= parts["high"]).all()
            assert ((parts["calibrated"] >= 0) & (parts["calibrated"] <= 1)).all()
    assert not list(newest().glob(".p*"))


def test_bands_of_a_ratio_of_sums(repsim, newest):
    words = ("model=[tiny_a]", "extract.sequences=8", "extract.batch_rows=200", "extract.estimate=ratio_of_sums")
    assert repsim("run", "measure=[cka_unbiased]", "significance.bands=true", *words)[0] == 0
    (measure,) = recorded(newest())["measures"]
    (matrix,) = measure["matrices"]
    low, values, high, se = (reader.read_array(newest(), matrix[key]) for key in ("low", "values", "high", "se"))
    off = ~np.eye(len(values), dtype=bool)
    assert (low[off] < values[off]).all()
    assert (values[off] <= high[off]).all()
    assert (se[off] > 0).all()
    assert not list(newest().glob(".per-batch*"))


@pytest.mark.slow
def test_one_document_is_no_null(repsim, tmp_path, monkeypatch):
    """Its sequences stand for documents, with a warning; of few of them no permutation says anything: refused, with the
    settings that help."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Paragraph {i} says {' and '.join('abcdefghij'[i % 9 :])}. " * 9 for i in range(40)))
    words = (
        "model=[tiny_a]", "data=local_text", f"data.path={text}", "significance=permutation", "measure=[cka_unbiased]",
        "extract.estimate=full", "extract.layers=[0,-1]", "significance.permutations=19",
    )  # fmt: skip
    code, _, err = repsim("run", *words, "extract.sequences=5")
    assert code == 2
    assert re.search(
        r"got \d of 5; give more documents, or set significance.clusters=row where rows do not depend", err
    )
    assert repsim("run", *words, "data.sample_by=paragraph", "extract.sequences=20")[0] == 0


def test_heavy_rows_have_no_corrected_p_in_closed_form(repsim, newest, tmp_path):
    """One row holds most of the variance: moments do not tell the tail of the null."""
    rng = np.random.default_rng(0)
    large = np.where(np.arange(80) == 3, 30, 1)[:, None]
    rows = {"plain": rng.normal(size=(80, 12)), "heavy": rng.normal(size=(80, 12)) * large}
    for name, x in rows.items():
        np.savez(tmp_path / name, a=x, b=x + 0.1 * rng.normal(size=x.shape))
        model = f"+model.one={{kind: precomputed, path: {tmp_path / name}.npz}}"
        words = ("model=[]", model, "extract.estimate=full", "significance=closed_form", "significance.clusters=row", "measure=[cka]")  # fmt: skip
        assert repsim("run", *words)[0] == 0
        found = recorded(newest())
        warned = [one for one in found["warnings"] if "the closed form does not know the tail of the null" in one]
        assert len(warned) == (name == "heavy")
        (measured,) = found["measures"]
        assert measured["null"]["heavy"] == (name == "heavy")
        for key in ("p_family", "q"):
            assert (measured["matrices"][0].get(key) is None) == (name == "heavy")


@pytest.mark.slow
def test_a_run_with_the_closed_form_marks_chance(repsim, newest, tmp_path):
    """Unrelated stored activations are crossed out in the figure, related ones are not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8))
    np.savez(tmp_path / "one.npz", a=x, b=x + 0.3 * rng.normal(size=x.shape))
    np.savez(tmp_path / "other.npz", c=rng.normal(size=(200, 8)))
    models = [f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in ("one", "other")]
    words = ("model=[]", *models, "extract.estimate=full", "significance=closed_form", "significance.clusters=row", "measure=[cka_unbiased]")  # fmt: skip
    assert repsim("run", *words)[0] == 0
    found = recorded(newest())["measures"][0]["matrices"]
    p = {(m["rows"]["model"], m["columns"]["model"]): reader.read_array(newest(), m["p"]) for m in found}
    assert p["one", "one"].max() == 1e-6
    assert p["one", "other"].min() > 0.05
    assert repsim("plot", newest())[0] == 0


def draw_pairings(documents, sides, batch=0, **settings):
    """What CKA of a batch is observed with beside its values."""
    return judging.draw_pairings(
        Significance(method="permutation", **settings), {"cka": measures.get("cka")}, documents,
        names=["a", "b"], seed=0, tile=512, labels=lambda batch: None,
        notes=lambda batch, label, shape: np.full(shape, np.nan),
    )(batch, sides)  # fmt: skip


def test_documents_are_shuffled_or_move_on_by_as_many():
    """Every drawn value under `shifts` is that of one side moved on by whole documents; of other orders few are."""
    sides = independent(36, 0)
    documents = segments.find_segments([np.repeat(np.arange(12), 3)], [np.tile([segments.BOTH, 0, 0], 12)])
    moved = [float(measures.get("cka")(sides[0], sides[1].roll(3 * k, 0))) for k in range(12)]
    for order in ("shifts", "any"):
        found = draw_pairings(documents, sides, permutations=99, order=order)
        drawn = found["cka", "null"][:, 0, 1].numpy()
        assert len(drawn) == 99
        assert float(found["cka", "tested"][0, 1]) == pytest.approx(moved[0])
        hits = np.isclose(drawn[:, None], moved, rtol=1e-9, atol=0).any(1).mean()
        assert hits == 1 if order == "shifts" else hits < 0.1


def test_a_batch_without_documents_that_trade_places_is_not_tested():
    rows = [np.repeat(np.arange(12), 3), np.full(36, 12)]
    begins = [np.tile([segments.BOTH, 0, 0], 12), np.array([segments.BOTH, *[0] * 35])]
    documents = segments.find_segments(rows, begins)
    assert draw_pairings(documents, independent(36, 0), batch=1) == {}
    assert draw_pairings(documents, independent(36, 0), permutations=19) != {}
