"""Where units of work run: processes of this machine, a Ray cluster, a SLURM cluster.

A unit is a pure function of its arguments that leaves its result in the cache, which all workers share. It is performed
before the driver's own pass over the run, which then finds it there: numbers do not depend on where they were computed.
"""

import importlib
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from repsim_cli.errors import BadInput
from repsim_cli.executors.base import Executor, Job, Record, Unit
from repsim_cli.planning import unfit
from repsim_cli.settings import Hardware

EXECUTORS = {
    "processes": "repsim_cli.executors.processes:Processes",
    "ray": "repsim_cli.executors.ray_cluster:Ray",
    "slurm": "repsim_cli.executors.slurm:Slurm",
}
PACKAGES = {"ray": "ray"}  # that an executor needs beside those of repsim
COMMANDS = {"slurm": "sbatch"}  # that an executor calls
READ_BY = {  # settings that some executors read alone
    "address": ("ray",),
    "gpus_per_worker": ("ray", "slurm"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "timeout_min": ("slurm",),
}


def executor_of(hardware: Hardware, threads: int, memory: float = 0.0) -> Executor:
    """The executor of these settings, not started. threads: of each unit. memory: bytes that a worker takes, about."""
    module, _, name = EXECUTORS[hardware.executor].partition(":")
    return getattr(importlib.import_module(module), name)(hardware, threads, memory)


def check_executor(hardware: Mapping[str, Any], cache: bool) -> None:
    """Raises BadInput where units cannot run on this executor or it does not read a setting; that its package or
    command is missing is only noted, as `unfit`, so that a run can be planned on another machine."""
    name = str(hardware.get("executor", "none"))
    for setting, readers in READ_BY.items():
        value = hardware.get(setting)
        if name not in readers and value not in (None, getattr(Hardware, setting)):
            raise BadInput(
                f"hardware.{setting}: hardware.executor={name} does not read it, got {value}; "
                f"leave it out, or set hardware.executor={' or '.join(readers)}"
            )
    if name == "none":
        return
    package = PACKAGES.get(name)
    if package is not None and find_spec(package) is None:
        unfit(f"hardware.executor: {name} needs the package {package}, got none; pip install -e '.[{name}]'")
    command = COMMANDS.get(name)
    if command is not None and shutil.which(command) is None:
        unfit(f"hardware.executor: {name} needs the command {command}, got none; run on a machine of the cluster")
    if name == "slurm" and hardware.get("processes") is None:
        raise BadInput("hardware.processes: SLURM is asked for so many workers, got null; set hardware.processes=8")
    if name == "slurm" and (hardware.get("gpus_per_worker") or 1) % 1:
        raise BadInput(
            f"hardware.gpus_per_worker: SLURM gives whole GPUs, got {hardware['gpus_per_worker']}; set a whole number"
        )
    if not cache:
        raise BadInput(
            f"hardware.executor: workers leave their results in the cache, got {name} with cache=false; drop one"
        )


__all__ = ["EXECUTORS", "Executor", "Job", "Record", "Unit", "check_executor", "executor_of"]
