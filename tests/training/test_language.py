"""Language models of any architecture: both objectives, the same weights again, other text, bad input."""

import numpy as np
import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.config.binding import bind_model
from repsim_cli.runs.results import quiet

ENTRY = {
    "kind": "language_model",
    "config": {
        "model_type": "bert", "vocab_size": 520, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 32, "is_decoder": True,
    },
    "tokenizer": "word_pieces",
    "data": {"kind": "embedded_text", "split": "validation"},
    "recipe": {"length": 32, "steps": 60, "batch_size": 8, "learning_rate": 0.02},
}  # fmt: skip


def made(**changes):
    source = bind_model("mine", {**ENTRY, **changes})
    source.make(quiet)
    return source, source.identity()


def test_both_objectives_learn_and_the_seed_and_the_text_decide_the_weights():
    source, identity = made()
    # of 520 tokens: below the loss of equal odds
    assert identity["metrics"]["loss"] < np.log(520) - 0.4
    assert set(identity["metrics"]) == {"loss", "accuracy"}
    assert source.trained
    assert source.identity() == identity
    others = [
        {"seed": 1},
        {"data": {**ENTRY["data"], "shuffle_words": True}},
        {"objective": "masked", "config": {**ENTRY["config"], "is_decoder": False}},
        {"objective": "masked", "hidden": 0.5, "config": {**ENTRY["config"], "is_decoder": False}},
    ]
    identities = [identity, *(made(**{**changes, "recipe": {**ENTRY["recipe"], "steps": 2}})[1] for changes in others)]
    assert len({one["weights_hash"] for one in identities}) == len({one["trained"] for one in identities}) == 5
    assert "masked_loss" in identities[-1]["metrics"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"kind": "overlap_nli"}}, "model.mine.data: not running text, got overlap_nli"),
        ({"objective": "mask"}, "model.mine.objective: wrong value, got 'mask'"),
        ({"hidden": 0.0}, "model.mine.hidden: wrong value, got 0.0"),
        ({"recipe": {"length": 64}}, "model.mine.recipe.length: longer than the encoder's context, got 64; at most 32"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(BadConfig, match=message):
        bind_model("mine", {**ENTRY, **changes})


def test_an_architecture_without_that_head():
    with pytest.raises(
        BadInput, match="it cannot predict the next token, got model_type distilbert; use objective=mas"
    ):
        made(config={"model_type": "distilbert", "vocab_size": 520, "dim": 16, "n_layers": 1, "n_heads": 2})


def test_the_halves_and_shuffled_words_of_the_text():
    embedded = registry.data.get("embedded_text").function
    whole, even, odd = ([*embedded(split=split).documents()] for split in ("train", "train_even", "train_odd"))
    assert sorted(even + odd) == sorted(whole)
    assert not set(even) & set(odd)
    shuffled = embedded(split="train_even", shuffle_words=True)
    (first, *_), (again, *_) = shuffled.documents(), shuffled.documents()
    assert first == again != even[0]
    assert sorted(first.split()) == sorted(even[0].split())
    assert shuffled.source.endswith("train_even, words shuffled")
