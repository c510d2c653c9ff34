"""The run folder: claimed once, strict, found again; figures redrawn byte for byte."""

import json

import matplotlib.image
import numpy as np
import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.figures.colours import choose_colour_range
from repsim_cli.figures.frame import Style
from repsim_cli.findings.analyse import draw, read_drawing
from repsim_cli.runs import folders, reader, results
from repsim_cli.runs.content import Matrix, Measured, Results, Side


def created(folder, name="study"):
    return results.create(folder, name=name, study="similarity", seed=0, command=["repsim", "run"], overrides=[])


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    one, two = created(tmp_path / "07-30-41-study"), created(tmp_path / "07-30-41-study")
    assert (one.folder.name, two.folder.name) == ("07-30-41-study", "07-30-41-study-2")


def test_no_failure_becomes_a_number():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            results.dumps({"value": value})


def test_input_is_noted_item_by_item_and_a_resumed_run_compares_like_with_like(tmp_path):
    """Any part of it may come first: what the cache has is not asked for again."""
    run = created(tmp_path / "run")
    for label in "ab":
        run.input("models", {label: {"hash": label, "sizes": (1, 2)}})
    run.input("data", {"hash": "d"})
    run.manifest["data"]["tokens_read"] = 3  # beside what was noted
    run.finish("interrupted")
    again = results.reopen(run.folder)
    again.input("models", {"c": {"hash": "c"}})
    again.input("models", {"a": {"hash": "a", "sizes": (1, 2)}})
    assert list(again.manifest["models"]) == ["a", "b", "c"]
    again.input("data", {"hash": "d"})
    assert again.manifest["data"] == {"hash": "d", "tokens_read": 3}
    with pytest.raises(BadInput, match="run began with other input, got models.a.hash: a then, x now; start a new run"):
        again.input("models", {"c": {"hash": "c"}, "a": {"hash": "x", "sizes": (1, 2)}})


def test_arrays_are_float64_and_never_pickled(tmp_path):
    run = created(tmp_path / "run")
    path = run.write_array("x", np.eye(3, dtype="float32"))
    array = reader.read_array(run.folder, path)
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, np.eye(3))
    np.save(run.folder / "arrays" / "y.npy", np.array([{}], dtype=object))
    with pytest.raises(BadInput, match="cannot be read, got 'Python objects'"):
        reader.read_array(run.folder, "arrays/y.npy")
    with pytest.raises(BadInput, match="an array outside the run, got '../../x.npy'"):
        reader.read_array(run.folder, "../../x.npy")


def test_the_manifest_tells_how_it_ended_and_hashes_every_file(tmp_path):
    run = created(tmp_path / "run")
    run.warn("few rows")
    run.warn("few rows")
    with run.stage("data"):
        run.write_text("config.yaml", "a: 1\n")
    run.finish("failed", "out of luck")
    manifest = reader.read_manifest(run.folder)
    assert (manifest["status"], manifest["error"], manifest["warnings"]) == ("failed", "out of luck", ["few rows"])
    assert list(manifest["files"]) == ["config.yaml"]
    assert manifest["timings"]["data"] >= 0
    assert manifest["peak_memory_mb"] > 10


def test_writes_are_whole_or_absent(tmp_path, monkeypatch):
    file = tmp_path / "results.json"
    results.write(file, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device: '.*results.json'"):
        results.write(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_finding_runs(tmp_path, caplog):
    for number, name in enumerate(("alpha", "beta", "alpha")):
        run = created(tmp_path / "2026-01-01" / f"0{number}-{name}", name)
        run.manifest["started"] = f"2026-01-01T00:00:0{number}+00:00"
        run.save_manifest()
    assert folders.find("latest", tmp_path).name == "02-alpha"
    assert "latest" not in caplog.text
    run.manifest["started"] = "2999-01-01T00:00:00+00:00"
    run.save_manifest()
    assert folders.find("latest", tmp_path).name == "02-alpha"
    assert (
        "02-alpha began at 2999-01-01T00:00:00+00:00, after now by this clock; name the run that you mean"
        in caplog.text
    )
    assert folders.find("alpha", tmp_path).name == "02-alpha"
    assert folders.find("00-alpha", tmp_path).name == "00-alpha"
    assert folders.find("2026-01-01/01-beta", tmp_path).name == "01-beta"
    assert folders.find(str(tmp_path / "2026-01-01" / "01-beta"), tmp_path).name == "01-beta"
    (other := tmp_path / "other").mkdir()
    for root in (tmp_path, other):
        with pytest.raises(BadInput, match=f"RUN: no run folder, as it has no manifest.json, got '{other}'; see"):
            folders.find(str(other), root)
    with pytest.raises(BadInput, match="RUN: no such run in .*, got 'bet'; did you mean 'beta'"):
        folders.find("bet", tmp_path)
    with pytest.raises(BadInput, match="RUN: no runs in .*, got 'latest'; start one with repsim run"):
        folders.find("latest", tmp_path / "empty")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "manifest.json: cannot be read, got .*; the run is damaged"),
        ("[]", "manifest.json: not a file of repsim, got no schema; the run is damaged"),
        ('{"schema": 99}', "manifest.json: not a file of this version, got schema 99 .*; update repsim"),
        (
            '{"schema": 1}',
            "manifest.json: not a file of this version, got schema 1 .*; run it again: repsim run --from RUN",
        ),
    ],
)
def test_damaged_and_foreign_manifests(tmp_path, content, message):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        reader.read_manifest(tmp_path)


def test_an_unfinished_run_has_no_results(tmp_path):
    run = created(tmp_path / "run")
    with pytest.raises(BadInput, match=r"it has no results \(status running\); run it again, with resume=latest"):
        reader.read_results(run.folder)


