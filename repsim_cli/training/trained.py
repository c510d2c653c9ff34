"""Models that the package trains: made once, kept in the cache with their metrics, keyed by what determines them.

REPSIM_CACHE/models/KEY/model-HASH/   weights (safetensors), config and the other files of the format; metrics.json
REPSIM_CACHE/models/KEY/training/     state from which a killed training resumes; removed at its end
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

from repsim_cli.activations.inputs import name_errors
from repsim_cli.models.source import Short, Source, TrainingWork
from repsim_cli.runs.cache import Entry, make_cache_key, trim, use
from repsim_cli.runs.results import Progress, Run, dumps, quiet

Metrics = dict[str, float]
KIND = "models"
METRICS = "metrics.json"
# a model that this process has asked for stays in the cache until the process ends
_kept = ExitStack()
atexit.register(_kept.close)


@dataclass(frozen=True)
class Trained:
    """A model that `parts` (plain values: data, config, settings, seed, code version) determine.

    train(folder, scratch, progress): writes the weights in their format into `folder` and returns the metrics; files in
    `scratch` outlive a killed training. Of several processes one trains, and the others wait.
    work(): what the training takes; None: not known.
    """

    parts: Mapping[str, Any]
    train: Callable[[Path, Path, Progress], Metrics]
    work: Callable[[], TrainingWork] | None = None

    @property
    def key(self) -> str:
        return make_cache_key(dict(self.parts))

    def folder(self, progress: Progress = quiet) -> Path:
        """The folder of the trained model, which is trained now if it is not in the cache."""
        with use(KIND, [self.key]) as entries:
            entry = entries[self.key]
            if not entry.complete:
                self._make(entry, progress)
        _kept.enter_context(use(KIND, [self.key]))
        return entry.files["model"]

    def find_missing(self) -> dict[str, Callable[[], TrainingWork]]:
        """The work of the training that is still to be done, by its key; empty where the model is in the cache or the
        work is not known."""
        return {} if self.work is None or Entry(KIND, self.key).known else {self.key: self.work}

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


def read_kept(key: str, name: str) -> Any:
    """The content of a JSON file beside the weights of a model that this process has used."""
    folder = find_stored(key)
    assert folder is not None
    return json.loads((folder / name).read_text())


def find_stored(key: str) -> Path | None:
    """The folder of the model of this key, if the cache has all of it."""
    if not key.isalnum():  # a manifest may say anything
        return None
    with use(KIND, [key]) as entries:
        return entries[key].files.get("model")


def train_missing(models: Mapping[str, Any], run: Run, threads: int | None = None) -> None:
    """Trains the models of a run that are trained when first needed and are missing, with progress, on `threads`."""
    wanted = {label: model.make for label, model in models.items() if isinstance(model, Source) and model.make}
    if wanted and threads:
        torch.set_num_threads(threads)
    for label, make in wanted.items():
        with run.stage("training"):
            name_errors(
                label,
                make,
                lambda items, model=label, label="training", unit="steps": run.progress(
                    items, label=f"{model}: {label}", unit=unit
                ),
            )


def find_shortfalls(models: Mapping[str, Any], run: Run) -> dict[str, Short]:
    """Finds the models of a run that fall short of what they were trained for, and warns of each."""
    checked = {label: model.short() for label, model in models.items() if isinstance(model, Source) and model.short}
    marks = {label: short for label, short in checked.items() if short is not None}
    for label, short in marks.items():
        run.warn(f"{label}: {short.why}; figures and claims say so")
    return marks
