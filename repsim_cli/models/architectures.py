"""The hook points of each architecture: module paths inside the backbone, and which side to read.

Blocks are read by hooks, not from `output_hidden_states`, whose last entry is taken after the final norm. `attn_out`
and `mlp_out` are read at the output projections: they are what is added to the residual stream.
ARCHITECTURES: backbones of transformers, by `model_type`. LENS: the same models under TransformerLens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from repsim_cli.errors import BadInput, RunFailed


def first(value: Any, heads: int = 0) -> Tensor:
    """The hidden states, which a module returns alone or first in a tuple or list."""
    return value[0] if isinstance(value, tuple | list) else value


def weights(value: Any, heads: int = 0) -> Tensor:
    """(batch, heads, query, key) from an attention module's output.

    Raises RunFailed where it has none, as with attention that is not eager.
    """
    if not isinstance(value, tuple | list) or len(value) < 2 or value[1] is None:
        raise RunFailed("the model returns no attention weights, got None; use one that runs with eager attention")
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


def batch_first(value: Any, heads: int = 0) -> Tensor:
    """(batch, position, features) from a model that uses (position, batch, features) internally."""
    return first(value).transpose(0, 1)


class Point(NamedTuple):
    """Where a hook point is read: a module, its side, and pick(the value that passes, heads) -> tensor.

    call: which of the module's calls in a forward pass is read, for modules that several layers share.
    """

    module: str
    side: Literal["input", "output"] = "output"
    pick: Callable[[Any, int], Tensor] = first
    call: int = 0


@dataclass(frozen=True)
class Architecture:
    """Places in the backbone. `block` points are relative to a block, `{block list}.{layer}`.

    shared: for layers that share weights, the block of each layer and the number of its call.
    lacks: why a hook point that other architectures have is missing.
    other: how the output of any other module is read.
    """

    embed: Point
    blocks: str
    final_norm: Point | None
    block: dict[str, Point]
    shared: list[tuple[str, int]] | None = None
    lacks: dict[str, str] = field(default_factory=dict)
    other: Callable[[Any, int], Tensor] = first

    def find(self, kind: str, layer: int | None) -> Point | None:
        """Where the hook point is read, with the full module path; None if the architecture lacks it."""
        if layer is None:
            return {"embed": self.embed, "final_norm": self.final_norm}.get(kind)
        if kind not in self.block:
            return None
        point = self.block[kind]
        block, call = self.shared[layer] if self.shared else (f"{self.blocks}.{layer}", 0)
        return point._replace(module=f"{block}.{point.module}".rstrip("."), call=point.call + call)


def _block(**points: Point) -> dict[str, Point]:
    return {
        "resid_pre": Point("", "input"),
        "resid_post": Point(""),
        **points,
    }


_BERT = Architecture(
    embed=Point("embeddings"),
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
)

# of the models of modular sums
MODULAR = Architecture(
    embed=Point("embedded"),
    blocks="blocks",
    final_norm=None,
    block=_block(
        resid_mid=Point("mlp_in", "input"),
        q=Point("attention.q"),
        k=Point("attention.k"),
        v=Point("attention.v"),
        attn_scores=Point("attention.scores"),
        pattern=Point("attention.pattern"),
        z=Point("attention.out", "input"),
        attn_out=Point("attention.out"),
        mlp_pre=Point("mlp_in"),
        mlp_post=Point("mlp_out", "input"),
        mlp_out=Point("mlp_out"),
    ),
)

ARCHITECTURES: dict[str, Architecture] = {
    "gpt_neox": Architecture(
        embed=Point("emb_dropout"),
        blocks="layers",
        final_norm=Point("final_layer_norm"),
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
        embed=Point("drop"),
        blocks="h",
        final_norm=Point("ln_f"),
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
        embed=Point("embed_tokens"),
        blocks="layers",
        final_norm=Point("norm"),
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
    "bert": _BERT,
    "roberta": _BERT,
    "distilbert": Architecture(
        embed=Point("embeddings"),
        blocks="transformer.layer",
        final_norm=None,
        block=_block(
            resid_mid=Point("sa_layer_norm"),
            q=Point("attention.q_lin"),
            k=Point("attention.k_lin"),
            v=Point("attention.v_lin"),
            z=Point("attention.out_lin", "input"),
            pattern=Point("attention", pick=weights),
            attn_out=Point("attention.out_lin"),
            mlp_pre=Point("ffn.lin1"),
            mlp_post=Point("ffn.lin2", "input"),
            mlp_out=Point("ffn.lin2"),
        ),
    ),
    "albert": Architecture(
        embed=Point("encoder.embedding_hidden_mapping_in"),
        blocks="encoder.albert_layer_groups",  # shared by the layers; see `architecture`
        final_norm=None,
        block=_block(
            resid_mid=Point("attention.LayerNorm"),
            q=Point("attention.query"),
            k=Point("attention.key"),
            v=Point("attention.value"),
            z=Point("attention.dense", "input"),
            pattern=Point("attention", pick=weights),
            attn_out=Point("attention.dense"),
            mlp_pre=Point("ffn"),
            mlp_post=Point("ffn_output", "input"),
            mlp_out=Point("ffn_output"),
        ),
    ),
    "openai-gpt": Architecture(
        embed=Point("drop"),
        blocks="h",
        final_norm=None,
        block=_block(
            resid_mid=Point("ln_1"),
            q=Point("attn.c_attn", pick=third(0)),
            k=Point("attn.c_attn", pick=third(1)),
            v=Point("attn.c_attn", pick=third(2)),
            z=Point("attn.c_proj", "input"),
            pattern=Point("attn.attn_dropout"),  # which does nothing outside training
            attn_out=Point("attn.c_proj"),
            mlp_pre=Point("mlp.c_fc"),
            mlp_post=Point("mlp.c_proj", "input"),
            mlp_out=Point("mlp.c_proj"),
        ),
    ),
    "xlnet": Architecture(
        embed=Point("dropout", pick=batch_first),
        blocks="layer",
        final_norm=None,
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
        lacks={kind: "its attention computes it in no module" for kind in ("q", "k", "v", "z")},
        other=batch_first,
    ),
    "vit": Architecture(
        embed=Point("embeddings"),
        blocks="layers",
        final_norm=Point("layernorm"),
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
    """The table for a transformers config; None for an architecture without a table (use `module:` there)."""
    table = ARCHITECTURES.get(config.model_type)
    if table is None:
        return None
    if config.model_type == "gpt_neox" and config.use_parallel_residual:
        return _without(table, "its attention and MLP run in parallel", "resid_mid")
    if config.model_type == "albert":
        if config.inner_group_num != 1:
            raise BadInput(f"config.inner_group_num: only 1 is read, got {config.inner_group_num}; use another model")
        layers, groups = config.num_hidden_layers, config.num_hidden_groups
        group = [int(i / (layers / groups)) for i in range(layers)]
        return replace(
            table,
            shared=[(f"{table.blocks}.{g}.albert_layers.0", i - group.index(g)) for i, g in enumerate(group)],
        )
    return table


def _without(table: Architecture, why: str, *kinds: str) -> Architecture:
    block = {kind: point for kind, point in table.block.items() if kind not in kinds}
    return replace(table, block=block, lacks={**table.lacks, **dict.fromkeys(kinds, why)})


def _lens(*, resid_mid: str, mlp_pre: str = "mlp.in.hook_out", attn_scores: bool, final_norm: bool) -> Architecture:
    """Hook points of TransformerLens. Never `hook_attn_out` and `hook_resid_mid`: in BERT they are other tensors."""
    table = Architecture(
        embed=Point("blocks.0.hook_in"),
        blocks="blocks",
        final_norm=Point("ln_final.hook_out") if final_norm else None,
        block={
            "resid_pre": Point("hook_in"),
            "resid_post": Point("hook_out"),
            "resid_mid": Point(resid_mid),
            "q": Point("attn.q.hook_out"),
            "k": Point("attn.k.hook_out"),
            "v": Point("attn.v.hook_out"),
            "z": Point("attn.o.hook_in"),
            "attn_scores": Point("attn.hook_attn_scores"),
            "pattern": Point("attn.hook_pattern"),
            "attn_out": Point("attn.o.hook_out"),
            "mlp_pre": Point(mlp_pre),
            "mlp_post": Point("mlp.out.hook_in"),
            "mlp_out": Point("mlp.out.hook_out"),
        },
    )
    return table if attn_scores else _without(table, "TransformerLens gives its pattern there", "attn_scores")


_LENS_BERT = _lens(resid_mid="ln1.hook_out", attn_scores=False, final_norm=False)

LENS: dict[str, Architecture] = {
    "gpt_neox": _lens(resid_mid="ln2.hook_in", attn_scores=True, final_norm=True),
    "gpt2": _lens(resid_mid="ln2.hook_in", attn_scores=True, final_norm=True),
    "llama": _lens(resid_mid="ln2.hook_in", mlp_pre="mlp.gate.hook_out", attn_scores=True, final_norm=True),
    "bert": _LENS_BERT,
    "roberta": _LENS_BERT,
}


def lens_architecture(config: Any) -> Architecture:
    """The table for a transformers config under TransformerLens. Raises BadInput where there is no correct table."""
    if config.model_type not in LENS:
        why = "loses the causal mask there" if config.model_type == "openai-gpt" else "has no checked hook points there"
        raise BadInput(
            f"kind: TransformerLens {why}, got model_type '{config.model_type}'; use kind: transformers "
            f"(transformer_lens takes {', '.join(LENS)})"
        )
    table = LENS[config.model_type]
    if config.model_type == "gpt_neox" and config.use_parallel_residual:
        return _without(table, "its attention and MLP run in parallel", "resid_mid")
    return table


def native_architecture(*, gated: bool, attention_only: bool) -> Architecture:
    """The table of native TransformerLens models."""
    pre = "mlp.gate.hook_out" if gated else "mlp.in.hook_out"
    table = _lens(resid_mid="ln2.hook_in", mlp_pre=pre, attn_scores=False, final_norm=True)
    if attention_only:
        return _without(table, "it has only attention", "resid_mid", "mlp_pre", "mlp_post", "mlp_out")
    return table
