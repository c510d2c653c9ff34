"""Models that the package trains itself: made once, kept in the cache with their metrics, found by what made them.

REPSIM_CACHE/models/KEY/model-HASH/   weights (safetensors), config and what else the format has; metrics.json
REPSIM_CACHE/models/KEY/training/     what the training keeps to go on after a kill; removed at its end
"""

import atexit
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from repsim_cli.activations.inputs import named
from repsim_cli.cache import Entry, key, trim, using
from repsim_cli.models.source import Short, Source
from repsim_cli.results import Progress, Run, dumps, quiet

Metrics = dict[str, float]
KIND = "models"
METRICS = "metrics.json"
# a model that this process has asked for stays in the cache until the process ends
_kept = ExitStack()
atexit.register(_kept.close)


@dataclass(frozen=True)
class Trained:
    """A model that `parts` (plain values: data, config, settings, seed, code version) determine.

    train(folder, scratch, progress): writes the weights in their format into `folder` and returns the metrics; what it
    leaves in `scratch` it finds there again after a kill. Any number of processes may ask; one trains, others wait.
    """

    parts: Mapping[str, Any]
    train: Callable[[Path, Path, Progress], Metrics]

    @property
    def key(self) -> str:
        return key(dict(self.parts))

    def folder(self, progress: Progress = quiet) -> Path:
        """The folder of the trained model, which is trained now if it is not there."""
        with using(KIND, [self.key]) as entries:
            entry = entries[self.key]
            if not entry.complete:
                self._make(entry, progress)
        _kept.enter_context(using(KIND, [self.key]))
        return entry.files["model"]

    def metrics(self) -> Metrics:
        return json.loads((self.folder() / METRICS).read_text())

    def _make(self, entry: Entry, progress: Progress) -> None:
        scratch = entry.folder / "training"

        def fill(folder: Path) -> None:
            folder.mkdir()
            scratch.mkdir(exist_ok=True)
            metrics = self.train(folder, scratch, progress)
            (folder / METRICS).write_text(dumps(metrics))

        if "model" not in entry.files:
            entry.write("model", fill)
        entry.finish(parts=dict(self.parts))
        shutil.rmtree(scratch, ignore_errors=True)
        trim()


def kept(key: str, name: str) -> Any:
    """A JSON file beside the weights of a model that this process has asked for."""
    folder = stored(key)
    assert folder is not None
    return json.loads((folder / name).read_text())


def stored(key: str) -> Path | None:
    """The folder of the model of this key, if the cache has it whole."""
    if not key.isalnum():  # a manifest may say anything
        return None
    with using(KIND, [key]) as entries:
        return entries[key].files.get("model")


def train_missing(models: Mapping[str, Any], run: Run, threads: int | None = None) -> None:
    """Trains those of a run's models that are trained when they are first needed, with progress, on so many threads."""
    wanted = {label: model.make for label, model in models.items() if isinstance(model, Source) and model.make}
    if wanted and threads:
        torch.set_num_threads(threads)
    for label, make in wanted.items():
        with run.stage("training"):
            named(
                label,
                make,
                lambda items, own=label, label="training", unit="steps": run.progress(
                    items, label=f"{own}: {label}", unit=unit
                ),
            )


def shortfalls(models: Mapping[str, Any], run: Run) -> dict[str, Short]:
    """Of those of a run's models that fall short of what they were trained for, how; each is warned about."""
    found = {label: model.short() for label, model in models.items() if isinstance(model, Source) and model.short}
    marks = {label: short for label, short in found.items() if short is not None}
    for label, short in marks.items():
        run.warn(f"{label}: {short.why}; figures and claims say so")
    return marks
