"""Nulls against what they claim: moments by brute force, false positive rates, progress, what is kept."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.nights import nightly
from helpers.unrelated import independent, prepared, shuffled, small

from repsim_cli import measures
from repsim_cli.activations.segments import Segments
from repsim_cli.base.settings import Significance
from repsim_cli.engine import closed_null
from repsim_cli.engine import significance as judging
from repsim_cli.engine.permuted import permute_pairs
from repsim_cli.engine.prepared import SimilarityMatrix

INNER = [name for name in measures.available() if isinstance(measures.get(name), measures.InnerProduct)]


@pytest.mark.parametrize("name", INNER)
def test_closed_form_has_the_moments_of_all_permutations(name):
    """Mean and variance over all 7! pairings of the rows, exactly."""
    # of three features, different ones have nothing in common
    sides = [side if name == "cka_columns" else side[:, :3] for side in independent(7, 0)]
    measure = measures.get(name)
    squares = []
    for kernel, side in zip((measure.row, measure.column), sides, strict=True):
        states, _ = prepared(name, [side, side])
        squares.append(closed_null._build_kernel_matrix(kernel, states.states[kernel][0], 7))
    null = closed_null.compute_closed_form_null(*([closed_null.compute_null_moments(square)] for square in squares))
    orders = torch.tensor(list(itertools.permutations(range(7))))
    moved = squares[1][orders[:, :, None], orders[:, None, :]]
    drawn = (squares[0] * moved).sum((1, 2))
    scale = float(squares[0].norm() * squares[1].norm())
    assert float(null.mean) == pytest.approx(float(drawn.mean()), abs=1e-10 * scale)
    assert float(null.deviation) == pytest.approx(float(drawn.std(correction=0)), rel=1e-9)


def test_three_rows_have_a_closed_form():
    """The fewest: of 3! pairings, with the moments of all of them."""
    sides = independent(3, 0)
    found, values = prepared("cka", sides)
    drawn = permute_pairs(found, torch.tensor(list(itertools.permutations(range(3)))))[:, 0, 1]
    z = (values[0, 1] - drawn.mean()) / drawn.std(correction=0)
    assert float(closed_null.score_against_null(found)["z"][0, 1]) == pytest.approx(float(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_all_as_far_apart_are_as_close_under_every_pairing(dtype):
    """One-hot rows are such, whose CKA with anything does not depend on the pairing: p is 1, not that of rounding."""
    sides = [torch.eye(40, dtype=dtype), *(side.to(dtype) for side in independent(40, 0))]
    found, values = prepared("cka", sides)
    seen = closed_null.score_against_null(found)
    matrix = SimilarityMatrix(values=values, se=None, estimate="full", rows=40, batches=1, statistics=seen)
    judged = judging.judge_significance(
        Significance(method="closed_form"), measures.get("cka"), matrix, None, [slice(0, 3)]
    )
    for p in (judged.p, judged.p_family, judged.q):
        assert p[0].tolist() == p[:, 0].tolist() == [1, 1, 1]
        assert p.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(INNER, *(name for name in INNER if name not in ("cka_unbiased", "rsa"))))
def test_closed_form_keeps_its_false_positive_rates(name):
    """6000 pairings of independent rows, two pairs of representations: 5, 1 and 0.1 % within binomial error."""
    n, draws = 60, 3000
    sides = independent(n, 1, 3)
    if measures.card(name).refuses_wide:
        sides = [side[:, :5] for side in sides]
    measure = measures.get(name)
    found, _ = prepared(name, sides, lack=lambda *_: None)  # values of noise may be without one
    rows, columns = (found.states[kernel] for kernel in (measure.row, measure.column))
    left, right = (
        torch.stack([closed_null._build_kernel_matrix(kernel, state, n) for state in side])
        for kernel, side in ((measure.row, rows), (measure.column, columns))
    )
    null = closed_null.compute_closed_form_null(
        [closed_null.compute_null_moments(m) for m in left], [closed_null.compute_null_moments(m) for m in right]
    )
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator) for _ in range(draws)]
    cross = torch.stack([torch.einsum("aij,bij->ab", left, right[:, o][:, :, o]) for o in orders])
    z = (cross - null.mean) / null.deviation
    p = torch.stack([closed_null.compute_tail_p(one, null.skewness, null.heaviness) for one in z])[
        :, [0, 0, 1], [1, 2, 2]
    ]
    for level in (0.05, 0.01, 0.001):
        rate = float((p < level).double().mean())
        # pairs share their orders, so that the error is that of `draws` alone; the skewness is of leading order
        assert abs(rate - level) < 4 * np.sqrt(level / draws) + 0.25 * level, (level, rate)


@pytest.mark.parametrize("name", nightly(["cka_unbiased", "rsa", "mutual_knn", "procrustes"], "rsa", "procrustes"))
def test_false_positive_rate_of_permutations(name):
    n, hits = 30, 0
    for seed in range(200):
        found, values = prepared(name, independent(n, 1000 + seed))
        null = permute_pairs(found, shuffled(n, 19, seed))
        hits += float(judging.p_values(values, null, measures.card(name))[0, 1]) <= 0.05
    assert hits / 200 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("name", measures.available())
def test_permuted_states_are_the_states_of_permuted_rows(name):
    """Nothing is refitted, yet the values are those of the measure on reordered rows."""
    card = measures.card(name)
    if card.labelled or card.infinite_to_itself:
        pytest.skip("labels go with the rows of both sides; all pairs hold a layer with itself")
    rng = np.random.default_rng(0)
    base = rng.normal(size=(30, 4))
    x, y = (base @ rng.normal(size=(4, 5)) + rng.normal(size=(30, 5)) for _ in range(2))
    sides = [torch.from_numpy(side) for side in (x, y)]
    found, _ = prepared(name, sides)
    order = torch.from_numpy(rng.permutation(30))
    together = permute_pairs(found, torch.stack([order, torch.arange(30)]))
    measure = small(name)
    expected = [[[measure(a, b[o]) for b in sides] for a in sides] for o in (order, torch.arange(30))]
    torch.testing.assert_close(together, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["cka_unbiased", "procrustes"])
def test_permutations_show_their_progress(name):
    found, _ = prepared(name, independent(20, 0, 2))
    orders, shown = shuffled(20, 19, 0), []

    def progress(steps, measure):
        for step in steps:
            yield step
            shown.append((measure, len(steps)))

    silent = permute_pairs(found, orders)
    assert torch.equal(permute_pairs(found, orders, progress), silent)
    assert shown == [(name, len(shown))] * len(shown)
    assert len(shown) > 1


@pytest.mark.parametrize("name", ["cka_unbiased", "procrustes"])
def test_permutations_resume_where_they_were_interrupted(name):
    found, _ = prepared(name, independent(20, 0, 2))
    orders = shuffled(20, 39, 0)
    whole = permute_pairs(found, orders)
    noted = np.full(whole.shape, np.nan)

    def interrupted(steps, measure):
        yield steps[0]
        yield steps[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        permute_pairs(found, orders, interrupted, noted)
    there = int((~np.isnan(noted)).all((1, 2)).sum())
    assert 0 < there < 39
    left = []

    def counted(steps, measure):
        for step in steps:
            left.append(len(step) if isinstance(step, list) else 1)
            yield step

    assert torch.equal(permute_pairs(found, orders, counted, noted), whole)
    assert sum(left) == 39 - there


def test_calibrated_score_by_hand():
    """Observed 0.9 among 0.1 ... 0.4 at alpha 0.2: the threshold is the 4th of 5 sorted values, 0.4."""
    null = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1)
    observed = torch.tensor([[0.9]], dtype=torch.float64)
    card = measures.card("cka")
    threshold = judging.compute_null_quantile(observed, null, card, 0.2)
    assert float(threshold) == 0.4
    assert float(judging.calibrate(observed, threshold, card)) == pytest.approx(0.5 / 0.6)
    assert float(judging.p_values(observed, null, card)) == pytest.approx(1 / 5)
    assert float(judging.calibrate(observed * 0.3, threshold, card)) == 0
    distance = measures.card("procrustes")
    assert float(judging.p_values(observed, null, distance)) == 1
    assert float(judging.calibrate(0.3 * observed, threshold, distance)) == pytest.approx(0.13 / 0.4)
    endless = replace(card, bounds=(None, None))
    assert float(judging.calibrate(observed, threshold, endless)) == pytest.approx(0.5)
    assert float(judging.calibrate(0.3 * observed, threshold, replace(endless, larger_is_closer=False))) == (
        pytest.approx(0.13)
    )


def test_the_threshold_is_without_what_pairings_keep_by_leaving_rows_in_place():
    """The threshold by hand, 0.4, less what drawn pairings have on average beyond those that leave no row in place."""
    null = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1)
    observed = torch.tensor([[0.9]], dtype=torch.float64)
    seen = {"tested": observed, "null": null, "away": torch.tensor([[0.2]], dtype=torch.float64)}
    matrix = SimilarityMatrix(values=observed, se=None, estimate="full", rows=40, batches=1, statistics=seen)
    settings = Significance(method="permutation", alpha=0.2)
    judged = judging.judge_significance(settings, measures.get("cka"), matrix, Segments([], 40, 1.0), [slice(0, 1)])
    assert float(judged.calibrated) == pytest.approx((0.9 - 0.35) / 0.65)
