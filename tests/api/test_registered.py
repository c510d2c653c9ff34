"""Measures of a program: what can be registered, which claims are checked, and what a function that fails says."""

import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest
import torch

import repsim_cli
from repsim_cli import measures
from repsim_cli.api.plugins import INVARIANCES

draw = np.random.default_rng(0)
X, Y = draw.normal(size=(60, 5)), draw.normal(size=(60, 4))


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


def test_what_a_measure_does_to_its_rows_reaches_no_other():
    def centre(x):
        x -= x.mean()
        return x

    @repsim_cli.register_measure("changing", larger_is_closer=False)
    def changing(x, y):
        return (x.add_(1).sum() - y.mul_(0).sum()).abs()

    @repsim_cli.register_measure("changing_once", larger_is_closer=False)
    def changing_once():
        return measures.Pairwise(prepare=centre, compare=lambda x, y: float(x.norm()))

    repsim_cli.register_measure("sum_of_x", larger_is_closer=True)(lambda x, y: x.sum())
    names, x = ["changing", "changing_once", "sum_of_x", "euclidean"], X.astype(np.float32)
    found = repsim_cli.compare({"a": {"l": x, "m": x}, "b": 1 + x}, measures=names)
    for name in names:
        alone = measures.get(name)(x, x + 1)
        assert found.matrix("a", "b", name).values.ravel().tolist() == pytest.approx([alone, alone], rel=1e-6)
    np.testing.assert_array_equal(x, X.astype(np.float32))


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
            "invariant_to: unknown, got 'rotat'; give 'permutation_of_neurons', 'ortho",
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
    said = r"^unnumbered: the measure does not give a number, got \w+( \(.,\))?; return a float"
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


def test_a_false_claim_of_symmetry():
    register_share = repsim_cli.register_measure("share", larger_is_closer=True, symmetric=True)
    share = register_share(lambda x, y: x.norm() / (x.norm() + 2 * y.norm()))

    @repsim_cli.register_measure("all_at_once", larger_is_closer=True, symmetric=True)
    def all_at_once():
        def compare_all(rows, columns):
            return torch.arange(len(rows) * len(columns), dtype=torch.float64).view(len(rows), len(columns))

        return measures.Pairwise(prepare=lambda x: x, compare=lambda a, b: 1.0, compare_all=compare_all)

    for found, said in ((share, "share: the measure"), (all_at_once, "all_at_once: the measure")):
        with pytest.raises(
            repsim_cli.RunFailed, match=f"^{said} claims symmetric=True, got [0-9.]+ and [0-9.]+; drop the claim$"
        ):
            repsim_cli.compare({"a": X, "b": 2 * Y}, measures=[found])
    repsim_cli.register_measure("share", larger_is_closer=True)(share)
    assert repsim_cli.compare({"a": X, "b": 2 * Y}, measures=["cka", share])


def test_a_measure_of_sides_that_fails_is_named():
    @repsim_cli.register_measure("failing_sides", larger_is_closer=True)
    def failing_sides():
        return measures.Pairwise(prepare=lambda x: x.nothing, compare=lambda a, b: 1.0)

    said = "^failing_sides: the measure fails, got AttributeError: 'Tensor' object has no attribute 'nothing'; mend it"
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=[failing_sides])


def test_a_study_is_a_subclass_of_study():
    for given in (lambda model: None, int):
        with pytest.raises(
            repsim_cli.BadInput, match="^register_study: no subclass of Study, got .*; write class NAME"
        ):
            repsim_cli.register_study("mine")(given)


SINGLE = {"significance.clusters": "row"}


def test_states_that_are_no_rows():
    def measure_distances(x):
        return torch.cdist(x, x)

    def register_of(name, prepare, **claims):
        register = repsim_cli.register_measure(name, larger_is_closer=False, bounds=(0, None), symmetric=True, **claims)
        return register(lambda: measures.Pairwise(prepare=prepare, compare=lambda a, b: float((a - b).abs().mean())))

    rows = register_of("rows", lambda x: x.norm(dim=1))
    one = register_of("one", lambda x: x.norm())
    unpaired = register_of("unpaired", measure_distances, paired=False)
    found = repsim_cli.compare({"a": X, "b": Y}, measures=["cka", rows, one, unpaired])
    chances = {measured.label: measured.chance for measured in found.results.measures}
    assert chances["rows"]["mean"]
    assert "does not say how its states are permuted" in chances["one"]["unknown"]
    said = "^square: the measure prepares states that are not rows of x, got [0-9.]+ and [0-9.]+ for the same rows in anoth"
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=[register_of("square", measure_distances)])
    said = (
        "^one: the measure prepares states that are not tensors of rows, got Tensor to permute; give its Pairwise perm"
    )
    with pytest.raises(repsim_cli.RunFailed, match=said):
        repsim_cli.compare({"a": X, "b": Y}, measures=[one], significance="permutation", settings=SINGLE)


