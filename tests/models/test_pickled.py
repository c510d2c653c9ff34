"""Pickled weights become safetensors in a process that reads tensors and nothing else."""

import json
import os
import pickle
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from helpers.forks import run_in_fork
from helpers.nights import nightly

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import models
from repsim_cli.models.checkpoints import find_weight_files
from repsim_cli.models.pickled import convert


@pytest.fixture
def pickled(tiny_folder, tmp_path):
    """A folder as models were once published, and its weights."""
    folder = tmp_path / "old"
    shutil.copytree(tiny_folder("bert"), folder)
    state = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    return folder, state


def run_code_in_fork(words, **_):
    """What a new process does with these words, without importing torch anew."""
    code, *arguments = words[words.index("-c") + 1 :]

    def act():
        sys.argv = ["-c", *arguments]
        exec(code, {})

    return run_in_fork(act)


@pytest.fixture
def forked(monkeypatch):
    """Reads in a fork, for tests of what is read, and not of the process that reads it."""
    monkeypatch.setattr("repsim_cli.models.pickled.subprocess", SimpleNamespace(run=run_code_in_fork))


def test_the_converted_model_is_the_same(repsim, pickled, tmp_path):
    folder, state = pickled
    target = tmp_path / "made" / "bert"
    code, out, err = repsim("convert", folder, target)
    assert (code, out.strip()) == (0, str(target)), err
    made = safetensors.torch.load_file(target / "model.safetensors")
    assert (target / "model.safetensors").stat().st_mode == (target / "config.json").stat().st_mode
    assert made.keys() == state.keys()
    assert all(torch.equal(made[key], state[key]) for key in state)
    assert (target / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    models.get("transformers").function(path=str(target)).load(False)
    target.rename(target.with_name("bert_7"))
    family = models.get("transformers_family").function(path=str(target.with_name("bert_{number}")), numbers=[7])
    family.sources["7"].load(False)


def test_several_files(forked, pickled, tmp_path):
    folder, state = pickled
    (folder / "pytorch_model.bin").unlink()
    keys = sorted(state)
    names = {key: f"pytorch_model-0000{1 + (i > 5)}-of-00002.bin" for i, key in enumerate(keys)}
    for name in set(names.values()):
        torch.save({key: state[key] for key in keys if names[key] == name}, folder / name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    target = convert(str(folder), tmp_path / "new")
    assert [file.name for file in find_weight_files(target)] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    made = {
        key: value for file in find_weight_files(target) for key, value in safetensors.torch.load_file(file).items()
    }
    assert all(torch.equal(made[key], state[key]) for key in state)


class Touch:
    """Runs a command where it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize("content", nightly(["code", "objects", "nonsense"], "objects", "nonsense"))
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


INDEXES = {
    "cut": b"{",
    "a list": b"[]",
    "empty": b"{}",
    "no weights": b'{"weight_map": {}}',
    "a list of numbers": b'{"weight_map": [1]}',
    "null": b"null",
    "a number": b'{"a": 5}',
    "a number for a name": b'{"weight_map": {"a": 5}}',
    "mixed": b'{"weight_map": {"a": "pytorch_model.bin", "b": ["pytorch_model.bin"]}}',
    "deep": b"[" * 100_000,
    "Latin-1": '{"weight_map": {"é": "pytorch_model.bin"}}'.encode("latin-1"),
    "NUL": b'{"weight_map": {"a": "pytorch_model\\u0000.bin"}}',
    "a line break": b'{"weight_map": {"a": "pytorch_model.bin\\n"}}',
    "another kind": b'{"weight_map": {"a": "config.json"}}',
    "absolute": b'{"weight_map": {"a": "CANARY"}}',
    "above": b'{"weight_map": {"a": "../pytorch_model-1.bin"}}',
    "a folder inside": b'{"weight_map": {"a": "pytorch_model/../pytorch_model.bin"}}',
    "the current folder": b'{"weight_map": {"a": "/proc/self/cwd/pytorch_model-1.bin"}}',
    "one of two": b'{"weight_map": {"a": "pytorch_model.bin", "b": "../pytorch_model-1.bin"}}',
}


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_names_files_of_its_folder(repsim, pickled, tmp_path, monkeypatch, index):
    folder, _ = pickled
    canary = tmp_path / "pytorch_model-1.bin"
    torch.save({"a": torch.ones(3)}, canary)
    before = canary.read_bytes()
    monkeypatch.chdir(tmp_path)
    (folder / "pytorch_model.bin.index.json").write_bytes(INDEXES[index].replace(b"CANARY", str(canary).encode()))
    code, out, err = repsim("convert", folder, tmp_path / "deep" / "new")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "pytorch_model.bin.index.json" in err
    assert canary.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", canary.name]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "notes.txt", "config.json"])
def test_links_that_leave_the_folder(repsim, pickled, tmp_path, name):
    folder, _ = pickled
    (folder / name).unlink(missing_ok=True)
    (tmp_path / "private").write_text('{"secret": "hunter2"}')
    (folder / name).symlink_to("../private")
    code, _, err = repsim("convert", folder, tmp_path / "new")
    assert (code, err.count("\n")) == (2, 1), err
    assert f"source: a link that leaves its folder, got '{folder / name}'; copy the file there" in err
    assert "hunter2" not in err
    assert not (tmp_path / "new").exists()


def test_a_snapshot_of_the_hub_links_to_its_blobs(forked, pickled, tmp_path):
    folder, state = pickled
    snapshot, blobs = tmp_path / "models--a" / "snapshots" / "1", tmp_path / "models--a" / "blobs"
    snapshot.mkdir(parents=True)
    folder.rename(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    target = convert(str(snapshot), tmp_path / "new")
    assert safetensors.torch.load_file(target / "model.safetensors").keys() == state.keys()
    assert not [file for file in target.iterdir() if file.is_symlink()]


def test_the_new_folder_is_new(repsim, pickled, tmp_path):
    folder, _ = pickled
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for target in ("there", "link"):
        code, _, err = repsim("convert", folder, tmp_path / target)
        assert (code, err.count("\n")) == (2, 1)
        assert "target: it already exists, got" in err
    assert not (tmp_path / "elsewhere").exists()
    file = folder / "pytorch_model.bin"
    assert repsim("convert", file, "new")[::2] == (2, f"error: source: a file, got '{file}'; give its folder\n")
    code, _, err = repsim("convert", folder, "new", "--revision", "main")
    assert (code, err) == (2, f"error: revision: only for a hub id, got 'main' with the folder '{folder}'; drop it\n")
    for words in (
        (folder, "a\0b"),
        ("a\0b", tmp_path / "new"),
        ("~nobody9/x", tmp_path / "new"),
        (folder, "~nobody9/x"),
    ):
        code, _, err = repsim("convert", *words)
        assert (code, err.count("\n")) == (2, 1), err
        assert re.search("path: not usable, got|not text in UTF-8, got", err)


def test_damaged_weights(forked, repsim, pickled, tmp_path):
    """The archive has a sum of every tensor, which torch does not look at."""
    folder, state = pickled
    file = folder / "pytorch_model.bin"
    content = bytearray(file.read_bytes())
    largest = max(state.values(), key=torch.Tensor.numel)
    content[content.index(largest.numpy().tobytes()[:64]) + 3] ^= 0x40
    file.write_bytes(content)
    assert torch.load(file, weights_only=True).keys() == state.keys()
    code, _, err = repsim("convert", folder, tmp_path / "new")
    assert (code, err.count("\n")) == (2, 1), err
    assert "source: pytorch_model.bin cannot be read as tensors only, got 'ValueError: pytorch_model/data/" in err
    assert "is damaged'; ask who published it" in err
    assert not (tmp_path / "new").exists()


def test_no_weights(forked, repsim, pickled, tmp_path):
    folder, _ = pickled
    torch.save({}, folder / "pytorch_model.bin")
    code, _, err = repsim("convert", folder, tmp_path / "new")
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be read as tensors only, got 'TypeError: no dictionary of tensors'" in err


class System:
    def __reduce__(self):
        return os.system, ("touch trap",)


def test_the_line_names_what_the_pickle_asks_for(forked, repsim, pickled, tmp_path, monkeypatch):
    folder, _ = pickled
    monkeypatch.chdir(tmp_path)
    for zipped in (True, False):
        torch.save({"a": System()}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        code, _, err = repsim("convert", folder, tmp_path / "new")
        assert (code, err.count("\n")) == (2, 1)
        assert re.search("got 'it asks for (os|posix)[.]system'; ask who published it", err), err
    assert not (tmp_path / "trap").exists()


@pytest.mark.slow
def test_modules_beside_the_model_are_not_imported(repsim, pickled, tmp_path, monkeypatch):
    folder, _ = pickled
    for name in ("torch", "json", "repsim_cli"):
        (folder / f"{name}.py").write_text("open('trap', 'w')\n")
    monkeypatch.chdir(folder)
    assert repsim("convert", ".", tmp_path / "new")[0] == 0
    assert not (folder / "trap").exists()


def test_places_that_cannot_be_used(repsim, pickled, tiny_folder, tmp_path):
    folder, _ = pickled
    code, _, err = repsim("convert", folder, tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "target: it already exists, got" in err
    with pytest.raises(BadInput, match=r"source: no pytorch_model.bin in it, got .*; its weights are not pickled"):
        convert(str(tiny_folder("bert")), tmp_path / "new")
    assert not (tmp_path / "new").exists()
