"""Where each architecture keeps its hook points: module paths inside the backbone, and which side to read.

Blocks are read through hooks and not through `output_hidden_states`, whose last entry is taken after the final
norm. `attn_out` and `mlp_out` are read from the output projections: what is added to the residual stream.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor


def first(value: Any, heads: int = 0) -> Tensor:
    """The hidden states: a module returns them bare or first in a tuple."""
    return value[0] if isinstance(value, tuple) else value


def weights(value: Any, heads: int = 0) -> Tensor:
    """(batch, heads, query, key) from an attention module's output; None unless attention is eager."""
    return value[1]


def third(part: int) -> Callable[[Any, int], Tensor]:
    """q, k or v of a projection that holds all q, then all k, then all v."""
    return lambda value, heads: first(value).chunk(3, dim=-1)[part]


def interleaved(part: int) -> Callable[[Any, int], Tensor]:
    """q, k or v of a projection that holds q, k, v head by head."""

    def pick(value: Any, heads: int) -> Tensor:
        fused = first(value)
        by_head = fused.view(*fused.shape[:-1], heads, -1)
        return by_head.chunk(3, dim=-1)[part].flatten(-2)

    return pick


class Point(NamedTuple):
    """One hook point: a module, the side of it that is read, and pick(what it passes, heads) -> tensor."""

    module: str
    side: Literal["input", "output"] = "output"
    pick: Callable[[Any, int], Tensor] = first


@dataclass(frozen=True)
class Architecture:
    """Paths in the backbone. `block` points are relative to one block, `{block list}.{layer}`."""

    embed: str
    blocks: str
    final_norm: str | None
    block: dict[str, Point] = field(default_factory=dict)

    def find(self, kind: str, layer: int | None) -> Point | None:
        """The hook point's place with its full module path, or None if the architecture lacks it."""
        if layer is None:
            path = {"embed": self.embed, "final_norm": self.final_norm}.get(kind)
            return Point(path) if path else None
        if kind not in self.block:
            return None
        point = self.block[kind]
        return point._replace(module=f"{self.blocks}.{layer}.{point.module}".rstrip("."))


def _block(**points: Point) -> dict[str, Point]:
    return {
        "resid_pre": Point("", "input"),
        "resid_post": Point(""),
        **points,
    }


ARCHITECTURES: dict[str, Architecture] = {
    "gpt_neox": Architecture(
        embed="emb_dropout",
        blocks="layers",
        final_norm="final_layer_norm",
        # with parallel residuals (Pythia) there is no resid_mid; see `architecture`
        block=_block(
            resid_mid=Point("post_attention_layernorm", "input"),
            q=Point("attention.query_key_value", pick=interleaved(0)),
            k=Point("attention.query_key_value", pick=interleaved(1)),
            v=Point("attention.query_key_value", pick=interleaved(2)),
            z=Point("attention.dense", "input"),
            pattern=Point("attention", pick=weights),
            attn_out=Point("attention.dense"),
            mlp_pre=Point("mlp.dense_h_to_4h"),
            mlp_post=Point("mlp.dense_4h_to_h", "input"),
            mlp_out=Point("mlp.dense_4h_to_h"),
        ),
    ),
    "gpt2": Architecture(
        embed="drop",
        blocks="h",
        final_norm="ln_f",
        block=_block(
            resid_mid=Point("ln_2", "input"),
            q=Point("attn.c_attn", pick=third(0)),
            k=Point("attn.c_attn", pick=third(1)),
            v=Point("attn.c_attn", pick=third(2)),
            z=Point("attn.c_proj", "input"),
            pattern=Point("attn", pick=weights),
            attn_out=Point("attn.c_proj"),
            mlp_pre=Point("mlp.c_fc"),
            mlp_post=Point("mlp.c_proj", "input"),
            mlp_out=Point("mlp.c_proj"),
        ),
    ),
    "llama": Architecture(
        embed="embed_tokens",
        blocks="layers",
        final_norm="norm",
        block=_block(
            resid_mid=Point("post_attention_layernorm", "input"),
            q=Point("self_attn.q_proj"),
            k=Point("self_attn.k_proj"),
            v=Point("self_attn.v_proj"),
            z=Point("self_attn.o_proj", "input"),
            pattern=Point("self_attn", pick=weights),
            attn_out=Point("self_attn.o_proj"),
            mlp_pre=Point("mlp.gate_proj"),
            mlp_post=Point("mlp.down_proj", "input"),
            mlp_out=Point("mlp.down_proj"),
        ),
    ),
    "bert": Architecture(
        embed="embeddings",
        blocks="encoder.layer",
        final_norm=None,
        block=_block(
            resid_mid=Point("attention.output.LayerNorm"),
            q=Point("attention.self.query"),
            k=Point("attention.self.key"),
            v=Point("attention.self.value"),
            z=Point("attention.output.dense", "input"),
            pattern=Point("attention.self", pick=weights),
            attn_out=Point("attention.output.dense"),
            mlp_pre=Point("intermediate.dense"),
            mlp_post=Point("output.dense", "input"),
            mlp_out=Point("output.dense"),
        ),
    ),
    "vit": Architecture(
        embed="embeddings",
        blocks="layers",
        final_norm="layernorm",
        block=_block(
            resid_mid=Point("layernorm_after", "input"),
            q=Point("attention.q_proj"),
            k=Point("attention.k_proj"),
            v=Point("attention.v_proj"),
            z=Point("attention.o_proj", "input"),
            pattern=Point("attention", pick=weights),
            attn_out=Point("attention.o_proj"),
            mlp_pre=Point("mlp.fc1"),
            mlp_post=Point("mlp.fc2", "input"),
            mlp_out=Point("mlp.fc2"),
        ),
    ),
}


def architecture(config: Any) -> Architecture | None:
    """The table for a transformers config; None for an architecture that has none (use `module:` there)."""
    table = ARCHITECTURES.get(config.model_type)
    if config.model_type == "gpt_neox" and config.use_parallel_residual:
        assert table is not None
        block = {k: v for k, v in table.block.items() if k != "resid_mid"}
        return Architecture(table.embed, table.blocks, table.final_norm, block)
    return table
