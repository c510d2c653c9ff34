"""Figures and tables on a page, and the files that it saves, in a real browser."""

import base64
import io
import re
from xml.etree import ElementTree

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from helpers.made_runs import made, saved
from helpers.pages import (
    box,
    changed,
    colour,
    downloaded,
    everything,
    unfold,
    value,
)
from matplotlib.figure import Figure

from repsim_cli.figures import frame
from repsim_cli.runs.content import Axis, Band, Curve, Table


def test_the_answer_comes_first_and_figures_are_shown(tmp_path, opened):
    """Claims and the closest layers before the maps, every figure with its files, metadata last."""
    folder = made(tmp_path / "run", measures=("cka", "procrustes"))
    (folder / "figures").mkdir()
    picture = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")  # fmt: skip
    (folder / "figures" / "stitching-loss-all.png").write_bytes(picture)
    (folder / "figures" / "stitching-loss-all.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = opened(saved(folder))
    ids = page.evaluate("[...document.querySelectorAll('main > section')].map((s) => s.id)")
    assert ids[:4] == ["results", "views", "matrices", "measures"]  # there is no warning
    assert ids[-3:] == ["configuration", "repeat", "cite"]
    assert ids.index("tables") < ids.index("summary")
    assert page.evaluate("document.querySelector('#results .verdict').textContent") == "\u2713 holds"
    told = page.evaluate("document.querySelector('#results li').textContent")
    assert told.endswith("cka: 0.25 \u00b1 0.13, threshold 0, p = 0.031)")
    heads = page.evaluate("[...document.querySelectorAll('#measures th')].map((h) => h.textContent)")
    assert heads == ["measure", "model", "layer", "other model", "other layer", "value", "p, corrected"]
    shown = page.evaluate("[...document.querySelectorAll('#measures tbody tr')].map((r) => [...r.cells].map((c) => c.title || c.textContent))")  # fmt: skip
    assert [row[0] for row in shown] == ["cka", "procrustes"]
    for (label, a, layer, b, other, number, *_), best in zip(shown, (max, min), strict=True):
        cells = {(i, j): value(folder, label, (a, f"resid_post@{i}"), (b, f"resid_post@{j}")) for i in range(3) for j in range(5)}  # fmt: skip
        assert float(number) == best(cells.values()) == value(folder, label, (a, layer), (b, other))
    assert "chance is not known" in page.evaluate("document.querySelector('#results .lead').textContent")
    assert page.evaluate("document.querySelector('#measures details > .quiet').textContent").startswith("Chance is not known")  # fmt: skip
    assert page.evaluate("document.querySelector('.drawn img').naturalWidth") == 1
    buttons = "[...document.querySelectorAll('.drawn button')].map((b) => b.getAttribute('aria-label'))"
    assert page.evaluate(buttons) == [f"Download stitching-loss-all as {kind}" for kind in ("PNG", "SVG")]
    assert page.evaluate("[...document.querySelectorAll('#matrices .panel .downloads button')].map((b) => b.textContent)") == ["PNG", "SVG", "CSV"]  # fmt: skip


def test_a_table_is_saved_as_csv(tmp_path, opened):
    page = opened(saved(made(tmp_path / "run")), dark=True)
    everything(page)
    assert downloaded(page, "#tables", "CSV").decode() == "name,value\nh10,2.5\nh1,\nh9,-1\nh2,10\n"
    lines = downloaded(page, "#matrices .panel", "CSV").decode().splitlines()
    assert lines[0].split(",")[:2] == ["layer", "small resid_post@0"]
    assert len(lines) == 1 + 8
    assert float(lines[1].split(",")[2]) == value(tmp_path / "run", "cka", ("small", "resid_post@0"), ("small", "resid_post@1"))  # fmt: skip
    first, *rest = downloaded(page, "#row .chart", "CSV").decode().splitlines()
    assert first == 'layer of large,study,"study, band from","study, band to"'
    row = page.evaluate("document.querySelector('#row h3').textContent").removesuffix(" against the layers of large")
    whole = [value(tmp_path / "run", "cka", tuple(row.split()), ("large", f"resid_post@{i}")) for i in range(5)]
    assert [float(line.split(",")[1]) for line in rest] == whole
    picture = matplotlib.image.imread(io.BytesIO(downloaded(page, "#row .chart", "PNG")))
    assert (picture[..., 3] == 1).all()
    assert tuple(np.round(255 * picture[0, 0, :3])) == (18, 23, 28)  # the paper of the dark page


def test_maps_and_charts_are_saved_as_svg(tmp_path, opened):
    """A map has its cells, names and colours; a chart a point per number, at its place, gaps, ticks and levels of chance."""
    folder = made(tmp_path / "run", measures=("cka",))
    chance, level = "untrained weights (step 0)", 0.125
    lines = {"attn_out@0": [0.0, 0.5, None, 1.0], "attn_out@1": [0.25, 0.5, None, 1.0]}
    band = Band(low=lines["attn_out@0"], high=lines["attn_out@1"], of="10th to 90th percentile of layers")
    curve = Curve(x=Axis(name="step"), y=Axis(name="CKA"), at=[0, 10, 100, 1000], lines=lines, mean=[0.125, 0.5, None, 1.0],
        bands={"deciles": band}, about={"levels": {chance: level}})  # fmt: skip
    changed(folder, curves={"cka to last": curve})
    page = opened(saved(folder))
    everything(page)

    def drawing(selector):
        return ElementTree.fromstring(downloaded(page, selector, "SVG"))

    def all_of(drawn, tag):
        return drawn.findall(f".//{{http://www.w3.org/2000/svg}}{tag}")

    drawn = drawing("#matrices .panel")
    (image,) = all_of(drawn, "image")
    cells = matplotlib.image.imread(io.BytesIO(base64.b64decode(image.get("href").split(",")[1])))
    size = cells.shape[0] // 8
    for i, j in ((0, 1), (2, 6), (7, 0)):
        names = [("small", f"resid_post@{k}") if k < 3 else ("large", f"resid_post@{k - 3}") for k in (i, j)]
        shade = tuple(round(255 * float(c)) for c in cells[int((i + 0.5) * size), int((j + 0.5) * size), :3])
        assert shade == colour("viridis", 0, 1, value(folder, "cka", *names))
    names = [text.text for text in all_of(drawn, "text")]
    assert names[:-1] == 2 * ["0", "1", "2", "0", "1", "2", "3", "4", "small", "large"]
    assert names[-1] == "0 to 1: CKA (larger is closer, bright is close); blocks of resid_post; chance is not known"
    assert len(all_of(drawn, "rect")) == 2 + 2 + 64  # paper and frame, lines between models, colours
    drawn = drawing("#curves .chart")
    first, second, mean = [[(float(dot.get("cx")), float(dot.get("cy"))) for dot in all_of(drawn, "circle")][k : k + 3] for k in (0, 3, 6)]  # fmt: skip
    assert [x for x, _ in first] == [x for x, _ in second] == [x for x, _ in mean]
    start, end = first[0][1], first[-1][1]
    assert second[0][1] == pytest.approx(start + 0.25 * (end - start), abs=0.02)
    (dotted,) = (path for path in all_of(drawn, "path") if path.get("stroke-dasharray") == "2 4")
    heights = [float(place.split(" ")[1]) for place in re.split("[ML]", dotted.get("d"))[1:]]
    assert heights == 4 * [pytest.approx(start + level * (end - start), abs=0.02)]
    shaded = [path.get("d").count("Z") for path in all_of(drawn, "path") if path.get("fill", "none") != "none"]
    assert shaded == [2]  # before and after the gap
    assert {"0", "1", "10", "1,000", "step (logarithmic)", "CKA"} <= {text.text for text in all_of(drawn, "text")}
    assert page.evaluate("document.querySelector('#curves figcaption').textContent") in " ".join(str(text.text) for text in all_of(drawn, "text"))  # fmt: skip
    told = downloaded(page, "#curves .chart", "CSV").decode().splitlines()
    assert told[0] == f"step,attn_out@0,attn_out@1,mean,band from,band to,{chance}"
    assert told[3] == f"100,,,,,,{level}"
    assert page.evaluate("document.querySelector('#curves figcaption').textContent").endswith(f"; dotted: {chance}")


def test_a_figure_is_saved_with_its_numbers(tmp_path, opened):
    """The curves, the whole map or the table that its name says; none where it says nothing."""
    folder = made(tmp_path / "run", measures=("cka",))

    def curve(quantity, value, **about):
        return Curve(x=Axis(name="step"), y=Axis(name="CKA"), at=[0, 9], lines={"x": [value, None]}, about={"quantity": quantity, **about})  # fmt: skip

    curves = {"a": curve("cka to last", 0.25, point="mlp_out"), "b": curve("cka to last", 0.5, point="attn_out"), "c": curve("mean cka", 0.75)}  # fmt: skip
    tables = {
        "stitching": Table(columns=["head", "loss"], rows=[["m", 1.5]]),
        "other": Table(columns=["k"], rows=[[1]]),
    }
    changed(folder, curves=curves, tables=tables)
    (folder / "figures").mkdir()
    saved_with = {
        "cka-all": None,
        "cka_to_last-mlp_out-all": "curve,line,x,y\na,x,0,0.25\na,x,9,\n",
        "stitching-curves-all": "curve,line,x,y\na,x,0,0.25\na,x,9,\nb,x,0,0.5\nb,x,9,\nc,x,0,0.75\nc,x,9,\n",
        "stitching-loss-all": "head,loss\nm,1.5\n",
        "by-layer-mean_cka-seeds": "curve,line,x,y\nc,x,0,0.75\nc,x,9,\n",
        "other-of_some_kind": "",
    }
    for name in saved_with:
        matplotlib.image.imsave(folder / "figures" / f"{name}.png", np.zeros((4, 4, 3)))
    page = opened(saved(folder))
    everything(page)
    for number, content in enumerate(saved_with.values()):
        buttons = page.evaluate(f"[...document.querySelectorAll('.drawn')[{number}].querySelectorAll('button')].map((b) => b.textContent)")  # fmt: skip
        assert ("CSV" in buttons) is (content != "")
        if content:
            assert downloaded(page, ".drawn", "CSV", number).decode() == content
    lines = downloaded(page, ".drawn", "CSV", 0).decode()
    assert lines == downloaded(page, "#matrices .panel", "CSV").decode()


def test_a_broad_figure_has_a_row_of_its_own(tmp_path, opened):
    folder = made(tmp_path / "run", measures=())
    (folder / "figures").mkdir()
    for name, width, height in (("broad", 1400, 40), ("small", 600, 40), ("square", 1400, 1400)):
        matplotlib.image.imsave(folder / "figures" / f"{name}.png", np.zeros((height, width, 3)))
    page = opened(saved(folder), width=1400)
    page.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
    widths = page.evaluate("[...document.querySelectorAll('.drawn')].map((f) => f.clientWidth)")
    assert widths[0] > 2 * widths[1] > 1000
    assert widths[1] == widths[2]


def test_figures_follow_the_dark_scheme(tmp_path, opened):
    """Their SVG with other paper and ink, where it names its paper; else the PNG."""
    folder = made(tmp_path / "run", measures=())

    def drawn():
        figure = Figure(figsize=(2, 2))
        figure.subplots().imshow([[0.0, 1.0]])
        figure.suptitle("what is seen\nand how")
        return figure

    frame.save(folder / "figures", [("new", drawn)])
    matplotlib.image.imsave(folder / "figures" / "old.png", np.zeros((4, 4, 3)))
    file = saved(folder)
    shown = (
        "[...document.querySelectorAll('.drawn img')].map((image) => [image.src.slice(5, 14), image.naturalWidth > 0])"
    )
    for dark, kinds in ((False, ["image/png"] * 2), (True, ["image/svg", "image/png"])):
        page = opened(file, dark=dark)
        page.evaluate("Promise.all([...document.images].map((image) => image.decode()))")
        assert page.evaluate(shown) == [[kind, True] for kind in kinds]
        assert page.evaluate("document.querySelector('.drawn figcaption').textContent") == "what is seen"
        assert not page.complaints()


def test_long_tables_show_their_first_rows(tmp_path, opened):
    folder = made(tmp_path / "run", measures=())
    changed(folder, tables={"long": Table(columns=["i"], rows=[[i] for i in range(1234)])})
    page = opened(saved(folder))
    many = "document.querySelectorAll('#tables tbody tr').length"
    assert page.evaluate(many) == 200
    page.evaluate("for (let i = 0; i < 2; i += 1) document.querySelector('#tables th button').click()")
    assert page.evaluate("document.querySelector('#tables td').textContent") == "1233"
    note = "document.querySelector('#tables p.quiet')"
    assert page.evaluate(f"{note}.textContent") == "200 of 1,234 rows. Show all"
    page.evaluate(f"{note}.querySelector('button').click()")
    assert (page.evaluate(many), page.evaluate(f"{note}.classList.contains('hidden')")) == (1234, True)


def test_tables_are_sorted(tmp_path, opened):
    page = opened(saved(made(tmp_path / "run")))
    unfold(page)

    def names(column, clicks):
        for _ in range(clicks):
            left, top, width, height = box(page, f"#tables th:nth-child({column}) button")
            page.click(left + width / 2, top + height / 2)
        return page.evaluate("[...document.querySelectorAll('#tables tbody tr')].map((r) => r.cells[0].textContent)")

    assert names(2, 0) == ["h10", "h1", "h9", "h2"]
    assert names(2, 1) == ["h9", "h10", "h2", "h1"]  # -1, 2.5, 10, missing
    assert names(2, 1) == ["h2", "h10", "h9", "h1"]
    assert names(1, 1) == ["h1", "h2", "h9", "h10"]
    assert page.evaluate("document.querySelector('#tables th').getAttribute('aria-sort')") == "ascending"
