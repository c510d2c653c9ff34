"""Groups of settings in groups of settings: bound by their keys, and their problems named by their path."""

from dataclasses import dataclass

import pytest
from helpers.composing import composed

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.settings import Positive
from repsim_cli.config.run import validate
from repsim_cli.data.base import Data
from repsim_cli.engine.study import Study


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A group of settings with a data entry and a check of its own."""

    text: Data | None = None
    size: Positive = 3

    def __post_init__(self):
        if self.size == 13:
            raise BadInput(f"size: no luck, got {self.size}; take another")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    maybe: Inner | None = None


@pytest.fixture
def toy(monkeypatch):
    """A study with groups of settings in groups of settings."""

    class Toy(Study):
        def __init__(self, *, outer: Outer, other: Inner | None = None):
            self.outer, self.other = outer, other

    monkeypatch.setitem(registry.studies._entries, "toy", registry.RegistryEntry("toy", Toy, None))

    def bound(*options):
        return validate(composed("study=toy", *(f"+options.{option}" for option in options))).study

    return bound


def test_groups_of_settings_are_bound_by_their_keys(toy):
    found = toy()
    assert (found.outer, found.other) == (Outer(inner=Inner()), None)
    found = toy("outer.inner.size=5", "outer.maybe={}", "other={text: {kind: embedded_text, split: train}}")
    assert (found.outer.inner.size, found.outer.maybe) == (5, Inner())
    assert found.other.text.source.startswith("Jargon File")
    assert toy("outer={inner: {text: null}, maybe: null}").outer == Outer(inner=Inner())


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("outer.inner.sise=5", "options.outer.inner.sise: unknown key, got 5; did you mean 'size'?"),
        ("outer.iner={}", "options.outer.iner: unknown key, got {}; did you mean 'inner'?"),
        ("outer.inner.size=x", "options.outer.inner.size: wrong value, got 'x'; give integer"),
        ("outer.inner.size=0", "options.outer.inner.size: wrong value, got 0; give greater than or equal to 1"),
        ("other.size=13", "options.other.size: no luck, got 13; take another"),
        ("outer.inner=3", "options.outer.inner: wrong value, got 3; give keys of {text, size}"),
        ("outer.inner=null", "options.outer.inner: wrong value, got None; give keys of {text, size}"),
        ("other=[1]", "options.other: wrong value, got [1]; give keys of {text, size}"),
        ("other.text={kind: embeded_text}", "options.other.text.kind: unknown data kind, got 'embeded_text'; did you mean 'embedded_text' or 'embedded_sentences'?"),
    ],
)  # fmt: skip
def test_a_problem_in_a_group_of_settings_names_its_path(toy, option, problem):
    with pytest.raises(BadConfig) as caught:
        toy(option)
    assert caught.value.problems == [problem]


def test_all_problems_of_nested_settings_at_once(toy):
    with pytest.raises(BadConfig) as caught:
        toy("outer={inner: {size: x}, maybe: {sise: 3}}", "other.size=13")
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "options.outer.inner.size", "options.outer.maybe.sise", "options.other.size"
    ]  # fmt: skip


def test_a_file_with_the_name_of_a_setting_is_no_key(tmp_path, monkeypatch):
    """`text` is a setting of tables, and `text.csv` a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.csv").write_text("review\ngood\n")
    with pytest.raises(BadConfig, match=r"^data: text.csv, line 2: no column 'text', got 'review'"):
        validate(composed("data=table", "data.path=text.csv"))
