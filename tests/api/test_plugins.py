"""Measures, models, data and studies of other packages and programs: `tests/plugin` is a package that has one of each."""

import importlib
import inspect
import json
import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers.forks import run_in_fork, run_repsim_anew

import repsim_cli
from repsim_cli import measures
from repsim_cli.api.plugins import INVARIANCES
from repsim_cli.base import registry
from repsim_cli.config import presets

TEMPLATE = Path(__file__).parents[1] / "plugin"
draw = np.random.default_rng(0)
X, Y = draw.normal(size=(60, 5)), draw.normal(size=(60, 4))


def install(folder, name, points, source=None):
    """Writes what pip writes of a package that was installed in a folder."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [[f"[{group}]", *(f"{key} = {value}" for key, value in of.items())] for group, of in points.items()]
    (about / "entry_points.txt").write_text("\n".join(line for group in groups for line in group))
    for module, text in (source or {}).items():
        (folder / f"{module}.py").write_text(text)


@pytest.fixture
def command(tmp_path):
    """command(*words) -> what a command prints whose process imports repsim, and finds the packages in tmp_path / `site`."""
    site = tmp_path / "site"
    site.mkdir()

    def start(words):
        sys.path[:0] = [str(site), str(TEMPLATE / "src")]
        run_repsim_anew(words)

    def run(*words, code=0):
        environment = {**os.environ, "REPSIM_OUTPUTS": str(tmp_path / "outputs")}
        done = run_in_fork(lambda: start(words), environment, tmp_path)
        assert done.returncode == code, done.stderr
        return done

    run.site = site
    return run


@pytest.mark.slow
def test_a_package_adds_one_of_each(command, tmp_path):
    points = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]["entry-points"]
    install(command.site, "repsim-template", points)
    listed = [line for line in command("list", "measure").stdout.splitlines() if line.startswith("overlap_of_signs ")]
    assert listed[0].split(maxsplit=1)[1].startswith("From the package repsim-template 1.0")
    assert "parameters" in command("list", "study").stdout
    told = command("describe", "overlap_of_signs").stdout
    assert "Share of rows whose sums are on the same side." in told
    assert "above" in told
    for name, example in (
        ("parameters", "repsim run study=parameters"),
        ("wide_neox", "repsim run model=[] '+model.mine={kind: wide_neox}'"),
        ("size_ratio", "repsim analyse latest +analyses.size_ratio={}"),
    ):
        told = command("describe", name).stdout
        assert "\n  From the package repsim-template 1.0\n" in told
        assert told.endswith(f"\n  example: {example}\n")
    run = (
        "model=[]",
        "+model.a={kind: wide_neox}",
        "+model.b={kind: wide_neox, width: 24}",
        "figures.format=[]",
    )
    command("run", "name=one", *run, "+measure.half={kind: overlap_of_signs, above: 0.5}", "measure=[cka,overlap_of_signs]",
            "data=counting", "data.count=90", "extract.length=16", "extract.estimate=full")  # fmt: skip
    (folder,) = (tmp_path / "outputs").glob("*/*-one")
    results = json.loads((folder / "results.json").read_text())
    assert [m["label"] for m in results["measures"]] == ["cka", "overlap_of_signs", "half"]
    assert all(m["matrices"] for m in results["measures"])
    command("run", "name=two", "study=parameters", *run)
    (folder,) = (tmp_path / "outputs").glob("*/*-two")
    ((_, a), (_, b)) = json.loads((folder / "results.json").read_text())["tables"]["parameters"]["rows"]
    assert 0 < a < b
    identities = json.loads((folder / "manifest.json").read_text())["models"]
    assert identities["a"]["weights_hash"] != identities["b"]["weights_hash"]
    assert json.loads(command("show", "latest", "--json").stdout)["models"] == ["a", "b"]
    assert "size_ratio " in command("list", "analysis").stdout
    command("analyse", "latest", "claims=[sizes_differ]")
    results = json.loads((folder / "results.json").read_text())
    assert results["tables"]["ratio of sizes"]["rows"] == [[round(b / a, 2)]]
    ((name, verdict),) = [(claim["name"], claim["verdict"]) for claim in results["claims"]]
    assert (name, verdict) == ("sizes_differ", "holds" if b >= 2 * a else "fails")


def test_one_that_is_broken_is_one_warning_and_none_is_replaced(command):
    install(command.site, "good-sums", {"repsim.measures": {"sums": "good_sums"}}, {"good_sums": GOOD.format("sums")})
    install(
        command.site, "bad-luck", {"repsim.measures": {"luck": "bad_luck", "cka": "bad_luck"}}, {"bad_luck": "1 / 0"}
    )
    install(command.site, "bad-names", {"repsim.measures": {"said": "bad_names"}}, {"bad_names": GOOD.format("other")})
    listed = command("list", "measure")
    assert listed.stderr == ""  # nothing is imported for it
    assert {"sums", "luck", "said"} <= {line.split()[0] for line in listed.stdout.splitlines() if line.split()}
    np.save(command.site / "x.npy", np.random.default_rng(0).normal(size=(20, 3)))
    said = command("measure", "all", str(command.site / "x.npy"), str(command.site / "x.npy")).stderr
    assert said.count("bad-luck 1.0: its measure 'luck' cannot be loaded, got ZeroDivisionError") == 1
    assert said.count("bad-luck 1.0: its measure 'cka' is left out, repsim has one") == 1
    assert (
        said.count(
            "bad-names 1.0: its measure 'said' cannot be loaded: it registers the measure 'other' without an entry point"
        )
        == 1
    )
    refused = command("measure", "luck", str(command.site / "x.npy"), str(command.site / "x.npy"), code=2).stderr
    assert "cannot be loaded, got ZeroDivisionError: division by zero; mend or uninstall it" in refused


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """packages(NAME, POINTS, MODULES) installs a package that this process finds, until the test ends."""
    site, before = tmp_path / "site", {room: {*room.list_foreign()} for room in registry.ROOMS}
    site.mkdir()

    def renew():
        importlib.invalidate_caches()
        presets.read_table_entries.cache_clear()
        for room in registry.ROOMS:
            for known in ("_points", "plugins"):
                vars(room).pop(known, None)
            room._broken.clear()
            room._warned.clear()
            for name in {*room.list_foreign()} - before[room]:
                del room._entries[name]

    def add(name, points, modules):
        install(site, name, points, modules)
        renew()

    with monkeypatch.context() as path:
        path.syspath_prepend(site)
        yield add
    for module in [key for key, each in sys.modules.items() if str(site) in str(getattr(each, "__file__", ""))]:
        del sys.modules[module]
    renew()


@pytest.fixture
def warned(monkeypatch):
    """The warnings of the registries."""
    said = []
    monkeypatch.setattr(registry.log, "warning", lambda text, *given: said.append(text % given))
    return said


OF_EACH = """
from repsim_cli import register_data, register_measure, register_model, register_study
from repsim_cli.engine.study import Study

