"""The numbers of a run as files for papers and other programs: CSV, LaTeX and parquet."""

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.base.plain import Name, encode_csv, escape, make_unique_filename
from repsim_cli.figures.heatmap import name_by_block
from repsim_cli.findings import answering
from repsim_cli.runs.content import QUANTITIES, Curve, Matrix, omit_nan
from repsim_cli.runs.reader import read_array, read_results
from repsim_cli.runs.results import write

FORMATS = ("csv", "latex", "parquet")
LAYERS = ("layer", "closest_layer")  # columns with names of layers
SUFFIXES = {"csv": "csv", "latex": "tex", "parquet": "parquet"}
SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    "[": "{[}",  # an option of the end of the line before, as is a star
    "*": "{*}",
}


class Sheet(NamedTuple):
    """A table of a run: its name, and what it is, in words. long: it is made for programs, too long for a page."""

    name: str
    about: str
    columns: list[str]
    rows: list[list[Any]]
    long: bool = False


def build_sheets(folder: Path) -> Iterator[Sheet]:
    """Builds the tables of a run: all pairs of layers in one; which layer answers to which; a table per matrix, a row
    per layer; the tables and curves of the results.

    Raises BadInput for a damaged run.
    """
    results = read_results(folder)
    pairs: list[list[Any]] = []
    for measured in results.measures:
        for matrix in measured.matrices:
            labels = (measured.label, matrix.rows.model, matrix.columns.model)
            about = f"{measured.card['label']}: layers of {matrix.rows.model} by layers of {matrix.columns.model}"
            about = f"{about}, {matrix.n or measured.estimate['rows']} rows"
            yield _tabulate_matrix(folder, Name("-".join(labels), labels), about, matrix)
            pairs += _tabulate_pairs(folder, measured.label, matrix)
    columns = ["measure", "model", "layer", "other_model", "other_layer", "value", *QUANTITIES[1:]]
    if pairs:
        yield Sheet("pairs", "all pairs of layers", columns, pairs, long=True)
    if found := answering.tabulate_closest_layers(results.measures, partial(read_array, folder)):
        about = "for each layer the closest of the other model, and how much closer it is than the second closest"
        several = len({row[1] for row in found}) > 2
        yield Sheet("answering", about, answering.COLUMNS, found, long=several)
    for name, matrix in results.matrices.items():
        if read_array(folder, matrix.values, mapped=True).ndim == 2:
            about = name if matrix.label in ("", name) else f"{name}: {matrix.label}"
            yield _tabulate_matrix(folder, f"matrix-{name}", about, matrix)
    for name, table in results.tables.items():
        if table.rows:
            yield Sheet(f"table-{name}", name, table.columns, table.rows)
    if results.curves:
        points = [[name, *point] for name, curve in results.curves.items() for point in _tabulate_points(curve)]
        yield Sheet("curves", "all curves", ["curve", "line", "x", "y"], points, long=True)


def _tabulate_matrix(folder: Path, name: str, about: str, matrix: Matrix) -> Sheet:
    """A row per row of the array; rows and columns that are not layers have numbers."""
    values = read_array(folder, matrix.values)
    sides = zip((matrix.rows.layers, matrix.columns.layers), values.shape, strict=True)
    rows, columns = (names if len(names) == count else list(map(str, range(count))) for names, count in sides)
    cells = [[row, *map(omit_nan, numbers)] for row, numbers in zip(rows, values.tolist(), strict=True)]
    return Sheet(name, about, ["layer", *columns], cells, long=columns is not matrix.columns.layers)


def _tabulate_pairs(folder: Path, measure: str, matrix: Matrix) -> Iterator[list[Any]]:
    parts = {what: read_array(folder, path) for what, path in matrix.cells.items()}
    for i, layer in enumerate(matrix.rows.layers):
        for j, other in enumerate(matrix.columns.layers):
            cells = [omit_nan(parts[what][i, j].item()) if what in parts else None for what in QUANTITIES]
            yield [measure, matrix.rows.model, layer, matrix.columns.model, other, *cells]


def _tabulate_points(curve: Curve) -> Iterator[list[Any]]:
    for line, values in curve.lines.items():
        yield from ([line, str(x), y] for x, y in zip(curve.at, values, strict=True))


