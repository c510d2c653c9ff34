"""Files and folders that cannot be used: an OSError becomes a line with the path, the system's reason and advice.

Readers and writers let an OSError pass, or call `explain`. It becomes an error of the project where a component is
bound (with its key path), at the end of a run, and at the end of the command.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repsim_cli.base.errors import BadInput, RepsimError, convert_panic

if TYPE_CHECKING:
    import numpy as np

PERMISSION = "change its permissions or ask its owner, or choose another path"
ROOM = "free space there, or choose another place"
MAGIC_OF_NPY = b"\x93NUMPY"
NO_SCRATCH = "No usable temporary directory found in"  # how `tempfile` says it
ADVICE = {
    errno.EACCES: PERMISSION,
    errno.EPERM: PERMISSION,
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EROFS: "choose a place that can be written",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
}


def explain(error: OSError, path: Path | str | None = None, advice: str | None = None) -> str:
    """`PATH: cannot be used, got 'REASON'; ADVICE`. For a missing permission, the folder that denies access is named.

    path, advice: where they tell more than the error does.
    """
    if (reason := error.strerror or "").startswith(NO_SCRATCH):
        tried = reason.removeprefix(NO_SCRATCH).strip()
        return f"TMPDIR: no folder for temporary files can be written, got {tried}; set it to one that can"
    place = path or error.filename or "a file"
    reason = f"'{error.strerror or error}'"
    if error.errno in (errno.EACCES, errno.EPERM) and (closed := _find_closed(Path(os.fsdecode(place)))):
        reason += f" for the folder '{closed}'"
    return f"{place}: cannot be used, got {reason}; {advice or ADVICE.get(error.errno or 0, 'check the path')}"


def _find_closed(path: Path) -> Path | None:
    """The first folder above the path that cannot be entered."""
    effective = os.access in os.supports_effective_ids
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK, effective_ids=effective):
            return folder
    return None


def check_utf8(path: Path, variable: str) -> Path:
    """The path in an environment variable. Raises BadInput where it is not UTF-8, since neither JSON nor safetensors
    can name such files."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"{variable}: not a path in UTF-8, got {os.fsencode(path)!r}; set it to another") from None
    return path


def expand_path(path: Any) -> Path:
    """The path with `~` expanded, whether it exists or not. Raises BadInput for what cannot be a path."""
    if not isinstance(path, str | os.PathLike):
        raise BadInput(f"path: not usable, got {path!r:.60}; give text or a path")
    with refuse("path: not usable", os.fspath(path), "check the path"):
        place = Path(path).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(place)
    return place


def find_inside(folder: Path, name: Any, *, links: bool = False) -> Path | None:
    """The file that a document of a folder names; None where it names none, or one outside the folder.

    links: whether symbolic links may lead out of it; those of the hub's cache may, whose snapshots link to its blobs.
    """
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    try:
        file, root = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or what no name can be
        return None
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    return folder / name if links or any(file.is_relative_to(place) for place in places) else None


def check_readable(file: Path) -> Path:
    """The file, for a library whose errors do not name the cause. Raises OSError where it cannot be opened, and
    BadInput for a pipe or a device, which would block."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise BadInput(f"{file}: not a regular file, got a pipe or a device; copy its content into a file")
    with file.open("rb"):
        return file


def check_writable(folder: Path) -> None:
    """Raises PermissionError for a folder in which no file can be made or removed."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def open_npy(file: Path, mode: Literal["r"] | None = "r") -> "np.ndarray":
    """Reads an .npy file of numbers or text, mapped with the mode "r"; nothing is unpickled. Raises ValueError or
    EOFError for any other file, without numpy's advice to unpickle it."""
    import numpy as np

    with file.open("rb") as stream:
        if stream.read(len(MAGIC_OF_NPY)) != MAGIC_OF_NPY:
            raise ValueError("it does not begin as numpy.save begins a file")
    try:
        with np.errstate(over="ignore"):  # a header may claim more than there are numbers for
            return np.load(file, mmap_mode=mode, allow_pickle=False)
    except ValueError as error:
        raise ValueError("Python objects" if "object" in str(error).lower() else str(error)) from None


def create_npy(file: Path, dtype: Any, shape: tuple[int, ...]) -> "np.memmap":
    """Creates an .npy file that is mapped to be written, with room for all of it: where a page of it found none later,
    the process would end without a word. Raises OSError where there is none, and leaves no file."""
    import numpy as np

    try:
        made = np.lib.format.open_memmap(file, "w+", dtype, shape)
        _reserve(file)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error
    return made


def _reserve(file: Path) -> None:
    """Takes the room on the disk that the size of a file claims, where the system can."""
    if not hasattr(os, "posix_fallocate"):
        return
    with file.open("r+b") as stream:
        try:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
        except OSError as error:
            if error.errno in ADVICE:  # else the file system has no such thing
                raise


def _raise(error: OSError) -> None:
    raise error


def walk(folder: Path, refused: Callable[[OSError], None] = _raise) -> Iterator[tuple[Path, list[str], list[str]]]:
    """os.walk sorted by name; the error of a folder that cannot be listed is raised, or passed to `refused`."""
    for place, folders, names in os.walk(folder, onerror=refused):
        folders.sort()
        yield Path(place), folders, sorted(names)


def give_usual_rights(file: Path) -> None:
    """Gives a file the rights of any new file; one that safetensors wrote can be read by its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


@contextmanager
def refuse(problem: str, got: object, advice: str, kind: type[RepsimError] = BadInput) -> Iterator[None]:
    """Raises `problem, got 'got' (reason); advice` for any exception of a library inside.

    Parsers raise anything on unexpected bytes, so only their calls belong inside. Errors of the project and of the
    system pass unchanged.
    """
    try:
        yield
    except RepsimError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and convert_panic(error) is None:
            raise
        if isinstance(error, OSError) and error.errno in ADVICE:
            raise
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise kind(f"{problem}, got '{got}' ({reason}); {advice}") from error
