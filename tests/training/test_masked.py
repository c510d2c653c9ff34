"""Masked language modelling: which tokens are hidden, metrics that plain computations give, the same bits after a kill,
and classifiers that start from the encoder."""

import json

import numpy as np
import pytest
import torch
from helpers.composing import composed
from helpers.timers import set_timers

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.config.run import validate
from repsim_cli.models.configs import inline_config
from repsim_cli.training import encoder as training_encoder
from repsim_cli.training import masked, trained
from repsim_cli.training.finetune import EncoderRecipe, label_config, make_classifier

CONFIG = "{model_type: bert, vocab_size: 520, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64}"  # fmt: skip
TEXT = "data: {kind: embedded_text, split: train}, recipe: {length: 32, steps: 6, batch_size: 4, learning_rate: 0.01}"
ENCODER = f"config: {CONFIG}, tokenizer: word_pieces"
MODEL = f"+model.e={{kind: pretrained_encoder, {ENCODER}, {TEXT}}}"
PAIRS = "train: {kind: overlap_nli, split: train, examples: 40}, evaluate: {kind: overlap_nli, examples: 20}"
CLASSIFIER = f"+model.c={{kind: finetuned, {ENCODER}, shared: {{{TEXT}}}, {PAIRS}, seeds: [0], recipe: {{length: 64, steps: 2}}}}"  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def less_text(monkeypatch):
    """A tenth of the text, for speed."""
    pack = masked.pack
    monkeypatch.setattr(masked, "pack", lambda *a, **k: pack(*a, **{**k, "sequences": 400, "pool": 400}))


def models(*words):
    return validate(composed("model=[]", "measure=[cka]", "extract.length=32", *words)).models


def test_fifteen_percent_are_hidden_and_four_fifths_of_them_masked():
    tokenizer = masked.mark_tokenizer("word_pieces")
    draw = np.random.default_rng(0)
    ids = draw.integers(4, 512, size=(400, 64))
    ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    text = np.ones(ids.shape, bool)
    text[:, [0, -1]] = False
    read, chosen = masked.hide_tokens(ids, text, tokenizer, draw)
    assert not chosen[:, [0, -1]].any()
    assert (read == ids)[~chosen].all()
    assert chosen[:, 1:-1].mean() == pytest.approx(0.15, abs=0.01)
    mask, same = (read == tokenizer.mask_token_id)[chosen], (read == ids)[chosen]
    assert mask.mean() == pytest.approx(0.8, abs=0.02)
    assert same.mean() == pytest.approx(0.1 + 0.1 / 513, abs=0.015)
    assert (~mask & ~same).mean() == pytest.approx(0.1, abs=0.015)
    assert len(np.unique(read[chosen])) > 300


def test_texts_and_pairs_are_marked(tmp_path):
    tokenizer = masked.mark_tokenizer("word_pieces")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    pair = tokenizer("a b", "c")
    assert [pair.input_ids[i] for i in (0, 3, 5)] == [cls, sep, sep]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert (tokenizer.mask_token, tokenizer.mask_token_id, len(tokenizer)) == ("[MASK]", 512, 513)
    tokenizer.save_pretrained(tmp_path)
    again = masked.mark_tokenizer(str(tmp_path))
    assert (again("a b", "c").input_ids, len(again)) == (pair.input_ids, 513)
    assert masked.mark_tokenizer("tiny_a").mask_token is None  # it has no [CLS]


def test_what_a_text_spells_out_is_predicted():
    """What packing added is not, whatever its id, nor what the tokenizer does not know."""
    text = registry.data.get("embedded_text").function(split="train")
    given = type(text)(documents=lambda: (d for d in ["a [SEP] b [MASK] \u4e00"] * 40), source="spelled")
    tokenizer = masked.mark_tokenizer("word_pieces")
    sequences = masked.pack_masked_text(given, tokenizer, 8)
    words = ["[SEP]", "a", "[SEP]", "b", "[MASK]", "[UNK]"]  # a separator and a document
    assert tokenizer.convert_ids_to_tokens(sequences.held_out[0]) == ["[CLS]", *words, "[SEP]"]
    expected = [False, False, True, True, True, True, False, False]
    assert (sequences.seen_text == expected).all()
    assert (sequences.held_out_text == expected).all()
    _, chosen = masked.hide_tokens(sequences.seen, sequences.seen_text, tokenizer, np.random.default_rng(0), 1.0)
    assert (chosen == sequences.seen_text).all()


def test_metrics_are_those_of_plain_computations():
    text = registry.data.get("embedded_text").function(split="train")
    tokenizer = masked.mark_tokenizer("word_pieces")
    sequences = masked.pack_masked_text(text, tokenizer, 16)
    assert (len(sequences.seen), len(sequences.held_out)) == (380, 20)
    assert (sequences.seen[:, 0] == tokenizer.cls_token_id).all()
    assert (sequences.seen[:, -1] == tokenizer.sep_token_id).all()

    class Unigram(torch.nn.Module):
        """The frequencies of tokens, each counted once more."""

        def forward(self, input_ids):
            counts = torch.ones(513)
            for i in sequences.seen.flatten().tolist():
                counts[i] += i not in tokenizer.all_special_ids
            return type("Out", (), {"logits": counts.log().expand(*input_ids.shape, 513)})

    found = masked.score_masked_tokens(Unigram(), sequences, tokenizer, EncoderRecipe(batch_size=6))
    assert found["masked_loss"] == pytest.approx(found["unigram_loss"], abs=1e-5)
    assert found["masked_accuracy"] == pytest.approx(found["unigram_accuracy"])
    assert found["unigram_accuracy"] < 0.2
    assert 4 < found["unigram_loss"] < np.log(513)


