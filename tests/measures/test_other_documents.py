"""Measures over pairs of rows of different documents, against plain numpy that deletes the other pairs."""

import itertools

import numpy as np
import pytest
import torch
from helpers.drawn_documents import ALONE, EQUAL, LENGTHS, UNEQUAL, projected, sides
from scipy.stats import rankdata

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine import chance
from repsim_cli.engine.expected import index_row_places
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.permuted import permute_pairs
from repsim_cli.engine.products import compute_unnormalised_hsic
from repsim_cli.measures.base import MeasureWarning, restrict_to_other_documents

NEIGHBOURS = ("mutual_knn", "jaccard_knn", "cycle_knn", "second_order_cosine", "rank_similarity", "lcs_knn")
FORMS = {
    "cka_unbiased", "rsa", "rsa_euclidean", "mutual_knn", "jaccard_knn", "second_order_cosine", "cycle_knn",
    "rank_similarity", "rank_jaccard", "lcs_knn", "edit_distance_knn",
}  # fmt: skip


def bound(name, documents, **settings):
    return restrict_to_other_documents(measures.get(name, **settings), torch.from_numpy(documents))


def cka(x, y, documents):
    u, v = projected(x @ x.T, documents), projected(y @ y.T, documents)
    return (u * v).sum() / np.sqrt((u * u).sum() * (v * v).sum())


def rsa(x, y, documents, metric):
    i, j = np.nonzero(np.triu(documents[:, None] != documents))
    cells = [
        rankdata((1 - np.corrcoef(z)[i, j] if metric == "rsa" else np.linalg.norm(z[i] - z[j], axis=1)).round(12))
        for z in (x, y)
    ]
    return np.corrcoef(*cells)[0, 1]


def lists(x, documents, k):
    """The k nearest rows of other documents, by cosine of centred rows, nearest first."""
    x = x - x.mean(0)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    near = []
    for i in range(len(x)):
        others = [j for j in range(len(x)) if documents[j] != documents[i]]
        near.append(sorted(others, key=lambda j: -x[i] @ x[j])[:k])
    return near


def overlap(x, y, documents, k):
    return np.mean([len({*a} & {*b}) / k for a, b in zip(lists(x, documents, k), lists(y, documents, k), strict=True)])


def test_these_measures_have_such_a_form():
    assert {name for name in measures.names() if not callable(getattr(measures.get(name), "sums", None))} >= FORMS
    assert {name for name in FORMS if measures.get(name).apart is None} == set()
    for name in ("cka", "cka_rbf", "ensd", "procrustes", "cknna", "stress"):
        assert measures.get(name).apart is None


@pytest.mark.parametrize("lengths", LENGTHS)
def test_cka_is_the_projection_of_the_cells_that_are_left(lengths):
    documents, (x, y) = sides(lengths)
    assert bound("cka_unbiased", documents)(x, y) == pytest.approx(cka(x, y, documents), abs=1e-12)
    assert bound("cka_unbiased", documents)(x, x) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ["rsa", "rsa_euclidean"])
def test_rsa_leaves_cells_out(name, lengths):
    documents, (x, y) = sides(lengths)
    assert bound(name, documents)(x, y) == pytest.approx(rsa(x, y, documents, name), abs=1e-9)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_neighbours_are_of_other_documents(lengths):
    documents, (x, y) = sides(lengths)
    k = 3
    assert bound("mutual_knn", documents, k=k)(x, y) == pytest.approx(overlap(x, y, documents, k), abs=1e-12)
    near = [lists(z, documents, k) for z in (x, y)]
    cyclic = np.mean([any(i in near[0][j] for j in near[1][i]) for i in range(len(x))])
    assert bound("cycle_knn", documents, k=k)(x, y) == pytest.approx(cyclic, abs=1e-12)
    jaccard = np.mean([len({*a} & {*b}) / len({*a} | {*b}) for a, b in zip(*near, strict=True)])
    assert bound("jaccard_knn", documents, k=k)(x, y) == pytest.approx(jaccard, abs=1e-12)


def test_equal_rows_of_other_documents_tie_by_index():
    rows = np.random.default_rng(0).normal(size=(4, 3))
    documents, x = np.repeat(np.arange(4), 4), np.tile(rows, (4, 1))  # each row stands in every document
    with pytest.warns(MeasureWarning, match="16 of 16 rows have several equally near rows"):
        state = bound("mutual_knn", documents, k=2).prepare(torch.from_numpy(x))
    for i in range(16):
        equal = [j for j in range(16) if j % 4 == i % 4 and documents[j] != documents[i]]
        assert state.lists[:, i].tolist() == equal[:2]


