"""Models to stitch, with the heads that the library gives them."""

import numpy as np
import torch
from helpers.tiny import TINY, perturb
from helpers.tiny_configs import tiny_config

from repsim_cli.base import registry
from repsim_cli.data.base import Labels, Sequences
from repsim_cli.studies.stitching.evaluate import (
    Stitch,
)
from repsim_cli.studies.stitching.models import (
    open_whole,
)

CAUSAL, CLASSES = "AutoModelForCausalLM", "AutoModelForSequenceClassification"


NATIVE = {"d_model": 32, "n_layers": 3, "n_heads": 4, "n_ctx": 64, "d_vocab": 512, "act_fn": "solu_ln"}


NAMES = {"id2label": {0: "entailment", 1: "neutral", 2: "contradiction"}}


random = registry.models.get("random").function


def source(kind, auto=CAUSAL, seed=0, **settings):
    if kind == "native":
        return registry.models.get("transformer_lens").function(config={**NATIVE, **settings}, seed=seed)
    labelled = {**NAMES, "pad_token_id": 0} if auto == CLASSES else {}
    return random(config={**(TINY[kind] if kind in TINY else tiny_config(kind)), **labelled, **settings}, seed=seed)


def whole(kind, auto=CAUSAL, label="m", seed=0, **settings):
    """A model whose weights are far from degenerate."""
    found = open_whole(label, source(kind, auto, seed, **settings), auto, "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        perturb(found.model)
    return found


def same_layer(heads, tails, layers):
    """Every head before every tail, at equal layers."""
    return [Stitch(head, tail, layer, layer) for head in heads for tail in tails for layer in layers]


def some(count=6, length=12, labels=None, seed=0, below=400):
    """Sequences of different lengths, padded on the right."""
    draw = np.random.default_rng(seed)
    mask = np.arange(length) < draw.integers(4, length + 1, count)[:, None]
    mask[0] = True
    ids = np.where(mask, draw.integers(5, below, (count, length)), 0)
    place = np.broadcast_to(np.arange(count)[:, None], mask.shape)
    return Sequences(
        inputs=ids,
        mask=mask,
        text=mask,
        document=np.where(mask, place, -1),
        position=np.where(mask, np.arange(length), -1),
        documents=count,
        segments=(np.arange(length) >= 3).astype(int) * mask,
        labels=None if labels is None else Labels(draw.integers(0, len(labels), count), labels),
    )
