"""Activations in the cache: an entry per model, data and hook points, with a file per window of sequences."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from repsim_cli.activations.batching import TokenTally
from repsim_cli.activations.hook_points import HookPoint
from repsim_cli.base import environment
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Sequences
from repsim_cli.models.source import Precomputed
from repsim_cli.runs.cache import Entry, make_cache_key, use

log = logging.getLogger("repsim")
CODE = 5  # raise when a change of the code changes the content of entries (tests/test_codes.py)
PACKAGES = ("torch", "transformers", "transformer-lens")  # that models run in


def make_activations_key(
    identity: Mapping[str, Any], sequences: Sequences, extract: Extract, points: Sequence[HookPoint], dtype: str
) -> str:
    """The key of a model's activations; hashes identify the model wherever it is stored."""
    # of pooled rows, what is skipped is not part
    within = sequences.skip if extract.pooled else None
    skip = {} if within is None else {"skip": sha256(within.tobytes()).hexdigest()}
    stream = {"stream": identity["stream"]} if "stream" in identity else {}
    return make_cache_key(
        {
            "code": [CODE, *map(environment.read_version, PACKAGES)],
            "weights": identity["weights_hash"],
            "config": identity.get("config_hash"),
            "data": sequences.hash(),
            "unit": f"{extract.unit}, {extract.piece}" if extract.unit in WORDS else extract.unit,
            "padding": extract.padding,
            "points": [str(point) for point in points],
            "dtype": dtype,
            **skip,
            **stream,
        }
    )


def make_shard_key(activations: str, number: int, count: int) -> str:
    """The key of the windows number, number + count, ... of the activations of this key."""
    return make_cache_key({"activations": activations, "shard": [number, count]})


def name_window(window: slice) -> str:
    return f"{window.start:08d}+{window.stop - window.start}"


class Recorder:
    """Writes a model's rows into an entry as they are computed, and reads those that an earlier run wrote.

    Where the cache cannot be written (full, read-only), the run warns once and continues without it.

    only: the windows of a shard; the others have no rows. None: all.
    """

    def __init__(self, entry: Entry, only: Sequence[slice] | None = None):
        self.entry = entry
        self.only = None if only is None else {name_window(window) for window in only}
        self.writing = True

    def read(self, window: slice) -> list[Tensor] | None:
        name = name_window(window)
        if self.only is not None and name not in self.only:
            return []
        if name not in self.entry.files:
            return None
        tensors = safetensors.torch.load_file(self.entry.files[name])
        return [tensors[f"{i:04d}"] for i in range(len(tensors))]

    def write(self, window: slice, rows: Sequence[Tensor]) -> None:
        if not self.writing:
            return
        try:
            tensors = {f"{i:04d}": x.cpu().contiguous() for i, x in enumerate(rows)}
            self.entry.write(name_window(window), lambda path: safetensors.torch.save_file(tensors, path))
        except (OSError, safetensors.SafetensorError) as error:
            self.writing = False
            reason = getattr(error, "strerror", None) or error
            log.warning("cache: %s cannot be written (%s); continuing without it", self.entry.folder, reason)

    def finish(self, layers: Sequence[str], windows: Sequence[slice]) -> None:
        """Completes the entry, if it has every window; called after the last one."""
        names = [name for name in map(name_window, windows) if self.only is None or name in self.only]
        if not self.writing or not set(names) <= set(self.entry.files):
            return
        rows, widths = {}, []
        for name in names:
            with safetensors.safe_open(self.entry.files[name], framework="pt") as opened:
                shapes = [opened.get_slice(f"{i:04d}").get_shape() for i in range(len(layers))]
            rows[name], widths = shapes[0][0], [width for _, width in shapes]
        try:
            self.entry.finish(names=list(layers), widths=widths, rows=rows)
        except OSError as error:
            log.warning("cache: %s cannot be written (%s); continuing without it", self.entry.folder, error.strerror)


def gather(entry: Entry, shards: int) -> None:
    """Takes the windows of a model's shards into its entry. Raises OSError where it cannot be written."""
    for number in range(shards):
        name = make_shard_key(entry.key, number, shards)
        with use("activations", [name]) as opened:
            for window, file in opened[name].files.items():
                if window not in entry.files:
                    entry.write(window, file.rename)
            shutil.rmtree(opened[name].folder, ignore_errors=True)


def open_entry(entry: Entry, identity: dict[str, Any]) -> Precomputed:
    """A complete entry as a model of the run; rows are read from memory-mapped files, a window at a time."""
    names: list[str] = entry.meta["names"]
    # of a pass by block, the windows of a layer are in the folder of its block
    parts = entry.meta.get("parts") or [["", f"{i:04d}"] for i in range(len(names))]
    place = dict(zip(names, parts, strict=True))
    ends: list[tuple[int, int, str]] = []
    total = 0
    for file, rows in sorted(entry.meta["rows"].items()):
        ends.append((total, total + rows, file))
        total += rows

    def read(name: str, rows: slice) -> Tensor:
        parts, (folder, tensor) = [], place[name]
        for first, last, file in ends:
            if first < rows.stop and rows.start < last:
                with safetensors.safe_open(
                    entry.files[folder] / file if folder else entry.files[file], framework="pt"
                ) as opened:
                    inside = slice(max(rows.start - first, 0), min(rows.stop, last) - first)
                    parts.append(opened.get_slice(tensor)[inside])
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    return Precomputed(names=names, rows=total, widths=entry.meta["widths"], read=read, identity=lambda: identity)


@dataclass(frozen=True)
class Running:
    """What models run with, by their labels.

    modules: on their devices. sequences: of all live models of the run. recorders: of models whose rows are read from a
    file, or run and written to one; where all are in files, they need no module. tally: counts what is run.
    """

    modules: Mapping[str, nn.Module]
    sequences: Mapping[str, Sequences]
    recorders: Mapping[str, Recorder] = field(default_factory=dict)
    tally: TokenTally | None = None
