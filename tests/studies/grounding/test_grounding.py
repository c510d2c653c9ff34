"""Grounding: groups of models on data of each test, compared by every measure, graded; bad input."""

import json

import numpy as np
import pytest
import torch
from helpers.recorded import recorded
from matplotlib.text import Text

import repsim_cli
from repsim_cli import measures
from repsim_cli.runs import reader
from repsim_cli.runs.content import Table
from repsim_cli.studies.grounding.finding import _draw_measure_ranks

ENTRY = (
    "{kind: finetuned, config: {model_type: bert, vocab_size: 120, hidden_size: 16, num_hidden_layers: 3,"
    " num_attention_heads: 2, intermediate_size: 16, max_position_embeddings: 40}, train: TRAIN,"
    " evaluate: {kind: overlap_nli, examples: 60}, seeds: [0, 1, 2], recipe: {length: 40, steps: 2, batch_size: 8}}"
)
PAIRS = "{kind: overlap_nli, split: train, examples: 60}"
WORDS = (
    "study=grounding",
    "model=[]",
    "+model.plain=" + ENTRY.replace("TRAIN", PAIRS),
    "+model.random=" + ENTRY.replace("TRAIN", f"{{kind: altered, data: {PAIRS}, random_labels: 1.0}}"),
    "measure=[cka,procrustes]",
    "extract=pooled",
    "extract.hook_points=[resid_post]",
    "extract.length=40",
    "extract.sequences=30",
    "extract.rows=30",
    "hardware.threads=1",
)
PAIRS_OF_TEST = "{kind: overlap_nli, examples: 60}"
SEEDS = (
    f"plain: {{data: {PAIRS_OF_TEST}, tests: {{seeds: {{plain: plain}}, labels: {{plain: plain, random: random}}}}}}"
)
NAMED = f"named: {{data: {{kind: altered, data: {PAIRS_OF_TEST}, shortcut: 0.5}}, tests: {{labels: {{plain: plain, random: random}}}}}}"


@pytest.fixture
def grounded(finished):
    """Six classifiers on two samples."""
    folder = finished(*WORDS, f"+options.samples={{{SEEDS}, {NAMED}}}", "+options.slow=[cka]", "+options.slow_rows=20")
    return folder, recorded(folder)


def matrices(grounded):
    """The values of each matrix, by measure and what it is about."""
    folder, record = grounded
    return {
        (measure["label"], *x["about"].values()): reader.read_array(folder, x["values"])
        for measure in record["measures"]
        for x in measure["matrices"]
    }


def test_a_sample_is_read_once_for_all_its_tests(grounded):
    folder, _ = grounded
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["models"]) == 6
    assert manifest["data of plain"]["source"] != manifest["data of named"]["source"]
    assert manifest["data of plain"]["rows"] == 30
    of = {name: x.shape for name, x in matrices(grounded).items()}
    assert {name: shape for name, shape in of.items() if name[0] == "cka"} == {
        ("cka", "compared", "plain", "seeds", "resid_post"): (9, 9),
        ("cka", "truncated", "plain", "seeds", "resid_post"): (9, 4),
        ("cka", "compared", "plain", "labels", "resid_post"): (6, 6),
        ("cka", "compared", "named", "labels", "resid_post"): (6, 6),
    }
    values = matrices(grounded)
    seeds, groups = (values["cka", "compared", "plain", test, "resid_post"] for test in ("seeds", "labels"))
    # the last layers of the seeds are those of the first group; on other data they are others
    assert np.array_equal(seeds[2::3, 2::3], groups[:3, :3])
    assert not np.allclose(groups, values["cka", "compared", "named", "labels", "resid_post"])


