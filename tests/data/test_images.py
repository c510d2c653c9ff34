"""Images: what is read of each format, and the hook points and rows of a vision transformer."""

import io
import json

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.activations import readings
from repsim_cli.activations.capture import capture, find_output_shapes
from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.images import CIFAR10, RECORD, Patches
from repsim_cli.models.configs import inline_config, patch_grid
from repsim_cli.models.library import import_transformers
from repsim_cli.runs import reader

VIT = {
    "model_type": "vit",
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 1,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
COLOUR = Patches((32, 32), (8, 8), 3, (0.5, 0.25, 0.0), (0.5, 1.0, 2.0))


def load(kind, path=None, **settings):
    return registry.data.get(kind).function(**({} if path is None else {"path": str(path)}), **settings)


@pytest.fixture
def pictures():
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (6, 32, 32, 3), np.uint8), np.array([3, 8, 0, 9, 9, 1])


def binary(images, labels):
    """The official layout: the label, then all red, all green, all blue bytes, row by row."""
    return b"".join(bytes([y]) + x[..., 0].tobytes() + x[..., 1].tobytes() + x[..., 2].tobytes() for x, y in zip(images, labels, strict=True))  # fmt: skip


def as_hub(images, labels, names=CIFAR10):
    def png(image):
        stream = io.BytesIO()
        PIL.Image.fromarray(image).save(stream, "png")
        return {"bytes": stream.getvalue(), "path": None}

    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=list(names)))
    rows = {"img": [png(image) for image in images], "label": [names.index(CIFAR10[i]) for i in labels]}
    return datasets.Dataset.from_dict(rows, features=features)


def write(folder, what, images, labels):
    """The same pictures in one of the formats -> path."""
    if what == "folder":
        for number in range(1, 6):
            one = slice(number - 1, number if number < 5 else None)
            (folder / f"data_batch_{number}.bin").write_bytes(binary(images[one], labels[one]))
        return folder
    if what == "bin":
        (folder / "a.bin").write_bytes(binary(images, labels))
        return folder / "a.bin"
    if what == "npz":
        np.savez(folder / "a.npz", x=images, y=labels)
    elif what == "npz with names":
        turned = CIFAR10[::-1]
        np.savez(folder / "a.npz", images=images, labels=[9 - i for i in labels], label_names=turned)
    else:
        as_hub(images, labels, CIFAR10[::-1]).to_parquet(folder / "a.parquet")
        return folder / "a.parquet"
    return folder / "a.npz"


@pytest.mark.parametrize("what", ["folder", "bin", "npz", "npz with names", "parquet", "hub"])
def test_formats_give_the_same_images(tmp_path, monkeypatch, pictures, what):
    if what == "hub":
        monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: as_hub(*pictures))
        data = load("cifar10", split="train")
    else:
        data = load("cifar10", write(tmp_path, what, *pictures), split="train")
    pixels, codes, white = data.read()
    assert np.array_equal(pixels, pictures[0])
    assert white == 255
    assert codes.tolist() == pictures[1].tolist()
    assert data.names == CIFAR10


def test_what_the_model_is_given(tmp_path, pictures):
    data = load("cifar10", write(tmp_path, "npz", *pictures))
    found = data.sequences(COLOUR, Extract(hook_points=["embed"], sequences=4), 3)
    assert found.example.tolist() == sorted(np.random.default_rng(3).permutation(6)[:4])
    assert found.inputs.shape == (4, 3, 32, 32)
    pixels = pictures[0][found.example] / 255
    np.testing.assert_allclose(found.inputs[:, 0], (pixels[..., 0] - 0.5) / 0.5, atol=1e-6)
    np.testing.assert_allclose(found.inputs[:, 2], pixels[..., 2] / 2, atol=1e-6)
    assert found.mask.shape == (4, COLOUR.places) == (4, 17)
    assert found.available == 6
    assert found.text.sum(1).tolist() == [16] * 4
    assert found.position[0].tolist() == [-1, *range(16)]
    assert found.labels.codes.tolist() == pictures[1][found.example].tolist()


