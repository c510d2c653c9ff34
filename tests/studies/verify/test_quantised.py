"""Rounded weights are told from faults: by the noise that rounding gives for each linear map, and none worse."""

import copy
import re

import pytest
import torch
from helpers.nights import nightly, slow
from helpers.tiny_configs import tiny_config
from plants import Parts, batches, built, weight

from repsim_cli.models.rounding import round_to_steps, round_weights
from repsim_cli.studies.verify.answer import AS_QUANTISED, DIFFERENT
from repsim_cli.studies.verify.quantised import compute_half_ranges
from repsim_cli.studies.verify.study import verify_models


@pytest.fixture(scope="module", params=nightly(["llama", "gpt2", "bert"], "bert"))
def reference(request):
    return built(request.param)


@pytest.mark.parametrize("bits", slow([8, 6, 4], 6))
def test_rounded_weights_are_as_quantised(reference, bits):
    answer = verify_models(reference, round_weights(copy.deepcopy(reference), bits), batches())
    assert answer.verdict == AS_QUANTISED
    assert answer.same
    said = float(answer.quantised.split("about ")[1].split()[0])
    assert said == pytest.approx(bits, abs=0.35)
    assert answer.lines()[1].startswith("  effect  next token: KL ")


def q4_k(w):
    """Steps and lowest values of groups of 32, in 6 bits of the largest of 8 groups, as GGUF's Q4_K."""
    x = w.unflatten(1, (-1, 8, 32))
    low = (-x.amin(3)).clamp_min(0)
    step = (x.amax(3) + low) / 15
    step, low = ((part / (unit := part.amax(2, keepdim=True) / 63)).round() * unit for part in (step, low))
    step, low = step[..., None], low[..., None]
    return (((x + low) / step).round().clamp(0, 15) * step - low).flatten(1)


def by_levels(levels, group):
    """The nearest of a few values, in the size of the largest of a group."""

    def nearest(w):
        x = w.unflatten(1, (-1, group))
        size = x.abs().amax(2, keepdim=True)
        return (levels[((x / size)[..., None] - levels).abs().argmin(-1)] * size).flatten(1)

    return nearest


def fp8(w):
    return (w / w.abs().amax() * 448).to(torch.float8_e4m3fn).float() * w.abs().amax() / 448


