"""The files of a checkpoint in the transformers format: a local folder, a .gguf file, or a snapshot of the hub.

Safetensors only; code that comes with a model is never run.
"""

import hashlib
import logging
import os
import re
import time
from contextlib import nullcontext, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors

from repsim_cli.base.documents import Unreadable, read_json
from repsim_cli.base.errors import BadInput, Unreachable
from repsim_cli.base.files import check_readable, expand_path, find_inside
from repsim_cli.base.registry import did_you_mean
from repsim_cli.data.files import read_json_file
from repsim_cli.data.network import is_offline, must_use_downloads, say_why_unreachable
from repsim_cli.models.adapters import CONFIG as ADAPTER_CONFIG
from repsim_cli.models.gguf import check, is_gguf, isolate_file
from repsim_cli.runs import cache
from repsim_cli.runs.results import dumps, write

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
SCALE = re.compile(r"weight_scale(_inv)?$|\.(qweight|scales)$")  # beside quantized weights
SHA256 = re.compile(r"[0-9a-f]{64}")
REMEMBERED = 1 << 26  # bytes; fewer are hashed in a tenth of a second
TICK = 2 * 10**9  # nanoseconds: a file that changed just now may change again without another time of change
ADAPTER = "adapter_model"
_STRAY: set[Path] = set()  # folders of which it was said
log = logging.getLogger("repsim")
SHIPPED = Path(str(resources.files("repsim_cli"))) / "assets" / "models"


def list_shipped() -> list[str]:
    return sorted(p.name for p in SHIPPED.iterdir())


def find_shipped(name: str) -> Path:
    known = list_shipped()
    if name not in known:
        raise BadInput(f"name: no such shipped model, got '{name}'; {did_you_mean(name, known)}")
    return SHIPPED / name


def locate(path: str) -> Path:
    """A folder in the transformers format, or a .gguf file: the path, or the only such file of a folder without
    config.json."""
    place = expand_path(path)
    if place.is_dir() and not (place / "config.json").exists():
        files = sorted(file for file in place.iterdir() if is_gguf(file))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise BadInput(f"path: several .gguf files in it, got {names:.200} in '{path}'; name one of them")
        place = files[0] if files else place
    return check(place) if place.is_file() and is_gguf(place) else check_folder(place)


def check_folder(path: Path) -> Path:
    """Refuses a path that is not a folder of a whole model in the transformers format, and says what it is instead."""
    if path.is_file():
        raise BadInput(f"path: not a folder, got '{path}'; name the folder that holds it")
    if not path.is_dir():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = f"; {did_you_mean(path.name, near)}" if 0 < len(near) <= 20 else "; check the path"
        raise BadInput(f"path: no such folder, got '{path}'{hint}")
    os.listdir(path)  # a folder that cannot be listed would seem empty
    if (path / ADAPTER_CONFIG).is_file():
        base = read_json_file(path / ADAPTER_CONFIG).get("base_model_name_or_path")
        raise BadInput(
            f"path: an adapter is in it, got '{path}'; give the base model ({base}) as path or hub, and the adapter in "
            "a folder of its own as adapter"
        )
    if not (path / "config.json").is_file():
        raise BadInput(f"path: no config.json in it, got '{path}'; give a folder in the transformers format")
    for file in path.iterdir():
        if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe would block
            raise BadInput(f"path: neither a file nor a folder, got '{file}'; remove it")
    return path


