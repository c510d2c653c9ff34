"""Weights published as pickles, rewritten as safetensors by a process that cannot do anything else.

The loader itself reads only safetensors.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.torch
import torch

from repsim_cli.errors import BadInput
from repsim_cli.models.checkpoints import folder, hub_files, weight_files

WEIGHTS, INDEX = "pytorch_model", "pytorch_model.bin.index.json"
BESIDE = ("*.json", "*.txt", "*.model")  # config and tokenizer
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn")


def convert(source: str, target: Path, revision: str | None = None) -> Path:
    """A new folder in the transformers format, with safetensors, from a folder or hub id with pickled weights.

    Raises BadInput where the target exists, or the weights hold more than tensors.
    """
    if target.exists():
        raise BadInput(f"target: it already exists, got '{target}'; name a new folder")
    local = Path(source).expanduser()
    given = folder(local) if local.is_dir() else hub_files(source, revision, [f"{WEIGHTS}*.bin", *BESIDE])
    index = given / INDEX
    shards = json.loads(index.read_text())["weight_map"] if index.is_file() else {}
    files = sorted(set(shards.values())) or [f"{WEIGHTS}.bin"]
    for name in files:
        if not (given / name).is_file():
            raise BadInput(f"source: no {name} in it, got '{source}'; its weights are not pickled in this form")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as place:
        made = Path(place) / "model"
        made.mkdir()
        for name in files:
            _rewritten(given / name, made / _named(name))
        if shards:
            renamed = {key: _named(name) for key, name in shards.items()}
            (made / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": renamed}))
        for pattern in BESIDE:
            for file in given.glob(pattern):
                if not file.name.endswith(".index.json"):
                    shutil.copyfile(file, made / file.name)
        weight_files(made)
        made.rename(target)
    return target


def _named(name: str) -> str:
    return re.sub(f"^{WEIGHTS}(.*)[.]bin$", r"model\1.safetensors", name)


def _rewritten(file: Path, target: Path) -> None:
    """Rewrites the file in a separate process."""
    code = "import sys; from repsim_cli.models.pickled import rewrite; rewrite(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, str(file), str(target)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        reason = re.sub(r"\s+", " ", last)[:200]
        raise BadInput(f"source: {file.name} cannot be read as tensors only, got '{reason}'; ask who published it")


def rewrite(file: str, target: str) -> None:
    """Writes the tensors of a pickled file as safetensors. This process can then neither connect nor start another."""

    def refuse(event: str, _: object) -> None:
        if event.startswith(FORBIDDEN):
            raise PermissionError(f"weights asked for {event}")

    sys.addaudithook(refuse)
    state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise TypeError("no dictionary of tensors")
    # copies, since tensors that share memory cannot be saved
    safetensors.torch.save_file(
        {key: value.clone(memory_format=torch.contiguous_format) for key, value in state.items()},
        target,
        {"format": "pt"},
    )
