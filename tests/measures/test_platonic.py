"""The published forms of the platonic representation hypothesis, against their formulas in plain numpy."""

import numpy as np
import pytest
import torch
from helpers.drawn_documents import sides
from reference.hsic import hsic1
from reference.neighbours import longest

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.base import restrict_to_other_documents

K = 4


def prepared(x):
    """Values beyond the 0.95 quantile of all absolute values are set to it; then rows of norm 1."""
    limit = np.sort(np.abs(x).ravel())[int(0.95 * x.size)]
    x = np.clip(x, -limit, limit)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def nearest(x):
    similarity = x @ x.T
    np.fill_diagonal(similarity, -1e8)
    return np.argsort(-similarity, axis=1)[:, :K]


def edits(a, b):
    table = np.add.outer(np.arange(K + 1), np.arange(K + 1))
    for i in range(K):
        for j in range(K):
            changed = table[i, j] + (a[i] != b[j])
            table[i + 1, j + 1] = min(table[i, j + 1] + 1, table[i + 1, j] + 1, changed)
    return table[K, K]


def masks(x):
    mask = np.zeros((len(x), len(x)))
    np.put_along_axis(mask, nearest(x), 1, axis=1)
    return mask, x @ x.T


def song(k, l):
    """Their form of HSIC1, of matrices that need not be symmetric."""
    m = len(k)
    k, l = k - np.diag(np.diag(k)), l - np.diag(np.diag(l))
    terms = (k * l.T).sum() + k.sum() * l.sum() / ((m - 1) * (m - 2)) - 2 * (k @ l).sum() / (m - 2)
    return terms / (m * (m - 3))


def cknna(x, y):
    (m, k), (p, l) = masks(x), masks(y)
    return song(m * p * k, m * p * l) / np.sqrt(song(m * k, m * k) * song(p * l, p * l))


def cka(x, y):
    centre = np.eye(len(x)) - 1 / len(x)
    k, l = x @ x.T, y @ y.T
    hsic = [np.trace(a @ centre @ b @ centre) for a, b in ((k, l), (k, k), (l, l))]
    return hsic[0] / np.sqrt(hsic[1] * hsic[2])


def unbiased_cka(x, y):
    k, l = x @ x.T, y @ y.T
    return hsic1(k, l) / np.sqrt(hsic1(k, k) * hsic1(l, l))


def over_rows(score):
    return lambda x, y: np.mean([score(a, b) for a, b in zip(nearest(x), nearest(y), strict=True)])


PUBLISHED = {
    "mutual_knn": over_rows(lambda a, b: len({*a} & {*b}) / K),
    "cycle_knn": lambda x, y: np.mean((nearest(x)[nearest(y)] == np.arange(len(x))[:, None, None]).any((1, 2))),
    "lcs_knn": over_rows(lambda a, b: longest([*a], [*b])),
    "edit_distance_knn": over_rows(lambda a, b: 1 - edits(a, b) / K),
    "cknna": cknna,
    "cka": cka,
    "cka_unbiased": unbiased_cka,
}


def drawn(seed):
    """Rows with an offset, and a feature far larger than the others."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(50, 4))
    xs = [shared @ rng.normal(size=(4, d)) + rng.normal(size=(50, d)) + 2 * rng.normal(size=d) for d in (9, 12)]
    xs[0][:, 2] *= 30
    return xs


@pytest.mark.parametrize("name", PUBLISHED)
def test_equals_the_published_formula(name):
    settings = {} if name in ("cka", "cka_unbiased") else {"k": K}
    differences = []
    for x, y in map(drawn, range(3)):
        found = measures.get(name, rows="platonic", **settings)(x, y)
        assert found == pytest.approx(PUBLISHED[name](prepared(x), prepared(y)), abs=1e-10)
        differences.append(abs(found - measures.get(name, **settings)(x, y)))
    assert max(differences) > 1e-3


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_card_of_this_setting_says_what_it_sees(name):
    lost = measures.card(name).invariant_to - measures.get(name, rows="platonic").card.invariant_to
    assert lost == {"translation", "orthogonal"}
    assert measures.get(name).card == measures.card(name)


def test_neighbours_of_other_documents_are_found_among_such_rows():
    documents, (x, y) = sides([4, 4, 4, 4], seed=3)
    bound = restrict_to_other_documents(measures.get("mutual_knn", k=3, rows="platonic"), torch.from_numpy(documents))
    sets = []
    for z in map(prepared, (x, y)):
        similarity = np.where(documents[:, None] == documents, -np.inf, z @ z.T)
        sets.append(np.argsort(-similarity, axis=1)[:, :3])
    expected = np.mean([len({*a} & {*b}) / 3 for a, b in zip(*sets, strict=True)])
    assert bound(x, y) == pytest.approx(expected, abs=1e-12)


def test_mostly_zeros_are_refused():
    x = np.zeros((60, 40))
    x[:, 0] = np.arange(60) + 1
    with pytest.raises(Degenerate, match="x: 95 % of the values are 0, got a limit of 0; set rows=centred"):
        measures.get("mutual_knn", rows="platonic")(x, x)


def test_ridge_predictions_with_a_penalty_are_no_longer_invariant_to_invertible_maps():
    assert "invertible_linear" in measures.get("gulp").card.invariant_to
    assert measures.get("gulp", lam=0.1).card.invariant_to == measures.card("procrustes").invariant_to
