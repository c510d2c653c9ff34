"""Run folders -> one self-contained HTML page, from the files alone, and a page that lists all runs. Needs neither
torch nor matplotlib.

Lines are drawn by uPlot 1.6.32 (MIT, 53 kB with its style, embedded); a heatmap is a canvas of one pixel per cell,
scaled up by `assets/report/page.js`. Plotly's cartesian bundle is 1.5 MB and ECharts' smallest 0.5 MB, in every page.

A policy in the page's head lets its own style and scripts run, by their hashes, and nothing else: no request, no
other script. All that comes from models and data is JSON inside a data block, and reaches the page as text only.
"""

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from repsim_cli.base.environment import read_version
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import TURNING
from repsim_cli.report import overview
from repsim_cli.report.record import NUMBERS, record
from repsim_cli.runs import reader
from repsim_cli.runs.folders import find_same_values, list_own_words
from repsim_cli.runs.results import Progress, quiet, write

FILE = "report.html"
RELOAD = 5  # seconds between two pages of a running run
ASSETS = Path(str(resources.files("repsim_cli"))) / "assets" / "report"
STYLES, SCRIPTS = ("uPlot.min.css", "page.css"), ("uPlot.iife.min.js", "common.js", "views.js", "rows.js", "page.js")
ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}
SHOWN = {i: f"\\u{i:04x}" for i in TURNING}


def save(folders: Sequence[Path], file: Path) -> Path:
    """Writes the page of one or several runs and returns its path."""
    write(file, build_page(folders).encode())
    return file


def save_while_running(folder: Path, file: Path) -> None:
    """Writes the page of a run every few seconds, as one that reloads itself, until the run ends."""
    while reader.read_manifest(folder)["status"] == "running":
        write(file, build_page([folder], reload=True).encode())
        time.sleep(RELOAD)


def build_page(folders: Sequence[Path], *, reload: bool = False, room: int = NUMBERS) -> str:
    """The page of one or several runs; its bytes depend on their files alone. reload: whether a browser reads it again
    every few seconds, until the reader pauses that. room: how many numbers of matrices it holds.

    Raises BadInput where a run is damaged or its numbers changed since.
    """
    runs = [record(folder, len(folders), room) for folder in folders]
    own = list_own_words([run["manifest"]["overrides"] for run in runs])
    same = find_same_values(folders) if len(folders) > 1 else [0]
    for run, words, first in zip(runs, own, same, strict=True):
        run.update(own=" ".join(words), first=first)
    about = {"colours": json.loads(_read_asset("colours.json")), "licence": _read_asset("uPlot.LICENSE")}
    title = " and ".join(" ".join(filter(None, [run["manifest"]["name"], run["own"]])) for run in runs)
    return _build_html(title, {"runs": runs, "reload": RELOAD if reload else None, **about}, STYLES, SCRIPTS)


def save_overview(root: Path, progress: Progress = quiet) -> Path:
    """Writes the page that lists all runs under root, and returns its path. Raises BadInput where there is no run."""
    file, made_by = root / overview.FILE, read_version("repsim-cli")
    before = _read_page_data(file)
    known = {run["folder"]: run for run in before["runs"]} if before.get("made_by") == made_by else {}
    data = {"root": root.name, "made_by": made_by, "runs": overview.list_runs(root, FILE, known, progress)}
    if not data["runs"]:
        raise BadInput(f"RUN: no run can be read in {root}; start one with: repsim run")
    write(file, _build_html(f"Runs in {root.name}", data, ("page.css",), ("common.js", "overview.js")).encode())
    return file


def _build_html(title: str, data: dict[str, Any], style_names: Sequence[str], script_names: Sequence[str]) -> str:
    styles, scripts = [_read_asset(name) for name in style_names], [_read_asset(name) for name in script_names]
    parts = {
        "policy": f"default-src 'none'; img-src data:; style-src {_hash_texts(styles)}; "
        f"script-src {_hash_texts(scripts)}; base-uri 'none'; form-action 'none'",
        "title": _escape(title),
        "styles": "".join(f"<style>{text}</style>" for text in styles),
        "data": embed_json(data),
        "scripts": "".join(f"<script>{text}</script>" for text in scripts),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read_asset("page.html"))


def _read_page_data(file: Path) -> dict[str, Any]:
    """The data of a page that was written before; empty where there is none that can be read."""
    try:
        return json.loads(re.findall(r'<script type="application/json" id="data">(.*)</script>', file.read_text())[0])
    except (OSError, ValueError, IndexError):
        return {}


def embed_json(value: Any) -> str:
    """Strict JSON in ASCII that cannot end the element it stands in.

    >>> embed_json({"label": "</script>&\\u2028"})
    '{"label": "\\\\u003c/script\\\\u003e\\\\u0026\\\\u2028"}'
    """
    return json.dumps(_escape_direction_marks(value), allow_nan=False).translate(ESCAPED)


def _escape_direction_marks(value: Any) -> Any:
    """The value with characters that turn text around as their codes."""
    if isinstance(value, str):
        return value if value.isascii() else value.translate(SHOWN)
    if isinstance(value, Mapping):
        return {_escape_direction_marks(key): _escape_direction_marks(inner) for key, inner in value.items()}
    return [_escape_direction_marks(inner) for inner in value] if isinstance(value, list | tuple) else value


def _read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash_texts(texts: Sequence[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)


def _escape(text: str) -> str:
    return html.escape(_escape_direction_marks(text)).encode("ascii", "xmlcharrefreplace").decode()
