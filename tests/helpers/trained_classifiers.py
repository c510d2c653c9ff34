"""Classifiers that a run trains."""

from helpers.composing import composed
from helpers.tiny_classifiers import TINY_FINETUNED

from repsim_cli.config.run import validate

# the shipped entry with two seeds and next to no training


def models(*overrides):
    return validate(composed("experiment=tiny/finetune_nli", *TINY_FINETUNED, *overrides)).models


ENTRY = {
    "config": {"model_type": "bert", "vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 32},
    "train": "{kind: overlap_nli}",
    "evaluate": "{kind: overlap_nli}",
    "seeds": [0],
    "recipe": "{length: 32}",
}  # fmt: skip
