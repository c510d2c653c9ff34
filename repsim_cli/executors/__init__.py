"""Where units of work run: processes of this machine, a Ray cluster, a SLURM cluster.

A unit is a pure function of its arguments that leaves its result in the cache, which all workers share. It is performed
before the driver's own pass over the run, which then finds it there: numbers do not depend on where they were computed.
"""

import importlib
from importlib.util import find_spec

from repsim_cli.errors import BadInput
from repsim_cli.executors.base import Executor, Job, Record, Unit
from repsim_cli.settings import Hardware

EXECUTORS = {
    "processes": "repsim_cli.executors.processes:Processes",
    "ray": "repsim_cli.executors.ray_cluster:Ray",
}
PACKAGES = {"ray": "ray"}  # that an executor needs beside those of repsim


def executor_of(hardware: Hardware, threads: int) -> Executor:
    """The executor of these settings, not started. threads: of each unit."""
    module, _, name = EXECUTORS[hardware.executor].partition(":")
    return getattr(importlib.import_module(module), name)(hardware, threads)


def check_executor(name: str, cache: bool) -> None:
    """Raises BadInput where units cannot run on this executor: without its package, or without the cache."""
    package = PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        raise BadInput(f"hardware.executor: {name} needs the package {package}, got none; pip install -e '.[{name}]'")
    if not cache:
        raise BadInput(
            f"hardware.executor: workers leave their results in the cache, got {name} with cache=false; drop one"
        )


__all__ = ["EXECUTORS", "Executor", "Job", "Record", "Unit", "check_executor", "executor_of"]
