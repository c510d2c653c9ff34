"""Runs with cells for which a measure is undefined: listed, warned of once, and drawn as such."""

import json
from dataclasses import replace

import numpy as np
import pytest

import repsim_cli
from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Extract, Hardware, Significance
from repsim_cli.engine.without_value import Lacking, NoValue, select_measures_with_values
from repsim_cli.figures.heatmap import draw_heatmap, note_lacking
from repsim_cli.findings.analyse import draw
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.complete import complete
from repsim_cli.models.precomputed import precomputed
from repsim_cli.report import export
from repsim_cli.report.record import average_blocks, record
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import WITHOUT_VALUE
from repsim_cli.runs.schema import to_json

INNER, SINGLY, BOTH_WAYS, SLOW = "cka", "procrustes", "linear_regression", "gromov_wasserstein"


def bound(*names):
    return {name: measures.get(name) for name in names}


# ---- a run ----


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    for seed, label in enumerate(("mine", "other")):
        draw = np.random.default_rng(seed)
        layers = {name: draw.normal(size=(40, 4)) for name in ("embed", "y", "z")}
        if label == "mine":
            layers["embed"][:] = 0.3
        np.savez(folder / f"{label}.npz", **layers)
    return folder


@pytest.fixture
def compared(files, tmp_path, monkeypatch):
    """compared(measures, **settings): the run of two models, one with a constant layer, and what it found."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))

    def run(*names, labels=("mine", "other"), test=None, **extract):
        study = registry.studies.get("similarity").function(
            model={label: precomputed(path=str(files / f"{label}.npz")) for label in labels},
            data=registry.data.get("embedded_text").function(split="validation"),
            measure=bound(*names),
            extract=Extract(
                hook_points=["resid_post"], **{"estimate": "full", "rows": 40, "batch_rows": 20, **extract}
            ),
            significance=Significance(**(test or {})),
            hardware=Hardware(processes=1),
            seed=0,
        )
        made = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
        facts = {
            label: {"kind": "stored", "family": label, "layers": ["embed", "y", "z"], "widths": [4, 4, 4]}
            for label in labels
        }
        made.manifest.update(facts=facts, base=None, options={})
        found = study.run(made)
        made.write_results(replace(found, warnings=made.manifest["warnings"], analyses={"maps": {"options": {}}}))
        made.finish("complete")
        return made, reader.read_results(made.folder)

    return run


def test_a_run_lists_them_warns_once_and_goes_on(compared):
    made, found = compared(
        INNER,
        SINGLY,
        "euclidean",
        test={"method": "permutation", "permutations": 19, "family": "max_t", "clusters": "row"},
    )
    assert made.manifest["warnings"][0] == (
        "cka, procrustes: 11 of 36 cells without a value: embed of 'mine': all rows are equal"
    )
    table = found.tables[WITHOUT_VALUE]
    assert {tuple(row[:5]) for row in table.rows if row[0] == INNER} == {
        *((INNER, "mine", "mine", "embed", name) for name in ("embed", "y", "z")),
        *((INNER, "mine", "mine", name, "embed") for name in ("y", "z")),
        *((INNER, "mine", "other", "embed", name) for name in ("embed", "y", "z")),
    }
    for measured in found.measures:
        for matrix in measured.matrices:
            mask = reader.mark_missing_cells(found, measured, matrix)
            for path in matrix.cells.values():
                np.testing.assert_array_equal(np.isnan(reader.read_array(made.folder, path)), mask)
    assert "NaN" not in (made.folder / "results.json").read_text()
    by_cache, same = compared(
        INNER,
        SINGLY,
        "euclidean",
        test={"method": "permutation", "permutations": 19, "family": "max_t", "clusters": "row"},
    )
    assert by_cache.manifest["matrices_cached"] == [INNER, SINGLY, "euclidean"]
    assert to_json(same)["tables"][WITHOUT_VALUE] == to_json(found)["tables"][WITHOUT_VALUE]


@pytest.mark.slow
def test_the_page_the_export_and_the_figures_show_them(compared):
    made, _ = compared(INNER)
    cells = {name: sheet for sheet in export.build_sheets(made.folder) for name in [str(sheet.name)]}
    mine = cells["cka-mine-mine"]
    assert mine.rows[0] == ["embed", None, None, None]
    assert export.convert_to_csv(mine).decode().splitlines()[1] == "embed,,,"
    assert "embed & -- & -- & -- \\\\" in export.convert_to_latex(mine).decode()
    assert record(made.folder)["measures"][0]["closest"][0][2] != "embed"
    drawn = draw(made.folder)
    assert "cka-all.png" in {file.name for file in drawn}
    svg = next(file for file in drawn if file.name == "cka-all.svg").read_text()
    assert "hatched: no value, in 11 of 36 cells" in svg or "pattern" in svg


def test_a_cell_that_is_not_listed_is_damage(compared):
    made, found = compared(INNER)
    document = json.loads((made.folder / "results.json").read_text())
    document["tables"][WITHOUT_VALUE]["rows"].pop()
    (made.folder / "results.json").write_text(json.dumps(document))
    manifest = json.loads((made.folder / "manifest.json").read_text())
    manifest["files"]["results.json"] = reader.hash_file(made.folder / "results.json")
    (made.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="a value is not finite, got nan or inf; the run is damaged"):
        record(made.folder)
    assert found.measures


def test_analyses_read_the_run_without_the_layer(compared):
    made, found = compared(INNER, SINGLY)
    run, said = complete(Finished(folder=made.folder, manifest=made.manifest, results=found))
    assert said == ["analyses: the layers mine embed are left out, as they lack values"]
    layers = run.maps[INNER]
    assert layers.names == ["y", "z", "embed", "y", "z"]
    assert layers.widths == [4] * 5
    assert np.isfinite(layers.values).all()


def test_analyses_do_without_a_measure_that_lacks_a_few_cells(compared):
    made, found = compared(INNER, "euclidean", "wasserstein")
    run, said = complete(Finished(folder=made.folder, manifest=made.manifest, results=found))
    assert said == ["analyses: the measures cka are left out, as they lack values"]
    assert list(run.maps) == ["euclidean", "wasserstein"]
    made, found = compared(INNER)
    half = replace(found, measures=[replace(m, matrices=m.matrices[:1]) for m in found.measures])
    run, _ = complete(Finished(folder=made.folder, manifest=made.manifest, results=half))
    assert run is not None


def test_a_measure_without_any_value_is_skipped_and_a_run_of_none_fails(compared, files, tmp_path):
    with np.load(files / "mine.npz") as kept:
        np.savez(tmp_path / "flat.npz", **{name: np.full_like(kept[name], 0.3) for name in kept.files})
    (files / "flat.npz").write_bytes((tmp_path / "flat.npz").read_bytes())
    made, found = compared(INNER, "euclidean", labels=("flat",))
    assert [measured.label for measured in found.measures] == ["euclidean"]
    assert made.manifest["measures_skipped"][INNER].startswith("no two layers have a value: embed of 'flat': all rows")
    with pytest.raises(
        BadInput, match="^model: no two layers have a value, since all rows are equal in stored ones, got"
    ):
        compared(INNER, SINGLY, labels=("flat",))


def test_hatches_and_means_over_blocks():
    values = np.array([[1.0, np.nan], [0.0, 1.0]])
    assert note_lacking("x", values) == "x\nhatched: no value, in 1 of 4 cells"
    assert note_lacking("x", np.eye(2)) == "x"
    _, axes = draw_heatmap(values, ["a", "b"], ["a", "b"], "t", "bar", (0.0, 1.0), "viridis", "{:.1f}")
    assert axes.patch.get_hatch()
    crossed = np.isnan(values)
    _, axes = draw_heatmap(values, ["a", "b"], ["a", "b"], "t", "bar", (0.0, 1.0), "viridis", "{:.1f}", crossed=crossed)
    assert not axes.patch.get_hatch()
    assert average_blocks(values, 2).tolist() == [[pytest.approx(2 / 3)]]
    assert np.isnan(average_blocks(np.full((1, 1), np.nan), 1)).all()


def test_remedies_that_leave_no_value_are_left_out(compared):
    run, _ = compared(INNER)
    with pytest.raises(NoValue):
        select_measures_with_values(run, {"x": Lacking(["a: all rows are equal"], 1, False)})
    with pytest.raises(RunFailed, match=r"got x \(a; b; c and 1 more reasons\)"):
        select_measures_with_values(run, {"x": Lacking(["a", "b", "c", "d"], 4, False)})


def test_stored_rows_that_are_all_equal_are_seen_before_the_run(repsim, tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
    np.savez(tmp_path / "flat.npz", a=np.ones((60, 4), "f4"), b=np.full((60, 4), 2, "f4"))
    np.savez(tmp_path / "one.npz", a=rows)
    np.savez(tmp_path / "two.npz", a=rows, b=rows[:, ::-1])
    said = "error: model: no two layers have a value, since all rows are equal in stored ones, got 'a' of 'flat'"
    code, _, err = repsim("compare", tmp_path / "flat.npz", tmp_path / "one.npz", "--measure", "cka")
    assert (code, said in err) == (2, True), err
    with pytest.raises(
        BadInput, match="^model: no two layers have a value, since .*, got 'rows' of 'flat'; store other"
    ):
        repsim_cli.compare({"flat": np.ones((60, 4)), "other": rows}, measures=["cka"])
    for other, measure in (("one", "wasserstein"), ("two", "cka")):
        assert repsim("compare", tmp_path / "flat.npz", tmp_path / f"{other}.npz", "--measure", measure)[0] == 0
