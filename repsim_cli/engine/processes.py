"""Slow pairs: solved one by one, each on a single thread, in several processes, and noted in a file at once.

Prepared states lie in .npy files that all processes map into memory. A pair has the same bits in every process.
"""

import contextlib
import io
import itertools
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from threadpoolctl import threadpool_limits
from torch import Tensor

from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.base.files import create_npy
from repsim_cli.base.workers import ProcessEnded, WorkerProcess, wait_for
from repsim_cli.engine.known import VALUES, Cell, KnownPairs
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.cards import Solved
from repsim_cli.runs.results import PAIRS, Progress, quiet, write

PATIENCE = 1.0  # seconds in this process before others are considered
WORTH = 5.0  # seconds of work that must be left: a process takes about two to start
BLOCK = 0.25  # seconds of work in one message
AHEAD = 2  # messages waiting in a process

Show = Callable[[str, Callable[[], np.ndarray], int], None]
Solve = Callable[[Any, Any], Solved]


def show_nothing(label: str, values: Callable[[], np.ndarray], done: int) -> None:
    """Shows nothing."""


class Stored(NamedTuple):
    """A prepared state in files: an array or tensor, or a tuple of them of this type."""

    kind: Any
    files: tuple[str, ...]
    tensors: tuple[bool, ...]


def store(state: Any, stem: Path) -> Stored:
    parts = state if isinstance(state, tuple) else (state,)
    files = tuple(f"{stem}-{i}.npy" for i in range(len(parts)))
    for file, part in zip(files, parts, strict=True):
        content = io.BytesIO()
        np.save(content, part.cpu().numpy() if isinstance(part, Tensor) else part, allow_pickle=False)
        write(Path(file), content.getvalue())
    tensors = tuple(isinstance(part, Tensor) for part in parts)
    return Stored(type(state) if isinstance(state, tuple) else None, files, tensors)


def open_state(state: Any) -> Any:
    """The state, mapped from its files if it was stored."""
    if not isinstance(state, Stored):
        return state
    # copy on write, since torch takes no array that cannot be written
    arrays = [np.asarray(np.load(file, mmap_mode="c", allow_pickle=False)) for file in state.files]
    parts = [
        torch.from_numpy(x) if tensor else x if x.ndim else x.item()
        for x, tensor in zip(arrays, state.tensors, strict=True)
    ]
    return parts[0] if state.kind is None else state.kind(*parts)


@dataclass(kw_only=True)
class PairWork:
    """Where slow pairs are solved, and noted so that a killed run resumes: a context that ends its processes.

    folder: the run's.
    processes: how many at most, 1: only this one; others start once enough work is left.
    seed: decides which pairs are audited; None: none are.
    call: names the notes of one of several calls in the same folder (see `of`).
    known: the pairs in the cache, by the label of the measure.
    batches: how many the run has, for the time left.
    show: is given a measure's label, its values so far, and the batches that they are the mean of.
    """

    folder: Path
    processes: int = 1
    progress: Progress = quiet
    seed: int | None = 0
    call: str = ""
    known: Mapping[str, KnownPairs] = field(default_factory=dict)
    batches: int = 1
    show: Show = show_nothing
    _pool: "list[WorkerProcess]" = field(default_factory=list)

    def __enter__(self) -> "PairWork":
        self.drop_inputs()  # of a run that was killed
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.drop_inputs()

    def stop(self) -> None:
        """Kills the processes."""
        for worker in self._pool:
            worker.end()
        self._pool.clear()

    def reuse(self, call: str) -> "PairWork":
        """Gives the same processes to another call."""
        return replace(self, call=call)

    @property
    def _inputs(self) -> Path:
        return self.folder / PAIRS / "inputs"

    def keep(self, state: Any) -> Stored:
        """The state in files, until `drop_inputs`."""
        self._inputs.mkdir(parents=True, exist_ok=True)
        return store(state, self._inputs / f"{len(list(self._inputs.iterdir())):05d}")

    def drop_inputs(self) -> None:
        shutil.rmtree(self._inputs, ignore_errors=True)

    def notes(self, batch: int, name: str, shape: Sequence[int]) -> np.ndarray:
        """A file of numbers, NaN at first, that outlives a killed run. Files of other batches are removed."""
        notes = self.folder / PAIRS / self.call
        current = notes / f"batch-{batch}"
        for other in notes.glob("batch-*"):
            if other != current:
                shutil.rmtree(other)
        current.mkdir(parents=True, exist_ok=True)
        file = current / f"{name}.npy"
        if file.is_file() and np.load(file, mmap_mode="r").shape == tuple(shape):
            return np.lib.format.open_memmap(file, "r+")
        fresh = file.with_suffix(".partial")
        made = create_npy(fresh, np.float64, tuple(shape))
        made[:] = np.nan
        fresh.rename(file)
        return made

    def workers(self) -> "list[WorkerProcess]":
        if not self._pool:
            self._pool += [WorkerProcess.start() for _ in range(self.processes)]
        return self._pool


