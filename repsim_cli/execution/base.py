"""What an engine is asked, and what it answers: units of work, the job that they belong to, records of attempts."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repsim_cli.base.errors import BadInput
from repsim_cli.engine.unit import Unit

Status = Literal["done", "failed", "lost", "refused"]
REFUSED = -1  # the number of no unit: a worker's checks failed


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that the workers of a run are told, as plain JSON.

    session: `module:function`, which makes the function `perform(kind, args)` of `config` and `threads`; its answer
        says whether the unit was computed. It is named by code, never by a configuration.
    config: the resolved keys of the run.
    environment: variables that every worker sets, REPSIM_CACHE among them.
    token: names the file in the cache that the driver holds locked.
    folder: relative paths of the configuration start there.
    threads: of torch, for each unit.
    packages: the versions of the driver's packages and of this code.
    """

    session: str
    config: Mapping[str, Any]
    environment: Mapping[str, str]
    token: str
    folder: str
    threads: int
    packages: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What became of an attempt at a unit, as plain JSON.

    status: `lost` where the worker ended before the unit; `refused` where its checks failed.
    computed: whether the cache did not hold the result before. started: seconds since 1970.
    kernels: what the bits of results may depend on: the CPU, the version of torch, the number of threads.
    """

    status: Status
    error: str | None = None
    computed: bool = False
    worker: str = ""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    kernels: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""


class Executor(ABC):
    """Workers somewhere. Neither retries nor records: `driver.py` does."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Starts workers, some of which may come later. Raises BadInput where none can be had or one is refused."""

    @abstractmethod
    def room(self, avoid: Collection[str] = ()) -> int:
        """Counts the units that it takes now, on other workers than these if it has others."""

    @abstractmethod
    def submit(self, number: int, unit: Unit, avoid: Collection[str]) -> None:
        """Starts a unit, if possible not on these workers."""

    @abstractmethod
    def take_ended(self, timeout: float) -> list[tuple[int, Record]]:
        """The units that ended since the last call, after at most `timeout` seconds."""

    @abstractmethod
    def nodes(self) -> dict[str, float]:
        """The seconds for which each machine was held, by its name."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all workers and what they do."""


def record_refusal(error: BadInput | str, worker: str = "") -> Record:
    """The record of a worker that cannot take part."""
    return Record(status="refused", error=" ".join(str(error).split()), worker=worker)
