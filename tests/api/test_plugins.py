"""Measures, models, data and studies of other packages and programs: `tests/plugin` is a package that has one of each."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import repsim_cli

TEMPLATE = Path(__file__).parents[1] / "plugin"
ROOT = Path(__file__).parents[2]


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
    """command(*words) -> the process of a command line that finds the packages in tmp_path / `site`."""
    site = tmp_path / "site"
    site.mkdir()

    def run(*words, code=0):
        path = os.pathsep.join([str(site), str(TEMPLATE / "src"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "REPSIM_OUTPUTS": str(tmp_path / "outputs")}
        done = subprocess.run(
            [sys.executable, "-m", "repsim_cli", *words], env=environment, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == code, done.stderr
        return done

    run.site = site
    return run


def test_a_package_adds_one_of_each(command, tmp_path):
    points = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]["entry-points"]
    install(command.site, "repsim-template", points)
    listed = [line for line in command("list", "measure").stdout.splitlines() if line.startswith("overlap_of_signs ")]
    assert listed[0].split(maxsplit=1)[1].startswith("From the package repsim-template 1.0")
    assert "parameters" in command("list", "study").stdout
    told = command("describe", "overlap_of_signs").stdout
    assert "Share of rows whose sums are on the same side." in told
    assert "above" in told
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
    assert said.count("bad-names 1.0: its measure 'said' cannot be loaded, got LookupError: it registers other") == 1
    refused = command("measure", "luck", str(command.site / "x.npy"), str(command.site / "x.npy"), code=2).stderr
    assert "cannot be loaded, got ZeroDivisionError: division by zero; mend or uninstall it" in refused


GOOD = """
from repsim_cli import register_measure

@register_measure({!r}, larger_is_closer=False, bounds=(0, None))
def sums(x, y):
    return float((x.sum() - y.sum()).abs())
"""


def test_a_function_of_a_program_is_a_measure():
    @repsim_cli.register_measure("gap_of_means", larger_is_closer=False, bounds=(0, None), label="Gap")
    def gap(x, y, *, power: float = 1.0):
        return float((x.mean() - y.mean()).abs() ** power)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), 1 + rng.normal(size=(60, 3))
    found = repsim_cli.compare({"a": x, "b": y}, measures=["cka", gap])
    values = found.matrix("a", "b", "gap_of_means").values
    assert float(values[0, 0]) == pytest.approx(abs(x.mean() - y.mean()), rel=1e-5)
    assert found.results.measures[1].card["label"] == "Gap"


@pytest.mark.parametrize(
    ("name", "claims", "said"),
    [
        ("cka", {}, "measure: a name of repsim's own, got 'cka'; give another"),
        ("Two words", {}, "register_measure: letters a to z, digits and _ make a name, got 'Two words'; give another"),
        ("mine", {"lable": "x"}, "register_measure: not a claim of a measure .*, got lable"),
    ],
)
def test_what_cannot_be_registered(name, claims, said):
    with pytest.raises(repsim_cli.BadInput, match=said):
        repsim_cli.register_measure(name, larger_is_closer=True, **claims)(lambda x, y: 1.0)


def test_a_setting_without_a_default_cannot_be_registered():
    def scaled(x, y, *, by):
        return by

    with pytest.raises(repsim_cli.BadInput, match="a setting has a default, got by without; write by=VALUE"):
        repsim_cli.register_measure("scaled", larger_is_closer=True)(scaled)


def test_a_value_that_is_no_number_ends_the_run():
    @repsim_cli.register_measure("nothing", larger_is_closer=True)
    def nothing(x, y):
        return float("nan")

    with pytest.raises(repsim_cli.RunFailed, match="nothing"):
        repsim_cli.compare({"a": np.eye(30), "b": np.eye(30)}, measures=[nothing])
