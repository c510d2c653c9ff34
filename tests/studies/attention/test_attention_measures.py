"""Measures of attention maps against golden values and slow versions, and what they refuse."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import reference
import torch

from repsim_cli import measures
from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.attention import estimate_attention

GOLDEN = Path(__file__).parents[2] / "golden"


NAMES = measures.names("attention")


MATCHED = ["attention_js", "attention_norm", "attention_pearson"]


DISTRIBUTED = ["attention_cka", "attention_pwcca", "attention_svcca"]


ENTRIES = [e for e in json.loads((GOLDEN / "values.json").read_text()) if e["measure"] in NAMES]


def draw(seed, heads=3, lengths=(4, 1, 7, 5), causal=False):
    """Maps of some sentences, one of them of one word."""
    rng = np.random.default_rng(seed)
    found = []
    for t in lengths:
        weights = np.exp(2 * rng.normal(size=(heads, t, t)))
        weights = np.tril(weights) if causal else weights
        found.append(weights / weights.sum(2, keepdims=True))
    return found


def joined(*models):
    """One Maps of several models, each a layer, from their lists of maps."""
    sentences = [torch.cat([torch.from_numpy(one) for one in parts]) for parts in zip(*models, strict=True)]
    ends = np.cumsum([0, *(len(model[0]) for model in models)]).tolist()
    return AttentionMaps(
        torch.cat([one.flatten(1) for one in sentences], 1),
        [one.shape[1] for one in sentences],
        [slice(a, b) for a, b in pairwise(ends)],
    )


def test_six_measures():
    assert sorted(MATCHED + DISTRIBUTED) == NAMES
    assert not set(NAMES) & set(measures.names())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e['measure']}-{e['settings'].get('n_rows')}")
def test_golden(entry):
    case = np.load(GOLDEN / "inputs" / "c8.npz")
    x, y = ([case[f"{side}_{i}"] for i in range(5)] for side in "ab")
    settings = {}
    if entry["measure"] in DISTRIBUTED:
        settings = {"zeros": "keep" if entry["settings"]["n_rows"] == 207 else "drop"}
    measure, value = measures.get(entry["measure"], **settings), entry["value"]
    expected = [value["x_to_y"], value["y_to_x"]] if isinstance(value, dict) else [value, value]
    assert [measure(x, y), measure(y, x)] == pytest.approx(expected, abs=entry["atol"])
    if "head_matrix" in entry:
        both = joined(x, y)
        found = measure.heads(measure.sums(both))[:3, 3:]
        np.testing.assert_allclose(found, entry["head_matrix"], atol=entry["atol"])


def test_golden_values_are_all_here():
    assert len(ENTRIES) == 9
    assert {entry["measure"] for entry in ENTRIES} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_reference(name, causal):
    x, y = draw(0), draw(1, heads=4, causal=causal)
    for a, b in ((x, y), (y, x)):
        assert measures.get(name)(a, b) == pytest.approx(getattr(reference, name)(a, b), abs=1e-12)
    if name in DISTRIBUTED:
        kept = measures.get(name, zeros="keep")(x, y)
        assert kept == pytest.approx(getattr(reference, name)(x, y, zeros="keep"), abs=1e-12)
        assert (abs(kept - measures.get(name)(x, y)) > 1e-3) == causal


@pytest.mark.parametrize("name", NAMES)
def test_the_card_holds(name):
    card, measure = measures.card(name), measures.get(name)
    low, high = card.bounds
    for seed in range(5):
        x, y = draw(seed), draw(seed + 50, heads=5)
        assert measure(x, x) == pytest.approx(1, abs=1e-12)
        assert (-9 if low is None else low) <= measure(x, y) <= high
        assert (abs(measure(x, y) - measure(y, x)) < 1e-12) == card.symmetric
        swapped = [one[[4, 2, 0, 1, 3]] for one in y]
        assert measure(x, swapped) == pytest.approx(measure(x, y), abs=1e-12)
    words = [one[:, ::-1, ::-1] for one in y]  # the order of the words is no matter, if it is the same for both
    assert measure([one[:, ::-1, ::-1] for one in x], words) == pytest.approx(measure(x, y), abs=1e-12)
    assert abs(measure(x, words) - measure(x, y)) > 1e-6


def test_lowest_similarity_of_heads_that_share_no_word():
    own, other = [np.eye(2)[None]], [np.eye(2)[None, ::-1]]
    assert measures.get("attention_js")(own, other) == pytest.approx(measures.card("attention_js").bounds[0], abs=1e-15)
    assert measures.get("attention_norm")(own, other) == -1.0


def test_one_pass_over_all_layers_equals_pairs_of_layers():
    """The pass is in float32, in batches, all measures at once; a saved state goes on with the same bits."""
    models = [draw(seed, heads=heads, causal=seed == 2) for seed, heads in ((0, 3), (1, 2), (2, 4), (3, 3))]
    chosen = {name: measures.get(name, **({"zeros": "keep"} if name in DISTRIBUTED else {})) for name in NAMES}
    batches = [joined(*([m[i] for i in part] for m in models)) for part in ((0, 1), (2,), (3,))]
    batches = [batch._replace(cells=batch.cells.float()) for batch in batches]
    states = []

    def run(state=None, some=chosen):
        def save(state):
            states.append({key: tensor.clone() for key, tensor in state.items()})

        layers = batches[0].layers
        names = [f"layer {i}" for i in range(len(layers))]
        return estimate_attention(some, lambda seen: batches[seen:], layers, names=names, state=state, save=save)[0]

    found = run()
    for name, matrix in found.items():
        expected = [[chosen[name](a, b) for b in models] for a in models]
        np.testing.assert_allclose(matrix.values, expected, atol=5e-7)
        assert matrix.rows == {"sentences": 4, "words": 17, "cells": 91}[chosen[name].unit]
        assert ("heads" in matrix.statistics) == (name in MATCHED)
    again = run(states[1])
    assert all(torch.equal(again[name].values, found[name].values) for name in NAMES)
    assert len(states) == 4
    # the sums of other measures are none of these
    last = {NAMES[-1]: chosen[NAMES[-1]]}
    assert torch.equal(run(states[1], last)[NAMES[-1]].values, found[NAMES[-1]].values)
    assert len(states) == 7


def test_heads_that_hardly_differ():
    """Distances are no rounding where norms cancel: a twin is at 0, a head 1e-8 away at that."""
    rng = np.random.default_rng(0)
    x = draw(0, heads=4, lengths=(20, 30))
    moved = []
    for one in x:
        change = rng.normal(size=one.shape)
        change -= change.mean(2, keepdims=True)
        moved.append(one + 1e-8 * change / np.linalg.norm(change, axis=(1, 2), keepdims=True))
    measure = measures.get("attention_norm")
    assert measure(x, [one.copy() for one in x]) == 1.0
    assert 1 - measure(x, moved) == pytest.approx(1e-8, rel=1e-6)


def test_threads_change_no_bit(monkeypatch):
    both = joined(draw(0, lengths=(9, 30, 20)), draw(1, lengths=(9, 30, 20)))
    single = measures.get("attention_js").sums(both)["sum"]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(measures.get("attention_js").sums(both)["sum"], single)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


UNIFORM = [np.full((2, t, t), 1 / t) for t in (3, 5)]


ONE_WORD = [np.ones((2, 1, 1))] * 6


@pytest.mark.parametrize(
    ("name", "settings", "x", "y", "text"),
    [
        ("attention_js", {}, draw(0), draw(0)[1:], r"attention_js: x and y must have one array of maps per sentence, got 4 and 3; pair them"),
        ("attention_js", {}, [], [], r"attention_js: no sentence, got empty lists; give one array"),
        ("attention_js", {}, [np.eye(3)], [np.eye(3)], r"x, sentence 0: not maps \(heads, T, T\), got \(3, 3\); give T x T per head"),
        ("attention_js", {}, draw(0), [one / 2 for one in draw(1)], r"y, sentence 0: not attention weights, got a smallest weight of .* sum is 0.5 from 1; renormalise"),
        ("attention_js", {}, [np.full((1, 2, 2), np.nan)], [np.eye(2)[None]], r"x, sentence 0: not attention weights, got .* nan from 1"),
        ("attention_js", {}, draw(0), draw(1, lengths=(4, 1, 6, 5)), r"attention_js: different words in sentence 2, got maps \(3, 7, 7\) and \(3, 6, 6\); compare the same words"),
        ("attention_js", {}, draw(0), [*draw(1)[:3], draw(1, heads=2)[3]], r"attention_js: different heads in sentence 3 than before, got 3 and 2; give all"),
        ("attention_pearson", {}, ONE_WORD, ONE_WORD, r"attention_pearson: two heads have no word in common that attends unevenly, .* use attention_js"),
        ("attention_pearson", {}, UNIFORM, draw(0, lengths=(3, 5)), r"attention_pearson: two heads have no word in common"),
        ("attention_cka", {}, ONE_WORD, ONE_WORD, r"attention_cka: all attention weights of a layer are equal, got no variance in heads 0 to 1; give longer"),
        ("attention_svcca", {}, ONE_WORD[:2], ONE_WORD[:2], r"attention_svcca: needs at least 3 cells, got 2; give more text"),
        ("attention_cka", {"zeros": "refuse"}, draw(0), draw(1, causal=True), r"attention_cka: some layers can attend where others are masked, got 37 of 91 cells; use zeros=drop or keep"),
        ("attention_pwcca", {}, draw(0, 2, (2,)), draw(1, 2, (2,)), r"attention_pwcca: some canonical correlations are 1 whatever the data"),
    ],
)  # fmt: skip
def test_maps_that_cannot_be_compared(name, settings, x, y, text):
    with pytest.raises(Degenerate, match=text):
        measures.get(name, **settings)(x, y)


def test_one_kind_of_mask_is_not_refused():
    for causal in (False, True):
        measures.get("attention_cka", zeros="refuse")(draw(0, causal=causal), draw(1, causal=causal))


def test_sentences_of_one_word():
    """Sentences of one word are alike in every head; a correlation they do not have, and are left out of its mean."""
    x, y = draw(0, lengths=(5, 6)), draw(1, lengths=(5, 6))
    more = [[*side, np.ones((3, 1, 1))] for side in (x, y)]
    assert measures.get("attention_pearson")(*more) == pytest.approx(measures.get("attention_pearson")(x, y), abs=1e-15)
    js, longer = (measures.get("attention_js")(*sides) for sides in ((x, y), more))
    assert 1 - longer == pytest.approx((1 - js) * 11 / 12)


def test_rows_where_the_measure_command_is_given_arrays(repsim, tmp_path):
    """`repsim measure all` leaves measures of attention out; one of them says what it wants."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(9, 3)))
    file = str(tmp_path / "x.npy")
    code, _, err = repsim("measure", "attention_js", file, file)
    assert code == 2
    assert "x, sentence 0: not maps (heads, T, T), got (3,); give T x T per head" in err
