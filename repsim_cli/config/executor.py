"""Whether units of work can run where `hardware.executor` says."""

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import note_unfit
from repsim_cli.base.settings import Hardware

PACKAGES = {"ray": "ray"}  # that an executor needs beside those of repsim
COMMANDS = {"slurm": "sbatch"}  # that an executor calls
PORTS = {  # what listens while a run lasts, by executor
    "ray": "Ray listens on all interfaces of its machines, and runs code of whoever has the token (~/.ray/auth_token); "
    "with RAY_AUTH_MODE=disabled, of everyone",
    "slurm": "none: workers and run write into the shared folder",
    "processes": "none",
}
READ_BY = {  # settings that some executors read alone
    "address": ("ray",),
    "gpus_per_worker": ("ray", "slurm"),
    "partition": ("slurm",),
    "account": ("slurm",),
    "timeout_min": ("slurm",),
}
# groups of which runs of studies that take none read these settings, or refuse them in words of their own
OF_RUNS = {
    "significance": ("method", "budget", "level"),
    "hardware": ("executor", "processes", "threads", "memory_gb", "by_block", "price_per_node_hour", *READ_BY),
}


def check_executor(hardware: Mapping[str, Any], cache: bool) -> None:
    """Raises BadInput where units cannot run on this executor or it does not read a setting; that its package or
    command is missing is only noted, as `note_unfit`, so that a run can be planned on another machine."""
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
        note_unfit(
            f"hardware.executor: {name} needs the package {package}, which is not installed; pip install -e '.[{name}]'"
        )
    command = COMMANDS.get(name)
    if command is not None and shutil.which(command) is None:
        note_unfit(
            f"hardware.executor: {name} needs the command {command}, which is not here; run on a machine of the cluster"
        )
    if name == "slurm" and hardware.get("processes") is None:
        raise BadInput("hardware.processes: SLURM needs a number of workers; set hardware.processes=8")
    if name == "slurm" and (hardware.get("gpus_per_worker") or 1) % 1:
        raise BadInput(
            f"hardware.gpus_per_worker: SLURM gives whole GPUs, got {hardware['gpus_per_worker']}; set a whole number"
        )
    if not cache:
        raise BadInput(
            f"hardware.executor: workers leave their results in the cache, got {name} with cache=false; drop one"
        )
