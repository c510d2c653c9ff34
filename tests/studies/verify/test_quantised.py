"""Rounded weights are told from faults: by the noise that rounding gives for each linear map, and none worse."""

import copy

import pytest
import torch
from helpers.nights import nightly
from planted import Parts, batches, built, weight

from repsim_cli.models.rounding import rounded, to_steps
from repsim_cli.studies.verify.answer import AS_QUANTISED, DIFFERENT
from repsim_cli.studies.verify.quantised import steps
from repsim_cli.studies.verify.study import verified


@pytest.fixture(scope="module", params=nightly(["llama", "gpt2", "bert"], "bert"))
def reference(request):
    return built(request.param)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_rounded_weights_are_as_quantised(reference, bits):
    answer = verified(reference, rounded(copy.deepcopy(reference), bits), batches())
    assert answer.verdict == AS_QUANTISED
    assert answer.same
    said = float(answer.quantised.split("about ")[1].split()[0])
    assert said == pytest.approx(bits, abs=0.35)
    assert answer.lines()[1].startswith("  effect  next token: KL ")


def test_the_map_that_is_worse_than_the_others_stands_out(reference):
    other = rounded(copy.deepcopy(reference), 6)
    block, there = 1, Parts(other).by_role(1)
    module, exact = (weight(Parts(model).at(block, there["down"])) for model in (other, reference))
    module.copy_(to_steps(exact.clone(), 5, 1))
    answer = verified(reference, other, batches())
    assert answer.verdict == DIFFERENT
    assert [(each.unit, each.place, each.kind) for each in answer.differences] == [("block 1", there["down"], "noise")]
    assert "dB above what its bits give" in answer.differences[0].about


def test_other_noise_of_the_same_size_is_no_rounding(reference):
    other, draw = copy.deepcopy(reference), torch.Generator().manual_seed(0)
    parts = Parts(other)
    for block in range(len(parts.blocks)):
        for path in set(parts.by_role(block).values()):
            w = getattr(parts.at(block, path), "weight", None)
            if w is not None and w.ndim == 2:
                step = w.data.abs().amax() / 31
                w.data += step / 12**0.5 * torch.randn(w.shape, generator=draw)
    assert verified(reference, other, batches()).verdict == DIFFERENT


def test_steps_of_groups():
    w = torch.tensor([[1.0, -3.0, 0.5, 0.25]])
    assert steps(w, 0, True).tolist() == [[3.0]]
    assert steps(w, 2, True).tolist() == [[3.0, 0.5]]
    assert steps(w, 2, False).tolist() == [[2.0, 0.125]]
