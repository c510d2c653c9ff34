"""Corrections for many cells, by hand and on planted maps; p at the tail of a closed form."""

import numpy as np
import pytest
import scipy.stats
import torch
from helpers.planted_cells import judged_of, planted

from repsim_cli import measures
from repsim_cli.base.settings import Significance
from repsim_cli.engine import closed_null, corrections
from repsim_cli.engine import significance as judging
from repsim_cli.engine.prepared import SimilarityMatrix


def test_holm_by_hand():
    """The smallest of m times m, the next times m - 1; none below one before it, none above 1."""
    p = torch.tensor([0.5, 0.01, 0.4, 0.02], dtype=torch.float64)
    assert corrections.correct_by_holm(p).tolist() == pytest.approx([0.8, 0.04, 0.8, 0.06])
    assert corrections.correct_by_holm(torch.tensor([0.6, 0.7])).tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(4))
def test_max_t_by_hand(seed):
    """Standardised by mean and deviation, cell after cell from the closest, against the maximum of what is left."""
    observed, null = planted(seed, cells=6, true=2, draws=12, effect=1.0)
    both = np.vstack([observed, null])
    both = (both - both.mean(0)) / both.std(0)
    expected, before = np.zeros(6), 0.0
    left = list(range(6))
    while left:
        closest = max(left, key=lambda cell: both[0, cell])
        count = sum(max(row[cell] for cell in left) >= both[0, closest] for row in both[1:])
        before = max(before, (1 + count) / 13)
        expected[closest] = before
        left.remove(closest)
    assert corrections.correct_by_max_t(observed, null).tolist() == pytest.approx(expected.tolist())


@pytest.mark.slow
def test_errors_on_planted_maps():
    """Maps have 20 true cells of 64: max-T errs anywhere in 5 % of maps at most, the discoveries of q are false in 5 %
    at most, and max-T finds more than Holm's correction and less than q. Bounds are four standard errors."""
    maps = 200
    errors, false, power = [], [], []
    for seed in range(maps):
        observed, null = planted(seed)
        p = judging.p_values(observed[None], null[:, None], measures.card("cka"))[0]
        whole = [slice(0, 1), slice(1, 65)]  # a model of one layer against one of 64
        fill = torch.ones(65, 65, dtype=torch.float64)
        p_all, tested, nulls = fill.clone(), fill.clone(), torch.ones(len(null), 65, 65, dtype=torch.float64)
        p_all[0, 1:], tested[0, 1:], nulls[:, 0, 1:] = p, observed, null
        among = corrections.group_into_families(tested, measures.card("cka"), whole, "map")
        made = corrections.correct(p_all, tested, nulls, measures.card("cka"), among)
        family, q = (part[0, 1:] for part in made)
        assert torch.equal(family, corrections.correct_by_max_t(observed, null))
        found = q <= 0.05
        errors.append(bool((family[20:] <= 0.05).any()))
        false.append(float(found[20:].sum() / max(1, found.sum())))
        power.append([float((x[:20] <= 0.05).float().mean()) for x in (corrections.correct_by_holm(p), family, q)])
    assert np.mean(errors) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / maps)
    assert np.mean(false) <= 0.05 + 4 * np.std(false) / np.sqrt(maps)
    assert np.mean(false) > 0  # the bound could be exceeded
    holm, family, q = np.mean(power, axis=0)
    assert holm < family < q


def test_distances_are_corrected_towards_small_values():
    """A distance is significant where it is small: its correction is that of its negative as a similarity."""
    rng = np.random.default_rng(0)
    tested, null = torch.from_numpy(rng.normal(size=(4, 4))), torch.from_numpy(rng.normal(size=(99, 4, 4)))
    tested, null = tested + tested.mT, null + null.mT
    p = (1 + (null <= tested).sum(0)).double() / 100
    among = corrections.group_into_families(tested, measures.card("procrustes"), [slice(0, 4)], "map")
    found = corrections.correct(p, tested, null, measures.card("procrustes"), among)
    expected = corrections.correct(p, -tested, -null, measures.card("cka"), among)
    off = ~torch.eye(4, dtype=torch.bool)
    assert torch.equal(found[0][off], expected[0][off])
    assert found[0][off].argmin() == tested[off].argmin()


