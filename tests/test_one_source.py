"""A number that stands at several places is the same at all of them, and belongs to the pair of layers that is named."""

import csv
import re
import shutil

import numpy as np
import pytest

import repsim_cli
from repsim_cli.base.errors import BadInput
from repsim_cli.figures.chance import say_pairings
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.chance import find_chance_of_values
from repsim_cli.report.record import record
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import CHANCE, QUANTITIES

TESTED = (
    "model=[tiny_a,tiny_b]", "measure=[cka_unbiased,mutual_knn,procrustes,linear_regression]", "extract.sequences=16",
    "extract.batch_rows=400", "significance=permutation", "significance.permutations=19", "significance.bands=true",
    "extract.layers=[3,4,5]",
)  # fmt: skip
MODELS = ("tiny_a", "tiny_b")


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished(*TESTED), tmp_path / "outputs" / "day" / "run")


def tabled(folder):
    """The rows of the table of the closest layers, by column."""
    table = reader.read_results(folder).tables["closest layers"]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_closest_layers_have_the_numbers_of_their_own_cell(run, tmp_path, repsim):
    """The cell's numbers stand in results.json, `show`, CSV, LaTeX, the page, Python: value, and what the test says of
    that pair of layers."""
    whole, rows, result = reader.read_results(run), tabled(run), repsim_cli.load(run)
    code, _, err = repsim("export", run, "--csv", "--latex", "--output", tmp_path / "paper")
    assert code == 0, err
    with (tmp_path / "paper" / "table-closest_layers.csv").open() as file:
        exported = list(csv.DictReader(file))
    with (tmp_path / "paper" / "pairs.csv").open() as file:
        pairs = {tuple(row[key] for key in ("measure", "model", "layer", "other_model", "other_layer")): row
                 for row in csv.DictReader(file)}  # fmt: skip
    latex = (tmp_path / "paper" / "table-closest_layers.tex").read_text().replace("\\_", "_")
    shown = repsim("show", run)[1]
    page = {
        label: of for measured in record(run)["measures"] for label, of in [(measured["label"], measured["closest"])]
    }
    both_ways = [("linear_regression", *models) for models in (MODELS, MODELS[::-1])]
    one_way = [(label, *MODELS) for label in ("cka_unbiased", "mutual_knn", "procrustes")]
    assert [(row["measure"], row["model a"], row["model b"]) for row in rows] == [*one_way, *both_ways]
    elsewhere = 0
    for row, as_csv in zip(rows, exported, strict=True):
        label, *models, first, second = list(row.values())[:5]
        (measured,) = (each for each in whole.measures if each.label == label)
        (matrix,) = (m for m in measured.matrices if [m.rows.model, m.columns.model] == models)
        arrays = {what: reader.read_array(run, path) for what, path in matrix.cells.items()}
        cell = matrix.rows.layers.index(first), matrix.columns.layers.index(second)
        numbers = {"value" if what == "values" else what: array[cell] for what, array in arrays.items()}
        best = np.argmax if measured.larger_is_closer else np.argmin
        assert np.unravel_index(best(arrays["values"]), arrays["values"].shape) == cell
        elsewhere += best(arrays["tested"]) != best(arrays["values"])
        assert list(row)[5:] == ["value", "tested", CHANCE, "calibrated", "p", "p_family"]
        of_pair = {"value": pairs[label, models[0], first, models[1], second]["value"]}
        of_pair |= {name: pairs[label, models[0], first, models[1], second][name] for name in list(row)[6:]}
        for name in list(row)[5:]:
            assert row[name] == numbers[name] == float(as_csv[name]) == float(of_pair[name])
        (of_page,) = (each for each in page[label] if list(each[:2]) == models)
        assert list(of_page[2:4]) == [first, second]
        assert {**of_page[4], "value": of_page[4]["values"]}.items() >= {key: row[key] for key in list(row)[5:]}.items()
        assert result.closest(*models, label) == (first, second, row["value"])
        if measured.card["symmetric"]:
            assert result.closest(*models[::-1], label) == (second, first, row["value"])
        frame = result.frame().set_index(["measure", "model", "layer", "other_model", "other_layer"])
        assert frame.loc[label, models[0], first, models[1], second][list(row)[5:]].to_dict() == dict(
            list(row.items())[5:]
        )
        assert re.search(r"\s+".join(map(re.escape, [label, *models, first, second, f"{row['value']:,.4g}"])), shown)
        assert re.search(" & ".join([label, *models, first, second, f"{row['value']:.3f}"]), latex)
    assert elsewhere  # else a number of the closest tested pair would not be noticed


def test_every_quantity_of_every_pair_is_one_number(run):
    """What a cell has in arrays/ is in the frame, in the CSV of all pairs and on the page."""
    from repsim_cli.report import export

    result, frame = repsim_cli.load(run), repsim_cli.load(run).frame()
    (sheet,) = (sheet for sheet in export.build_sheets(run) if sheet.name == "pairs")
    known = ["value", *(what for what in QUANTITIES[1:] if what != "q")]  # which 19 permutations cannot make small
    assert set(sheet.columns[5:]) - {"q"} == set(known)
    assert len(sheet.rows) == len(frame)
    for what in known:
        exported = np.array([row[sheet.columns.index(what)] for row in sheet.rows], float)
        np.testing.assert_array_equal(exported, frame[what])
    for measured in result.results.measures:
        for matrix in measured.matrices:
            assert set(matrix.cells) - {"q"} == {*QUANTITIES} - {"q"}
            first, second = matrix.rows.model, matrix.columns.model
            here = frame[(frame.measure == measured.label) & (frame.model == first) & (frame.other_model == second)]
            np.testing.assert_array_equal(here["value"], result.matrix(first, second, measured.label).values.ravel())


