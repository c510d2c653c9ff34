"""As many rows as a standard error asks for: samples that grow, and errors that are the asked ones."""

import numpy as np
import pytest

import repsim_cli
from repsim_cli.api import until
from repsim_cli.base.errors import BadInput

MODELS = ["tiny_a", "tiny_b"]


def find_largest_error(result, measure="cka_unbiased"):
    frame = result.frame()
    across = frame[(frame.model != frame.other_model) & (frame.measure == measure)]
    return across.se.max()


@pytest.mark.slow
def test_small_errors_take_more_rows_of_more_texts(repsim, newest):
    few = {"extract.layers": [0, -1], "significance.chance": False, "significance.floor": False}
    wide = repsim_cli.compare(MODELS, until=0.03, measures=["cka_unbiased"], settings=few)
    words = [part for key, value in few.items() for part in ("--set", f"{key}={value}")]
    code, _, err = repsim("compare", *MODELS, "--until", "se=0.012", *words)
    assert code == 0, err
    narrow = repsim_cli.load(newest())
    samples = [line for line in err.splitlines() if line.startswith("until: ")]
    assert samples[0] == "until: 2,048 rows of 32 texts first, at most 16,384 rows of 256 texts"
    assert len(samples) == 3
    assert samples[1].startswith("until: 2,048 rows have standard errors of at most 0.0")
    sizes = [result.results.measures[0].matrices[0].n for result in (wide, narrow)]
    assert sizes[0] == 2048 < sizes[1]
    assert find_largest_error(narrow) <= 0.012 < find_largest_error(wide) <= 0.03
    assert np.isnan(find_largest_error(narrow, "mutual_knn"))  # which has a value all the same
    assert not [line for line in narrow.warnings if "until" in line]


def test_an_error_that_the_text_cannot_give_is_a_warning():
    texts = [f"rain falls on {i} roofs and runs down the wall of house number {i * i}" for i in range(40)]
    result = repsim_cli.compare(MODELS, texts, rows="pooled", until=1e-4, measures=["cka_unbiased"])
    (line,) = [line for line in result.warnings if line.startswith("until: ")]
    assert line.startswith("until: the largest standard error of 40 rows is ")
    assert "asked for 0.0001; give more text" in line


def test_one_document_has_no_error(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("rain falls on roofs and runs down the walls of the old house\n" * 400)
    with pytest.raises(
        BadInput,
        match=r"until: errors are those of leaving documents out, got .* rows of one document; give several .*data.sample_by=paragraph",
    ):
        repsim_cli.compare(
            MODELS, str(file), until=0.1, measures=["cka_unbiased"], settings={"extract.layers": [0, -1]}
        )


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"until": 0}, "until: not a number above 0, got '0'"),
        ({"until": "0.01"}, "until: not a number above 0, got '0.01'"),
        ({"until": float("nan")}, "until: not a number above 0, got 'nan'"),
        ({"measures": ["mutual_knn"]}, "until: no measure has a standard error of one sample, got mutual_knn; add"),
        ({"settings": {"extract.rows": 100}}, "extract.rows: chosen by the standard error that is asked for"),
        ({"settings": {"extract.estimate": "per_batch"}}, "extract.estimate: chosen by the standard error"),
    ],
)
def test_what_it_does_not_take(given, what):
    with pytest.raises(BadInput) as error:
        repsim_cli.compare(MODELS, **{"until": 0.1, **given})
    assert what in str(error.value)


def test_stored_rows_are_all_read():
    with pytest.raises(BadInput, match="until: only models that run give more rows, got stored rows"):
        repsim_cli.compare([np.eye(30), np.eye(30)[::-1].copy()], until=0.1, settings={"significance.clusters": "row"})


@pytest.mark.parametrize("text", ["0.01", "se", "se=", "se=x", "p=0.01", "se=0.01,0.02"])
def test_targets_are_spelt(text, repsim):
    code, _, err = repsim("compare", *MODELS, "--until", text)
    assert code == 2
    assert err == f"error: --until: not a standard error, got '{text}'; write --until se=0.01\n"


def test_looks_at_errors_keep_what_chooses_the_rows_of_the_run():
    asked = {}

    def compose(settings, look):
        asked.update(settings=settings, look=look)
        raise BadInput("seen")

    make = until.make_sampler({"significance.clusters": "row", "significance.budget": True, "seed": 3}, compose)
    with pytest.raises(BadInput, match="seen"):
        make({"extract.rows": 8}, ["cka"])
    kept = {"significance.clusters": "row", "significance.budget": True, "seed": 3, "extract.rows": 8}
    assert asked == {"settings": kept, "look": ["cka"]}
    with pytest.raises(BadInput, match="seen"):
        until.make_sampler(["significance.budget=true", "seed=3"], compose)({"significance.budget": False}, ["cka"])
    assert asked["settings"] == ["seed=3", "significance.budget=false"]
