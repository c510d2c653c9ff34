"""The numbers and figures of a run as files for papers."""

import csv
import json
import re
import shutil
from dataclasses import asdict, replace

import numpy as np
import pyarrow.parquet
import pytest
from helpers.small_run import SMALL

from repsim_cli.report import export
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import Matrix, Side, Table


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished(*SMALL), tmp_path / "outputs" / "run")


def test_tables_say_what_the_run_says(repsim, run, tmp_path):
    code, out, err = repsim("export", run, "--csv", "--latex", "--parquet", "--output", tmp_path / "paper")
    assert code == 0, err
    files = [tmp_path / "paper" / line.rsplit("/", 1)[-1] for line in out.splitlines()]
    assert all(file.is_file() for file in files)
    (pair,) = (m for m in reader.read_results(run).measures[0].matrices if m.rows.model != m.columns.model)
    values = reader.read_array(run, pair.values)
    with (tmp_path / "paper" / "cka-tiny_a-tiny_b.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["layer", *pair.columns.layers]
    assert [row[0] for row in rows] == pair.rows.layers
    np.testing.assert_array_equal(np.array([row[1:] for row in rows], float), values)
    pairs = pyarrow.parquet.read_table(tmp_path / "paper" / "pairs.parquet").to_pylist()
    cka = [row for row in pairs if row["measure"] == "cka"]
    both = [row for row in cka if (row["model"], row["other_model"]) == ("tiny_a", "tiny_b")]
    assert [row["value"] for row in both] == values.ravel().tolist()
    assert (both[1]["layer"], both[1]["other_layer"]) == (pair.rows.layers[0], pair.columns.layers[1])
    text = (tmp_path / "paper" / "cka-tiny_a-tiny_b.tex").read_text()
    assert re.match(r"% CKA.*: layers of tiny_a by layers of tiny_b, 200 rows; resid_post by block; needs ", text)
    (header,) = re.findall(r"^layer & (.*) \\\\$", text, re.M)
    assert header.split(" & ") == [name.removeprefix("resid_post@") for name in pair.columns.layers]
    lines = re.findall(r"^(\d|embed) & (.*) \\\\$", text, re.M)
    assert len(lines) == len(pair.rows.layers)
    cells = [[float(cell.strip("$")) for cell in line.split(" & ")] for _, line in lines]
    np.testing.assert_allclose(cells, values, atol=5.1e-4)
    assert not (tmp_path / "paper" / "pairs.tex").exists()  # a page holds no row per pair


@pytest.mark.slow
def test_figures_for_a_column(repsim, finished, tmp_path):
    """Vector files of the width asked for, fonts inside, no title."""
    run = shutil.copytree(finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10"), tmp_path / "run")
    code, out, err = repsim("export", run, "--pdf", "--width", "column", "--colours", "magma")
    assert code == 0, err
    files = [run / "export" / line.rsplit("/", 1)[-1] for line in out.splitlines()]
    assert files
    for file in files:
        content = file.read_bytes()
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
        assert float(width) / 72 == pytest.approx(3.25, abs=0.005)
        assert b"/FontFile2" in content
        assert b"/Subtype /Type3" not in content
        assert b"/CreationDate" not in content  # bytes depend on the data alone
    assert not list((run / "figures").glob("*.pdf"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "error: repsim export: no format is asked for; add --csv, --latex, --parquet or --pdf"),
        (["--pdf", "--colours", "magmar"], "error: colours: no such colour map, got 'magmar'; did you mean 'magma"),
        (["--pdf", "--font", "Nowhere Sans"], "error: font: not installed, got 'Nowhere Sans'; "),
    ],
)
def test_bad_words(repsim, run, words, message):
    code, out, err = repsim("export", run, *words)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert not (run / "export").exists()


def test_tables_without_rows_are_not_written_and_latex_says_what_each_is(run):
    whole = reader.read_results(run)
    filled, lacking = (Table(columns=["model", "share, 95 % interval"], rows=rows) for rows in ([["a_b", 0.5]], []))
    with results.amend(run) as amended:
        amended.write_results(replace(whole, tables={"filled\nlines": filled, "lacking": lacking}))
    sheets = {sheet.name: sheet for sheet in export.build_sheets(run)}
    assert [name for name in sheets if name.startswith("table-")] == ["table-filled\nlines"]
    first, second, *_ = export.convert_to_latex(sheets["table-filled\nlines"]).decode().split("\n")
    assert first == r"% filled lines; needs \usepackage{booktabs}"
    assert second == r"\begin{tabular}{lr}"


def test_cells():
    sheet = export.Sheet("t", "of 50 %", ["a_b", "n"], [["x & y", 3], ["~", None]])
    assert export.convert_to_latex(sheet).decode().splitlines()[1:] == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\_b & n \\",
        r"\midrule",
        r"x \& y & 3 \\",
        r"\textasciitilde{} & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert export.convert_to_csv(sheet) == b"a_b,n\nx & y,3\n~,\n"
    mixed = export.Sheet("t", "", ["x", "y", "z"], [[1, "a", [1]], [2.5, 3, None]])
    read = pyarrow.parquet.read_table(pyarrow.BufferReader(export.convert_to_parquet(mixed)))
    assert read.to_pylist() == [{"x": 1.0, "y": "a", "z": "[1]"}, {"x": 2.5, "y": "3", "z": None}]


def test_arrays_whose_columns_are_no_layers(run, tmp_path):
    """Columns of feature maps, which are places, have numbers, and no LaTeX table."""
    np.save(run / "arrays" / "maps.npy", np.arange(6.0).reshape(2, 3))
    images, net = Side(model="images", layers=["0", "1"]), Side(model="net", layers=["conv@0"])
    matrix = Matrix(rows=images, columns=net, values="arrays/maps.npy")
    given = json.loads((run / "results.json").read_text())
    with results.amend(run):
        (run / "results.json").write_text(json.dumps(given | {"matrices": {"maps": asdict(matrix)}}))
    files = {file.name for file in export.export(run, tmp_path / "out", ["csv", "latex"])}
    assert "matrix-maps.tex" not in files
    with (tmp_path / "out" / "matrix-maps.csv").open() as file:
        assert list(csv.reader(file)) == [
            ["layer", "0", "1", "2"],
            ["0", "0.0", "1.0", "2.0"],
            ["1", "3.0", "4.0", "5.0"],
        ]
