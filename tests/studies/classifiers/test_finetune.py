"""Classifiers that a run trains: the same seed gives the same weights, families, metrics."""

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.composing import composed
from helpers.timers import set_timers
from helpers.tiny_classifiers import TINY_FINETUNED
from helpers.trained_classifiers import ENTRY, models

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.config.run import validate
from repsim_cli.studies.classifiers.finding import make_model_table
from repsim_cli.training import finetune, loop, trained
from repsim_cli.training.sparse import Sparsity


def test_a_family_is_expanded_and_a_plan_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    checked = validate(composed("experiment=tiny/finetune_nli", *TINY_FINETUNED))
    assert list(checked.models) == ["tiny_nli_0", "tiny_nli_1"]
    assert checked.study.plan()["labels"] == ["entailment", "neutral", "contradiction"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.drawn
def test_the_study_trains_and_reports(trained_once, repsim, newest):
    code, out, err = repsim("run", "experiment=tiny/finetune_nli", *TINY_FINETUNED)
    assert code == 0, err
    assert "claim seeds_differ_beyond_their_training (accuracy): " in out
    found = json.loads((newest() / "results.json").read_text())
    table = found["tables"]["classifiers"]
    assert [row[0] for row in table["rows"]] == ["tiny_nli_0", "tiny_nli_1"]
    manifest = json.loads((newest() / "manifest.json").read_text())
    by_label = {label: own["metrics"] for label, own in manifest["models"].items()}
    metrics = by_label["tiny_nli_0"]
    assert table["rows"][0][1:] == [metrics[name] for name in table["columns"][1:]]
    both = [metrics[f"hans_lexical_overlap_{label}"] for label in ("entailment", "non_entailment")]
    assert metrics["hans_lexical_overlap"] == pytest.approx(np.mean(both))
    assert 0 <= metrics["hans_ln_subject_object_swap"] <= 1
    spread = {row[0]: row[1:] for row in found["tables"]["over seeds"]["rows"]}
    accuracies = [one["accuracy"] for one in by_label.values()]
    expected = [min(accuracies), np.mean(accuracies), max(accuracies), np.std(accuracies, ddof=1)]
    assert spread["accuracy"] == pytest.approx(expected)
    for name in ("classifiers-all", "classifiers-loss"):
        assert (newest() / "figures" / f"{name}.png").is_file()
    # a second run finds the models, another recipe does not
    again = repsim("run", "experiment=tiny/finetune_nli", *TINY_FINETUNED)
    assert again[0] == 0
    assert "training tiny_nli" not in again[2]
    assert json.loads((newest() / "results.json").read_text()) == found
    # and they are models of that run by name
    own = registry.models.get("trained").function(run=str(newest()), name="tiny_nli_1")
    assert own.metrics() == own.identity()["metrics"] == by_label["tiny_nli_1"]
    assert own.entry == "tiny_nli"
    assert own.labels == ("entailment", "neutral", "contradiction")
    with pytest.raises(BadInput, match="name: .* has no such model, got 'tiny_nli_2'; did you mean 'tiny_nli_"):
        registry.models.get("trained").function(run=str(newest()), name="tiny_nli_2")
    manifest = json.loads((newest() / "manifest.json").read_text())
    manifest["models"]["tiny_nli_1"]["trained"] = "0" * 32
    (newest() / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="name: no longer in the cache, got 'tiny_nli_1' of .*; train it again"):
        registry.models.get("trained").function(run=str(newest()), name="tiny_nli_1")
    del manifest["models"]
    (newest() / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="run: it trained no model, got .*; name a run of finetune or pretrain"):
        registry.models.get("trained").function(run=str(newest()), name="tiny_nli_1")


def test_dense_and_sparse_classifiers_of_one_recipe(trained_once):
    sparse = models("model.tiny_nli.recipe.sparsity={target: 0.7}", "model.tiny_nli.recipe.steps=6")["tiny_nli_0"]
    metrics, folder = sparse.metrics(), trained.find_stored(sparse.identity()["trained"])
    neuron = 2 * 64 / (12 * 64 * 64)
    assert 0.7 <= metrics["sparsity"] < 0.7 + neuron
    assert metrics["heads_removed"] == 0.5  # of four heads, two
    blocks = json.loads((folder / "training.json").read_text())["blocks"]
    assert len(blocks) == 3
    assert np.mean([block["neurons_removed"] for block in blocks]) == pytest.approx(metrics["neurons_removed"])
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    rows = stored["bert.encoder.layer.2.intermediate.dense.weight"].abs().sum(1)
    assert float((rows == 0).float().mean()) == blocks[2]["neurons_removed"]
    dense = models()["tiny_nli_0"].metrics()
    assert set(metrics) - set(dense) == {"sparsity", "heads_removed", "neurons_removed"}
    assert "sparsity" not in make_model_table({"sparse": metrics, "dense": dense}).columns


def weights(source):
    return source.with_head("AutoModelForSequenceClassification").state_dict()


def test_the_same_seed_gives_the_same_weights(trained_once, tmp_path, monkeypatch):
    first = {label: weights(source) for label, source in models().items()}
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "other"))
    torch.manual_seed(123)  # what was drawn before is of no consequence
    (label, source), *_ = models("model.tiny_nli.seeds=[1]").items()
    own = weights(source)
    assert label == "tiny_nli_1"
    assert all(torch.equal(own[name], first["tiny_nli_1"][name]) for name in own)
    assert not torch.equal(own["classifier.weight"], first["tiny_nli_0"]["classifier.weight"])