@pytest.mark.parametrize("name", ["cka_unbiased", "rsa", "mutual_knn"])
def test_rows_in_tiles_of_single_precision_give_the_same(name):
    documents, xs = sides([20, 31, 14, 40, 25], width=30, count=3)
    given = {"tile": 16, "documents": torch.from_numpy(documents)}
    values = compute_all_pairs({name: measures.get(name)}, [torch.from_numpy(x).float() for x in xs], **given)[name]
    for i, x in enumerate(xs):
        for j, y in enumerate(xs):
            assert float(values[i, j]) == pytest.approx(bound(name, documents)(x, y), abs=1e-4)


def test_sums_of_hsic_are_those_of_a_row_per_document_where_there_is_one():
    documents, xs = sides(ALONE)
    given = {"measures": {"m": measures.get("cka_unbiased")}, "representations": [*map(torch.from_numpy, xs)]}
    plain, apart = (
        compute_unnormalised_hsic(**given, names="ab", tile=4, documents=these)["m"]
        for these in (None, torch.from_numpy(documents))
    )
    assert torch.allclose(plain, apart, rtol=1e-10)


def test_too_few_documents_are_refused():
    x = np.random.default_rng(0).normal(size=(12, 3))
    with pytest.raises(Degenerate, match="pairs of rows of 3 documents or more are needed, got 2; give more documents"):
        bound("cka_unbiased", np.repeat([0, 1], 6))(x, x)
    with pytest.raises(Degenerate, match="no two rows are of different documents, got one document; give more doc"):
        bound("rsa", np.zeros(12, int))(x, x)
    with pytest.raises(Degenerate, match="5 rows of other documents are needed, got 4; give more documents, or a sma"):
        bound("mutual_knn", np.repeat([0, 1], [8, 4]), k=5)(x, x)


def observed(name, documents, xs, units=None, **settings):
    seen = {}
    compute_all_pairs(
        {name: measures.get(name, **settings)},
        [*map(torch.from_numpy, xs)],
        tile=7,
        documents=torch.from_numpy(documents),
        places=None if units is None else index_row_places(units, len(xs)),
        observe=lambda label, measure, found, values: seen.update({label: (found, values)}),
    )
    return seen[name]


@pytest.mark.parametrize("name", ["cka_unbiased", "rsa", "mutual_knn", "jaccard_knn"])
def test_permuted_is_the_measure_of_permuted_rows(name):
    """Whole documents of one length trade places."""
    documents, xs = np.repeat(np.arange(5), 4), sides(EQUAL)[1]
    rng = np.random.default_rng(1)
    xs = [rng.normal(size=(20, 4)) + rng.normal(size=(5, 4))[documents] for _ in range(2)]
    order = (rng.permutation(5)[:, None] * 4 + np.arange(4)).ravel()
    settings = {"k": 3} if name.endswith("knn") else {}
    found, _ = observed(name, documents, xs, **settings)
    moved = float(permute_pairs(found, torch.from_numpy(order)[None])[0, 0, 1])
    assert moved == pytest.approx(bound(name, documents, **settings)(xs[0], xs[1][order]), abs=1e-12)


@pytest.mark.parametrize("name", ["mutual_knn", "jaccard_knn"])
def test_neighbours_are_found_anew_where_documents_are_torn(name):
    documents, xs = sides(UNEQUAL)
    order = np.random.default_rng(2).permutation(len(documents))
    found, _ = observed(name, documents, xs, k=3)
    moved = float(permute_pairs(found, torch.from_numpy(order)[None])[0, 0, 1])
    assert moved == pytest.approx(bound(name, documents, k=3)(xs[0], xs[1][order]), abs=1e-12)


def test_cka_is_centred_anew_where_documents_are_torn():
    documents, xs = sides(UNEQUAL)
    order = np.random.default_rng(2).permutation(len(documents))
    found, _ = observed("cka_unbiased", documents, xs)
    u, v = (projected(x @ x.T, documents) for x in (xs[0], xs[1][order]))
    norm = np.sqrt((u * u).sum() * (projected(xs[1] @ xs[1].T, documents) ** 2).sum())
    moved = float(permute_pairs(found, torch.from_numpy(order)[None])[0, 0, 1])
    assert moved == pytest.approx((u * v).sum() / norm, abs=1e-12)