def export(folder: Path, into: Path, kinds: list[str]) -> list[Path]:
    """Writes the tables of a run into a folder, in each format of `FORMATS` that is asked for; returns the files.

    Raises BadInput for a damaged run, before anything is written.
    """
    whole = list(build_sheets(folder))
    written: list[Path] = []
    given: dict[str, tuple[str, ...]] = {}
    stems = [make_unique_filename(sheet.name, given) for sheet in whole]
    for kind in kinds:
        for stem, sheet in zip(stems, whole, strict=True):
            if kind == "latex" and sheet.long:
                continue
            into.mkdir(parents=True, exist_ok=True)
            content = {"csv": convert_to_csv, "latex": convert_to_latex, "parquet": convert_to_parquet}[kind](sheet)
            written.append(into / f"{stem}.{SUFFIXES[kind]}")
            write(written[-1], content)
    return written


def convert_to_csv(sheet: Sheet) -> bytes:
    """Converts a table to CSV with full precision; what a run does not have is an empty field."""
    return encode_csv([sheet.columns, *sheet.rows])


def convert_to_parquet(sheet: Sheet) -> bytes:
    """A column of numbers is one of floats; a column of numbers and text is one of text."""
    import pyarrow
    import pyarrow.parquet

    stream = io.BytesIO()
    columns = []
    for cells in zip(*sheet.rows, strict=True) if sheet.rows else [()] * len(sheet.columns):
        kinds = {type(cell) for cell in cells if cell is not None}
        if kinds == {int, float}:
            cells = tuple(None if cell is None else float(cell) for cell in cells)
        elif len(kinds) > 1 or kinds & {list, dict}:
            cells = tuple(None if cell is None else str(cell) for cell in cells)
        columns.append(pyarrow.array(cells))
    # arrays may have two columns of one name, as two layers cannot
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=sheet.columns), stream)
    return stream.getvalue()


def convert_to_latex(sheet: Sheet) -> bytes:
    """A tabular for the package booktabs, numbers with three decimals. Layers of one hook point are named by block."""
    named = LAYERS if sheet.columns == answering.COLUMNS else sheet.columns[:1]
    layers = [place for place, name in enumerate(sheet.columns) if name in named and name in LAYERS]
    if layers:
        written = [*sheet.columns, *(row[place] for row in sheet.rows for place in layers)]
        names, said = name_by_block(written)
        short = dict(zip(written, names, strict=True))
        about = f"{sheet.about}; {said}" if said else sheet.about
        rows = [[short[cell] if place in layers else cell for place, cell in enumerate(row)] for row in sheet.rows]
        sheet = sheet._replace(about=about, columns=names[: len(sheet.columns)], rows=rows)
    numeric = [all(cell is None or _is_number(cell) for cell in cells) for cells in zip(*sheet.rows, strict=True)]
    kinds = "".join("r" if number else "l" for number in numeric) or "l" * len(sheet.columns)
    lines = [
        f"% {_put_on_one_line(sheet.about)}; needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{{kinds}}}",
        "\\toprule",
        " & ".join(map(_escape, sheet.columns)) + " \\\\",
        "\\midrule",
        *(" & ".join(map(_format_latex_cell, row)) + " \\\\" for row in sheet.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _format_latex_cell(cell: Any) -> str:
    """
    >>> [_format_latex_cell(value) for value in (0.12345, -2e-7, 12, None, "a_b")]
    ['0.123', '$-2 \\\\times 10^{-7}$', '12', '--', 'a\\\\_b']
    """
    if cell is None:
        return "--"
    if not isinstance(cell, float):
        return _escape(str(cell))
    if cell == 0 or 1e-3 <= abs(cell) < 1e5:
        return f"{cell:.3f}" if cell >= 0 else f"${cell:.3f}$"
    digits, _, power = f"{cell:.3g}".partition("e")
    return f"${digits} \\times 10^{{{int(power)}}}$" if power else f"${digits}$"


def _escape(text: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in _put_on_one_line(text))


def _put_on_one_line(text: str) -> str:
    return escape(" ".join(text.split()))
