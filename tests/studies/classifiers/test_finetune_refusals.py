"""Recipes, labels and models that fine-tuning refuses, and families that are numbered."""

import numpy as np
import pytest
import torch
from helpers.composing import composed
from helpers.trained_classifiers import ENTRY, models

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.settings import EveryModel
from repsim_cli.config.run import validate
from repsim_cli.models.source import Source, apply_keys
from repsim_cli.runs import results
from repsim_cli.training import finetune, trained

ALBERT = {**ENTRY["config"], "model_type": "albert"}


def entry(**changes):
    given = {name: value for name, value in (ENTRY | changes).items() if value is not None}
    return f"+model.a={{kind: finetuned, {', '.join(f'{name}: {written(value)}' for name, value in given.items())}}}"


def written(value):
    return str(value).replace("'", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": "{kind: embedded_text}"}, "model.a.train: a classifier needs labelled examples, got Jargon File .*; e.g. {kind: mnli, ...}"),
        ({"train": "{kind: overlap_nly}"}, "model.a.train.kind: unknown data kind, got 'overlap_nly'; did you mean 'overlap_nli'"),
        ({"train": "{kind: overlap_nli, example: 3}"}, "model.a.train.example: unknown key, got 3; did you mean 'examples'"),
        ({"train": None}, "model.a.train: missing; set it"),
        ({"evaluate": "null"}, "model.a.evaluate.kind: missing, got None; write {kind: NAME"),
        ({"evaluate": "{kind: overlap_nli, heuristics: [x]}"}, "model.a.evaluate.heuristics: no such heuristic, got 'x'"),
        ({"recipe": "{lenght: 3}"}, "model.a.recipe.lenght: unknown key, got 3; did you mean 'length'"),
        ({"seeds": [1, 1]}, r"model.a.seeds: not distinct numbers from 0 to 4294967294, got \[1, 1\]; name each seed once"),
        ({"seeds": [2**32 - 1]}, "model.a.seeds.0: wrong value, got 4294967295; give less than 2147483648"),
        ({"recipe": "{length: 64}"}, "model.a.recipe.length: longer than the encoder's context, got 64; at most 32"),
        ({"recipe": "{length: 32, sparsity: {}}"}, "model.a.recipe.sparsity.target: missing; set it"),
        ({"recipe": "{length: 32, sparsity: {target: 1.0}}"}, "model.a.recipe.sparsity.target: wrong value, got 1.0; give less than 1"),
        ({"recipe": "{length: 32, sparsity: {target: 0.5}}", "config": ALBERT}, "model.a.recipe.sparsity: the blocks are not of six linear maps .*, got model_type 'albert'"),
        ({"blocks": 2}, "model.a.blocks: more than the encoder has, got 2; at most 1"),
        ({"recipe": "{length: 32, freeze: {bottom: 2}}"}, "model.a.recipe.freeze: more blocks than the encoder has, got 2; at most 1"),
        ({"recipe": "{length: 32, freeze: {}}"}, "model.a.recipe.freeze.bottom, top: no blocks are named; set one"),
        ({"recipe": "{length: 32, freeze: {bottom: 1}, sparsity: {target: 0.5}}"}, "model.a.recipe.sparsity: not with frozen blocks, which keep their weights, got freeze too; drop one of them"),
        ({"recipe": "{length: 32, freeze: {botom: 1}}"}, "model.a.recipe.freeze.botom: unknown key, got 1; did you mean 'bottom'"),
        ({"recipe": "{length: 32, save: [3]}"}, r"model.a.recipe.save: not two or more distinct steps, got \[3\]; change them"),
        ({"recipe": "{length: 32, steps: 5, save: [3, 6]}"}, "model.a.recipe.save: no such step, got 6; steps go from 0 to 5"),
        ({"hub": "x/y"}, "model.a.config, path, hub: give exactly one of them, got config and x/y; drop one"),
        ({"config": "{model_type: gpt_neox, vocab_size: 50, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}"}, "model.a.config: gpt_neox classifies by the last token before padding, got no pad_token_id; set it in the model's config"),
        ({"config": None}, "model.a.path, hub: give exactly one of them; path is a folder"),
        ({"config": None, "path": "here", "tokenizer": "there"}, "model.a.tokenizer: a pretrained encoder has its own, got 'there'"),
        ({"config": None, "path": "here", "shared": "{data: {kind: overlap_nli}}"}, "model.a.shared: a pretrained encoder has its own, got 'overlap_nli"),
    ],
)  # fmt: skip
def test_bad_recipes_are_refused_before_anything_is_trained(changes, message):
    with pytest.raises(BadConfig, match=message):
        validate(composed("study=finetune", "model=[]", "measure=[]", entry(**changes)))


