"""Rounded copies: which weights are rounded, to what, and what the identity says."""

import pytest
import torch
from helpers.tiny import TINY

from repsim_cli.base import registry
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.rounding import Quantize, round_to_steps, round_weights

transformers = registry.models.get("transformers").function


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_steps_of_a_matrix(bits):
    weights = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights[2] = 0
    found = round_to_steps(weights, bits, inputs=1)
    most = 2 ** (bits - 1) - 1
    for row, given in zip(found, weights, strict=True):
        step = given.abs().max() / most
        assert len(set(row.tolist())) <= 2 * most + 1
        assert (row - given).abs().max() <= step / 2 * (1 + 1e-9)
    torch.testing.assert_close(round_to_steps(weights.T, bits, inputs=0), found.T)
    torch.testing.assert_close(round_to_steps(found, bits, inputs=1), found)


@pytest.mark.parametrize("kind", TINY)
def test_matrices_of_the_blocks_are_rounded_and_nothing_else(tiny_folder, kind):
    path = str(tiny_folder(kind))
    plain = transformers(path=path).load(False).state_dict()
    coarse = transformers(path=path, quantize=Quantize(bits=4)).load(False).state_dict()
    changed = {name for name in plain if not torch.equal(plain[name].nan_to_num(), coarse[name].nan_to_num())}
    expected = {
        name
        for name, weight in plain.items()
        if weight.ndim == 2 and name.endswith(".weight") and any(part.isdigit() for part in name.split("."))
    }
    assert changed == expected
    assert len(expected) >= 4
    for name in expected:
        error = (plain[name] - coarse[name]).abs().max() / plain[name].abs().max()
        assert 0 < error < 0.08, name


@pytest.mark.parametrize(("kind", "inputs"), [("mixtral", 2), ("gpt_oss", 1)])
def test_experts_are_rounded_by_output(kind, inputs):
    config = {**TINY["llama"], "model_type": kind, "num_local_experts": 4, "head_dim": 8}
    model = import_transformers().AutoModel.from_config(inline_config(config))
    round_weights(model, 3)
    experts = model.layers[1].mlp.experts.gate_up_proj.detach()
    assert experts.ndim == 3
    for row in experts[1].T if inputs == 1 else experts[1]:
        assert len(row.unique()) <= 7


def test_the_identity_says_how(tiny_folder):
    path = str(tiny_folder("llama"))
    plain, coarse, coarser = (
        transformers(path=path, quantize=how).identity() for how in (None, Quantize(bits=8), Quantize(bits=4))
    )
    assert len({one["weights_hash"] for one in (plain, coarse, coarser)}) == 3
    assert coarse["quantize"] == "round to 8 bits"
    assert coarse["config_hash"] == plain["config_hash"]


def test_the_head_is_not_rounded(tmp_path):
    model = import_transformers().AutoModelForCausalLM.from_config(inline_config(TINY["llama"]))
    model.save_pretrained(tmp_path)
    whole = transformers(path=str(tmp_path), quantize=Quantize(bits=2)).with_head("AutoModelForCausalLM")
    assert torch.equal(whole.lm_head.weight, model.lm_head.weight)
    assert len(whole.model.layers[0].mlp.up_proj.weight[0].unique()) <= 3


def test_other_methods_and_widths_are_refused(repsim, tiny_folder):
    path = tiny_folder("llama")
    for given, message in {
        "{method: awq}": "model.mine.quantize.method: wrong value, got 'awq'; give 'round', 'torchao', ",
        "{bits: 1}": "model.mine.quantize.bits: wrong value, got 1",
        "8": "model.mine.quantize: wrong value, got 8; give keys of {method, bits}",
    }.items():
        code, _, err = repsim(
            "run", "model=[]", f"+model.mine={{kind: transformers, path: '{path}', quantize: {given}}}"
        )
        assert code == 2
        assert message in err
