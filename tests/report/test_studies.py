"""The head of the page of a study: its sentences and what is seen first."""

import json
from dataclasses import replace

import pytest
from helpers.made_runs import made, saved

from repsim_cli.report.studies import say_main_findings
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import BEYOND_WALKS, Axis, Curve, Results, Table
from repsim_cli.studies.neurons.page import say_as_few

STITCHES = Table(
    columns=["head", "tail", "head layer", "tail layer", "penalty", "penalty se"],
    rows=[
        ["a", "a", "embed", "embed", 0.0, 0.0],
        ["a", "b", "embed", "embed", 0.5, 0.01],
        ["a", "b", "resid_post@0", "resid_post@0", 1.25, 0.02],
        ["a", "b", "embed", "resid_post@0", 9.0, 0.02],
        ["a", "b", "resid_post@1", "resid_post@1", None, None],
    ],
)
KNOWING = [*STITCHES.columns, "kept"]
UNKNOWING = Table(
    columns=KNOWING,
    rows=[
        ["a", "b", "embed", "embed", 0.001, 0.01, None],
        ["b", "a", "embed", "embed", 0.5, 0.01, 0.2],
    ],
)
BESIDE = Table(
    columns=[*STITCHES.columns, "beyond itself", "beyond itself se"],
    rows=[
        ["a", "b", "embed", "embed", -0.11, 0.022, 0.016, 0.01],
        ["a", "b", "resid_post@0", "resid_post@0", -0.12, 0.022, 0.015, 0.01],
        ["a", "b", "resid_post@1", "resid_post@1", 0.5, 0.022, 0.6, 0.01],
    ],
)
FACTORS = Table(
    columns=["measure", "factor", "values", "least share of seeds", "largest share of seeds", "verdict"],
    rows=[
        ["cka", "seed", 3, 0.9, 1.0, "same"],
        ["cka", "data", 2, 0.4, 0.6, "related"],
        ["knn", "seed", 3, None, None, "undecided"],
    ],
)
COLUMNS = ["model", "target", "probe", "nearest", "others as near", "lowest error", "control"]
TESTED = Table(
    columns=[*COLUMNS, "error of the largest class", "layers", "p of any layer"],
    rows=[
        ["m", "label", "linear", "embed", 1, 0.1, 0.4, 0.5, 6, 0.001],
        ["m", "stars", "linear", "embed", 5, 0.76, 0.8, 0.77, 6, 1.0],
        ["m", "sum", "linear", "embed", 0, 0.3, 1.1, None, 6, 0.02],
        ["m", "digit", "linear", "embed", 0, 0.99, 1.1, None, 1, 0.4],
    ],
)
NEAREST = Table(
    columns=["model", "target", "probe", "nearest", "lowest error", "error of the largest class"],
    rows=[["m", "label", "linear", "resid_post@3", 0.1, 0.5], ["m", "group", "linear", "embed", 0.6, 0.5]],
)
PARTS = Table(
    columns=["measure", "model", "found by", "sub-networks", "layers", "silhouette", "without groups", BEYOND_WALKS],
    rows=[
        ["gw", "m", "spectral", 3, "0-2, 3-5, 6", 0.5, 0.2, "yes"],
        ["gw", "m", "segments", 2, "0-2, 3-6", 0.612, 0.2, "yes"],
        ["gw", "n", "segments", 1, "0-6", None, None, None],
        ["gw", "o", "segments", 2, "0-2, 3-6", 0.5, 0.2, "no"],
    ],
)
COURSE = Curve(
    x=Axis(name="step"),
    y=Axis(name="CKA"),
    at=[0, 10, 100, 1000],
    lines={"resid_post@0": [0.2, 0.6, 0.98, 1.0], "resid_post@1": [0.0, 0.5, 0.98, 1.0]},
    about={"quantity": "cka to last", "point": "resid_post", "model": "m"},
)
STILL = Curve(
    x=Axis(name="step"),
    y=Axis(name="Procrustes distance"),
    at=[0, 10, 1000],
    lines={"resid_post@0": [2e-8, 3e-8, 0.0], "resid_post@1": [1e-8, 0.0, 0.0]},
    bounds=[0.0, 2**0.5],
    about={"quantity": "procrustes to last", "point": "resid_post", "model": "m"},
)


