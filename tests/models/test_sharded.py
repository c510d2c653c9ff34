"""Models whose weights are spread over devices and the disk: the same numbers, and what is refused."""

import json

import numpy as np
import pytest
import torch
from helpers.tiny import TINY, perturb

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Hardware
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.loading import Loading, make_input_template
from repsim_cli.models.sizes import check_spread, count_resident_bytes, describe_placement, find_spread

transformers = registry.models.get("transformers").function
POINTS = ["embed", "resid_pre", "resid_post", "mlp_out", "q", "final_norm"]


@pytest.fixture(scope="module")
def folder(shared, tokenizer_folder):
    """A saved Llama of 8 blocks, 0.6 MB each in float32."""

    def make(folder):
        torch.manual_seed(6)
        settings = {**TINY["llama"], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8}
        model = import_transformers().AutoModelForCausalLM.from_config(inline_config(settings))
        perturb(model)
        model.save_pretrained(folder)
        for file in tokenizer_folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())

    return str(shared("eight-blocks", make))


def read(source, model, where="cpu"):
    """What is at each hook point."""
    ids = torch.arange(5, 37).reshape(2, 16).to(where)
    with capture(model, source, expand(POINTS, "all", source)) as reader:
        reader(ids, torch.ones_like(ids, dtype=torch.bool))
        return {str(point): x.cpu() for point, x in reader(ids, torch.ones_like(ids, dtype=torch.bool)).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [{"cpu": 10**9}, {"cpu": 2 * 10**6}, {"cpu": 0}], ids=["cpu", "both", "disk"])
def test_a_spread_model_gives_the_same_bits(folder, spread, dtype):
    source = transformers(path=folder)
    model = source.load(False, Loading(dtype=dtype, spread=spread))
    off = [x for x in model.parameters() if x.device.type == "meta"]
    assert bool(off) is (spread["cpu"] < 10**9)
    assert (len(off) == len([*model.parameters()])) is (spread["cpu"] == 0)
    assert make_input_template(model).dtype == dtype
    found, expected = read(source, model), read(source, source.load(False, Loading(dtype=dtype)))
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert torch.equal(x, expected[name]), name


def test_a_run_of_a_spread_model(repsim, folder, newest):
    found = []
    words = ["run", "model=[]", f"+model.mine={{kind: transformers, path: '{folder}'}}", "extract.sequences=4"]
    words += ["extract.length=48", "extract.batch_rows=60", "measure=[cka_unbiased]", "cache=false"]
    for more in ([], ["hardware.shard=auto", "+hardware.max_memory_gb={cpu: 0.002}"]):
        code, _, err = repsim(*words, *more)
        assert code == 0, err
        (measured,) = json.loads((newest() / "results.json").read_text())["measures"]
        found.append(np.load(newest() / measured["matrices"][0]["values"]))
    assert np.array_equal(*found)
    code, out, err = repsim(*words, *more, "dry_run=true")
    assert code == 0, err
    assert "GB on cpu, " in out
    assert "GB on disk)" in out


def test_where_shards_go(folder):
    source = transformers(path=folder)
    size, hardware = 4.0 * source.parameters, Hardware(shard="auto", max_memory_gb={"cpu": 0.002})
    assert find_spread(Hardware()) is None
    assert find_spread(hardware) == {"cpu": 2_000_000}
    gpus = Hardware(shard="auto", max_memory_gb={"cuda0": 3.0, "cuda12": 0.5})
    assert find_spread(gpus) == {"cpu": 0, 0: 3_000_000_000, 12: 500_000_000}
    assert find_spread(Hardware(shard="auto", memory_gb=8.0))["cpu"] == 4_000_000_000
    assert count_resident_bytes([source], hardware) == 2e6 < size
    assert count_resident_bytes([source], Hardware(shard="auto")) == size
    assert describe_placement(source, Hardware()) == ""
    parts = dict(reversed(part.split(" GB on ")) for part in describe_placement(source, hardware).split(", "))
    assert list(parts) == ["cpu", "disk"]
    assert float(parts["cpu"]) <= 0.002
    assert 1e9 * sum(map(float, parts.values())) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_memory_gb": {"cpu": 1.0}}, r"hardware.max_memory_gb: only for hardware.shard=auto, got none and .*; drop it"),
        ({"shard": "auto", "devices": ["cpu"]}, r"hardware.devices: shard=auto chooses the devices, got \['cpu'\]; drop one"),
        ({"shard": "auto", "max_memory_gb": {"gpu": 1.0}}, "hardware.max_memory_gb: no such device, got 'gpu'; name cpu, cuda0"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        check_spread(Hardware(**settings))


def test_the_package_is_needed(monkeypatch):
    monkeypatch.setattr("repsim_cli.models.sizes.find_spec", lambda name: None)
    with pytest.raises(
        BadInput, match=r"hardware.shard: needs the package accelerate, which is not installed; pip install"
    ):
        check_spread(Hardware(shard="auto"))


@pytest.mark.gpu
def test_a_model_on_a_gpu_and_elsewhere(folder):
    source = transformers(path=folder)
    model = source.load(False, Loading(spread={0: 2 * 10**6, "cpu": 10**6}))
    assert {x.device.type for x in model.parameters()} >= {"cuda", "meta"}
    exact = read(source, source.load(False, Loading(dtype=torch.float64)))
    found, here = read(source, model, "cuda"), read(source, source.load(False))
    for name, x in exact.items():
        error, usual = (float((y[name].double() - x).norm() / x.norm()) for y in (found, here))
        assert error < 5 * usual + 1e-6, name
