"""Measures, models, data and studies of other packages and programs: `tests/plugin` is a package that has one of each."""

import json
import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.forks import run_in_fork, run_repsim_anew

import repsim_cli
from repsim_cli import measures

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
        ("mine", {"lable": "x"}, r"register_measure.lable: unknown key, got 'x'; did you mean 'label' or 'labelled'\?"),
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


def register(name, value, **claims):
    return repsim_cli.register_measure(name, larger_is_closer=True, **claims)(lambda x, y: value)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        (
            {"bounds": (1, 0)},
            r"bounds: the lowest value is not below the highest, got \(1.0, 0.0\); write \(LOW, HIGH\)",
        ),
        ({"bounds": 5}, r"bounds: not several values, got 5; write \(0, None\)"),
        ({"bounds": (0,)}, "bounds.1: missing; set it"),
        ({"bounds": (0, float("inf"))}, "bounds.1: wrong value, got inf; give a finite number"),
        (
            {"invariant_to": {"rotat"}},
            "invariant_to.0: wrong value, got 'rotat'; give 'permutation_of_neurons', 'ortho",
        ),
        ({"invariant_to": "orthogonal"}, "invariant_to: not several values, got 'orthogonal'; write {'orthogonal'}"),
        ({"minimum_rows": -1}, "minimum_rows: wrong value, got -1; give greater than or equal to 1"),
        ({"symmetric": "yes"}, "symmetric: wrong value, got 'yes'; give boolean"),
        ({"larger_is_closer": "yes"}, "larger_is_closer: wrong value, got 'yes'; give boolean"),
    ],
)
def test_claims_are_checked(claims, said):
    with pytest.raises(repsim_cli.BadInput, match=f"^register_measure.{said}"):
        repsim_cli.register_measure("claiming", **{"larger_is_closer": True, **claims})


def test_what_is_no_function_of_two_sides():
    for function in (5, max, lambda x: 1.0, lambda x, y, z: 1.0):
        with pytest.raises(repsim_cli.BadInput, match="^register_measure: not a function of x and y, got "):
            repsim_cli.register_measure("sided", larger_is_closer=True)(function)
    repsim_cli.register_measure("alone", larger_is_closer=True)(lambda *, k=1: 1.0)
    with pytest.raises(
        repsim_cli.BadInput, match="^alone: a function of settings alone returns a Pairwise .*, got float"
    ):
        measures.get("alone")


@pytest.mark.parametrize("add", [repsim_cli.register_model, repsim_cli.register_data, repsim_cli.register_study])
def test_names_and_functions_of_other_kinds(add):
    with pytest.raises(
        repsim_cli.BadInput, match=rf"^{add.__name__}: not a name, got 5; write @repsim_cli.{add.__name__}"
    ):
        add(5)
    with pytest.raises(repsim_cli.BadInput, match=f"^{add.__name__}: not a function, got 5; decorate one"):
        add("five")(5)


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_numbers_of_any_kind(value):
    register("numbered", value)
    assert measures.get("numbered")(X, Y) == float(value)


@pytest.mark.parametrize("value", ["0.5", None, True, 1j, np.array([0.5]), torch.ones(3)])
def test_what_is_no_number(value):
    found = register("unnumbered", value)
    said = r"^unnumbered: the measure gives no number, got \w+( \(.,\))?; return a float"
    with pytest.raises(repsim_cli.RunFailed, match=said):
        measures.get("unnumbered")(X, Y)
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=[found])


def test_a_value_beyond_its_bounds():
    found = register("beyond", 5.0, bounds=(0, 1))
    said = r"^beyond: a value beyond its bounds \(0.0, 1.0\), got 5; mend the measure, or the bounds that it claims"
    with pytest.raises(repsim_cli.RunFailed, match=said):
        measures.get("beyond")(X, Y)
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=["cka", found])
    register("below", -3, bounds=(0, None))
    with pytest.raises(repsim_cli.RunFailed, match=r"^below: a value beyond its bounds \(0.0, None\), got -3; "):
        measures.get("below")(X, Y)
    register("rounded", 1 + 1e-7, bounds=(0, 1))
    assert measures.get("rounded")(X, Y) == 1.0


def test_a_measure_of_prepared_sides_keeps_to_its_bounds():
    @repsim_cli.register_measure("of_sides", larger_is_closer=True, bounds=(0, 1))
    def of_sides(*, value: float = 7.0):
        return measures.Pairwise(
            prepare=lambda x: x,
            compare=lambda a, b: value,
            compare_all=lambda a, b: torch.full((len(a), len(b)), value, dtype=torch.float64),
        )

    said = r"^of_sides: a value beyond its bounds \(0.0, 1.0\), got 7; "
    with pytest.raises(repsim_cli.RunFailed, match=said):
        measures.get("of_sides")(X, Y)
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=[of_sides])


def test_a_function_that_fails_is_named():
    @repsim_cli.register_measure("failing", larger_is_closer=True)
    def failing(x, y):
        return 1 / 0

    said = "^failing: the measure fails, got ZeroDivisionError: division by zero; mend it"
    with pytest.raises(repsim_cli.RunFailed, match=said) as failed:
        repsim_cli.compare({"a": X, "b": Y}, measures=[failing])
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_none(value):
    found = register("nothing", value)
    with pytest.raises(
        repsim_cli.Degenerate, match=f"^nothing: its value is not finite, got {value}; mend the measure"
    ):
        measures.get("nothing")(X, Y)
    said = r"no two layers have a value .*, got nothing \(rows of 'a' and rows of 'a': nothing: its value is not finite"
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=[found])
    kept = repsim_cli.compare({"a": X, "b": Y}, measures=["cka", found])
    assert [each.label for each in kept.results.measures] == ["cka"]
