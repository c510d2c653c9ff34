"""Labels of any characters as names of files, cells of CSV, keys, and lines of a terminal."""

import csv
import io
import json
import logging
import shutil
import subprocess
import sys
from itertools import combinations_with_replacement

import matplotlib.image
import numpy as np
import pytest
from helpers.nights import slow
from helpers.typed import untyped
from matplotlib.figure import Figure
from matplotlib.text import Text

import repsim_cli
from repsim_cli.activations import cached
from repsim_cli.activations.readings import Reading
from repsim_cli.base.plain import encode_csv, escape, find_free_key, make_unique_filename, slug
from repsim_cli.cli.terminal import LogLines
from repsim_cli.figures import frame
from repsim_cli.figures.frame import Style, save
from repsim_cli.findings.analyse import draw
from repsim_cli.report import ASSETS, export
from repsim_cli.report.record import say_source
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import Matrix, Measured, Results, Side, Table

LONG = "Llama-3-8B-Instruct-sft-openhermes-lr1e-5-bs128-warmup-cosine-seed0"
CONTROL = "x\x1b[31m\x00\x9b\u202e\u2066\nb"
PAIRS = [
    (f"{LONG}-step3201", f"{LONG}-step9601"),
    ("org/m", "org_m"),
    ("模型", "модель"),
    ("", "/"),
    ("a b", "a_b"),
    ("A", "a"),
    ("a.", "a./"),
    (str(slug("org/m")), "org/m"),
]


def card(label):
    return {"label": label, "larger_is_closer": True, "bounds": [0.0, 1.0], "symmetric": True}


def run_of(folder, labels, measures=("cka",)):
    """A run whose first measure is k / 10 in all cells of its k-th pair of models; of the next, a hundredth more."""
    run = results.create(folder, name="study", study="similarity", seed=0, command=["repsim", "run"], overrides=[])
    measured = []
    for number, measure in enumerate(measures):
        matrices = [
            Matrix(
                rows=Side(model=labels[i], layers=["=h0", "h1"]),
                columns=Side(model=labels[j], layers=["=h0", "h1"]),
                values=run.write_array(slug(measure, labels[i], labels[j]), np.full((2, 2), k / 10 + number / 100)),
                n=100,
            )
            for k, (i, j) in enumerate(combinations_with_replacement(range(len(labels)), 2), 1)
        ]
        estimate = {"kind": "full", "rows": 100, "rows_available": 120, "batches": 1}
        measured.append(
            Measured(name="cka", label=measure, settings={}, estimate=estimate, card=card("CKA"), matrices=matrices)
        )
    rows = [[label, -0.5, number] for number, label in enumerate(labels)]
    tables = {"told": Table(columns=["model", "value", "count"], rows=rows)}
    run.write_results(Results(study="similarity", measures=measured, tables=tables, analyses={"maps": {}}))
    run.manifest.update(models={label: {} for label in labels}, facts={})
    run.finish("complete")
    return run.folder


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("turned", [False, True])
def test_two_labels_are_two_files(tmp_path, pair, turned):
    run = results.create(tmp_path / "run", name="x", study="x", seed=0, command=[], overrides=[])
    labels = pair[::-1] if turned else pair
    paths = [run.write_array(slug("probes", label, "control"), np.array([n])) for n, label in enumerate(labels)]
    assert len({path.casefold() for path in paths}) == 2
    assert [reader.read_array(run.folder, path).item() for path in paths] == [0, 1]
    assert all(path == f"arrays/{path.rpartition('/')[2]}" for path in paths)


def test_labels_that_hyphens_join_keep_apart():
    given = {}
    assert make_unique_filename(slug("a-b", "c"), given) == make_unique_filename("a-b-c", {}) == "a-b-c"
    assert make_unique_filename(slug("a", "b-c"), given).startswith("a-b-c-")
    assert make_unique_filename(slug("a-b", slug("c", "d")), given) == "a-b-c-d"
    # the hash that tells labels apart may be in another label
    hashed = make_unique_filename("a_b", {"a_b": ("a b",)})
    given = {}
    names = [make_unique_filename(name, given) for name in (hashed, "a b", "a_b")]
    assert len(set(names)) == 3


