"""A worker: checks that it can stand in for the driver, then performs one unit after the other. The same everywhere."""

import contextlib
import importlib
import io
import logging
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import filelock
import xxhash

from repsim_cli.base import environment
from repsim_cli.base.errors import BadInput, RepsimError
from repsim_cli.execution.base import Job, Record, Unit
from repsim_cli.runs.cache import find_cache_folder

PACKAGES = ("repsim-cli", "torch", "transformers", "tokenizers", "numpy", "scipy")
# variables of the driver that workers get: where models are found, never a token
PASSED = (
    "HF_DATASETS_CACHE",
    "HF_DATASETS_OFFLINE",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "OMP_WAIT_POLICY",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_OFFLINE",
)
MOST_LOG = 50_000  # characters of a unit's log


def find_token_file(token: str) -> Path:
    return find_cache_folder() / f"run-{token}.lock"


@cache
def identify_packages() -> dict[str, str | None]:
    """The versions that results may depend on, and a hash of this code."""
    here, hashed = Path(__file__).parent.parent, xxhash.xxh3_64()
    for file in sorted(here.rglob("*.py")):
        hashed.update(f"{file.relative_to(here)}\0".encode() + file.read_bytes())
    return {**{name: environment.read_version(name) for name in PACKAGES}, "its code": hashed.hexdigest()}


class Worker:
    """Raises BadInput where this process cannot take part in the job."""

    def __init__(self, job: Job, name: str = ""):
        self.host = socket.gethostname()
        self.name = name or f"{self.host}-{os.getpid()}"
        os.environ |= job.environment
        try:
            self._check(job)
            module, _, function = job.session.partition(":")
            self._perform = getattr(importlib.import_module(module), function)(job.config, job.threads)
        except Exception as error:
            what = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
            raise BadInput(f"hardware.executor: the worker on {self.host} cannot take part: {what}") from None

    def _check(self, job: Job) -> None:
        for package, wanted in job.packages.items():
            if (here := identify_packages().get(package)) != wanted:
                raise BadInput(f"{package} differs, got {here}, the run has {wanted}; install the same on all machines")
        try:
            os.chdir(job.folder)
        except OSError as error:
            raise BadInput(
                f"the folder where the run was started is not there ({error.strerror}), got {job.folder}; share it"
            ) from None
        file = find_token_file(job.token)
        if not file.is_file():
            raise BadInput(
                f"another cache than that of the run, got {find_cache_folder()}; set REPSIM_CACHE to a shared folder"
            )
        try:
            with filelock.FileLock(file, timeout=0):
                raise BadInput(
                    f"locks do not hold between machines in {find_cache_folder()}, got the lock of the run; mount it "
                    "with locks (NFS 4, Lustre with flock)"
                )
        except filelock.Timeout:
            pass

    def run(self, unit: Unit) -> Record:
        """Performs a unit; never raises for what goes wrong in it."""
        started, begin, cpu = time.time(), time.monotonic(), time.process_time()
        computed, error = False, None
        with capture_log() as log:
            try:
                computed = self._perform(unit.kind, unit.args)
            except Exception as raised:
                known = isinstance(raised, RepsimError | OSError)
                error = " ".join((str(raised) if known else f"{type(raised).__name__}: {raised}").split())
                log.write(traceback.format_exc())
        return Record(
            status="done" if error is None else "failed",
            error=error,
            computed=computed,
            worker=self.name,
            host=self.host,
            pid=os.getpid(),
            started=started,
            seconds=time.monotonic() - begin,
            cpu_seconds=time.process_time() - cpu,
            kernels=identify_kernels(),
            log=log.getvalue()[-MOST_LOG:],
        )


@contextlib.contextmanager
def capture_log() -> Iterator[io.StringIO]:
    """Collects what this thread logs and warns of inside the block, as text."""
    text, here = io.StringIO(), threading.get_ident()
    handler = logging.StreamHandler(text)
    handler.addFilter(lambda record: record.thread == here)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    top = logging.getLogger()
    logging.captureWarnings(True)
    logging.getLogger("repsim").setLevel(logging.INFO)
    top.addHandler(handler)
    try:
        yield text
    finally:
        top.removeHandler(handler)


def identify_kernels() -> Mapping[str, Any]:
    """Finds what the bits of results may depend on beside the code, as far as this process has loaded it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {"cpu": read_cpu_type()}
    return {
        "cpu": read_cpu_type(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


@cache
def read_cpu_type() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