def test_ranks_that_are_known_stand_for_those_that_torn_documents_left_out():
    documents, xs = sides(UNEQUAL)
    order = np.random.default_rng(2).permutation(len(documents))
    found, _ = observed("rsa_euclidean", documents, xs)
    apart = documents[:, None] != documents
    known, sides_ranked = apart & apart[order][:, order], []
    for x in xs:
        distances = np.linalg.norm(x[:, None] - x, axis=2)
        ranked = np.zeros_like(distances)
        ranked[apart] = rankdata(distances[apart])
        ranked[apart] -= ranked[apart].mean()
        sides_ranked.append(ranked / np.linalg.norm(ranked))
    first, second = sides_ranked
    products = (first * second[order][:, order])[known]
    moved = float(permute_pairs(found, torch.from_numpy(order)[None])[0, 0, 1])
    assert known.sum() < apart.sum()
    assert moved == pytest.approx(products.mean() * apart.sum(), abs=1e-9)


@pytest.mark.parametrize("lengths", [[3] * 5, [1, 2, 3, 4, 2]])
def test_chance_is_that_of_cells_between_two_other_documents(lengths):
    """A cell of one side meets those of the same places in two documents that are not its own, on the other side."""
    documents, rng = np.repeat(np.arange(5), lengths), np.random.default_rng(3)
    places = np.concatenate([np.arange(length) for length in lengths])
    xs = [rng.normal(size=(len(documents), 3)) + rng.normal(size=(5, 3))[documents] for _ in range(2)]
    u, v = (projected(x @ x.T, documents) for x in xs)
    total = lost = 0.0
    for i, j in itertools.product(range(len(documents)), repeat=2):
        met = [
            v[k, m]
            for k, m in itertools.product(np.flatnonzero(places == places[i]), np.flatnonzero(places == places[j]))
            if documents[k] != documents[i] and documents[m] != documents[j] and documents[k] != documents[m]
        ]
        total += u[i, j] * np.mean(met) if met else 0
        lost += 0 if met or documents[i] == documents[j] else u[i, j] ** 2
    found, _ = observed("cka_unbiased", documents, xs, Exchange(documents, places, "documents"))
    exact = chance.compute_exact_mean(found, Exchange(documents, places, "documents"))
    if not lost:
        assert float(exact[0, 1]) == pytest.approx(total / np.sqrt((u * u).sum() * (v * v).sum()), abs=1e-6)
    assert float(exact.abs().max()) < 0.2


@pytest.mark.parametrize("lengths", [[16] * 32, [32] * 16, [64] * 8, "unequal"], ids=["32", "16", "8", "unequal"])
def test_unrelated_models_with_effects_of_documents_are_at_0(lengths):
    """Half of the variance lies between documents; with all pairs CKA is 0.19, 0.32, 0.49 and 0.30."""
    values, plain = [], []
    for seed in range(6):
        rng = np.random.default_rng([seed, 7])
        drawn = np.maximum(1, np.round(rng.lognormal(2.2, 0.9, 32)).astype(int)) if lengths == "unequal" else lengths
        documents = np.repeat(np.arange(len(drawn)), drawn)
        xs = [
            torch.from_numpy(
                rng.normal(size=(len(drawn), 32))[documents] + rng.normal(size=(len(documents), 32))
            ).float()
            for _ in range(4)
        ]
        bounds = {name: measures.get(name) for name in ("cka_unbiased", "mutual_knn")}
        found = compute_all_pairs(bounds, xs, documents=torch.from_numpy(documents))
        across = ~torch.eye(4, dtype=torch.bool)
        values.append(found["cka_unbiased"][across].mean())
        plain.append(compute_all_pairs({"m": measures.get("cka_unbiased")}, xs)["m"][across].mean())
        expected = np.mean(10 / (len(documents) - np.bincount(documents)[documents]))
        assert float(found["mutual_knn"][across].mean()) == pytest.approx(expected, abs=0.01)
    assert np.mean(plain) > 0.15
    assert abs(np.mean(values)) < 3 * np.std(values, ddof=1) / np.sqrt(len(values)) + 0.002