def test_the_study_takes_no_other_models():
    for given, message in (
        (["model=[tiny_a]"], "model.tiny_a: not trained here"),
        (["model=[]"], "model: no model is"),
    ):
        with pytest.raises(BadConfig, match=message):
            validate(composed("study=finetune", "measure=[]", *given))


def test_a_checkpoint_after_the_last_step(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    given = entry(train="{kind: overlap_nli, examples: 40}", recipe="{length: 32, epochs: 1.0, save: [0, 3]}")
    found = validate(
        composed("experiment=tiny/training_view", "model=[]", given, "extract.hook_points=[embed,mlp_out]")
    )
    with pytest.raises(BadInput, match="save: no such step, got 3; steps go from 0 to 2"):
        found.models["a_0"].make(results.quiet)


def test_metrics_of_two_labels():
    """f1 is that of the second label; scikit-learn agrees."""
    from sklearn.metrics import f1_score

    from repsim_cli.data.base import Labels
    from repsim_cli.data.labels import match_labels

    draw = np.random.default_rng(0)
    logits, codes = torch.from_numpy(draw.normal(size=(50, 2))), draw.integers(2, size=50)
    names = ("negative", "positive")
    labels = Labels(codes, names)
    found = finetune.score_in_distribution(logits, labels, match_labels(names, names, "x"))
    assert found["f1"] == pytest.approx(f1_score(codes, logits.argmax(1)))
    none = finetune.score_in_distribution(
        -torch.eye(2, dtype=torch.float64)[[1] * 50], labels, match_labels(names, names, "x")
    )
    assert list(none) == ["accuracy", "f1", "loss"]
    reversed_labels = finetune.score_in_distribution(logits.flip(1), labels, match_labels(names[::-1], names, "x"))
    assert reversed_labels == found


def test_two_models_of_one_label_are_refused():
    with pytest.raises(BadConfig, match="model.a: two models have the same label, got 'a_0' again; rename an entry"):
        validate(composed("model=[]", "+model.a_0={kind: shipped, name: tiny_a}", entry()))


def test_labels_of_evaluation_must_be_those_of_training(tmp_path):
    file = tmp_path / "sst2.tsv"
    file.write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    with pytest.raises(BadConfig, match="model.a.evaluate: its labels are not those of the data"):
        validate(composed("study=finetune", "measure=[]", "model=[]", entry(evaluate=f"{{kind: sst2, path: {file}}}")))


def test_examples_without_labels_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mnli.tsv"
    file.write_text("sentence1\tsentence2\nA cat sleeps\tA cat sleeps\nIt rains\tIt pours\n")
    found = validate(
        composed(
            "study=finetune",
            "measure=[]",
            "model=[]",
            entry(evaluate=f"{{kind: mnli, path: {file}}}", recipe="{length: 32, steps: 1}"),
        )
    )
    with pytest.raises(BadInput, match="evaluate: a classifier needs a label per example, got none in .*mnli.tsv; add"):
        found.models["a_0"].identity()


def test_a_decoder_without_such_a_head_is_refused():
    from repsim_cli.models.configs import inline_config
    from repsim_cli.training.finetune import make_classifier

    config = inline_config({"model_type": "vit_mae"})
    with pytest.raises(
        BadInput, match="config: no classifier can be made of it, got model_type vit_mae; use an encoder"
    ):
        make_classifier(config, None, None, 0)


def test_numbered_models_are_a_family(trained_once, monkeypatch):
    """Folders stand in the place of the hub."""
    from repsim_cli.models import family

    folders = {str(i): str(trained.find_stored(one.identity()["trained"])) for i, one in enumerate(models().values())}
    real = family.place
    monkeypatch.setattr(family, "place", lambda path, hub, revision: real(folders[hub.split("_")[1]], None, None))
    make = registry.models.get("transformers_family").function
    found = make(hub="seed_{number}", numbers=[1, 0], metrics={"accuracy": [0.9, 0.8]})
    found = apply_keys(found, EveryModel(labels=["c", "b", "a"])).sources
    assert list(found) == ["1", "0"]
    assert all(isinstance(one, Source) and one.labels == ("c", "b", "a") for one in found.values())
    assert [one.metrics() for one in found.values()] == [{"accuracy": 0.9}, {"accuracy": 0.8}]
    assert found["0"].identity()["weights_hash"] != found["1"].identity()["weights_hash"]
    for settings, message in (
        ({"hub": "seed"}, r"hub: not exactly one {number} in it, got 'seed'; e.g."),
        ({"numbers": [1, 1]}, r"numbers: a number occurs twice, got \[1, 1\]; name each model once"),
        ({"metrics": {"accuracy": [0.9]}}, "metrics.accuracy: not a value for each of 2 models, got 1; give all"),
    ):
        with pytest.raises(BadInput, match=message):
            make(**{"hub": "seed_{number}", "numbers": [0, 1], **settings})
