"""Tables of decoder-only types: layouts, and how each type deviates from its own."""

from functools import partial
from math import sqrt
from typing import Any

from torch import Tensor

from repsim_cli.models.layouts import BART, BLOOM, FOUR_NORMS, GLM4, GPT2, GPT_NEOX, GPTJ, LLAMA, POST_NORMS
from repsim_cli.models.points import (
    ATTENTION,
    NO_ATTENTION,
    Architecture,
    Point,
    Tables,
    copy_tensor,
    drop_hook_points,
    list_attention_points,
    make_dense_stack,
    mark_parallel,
    read_interleaved,
    scale_additions,
    take_equal_part,
    take_hidden_states,
    vary,
)

NORMED = "it is added to the norm of the stream"
MULTIPLIED = "the stream is multiplied after it is added"
WEIGHED = "the stream is multiplied before it is added to"
SINKS = "its sinks scale what the pattern gives, not the pattern"
SHARED_MLP = "a mixture of experts and a shared MLP are added, in no module together"
# of an MLP: the first projection has another name, or holds the gate in its first half
UNGATED = {"mlp_pre": Point("mlp.up_proj")}
FUSED = {"mlp_pre": Point("mlp.gate_up_proj", pick=take_equal_part(0, 2))}
ROUTER = {"router": Point("mlp.router")}


def take_last_features(width: int, projection: str) -> Point:
    """The point of v where it is the last `width` features of a projection."""
    return Point(projection, pick=partial(_take_last, width))


def _take_last(width: int, value: Any, heads: int) -> Tensor:
    return take_hidden_states(value)[..., -width:]


def take_second(value: Any, heads: int) -> Tensor:
    return value[1]


def take_widest(value: Any, heads: int) -> Tensor:
    """The logits of a router that gives them first (transformers 5.23) or last (5.17): a number for every expert."""
    return max((x for x in value if x.ndim == 2 and x.is_floating_point()), key=lambda x: x.shape[-1])


def add_bias(value: Any, heads: int) -> Tensor:
    """The output of an attention module that also gives its weights, and a bias or None."""
    out, _, bias = value
    return out if bias is None else out + bias


def granite(config: Any) -> Architecture:
    return scale_additions(LLAMA, config.residual_multiplier)


def granite_swa(config: Any) -> Architecture:
    return drop_hook_points(granite(config), SINKS, "pattern")


def hyperclovax(config: Any) -> Architecture:
    table = vary(LLAMA, block={"attn_out": Point("post_norm1"), "mlp_out": Point("post_norm2")})
    return scale_additions(table, config.residual_multiplier)


def granitemoe(config: Any) -> Architecture:
    table = vary(
        LLAMA,
        block={"mlp_out": Point("block_sparse_moe"), "router": Point("block_sparse_moe.router", pick=take_widest)},
    )
    table = scale_additions(table, config.residual_multiplier)
    return drop_hook_points(table, SHARED_MLP, "mlp_out") if getattr(config, "shared_intermediate_size", 0) else table


def phi3(config: Any) -> Architecture:
    width = config.num_key_value_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    return vary(LLAMA, block=FUSED, value=take_last_features(width, "self_attn.qkv_proj"))


def falcon(config: Any) -> Architecture:
    table = vary(BLOOM, value=None)
    if not (config.new_decoder_architecture or config.parallel_attn):
        return table
    # the model adds the output of the attention to that of the MLP, in place
    return mark_parallel(vary(table, block={"mlp_out": Point("mlp.dense_4h_to_h", pick=copy_tensor)}))


def gpt_bigcode(config: Any) -> Architecture:
    width = config.hidden_size // config.num_attention_heads
    return vary(
        GPT2,
        value=take_last_features(width, "attn.c_attn")
        if config.multi_query
        else Point("attn.c_attn", pick=read_interleaved(2)),
    )


def opt(config: Any) -> Architecture:
    table = vary(BART, blocks="decoder.layers", final_norm=Point("decoder.final_layer_norm"))
    if not config.do_layer_norm_before:
        table = vary(table, block={"resid_mid": Point("self_attn_layer_norm")})
    return (
        table if config.do_layer_norm_before and not config._remove_final_layer_norm else vary(table, final_norm=None)
    )


def mark_linear_attention(table: Architecture, config: Any) -> Architecture:
    """The table for a model with linear attention in some blocks, which lack the points of attention.

    The module of linear attention has the name of the other blocks' attention.
    """
    kinds = enumerate(config.layer_types)
    linear = [layer for layer, kind in kinds if kind == "linear_attention"]
    why = "its attention is linear, without a pattern"
    return vary(table, missing={(kind, layer): why for kind in ATTENTION for layer in linear})