def test_digits():
    data = load("digits")
    pixels, codes, white = data.read()
    assert pixels.shape == (1797, 8, 8, 1)
    assert (pixels.min(), pixels.max(), white) == (0, 16, 16)
    assert np.bincount(codes).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    with pytest.raises(BadInput, match=r"data: images differ in shape from the model's input, got 8 x 8 x 1 for 32 x 32 x 3 \(scikit-learn digits\); use a model of that image_size and num_channels, or data.side and data.channels"):  # fmt: skip
        data.sequences(COLOUR, Extract(hook_points=["embed"]), 0)


def test_digits_enlarged_in_colour_and_split():
    whole, codes, _ = load("digits").read()
    train, test = (load("digits", side=32, channels=3, split=split) for split in ("train", "test"))
    assert test.source == "scikit-learn digits, test, 32 x 32 x 3"
    assert train.read().codes.tolist() == [y for i, y in enumerate(codes) if i % 7 != 6]
    assert (len(train.read().codes), len(test.read().codes)) == (1541, 256)
    assert np.bincount(test.read().codes).min() >= 15
    image, small = test.read().values[0], whole[6, ..., 0]
    assert image.shape == (32, 32, 3)
    assert np.array_equal(image[..., 0], image[..., 2])
    assert (image.min(), image.max()) <= (0, 16)
    # between the centres of pixels, values are interpolated: the four in the middle of a pixel average to its neighbourhood
    assert np.allclose(image[..., 0].reshape(8, 4, 8, 4)[3, 1:3, 3, 1:3].mean(), small[3, 3], atol=2)
    assert np.allclose(image[:2, :2, 0], small[0, 0])
    grey = load("digits", side=16).read().values
    assert grey.shape == (1797, 16, 16, 1)
    # linear between two pixels: a quarter and three quarters of the way
    row, fine = whole[0, 0, :, 0], grey[0, 0, :, 0]
    np.testing.assert_allclose(fine[1:15].reshape(7, 2), np.stack([0.75 * row[:-1] + 0.25 * row[1:], 0.25 * row[:-1] + 0.75 * row[1:]], 1))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1", b"\x80\x03}", "path: the python version is pickled, which can run code, got '.*'; unpack cifar-10-binary.tar.gz"),
        ("cifar-10-python.tar.gz", b"", "path: the python version is pickled"),
        ("a.bin", b"", f"a.bin: not the binary version, got 0 bytes; a whole number of records of {RECORD}"),
        ("a.bin", bytes(RECORD + 1), "a.bin: not the binary version, got 3074 bytes"),
        ("a.bin", b"\x0a" + bytes(RECORD - 1), "a.bin: unknown label, got 10; labels go from 0 to 9"),
        ("a.npz", b"x", "a.npz: not a complete .npz file of numbers"),
        ("a.npz", {"x": np.zeros((2, 32, 32, 3), np.uint8)}, r"a.npz: no column 'labels', got x; name it labels or y or label"),
        ("a.npz", {"x": np.zeros((2, 28, 28), np.uint8), "y": [1, 2]}, r"a.npz: not images with labels, got 2 x 28 x 28 and 2; \(n, 32 x 32 x 3\) and n"),
        ("a.npz", {"x": np.zeros((2, 32, 32, 3), np.uint8), "y": [1]}, "a.npz: not images with labels, got 2 x 32 x 32 x 3 and 1"),
        ("a.npz", {"x": np.zeros((2, 32, 32, 3)), "y": [1, 2]}, "a.npz: pixels are not bytes, got float64; write uint8"),
        ("a.npz", {"x": np.zeros((1, 32, 32, 3), np.uint8), "y": [0], "label_names": ["plane"]}, "a.npz: unknown label, got 'plane'; did you mean 'airplane'"),
        ("a.jpg", b"", "path: unknown kind of file, got '.*a.jpg'; use .bin, .npz, .parquet"),
        ("b.bin", None, "path: no such file, got '.*b.bin'"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, name, content, message):
    if isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        load("cifar10", tmp_path / name).read()


