"""`repsim show RUN --follow`: the log of a running run, and its maps as far as they are known."""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.plain import escape
from repsim_cli.cli.terminal import Bar, is_quiet, say_aside
from repsim_cli.findings.answering import describe_range
from repsim_cli.report.record import average_blocks
from repsim_cli.runs import reader, so_far

FOLLOWED = 1.0  # seconds between two looks at a running run
LINES = 30.0  # seconds between two lines about the same map, elsewhere than on a terminal
LATER = 5.0  # seconds between two looks at a run in this process
WIDE, HIGH = 100, 40  # where the size of the terminal is not known
SHADES = " ░▒▓█"  # from far to close
UNKNOWN = "·"


def follow(folder: Path) -> None:
    """Prints the log of a run until it ends: its stages, warnings and errors. A terminal also draws its maps so far, in
    place of those before; elsewhere a line says how far each is."""
    log, shown, told = folder / "repsim.log", 0, -LINES
    terminal, below = sys.stdout.isatty(), []
    while True:
        ended = reader.read_manifest(folder)["status"] != "running"  # before the log: nothing comes after it
        new = b""
        if log.is_file():
            with log.open("rb") as lines:
                lines.seek(shown)
                new = lines.read()
            new = new if ended else new[: new.rfind(b"\n") + 1]
            shown += len(new)
        maps = [] if ended else so_far.read(folder)
        text = "\n".join(map(escape, new.decode(errors="replace").split("\n")))
        if terminal:
            text, below = redraw_lines(text, below, draw_terminal_maps(maps, shutil.get_terminal_size()))
        elif maps and time.monotonic() >= told + LINES:
            text, told = text + "".join(f"{describe_progress(given)}\n" for given in maps), time.monotonic()
        print(text, end="", flush=True)
        if ended:
            return
        time.sleep(FOLLOWED)


@dataclass
class Watching:
    """The progress of a run in this process, with the maps as far as they are known: the first in shades, then how far
    each is and its range."""

    folder: Path
    _seen: set[str] = field(default_factory=set)
    _told: float = -LINES

    def __call__(self, items: Iterable[Any], *, label: str, unit: str, later: int = 0) -> Iterator[Any]:
        for item in Bar()(items, label=label, unit=unit, later=later):
            yield item
            self._look()

    def _look(self) -> None:
        if is_quiet() or time.monotonic() < self._told + LATER:
            return
        maps = so_far.read(self.folder)
        self._told = time.monotonic() if maps else self._told
        if maps := [given for given in maps if describe_progress(given) not in self._seen]:
            lines = [describe_progress(given) for given in maps]
            size = shutil.get_terminal_size((WIDE, HIGH))
            say_aside(*(draw_terminal_maps(maps, size) if not self._seen else lines))
            self._seen.update(lines)


def redraw_lines(new: str, below: list[str], now: list[str]) -> tuple[str, list[str]]:
    """Makes what a terminal prints for `now` to stand under the new lines in place of `below`.
    Returns that text, and the lines that stand there then.
    """
    if not new and now == below:
        return "", below
    above = f"\x1b[{len(below)}F\x1b[J" if below else ""
    return above + new + "".join(f"{line}\n" for line in now), now


def describe_progress(given: so_far.LiveMap) -> str:
    """Says how far the map is, and its mean and range."""
    cells = given.values[np.isfinite(given.values)]
    return escape(", ".join([f"{given.measured.label}: {given.state}", *(describe_range(cells) if cells.size else [])]))


def draw_terminal_maps(maps: Sequence[so_far.LiveMap], size: os.terminal_size) -> list[str]:
    """Lines that say how far each map is, and draw the one of which the least is known in shades: each the mean of the
    known cells of a block of layers."""
    if not maps:
        return []
    names = list(dict.fromkeys(model for model, _ in maps[0].names))
    wide = min(16, max(len(name) for name in names))
    lines = [describe_progress(given) for given in maps[: size.lines // 3]]
    drawn = min(maps, key=lambda given: np.isfinite(given.values).sum())
    room = max(1, min((size.columns - wide - 3) // 2, size.lines - len(lines) - 3))
    block = math.ceil(len(drawn.names) / room)
    means = average_blocks(drawn.values, block)
    low, high = np.nanmin(means, initial=np.inf), np.nanmax(means, initial=-np.inf)
    shares = (means - low) / (high - low) if high > low else 0 * means + 1
    closeness = shares if drawn.measured.larger_is_closer or high <= low else 1 - shares
    models = [model for model, _ in drawn.names[::block]]
    for i, row in enumerate(closeness):
        cells = (2 * (UNKNOWN if np.isnan(x) else SHADES[min(4, int(5 * x))]) for x in row)
        name = models[i] if i == 0 or models[i] != models[i - 1] else ""
        lines.append(f"{name[:wide]:{wide}} {''.join(cells)}")
    averaged = f"; means of {block} x {block} layers" if block > 1 else ""
    lines.append(f"{drawn.measured.label}: {SHADES[-1]} close, {UNKNOWN} not known yet{averaged}")
    return [escape(line)[: size.columns - 1] for line in lines]