@pytest.mark.parametrize("name", ["../x", "a b", "<script>", "模型", "", ".hidden", "a/b", "$x$", "x" * 300])
def test_slugs_are_harmless(name):
    found = results.slug(name)
    assert found
    assert found.isascii()
    assert not set(found) & set("/\\<>$ \n")
    assert not found.startswith(".")
    assert len(found) <= 60


def a_run(folder, sizes, labels, layer="resid_post@{}"):
    """A finished run with made-up matrices."""
    run = created(folder)
    rng = np.random.default_rng(0)
    matrices = []
    for i, row in enumerate(labels):
        for j, column in enumerate(labels[i:], i):
            values = rng.uniform(size=(sizes[i], sizes[j]))
            matrices.append(
                Matrix(
                    rows=Side(model=row, layers=[layer.format(k) for k in range(sizes[i])]),
                    columns=Side(model=column, layers=[layer.format(k) for k in range(sizes[j])]),
                    values=run.write_array(f"{i}-{j}", values),
                    se=run.write_array(f"{i}-{j}-se", 0.01 * values),
                    n=100,
                )
            )
    given = {"kind": "live", "family": "gpt_neox", "layers": [], "widths": []}
    facts = dict.fromkeys(labels, given)
    run.manifest.update(rows=100, models={label: {} for label in labels}, facts=facts)
    measured = Measured(
        name="cka_unbiased",
        label="cka_unbiased",
        settings={},
        estimate={"kind": "per_batch", "rows": 100, "rows_available": 120, "batches": 2},
        card={"label": "CKA", "larger_is_closer": True, "bounds": [None, 1.0], "symmetric": True},
        matrices=matrices,
    )
    run.write_results(Results(study="similarity", measures=[measured], analyses={"maps": {}}))
    run.finish("complete")
    return run.folder


@pytest.mark.slow
def test_figures_are_drawn_again_byte_for_byte(tmp_path):
    folder = a_run(tmp_path / "run", [3, 5], ["small", "large"])
    overview = {file.name: file.read_bytes() for file in draw(folder)}
    pairs = ("00-00-small-small", "00-01-small-large", "01-01-large-large")
    assert sorted(overview) == sorted(
        f"cka_unbiased-{part}.{kind}" for part in ("all", *pairs) for kind in ("png", "svg")
    )
    again = {file.name: file.read_bytes() for file in draw(folder, whole=True)}
    assert again.items() >= overview.items()
    assert again.keys() - overview == {"cka_unbiased-all-se.png", "cka_unbiased-all-se.svg"}


@pytest.mark.slow
def test_figures_are_drawn_as_the_configuration_asks(tmp_path):
    folder = a_run(tmp_path / "run", [3, 5], ["small", "large"])
    style = "{which: all, width: column, format: [png, pdf], titles: false, colours: magma_r}"
    (folder / "config.yaml").write_text(f"analyses: {{}}\nfigures: {style}\n")
    assert read_drawing(folder).which == "all"
    files = draw(folder)
    assert {file.suffix for file in files} == {".png", ".pdf"}
    for file in files:
        if file.suffix == ".png":
            assert matplotlib.image.imread(file).shape[1] == pytest.approx(3.25 * 150, abs=2)
    (folder / "config.yaml").write_text("analyses: {}\nfigures: all\n")
    assert read_drawing(folder).which == "all"
    assert read_drawing(tmp_path).which == "overview"


@pytest.mark.slow
def test_figures_of_many_layers_and_odd_names(tmp_path):
    """150 layers; names that are markup, mathematics, paths or in other scripts are drawn as they are."""
    folder = a_run(tmp_path / "run", [60, 45, 30, 15], ["$x^2$", "<b>bold</b>", "../../etc", "模型"], "module:a.b.{}")
    files = draw(folder, style=Style(format=("png",)))
    assert len(files) == 1  # of many pairs of models the overview alone
    few = a_run(tmp_path / "few", [3, 2], ["<b>$x^2$</b>", "../../模型"], "module:a.b.{}")
    files += draw(few, whole=True, style=Style(format=("png",)))
    assert all(file.parent in (folder / "figures", few / "figures") for file in files)
    assert len(files) == 1 + (2 + 3)


def test_the_colour_range_comes_from_the_card():
    values = np.array([[-0.02, 0.4], [0.5, 1.0]])
    assert choose_colour_range(values, {"bounds": [None, 1.0]}, "values") == (-0.02, 1.0)
    assert choose_colour_range(values, {"bounds": [0.0, 2.0]}, "values") == (0.0, 2.0)
    assert choose_colour_range(np.array([0.5, 0.9]), {"bounds": [0.3, 1.0]}, "values") == (0.3, 1.0)
    assert choose_colour_range(values, {"bounds": [0.0, None]}, "se") == (0.0, 1.0)


def test_results_are_json_that_any_reader_takes(tmp_path):
    folder = a_run(tmp_path / "run", [3], ["one"])
    assert json.loads((folder / "results.json").read_text())["schema"] == 2


def test_numbers_that_changed_after_the_run_are_refused(tmp_path):
    folder = a_run(tmp_path / "run", [3], ["one"])
    assert reader.read_results(folder)
    np.save(folder / "arrays" / "0-0.npy", np.ones((3, 3)))
    with pytest.raises(BadInput, match="0-0.npy: not as the run left it, got another or no file; run it again"):
        reader.read_results(folder)


def test_a_refused_run_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path / "outputs"))
    kept = created(tmp_path / "outputs" / "2026-01-01" / "a")
    created(tmp_path / "outputs" / "2026-01-02" / "b").discard()
    assert [p.name for p in (tmp_path / "outputs").iterdir()] == ["2026-01-01"]
    assert kept.folder.is_dir()
