"""Distances between the layers of each checkpoint of a training run, and their mean beside what the run is good at."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Unpack

import numpy as np

from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.base.registry import studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.engine.cost import Cost
from repsim_cli.engine.curves import make_curve, name_curves
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.processes import PairWork
from repsim_cli.engine.record import Sampled, record_square_matrices
from repsim_cli.engine.rows import prepare
from repsim_cli.engine.study import OfSeries, Study
from repsim_cli.engine.unit import Kinds, Phase
from repsim_cli.engine.without_value import collect_lacking, select_measures_with_values
from repsim_cli.runs.content import Curve, Measured, Results, Table, omit_nan
from repsim_cli.runs.results import Run
from repsim_cli.studies.training_run.identical import tabulate_identical_checkpoints
from repsim_cli.studies.training_run.trainings import (
    Gap,
    Missing,
    Training,
    TrainingWorker,
    collect_trainings,
    describe_training_needs,
    estimate_training_costs,
    list_last,
    open_trainings,
    plan_checkpoint_units,
    tabulate_checkpoint_gaps,
)

COLUMNS = ["model", "measure", "step", "mean over pairs of layers"]
Matrices = dict[int, SimilarityMatrix]  # by step


@studies.register("training_view")
class TrainingView(Study):
    """Compares the layers of each checkpoint with each other, and the mean over pairs with the checkpoint's metrics.

    The metrics (loss, accuracy, ...) are those of the metrics.json that a checkpoint was saved with.

    missing: a checkpoint that is missing or broken stops the run (`stop`), or is left out and shown as a gap (`skip`).
    Example: repsim run study=training_view model=[] +model.mine='{kind: series, folder: DIR}' measure=[cka_unbiased]
    """

    takes_series: ClassVar[bool] = True
    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES

    def __init__(
        self,
        *,
        missing: Missing = "stop",
        **given: Unpack[OfSeries],
    ):
        self.extract, self.hardware = given["extract"], given["hardware"]
        self.trainings = open_trainings(given, missing)
        self.readings, self.measures, self.skipped = collect_trainings(self.trainings.values())
        for label, training in self.trainings.items():
            if len(training.compared.layers) < 2:
                raise BadInput(f"extract: two layers are needed, got one of {label}; read more hook points")

    def plan(self) -> dict[str, Any]:
        trainings = self.trainings.values()
        return {
            "models": list_last(trainings),
            "checkpoints": {training.label: training.steps for training in trainings},
            "layers": sum(len(training.compared.layers) for training in trainings),
            "measures": list(self.measures),
            "forward passes": sum(training.forward_passes for training in trainings),
            **({"processes": self.hardware.workers} if any(measure.slow for measure in self.measures.values()) else {}),
            **describe_training_needs(trainings, self.costs(), self.hardware),
        }

    def costs(self) -> dict[str, Cost]:
        """Estimates the work: all pairs of layers are compared at every checkpoint."""
        pairs = {label: training.compared.pairs for label, training in self.trainings.items()}
        return estimate_training_costs(self.trainings.values(), pairs)

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        records, curves, rows = [], [], []
        # nothing is said of how pairs were solved, so none is audited
        with PairWork(folder=run.folder, processes=self.hardware.workers, progress=run.progress, seed=None) as work:
            for place, (label, training) in enumerate(self.trainings.items()):
                training.make(run)
                matrices, metrics = self._visit(run, training, work, place)
                for measure in select_measures_with_values(
                    run, {k: collect_lacking(x.values()) for k, x in matrices.items()}
                ):
                    by_step = matrices[measure]
                    records.append(self._record(run, training, measure, by_step))
                    curves.append(self._curve(measure, training, by_step))
                    for step, matrix in by_step.items():
                        distance = omit_nan(_average_known(_average_to_others(matrix.values.cpu().numpy())))
                        rows.append(([label, measure, step, distance], metrics[step]))
        gaps = [gap for training in self.trainings.values() for gap in training.gaps]
        names = list(dict.fromkeys(name for _, scores in rows for name in scores))
        view = Table(columns=[*COLUMNS, *names], rows=[[*row, *map(scores.get, names)] for row, scores in rows])
        return Results(
            study="training_view",
            measures=records,
            tables={
                "distance and metrics": view,
                **tabulate_checkpoint_gaps(gaps),
                **tabulate_identical_checkpoints(run, self.trainings.values()),
            },
            curves=name_curves(curves),
        )

    def units(self, run: Run) -> Iterable[Phase]:
        return [plan_checkpoint_units(self.trainings.values())]

    def worker(self) -> Kinds:
        return {"checkpoint": TrainingWorker(self.trainings).record}

    def _visit(
        self, run: Run, training: Training, work: PairWork, place: int
    ) -> tuple[dict[str, Matrices], dict[int, dict[str, float]]]:
        """The matrices of every checkpoint by measure and step, and its metrics."""
        sequences = training.start(run)
        compared, labels = training.compared, training.compared.labels(sequences)
        matrices: dict[str, Matrices] = {label: {} for label in compared.measures}
        metrics: dict[int, dict[str, float]] = {}
        for step in training.visit(run, sequences, keep=False):
            if isinstance(step, Gap):
                continue
            number, source = step.checkpoint.step, step.checkpoint.open()
            with run.stage("similarity"):
                try:
                    estimates, notices = estimate_all_pairs(
                        compared.measures,
                        lambda seen, step=step: step.rows(),
                        names=[f"{layer} at step {number}" for layer in compared.layers],
                        estimate=compared.extract.estimate,
                        tile=self.hardware.tile,
                        labels=labels,
                        work=work.reuse(f"{place}-{number}"),
                    )
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
            for notice in notices:
                run.warn(notice)
            for label, matrix in estimates.items():
                matrices[label][number] = matrix
                self.counts = {"rows": matrix.rows, "batches": matrix.batches}
            metrics[number] = source.metrics() if source.metrics is not None else {}
        ordered = {label: dict(sorted(by_step.items())) for label, by_step in matrices.items()}
        return ordered, metrics

    def _record(self, run: Run, training: Training, measure: str, by_step: Matrices) -> Measured:
        layers = [layer.name for layer in training.compared.layers]
        blocks = {f"step {step}": (layers, matrix.values.cpu().numpy()) for step, matrix in by_step.items()}
        undefined = {f"step {step}": matrix.undefined for step, matrix in by_step.items()}
        return record_square_matrices(
            run,
            f"{measure} between layers of {training.label}",
            self.measures[measure],
            blocks,
            undefined,
            Sampled(training.compared.extract.estimate, **self.counts),
        )

    def _curve(self, measure: str, training: Training, by_step: Matrices) -> Curve:
        """Makes the curve of a measure. A layer's value is its mean to the other layers, so that the mean over layers
        is that over pairs."""
        card = self.measures[measure].card
        return make_curve(
            quantity=f"{measure} between layers",
            label=card.label,
            point=", ".join(self.extract.hook_points),
            model=training.label,
            parameters=training.last.parameters,
            steps=[checkpoint.step for checkpoint in training.series.checkpoints],
            layers=[layer.name for layer in training.compared.layers],
            values={step: _average_to_others(matrix.values.cpu().numpy()).tolist() for step, matrix in by_step.items()},
            bounds=card.bounds,
        )


def _average_to_others(matrix: np.ndarray) -> np.ndarray:
    """The mean of every row and column without the diagonal, of the cells with a value; NaN where none has one."""
    both = (matrix + matrix.T) / 2
    return np.array([_average_known(np.delete(row, i)) for i, row in enumerate(both)])


def _average_known(values: np.ndarray) -> float:
    """Averages the numbers that are not NaN; NaN where there is none."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else np.nan
