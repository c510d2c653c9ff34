"""The data of a run for the page: its manifest, configuration and results, with the arrays embedded."""

import base64
import io
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.documents import list_leaves
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.figures.chance import choose_chance_level
from repsim_cli.figures.colours import choose_card_colours, choose_colour_range
from repsim_cli.findings.answering import Sides
from repsim_cli.findings.sentences import find_least_lead, find_margin_over_chance, write_reach_of_chance
from repsim_cli.report import headline
from repsim_cli.report.studies import say_main_findings
from repsim_cli.runs import so_far
from repsim_cli.runs.behind import Kept, read_rows
from repsim_cli.runs.content import ANSWERS, CHANCE, DIAGNOSTICS, OF_BLOCKS, QUANTITIES, Matrix, Measured, Results, Side
from repsim_cli.runs.reader import (
    find_closest_cell,
    has_results,
    mark_labels,
    mark_missing_cells,
    read_array,
    read_config,
    read_manifest,
    read_results,
)
from repsim_cli.runs.results import find_outputs_root

SHARES = ("p", "p_family", "q", "calibrated")  # quantities from 0 to 1 whatever the measure
NUMBERS = 1_100_000  # in a page: those of 60 models with 12 layers, four quantities of a symmetric measure
MOST, LARGEST = 6_000_000, 400_000  # bytes of all figures in a page, and of an SVG there
EACH = 1000  # matrices of a measure that have a level of chance of their own; of more there is one of all
LONGEST = 300  # letters of what a figure shows
BOTH = 9_500_000  # bytes of numbers and figures
# of figures, by how their names begin
TABLES = {
    "stitching": "stitching",
    "probes": "probes",
    "diagnostics": DIAGNOSTICS,
    "boundaries": "boundaries",
    "blocks": OF_BLOCKS,
}
LEAVES, SHORT = 60, 300  # of a fact of a study that stands in a table, and characters of each
ELSEWHERE = ("warnings", "timings", "peak_memory_mb_after", "command", "overrides", "files")  # in the page


