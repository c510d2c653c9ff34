"""A kind of model: an untrained GPT-NeoX of one block, of any width."""

from repsim_cli import register_model
from repsim_cli.models.source import Source
from repsim_cli.models.transformers import random


@register_model("wide_neox")
def wide_neox(*, width: int = 16, tokenizer: str = "tiny_a") -> Source:
    """An untrained GPT-NeoX of one block.

    width: of the residual stream, a multiple of 4.
    tokenizer: of a folder, a hub id, or that of a shipped model.
    """
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1, "num_attention_heads": 2}
    return random(config={"model_type": "gpt_neox", **sizes}, tokenizer=tokenizer)
