"""Keys that every model's entry takes: hook points of its own and names of labels; and contexts shorter than asked."""

import json

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.settings import EveryModel
from repsim_cli.config.run import validate
from repsim_cli.models.source import Series, apply_keys
from repsim_cli.runs import reader

SMALL = ("model=[]", "data=embedded", "extract.length=32", "extract.sequences=12", "extract.batch_rows=64")


def entry(label, folder, more=""):
    return f"+model.{label}={{kind: transformers, path: {folder}{more}}}"


def sides(folder):
    """The layers of each model, by label."""
    return {m["rows"]["model"]: m["rows"]["layers"] for m in recorded(folder)["measures"][0]["matrices"]}


def test_models_with_hook_points_of_their_own_meet(repsim, newest, tiny_folder):
    """Hook points are of another kind and number: numbers equal those of a run with the same points for all."""
    words = (
        entry("a", tiny_folder("llama", 0), ', hook_points: ["module:model.layers.*.mlp", embed]'),
        entry("b", tiny_folder("llama", 1)), "measure=[cka]", "extract.hook_points=[resid_post]",
    )  # fmt: skip
    assert repsim("run", "-q", *SMALL, *words)[0] == 0
    own = newest()
    assert sides(own) == {
        "a": ["module:layers.0.mlp", "module:layers.1.mlp", "module:layers.2.mlp", "embed"],
        "b": ["resid_post@0", "resid_post@1", "resid_post@2"],
    }
    facts = reader.read_manifest(own)["facts"]
    assert facts["a"]["layers"] == sides(own)["a"]
    plain = (entry("a", tiny_folder("llama", 0)), entry("b", tiny_folder("llama", 1)))
    points = "extract.hook_points=[mlp_out,embed,resid_post]"
    assert repsim("run", "-q", *SMALL, *plain, "measure=[cka]", points)[0] == 0

    def between(folder):
        return next(
            reader.read_array(folder, m["values"])
            for m in recorded(folder)["measures"][0]["matrices"]
            if (m["rows"]["model"], m["columns"]["model"]) == ("a", "b")
        )

    # mlp_out is read at the output projection, which ends the module mlp
    np.testing.assert_allclose(between(own), between(newest())[:4, 4:], atol=1e-6)


def test_a_dry_run_says_what_is_read_of_a_model(repsim, tiny_folder):
    words = (entry("a", tiny_folder("bert")), "measure=[cka]", "model.a.hook_points=[embed,resid_post@-1]")
    code, out, _ = repsim("run", *SMALL, *words, "dry_run=true")
    assert code == 0
    assert "a: bert, 3 blocks of 32, " in out
    assert ", read at embed, resid_post@-1" in out


def test_checkpoints_of_a_series_share_the_hook_points(tiny_folder):
    made = registry.models.get("series").function(shipped="tiny_a")
    keyed = apply_keys(made, EveryModel(hook_points=["embed"]))
    assert isinstance(keyed, Series)
    assert [one.open().hook_points for one in keyed.checkpoints] == [("embed",)] * 3
    assert [one.step for one in keyed.checkpoints] == [100, 400, 2000]


def test_a_series_is_read_at_its_own_hook_points(repsim, newest):
    words = ("study=convergence", "model=[]", "measure=[cka]", "data=embedded", "extract.sequences=12",
             "extract.batch_rows=64", "extract.length=32")  # fmt: skip
    series = "+model.a={kind: series, shipped: tiny_a, hook_points: ['module:layers.*.mlp']}"
    code, _, err = repsim("run", "-q", *words, series)
    assert code == 0, err
    assert reader.read_manifest(newest())["facts"]["a"]["layers"] == [f"module:layers.{i}.mlp" for i in range(6)]


