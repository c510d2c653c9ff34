"""Finished matrices and solved pairs in the cache: the bits of a fresh run, and nothing computed twice."""

import importlib
import inspect
import multiprocessing
import os
import shutil
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.nights import nightly
from helpers.timers import set_timers

from repsim_cli import measures
from repsim_cli.base import closure, environment, registry
from repsim_cli.base.settings import Extract, Hardware, Significance
from repsim_cli.engine import cached, matrices
from repsim_cli.measures import gromov, nearest
from repsim_cli.measures.base import MeasureWarning, Pairwise
from repsim_cli.models.precomputed import precomputed
from repsim_cli.report.record import record
from repsim_cli.runs import cache, results, so_far
from repsim_cli.runs.schema import to_json


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Stored activations of three layers each, 48 rows; one layer of `c` has a dead neuron."""
    folder, draw = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    first, mix = draw.normal(size=(48, 6)), draw.normal(size=(6, 6))
    for label in "abcd":
        layers = {}
        for name in ("x", "y", "z"):
            first = np.tanh(first @ mix) + 0.3 * draw.normal(size=(48, 6))
            layers[name] = first.astype(np.float32)
        if label == "c":
            layers["y"][:, 0] = 1.0
        np.savez(folder / f"{label}.npz", **layers)
    return folder


QUICK = {"gromov_wasserstein": {"start": "pot"}}  # in place of all starts


@pytest.fixture
def compared(files, tmp_path):
    """compared(labels, measures, **settings): what a run of the similarity study leaves -> (its numbers, its run)."""

    def run(
        labels,
        names,
        *,
        cache=True,
        seed=0,
        significance=None,
        tile=512,
        within=False,
        change=(),
        progress=results.quiet,
        data=None,
        **extract,
    ):
        sources = {label: precomputed(path=str(files / f"{label[0]}.npz")) for label in labels}
        study = registry.studies.get("similarity").function(
            model={**sources, **dict(change)},
            data=data or registry.data.get("embedded_text").function(split="validation"),
            measure=names
            if isinstance(names, dict)
            else {name: measures.get(name, **QUICK.get(name, {})) for name in names},
            extract=Extract(
                hook_points=["resid_post"], **{"estimate": "full", "rows": 48, "batch_rows": 12, **extract}
            ),
            significance=Significance(**{"chance": False, **(significance or {})}),
            hardware=Hardware(tile=tile, processes=1),
            seed=seed,
            cache=cache,
            within=within,
        )
        made = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
        made.progress = progress
        found = study.run(made)
        arrays = {file.name: file.read_bytes() for file in sorted((made.folder / "arrays").iterdir())}
        made.finish("complete")
        return (to_json(found), arrays, made.manifest["warnings"]), made

    return run


@pytest.fixture
def solved(monkeypatch):
    """The pairs that were solved, one by one."""
    pairs = []
    original = gromov.find_best_gromov

    def counted(*sides, **settings):
        pairs.append(sides)
        return original(*sides, **settings)

    monkeypatch.setattr(gromov, "find_best_gromov", counted)
    return pairs


def pairwise(name):
    bound = measures.get(name)
    assert isinstance(bound, Pairwise)
    return bound


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


@pytest.mark.parametrize("kind", nightly(RUNS, "slow, batches"))
def test_numbers_are_those_of_a_fresh_run(compared, kind, monkeypatch):
    """With the models that another run had, one more before them, and all of them again."""
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


@pytest.mark.parametrize("estimate", nightly(["full", "per_batch"], "full"))
def test_one_more_model_solves_the_new_pairs_only(compared, solved, estimate):
    compared("abc", ["gromov_wasserstein"], estimate=estimate)
    batches = 1 if estimate == "full" else 4
    assert len(solved) == batches * 45
    solved.clear()
    compared("abcd", ["gromov_wasserstein"], estimate=estimate)
    assert len(solved) == batches * (9 * 3 + 6)
    solved.clear()
    # a part of the models, in the same order: their matrix is another one, its pairs are there
    compared("abd", ["gromov_wasserstein"], estimate=estimate)
    assert not solved
    # the two sides of a pair the other way round are another pair
    compared("ba", ["gromov_wasserstein"], estimate=estimate)
    assert len(solved) == batches * 9


def test_pairs_of_a_measure_in_this_process(compared, monkeypatch):
    """Those that are compared one by one too."""
    calls = []
    bound = pairwise("procrustes")
    counting = replace(bound, compare=lambda a, b: calls.append(1) or bound.compare(a, b))
    compared("ab", {"procrustes": counting})
    assert len(calls) == 21
    compared("abc", {"procrustes": counting})
    assert len(calls) == 45


def test_audits_are_of_the_runs_own_pairs(compared, monkeypatch):
    """Which pairs are audited is drawn among all of a run, so that one more model changes them."""
    checked = []
    original = gromov.solve_by_pot
    monkeypatch.setattr(gromov, "solve_by_pot", lambda a, b: checked.append(1) or original(a, b))
    bound = {"gw": measures.get("gromov_wasserstein", audit=1.0)}
    fresh, _ = compared("abc", bound, cache=False)
    assert len(checked) == 36
    compared("ab", bound)
    assert len(checked) == 36 + 15
    found, _ = compared("abc", bound)
    assert found == fresh
    assert len(checked) == 36 + 36


def test_a_killed_run_leaves_its_pairs_to_others(compared, solved, monkeypatch):
    """Killed among the pairs; the next run is another one."""
    set_timers(monkeypatch, due=True)
    process = os.fork()
    if not process:
        original = gromov.find_best_gromov

        def until(*sides, **settings):
            if len(solved) == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*sides, **settings)

        monkeypatch.setattr(gromov, "find_best_gromov", until)
        try:
            compared("abc", ["gromov_wasserstein"])
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    found, _ = compared("abcd", ["gromov_wasserstein"])
    assert len(solved) == 78 - 10
    assert found == compared("abcd", ["gromov_wasserstein"], cache=False)[0]


def test_an_interrupted_run_leaves_its_pairs_to_others(compared, solved, monkeypatch):
    original = gromov.find_best_gromov

    def until(*sides, **settings):
        if len(solved) == 10:
            raise KeyboardInterrupt
        return original(*sides, **settings)

    monkeypatch.setattr(gromov, "find_best_gromov", until)
    with pytest.raises(KeyboardInterrupt):
        compared("abc", ["gromov_wasserstein"])
    monkeypatch.setattr(gromov, "find_best_gromov", original)
    solved.clear()
    compared("abc", ["gromov_wasserstein"])
    assert len(solved) == 45 - 10


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
    """Of a measure that reads them, not of the others."""
    tiny = registry.models.get("shipped").function(name="tiny_a")
    data = registry.data.get("overlap_nli").function(examples=60)
    settings = {"change": [("m", tiny)], "data": data, "unit": "mean", "length": 32, "sequences": 60}
    names = ["tolerance_difference", "cka_unbiased"]
    compared("", names, **settings)
    original = cached.list_row_labels
    monkeypatch.setattr(cached, "list_row_labels", lambda *given: original(*given)[::-1])
    assert compared("", names, **settings)[1].manifest["matrices_cached"] == ["cka_unbiased"]


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
    edited("repsim_cli.measures.nearest", "similarity.topk", "(-similarity).topk")
    largest = nearest.select_most_similar
    monkeypatch.setattr(nearest, "select_most_similar", lambda similarity, *rest: largest(-similarity, *rest))
    after, run = compared("ab", ["mutual_knn"])
    assert (run.manifest["matrices_cached"], after[1] != before[1]) == ([], True)
    assert after == compared("ab", ["mutual_knn"], cache=False)[0] == compared("ab", ["mutual_knn"])[0]


def test_changed_words_are_no_changed_code(compared, edited):
    compared("ab", ALL)
    edited("repsim_cli.measures.nearest", "# rows", "# ROWS")
    edited("repsim_cli.engine.matrices", '"""The matrices', '"""All the matrices')
    assert compared("ab", ALL)[1].manifest["matrices_cached"] == ALL


def test_pairs_permutations_and_tables_follow_the_code(compared, edited, solved, own_cache):
    permuted = {"significance": {**ROWS, "method": "permutation", "permutations": 19}}
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
    """Of those that a measure or the engine imports; a missing one is a version too."""
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
    """In its settings, at any depth, or in its code."""
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


def test_models_that_nothing_stands_for_are_not_cached(compared, own_cache, files, solved):
    """Pairs of the others are."""
    source = precomputed(path=str(files / "b.npz"))
    nameless = [("b", replace(source, identity=lambda: {"source": "somewhere", "weights_hash": None}))]
    for count in (21, 15):
        solved.clear()
        _, run = compared("ab", ["gromov_wasserstein", "cka"], change=nameless)
        assert run.manifest["matrices_cached"] == []
        assert len(solved) == count


def test_without_the_cache_nothing_is_read_or_written(compared, own_cache, solved):
    compared("ab", ["gromov_wasserstein", "cka"], cache=False)
    assert not own_cache.exists()
    compared("ab", ["gromov_wasserstein", "cka"])
    solved.clear()
    assert compared("ab", ["gromov_wasserstein", "cka"], cache=False)[1].manifest["matrices_cached"] == []
    assert len(solved) == 21


@pytest.mark.parametrize("kind", ["matrices", "pairs"])
def test_what_is_damaged_is_computed_again(compared, own_cache, kind, solved):
    names = ["gromov_wasserstein", "svcca"]
    fresh, _ = compared("abc", names)
    place = next(file for file in sorted(own_cache.glob(f"{kind}/*/*")) if not file.name.startswith("entry-"))
    place.write_bytes(place.read_bytes()[:-1] + b"\x7f")
    if kind == "pairs":
        shutil.rmtree(own_cache / "matrices")
    found, run = compared("abc", names)
    assert found == fresh
    assert len(run.manifest["matrices_cached"]) == (1 if kind == "matrices" else 0)
    assert compared("abc", names)[1].manifest["matrices_cached"] == names


def test_warnings_are_of_the_measure_that_gave_them(compared):
    """`c` has a dead neuron, which mean_cca drops and cka does not."""
    _, run = compared("ac", ["cka", "pillai_trace", "svcca"])
    (told,) = run.manifest["warnings"]
    assert "dead neurons were dropped, got 1 of 6" in told
    assert compared("ac", ["cka"])[1].manifest["warnings"] == []
    for name in ("pillai_trace", "svcca"):
        _, run = compared("ac", [name])
        assert run.manifest["matrices_cached"] == [name]
        assert run.manifest["warnings"] == [told.replace("pillai_trace, svcca", name)]


def test_pairs_that_are_warned_of_are_warned_of_again(compared):
    bound = pairwise("procrustes")

    def compare(a, b):
        import warnings

        warnings.warn("mind this pair", MeasureWarning, stacklevel=2)
        return bound.compare(a, b)

    warning = {"procrustes": replace(bound, compare=compare)}
    compared("ab", warning)
    fresh, run = compared("abc", warning, cache=False)
    assert all("mind this pair" in one for one in run.manifest["warnings"])
    assert run.manifest["warnings"]
    assert compared("abc", warning)[0] == fresh


def test_a_cache_that_cannot_be_written_is_a_warning(compared, monkeypatch, caplog):
    fresh, _ = compared("ab", ["gromov_wasserstein", "cka"], cache=False)

    def full(self, name, save):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.Entry, "write", full)
    cache.log.propagate = True
    (content, arrays, warned), _ = compared("ab", ["gromov_wasserstein", "cka"])
    assert (content, arrays) == fresh[:2]
    assert all(line.endswith("cannot be written (No space left on device); continuing without it") for line in warned)
    assert sorted(kind for kind in ("matrices", "diagnostics", "pairs") for line in warned if f"/{kind}/" in line) == [
        "diagnostics",
        "matrices",
    ]
    assert len({line for line in caplog.text.splitlines() if "/pairs/" in line}) == 1


def test_a_cache_that_cannot_be_used_is_a_warning(compared, own_cache):
    own_cache.write_text("a file")
    _, run = compared("ab", ["procrustes"])
    assert run.manifest["warnings"]
    assert all("cannot be used" in one for one in run.manifest["warnings"])


def _concurrent(compared, log, labels):
    original = gromov.find_best_gromov

    def slowly(*sides, **settings):
        with log.open("a") as stream:
            stream.write(".")
        time.sleep(0.02)
        return original(*sides, **settings)

    gromov.find_best_gromov = slowly
    compared(labels, ["gromov_wasserstein"])
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_one_computes_and_the_others_wait(compared, tmp_path):
    context, log = multiprocessing.get_context("fork"), tmp_path / "log"
    workers = [context.Process(target=_concurrent, args=(compared, log, labels)) for labels in ("abc", "abc", "abcd")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert len(log.read_text()) == 78  # each pair once


def test_a_state_that_lacks_a_measure_is_begun_again(compared, monkeypatch, tmp_path):
    """The matrix of one measure was in the cache when the run broke off, and is gone when it is resumed."""
    fresh, _ = compared("ab", ["cka", "procrustes"], estimate="per_batch", cache=False)
    set_timers(monkeypatch, due=True)
    saved = {}
    original = matrices.resume

    def keeping(file, of, always=False):
        state, save = original(file, of, always)
        return state, lambda one: saved.update(file=file, state=dict(one)) or save(one)

    monkeypatch.setattr(matrices, "resume", keeping)
    compared("ab", ["procrustes"], estimate="per_batch", cache=False)
    monkeypatch.setattr(matrices, "resume", lambda file, of, always=False: (saved["state"], lambda state: None))
    assert compared("ab", ["cka", "procrustes"], estimate="per_batch", cache=False)[0] == fresh


def test_a_state_of_other_models_is_not_taken(tmp_path, monkeypatch):
    """A run may have several passes, and any of them may have been cut off."""
    set_timers(monkeypatch, due=True)
    state, save = matrices.resume(tmp_path / "state", "a")
    assert state is None
    save({"cka.mean": torch.ones(2, 2)})
    assert matrices.resume(tmp_path / "state", "b")[0] is None
    assert [*(matrices.resume(tmp_path / "state", "a")[0] or {})] == ["cka.mean"]


def test_a_run_shows_its_maps_and_ends_with_the_same_bits(compared, monkeypatch):
    """Of a slow, a pairwise and a fast measure: every map is part of the results, the last one is all of them, the page
    has them while the run computes, and nothing is left when it ends."""
    names = {"gromov_wasserstein": measures.get("gromov_wasserstein", audit=0.0)}
    names |= {name: measures.get(name) for name in ("procrustes", "cka")}
    seen, pages = [], []
    set_timers(monkeypatch, due=False)
    fresh, _ = compared("ab", names, cache=False, rows=24)
    set_timers(monkeypatch, due=True)
    write = so_far.Writer._write

    def watched(self):
        write(self)
        seen.append({given.measured.label: given for given in so_far.read(self.folder)})
        if len(seen) % 10 == 0:
            pages.append(record(self.folder))

    monkeypatch.setattr(so_far.Writer, "_write", watched)
    again, run = compared("ab", names, cache=False, rows=24)
    assert again == fresh
    assert not (run.folder / results.SO_FAR).exists()
    whole = {m["label"]: {x["values"]: np.load(run.folder / x["values"]) for x in m["matrices"]} for m in again[0]["measures"]}  # fmt: skip
    for label in names:
        given = seen[-1][label]
        assert given.state == "all cells"
        for mine, final in zip(so_far.split_into_pairs(given)[1].values(), whole[label].values(), strict=True):
            np.testing.assert_array_equal(mine, final)
        for values in (maps[label].values for maps in seen if label in maps):
            there = np.isfinite(values)
            np.testing.assert_array_equal(values[there], given.values[there])
    solved = [
        int(np.isfinite(maps["gromov_wasserstein"].values).sum()) for maps in seen if "gromov_wasserstein" in maps
    ]
    assert solved == sorted(solved)
    assert {1, 3, 5, 7} <= set(solved)  # a layer and itself; then a pair, which stands both ways
    assert pages[0]["so_far"].keys() <= set(names)
    assert {m["label"] for m in pages[-1]["measures"]} == set(names)


def test_the_cache_command_lists_them(compared, repsim):
    compared("ab", ["procrustes", "cka"])
    code, out, _ = repsim("cache")
    assert code == 0
    assert "  matrices: 2 entries, " in out
    assert "  pairs: 3 entries, " in out


def test_many_entries_need_many_files(monkeypatch):
    set_to = []
    monkeypatch.setattr(cache.resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(cache.resource, "setrlimit", lambda which, both: set_to.append(both))
    cache._allow_open(10_000)
    cache._allow_open(1000)
    monkeypatch.setattr(cache.resource, "getrlimit", lambda which: (256, cache.resource.RLIM_INFINITY))
    cache._allow_open(10_000)
    monkeypatch.setattr(cache.resource, "getrlimit", lambda which: (20_000, 20_000))
    cache._allow_open(10_000)
    assert set_to == [(4096, 4096), (1000 + cache.OTHER_FILES, 4096), (10_000 + cache.OTHER_FILES, -1)]


def test_the_time_that_is_left_counts_all_batches(compared):
    asked = []

    def progress(items, *, label, unit, later=0):
        if unit == "pairs":
            asked.append((len(items), later))
        return iter(items)

    bound = {"gw": measures.get("gromov_wasserstein", audit=0.0)}
    compared("ab", bound, estimate="per_batch", progress=progress)
    assert asked == [(21, 63), (21, 42), (21, 21), (21, 0)]
    asked.clear()
    compared("abc", bound, estimate="per_batch", progress=progress)
    assert asked == [(24, 72), (24, 48), (24, 24), (24, 0)]


def test_lines_of_progress_count_what_comes_later(capsys, monkeypatch):
    from repsim_cli.cli import terminal

    monkeypatch.delenv(terminal.QUIET, raising=False)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(clock)))
    list(terminal.Bar()([1, 2], label="pairs of gw", unit="pairs", later=2))
    assert capsys.readouterr().err.splitlines() == [
        "pairs of gw: 1/4 pairs, 0.10/s, 30 s left",
        "pairs of gw: 2/4 pairs, 0.10/s, 20 s left",
    ]
