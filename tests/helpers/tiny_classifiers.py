"""Classifiers that are trained in seconds."""

TINY_FINETUNED = [
    "model.tiny_nli.seeds=[0,1]",
    "model.tiny_nli.shared.recipe.steps=3",
    "model.tiny_nli.shared.recipe.warm_up=1",
    "model.tiny_nli.recipe.steps=4",
    "model.tiny_nli.recipe.warm_up=1",
    "model.tiny_nli.shared.data.examples=60",
    "model.tiny_nli.train.examples=60",
    "model.tiny_nli.evaluate.examples=60",
    "model.tiny_nli.hans.examples=60",
    "hardware.threads=1",
]
