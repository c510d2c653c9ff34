"""The run folder: written once by a run, read by everything after it. Needs neither torch nor Hydra.

manifest.json   what ran, on what, for how long, and how it ended; the sha256 of every other file
config.yaml     the validated configuration
results.json    every number that a figure or the report shows (strict JSON, full precision)
arrays/*.npy    one float64 array per matrix
rows.*          of some rows, for the page: the nearest ones, shares in the similarity, texts that may be kept
figures/        .png and .svg, redrawn by `repsim plot` from the two above
report.html     made again by `repsim report`, like repsim.log not among the hashes
repsim.log
"""

import errno
import io
import json
import logging
import os
import platform
import resource
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.environment import read_git_state, read_versions
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_utf8, explain, find_inside
from repsim_cli.base.plain import make_unique_filename
from repsim_cli.base.plain import slug as slug  # for analyses of others
from repsim_cli.runs.content import WITHOUT_VALUE, WITHOUT_VALUE_COLUMNS, Results, Table
from repsim_cli.runs.reader import LOCK, STATE, has_results, hash_file, read_manifest, refuse_unfinished
from repsim_cli.runs.schema import SCHEMA, to_json

SAVE_EVERY = 5.0  # seconds between two saved states
# what a short manifest has of the whole one, and what it leaves empty
KEPT = ("schema", "name", "study", "started", "resumed", "overrides", "seed", "git")
BARE = {"packages": {}, "timings": {}, "peak_memory_mb_after": {}, "warnings": [], "command": []}
PAIRS = ".pairs"  # notes on pairs that are solved one by one, until the run ends
SO_FAR = ".so_far.npz"  # the maps as far as they are known, until the run ends
ELSEWHERE = "set REPSIM_OUTPUTS to a folder that can be written"
log = logging.getLogger("repsim")


Progress = Callable[..., Iterator[Any]]


def quiet(items: Iterable[Any], **_: Any) -> Iterator[Any]:
    """A progress bar that shows nothing."""
    return iter(items)


def dumps(value: Any) -> str:
    """Strict JSON: NaN and infinity are errors, so that no failure becomes a number."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def compact(value: Any) -> str:
    """The same in one line, for long lists."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"


