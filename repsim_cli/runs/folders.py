"""Which runs there are: under a root, by name, of a sweep, of a configuration. Needs neither torch nor Hydra."""

import glob
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import explain, walk
from repsim_cli.base.registry import did_you_mean
from repsim_cli.runs.reader import (
    count_seconds,
    drop_irrelevant_keys,
    read_config,
    read_manifest,
    read_results,
)
from repsim_cli.runs.results import check_links_inside, find_outputs_root, list_config_differences

AHEAD = timedelta(minutes=1)  # of the clock of another machine, which is no fault
log = logging.getLogger("repsim")


def list_run_folders(root: Path) -> list[Path]:
    """Lists all run folders under root, oldest first by their start.
    Damaged and unreadable ones are left out, with a warning.
    """
    return [
        folder
        for folder, _ in sorted(list_undamaged(find_folders(root)), key=lambda run: (run[1]["started"], str(run[0])))
    ]


def find_folders(root: Path) -> Iterator[Path]:
    """Finds all folders under root that have a manifest, which is not read. Warns of folders that cannot be read."""
    return (folder for folder, _, names in walk(root, _warn_left_out) if "manifest.json" in names)


def list_undamaged(folders: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run folders and their manifests."""
    for folder in folders:
        try:
            yield folder, read_manifest(folder)
        except OSError as error:
            _warn_left_out(error)
        except BadInput as error:
            log.warning("%s", error)


def _warn_left_out(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):  # no run yet, or it was just removed
        log.warning("%s; its runs are left out", explain(error))


def find(run: str, root: Path | None = None, *, key: str = "RUN") -> Path:
    """The run folder that a path, `latest`, or a name means (of the run or of its folder; the newest of several).
    key: where it was given, for the error.
    """
    root = root or find_outputs_root()
    if (Path(run) / "manifest.json").is_file():
        return check_links_inside(Path(run))
    if Path(run).is_absolute():
        _refuse_other_folder(run, key)
        raise BadInput(f"{key}: no such folder, got '{run}'; check the path, or see repsim list run")
    known = list_run_folders(root)
    if not known:
        _refuse_other_folder(run, key)
        raise BadInput(f"{key}: no runs in {root}, got '{run}'; start one with repsim run, or set REPSIM_OUTPUTS")
    if run == "latest":
        _warn_of_a_clock(known[-1])
        return check_links_inside(known[-1])
    names = {folder: {folder.name, str(folder.relative_to(root)), read_manifest(folder)["name"]} for folder in known}
    matching = [folder for folder in known if run in names[folder]]
    if not matching:
        _refuse_other_folder(run, key)
        hint = did_you_mean(run, {name for group in names.values() for name in group})
        hint = hint if len(hint) < 300 else "see repsim list run"
        raise BadInput(f"{key}: no such run in {root}, got '{run}'; {hint}")
    return check_links_inside(matching[-1])


def _warn_of_a_clock(newest: Path) -> None:
    """Warns where the newest run began after now, by a clock that was set back since."""
    started = read_manifest(newest)["started"]
    if datetime.fromisoformat(started) > datetime.now(UTC) + AHEAD:
        log.warning("latest: %s began at %s, after now by this clock; name the run that you mean", newest, started)


def _refuse_other_folder(run: str, key: str) -> None:
    """Raises BadInput where a sweep, or a file or folder that is no run, is named in place of a run."""
    if sweep := find_sweep(run):
        job = list_jobs(sweep)[0]["job"]
        raise BadInput(f"{key}: one run is needed, got the sweep '{run}'; name one of its jobs, e.g. {sweep / job}")
    if Path(run).exists():
        raise BadInput(f"{key}: no run folder, as it has no manifest.json, got '{run}'; see repsim list run")


def find_sweep(name: str) -> Path | None:
    """The sweep folder that a path, also one under the root of runs, or a folder's name means; None where it is not a
    sweep."""
    root = find_outputs_root()
    candidates = [Path(name), root / name] if name else []
    if name and Path(name).name == name:  # no path, such as / or a/b
        candidates += sorted(root.glob(f"*/{glob.escape(name)}"))
    for folder in reversed(candidates):
        if folder.is_dir() and not (folder / "manifest.json").is_file() and list_jobs(folder):
            return folder
    return None


def list_jobs(folder: Path) -> list[dict[str, Any]]:
    """The jobs of a sweep, in order: folder, overrides, status, seconds, error."""
    rows = [
        {
            "job": job.name,
            "overrides": " ".join(read["overrides"]),
            "status": read["status"],
            "seconds": round(count_seconds(read) or 0.0, 3),
            "error": read["error"],
        }
        for job, read in list_undamaged(manifest.parent for manifest in folder.glob("*/manifest.json"))
    ]
    return sorted(rows, key=lambda job: (len(job["job"].split("-")[0]), job["job"]))


def list_own_words(overrides: Sequence[Sequence[str]]) -> list[list[str]]:
    """Lists of runs that set the same keys, as the jobs of a sweep, what each sets otherwise than others; nothing of
    runs that set other keys.

    >>> list_own_words([["seed=0", "name=x"], ["seed=1", "name=x"]]), list_own_words([["seed=0"], ["name=x"]])
    ([['seed=0'], ['seed=1']], [[], []])
    """
    keys = [[word.partition("=")[0] for word in words] for words in overrides]
    if any(each != keys[0] for each in keys):
        return [[] for _ in overrides]
    differ = [len(set(words)) > 1 for words in zip(*overrides, strict=True)]
    return [list(itertools.compress(words, differ)) for words in overrides]


def find_same_values(folders: Sequence[Path]) -> list[int]:
    """Finds, for each run, the first one with the same values in all its matrices or, where it has none, in all its
    tables: by their numbers, its own where there is none before it."""
    known: dict[str, int] = {}
    return [known.setdefault(_name_values(folder) or str(folder), number) for number, folder in enumerate(folders)]


def _name_values(folder: Path) -> str:
    """Names the values of a run; empty where it has none, or its files are not as it left them."""
    manifest = read_manifest(folder)
    try:
        found = read_results(folder)
    except BadInput:
        return ""
    matrices = [*(m for measured in found.measures for m in measured.matrices), *found.matrices.values()]
    return (
        repr([(m.values, manifest["files"].get(m.values)) for m in matrices] or found.tables)
        if matrices or found.tables
        else ""
    )


def find_unfinished(config: dict[str, Any]) -> tuple[Path | None, bool]:
    """The newest run of this configuration and whether it is complete; unfinished ones come first."""
    wanted = drop_irrelevant_keys(config)
    same = []
    for folder in reversed(list_run_folders(find_outputs_root())):
        if not (folder / "config.yaml").is_file():
            continue
        try:
            if list_config_differences(wanted, read_config(folder)):  # a missing key is like null
                continue
        except BadInput as error:  # a damaged run does not stop others from being resumed
            log.warning("%s", error)
            continue
        if read_manifest(folder)["status"] != "complete":
            return folder, False
        same.append(folder)
    return (same[0], True) if same else (None, False)
