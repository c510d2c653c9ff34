"""The maps of a run that is still computing, as far as they are known: one file in its folder, for `repsim show
--follow` and the page of `repsim report --follow`.

It is replaced every few seconds and removed when the run ends. Nothing resumes from it. Needs no torch.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.timer import Timer
from repsim_cli.runs.content import Matrix, Measured, Side
from repsim_cli.runs.results import SO_FAR, write

EVERY = 3.0  # seconds between two files
SHARE = 0.02  # of the run's time that writing may take
Names = Sequence[tuple[str, str]]  # the model and the layer of each row and column
Values = Callable[[], np.ndarray]


@dataclass(kw_only=True)
class Writer:
    """Called with what is known of a measure, whenever more is; it writes when it is time.

    names: of all layers. measures: by their labels, without matrices. rows: of a batch. batches: of the run. cells: how
    many of each matrix are computed. of: the rows of the run, where these are its first and are shown at once; 0: they
    are all.
    """

    folder: Path
    names: Names
    measures: Mapping[str, Measured]
    rows: int
    batches: int
    cells: int
    of: int = 0
    _known: dict[str, tuple[Values, int]] = field(default_factory=dict)
    _timer: Timer = field(default_factory=lambda: Timer(EVERY, SHARE))

    def __call__(self, label: str, values: Values, done: int) -> None:
        """values: of all cells, NaN where there are none yet; below the diagonal too, of a symmetric measure where it
        is NaN. done: the batches that they are the mean of; 0: the first one is being computed."""
        self._known[label] = values, done
        if self.of or self._timer.is_due():
            # the run itself says what is wrong with its folder
            with contextlib.suppress(OSError), self._timer.restart():
                self._write()

    def _write(self) -> None:
        about, arrays = [], {}
        for label, (values, done) in self._known.items():
            measured = self.measures[label]
            estimate = {**measured.estimate, "rows": self.rows * max(done, 1), "batches": max(done, 1)}
            like = dataclasses.asdict(dataclasses.replace(measured, estimate=estimate))
            about.append({"measured": like, "done": done, "batches": self.batches, "cells": self.cells, "of": self.of})
            array = np.array(values(), np.float64)
            if measured.card["symmetric"]:
                np.copyto(array, array.T.copy(), where=np.isnan(array))
            arrays[label] = array
        content = io.BytesIO()
        text = json.dumps({"names": list(self.names), "measures": about})
        np.savez(content, about=np.array(text), **{f"values-{i}": x for i, x in enumerate(arrays.values())})
        write(self.folder / SO_FAR, content.getvalue())


@dataclass(frozen=True, kw_only=True)
class LiveMap:
    """values: of all layers, NaN where there are none yet. state: how far it is, in words."""

    measured: Measured
    names: Names
    values: np.ndarray
    state: str


def read(folder: Path) -> list[LiveMap]:
    """The maps of a running run; none where it has none yet, or none any more."""
    try:
        with np.load(folder / SO_FAR, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            values = [file[f"values-{i}"] for i in range(len(about["measures"]))]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return []
    names = [(model, layer) for model, layer in about["names"]]
    return [
        LiveMap(measured=Measured(**given["measured"]), names=names, values=array, state=_say_state(given, array))
        for given, array in zip(about["measures"], values, strict=True)
    ]


def _say_state(given: Mapping[str, Any], values: np.ndarray) -> str:
    known = int(np.isfinite(values).sum())
    if known < given["cells"]:
        return f"{known:,} of {given['cells']:,} cells"
    if given["of"]:
        return f"the first {given['measured']['estimate']['rows']:,} of {given['of']:,} rows"
    batches = given["batches"]
    return "all cells" if batches == 1 else f"mean over {max(given['done'], 1)} of {batches} batches"


def split_into_pairs(so_far: LiveMap) -> tuple[Measured, dict[str, np.ndarray]]:
    """The measure as results.json will have it, and its arrays by their names there: of each two models of which a
    cell is known."""
    places: dict[str, list[int]] = {}
    for place, (model, _) in enumerate(so_far.names):
        places.setdefault(model, []).append(place)
    both = itertools.combinations_with_replacement if so_far.measured.card["symmetric"] else _list_ordered_pairs
    matrices, arrays = [], {}
    for row, column in both(places, 2):
        block = so_far.values[np.ix_(places[row], places[column])]
        if np.isfinite(block).any():
            rows, columns = (
                Side(model=model, layers=[so_far.names[place][1] for place in places[model]]) for model in (row, column)
            )
            name = f"{so_far.measured.label}, {len(matrices)}"
            matrices.append(Matrix(rows=rows, columns=columns, values=name, n=so_far.measured.estimate["rows"]))
            arrays[name] = block
    return dataclasses.replace(so_far.measured, matrices=matrices), arrays


def _list_ordered_pairs(items: Mapping[str, Any], count: int) -> Iterator[tuple[str, ...]]:
    return itertools.product(items, repeat=count)
