"""Reads a run folder after the run; what is read is checked before it is used."""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from repsim_cli.base.documents import Unreadable, find_misfit, read_json, read_yaml
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import find_inside, open_npy
from repsim_cli.runs.content import BEHIND, TEXTS, WITHOUT_VALUE, Matrix, Measured, Results, Verdict, omit_nan
from repsim_cli.runs.schema import SCHEMA, from_json, to_json

LOCK, STATE = ".lock", "state.safetensors"
BLOCK = re.compile(r"(.+\.npy)\[(\d{1,9}):(\d{1,9}),(\d{1,9}):(\d{1,9})\]")  # of an array, after its path
# keys that results do not depend on
HOW = (
    "resume",
    "dry_run",
    "track",
    *(
        f"hardware.{key}"
        for key in (
            "processes",
            "memory_gb",
            "resident",
            "executor",
            "address",
            "gpus_per_worker",
            "partition",
            "account",
            "timeout_min",
            "price_per_node_hour",
        )
    ),
)
# shapes, as `find_misfit` takes them, of what is read after a run; studies add further keys
NUMBER = int | float
FACTS = {
    "kind": str,
    "family": str,
    "layers": [str],
    "widths": [int],
    "trained?": bool,
    "training?": str,
    "entry?": str,
}
MANIFEST = {
    "name": str,
    "study": str,
    "status": str,
    "error": str | None,
    "started": str,
    "resumed": [str],
    "command": [str],
    "overrides": [str],
    "seed": int,
    "git": dict | None,  # pyright: ignore[reportMissingTypeArgument] - a type at run time
    "packages": {str: str | None},
    "timings": {str: NUMBER},
    "peak_memory_mb_after": {str: NUMBER},
    "warnings": [str],
    "seconds?": NUMBER,
    "files?": {str: str},
    "models?": {str: dict},
    "measures?": [str],
    "facts?": {str: FACTS},
    "base?": str | None,
    "groups?": {str: dict},
    "options?": dict,
    "remedies?": dict,
    "short?": {str: str},
    "data?": dict,
    "executor?": dict,
}
# of a measure in results.json
CARD = {"label": str, "larger_is_closer": bool, "symmetric": bool, "bounds": [NUMBER | None]}
ESTIMATE = {"kind": str, "rows": int, "rows_available": int, "batches": int}
FLOOR = {"value": NUMBER, "unit": str, "of": str, "pairs?": NUMBER}
GROUPS = ("model", "measure", "data", "extract", "significance", "hardware", "options")
CONFIG = dict.fromkeys((f"{group}?" for group in GROUPS), dict)


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run, without the keys that say how it was started."""
    return drop_irrelevant_keys(_read(folder / "config.yaml", read_yaml, CONFIG))


def read_applied_config(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run, with what `auto` stood for among the remedies, which may change by version."""
    config = read_config(folder)
    extract, applied = config.get("extract") or {}, read_manifest(folder).get("remedies", {})
    known = {key: applied[key] for key, value in extract.items() if value == "auto" and key in applied}
    return {**config, **({"extract": {**extract, **known}} if known else {})}


def drop_irrelevant_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys of `HOW`."""
    kept = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items()}
    for path in HOW:
        *group, key = path.split(".")
        (kept.get(group[0], {}) if group else kept).pop(key, None)
    return kept


def hash_file(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest; the status is "killed" where it says running but no process writes the run."""
    manifest = _read_json(folder / "manifest.json", MANIFEST)
    if manifest["status"] == "running" and not is_held(folder):
        manifest["status"] = "killed"
    return manifest


def count_seconds(manifest: Mapping[str, Any]) -> float | None:
    """Seconds that a run took, or has taken so far; None of one that was killed, which noted no end."""
    if manifest["status"] != "running":
        return manifest.get("seconds")
    try:
        began = datetime.fromisoformat([manifest["started"], *manifest["resumed"]][-1])
    except ValueError:
        return None
    return manifest.get("seconds", 0.0) + max(0.0, (datetime.now(UTC) - began.astimezone(UTC)).total_seconds())