class PairTurn(NamedTuple):
    """Pairs of one batch of a run. kind, known: where the cache has them. later: how many are left for later batches.
    show: is given the values after each pair or row, and how many batches they are the mean of."""

    kind: str = VALUES
    batch: int = 0
    later: int = 0
    known: KnownPairs | None = None
    work: PairWork | None = None
    show: Callable[[Callable[[], np.ndarray], int], None] = lambda values, done: None


ALONE = PairTurn()


def map_state_from_files(work: PairWork, state: Any) -> Any:
    """The state, mapped from files where it has several parts, so that it takes no memory until it is read."""
    return open_state(work.keep(state)) if isinstance(state, tuple) else state


def answer_block(solve: Solve, pairs: Sequence[tuple[Any, Any]]) -> "list[Solved | Degenerate | str]":
    """Solves pairs on a single thread, in a process that has loaded `solve`: a library that is loaded later has
    threads of its own."""
    with use_one_thread():
        return [answer_pair(solve, a, b) for a, b in pairs]


@contextlib.contextmanager
def use_one_thread() -> Iterator[None]:
    """Computation in this context uses a single thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def answer_pair(solve: Solve, a: Any, b: Any) -> Solved | Degenerate | str:
    """The solved pair, or why it has no value, or the traceback of an unexpected error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MeasureWarning)
            return solve(open_state(a), open_state(b))
    except Degenerate as error:
        return error
    except Exception:
        return traceback.format_exc()


def solve_pairs(
    solve: Solve, states: Sequence[Any], cells: Sequence[Cell], work: PairWork | None
) -> Generator[tuple[Cell, Solved | Degenerate | str]]:
    """Solves all pairs, in any order: in this process, or in several where enough work is left."""
    begin = time.monotonic()
    for done, (a, b) in enumerate(cells, 1):
        yield (a, b), answer_pair(solve, states[a], states[b])
        spent, rest = time.monotonic() - begin, len(cells) - done
        if work is not None and work.processes > 1 and spent > PATIENCE and spent / done * rest > WORTH:
            try:
                yield from spread_pairs(solve, states, cells[done:], work.workers(), max(1, int(BLOCK * done / spent)))
            except BaseException:
                work.stop()  # nobody reads their answers any more
                raise
            return


def spread_pairs(
    solve: Solve, states: Sequence[Any], cells: Sequence[Cell], workers: Sequence[WorkerProcess], size: int
) -> Generator[tuple[Cell, Solved | Degenerate | str]]:
    """The same from several processes, in blocks of `size` pairs."""
    rest = iter([cells[i : i + size] for i in range(0, len(cells), size)])
    asked: dict[WorkerProcess, list[Sequence[Cell]]] = {worker: [] for worker in workers}

    def ask(worker: WorkerProcess) -> None:
        for block in itertools.islice(rest, 1):
            worker.ask(answer_block, solve, [(states[a], states[b]) for a, b in block])
            asked[worker].append(block)

    try:
        for worker in [*workers] * AHEAD:
            ask(worker)
        while waiting := [worker for worker, blocks in asked.items() if blocks]:
            for worker in wait_for(waiting):
                solved = worker.answer()
                block = asked[worker].pop(0)
                ask(worker)
                yield from zip(block, solved, strict=True)
    except ProcessEnded as error:
        raise RunFailed(
            f"hardware.processes: a process ended before its work, got {error}; free memory or lower processes, and "
            "resume with resume=latest"
        ) from error


def solve_all(
    solve: Solve,
    states: Sequence[Any],
    cells: Sequence[Cell],
    noted: Float[np.ndarray, "r r k"],
    *,
    name: str,
    names: Sequence[str],
    turn: PairTurn = ALONE,
) -> dict[Cell, Degenerate]:
    """Fills noted[a, b] with the value and its details, where they are still missing; returns why pairs without a value
    have none."""
    kind, batch, later, known, work, show = turn
    if known is not None:
        # the pairs that this run noted before it was killed, and those that other runs solved
        held, asked = known.holds(kind, batch, len(states)), np.zeros(noted.shape[:2], bool)
        for cell in cells:
            asked[cell] = True
            if not held[cell] and not np.isnan(noted[cell][0]):
                known.add(kind, batch, cell, noted[cell].tolist())
        known.fill(kind, batch, noted, asked)
    left = [cell for cell in cells if np.isnan(noted[cell][0])]
    progress = quiet if work is None else work.progress
    results, undefined = solve_pairs(solve, states, left, work), {}
    with use_one_thread(), contextlib.closing(results):
        for _, ((a, b), solved) in zip(progress(left, label=name, unit="pairs", later=later), results, strict=True):
            if isinstance(solved, Degenerate):
                undefined[a, b] = Degenerate(f"{names[a]} and {names[b]}: {solved}")
                continue
            if isinstance(solved, str):
                raise RuntimeError(f"{names[a]} and {names[b]}: {solved}")
            if not np.isfinite([solved.value, *solved.details]).all():
                raise RunFailed(
                    f"{names[a]} and {names[b]}: {name} is not finite, got {solved.value}; please report this with the "
                    "run's config"
                )
            # the value last: without it the pair is not done
            noted[a, b, 1:] = solved.details
            noted[a, b, 0] = solved.value
            if known is not None:
                known.add(kind, batch, (a, b), [solved.value, *solved.details])
            show(lambda: noted[..., 0], 0)
    return undefined