def test_a_model_has_one_key_whatever_was_trained_before_it(trained_once):
    """A tokenizer keeps the truncation of its last use."""
    together, alone = models(), models()
    together["tiny_nli_0"].tokenizer()("one two three", truncation=True, max_length=2)
    assert together["tiny_nli_1"].identity()["trained"] == alone["tiny_nli_1"].identity()["trained"]


def test_the_models_are_whole_folders_in_the_format_of_transformers(trained_once):
    source = models()["tiny_nli_0"]
    folder = trained.find_stored(source.identity()["trained"])
    assert json.loads((folder / "metrics.json").read_text()) == source.metrics()
    plain = registry.models.get("transformers").function(path=str(folder))
    assert plain.metrics() == source.metrics()
    assert plain.labels == source.labels
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    assert torch.equal(stored["classifier.weight"], weights(plain)["classifier.weight"])
    backbone = source.load(False).state_dict()
    assert torch.equal(backbone["embeddings.word_embeddings.weight"], stored["bert.embeddings.word_embeddings.weight"])


def test_all_seeds_start_from_the_shared_encoder(trained_once):
    """A few steps of AdamW move no weight by more than the sum of their rates; fresh encoders lie far apart."""
    from repsim_cli.training.finetune import make_classifier

    one, other = (weights(models()[f"tiny_nli_{seed}"]) for seed in (0, 1))
    assert max(float((one[name] - other[name]).abs().max()) for name in one if name.startswith("bert.")) < 0.01
    assert float((one["classifier.weight"] - other["classifier.weight"]).abs().max()) > 0.05
    config = models()["tiny_nli_0"].with_head("AutoModelForSequenceClassification").config
    fresh = [make_classifier(config, None, None, seed).state_dict() for seed in (0, 1)]
    assert max(float((fresh[0][name] - fresh[1][name]).abs().max()) for name in one if name.startswith("bert.")) > 0.1


FAMILY = "model.tiny_nli"


