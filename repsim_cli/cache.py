"""Finished units of work, content-addressed, outside the run folders: no run computes the same thing twice.

    ROOT/limit                       the size limit in bytes, as text
    ROOT/KIND/KEY/NAME-HASH          files of an entry; the hash of the content stands in the name
    ROOT/KIND/KEY/entry.json         written last: what the entry is made of; its time of change is its last use
    ROOT/KIND/KEY.lock               held by the process that computes or removes the entry
    ROOT/KIND/KEY.using-HOST-PID     there while a process reads the entry

ROOT is REPSIM_CACHE, or the user's cache folder.
"""

import errno
import hashlib
import json
import logging
import mmap
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import platformdirs
import xxhash

from repsim_cli.errors import BadInput
from repsim_cli.files import explained, walk
from repsim_cli.results import alive, dumps

log = logging.getLogger("repsim")
ELSEWHERE = "set REPSIM_CACHE to a folder that can be written"
DEFAULT_LIMIT = 20 * 10**9
STALE = 24 * 3600  # seconds after which another machine's reader counts as gone


def root() -> Path:
    return Path(os.environ.get("REPSIM_CACHE") or platformdirs.user_cache_dir("repsim"))


def limit() -> int:
    """Bytes that all entries may take together."""
    try:
        return int((root() / "limit").read_text())
    except (OSError, ValueError):
        return DEFAULT_LIMIT


def set_limit(size: int) -> None:
    try:
        root().mkdir(parents=True, exist_ok=True)
        (root() / "limit").write_text(f"{size}\n")
        trim()
    except OSError as error:
        raise BadInput(explained(error, advice=ELSEWHERE)) from None


def parse_size(text: str) -> int:
    """Bytes of `20GB`, `500 MB`, `1e9`.

    >>> parse_size("1.5 GB")
    1500000000
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
    return size


def key(parts: dict[str, Any]) -> str:
    """The name of the work that these parts determine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class Entry:
    """One unit of work on disk. Its files are whole or absent; `complete` once `finish` was called."""

    kind: str
    key: str
    files: dict[str, Path] = field(default_factory=dict)
    meta: dict[str, Any] | None = None

    @property
    def folder(self) -> Path:
        return root() / self.kind / self.key

    @property
    def complete(self) -> bool:
        return self.meta is not None

    def load(self) -> None:
        """Finds what is there; a file whose content is not that of its name is dropped, with a warning."""
        self.files, self.meta = {}, None
        if not self.folder.is_dir():
            return
        for file in sorted(self.folder.iterdir()):
            if file.name.startswith("."):
                file.unlink(missing_ok=True)  # left by a process that was killed
                continue
            name, _, digest = file.name.rpartition("-")
            if not name:
                continue
            if _digest(file) != digest:
                log.warning("cache: %s is damaged, it is dropped and computed again", file)
                file.unlink(missing_ok=True)
            else:
                self.files[name] = file
        try:
            meta = json.loads((self.folder / "entry.json").read_text())
        except (OSError, ValueError):
            return
        if set(meta["files"]) <= set(self.files):
            self.meta = meta
            os.utime(self.folder / "entry.json")

    def write(self, name: str, save: Callable[[Path], None]) -> None:
        """Adds a file; save(path) writes its content."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{name}.{os.getpid()}"
        save(partial)
        self.files[name] = partial.rename(self.folder / f"{name}-{_digest(partial)}")

    def finish(self, **meta: Any) -> None:
        partial = self.folder / f".entry.{os.getpid()}"
        self.meta = {**meta, "files": sorted(self.files)}
        partial.write_text(dumps(self.meta))
        os.replace(partial, self.folder / "entry.json")

    def size(self) -> int:
        return sum((place / name).stat().st_size for place, _, names in walk(self.folder) for name in names)


def _digest(file: Path) -> str:
    if not file.stat().st_size:
        return xxhash.xxh3_128_hexdigest(b"")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return xxhash.xxh3_128_hexdigest(content)


@contextmanager
def using(kind: str, keys: list[str]) -> Iterator[dict[str, Entry]]:
    """The entries of these keys, for reading or, where they are not complete, for computing.

    One process computes an entry while others wait for it. While the context lasts the entries stay.
    """
    folder = root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Entry] = {}
    locks: list[filelock.BaseFileLock] = []
    marks: list[Path] = []
    try:
        for name in sorted(set(keys)):  # in one order everywhere, so that no two processes wait for each other
            mark = folder / f"{name}.using-{socket.gethostname()}-{os.getpid()}"
            mark.touch()
            marks.append(mark)
            lock = filelock.FileLock(folder / f"{name}.lock")
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
            mark.unlink(missing_ok=True)


def _in_use(folder: Path) -> bool:
    for mark in folder.parent.glob(f"{folder.name}.using-*"):
        host, _, pid = mark.name.split(".using-")[1].rpartition("-")
        here = host == socket.gethostname()
        if (here and alive(int(pid))) or (not here and time.time() - mark.stat().st_mtime < STALE):
            return True
        mark.unlink(missing_ok=True)
    return False


def _sizes() -> dict[Path, int]:
    """Entry folders and their bytes, least recently used first; those of other users that cannot be read are left out,
    with a warning."""
    found: dict[Path, tuple[float, int]] = {}
    closed: list[OSError] = []
    kinds = [place for place in root().iterdir() if place.is_dir()] if root().is_dir() else []
    for kind in kinds:
        try:
            folders = [folder for folder in kind.iterdir() if folder.is_dir()]
        except PermissionError as error:
            closed.append(error)
            continue
        for folder in folders:
            file = folder / "entry.json"
            try:
                last_use = (file if file.is_file() else folder).stat().st_mtime
                found[folder] = last_use, Entry(kind.name, folder.name).size()
            except FileNotFoundError:  # another process removed it
                continue
            except PermissionError as error:
                closed.append(error)
    if closed:
        log.warning("cache: %d folders are not counted; %s", len(closed), explained(closed[0]))
    return {folder: found[folder][1] for folder in sorted(found, key=lambda folder: found[folder][0])}


def _remove(folder: Path) -> bool:
    """Removes an entry that no process uses. Raises PermissionError where it is another user's."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    lock = filelock.FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    try:
        if _in_use(folder):
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
    sizes = _sizes()
    removed, total = 0, sum(sizes.values())
    kept: list[OSError] = []
    for folder, taken in sizes.items():
        try:
            if total > size and _remove(folder):
                removed, total = removed + 1, total - taken
        except PermissionError as error:
            kept.append(error)
    if kept:
        log.warning("cache: %d entries cannot be removed; %s", len(kept), explained(kept[0]))
    return removed, total


def overview() -> list[tuple[str, int, int]]:
    """(kind, entries, bytes) of what is there."""
    if root().exists() and not root().is_dir():
        raise BadInput(f"{root()}: not a folder, got a file as the cache; set REPSIM_CACHE to a folder")
    kinds: dict[str, list[int]] = {}
    for folder, size in _sizes().items():
        kinds.setdefault(folder.parent.name, []).append(size)
    return [(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(kinds.items())]
