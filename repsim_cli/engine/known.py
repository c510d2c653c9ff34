"""Pairs of layers that are solved one by one, in the cache: no run solves a pair that another run has solved.

There is an entry per measure and ordered pair of models. A part with the pairs solved since the last is written every
few seconds, so that the next run has those of a killed one.
"""

import bisect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import safetensors.numpy
import xxhash
from jaxtyping import Bool, Float, Int

from repsim_cli.base.timer import Timer
from repsim_cli.engine.undefined import Cell
from repsim_cli.runs.cache import Entry

log = logging.getLogger("repsim")
SAVE_EVERY = 20.0  # seconds
VALUES, AUDIT = "values", "audit"


class SolvedPairs(NamedTuple):
    """Solved pairs, ordered by batch. cells: (batch, row, column); numbers: the value and its details."""

    cells: Int[np.ndarray, "m 3"]
    numbers: Float[np.ndarray, "m k"]


@dataclass
class KnownPairs:
    """The solved pairs of one measure.

    places: where each model's layers stand among all. entries: by the numbers of the row's and the column's model.
    Where the cache cannot be written (full, read-only) there is a single warning, and the run continues without it.
    """

    places: Sequence[slice]
    entries: Mapping[Cell, Entry]
    _read: dict[str, SolvedPairs | None] = field(default_factory=dict)
    _added: dict[tuple[Cell, str], list[tuple[tuple[int, int, int], Sequence[float]]]] = field(default_factory=dict)
    _timer: Timer = field(default_factory=lambda: Timer(SAVE_EVERY))
    _writing: bool = True

    def fill(
        self, kind: str, batch: int, numbers: Float[np.ndarray, "r r k"], asked: Bool[np.ndarray, "r r"] | None = None
    ) -> None:
        """Copies the pairs of this batch that the cache holds into the matrices: those asked for, or all."""
        held_pairs = self._find_batch_pairs(kind, batch)
        if held_pairs is None:
            return
        _, rows, columns = held_pairs.cells.T
        taken = slice(None) if asked is None else asked[rows, columns]
        numbers[rows[taken], columns[taken]] = held_pairs.numbers[taken]

    def holds(self, kind: str, batch: int, count: int) -> Bool[np.ndarray, "r r"]:
        """Marks, in a mask (count, count), the pairs of layers that the cache holds for this batch."""
        held = np.zeros((count, count), bool)
        held_pairs = self._find_batch_pairs(kind, batch)
        if held_pairs is not None:
            held[held_pairs.cells[:, 1], held_pairs.cells[:, 2]] = True
        return held

    def add(self, kind: str, batch: int, cell: Cell, numbers: Sequence[float]) -> None:
        """Adds a solved pair; it is written within seconds, or by `save`."""
        i, j = (bisect.bisect(self.places, layer, key=lambda place: place.start) - 1 for layer in cell)
        if (i, j) in self.entries:
            key = (batch, cell[0] - self.places[i].start, cell[1] - self.places[j].start)
            self._added.setdefault(((i, j), kind), []).append((key, numbers))
            if self._timer.is_due():
                with self._timer.restart():
                    self.save()

    def save(self) -> None:
        """Writes the pairs that were added."""
        added, self._added = self._added, {}
        for (models, kind), pairs in added.items():
            if not self._writing:
                return
            cells, numbers = map(np.array, zip(*pairs, strict=True))
            parts = {"cells": cells, "numbers": numbers}
            name = f"{kind}-{xxhash.xxh3_64_hexdigest(cells.tobytes())}"
            entry = self.entries[models]
            try:
                entry.write(name, lambda path, parts=parts: safetensors.numpy.save_file(parts, path))
            except OSError as error:
                self._fail(entry, error)

    def finish(self) -> None:
        """Marks the entries complete: all pairs of the run are there, and no other run has to wait for it."""
        self.save()
        for entry in self.entries.values():
            try:
                if self._writing and not entry.complete:
                    entry.folder.mkdir(parents=True, exist_ok=True)
                    entry.finish()
            except OSError as error:
                self._fail(entry, error)

    def _fail(self, entry: Entry, error: OSError) -> None:
        self._writing = False
        log.warning("cache: %s cannot be written (%s); continuing without it", entry.folder, error.strerror)

    def _find_batch_pairs(self, kind: str, batch: int) -> SolvedPairs | None:
        if kind not in self._read:
            self._read[kind] = self._load(kind)
        held_pairs = self._read[kind]
        if held_pairs is None:
            return None
        rows = slice(*np.searchsorted(held_pairs.cells[:, 0], (batch, batch + 1)))
        return SolvedPairs(held_pairs.cells[rows], held_pairs.numbers[rows])

    def _load(self, kind: str) -> SolvedPairs | None:
        """Loads all pairs of this kind that the cache holds, ordered by batch; None where it has none."""
        parts = []
        for models, entry in self.entries.items():
            starts = [0, *(self.places[model].start for model in models)]
            for name, file in entry.files.items():
                if name.startswith(f"{kind}-"):
                    part = safetensors.numpy.load_file(file)
                    parts.append((part["cells"] + starts, part["numbers"]))
        if not parts:
            return None
        cells, numbers = map(np.concatenate, zip(*parts, strict=True))
        order = cells[:, 0].argsort(kind="stable")
        return SolvedPairs(cells[order], numbers[order])
