"""The units of a run, computed on the workers that `hardware.executor` names before the run itself begins.

Each leaves an entry in the cache, which the study finds when it then runs: models are trained, rows recorded, pairs of
layers solved and stitch layers fitted by the functions that the study itself uses. The rest of a run stays with its own
process: fast measures, short tests, the evaluation of stitched models, analyses, figures.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from repsim_cli.activations.inputs import name_errors
from repsim_cli.base.settings import Hardware
from repsim_cli.config.run import RunConfig, build_from_keys
from repsim_cli.engine.unit import Unit
from repsim_cli.execution import make_executor
from repsim_cli.execution.driver import start_driver
from repsim_cli.models.sizes import count_weight_bytes
from repsim_cli.models.source import Series, Source
from repsim_cli.runs.results import Run, open_scratch_run

BASE = 1e9  # bytes of a worker without a model
TRAINED = 5  # times its weights: gradients, two moments, a batch
SESSION = f"{__name__}:open_session"


def perform_ahead(checked: RunConfig, run: Run) -> None:
    """Computes the units of a run on the workers that `hardware.executor` names, if it names any."""
    hardware = Hardware(**checked.keys.hardware)
    if hardware.executor == "none":
        return
    threads = hardware.threads or torch.get_num_threads()
    with start_driver(
        partial(make_executor, hardware, threads, estimate_worker_bytes(checked.models, hardware)),
        run,
        name=hardware.executor,
        session=SESSION,
        config=checked.keys.model_dump(),
        threads=threads,
        price=hardware.price_per_node_hour,
    ) as driver:
        perform_phases(checked, run, driver)


def perform_phases(checked: RunConfig, run: Run, driver: Any) -> None:
    """Performs the trainings of the models, then the units of the study, phase by phase: what one leaves, the next one
    reads."""
    driver.perform(list_training_units(checked.models), "trainings")
    for label, units in checked.study.units(run):
        driver.perform(units, label)


def estimate_worker_bytes(models: Mapping[str, Any], hardware: Hardware) -> float:
    """Bytes that a worker takes, roughly: Python, the weights of two models to stitch or of one and its batches, or a
    training."""
    weights = [
        count_weight_bytes(model, hardware.dtype) * (TRAINED if model.make else 2)
        for model in models.values()
        if isinstance(model, Source)
    ]
    return BASE + max(weights, default=0.0)


def list_training_units(models: Mapping[str, Any]) -> list[Unit]:
    """A unit per model, or series of checkpoints, that is trained when it is first needed."""
    made = [label for label, model in models.items() if isinstance(model, Source | Series) and model.make]
    return [Unit(kind="model", name=f"training of {label}", args={"label": label}) for label in made]


def open_session(config: Mapping[str, Any], threads: int) -> Callable[[str, Mapping[str, Any]], bool]:
    """Checks the run and gives what performs one of its units. Raises BadConfig where it cannot be checked here: a
    model that is missing, a device, memory.

    config: the keys of the run.
    threads: how many of torch's.
    """
    torch.set_num_threads(threads)
    checked = build_from_keys(dict(config))
    kinds = {"model": partial(_train, checked.models), **checked.study.worker()}

    def perform(kind: str, args: Mapping[str, Any]) -> bool:
        with open_scratch_run() as run:
            return kinds[kind](run, **args)

    return perform


def _train(models: Mapping[str, Any], run: Run, label: str) -> bool:
    begun = False

    def progress(items: Any, **_: Any) -> Iterator[Any]:
        nonlocal begun
        begun = True
        return iter(items)

    name_errors(label, models[label].make, progress)
    return begun
