"""The study of identity stitches by groups: against the models' own modules, from the cache, and its refusals."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from helpers.tiny import TINY

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware, Ranked
from repsim_cli.findings.analyse import find_analysis_card
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.claims import find_claims
from repsim_cli.models.source import describe_model
from repsim_cli.runs import reader, results
from repsim_cli.studies.stitching.study import Stitching
from repsim_cli.studies.stitching.train import StitchRecipe

LABELS = {"id2label": {0: "entailment", 1: "neutral", 2: "contradiction"}, "pad_token_id": 0, "initializer_range": 0.3}
EXTRACT = Extract(hook_points=["resid_post"], length=40, sequences=30)


@pytest.fixture
def source(tokenizer_folder):
    def make(seed, **settings):
        config = {**TINY["bert"], **LABELS, **settings}
        made = registry.models.get("random").function(config=config, tokenizer=str(tokenizer_folder), seed=seed)
        return replace(made, identity=lambda: {"weights_hash": str(seed)})

    return make


def study(model, groups, data=None, recipe=None, **settings):
    settings = {
        "evaluation": None,
        "extract": EXTRACT,
        "hardware": Hardware(batch_size=15),
        "seed": 0,
        **settings,
    }
    data = data or registry.data.get("overlap_nli").function(examples=30)
    return Stitching(model=model, groups=groups, data=data, recipe=recipe or StitchRecipe(layer="identity"), **settings)


def ran(made, folder):
    """The run, what the study measured, and what follows from it."""
    run = results.create(folder, name="x", study="stitching", seed=0, command=[], overrides=[])
    measured = made.run(run)
    about = {label: asdict(describe_model(label, source, [])) for label, source in made.models.items()}
    finished = Finished(folder=folder, manifest={**run.manifest, "facts": about}, results=measured)
    return (
        run,
        measured,
        find_analysis_card("penalties").compute(
            finished, find_analysis_card("penalties").options(), find_claims(CLAIMS)
        ),
    )


GROUPS = {"one": ["a", "b", "c"], "two": ["x", "y", "copy"]}
CLAIMS = [
    "between_groups_cost_late",
    "within_groups_cost_little",
    "early_layers_cost_little",
]


@pytest.mark.slow
def test_fitted_layers_between_groups_have_what_rows_share(source, tmp_path, monkeypatch):
    """A copy shares all, both ways; other weights on the same words less."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    models = {label: source(seed) for seed, label in enumerate("abx")}
    models["copy"] = source(2)  # of x
    made = study(
        models,
        {"one": ["a", "b"], "two": ["x", "copy"]},
        recipe=StitchRecipe(layer="least_squares"),
        evaluation=12,
    )
    run, measured, part = ran(made, tmp_path / "run")
    matrix = measured.matrices["shared, resid_post@1"]
    values, labels = reader.read_array(run.folder, matrix.values), matrix.rows.layers
    x, copy, a = (labels.index(label) for label in ("x", "copy", "a"))
    assert values[x, copy] == pytest.approx(1) == values[copy, x]
    assert values[a, x] < 0.99
    assert "shared" in part.tables["by direction"].columns