@pytest.mark.slow
def test_a_classifier_is_a_series_of_checkpoints(trained_once, repsim, newest, monkeypatch):
    """Their metrics are those of the evaluation, and the last of them is the classifier that is trained without."""
    words = ["experiment=tiny/training_view", "model=[tiny_nli]", *TINY_FINETUNED, f"{FAMILY}.seeds=[0]"]
    words += [f"+{FAMILY}.recipe.save=[0,3,4]", "data=overlap_nli", "data.examples=20", "extract=pooled"]
    words += ["extract.length=32", "measure=[cka]"]
    alone = models(f"{FAMILY}.seeds=[0]")["tiny_nli_0"]
    alone.identity()  # now the encoder that they start from is in the cache
    with monkeypatch.context() as patch:
        killed_at(patch, 3)
        assert repsim("run", "-q", *words)[0] == 130
    asked = killed_at(monkeypatch, 99)
    code, _, err = repsim("run", "-q", *words)
    assert code == 0, err
    assert len(asked) == 1
    table = json.loads((newest() / "results.json").read_text())["tables"]["distance and metrics"]
    assert table["columns"][4:] == ["accuracy", "loss", "training_loss"]
    assert [row[:3] for row in table["rows"]] == [["tiny_nli_0", "cka", step] for step in (0, 3, 4)]
    series = models(
        f"{FAMILY}.seeds=[0]",
        f"+{FAMILY}.recipe.save=[4,0,3]",
        "study=training_view",
        "analyses={}",
        "claims=[]",
        "measure=[cka]",
    )
    checkpoints = [one.open() for one in series["tiny_nli_0"].checkpoints]
    assert [row[4:] for row in table["rows"]] == [list(one.metrics().values()) for one in checkpoints]
    last = checkpoints[-1]
    assert same(weights(last), weights(alone))
    assert alone.metrics()["loss"] == last.metrics()["loss"]
    assert not same(weights(checkpoints[0]), weights(alone))
    assert last.identity()["source"].endswith("/step4")
    assert last.labels == alone.labels


@pytest.mark.slow
def test_frozen_and_cut_classifiers(trained_once):
    shared, whole = models()["tiny_nli_0"], weights(models()["tiny_nli_0"])
    frozen = weights(models(f"{FAMILY}.seeds=[0]", f"+{FAMILY}.recipe.freeze={{bottom: 2}}")["tiny_nli_0"])
    other = weights(models(f"{FAMILY}.seeds=[1]", f"+{FAMILY}.recipe.freeze={{bottom: 2}}")["tiny_nli_1"])
    below = ("bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1.")
    for name, weight in frozen.items():  # all seeds start from one encoder
        assert torch.equal(weight, other[name]) == name.startswith(below), name
        assert not torch.equal(weight, whole[name]) or not name.startswith(below), name
    for count in (2, 0):
        cut = models(f"{FAMILY}.seeds=[0]", f"+{FAMILY}.blocks={count}")["tiny_nli_0"]
        assert (cut.layers, shared.layers) == (count, 3)
        assert sum("attention.self.query.weight" in name for name in weights(cut)) == count
        assert cut.identity()["trained"] != shared.identity()["trained"]


def test_a_pretrained_encoder_is_what_training_starts_from(trained_once):
    from repsim_cli.training.finetune import label_config, make_classifier

    source = models()["tiny_nli_0"]
    folder = str(trained.find_stored(source.identity()["trained"]))
    config = label_config(source.with_head("AutoModelForSequenceClassification").config, ["a", "b"])
    made = make_classifier(config, folder, None, 3)
    stored = weights(source)
    for name, weight in made.state_dict().items():
        assert torch.equal(weight, stored[name]) != name.startswith("classifier.weight"), name
        if name.startswith("classifier"):
            break
    assert made.classifier.weight.shape[0] == 2
    assert made.config.id2label == {0: "a", 1: "b"}


def classifier_and_examples(**settings):
    """A BERT of one block with dropout, and 40 examples of sixteen tokens or fewer."""
    from repsim_cli.models.configs import inline_config

    data = registry.data.get("overlap_nli").function(examples=40)
    shape = {**ENTRY["config"], "num_hidden_layers": 2, **settings}
    config = finetune.label_config(inline_config(shape), data.names)
    words = finetune.build_word_tokenizer((text for example in data.examples()[0] for text in example.texts), 64, 32)
    return finetune.make_classifier(config, None, None, 3), finetune.encode_examples(data, words, 32)


