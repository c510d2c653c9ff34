"""What the token alone gives: tables of random vectors in the place of layers."""

import numpy as np
import pytest

import repsim_cli
from repsim_cli import measures
from repsim_cli.activations.places import list_row_identities
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.engine.floor import draw_token_tables

TEXTS = [
    f"The {a} {b} sat on the {c}, and the {a} slept." for a in ("cat", "old") for b in ("dog", "hen") for c in "abcd"
]


def unbiased_cka(x, y):
    k, l = x @ x.T, y @ y.T
    parts = []
    for m in (k, l):
        n, m = len(m), m - np.diag(m.diagonal())
        sums = m.sum(1) / (n - 2)
        m = m - sums[:, None] - sums + m.sum() / ((n - 1) * (n - 2))
        parts.append(m - np.diag(m.diagonal()))
    u, v = parts
    return (u * v).sum() / np.sqrt((u * u).sum() * (v * v).sum())


def test_rows_of_a_token_are_alike_and_do_not_tie():
    tokens = np.repeat(np.arange(20), 31)
    x, y = draw_token_tables(tokens, 64, [0, 0])
    assert float((x[:31] - x[0]).abs().max()) < 0.8 < float((x[31] - x[0]).abs().max())
    assert measures.get("cka_unbiased")(x, y) == pytest.approx(
        unbiased_cka(x.double().numpy(), y.double().numpy()), abs=1e-6
    )
    # the ten nearest are ten at random of the thirty other rows of the token
    assert measures.get("mutual_knn")(x, y) == pytest.approx(1 / 3, abs=0.02)


def test_wider_tables_are_more_alike():
    tokens = np.random.default_rng(0).zipf(1.5, 600) % 200
    values = [measures.get("cka_unbiased")(*draw_token_tables(tokens, width, [0])) for width in (8, 64, 4096)]
    assert values[0] < values[1] < values[2]
    assert values[2] > 0.95


def test_a_word_is_all_of_its_pieces():
    ids = np.array([[5, 6, 7, 5], [6, 7, 5, 7]])
    word = np.array([[0, 1, 1, 2], [0, 0, 1, 2]])
    whole, at = np.ones((2, 4), bool), np.tile(np.arange(4), (2, 1))
    given = Sequences(inputs=ids, mask=whole, text=whole, document=at, position=word, documents=2, word=word)
    words = list_row_identities(given, Extract(hook_points=["resid_post"], unit="word"))
    assert words.tolist() == [0, 1, 0, 1, 0, 2]  # 5, 67, 5 | 67, 5, 7
    assert list_row_identities(given, Extract(hook_points=["resid_post"])).tolist() == ids.ravel().tolist()
    assert list_row_identities(given, Extract(hook_points=["resid_post"], unit="mean")) is None


def compared(rows, **settings):
    settings = {"extract.skip": 0, "extract.normalise": "none", "extract.estimate": "full", **settings}
    return repsim_cli.compare(["tiny_a", "tiny_b"], TEXTS, rows=rows, layers=["resid_post@1"], settings=settings)


@pytest.mark.parametrize(("rows", "unit"), [("tokens", "token"), ("words", "word")])
def test_a_run_says_what_the_token_alone_gives(rows, unit):
    for measured in compared(rows).results.measures:
        assert measured.floor["of"] == f"two tables of {measured.floor['width']} random numbers per {unit}"
        assert 0.1 < measured.floor["value"] < 1
        pairs = f" (per pair with the one before: {measured.floor['pairs']:z.2f})" if rows == "tokens" else ""
        said = f"the {unit} alone: {measured.floor['value']:.2f}{pairs}, two tables of {measured.floor['width']} random"
        assert measured.token_alone.startswith(said)
        assert ("pairs" in measured.floor) == (rows == "tokens")


def test_it_can_be_left_out_and_pooled_rows_have_none():
    for given in (compared("tokens", **{"significance.floor": False}), compared("pooled")):
        assert [(measured.floor, measured.token_alone) for measured in given.results.measures] == [
            (None, ""),
            (None, ""),
        ]
