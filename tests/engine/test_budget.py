"""The similarity budget of a run: whose layers, which twins, what the answer says, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import repsim_cli
from repsim_cli.engine.budget import find_untrained_twin
from repsim_cli.models.transformers import random, shipped
from repsim_cli.runs.content import BUDGET, BY_TOKEN, MADE_OF

WORDS = ["model=[tiny_a,tiny_b]", "extract.sequences=40", "extract.rows=1500", "extract.estimate=full"]
LAYERS = "extract.layers=[3,5]"
WITH = "significance.budget=true"


def rows_of(table):
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@pytest.mark.slow
def test_a_run_says_what_its_values_are_made_of(finished):
    results = json.loads((finished(*WORDS, LAYERS, WITH) / "results.json").read_text())
    rows = rows_of(results["tables"][BUDGET])
    assert [(row["layer a"], row["layer b"]) for row in rows] == [(f"resid_post@{n}",) * 2 for n in (3, 5)]
    for row in rows:
        assert row["value"] == pytest.approx(row["token"] + row["untrained"] + row["learned"] + row["alone"])
        assert row["rest"] is None
        assert row["token"] > 0.5 > row["learned"] > 0
        assert 0 < row["± value"] < 0.1
        assert row["p beyond the token"] < 0.01
    for row in rows_of(results["tables"][BY_TOKEN]):
        assert row["value"] == pytest.approx(row["chance"] + row["same token"] + row["other tokens"])
        assert row["measure"] == "mutual_knn"
    about = results["about"]["budget"]
    assert about["rows"] == 1500
    assert about["twins"] == dict.fromkeys(("tiny_a", "tiny_b"), "made from its config")
    ((who, what),) = results["tables"][MADE_OF]["rows"]
    assert who == "tiny_a x tiny_b"
    assert what.startswith(f"of {rows[1]['value']:.2f} in block 5, {rows[1]['token']:.2f} is the token, ")
    assert what.endswith("; p < 0.05 beyond the token in 2 of 2 pairs")


def test_untrained_models_of_the_run_are_the_twins():
    """Twins may have any seed, and have the same shape; what is no model of transformers has none."""
    models = {name: shipped(name=name) for name in ("tiny_a", "tiny_b")}
    assert find_untrained_twin(models, "tiny_a") == ""
    fresh = {"fresh": random(shipped="tiny_a", seed=7), "other": random(config={"model_type": "gpt2", "n_layer": 1})}
    assert [find_untrained_twin({**fresh, **models}, label) for label in ("tiny_a", "tiny_b", "fresh")] == [
        "fresh",
        "fresh",
        None,
    ]
    assert find_untrained_twin({"other": fresh["other"], **models}, "tiny_a") == ""
    outside = replace(models["tiny_a"], modules=dict)
    assert find_untrained_twin({"outside": outside}, "outside") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure=[procrustes]"], "splits cka_unbiased, cka and mutual_knn, got procrustes; add one of them"),
        (["extract=pooled"], "rows are tokens or words, got extract.unit=mean; use extract=tokens"),
        (["cache=false"], "activations are read again from the cache, got none that holds them; set cache=true"),
        (["model=[tiny_a]"], "needs two models or more, got tiny_a; add one"),
        (["study=universality", "significance=permutation"], "the study universality splits no values, got true"),
        (["extract.sequences=4"], "rows of 40 documents or more are needed, got "),
    ],
)
def test_what_cannot_be_split_is_refused(repsim, words, said):
    code, _, err = repsim("run", *WORDS, LAYERS, WITH, *words)
    assert code == 2
    assert f"significance.budget: {said}" in " ".join(err.split())


def test_stored_rows_have_no_tokens():
    x = np.random.default_rng(0).normal(size=(80, 5))
    with pytest.raises(repsim_cli.BadInput, match="nothing says of which token the rows of 'a' are"):
        repsim_cli.compare({"a": x, "b": x}, settings={"significance.budget": True})


def test_compare_plans_the_budget(repsim):
    words = "--set", "dry_run=true", "--set", LAYERS
    code, out, _ = repsim("compare", "tiny_a", "tiny_b", "--budget", *words)
    assert code == 0
    assert "budget: 2 pairs of layers; an untrained twin is made and run of: tiny_a, tiny_b" in out
