"""Which checkpoints of a training have the same weights, as files or caches that were copied give them."""

from collections.abc import Iterable

from repsim_cli.runs.content import IDENTICAL, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.training_run.trainings import Training


def tabulate_identical_checkpoints(run: Run, trainings: Iterable[Training]) -> dict[str, Table]:
    """Tabulates the steps of checkpoints with the same weights, once all were read; no table where all differ."""
    known, rows = run.manifest.get("models", {}), []
    for training in trainings:
        steps: dict[str, list[int]] = {}
        for checkpoint in training.series.checkpoints:
            weights = known.get(f"{training.label}, step {checkpoint.step}", {}).get("weights_hash")
            if weights:
                steps.setdefault(weights, []).append(checkpoint.step)
        rows += [
            [
                training.label,
                ", ".join(map(str, same)),
                "yes" if len(same) == len(training.series.checkpoints) else "no",
            ]
            for same in steps.values()
            if len(same) > 1
        ]
    return {IDENTICAL: Table(columns=["model", "steps", "all"], rows=rows)} if rows else {}
