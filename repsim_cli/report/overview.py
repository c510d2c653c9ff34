"""All runs of a folder -> one page: a table with search, thumbnails and links to the runs' own pages.

A page that stands there already has what is the same of runs that did not change since; it saves most of the time.
"""

import base64
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.runs.folders import runs
from repsim_cli.runs.reader import read_config, read_manifest

FILE = "index.html"
MOST = 200  # the newest runs that have a thumbnail
SIZE = (240, 160)  # of a thumbnail, pixels at most


def listed(root: Path, page: str, before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs under root, newest first, as strict JSON.

    page: the name of a run's own page in its folder. before: runs of the last page by their folder; those that did not
    change since are taken from it.
    """
    newest_first = list(reversed(runs(root)))
    return [_described(folder, root, page, before, thumbnail=i < MOST) for i, folder in enumerate(newest_first)]


def _described(folder: Path, root: Path, page: str, before: Mapping[str, Any], *, thumbnail: bool) -> dict[str, Any]:
    manifest, figure = read_manifest(folder), _figure(folder) if thumbnail else None
    key = os.path.relpath(folder, root)
    link = _link(folder / page, root)
    files = [folder / "manifest.json", *filter(None, [figure])]
    stamp = [manifest["status"], link, str(figure), *(file.stat().st_mtime_ns for file in files)]
    if key in before and before[key].get("stamp") == stamp:
        return before[key]
    config = _config(folder)
    given = manifest.get("models") or config.get("model") or {}
    return {
        "name": manifest["name"],
        "study": manifest["study"],
        "status": manifest["status"],
        "started": manifest["started"][:19].replace("T", " "),
        "seconds": manifest.get("seconds"),
        "models": list(given),
        "measures": list(config.get("measure") or {}),
        "seed": manifest["seed"],
        "warnings": len(manifest["warnings"]),
        "error": manifest["error"],
        "folder": key,
        "page": link,
        "thumbnail": figure and _thumbnail(figure),
        "stamp": stamp,
    }


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        return read_config(folder)
    except (OSError, BadInput):  # a run that was cut off before it was written
        return {}


def _link(file: Path, root: Path) -> str | None:
    """The path of a page as a browser follows it from the root; None where there is none."""
    return file.relative_to(root).as_posix() if file.is_file() else None


def _figure(folder: Path) -> Path | None:
    """A figure of the run, its first map of all models if it has one."""
    drawn = (folder / "figures").glob("*.png")
    return min(
        drawn, key=lambda file: (not file.stem.endswith("-all"), file.stem == "diagnostics", file.name), default=None
    )


def _thumbnail(figure: Path) -> str | None:
    """The figure as a small PNG in base64."""
    from PIL import Image, UnidentifiedImageError  # of matplotlib, which drew it

    try:
        with Image.open(figure) as image:
            small = image.convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    small.thumbnail(SIZE)
    content = io.BytesIO()
    small.quantize(64).save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode()
