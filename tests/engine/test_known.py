"""Finished matrices in the cache: the bits of a fresh run, and what makes another matrix."""

import numpy as np
import pytest
from helpers.nights import nightly, slow

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.engine import cached, matrices
from repsim_cli.models.precomputed import precomputed

pytestmark = pytest.mark.usefixtures("own_cache")


def refused(*_, **__):
    raise AssertionError("computed again")


ROWS = {"clusters": "row"}
RUNS = {
    "batches": (["cka", "procrustes"], {"estimate": "per_batch"}),
    "sums": (["cka_unbiased"], {"estimate": "ratio_of_sums", "significance": {"bands": True}}),
    "bands": (["cka"], {"estimate": "per_batch", "significance": {"bands": True}}),
    "one sample": (["cka", "svcca", "cycle_knn"], {}),
    "moments": (["mean_cca", "pwcca"], {"estimate": "moments"}),
    "permutations": (["cka", "procrustes"], {"significance": {**ROWS, "method": "permutation", "permutations": 19}}),
    "closed form": (["cka_unbiased"], {"significance": {**ROWS, "method": "closed_form"}}),
    "jackknife": (["cka"], {"significance": {**ROWS, "jackknife": True}}),
    "slow": (["gromov_wasserstein"], {}),
    "slow, batches": (["gromov_wasserstein", "wasserstein"], {"estimate": "per_batch"}),
    "within": (["gromov_wasserstein", "svcca"], {"within": True}),
}


@pytest.mark.parametrize("kind", slow(nightly(RUNS, "slow, batches"), "permutations", "slow", "within"))
def test_numbers_are_those_of_a_fresh_run(compared, kind, monkeypatch):
    """The runs have the models that another run had, one more before them, and all of them again."""
    names, settings = RUNS[kind]
    fresh, _ = compared("dabc", names, cache=False, **settings)
    compared("abc", names, **settings)
    first, run = compared("dabc", names, **settings)
    assert first == fresh
    assert run.manifest["matrices_cached"] == []
    monkeypatch.setattr(matrices, "open_rows", refused)
    again, run = compared("dabc", names, **settings)
    assert again == fresh
    assert run.manifest["matrices_cached"] == names
    assert run.manifest["models_run"] == []


CHANGES = {
    "another label of a model": ("a2 b", {}, {}),
    "another order of models": ("b a", {}, {}),
    "another seed of the sample": ("a b", {"rows": 30}, {"seed": 1}),
    "other rows": ("a b", {"rows": 30}, {"rows": 31}),
    "another tile": ("a b", {}, {"tile": 16}),
    "within": ("a b", {}, {"within": True}),
    "permutations": ("a b", {}, {"significance": {**ROWS, "method": "permutation", "permutations": 19}}),
    "other permutations": (
        "a b",
        {"significance": {**ROWS, "method": "permutation", "permutations": 19}},
        {"significance": {**ROWS, "method": "permutation", "permutations": 29}},
    ),
    "other batches": ("a b", {"estimate": "per_batch"}, {"estimate": "per_batch", "batch_rows": 16}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_another_matrix(compared, change):
    labels, before, after = CHANGES[change]
    compared("ab", ["cka"], **before)
    assert compared("ab", ["cka"], **before)[1].manifest["matrices_cached"] == ["cka"]
    found, run = compared(labels.split(), ["cka"], **{**before, **after})
    assert run.manifest["matrices_cached"] == []
    assert found == compared(labels.split(), ["cka"], cache=False, **{**before, **after})[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"significance": {**ROWS, "method": "closed_form"}},
            {"significance": {**ROWS, "method": "closed_form", "alpha": 0.01}},
        ),
        (
            {"estimate": "per_batch", "significance": {"bands": True}},
            {"estimate": "per_batch", "significance": {"bands": True, "level": 0.5}},
        ),
    ],
)
def test_what_follows_from_a_matrix_makes_no_other(compared, before, after):
    compared("ab", ["cka"], **before)
    found, run = compared("ab", ["cka"], **after)
    assert run.manifest["matrices_cached"] == ["cka"]
    assert found == compared("ab", ["cka"], cache=False, **after)[0]


def test_settings_and_names_of_measures(compared):
    compared("ab", {"mine": measures.get("svcca")})
    assert compared("ab", {"yours": measures.get("svcca")})[1].manifest["matrices_cached"] == ["yours"]
    other = {"mine": measures.get("svcca", variance=0.9)}
    assert compared("ab", other)[1].manifest["matrices_cached"] == []


def test_layers_in_another_order_are_another_matrix(compared, files, tmp_path, solved):
    layers = dict(np.load(files / "a.npz"))
    np.savez(tmp_path / "turned.npz", **{name: layers[name] for name in ("z", "y", "x")})
    turned = [("a", precomputed(path=str(tmp_path / "turned.npz"), layers=["z", "y", "x"]))]
    compared("ab", ["gromov_wasserstein", "cka"])
    solved.clear()
    found, run = compared("ab", ["gromov_wasserstein", "cka"], change=turned)
    assert run.manifest["matrices_cached"] == []
    assert len(solved) == 6 + 9  # a with itself and with b
    assert found == compared("ab", ["gromov_wasserstein", "cka"], change=turned, cache=False)[0]


def test_other_classes_of_the_rows_are_another_matrix(compared, monkeypatch):
    """A measure that reads them has another, the others do not."""
    tiny = registry.models.get("shipped").function(name="tiny_a")
    data = registry.data.get("overlap_nli").function(examples=60)
    settings = {"change": [("m", tiny)], "data": data, "unit": "mean", "length": 32, "sequences": 60}
    names = ["tolerance_difference", "cka_unbiased"]
    compared("", names, **settings)
    original = cached.list_row_labels
    monkeypatch.setattr(cached, "list_row_labels", lambda *given: original(*given)[::-1])
    assert compared("", names, **settings)[1].manifest["matrices_cached"] == ["cka_unbiased"]
