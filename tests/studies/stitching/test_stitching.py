"""Stitched models: exact with themselves on every architecture, frozen but for the stitch layer, honest about failure."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.stitched_models import CAUSAL, CLASSES, random, same_layer, some, source, whole
from helpers.tiny import TINY

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.data.base import Sequences
from repsim_cli.models.architectures import MODULAR, REFUSED
from repsim_cli.models.points import Architecture
from repsim_cli.studies.stitching.checks import check_stitchable
from repsim_cli.studies.stitching.evaluate import (
    Estimate,
    Head,
    PassSettings,
    PredictionTask,
    Stitch,
    StitchScores,
    check_outputs,
    evaluate_stitches,
    make_classification_task,
    make_next_token_task,
)
from repsim_cli.studies.stitching.layers import (
    check_layer,
)
from repsim_cli.studies.stitching.models import (
    EMBED,
    Inputs,
    list_output_names,
    make_input_batch,
    open_whole,
    scramble,
)
from repsim_cli.studies.stitching.noise import shuffle_head_rows
from repsim_cli.studies.stitching.train import Fitting, StitchRecipe, fit_stitches


def batch(**settings):
    return make_input_batch(some(**settings), slice(None))


# a type of every layout, and what could get in the way of a cut: scaled embeddings, learned positions, masks by the
# number of a block, experts, blocks that return a tuple or a list, caches of state
CUT = {
    CAUSAL: (
        "native", "gpt_neox", "gpt2", "llama", "openai-gpt", "gpt_neo", "gptj", "codegen", "opt", "bloom", "mpt", "falcon", "phi",
        "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2", "cohere2", "granite", "gpt_oss", "mixtral",
        "qwen3_moe", "deepseek_v3", "ctrl", "jamba",
    ),
    CLASSES: ("bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert", "gpt_neox", "gpt2", "llama", "gemma2"),
}  # fmt: skip


@pytest.mark.parametrize(("auto", "kind"), [(auto, kind) for auto, kinds in CUT.items() for kind in kinds])
def test_a_model_stitched_to_itself_gives_exactly_its_own_outputs(auto, kind):
    model, inputs = whole(kind, auto), batch(below=90)
    own = model.model(**model.make_inputs(inputs)).logits
    assert torch.isfinite(own).all()
    layers = range(EMBED, model.depth)
    assert len(layers) > 2
    streams = model.streams(inputs, list(layers))
    for layer in layers:
        alone = model.streams(inputs, [layer])[layer]
        assert torch.equal(alone, streams[layer])
        assert torch.equal(model.tail(layer)(streams[layer], inputs), own)
    # nothing of the model was changed by that
    assert torch.equal(model.model(**model.make_inputs(inputs)).logits, own)


def test_named_models_of_transformer_lens(tmp_path, tokenizer_folder):
    model = whole("gpt2").model
    model.save_pretrained(tmp_path)
    for file in tokenizer_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    named = registry.models.get("transformer_lens").function
    found, inputs = open_whole("m", named(path=str(tmp_path)), CAUSAL, "cpu"), batch()
    assert torch.equal(
        found.tail(1)(found.streams(inputs, [1])[1], inputs),
        model(input_ids=inputs.ids, attention_mask=inputs.mask.long()).logits,
    )
    with pytest.raises(
        BadInput, match=r"model.m.process_weights: a model with folded norms has no head, got true; leave"
    ):
        open_whole("m", named(path=str(tmp_path), process_weights=True), CAUSAL, "cpu")


@pytest.mark.parametrize(("auto", "kind"), [(CAUSAL, "gpt2"), (CAUSAL, "native"), (CLASSES, "bert")])
def test_padding_leaks_into_no_stitched_model(auto, kind):
    head, tail, inputs = whole(kind, auto), whole(kind, auto, seed=1), batch()
    row, length = 1, int(inputs.mask[1].sum())
    assert length < inputs.ids.shape[1]
    short = Inputs(*(x[row : row + 1, :length] for x in inputs))
    padded = tail.tail(1)(head.streams(inputs, [1])[1], inputs)[row]
    alone = tail.tail(1)(head.streams(short, [1])[1], short)[0]
    assert torch.allclose(padded[:length] if auto == CAUSAL else padded, alone, atol=1e-4)


def test_only_the_needed_blocks_run():
    """Those of the head up to l and those of the tail after m; the head once for all its layers."""
    head, tail, inputs = whole("gpt2"), whole("llama"), batch()
    calls = Counter()
    for name, model in (("head", head), ("tail", tail)):
        for i, block in enumerate(model.blocks):
            block.register_forward_hook(lambda *_, place=(name, i): calls.update([place]))
    streams = head.streams(inputs, [EMBED, 0, 1])
    assert calls == {("head", 0): 1, ("head", 1): 1}
    calls.clear()
    tail.tail(1)(streams[0], inputs)
    assert calls == {("tail", 2): 1}


def test_every_model_runs_once_per_batch_however_many_stitches_it_is_in():
    models = {name: whole("gpt2", seed=seed, label=name) for seed, name in enumerate("abc")}
    calls = Counter()
    for name, model in models.items():
        model.model.transformer.wte.register_forward_hook(lambda *_, name=name: calls.update([name]))
    stitches = same_layer([Head(name) for name in models], models, [0, 1])
    found = evaluate_stitches(
        {Head(name): model for name, model in models.items()},
        models,
        stitches,
        some(),
        make_next_token_task(),
        PassSettings(batch_size=3),
    )
    # the tails' token embeddings run too, and are not used: 2 batches of 6 stitches, and of the last block's outputs
    assert calls == dict.fromkeys("abc", 2 + 2 * 7)
    for stitch in stitches:
        penalty = found.penalty(stitch)
        assert (penalty == Estimate(0.0, 0.0)) == (stitch.head.model == stitch.tail)
        assert (found.estimate(stitch, "kl").value == 0.0) == (stitch.head.model == stitch.tail)


def test_scores_are_those_of_the_outputs():
    model, given = whole("gpt_neox"), some()
    found = evaluate_stitches(
        {Head("m"): model},
        {"m": model},
        [Stitch(Head("m"), "m", 0, 1)],
        given,
        make_next_token_task(),
        PassSettings(batch_size=4),
    )
    inputs = make_input_batch(given, slice(None))
    own = model.model(**model.make_inputs(inputs)).logits
    other = model.tail(1)(model.streams(inputs, [0])[0], inputs)
    inside = inputs.mask[:, 1:]
    losses = [torch.nn.functional.cross_entropy(x[:, :-1][inside], inputs.ids[:, 1:][inside]) for x in (own, other)]
    stitch = Stitch(Head("m"), "m", 0, 1)
    assert found.estimate_alone("m", "loss").value == pytest.approx(float(losses[0]), rel=1e-5)
    assert found.penalty(stitch).value == pytest.approx(float(losses[1] - losses[0]), rel=1e-4)
    p, q = (x[:, :-1][inside].log_softmax(-1) for x in (own, other))
    assert found.estimate(stitch, "kl").value == pytest.approx(float((p.exp() * (p - q)).sum(1).mean()), rel=1e-4)
    right = inputs.ids[:, 1:][inside]
    lost = (p.argmax(1) == right).float().mean() - (q.argmax(1) == right).float().mean()
    assert found.penalty(stitch, "correct").value == pytest.approx(float(lost), abs=1e-6)
    assert found.estimate(stitch, "differs").value == pytest.approx(float((p.argmax(1) != q.argmax(1)).float().mean()))


def test_the_standard_error_is_that_of_a_mean_where_sequences_weigh_the_same():
    values = np.random.default_rng(0).normal(size=30)
    stitch = Stitch(Head("a"), "b", 0, 0)
    found = StitchScores(np.ones(30), {"b": {"loss": np.zeros(30)}}, {stitch: {"loss": values}}, np.ones(2, int))
    assert found.penalty(stitch).value == pytest.approx(values.mean())
    assert found.penalty(stitch).se == pytest.approx(values.std(ddof=1) / np.sqrt(30))
    # twice as many predictions of the same kind in a sequence are one sequence still
    twice = StitchScores(
        2 * np.ones(30), {"b": {"loss": np.zeros(30)}}, {stitch: {"loss": 2 * values}}, np.ones(2, int)
    )
    assert twice.penalty(stitch) == pytest.approx(found.penalty(stitch))
    # and so are copies of a sequence, which are of one document
    copied = StitchScores(
        np.ones(60), {"b": {"loss": np.zeros(60)}}, {stitch: {"loss": np.tile(values, 2)}}, np.ones(2, int),
        documents=np.tile(np.arange(30), 2),
    )  # fmt: skip
    assert copied.penalty(stitch) == pytest.approx(found.penalty(stitch))
    assert copied.freedom == found.freedom == 29


def test_classifiers_are_compared_on_the_labels_of_the_data():
    models = {name: source("bert", CLASSES) for name in "ab"}
    assert list_output_names(models["a"]) == ("entailment", "neutral", "contradiction")
    assert make_classification_task(models, ("contradiction", "entailment", "neutral")) == PredictionTask(
        CLASSES, (1, 2, 0), (0, 1, 2)
    )
    hans = make_classification_task(models, ("non-entailment", "entailment"))
    assert hans == PredictionTask(CLASSES, (0, 1, 1), (1, 0))
    # not entailed is more probable in all, but no single output is more probable than entailment: as HANS is scored
    found = hans.predict(torch.tensor([[0.4, 0.35, 0.25], [0.1, 0.2, 0.7]]).log(), batch(count=2), torch.tensor([1, 0]))
    assert torch.allclose(found.log_p.exp(), torch.tensor([[0.4, 0.6], [0.1, 0.9]]))
    assert (found.answer.tolist(), found.right.tolist()) == ([0, 1], [0, 1])
    for labels in (("positive", "negative"), ("yes", "no", "maybe")):
        with pytest.raises(BadInput, match=r"model.a: its labels are not those of the data, got .*; name them in"):
            make_classification_task(models, labels)
    unnamed = {"a": source("bert", CLASSES, id2label={0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})}
    assert make_classification_task(unnamed, ("yes", "no", "maybe"), outputs=("no", "yes", "maybe")).outputs == (
        1,
        0,
        2,
    )
    with pytest.raises(BadInput, match=r"model.a: its outputs and their names differ in number, got \[\] for 3"):
        check_outputs(unnamed)


@pytest.mark.parametrize("names", [{0: "neutral", 1: "entailment", 2: "contradiction"}, {0: "no", 1: "yes"}])
def test_classifiers_with_other_labels_are_refused(names):
    models = {"a": source("bert", CLASSES), "b": source("bert", CLASSES, id2label=names)}
    with pytest.raises(BadInput, match=r"model.b: its labels differ in order or number, got .* of 'a'; stitch"):
        check_outputs(models)


def test_classifiers_stitch():
    labels = ("entailment", "neutral", "contradiction")
    models = {name: whole("distilbert", CLASSES, label=name, seed=seed) for seed, name in enumerate("ab")}
    task = make_classification_task({name: model.source for name, model in models.items()}, labels)
    stitches = same_layer([Head("a"), Head("b")], models, [EMBED, 2])
    heads = {Head(name): model for name, model in models.items()}
    found = evaluate_stitches(heads, models, stitches, some(labels=labels), task, PassSettings(batch_size=4))
    assert found.weights.tolist() == [1.0] * 6
    for stitch in stitches:
        own, lost = found.estimate_alone(stitch.tail, "correct").value, found.penalty(stitch, "correct").value
        assert found.estimate(stitch, "correct").value == pytest.approx(own - lost)
        if stitch.head.model == stitch.tail:
            assert lost == 0.0


def test_a_training_that_diverges_says_so():
    """Its losses overflow, or stay above what knowing nothing would cost."""
    shipped = registry.models.get("shipped").function(name="tiny_a")
    model, given = open_whole("m", shipped, CAUSAL, "cpu"), some()
    stitch = Stitch(Head("m"), "m", 4, 4)
    for rate in (1e4, 1e30):
        recipe = StitchRecipe(layer="linear", steps=20, warm_up=0, batch=4, learning_rate=rate)
        fit = fit_stitches(
            model, model, [stitch], given, make_next_token_task(), Fitting(recipe, batch_size=4, seed=0)
        )[stitch]
        assert fit.diverged is not None
        assert np.isfinite(fit.losses).all()
    calm = StitchRecipe(layer="linear", steps=5, warm_up=0, batch=4, learning_rate=1e-6)
    assert (
        fit_stitches(model, model, [stitch], given, make_next_token_task(), Fitting(calm, batch_size=4, seed=0))[
            stitch
        ].diverged
        is None
    )


def test_outputs_that_are_not_finite_are_no_penalty():
    model = whole("gpt2")
    broken = torch.nn.Linear(32, 32)
    torch.nn.init.constant_(broken.weight, torch.inf)
    stitch = Stitch(Head("m"), "m", 1, 1)
    with pytest.raises(
        RunFailed, match=r"m -> m, resid_post@1: its outputs are not finite; use hardware.dtype=float32"
    ):
        evaluate_stitches(
            {Head("m"): model},
            {"m": model},
            [stitch],
            some(),
            make_next_token_task(),
            PassSettings(3),
            {stitch: broken},
        )


def test_baseline_heads():
    model, inputs = whole("gpt2"), batch()
    wild = scramble(model, CAUSAL, seed=1)
    source_of = open_whole("m", model.source, CAUSAL, "cpu")
    for a, b in zip(wild.model.parameters(), source_of.model.parameters(), strict=True):
        assert torch.equal(a.flatten().sort()[0], b.flatten().sort()[0])
    assert not torch.equal(
        wild.model.transformer.h[0].mlp.c_fc.weight, source_of.model.transformer.h[0].mlp.c_fc.weight
    )
    streams = model.streams(inputs, [0, 1])
    moved = shuffle_head_rows(streams, inputs.mask, seed=1)
    for layer, stream in streams.items():
        assert torch.equal(moved[layer][~inputs.mask], stream[~inputs.mask])
        rows, same = moved[layer][inputs.mask], stream[inputs.mask]
        assert torch.equal(rows[rows[:, 0].argsort()], same[same[:, 0].argsort()])
        assert not torch.equal(rows, same)
    # the same order at every layer
    assert torch.equal(shuffle_head_rows({1: streams[1]}, inputs.mask, seed=1)[1], moved[1])


@pytest.mark.parametrize("layer", ["identity", "orthogonal"])
def test_other_widths_are_refused(layer):
    match = rf"options.recipe.layer: {layer} needs equal widths, got 32 \(a\) and 48 \(b\); use affine, linear or least_squares"
    with pytest.raises(BadInput, match=match):
        check_layer(layer, "least_squares", ("a", 32), ("b", 48))
    with pytest.raises(
        BadInput, match=r"options.recipe.init: identity needs equal widths, got 32 \(a\) and 48 \(b\); use least"
    ):
        check_layer("affine", "identity", ("a", 32), ("b", 48))
    check_layer("linear", "least_squares", ("a", 32), ("b", 48))
    check_layer(layer, "identity", ("a", 32), ("b", 32))


def test_what_cannot_be_stitched_is_refused(tmp_path, tiny_folder, monkeypatch):
    with pytest.raises(
        BadInput,
        match=r"model.x: its blocks cannot be stitched under AutoModelForCausalLM, got model_type 'bert' \(it has no such head\)",
    ):
        check_stitchable("x", random(config=TINY["bert"]), CAUSAL)
    with pytest.raises(BadInput, match=r"got model_type 'albert' \(its layers share the weights of a block\); use ano"):
        check_stitchable("x", random(config=TINY["albert"]), CLASSES)
    with pytest.raises(BadInput, match=r"got model_type 'xlnet' \(its blocks pass on more than the stream\); use anot"):
        check_stitchable("x", random(config=TINY["xlnet"]), CAUSAL)
    table = Architecture(blocks="", block={}, stacks={"encoder": MODULAR, "decoder": MODULAR})
    for architecture, why in ((table, "it has an encoder and a decoder"), (None, "no blocks are known in it")):
        with pytest.raises(BadInput, match=rf"got model_type 'gpt2' \({why}\); use another model"):
            check_stitchable("x", replace(random(config=TINY["gpt2"]), architecture=architecture), CAUSAL)
    with pytest.raises(
        BadInput, match=r"model.m: more than the stream passes between its blocks, got other outputs wh"
    ):
        whole("zaya")
    for name in ("gemma3n_text", "reformer"):  # as if their blocks were guessed
        monkeypatch.delitem(REFUSED, name)
    with pytest.raises(
        BadInput, match=r"cut after block 0, got (a stream of the shape \(4, 1, 4, 32\), no|Type-check)"
    ):
        whole("gemma3n_text")
    with pytest.raises(BadInput, match=r"model.m: it does not run when cut after block 0, got ReformerOutput.*missing"):
        whole("reformer", CLASSES)
    np.savez(tmp_path / "a.npz", h=np.zeros((4, 3), np.float32))
    stored = registry.models.get("precomputed").function(path=str(tmp_path / "a.npz"))
    with pytest.raises(
        BadInput, match=r"model.x: it cannot be run past its activations, got no model with a head; use"
    ):
        check_stitchable("x", stored, CAUSAL)
    backbone = registry.models.get("transformers").function(path=str(tiny_folder("gpt2")))
    with pytest.raises(
        BadInput, match=r"model.x.path: its checkpoint has no head for AutoModelForSequenceClassification"
    ):
        open_whole("x", backbone, CLASSES, "cpu")
    backbone = registry.models.get("transformers").function(path=str(tiny_folder("gpt_neox")))
    with pytest.raises(
        BadInput, match=r"model.x.path: its checkpoint has no head for AutoModelForCausalLM, got .*; use a"
    ):
        open_whole("x", backbone, CAUSAL, "cpu")
    with pytest.raises(
        BadInput, match=r"config: no head for AutoModelForCausalLM, got model_type distilbert; use a model"
    ):
        source("distilbert").with_head(CAUSAL)
    with pytest.raises(
        BadInput, match=r"kind: a native model with raw weights has only the head of AutoModelForCausalLM"
    ):
        source("native").with_head(CLASSES)
    model = whole("gpt2")
    with pytest.raises(BadInput, match=r"data: no evaluation rows are left, got 1 sequences; give more data"):
        evaluate_stitches({}, {"m": model}, [], some(count=1), make_next_token_task(), PassSettings(batch_size=2))


@pytest.mark.parametrize(("kind", "auto"), [("gpt2", CAUSAL), ("bert", CLASSES)])
def test_a_random_model_has_the_same_backbone_with_its_head(kind, auto):
    found = source(kind, auto)
    whole_model, backbone = found.with_head(auto), found.load(False)
    state = backbone.state_dict()
    for name, weights in whole_model.base_model.state_dict().items():
        assert torch.equal(weights, state[name]), name


def test_a_batch_is_cut_to_its_longest_sequence():
    mask = np.arange(6) < np.asarray([[2], [6], [3]])
    given = Sequences(np.where(mask, 7, 0), mask, mask, mask - 1, mask - 1, 3, segments=np.zeros_like(mask, dtype=int))
    assert [make_input_batch(given, rows).ids.shape for rows in (np.asarray([0, 2]), slice(1, 3))] == [(2, 3), (2, 6)]
    assert make_input_batch(given, np.asarray([2, 0])).mask.sum(1).tolist() == [3, 2]
    assert make_input_batch(given, np.asarray([0])).segments.shape == (1, 2)
