"""ResNet9: its hook points in the order of the network, its arithmetic, its format, and the rows that are read of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from helpers.recorded import recorded

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import Forward
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.cli.anatomy import list_hook_points
from repsim_cli.runs import reader
from repsim_cli.training.resnet_model import ResNetShape, freeze_model, load, make_fresh_resnet, resnet9, save

SHAPE = ResNetShape(widths=[4, 6, 8, 5], image_size=16, classes=10)
EXTRACT = {**yaml.safe_load((Path(__file__).parents[2] / "conf/extract/resnet9.yaml").read_text()), "at_most": []}


def digits(side=16):
    return registry.data.get("digits").function(side=side, channels=3)


@pytest.fixture(scope="module")
def model():
    """A model with running statistics, scales and shifts that say something."""
    made = make_fresh_resnet(SHAPE, 0)
    generator = torch.Generator().manual_seed(1)
    for name, values in made.state_dict().items():
        if "norm" in name and values.is_floating_point():
            values.copy_(0.5 + torch.rand(values.shape, generator=generator))
    return freeze_model(made)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("resnet9")
    save(model, place)
    return place


@pytest.fixture(scope="module")
def read(model, folder):
    """The pixels of three images, and what is read of them at all hook points, as (image, place, feature)."""
    source = resnet9(path=str(folder))
    sequences = digits().sequences(source.tokenizer(), Extract(hook_points=["conv@0"], sequences=3), 0)
    pixels = torch.from_numpy(sequences.inputs)
    with capture(model, source, expand(EXTRACT["hook_points"], "all", source)) as reader:
        found = reader(pixels, None)
    return pixels, {str(point): x.clone() for point, x in found.items()}


def test_hook_points_of_table_3_in_the_order_of_the_network(read):
    """Module 0 to 8 with the strides and padding of the public ResNet9; widths are known before the run."""
    modules = [
        f"{kind}@{block}"
        for block in range(9)
        for kind in (["linear"] if block == 8 else ["conv", "norm", "relu", *["pool"] * (block in (4, 7))])
    ]
    assert EXTRACT["hook_points"] == list(read[1]) == modules
    assert len(modules) == 27
    large = resnet9(shape=ResNetShape(widths=[64, 128, 256, 128]))
    assert large.parameters == 2_274_880
    (reading,) = plan_readings({"m": large}, Extract(**EXTRACT))
    sides = {0: (32, 64), **dict.fromkeys((1, 2, 3), (16, 128)), 4: (16, 256), 5: (8, 256), 6: (8, 256), 7: (6, 128)}
    widths = [side**2 * channels for side, channels in sides.values() for _ in range(3)]
    widths[15:15] = [8**2 * 256]
    assert [layer.width for layer in reading.layers] == [*widths, 128, 10]
    (pooled,) = plan_readings({"m": large}, Extract(**{**EXTRACT, "unit": "mean"}))
    assert [layer.width for layer in pooled.layers][::8] == [64, 128, 256, 128]


def test_arithmetic_in_numpy(model, read):
    """A 5 x 5 convolution of stride 2, batch norm by running statistics, ReLU and max pooling, by their definitions."""
    pixels, x = read
    state = {name: values.numpy().astype(float) for name, values in model.state_dict().items()}

    def maps(name):
        values = x[name].numpy().astype(float)
        side = round(values.shape[1] ** 0.5)
        return values.transpose(0, 2, 1).reshape(len(values), -1, side, side)

    def convolved(value, weight, stride, padding):
        value = np.pad(value, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(value, weight.shape[2:], (2, 3))[:, :, ::stride, ::stride]
        return np.einsum("bcijkl,dckl->bdij", windows, weight)

    def close(found, wanted):
        np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())

    close(maps("conv@0"), convolved(pixels.numpy().astype(float), state["blocks.0.conv.weight"], 1, 1))
    close(maps("conv@1"), convolved(maps("relu@0"), state["blocks.1.conv.weight"], 2, 2))
    mean, variance, scale, shift = (
        state[f"blocks.1.norm.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    close(maps("norm@1"), (maps("conv@1") - mean) / np.sqrt(variance + 1e-5) * scale + shift)
    close(maps("relu@1"), np.maximum(maps("norm@1"), 0))
    close(maps("conv@4"), convolved(maps("relu@1") + maps("relu@3"), state["blocks.4.conv.weight"], 1, 1))
    close(maps("pool@4"), maps("relu@4").reshape(3, 8, 4, 2, 4, 2).max((3, 5)))
    close(maps("conv@7"), convolved(maps("pool@4") + maps("relu@6"), state["blocks.7.conv.weight"], 1, 0))
    close(x["pool@7"][:, 0].numpy(), maps("relu@7").max((2, 3)))
    close(x["linear@8"].numpy(), x["pool@7"].numpy() @ state["blocks.8.linear.weight"].T)
    close(model(pixels).numpy(), 0.2 * x["linear@8"][:, 0].numpy())


def test_batch_norm_of_random_weights_passes_on_its_input():
    source = resnet9(shape=SHAPE, seed=3)
    assert not source.trained
    model, again, other = (resnet9(shape=SHAPE, seed=seed).load(False) for seed in (3, 3, 4))
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.blocks[0].norm(x), x / (1 + 1e-5) ** 0.5)
    for name, values in model.state_dict().items():
        assert torch.equal(values, again.state_dict()[name])
    assert not torch.equal(model.blocks[0].conv.weight, other.blocks[0].conv.weight)
    hashes = {resnet9(shape=shape, seed=seed).identity()["weights_hash"] for shape, seed in
              ((SHAPE, 0), (SHAPE, 1), (ResNetShape(widths=[4, 6, 8, 5]), 0))}  # fmt: skip
    assert len(hashes) == 3


@pytest.mark.parametrize("unit", ["sequence", "mean"])
def test_a_row_is_a_flattened_or_averaged_map(folder, read, unit):
    source, extract = resnet9(path=str(folder)), Extract(**{**EXTRACT, "unit": unit, "sequences": 3})
    sequences = digits().sequences(source.tokenizer(), extract, 0)
    (reading,) = plan_readings({"m": source}, extract)
    module = source.load(False)
    with capture(module, source, reading.points) as reader:
        found = Forward(reading, reader, module, sequences, extract, Hardware()).rows(slice(0, 3))
    for layer, rows in zip(reading.layers, found, strict=True):
        x = read[1][layer.name]
        torch.testing.assert_close(rows, x.flatten(1) if unit == "sequence" else x.mean(1))
        assert rows.shape == (3, layer.width)


def test_saved_and_loaded_are_equal(model, folder, tmp_path):
    again = load(folder)
    assert not again.training
    for name, values in model.state_dict().items():
        assert torch.equal(values, again.state_dict()[name]), name
    assert resnet9(path=str(folder)).identity()["source"] == str(folder)
    with pytest.raises(BadInput, match="path, shape: give exactly one of them; path is a folder"):
        resnet9()
    for content, why in [
        ({"model_type": "vit"}, "no model_type resnet9"),
        ({"model_type": "resnet9", "widths": [1, 2]}, "widths: List should have at least 4 items"),
        (
            {"model_type": "resnet9", "widths": [1, 2, 3, 4], "image_size": 10},
            "image_size: Input should be greater than",
        ),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(content))
        with pytest.raises(BadInput, match=f"config.json: not of a ResNet9, got {why}.*; name a folder that was saved"):
            resnet9(path=str(tmp_path))
    with pytest.raises(BadInput, match="config.json: not of a ResNet9, got 'No such file or directory'; name a folder"):
        resnet9(path=str(tmp_path / "none"))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    safetensors.torch.save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match="model.safetensors: not the weights of this config, got 'model.safetensors'"):
        load(tmp_path)


def test_what_it_has_and_lacks():
    source = resnet9(shape=SHAPE)
    has, lacks = list_hook_points(source, None, source.architecture)
    assert has[0] == "conv (blocks 0, 1, 2, 3, 4, 5, 6, 7)"
    assert has[3:] == ["pool (blocks 4, 7)", "linear (blocks 8)"]
    assert not lacks
    with pytest.raises(BadInput, match=r"resnet9 has no resid_post \(it has conv, norm, relu, pool and linear, as in "):
        expand(["resid_post"], "all", source)
    with pytest.raises(BadInput, match=r"resnet9 has no pool \(the block has no pool\), got 'pool@3'; choose another"):
        expand(["pool@3"], "all", source)


def test_a_run(repsim, newest, folder):
    """A run of random and of saved weights; places as rows are refused, since layers have places of their own."""
    words = [
        "run", "-q", "model=[]", "+model.fresh={kind: resnet9, shape: {widths: [4, 6, 8, 5], image_size: 16}}",
        f"+model.mine={{kind: resnet9, path: {folder}}}", "data=digits", "data.side=16", "data.channels=3",
        "data.split=test", "measure=[rsa]", "extract=resnet9", "extract.sequences=20", "extract.rows=20",
    ]  # fmt: skip
    code, _, err = repsim(*words)
    assert code == 0, err
    run = recorded(newest())
    of_fresh = next(m for m in run["measures"][0]["matrices"] if m["rows"]["model"] == m["columns"]["model"] == "fresh")
    assert of_fresh["rows"]["layers"] == EXTRACT["hook_points"]
    values = reader.read_array(newest(), of_fresh["values"])
    assert np.allclose(values[0, 1], 1, atol=1e-5)
    assert values[0, 3] < 0.999
    assert run["measures"][0]["estimate"]["rows"] == 20
    code, _, err = repsim(*words, "extract.unit=token")
    assert code == 2
    assert "extract.unit, model.fresh: conv@0 has places of its own, got 256 for images of any size; use" in err
