"""Tables of types that read a whole text or image at once."""

from dataclasses import replace
from typing import Any

from repsim_cli.errors import BadInput
from repsim_cli.models.points import Architecture, Point, Tables, batch_first, dense, without

BERT = dense(
    "encoder.layer",
    ("attention.self", "attention.output.dense"),
    ("intermediate.dense", "output.dense"),
    Point("attention.output.LayerNorm"),
    value="attention.self.value",
    entry="embeddings",
)

ALBERT = dense(
    "encoder.albert_layer_groups",  # shared by the layers
    ("attention", "attention.dense"),
    ("ffn", "ffn_output"),
    Point("attention.LayerNorm"),
    value="attention.value",
    entry="encoder.embedding_hidden_mapping_in",
)


def _albert(config: Any) -> Architecture:
    if config.inner_group_num != 1:
        raise BadInput(f"config.inner_group_num: only 1 is read, got {config.inner_group_num}; use another model")
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    group = [int(i / (layers / groups)) for i in range(layers)]
    return replace(
        ALBERT, shared=[(f"{ALBERT.blocks}.{g}.albert_layers.0", i - group.index(g)) for i, g in enumerate(group)]
    )


XLNET = without(
    Architecture(
        blocks="layer",
        entry="dropout",
        block={
            "resid_pre": Point("", "input", batch_first),
            "resid_post": Point("", pick=batch_first),
            "resid_mid": Point("rel_attn", pick=batch_first),
            # its dropout, which does nothing outside training, sees the weights and then the projected sum
            "pattern": Point("rel_attn.dropout"),
            "attn_out": Point("rel_attn.dropout", pick=batch_first, call=1),
            "mlp_pre": Point("ff.layer_1", pick=batch_first),
            "mlp_post": Point("ff.layer_2", "input", batch_first),
            "mlp_out": Point("ff.layer_2", pick=batch_first),
        },
        other=batch_first,
    ),
    "its attention computes it in no module",
    "q",
    "k",
    "v",
    "z",
)

VIT = dense(
    "layers",
    ("attention", "attention.o_proj"),
    ("mlp.fc1", "mlp.fc2"),
    "layernorm_after",
    value="attention.v_proj",
    final_norm="layernorm",
    entry="embeddings",
)

ENCODERS: Tables = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": dense(
        "transformer.layer",
        ("attention", "attention.out_lin"),
        ("ffn.lin1", "ffn.lin2"),
        Point("sa_layer_norm"),
        value="attention.v_lin",
        entry="embeddings",
    ),
    "albert": _albert,
    "xlnet": XLNET,
    "vit": VIT,
}