def test_the_page_names_all_claims_and_its_measure_of_sides_works():
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "plugins.md").read_text()
    rows = "".join(line for line in page.splitlines() if line.startswith("| `"))
    assert not [claim.name for claim in fields(measures.Card) if f"`{claim.name}`" not in rows]
    assert not [each for each in INVARIANCES if f"`{each}`" not in rows]
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Pairwise" in block]
    exec(block, {"repsim_cli": repsim_cli})
    found = repsim_cli.compare({"a": X, "b": Y}, measures=["gap_of_norms"])
    (measured,) = found.results.measures
    expected = np.abs(np.linalg.norm(X, axis=1) - np.linalg.norm(Y, axis=1)).mean()
    assert float(found.matrix("a", "b", "gap_of_norms").values[0, 0]) == pytest.approx(expected, rel=1e-4)
    assert measured.chance["mean"]


def test_the_page_of_contributors_names_what_a_card_must_say():
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (sentence,) = re.findall(r"^A card says (.*?); all else", page, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", sentence) == [each.name for each in fields(measures.Card) if each.default is MISSING]


@pytest.mark.parametrize("prepare", [lambda x: x.norm(dim=1), lambda x: x.norm(dim=1).numpy()])
def test_what_compare_does_to_its_states_reaches_no_other(prepare):
    def scale(a, b):
        a *= 0.5
        return float((a * b).mean())

    scaling = repsim_cli.register_measure("scaling", larger_is_closer=True)(
        lambda: measures.Pairwise(prepare=prepare, compare=scale)
    )
    found = repsim_cli.compare({"a": {"l": X, "m": X}, "b": {"l": Y, "m": Y}}, measures=[scaling])
    expected = 0.5 * np.mean(np.linalg.norm(X, axis=1) * np.linalg.norm(Y, axis=1))
    np.testing.assert_allclose(found.matrix("a", "b", "scaling").values, np.full((2, 2), expected), rtol=1e-5)


@pytest.mark.parametrize("value", [(0.5, 1), "0.5", None])
def test_a_measure_of_sides_that_gives_no_number(value):
    measure = repsim_cli.register_measure("no_number", larger_is_closer=True)(
        lambda: measures.Pairwise(prepare=lambda x: x, compare=lambda a, b: value)
    )
    for give in (lambda: measures.get("no_number")(X, Y), lambda: repsim_cli.compare([X, Y], measures=[measure])):
        with pytest.raises(repsim_cli.RunFailed, match="^no_number: the measure does not give a number, got "):
            give()


def test_a_measure_that_draws_anew():
    draws = repsim_cli.register_measure("draws", larger_is_closer=True)(lambda x, y: torch.rand(()))
    with pytest.raises(
        repsim_cli.RunFailed, match="^draws: the measure gives other values for the same rows, got .*; let"
    ):
        repsim_cli.compare({"a": X, "b": Y}, measures=[draws])


def test_a_function_that_has_no_name():
    with pytest.raises(
        repsim_cli.BadInput, match="^measures: a function without a name, got .*; put @repsim_cli.regist"
    ):
        repsim_cli.compare({"a": X, "b": Y}, measures=[lambda x, y: 1.0])


def test_a_measure_that_prints_or_ends(repsim, tmp_path, capsys):
    def say(x, y):
        sys.stdout.write("hello\n")
        return x.sum()

    repsim_cli.register_measure("says", larger_is_closer=True, symmetric=True)(say)
    repsim_cli.register_measure("ends", larger_is_closer=True)(lambda x, y: exit(3))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    files = tmp_path / "x.npy", tmp_path / "y.npy"
    code, out, err = repsim("measure", "says", files[0], files[0])
    assert (code, float(out), err) == (0, pytest.approx(X.sum()), "hello\nhello\n")
    code, out, err = repsim("measure", "says", *files)
    assert (code, out) == (2, "")
    assert "says: the measure claims symmetric=True, got " in err
    assert repsim("measure", "ends", *files) == (2, "", "error: ends: the measure fails, got SystemExit: 3; mend it\n")
