"""Tables of types with blocks that have no attention: state-space models, recurrent networks and their hybrids."""

from repsim_cli.models.layouts import LLAMA
from repsim_cli.models.points import ABSENT, NO_ATTENTION, STREAM, Architecture, Point, Tables, make_dense_stack, vary

NO_MLP = "the block has one part, without an MLP"
SHARED = "its blocks of attention read the embeddings beside the stream"


def make_stream_architecture(blocks: str, why: str, final_norm: str | None = None) -> Architecture:
    """The stream alone."""
    return Architecture(
        blocks=blocks,
        block=dict(STREAM),
        final_norm=None if final_norm is None else Point(final_norm),
        lacks={**dict.fromkeys(ABSENT, why)},
    )


MAMBA = make_stream_architecture("layers", NO_MLP, "norm_f")
# with attention in some blocks
HYBRID = make_dense_stack(
    "layers",
    ("self_attn", "self_attn.o_proj"),
    ("feed_forward.gate_proj", "feed_forward.down_proj"),
    "pre_ff_layernorm",
    value="self_attn.v_proj",
    final_norm="final_layernorm",
)
LFM2 = make_dense_stack(
    "layers",
    ("self_attn", "self_attn.out_proj"),
    ("feed_forward.w1", "feed_forward.w2"),
    "ffn_norm",
    value="self_attn.v_proj",
    final_norm="embedding_norm",
)

RECURRENT: Tables = {
    "mamba": MAMBA,
    "mamba2": MAMBA,
    "falcon_mamba": MAMBA,
    "nemotron_h": make_stream_architecture(
        "layers", "a block is a state space, an attention or an MLP alone", "norm_f"
    ),
    "xlstm": make_stream_architecture("blocks", NO_ATTENTION, "out_norm"),
    "zamba2": make_stream_architecture("layers", SHARED, "final_layernorm"),
    "zamba": make_stream_architecture("layers", SHARED, "final_layernorm"),
    "rwkv": Architecture(
        blocks="blocks",
        block={**STREAM, "resid_mid": Point("ln2", "input"), "mlp_out": Point("feed_forward")},
        final_norm=Point("ln_out"),
        lacks={
            **dict.fromkeys(("q", "k", "v", "z", "pattern", "attn_out"), NO_ATTENTION),
            **dict.fromkeys(("mlp_pre", "mlp_post"), "its MLP mixes neighbouring places and is gated"),
        },
    ),
    "recurrent_gemma": make_dense_stack(
        "layers",
        ("temporal_block", "temporal_block.o_proj"),
        ("mlp_block.gate_proj", "mlp_block.down_proj"),
        "channel_pre_norm",
        value="temporal_block.v_proj",
        final_norm="final_norm",
    ),
    "jamba": vary(HYBRID, block={"mlp_out": Point("feed_forward"), "router": Point("feed_forward.router")}),
    "bamba": HYBRID,
    "lfm2": LFM2,
    "lfm2_moe": vary(LFM2, block={"mlp_out": Point("feed_forward"), "router": Point("feed_forward.gate")}),
    "qwen3_next": LLAMA,
    "qwen3_5_text": LLAMA,
    "qwen3_5_moe_text": LLAMA,
}