def test_values_are_those_of_the_measure_on_the_stored_rows(grounded):
    folder, record = grounded
    sample = record["about"]["samples"]["plain"]
    rows = [reader.read_array(folder, path) for _, path in sample["layers"]]
    (a, b), values = (
        sample["compared"]["labels, resid_post"][0] + sample["compared"]["labels, resid_post"][3],
        matrices(grounded),
    )
    assert measures.get("procrustes")(rows[a], rows[b]) == pytest.approx(
        values["procrustes", "compared", "plain", "labels", "resid_post"][0, 3], abs=1e-5
    )
    # a slow measure sees fewer rows
    assert measures.get("cka")(rows[a][:20], rows[b][:20]) == pytest.approx(
        values["cka", "compared", "plain", "labels", "resid_post"][0, 3], abs=1e-5
    )
    whole = rows[sample["compared"]["seeds, resid_post"][0][-1]]
    u, s, v = np.linalg.svd(whole - whole.mean(0), full_matrices=False)
    cut = u[:, :4] * s[:4] @ v[:4] + whole.mean(0)
    assert sample["probes"]["seeds, resid_post"]["components"] == [8, 4, 2, 1]
    assert measures.get("procrustes")(whole, cut) == pytest.approx(
        values["procrustes", "truncated", "plain", "seeds", "resid_post"][2, 1], abs=1e-5
    )


def test_grades_are_those_of_the_matrices(grounded):
    _, record = grounded
    rows = record["tables"]["grades"]["rows"]
    tests = {(row[1], row[2], row[3]) for row in rows}
    assert {test[1:] for test in tests if test[0] in ("separation", "conformity")} == {
        ("plain", "labels"), ("named", "labels"),
    }  # fmt: skip
    assert {test[1:] for test in tests if test[0] not in ("separation", "conformity")} == {("plain", "seeds")}
    groups = {tuple(row[:4]): row[4:] for row in record["tables"]["accuracy of groups"]["rows"]}
    assert groups["plain", "labels", "random", 3] == [0.0, 0.0, 0.0]
    assert groups["plain", "labels", "plain", 3] == groups["plain", "seeds", "plain", 3]
    # by hand: pairs of a group against pairs with a model of it
    last = matrices(grounded)["cka", "compared", "plain", "labels", "resid_post"]
    within, across = last[:3, :3][np.triu_indices(3, 1)], last[:3, 3:].ravel()
    other = last[3:, 3:][np.triu_indices(3, 1)]
    conform = np.mean([(x[:, None] > across).mean() for x in (within, other)])
    (score,) = (row[5] for row in rows if row[:4] == ["cka", "conformity", "plain", "labels"])
    assert score == pytest.approx(conform)


def test_grades_of_runs_of_before_which_do_not_say_who_is_ahead_are_drawn():
    columns = ["measure", "low", "mean rank", "high", "seconds per pair"]
    table = Table(columns=columns, rows=[["cka", 1.0, 1.5, 2.0, 0.1], ["rsa", 1.0, 2.5, 3.0, 0.1]])
    rows = [
        {"measure": measure, "test": "separation", "data": "", "models of": "labels", "score": 0.5, "rank": rank}
        for rank, measure in enumerate(("cka", "rsa"), 1)
    ]
    figure = _draw_measure_ranks("resid_post", rows, table, 0.95)
    assert not any("none is told" in text.get_text() for text in figure.findobj(Text))


def test_cost_and_rows(grounded):
    _, record = grounded
    costs = record["tables"]["cost of measures"]["rows"]
    assert [row[2] for row in costs if row[:2] == ["procrustes", "plain"]] == [30]
    assert [row[2] for row in costs if row[:2] == ["cka", "plain"]] == [20]
    assert all(row[4] >= 0 for row in costs)  # of a clock that may stand still
    table = {row[0]: row[-2:] for row in record["tables"]["measures by grade"]["rows"]}
    assert table["procrustes"] == [30, 30]


@pytest.mark.drawn
@pytest.mark.slow
def test_a_second_run_measures_nothing_anew(finished, grounded, monkeypatch, repsim, newest, edited):
    """Units of work come from the cache, with the time that they took."""
    folder, record = grounded
    monkeypatch.setenv("REPSIM_CACHE", str(folder.parents[1] / "cache"))
    monkeypatch.setattr("repsim_cli.studies.grounding.study.make_measurement", lambda *_: pytest.fail("measured again"))
    words = (f"+options.samples={{{SEEDS}, {NAMED}}}", "+options.slow=[cka]", "+options.slow_rows=20")
    code, _, err = repsim("run", *WORDS, *words)
    assert code == 0, err
    assert recorded(newest())["tables"] == record["tables"]
    figures = {file.stem for file in (newest() / "figures").glob("*.png")}
    assert figures == {"grades-resid_post", "grades-cost"}
    edited("repsim_cli.studies.grounding.measure")
    code, _, err = repsim("run", *WORDS, *words)
    assert (code, "measured again" in err) == (1, True)