NORMAL = torch.special.ndtri(torch.linspace(0.02, 0.98, 16))
FP4 = torch.tensor([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6
FORMATS = {
    "Q4_K": (q4_k, 4.0, "groups of 32 weights"),
    "floating 8 bits": (fp8, 4.4, "floating, a step in the size of each weight"),
    "levels of a normal distribution": (by_levels(NORMAL / NORMAL.max(), 64), 4.2, ""),
    "floating 4 bits": (by_levels(FP4, 32), 3.4, "groups of 32 weights"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_others_are_as_quantised(name, monkeypatch):
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 1}
    monkeypatch.setattr("plants.tiny_config", lambda name: {**tiny_config(name), **wide})
    exact = built("llama")
    other, (made, bits, steps) = copy.deepcopy(exact), FORMATS[name]
    for module in Parts(other).blocks[0].modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = made(module.weight.data)
    answer = verify_models(exact, other, batches(exact)[:2])
    assert answer.verdict == AS_QUANTISED
    assert float(answer.quantised.split("about ")[1].split()[0]) == pytest.approx(bits, abs=0.35)
    assert f"({steps}" in answer.quantised


def test_the_map_that_is_worse_than_the_others_stands_out(reference):
    other = round_weights(copy.deepcopy(reference), 6)
    block, there = 1, Parts(other).by_role(1)
    module, exact = (weight(Parts(model).at(block, there["down"])) for model in (other, reference))
    module.copy_(round_to_steps(exact.clone(), 5, 1))
    answer = verify_models(reference, other, batches())
    assert answer.verdict == DIFFERENT
    assert [(each.unit, each.place, each.kind) for each in answer.differences] == [("block 1", there["down"], "noise")]
    assert "dB above what its bits give" in answer.differences[0].about
    assert answer.lines()[0].endswith(" (before it the errors are those of rounding to about 6.0 bits)")
    assert " linear maps are what rounding to about 6.0 bits gives" in answer.lines()[-1]
    assert re.search(r"errors of (\d+) of (\d+) linear maps", answer.quantised)


def rounded_in(reference, blocks):
    """A copy in 6 bits in these blocks alone."""
    other = round_weights(copy.deepcopy(reference), 6)
    for number, (block, exact) in enumerate(zip(Parts(other).blocks, Parts(reference).blocks, strict=True)):
        if number not in blocks:
            block.load_state_dict(exact.state_dict())
    return other


def test_the_maps_that_are_rounded_are_named(reference):
    other = rounded_in(reference, [0])
    answer = verify_models(reference, other, batches())
    assert answer.verdict == AS_QUANTISED
    assert re.search(r"of (\d+) of \d+ linear maps \(.+ of block 0\) are what rounding to about [56]", answer.quantised)


def test_nothing_is_said_of_rounding_before_the_first_difference_where_all_of_it_is_behind(reference):
    other, there = rounded_in(reference, [1, 2]), Parts(reference).by_role(0)
    weight(Parts(other).at(0, there["down"]))[0, 0] += 1
    answer = verify_models(reference, other, batches())
    assert answer.lines()[0] == f"DIFFERENT   first at {answer.differences[0].where} (all before agree to rounding)"
    assert " linear maps (" in answer.lines()[-1]
    assert answer.differences[0].kind == "weight"  # smaller than the rounding of the others, and not put down to it


def test_other_noise_of_the_same_size_is_no_rounding(reference):
    other, draw = copy.deepcopy(reference), torch.Generator().manual_seed(0)
    parts = Parts(other)
    for block in range(len(parts.blocks)):
        for path in set(parts.by_role(block).values()):
            w = getattr(parts.at(block, path), "weight", None)
            if w is not None and w.ndim == 2:
                step = w.data.abs().amax() / 31
                w.data += step / 12**0.5 * torch.randn(w.shape, generator=draw)
    assert verify_models(reference, other, batches()).verdict == DIFFERENT


def test_steps_of_groups():
    w = torch.tensor([[1.0, -3.0, 0.5, 0.25]])
    assert compute_half_ranges(w, 0, True).tolist() == [[3.0]]
    assert compute_half_ranges(w, 2, True).tolist() == [[3.0, 0.5]]
    assert compute_half_ranges(w, 2, False).tolist() == [[2.0, 0.125]]


def cast(model, dtype, only=lambda name: True):
    """A copy with the weights of these names rounded to 16 bits, in the precision of the model."""
    other = copy.deepcopy(model)
    for name, x in other.state_dict().items():
        if only(name):
            x.copy_(x.to(dtype))
    return other


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_is_named(reference, dtype):
    answer = verify_models(reference, cast(reference, dtype), batches())
    name = str(dtype).removeprefix("torch.")
    assert answer.verdict == AS_QUANTISED
    assert answer.quantised.startswith(f"the weights are those of the reference rounded to {name} (")
    assert answer.quantised.endswith(" tensors), and nothing else differs")
    assert (answer.settings["precision"], answer.differences) == (name, [])
    assert answer.right[0].startswith("embed")
    assert answer.right[-1] in ("head", "cls")
    assert answer.effect["kl"] > 0


def test_what_else_a_cast_copy_has(reference):
    other = cast(reference, torch.bfloat16)
    down = Parts(reference).by_role(1)["down"]
    weight(Parts(other).at(1, down))[0, 0] += 1
    answer = verify_models(reference, other, batches())
    (difference,) = answer.differences
    assert (difference.unit, difference.place, difference.kind) == ("block 1", down, "weight")
    assert answer.lines()[0].endswith(" (all before agree to rounding, once weights are rounded to bfloat16)")
    assert "rounded to bfloat16" in answer.lines()[-1]
    assert answer.given == "the inputs of the reference rounded to bfloat16"


def test_a_cast_of_what_is_not_quantised(reference):
    other = round_weights(copy.deepcopy(reference), 6)
    paths = {
        f"{Parts(other).path}.{block}.{path}" for block in range(3) for path in Parts(other).by_role(block).values()
    }
    other = cast(other, torch.bfloat16, only=lambda name: name.rpartition(".")[0] not in paths)
    answer = verify_models(reference, other, batches())
    assert answer.verdict == AS_QUANTISED
    assert "rounded to bfloat16 (" in answer.quantised
    assert " linear maps are what rounding to about " in answer.quantised


def test_a_change_of_few_weights_is_no_cast(reference):
    """Nothing is cast where all weights of the reference are of 16 bits before, which rounding leaves as they are."""
    coarse = cast(reference, torch.bfloat16)
    other = copy.deepcopy(coarse)
    weight(Parts(other).at(1, Parts(other).by_role(1)["down"]))[0, 0] += 1
    answer = verify_models(coarse, other, batches())
    assert (answer.verdict, answer.settings, answer.quantised) == (DIFFERENT, {}, "")
