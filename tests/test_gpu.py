"""On a GPU: the numbers of the CPU within rounding, and batches that are halved."""

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.runs import reader

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
WORDS = ("run", "-q", "model=[tiny_a,tiny_b]", "measure=[cka_unbiased,mean_cca]", "extract.sequences=16", "cache=false")


def values(run):
    return {
        (measured["name"], number): np.load(run / matrix["values"])
        for measured in recorded(run)["measures"]
        for number, matrix in enumerate(measured["matrices"])
    }


@pytest.mark.parametrize(("dtype", "difference"), [("float32", 1e-4), ("bfloat16", 0.03)])
def test_the_numbers_of_the_cpu(dtype, difference, repsim, newest):
    """Forward passes and similarity, in the given dtype on the device and in float32 on the CPU."""
    found = {}
    for settings in ((f"hardware.device={DEVICE}", f"hardware.dtype={dtype}"), ("hardware.device=cpu",)):
        code, _, err = repsim(*WORDS, *settings)
        assert code == 0, err
        found[settings] = values(newest())
        assert reader.read_manifest(newest())["device"] == settings[0].removeprefix("hardware.device=")
    here, there = found.values()
    assert here.keys() == there.keys()
    for key, x in here.items():
        np.testing.assert_allclose(x, there[key], atol=difference, err_msg=str(key))


@pytest.mark.parametrize("by_block", ["never", "always"])
def test_batches_are_halved_where_the_device_is_out_of_memory(by_block, repsim, newest, monkeypatch):
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer

    forward = GPTNeoXLayer.forward

    def hungry(self, x, *args, **more):
        if len(x) > 2:
            torch.empty(10**14, device=x.device)
        return forward(self, x, *args, **more)

    monkeypatch.setattr(GPTNeoXLayer, "forward", hungry)
    words = [*WORDS, f"hardware.device={DEVICE}", f"hardware.by_block={by_block}"]
    code, _, err = repsim(*(word for word in words if word != "-q"), "hardware.batch_size=8")
    assert code == 0, err
    assert "out of memory with 8 sequences" in err
