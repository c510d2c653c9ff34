"""Tables of encoder-decoder types: one for each stack, with paths from the backbone.

The decoder reads the same tokens one place to the right, behind its start token, as in the model's own training: its
rows belong to the tokens that it is about to predict.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from repsim_cli.models.encoders import LOCAL
from repsim_cli.models.points import Architecture, Point, Tables, drop_hook_points, make_dense_stack, vary


def combine_stacks(encoder: Architecture, decoder: Architecture) -> Architecture:
    return Architecture(blocks="", block={}, stacks={"encoder": encoder, "decoder": decoder})


# their texts start with their own last token, that of the language
WRAPPED = ("mbart", "plbart")


def shift(
    config: Any, ids: Int[Tensor, "b s"], mask: Bool[Tensor, "b s"]
) -> tuple[Int[Tensor, "b s"], Bool[Tensor, "b s"]]:
    """Makes what the decoder reads, and its mask: the ids one place to the right, behind the start token."""
    if config.model_type in WRAPPED:
        first = ids.gather(1, mask.long().cumsum(1).argmax(1, keepdim=True))
    else:
        start = getattr(config, "decoder_start_token_id", None)
        first = torch.full_like(ids[:, :1], config.pad_token_id if start is None else start)
    return torch.cat([first, ids[:, :-1]], 1), torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1)


def _t5(config: Any, name: str = "DenseReluDense") -> Architecture:
    """The table for T5 and its kin. name: what the module of the MLP is called."""
    first = "wi_0" if getattr(config, "is_gated_act", False) else "wi"

    def stack(of: str, mlp: str) -> Architecture:
        return make_dense_stack(
            f"{of}.block",
            ("layer.0.SelfAttention", "layer.0.SelfAttention.o"),
            (f"{mlp}.{name}.{first}", f"{mlp}.{name}.wo"),
            f"{mlp}.layer_norm",
            value="layer.0.SelfAttention.v",
            final_norm=f"{of}.final_layer_norm",
        )

    cross = {"cross_out": Point("layer.1.EncDecAttention.o")}
    return combine_stacks(stack("encoder", "layer.1"), vary(stack("decoder", "layer.2"), block=cross))


def _add_experts(table: Architecture, encoder: str, decoder: str) -> Architecture:
    """The table with MLPs that are mixtures of experts in some blocks."""

    def stack(name: str, mlp: str) -> Architecture:
        return vary(table.stacks[name], block={"mlp_out": Point(mlp), "router": Point(f"{mlp}.router.classifier")})

    return combine_stacks(stack("encoder", encoder), stack("decoder", decoder))


def _switch(config: Any) -> Architecture:
    return _add_experts(_t5(config, "mlp"), "layer.1.mlp", "layer.2.mlp")


def _longt5(config: Any) -> Architecture:
    module = f"layer.0.{'Local' if config.encoder_attention_type == 'local' else 'TransientGlobal'}SelfAttention"
    return _add_local_attention(_t5(config), f"{module}.o", f"{module}.v")


def _bart(
    final: str | None, mlp: Sequence[str] = ("fc1", "fc2", "final_layer_norm"), cross: str = "encoder_attn"
) -> Architecture:
    """The table for BART and its kin.

    final: the norm after each stack, where norms come before attention and MLP; None: they follow the sums.
    mlp: the projections of the MLP, and the norm before it.
    """

    def stack(name: str, after: str) -> Architecture:
        return make_dense_stack(
            f"{name}.layers",
            ("self_attn", "self_attn.out_proj"),
            (mlp[0], mlp[1]),
            Point(after) if final is None else mlp[2],
            value="self_attn.v_proj",
            final_norm=None if final is None else f"{name}.{final}",
        )

    decoder = vary(stack("decoder", f"{cross}_layer_norm"), block={"cross_out": Point(f"{cross}.out_proj")})
    return combine_stacks(stack("encoder", "self_attn_layer_norm"), decoder)


BART = _bart(None)


def _add_local_attention(table: Architecture, output: str, value: str) -> Architecture:
    """The table with an encoder whose attention is computed in parts."""
    block = {"z": Point(output, "input"), "attn_out": Point(output)}
    encoder = vary(table.stacks["encoder"], block=block, value=Point(value))
    return combine_stacks(drop_hook_points(encoder, LOCAL, "q", "k", "v", "pattern"), table.stacks["decoder"])


SEQ2SEQ: Tables = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    "longt5": _longt5,
    "switch_transformers": _switch,
    "nllb-moe": _add_experts(
        _bart("layer_norm", ("ffn.fc1", "ffn.fc2", "ff_layer_norm"), "cross_attention"), "ffn", "ffn"
    ),
    **dict.fromkeys(("bart", "blenderbot-small", "marian", "mvp", "plbart"), BART),
    **dict.fromkeys(("blenderbot", "m2m_100", "mbart", "pegasus", "whisper"), _bart("layer_norm")),
    "led": _add_local_attention(BART, "self_attn.output", "self_attn.longformer_self_attn.value"),
}