for name in ("shared", "of_{0}"):
    register_measure(name, larger_is_closer=True)(lambda x, y: {1})
    register_model(name)(lambda: {1})
    register_data(name)(lambda: {1})
    register_study(name)(type("{0}", (Study,), {{}}))
"""


@pytest.mark.parametrize("first", ["shared", "of_alpha", "of_beta"])
def test_of_two_packages_with_one_name_the_first_has_it(packages, warned, first):
    groups = ("measures", "models", "data", "studies")
    for value, package in enumerate(("beta", "alpha")):  # in whatever order they were installed
        names = {name: f"of_{package}" for name in ("shared", f"of_{package}")}
        packages(package, {f"repsim.{group}": names for group in groups}, names_of(package, value))
    rooms = [registry.measures, registry.models, registry.data, registry.studies]
    for room in rooms:
        room.get(first)
        room.get("of_beta")
        assert inspect.unwrap(room.get("shared").function).__module__ == "of_alpha"
    assert sorted(warned) == sorted(
        f"two packages have the {room.noun} 'shared': that of alpha 1.0 is used, that of beta 1.0 is left out"
        for room in rooms
    )


def names_of(package, value):
    return {f"of_{package}": OF_EACH.format(package, value)}


def test_a_function_that_is_left_out_is_not_taken_for_the_other(packages):
    for package in ("alpha", "beta"):
        points = {"repsim.measures": {"sums": f"of_{package}"}}
        packages(package, points, {f"of_{package}": GOOD.format("sums")})
    left_out = importlib.import_module("of_beta").sums
    with pytest.raises(
        repsim_cli.BadInput, match="^measures: the name of another function, got 'sums'; register yours"
    ):
        repsim_cli.compare({"a": X, "b": Y}, measures=[left_out])
    with pytest.raises(
        repsim_cli.BadInput, match="^measure: a name of the package alpha 1.0, got 'sums'; give another"
    ):
        repsim_cli.register_measure("sums", larger_is_closer=True)(lambda x, y: 1.0)


def test_what_an_entry_point_registers_beside_its_names(packages):
    both = GOOD.format("more") + GOOD.format("known").partition("import register_measure")[2]
    points = {"repsim.data": {"own": "extra"}, "repsim.measures": {"known": "extra", "fine": "fine"}}
    packages("extra", points, {"extra": f"import fine\n{both}", "fine": GOOD.format("fine")})
    said = "cannot be loaded: it registers the measure 'more' without an entry point; mend"
    with pytest.raises(repsim_cli.BadInput, match=f"extra 1.0: its data kind 'own' {said}"):
        registry.data.get("own")
    with pytest.raises(repsim_cli.BadInput, match=f"extra 1.0: its measure 'known' {said}"):
        registry.measures.get("known")
    assert measures.get("fine")(X, X) == 0
    assert "more" not in registry.measures.names()


def test_why_a_plug_in_is_broken_is_said_whole(packages, repsim):
    claim = GOOD.format("claiming").replace("bounds=(0, None)", "invariant_to={'rotation', 'scaling', 'orthogonal'}")
    packages("mine", {"repsim.measures": {"claiming": "claiming", "luck": "bad_luck"}},
             {"claiming": claim, "bad_luck": "raise ValueError('x' * 900)"})  # fmt: skip
    code, _, err = repsim("describe", "claiming")
    known = ", ".join(map(repr, INVARIANCES))
    why = f"register_measure.invariant_to: unknown, got 'rotation'; give {known}"
    assert code == 2
    assert err == f"error: mine 1.0: its measure 'claiming' cannot be loaded: {why}; mend or uninstall it\n"
    assert "bad_luck" not in sys.modules
    code, _, err = repsim("describe", "luck.key")
    assert err.endswith("xxx; mend or uninstall it\n")
    assert len(err) < 300
    assert repsim("describe", "cka")[2] == ""


STUDY = """
import sys

