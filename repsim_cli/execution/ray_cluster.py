"""Workers that are actors of a Ray cluster."""

import os
import secrets
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Hardware
from repsim_cli.execution.base import Job, Unit
from repsim_cli.execution.pool import Held, LostWorker, Pool, compute_gpu_share, count_fitting

LAST_PORT = 65535
REACH = 10.0  # seconds for a cluster's port to answer
START = (
    "start one with a token (RAY_AUTH_MODE=token ray start --head, the same ~/.ray/auth_token on all machines: ray "
    "get-auth-token --generate), or set local"
)
STORE = 100 * 10**6  # bytes of the object store of a cluster of our own: records are small


def count_worker_gpus(hardware: Hardware, memory: float) -> float:
    """Counts the GPUs of each worker: none without a GPU, else as many as are set.
    Where it is not set, one with `shard=auto`, else the share of this machine's GPU that `memory` bytes are.
    """
    if not hardware.device.startswith("cuda"):
        return 0.0
    if hardware.gpus_per_worker is not None or hardware.shard == "auto":
        return hardware.gpus_per_worker or 1.0
    return compute_gpu_share(memory, float(torch.cuda.get_device_properties(hardware.device).total_memory))


def _write_own_token() -> None:
    """Writes a token that this user alone can read, where there is none; Ray's own file is readable to all."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    file = Path.home() / ".ray" / "auth_token"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private = partial(os.open, mode=0o600)
    with suppress(FileExistsError), open(file, "x", opener=private) as out:
        out.write(secrets.token_hex(32))


class Ray(Pool):
    """An actor per worker, with `threads` CPUs, `memory` bytes and, where models run on a GPU, `gpus` of one.

    slots: units that an actor works on at a time, in threads.
    """

    def __init__(self, hardware: Hardware, threads: int, memory: float = 0.0, slots: int = 1):
        super().__init__(hardware.processes or 0, slots)
        self.address, self.threads, self.memory = hardware.address, threads, memory
        self.gpus = count_worker_gpus(hardware, memory)
        self._ray: Any = None
        self._actors: dict[str, Any] = {}

    def open(self, job: Job) -> None:
        self._reach()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        guarded = os.environ.setdefault("RAY_AUTH_MODE", "token").lower() == "token"  # else anyone may run code in it
        if guarded and self.address == "local":
            _write_own_token()
        self._ray = ray = import_module("ray")
        handler = signal.getsignal(signal.SIGTERM)
        where = {}
        if self.address == "local":
            where = {"num_cpus": self.count * self.threads or None, "object_store_memory": STORE}
        try:
            ray.init(
                address=self.address,
                logging_level="ERROR",
                log_to_driver=False,
                include_dashboard=False if self.address == "local" else None,
                **where,
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            reason = " ".join(str(error).split())[:200]
            advice = "use hardware.executor=processes" if where else START
            raise BadInput(f"hardware.address: no Ray cluster, got '{self.address}' ({reason}); {advice}") from None
        except SystemExit:  # how Ray takes SIGTERM while it starts
            raise KeyboardInterrupt from None
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process at once
        self._actor = ray.remote(Held)
        if not self.count:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            asked = self.threads, self.memory
            has = [
                (node.get("CPU", 0.0), node.get("memory", 0.0), *asked, node.get("GPU", 0.0), self.gpus)
                for node in nodes
            ]
            self.count = sum(count_fitting(*each) for each in has) or 1

    def _reach(self) -> None:
        """Raises BadInput where nothing answers at HOST:PORT, after which Ray would ask for minutes."""
        host, _, port = self.address.rpartition(":")
        if not port.isdigit() or "/" in host:
            return
        try:
            if int(port) > LAST_PORT:
                raise OSError(f"no port above {LAST_PORT}")
            socket.create_connection((host, int(port)), REACH).close()
        except OSError as error:
            raise BadInput(f"hardware.address: no Ray cluster, got '{self.address}' ({error}); {START}") from None

    def about(self) -> str:
        has = {name: amount for name, amount in self._ray.cluster_resources().items() if ":" not in name}
        return f"{has} for workers of {self.threads} CPUs, {self.gpus} GPUs and {self.memory / 1e9:.3g} GB each"

    def begin(self, name: str, job: Job) -> Any:
        actor = self._actor.options(
            num_cpus=self.threads,
            num_gpus=self.gpus,
            memory=self.memory or None,
            max_concurrency=self.slots,
            max_restarts=0,
        ).remote(name)
        self._actors[name] = actor
        return actor.prepare_worker.remote(asdict(job))

    def call(self, name: str, unit: Unit) -> Any:
        return self._actors[name].run.remote(asdict(unit))

    def wait(self, futures: Sequence[Any], timeout: float) -> list[Any]:
        if not futures:
            return []
        done, _ = self._ray.wait(list(futures), timeout=timeout)
        if done:
            done, _ = self._ray.wait(list(futures), num_returns=len(futures), timeout=0)
        return done

    def results(self, futures: Sequence[Any]) -> list[Any]:
        try:
            return self._ray.get(list(futures))
        except self._ray.exceptions.RayError:
            return [self._result(future) for future in futures]

    def _result(self, future: Any) -> Any:
        try:
            return self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return LostWorker(" ".join(lines)[:300] or type(error).__name__)

    def drop(self, name: str) -> None:
        self._ray.kill(self._actors.pop(name))

    def stop(self) -> None:
        if self._ray is not None:
            self._ray.shutdown()
