"""What is in the cache follows the code that made it."""

import importlib
import inspect
import sys

import pytest
from helpers.nights import nightly

from repsim_cli import measures
from repsim_cli.base import closure, environment, registry
from repsim_cli.engine import cached
from repsim_cli.measures import nearest

pytestmark = pytest.mark.usefixtures("own_cache")

ALL = ["cka", "mutual_knn", "gromov_wasserstein"]
EDITS = {  # a changed module, and the measures whose matrices stay
    "measures.neighbours": ["cka", "gromov_wasserstein"],
    "measures.nearest": [],  # which finds the rows that runs keep
    "measures.compiled.augmenting": ["cka", "mutual_knn"],  # imported where numba is
    "measures.base": [],
    "base.gram": [],
    "engine.pairs": [],
    "engine.processes": [],
    "engine.estimates": [],
    "engine.significance": [],
    "activations.remedies": [],
    "activations.diagnostics": [],
    "engine.matrices": [],
    "models.precomputed": [],  # which reads the rows
    "measures.shape": ALL,
    "figures.heatmap": ALL,
    "studies.modular_sums.train": ALL,
}


# one of each kind: of a measure, of what it imports, of the engine, of what reads the rows, of what is not there
AT_ONCE = (
    "measures.nearest",
    "measures.compiled.augmenting",
    "engine.estimates",
    "models.precomputed",
    "figures.heatmap",
)


@pytest.mark.parametrize("edit", nightly(EDITS, *(edit for edit in EDITS if edit not in AT_ONCE)))
def test_a_changed_file_is_computed_again(compared, edited, edit):
    compared("ab", ALL)
    assert compared("ab", ALL)[1].manifest["matrices_cached"] == ALL
    edited(f"repsim_cli.{edit}")
    assert compared("ab", ALL)[1].manifest["matrices_cached"] == EDITS[edit]
    assert compared("ab", ALL)[1].manifest["matrices_cached"] == ALL


def test_a_changed_number_does_not_come_from_the_cache(compared, edited, monkeypatch):
    before, _ = compared("ab", ["mutual_knn"])
    edited("repsim_cli.measures.near_rows", "similarity.topk", "(-similarity).topk")
    largest = nearest.select_most_similar
    monkeypatch.setattr(nearest, "select_most_similar", lambda similarity, *rest: largest(-similarity, *rest))
    after, run = compared("ab", ["mutual_knn"])
    assert (run.manifest["matrices_cached"], after[1] != before[1]) == ([], True)
    assert after == compared("ab", ["mutual_knn"], cache=False)[0] == compared("ab", ["mutual_knn"])[0]


def test_changed_words_are_no_changed_code(compared, edited):
    compared("ab", ALL)
    edited("repsim_cli.measures.near_rows", "# rows", "# ROWS")
    edited("repsim_cli.engine.matrices", '"""The matrices', '"""All the matrices')
    assert compared("ab", ALL)[1].manifest["matrices_cached"] == ALL


@pytest.mark.slow
def test_pairs_permutations_and_tables_follow_the_code(compared, edited, solved, own_cache):
    permuted = {"significance": {"clusters": "row", "method": "permutation", "permutations": 19}}
    compared("ab", ["gromov_wasserstein"])
    entries = {kind: len([*own_cache.glob(f"{kind}/*/")]) for kind in ("pairs", "diagnostics")}
    solved.clear()
    compared("abc", ["gromov_wasserstein"])
    assert len(solved) == 6 + 18  # c with itself and with the others
    edited("repsim_cli.measures.assignment")
    solved.clear()
    compared("ab", ["gromov_wasserstein"])
    assert len(solved) == 21
    edited("repsim_cli.activations.diagnostics")
    compared("ab", ["gromov_wasserstein"])
    assert len([*own_cache.glob("diagnostics/*/")]) == entries["diagnostics"] + 2  # of abc, and of ab again
    compared("ab", ["cka"], **permuted)
    assert compared("ab", ["cka"], **permuted)[1].manifest["matrices_cached"] == ["cka"]
    edited("repsim_cli.engine.significance")
    assert compared("ab", ["cka"], **permuted)[1].manifest["matrices_cached"] == []


@pytest.mark.parametrize(
    ("package", "again"),
    [
        *(("torch", 3), ("pot", 1), ("matplotlib", 0)),
        *(pytest.param(*like, marks=pytest.mark.nightly) for like in (("numpy", 3), ("scipy", 3), ("numba", 1))),
    ],
)
def test_another_version_of_a_package_is_other_code(compared, monkeypatch, package, again):
    """Packages that a measure or the engine imports count; a missing one is a version too."""
    names, real = ["cka", "mutual_knn", "gromov_wasserstein"], environment.read_version
    compared("ab", names)
    for version in ("0.1", None):
        monkeypatch.setattr(environment, "read_version", lambda name, v=version: v if name == package else real(name))
        assert len(compared("ab", names)[1].manifest["matrices_cached"]) == 3 - again
        assert compared("ab", names)[1].manifest["matrices_cached"] == names


COMPOSED = """
from dataclasses import replace
from repsim_cli import measures; from repsim_cli.base import registry

@registry.measures.register("another", measures.card("cka"))
def another(*, of: str, more: dict | None = None):
    return replace(measures.get(of))

@registry.measures.register("rows", measures.card("cka"))
def rows(*, shift: float = 0.0):
    return replace(measures.get("rsa"))
"""


def test_a_measure_that_names_another_follows_its_code(edited, monkeypatch, tmp_path):
    """The name stands in its settings, at any depth, or in its code."""
    monkeypatch.setattr(registry.measures, "_entries", {**registry.measures._entries})
    (tmp_path / "composed.py").write_text(COMPOSED)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("composed")
    bound = {
        "given": measures.get("another", of="mutual_knn"),
        "nested": measures.get("another", of="rsa", more={"of": ["jaccard_knn"]}),
        "in code": measures.get("rows"),
        "other": measures.get("another", of="cka"),
    }
    keys = {label: cached.make_measure_code_key(measure) for label, measure in bound.items()}
    edited("repsim_cli.measures.nearest")
    changed = [label for label, measure in bound.items() if cached.make_measure_code_key(measure) != keys[label]]
    assert changed == ["given", "nested"]
    edited("repsim_cli.measures.rdm")
    assert cached.make_measure_code_key(bound["in code"]) != keys["in code"]
    del sys.modules["composed"]


@pytest.mark.parametrize("file", ["<stdin>", "/there/is/none.py"])
def test_a_measure_without_a_file_is_not_cached(compared, monkeypatch, own_cache, file):
    real = closure.inspect.getfile
    measure = inspect.unwrap(registry.measures.get("cka").function)
    monkeypatch.setattr(closure.inspect, "getfile", lambda x: file if x is measure else real(x))
    assert compared("ab", ["cka", "rsa"])[1].manifest["warnings"] == []
    assert compared("ab", ["cka", "rsa"])[1].manifest["matrices_cached"] == ["rsa"]


def test_without_the_code_of_the_engine_nothing_is_cached(compared, monkeypatch, own_cache):
    monkeypatch.setattr(cached, "collect_code", lambda *_: None)
    compared("ab", ["cka", "procrustes"])
    assert not [place for kind in ("matrices", "pairs", "diagnostics") for place in own_cache.glob(f"{kind}/*")]
