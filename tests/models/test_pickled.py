"""Pickled weights become safetensors in a process that reads tensors and nothing else."""

import json
import pickle
import shutil

import pytest
import safetensors.torch
import torch

from repsim_cli.errors import BadInput
from repsim_cli.models.checkpoints import weight_files
from repsim_cli.models.pickled import convert
from repsim_cli.registry import models


@pytest.fixture
def pickled(tiny_folder, tmp_path):
    """A folder as models were once published, and its weights."""
    folder = tmp_path / "old"
    shutil.copytree(tiny_folder("bert"), folder)
    state = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    return folder, state


def test_the_converted_model_is_the_same(repsim, pickled, tmp_path):
    folder, state = pickled
    target = tmp_path / "made" / "bert"
    code, out, err = repsim("convert", folder, target)
    assert (code, out.strip()) == (0, str(target)), err
    made = safetensors.torch.load_file(target / "model.safetensors")
    assert made.keys() == state.keys()
    assert all(torch.equal(made[key], state[key]) for key in state)
    assert (target / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    models.get("transformers").function(path=str(target)).load(False)
    target.rename(target.with_name("bert_7"))
    family = models.get("transformers_family").function(path=str(target.with_name("bert_{number}")), numbers=[7])
    family.sources["7"].load(False)


def test_several_files(pickled, tmp_path):
    folder, state = pickled
    (folder / "pytorch_model.bin").unlink()
    keys = sorted(state)
    names = {key: f"pytorch_model-0000{1 + (i > 5)}-of-00002.bin" for i, key in enumerate(keys)}
    for name in set(names.values()):
        torch.save({key: state[key] for key in keys if names[key] == name}, folder / name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    target = convert(str(folder), tmp_path / "new")
    assert [file.name for file in weight_files(target)] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    made = {key: value for file in weight_files(target) for key, value in safetensors.torch.load_file(file).items()}
    assert all(torch.equal(made[key], state[key]) for key in state)


class Touch:
    """Runs a command where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize("content", ["code", "objects", "nonsense"])
def test_what_is_no_dictionary_of_tensors_is_refused(pickled, tmp_path, content):
    folder, _ = pickled
    trap = tmp_path / "trap"
    given = {
        "code": pickle.dumps(Touch(trap), protocol=2),
        "nonsense": b"not a pickle",
    }
    if content == "objects":
        torch.save({"weight": "text"}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(given[content])
    with pytest.raises(BadInput, match="^source: pytorch_model.bin cannot be read as tensors only, got '"):
        convert(str(folder), tmp_path / "new")
    assert not trap.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_places_that_cannot_be_used(repsim, pickled, tiny_folder, tmp_path):
    folder, _ = pickled
    code, _, err = repsim("convert", folder, tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "target: it already exists, got" in err
    with pytest.raises(BadInput, match=r"source: no pytorch_model.bin in it, got .*; its weights are not pickled"):
        convert(str(tiny_folder("bert")), tmp_path / "new")
    assert not (tmp_path / "new").exists()
