"""Weights published as pickles, rewritten as safetensors by a process that cannot do anything else.

The loader itself reads only safetensors.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import safetensors.torch
import torch

from repsim_cli.base.documents import show
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, find_inside, give_usual_rights
from repsim_cli.data.files import read_json_file
from repsim_cli.models.checkpoints import check_folder, fetch_hub_files, find_weight_files

WEIGHTS, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SHARD = re.compile(r"pytorch_model([\w.-]*)\.bin")
BESIDE = ("*.json", "*.txt", "*.model")  # config and tokenizer
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn")


def convert(source: str, target: Path, revision: str | None = None) -> Path:
    """A new folder in the transformers format, with safetensors, from a folder or hub id with pickled weights.

    Raises BadInput where the target exists, or the weights hold more than tensors.
    """
    if os.path.lexists(target):
        raise BadInput(f"target: it already exists, got '{target}'; name a new folder")
    place = expand_path(source)
    if place.is_file():
        raise BadInput(f"source: a file, got '{source}'; give its folder")
    if place.is_dir() and revision is not None:
        raise BadInput(f"revision: only for a hub id, got '{revision}' with the folder '{source}'; drop it")
    given = (
        check_folder(place) if place.is_dir() else fetch_hub_files(source, revision, ["pytorch_model*.bin", *BESIDE])
    )
    beside = [file for pattern in BESIDE for file in given.glob(pattern) if not file.name.endswith(".index.json")]
    for file in (*beside, *given.glob("pytorch_model*")):
        if find_inside(given, file.name) is None:
            raise BadInput(f"source: a link that leaves its folder, got '{file}'; copy the file there")
    index = given / INDEX
    shards = read_json_file(index).get("weight_map") if index.is_file() else {"": WEIGHTS}
    if not isinstance(shards, dict) or not shards or not all(map(SHARD.fullmatch, map(str, shards.values()))):
        raise BadInput(f"source: {INDEX} does not name files such as {WEIGHTS}, got {show(shards)}; copy it again")
    named = {name: SHARD.sub(r"model\1.safetensors", name) for name in sorted(set(shards.values()))}
    for name in named:
        if not (given / name).is_file():
            raise BadInput(f"source: no {name} in it, got '{source}'; its weights are not pickled in this form")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        for name, new in named.items():
            _rewrite_in_subprocess(given / name, made / new)
            give_usual_rights(made / new)
        if index.is_file():
            renamed = {key: named[name] for key, name in shards.items()}
            (made / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": renamed}))
        for file in beside:
            shutil.copyfile(file, made / file.name)
        find_weight_files(made)
        made.rename(target)
    return target


def _rewrite_in_subprocess(file: Path, target: Path) -> None:
    """Rewrites the file in a separate process, for which the current folder, perhaps the model's, holds no modules."""
    code = "import sys; from repsim_cli.models.pickled import rewrite; rewrite(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-P", "-c", code, str(file), str(target)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        asked = re.search(r"GLOBAL (\S+)", done.stderr)  # torch's last line is advice to allow it
        reason = f"it asks for {asked[1]}" if asked else re.sub(r"\s+", " ", last)[:200]
        raise BadInput(f"source: {file.name} cannot be read as tensors only, got '{reason}'; ask who published it")


def rewrite(file: str, target: str) -> None:
    """Writes the tensors of a pickled file as safetensors. This process can then neither connect nor start another."""

    def refuse(event: str, _: object) -> None:
        if event.startswith(FORBIDDEN):
            raise PermissionError(f"weights asked for {event}")

    sys.addaudithook(refuse)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if damaged := archive.testzip():  # torch does not look at its sums
                raise ValueError(f"{damaged} is damaged")
    state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise TypeError("no dictionary of tensors")
    # copies, since tensors that share memory cannot be saved
    safetensors.torch.save_file(
        {key: value.clone(memory_format=torch.contiguous_format) for key, value in state.items()},
        target,
        {"format": "pt"},
    )