def test_seeds_make_a_family_of_a_model_with_a_seed():
    from helpers.composing import composed

    seeds = "+model.fresh={kind: random, shipped: tiny_a, seed: 7, seeds: [3, 0], hook_points: [embed]}"
    found = validate(composed(*SMALL, "model=[random_tiny]", seeds, "measure=[cka]"))
    assert list(found.models) == ["random_tiny", "fresh_3", "fresh_0"]
    assert {source.entry for source in found.models.values()} == {"", "fresh"}
    assert found.models["fresh_0"].hook_points == ("embed",)
    weights = {label: next(source.load(False).parameters()) for label, source in found.models.items()}
    assert torch.equal(weights["fresh_0"], weights["random_tiny"])
    assert not torch.equal(weights["fresh_0"], weights["fresh_3"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "kind: random, shipped: tiny_a, seeds: [1, 1]",
            r"model.m.seeds: not distinct, got \[1, 1\]; name each seed once",
        ),
        ("kind: random, shipped: tiny_a, seeds: []", r"model.m.seeds: too few, got \[\]; give at least 1"),
        ("kind: shipped, name: tiny_a, seeds: [0]", r"model.m.seeds: unknown key, got \[0\]"),
    ],
)
def test_bad_seeds(entry, message):
    from helpers.composing import composed

    with pytest.raises(BadConfig, match=message):
        validate(composed(*SMALL, f"+model.m={{{entry}}}", "measure=[cka]"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("hook_points: [resid_pots]", "model.a.hook_points: unknown hook point, got 'resid_pots'; did you mean 'resid_post"),
        ("hook_points: []", r"model.a.hook_points: too few, got \[\]; give at least 1"),
        ("hook_points: embed", "model.a.hook_points: wrong value, got 'embed'; give a list, each text, at least 1 of them, or null, e.g. .TEXT."),
        ("hook_pionts: [embed]", r"model.a.hook_pionts: unknown key, got \['embed'\]; did you mean 'hook_points'"),
        ("hook_points: ['module:layers.*.mpl']", r"model.a.hook_points: no such module, got 'module:layers.\*.mpl'; did you mean 'layers.2.mlp' or 'layers.1.mlp'"),
        ("labels: [yes_, no_]", r"model.a.labels: the model is no classifier, got \['yes_', 'no_'\]; drop them"),
    ],
)  # fmt: skip
def test_bad_keys_of_a_model(tiny_folder, more, message):
    from helpers.composing import composed

    with pytest.raises(BadConfig, match=message):
        validate(composed(*SMALL, entry("a", tiny_folder("llama"), f", {more}"), "measure=[cka]"))


@pytest.mark.parametrize(
    ("study", "more"),
    [
        ("attention", ["extract=attention", "data=embedded_sentences", "measure=[attention_js]"]),
        ("outputs", ["measure=[]", "data=embedded"]),
    ],
)
def test_studies_that_read_the_same_of_every_model_take_no_hook_points_of_one(tiny_folder, study, more):
    from helpers.composing import composed

    keyed = entry("a", tiny_folder("llama"), ", hook_points: [embed]")
    message = rf"model.a.hook_points: the study {study} reads the same of every model, got \['embed'\]; drop it"
    with pytest.raises(BadConfig, match=message):
        validate(composed("model=[]", f"study={study}", *more, keyed, entry("b", tiny_folder("llama"))))


def test_stored_activations_take_none(tmp_path):
    from helpers.composing import composed

    np.savez(tmp_path / "layers.npz", a=np.zeros((8, 2), np.float32))
    stored = f"+model.a={{kind: precomputed, path: {tmp_path / 'layers.npz'}, hook_points: [embed]}}"
    message = r"model.a.hook_points: stored activations have none, got \['embed'\]; drop it"
    with pytest.raises(BadConfig, match=message):
        validate(composed(*SMALL, stored, "measure=[cka]"))


def classifier(folder, tokenizer_folder, labels, seed):
    """A BERT with a head for so many labels, which have no names."""
    import shutil

    import transformers
    from helpers.tiny import TINY

    settings = {key: value for key, value in TINY["bert"].items() if key != "model_type"} | {"num_labels": labels}
    torch.manual_seed(seed)
    config = transformers.BertConfig(**settings)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    return folder


NAMES = "entailment, neutral, contradiction"


