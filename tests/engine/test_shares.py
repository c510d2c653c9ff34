"""Shares of linear similarity: covariances over rows of different documents, by brute force and by what was planted."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from repsim_cli.engine import shares

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import levels_budget


def drawn(seed, documents=44, tokens=30, width=4):
    """Rows of documents of unequal lengths, of common and of rare tokens."""
    rng = np.random.default_rng(seed)
    document = np.repeat(np.arange(documents), rng.integers(2, 7, documents))
    used = 1 / np.arange(1, tokens + 1)
    token = rng.choice(tokens, len(document), p=used / used.sum())
    x, y = rng.normal(size=(2, len(document), width))
    return rng, document, token, torch.from_numpy(x), torch.from_numpy(y + x)


def by_hand(rows, classes, document, total, x, y):
    """Sums over all pairs of rows; and how many rows have one."""
    whole, partnered = np.zeros((x.shape[1], y.shape[1])), 0
    for each in np.unique(classes[rows]):
        members = [i for i in rows if classes[i] == each]
        pairs = [(i, j) for i in members for j in members if document[i] != document[j]]
        if pairs:
            whole += sum(np.outer(x[i] - x[j], y[i] - y[j]) / 2 for i, j in pairs) * len(members) / total / len(pairs)
            partnered += len(members)
    return whole, partnered


@pytest.mark.parametrize("part", ["whole", "within", "alone"])
def test_covariances_are_means_over_pairs_of_different_documents(part):
    rng, document, token, x, y = drawn(3)
    groups = (rng.permutation(44) % shares.GROUPS)[document]
    cells = getattr(shares.fold_rows(np.flatnonzero(groups % 4), token, document, groups), part)
    rows, classes = cells.rows.numpy(), token if part == "within" else np.zeros_like(token)
    assert len(rows) > 3
    other = torch.from_numpy(rng.normal(size=(4, 4)))
    expected, _ = by_hand(rows, classes, document, cells.total, x.numpy(), y.numpy())
    assert shares.compute_class_covariance(cells, x, y).numpy() == pytest.approx(expected)
    whole, *without = shares.compute_covariance_products(cells, x, y, other)
    assert whole == pytest.approx((expected * other.numpy()).sum())
    for group in (1, 2, 4):  # the last is in no row
        left = rows[groups[rows] != group]
        total = cells.total - (groups[groups % 4 > 0] == group).sum()
        found, partnered = by_hand(left, classes, document, total, x.numpy(), y.numpy())
        scaled = found * len(left) / max(partnered, 1)
        assert without[group] == pytest.approx((scaled * other.numpy()).sum())


def test_shares_add_up_to_the_value():
    _, document, token, x, y = drawn(5, documents=60)
    design = shares.make_design(token, document)
    features = shares.compute_twin_features(design, [x, y])
    assert features.shape[1] == 2 * max(1, design.features // 2)
    norms = shares.compute_squared_norm(design, x), shares.compute_squared_norm(design, y)
    parts = shares.split_shares(shares.compute_part_products(design, x, y), shares.read_out(design, x, y, features))
    found = shares.compute_part_shares(parts, norms, 0.95)
    assert list(found) == ["value", "token", "untrained", "learned", "alone"]
    value, *others = (share.value for share in found.values())
    assert value == pytest.approx(sum(others))
    assert np.isnan(shares.compute_part_shares(parts, (0 * norms[0], norms[1]), 0.95)["value"].value)


def test_planted_shares():
    """The mean of a few samples is near the truth, which thousands of draws of the benchmark hold more closely."""
    draw = next(each.draw for each in levels_budget.PROMISES if "twins" in each.setting)
    true = levels_budget.truth(levels_budget.BOTH, levels_budget.TWINS)
    found = [draw(np.random.default_rng(seed)) for seed in range(3)]
    for part, share in true.items():
        assert np.mean([each[part] for each in found]) == pytest.approx(share, abs=0.03)
    assert sum(true.values()) == pytest.approx(2 * true["value"])


def test_two_tables_share_the_token_alone():
    rng, document, token, x, y = drawn(7, documents=80)
    x, y = (torch.from_numpy(rng.normal(size=(30, 6)))[token] for _ in range(2))
    design = shares.make_design(token, document, twins=False)
    parts = shares.split_shares(shares.compute_part_products(design, x, y))
    assert parts["rest"] == pytest.approx(np.zeros(1 + shares.GROUPS), abs=1e-12)


def test_shared_neighbours_by_token():
    """Row 0 shares a neighbour of its own token and one of another, row 1 one of another, the others none."""
    first, second = np.array([[1, 2, 0, 0], [2, 3, 1, 1]]), np.array([[1, 3, 3, 2], [2, 0, 3, 2]])
    tokens = np.array([5, 5, 6, 6])
    value, chance, same, other = shares.compute_neighbour_shares(first, second, tokens, 3)
    assert [value, chance] == pytest.approx([3 / 8, 2 / 3])
    assert value == pytest.approx(chance + same + other)
    own = (1 + 0 + 0 + 0) / 8  # 1 of row 0
    listed = (np.array([1, 0, 0, 0]) + np.array([1, 1, 2, 2])) / 2  # of its token, by row
    assert same == pytest.approx(own - listed.mean() / 3)


def test_p_is_of_what_is_shared_beyond_the_token():
    """A table of tokens alone has none, whatever the documents add."""

    def p(models, seed):
        rng = np.random.default_rng(seed)
        document, token, (x, y) = levels_budget.rows(rng, 40, 8, models)
        return shares.compute_p_beyond(shares.make_design(token, document, twins=False), x, y)

    assert max(p(levels_budget.BOTH, seed) for seed in range(3)) < 0.001
    assert min(p(levels_budget.ALONE, seed) for seed in range(3)) > 0.05
    rng, document, token, x, y = drawn(5)
    table = torch.from_numpy(rng.normal(size=(30, 4)))[token]
    design = shares.make_design(token, document)
    assert np.isnan(shares.compute_p_beyond(design, table, y))
    assert shares.compute_p_beyond(design, table + 0.1 * x, y) < 0.001
