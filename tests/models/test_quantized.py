"""Weights that packages store as integers: close to those of the file, smaller, and what is refused."""

import pytest
import torch
from helpers.tiny import TINY

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.loading import Loading, make_input_template
from repsim_cli.models.quantized import read_weight_bits
from repsim_cli.models.rounding import Quantize
from repsim_cli.models.sizes import count_weight_bytes

transformers = registry.models.get("transformers").function
WAYS = [("torchao", 8, 0.02), ("bitsandbytes", 8, 0.03), ("bitsandbytes", 4, 0.25)]


@pytest.fixture(scope="module")
def folder(shared):
    """A saved Llama of 3 blocks of width 128."""

    def make(folder):
        torch.manual_seed(7)
        settings = {**TINY["llama"], "hidden_size": 128, "intermediate_size": 256}
        model = import_transformers().AutoModelForCausalLM.from_config(inline_config(settings))
        model.save_pretrained(folder)

    return str(shared("of-width-128", make))


def stream(source, model):
    ids = torch.arange(5, 37).reshape(2, 16)
    with capture(model, source, expand(["resid_post"], "all", source)) as reader:
        return torch.stack([*reader(ids, torch.ones_like(ids, dtype=torch.bool)).values()]).float()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("method", "bits", "error"), WAYS)
def test_activations_are_close_to_those_of_the_file(folder, method, bits, error, dtype):
    pytest.importorskip(method)
    plain, source = transformers(path=folder), transformers(path=folder, quantize=Quantize(method=method, bits=bits))
    expected = stream(plain, plain.load(False))
    model = source.load(False, Loading(dtype=dtype))
    assert make_input_template(model).dtype == dtype
    found = stream(source, model)
    assert 1e-4 < (found - expected).norm() / expected.norm() < error
    assert source.identity()["quantize"] == f"{method} to {bits} bits"
    assert source.identity()["weights_hash"] != plain.identity()["weights_hash"]
    linear = 3 * (2 * 128**2 + 2 * 128 * 64 + 3 * 128 * 256)
    saved = linear * (torch.float32.itemsize - bits / 8)
    assert count_weight_bytes(source, "float32") == count_weight_bytes(plain, "float32") - saved


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("method", "bits"), [("torchao", 8), ("bitsandbytes", 8)])
def test_a_checkpoint_that_is_quantized_already(folder, tmp_path, method, bits):
    pytest.importorskip(method)
    quantized = transformers(path=folder, quantize=Quantize(method=method, bits=bits))
    model = quantized.load(False)
    model.save_pretrained(tmp_path)
    source = transformers(path=str(tmp_path))
    assert source.bits == bits
    torch.testing.assert_close(stream(source, source.load(False)), stream(quantized, model))
    with pytest.raises(BadInput, match="quantize: the checkpoint is quantized already, got .*; drop it"):
        transformers(path=str(tmp_path), quantize=Quantize(method=method, bits=bits))


@pytest.mark.parametrize(
    ("quantize", "adapter", "message"),
    [
        ({"method": "gptq"}, None, "quantize.method: weights are fitted to texts, which a run does not do, got gptq"),
        ({"method": "torchao", "bits": 3}, None, "quantize.bits: torchao stores 4 or 8 bits, got 3; use one of them"),
        ({"method": "torchao"}, "x", "adapter, quantize: an adapter cannot be merged into weights of torchao, got 'x'"),
    ],
)
def test_what_is_refused(folder, quantize, adapter, message):
    with pytest.raises(BadInput, match=message):
        transformers(path=folder, quantize=Quantize(**quantize), adapter=adapter)


def test_packages_and_devices_that_are_missing(folder, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("repsim_cli.models.quantized.find_spec", lambda name: name)
    with pytest.raises(
        BadInput, match=r"quantize.bits: 4 bits of torchao need a GPU, and there is none; use bits: 8 or"
    ):
        transformers(path=folder, quantize=Quantize(method="torchao", bits=4))
    monkeypatch.setattr("repsim_cli.models.quantized.find_spec", lambda name: None)
    for method in ("torchao", "bitsandbytes"):
        message = rf"quantize.method: {method} needs the package {method}, which is not installed; pip install -e '.\[{method}\]'"
        with pytest.raises(BadInput, match=message):
            transformers(path=folder, quantize=Quantize(method=method))


def test_bits_of_checkpoints():
    assert read_weight_bits(None) is None
    assert read_weight_bits({"quant_method": "gptq", "bits": 4}) == 4
    assert read_weight_bits({"quant_method": "bitsandbytes", "load_in_8bit": True}) == 8
    assert read_weight_bits({"quant_method": "bitsandbytes", "load_in_4bit": True}) == 4
    assert read_weight_bits({"quant_method": "fp8"}) is None