def olmo_hybrid(config: Any) -> Architecture:
    why = "blocks with linear attention have other norms"
    linear = [layer for layer, kind in enumerate(config.layer_types) if kind == "linear_attention"]
    missing = {(kind, layer): why for kind in ("attn_out", "resid_mid", "mlp_out") for layer in linear}
    return vary(POST_NORMS, missing=missing)


def lfm3(config: Any) -> Architecture:
    """The table of LFM 3, whose blocks are short convolutions or attention."""
    table = vary(
        LLAMA,
        block={
            "attn_out": Point("post_operator_norm"),
            "resid_mid": Point("ffn_norm", "input"),
            "mlp_pre": Point("feed_forward.w1"),
            "mlp_post": Point("feed_forward.w2", "input"),
            "mlp_out": Point("post_ffn_norm"),
        },
        final_norm=Point("embedding_norm"),
    )
    convolutions = [layer for layer, kind in enumerate(config.layer_types) if kind == "conv"]
    return vary(table, missing={("attn_out", layer): NO_ATTENTION for layer in convolutions})


def minimax(config: Any) -> Architecture:
    table = drop_hook_points(LLAMA, WEIGHED, "attn_out", "mlp_out")
    return mark_linear_attention(table, config)


DECODERS: Tables = {
    **dict.fromkeys(
        (
            "axk1",
            "axk2",
            "cwm",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "ernie4_5",
            "ernie4_5_moe",
            "exaone_moe",
            "flint",
            "gemma",
            "glm4_moe",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "helium",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "hy_v3",
            "internlm3",
            "iquestcoder",
            "laguna",
            "llama",
            "mellum",
            "mimo_v2_flash",
            "minimax_m2",
            "minimax_m3_vl_text",
            "ministral",
            "ministral3",
            "mistral",
            "mixtral",
            "olmo",
            "olmoe",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
            "solar_open",
            "youtu",
        ),
        LLAMA,
    ),
    **dict.fromkeys(("aria_text", "gpt_oss", "phimoe"), vary(LLAMA, block=ROUTER)),
    "apertus": vary(LLAMA, block={**UNGATED, "resid_mid": Point("feedforward_layernorm", "input")}),
    "arcee": vary(LLAMA, block=UNGATED),
    "jais2": vary(LLAMA, block=UNGATED),
    "nemotron": vary(LLAMA, block=UNGATED),
    "bitnet": LLAMA,
    "glm": vary(LLAMA, block=FUSED),
    "phi3": phi3,
    "minicpm3": lambda config: scale_additions(LLAMA, config.scale_depth / sqrt(config.num_hidden_layers)),
    "granite": granite,
    "granite_swa": granite_swa,
    "hyperclovax": hyperclovax,
    "granitemoe": granitemoe,
    "granitemoe_swa": lambda config: drop_hook_points(granitemoe(config), SINKS, "pattern"),
    "granitemoeshared": granitemoe,
    "stablelm": lambda config: mark_parallel(LLAMA) if config.use_parallel_residual else LLAMA,
    "cohere": mark_parallel(LLAMA),
    "cohere2": mark_parallel(LLAMA),
    "cohere2_moe": mark_parallel(LLAMA),
    "cohere_compass_text": mark_parallel(LLAMA),
    "llama4_text": vary(
        LLAMA,
        block={
            "mlp_pre": Point("feed_forward.gate_proj"),
            "mlp_post": Point("feed_forward.down_proj", "input"),
            "mlp_out": Point("feed_forward"),
            "router": Point("feed_forward.router", pick=take_second),
        },
    ),
    "minimax": minimax,
    "kimi_linear": lambda config: mark_linear_attention(LLAMA, config),
    "bailing_hybrid": lambda config: mark_linear_attention(LLAMA, config),
    "diffllama": drop_hook_points(LLAMA, "all heads weigh each half of it", "v"),
    "jetmoe": drop_hook_points(
        vary(LLAMA, block={"attn_out": Point("self_attention"), "router": Point("mlp.router.layer")}),
        "its attention is a mixture of experts",
        *ATTENTION,
    ),
    "gemma4_text": drop_hook_points(FOUR_NORMS, MULTIPLIED, "mlp_out"),
    "gemma4_unified_text": drop_hook_points(FOUR_NORMS, MULTIPLIED, "mlp_out"),
    "modernbert-decoder": make_dense_stack(
        "layers",
        ("attn", "attn.Wo"),
        ("mlp.Wi", "mlp.Wo"),
        "mlp_norm",
        value="attn.v_proj",
        final_norm="final_norm",
    ),
    "granitemoehybrid": granitemoe,
    "falcon_h1": drop_hook_points(
        vary(
            LLAMA,
            block={
                "resid_mid": Point("pre_ff_layernorm", "input"),
                "mlp_pre": Point("feed_forward.gate_proj"),
                "mlp_post": Point("feed_forward.down_proj", "input"),
                "mlp_out": Point("feed_forward"),
            },
            final_norm=Point("final_layernorm"),
        ),
        "it is added together with the output of a state-space model",
        "attn_out",
    ),
    "olmo_hybrid": olmo_hybrid,
    "lfm3": lfm3,
    "doge": drop_hook_points(LLAMA, WEIGHED, "attn_out", "mlp_out"),
    "beam": drop_hook_points(FOUR_NORMS, WEIGHED, "attn_out", "mlp_out"),
    "gemma2": FOUR_NORMS,
    "gemma3_text": FOUR_NORMS,
    "vaultgemma": vary(LLAMA, block={"resid_mid": Point("pre_feedforward_layernorm", "input")}),
    "afmoe": vary(
        FOUR_NORMS,
        block={
            "resid_mid": Point("pre_mlp_layernorm", "input"),
            "mlp_out": Point("post_mlp_layernorm"),
            "router": Point("mlp.router.gate"),
        },
    ),
    "glm4": vary(GLM4, block=FUSED),
    "kolibri1": GLM4,
    "olmo2": POST_NORMS,
    "olmo3": POST_NORMS,
    "flex_olmo": POST_NORMS,
    "exaone4": POST_NORMS,
    "starcoder2": vary(LLAMA, block={"mlp_pre": Point("mlp.c_fc"), "mlp_post": Point("mlp.c_proj", "input")}),
    # its final norm is also that of the embeddings
    "nanochat": vary(
        LLAMA,
        block={"mlp_pre": Point("mlp.fc1"), "mlp_post": Point("mlp.fc2", "input")},
        final_norm=Point("norm", call=1),
    ),
    "moshi": vary(
        LLAMA, block={"mlp_pre": Point("mlp.fc1", pick=take_equal_part(0, 2)), "mlp_post": Point("mlp.fc2", "input")}
    ),
    "phi": make_dense_stack(
        "layers",
        ("self_attn", "self_attn.dense"),
        ("mlp.fc1", "mlp.fc2"),
        None,
        value="self_attn.v_proj",
        final_norm="final_layernorm",
    ),
    "persimmon": make_dense_stack(
        "layers",
        ("self_attn", "self_attn.dense"),
        ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        "post_attention_layernorm",
        value=Point("self_attn.query_key_value", pick=read_interleaved(2)),
        final_norm="final_layernorm",
    ),
    "gpt2": GPT2,
    "gpt-sw3": GPT2,
    "openai-gpt": vary(GPT2, block={"resid_mid": Point("ln_1")}, final_norm=None),
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": vary(
        GPT2,
        block=list_attention_points("attn.attention", "attn.attention.out_proj"),
        value=Point("attn.attention.v_proj"),
    ),
    "gptj": GPTJ,
    "codegen": vary(GPTJ, value=None),
    "ctrl": make_dense_stack(
        "h",
        ("multi_head_attention", "multi_head_attention.dense"),
        ("ffn.0", "ffn.2"),
        "layernorm2",
        value="multi_head_attention.Wv",
        final_norm="layernorm",
    ),
    # Pythia's are parallel
    "gpt_neox": lambda config: mark_parallel(GPT_NEOX) if config.use_parallel_residual else GPT_NEOX,
    # the last block adds a bias as well
    "gpt_neox_japanese": vary(GPT_NEOX, block={"attn_out": Point("attention", pick=add_bias)}),
    "bloom": lambda config: (
        drop_hook_points(BLOOM, NORMED, "attn_out", "mlp_out")
        if config.apply_residual_connection_post_layernorm
        else BLOOM
    ),
    "falcon": falcon,
    "mpt": make_dense_stack(
        "blocks",
        ("attn", "attn.out_proj"),
        ("ffn.up_proj", "ffn.down_proj"),
        "norm_2",
        value=Point("attn.Wqkv", pick=take_equal_part(2, 3)),
        final_norm="norm_f",
    ),
    "dbrx": vary(
        make_dense_stack(
            "blocks",
            ("norm_attn_norm.attn", "norm_attn_norm.attn.out_proj"),
            ("ffn.w1", "ffn.w2"),
            "norm_attn_norm.norm_2",
            final_norm="norm_f",
        ),
        block={"mlp_out": Point("ffn"), "router": Point("ffn.router.layer")},
    ),
    "opt": opt,
    "xglm": BART,
    "biogpt": BART,
}
