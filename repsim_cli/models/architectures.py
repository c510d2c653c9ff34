"""The hook points of each architecture: module paths inside the backbone, and what is read of them.

ARCHITECTURES: backbones of transformers, by `model_type`. LENS: some of them under TransformerLens.

To add a type: write a line for it in DECODERS or ENCODERS, `"TYPE": LAYOUT` where its modules have the names of one,
`vary(LAYOUT, block={...})` where some points differ, or a function of the config where the table depends on it. What
is added to the stream (`attn_out`, `mlp_out`) is read where it is added: after a norm, times a factor. `attends` names
an attention module; q, k, v and pattern are then seen in what it computes (`attention.py`). A block that lacks a module
lacks the points there, with the reason in `points.ABSENT`. Then add a tiny config of the type to the tests, which hold
all identities.
"""

from typing import Any

from torch import nn

from repsim_cli.base.errors import BadInput
from repsim_cli.models.attention import read_keys, read_queries
from repsim_cli.models.decoders import DECODERS
from repsim_cli.models.encoders import ENCODERS
from repsim_cli.models.images import IMAGES
from repsim_cli.models.points import (
    STACKS,
    STREAM,
    Architecture,
    Point,
    Tables,
    drop_hook_points,
    guess_architecture,
    mark_parallel,
    resolve_points,
)
from repsim_cli.models.recurrent import RECURRENT
from repsim_cli.models.seq2seq import SEQ2SEQ

# of the models of modular sums
MODULAR = Architecture(
    blocks="blocks",
    value=Point("attention.v"),
    block={
        **STREAM,
        "resid_mid": Point("mlp_in", "input"),
        "q": Point("attention.q"),
        "k": Point("attention.k"),
        "v": Point("attention.v"),
        "attn_scores": Point("attention.scores"),
        "pattern": Point("attention.pattern"),
        "z": Point("attention.out", "input"),
        "attn_out": Point("attention.out"),
        "mlp_pre": Point("mlp_in"),
        "mlp_post": Point("mlp_out", "input"),
        "mlp_out": Point("mlp_out"),
    },
)

ARCHITECTURES: Tables = {**DECODERS, **ENCODERS, **SEQ2SEQ, **RECURRENT, **IMAGES}

# types whose modules can be read by name alone, and why
REFUSED = {
    **dict.fromkeys(("flaubert", "xlm"), "its blocks are not modules"),
    **dict.fromkeys(("deepseek_v4", "gemma3n_text", "hy_v4", "qwen4_exp_text"), "its stream is several in parallel"),
    **dict.fromkeys(("blt", "perceiver"), "its blocks work on fewer places than it has tokens"),
    **dict.fromkeys(("fsmt", "pegasus_x", "prophetnet"), "its blocks do not pass on one stream of its tokens"),
    "cpmant": "its stream has places of a prompt before the tokens",
    "funnel": "its blocks shorten the text",
    "git": "its blocks read images and text in one stream",
    "hrm_text": "its blocks run several times",
    "inkling2_text": "its blocks read several earlier ones",
    "longcat_flash": "each of its blocks is two",
    "phi4_multimodal": "its blocks read images, sound and text in one stream",
    "reformer": "its blocks are reversible, with two streams",
    "squeezebert": "its blocks are not called as modules",
}


def find_architecture(config: Any, skeleton: nn.Module) -> Architecture | None:
    """The table for a transformers config and its backbone without weights; by structure for a type without one.

    None where there are no blocks to be read.
    """
    if config.model_type in REFUSED:
        return None
    table = ARCHITECTURES.get(config.model_type)
    if table is None:
        return guess_architecture(skeleton, STACKS if getattr(config, "is_encoder_decoder", False) else ())
    return resolve_points(table if isinstance(table, Architecture) else table(config), skeleton)


def _build_lens_architecture(
    *, resid_mid: str, mlp_pre: str = "mlp.in.hook_out", attn_scores: bool, final_norm: bool, rotary: bool = False
) -> Architecture:
    """The hook points of TransformerLens, without its `hook_attn_out` and `hook_resid_mid`: in BERT these are other
    tensors."""
    table = Architecture(
        blocks="blocks",
        final_norm=Point("ln_final.hook_out") if final_norm else None,
        value=Point("attn.v.hook_out"),
        block={
            "resid_pre": Point("hook_in"),
            "resid_post": Point("hook_out"),
            "resid_mid": Point(resid_mid),
            "q": Point("attn", "attention", read_queries) if rotary else Point("attn.q.hook_out"),
            "k": Point("attn", "attention", read_keys) if rotary else Point("attn.k.hook_out"),
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
    return table if attn_scores else drop_hook_points(table, "TransformerLens gives its pattern there", "attn_scores")


_LENS_BERT = _build_lens_architecture(resid_mid="ln1.hook_out", attn_scores=False, final_norm=False)

LENS: dict[str, Architecture] = {
    "gpt_neox": _build_lens_architecture(resid_mid="ln2.hook_in", attn_scores=True, final_norm=True, rotary=True),
    "gpt2": _build_lens_architecture(resid_mid="ln2.hook_in", attn_scores=True, final_norm=True),
    "llama": _build_lens_architecture(
        resid_mid="ln2.hook_in", mlp_pre="mlp.gate.hook_out", attn_scores=True, final_norm=True, rotary=True
    ),
    "bert": _LENS_BERT,
    "roberta": _LENS_BERT,
}


def find_lens_architecture(config: Any) -> Architecture:
    """The table for a transformers config under TransformerLens. Raises BadInput where there is no correct table."""
    if config.model_type not in LENS:
        why = "loses the causal mask there" if config.model_type == "openai-gpt" else "has no checked hook points there"
        raise BadInput(
            f"kind: TransformerLens {why}, got model_type '{config.model_type}'; use kind: transformers "
            f"(transformer_lens takes {', '.join(LENS)})"
        )
    table = LENS[config.model_type]
    if config.model_type == "gpt_neox" and config.use_parallel_residual:
        return mark_parallel(table)
    return table


def build_native_architecture(*, gated: bool, attention_only: bool, rotary: bool) -> Architecture:
    """The table of native TransformerLens models."""
    pre = "mlp.gate.hook_out" if gated else "mlp.in.hook_out"
    table = _build_lens_architecture(
        resid_mid="ln2.hook_in", mlp_pre=pre, attn_scores=False, final_norm=True, rotary=rotary
    )
    if attention_only:
        return drop_hook_points(table, "it has only attention", "resid_mid", "mlp_pre", "mlp_post", "mlp_out")
    return table