def find_weight_files(path: Path) -> list[Path]:
    """The safetensors files of the folder, each with a whole header. Raises BadInput with what is missing."""
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    files = [whole]
    if index.is_file() and not whole.is_file():  # transformers prefers the single file
        names = read_json_file(index).get("weight_map")
        inner = isinstance(names, dict) and all(find_inside(path, name, links=True) for name in names.values())
        if not names or not inner:
            raise BadInput(f"path: {index.name} does not name files of its folder, got '{names}'; copy it again")
        files = [path / name for name in sorted(set(names.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        if pickles := [p.name for p in sorted(path.iterdir()) if p.suffix in PICKLES]:
            raise BadInput(
                f"path: only pickled weights ({pickles[0]}), which can run code, got '{path}'; "
                "rewrite them as safetensors with `repsim convert FOLDER NEW_FOLDER`"
            )
        if len(missing) < len(files):
            raise BadInput(
                f"path: {len(missing)} of {len(files)} files of weights are missing, got no {missing[0]} in '{path}'; "
                "copy the missing ones"
            )
        others = [place.name for place in sorted(path.glob("*.safetensors")) if ADAPTER not in place.name]
        if others and index.is_file():
            raise BadInput(
                f"path: {index.name} names {missing[0]}, which is not there, got {len(others)} other files of weights "
                f"({others[0]}) in '{path}'; copy the index that belongs to them"
            )
        if others and any(path.glob("model-*-of-*.safetensors")):
            raise BadInput(f"path: no {index.name} beside the files of weights, got '{path}'; copy it too")
        if others:
            raise BadInput(
                f"path: no {missing[0]} in it, got {others[0]} in '{path}'; rename it if it holds the weights in the "
                "transformers format"
            )
        raise BadInput(f"path: no {missing[0]} in it, got '{path}'; give a folder with weights, or kind: random")
    for file in files:
        try:
            with safetensors.safe_open(check_readable(file), framework="pt") as weights:
                if not weights.keys():
                    raise BadInput(
                        f"path: no weights in {file.name}, got an empty file in '{path}'; save the model again"
                    )
        except safetensors.SafetensorError as error:
            raise BadInput(
                f"path: {file.name} is not a complete safetensors file, got '{error}'; copy it again"
            ) from None
    return files


def read_weight_names(files: list[Path]) -> set[str]:
    """The names of the weights in safetensors files, from their headers."""
    names: set[str] = set()
    for file in files:
        with safetensors.safe_open(file, framework="pt") as weights:
            names.update(weights.keys())
    return names


def check_stray(path: Path) -> None:
    """Says once in a process which weights are used where a folder has two sets of them."""
    shards = sorted(path.glob("model-*-of-*.safetensors"))
    if shards and (path / "model.safetensors").is_file() and path not in _STRAY:
        _STRAY.add(path)
        log.warning(
            "path: two sets of weights are in '%s'; model.safetensors is used, and not the %d files %s ...; remove "
            "those that are not meant",
            path,
            len(shards),
            shards[0].name,
        )


def check_scales(quantized: bool, files: list[Path]) -> None:
    """Raises BadInput for quantized weights whose scales would be ignored, since the config does not mention them.
    quantized: the config does."""
    for file in [] if quantized else files:
        with safetensors.safe_open(file, framework="pt") as weights:
            scale = next((name for name in weights.keys() if SCALE.search(name)), None)  # noqa: SIM118
        if scale is not None:
            raise BadInput(
                f"path: weights with scales, but no quantization_config in config.json, got {scale} in "
                f"'{file.parent}'; copy the config of the quantized model, or use the model without quantization"
            )


def hash_files(files: list[Path], many: int = REMEMBERED) -> str:
    """sha256 of a file's content; of several files, of the sha256 of each, in order.

    From `many` bytes on the hash is remembered in the cache folder, by the files' paths, sizes, inodes and times of
    change: of bytes (mtime) and of anything else (ctime), which only a changed clock can set back. Files in the cache
    of the hub need not be read (`find_hub_digest`).
    """
    states = _read_file_states(files)
    if sum(state["size"] for state in states) < many:
        return _hash(files)
    name = cache.make_cache_key({"files": [state["path"] for state in states]})
    record = cache.find_cache_folder() / "hashes" / f"{name}.json"
    with suppress(Unreadable, OSError, KeyError, TypeError):
        known = read_json(record)
        if known["files"] == states:
            return str(known["sha256"])
    start, sha256 = time.time_ns(), _hash(files)
    last = max(state["ctime_ns"] for state in states)
    if last + TICK < start and _read_file_states(files) == states:
        with suppress(OSError):  # it is computed again
            record.parent.mkdir(parents=True, exist_ok=True)
            write(record, dumps({"files": states, "sha256": sha256}).encode())
    return sha256


def _read_file_states(files: list[Path]) -> list[dict[str, Any]]:
    """Reads path, size, times, inode and device of each file, one of which changes where the file changes."""
    named = ("size", "mtime_ns", "ctime_ns", "ino", "dev")
    return [
        {"path": str(file.resolve())} | {name: getattr(status, f"st_{name}") for name in named}
        for file in files
        for status in [file.stat()]
    ]


def _hash(files: list[Path]) -> str:
    digests = [find_hub_digest(file) or _digest(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_hub_digest(file: Path) -> str | None:
    """The sha256 of a large file in the hub's cache, where it is the name of the file to which snapshots link; None for
    other files, and for one that was written, or changed otherwise, after the link was made."""
    if not file.is_symlink():
        return None
    blob = file.parent / file.readlink()
    if blob.parent.name != "blobs" or not SHA256.fullmatch(blob.name) or blob.is_symlink():
        return None
    link, content = file.lstat(), blob.stat()
    older = content.st_mtime_ns <= link.st_mtime_ns and content.st_ctime_ns <= link.st_ctime_ns
    return blob.name if older else None


def fetch_hub_files(hub: str, revision: str | None, patterns: list[str], key: str = "hub") -> Path:
    """The snapshot folder of a hub repository, with the files that match. key: what names the repository."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(hub, revision=revision, allow_patterns=patterns, local_files_only=must_use_downloads())
        )
    except (OSError, ValueError) as error:
        raise make_unreachable_error(hub, revision, error, key) from error


def is_local(where: str) -> bool:
    return Path(where).is_dir() or is_gguf(where)


def load_pretrained(auto: Any, where: str, revision: str | None, **settings: Any) -> Any:
    """Loads a folder, .gguf file or hub id by an auto class of transformers; code that comes with it is never run."""
    given = {
        "pretrained_model_name_or_path": where,
        "revision": revision,
        "local_files_only": is_local(where) or must_use_downloads(),
    }
    with isolate_file(where) if is_gguf(where) else nullcontext(given) as named:
        return auto.from_pretrained(**named, trust_remote_code=False, **settings)


def describe_error(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def make_unreachable_error(where: str, revision: str | None, error: Exception, key: str = "hub") -> BadInput:
    at = f"{where}@{revision}" if revision else where
    if must_use_downloads():
        reason = "HF_HUB_OFFLINE is set" if is_offline() else str(say_why_unreachable())
    else:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:160]
    message = (
        f"{key}: the model could not be read, got '{at}' ({reason}); check the id and revision, the network, "
        f"or download it and use {'path' if key == 'hub' else key}: FOLDER"
    )
    return Unreachable(message, at, reason) if must_use_downloads() and key == "hub" else BadInput(message)
