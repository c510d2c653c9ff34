"""Tables of decoder-only types: layouts, and how each type deviates from its own."""

from repsim_cli.models.points import (
    Point,
    Tables,
    dense,
    interleaved,
    parallel,
    part,
    scaled,
    varied,
)

LLAMA = dense(
    "layers",
    ("self_attn", "self_attn.o_proj"),
    ("mlp.gate_proj", "mlp.down_proj"),
    "post_attention_layernorm",
    value="self_attn.v_proj",
    final_norm="norm",
    entry="embed_tokens",
)
# with some MLPs that are mixtures of experts
EXPERTS = varied(LLAMA, block={"mlp_out": Point("mlp"), "router": Point("mlp.gate")})
# with norms before and after attention and MLP; what is added leaves the second
FOUR_NORMS = varied(
    LLAMA,
    block={
        "attn_out": Point("post_attention_layernorm"),
        "resid_mid": Point("pre_feedforward_layernorm", "input"),
        "mlp_out": Point("post_feedforward_layernorm"),
    },
)
# with norms only after attention and MLP
POST_NORMS = varied(FOUR_NORMS, block={"resid_mid": Point("mlp", "input")})
GPT2 = dense(
    "h",
    ("attn", "attn.c_proj"),
    ("mlp.c_fc", "mlp.c_proj"),
    "ln_2",
    value=Point("attn.c_attn", pick=part(2, 3)),
    final_norm="ln_f",
    entry="drop",
)
GPT_NEOX = dense(
    "layers",
    ("attention", "attention.dense"),
    ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    "post_attention_layernorm",
    value=Point("attention.query_key_value", pick=interleaved(2)),
    final_norm="final_layer_norm",
    entry="emb_dropout",
)

DECODERS: Tables = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "smollm3": LLAMA,
    "olmo": LLAMA,
    "granite": lambda config: scaled(varied(LLAMA, entry=None), config.residual_multiplier),
    "gemma": varied(LLAMA, entry=None),
    "gemma2": varied(FOUR_NORMS, entry=None),
    "gemma3_text": FOUR_NORMS,
    "olmo2": POST_NORMS,
    "olmo3": POST_NORMS,
    "exaone4": POST_NORMS,
    "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS,
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "gpt2": GPT2,
    "openai-gpt": varied(GPT2, block={"resid_mid": Point("ln_1")}, final_norm=None),
    # Pythia's are parallel
    "gpt_neox": lambda config: parallel(GPT_NEOX) if config.use_parallel_residual else GPT_NEOX,
}