def test_short_names_stay_and_long_ones_fit():
    for name in ("cka_unbiased", "pythia-70m", "resid_post@3", "A.b", "x" * 60):
        assert slug(name) == name
    assert slug("cka", "mean cka, words") == "cka-mean_cka__words"  # names of results have spaces and commas
    long = [f"{'层' * 90}{i}" for i in range(6)]
    assert (
        len(make_unique_filename(slug(*long), {slug(*long): ("other",)})) < 200
    )  # with what a suffix and a partial file add to it


def test_nothing_is_written_twice(tmp_path):
    run = results.create(tmp_path / "run", name="x", study="x", seed=0, command=[], overrides=[])
    run.write_array("a-b", np.zeros(1))
    with pytest.raises(RuntimeError, match="a-b: the file of this name is written twice"):
        run.write_array("a-b", np.ones(1))
    run.write_results(Results(study="similarity"))
    run.finish("complete")
    with results.amend(run.folder) as again:  # as an analysis that is made again
        again.write_array("a-b", np.ones(1))
    with pytest.raises(RuntimeError, match="cka-all: the file of this name is written twice"):
        save(tmp_path, [("cka-all", Figure), ("cka-all", Figure)])


PICTURES = Style(format=("png",))


@pytest.mark.parametrize("pair", slow(PAIRS[:-1], *PAIRS[1:4]))
def test_figures_of_two_labels_are_two_files(tmp_path, pair):
    """Measures of two labels, each with its own colours; drawn again they are the same files."""
    folder = run_of(tmp_path / "run", ["m", "n"], pair)
    files = draw(folder, style=PICTURES)
    maps = [file for file in files if not file.name.startswith("measures")]
    assert len({file.name.casefold() for file in maps}) == 2
    one, two = (matplotlib.image.imread(file) for file in maps)
    assert one.shape != two.shape or (one != two).any()
    if pair == PAIRS[0]:
        assert draw(folder, style=PICTURES) == files


def test_small_multiples_of_labels_that_hyphens_join(tmp_path, monkeypatch):
    folder = run_of(tmp_path / "run", ["a-b", "c", "a", "b-c"], ["cka", "cka_unbiased"])
    monkeypatch.setattr(frame, "_fit_figure", lambda *_: Figure())  # the names alone
    names = {file.stem for file in draw(folder, whole=True, style=PICTURES) if file.name.startswith("measures-a-b-c")}
    assert len(names) == 2


def test_exports_of_two_labels_are_two_tables(tmp_path):
    labels = [f"{LONG}-step3201", f"{LONG}-step9601", "A b", "a_b", "模型", "x-y", "x", "y-x"]
    folder = run_of(tmp_path / "run", labels)
    files = export.export(folder, tmp_path / "out", ["csv", "latex"])
    assert len({file.name.casefold() for file in files}) == len(files)
    pairs = list(combinations_with_replacement(labels, 2))
    tables = [file for file in files if file.name.startswith("cka-") and file.suffix == ".csv"]
    assert [file.read_text().split(",")[-1] for file in tables] == [f"{k / 10}\n" for k in range(1, len(pairs) + 1)]
    assert [file.stem for file in files if file.suffix == ".tex"][: len(pairs)] == [file.stem for file in tables]


def test_the_report_saves_the_numbers_of_no_other_label(tmp_path):
    def named(figure, *labels):
        estimate = {"kind": "full", "rows": 1, "rows_available": 1, "batches": 1}
        measures = [Measured(name="cka", label=x, settings={}, estimate=estimate, card={}, matrices=[]) for x in labels]
        return say_source(figure, Results(study="similarity", measures=measures))

    assert named("cka_unbiased-all", "cka", "cka_unbiased") == {"measure": ["cka_unbiased"]}
    assert named(f"{slug('org/m')}-all", "org_m", "org/m") == {"measure": ["org/m"]}
    assert named("a_b-all", "a b", "a_b") == {}


def test_keys_of_labels_that_hold_what_joins_them():
    kept = {}
    for row, column in [("a, b", "c"), ("a", "b, c"), ("a", "b, c")]:
        kept[find_free_key(f"{row}, {column}", kept)] = row
    assert kept == {"a, b, c": "a, b", "a, b, c 2": "a", "a, b, c 3": "a"}