@pytest.mark.slow
def test_a_measure_without_a_value_says_why(repsim, newest, finished, grounded, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(grounded[0].parents[1] / "cache"))
    words = ("measure=[cka,gaussian_mutual_information,tolerance_difference]", "skip_unsuitable=true")
    code, _, err = repsim("run", *[w for w in WORDS if "measure=" not in w], *words, f"+options.samples={{{SEEDS}}}")
    assert code == 0, err
    rows = recorded(newest())["tables"]["not measured"]["rows"]
    assert {row[0] for row in rows} == {"gaussian_mutual_information"}
    assert "is infinite" in rows[0][-1]
    graded = recorded(newest())["tables"]["grades"]["rows"]
    assert {row[-1] for row in graded if row[0] == "gaussian_mutual_information"} == {rows[0][-1]}


def test_a_measure_of_ones_own_on_the_rows_of_a_run(grounded):
    """The grades of a measure that the run has too are those of the run."""
    folder, record = grounded
    procrustes = measures.get("procrustes")
    mine = repsim_cli.grade(procrustes.prepare, procrustes.compare, card=procrustes.card, run=folder)
    rows = [row for row in record["tables"]["grades"]["rows"] if row[0] == "procrustes"]
    assert [(row["test"], row["models of"], row["data"]) for row in mine.tests] == [(r[1], r[3], r[2]) for r in rows]
    assert [row["score"] for row in mine.tests] == pytest.approx([row[5] for row in rows])
    assert mine.measures == 3
    assert mine.seconds > 0


ONE = SEEDS.replace(", labels: {plain: plain, random: random}", "")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ("{}", "options.samples: none is named; write {NAME: {data: {...}, tests: {...}}}"),
        ("{plain: 3}", "options.samples.plain: wrong value, got 3; give keys of {data, tests}"),
        ("[a]", "options.samples: wrong value, got ['a']"),
        (f"{{{ONE.replace('{plain: plain}', '{plain: plane}')}}}", "no such model, got 'plane'; did you mean 'plain'?"),
        (f"{{{ONE.replace('{plain: plain}', '{}')}}}", "options.samples.plain.tests.seeds: no group is named, got {}"),
        (f"{{{ONE.replace('{seeds: {plain: plain}}', '{}')}}}", "options.samples.plain.tests: none is named, got {}"),
        (f"{{{ONE.replace('overlap_nli', 'overlap')}}}", "options.samples.plain.data.kind: unknown data kind"),
        (f"{{{ONE.replace('examples', 'exampels')}}}", "options.samples.plain.data.exampels: unknown key"),
    ],
)
def test_bad_samples(repsim, samples, message):
    code, _, err = repsim("run", *WORDS, f"+options.samples={samples}")
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+options.slow=[ckaa]"], "options.slow: no such measure, got 'ckaa'; did you mean 'cka'?"),
        (
            ["extract.estimate=per_batch"],
            "extract: grounding compares examples, each a row, at once, got per_batch of means",
        ),
        (
            ["+model.plain.hook_points=[mlp_out]"],
            "models with the same hook points are needed, got resid_post of 'random_0'",
        ),
    ],
)
def test_bad_settings(repsim, words, message):
    code, _, err = repsim("run", *WORDS, f"+options.samples={{{SEEDS}}}", *words)
    assert code == 2
    assert message in err


def test_layers_of_two_widths_lose_as_many_components():
    from repsim_cli.studies.grounding.measure import truncate_layers

    draw = torch.Generator().manual_seed(0)
    narrow, wide = (torch.randn(40, width, generator=draw) for width in (8, 20))
    of_narrow, of_wide = truncate_layers([narrow, wide])
    assert list(of_narrow) == list(of_wide) == [4, 2, 1]
    for left, x in of_wide.items():
        assert torch.linalg.matrix_rank(x - x.mean(0), atol=1e-3) == left
        assert torch.allclose(x.mean(0), wide.mean(0), atol=1e-6)