def test_a_folder_of_pickles(tmp_path):
    (tmp_path / "test_batch").write_bytes(b"\x80\x03}")
    with pytest.raises(BadInput, match="path: the python version is pickled, which can run code, got"):
        load("cifar10", tmp_path)


def test_a_folder_without_the_batches(tmp_path):
    with pytest.raises(BadInput, match="path: no such file, got '.*test_batch.bin'"):
        load("cifar10", tmp_path)


def test_images_of_several_shapes(tmp_path, pictures):
    as_hub([pictures[0][0], pictures[0][1][:8]], [0, 1]).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="row 1: an image of a different size, got 32 x 8; give 32 x 32"):
        load("cifar10", tmp_path / "a.parquet").read()


@pytest.fixture(scope="module")
def vit_folder(tmp_path_factory):
    from helpers.tiny import perturb

    folder = tmp_path_factory.mktemp("vit")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = import_transformers().AutoModel.from_config(inline_config(VIT))
        perturb(model)
    model.save_pretrained(folder)
    return folder


def source_of(folder):
    return registry.models.get("transformers").function(path=str(folder))


def test_hook_points_of_a_vision_transformer(vit_folder):
    """The block's arithmetic from its own weights, and the library's hidden states and attentions."""
    source = source_of(vit_folder)
    assert (source.modality, source.context, source.vocabulary) == ("images", 17, 0)
    model = source.load(True)
    points = expand(["embed", "final_norm", *source.architecture.block], "all", source)
    sequences = load("digits").sequences(source.tokenizer(), Extract(hook_points=["embed"], sequences=2), 0)
    inputs, mask = torch.from_numpy(sequences.inputs), torch.from_numpy(sequences.mask)
    with capture(model, source, points) as reader:
        found = {str(point): x for point, x in reader(inputs, mask).items()}
    with torch.no_grad():
        states = model(pixel_values=inputs, output_hidden_states=True, output_attentions=True)

        def close(a, b):
            torch.testing.assert_close(a, b, atol=3e-5 * float(b.abs().max().clamp_min(1)), rtol=0)

        close(found["embed"], states.hidden_states[0])
        close(found["final_norm"], states.last_hidden_state)
        for layer, block in enumerate(model.layers):
            at = {name: found[f"{name}@{layer}"] for name in source.architecture.block}
            close(at["resid_pre"], states.hidden_states[layer])
            close(at["resid_mid"], at["resid_pre"] + at["attn_out"])
            close(at["resid_post"], at["resid_mid"] + at["mlp_out"])
            close(at["pattern"], states.attentions[layer])
            q, k, v = (at[name].unflatten(-1, (4, -1)).transpose(1, 2) for name in "qkv")
            close(at["pattern"], (q @ k.mT / 8**0.5).softmax(-1))
            close(at["z"], (at["pattern"] @ v).transpose(1, 2).flatten(2))
            close(at["attn_out"], block.attention.o_proj(at["z"]))
            close(at["mlp_post"], torch.nn.functional.gelu(at["mlp_pre"]))
            close(at["mlp_out"], block.mlp.fc2(at["mlp_post"]))


def test_how_a_model_reads_pixels(vit_folder, tmp_path):
    assert source_of(vit_folder).tokenizer() == Patches((8, 8), (2, 2), 1, (0.5,), (0.5,))
    for file in vit_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = tmp_path / "preprocessor_config.json"
    for given, mean, std in [
        ({"image_mean": [0.1], "image_std": [0.2]}, (0.1,), (0.2,)),
        ({"do_normalize": False}, (0.0,), (1.0,)),
    ]:
        settings.write_text(json.dumps(given))
        found = source_of(tmp_path).tokenizer()
        assert (found.mean, found.std) == (mean, std)
    settings.write_text("{")
    with pytest.raises(BadInput, match="path: preprocessor_config.json cannot be used, got '.*; fix it"):
        source_of(tmp_path).tokenizer()
    with pytest.raises(BadInput, match=r"config: no patches, got image_size \(8, 8\), patch_size \(16, 16\); patches must fit"):  # fmt: skip
        patch_grid(inline_config({**VIT, "patch_size": 16}))
    any_size = patch_grid(inline_config({"model_type": "resnet", "num_channels": 1}))
    assert (any_size.size, any_size.places) == (None, 1)
    registers = {"model_type": "dinov2_with_registers", "image_size": 8, "patch_size": 2, "num_register_tokens": 3}
    assert patch_grid(inline_config(registers)).places == 16 + 1 + 3


