"""Finished units of work, content-addressed, outside the run folders: no run computes the same thing twice.

    ROOT/limit                       the size limit in bytes, as text
    ROOT/hashes/HASH.json            the hash of large files, and their state when they were read (`hash_files`)
    ROOT/KIND/KEY/NAME-HASH          files and folders of an entry; the hash of KEY, NAME and content stands in the name
    ROOT/KIND/KEY/entry-HASH         written last: what the entry is made of, as JSON
    ROOT/KIND/KEY.lock               held by the process that computes or removes the entry
    ROOT/KIND/KEY.using-HOST-PID     there while a process reads the entry

An entry's folder was last changed when it was last used. Files that do not match the hash in their name are dropped.
ROOT is REPSIM_CACHE, or the user's cache folder.
"""

import glob
import hashlib
import json
import logging
import mmap
import os
import re
import resource
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import platformdirs
import safetensors
import xxhash

from repsim_cli.base.documents import read
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_utf8, check_writable, explain, walk
from repsim_cli.runs.results import dumps, is_process_alive

log = logging.getLogger("repsim")
ELSEWHERE = "set REPSIM_CACHE to a folder that can be written"
RECORD = "entry"
DEFAULT_LIMIT, LEAST = 20 * 10**9, 10**6  # bytes
OTHER_FILES = 512  # that a run may open
STALE = 24 * 3600  # seconds after which a reader on another machine is assumed to have ended
_marked: Counter[Path] = Counter()  # uses by this process, by the mark that other processes see


def find_cache_folder() -> Path:
    """Finds the folder of the cache. Raises BadInput where its path is not UTF-8."""
    return check_utf8(Path(os.environ.get("REPSIM_CACHE") or platformdirs.user_cache_dir("repsim")), "REPSIM_CACHE")


def limit() -> int:
    """The most bytes that all entries may take together."""
    try:
        return int(read(find_cache_folder() / "limit"))
    except (OSError, ValueError):
        return DEFAULT_LIMIT


def write_limit(size: int) -> None:
    try:
        find_cache_folder().mkdir(parents=True, exist_ok=True)
        (find_cache_folder() / "limit").write_text(f"{size}\n")
        trim()
    except OSError as error:
        raise BadInput(explain(error, advice=ELSEWHERE)) from None


def parse_size(text: str) -> int:
    """Bytes of `20GB`, `500 MB`, `1e9`.

    >>> parse_size("1.5 GB")
    1500000000

    Raises BadInput for what is none, and for one that holds no entry, as 5 without a unit.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    number = text.strip().upper()
    unit = number.lstrip("0123456789.E+ ").strip()
    try:
        size = int(float(number.removesuffix(unit)) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise BadInput(f"size: not a size, got '{text}'; e.g. 20GB") from None
    if size < 0:
        raise BadInput(f"size: negative, got '{text}'; e.g. 20GB")
    if 0 < size < LEAST:
        raise BadInput(f"size: {size} bytes hold nothing, got '{text}'; give a number with its unit, e.g. 20GB")
    return size


def make_cache_key(parts: dict[str, Any]) -> str:
    """The name of the work that these parts determine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class Entry:
    """A unit of work on disk. Its files are complete or absent. meta: the arguments of `finish`, empty before. home:
    the folder of its kind; None: that in the cache."""

    kind: str
    key: str
    files: dict[str, Path] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    home: Path | None = None

    @property
    def folder(self) -> Path:
        return (self.home or find_cache_folder() / self.kind) / self.key

    @property
    def complete(self) -> bool:
        return bool(self.meta)

    @property
    def known(self) -> bool:
        """Says whether the entry was finished; `load` checks whether it still is intact."""
        return any(self.folder.glob(f"{RECORD}-*"))

    def has(self, name: str) -> bool:
        """Says whether there is a file of this name; `load` checks whether it is intact."""
        return any(self.folder.glob(f"{glob.escape(name)}-*"))

    def load(self) -> None:
        """Lists the files; damaged ones are dropped, with a warning."""
        self.files, self.meta = {}, {}
        if not self.folder.is_dir():
            if os.path.lexists(self.folder):
                self._drop(self.folder)
            return
        for place in sorted(self.folder.iterdir()):
            name, _, digest = place.name.rpartition("-")
            if place.name.startswith("."):
                _delete(place)  # left by a process that was killed
            elif name and self._digest(place, name) != digest:
                self._drop(place)
            elif name:
                self.files[name] = place
        record = self.files.pop(RECORD, None)
        if record is None:
            return
        meta = json.loads(record.read_text())
        parts = {name: self.folder / file for name, file in meta["files"].items()}
        if parts.items() <= self.files.items():
            self.meta = meta
            os.utime(self.folder)
        else:
            self._drop(record)

    def _drop(self, place: Path) -> None:
        log.warning("cache: %s is damaged; it is dropped and computed again", place)
        _delete(place)

    def write(self, name: str, save: Callable[[Path], object]) -> None:
        """Adds a file or a folder that save(path) makes. Raises OSError where it cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{name}.{os.getpid()}"
        try:
            save(partial)
            whole = self.folder / f"{name}-{self._digest(partial, name)}"
            _delete(whole)  # a folder cannot be renamed onto another
            self.files[name] = partial.rename(whole)
        except safetensors.SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(self.folder)) from error
        finally:
            _delete(partial)

    def remove(self, name: str) -> None:
        _delete(self.files.pop(name))

    def finish(self, **meta: Any) -> None:
        meta["files"] = {name: place.name for name, place in sorted(self.files.items())}
        for record in self.folder.glob(f"{RECORD}-*"):
            record.unlink()
        self.write(RECORD, lambda path: path.write_text(dumps(meta)))
        del self.files[RECORD]
        self.meta = meta

    def _digest(self, place: Path, name: str) -> str:
        """The hash of a file's content, or of a folder's paths and contents, under this name in this entry; empty for
        a pipe or a dangling link."""
        digest = xxhash.xxh3_128(f"{self.key}/{name}".encode())
        for file in [place, *sorted(place.rglob("*"))]:
            if file.is_dir():
                continue
            if not file.is_file():
                return ""
            size = file.stat().st_size
            digest.update(f"\0{file.relative_to(place)}\0{size}\0".encode())
            if size:
                with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    digest.update(content)
        return digest.hexdigest()

    def size(self) -> int:
        return sum((place / name).stat().st_size for place, _, names in walk(self.folder) for name in names)


def _delete(place: Path) -> None:
    """Removes a file, link or folder."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