import numpy as np

from repsim_cli import register_data, register_model, register_study
from repsim_cli.data.packing import Text
from repsim_cli.engine.study import Study
from repsim_cli.runs.content import Results, Table


class Sizes(Study):
    def __init__(self, *, model):
        self.models = model

    def plan(self):
        return {"models": [*self.models]}

    def run(self, run):
        return Results(study="else", tables={"sizes": Table(columns=["model", "size"], rows=[["a", *self.row()]])},
                       warnings=["mind the sizes"])

    def row(self):
        return [1]


def add(name, **methods):
    register_study(name)(type("Made", (Sizes,), methods))


def fail(*given, **settings):
    raise ValueError("no good")


def fail_late():
    yield "one two three"
    fail()


register_study("sizes")(Sizes)
add("failing_init", __init__=lambda self, *, model: fail())
add("failing_plan", plan=fail)
add("no_plan", plan=lambda self: None)
add("failing_run", run=fail)
add("no_run", run=lambda self, run: None)
add("nan_row", row=lambda self: [float("nan")])
add("array_row", row=lambda self: [np.ones(2)])
add("short_row", row=lambda self: [])
add("no_table", run=lambda self, run: Results(tables={"sizes": [[1]]}))
add("ending_run", run=lambda self, run: sys.exit(3))
register_study("no_constructor")(type("Made", (Study,), {}))
register_model("failing_model")(lambda: fail())
register_model("no_source")(lambda: {})
register_data("failing_data")(lambda: fail())
register_data("no_text")(lambda: "text")
register_data("late_data")(lambda: Text(fail_late, "late"))
register_data("numbers")(lambda: Text(lambda: iter([1, 2]), "numbers"))
"""
OF_STUDY = {
    "repsim.studies": ["sizes", "failing_init", "failing_plan", "no_plan", "failing_run", "no_run", "nan_row",
                       "array_row", "short_row", "no_table", "ending_run", "no_constructor"],
    "repsim.models": ["failing_model", "no_source"],
    "repsim.data": ["failing_data", "no_text", "late_data", "numbers"],
}  # fmt: skip
BAD = "fails, got ValueError: no good; mend it"


@pytest.mark.slow
def test_what_a_package_raises_is_a_line_that_names_it(packages, repsim, tmp_path):
    packages("mine", {group: dict.fromkeys(names, "mine") for group, names in OF_STUDY.items()}, {"mine": STUDY})
    planned, sizes = ["model=[tiny_a]", "dry_run=true"], "study=sizes"
    some = ["measure=[cka]", "extract.sequences=4", "cache=false"]
    for words, code, said in [
        (["study=failing_init", *planned], 2, f"failing_init: the study of mine 1.0 {BAD}"),
        (["study=failing_plan", *planned], 2, f"failing_plan: the study of mine 1.0 {BAD}"),
        (["study=no_plan", *planned], 2, "no_plan: the study of mine 1.0 fails, got TypeError: 'NoneType' object is not"),
        (["study=no_constructor", *planned], 2, "got NotImplementedError: Made has no plan(); mend it"),
        ([sizes, "model=[]", "+model.a={kind: failing_model}"], 2, f"model.a: failing_model: the model kind of mine 1.0 {BAD}"),
        ([sizes, "model=[]", "+model.a={kind: no_source}"], 2, "no_source: the model kind of mine 1.0 must give Source, got dict; return one"),
        (["data=failing_data", *planned], 2, f"data: failing_data: the data kind of mine 1.0 {BAD}"),
        (["data=no_text", *planned], 2, "data: no_text: the data kind of mine 1.0 must give Text, got str; return one"),
        (["data=late_data", "model=[tiny_a]", *some], 1, f"the package mine 1.0 {BAD}"),
        (["data=numbers", "model=[tiny_a]", *some], 2, "numbers: the data kind of mine 1.0: a document is text, got int as document 0"),
        (["study=no_table", "model=[tiny_a]"], 1, "fails, got Unreadable: tables.sizes: a dictionary or an instance of Table"),
        (["study=ending_run", "model=[tiny_a]"], 1, "fails, got SystemExit: 3; mend it"),
        (["study=failing_run", "model=[tiny_a]"], 1, f"failing_run: the study of mine 1.0 {BAD}"),
        (["study=no_run", "model=[tiny_a]"], 1, "got TypeError: run() gives, in place of Results, NoneType; mend it"),
        (["study=nan_row", "model=[tiny_a]"], 1, "nan_row: the study of mine 1.0 fails, got ValueError: Out of range float"),
        (["study=array_row", "model=[tiny_a]"], 1, "fails, got TypeError: Object of type ndarray is not JSON"),
        (["study=short_row", "model=[tiny_a]"], 1, "fails, got ValueError: a row that has not 2 cells; mend it"),
    ]:  # fmt: skip
        ended, _, err = repsim("run", *words)
        assert ended == code, err
        (line,) = [line for line in err.splitlines() if "error" in line.lower()]
        assert line.startswith("error: ")
        assert said in line
    code, _, err = repsim("run", "-q", "study=sizes", "model=[tiny_a]", "name=sizes")
    assert code == 0, err
    (folder,) = (tmp_path / "outputs").glob("*/*-sizes")
    results, manifest = (json.loads((folder / f"{name}.json").read_text()) for name in ("results", "manifest"))
    assert results["study"] == "sizes"
    assert results["warnings"] == manifest["warnings"] == ["mind the sizes"]


GOOD = """
from repsim_cli import register_measure

@register_measure({!r}, larger_is_closer=False, bounds=(0, None))
def sums(x, y):
    return float((x.sum() - y.sum()).abs())
"""
