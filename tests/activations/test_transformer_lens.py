"""What TransformerLens gives at hook points, against transformers and plain arithmetic."""

import math

import pytest
import torch
from helpers.hooked import DEPTH, HEADS, LENGTH, WIDTH, activations, by_head, close, some_ids
from helpers.tiny import TINY, perturb

from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.models.architectures import LENS

pytestmark = pytest.mark.usefixtures("no_gradients")


def test_transformers_give_no_scores():
    source = registry.models.get("random").function(config=TINY["gpt2"])
    with pytest.raises(BadInput, match="gpt2 has no attn_scores, got 'attn_scores@0'; choose another hook point"):
        expand(["attn_scores"], "all", source)


@pytest.mark.parametrize("kind", LENS)
def test_transformer_lens_reads_what_transformers_reads(tiny_folder, kind):
    """Every hook point that both have, on perturbed weights and a padded batch."""
    plain = registry.models.get("transformers").function(path=str(tiny_folder(kind)))
    lens = registry.models.get("transformer_lens").function(path=str(tiny_folder(kind)))
    both = [name for name in plain.architecture.block if name in lens.architecture.block]
    assert set(plain.architecture.block) == set(both)
    names = ["embed", *both, *(["final_norm"] if plain.architecture.final_norm else [])]
    assert (plain.architecture.final_norm is None) == (lens.architecture.final_norm is None)
    ids, mask = some_ids()
    expected, found = (activations(source, names, ids, mask) for source in (plain, lens))
    assert list(found) == list(expected)
    for name, x in found.items():
        rows = mask if x.ndim == 3 else mask[:, None, :].expand(x.shape[:3])
        close(x[rows], expected[name][rows], atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt_neox", "gpt2", "llama"])
def test_transformer_lens_gives_the_scores_of_decoders(tiny_folder, kind):
    source = registry.models.get("transformer_lens").function(path=str(tiny_folder(kind)))
    ids, mask = some_ids()
    found = activations(source, ["attn_scores", "pattern"], ids, mask)
    for layer in range(DEPTH):
        pattern = found[f"pattern@{layer}"]
        close(found[f"attn_scores@{layer}"].softmax(-1), pattern)
        assert (found[f"attn_scores@{layer}"] - pattern).abs().max() > 1


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_names_that_mean_something_else_in_transformer_lens_are_kept_out(tiny_folder, kind):
    source = registry.models.get("transformer_lens").function(path=str(tiny_folder(kind)))
    with pytest.raises(BadInput, match=rf"{kind} has no attn_scores \(TransformerLens gives its pattern there\)"):
        expand(["attn_scores@0"], "all", source)
    for name in ("blocks.0.hook_resid_mid", "blocks.0.hook_attn_out", "blocks.0.attn.hook_attn_scores"):
        with pytest.raises(BadInput, match=f"no such module, got 'module:{name}'"):
            expand([f"module:{name}"], "all", source)
    ids, mask = some_ids()
    found = activations(source, ["module:blocks.1.hook_resid_post", "resid_post@1"], ids, mask)
    close(*found.values(), atol=0)


NATIVE = {"d_model": 32, "n_layers": 3, "n_heads": 4, "n_ctx": 64, "d_vocab": 400}


def native(**config):
    return registry.models.get("transformer_lens").function(config={**NATIVE, **config})


@pytest.mark.parametrize(
    "config",
    [
        {"act_fn": "solu_ln"},
        {"act_fn": "gelu"},
        {"act_fn": "relu", "normalization_type": None, "d_mlp": 64},
        {"act_fn": "silu", "gated_mlp": True, "normalization_type": "RMS", "n_key_value_heads": 2,
         "positional_embedding_type": "rotary"},
        {"act_fn": "gelu", "normalization_type": "LNPre", "attention_dir": "bidirectional"},
        {"attn_only": True},
    ],
    ids=lambda config: "-".join(str(v) for v in config.values()),
)  # fmt: skip
def test_native_models_by_arithmetic(config):
    source = native(**config)
    model = source.load(False)
    perturb(model)
    ids, mask = some_ids()
    found = activations(source, ["embed", *source.architecture.block, "final_norm"], ids, mask, model)
    bridge = model.bridge
    close(found["embed"], found["resid_pre@0"], atol=0)
    if config.get("positional_embedding_type") != "rotary":
        close(found["embed"], bridge.embed.weight[ids] + bridge.pos_embed.weight[:LENGTH])
    for layer in range(DEPTH):
        here = bridge.blocks[layer]
        q, k, v, z, pattern, out = (found[f"{n}@{layer}"] for n in ("q", "k", "v", "z", "pattern", "attn_out"))
        kv = source.kv_heads
        rows = mask[:, None, :].expand(2, HEADS, LENGTH)
        allowed = mask[:, None, None, :].expand(2, 1, LENGTH, LENGTH).clone()
        if config.get("attention_dir") != "bidirectional":
            allowed &= torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        k = by_head(k, kv).repeat_interleave(HEADS // kv, dim=1)
        scores = by_head(q, HEADS) @ k.mT / math.sqrt(WIDTH // HEADS)
        close(pattern[rows], scores.masked_fill(~allowed, -torch.inf).softmax(-1)[rows])
        v = by_head(v, kv).repeat_interleave(HEADS // kv, dim=1)
        close(by_head(z, HEADS)[rows], (pattern @ v)[rows])
        close(out, torch.nn.functional.linear(z, here.attn.o.weight, here.attn.o.bias))
        pre, post = found[f"resid_pre@{layer}"], found[f"resid_post@{layer}"]
        if config.get("attn_only"):
            close(post, pre + out)
            continue
        mid, mlp = found[f"resid_mid@{layer}"], found[f"mlp_out@{layer}"]
        close(mid, pre + out)
        close(post, mid + mlp)
        a, b = found[f"mlp_pre@{layer}"], found[f"mlp_post@{layer}"]
        if config["act_fn"] == "solu_ln":
            norm = here.mlp.ln
            close(b, torch.nn.functional.layer_norm(a * a.softmax(-1), a.shape[-1:], norm.weight, norm.bias))
        elif not config.get("gated_mlp"):
            close(b, getattr(torch.nn.functional, config["act_fn"])(a))
        biases = None if config.get("gated_mlp") else here.mlp.out.bias
        close(mlp, torch.nn.functional.linear(b, here.mlp.out.weight, biases))
    assert not any(module.training for module in model.modules())
    with pytest.raises(BadInput, match=r"has no attn_scores \(TransformerLens gives its pattern there\)"):
        expand(["attn_scores"], "all", source)


def test_attention_alone_has_no_mlp():
    with pytest.raises(BadInput, match=r"native gelu has no mlp_out \(it has only attention\), got 'mlp_out@0'"):
        expand(["mlp_out"], "all", native(attn_only=True))