@untyped
@pytest.mark.parametrize("label", ["../../outside", "/tmp/x", "x" * 300, "a\0b"])
def test_rows_of_a_run_stay_in_its_folder(tmp_path, monkeypatch, label):
    monkeypatch.setattr(cached, "make_activations_key", lambda *_: "key")
    live = [Reading(label=label, source=None, layers=[], points=[])]
    with cached.entries_of(tmp_path / "rows", live, {label: None}, {label: {}}, None, "float32") as entries:
        assert entries[label].folder.parent == tmp_path / "rows"
        assert len(entries[label].folder.name) < 100


FORMULAS = ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", " =1", "＝1"]
NUMBERS = [-2, -0.5, 1e-7, float("-inf"), "-2", "+1.5e-3", "-.5", "-inf", "a=b", "2-1", "", None, True]


def test_cells_are_no_formulas_and_numbers_stay():
    text = encode_csv([FORMULAS, NUMBERS]).decode()
    assert text.count("\n") == 3  # two rows, and the line in a cell
    formulas, numbers = csv.reader(io.StringIO(text, newline=""))
    assert formulas == [f"'{cell}".replace("\r", "\n") for cell in FORMULAS]
    assert numbers == ["" if cell is None else str(cell) for cell in NUMBERS]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_cells_that_a_page_saves():
    script = f"{(ASSETS / 'common.js').read_text()}\nprocess.stdout.write(csv(...{json.dumps([FORMULAS, [[-2, '-2', '-x=1', None]]])}))"
    out = subprocess.run(["node", "-e", script], capture_output=True, check=True).stdout.decode()
    formulas, numbers = csv.reader(io.StringIO(out, newline=""))
    assert formulas == [f"'{cell}" for cell in FORMULAS]
    assert numbers == ["-2", "-2", "'-x=1", ""]


def test_labels_that_are_formulas_in_exports(tmp_path):
    folder = run_of(tmp_path / "run", ["=1+1", "@SUM(A1)"])
    export.export(folder, tmp_path, ["csv"])
    rows = list(csv.reader((tmp_path / "table-told.csv").read_text().splitlines()))
    assert rows == [["model", "value", "count"], ["'=1+1", "-0.5", "0"], ["'@SUM(A1)", "-0.5", "1"]]
    assert {file.read_text().split("\n")[0] for file in tmp_path.glob("cka-*.csv")} == {"layer,'=h0,h1"}


def test_control_characters_in_latex():
    sheet = export.Sheet("t", f"of {CONTROL}\r\\input{{x}}", ["m"], [["[1] *"], [CONTROL]])
    text = export.convert_to_latex(sheet).decode()
    assert unsafe(text) == []
    comment, *_, second, third, _, _ = text.splitlines()
    assert comment.startswith(r"% of x\x1b[31m\x00\x9b\u202e\u2066 b \input{x}; needs ")
    assert second == r"{[}1] {*} \\"  # not an option of the line before
    assert (
        third
        == r"x\textbackslash{}x1b{[}31m\textbackslash{}x00\textbackslash{}x9b\textbackslash{}u202e\textbackslash{}u2066 b \\"
    )


def test_control_characters_in_figures(tmp_path):
    made = []

    def figure():
        made.append(Figure())
        axes = made[-1].subplots()
        axes.set_xticks([0, 1], ["$x\x1b$", "y"])
        for label in axes.get_xticklabels():
            label.set_parse_math(False)
        axes.set_title(f"{CONTROL}\nsecond line", parse_math=False)
        return made[-1]

    save(tmp_path, [("a", figure)])
    (axes,) = made[-1].axes
    assert axes.get_title() == "x\\x1b[31m\\x00\\x9b\\u202e\\u2066\nb\nsecond line"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$x\\x1b$", "y"]
    assert not set((tmp_path / "a.svg").read_text()) & set("\x1b\x00\x9b\u202e\u2066")
    assert not (tmp_path / "labels.txt").exists()


def test_a_label_that_begins_another_has_a_map_of_its_own(tmp_path):
    result = repsim_cli.load(run_of(tmp_path / "run", ["m", "n"], ["cka_unbiased", "cka", "measures"]))
    for number, name in enumerate(result.measures):
        assert f"{0.1 + number / 100:.2f}" in {text.get_text() for text in result.plot(name).findobj(Text)}