@pytest.mark.parametrize(
    ("study", "parts", "said"),
    [
        (
            "stitching",
            {"tables": {"stitching": STITCHES}},
            [
                "b goes on from a at a loss of 0.5 nats more than alone (se 0.01) after embed, and 1.2 nats more after resid_post@0",
                "a goes on from a at the loss that it has alone after embed",
            ],
        ),
        (
            "stitching",
            {"tables": {"stitching": UNKNOWING}},
            [
                "b goes on from a at a loss of 0.001 nats more than alone (se 0.01) after embed; but b alone knows no more of "
                "the right answers than how often each comes",
                "a goes on from b at a loss of 0.5 nats more than alone (se 0.01) after embed",
            ],
        ),
        (
            "stitching",
            {"tables": {"stitching": BESIDE}},
            [
                "b goes on from a at a loss of 0.12 nats less than alone (se 0.022) after resid_post@0, 0.015 nats more than "
                "b from itself there (se 0.01); embed is not told apart from it; 0.5 nats more after resid_post@1",
            ],
        ),
        (
            "stitching",
            {"tables": {"stitching": replace(BESIDE, rows=BESIDE.rows[:2])}, "about": {"evaluation_sequences": 20}},
            [
                "b goes on from a at a loss of 0.12 nats less than alone (se 0.022) after resid_post@0, 0.015 nats more than "
                "b from itself there (se 0.01); embed is not told apart from it",
            ],
        ),
        (
            "universality",
            {"tables": {"universality of factors": FACTORS}},
            [
                "By cka: seed same, 0.90 to 1.00 of the way from untrained to seeds; data related, 0.40 to 0.60",
                "By knn: seed undecided",
            ],
        ),
        (
            "probes",
            {"tables": {"nearest to the targets": NEAREST}},
            [
                "m tells label best at resid_post@3: error 0.1 (linear); the largest class alone has 0.5",
                "No layer of m tells group better than its largest class: error 0.6 (linear); the largest class alone "
                "has 0.5",
            ],
        ),
        (
            "probes",
            {"tables": {"nearest to the targets": TESTED}},
            [
                "m tells label best at embed and as well at 1 other layer: error 0.1 (linear); the largest class alone has "
                "0.5 (p 0.001 for the best of 6 layers)",
                "No layer of m is shown to tell stars better than its largest class: error 0.76 (linear); the largest class alone "
                "has 0.77 (p 1 for the best of 6 layers)",
                "m tells sum best at embed: error 0.3 (linear); the mean alone has 1, labels without meaning 1.1 (p 0.02 for the "
                "best of 6 layers)",
                "No layer of m is shown to tell digit better than its mean: error 0.99 (linear); the mean alone has 1, labels "
                "without meaning 1.1 (p 0.4 for the best of 1 layer)",
            ],
        ),
        (
            "convergence",
            {"curves": {"course": COURSE}},
            [
                "m, resid_post: CKA with the checkpoint of step 1000 is 0.10 at step 0 (mean over 2 layers), and from step 100 on within 5 % of the way from step 0 to its "
                "end"
            ],
        ),
        (
            "convergence",
            {"curves": {"course": STILL}},
            [
                "m, resid_post: Procrustes distance with the checkpoint of step 1000 is 0.00 at every step, in every layer"
            ],
        ),
        (
            "similarity",
            {"tables": {"sub-networks": PARTS}},
            [
                "By gw, m parts into 2 groups of neighbouring layers (silhouette 0.61; without groups 0.20)",
                "By gw, no groups of neighbouring layers of n are told from a gradient or from noise",
                "By gw, o parts into 2 groups of neighbouring layers, no clearer than those of a random walk over layers "
                "(silhouette 0.50; without groups 0.20)",
            ],
        ),
        (
            "verify",
            {
                "about": {
                    "verify": {
                        "candidate": "b",
                        "reference": "a",
                        "lines": ["DIFFERENT   first at embed", "  kind    other weights"],
                    }
                }
            },
            ["b beside a: DIFFERENT first at embed", "kind: other weights"],
        ),
        ("pretrain", {}, []),
        ("probes", {}, []),
    ],
)
def test_a_study_says_what_it_found(study, parts, said):
    assert say_main_findings(Results(study=study, **parts)) == said


@pytest.mark.parametrize(
    ("study", "parts", "first"),
    [
        ("stitching", {"tables": {"stitching": STITCHES}}, "penalties"),
        ("universality", {"tables": {"universality of factors": FACTORS}}, "verdicts"),
        ("convergence", {"curves": {"course": COURSE}}, "checkpoints"),
    ],
)
def test_its_page_begins_with_them(tmp_path, opened, study, parts, first):
    folder = made(tmp_path / "run", measures=())
    with results.amend(folder) as run:
        run.manifest["study"] = study
        run.write_results(replace(reader.read_results(folder), study=study, **parts))
    page = opened(saved(folder), width=390, height=844, mobile=True)
    ids = page.evaluate("[...document.querySelectorAll('main > section')].map((s) => s.id)")
    assert ids[:3] == ["results", "warnings", first]
    assert (
        page.evaluate("document.querySelector('.lead').textContent")
        == say_main_findings(Results(study=study, **parts))[0]
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    if study == "convergence":
        slider = "document.querySelector('#checkpoints input')"
        page.evaluate(f"{slider}.value = '1'; {slider}.dispatchEvent(new Event('input'))")
        assert page.evaluate("document.querySelector('output').textContent") == " step 10"
        caption = page.evaluate("document.querySelector('#checkpoints figcaption').textContent")
        assert "chosen, step 10" in caption
    if study == "stitching":
        told = json.dumps(page.evaluate("document.querySelector('#penalties figcaption').textContent"))
        assert "a into b" in told


def test_layers_of_a_probe_that_are_not_told_apart_are_counted():
    columns = ["model", "target", "probe", "nearest", "lowest error", "error of the largest class", "not told apart"]
    table = Table(columns=columns, rows=[["m", "label", "linear", "embed", 0.1, 0.5, 2]])
    (said,) = say_main_findings(Results(study="probes", tables={"nearest to the targets": table}))
    assert said.endswith("the largest class alone has 0.5; 2 layers not told apart from it")


def test_the_model_of_fewest_counterparts_is_told_apart_or_not():
    """1 and 2 of 100 neurons are no difference, 1 and 60 are one."""
    assert say_as_few({"a": 0.02, "b": 0.01, "c": 0.6}, 100) == ", a is not told apart from it"
    assert say_as_few({"a": 0.3, "b": 0.01}, 100) == ""
