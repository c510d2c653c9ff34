"""Intervals of shares hold the share of other documents, of few and of unequal length."""

import numpy as np
import pytest

from repsim_cli.engine.proportions import compute_wilson_interval


@pytest.mark.parametrize(("count", "unequal"), [(12, False), (12, True), (20, True), (60, True)])
def test_intervals_hold_the_share_of_other_documents(count, unequal):
    """Rows of a document share a fifth of the variance of their hits."""
    rng, held = np.random.default_rng(0), []
    for _ in range(300):
        sizes = np.maximum(1, rng.lognormal(1.8, 1.8, count).round().astype(int)) if unequal else np.full(count, 10)
        units = np.repeat(np.arange(count), sizes)
        hits = (rng.random(len(units)) < rng.beta(1.2, 2.8, count)[units]).astype(float)
        low, high = compute_wilson_interval(hits, units)
        held.append(low <= 0.3 <= high)
    assert 0.9 <= np.mean(held) <= 0.99


def test_intervals_hold_shares_near_the_end_where_few_documents_are_long():
    rng, held = np.random.default_rng(0), []
    for _ in range(300):
        sizes = np.maximum(1, rng.lognormal(1.8, 1.5, 20).round().astype(int))
        units = np.repeat(np.arange(20), sizes)
        hits = (rng.random(len(units)) < rng.beta(0.1, 0.9, 20)[units]).astype(float)
        low, high = compute_wilson_interval(hits, units)
        held.append(low <= 0.1 <= high)
    assert 0.92 <= np.mean(held) <= 0.99


def test_one_document_says_nothing_of_others():
    low, high = compute_wilson_interval((np.arange(100) < 40).astype(float), np.zeros(100, int))
    assert low < 0.01
    assert high > 0.99