def record(folder: Path, among: int = 1, room: int = NUMBERS) -> dict[str, Any]:
    """A run as strict JSON. A run without results (failed, interrupted) only has its manifest.

    room: numbers that a page may hold. among: the runs of the page, which share that room; a run with more than its
        share has block means.
    """
    manifest = read_manifest(folder)
    whole = mark_labels(read_results(folder)) if has_results(manifest) else Results(study=manifest["study"])
    remedied = {
        measured.label: (base, remedy, measured)
        for base, by_remedy in whole.index_by_remedy().items()
        for remedy, measured in by_remedy.items()
    }
    maps = so_far.read(folder) if manifest["status"] == "running" else []
    known = [so_far.split_into_pairs(given) for given in maps]
    arrays = {name: array for _, by_name in known for name, array in by_name.items()}
    measures = [*whole.measures, *(x for *_, x in remedied.values()), *(measured for measured, _ in known)]
    count = sum(
        len(m.rows.layers) * len(m.columns.layers) * len(m.cells) for measured in measures for m in measured.matrices
    )
    block = math.ceil(math.sqrt(count * among / room)) or 1
    untrained = {label for label, of in manifest.get("facts", {}).items() if not of.get("trained", True)}
    configured = (folder / "config.yaml").is_file()
    kept = read_rows(folder)
    about = {key: value for key, value in {"analyses": whole.analyses, **whole.about}.items() if value}
    facts = {key: list(list_leaves(value, key)) for key, value in about.items()}
    short = {key for key, leaves in facts.items() if len(leaves) <= LEAVES and all(len(x) <= SHORT for _, x in leaves)}
    return {
        "folder": _name(folder),
        "manifest": {key: value for key, value in manifest.items() if key != "files"},
        "record": list(list_leaves({key: value for key, value in manifest.items() if key not in ELSEWHERE})),
        "command": shlex.join(manifest["command"]),
        "repeat": shlex.join(["repsim", "run", "--from", _name(folder)]),
        "config": list(list_leaves(read_config(folder))) if configured else [],
        "config_text": (folder / "config.yaml").read_text() if configured else "",
        "title": headline.name_run(manifest, whole),
        "question": headline.say_question(manifest, whole),
        "said": headline.list_pair_sentences(whole, partial(read_array, folder), kept) if not maps else [],
        "rows": _encode(kept) if kept and among == 1 else None,
        "leads": say_main_findings(whole),
        "methods": headline.write_methods(manifest, whole),
        "cite": headline.list_citations(manifest, whole),
        "measures": [
            _measure(measure, block, partial(_read_matrix_array, folder, arrays, whole, measure), untrained)
            for measure in measures
        ],
        "remedied": {label: {"base": base, "remedy": remedy} for label, (base, remedy, _) in remedied.items()},
        "so_far": {given.measured.label: given.state for given in maps},
        "answers": whole.answers,
        "tables": [(name, asdict(table)) for name, table in whole.tables.items() if name not in ANSWERS],
        "curves": [(name, asdict(curve)) for name, curve in whole.curves.items()],
        "claims": [
            {**asdict(claim), "decided": claim.decided, "over": claim.over, "basis": claim.basis}
            for claim in whole.claims
        ],
        "figures": [
            {**figure, "data": say_source(figure["name"], whole)}
            for figure in _read_figures(folder, min(MOST, BOTH - 8 * count // block**2))
        ],
        "facts": [leaf for key in facts if key in short for leaf in facts[key]],
        "others": [
            (key, json.dumps(value, indent=1, ensure_ascii=False)) for key, value in about.items() if key not in short
        ],
    }


def _name(folder: Path) -> str:
    """The folder as `repsim run --from` and the like find it."""
    folder, root = folder.resolve(), find_outputs_root().resolve()
    return str(folder.relative_to(root)) if folder.is_relative_to(root) else folder.name


def _read_figures(folder: Path, left: int) -> Iterator[dict[str, Any]]:
    """The figures of a run, maps of all models first, diagnostics and standard errors last: name, what is seen, and the
    PNG and SVG in base64; neither after `left` bytes, and no SVG above LARGEST."""

    def place(file: Path) -> tuple[bool, bool, bool, str]:
        stem = file.stem
        return stem.endswith("-se"), stem == "diagnostics", not stem.endswith("-all"), stem

    files = sorted((folder / "figures").glob("*.png"), key=place)
    for file in files:
        png, vector = file.read_bytes(), file.with_suffix(".svg")
        svg = vector.read_bytes() if vector.is_file() and vector.stat().st_size <= LARGEST else b""
        left -= len(png) + len(svg)
        whole = left >= 0
        yield {
            "name": file.stem,
            "seen": _read_title(png),
            "png": base64.b64encode(png).decode() if whole else None,
            "svg": base64.b64encode(svg).decode() if whole and svg else None,
        }


def _read_title(png: bytes) -> str:
    """The first line of a figure's title, which stands in its file; empty where it has none."""
    from PIL import Image, UnidentifiedImageError  # of matplotlib, which drew it

    try:
        with Image.open(io.BytesIO(png)) as image:
            return str(image.info.get("Title", ""))[:LONGEST]
    except (OSError, UnidentifiedImageError):
        return ""


def say_source(figure: str, whole: Results) -> dict[str, list[str]]:
    """Says what the page saves beside a figure: the names of the curves, the measure or the table that it shows, as far
    as its name says; empty where it does not."""
    if figure.startswith("stitching-curves"):
        return {"curves": list(whole.curves)}
    over_layers = figure.removesuffix("-seeds")
    curves = []
    for name, curve in whole.curves.items():
        quantity, point = (slug(str(curve.about[key])) if key in curve.about else None for key in ("quantity", "point"))
        if over_layers == f"by-layer-{quantity}" or figure.startswith(f"{quantity}-{point}-"):
            curves.append(name)
    if curves:
        return {"curves": curves}
    names = {m.label: slug(m.label) for m in whole.measures if figure.startswith(f"{slug(m.label)}-")}
    if names:  # of several labels that are written the same, the name does not say which
        measures = [label for label, name in names.items() if name == max(names.values(), key=len)]
        return {"measure": measures} if len(measures) == 1 else {}
    return {"table": [name for name in whole.tables if name == TABLES.get(figure.split("-")[0])]}


def _measure(
    measure: Measured, block: int, read: Callable[[Matrix, str], np.ndarray], untrained: Set[str]
) -> dict[str, Any]:
    """A measure's record with its arrays, or means over blocks of them, embedded, the colours of each quantity, and the
    level of chance, of all and of each matrix. closest: of every two models the closest layers, with their numbers."""
    arrays = [{what: read(m, what) for what in m.cells} for m in measure.matrices]
    scales = {}
    for what in QUANTITIES:
        kept = [cells[what][~np.isnan(cells[what])] for cells in arrays if what in cells]
        if kept:
            scales[what] = _describe_colour_scale(np.concatenate(kept), measure.card, what)

    pairs = list(zip(measure.matrices, arrays, strict=True))

    def level(some: Sequence[tuple[Matrix, Mapping[str, np.ndarray]]]) -> dict[str, list[float]] | None:
        drawn = [cells[CHANCE] for _, cells in some if CHANCE in cells]
        across = [c["values"].ravel() for m, c in some if (m.rows.model in untrained) != (m.columns.model in untrained)]
        chance, said = choose_chance_level(measure.chance, measure.null, drawn, np.concatenate([np.empty(0), *across]))
        return None if chance is None else {said: [chance.low, chance.middle, chance.high]}

    sides: dict[str, int] = {}  # the names of layers stand once, since a run of many models has thousands of matrices
    matrices, near = [], []
    for m, cells in pairs:
        between = _make_sides(measure, m, cells)
        places = {
            side: sides.setdefault(_encode_side(getattr(m, side), block), len(sides)) for side in ("rows", "columns")
        }
        shown = {what: _encode_array(array, block) for what, array in cells.items()}
        matrices.append(
            {
                **places,
                "n": m.n,
                "level": level([(m, cells)]) if len(pairs) <= EACH else None,
                "beyond": find_margin_over_chance(measure, cells["values"].size),
                "reach": write_reach_of_chance(measure, between),
                "apart": find_least_lead(measure, between),
                **shown,
            }
        )
        if m.rows.model != m.columns.model and (found := find_closest_cell(measure, m, cells)):
            near.append([m.rows.model, m.columns.model, *found])
    about = {**vars(measure), "matrices": matrices, "sides": [json.loads(side) for side in sides]}
    return {**about, "scales": scales, "block": block, "level": level(pairs), "closest": near}


def _make_sides(measure: Measured, matrix: Matrix, cells: Mapping[str, np.ndarray]) -> Sides:
    (first, rows), (second, columns) = ((side.model, side.layers) for side in (matrix.rows, matrix.columns))
    return Sides(
        first, second, rows, columns, cells["values"], cells.get(CHANCE), measure.larger_is_closer, se=cells.get("se")
    )


def _encode_side(side: Side, block: int) -> str:
    return json.dumps({"model": side.model, "layers": name_layer_spans(side.layers, block)})


def name_layer_spans(layers: list[str], block: int) -> list[str]:
    """The names of every `block` layers in a row.

    >>> name_layer_spans(["embed", "resid_post@0", "resid_post@1"], 2)
    ['embed to resid_post@0', 'resid_post@1']
    """
    parts = [layers[i : i + block] for i in range(0, len(layers), block)]
    return [part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]


def average_blocks(array: np.ndarray, block: int) -> np.ndarray:
    """The means over blocks of `block` rows and columns, fewer in the last ones, of the cells with a value.

    >>> average_blocks(np.array([[1.0, 2, 3], [4, 5, 6]]), 2)
    array([[3. , 4.5]])
    """
    places = [np.arange(0, n, block) for n in array.shape]
    known = np.isfinite(array)
    sums, counts = (
        np.add.reduceat(np.add.reduceat(part, places[0], 0), places[1], 1)
        for part in (np.where(known, array, 0.0), known.astype(float))
    )
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _describe_colour_scale(values: np.ndarray, card: dict[str, Any], what: str) -> dict[str, Any]:
    low, high = (0.0, 1.0) if what in SHARES else choose_colour_range(values, card, what)
    return {
        "low": low,
        "high": high,
        "colours": "cividis" if what in SHARES else choose_card_colours(card, what, "viridis"),
    }


def _read_matrix_array(
    folder: Path, so_far: Mapping[str, np.ndarray], whole: Results, measured: Measured, matrix: Matrix, what: str
) -> np.ndarray:
    """An array of a matrix, NaN where it has no value. so_far: the arrays of a running run, which may have gaps."""
    path = matrix.cells[what]
    if path in so_far:
        return so_far[path]
    array = read_array(folder, path)
    shape = (len(matrix.rows.layers), len(matrix.columns.layers))
    if array.shape != shape or array.dtype != np.float64:
        raise BadInput(
            f"{folder / path}: not float64 {shape} as its layers, got {array.dtype} {array.shape}; "
            "the run is damaged, run it again"
        )
    known = np.isfinite(array)
    if not known.all() and (np.isinf(array) | ~(known | mark_missing_cells(whole, measured, matrix))).any():
        raise BadInput(f"{folder / path}: a value is not finite, got nan or inf; the run is damaged, run it again")
    return array


def _encode(kept: Kept) -> dict[str, Any]:
    """Encodes what is kept of the rows, with its arrays in base64, little-endian."""
    arrays = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in kept.arrays.items()}
    return {**kept.about, **{name: base64.b64encode(array.tobytes()).decode() for name, array in arrays.items()}}


def _encode_array(array: np.ndarray, block: int) -> str:
    """Full precision: float64, little-endian, row by row."""
    shown = array if block == 1 else average_blocks(array, block)
    return base64.b64encode(np.ascontiguousarray(shown, dtype="<f8").tobytes()).decode()
