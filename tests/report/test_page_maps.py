"""Maps on a page, in a real browser."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.made_runs import made, saved
from helpers.pages import (
    FACTS,
    READOUT,
    box,
    changed,
    choose,
    colour,
    downloaded,
    everything,
    hovered,
    inside,
    read,
    value,
)

from repsim_cli import report
from repsim_cli.report import differences as comparison
from repsim_cli.runs import reader, results


def test_jobs_of_a_sweep_are_told_apart_and_equal_values_are_said(tmp_path, opened, repsim):
    """The third differs; each has a sentence of its results."""
    sweep = tmp_path / "outputs" / "2026-11-20" / "07-30-41-sweep"
    folders = [made(sweep / f"{number}-study", seed=seed, measures=("cka",)) for number, seed in enumerate((0, 0, 1))]
    for number, folder in enumerate(folders):
        with results.amend(folder) as run:
            run.manifest["overrides"] = ["study=similarity", f"seed={number}"]
    page = opened(saved(*folders), width=1400)
    heads = page.evaluate("[...document.querySelectorAll('#results h3')].map((h) => h.textContent)")
    assert heads == [f"{letter}: study, seed={number}" for number, letter in enumerate("ABC")]
    told = page.evaluate("document.querySelector('#results').textContent")
    assert told.count("All values are those of A, to the bit: seed=1 changes none.") == told.count("All values") == 1
    assert told.count("small and large are ") == 3
    out = repsim("show", sweep.name)[1]
    assert out.count("all values are those of 0-study, to the bit: seed=1 changes none") == out.count("all values") == 1


@pytest.mark.parametrize(
    ("label", "scale"),
    [("cka", ("viridis", 0, 1)), ("procrustes", ("viridis_r", 0, 2)), ("regression", ("viridis", 0, 1))],
)
def test_hover_shows_the_number_and_its_colour(tmp_path, opened, label, scale):
    """Every point of a grid over the heatmap: names, full value, standard error, p, and the colour drawn there."""
    folder = made(tmp_path / "run")
    page = opened(saved(folder))
    everything(page)
    choose(page, "measure", label)
    cells = set()
    for text, drawn in hovered(page):
        row, column, numbers = read(text)
        assert float(numbers["values"]) == value(folder, label, row, column)
        assert float(numbers["se"]) == value(folder, label, row, column, "se")
        assert ("p" in numbers) == (label == "cka")
        if label == "cka":
            assert float(numbers["p"]) == value(folder, label, row, column, "p")
        if drawn != (255, 255, 255):  # a line between models
            assert drawn == colour(*scale, value(folder, label, row, column))
        cells.add((row, column))
    assert len(cells) >= 30
    tip = page.evaluate("document.querySelector('.tip').textContent")
    digits = 1 - math.floor(math.log10(float(numbers["se"])))
    assert f"{float(numbers['values']):.{digits}f} ± {float(numbers['se']):.{digits}f}" in tip
    assert row[1] in tip


def test_standard_errors_and_single_pairs_can_be_shown(tmp_path, opened):
    folder = made(tmp_path / "run")
    page = opened(saved(folder))
    choose(page, "what", "standard error")
    choose(page, "rows", "large")
    choose(page, "columns", "small")
    seen = {read(text)[:2]: drawn for text, drawn in hovered(page)}
    assert {(row[0], column[0]) for row, column in seen} == {("large", "small")}
    most = max(value(folder, "cka", (a, f"resid_post@{i}"), (b, f"resid_post@{j}"), "se") for a, m in (("small", 3), ("large", 5)) for b, n in (("small", 3), ("large", 5)) for i in range(m) for j in range(n))  # fmt: skip
    for (row, column), drawn in seen.items():
        assert drawn == colour("cividis", 0, most, value(folder, "cka", row, column, "se"))


def test_maps_under_remedies_can_be_shown(tmp_path, opened):
    """A switch beside the measure, where it has them; all share the colours of one scale."""
    folder = made(tmp_path / "run", measures=("cka", "procrustes"), models=("small",))
    own, _ = reader.read_results(folder).measures
    with results.amend(folder) as run:
        treated = {
            f"cka, {remedy}, small, small": replace(
                own.matrices[0],
                values=run.write_array(f"cka-{i}", 0.5 * reader.read_array(folder, own.matrices[0].values)),
                se=None,
                p=None,
                about={"kind": "remedy", "measure": "cka", "remedy": remedy},
            )
            for i, remedy in enumerate(("none", "skip 4"))
        }
    changed(folder, matrices=treated)
    page = opened(saved(folder))
    listed = "[...document.querySelector('select[name={}]').options].map((o) => o.textContent)"
    assert page.evaluate(listed.format("measure")) == ["cka", "procrustes"]
    assert page.evaluate(listed.format("remedy")) == ["as run", "none", "skip 4"]
    assert page.evaluate(listed.format("what")) == ["value", "standard error", "p value"]
    choose(page, "remedy", "skip 4")
    assert page.evaluate(listed.format("what")) == ["value"]
    for text, drawn in hovered(page, steps=3):
        row, column, numbers = read(text)
        half = 0.5 * value(folder, "cka", row, column)
        assert float(numbers["values"]) == half
        assert drawn == colour("viridis", 0, 1, half)
    choose(page, "measure", "procrustes")
    hidden = "document.querySelector('select[name=remedy]').parentElement.classList.contains('hidden')"
    assert page.evaluate(hidden)
    assert page.evaluate(READOUT).startswith("Point at")


def test_a_click_draws_the_row(tmp_path, opened):
    folder = made(tmp_path / "run")
    page = opened(saved(folder))
    left, top, width, height = box(page, ".map canvas")
    page.click(left + 0.7 * width, top + 0.3 * height)
    row, column, _ = read(page.evaluate(READOUT))
    assert (
        page.evaluate("document.querySelector('#row h3').textContent")
        == f"{' '.join(row)} against the layers of {column[0]}"
    )
    told = page.evaluate("[...document.querySelectorAll('#row tbody tr')].map((r) => [...r.cells].map((c) => c.title || c.textContent))")  # fmt: skip
    assert [layer for layer, *_ in told] == [f"resid_post@{k}" for k in range({"small": 3, "large": 5}[column[0]])]
    for layer, *numbers in told:
        assert [float(n) for n in numbers] == [value(folder, "cka", row, (column[0], layer), w) for w in ("values", "se", "p")]  # fmt: skip
    assert page.evaluate("document.querySelector('#row .uplot canvas').width") > 200


def test_long_names_differ_where_the_layers_do(tmp_path, opened):
    folder = made(
        tmp_path / "run", measures=("cka",), layer="vision_tower.encoder.layers.%d.attention.output_projection"
    )
    page = opened(saved(folder))
    everything(page)
    drawn = ElementTree.fromstring(downloaded(page, "#matrices .panel", "SVG"))
    names = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert names[:8] == [f"…{k}.…" for k in (0, 1, 2, 0, 1, 2, 3, 4)]


@pytest.mark.parametrize("null", [True, False])
def test_the_level_of_chance_is_marked_beside_the_colours(tmp_path, opened, null):
    """The level is from the null, or from pairs of a trained and an untrained model; in the row's chart and in SVG
    too."""
    folder = made(tmp_path / "run", measures=("cka", "procrustes"))
    first, other = reader.read_results(folder).measures
    with results.amend(folder) as run:
        run.manifest["facts"] = {
            label: {**FACTS, "trained": null or label == "small", "steps": []} for label in ("small", "large")
        }
        if null:
            matrices = [replace(m, details={"chance": run.write_array(f"chance-{i}", np.full((3 + 2 * (m.rows.model == "large"), 3 + 2 * (m.columns.model == "large")), 0.25))}) for i, m in enumerate(first.matrices)]  # fmt: skip
            tested = replace(first, matrices=matrices, null={"alpha": 0.05, "permutations": 9, "share": 1})
            run.write_results(replace(reader.read_results(folder), measures=[tested, other]))
    page = opened(saved(folder))
    cells = [value(folder, "cka", ("small", f"resid_post@{i}"), ("large", f"resid_post@{j}")) for i in range(3) for j in range(5)]  # fmt: skip
    low, middle, high = [0.25] * 3 if null else [min(cells), np.median(cells), max(cells)]
    said = page.evaluate("document.querySelector('.bar .level').textContent")
    what = "closer than 95 % of random pairings" if null else "untrained, between a trained and an untrained model"
    spread = "" if null else f" ({low:.4g} to {high:.4g})"
    assert said == f"\u25b4 {what}: {middle:.4g}{spread}"
    left = page.evaluate("parseFloat(document.querySelector('.median').style.left)")
    assert left == pytest.approx(100 * middle, abs=0.1)
    ends = page.evaluate("(() => { const s = document.querySelector('.range').style; return [parseFloat(s.left), parseFloat(s.width)]; })()")  # fmt: skip
    assert ends == pytest.approx([100 * low, 100 * (high - low)], abs=0.1)
    assert what in page.evaluate("document.querySelector('#row figcaption').textContent")
    assert what in downloaded(page, "#matrices .panel", "SVG").decode()
    answer = page.evaluate("document.querySelector('#results').textContent + document.querySelector('#measures').textContent")  # fmt: skip
    assert "Chance is not known" not in answer
    assert ("Nothing was tested" in answer) is not null
    assert (f"CKA {what}" in answer or f"cka {what}" in answer) is not null
    choose(page, "what", "standard error")
    assert page.evaluate("document.querySelectorAll('.bar .level').length") == 0
    choose(page, "what", "value")
    choose(page, "measure", "procrustes")
    assert page.evaluate("document.querySelectorAll('.bar .level').length") == (0 if null else 1)
    assert ("chance is not known" in page.evaluate("document.querySelector('.bar').textContent")) is null


def test_checkpoints_are_counted_apart_from_models(tmp_path, opened):
    folder = made(tmp_path / "run", measures=())
    with results.amend(folder) as run:
        run.manifest["models"] = {f"mine, step {step}": {} for step in (0, 5, 9)}
        run.manifest["facts"] = {"mine": {**FACTS, "trained": True, "steps": [0, 5, 9]}}
    page = opened(saved(folder))
    assert page.evaluate("document.querySelector('#results p').textContent").startswith("complete, 1 model, 3 checkpoints, ")  # fmt: skip


def test_more_cells_than_a_page_holds_are_block_means(tmp_path, opened):
    """49 cells, five quantities: 245 numbers, where 70 are allowed. The page says where all of them are."""
    folder = made(tmp_path / "run", measures=("cka", "procrustes"))
    (folder / report.FILE).write_text(report.build_page([folder], room=70))
    page = opened(folder / report.FILE)
    everything(page)
    (run,) = inside((folder / report.FILE).read_text())["runs"]
    assert [m["block"] for m in run["measures"]] == [2, 2]
    layers = [f"resid_post@{2 * i} to resid_post@{2 * i + 1}" for i in range(2)]
    assert run["measures"][0]["sides"] == [
        {"model": "small", "layers": [layers[0], "resid_post@2"]},
        {"model": "large", "layers": [*layers, "resid_post@4"]},
    ]
    cell = f"large {layers[1]}  \u00d7  small resid_post@2\n"
    shown = next(text.removeprefix(cell) for text, _ in hovered(page, steps=10) if text.startswith(cell))
    both = [value(folder, "cka", ("large", f"resid_post@{i}"), ("small", "resid_post@2")) for i in (2, 3)]
    assert float(shown.split(",")[0]) == pytest.approx(np.mean(both), abs=1e-12)
    assert "Means over blocks of 2 by 2 layers" in page.evaluate("document.querySelector('#matrices').textContent")
    cells = {(i, j): value(folder, "cka", ("small", f"resid_post@{i}"), ("large", f"resid_post@{j}")) for i in range(3) for j in range(5)}  # fmt: skip
    best = max(cells, key=lambda cell: cells[cell])
    row = page.evaluate("[...document.querySelector('#measures tbody tr').cells].map((c) => c.title || c.textContent)")
    assert [row[2], row[4], float(row[5])] == [*(f"resid_post@{i}" for i in best), cells[best]]  # a cell, no block


def test_layers_in_order_of_depth_or_by_cluster(tmp_path, opened):
    """First layers of both models come first by depth; the planted groups of layers stand together by cluster."""
    folder = made(tmp_path / "run", measures=("cka",), sizes=[4, 4])
    kinds = {"small": [0, 1, 0, 1], "large": [1, 0, 1, 0]}
    with results.amend(folder) as run:
        for m in reader.read_results(folder).measures[0].matrices:
            same = np.equal.outer(kinds[m.rows.model], kinds[m.columns.model])
            run.write_array(m.values.rsplit("/", 1)[1].removesuffix(".npy"), np.where(same, 0.9, 0.1))
    page = opened(saved(folder))
    everything(page)

    def order(name):
        choose(page, "order", name)
        lines = [line.split(",") for line in downloaded(page, "#matrices .panel", "CSV").decode().splitlines()]
        assert [line[0] for line in lines[1:]] == lines[0][1:]
        values = np.array([line[1:] for line in lines[1:]], dtype=float)
        return [tuple(name.split(" resid_post@")) for name in lines[0][1:]], values

    assert [name for name, _ in order("by model")[0]] == ["small"] * 4 + ["large"] * 4
    assert order("by depth")[0] == [(model, str(i)) for i in range(4) for model in ("small", "large")]
    layers, values = order("by cluster")
    groups = [kinds[model][int(i)] for model, i in layers]
    assert groups in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    np.testing.assert_array_equal(values, np.kron([[0.9, 0.1], [0.1, 0.9]], np.ones((4, 4))))
    shown = [drawn for text, drawn in hovered(page, steps=4) if "0.1" in text.split("\n")[1].split(",")[0]]
    assert set(shown) == {colour("viridis", 0, 1, 0.1)}


def test_two_runs_open_on_a_measure_that_both_have(tmp_path, opened):
    one, two = made(tmp_path / "one"), made(tmp_path / "two", measures=("procrustes",))
    page = opened(report.save([one, two], tmp_path / "both.html"))
    assert page.evaluate("document.querySelector('select[name=measure]').value") == "procrustes"
    assert page.evaluate("document.querySelectorAll('.panel canvas').length") >= 3


def test_two_runs_stand_side_by_side_with_their_difference(tmp_path, opened):
    one, two = made(tmp_path / "one"), made(tmp_path / "two", seed=1)
    page = opened(report.save([one, two], tmp_path / "both.html"), width=1400)
    titles = page.evaluate("[...document.querySelectorAll('.panel h3')].map((h) => h.textContent)")
    assert titles == ["A: study", "B: study", "B minus A"]
    blocks = {(d.measure, d.rows, d.columns): d for d in comparison.compare_runs(one, two)[0]}
    most = max(d.largest for (label, *_), d in blocks.items() if label == "cka")
    cells = set()
    for text, drawn in hovered(page, number=2):
        names, first, second, difference = text.split("\n")
        row, column = (tuple(side.rsplit(" ", 1)) for side in names.split("  ×  "))
        a, b = (value(folder, "cka", row, column) for folder in (one, two))
        assert float(re.match(r"A: ([^,]+)", first)[1]) == a
        assert float(re.match(r"B: ([^,]+)", second)[1]) == b
        assert difference == f"B minus A: {float(difference.split(': ')[1])}"
        assert float(difference.split(": ")[1]) == b - a
        if drawn != (255, 255, 255):
            assert drawn == colour("RdBu_r", -most, most, b - a)
        cells.add((row, column))
    assert len(cells) >= 30
    differs = page.evaluate(
        "[...document.querySelectorAll('#configuration tr.differs')].map((r) => r.cells[0].textContent)"
    )
    assert differs == ["seed"]


def test_runs_that_share_little(tmp_path, opened):
    one, two = made(tmp_path / "one", measures=("cka",)), made(tmp_path / "two", models=("other",), measures=("cka", "regression"))  # fmt: skip
    failed = results.create(tmp_path / "run", name="study", study="similarity", seed=0, command=[], overrides=[])
    failed.finish("failed", "out of luck")
    page = opened(report.save([one, two, failed.folder], tmp_path / "all.html"))
    panels = "[...document.querySelectorAll('.panel')].map((p) => p.querySelector('p')?.textContent ?? 'drawn')"
    assert page.evaluate(panels) == ["drawn", "drawn", "The runs have no such layers in common."]
    choose(page, "measure", "regression")
    assert page.evaluate(panels) == ["This run has no such measure.", "drawn"]
    choose(page, "second", "C: study")
    assert page.evaluate(panels) == ["This run has no such measure."] * 2


def test_pairs_that_were_not_compared_stay_empty(tmp_path, opened):
    """A study may compare a base with others only: its other cells are blank and say so."""
    folder = made(tmp_path / "run", measures=("cka",))
    (measure,) = reader.read_results(folder).measures
    changed(folder, measures=[replace(measure, matrices=[m for m in measure.matrices if m.rows != m.columns])])
    page = opened(saved(folder))
    everything(page)
    empty = set()
    for text, drawn in hovered(page):
        if text.endswith("\nno value"):
            assert drawn == (0, 0, 0) or drawn == (255, 255, 255)  # transparent, or a line between models
            names = text.split("\n")[0].split("  ×  ")
            empty.add(tuple(name.split(" ")[0] for name in names))
        else:
            row, column, numbers = read(text)
            assert float(numbers["values"]) == value(folder, "cka", row, column)
    assert empty == {("small", "small"), ("large", "large")}
    assert (
        page.evaluate("document.querySelector('#row h3').textContent")
        == "small resid_post@0 against the layers of large"
    )