@contextmanager
def use(kind: str, keys: list[str]) -> Iterator[dict[str, Entry]]:
    """The entries of these keys, for reading or, where they are not complete, for computing.

    One process computes an entry while others wait for it. The entries are not removed while the context lasts.
    """
    folder = find_cache_folder() / kind
    folder.mkdir(parents=True, exist_ok=True)
    _allow_open(len(keys))
    entries: dict[str, Entry] = {}
    locks: list[filelock.BaseFileLock] = []
    marks: list[Path] = []
    try:
        for name in sorted(set(keys)):  # in the same order everywhere, so that no two processes wait for each other
            mark = folder / f"{name}.using-{socket.gethostname()}-{os.getpid()}"
            mark.touch()
            marks.append(mark)
            _marked[mark] += 1
            # one per process: what computes an entry may ask for it again, as for a checkpoint that stands twice
            lock = filelock.FileLock(folder / f"{name}.lock", is_singleton=True)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                log.warning("cache: another process computes %s/%s, waiting for it", kind, name[:8])
                lock.acquire()
            entry = entries[name] = Entry(kind, name)
            entry.load()
            if entry.complete:
                lock.release()
            else:
                locks.append(lock)
        yield entries
    finally:
        for lock in locks:
            lock.release()
        for mark in marks:
            _marked[mark] -= 1
            if not _marked[mark]:
                del _marked[mark]
                mark.unlink(missing_ok=True)


def _allow_open(locks: int) -> None:
    """Raises the limit of open files, where possible, to one for each of the locks and OTHER_FILES more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = locks + OTHER_FILES
    if resource.RLIM_INFINITY != soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _is_in_use(folder: Path) -> bool:
    for mark in folder.parent.glob(f"{folder.name}.using-*"):
        host, _, pid = mark.name.split(".using-")[1].rpartition("-")
        here = host == socket.gethostname()
        if (here and pid.isdigit() and is_process_alive(int(pid))) or (
            not here and time.time() - mark.stat().st_mtime < STALE
        ):
            return True
        mark.unlink(missing_ok=True)
    return False


def _measure_entry_sizes() -> dict[Path, int]:
    """Entry folders and their bytes, least recently used first; those of other users that cannot be read are left out,
    with a warning."""
    used: dict[Path, tuple[float, int]] = {}
    closed: list[OSError] = []
    kinds = [place for place in find_cache_folder().iterdir() if place.is_dir()] if find_cache_folder().is_dir() else []
    for kind in kinds:
        try:
            folders = [folder for folder in kind.iterdir() if folder.is_dir()]
        except PermissionError as error:
            closed.append(error)
            continue
        for folder in folders:
            try:
                used[folder] = folder.stat().st_mtime, Entry(kind.name, folder.name).size()
            except FileNotFoundError:  # another process removed it
                continue
            except PermissionError as error:
                closed.append(error)
    if closed:
        log.warning("cache: %d folders are not counted; %s", len(closed), explain(closed[0]))
    return {folder: used[folder][1] for folder in sorted(used, key=lambda folder: used[folder][0])}


def _remove(folder: Path) -> bool:
    """Removes an entry that no process uses. Raises PermissionError where it is another user's."""
    check_writable(folder)
    lock = filelock.FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    try:
        if _is_in_use(folder):
            return False
        gone = folder.with_name(f".{folder.name}.gone")
        os.replace(folder, gone)
        shutil.rmtree(gone)
        return True
    finally:
        lock.release()


def trim(size: int | None = None) -> tuple[int, int]:
    """Removes the least recently used entries until all fit in `size` (the limit); returns (removed, bytes left)."""
    size = limit() if size is None else size
    sizes = _measure_entry_sizes()
    removed, total = 0, sum(sizes.values())
    kept: list[OSError] = []
    for folder, taken in sizes.items():
        try:
            if total > size and _remove(folder):
                removed, total = removed + 1, total - taken
        except PermissionError as error:
            kept.append(error)
    if kept:
        log.warning("cache: %d entries cannot be removed; %s", len(kept), explain(kept[0]))
    return removed, total


def measure_cache_use() -> list[tuple[str, int, int]]:
    """(kind, entries, bytes) of the cache."""
    if find_cache_folder().exists() and not find_cache_folder().is_dir():
        raise BadInput(f"{find_cache_folder()}: not a folder, got a file as the cache; set REPSIM_CACHE to a folder")
    kinds: dict[str, list[int]] = {}
    for folder, size in _measure_entry_sizes().items():
        kinds.setdefault(folder.parent.name, []).append(size)
    return [(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(kinds.items())]
