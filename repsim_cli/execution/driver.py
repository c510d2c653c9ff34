"""The driver's part, the same for every engine: units in flight, attempts, records, logs, progress, node-hours."""

import json
import os
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import filelock

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.plain import slug
from repsim_cli.execution.base import REFUSED, Executor, Job, Record, Unit
from repsim_cli.execution.records import note
from repsim_cli.execution.worker import PASSED, find_token_file, identify_packages
from repsim_cli.runs.cache import find_cache_folder
from repsim_cli.runs.results import Run

FAILURES = 3  # attempts at a unit that may fail
LOSSES = 6  # workers that may end while they work on a unit
LOOK = 1.0  # seconds until a driver that waits looks again
LOGS = "logs"


@dataclass(kw_only=True)
class Driver:
    """Units of a run on the workers of an executor.

    price: of an hour of a node, in whatever currency. done: the records of finished units.
    """

    executor: Executor
    run: Run
    name: str
    price: float | None = None
    done: list[Record] = field(default_factory=list)
    _attempts: int = 0

    def perform(self, units: Sequence[Unit], label: str) -> None:
        """Performs all units. Raises RunFailed where one fails for good."""
        if not units:
            return
        with self.run.stage(f"units: {label}"):
            ended = self._take_records(units)
            for _ in zip(self.run.progress(units, label=label, unit="units"), ended, strict=True):
                pass

    def _take_records(self, units: Sequence[Unit]) -> Iterator[Record]:
        """The record of each unit that is done, as they end."""
        waiting, again, flying = deque(range(len(units))), list[int](), set[int]()
        ends: dict[int, Counter[str]] = defaultdict(Counter)
        avoid: dict[int, set[str]] = defaultdict(set)

        def turn() -> int | None:
            """The next unit that a worker is free for."""
            for number in again:
                if self.executor.room(avoid[number]):
                    again.remove(number)
                    return number
            return waiting.popleft() if waiting and self.executor.room() else None

        while waiting or again or flying:
            while (number := turn()) is not None:
                flying.add(number)
                self.executor.submit(number, units[number], avoid[number])
            for number, record in self.executor.take_ended(LOOK):
                if number == REFUSED:
                    raise RunFailed(str(record.error))
                flying.discard(number)
                ends[number][record.status] += 1
                self._note(units[number], record, ends[number].total())
                if record.status == "done":
                    self.done.append(record)
                    yield record
                    continue
                if ends[number]["failed"] >= FAILURES or ends[number]["lost"] >= LOSSES:
                    raise RunFailed(
                        f"unit '{units[number].name}': it failed {ends[number].total()} times, got {record.error}; see "
                        f"{self.run.folder / LOGS}, and resume with resume=latest"
                    )
                avoid[number].add(record.worker)
                again.append(number)

    def _note(self, unit: Unit, record: Record, attempt: int) -> None:
        """Records an attempt in the run folder."""
        self._attempts += 1
        facts = asdict(record)
        log = facts.pop("log")
        line = {"unit": unit.name, "kind": unit.kind, "attempt": attempt, **facts}
        note(self.run.folder, line)
        if log:
            folder = self.run.folder / LOGS
            folder.mkdir(exist_ok=True)
            with open(folder / f"{slug(unit.name)}.log", "a") as stream:
                stream.write(f"attempt {attempt} on {record.worker}, {record.status}\n{log}\n")

    def summarise(self) -> None:
        """Notes in the manifest where units ran, and what that took; warns where machines differ."""
        hours = sum(self.executor.nodes().values()) / 3600
        kinds = {json.dumps(record.kernels, sort_keys=True): record.kernels for record in self.done if record.computed}
        before = self.run.manifest.get("executor") or {}
        hours += before.get("node_hours", 0.0)
        self.run.manifest["executor"] = {
            "name": self.name,
            "units": before.get("units", 0) + len(self.done),
            "computed": before.get("computed", 0) + sum(record.computed for record in self.done),
            "attempts": before.get("attempts", 0) + self._attempts,
            "workers": len({record.worker for record in self.done}),
            "nodes": sorted(self.executor.nodes()),
            "kernels": list(kinds.values()),
            "node_hours": round(hours, 6),
            **({} if self.price is None else {"cost": round(hours * self.price, 6)}),
        }
        if len(kinds) > 1:
            self.run.warn(
                f"hardware.executor: units ran on {len(kinds)} kinds of machines or threads (manifest: executor, "
                "kernels); values may differ in the last digits from a run on one kind"
            )


def drop_tokens() -> None:
    """Removes the token files of drivers that were killed."""
    for file in find_cache_folder().glob("run-*.lock"):
        with suppress(filelock.Timeout, OSError), filelock.FileLock(file, timeout=0):
            file.unlink(missing_ok=True)


def choose_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that workers get from this process."""
    return {name: value for name, value in environment.items() if name in PASSED}


@contextmanager
def start_driver(
    make: Callable[[], Executor],
    run: Run,
    *,
    name: str,
    session: str,
    config: Mapping[str, Any],
    threads: int,
    price: float | None = None,
) -> Iterator[Driver]:
    """A driver with running workers, which end with this context. Raises BadInput where they cannot be had.

    session, config, threads: as of `Job`.
    """
    try:
        find_cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"REPSIM_CACHE: cannot be written, got {find_cache_folder()} ({error.strerror}); set another"
        ) from None
    drop_tokens()
    token = uuid.uuid4().hex
    file = find_token_file(token)
    with filelock.FileLock(file):
        executor = make()
        driver = Driver(executor=executor, run=run, name=name, price=price)
        try:
            executor.start(
                Job(
                    session=session,
                    config=config,
                    environment={**choose_variables(), "REPSIM_CACHE": str(find_cache_folder().resolve())},
                    token=token,
                    folder=str(Path.cwd()),
                    threads=threads,
                    packages=identify_packages(),
                )
            )
            yield driver
        finally:
            executor.stop()
            driver.summarise()
            file.unlink(missing_ok=True)
