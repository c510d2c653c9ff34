"""`--json`: every document is strict JSON, has the keys that `SHAPES` and docs/programs.md say, and no other output."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from repsim_cli.base.documents import find_misfit
from repsim_cli.cli.machine import SCHEMA, SHAPES

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("machine"), np.random.default_rng(0)
    for name in ("a", "b"):
        np.savez(folder / name, **{f"resid_post@{i}": draw.normal(size=(60, 4)) for i in range(3)})
    return folder


@pytest.fixture
def documents(repsim, newest, files):
    """What each command prints."""
    made, words = {}, {"list": ["measure"], "claims": ["falls_with_layer_distance"], "describe": ["cka"]}

    def answered(command, *more):
        code, out, err = repsim(command, *more, "--json")
        assert code == 0, err
        made[command] = json.loads(out, parse_constant=pytest.fail)

    pair = [files / "a.npz", files / "b.npz", "--measure"]
    answered("compare", *pair, "cka_unbiased,linear_regression")
    first = newest()
    answered("compare", *pair, "cka_unbiased")
    answered("show", newest())
    answered("diff", first, newest())
    for command, more in words.items():
        answered(command, *more)
    return made


def keys(shape):
    """All keys of a shape, and of shapes inside."""
    if isinstance(shape, list):
        return keys(shape[0])
    if isinstance(shape, dict):
        return {key for key in shape if isinstance(key, str)} | {key for inner in shape.values() for key in keys(inner)}
    return set()


def same_keys(value, shape, path=""):
    """A document has no key that its shape does not name."""
    if isinstance(shape, list):
        for item in value:
            same_keys(item, shape[0], path)
    elif isinstance(shape, dict) and str in shape:
        for item in value.values():
            same_keys(item, shape[str], path)
    elif isinstance(shape, dict):
        assert set(value) == set(shape), path
        for key, inner in shape.items():
            same_keys(value[key], inner, f"{path}.{key}")


def test_documents_are_as_the_schema_says(documents):
    for command, document in documents.items():
        assert (document.pop("schema"), document.pop("command")) == (SCHEMA, command)
        assert find_misfit(document, SHAPES[command]) is None, command
        same_keys(document, SHAPES[command], command)
    (measured,) = documents["compare"]["measures"]
    assert [(pair["model"], pair["other_model"]) for pair in measured["pairs"]] == [("a", "b"), ("b", "a")]
    assert [each["layer"] for each in measured["pairs"][0]["answering"]] == [f"resid_post@{i}" for i in range(3)]
    assert documents["show"] == documents["compare"]
    assert documents["diff"]["not_compared"]
    (cka,) = (entry for entry in documents["list"]["groups"]["measure"] if entry["name"] == "cka")
    assert cka["text"].startswith("Linear CKA")
    assert any(meaning["title"] == "measure cka" for meaning in documents["describe"]["meanings"])


def test_what_has_no_json_says_so(repsim):
    for words in (["list", "architecture"], ["claims", "--check", "tiny"], ["describe", "model", "tiny_a"]):
        code, out, err = repsim(*words, "--json")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: --json: ")


def test_the_doctor_too(repsim, monkeypatch):
    monkeypatch.setattr("repsim_cli.cli.doctor.examine", lambda: iter([("hub", ["a line\x7f"])]))
    code, out, _ = repsim("doctor", "--json")
    assert code == 0
    assert json.loads(out) == {"schema": SCHEMA, "command": "doctor", "topics": {"hub": ["a line\x7f"]}}


def test_what_programs_are_told_to_read_is_there():
    root = PAGE.parents[1]
    links = re.findall(r"\]\(([^)]+)\)", (root / "llms.txt").read_text())
    assert "docs/programs.md" in links
    assert not [link for link in links if not (root / link).is_file()]


def test_the_page_names_every_key():
    text = PAGE.read_text()
    sections = dict(re.findall(r"^## `repsim (\w+)[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    for command, shape in SHAPES.items():
        section = sections["compare" if command == "show" else command]
        assert not {key for key in keys(shape) if f"`{key}`" not in section}, command
