"""How the blocks of the large families of decoders are laid out, from which most types deviate little."""

from repsim_cli.models.points import Point, make_dense_stack, read_interleaved, take_equal_part, vary

# the MLP of any block may be a mixture of experts; then it has a router, and no mlp_pre and mlp_post
LLAMA = make_dense_stack(
    "layers",
    ("self_attn", "self_attn.o_proj"),
    ("mlp.gate_proj", "mlp.down_proj"),
    "post_attention_layernorm",
    value="self_attn.v_proj",
    final_norm="norm",
)
LLAMA = vary(LLAMA, block={"mlp_out": Point("mlp"), "router": Point("mlp.gate")})
# with norms before and after attention and MLP; what is added leaves the second
FOUR_NORMS = vary(
    LLAMA,
    block={
        "attn_out": Point("post_attention_layernorm"),
        "resid_mid": Point("pre_feedforward_layernorm", "input"),
        "mlp_out": Point("post_feedforward_layernorm"),
    },
)
# with norms only after attention and MLP
POST_NORMS = vary(FOUR_NORMS, block={"resid_mid": Point("mlp", "input")})
GLM4 = vary(LLAMA, block={"attn_out": Point("post_self_attn_layernorm"), "mlp_out": Point("post_mlp_layernorm")})
GPT2 = make_dense_stack(
    "h",
    ("attn", "attn.c_proj"),
    ("mlp.c_fc", "mlp.c_proj"),
    "ln_2",
    value=Point("attn.c_attn", pick=take_equal_part(2, 3)),
    final_norm="ln_f",
)
GPT_NEOX = make_dense_stack(
    "layers",
    ("attention", "attention.dense"),
    ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    "post_attention_layernorm",
    value=Point("attention.query_key_value", pick=read_interleaved(2)),
    final_norm="final_layer_norm",
)
BLOOM = make_dense_stack(
    "h",
    ("self_attention", "self_attention.dense"),
    ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    "post_attention_layernorm",
    value=Point("self_attention.query_key_value", pick=read_interleaved(2)),
    final_norm="ln_f",
)
# attention and MLP side by side
GPTJ = make_dense_stack(
    "h",
    ("attn", "attn.out_proj"),
    ("mlp.fc_in", "mlp.fc_out"),
    None,
    value="attn.v_proj",
    final_norm="ln_f",
)
# the layout of the decoders of encoder-decoders
BART = make_dense_stack(
    "layers",
    ("self_attn", "self_attn.out_proj"),
    ("fc1", "fc2"),
    "final_layer_norm",
    value="self_attn.v_proj",
    final_norm="layer_norm",
)