def write(file: Path, content: bytes) -> None:
    """Writes, then renames: a reader sees the old file or all of the new one."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.unlink(missing_ok=True)  # a link there would have another file written
        with partial.open("xb") as stream:
            stream.write(content)
        os.replace(partial, file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error


def find_outputs_root() -> Path:
    """The folder that run folders go to: REPSIM_OUTPUTS, or `outputs` in the current folder."""
    return check_utf8(Path(os.environ.get("REPSIM_OUTPUTS") or "outputs"), "REPSIM_OUTPUTS")


def check_root() -> None:
    """Raises BadInput where run folders cannot be made."""
    root = find_outputs_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise BadInput(explain(error, root, ELSEWHERE)) from None


@dataclass
class Run:
    """A run folder that only this process writes to."""

    folder: Path
    manifest: dict[str, Any]
    lock: Any
    progress: Progress = quiet
    doing: str = "start"  # the stage that is at work
    without_value: list[list[str]] = field(default_factory=list)  # rows of the table of that name
    _arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    def save_manifest(self) -> None:
        write(self.folder / "manifest.json", dumps(self.manifest).encode())

    def input(self, key: str, description: Mapping[str, Any]) -> None:
        """Notes what is compared, beside what is noted under this key already. Raises BadInput where a resumed run
        began with other input of the same name: its numbers would be of both."""
        before, now = self.manifest.get(key, {}), json.loads(dumps(description))
        if self.manifest["resumed"] and (
            found := list_config_differences(now, {name: before.get(name, part) for name, part in now.items()}, key)
        ):
            raise BadInput(f"resume: {self.folder} began with other input, got {found[0]}; start a new run")
        self.manifest[key] = before | now

    def warn(self, text: str) -> None:
        """A warning: in the log, the manifest and the results."""
        if text not in self.manifest["warnings"]:
            self.manifest["warnings"].append(text)
            log.warning(text)

    def skip(self, measure: str, why: str) -> None:
        """A measure of the configuration that is not computed."""
        self.manifest.setdefault("measures_skipped", {})[measure] = why
        self.warn(f"measure.{measure}: skipped as unsuitable ({why})")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage of the run, in seconds, into the manifest, with the process's peak memory so far."""
        start = time.monotonic()
        log.info("%s ...", name)
        self.doing = name
        yield
        timings = self.manifest["timings"]
        timings[name] = round(timings.get(name, 0.0) + time.monotonic() - start, 3)
        self.manifest["peak_memory_mb_after"][name] = measure_peak_memory_mb()

    def write_text(self, name: str, text: str) -> None:
        write(self.folder / name, text.encode())

    def write_array(self, name: str, array: np.ndarray) -> str:
        """Saves arrays/NAME.npy (no pickle) and returns this path, relative to the folder. Raises RuntimeError
        where this process wrote an array of this name there."""
        (self.folder / "arrays").mkdir(exist_ok=True)
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(array, dtype=np.float64), allow_pickle=False)
        relative = f"arrays/{make_unique_filename(name, self._arrays)}.npy"
        write(self.folder / relative, stream.getvalue())
        self._hash(relative)
        return relative

    def write_results(self, results: Results) -> None:
        if self.without_value:
            table = Table(columns=WITHOUT_VALUE_COLUMNS, rows=self.without_value)
            results = replace(results, tables=results.tables | {WITHOUT_VALUE: table})
        self.write_text("results.json", dumps(to_json(results)))
        self._hash("results.json")

    def _hash(self, relative: str) -> None:
        """Updates the hash in the manifest of a run that had ended, so that the file can be read."""
        if "files" in self.manifest:
            self.manifest["files"][relative] = hash_file(self.folder / relative)
            self.save_manifest()

    def discard(self) -> None:
        """Removes all files of a run that was refused before it computed anything."""
        self.lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)
        drop_empty(self.folder.parent)

    def complete(self) -> None:
        """Records that nothing is left to do."""
        shutil.rmtree(self.folder / PAIRS, ignore_errors=True)
        self.manifest.update(status="complete", error=None)

    def finish(self, status: str, error: str | None = None) -> None:
        """Records how the run ended, its peak memory and the hash of every file."""
        self.manifest.update(status=status, error=error)
        if status == "complete":
            self.complete()
        self.manifest.update(
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(self.manifest.get("seconds", 0.0) + time.monotonic() - self._started, 3),
            peak_memory_mb=measure_peak_memory_mb(),
        )
        try:
            self.close()
        except OSError as failed:
            if failed.errno == errno.EFBIG:  # a limit of the size of files, within which a short manifest may be
                ended = {
                    "status": "failed" if status == "complete" else status,
                    "error": (error or explain(failed))[:200],
                }
                self.manifest = {key: self.manifest[key] for key in KEPT} | BARE | ended
                with suppress(OSError):
                    self.save_manifest()
            raise

    def close(self) -> None:
        """Records the hash of every file, and releases the folder."""
        (self.folder / SO_FAR).unlink(missing_ok=True)
        self.manifest["files"] = {
            str(file.relative_to(self.folder)): hash_file(file)
            for file in sorted(self.folder.rglob("*"))
            if file.is_file()
            and file.name not in ("manifest.json", "repsim.log", "report.html", LOCK, STATE)
            and file.relative_to(self.folder).parts[0] != PAIRS
        }
        self.save_manifest()
        self.lock.release()
        (self.folder / LOCK).unlink(missing_ok=True)


@contextmanager
def open_scratch_run() -> Iterator[Run]:
    """A run whose files nobody reads."""
    with tempfile.TemporaryDirectory() as folder:
        yield Run(Path(folder), {"timings": {}, "peak_memory_mb_after": {}, "warnings": [], "resumed": []}, None)