@pytest.mark.slow
def test_a_run_of_labels_that_begin_alike(repsim, newest, tmp_path):
    """Arrays, exports and figures of a probe of each of two models have the numbers that the table has."""
    labels = [f"{LONG}-step3201", f"{LONG}-step9601"]
    classes = np.random.default_rng(0).choice(["x", "y"], 60)
    rows = [f"{['rain', 'dogs', 'cats', 'wind'][i % 4]} word{i},{name}" for i, name in enumerate(classes)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]))
    config = {
        "defaults": [{"override /model": []}, {"override /data": "table"}, {"override /measure": []}, {"override /extract": "pooled"}],
        "study": "probes",
        "data": {"path": str(tmp_path / "t.csv"), "label": "label"},
        "extract": {"sequences": 60, "rows": 60, "layers": [1, 3, 5]},
        "options": {"probes": ["ridge_classification"]},
        "model": {label: {"kind": "shipped", "name": name} for label, name in zip(labels, ["tiny_a_step100", "tiny_b"], strict=True)},
    }  # fmt: skip
    (tmp_path / "c" / "experiment").mkdir(parents=True)
    (tmp_path / "c" / "experiment" / "long.yaml").write_text(f"# @package _global_\n{json.dumps(config)}")
    code, _, err = repsim(
        "run", "--config-dir", tmp_path / "c", "experiment=long", "hardware.threads=1", "hardware.processes=1"
    )
    assert code == 0, err
    whole = reader.read_results(newest())
    told = [[row[4] for row in whole.tables["probes"].rows if row[0] == label] for label in labels]
    assert told[0] != told[1]
    kept = [reader.read_array(newest(), whole.matrices[f"ridge_classification, {x}"].values)[:, 0] for x in labels]
    np.testing.assert_array_equal(kept, told)
    assert len([file for file in draw(newest(), only=["probes"]) if file.name.startswith("probes-")]) == 4
    tables = [file.read_text() for file in export.export(newest(), tmp_path / "out", ["csv"]) if "matrix-" in file.name]
    assert [[float(line.split(",")[1]) for line in text.splitlines()[1:]] for text in tables] == told


def unsafe(text):
    return [line for line in text.split("\n") if escape(line) != line]


def test_control_characters_of_labels_in_a_terminal(repsim, tmp_path):
    """Labels stand in what a run says of itself, in lists of runs and in differences of two."""
    folders = [run_of(tmp_path / "outputs" / f"run{i}", [CONTROL, "m"], [f"cka{CONTROL}"]) for i in range(2)]
    for folder in folders:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest |= {"name": f"n{CONTROL}", "warnings": [f"of {CONTROL}"], "error": f"e {CONTROL}"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    shown = r"x\x1b[31m\x00\x9b\u202e\u2066\nb"
    for words in (["show", folders[0]], ["list", "run"], ["diff", *folders], ["claims"]):
        code, out, err = repsim(*words)
        assert (code, err, unsafe(out)) == (0, "", [])
        assert shown in out or words == ["claims"]


@pytest.mark.parametrize(
    "words",
    [
        ["show", CONTROL],
        ["diff", CONTROL, CONTROL],
        [CONTROL],
        ["list", CONTROL],
        ["list", "run", CONTROL],
        ["measure", CONTROL, "x.npy", "y.npy"],
        ["describe", CONTROL],
        ["cache", "--limit", CONTROL],
        ["run", f"{CONTROL}=1"],
    ],
)
def test_control_characters_of_words_in_errors(repsim, words):
    code, out, err = repsim(*words)
    assert (code, out) == (2, "")
    assert r"\x1b[31m" in err
    assert unsafe(err) == []


def test_control_characters_in_the_log():
    """Messages have none, nor have their tracebacks, whose lines stay."""
    try:
        raise ValueError(CONTROL)
    except ValueError:
        record = logging.getLogger("repsim").makeRecord("repsim", 30, "", 0, "of %s", (CONTROL,), True)
        record.exc_info = sys.exc_info()
    text = LogLines("%(levelname)s: %(message)s").format(record)
    assert unsafe(text) == []
    first, *others = text.splitlines()
    assert first == r"WARNING: of x\x1b[31m\x00\x9b\u202e\u2066\nb"
    assert len(others) > 2