IMAGE_MODELS = {
    "dinov2": "{model_type: dinov2_with_registers, image_size: 8, patch_size: 2, num_channels: 1, hidden_size: 32, "
    "num_hidden_layers: 2, num_attention_heads: 4}",
    "siglip": "{model_type: siglip_vision_model, image_size: 8, patch_size: 2, num_channels: 1, hidden_size: 32, "
    "intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}",
    "swin": "{model_type: swin, image_size: 8, patch_size: 1, num_channels: 1, embed_dim: 16, depths: [1, 1], "
    "num_heads: [2, 4], window_size: 4}",
    "convnext": "{model_type: convnext, image_size: 8, patch_size: 2, num_channels: 1, hidden_sizes: [16, 32], "
    "depths: [1, 1], num_stages: 2, out_features: [stage2], out_indices: [2]}",
    "resnet": "{model_type: resnet, num_channels: 1, embedding_size: 8, hidden_sizes: [16, 32], depths: [1, 1], "
    "layer_type: basic, out_features: [stage2], out_indices: [2]}",
}


@pytest.mark.slow
def test_image_models_of_other_layouts_run_pooled(repsim, newest, monkeypatch):
    """Class tokens and registers are no patches; stages have places of their own, which are pooled."""
    entries = [f"+model.{name}={{kind: random, config: {config}}}" for name, config in IMAGE_MODELS.items()]
    words = ["run", "-q", "data=digits", "model=[vit_digits]", *entries, "measure=[cka]", "extract.sequences=32"]
    code, _, err = repsim(*words, "extract=pooled")
    assert code == 0, err
    layers = {m["rows"]["model"]: m["rows"]["layers"] for m in recorded(newest())["measures"][0]["matrices"]}
    stages = ["resid_post@0", "resid_post@1"]
    assert layers == {**{name: stages for name in IMAGE_MODELS}, "vit_digits": layers["vit_digits"]}
    words = (*words[:3], "model=[]", entries[2], "measure=[cka]", "extract=pooled", "extract.unit=token")
    code, _, err = repsim(*words)
    assert code == 2
    assert err == (
        "error: extract.unit, model.swin: resid_post@0 has places of its own, got 16 for images of 64 places; use "
        "extract=pooled (compare: --rows pooled)\n"
    )
    monkeypatch.setattr(
        readings, "find_output_shapes", lambda source, points: {}
    )  # as of a model that does not run without weights
    code, _, err = repsim(*words, "extract.sequences=32")
    assert code == 1
    assert "resid_post@0 of 'swin': the places of its images differ from the run's, got 16 for 64; use extract=" in err


