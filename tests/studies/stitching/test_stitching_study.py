"""The study of stitched models: what it refuses, what a run leaves, what its claims and figures say."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.tiny import TINY

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.cli.show import _write_table_lines
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.claims import find_claims
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import Table
from repsim_cli.studies.stitching import study as study_module
from repsim_cli.studies.stitching.finding import StitchingOptions as Options
from repsim_cli.studies.stitching.finding import (
    compute_recovered_shares,
    draw_figures,
    stitching,
    tabulate_directions,
    warn_of_unpaired,
)
from repsim_cli.studies.stitching.held_out import count_held_out, split_sequences
from repsim_cli.studies.stitching.results import PENALTIES
from repsim_cli.studies.stitching.study import Stitching
from repsim_cli.studies.stitching.train import StitchRecipe

random = registry.models.get("random").function
TEXT = registry.data.get("embedded_text").function()
LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}


def model(kind="gpt2", tokenizer="tiny_a", seed=0, **settings):
    return random(config={**TINY[kind], **settings}, tokenizer=str(tokenizer), seed=seed)


def study(models=None, data=TEXT, hook_points=("resid_post",), hardware=None, extract=None, recipe=None, **options):
    return Stitching(
        model=models or {"a": model(), "b": model(seed=1)},
        data=data,
        extract=Extract(hook_points=list(hook_points), **{"length": 16, "sequences": 24, **(extract or {})}),
        hardware=hardware or Hardware(),
        seed=0,
        recipe=StitchRecipe(**{"steps": 4, "warm_up": 1, "batch": 4, **(recipe or {})}),
        **{"evaluation": 6, **options},
    )


def run_in(folder, found):
    run = results.create(folder, name="test", study="stitching", seed=0, command=[], overrides=[])
    out = found.run(run)
    run.lock.release()
    return out, run


def records(out):
    return [dict(zip(PENALTIES, row, strict=True)) for row in out.tables["stitching"].rows]


CLAIMS = find_claims(
    ["solu_into_gelu_costs_more", "solu_stitches_better_to_itself", "crossing_costs_more_than_gelu_to_itself"]
)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"models": {"a": model(), "b": model(n_embd=48)}, "recipe": {"layer": "identity"}}, r"options.recipe.layer: identity needs equal widths, got 48 \(b\) and 32 \(a\); use affine"),
        ({"models": {"a": model(), "b": model(n_embd=48)}, "recipe": {"layer": "orthogonal"}}, r"options.recipe.layer: orthogonal needs equal widths, got 48 \(b\) and 32 \(a\); use"),
        ({"models": {"a": model(), "b": model(n_embd=48)}, "recipe": {"init": "identity"}}, r"options.recipe.init: identity needs equal widths, got 48 \(b\) and 32 \(a\); use least"),
        ({"extract": {"layers": [3]}}, r"extract.layers, model.a: layer out of range, got 3; the model has layers 0 to 2"),
        ({"hook_points": ["mlp_out"]}, r"extract.hook_points: stitches are made between blocks, got 'mlp_out@0'; use resid_post and embed"),
        ({"models": {"a": model(), "b": model("bert")}}, r"model.b: its blocks cannot be stitched under AutoModelForCausalLM, got model_type 'bert'"),
        ({"evaluation": 24}, r"options.evaluation: no sequences are left to train on, got 24 of 24; raise extract.sequences"),
        ({"recipe": {"warm_up": 4}}, r"warm_up: as long as the training, got 4; lower it, or raise steps"),
        ({"hardware": Hardware(dtype="float16")}, r"hardware.dtype: gradients underflow, got float16; use bfloat16 or float32"),
        ({"hardware": Hardware(memory_gb=0.1)}, r"hardware.memory_gb: the run needs about 0.5\d GB, got a limit of 0.10 GB; hardware.memory_gb=0.6 would do, or lower hardware.batch_size"),
        ({"pairs": [["a"]]}, r"options.pairs: not a head and a tail, got \['a'\]; write \[\[HEAD, TAIL\], ...\]"),
        ({"pairs": [["a", "c"]]}, r"options.pairs: no such model, got 'c'; known: a, b"),
        ({"models": {"a": model(n_layer=1), "b": model()}, "pairs": [["a", "b"]], "hook_points": ["resid_post@-1"]}, r"extract.layers: no pair of models shares a layer, got all; use all, or grid"),
    ],
)  # fmt: skip
def test_what_is_refused_before_any_weight_loads(options, match):
    with pytest.raises(BadInput, match=match):
        study(**options)


@pytest.mark.parametrize(
    ("sequences", "fitted", "held"), [(500, True, 64), (24, True, 12), (24, False, 24), (500, False, 64)]
)
def test_how_much_is_evaluated_by_default(sequences, fitted, held):
    assert count_held_out("auto", sequences, fitted) == held
    assert count_held_out(None, sequences, fitted) == sequences
    assert count_held_out(7, sequences, fitted) == 7


def test_short_trainings_warm_up_within_their_steps():
    """Defaults fit each other: few sequences, few steps."""
    assert (
        study(recipe={"steps": 10, "warm_up": "auto"}, evaluation="auto").plan()["evaluation tokens, at most"]
        == 12 * 16
    )
    assert [StitchRecipe(steps=steps).rising for steps in (1, 10, 150, 2000, 9000)] == [0, 1, 15, 200, 200]


def test_no_model_and_other_tokenizers_are_refused(tokenizer_folder):
    with pytest.raises(BadInput, match=r"model: no model is selected; e.g. model=\[tiny_a,tiny_b\]"):
        Stitching(
            model={},
            data=TEXT,
            extract=Extract(hook_points=["resid_post"]),
            hardware=Hardware(),
            seed=0,
            recipe=StitchRecipe(),
        )
    with pytest.raises(BadInput, match=r"model: tokenizers differ, got a different vocabulary for 'b' than for 'a'"):
        study({"a": model(), "b": model(tokenizer=tokenizer_folder)})


def test_training_and_evaluation_share_no_document():
    given = TEXT.sequences(model().tokenizer(), Extract(hook_points=["x"], length=16, sequences=60, pool=60), 0)
    train, held = split_sequences(given, 20, True)
    assert len(held.ids) == 20
    assert np.array_equal(held.ids, given.ids[40:])
    assert 30 < len(train.ids) < 40
    own, other = (set(x.document[x.text].tolist()) for x in (train, held))
    assert own
    assert not own & other
    # nothing is trained: all of a short text is looked at
    assert [len(part.ids) for part in split_sequences(given, 100, False)] == [0, 60]
    with pytest.raises(
        BadInput, match=r"options.evaluation: no evaluation rows are left beside the training, got 60 seq"
    ):
        split_sequences(given, 60, True)
    one = given.take(np.flatnonzero((given.document == given.document[0, 5]).any(1)))
    with pytest.raises(
        BadInput, match=r"options.evaluation: no training rows are left beside the documents of the eval"
    ):
        split_sequences(one, 2, True)


def test_an_identity_study_of_a_model_with_itself_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    found = study(recipe={"layer": "identity"}, hook_points=["embed", "resid_post"], pairs=[["a", "a"], ["b", "a"]])
    assert found.plan()["stitches"] == 8
    assert found.plan()["training steps of each"] == 0
    out, run = run_in(tmp_path / "run", found)
    assert run.manifest["rows"] == {"training": 0, "evaluation": 6}
    rows = records(out)
    assert [row["head layer"] for row in rows[:4]] == ["embed", "resid_post@0", "resid_post@1", "resid_post@2"]
    for row in rows:
        own = row["head"] == row["tail"]
        assert (row["penalty"] == row["penalty se"] == row["KL"] == 0.0) == own
        assert row["loss"] == pytest.approx(row["own loss"] + row["penalty"])
    assert out.curves == {}


def test_scores_come_from_the_cache_until_the_code_changes(tmp_path, monkeypatch, edited):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    models = {label: replace(model(), identity=lambda x=label: {"weights_hash": x}) for label in "ab"}
    found = study(models, recipe={"layer": "identity"}, pairs=[["b", "a"]])
    for module, entries in (
        (None, 1),
        ("report.record", 1),
        ("studies.stitching.evaluate", 2),
        ("studies.stitching.evaluate", 2),
    ):
        if module:
            edited(f"repsim_cli.{module}")
        run_in(tmp_path / f"run-{module}", found)
        assert len([*(tmp_path / "cache" / "stitched").glob("*/")]) == entries


def test_classifiers_lose_accuracy(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    texts = [
        f"the {noun} sees the {other}" for noun in ("dog", "cat", "king") for other in ("owl", "cow", "fox", "bee")
    ]
    data = Examples(
        lambda: (Example((text,), LABELS[i % 3]) for i, text in enumerate(texts)), tuple(LABELS.values()), "ours"
    )
    classifier = {"kind": "bert", "id2label": LABELS, "num_labels": 3}
    models = {name: model(**classifier, seed=seed) for seed, name in enumerate("ab")}
    found = study(models, data, recipe={"layer": "least_squares"}, extract={"sequences": 12})
    out, _ = run_in(tmp_path / "run", found)
    assert out.about["predicts"] == "label"
    assert {row["ended"] for row in records(out)} == {"not trained"}
    assert all(-1 <= row["accuracy lost"] <= 1 for row in records(out))
    other = {**models, "b": model(**{**classifier, "id2label": {0: "neutral", 1: "entailment", 2: "contradiction"}})}
    with pytest.raises(
        BadInput, match=r"model.b: its labels differ in order or number, got .* of 'a'; stitch classifiers"
    ):
        study(other, data, recipe={"layer": "least_squares"}, extract={"sequences": 12})


@pytest.mark.drawn
@pytest.mark.slow
def test_a_run_with_everything(repsim, newest, tmp_path):
    """Trained layers, baselines, figures, the report; again from the cache to the bit."""
    words = [
        "run", "study=stitching", "data=embedded", "measure=[]", "model=[tiny_a,tiny_a_step100]", "extract.length=16",
        "extract.sequences=24", "extract.layers=[1,4]", "hardware.threads=1", "+options.evaluation=6", 
        "+options.recipe={steps: 6, warm_up: 1, batch: 4, layer: linear, init_sequences: 8}",
    ]  # fmt: skip
    code, _, err = repsim(*words, "+options.baselines=[self,random,shuffled]")
    assert code == 0, err
    folder = newest()
    found = reader.read_results(folder)
    rows = records(found)
    assert len(rows) == 2 * 2 * (2 + 2)
    by_head = {row["head"]: row for row in rows if row["tail"] == "tiny_a" and row["head layer"] == "resid_post@1"}
    assert list(by_head) == ["tiny_a", "tiny_a_step100", "tiny_a (random weights)", "tiny_a (rows shuffled)"]
    assert by_head["tiny_a (rows shuffled)"]["penalty"] > by_head["tiny_a"]["penalty"] + 0.5
    beyond = by_head["tiny_a_step100"]["penalty"] - by_head["tiny_a"]["penalty"]
    assert by_head["tiny_a_step100"]["beyond itself"] == pytest.approx(beyond)
    assert by_head["tiny_a"]["beyond itself"] is None
    figures = {file.name for file in (folder / "figures").glob("*.png")}
    assert {f"stitching-{name}.png" for name in ("loss-all", "loss-baselines", "kl-all", "curves-all")} <= figures
    assert (folder / "report.html").is_file()
    curve = found.curves["tiny_a_step100 -> tiny_a, resid_post@4"]
    assert curve.at == [1, 2, 3, 4, 5, 6]
    random = found.curves["tiny_a (random weights) -> tiny_a, resid_post@4"]
    assert curve.about["levels"] == {"heads of random weights, when trained": random.lines["loss"][-1]}
    assert "levels" not in random.about
    code, _, err = repsim(*words, "+options.baselines=[self,random,shuffled]")
    again = newest()
    assert (again / "results.json").read_bytes() == (folder / "results.json").read_bytes()
    assert "steps" not in err


def test_a_training_that_diverged_has_no_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RunFailed, match=r"options.recipe.learning_rate: every training diverged, got 1e\+30; lower it"):
        run_in(tmp_path / "all", study(recipe={"learning_rate": 1e30}))
    fit = study_module.fit_stitches

    def one_diverges(*arguments, **more):
        found = fit(*arguments, **more)
        return {stitch: replace(fit, diverged=3 if stitch.at == 1 else None) for stitch, fit in found.items()}

    monkeypatch.setattr(study_module, "fit_stitches", one_diverges)
    out, run = run_in(tmp_path / "some", study(pairs=[["a", "b"]], grid=True))
    ended = {(row["head layer"], row["tail layer"]): (row["penalty"], row["ended"]) for row in records(out)}
    assert ended["resid_post@1", "resid_post@0"] == (None, "diverged at step 3")
    assert ended["resid_post@0", "resid_post@1"][0] is not None
    assert run.manifest["warnings"][0] == (
        "a -> b, resid_post@1 into resid_post@0: its training diverged at step 3; its penalty is missing"
    )
    finished = Finished(folder=tmp_path, manifest=run.manifest, results=out)
    out.analyses["stitching"] = {"options": {"metric": "loss"}}
    out.tables.update(stitching(finished, Options(), []).tables)
    for make in dict(draw_figures(finished, True)).values():
        make()


def test_a_long_table_is_printed_in_part():
    lines = list(
        _write_table_lines("stitching", Table(columns=["head", "loss"], rows=[["a", float(i)] for i in range(30)]))
    )
    assert len(lines) == 1 + 1 + 12 + 1
    assert lines[-1] == "    and 18 more rows: see results.json"


def cell(head, tail, penalty, layer="resid_post@0"):
    return {
        "head": head,
        "tail": tail,
        "head layer": layer,
        "tail layer": layer,
        "penalty": penalty,
        "penalty se": 0.01,
    }


KINDS = {"g": "gelu, 3 blocks", "h": "gelu, 3 blocks", "s": "solu_ln, 3 blocks", "big": "gelu, 4 blocks"}


def test_what_is_recovered_both_ways():
    """The share of the loss that random weights add to each tail; the ways may differ."""

    def stitch(head, tail, penalty, at="resid_post@0", into="resid_post@0"):
        return {"head": head, "tail": tail, "head layer": at, "tail layer": into, "penalty": penalty}

    rows = [
        stitch("b", "a", 0.5), stitch("a", "b", 0.4), stitch("a", "a", 0.1),
        stitch("a (random weights)", "a", 2.0), stitch("b (random weights)", "b", 0.8),
        stitch("a (rows shuffled)", "a", 9.0), stitch("b", "a", 7.0, into="resid_post@1"),
    ]  # fmt: skip
    table = compute_recovered_shares(rows)
    assert table.columns[3:5] == ["other into model", "model into other"]
    assert table.rows == [["resid_post@0", "a", "b", 0.75, 0.5, 0.95, None]]
    diverged = [*rows[:4], stitch("b (random weights)", "b", -0.1), stitch("b", "b", None)]
    assert compute_recovered_shares(diverged).rows == [["resid_post@0", "a", "b", 0.75, None, 0.95, None]]
    assert compute_recovered_shares(rows[:3]).rows == []


def test_directions_and_claims():
    rows = [cell("s", "g", 0.5), cell("s", "h", 0.7), cell("g", "s", 0.2), cell("h", "s", 0.4), cell("g", "g", 0.1)]
    rows += [cell("h", "h", 0.3), cell("s", "s", 0.05), cell("big", "s", 9.0), cell("s (random weights)", "s", 5.0)]
    rows += [cell("g", "h", None)]
    found = {tuple(row[:4]): row[4:] for row in tabulate_directions(rows, KINDS).rows}
    across = found["resid_post@0", "solu_ln, 3 blocks", "gelu, 3 blocks", "different"]
    assert across == pytest.approx([2, 0.6, 0.1])
    assert found["resid_post@0", "solu_ln, 3 blocks", "solu_ln, 3 blocks", "the same"] == [1, 0.05, None]
    values = {claim.name: claim(rows, KINDS) for claim in CLAIMS}
    assert values["solu_into_gelu_costs_more"].value == pytest.approx(0.3)
    assert values["solu_stitches_better_to_itself"].value == pytest.approx(0.05)  # s is in one pair, with g
    assert values["crossing_costs_more_than_gelu_to_itself"].value == pytest.approx(0.1)
    assert values["solu_into_gelu_costs_more"].why == "needs 3 pairs of models with a value, got 1 pair of models"
    why = "needs 3 pairs of a SoLU and a GELU model of equal depth, stitched both ways"
    assert CLAIMS[0](rows[:2], KINDS).why == why


def test_models_without_a_partner_are_named():
    kinds = {**KINDS, "plain": "relu, 3 blocks"}
    want = "left out of the claims, since no model of equal depth has the other activation:"
    assert list(warn_of_unpaired(kinds)) == [f"{want} h, big"]
    assert list(warn_of_unpaired({"g": kinds["g"], "s": kinds["s"]})) == []
    assert list(warn_of_unpaired({"g": kinds["g"], "h": kinds["h"]})) == []  # no pair: the claims say so


def test_published_settings():
    from helpers.composing import composed

    config = composed("experiment=solu_gelu_stitching")
    recipe = config.options.recipe
    assert (recipe.layer, recipe.steps, recipe.warm_up, recipe.learning_rate) == ("affine", 2000, 200, 1.0)
    assert (recipe.scale_rate, recipe.clip, recipe.decay) == (False, None, False)
    assert [claim.name for claim in CLAIMS] == list(config.claims)
