"""Model sources: what loads, what is refused and how it is said, and the hub's own loading code on a fake cache."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch

from repsim_cli import registry
from repsim_cli.errors import BadInput
from repsim_cli.models.transformers import SHIPPED

transformers = registry.models.get("transformers").function
random = registry.models.get("random").function
shipped = registry.models.get("shipped").function
precomputed = registry.models.get("precomputed").function


def copied(folder, tmp_path, leave_out=()):
    target = tmp_path / "model"
    target.mkdir()
    for file in folder.iterdir():
        if file.name not in leave_out:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_folder_is_known_before_its_weights_load(tiny_folder):
    source = transformers(path=str(tiny_folder("llama")))
    assert (source.layers, source.width, source.heads, source.kv_heads, source.context) == (3, 32, 4, 2, 64)
    model = source.load(False)
    assert source.parameters == sum(p.numel() for p in model.parameters())
    assert all(p.device.type == "meta" for p in source.skeleton.parameters())
    assert len(source.identity()["weights_hash"]) == 64


def test_half_precision_weights_are_read_as_float32():
    model = shipped(name="tiny_a").load(False)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    with safetensors.safe_open(SHIPPED / "tiny_a" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


def test_shipped_models_are_four_files_of_at_most_3_mb():
    files = sorted(SHIPPED.rglob("*.safetensors"))
    assert len(files) == 4
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*")) < 3e6
    assert len({file.read_bytes() for file in files}) == 4


def test_random_weights_depend_on_the_seed_alone():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 10}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, again, other = (random(config=config, seed=seed).load(False).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["wte.weight"], other["wte.weight"])
    assert torch.equal(state, torch.get_rng_state())


def test_a_random_twin_has_the_shape_and_tokenizer_of_its_model():
    twin, original = random(shipped="tiny_a", seed=3), shipped(name="tiny_a")
    assert twin.parameters == original.parameters
    assert twin.tokenizer().get_vocab() == original.tokenizer().get_vocab()
    a, b = (next(source.load(False).parameters()) for source in (twin, original))
    assert a.shape == b.shape
    assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "path, hub: give exactly one of them"),
        ({"path": "x", "hub": "y"}, "path, hub: give exactly one of them, got path=x, hub=y"),
        ({"path": "/no/such/folder"}, "path: no such folder, got '/no/such/folder'; check the path"),
        ({"path": "FOLDER", "revision": "step3"}, "revision: a local folder has none, got 'step3'; name the folder"),
        ({"hub": "EleutherAI/none"}, "hub: the model could not be read, got 'EleutherAI/none' .*use path: FOLDER"),
    ],
)
def test_bad_arguments(tiny_folder, arguments, message):
    if arguments.get("path") == "FOLDER":
        arguments = {**arguments, "path": str(tiny_folder("gpt2"))}
    with pytest.raises(BadInput, match=message):
        transformers(**arguments)


def test_a_misspelt_folder_suggests(tmp_path):
    (tmp_path / "checkpoint-100").mkdir()
    with pytest.raises(BadInput, match="got '.*checkpoint-10'; did you mean 'checkpoint-100'"):
        transformers(path=str(tmp_path / "checkpoint-10"))


def test_folders_that_lack_something(tiny_folder, tmp_path):
    folder = copied(tiny_folder("gpt2"), tmp_path)
    tokenizer = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match="path: no tokenizer in it, got '.*model'; save the tokenizer there"):
        transformers(path=str(folder)).tokenizer()
    (folder / "tokenizer.json").write_bytes(tokenizer)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(BadInput, match="path: model.safetensors is not a whole safetensors file.*copy it again"):
        transformers(path=str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match="path: no model.safetensors in it, got .*; give a folder with weights"):
        transformers(path=str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(BadInput, match=r"only pickled weights \(pytorch_model.bin\), which can run code"):
        transformers(path=str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(BadInput, match="path: config.json cannot be used, got .*; mend it"):
        transformers(path=str(folder))
    (folder / "config.json").write_text('{"model_type": "gpt9"}')
    with pytest.raises(BadInput, match="path: unknown architecture, got model_type 'gpt9' in .*; did you mean"):
        transformers(path=str(folder))
    (folder / "config.json").write_text('{"model_type": "gpt2", "auto_map": {"AutoModel": "a.B"}}')
    with pytest.raises(BadInput, match="path: the model needs code that comes with it, which is never run, got"):
        transformers(path=str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match="path: no config.json in it"):
        transformers(path=str(folder))


def test_missing_and_misshapen_weights(tiny_folder, tmp_path):
    folder = copied(tiny_folder("gpt2"), tmp_path)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    lacking = {k: v for k, v in weights.items() if k != "h.1.mlp.c_fc.weight"}
    safetensors.torch.save_file(lacking, file, {"format": "pt"})
    with pytest.raises(BadInput, match=r"1 weights are missing .* \(first: h.1.mlp.c_fc.weight\); save the model"):
        transformers(path=str(folder)).load(False)
    misshapen = {**weights, "h.1.mlp.c_fc.weight": torch.zeros(3, 3)}
    safetensors.torch.save_file(misshapen, file, {"format": "pt"})
    message = (
        r"0 weights are missing and 1 have the wrong shape, .*\(first: h.1.mlp.c_fc.weight: \(3, 3\) for \(32, 128\)\)"
    )
    with pytest.raises(BadInput, match=message):
        transformers(path=str(folder)).load(False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "config, shipped, path, hub: give exactly one of them"),
        ({"config": {"n_layer": 2}}, "config.model_type: unknown, got 'None'; e.g. model_type: gpt2"),
        ({"config": {"model_type": "gpt22"}}, "config.model_type: unknown, got 'gpt22'; did you mean 'gpt2'"),
        (
            {"config": {"model_type": "gpt2", "n_layers": 2}},
            "config.n_layers: gpt2 has no such setting, got 2; did you",
        ),
        ({"config": {"model_type": "gpt2", "n_embd": 30, "n_head": 4}}, "config: no gpt2 can be built from it"),
        ({"shipped": "tiny_aa"}, "name: no such shipped model, got 'tiny_aa'; did you mean 'tiny_a'"),
    ],
)
def test_bad_random_models(arguments, message):
    with pytest.raises(BadInput, match=message):
        random(**arguments)


def test_a_random_model_from_a_config_has_no_tokenizer():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 10}
    with pytest.raises(BadInput, match="tokenizer: a random model from a config has none; set tokenizer"):
        random(config=config).tokenizer()


def test_hub_ids_and_revisions_on_a_fake_cache(tiny_folder, tmp_path):
    """The real loading code, on a cache in the hub's layout: two revisions of one id give two sets of weights."""
    for step, commit in (("step1", "a" * 40), ("step2", "b" * 40)):
        repository = tmp_path / "models--EleutherAI--pythia-tiny"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / step).write_text(commit)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in tiny_folder("gpt_neox", seed=int(step[-1])).iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
    script = (
        "import json\n"
        "from repsim_cli import registry\n"
        "make = registry.models.get('transformers').function\n"
        "out = []\n"
        "for step in ('step1', 'step2'):\n"
        "    source = make(hub='EleutherAI/pythia-tiny', revision=step)\n"
        "    total = float(sum(p.double().sum() for p in source.load(False).parameters()))\n"
        "    out.append([total, len(source.tokenizer()), source.identity()])\n"
        "try:\n"
        "    make(hub='EleutherAI/pythia-tiny', revision='step3')\n"
        "except Exception as error:\n"
        "    out.append(str(error))\n"
        "print(json.dumps(out))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    one, two, missing = json.loads(done.stdout.splitlines()[-1])
    assert one[0] != two[0]
    assert one[1] == two[1] == 400
    assert (one[2]["commit"], two[2]["commit"]) == ("a" * 40, "b" * 40)
    assert one[2]["weights_hash"] != two[2]["weights_hash"]
    assert "hub: the model could not be read, got 'EleutherAI/pythia-tiny@step3'" in missing


ARRAYS = {f"h{i}": np.random.default_rng(i).normal(size=(20, 3 + i)).astype("float32") for i in (0, 2, 10)}


def stored(folder, kind, arrays=ARRAYS):
    file = folder / f"acts.{kind}"
    if kind == "npz":
        np.savez(file, **arrays)
    elif kind == "safetensors":
        safetensors.torch.save_file({k: torch.from_numpy(v) for k, v in arrays.items()}, file)
    else:
        with h5py.File(file, "w") as archive:
            for name, array in arrays.items():
                archive[name] = array
    return str(file)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5"])
def test_precomputed(tmp_path, kind):
    file = stored(tmp_path, kind)
    source = precomputed(path=file)
    assert source.names == ["h0", "h2", "h10"]
    assert (source.rows, source.widths) == (20, [3, 5, 13])
    np.testing.assert_array_equal(source.read("h10", slice(5, 9)), ARRAYS["h10"][5:9])
    assert precomputed(path=file, layers=["h10", "h0"]).names == ["h10", "h0"]


@pytest.mark.parametrize(
    ("name", "arrays", "layers", "message"),
    [
        ("npz", {"a": np.zeros(5, "f4")}, None, r"array 'a' must be \(n, d\) of floats, got float32 \(5,\)"),
        ("npz", {"a": np.zeros((5, 2), "i4")}, None, r"array 'a' must be \(n, d\) of floats, got int32"),
        (
            "npz",
            {"a": np.zeros((5, 2), "f4"), "b": np.zeros((6, 2), "f4")},
            None,
            r"different numbers of rows, got \[5, 6\]",
        ),
        ("npz", {"a": np.zeros((5, 0), "f4")}, None, r"array 'a' must be \(n, d\) of floats, got float32 \(5, 0\)"),
        ("npz", {}, None, "no arrays at its top level"),
        ("npz", ARRAYS, ["h1"], "layers: no such array, got 'h1'; did you mean"),
    ],
)
def test_bad_precomputed_arrays(tmp_path, name, arrays, layers, message):
    with pytest.raises(BadInput, match=message):
        precomputed(path=stored(tmp_path, name, arrays), layers=layers)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5"])
def test_broken_precomputed_files(tmp_path, kind):
    file = tmp_path / f"acts.{kind}"
    file.write_bytes(b"nonsense that is long enough to be a header")
    with pytest.raises(BadInput, match=f"path: not a whole .{kind} file of numbers, got .*; write it again"):
        precomputed(path=str(file))
    with pytest.raises(BadInput, match=r"path: no such file"):
        precomputed(path=str(file) + "x")
    other = tmp_path / "acts.pkl"
    other.write_bytes(b"x")
    with pytest.raises(BadInput, match=r"path: unknown kind of file, got '.*pkl'; use .npz, .safetensors"):
        precomputed(path=str(other))


def test_object_arrays_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "acts.npz", a=np.array([[{}]], dtype=object))
    with pytest.raises(BadInput, match="not a whole .npz file of numbers, got .*it holds Python objects"):
        precomputed(path=str(tmp_path / "acts.npz"))