def is_held(folder: Path) -> bool:
    """Says whether a process writes this run, of whichever user; yes where its lock cannot be read."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def refuse_unfinished(folder: Path, manifest: Mapping[str, Any]) -> BadInput:
    """The refusal of a run that has no results."""
    status = manifest["status"]
    return BadInput(
        f"{folder}: it has no results (status {status}); run it again, with resume=latest to go on from there"
    )


def read_results(folder: Path, *, arrays: bool = True) -> Results:
    """results.json of a run whose study has finished and whose numbers are unchanged since. arrays: whether those in
    arrays/ must be unchanged too."""
    manifest = read_manifest(folder)
    if not (has_results(manifest) or (manifest["status"] == "running" and (folder / "results.json").is_file())):
        raise refuse_unfinished(folder, manifest)
    for name, digest in manifest.get("files", {}).items():
        if name in ("results.json", BEHIND, TEXTS) or (arrays and name.startswith("arrays/")):
            file = find_inside(folder, name)
            if file is None or not file.is_file() or hash_file(file) != digest:
                raise BadInput(f"{folder / name}: not as the run left it, got another or no file; run it again")
    file = folder / "results.json"
    try:
        results = from_json(_read_json(file, dict))
    except Unreadable as error:
        raise BadInput(f"{file}: {error}; the run is damaged, run it again") from None
    for measured in results.measures:
        floor = {} if measured.floor is None else {"floor": (measured.floor, FLOOR)}
        parts = {"card": (measured.card, CARD), "estimate": (measured.estimate, ESTIMATE), **floor}
        for name, (value, shape) in parts.items():
            _check_shape(file, value, shape, f"measures.{measured.label}.{name}")
    return results


def has_results(manifest: Mapping[str, Any]) -> bool:
    """Says whether the run of this manifest has results."""
    return "results.json" in manifest.get("files", {})


def _read_json(file: Path, shape: Any) -> dict[str, Any]:
    value = _read(file, read_json, object)
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema is None:
        raise BadInput(f"{file}: not a file of repsim, got no schema; the run is damaged, run it again")
    if schema != SCHEMA:
        advice = "run it again: repsim run --from RUN" if schema == 1 else "update repsim"
        raise BadInput(f"{file}: not a file of this version, got schema {schema} (this is {SCHEMA}); {advice}")
    return _check_shape(file, value, shape)


def _read(file: Path, reader: Callable[[Path], Any], shape: Any) -> Any:
    try:
        return _check_shape(file, reader(file), shape)
    except Unreadable as error:
        raise BadInput(f"{file}: cannot be read, got {error}; the run is damaged, run it again") from None


def _check_shape(file: Path, value: Any, shape: Any, path: str = "") -> Any:
    wrong = find_misfit(value, shape, path)
    if wrong:
        raise BadInput(f"{file}: {wrong}; the run is damaged, run it again")
    return value


def qualify(claims: Iterable[Verdict], short: Mapping[str, str]) -> list[Verdict]:
    """The verdicts with a note on every model that falls short of what it was trained for."""
    notes = [f"{label}: {why}" for label, why in short.items()]
    return [replace(claim, why="; ".join([*filter(None, [claim.why]), *notes])) for claim in claims]


def mark_labels(results: Results) -> Results:
    """Results as they are drawn: marks are appended to their labels.

    >>> mark_labels(Results(study="", marks={"a": "93.1 %"}, warnings=["a", "ab"])).warnings
    ['a (93.1 %)', 'ab']
    """

    def add_marks(value: Any) -> Any:
        if isinstance(value, str):
            return f"{value} ({results.marks[value]})" if value in results.marks else value
        if isinstance(value, dict):
            return {add_marks(key): add_marks(inner) for key, inner in value.items()}
        return [add_marks(inner) for inner in value] if isinstance(value, list) else value

    return from_json(add_marks(to_json(results))) if results.marks else results


def find_closest_cell(
    measured: Measured, matrix: Matrix, cells: Mapping[str, np.ndarray]
) -> tuple[str, str, dict[str, float | None]] | None:
    """The two layers of a matrix that are closest by value, the first of equal ones, and all numbers of their cell, as
    every table and page shows them. None where no cell has a value. cells: the arrays of `matrix.cells`."""
    nearer = cells["values"] if measured.larger_is_closer else -cells["values"]
    if np.isnan(nearer).all():
        return None
    i, j = np.unravel_index(np.nanargmax(nearer), nearer.shape)
    numbers = {what: omit_nan(x[i, j]) for what, x in cells.items()}
    return matrix.rows.layers[i], matrix.columns.layers[j], numbers


def mark_missing_cells(results: Results, measured: Measured, matrix: Matrix) -> np.ndarray:
    """Marks the cells of a matrix that are listed as without a value; no other number of theirs may be missing."""
    table, sides = results.tables.get(WITHOUT_VALUE), (matrix.rows, matrix.columns)
    places = [{layer: i for i, layer in enumerate(side.layers)} for side in sides]
    mask = np.zeros([len(side) for side in places], bool)
    for label, *models, layer, other, _ in table.rows if table else ():
        if label == measured.label and models == [side.model for side in sides]:
            mask[places[0][layer], places[1][other]] = True
    return mask


def name_array_block(relative: str, rows: slice, columns: slice) -> str:
    """The path of a block of an array of the run, as `read_array` takes it.

    >>> name_array_block("arrays/cka.npy", slice(0, 2), slice(4, 6))
    'arrays/cka.npy[0:2,4:6]'
    """
    return f"{relative}[{rows.start}:{rows.stop},{columns.start}:{columns.stop}]"


def read_array(folder: Path, relative: str, *, mapped: bool = False) -> np.ndarray:
    """An array of a run, or a block of one (as of `name_array_block`); the path may not leave the folder. mapped: its
    content is read when it is used."""
    if part := BLOCK.fullmatch(relative):
        name, *ends = part.groups()
        top, bottom, left, right = map(int, ends)
        try:
            whole = _open_shared_array(folder, name, os.stat(folder / name).st_mtime_ns)
        except (OSError, ValueError):
            whole = _load(folder, name, "r")  # says why it cannot be read
        if whole.ndim != 2 or not (top <= bottom <= len(whole) and left <= right <= whole.shape[1]):
            raise BadInput(
                f"{folder / name}: no such block, got '{relative}' of {whole.shape}; the run is damaged, run it again"
            )
        return whole[top:bottom, left:right] if mapped else np.array(whole[top:bottom, left:right])
    return _load(folder, relative, "r" if mapped else None)


@lru_cache(maxsize=8)
def _open_shared_array(folder: Path, name: str, changed: int) -> np.ndarray:
    """An array of which blocks are read one after the other, thousands in a run of many models. changed: its time."""
    return _load(folder, name, "r")


def _load(folder: Path, relative: str, mode: Literal["r"] | None) -> np.ndarray:
    file = find_inside(folder, relative)
    if file is None:
        raise BadInput(f"{folder}: an array outside the run, got '{relative}'; the run is damaged")
    if file.exists() and not file.is_file():  # reading a pipe would never return
        raise BadInput(f"{file}: cannot be read, got no regular file; the run is damaged, run it again")
    try:
        return open_npy(file, mode)
    except (FileNotFoundError, ValueError, EOFError) as error:
        raise BadInput(f"{file}: cannot be read, got '{error}'; the run is damaged, run it again") from None
