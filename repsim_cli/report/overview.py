"""All runs of a folder -> one page: a table with search, thumbnails and links to the runs' own pages."""

import base64
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repsim_cli.errors import BadInput
from repsim_cli.results import read_config, read_manifest, runs

FILE = "index.html"
MOST = 200  # the newest runs that have a thumbnail
SIZE = (240, 160)  # of a thumbnail, pixels at most


def listed(root: Path, page: str) -> list[dict[str, Any]]:
    """The runs under root, newest first, as strict JSON. page: the name of a run's own page in its folder."""
    newest_first = list(reversed(runs(root)))
    return [_described(folder, root, page, thumbnail=i < MOST) for i, folder in enumerate(newest_first)]


def _described(folder: Path, root: Path, page: str, *, thumbnail: bool) -> dict[str, Any]:
    manifest, config = read_manifest(folder), _config(folder)
    given = manifest.get("models") or config.get("model") or {}
    return {
        "name": manifest["name"],
        "study": manifest["study"],
        "status": manifest["status"],
        "started": manifest["started"][:19].replace("T", " "),
        "seconds": round(sum(manifest["timings"].values()), 1),
        "models": list(given),
        "measures": list(config.get("measure") or {}),
        "seed": manifest["seed"],
        "warnings": len(manifest.get("warnings", [])),
        "error": manifest.get("error"),
        "folder": os.path.relpath(folder, root),
        "page": _link(folder / page, root),
        "thumbnail": _thumbnail(folder) if thumbnail else None,
    }


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        return read_config(folder)
    except (OSError, BadInput):  # a run that was cut off before it was written
        return {}


def _link(file: Path, root: Path) -> str | None:
    """The path of a page as a browser follows it from the root; None where there is none."""
    return file.relative_to(root).as_posix() if file.is_file() else None


def _thumbnail(folder: Path) -> str | None:
    """A figure of the run, its first map of all models if it has one, as a small PNG in base64."""
    drawn = (folder / "figures").glob("*.png")
    first = min(
        drawn, key=lambda file: (not file.stem.endswith("-all"), file.stem == "diagnostics", file.name), default=None
    )
    if first is None:
        return None
    from PIL import Image, UnidentifiedImageError  # of matplotlib, which drew it

    try:
        with Image.open(first) as image:
            small = image.convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    small.thumbnail(SIZE)
    content = io.BytesIO()
    small.quantize(64).save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode()
