"""Tables of types that read images."""

from typing import Any

from repsim_cli.models.encoders import VIT
from repsim_cli.models.points import ABSENT, STREAM, Architecture, Point, Tables, make_dense_stack, vary

STAGES = "its blocks are stages of several layers"


DINOV2 = make_dense_stack(
    "encoder.layer",
    ("attention", "attention.o_proj"),
    ("mlp.fc1", "mlp.fc2"),
    "norm2",
    value="attention.v_proj",
    final_norm="layernorm",
)
CLIP = make_dense_stack(
    "encoder.layers",
    ("self_attn", "self_attn.out_proj"),
    ("mlp.fc1", "mlp.fc2"),
    "layer_norm2",
    value="self_attn.v_proj",
)


def _dinov2(config: Any) -> Architecture:
    table = vary(DINOV2, block={"attn_out": Point("layer_scale1"), "mlp_out": Point("layer_scale2")})
    if not config.use_swiglu_ffn:
        return table
    return vary(table, block={"mlp_pre": Point("mlp.weights_in"), "mlp_post": Point("mlp.weights_out", "input")})


def _beit(config: Any) -> Architecture:
    """The table for BEiT: what a block adds passes a module that drops paths in training, first from attention, then
    from the MLP."""
    table = vary(VIT, block={"attn_out": Point("drop_path"), "mlp_out": Point("drop_path", call=1)})
    return vary(table, final_norm=None if config.use_mean_pooling else Point("layernorm"))


IMAGES: Tables = {
    "deit": VIT,
    "beit": _beit,
    "dinov2": _dinov2,
    "dinov2_with_registers": _dinov2,
    "clip_text_model": vary(CLIP, final_norm=Point("final_layer_norm")),
    "clip_vision_model": CLIP,
    "siglip_vision_model": vary(CLIP, final_norm=Point("post_layernorm")),
    "swin": Architecture(
        blocks="encoder.layers",
        block=dict(STREAM),
        final_norm=Point("layernorm"),
        lacks=dict.fromkeys(ABSENT, STAGES),
    ),
    "convnext": Architecture(
        blocks="encoder.stages",
        block=dict(STREAM),
        lacks=dict.fromkeys(ABSENT, STAGES),
    ),
}
