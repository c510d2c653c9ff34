"""Probes of every representation: which layers know a target, and which tell it linearly."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from repsim_cli.activations.inputs import check_modality, paired, tokenizers
from repsim_cli.activations.rows import devices, readings
from repsim_cli.content import Matrix, Results, Side, Table
from repsim_cli.data.base import Data
from repsim_cli.errors import BadInput
from repsim_cli.findings.layers import in_order
from repsim_cli.models.source import AnySource, Precomputed, Source
from repsim_cli.registry import did_you_mean, studies
from repsim_cli.results import Run, slug, write
from repsim_cli.settings import ALL_REMEDIES, Extract, Fraction, Hardware
from repsim_cli.studies.bounds import check_rows_fit, in_gb, most_rows, shown, usual_length
from repsim_cli.studies.cost import forward_time, speed_of, times
from repsim_cli.studies.sample import counted, inputs, prepare, sample
from repsim_cli.training.probes import (
    ERRORS,
    LINEAR,
    PROBES,
    ProbeFit,
    Record,
    Split,
    Unit,
    fit_unit,
    settings_of,
    split_of,
)
from repsim_cli.training.state import SAVE_EVERY
from repsim_cli.workers import followed_joblib

DONE = ".probes.json"  # what a run that was killed has finished, until its end
FIT = 2.0  # seconds of CPU time that an MLP takes on 3000 rows
COLUMNS = ["model", "layer", "target", "probe", "error", "error on fitted rows", "control", "converged"]


@studies.register("probes")
class Probes:
    """Fits probes from the representations of models to known targets, and measures their errors on held-out rows.

    Probes are linear, or MLPs of two layers, those of scikit-learn with its defaults, on features as they are; each has
    a control with shuffled targets. They are fitted in the processes of hardware.

    targets: the label of the stored representations that are the targets: one feature per class with a single 1 in each
        row, or one whole number.
    probes: which of linear_regression, linear_classification (least squares on indicators of the classes),
        logistic_classification, mlp_regression and mlp_classification.
    train_share: the share of the rows that probes are fitted on, drawn under the run's seed.
    Example: repsim run study=probes model=[] +model.mine='{kind: transformers, path: DIR}' +model.answers='{kind:
        precomputed, path: FILE}' data=local_text data.path=FILE data.sample_by=paragraph extract=pooled
        options.targets=answers options.probes=[linear_regression]
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES

    def __init__(
        self,
        *,
        model: Mapping[str, AnySource],
        data: Data,
        extract: Extract,
        hardware: Hardware,
        seed: int,
        cache: bool = True,
        targets: str,
        probes: list[str],
        train_share: Fraction = 0.8,
    ):
        stored = {label: source for label, source in model.items() if isinstance(source, Precomputed)}
        self.live = {label: source for label, source in model.items() if isinstance(source, Source)}
        if not self.live:
            raise BadInput(
                "model: no model to probe is selected, got none that is run; e.g. model=[modsum_l,modsum_targets]"
            )
        if targets not in stored:
            hint = did_you_mean(targets, stored) if stored else "select one, e.g. modsum_targets"
            raise BadInput(f"options.targets: no stored representations of this name, got '{targets}'; {hint}")
        for label in stored:
            if label != targets:
                raise BadInput(f"model.{label}: stored representations beside the targets, got '{label}'; drop it")
        if not probes:
            raise BadInput(f"options.probes: none is selected, got []; choose of {', '.join(PROBES)}")
        for name in probes:
            if name not in PROBES:
                raise BadInput(f"options.probes: no such probe, got '{name}'; {did_you_mean(name, PROBES)}")
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: probes are fitted on one sample, got {extract.estimate}; use full")
        check_modality(self.live, data)
        self.models, self.data, self.extract, self.hardware = dict(model), data, extract, hardware
        self.seed, self.cache, self.targets = seed, cache, targets
        self.probes = {name: PROBES[name] for name in dict.fromkeys(probes)}
        self.train_share = train_share
        self.readings = readings(model, extract)
        self.layers = [layer for reading in self.readings for layer in reading.layers if reading.label != targets]
        self.names = stored[targets].names
        self.devices = devices(hardware, list(model))
        self.most = min(extract.rows, most_rows(model, extract))
        check_rows_fit(self.memory, self.most, hardware, self.live)
        self.tokenizers = tokenizers(self.live, data, extract)

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: libraries, weights, the rows and a copy for the processes, and what one fit works on."""
        jobs, widest = self.hardware.workers, max(layer.width for layer in self.layers)
        return {
            "Python and its libraries": 0.5e9 + 0.15e9 * jobs,
            "weights": sum(4.0 * source.parameters for source in self.live.values()),
            "rows": 4.0 * 3 * rows * sum(layer.width for layer in self.layers),
            "fits": 8.0 * 4 * jobs * rows * widest,
        }

    def units(self) -> list[Unit]:
        linear = any(probe.linear for probe in self.probes.values())
        return [
            *(Unit(layer.model, layer.name, LINEAR, "", False) for layer in self.layers if linear),
            *(
                Unit(layer.model, layer.name, name, target, control)
                for layer in self.layers
                for name, probe in self.probes.items()
                if not probe.linear
                for target in self.names
                for control in (False, True)
            ),
        ]

    def plan(self) -> dict[str, Any]:
        return {
            "models": shown(self.live),
            "layers": len(self.layers),
            "targets": self.names,
            "probes": list(self.probes),
            "fits, with controls": 2 * len(self.layers) * len(self.names) * len(self.probes),
            "rows, at most": self.most,
            "memory, GB": in_gb(self.memory(self.most)),
            "time, roughly": times(self.times(), self.hardware),
        }

    def times(self) -> dict[str, float]:
        """Seconds, roughly: a linear probe is a decomposition, another one a training of a second or two."""
        length = usual_length(self.live, self.data, self.extract)
        slow = sum(unit.probe != LINEAR for unit in self.units())
        features = sum(4.0 * self.most * layer.width**2 + 40.0 * layer.width**3 for layer in self.layers)
        return {
            "forward passes": forward_time(self.live.values(), self.extract.sequences, length, self.hardware),
            "fits": features / speed_of("cpu")[0] + slow * FIT * self.most / 3000 / self.hardware.workers,
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        rows, tables = self._rows(run)
        targets = {name: classes_of(name, rows.pop((self.targets, name))) for name in self.names}
        split = split_of(len(next(iter(targets.values()))), self.train_share, self.seed)
        with run.stage("probes"):
            fits = self._fits(run, rows, targets, split)
        results = self._results(run, fits, targets, split, tables)
        (run.folder / DONE).unlink(missing_ok=True)
        return results

    def _rows(self, run: Run) -> tuple[dict[tuple[str, str], np.ndarray], dict[str, Table]]:
        """The sampled rows of every layer and target, by model and name; and the tables of the layers."""
        with run.stage("data"):
            sequences = inputs(run, self.live, self.tokenizers, self.data, self.extract, self.seed)
            self.readings = paired(self.readings, sequences, self.data, self.extract)
            total = counted(run, self, sequences)
        layers = [layer for reading in self.readings for layer in reading.layers]
        taken, tables = sample(run, self, sequences, total, self.layers)
        rows = {(layer.model, layer.name): x.cpu().numpy() for layer, x in zip(layers, taken, strict=True)}
        return rows, tables

    def _fits(
        self,
        run: Run,
        rows: Mapping[tuple[str, str], np.ndarray],
        targets: Mapping[str, np.ndarray],
        split: Split,
    ) -> dict[tuple[str, str], dict[Record, ProbeFit]]:
        """All fits by model and layer. What is finished is written every few seconds, and not done again."""
        from joblib import Parallel, delayed

        followed_joblib()
        file = run.folder / DONE
        done: list[Any] = json.loads(file.read_text()) if file.is_file() else []
        finished = {tuple(unit) for unit, _ in done}
        left = [unit for unit in self.units() if unit not in finished]
        found = Parallel(n_jobs=min(self.hardware.workers, len(left) or 1), return_as="generator_unordered")(
            delayed(fit_unit)(unit, rows[unit.model, unit.layer], targets, tuple(self.probes), split, self.seed)
            for unit in left
        )
        saved = time.monotonic()
        for _, one in zip(run.progress(left, label="probes", unit="fits"), found, strict=True):
            done.append(one)
            if time.monotonic() - saved > SAVE_EVERY:
                write(file, json.dumps(done).encode())
                saved = time.monotonic()
        fits: dict[tuple[str, str], dict[Record, ProbeFit]] = {(layer.model, layer.name): {} for layer in self.layers}
        for (model, layer, *_), records in done:
            fits[model, layer] |= {tuple(record): ProbeFit(*values) for record, values in records}
        return fits

    def _results(
        self,
        run: Run,
        fits: Mapping[tuple[str, str], Mapping[Record, ProbeFit]],
        targets: Mapping[str, np.ndarray],
        split: Split,
        tables: Mapping[str, Table],
    ) -> Results:
        """A row per fit; and of every model and probe the errors, layers in the order of the network by targets."""
        rows: list[list[Any]] = []
        matrices: dict[str, Matrix] = {}
        for label in self.live:
            named = [layer.name for layer in self.layers if layer.model == label]
            layers = [named[place] for place in in_order(named)]
            for probe in self.probes:
                errors, control = (
                    np.array(
                        [[fits[label, layer][probe, target, way].error for target in self.names] for layer in layers]
                    )
                    for way in (False, True)
                )
                stem = f"probes-{slug(probe)}-{slug(label)}"
                matrices[f"{probe}, {label}"] = Matrix(
                    rows=Side(model=label, layers=layers),
                    columns=Side(model=self.targets, layers=list(self.names)),
                    values=run.write_array(stem, errors),
                    n=len(split.held_out),
                    details={"control": run.write_array(f"{stem}-control", control)},
                    label="held-out error (0: perfect)",
                    bounds=[0.0, 1.0],
                    about={
                        "kind": "probes",
                        "probe": probe,
                        "label": self.probes[probe].label,
                        "error": ERRORS[self.probes[probe].task],
                        "settings": settings_of(self.probes[probe], self.seed),
                    },
                )
                for target in self.names:
                    for layer in layers:
                        fit, shuffled = (fits[label, layer][probe, target, way] for way in (False, True))
                        rows.append(
                            [label, layer, target, probe, fit.error, fit.fitted_error, shuffled.error, fit.converged]
                        )
        return Results(
            study="probes",
            matrices=matrices,
            tables={"probes": Table(columns=COLUMNS, rows=rows), **tables},
            about={
                "classes": {name: len(np.unique(classes)) for name, classes in targets.items()},
                "rows fitted on": len(split.fitted),
                "rows held out": len(split.held_out),
            },
        )


def classes_of(name: str, x: np.ndarray) -> np.ndarray:
    """The class of every row, from an indicator of each class or from whole numbers."""
    if x.shape[1] == 1 and (x == np.round(x)).all():
        classes = x[:, 0].astype(np.int64) - int(x.min())
    elif x.shape[1] > 1 and ((x == 0) | (x == 1)).all() and (x.sum(1) == 1).all():
        classes = x.argmax(1)
    else:
        raise BadInput(
            f"options.targets: '{name}' is neither one whole number nor one 1 among zeros per row; code it so"
        )
    if len(np.unique(classes)) < 2:
        raise BadInput(f"options.targets: '{name}' has one class only, got {classes[0]}; give more rows, or drop it")
    return classes