def fine_tuned(recipe, state=None, **settings):
    """The weights and the loss after a fine-tuning, in one order."""
    model, examples = classifier_and_examples(**settings)
    losses = finetune.fine_tune(model, examples, recipe, segments=True, seed=4, along=loop.Along(state=state))
    return model.state_dict(), losses


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def killed_at(monkeypatch, step):
    """The examples of this step are asked for by a user who presses Ctrl-C; a list as long as the steps done."""
    asked, batch_of = [], finetune.make_labelled_batch

    def stopping(*given):
        asked.append(1)
        if len(asked) > step:
            raise KeyboardInterrupt
        return batch_of(*given)

    set_timers(monkeypatch, due=True)
    monkeypatch.setattr(finetune, "make_labelled_batch", stopping)
    return asked


RECIPE = finetune.FineTuneRecipe(length=32, epochs=2.0, batch_size=16, learning_rate=1e-2, warm_up=2, weight_decay=0.1)


SPARSE = replace(RECIPE, sparsity=Sparsity(target=0.7, until=0.9))


@pytest.mark.parametrize("recipe", [RECIPE, SPARSE])
def test_a_killed_fine_tuning_ends_with_the_same_bits(tmp_path, monkeypatch, recipe):
    state = tmp_path / "state.safetensors"
    wanted, losses = fine_tuned(recipe)
    with monkeypatch.context() as patch:
        killed_at(patch, 4)  # in the second epoch
        with pytest.raises(KeyboardInterrupt):
            fine_tuned(recipe, state)
    asked = killed_at(monkeypatch, 99)
    torch.manual_seed(1)  # dropout follows the saved state alone
    resumed, again = fine_tuned(recipe, state)
    assert len(asked) == 2  # of six steps
    assert same(resumed, wanted)
    assert again == losses
    assert not same(fine_tuned(recipe, hidden_dropout_prob=0.0)[0], wanted)


def test_a_target_of_zero_trains_the_dense_bits():
    dense, losses = fine_tuned(RECIPE)
    found, others = fine_tuned(replace(RECIPE, sparsity=Sparsity(target=0.0)))
    assert same(found, dense)
    assert losses == others
    sparse, others = fine_tuned(SPARSE)
    assert losses[1] == others[1]  # the first step has the same examples
    assert not same(sparse, dense)


def test_the_steps_are_those_of_a_plain_loop():
    """Every example once in an epoch, a rate that rises and falls, decay of matrices alone, clipped gradients."""
    recipe = replace(RECIPE, clip=0.5)
    model, examples = classifier_and_examples(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    matrices = [weights for name, weights in model.named_parameters() if weights.ndim == 2]
    vectors = [weights for name, weights in model.named_parameters() if weights.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, fused=True)
    batches = [
        rows
        for epoch in range(2)
        for rows in torch.randperm(40, generator=torch.Generator().manual_seed(4 + epoch)).split(16)
    ]
    for rows, share in zip(batches, [0, 1 / 2, 1, 3 / 4, 1 / 2, 1 / 4], strict=True):
        longest = int(examples.mask[rows].sum(1).max())
        ids, mask, segments = (
            torch.from_numpy(x[rows, :longest]).long() for x in (examples.ids, examples.mask, examples.segments)
        )
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        loss = model(**given, labels=torch.from_numpy(examples.labels.codes[rows]).long()).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimiser.param_groups:
            group["lr"] = 1e-2 * share
        optimiser.step()
    found = fine_tuned(recipe, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)[0]
    assert same(found, model.state_dict())


def test_a_loss_that_is_not_finite():
    with pytest.raises(RunFailed, match="training: the loss is not finite, got nan at step .; lower learning_rate"):
        fine_tuned(replace(RECIPE, learning_rate=1e30, clip=1e30))