def test_an_encoder_learns_and_a_killed_training_ends_with_the_same_bits(monkeypatch, tmp_path):
    encoder = models(MODEL)["e"]
    metrics, wanted = encoder.metrics(), encoder.identity()["weights_hash"]
    assert list(metrics) == ["masked_loss", "masked_accuracy", "unigram_loss", "unigram_accuracy"]
    assert metrics["masked_loss"] < np.log(520)
    record = json.loads((trained.find_stored(encoder.identity()["trained"]) / "training.json").read_text())
    losses = list(record["loss"].values())
    assert losses[0] == pytest.approx(np.log(520), abs=0.3)
    assert losses[-1] < losses[0]
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "other"))
    set_timers(monkeypatch, due=True)
    asked, predicted = [], masked._predict

    def stopping(*given):
        asked.append(1)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return predicted(*given)

    monkeypatch.setattr(masked, "_predict", stopping)
    with pytest.raises(KeyboardInterrupt):
        models(MODEL)["e"].identity()
    monkeypatch.setattr(masked, "score_masked_tokens", lambda *given: {})
    assert models(MODEL)["e"].identity()["weights_hash"] == wanted
    assert len(asked) == 4 + 3  # the other half


def test_classifiers_start_from_the_encoder(monkeypatch):
    found = models("study=finetune", "measure=[]", CLASSIFIER)["c_0"]
    first = found.with_head("AutoModelForSequenceClassification")
    calls = []
    monkeypatch.setattr(training_encoder, "make_fresh_model", lambda *given: calls.append(given))
    encoder = models(MODEL)["e"]
    folder = trained.find_stored(encoder.identity()["trained"])
    assert not calls  # it is trained already, as what the classifier starts from
    assert encoder.tokenizer()("a", "b").input_ids == found.tokenizer()("a", "b").input_ids
    start = make_classifier(label_config(inline_config(json.loads((folder / "config.json").read_text())), ["a", "b"]), str(folder), None, 0)  # fmt: skip
    backbone = encoder.load(False).state_dict()
    for name, weights in start.base_model.state_dict().items():
        assert torch.equal(weights, backbone[name]) == ("pooler" not in name), name  # the checkpoint has none
    moved = [
        name for name, weights in first.base_model.state_dict().items() if not torch.equal(weights, backbone[name])
    ]
    assert any("query.weight" in name for name in moved)
    whole = encoder.with_head("AutoModelForMaskedLM")
    assert whole(input_ids=torch.tensor([[1, 512, 2]])).logits.shape == (1, 3, 520)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MODEL.replace("word_pieces", "tiny_a"), "model.e.tokenizer: it marks no start and end of texts, got 'tiny_a'; e.g. word_pieces"),
        (MODEL.replace("520", "512"), "model.e.config.vocab_size: fewer tokens than the tokenizer has, got 512; at least 513"),
        (MODEL.replace("length: 32", "length: 65"), "model.e.recipe.length: longer than the encoder's context, got 65; at most 64"),
        (MODEL.replace("embedded_text", "overlap_nli"), r"model.e.data: not running text, got overlap_nli, .*; e.g. \{kind: embedded_text, split: train\}"),
        (CLASSIFIER.replace(", tokenizer: word_pieces", ""), "model.c.tokenizer: running text needs one; e.g. word_pieces"),
        (CLASSIFIER.replace("length: 32", "length: 65"), "model.c.shared.recipe.length: longer than the encoder's context, got 65; at most 64"),
        (CLASSIFIER.replace("length: 32", "freeze: {top: 1}"), "model.c.shared.recipe.freeze: unknown key, got"),
    ],
)  # fmt: skip
def test_what_cannot_be_pretrained_is_refused_before_anything_is_trained(given, message):
    with pytest.raises(BadConfig, match=message):
        models("study=finetune", "measure=[]", given)


def test_a_type_without_masked_tokens():
    with pytest.raises(
        BadInput, match="config: it cannot predict masked tokens, got model_type gpt2; use model_type: bert"
    ):
        masked.make_fresh_model(inline_config({"model_type": "gpt2"}), masked.MASKED_TOKENS, 0)


def test_too_little_text():
    text = registry.data.get("embedded_text").function(split="train")
    few = type(text)(documents=lambda: (d for d in ["one word"]), source="few")
    with pytest.raises(BadInput, match="data: too little text to train on, got . sequences of 16; give more"):
        masked.pack_masked_text(few, masked.mark_tokenizer("word_pieces"), 16)
