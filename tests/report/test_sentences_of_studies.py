"""Sentences of studies: whom they are about, what has no value, and that commands and `--json` say the same."""

import json
from dataclasses import replace
from itertools import product

import pytest
from helpers.made_runs import made

from repsim_cli.base.registry import pages, studies
from repsim_cli.report.headline import list_sentences
from repsim_cli.report.studies import MOST, find_question, list_findings, pick_main, say_main_findings
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import ANSWERS, IDENTICAL, Axis, Curve, Results, Table


def table(*rows):
    """A table of rows that are given by column."""
    return Table(columns=list(rows[0]), rows=[list(row.values()) for row in rows])


PROBES = {
    "model": "m", "target": "label", "probe": "linear", "nearest": "embed", "others as near": 1, "lowest error": 0.1,
    "control": 0.4, "error of the largest class": 0.5, "layers": 6, "p of any layer": 0.001,
}  # fmt: skip
STITCH = {"head": "a", "tail": "b", "head layer": "embed", "tail layer": "embed", "penalty": 0.5, "penalty se": 0.1}
COURSE = {"model": "m", "matrices": "attn_out", "of": "parameters", "layers": 6, "early": 2, "large rank": 3, "both": 1}
TABLES = {
    "probes": {"nearest to the targets": table(PROBES, {**PROBES, "error of the largest class": None})},
    "stitching": {"stitching": table(STITCH, {**STITCH, "head layer": "end", "tail layer": "end", "penalty": 0.7})},
    "universality": {
        "universality of factors": table(
            {"measure": "cka", "factor": "seed", "least share of seeds": 0.9, "largest share of seeds": 1.0, "verdict": "same"}
        )
    },
    "convergence": {IDENTICAL: table({"model": "n", "steps": "1, 2", "all": "yes"})},
    "similarity": {
        "agreement of measures": table(
            {"measure": "cka", "mean with the others": 0.7, "closest": "rsa", "with the closest": 0.9},
            {"measure": "rsa", "mean with the others": 0.6, "closest": "cka", "with the closest": 0.9},
        ),
        "identification of layers": table(
            {"measure": "cka", "models": "a", "hook point": "resid_post", "identified": 0.5, "low": 0.4, "high": 0.6}
            | {"chance": 0.1, "layers": 6, "seeds": 5, "p": 0.01}
        ),
        "sub-networks": table(
            {"measure": "gw", "model": "m", "found by": "segments", "sub-networks": 2, "silhouette": 0.6, "without groups": 0.2}
        )
    },
    "verify": {},
    "tuned": {"tokens that change most": table({"model": "m", "by": "KL", "token": "'a'", "value": 0.3})},
    "universal_neurons": {
        "universal neurons": table(
            {"model": "m", "universal": 0.1, "neurons": 64, "universal in rotated bases": 0.0, "mean excess correlation": 0.2}
        )
    },
    "features": {
        "shared latents": table(
            {"model": "m", "layer": "l", "shared": 0.5, "latents": 64, "dictionaries": "both", "shared: low": 0.4, "shared: high": 0.6, "chance: shared": 0.1, "p: shared": 0.05,
             "shared by decoder": 0.6, "chance: by decoder": 0.5, "p: by decoder": 0.3}
        ),
        "cross-reconstruction": table(
            {"layer": "l", "encoded": "m", "decoded": "n", "R²": 0.4, "R² of the best affine map": 0.5}
        ),
    },
    "finetune": {
        "classifiers": table({"model": "m"}),
        "over seeds": table({"metric": "accuracy", "lowest": 0.5, "highest": 0.6}),
        "variants": table(
            {"task": "t", "variant": "v", "mean": 0.5, "change": 0.1, "standard error of rows": 0.01}
        ),
    },
    "modular_training": {
        "training": table({"model": "m", "stage": "c1", "validation accuracy": 0.5, "kept after": 9})
    },
    "views": {
        "couplings": table(
            {"model": "m", "rows": "a", "columns": "b", "starts": "random", "from": "pot", "on the diagonal": 0.5}
            | {"by chance": 0.1, "p": 0.2}
        ),
        "neighbours that stay": table(
            {"model": "m", "space": "all", "rows": 16, "nearest": 5, "share that stays": 0.5, "by chance": 0.1, "p": 0.01}
        ),
        "distances": table({"model": "m", "layer": "l", "KL(layer || previous)": 0.5}),
    },
    "training_view": {
        "distance and metrics": table({"model": "m", "measure": "cka", "step": 1, "mean over pairs of layers": 0.5}),
        IDENTICAL: table({"model": "m", "steps": "1, 2", "all": "no"}),
    },
    "effective_rank": {"early convergence and large rank": table({**COURSE, "undefined because": "no checkpoint"})},
    "architecture": {"architecture": table({"model": "m", "stands apart": "heads"})},
    "grounding": {"measures by grade": table({"measure": "cka", "mean rank": 1.5, "low": 1.0, "high": 2.0})},
}  # fmt: skip
CURVE = Curve(
    x=Axis(name="step"),
    y=Axis(name="CKA"),
    at=[0, 10, 100],
    lines={"resid_post@0": [0.2, 0.6, 1.0]},
    about={"quantity": "cka to last", "point": "resid_post", "model": "m"},
)


