"""Native models of TransformerLens, and their old format."""

import json

import torch
from helpers.tiny import perturb

from repsim_cli.base import registry

transformer_lens = registry.models.get("transformer_lens").function
SOLU = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_ctx": 64, "d_vocab": 400, "act_fn": "solu_ln"}


def old_names(state, heads):
    """A native model's weights as TransformerLens saved them before: by head, and inputs first."""
    out = {}
    for key, value in state.items():
        *path, module, kind = key.split(".")
        letter = "W" if kind == "weight" else "b"
        if module in ("q", "k", "v"):
            x = value.unflatten(0, (heads, -1))
            out[".".join([*path, f"{letter}_{module.upper()}"])] = x.transpose(1, 2) if x.ndim == 3 else x
        elif module == "o":
            out[".".join([*path, f"{letter}_O"])] = value.T.unflatten(0, (heads, -1)) if kind == "weight" else value
        elif module in ("in", "out"):
            out[".".join([*path, f"{letter}_{module}"])] = value.T if kind == "weight" else value
        elif module in ("embed", "pos_embed"):
            out[f"{module}.W_{'E' if module == 'embed' else 'pos'}"] = value
        elif module == "unembed":
            out[f"unembed.{letter}_U"] = value.T if kind == "weight" else value
        else:
            out[".".join([*path, module, letter.lower()])] = value
    return {k: v.contiguous() for k, v in out.items()}


def perturbed_solu():
    model = transformer_lens(config=SOLU).load(False)
    perturb(model)
    return model, {k: v.clone() for k, v in model.bridge.state_dict().items()}


def legacy_folder(folder, state, **changes):
    """A model as the hub has them in TransformerLens' old format."""
    said = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_head": 8, "d_mlp": 128, "n_ctx": 64, "d_vocab": 400,
            "act_fn": "solu_ln", "attn_only": False, "normalization": "LN", "shortformer_pos": False,
            "tokenizer_name": "NeelNanda/tiny-tokenizer", "ln_eps": 1e-5, "lr": 0.001, **changes}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in said.items() if v is not ...}))
    torch.save(old_names(state, 4), folder / "model_final.pth")
    return folder