@pytest.mark.slow
def test_the_study(source, tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    models = {label: source(seed) for seed, label in enumerate("abcxy")}
    models["copy"] = source(4)  # of y
    one = study(models, GROUPS)
    plan = one.plan()
    assert (plan["pairs of models"], plan["stitches"]) == (6 * 5, 6 * 5 * 3)
    run, measured, part = ran(one, tmp_path / "run")
    values: dict = {}
    for matrix in measured.matrices.values():
        block = reader.read_array(run.folder, matrix.values)
        values.setdefault(matrix.about["quantity"], []).append(block)
    values = {name: np.stack(blocks, 2) for name, blocks in values.items()}
    labels = measured.matrices["accuracy, resid_post@1"].rows.layers
    assert labels == [*GROUPS["one"], *GROUPS["two"]]
    assert all((np.isnan(each) == np.eye(6, dtype=bool)[..., None]).all() for each in values.values())

    # by hand: what block 1 of a gives, through the last block and the head of x
    examples = one.data.sequences(models["a"].tokenizer(), one.extract, 0)
    head, tail = (models[label].with_head("AutoModelForSequenceClassification") for label in "ax")
    correct, own = [], []
    with torch.no_grad():
        for ids, mask, code in zip(examples.ids, examples.mask, examples.labels.codes, strict=True):
            words = torch.from_numpy(ids[mask])[None].long()
            stream = head.bert(words, output_hidden_states=True).hidden_states[2]
            last = tail.bert.encoder.layer[2](stream)
            last = last[0] if isinstance(last, tuple) else last
            for answers, logits in ((correct, tail.classifier(tail.bert.pooler(last))), (own, tail(words).logits)):
                answers.append(int(logits.argmax()) == code)
    at = (labels.index("a"), labels.index("x"), 1)
    assert values["accuracy"][at] == np.mean(correct)
    assert values["accuracy_penalty"][at] == pytest.approx(np.mean(own) - np.mean(correct))
    rows = {row[0]: row for row in measured.tables["models"].rows}
    assert (rows["x"][1], rows["x"][4]) == ("two", np.mean(own))

    # a copy goes on as the model itself would
    pair = (labels.index("y"), labels.index("copy"))
    for name in ("accuracy_penalty", "loss_penalty", "disagreement"):
        assert (values[name][pair] == 0).all()
        assert (values[name][pair[::-1]] == 0).all()
    assert np.abs(values["loss_penalty"][:3, 3:]).min() > 0

    curve = part.curves["loss_penalty, resid_post, one-two"]
    both = (values["loss_penalty"][0, 3] + values["loss_penalty"][3, 0]) / 2
    np.testing.assert_allclose(curve.lines["a and x"], both)
    assert curve.about["shares"] == [1 / 3, 2 / 3, 1]
    direction = {tuple(row[:3]): row[3:] for row in part.tables["by direction"].rows}
    assert len(direction) == 12
    assert direction["one", "two", "resid_post@2"][2] == pytest.approx(values["loss_penalty"][:3, 3:, 2].mean())
    assert [verdict.name for verdict in part.claims] == CLAIMS
    assert {verdict.measure for verdict in part.claims} == {"accuracy_penalty"}

    # a second run finds every batch in the cache
    monkeypatch.setattr("repsim_cli.studies.stitching.evaluate.Streams", None)
    again, *second = ran(study(models, GROUPS), tmp_path / "again")
    assert second == [measured, part]
    run.discard()
    again.discard()


def test_models_are_chosen_by_their_metrics(source, tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    models = {label: replace(source(i), metrics=lambda i=i: {"hans": i / 10}) for i, label in enumerate("abcde")}
    groups = {"good": Ranked(by="hans", top=2), "bad": Ranked(by="hans", bottom=2)}
    run, _, part = ran(study(models, groups, extract=replace(EXTRACT, layers=[-1])), tmp_path / "run")
    assert run.manifest["groups"] == {
        "good": {"e": {"hans": 0.4}, "d": {"hans": 0.3}},
        "bad": {"b": {"hans": 0.1}, "a": {"hans": 0.0}},
    }
    assert list(run.manifest["models"]) == ["e", "d", "b", "a"]
    assert part.curves["accuracy, resid_post, good-bad"].at == ["resid_post@2"]
    run.discard()


def test_what_cannot_be_stitched_is_refused(source):
    groups = {"one": ["a", "b"]}
    packed = registry.data.get("embedded_text").function(split="validation")
    for model, settings, message in (
        ({"a": source(0), "b": source(1)}, {"data": packed}, "model.a: its blocks cannot be stitched under AutoModelForCausalLM, got model_type 'bert'"),
        ({"a": source(0), "b": source(1)}, {"pairs": [["a", "b"]]}, r"options.pairs: all pairs of models of groups are stitched, at equal layers, got \[\['a', 'b'\]\]; drop it"),
        ({"a": source(0), "b": source(1)}, {"grid": True}, "options.grid: all pairs of models of groups are stitched, at equal layers, got True; drop it"),
        ({"a": source(0), "b": source(1)}, {"baselines": ["self"]}, r"options.baselines: all pairs of models of groups are stitched, at equal layers, got \['self'\]; drop it"),
        ({"a": source(0), "b": source(1, id2label={0: "neutral", 1: "entailment", 2: "contradiction"})}, {}, "model.b: its labels differ in order or number, got .* stitch classifiers with the same labels"),
        ({"a": source(0), "b": source(1, id2label={0: "entailment", 1: "neutral"})}, {}, "model.b: its labels differ in order or number"),
        ({"a": source(0), "b": source(1, num_hidden_layers=2)}, {}, r"groups: models of equal depth are needed, got 3 \('a'\) and 2 \('b'\); leave one"),
        ({"a": source(0), "b": source(1, hidden_size=64)}, {}, r"options.recipe.layer: identity needs equal widths, got 64 \(b\) and 32 \(a\); use affine"),
        ({"a": source(0), "b": source(1)}, {"extract": replace(EXTRACT, layers=[3])}, "extract.layers, model.a: layer out of range, got 3; the model has layers 0 to 2"),
        ({"a": source(0), "b": source(1)}, {"hardware": Hardware(memory_gb=0.1)}, "hardware.memory_gb: the run needs about .* GB, got a limit of 0.10 GB; hardware.memory_gb=.* would do, or lower hardware.batch_size"),
        ({"a": source(0), "b": source(1)}, {"groups": {"one": Ranked(by="hans", top=2)}}, "groups.one.by: 'a' has no metrics, got hans; name the models of the group"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            study(model, **{"groups": groups, **settings})
