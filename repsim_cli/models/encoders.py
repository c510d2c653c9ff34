"""Tables of types that read a whole text or image at once."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.models.attention import Attended, join_heads
from repsim_cli.models.layouts import LLAMA
from repsim_cli.models.points import (
    ATTENTION,
    STREAM,
    Architecture,
    Point,
    Tables,
    drop_hook_points,
    make_dense_stack,
    put_batch_first,
    scale_additions,
    take_equal_part,
    vary,
)

BERT = make_dense_stack(
    "encoder.layer",
    ("attention.self", "attention.output.dense"),
    ("intermediate.dense", "output.dense"),
    Point("attention.output.LayerNorm"),
    value="attention.self.value",
)

ALBERT = make_dense_stack(
    "encoder.albert_layer_groups",  # shared by the layers
    ("attention", "attention.dense"),
    ("ffn", "ffn_output"),
    Point("attention.LayerNorm"),
    value="attention.value",
)


def _albert(config: Any) -> Architecture:
    if config.inner_group_num != 1:
        raise BadInput(f"config.inner_group_num: only 1 is read, got {config.inner_group_num}; use another model")
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    group = [int(i / (layers / groups)) for i in range(layers)]
    return replace(
        ALBERT, shared=[(f"{ALBERT.blocks}.{g}.albert_layers.0", i - group.index(g)) for i, g in enumerate(group)]
    )


XLNET = drop_hook_points(
    Architecture(
        blocks="layer",
        block={
            "resid_pre": Point("", "input", put_batch_first),
            "resid_post": Point("", pick=put_batch_first),
            "resid_mid": Point("rel_attn", pick=put_batch_first),
            # its dropout, which does nothing outside training, sees the weights and then the projected sum
            "pattern": Point("rel_attn.dropout"),
            "attn_out": Point("rel_attn.dropout", pick=put_batch_first, call=1),
            "mlp_pre": Point("ff.layer_1", pick=put_batch_first),
            "mlp_post": Point("ff.layer_2", "input", put_batch_first),
            "mlp_out": Point("ff.layer_2", pick=put_batch_first),
        },
        other=put_batch_first,
    ),
    "its attention computes it in no module",
    "q",
    "k",
    "v",
    "z",
)

VIT = make_dense_stack(
    "layers",
    ("attention", "attention.o_proj"),
    ("mlp.fc1", "mlp.fc2"),
    "layernorm_after",
    value="attention.v_proj",
    final_norm="layernorm",
)

# BERT's, with norms before attention and MLP instead of after the sums
PRE_NORM = vary(BERT, block={"resid_mid": Point("LayerNorm", "input")})
# with Llama's names, and norms after the sums
ROTARY_BERT = vary(LLAMA, block={"resid_mid": Point("post_attention_layernorm")}, final_norm=None)
APPROXIMATE = "its attention is approximate, and has no pattern"


LOCAL = "its attention is computed in parts, without a pattern"


def _drop_attention(table: Architecture, why: str) -> Architecture:
    return drop_hook_points(table, why, "q", "k", "v", "pattern")


def _deberta(table: Architecture, value: str) -> Architecture:
    """The table for DeBERTa: q and k enter the first of three products before the softmax, and positions the others."""
    module = "attention.self"
    return vary(
        table,
        value=None if not value else Point(value),
        block={"q": Point(module, "attention", _take_first_left), "k": Point(module, "attention", _take_first_right)},
    )


def _take_first_left(seen: Attended, heads: int) -> Tensor:
    return join_heads(seen.scores[0][0], heads)


def _take_first_right(seen: Attended, heads: int) -> Tensor:
    return join_heads(seen.scores[0][1].mT, heads)


def _big_bird(config: Any) -> Architecture:
    """The table for BigBird, without the points of attention where it is sparse: on short texts the model replaces
    these modules, so that they are never reached."""
    return _drop_attention(BERT, LOCAL) if config.attention_type == "block_sparse" else BERT


ENCODERS: Tables = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": make_dense_stack(
        "transformer.layer",
        ("attention", "attention.out_lin"),
        ("ffn.lin1", "ffn.lin2"),
        Point("sa_layer_norm"),
        value="attention.v_lin",
    ),
    "albert": _albert,
    "xlnet": XLNET,
    "vit": VIT,
    **dict.fromkeys(
        (
            "bert-generation",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "layoutlm",
            "luke",
            "roc_bert",
            "roformer",
            "tapas",
            "xlm-roberta",
        ),
        BERT,
    ),
    "rembert": BERT,
    "ibert": BERT,
    "xmod": drop_hook_points(BERT, "an adapter follows its MLP", "mlp_out"),
    "deberta": _deberta(BERT, ""),
    "deberta-v2": _deberta(BERT, "attention.self.value_proj"),
    "convbert": drop_hook_points(BERT, "half of it comes from a convolution", "z"),
    "big_bird": _big_bird,
    "mpnet": make_dense_stack(
        "encoder.layer",
        ("attention.attn", "attention.attn.o"),
        ("intermediate.dense", "output.dense"),
        Point("attention.LayerNorm"),
        value="attention.attn.v",
    ),
    **dict.fromkeys(("mra", "yoso", "nystromformer", "longformer"), _drop_attention(BERT, APPROXIMATE)),
    "megatron-bert": vary(BERT, block={"resid_mid": Point("ln", "input")}, final_norm=Point("encoder.ln")),
    "esm": vary(PRE_NORM, final_norm=Point("encoder.emb_layer_norm_after")),
    "xlm-roberta-xl": vary(PRE_NORM, final_norm=Point("encoder.LayerNorm")),
    "roberta-prelayernorm": vary(
        BERT, block={"resid_mid": Point("intermediate.LayerNorm", "input")}, final_norm=Point("LayerNorm")
    ),
    "fnet": drop_hook_points(
        vary(BERT, block={"resid_mid": Point("fourier.output.LayerNorm"), "attn_out": Point("fourier.self")}),
        "its blocks mix tokens by a Fourier transform",
        "q",
        "k",
        "v",
        "z",
        "pattern",
    ),
    "mobilebert": Architecture(
        blocks="encoder.layer",
        block={**STREAM, **{kind: point for kind, point in BERT.block.items() if kind in ATTENTION}},
        lacks=dict.fromkeys(
            ("resid_mid", "attn_out", "mlp_pre", "mlp_post", "mlp_out"), "its blocks work in a narrower stream"
        ),
    ),
    "modernbert": make_dense_stack(
        "layers",
        ("attn", "attn.Wo"),
        ("mlp.Wi", "mlp.Wo"),
        "mlp_norm",
        value=Point("attn.Wqkv", pick=take_equal_part(2, 3)),
        final_norm="final_norm",
    ),
    "nomic_bert": ROTARY_BERT,
    "gte": ROTARY_BERT,
    "jina_embeddings_v3": vary(
        ROTARY_BERT,
        block={"mlp_pre": Point("mlp.fc1"), "mlp_post": Point("mlp.fc2", "input"), "mlp_out": Point("mlp.fc2")},
    ),
    "eurobert": LLAMA,
    "ultrabert": LLAMA,
    "esmc": lambda config: scale_additions(LLAMA, (36 / config.num_hidden_layers) ** 0.5),
}
