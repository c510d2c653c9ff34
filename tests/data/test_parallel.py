"""Pairs of texts: columns of a table, lines of two files, examples of two texts; what is left out and what is refused."""

import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.memory import wrap_texts

PAIRS = [("one cat", "eine Katze"), ("two", " "), ("", "drei"), ("four dogs", "vier Hunde")]
LEFT = {"first": [("one cat",), ("four dogs",)], "second": [("eine Katze",), ("vier Hunde",)]}


def load(**settings):
    return registry.data.get("parallel").function(**{k: v if k == "pairs" else str(v) for k, v in settings.items()})


def read(data):
    """The texts of each column, and how many rows are left out of it."""
    found = {name: of.examples() for name, of in data.columns().items()}
    assert {str(dropped) for _, dropped in found.values()} == {"{'an empty text': 2}"}
    return {name: [example.texts for example in examples] for name, (examples, _) in found.items()}


def test_a_row_without_a_text_is_left_out_of_both_columns(tmp_path):
    table, left, right = tmp_path / "pairs.tsv", tmp_path / "a.en", tmp_path / "a.de"
    table.write_text("first\tsecond\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    for place, file in enumerate((left, right)):
        file.write_text("".join(f"{pair[place]}\n" for pair in PAIRS))
    assert read(load(path=table)) == read(load(path=left, other=right)) == LEFT
    named = load(path=left, other=right, first="en", second="de")
    assert list(named.columns()) == ["en", "de"]
    assert named.columns()["de"].source.endswith("a.de, de")


def test_examples_of_two_texts_are_pairs():
    pairs = registry.data.get("overlap_nli").function(split="test", examples=20)
    columns = load(pairs=pairs, first="premise", second="hypothesis").columns()
    whole = [example.texts for example in pairs.examples()[0]]
    for place, of in enumerate(columns.values()):
        assert [example.texts for example in of.examples()[0]] == [(each[place],) for each in whole]


def test_what_is_refused(tmp_path):
    table, lines, fewer = tmp_path / "pairs.csv", tmp_path / "a.txt", tmp_path / "b.txt"
    table.write_text("en,de\na,b\n")
    lines.write_text("a\nb\n")
    fewer.write_text("a\n")
    for settings, problem in (
        ({}, "path: no pairs of texts; give a table"),
        ({"other": lines}, "path: no pairs of texts; give a table"),
        (
            {"pairs": wrap_texts(["a"]), "other": lines},
            "other: it is the second file beside data.path, got .*a.txt alone",
        ),
        ({"path": lines, "other": tmp_path / "c.txt"}, "^other: no such file, got .*c.txt"),
        ({"path": lines, "other": fewer}, "b.txt: fewer lines than the other file, got 1; a line is a pair"),
        ({"path": table, "other": lines}, "pairs.csv: two files have a text per line, got a table"),
        ({"path": lines, "other": lines, "group": "x"}, "group: only a table has columns, got 'x'"),
        ({"path": table, "first": "en", "second": "en"}, "second: two columns are compared, got 'en' twice"),
        ({"path": table, "first": "en", "second": "fr"}, "no column 'fr', got 'en', 'de'"),
        ({"pairs": wrap_texts(["a"])}, "pairs: examples of two texts are needed, got 1 texts in memory"),
    ):
        with pytest.raises(BadInput, match=problem):
            load(**settings)
    single = load(pairs=registry.data.get("table").function(path=str(table), text="en"))
    with pytest.raises(BadInput, match="pairs: examples of two texts are needed, got single texts of"):
        single.columns()["first"].examples()
    with pytest.raises(BadInput, match="two columns of text are read one by one by study=parallel"):
        load(path=table, first="en", second="de").sequences(None, Extract(hook_points=["embed"]), 0)
