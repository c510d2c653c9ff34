"""What a completed run says, in an experiment tracker: `track=tensorboard`, `mlflow` or `wandb`.

Nothing is sent unless it is asked for: wandb writes offline runs unless WANDB_MODE says otherwise, mlflow to where
MLFLOW_TRACKING_URI says, and to files without it.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import find_free_key, make_unique_filename
from repsim_cli.findings.answering import leave_out_diagonal
from repsim_cli.report import export
from repsim_cli.runs import reader
from repsim_cli.runs.results import Run

PROJECT = "repsim"  # of wandb, experiment of mlflow


@dataclass(frozen=True)
class TrackedRun:
    """What is logged of a run folder."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run: that of its folder, after the day it lies in."""
        return "-".join(self.folder.absolute().parts[-2:])

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The mean, lowest and highest value of each pair of models by each measure, without those of a layer with
        itself, and each claim's statistic."""
        whole = reader.read_results(self.folder)
        numbers: dict[str, float] = {}
        for measured in whole.measures:
            for matrix in measured.matrices:
                values = leave_out_diagonal(matrix, reader.read_array(self.folder, matrix.values))
                values = values[np.isfinite(values)]
                where = f"{measured.label}/{matrix.rows.model} x {matrix.columns.model}"
                for word, function in (("mean", np.mean), ("lowest", np.min), ("highest", np.max)):
                    if values.size:
                        numbers[find_free_key(f"{where}/{word}", numbers)] = float(function(values))
        for claim in whole.claims:
            if claim.value is not None and math.isfinite(claim.value):
                numbers[f"claims/{claim.name}/{claim.measure}"] = float(claim.value)
        return numbers

    def tables(self) -> Iterator[export.Sheet]:
        """The table of all pairs of layers, and the tables and curves of the results."""
        return (sheet for sheet in export.build_sheets(self.folder) if sheet.long or sheet.name.startswith("table-"))

    def figures(self) -> list[Path]:
        return sorted((self.folder / "figures").rglob("*.png"))


def tensorboard(record: TrackedRun) -> None:
    """Logs into tensorboard/ of the run folder: `tensorboard --logdir outputs` finds it."""
    from PIL import Image
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(record.folder / "tensorboard")) as writer:
        for name, value in record.numbers.items():
            writer.add_scalar(name, value)
        for sheet in record.tables():
            lines = [sheet.columns, ["---"] * len(sheet.columns), *sheet.rows]
            writer.add_text(sheet.name, "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
        writer.add_text(
            "config", "\n".join(f"    {key}: {value}" for key, value in flatten_config(record.config).items())
        )
        for file in record.figures():
            with Image.open(file) as image:
                writer.add_image(file.stem, np.asarray(image.convert("RGB")), dataformats="HWC")


def mlflow(record: TrackedRun) -> None:
    """Logs into the experiment `repsim`, or the one that MLFLOW_EXPERIMENT_NAME names."""
    import mlflow

    if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & set(os.environ):
        mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name=record.name):
        mlflow.log_params({key: str(value)[:500] for key, value in flatten_config(record.config).items()})
        metrics: dict[str, float] = {}
        for name, value in record.numbers.items():
            metrics[find_free_key(clean_metric_name(name), metrics)] = value
        mlflow.log_metrics(metrics)
        given: dict[str, tuple[str, ...]] = {}
        for sheet in record.tables():
            mlflow.log_text(
                export.convert_to_csv(sheet).decode(), f"tables/{make_unique_filename(sheet.name, given)}.csv"
            )
        for file in record.figures():
            mlflow.log_artifact(str(file), "figures")


def wandb(record: TrackedRun) -> None:
    """Logs into wandb/ of the run folder, which `wandb sync` sends, unless WANDB_MODE=online is set."""
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=record.name,
        dir=str(record.folder),
        config=record.config,
        mode=mode,
        settings=wandb.Settings(console="off", silent=True),
    )
    try:
        run.summary.update(record.numbers)
        for sheet in record.tables():
            given: dict[str, Any] = {"columns": sheet.columns, "data": sheet.rows}
            table = wandb.Table(**given, allow_mixed_types=True)
            run.log({f"tables/{sheet.name}": table})
        for file in record.figures():
            run.log({f"figures/{file.stem}": wandb.Image(str(file))})
    finally:
        run.finish()
        wandb.teardown()  # the service writes the last records of an offline run after finish has returned


TRACKERS: dict[str, Callable[[TrackedRun], None]] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


def check(name: Any) -> None:
    """Raises BadInput where the package of the tracker is not installed; names of none are found elsewhere."""
    if name in [*TRACKERS] and find_spec(name) is None:
        raise BadInput(f"track: needs the package {name}, which is not installed; pip install -e '.[{name}]'")


def track(name: str, run: Run) -> None:
    """Logs what the run has found. What goes wrong is a warning, so that the run is not lost."""
    try:
        TRACKERS[name](TrackedRun(run.folder, reader.read_config(run.folder)))
    except Exception as error:  # of a library or its server: any
        run.warn(f"track: {name} did not log the run ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


def flatten_config(config: dict[str, Any], path: str = "") -> dict[str, Any]:
    """
    >>> flatten_config({"data": {"kind": "pile"}, "seed": 0})
    {'data.kind': 'pile', 'seed': 0}
    """
    return {
        name: value
        for key, given in config.items()
        for name, value in (
            flatten_config(given, f"{path}{key}.") if isinstance(given, dict) and given else {f"{path}{key}": given}
        ).items()
    }


def clean_metric_name(name: str) -> str:
    """A name of letters that mlflow takes.

    >>> clean_metric_name("cka/a+b x c@1/mean")
    'cka/a_b x c_1/mean'
    """
    return "".join(c if c.isalnum() or c in "/_-. " else "_" for c in name)