def test_the_family_is_a_map_or_the_run():
    """Three models of two layers: max-T over the twelve cells across and the three within, or over each map."""
    observed, null = (x.view(-1, 6, 6) for x in planted(0, cells=36, true=4))
    upper = torch.ones(6, 6, dtype=torch.bool).triu()
    observed, null = (torch.where(upper, x, x.mT) for x in (observed[0], null))
    places = [slice(0, 2), slice(2, 4), slice(4, 6)]
    made = {
        of: judged_of(observed, null, Significance(method="permutation", family_of=of), places) for of in ("map", "run")
    }
    cells = upper & ~torch.eye(6, dtype=torch.bool)
    expected = corrections.correct_by_max_t(observed[cells], null[:, cells])
    assert made["run"].p_family[cells].tolist() == expected.tolist()
    block = made["map"].p_family[:2, 2:4].flatten()
    assert (
        block.tolist()
        == corrections.correct_by_max_t(observed[:2, 2:4].flatten(), null[:, :2, 2:4].flatten(1)).tolist()
    )
    assert (made["map"].p_family <= made["run"].p_family).all()
    assert [made[of].null["families"] for of in made] == [6, 1]
    holm = judged_of(observed, null, Significance(method="permutation", family="holm", family_of="run"), places)
    assert holm.p_family[cells].tolist() == corrections.correct_by_holm(holm.p[cells]).tolist()
    assert (holm.null["family"], made["run"].null["family"]) == ("holm", "max_t")


def test_q_is_given_where_it_can_be_small():
    """Maps of 2 x 3 cells have it from 119 permutations on, one cell within a model from 19, the run's 10 from 199."""
    observed, null = (x.view(-1, 5, 5) for x in planted(1, cells=25, true=4))
    places = [slice(0, 2), slice(2, 5)]

    def q_of(count, of="map"):
        settings = Significance(method="permutation", permutations=count, family_of=of)
        judged = judged_of(observed[0], null[:count], settings, places)
        return judged.q, judged.null.get("permutations_for_q")

    whole, needed = q_of(119)
    assert needed is None
    assert whole.isfinite().all()
    some, needed = q_of(99)
    assert needed == 119
    assert some[:2, :2].isfinite().all()
    assert some[2:, 2:].isfinite().all()
    assert some[:2, 2:].isnan().all()
    assert q_of(198, "run") == (None, 199)
    assert q_of(199, "run")[1] is None


def judge_z(z, skewness, heaviness):
    """The significance of a map in closed form, from z of each batch."""
    fill = torch.ones_like(z[0])
    seen = {"z": z.mean(0), "skewness": skewness * fill, "heaviness": heaviness * fill}
    matrix = SimilarityMatrix(values=fill, se=None, estimate="per_batch", rows=1, batches=len(z), statistics=seen)
    settings = Significance(method="closed_form")
    return judging.judge_significance(settings, measures.get("cka"), matrix, None, [slice(0, len(fill))])


def test_p_in_closed_form_is_that_of_all_batches_together():
    """Four gamma variables of shape 2 are one of shape 8; of four of t with 8 degrees of freedom, 1 and 0.1 % are
    found."""
    rng = np.random.default_rng(0)
    z = rng.gamma(2, size=(4, 20, 20))
    p = judge_z(torch.from_numpy((z - 2) / 2**0.5), 2**0.5, 0.0).p
    np.testing.assert_allclose(p, scipy.stats.gamma.sf(z.sum(0), 8), atol=1e-6)
    p = judge_z(torch.from_numpy(rng.standard_t(8, size=(4, 300, 300)) * (6 / 8) ** 0.5), 0.0, 6 / 4).p
    for level in (0.01, 0.001):
        assert float((p < level).double().mean()) == pytest.approx(level, abs=4 * (level / 90_000) ** 0.5 + 0.1 * level)


def test_a_tail_that_moments_do_not_tell_has_no_corrected_p():
    """A skewness of 4 is such a tail, or a heaviness of 8, in one batch; that of four batches is half of it, or a
    quarter."""
    for skewness, heaviness in ((4.0, 0.0), (0.0, 8.0)):
        for batches in (1, 4):
            judged = judge_z(torch.zeros(batches, 3, 3, dtype=torch.float64), skewness, heaviness)
            assert (judged.p_family is None) == (judged.q is None) == (batches == 1)
            assert judged.p.isfinite().all()


def test_heavy_rows_keep_their_level_at_the_tail():
    """Log-normal norms: at a 36th of 5 %, three moments reject several times too often, and the fourth keeps it."""
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(2):
        x = rng.normal(size=(50, 24)) * rng.lognormal(sigma=0.75, size=(50, 1))
        square = (x - x.mean(0)) @ (x - x.mean(0)).T
        squares.append(square * (1 - np.eye(50)))
    null = closed_null.compute_closed_form_null(
        *([closed_null.compute_null_moments(torch.from_numpy(x))] for x in squares)
    )
    orders = (rng.permutation(50) for _ in range(20_000))
    drawn = torch.tensor([[np.vdot(squares[0], squares[1][o][:, o]) for o in orders]], dtype=torch.float64)
    z = (drawn - float(null.mean)) / float(null.deviation)
    level = 0.05 / 36
    rates = {}
    for name, heaviness in (("three", 0.0), ("four", float(null.heaviness))):
        p = closed_null.compute_tail_p(z, torch.full_like(z, float(null.skewness)), torch.full_like(z, heaviness))
        rates[name] = float((p <= level).double().mean()) / level
    assert 0.5 < float(null.heaviness) < judging.HEAVY
    assert rates["three"] > 2
    assert rates["four"] < 1.5