NEVER = ("layers", "step")  # columns of counts that are always there


def without_a_cell(tables):
    """The tables with every number in turn, and with every column of numbers, without a value."""
    yield tables
    for name, given in tables.items():
        counted = [given.columns.index(column) for column in NEVER if column in given.columns]
        places = [
            (i, j)
            for i, row in enumerate(given.rows)
            for j, cell in enumerate(row)
            if not isinstance(cell, str) and j not in counted
        ]
        for row, column in [*places, *product([None], {j for _, j in places})]:
            rows = [
                [None if j == column and row in (None, i) else cell for j, cell in enumerate(cells)]
                for i, cells in enumerate(given.rows)
            ]
            yield {**tables, name: replace(given, rows=rows)}


def test_every_study_with_sentences_is_tried():
    said = {name for name in pages.names() if pages.get(name).function.__name__ != "<lambda>"}
    assert TABLES.keys() == said


def test_every_study_has_its_page():
    """A question, but where studies compare layers of models, which are named in it."""
    assert {*pages.names()} == {*studies.names(), "verify"} - {"attention"}
    assert [name for name in pages.names() if find_question(name) is None] == ["similarity"]


@pytest.mark.parametrize("study", TABLES)
def test_no_sentence_says_that_a_value_is_none(study):
    whole = Results(study=study, tables=TABLES[study], curves={"course": CURVE})
    assert study == "verify" or list_findings(whole)
    for tables in without_a_cell(TABLES[study]):
        for who, text in list_findings(replace(whole, tables=tables)):
            assert "None" not in who + text
            assert "nan" not in who + text


def test_layers_that_converge_early_may_not_be_known():
    row = {**COURSE, "early": None, "both": None, "undefined because": "no checkpoint in the first 10 %"}
    whole = Results(study="effective_rank", tables={"early convergence and large rank": table(row)})
    assert say_main_findings(whole) == [
        "m, attn_out of parameters: 3 of 6 layers have a large rank, which converge early is not known (no checkpoint in "
        "the first 10 %)"
    ]


def test_what_a_variant_changes_stands_beside_how_far_seeds_differ():
    whole = {"task": "t", "variant": "none", "mean": 0.83, "standard deviation": 0.24, "change": None, "standard error of rows": None}  # fmt: skip
    top = {**whole, "variant": "top 3", "mean": 1.0, "standard deviation": None, "change": 0.17, "standard error of rows": 0.017}  # fmt: skip
    (said,) = say_main_findings(Results(study="finetune", tables={"variants": table(whole, top)}))
    assert said.endswith("t, top 3: 1, +0.17 (se of the rows 0.017; standard deviation of seeds 0.24 of none)")
    lone = {**whole, "standard deviation": None}
    (said,) = say_main_findings(Results(study="finetune", tables={"variants": table(lone, top)}))
    assert said.endswith("(se of the rows 0.017; how far seeds differ is not known)")