def create(folder: Path, *, name: str, study: str, seed: int, command: list[str], overrides: list[str]) -> Run:
    """Claims a run folder: a second run started in the same second gets a folder with a number appended.

    Raises BadInput where the folder cannot be written.
    """
    manifest = {
        "schema": SCHEMA,
        "name": name,
        "study": study,
        "status": "running",
        "error": None,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),  # runs are told apart by it
        "resumed": [],
        "command": command,
        "overrides": overrides,
        "seed": seed,
        "git": read_git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": read_versions(),
        "timings": {},
        "peak_memory_mb_after": {},
        "warnings": [],
    }
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            if any(candidate.iterdir()):  # of somebody else, who would lose it where the run is refused
                continue
            # complete or absent, and never in place of another run's
            whole = candidate / f".manifest.{uuid.uuid4().hex}"
            try:
                whole.write_text(dumps(manifest))
                os.link(whole, candidate / "manifest.json")
            finally:
                whole.unlink(missing_ok=True)
        except FileExistsError:
            continue
        except OSError as error:
            drop_empty(candidate)
            raise BadInput(explain(error, candidate, ELSEWHERE)) from error
        try:
            return Run(candidate, manifest, claim_folder(candidate))
        except OSError as error:
            shutil.rmtree(candidate, ignore_errors=True)
            drop_empty(candidate.parent)
            raise BadInput(explain(error, candidate, ELSEWHERE)) from error
    raise BadInput(f"{folder}: a thousand runs have this name; set name=NAME")


def take_unused(folder: Path) -> Path:
    """Makes this folder, or one with a number appended where it exists, and no other process takes the same."""
    candidate, number = folder, 1
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            number += 1
            candidate = folder.with_name(f"{folder.name}-{number}")


def claim_folder(folder: Path) -> Any:
    """The folder's lock. Raises BadInput where another process writes there."""
    import filelock

    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=1)  # `is_held` takes it for a moment
    except filelock.Timeout:
        raise BadInput(f"{folder}: another process is writing this run; wait for it") from None
    return lock


def check_links_inside(folder: Path) -> Path:
    """The run folder. Raises BadInput where a link would have files elsewhere read or written."""
    away = next((file.name for file in sorted(folder.iterdir()) if find_inside(folder, file.name) is None), None)
    if away is not None:
        raise BadInput(f"{folder}: a link that leaves the run, got '{away}'; remove it, or copy there what it links to")
    return folder


def reopen(folder: Path) -> Run:
    """A run that did not end, to resume. Raises BadInput where another process writes there."""
    check_links_inside(folder)
    manifest = read_manifest(folder)
    lock = claim_folder(folder)
    for left in [*folder.rglob(".*.partial"), folder / SO_FAR]:
        left.unlink(missing_ok=True)
    manifest.pop("files", None)  # they are written again
    manifest["resumed"].append(datetime.now(UTC).isoformat(timespec="seconds"))
    manifest.update(status="running", error=None)
    run = Run(folder, manifest, lock)
    now = {"commit": (read_git_state() or {}).get("commit"), **read_versions()}
    began = {"commit": (manifest["git"] or {}).get("commit"), **manifest["packages"]}
    if now != began:
        run.warn(
            f"the run resumes with other code than it began with: {'; '.join(list_config_differences(now, began))}"
        )
    run.save_manifest()
    return run


@contextmanager
def amend(folder: Path) -> Iterator[Run]:
    """A complete run, to add results to. Raises BadInput where it is not complete, or another process writes there."""
    manifest = read_manifest(folder)
    if not has_results(manifest):
        raise refuse_unfinished(folder, manifest)
    run = Run(folder, read_manifest(folder), claim_folder(folder))
    try:
        yield run
    finally:
        run.close()


def list_config_differences(now: Any, then: Any, path: str = "") -> list[str]:
    """The key paths at which two configurations differ."""
    if isinstance(now, dict) and isinstance(then, dict):
        keys = [*now, *(k for k in then if k not in now)]
        return [
            d for k in keys for d in list_config_differences(now.get(k), then.get(k), f"{path}.{k}" if path else str(k))
        ]
    return [] if now == then else [f"{path}: {then} then, {now} now"]


def is_process_alive(pid: int) -> bool:
    """Says whether this process of this machine is running."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def drop_empty(folder: Path) -> None:
    """Removes an empty folder, and its parents that are empty too, up to the outputs' root."""
    root = find_outputs_root().resolve()
    for parent in (folder.resolve(), *folder.resolve().parents):
        if parent == root or root not in parent.parents or not parent.is_dir() or any(parent.iterdir()):
            return
        parent.rmdir()


def measure_peak_memory_mb() -> float:
    """Peak resident memory of this process so far, in MB (10^6 bytes)."""
    status = Path("/proc/self/status")
    if status.is_file():  # ru_maxrss would count the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1)
