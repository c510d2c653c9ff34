"""Where units of work run: processes of this machine, a Ray cluster, a SLURM cluster.

A unit is a pure function of its arguments that leaves its result in the cache, which all workers share. It is performed
before the driver's own pass over the run, which then finds it there: numbers do not depend on where they were computed.
"""

import importlib

from repsim_cli.base.settings import Hardware
from repsim_cli.engine.unit import Unit
from repsim_cli.execution.base import Executor, Job, Record

EXECUTORS = {
    "processes": "repsim_cli.execution.processes:Processes",
    "ray": "repsim_cli.execution.ray_cluster:Ray",
    "slurm": "repsim_cli.execution.slurm:Slurm",
}


def make_executor(hardware: Hardware, threads: int, memory: float = 0.0) -> Executor:
    """The executor of these settings, not started. threads: of each unit. memory: bytes that a worker takes, about."""
    module, _, name = EXECUTORS[hardware.executor].partition(":")
    return getattr(importlib.import_module(module), name)(hardware, threads, memory)


__all__ = ["EXECUTORS", "Executor", "Job", "Record", "Unit", "make_executor"]