def test_sentences_say_what_is_no_more_than_chance_and_what_lies_between():
    """Nearest rows that stay as by chance, layers that are not told apart, a course that turns, a threshold out of
    reach."""
    stay = {
        "model": "m",
        "space": "all",
        "rows": 16,
        "nearest": 5,
        "share that stays": 0.35,
        "by chance": 1 / 3,
        "p": 0.4,
    }
    (said,) = say_main_findings(Results(study="views", tables={"neighbours that stay": table(stay)}))
    assert "in the first layer no more than by chance, 35 % stay in later ones (" in said
    fewest = {**stay, "lowest": 0.05, "lowest in": "b"}
    (said,) = say_main_findings(Results(study="views", tables={"neighbours that stay": table(fewest)}))
    assert "35 % stay in later ones, at the least 5 % in b (all;" in said
    course = [
        {"model": "m", "measure": "gw", "step": step, "mean over pairs of layers": value}
        for step, value in ((0, 0.007), (16, 0.06), (100, 0.005), (1000, 0.006))
    ]
    (said,) = say_main_findings(Results(study="training_view", tables={"distance and metrics": table(*course)}))
    assert said.endswith("0.007 at step 0 and 0.006 at step 1000, lowest 0.005 at step 100, highest 0.06 at step 16")
    (said,) = say_main_findings(Results(study="training_view", tables={"distance and metrics": table(*course[:2])}))
    assert said.endswith("0.007 at step 0 and 0.06 at step 16")
    near = {**PROBES, "not told apart": 3}
    (said,) = say_main_findings(Results(study="probes", tables={"nearest to the targets": table(near)}))
    assert "3 layers not told apart from it" in said
    neurons = {
        "model": "m", "universal": 0.0, "neurons": 64, "universal in rotated bases": 0.0, "mean excess correlation": 0.01,
        "mean in rotated bases": 0.98,
    }  # fmt: skip
    whole = Results(
        study="universal_neurons",
        tables={"universal neurons": table(neurons)},
        analyses={"universal_neurons": {"options": {"threshold": 0.5}}},
    )
    (said,) = say_main_findings(whole)
    assert "cannot be seen: in rotated bases they correlate by 0.98" in said


@pytest.mark.parametrize(
    ("ahead", "told"),
    [(None, "told of 6 models"), (0, "the first is ahead of none of the others"), (3, "is ahead of 3 of the others")],
)
def test_ranks_say_whether_the_first_measure_is_ahead(ahead, told):
    standing = {"measure": "cka", "mean rank": 1.5, "low": 1.0, "high": 2.0, "ahead of": ahead}
    (said,) = say_main_findings(Results(study="grounding", tables={"measures by grade": table(standing)}))
    assert told in said


def test_measures_that_agree_are_named_first():
    (said, *_) = say_main_findings(Results(study="similarity", tables=TABLES["similarity"]))
    assert said == (
        "Of 2 measures, cka ranks pairs of layers most as the others do (Spearman's rho 0.70 on average), rsa least (0.60); "
        "closest are cka and rsa (0.90)"
    )


def test_every_model_has_its_share_and_what_is_left_out_is_counted():
    rows = [{**PROBES, "model": model, "target": target} for model in "ab" for target in range(6)]
    said = say_main_findings(Results(study="probes", tables={"nearest to the targets": table(*rows)}))
    assert [text[0] for text in said[:-1]] == ["a"] * 3 + ["b"] * 3
    assert said[-1] == "and 6 more: repsim show RUN --json"
    assert pick_main([("a", "a")] * MOST) == ["a"] * MOST


def test_checkpoints_that_are_the_same_have_no_course():
    curve = replace(CURVE, lines={"resid_post@0": [1.0, 1.0, 1.0]})
    same = table({"model": "m", "steps": "0, 10, 100", "all": "yes"})
    whole = Results(study="convergence", tables={IDENTICAL: same}, curves={"course": curve})
    assert say_main_findings(whole) == ["m: all checkpoints are identical, by their weights: those of steps 0, 10, 100"]
    some = replace(whole, tables={IDENTICAL: table({"model": "m", "steps": "0, 10", "all": "no"})})
    assert [text[:29] for text in say_main_findings(some)] == [
        "m: checkpoints are identical,", "m, resid_post: CKA with the c",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_commands_and_json_say_the_same(repsim, tmp_path, name):
    """The lines of an answer and the sentences of a study, of which the text has the first."""
    folder = made(tmp_path / "run", measures=())
    rows = [{**PROBES, "model": model, "target": target} for model in "ab" for target in range(6)]
    tables = {
        name: Table(columns=["model", "what"], rows=[["a", "stands out"]]),
        "nearest to the targets": table(*rows),
    }
    with results.amend(folder) as run:
        run.manifest["study"] = "probes"
        run.write_results(replace(reader.read_results(folder), study="probes", tables=tables))
    said = list_sentences(folder, reader.read_results(folder))
    code, out, err = repsim("show", folder, "--json")
    assert code == 0, err
    assert json.loads(out)["sentences"] == said.say_all()
    assert len(said.say_all()) == 13
    _, shown, _ = repsim("show", folder)
    words = " ".join(shown.split())
    assert all(text in words for text in ["a: stands out", *say_main_findings(reader.read_results(folder))])


def test_a_comparison_says_it_wherever_it_is_shown(repsim, tmp_path):
    folder = made(tmp_path / "run")
    _, out, _ = repsim("show", folder, "--json")
    said = json.loads(out)["sentences"]
    assert said
    _, shown, _ = repsim("show", folder)
    assert all(text in " ".join(shown.split()) for text in said)
