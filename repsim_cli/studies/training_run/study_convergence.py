"""How layers converge during training: every checkpoint against the last of its run, layer by layer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import numpy as np

from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.base.registry import studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.data.base import Sequences
from repsim_cli.engine.checks import select_suitable
from repsim_cli.engine.cost import Cost
from repsim_cli.engine.counterparts import Counterparts, estimate_counterparts
from repsim_cli.engine.curves import make_curve, name_curves
from repsim_cli.engine.record import Sampled, record_square_matrices
from repsim_cli.engine.rows import prepare
from repsim_cli.engine.study import OfSeries, Study
from repsim_cli.engine.unit import Kinds, Phase
from repsim_cli.engine.without_value import Lacking, select_measures_with_values
from repsim_cli.measures import Measure
from repsim_cli.runs.content import DIAGNOSED, DIAGNOSTICS, Curve, Measured, Results, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.training_run.identical import tabulate_identical_checkpoints
from repsim_cli.studies.training_run.trainings import (
    CheckpointStep,
    Gap,
    Missing,
    Training,
    TrainingWorker,
    Visit,
    collect_trainings,
    describe_training_needs,
    estimate_training_costs,
    list_last,
    open_trainings,
    plan_checkpoint_units,
    tabulate_checkpoint_gaps,
)

AT_START = "mean at step 0"  # of untrained weights, where a training begins with them: what chance gives


@studies.register("convergence")
class Convergence(Study):
    """Compares the layers of every checkpoint of a training with the same layers of the last one.

    previous: compare every checkpoint with the one before it too.
    pairs: compare all checkpoints with all, which gives a matrix per layer.
    missing: a checkpoint that is missing or broken stops the run (`stop`), or is left out and shown as a gap (`skip`).
    Example: repsim run study=convergence model=[] +model.mine='{kind: series, folder: DIR}' measure=[cka_unbiased]
    """

    takes_series: ClassVar[bool] = True
    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES

    def __init__(
        self,
        *,
        previous: bool = False,
        pairs: bool = False,
        missing: Missing = "stop",
        **given: Unpack[OfSeries],
    ):

        def check(bound: Measure) -> None:
            if pairs and not bound.card.symmetric:
                raise BadInput(
                    f"options.pairs: needs symmetric measures, got {bound.name}; use e.g. cka, or pairs=false"
                )

        given["measure"], asymmetric = select_suitable(given["measure"], check, given.get("skip_unsuitable", False))
        self.previous, self.pairs, self.hardware = previous, pairs, given["hardware"]
        self.trainings = open_trainings(given, missing)
        self.courses = [Course(training) for training in self.trainings.values()]
        self.readings, self.measures, skipped = collect_trainings(self.trainings.values())
        self.skipped = asymmetric | skipped

    def plan(self) -> dict[str, Any]:
        trainings = self.trainings.values()
        return {
            "models": list_last(trainings),
            "checkpoints": {training.label: training.steps for training in trainings},
            "measures": list(self.measures),
            "forward passes": sum(training.forward_passes for training in trainings),
            **self.needs(self.costs()),
        }

    def needs(self, costs: Mapping[str, Cost]) -> dict[str, Any]:
        return describe_training_needs(self.trainings.values(), costs, self.hardware)

    def costs(self) -> dict[str, Cost]:
        """Estimates the work: every checkpoint is run once, and compared with the last one layer by layer."""
        pairs = {}
        for label, training in self.trainings.items():
            others = (len(training.series.checkpoints) + 1) / 2 if self.pairs else 1 + self.previous
            pairs[label] = int(len(training.compared.layers) * others)
        return estimate_training_costs(self.trainings.values(), pairs)

    def run(self, run: Run) -> Results:
        curves = self.curves(run)
        return Results(
            study="convergence",
            measures=[measured for course in self.courses if self.pairs for measured in course.matrices(run)],
            tables=self.tables(run),
            curves=name_curves(curves),
        )

    def units(self, run: Run) -> Iterable[Phase]:
        return [plan_checkpoint_units(self.trainings.values())]

    def worker(self) -> Kinds:
        return {"checkpoint": TrainingWorker(self.trainings).record}

    def curves(self, run: Run, visit: Visit | None = None) -> list[Curve]:
        """A curve per measure, hook point and model (and what it is compared with). visit: as in `visit`."""
        prepare(run, self.hardware)
        for training in self.trainings.values():
            training.make(run)
        return [curve for course in self.courses for curve in course.curves(run, self.previous, self.pairs, visit)]

    def tables(self, run: Run) -> dict[str, Table]:
        """The gaps, checkpoints that are the same, and the diagnostics of the last ones."""
        of_each = [
            training.diagnosis.tables(training.compared.layers)[DIAGNOSTICS] for training in self.trainings.values()
        ]
        whole = Table(columns=DIAGNOSED, rows=[row for table in of_each for row in table.rows])
        same = tabulate_identical_checkpoints(run, self.trainings.values())
        return {**tabulate_checkpoint_gaps(self.gaps()), **same, DIAGNOSTICS: whole}

    def gaps(self) -> list[Gap]:
        return [gap for training in self.trainings.values() for gap in training.gaps]


class Course:
    """How the layers of one training converge: its checkpoints, compared with each other."""

    def __init__(self, training: Training):
        self.training = training

    def curves(self, run: Run, previous: bool = False, pairs: bool = False, visit: Visit | None = None) -> list[Curve]:
        """Similarity to the last checkpoint, and on demand to the previous; pairs: of all with all, in `between`."""
        values: dict[tuple[str, str], dict[int, Counterparts]] = {}
        self.between: dict[str, dict[tuple[int, int], Counterparts]] = {}
        prepared: dict[Any, Any] = {}
        before: CheckpointStep | None = None
        earlier: list[CheckpointStep] = []
        sequences = self.training.start(run)

        def compare(
            step: CheckpointStep, other: CheckpointStep, against: str = "", kept: dict[Any, Any] | None = None
        ) -> None:
            with run.stage("similarity"):
                compared = self._compare(run, sequences, step, other, kept)
            for measure, pair in compared.items():
                both = sorted((step.checkpoint.step, other.checkpoint.step))
                self.between.setdefault(measure, {}).setdefault((both[0], both[1]), pair)
                if against:
                    values.setdefault((measure, against), {})[step.checkpoint.step] = pair

        final: CheckpointStep | None = None
        for step in self.training.visit(run, sequences, keep=pairs, visit=visit):
            if isinstance(step, Gap):
                before = None
                continue
            final = final or step
            compare(step, final, "last", prepared)
            if step is final:
                continue
            if before and previous:
                compare(step, before, "previous")
            for other in [*earlier, step] if pairs else []:
                compare(step, other)
            before, earlier = step, [*earlier, replace(step, rows=step.again)] if pairs else []
            if previous and step.checkpoint is self.training.series.checkpoints[-2]:
                compare(final, step, "previous")
        labels = self._list_undefined(run)
        return [curve for key, by_step in values.items() if key[0] in labels for curve in self._curves(*key, by_step)]

    def _list_undefined(self, run: Run) -> list[str]:
        """Keeps the measures with a value at all; what has none is listed."""
        found = {}
        for measure, by_pair in self.between.items():
            missing = [(steps, r, why) for steps, pair in by_pair.items() for r, why in pair.undefined.items()]
            cells = len(self.training.compared.layers) * len(by_pair)
            found[measure] = Lacking([why for *_, why in missing], cells, len(missing) < cells)
            for steps, r, why in missing:
                layers = (f"{self.training.compared.layers[r].name} at step {step}" for step in steps)
                run.without_value.append([measure, self.training.label, self.training.label, *layers, why])
        return select_measures_with_values(run, found)

    def _curves(self, measure: str, against: str, by_step: Mapping[int, Counterparts]) -> Iterator[Curve]:
        """A curve per hook point."""
        reading, bound = self.training.reading, self.training.compared.measures[measure]
        points = [point.kind if point.layer is not None else str(point) for point in reading.points]
        for point in dict.fromkeys(points):
            places = [i for i, other in enumerate(points) if other == point]
            se = {step: pair.se[places].tolist() for step, pair in by_step.items() if pair.se is not None}
            values = {step: pair.values[places].tolist() for step, pair in by_step.items()}
            first = [value for value in values.get(0, ()) if not np.isnan(value)]
            has_start = against == "last" and first and len(values) > 1
            yield make_curve(
                quantity=f"{measure} to {against}",
                label=bound.card.label,
                point=point,
                model=self.training.label,
                parameters=self.training.last.parameters,
                steps=[checkpoint.step for checkpoint in self.training.series.checkpoints],
                layers=[reading.layers[i].name for i in places],
                values=values,
                se=se,
                bounds=bound.card.bounds,
                measure=measure,
                levels={AT_START: float(np.mean(first))} if has_start else {},
                larger_is_closer=bound.card.larger_is_closer,
            )

    def _compare(
        self,
        run: Run,
        sequences: Mapping[str, Sequences],
        step: CheckpointStep,
        other: CheckpointStep,
        kept: dict[Any, Any] | None,
    ) -> dict[str, Counterparts]:
        """Compares each layer at a step with the same layer at the other. kept: what was prepared of `other`, where it
        is the same in every call."""
        names = [
            tuple(f"{layer} at step {s.checkpoint.step}" for s in (step, other))
            for layer in self.training.compared.layers
        ]
        estimate = self.training.compared.extract.estimate
        try:
            compared, notices = estimate_counterparts(
                self.training.compared.measures,
                zip(step.rows(), other.rows(), strict=True),
                names=[(a, b) for a, b in names],
                estimate=estimate,
                tile=self.training.compared.hardware.tile,
                labels=self.training.compared.labels(sequences),
                kept=kept if estimate == "full" else None,
            )
        except Degenerate as error:
            raise RunFailed(str(error)) from error
        for notice in notices:
            run.warn(notice)
        return compared

    def matrices(self, run: Run) -> Iterator[Measured]:
        """Similarity of all checkpoints with all, a matrix per layer."""
        for label, by_pair in self.between.items():
            if not any(pair.values.isfinite().any() for pair in by_pair.values()):
                continue
            steps = sorted({step for pair in by_pair for step in pair})
            blocks, undefined = {}, {}
            for i, layer in enumerate(self.training.compared.layers):
                square = np.zeros((len(steps), len(steps)))
                for (first, second), pair in by_pair.items():
                    j, k = steps.index(first), steps.index(second)
                    square[j, k] = square[k, j] = float(pair.values[i])
                blocks[layer.name] = ([f"step {step}" for step in steps], square)
                cells = {tuple(map(steps.index, both)): pair.undefined.get(i) for both, pair in by_pair.items()}
                why = {cell: text for (j, k), text in cells.items() if text for cell in ((j, k), (k, j))}
                undefined |= {layer.name: why} if why else {}
            like = next(iter(by_pair.values()))
            yield record_square_matrices(
                run,
                f"{label} between checkpoints of {self.training.label}",
                self.training.compared.measures[label],
                blocks,
                undefined,
                Sampled(self.training.compared.extract.estimate, like.rows, like.batches),
            )
