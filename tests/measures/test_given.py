"""What a program gives a measure: arrays of all kinds, and settings."""

import os

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import repsim_cli
from repsim_cli import BadInput, measures

TYPED = bool(os.environ.get("REPSIM_TYPES"))
draw = np.random.default_rng(0)
X, Y = np.round(draw.normal(size=(60, 5)), 2), draw.normal(size=(60, 4))

TAKEN = {
    "gradients": torch.tensor(X, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.tensor(X)),
    "a table": pd.DataFrame(X),
    "lists": X.tolist(),
    "tuples": tuple(map(tuple, X)),
    "tensors in a list": list(torch.tensor(X)),
    "a mask without masked values": np.ma.masked_greater(X, 99),
}
REFUSED = {
    "meta": (torch.zeros(60, 5, device="meta"), "without values, got a tensor on the device meta; load it first"),
    "sparse": (torch.tensor(X).to_sparse(), "not dense, got torch.sparse_coo; give x.to_dense()"),
    "scipy": (scipy.sparse.csr_matrix(X), "not dense, got csr_matrix; give x.toarray()"),
    "masked": (np.ma.masked_greater(X, 1), "a masked array, got \\d+ masked values; drop these rows on both sides"),
    "objects": (X.astype(object), "not real numbers, got object; give x.astype.float., of a table x.to_numpy"),
    "texts in a table": (pd.DataFrame({"a": ["b"] * 60}), "not real numbers, got (object|str).*; give "),
    "complex": (X + 1j, "not real numbers, got complex128; give real ones, such as np.abs"),
    "complex tensor": (torch.tensor(X + 1j), "not real numbers, got torch.complex128; give real ones, such as x.abs"),
    "texts": (X.astype(str), "not real numbers, got <U32; give an array of floats"),
    "dates": (X.astype("datetime64[s]"), "not real numbers, got datetime64.s.; give an array of floats"),
    "ragged": ([[1.0, 2.0], [3.0]], "rows that make no array, got a list; give rows of one length"),
    "gradients in a list": (list(torch.tensor(X, requires_grad=True)), "rows that make no array, got a list"),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_measures_and_comparisons_take_the_same(kind):
    given, expected = TAKEN[kind], measures.get("cka")(X, Y)
    assert measures.get("cka")(given, Y) == expected
    for model in (given, {"layer": given}):
        found = repsim_cli.compare({"a": model, "b": Y}, measures=["cka"]).matrix("a", "b").values
        assert float(found[0, 0]) == pytest.approx(expected, rel=1e-5)


def test_whole_numbers_are_numbers():
    given = np.round(X * 100).astype(int)
    assert measures.get("cka")(given, Y) == pytest.approx(measures.get("cka")(X, Y))
    found = repsim_cli.compare({"a": given, "b": Y}, measures=["cka"]).matrix("a", "b").values
    assert float(found[0, 0]) == pytest.approx(measures.get("cka")(X, Y), rel=1e-5)


@pytest.mark.parametrize("kind", REFUSED)
def test_measures_and_comparisons_refuse_the_same(kind):
    given, message = REFUSED[kind]
    with pytest.raises(BadInput, match=f"^x: {message}"):
        measures.get("cka")(given, Y)
    with pytest.raises(BadInput, match=f"^y: {message}"):
        measures.get("procrustes").align(Y, given)
    with pytest.raises(BadInput, match=f"^models.a: array 'rows': {message}"):
        repsim_cli.compare({"a": given, "b": Y})


@pytest.mark.skipif(TYPED, reason="arguments of other types are refused before, where types are checked")
def test_what_is_no_array():
    for given in (None, "tiny_a", {"a": 1}, iter(X), 5.0):
        with pytest.raises(BadInput, match="^(x: (not an array, got|not real numbers, got <U6)|cka: x and y must be)"):
            measures.get("cka")(given, Y)
    with pytest.raises(BadInput, match="^labels: not real numbers, got <U1; give an array of floats"):
        measures.get("cka")(X, Y, labels=["a"] * 60)


def test_a_map_of_vectors_takes_the_same():
    made = repsim_cli.fit_map(X, Y)[0]
    expected = repsim_cli.apply_map(made, X)
    for given in TAKEN.values():
        np.testing.assert_allclose(repsim_cli.apply_map(made, given), expected, rtol=1e-6)
    for given, message in REFUSED.values():
        with pytest.raises(BadInput, match=f"^rows: {message}"):
            repsim_cli.apply_map(made, given)


def test_a_masked_batch_of_a_module_is_refused():
    batch = np.ma.masked_greater(X.astype("f4"), 1)
    with pytest.raises(BadInput, match="^models.a.data: a batch: a masked array, got .* masked values"):
        repsim_cli.compare({"a": torch.nn.Sequential(torch.nn.Linear(5, 3))}, [batch])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kk": 5}, "mutual_knn.kk: unknown key, got 5; did you mean 'k'?"),
        ({"k": "5"}, "mutual_knn.k: wrong value, got '5'; give a whole number from 1, or a number above 0 below 1"),
        ({"k": -1}, "mutual_knn.k: wrong value, got -1; give a whole number from 1"),
        ({"k": 0}, "mutual_knn.k: wrong value, got 0; give"),
        ({"k": True}, "mutual_knn.k: wrong value, got True; give"),
        ({"k": None}, "mutual_knn.k: wrong value, got None; give"),
        ({"k": 2.5}, "mutual_knn.k: wrong value, got 2.5; give"),
    ],
)
def test_settings_are_checked_when_a_measure_is_got(settings, message):
    with pytest.raises(BadInput, match=f"^{message}".replace("?", "\\?")):
        measures.get("mutual_knn", **settings)


def test_settings_of_numpy():
    assert measures.get("mutual_knn", k=np.int64(5)).settings["k"] == 5


@pytest.mark.skipif(TYPED, reason="arguments of other types are refused before, where types are checked")
@pytest.mark.parametrize("name", [None, 5, ["cka"]])
def test_a_measure_is_named_by_text(name):
    for ask in (measures.get, measures.card):
        with pytest.raises(BadInput, match="^measure: not a name, got .*; give one as text, known: "):
            ask(name)


def test_what_a_measure_refuses_is_bad_input():
    for given in (np.ones((60, 5)), np.full((60, 5), np.nan), X[:2]):
        with pytest.raises(repsim_cli.BadInput) as refused:
            measures.get("cka")(given, Y)
        assert isinstance(refused.value, repsim_cli.Degenerate)


@pytest.mark.filterwarnings("ignore")  # torch's own, of kinds that it does not promise to keep
def test_tensors_of_rare_kinds():
    x = torch.tensor(X)
    for given, message in [
        (x.to_sparse_csr(), "not dense, got torch.sparse_csr; give x.to_dense()"),
        (torch.nested.nested_tensor([x[0], x[1, :3]]), "rows of different lengths, got a nested tensor; give a tensor"),
        (torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8), "quantised, got torch.qint8; give x.dequantize()"),
    ]:
        with pytest.raises(BadInput, match=f"^x: {message}"):
            measures.get("cka")(given, Y)