def test_the_level_of_chance_of_two_models_is_that_of_their_layers(run):
    """The level stands in figures, on the page and in Python, where the level of all models together is another."""
    whole, result = reader.read_results(run), repsim_cli.load(run)
    about = Finished(folder=run, manifest=reader.read_manifest(run), results=whole)
    for measured, of_page in zip(whole.measures, record(run)["measures"], strict=True):
        for matrix, level in zip(measured.matrices, of_page["matrices"], strict=True):
            models = matrix.rows.model, matrix.columns.model
            cells = reader.read_array(run, matrix.details[CHANCE])
            chance = result.chance(*models, measured.label)
            assert (chance.low, chance.middle, chance.high) == (cells.min(), np.median(cells), cells.max())
            values = reader.read_array(run, matrix.values)
            sides = ([model] * size for model, size in zip(models, values.shape, strict=True))
            drawn, said = find_chance_of_values(about, measured, values, *sides)
            assert (drawn, said) == (chance, f"chance, {say_pairings(measured.chance)}")
            assert level["level"] == {said: [chance.low, chance.middle, chance.high]}
        if measured.chance["mean"] == "exact":
            assert of_page["level"] not in [level["level"] for level in of_page["matrices"]]


@pytest.mark.slow
def test_the_answer_of_a_comparison_has_the_numbers_of_the_table(repsim, newest):
    words = [f"--set={word}" for word in TESTED if word.startswith("extract")]
    code, out, err = repsim(
        "compare", *MODELS, "--measure", "mutual_knn", "--significance", "permutation",
        "--set=significance.permutations=19", *words,
    )  # fmt: skip
    assert code == 0, err
    (row,) = tabled(newest())
    (told,) = re.findall(r"closest: block (\d) of tiny_a and block (\d) of tiny_b, ([\d.]+);", out)
    assert told == (row["layer a"][-1], row["layer b"][-1], f"{row['value']:.2f}")
    share = reader.read_results(newest()).measures[0].null["share"]
    named = {"calibrated": "calibrated", "p": "p", "family-wise p": "p_family"}
    judged = ", ".join(f"{name} {row[key]:.3g}" for name, key in named.items())
    tested = f"{row['tested']:.2f} on the {100 * share:.0f} % of rows that were tested: {judged}"
    assert f"      chance {row[CHANCE]:.2f}; {tested}" in out


def test_summaries_of_many_measures_are_over_all_cells_of_two_layers(repsim, newest, tmp_path):
    """Summaries are no means of means: models differ in their number of layers. None is of a layer with itself."""
    draw = np.random.default_rng(0)
    for label, layers in {"a": 2, "b": 5}.items():
        np.savez(tmp_path / label, **{f"h{i}": draw.normal(size=(40, 3)) for i in range(layers)})
    models = [f"+model.{label}={{kind: precomputed, path: {tmp_path / label}.npz}}" for label in "ab"]
    names = "cka,cka_unbiased,rsa,procrustes,mutual_knn,rank_jaccard,linear_regression"
    code, _, err = repsim("run", "model=[]", *models, "extract.estimate=full", f"measure=[{names}]")
    assert code == 0, err
    out = repsim("show", newest())[1]
    frame = repsim_cli.load(newest()).frame()
    itself = (frame["model"] == frame["other_model"]) & (frame["layer"] == frame["other_layer"])
    for label, values in frame[~itself].groupby("measure")["value"]:
        (line,) = re.findall(rf"\n  {label}: .*\n(.*)\n", out)
        numbers = list(map(float, re.findall(r"-?\d+\.\d+", line)))
        assert numbers == pytest.approx([values.mean(), values.min(), values.max()], abs=6e-4)


def test_gaps_and_ties_among_the_closest_layers(run):
    """A gap is never the closest, the first of equal pairs is, in whichever order the models are named."""
    before = repsim_cli.load(run)
    matrix = next(m for m in before.results.measures[0].matrices if m.rows.model != m.columns.model)
    values = np.full_like(before.matrix(*MODELS).values, 0.5)
    values[0] = np.nan
    for given in (values, np.full_like(values, np.nan)):
        with results.amend(run) as writer:
            writer.write_array(matrix.values.rsplit("/", 1)[1].removesuffix(".npy"), given)
        result = repsim_cli.load(run)
        if np.isfinite(given).any():
            first, second = matrix.rows.layers[1], matrix.columns.layers[0]
            assert result.closest(*MODELS) == (first, second, 0.5)
            assert result.closest(*MODELS[::-1]) == (second, first, 0.5)
    with pytest.raises(
        BadInput, match="closest: no layers of these models have a value, got 'tiny_a' and 'tiny_b'; na"
    ):
        result.closest(*MODELS)