def test_labels_without_names_take_them_from_the_entry(repsim, newest, tmp_path, tokenizer_folder):
    """Accuracy follows from the order of the names: the same model with two orders."""
    rows = [
        {"premise": f"a man {i}", "hypothesis": f"someone {i} sleeps", "label": label}
        for i in range(12)
        for label in ("entailment", "neutral", "contradiction")
    ]
    (tmp_path / "mnli.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folder = classifier(tmp_path / "model", tokenizer_folder, 3, 0)
    other = classifier(tmp_path / "other", tokenizer_folder, 3, 1)
    words = ("run", "-q", "study=outputs", "model=[]", "measure=[]", "data=mnli", "extract=pooled",
             f"data.path={tmp_path / 'mnli.jsonl'}", "extract.length=32")  # fmt: skip
    code, _, err = repsim(*words, entry("a", folder), entry("b", other))
    assert (code, "its labels are not those of the data, got ['LABEL_0', 'LABEL_1', 'LABEL_2']" in err) == (2, True)
    code, _, err = repsim(
        *words, entry("a", folder, f", labels: [{NAMES}]"), entry("b", folder, ", labels: [neutral, contradiction, entailment]")
    )  # fmt: skip
    assert code == 0, err
    source = registry.models.get("transformers").function(path=str(folder))
    data = registry.data.get("mnli").function(path=str(tmp_path / "mnli.jsonl"))
    from repsim_cli.base.settings import Extract

    given = data.sequences(source.tokenizer(), Extract(hook_points=["embed"], unit="mean", length=32, sequences=64), 0)
    with torch.inference_mode():
        logits = source.with_head("AutoModelForSequenceClassification")(
            torch.from_numpy(given.ids).long(), attention_mask=torch.from_numpy(given.mask).long(),
        ).logits  # fmt: skip
    answers = logits.argmax(1).numpy()
    table = next(t for t in recorded(newest())["tables"].values() if "accuracy" in t["columns"])
    found = {row[0]: row[table["columns"].index("accuracy")] for row in table["rows"]}
    codes = given.labels.codes
    assert found["a"] == pytest.approx((answers == codes).mean())
    assert found["b"] == pytest.approx((np.array([1, 2, 0])[answers] == codes).mean())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b"], r"labels: the model is a classifier of 3 labels, got \['a', 'b'\]; name all, in the order"),
        (["a", "b", "a"], r"labels: two are the same, got \['a', 'b', 'a'\]; name each differently"),
    ],
)
def test_bad_labels(tmp_path, tokenizer_folder, labels, message):
    source = registry.models.get("transformers").function(path=str(classifier(tmp_path, tokenizer_folder, 3, 0)))
    with pytest.raises(BadInput, match=message):
        apply_keys(source, EveryModel(labels=labels))


def test_a_length_above_a_context_is_lowered_for_all(repsim, newest, tiny_folder):
    """The numbers are those of the length that fits; the note stands in the log, the manifest, the report's results."""
    words = (entry("a", tiny_folder("llama", 0)), "model=[tiny_a]", "data=embedded", "extract=pooled", "measure=[cka]",
             "extract.sequences=12", "extract.batch_rows=12")  # fmt: skip
    note = "extract.length: lowered from 200 to 64 tokens, the context of 'a'; all models read the same rows"
    code, _, err = repsim("run", "-q", *words, "extract.length=200")
    assert code == 0, err
    lowered = newest()
    manifest, found = reader.read_manifest(lowered), recorded(lowered)
    assert note in manifest["warnings"]
    assert note in found["warnings"]
    assert note in (lowered / "repsim.log").read_text()
    assert manifest["data"]["length"] == 64
    assert repsim("run", "-q", *words, "extract.length=64")[0] == 0
    assert not any("lowered" in warning for warning in reader.read_manifest(newest())["warnings"])
    for a, b in zip(found["measures"][0]["matrices"], recorded(newest())["measures"][0]["matrices"], strict=True):
        np.testing.assert_array_equal(reader.read_array(lowered, a["values"]), reader.read_array(newest(), b["values"]))
    _, out, _ = repsim("run", *words, "extract.length=200", "dry_run=true")
    assert f"notes: {note}" in out
