"""Cells for which a measure is undefined: left out of tests and means, while all others keep their bits."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange
from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.activations.segments import BOTH, find_segments
from repsim_cli.base.errors import Degenerate
from repsim_cli.base.settings import Significance
from repsim_cli.engine import chance, significance
from repsim_cli.engine.attention import estimate_attention
from repsim_cli.engine.counterparts import estimate_counterparts
from repsim_cli.engine.curves import make_curve
from repsim_cli.engine.estimates import compute_from_sums, estimate_all_pairs
from repsim_cli.engine.expected import index_row_places
from repsim_cli.engine.grams import BatchShape, make_kernel_lister, pack_batches
from repsim_cli.engine.moments import compute_pairs_from_moments
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.studies.training_run.study_training_view import _average_to_others
from repsim_cli.studies.universality.study import compare_by_closest_layers

INNER, SINGLY, BOTH_WAYS, SLOW = "cka", "procrustes", "linear_regression", "gromov_wasserstein"


NAMES = ["a x", "a y", "b x"]


ALONE = Exchange(np.arange(24), np.zeros(24, int), "rows")  # each row is a unit


CONSTANT = "a y: all rows are equal, got a constant representation; drop this layer or change the data"


def rows(count=24, constant=1):
    """Three representations, one of them constant, in all batches or in none."""
    x = [torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 4))) for seed in range(3)]
    if constant is not None:
        x[constant] = torch.full_like(x[constant], 0.3)
    return x


def bound(*names):
    return {name: measures.get(name) for name in names}


def lacking(matrix):
    return [tuple(cell) for cell in np.argwhere(np.isnan(np.asarray(matrix))).tolist()]


ROW_AND_COLUMN = [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize("name", [INNER, SINGLY, BOTH_WAYS, "cka_unbiased", "mutual_knn", "cosine", "rsa"])
def test_the_cells_of_a_constant_layer_have_no_value_and_all_others_keep_their_bits(name):
    made, _ = estimate_all_pairs(bound(name), lambda seen: [rows()], names=NAMES, estimate="full")
    whole, _ = estimate_all_pairs(bound(name), lambda seen: [rows(constant=None)], names=NAMES, estimate="full")
    matrix, known = made[name], np.ix_([0, 2], [0, 2])
    assert lacking(matrix.values) == sorted(matrix.undefined) == ROW_AND_COLUMN
    assert all(why.startswith("a y: ") for why in matrix.undefined.values())
    np.testing.assert_array_equal(matrix.values.numpy()[known], whole[name].values.numpy()[known])


def test_all_pairs_refuses_them_unless_it_is_told_what_to_do():
    with pytest.raises(Degenerate, match=f"^{CONSTANT}$"):
        compute_all_pairs(bound(INNER), rows(), NAMES)
    told = {}
    compute_all_pairs(bound(INNER), rows(), NAMES, lack=lambda label, undefined: told.update({label: list(undefined)}))
    assert sorted(told[INNER]) == ROW_AND_COLUMN


def test_one_batch_without_a_value_leaves_none_of_the_mean():
    batches = [rows(constant=None), rows()]
    for estimate in ("per_batch", "ratio_of_sums"):
        made, _ = estimate_all_pairs(bound(INNER), lambda seen: batches[seen:], names=NAMES, estimate=estimate)
        assert lacking(made[INNER].values) == ROW_AND_COLUMN
        assert made[INNER].undefined[1, 1] == f"batch 2: {CONSTANT}"


def test_an_interrupted_estimate_resumes_with_its_reasons():
    states, batches = [], [rows(), rows(constant=None)]
    given = {"names": NAMES, "estimate": "per_batch"}
    whole, _ = estimate_all_pairs(bound(INNER), lambda seen: batches[seen:], **given, save=states.append)
    again, _ = estimate_all_pairs(bound(INNER), lambda seen: batches[seen:], **given, state=states[0])
    assert again[INNER].undefined == whole[INNER].undefined != {}


def test_sums_without_variance_have_no_value():
    told = {}
    values = compute_from_sums(measures.get(INNER), torch.tensor([[1.0, 0], [0, 0]]), ["a", "b"], told.update)
    assert lacking(values) == sorted(told) == [(0, 1), (1, 0), (1, 1)]
    assert str(told[1, 1]).startswith("b: cka: self-similarity is not positive")


def test_second_moments_leave_them_out_too():
    made, _ = compute_pairs_from_moments(
        bound(INNER, "pwcca"), lambda chosen: [[rows()[a] for a in chosen]], names=NAMES, widths=[4, 4, 4], room=1e9
    )
    for matrix in made.values():
        assert lacking(matrix.values) == sorted(matrix.undefined) == ROW_AND_COLUMN
        assert matrix.undefined[1, 1].startswith("a y: all rows are equal")


def test_a_counterpart_without_a_value():
    left, right, names = rows(), rows(constant=None), [(name, f"{name}'") for name in NAMES]
    for estimate in ("full", "ratio_of_sums"):
        of = bound(INNER) if estimate == "ratio_of_sums" else bound(INNER, SINGLY, BOTH_WAYS)
        made, _ = estimate_counterparts(of, [(left, right)], names=names, estimate=estimate)
        for pair in made.values():
            assert lacking(pair.values[:, None]) == [(1, 0)]
            assert list(pair.undefined) == [1]
            assert "all rows are equal" in pair.undefined[1]


def test_a_single_pair_without_a_value():
    def compare(a, b):
        if {int(a), int(b)} == {0, 2}:
            raise Degenerate("no value, got these two; take others")
        return 1.0

    card = replace(measures.get(SINGLY).card, label="x")
    assert isinstance(card, Card)
    measure = Pairwise(name="odd", card=card, settings={}, prepare=lambda x: int(x[0, 0]), compare=compare)
    x = [torch.full((4, 2), float(value)) for value in range(3)]
    made, _ = estimate_all_pairs({"odd": measure}, lambda seen: [x], names=NAMES, estimate="full")
    assert lacking(made["odd"].values) == [(0, 2), (2, 0)]
    assert made["odd"].undefined[2, 0] == "a x and b x: no value, got these two; take others"


def test_layers_of_attention_that_cannot_be_compared():
    even, uneven = np.full((2, 3, 3), 1 / 3), np.random.default_rng(0).dirichlet(np.ones(3), (2, 3))
    layers = [slice(0, 2), slice(2, 4), slice(4, 6)]
    cells = torch.from_numpy(np.concatenate([even, uneven, uneven[:, ::-1]]).copy())
    batches = [AttentionMaps(torch.cat([cells.flatten(1)] * 2, 1), [3, 3], layers)]
    of = bound("attention_cka", "attention_pearson")
    made, _ = estimate_attention(of, lambda seen: batches[seen:], layers, names=NAMES)
    for label, matrix in made.items():
        assert lacking(matrix.values) == sorted(matrix.undefined) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)], label
        assert matrix.undefined[0, 1].startswith(f"a x: {label}: ")
        assert "heads" not in matrix.statistics


@pytest.mark.parametrize("method", ["permutation", "closed_form"])
def test_their_cells_have_no_test_and_the_others_keep_theirs(method):
    settings = Significance(method=method, permutations=19, clusters="row")
    judged, levels = [], []
    for constant in (1, None):
        x = rows(constant=constant)
        places = [slice(0, 2), slice(2, 3)]
        trading = None
        beside = {}
        if method == "permutation":
            trading = find_segments([np.arange(24)], [np.full(24, BOTH)], least=4)
            more = {"seed": 0, "tile": 512, "labels": lambda batch: None}
            notes = lambda batch, label, shape: np.full(shape, np.nan)  # noqa: E731
            beside = {
                "beside": significance.draw_pairings(settings, bound(INNER), trading, names=NAMES, notes=notes, **more)
            }
        by_chance = chance.observe_chance(ALONE, lambda batch: np.arange(24), 1, 0)
        observed = significance.make_statistics_observer(settings, lambda batch: np.arange(24), by_chance)
        made, _ = estimate_all_pairs(
            bound(INNER), lambda seen, x=x: [x], names=NAMES, estimate="full", statistics=observed,
            places=lambda batch: index_row_places(ALONE, 3), **beside,
        )  # fmt: skip
        judged.append(significance.judge_significance(settings, measures.get(INNER), made[INNER], trading, places))
        levels.append(chance.compute_chance_level(made[INNER], ALONE, "").cells)
    some, whole = judged
    assert [lacking(level) for level in levels] == [ROW_AND_COLUMN, []]
    known = np.ix_([0, 2], [0, 2])
    for kind in ("p", "p_family", "q", "calibrated"):
        if getattr(whole, kind) is not None:
            assert lacking(getattr(some, kind)) == ROW_AND_COLUMN, kind
    np.testing.assert_array_equal(some.p.numpy()[known], whole.p.numpy()[known])


def test_means_of_curves_and_of_models_do_without_them():
    made = make_curve(
        quantity="q", label="l", point="p", model="m", parameters=1, steps=[0, 1], layers=["x", "y"],
        values={0: [0.5, math.nan], 1: [math.nan, math.nan]},
    )  # fmt: skip
    assert made.lines == {"x": [0.5, None], "y": [None, None]}
    assert made.mean == [0.5, None]
    assert made.bands["quartiles"].low == [0.5, None]
    square = np.array([[1, 0.5, np.nan], [0.5, 1, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(_average_to_others(square), [0.5, 0.5, np.nan])
    card = measures.get(INNER).card
    np.testing.assert_array_equal(
        compare_by_closest_layers(square, [slice(0, 1), slice(1, 3)], card), [[1, 0.5], [0.5, 1]]
    )


def test_permutations_without_a_value_are_not_computed_again():
    noted, of = {}, bound(INNER, SINGLY)
    settings = Significance(method="permutation", permutations=9, clusters="row")
    trading = find_segments([np.arange(24)], [np.full(24, BOTH)], least=4)
    steps = []

    def drawn():
        return significance.draw_pairings(
            settings,
            of,
            trading,
            names=NAMES,
            seed=0,
            tile=512,
            labels=lambda batch: None,
            notes=lambda batch, label, shape: noted.setdefault(label, np.full(shape, np.nan)),
            progress=lambda some, measure: steps.append(len(some)) or some,
        )(0, rows())

    first = drawn()
    assert 0 not in steps
    steps.clear()
    again = drawn()
    assert steps == [0, 0]
    for label in of:
        np.testing.assert_array_equal(first[label, "null"], again[label, "null"])
        assert lacking(first[label, "null"][0]) == ROW_AND_COLUMN


def test_layers_whose_rows_do_not_fit_together():
    x = rows()

    def keep(group, save):
        folder = tmp / "-".join(map(str, group))
        save(folder)
        return folder

    with tempfile.TemporaryDirectory() as name:
        tmp = Path(name)
        stream = lambda group: [[x[a].float() for a in group]]  # noqa: E731
        batches = pack_batches(
            keep, make_kernel_lister(bound(INNER)), [[0, 1], [2]], stream, BatchShape(1, 24, 512), names=NAMES
        )
        made, _ = estimate_all_pairs(bound(INNER), batches, names=NAMES, estimate="full")
    assert lacking(made[INNER].values) == sorted(made[INNER].undefined) == ROW_AND_COLUMN


def test_second_moments_of_a_layer_that_is_constant_but_for_rounding():
    x = rows()
    x[1] = x[1] + 1e-12 * x[0]
    of = {"names": NAMES, "widths": [4, 4, 4], "room": 1e9}
    made, _ = compute_pairs_from_moments(bound("mean_cca"), lambda chosen: [[x[a] for a in chosen]], **of)
    assert (
        made["mean_cca"]
        .undefined[1, 1]
        .startswith("a y: all rows are equal within the rounding of second moments, got")
    )
    made, _ = estimate_all_pairs(bound("mean_cca"), lambda seen: [x], names=NAMES, estimate="full")
    assert not made["mean_cca"].undefined
