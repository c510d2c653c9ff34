"""`repsim show SWEEP`: its jobs, and what they come to over seeds."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.cli.terminal import say
from repsim_cli.findings.answering import split_by_hook_point
from repsim_cli.runs import folders, reader

SEED = "seed="
SHOWN = 24  # maps


def show_sweep(folder: Path) -> int:
    """Shows the jobs of a sweep; of those that differ by their seed alone, how far the seed moves the maps."""
    jobs = folders.list_jobs(folder)
    say(f"sweep {folder}: {len(jobs)} jobs")
    paths = [folder / job["job"] for job in jobs]
    damage = [_say_damage(path) for path in paths]
    first = folders.find_same_values(paths)
    overrides = [reader.read_manifest(path)["overrides"] for path in paths]
    own = folders.list_own_words(overrides)
    for number, job in enumerate(jobs):
        say(f"  {job['job']:24}  {job['status']:11}  {job['seconds']:8.1f} s  {job['overrides']}")
        if error := job["error"] or damage[number]:
            say(f"    error: {error}")
        if first[number] < number:
            what = " ".join(own[number]) or "what differs between them"
            say(f"    all values are those of {jobs[first[number]]['job']}, to the bit: {what} changes none")
    counted = [
        (paths[number], overrides[number], own[number])
        for number, job in enumerate(jobs)
        if job["status"] == "complete" and first[number] == number and not damage[number]
    ]
    say(*_say_over_seeds(counted))
    return 0


def _say_damage(folder: Path) -> str:
    """Says what is wrong with the files of a run; nothing where they are as it left them."""
    try:
        if reader.has_results(reader.read_manifest(folder)):
            reader.read_results(folder)
    except BadInput as error:
        return str(error)
    return ""


def _say_over_seeds(jobs: Sequence[tuple[Path, Sequence[str], Sequence[str]]]) -> Iterator[str]:
    """Says the mean of each map over jobs that differ by their seed alone, and its standard deviation. jobs: the
    folder, all words and those that other jobs set otherwise; no two have the same values."""
    alike = defaultdict[tuple[str, ...], dict[str, dict[tuple[str, str], float]]](dict)
    said: dict[tuple[str, ...], list[str]] = {}
    for path, words, own in jobs:
        seed = next((word.removeprefix(SEED) for word in words if word.startswith(SEED)), None)
        if seed is not None:
            same = tuple(word for word in words if not word.startswith(SEED))
            alike[same][seed] = _read_means(path)
            said[same] = [word for word in own if not word.startswith(SEED)]
    for words, by_seed in alike.items():
        first, *others = by_seed.values()
        shared = [key for key in first if all(key in means for means in others)]
        if not others or not shared:
            continue
        given = " ".join([*said[words], SEED + ",".join(by_seed)])
        yield f"  {given}: the mean of each map, ± its standard deviation over the {len(by_seed)} runs"
        width = [max(len(key[part]) for key in shared[:SHOWN]) for part in (0, 1)]
        for label, pair in shared[:SHOWN]:
            values = np.array([means[label, pair] for means in by_seed.values()])
            yield (
                f"    {label:{width[0]}}  {pair:{width[1]}}  {values.mean():.3g} ± {values.std(ddof=1):.2g}   "
                f"{values.min():.3g} to {values.max():.3g}"
            )
        if len(shared) > SHOWN:
            yield f"    and {len(shared) - SHOWN} more: repsim report SWEEP"


def _read_means(folder: Path) -> dict[tuple[str, str], float]:
    """Reads the mean of each map of a run that has a value, by measure and pair of models."""
    found = {
        (measured.label, name): values[~np.isnan(values)]
        for measured in reader.read_results(folder, arrays=False).measures  # which are as they were left
        for pair in measured.matrices
        for name, values in split_by_hook_point(pair, partial(reader.read_array, folder))
    }
    return {key: float(values.mean()) for key, values in found.items() if values.size}