def test_modules_of_convolutions_meet_patches(repsim, newest):
    """The maps of a convolution are positions by features, pooled; widths are known before the run."""
    config = {"model_type": "resnet", "num_channels": 1, "embedding_size": 8, "hidden_sizes": [16, 24], "depths": [1, 1],
              "layer_type": "basic", "out_features": ["stage2"], "out_indices": [2]}  # fmt: skip
    source = registry.models.get("random").function(config=config)
    points = expand(
        ["module:resnet.encoder.stages.*", "module:embedder.embedder.convolution", "module:encoder"], "all", source
    )
    pixels = torch.randn(3, 1, 16, 12, generator=torch.Generator().manual_seed(0))
    model = source.load(False)
    with capture(model, source, points) as read:
        found = read(pixels, torch.ones(3, 1, dtype=torch.bool))
    with torch.no_grad():
        maps = model.embedder.embedder.convolution(pixels)
        last = model(pixels).last_hidden_state
    torch.testing.assert_close(found[points[2]], maps.permute(0, 2, 3, 1).flatten(1, 2))
    torch.testing.assert_close(found[points[3]], last.flatten(2).mT)
    assert {str(point): width for point, (_, width) in find_output_shapes(source, points).items()} == {
        "module:encoder.stages.0": 16, "module:encoder.stages.1": 24, "module:embedder.embedder.convolution": 8,
        "module:encoder": 24,
    }  # fmt: skip
    code, _, err = repsim(
        "run", "-q", "data=digits", "model=[vit_digits]", f"+model.resnet={{kind: random, config: {IMAGE_MODELS['resnet']}, "
        "hook_points: ['module:encoder.stages.*.layers.*']}", "measure=[cka]", "extract.sequences=32", "extract=pooled",
    )  # fmt: skip
    assert code == 0, err
    manifest = reader.read_manifest(newest())
    assert manifest["facts"]["resnet"]["widths"] == [16, 32]
    assert not [warning for warning in manifest["warnings"] if "found by structure" in warning]
    code, _, err = repsim(
        "run", "-q", "data=digits", "model=[]", f"+model.resnet={{kind: random, config: {IMAGE_MODELS['resnet']}}}",
        "measure=[cka]", "extract.unit=token", "extract.batch_rows=32",
    )  # fmt: skip
    assert code == 2
    assert "extract.unit, model.resnet: resid_post@0 has places of its own, got 256 for images of any size" in err


def test_models_whose_config_names_no_size_run_by_module():
    config, layers = {"model_type": "mobilenet_v2", "num_channels": 1, "depth_multiplier": 0.1}, 16
    source = registry.models.get("random").function(config=config)
    assert (source.layers, source.modality) == (layers, "images")
    pattern = f"module:{source.architecture.blocks}.*"
    points = expand([pattern], "all", source)
    assert len(points) == layers
    with capture(source.load(False), source, points[:1]) as read:
        (x,) = read(torch.randn(2, 1, 32, 32), torch.ones(2, 1, dtype=torch.bool)).values()
    assert x.ndim == 3


@pytest.mark.parametrize("unit", ["token", "mean", "first"])
def test_a_run_on_digits(repsim, newest, vit_folder, unit):
    found = []
    for batch_size in (4, 32):
        code, _, err = repsim(
            "run", "-q", "data=digits", "model=[vit_digits]", f"+model.mine={{kind: transformers, path: {vit_folder}}}",
            "measure=[cka]", "extract=pooled", "extract.sequences=32", f"extract.unit={unit}", "cache=false",
            f"hardware.batch_size={batch_size}",
        )  # fmt: skip
        assert code == 0, err
        manifest, run = reader.read_manifest(newest()), recorded(newest())
        found.append([reader.read_array(newest(), m["values"]) for m in run["measures"][0]["matrices"]])
    for one, two in zip(*found, strict=True):
        assert np.abs(one - two).max() <= 1e-6
    assert manifest["data"]["rows_kept"] == 32 * (16 if unit == "token" else 1)
    assert manifest["data"]["rows_dropped"] == (32 if unit == "token" else 0)
    assert sum(manifest["data"]["labels"].values()) == 32


def test_models_and_data_of_other_kinds_are_refused(repsim):
    for words, message in [
        (["data=digits", "model=[tiny_a]"], "error: model.tiny_a: a model of text (gpt_neox) cannot read images, got scikit-learn digits; choose other data"),
        (["data=embedded", "model=[vit_digits]"], "error: model.vit_digits: a model of images (vit) cannot read text, got Jargon File"),
        (["data=digits", "model=[vit_digits,vit_cifar10]"], "got a different grid of patches for 'vit_cifar10' than for 'vit_digits'"),
        (["experiment=pretrain_tiny", "data=digits"], "error: data: pre-training needs running text, got scikit-learn digits; use embedded_train"),
    ]:  # fmt: skip
        code, _, err = repsim("run", *words, *(["measure=[cka]"] if len(words[0]) < 20 else []))
        assert code == 2
        assert message in err, err
