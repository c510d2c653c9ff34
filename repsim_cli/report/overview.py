"""All runs of a folder -> one page: a table with search, thumbnails and links to the runs' own pages.

A page that stands there already has what is the same of runs that did not change since; it saves most of the time.
"""

import base64
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.runs.folders import find_folders, list_undamaged
from repsim_cli.runs.reader import read_config
from repsim_cli.runs.results import Progress, quiet

FILE = "index.html"
MOST = 100  # the newest runs that have a thumbnail
SIZE = (240, 160)  # of a thumbnail, pixels at most


def list_runs(root: Path, page: str, before: Mapping[str, Any], progress: Progress = quiet) -> list[dict[str, Any]]:
    """The runs under root, newest first, as strict JSON.

    page: the name of a run's own page in its folder. before: runs of the last page by their folder; those that ended
    and did not change since are taken from it, unread.
    """
    folders = progress(list(find_folders(root)), label="reading", unit="runs")
    runs = [run for folder in folders for run in _describe_run(folder, root, before)]
    runs.sort(key=lambda run: (run["started"], run["folder"]), reverse=True)
    return [_add_link(run, root, page, before.get(run["folder"], {}), number < MOST) for number, run in enumerate(runs)]


def _describe_run(folder: Path, root: Path, before: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Gives what the manifest in a folder says of its run; nothing where it cannot be read. before: by folder, what the
    page that was written last says."""
    key = os.path.relpath(folder, root)
    known, changed = before.get(key, {}), (folder / "manifest.json").stat().st_mtime_ns
    if known.get("changed") == changed and known["status"] not in ("running", "killed"):
        yield {name: value for name, value in known.items() if name not in ("page", "thumbnail", "stamp")}
        return
    for _, manifest in list_undamaged([folder]):
        config = {} if manifest.keys() >= {"models", "measures"} else _read_config_or_nothing(folder)
        yield {
            "name": manifest["name"],
            "study": manifest["study"],
            "status": manifest["status"],
            "started": manifest["started"][:19].replace("T", " "),
            "seconds": manifest.get("seconds"),
            "models": list(manifest.get("models") or config.get("model") or {}),
            "measures": list(manifest.get("measures", config.get("measure") or ())),
            "data": manifest.get("data", {}).get("source", ""),
            "seed": manifest["seed"],
            "warnings": len(manifest["warnings"]),
            "error": manifest["error"],
            "folder": key,
            "changed": changed,
        }


def _add_link(
    run: Mapping[str, Any], root: Path, page: str, known: Mapping[str, Any], thumbnail: bool
) -> dict[str, Any]:
    """A run with the link to its page and, where it is asked for, its thumbnail; that of before where the figure is the
    same."""
    folder = root / run["folder"]
    figure = _choose_figure(folder) if thumbnail else None
    stamp = [str(figure), figure.stat().st_mtime_ns] if figure else []
    same = known.get("stamp") == stamp
    drawn = known["thumbnail"] if same else figure and _make_thumbnail(figure)
    return {**run, "page": _make_page_link(folder / page, root), "thumbnail": drawn, "stamp": stamp}


def _read_config_or_nothing(folder: Path) -> Mapping[str, Any]:
    try:
        return read_config(folder)
    except (OSError, BadInput):  # a run that was cut off before it was written
        return {}


def _make_page_link(file: Path, root: Path) -> str | None:
    """The path of a page as a browser follows it from the root; None where there is none."""
    return file.relative_to(root).as_posix() if file.is_file() else None


def _choose_figure(folder: Path) -> Path | None:
    """A figure of the run, its first map of all models if it has one."""
    drawn = (folder / "figures").glob("*.png")
    return min(
        drawn, key=lambda file: (not file.stem.endswith("-all"), file.stem == "diagnostics", file.name), default=None
    )


def _make_thumbnail(figure: Path) -> str | None:
    """The figure as a small PNG in base64."""
    from PIL import Image, UnidentifiedImageError  # of matplotlib, which drew it

    try:
        with Image.open(figure) as image:
            small = image.convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    small.thumbnail(SIZE)
    content = io.BytesIO()
    small.quantize(64, Image.Quantize.FASTOCTREE).save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode()
