"""The report: one page from the files alone; what it shows in a real browser, and what it never does."""

import base64
import hashlib
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from helpers.made_runs import CARDS, HOSTILE, made, saved
from helpers.timers import set_timers
from matplotlib.figure import Figure

from repsim_cli import report
from repsim_cli.base.errors import BadInput
from repsim_cli.cli import follow
from repsim_cli.figures import frame
from repsim_cli.report import differences as comparison
from repsim_cli.report import overview
from repsim_cli.runs import reader, results, so_far
from repsim_cli.runs.content import Axis, Band, Curve, Measured, Table

FACTS = {"kind": "live", "family": "gpt_neox", "layers": [], "widths": []}  # of a model, in a manifest


def changed(folder, **parts):
    """Replaces parts of a run's results."""
    with results.amend(folder) as run:
        run.write_results(replace(reader.read_results(folder), **parts))


def inside(page):
    """The JSON inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text of styles and scripts."""

    def __init__(self, page):
        super().__init__()
        self.found, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, text):
        if self.found and self.found[-1][0] in ("style", "script") and text.strip():
            self.texts.append((*self.found[-1], text))


@cache
def matrices_of(folder, label, changed_at):
    (measure,) = (m for m in reader.read_results(folder).measures if m.label == label)
    return measure


def value(folder, label, row, column, what="values"):
    """One number of a run, by the names of its layers: (model, layer), (model, layer)."""
    measure = matrices_of(folder, label, (folder / "manifest.json").stat().st_mtime_ns)
    for m in measure.matrices:
        for side, other, turned in ((m.rows, m.columns, False), (m.columns, m.rows, True)):
            if (side.model, other.model) == (row[0], column[0]) and not (turned and not measure.card["symmetric"]):
                array = reader.read_array(folder, getattr(m, what))
                place = side.layers.index(row[1]), other.layers.index(column[1])
                return float(array.T[place] if turned else array[place])
    raise AssertionError((label, row, column))


def test_the_page_holds_every_number_in_full(tmp_path):
    folder = made(tmp_path / "run")
    (run,) = inside(saved(folder).read_text())["runs"]
    found = reader.read_results(folder)
    for measure, kept in zip(found.measures, run["measures"], strict=True):
        for m, shown in zip(measure.matrices, kept["matrices"], strict=True):
            rows, columns = (kept["sides"][shown[side]] for side in ("rows", "columns"))
            assert (vars(m.rows), vars(m.columns), m.n) == (rows, columns, shown["n"])
            for what in ("values", "se", "p"):
                if getattr(m, what) is None:
                    assert what not in shown
                    continue
                array = reader.read_array(folder, getattr(m, what))
                np.testing.assert_array_equal(np.frombuffer(base64.b64decode(shown[what])).reshape(array.shape), array)
    assert run["config"] == [["name", "study"], ["seed", "0"], ["model.m", ""], ["analyses", "{}"]]
    assert run["command"] == "repsim run name="
    assert (run["facts"], run["others"]) == ([["own.key", ""]], [])
    assert run["manifest"]["timings"].keys() == {"data"}


def test_colours_come_from_the_card(tmp_path):
    (run,) = inside(report.build_page([made(tmp_path / "run")]))["runs"]
    scales = {m["label"]: m["scales"] for m in run["measures"]}
    assert scales["procrustes"]["values"] == {"low": 0.0, "high": 2.0, "colours": "viridis_r"}
    assert scales["cka"]["values"] == {"low": 0.0, "high": 1.0, "colours": "viridis"}
    assert scales["cka"]["p"] == {"low": 0.0, "high": 1.0, "colours": "cividis"}
    assert "p" not in scales["procrustes"]


def test_the_page_depends_on_the_files_alone(tmp_path):
    folder = made(tmp_path / "run")
    page = report.build_page([folder])
    saved(folder)
    assert report.build_page([folder]) == page


def test_only_what_the_policy_names_can_run(tmp_path):
    elements = Elements(report.build_page([made(tmp_path / "run", extra=HOSTILE)]))
    counts = {
        tag: sum(found == tag for found, _ in elements.found) for tag in ("script", "style", "img", "link", "iframe")
    }
    assert counts == {"script": 6, "style": 2, "img": 0, "link": 1, "iframe": 0}
    (policy,) = (a["content"] for t, a in elements.found if t == "meta" and "http-equiv" in a)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        texts = [text for found, a, text in elements.texts if found == tag and a.get("type") != "application/json"]
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]
        assert rules[rule].split() == hashes
    for _, attributes in elements.found:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert attributes.get("href", "data:,") == "data:,"
        assert "src" not in attributes


def test_hostile_text_survives_as_text(tmp_path):
    page = report.build_page([made(tmp_path / "run", extra=HOSTILE)])
    assert HOSTILE not in page
    assert not {"\u2028", "\u2029"} & set(page)
    (run,) = inside(page)["runs"]
    assert run["manifest"]["warnings"] == [HOSTILE]
    assert run["measures"][0]["label"] == "cka" + HOSTILE


def test_what_is_embedded_is_what_was_published():
    table = dict(re.findall(r"^\| `(\S+)` \| \d+ \| `(\w+)` \|$", (report.ASSETS / "README.md").read_text(), re.M))
    assert {name: reader.hash_file(report.ASSETS / name) for name in table} == table
    assert set(table) == {"uPlot.iife.min.js", "uPlot.min.css"}
    assert "Copyright" in (report.ASSETS / "uPlot.LICENSE").read_text()
    for name in (*report.STYLES, *report.SCRIPTS):
        assert not re.search(r"</(script|style)|<!--|\r", (report.ASSETS / name).read_text()), name


def test_the_colours_are_those_of_the_figures():
    for name, text in json.loads((report.ASSETS / "colours.json").read_text()).items():
        ours = np.frombuffer(bytes.fromhex(text), dtype=np.uint8).reshape(256, 3)
        np.testing.assert_array_equal(ours, np.round(255 * matplotlib.colormaps[name](np.arange(256))[:, :3]))


def test_a_report_needs_no_heavy_library(tmp_path):
    folder = made(tmp_path / "run")
    script = (
        "import sys; from pathlib import Path; from repsim_cli import report\n"
        f"folder = Path({str(folder)!r}); report.save([folder], folder / 'report.html')\n"
        "assert not {'torch', 'matplotlib', 'hydra', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_run_that_failed_has_a_report(tmp_path):
    run = results.create(tmp_path / "run", name="study", study="similarity", seed=0, command=[], overrides=[])
    run.finish("failed", "out of luck")
    (found,) = inside(saved(run.folder).read_text())["runs"]
    assert (found["manifest"]["error"], found["measures"], found["config"]) == ("out of luck", [], [])


def test_the_command(repsim, tmp_path):
    one, two = made(tmp_path / "outputs" / "one"), made(tmp_path / "outputs" / "two", seed=1)
    code, out, _ = repsim("report", "one")
    assert (code, out) == (0, f"{one / 'report.html'}\n")
    code, out, _ = repsim("report", "one", "two", "--output", tmp_path / "both.html")
    assert (code, out) == (0, f"{tmp_path / 'both.html'}\n")
    assert [run["repeat"] for run in inside((tmp_path / "both.html").read_text())["runs"]] == ["repsim run --from one", "repsim run --from two"]  # fmt: skip
    code, _, err = repsim("report", one, two)
    assert (code, err) == (2, "error: --output: a file is needed for 2 runs; e.g. --output both.html\n")
    for place in (tmp_path, tmp_path / "absent" / "both.html"):
        code, _, err = repsim("report", one, "--output", place)
        assert (code, err) == (
            2,
            f"error: --output: no file can be written there, got '{place}'; name a file in a folder that exists\n",
        )


def test_a_sweep_has_a_report_of_all_its_jobs(repsim, tmp_path):
    sweep = tmp_path / "outputs" / "2026-11-20" / "07-30-41-sweep"
    for seed in (0, 1):
        made(sweep / f"{seed}-study", seed=seed, measures=("cka",))
    code, out, _ = repsim("report", "07-30-41-sweep")
    assert (code, out) == (0, f"{sweep / 'report.html'}\n")
    runs = inside((sweep / "report.html").read_text())["runs"]
    assert [run["manifest"]["seed"] for run in runs] == [0, 1]
    code, _, err = repsim("show", "07-30-41-sweep", "--follow")
    assert (code, err) == (2, f"error: --follow: of a single run, got the sweep {sweep}; name one of its jobs\n")


def test_a_run_is_followed_until_it_ends(repsim, tmp_path, monkeypatch):
    """What comes into the log while it is followed is printed, each line once, and then the summary."""
    run = results.create(tmp_path / "outputs" / "one", name="study", study="similarity", seed=0, command=[], overrides=[])  # fmt: skip
    log = run.folder / "repsim.log"
    log.write_text("INFO data ...\nINFO mod")
    looks = iter(
        [lambda: log.write_text("INFO data ...\nINFO models ...\n"), lambda: run.finish("failed", "out of luck")]
    )

    def passes(seconds):
        next(looks)()

    monkeypatch.setattr(follow.time, "sleep", passes)
    monkeypatch.setattr(reader, "is_held", lambda folder: True)
    code, out, _ = repsim("show", "one", "--follow")
    assert code == 0
    assert out.startswith("INFO data ...\nINFO models ...\nstudy: failed")
    assert next(looks, None) is None


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A run that computes, and the first of its four batches is done."""
    run = results.create(tmp_path / "outputs" / "one", name="study", study="similarity", seed=0, command=[], overrides=[])  # fmt: skip
    card = {"label": "CKA", "source": "", "note": "", "invariant_to": [], **CARDS["cka"]}
    estimate = {"kind": "per_batch", "rows": 0, "rows_available": 40, "batches": 4}
    measured = Measured(name="cka", label="cka", settings={}, estimate=estimate, card=card, matrices=[])
    names = [("a", "x"), ("a", "y"), ("b", "x")]
    show = so_far.Writer(folder=run.folder, names=names, measures={"cka": measured}, rows=10, batches=4, cells=9)
    set_timers(monkeypatch, due=True)
    show("cka", lambda: np.array([[1.0, 0.5, 0.25], [0.5, 1.0, np.nan], [0.25, np.nan, 1.0]]), 1)
    yield run
    run.lock.release()


def test_a_line_says_how_far_a_map_is(running, repsim, monkeypatch):
    monkeypatch.setattr(follow.time, "sleep", lambda seconds: running.finish("failed", "out of luck"))
    code, out, _ = repsim("show", "one", "--follow")
    assert code == 0
    assert out.startswith("cka: 7 of 9 cells, mean 0.643, lowest 0.250, highest 1.000\nstudy: failed")


def test_the_page_of_a_running_run_reloads_itself(running, repsim, monkeypatch, chromium, opened):
    file, pages = running.folder / "report.html", []

    def passes(seconds):
        pages.append(file.read_text())
        running.finish("failed", "out of luck")

    monkeypatch.setattr(report.time, "sleep", passes)
    assert repsim("report", "one", "--follow")[:2] == (0, f"{file} reloads itself until the run ends\n{file}\n")
    assert inside(pages[0])["reload"] == 5
    ended = inside(file.read_text())
    assert (ended["reload"], ended["runs"][0]["so_far"]) == (None, {})
    file.write_text(pages[0])
    timers = "window.timers = new Map(); window.setTimeout = (call, ms) => (timers.set(timers.size + 1, [ms, `${call}`]), timers.size); window.clearTimeout = (i) => timers.delete(i);"  # fmt: skip
    script = chromium.call("Page.addScriptToEvaluateOnNewDocument", source=timers)
    page = opened(file)
    page.call("Page.removeScriptToEvaluateOnNewDocument", **script)
    assert page.evaluate("[...timers.values()]") == [[5000, "() => location.reload()"]]
    pause = "document.querySelector('header button')"
    assert page.evaluate(f"{pause}.click(), [timers.size, {pause}.textContent]") == [0, "Resume reloading"]
    assert page.evaluate(f"{pause}.click(), [timers.size, {pause}.textContent]") == [1, "Pause reloading"]
    told = page.evaluate("document.querySelector('#results').textContent")
    assert "cka so far: 7 of 9 cells. The run is still computing." in told
    assert "Chance is not known" not in told
    assert page.evaluate("[...document.querySelectorAll('#results td')].map((c) => c.textContent)") == ["cka", "a", "x", "b", "x", "0.25"]  # fmt: skip
    means = page.evaluate("[...document.querySelectorAll('#pairs tbody tr')].map((r) => r.cells[3].textContent)")
    assert means == ["0.75", "0.25", "1"]


def test_only_a_single_run_is_followed_by_a_page(running, repsim):
    code, _, err = repsim("report", "--follow")
    assert (code, err) == (
        2,
        "error: --follow: of a run that is named; e.g. repsim report latest --follow\n",
    )
    code, _, err = repsim("report", "one", "one", "--follow", "--output", "both.html")
    assert (code, err) == (2, "error: --follow: of a single run, got one one; name one run\n")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 3)), r"cka-0-0.npy: not float64 \(3, 3\) as its layers, got float64 \(2, 3\); the run is damaged"),
        (np.ones((3, 3), dtype="float32"), r"cka-0-0.npy: not float64 \(3, 3\) as its layers, got float32 \(3, 3\)"),
        (
            np.full((3, 3), np.nan),
            "cka-0-0.npy: a value is not finite, got nan or inf; the run is damaged, run it again",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, array, message):
    folder = made(tmp_path / "run")
    np.save(folder / "arrays" / "cka-0-0.npy", array)
    with pytest.raises(BadInput, match="cka-0-0.npy: not as the run left it"):
        report.build_page([folder])
    manifest = reader.read_manifest(folder)
    manifest["files"] = {"results.json": manifest["files"]["results.json"]}
    (folder / "manifest.json").write_text(results.dumps(manifest))
    with pytest.raises(BadInput, match=message):
        report.build_page([folder])


# ---- in a browser ----


def downloaded(page, selector, suffix, number=0):
    """The bytes of a file that a button of an element gives."""
    page.evaluate("window.kept = []; URL.createObjectURL = (blob) => { kept.push(blob); return '#'; }; URL.revokeObjectURL = () => {};")  # fmt: skip
    buttons = f"document.querySelectorAll({json.dumps(selector)})[{number}].querySelectorAll('.downloads button')"
    page.evaluate(f"[...{buttons}].find((button) => button.textContent === '{suffix}').click()")
    text = page.evaluate(
        "new Promise((done) => { const look = () => (kept.length ? done(kept[0].arrayBuffer()) : setTimeout(look, 5)); look(); })"
        ".then((b) => btoa([...new Uint8Array(b)].map((c) => String.fromCharCode(c)).join('')))"
    )
    return base64.b64decode(text)


READOUT = "document.querySelector('.maps .readout').textContent"


def choose(page, name, text):
    page.evaluate(
        f"(() => {{ const s = document.querySelector('select[name={name}]');"
        f"s.value = [...s.options].find((o) => o.textContent === {json.dumps(text)}).value;"
        "s.dispatchEvent(new Event('change')); })()"
    )


def everything(page):
    """Shows the layers of all models, where the page opens on two models."""
    for side in ("rows", "columns"):
        choose(page, side, "all models")


def unfold(page):
    """Opens what is folded."""
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")


def box(page, selector, number=0):
    """Left, top, width and height of an element, in view."""
    return page.evaluate(
        f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{number}];"
        "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )


def read(text):
    """The readout of one run's cell: (row model, layer), (column model, layer), {quantity: text}."""
    names, numbers = text.split("\n")
    row, column = (tuple(side.rsplit(" ", 1)) for side in names.split("  ×  "))
    first, *others = numbers.split(", ")
    return row, column, {"values": first, **{name: other.rsplit(" ", 1)[1] for other in others for name in ("se", "p") if other.startswith({"se": "standard", "p": "p "}[name])}}  # fmt: skip


def hovered(page, number=0, steps=9):
    """What the cells under a grid of points say, with the colour drawn there."""
    drawn = page.evaluate(f"document.querySelectorAll('.map canvas')[{number}].toDataURL()")
    picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(drawn.split(",")[1])))
    left, top, width, height = box(page, ".map canvas", number)
    places = [((j + 0.5) / steps, (i + 0.5) / steps) for i in range(steps) for j in range(steps)]
    page.mouse("mouseMoved", left + places[0][0] * width, top + places[0][1] * height)
    first = page.evaluate(READOUT)
    points = [(left + across * width, top + down * height) for across, down in places]
    texts = page.evaluate(
        f"{json.dumps(points)}.map(([clientX, clientY]) => {{ document.querySelectorAll('.map canvas')[{number}]"
        f".dispatchEvent(new PointerEvent('pointermove', {{ clientX, clientY, bubbles: true }})); return {READOUT}; }})"
    )
    assert texts[0] == first  # as the mouse itself reads it
    for text, (across, down) in zip(texts, places, strict=True):
        if "  ×  " in text:
            red, green, blue, _ = picture[int(down * picture.shape[0]), int(across * picture.shape[1])]
            yield text, tuple(round(255 * float(c)) for c in (red, green, blue))


def colour(name, low, high, number):
    share = np.clip(np.floor(256 * (number - low) / (high - low)), 0, 255)
    return tuple(round(255 * c) for c in matplotlib.colormaps[name](int(share))[:3])


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


def test_training_curves_are_charted(tmp_path, opened):
    """A line per layer against the step, a gap where a checkpoint is missing; the pointer reads a step's numbers."""
    folder = made(tmp_path / "run", measures=())
    steps, rows = [0, 1, 10, 1000], [[0.1, 0.2, None, 1.0], [0.3, 0.4, None, 1.0]]
    layers = Curve(
        x=Axis(name="step"),
        y=Axis(name="CKA"),
        at=steps,
        lines={"attn_out@0": rows[0], "attn_out@1": rows[1]},
        mean=[0.2, 0.3, None, 1.0],
        bands={"deciles": Band(low=rows[0], high=rows[1], of="10th to 90th percentile of layers")},
        about={"quantity": "cka to last", "point": "attn_out", "model": "m"},
    )
    alone = Curve(
        x=Axis(name="step"), y=Axis(name="loss", unit="nats per token"), at=steps[:2], lines={"loss": [6.0, 5.5]}
    )
    changed(folder, curves={"cka to last, attn_out, m": layers, "held-out loss": alone})
    page = opened(saved(folder))
    assert page.evaluate("document.querySelectorAll('#curves .uplot canvas').length") == 2
    assert page.evaluate("document.querySelectorAll('#curves > pre').length") == 0
    told = page.evaluate(
        "[...document.querySelectorAll('#curves table')].map((t) => [...t.rows].map((r) => [...r.cells].map((c) => c.textContent)))"
    )
    assert told[0][1:] == [
        ["attn_out@0", "0.1", "0.2", "–", "1"], ["attn_out@1", "0.3", "0.4", "–", "1"], ["mean", "0.2", "0.3", "–", "1"],
    ]  # fmt: skip
    assert told[1] == [["line", "step 0", "step 1"], ["loss", "6", "5.5"]]
    left, top, width, height = box(page, "#curves .u-over")
    page.mouse("mouseMoved", left + 0.99 * width, top + 0.5 * height)
    assert page.evaluate("document.querySelector('#curves .readout').textContent") == (
        "step 1000: mean 1; attn_out@0 1; attn_out@1 1"
    )
    page.mouse("mouseMoved", left + 1, top + 0.5 * height)
    assert page.evaluate("document.querySelector('#curves .readout').textContent").startswith("step 0: mean 0.2; ")


def test_curves_of_groups_and_of_few_steps_are_charted(tmp_path, opened):
    """The kinds of pairs of one quantity share a chart; ticks stand at the ends where no power of ten lies between."""
    folder = made(tmp_path / "run", measures=())
    kinds = {
        f"{first}-{second}": Curve(
            x=Axis(name="layer"),
            y=Axis(name="accuracy lost"),
            at=["resid_post@0", "resid_post@1"],
            lines={"a x b": mean},
            mean=mean,
            bands=bands,
            about={"quantity": "penalty", "point": "resid_post", "pairs_of": [first, second]},
        )
        for first, second, mean, bands in (
            (
                "one",
                "one",
                [0.0, 0.1],
                {"models": Band(low=[0.0, 0.05], high=[0.1, 0.2], of="95 % over models")},
            ),
            ("one", "two", [0.1, 0.4], {}),
        )
    }
    few = Curve(
        x=Axis(name="step"), y=Axis(name="loss", unit="nats"), at=[3201, 6201, 9601], lines={"loss": [6.0, 5.5, 5.0]}
    )
    changed(folder, curves={**kinds, "loss": few})
    page = opened(saved(folder))
    assert page.evaluate("document.querySelectorAll('#curves .uplot canvas').length") == 2
    captions = page.evaluate("[...document.querySelectorAll('#curves figcaption')].map((c) => c.textContent)")
    assert captions[0] == "one \u2013 one (solid); one \u2013 two (dashed); band: 95 % over models"
    left, top, width, height = box(page, "#curves .u-over")
    page.mouse("mouseMoved", left + 0.9 * width, top + 0.5 * height)
    told = page.evaluate("document.querySelector('#curves .readout').textContent")
    assert told == "resid_post@1: one \u2013 one 0.1; one \u2013 two 0.4"


def test_curves_of_layers_stand_at_the_layers_names(tmp_path, opened):
    """Models of one quantity share a chart, each value at its layer; curves without a quantity have charts of their own."""
    folder = made(tmp_path / "run", measures=())

    def curve(at, values, **about):
        return Curve(x=Axis(name="layer"), y=Axis(name="v"), at=at, lines={"line": values}, about=about)

    curves = {
        "q, a": curve(["x", "y"], [1.0, 2.0], quantity="q", model="a"),
        "q, b": curve(["embed", "y", "z"], [3.0, 4.0, 5.0], quantity="q", model="b"),
        "first": curve(["r", "s"], [6.0, 7.0], model="a", levels={"chance": [0.1, 0.5, 0.9]}),
        "second": curve(["t"], [8.0], levels={}),
    }
    changed(folder, curves=curves)
    page = opened(saved(folder))
    assert page.evaluate("[...document.querySelectorAll('#curves h3')].map((h) => h.textContent)") == ["q", "first", "second"]  # fmt: skip
    assert downloaded(page, "#curves .chart", "CSV").decode() == "layer,a,b\nembed,,3\ny,2,4\nz,,5\nx,1,\n"
    captions = page.evaluate("[...document.querySelectorAll('#curves figcaption')].map((c) => c.textContent)")
    assert captions == [
        "a (solid); b (dashed)",
        "a; dotted: chance (median, and its range)",
        "line; chance is not known",
    ]


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


def test_long_names_differ_where_the_layers_do(tmp_path, opened):
    folder = made(
        tmp_path / "run", measures=("cka",), layer="vision_tower.encoder.layers.%d.attention.output_projection"
    )
    page = opened(saved(folder))
    everything(page)
    drawn = ElementTree.fromstring(downloaded(page, "#matrices .panel", "SVG"))
    names = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert names[:8] == [f"…{k}.…" for k in (0, 1, 2, 0, 1, 2, 3, 4)]


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


@pytest.mark.parametrize("null", [True, False])
def test_the_level_of_chance_is_marked_beside_the_colours(tmp_path, opened, null):
    """From the null, or from pairs of a trained and an untrained model; in the row's chart and in SVG too."""
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


def test_steps_are_logarithmic_where_figures_have_them_so(tmp_path, opened):
    folder = made(tmp_path / "run", measures=())
    over = {name: Curve(x=Axis(name=name), y=Axis(name="loss"), at=at, lines={"loss": [2.0, 1.5, 1.0]}) for name, at in (("step", [0, 10, 999]), ("epoch", [5, 100, 450]))}  # fmt: skip
    changed(folder, curves=over)
    page = opened(saved(folder))
    said = []
    for number in range(2):
        drawn = ElementTree.fromstring(downloaded(page, "#curves .chart", "SVG", number))
        said.append([text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")])
    assert "step" in said[0]
    assert "epoch" in said[1]
    over["step"] = replace(over["step"], at=[0, 10, 1000])
    changed(folder, curves=over)
    drawn = ElementTree.fromstring(downloaded(opened(saved(folder)), "#curves .chart", "SVG"))
    assert "step (logarithmic)" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_lines_over_the_same_steps_share_a_chart(tmp_path, opened):
    folder = made(tmp_path / "run", measures=())
    y = Axis(name="loss", unit="nats")
    stitches = {f"stitch {i}": Curve(x=Axis(name="step"), y=y, at=[0, 10], lines={"loss": [6.0, 5.0 + i]}) for i in range(9)}  # fmt: skip
    changed(folder, curves=stitches)
    page = opened(saved(folder))
    assert page.evaluate("[...document.querySelectorAll('#curves h3')].map((h) => h.textContent)") == ["loss, nats (9 curves)"]  # fmt: skip
    told = page.evaluate("[...document.querySelectorAll('#curves tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")  # fmt: skip
    assert told == [[f"stitch {i}", "6", str(5 + i)] for i in range(9)]
    assert page.evaluate("document.querySelector('#curves figcaption').textContent") == "thin: stitch 0 (dark) to stitch 8 (bright)"  # fmt: skip


def test_losses_of_stitches_are_charted_by_layer_with_the_level_of_chance(tmp_path, opened):
    folder = made(tmp_path / "run", measures=())
    y, known = Axis(name="loss", unit="nats"), [{"random heads": 6.5}, {"random heads": 7.5}, None]

    def stitch(layer, levels):
        about = {"head layer": layer, "tail layer": layer, **({} if levels is None else {"levels": levels})}
        return Curve(x=Axis(name="step"), y=y, at=[1, 10], lines={"loss": [6.0, 5.0]}, about=about)

    losses = {f"{layer}, {i}": stitch(layer, {} if layer == "embed" and levels else levels) for layer in ("embed", "resid_post@0") for i, levels in enumerate(known)}  # fmt: skip
    changed(folder, curves=losses)
    page = opened(saved(folder))
    heads = page.evaluate("[...document.querySelectorAll('#curves h3')].map((h) => h.textContent)")
    assert heads == ["loss, nats, embed (3 curves)", "loss, nats, resid_post@0 (3 curves)"]
    captions = page.evaluate("[...document.querySelectorAll('#curves figcaption')].map((c) => c.textContent)")
    assert [caption.split("; ")[1:] for caption in captions] == [["chance is not known"], ["dotted: random heads (median, and its range)"]]  # fmt: skip
    told = downloaded(page, "#curves .chart", "CSV", 1).decode().splitlines()
    assert told[0].split(",")[-1] == "random heads"


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
    """By depth, first layers of both models come first; by cluster, the planted groups of layers stand together."""
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


def test_two_runs_open_on_a_measure_that_both_have(tmp_path, opened):
    one, two = made(tmp_path / "one"), made(tmp_path / "two", measures=("procrustes",))
    page = opened(report.save([one, two], tmp_path / "both.html"))
    assert page.evaluate("document.querySelector('select[name=measure]').value") == "procrustes"
    assert page.evaluate("document.querySelectorAll('.panel canvas').length") >= 3


def test_the_keyboard_does_what_the_mouse_does(tmp_path, opened):
    folder = made(tmp_path / "run")
    page = opened(saved(folder))
    everything(page)
    for _ in range(60):
        page.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    assert read(page.evaluate(READOUT))[:2] == (("small", "resid_post@0"), ("small", "resid_post@0"))
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.press(key)
    row, column, numbers = read(page.evaluate(READOUT))
    assert (row, column) == (("small", "resid_post@2"), ("small", "resid_post@1"))
    assert float(numbers["values"]) == value(folder, "cka", row, column)
    page.press("PageDown")
    page.press("End")
    page.press("Enter")
    assert read(page.evaluate(READOUT))[:2] == (("large", "resid_post@0"), ("large", "resid_post@0"))
    assert (
        page.evaluate("document.querySelector('#row h3').textContent")
        == "large resid_post@0 against the layers of large"
    )


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


def test_two_runs_stand_side_by_side_with_their_difference(tmp_path, opened):
    one, two = made(tmp_path / "one"), made(tmp_path / "two", seed=1)
    page = opened(report.save([one, two], tmp_path / "both.html"), width=1400)
    titles = page.evaluate("[...document.querySelectorAll('.panel h3')].map((h) => h.textContent)")
    assert titles == ["A: study", "B: study", "B minus A"]
    blocks = {(d.measure, d.rows, d.columns): d for d in comparison.compare(one, two)[0]}
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


def test_a_tap_reads_and_draws(tmp_path, opened):
    folder = made(tmp_path / "run")
    page = opened(saved(folder), width=390, height=844, mobile=True)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    left, top, width, height = box(page, ".map canvas")
    point = {"x": left + 0.7 * width, "y": top + 0.4 * height}
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.evaluate("new Promise((done) => setTimeout(done, 400))")
    row, column, numbers = read(page.evaluate(READOUT))
    assert float(numbers["values"]) == value(folder, "cka", row, column)
    assert page.evaluate("document.querySelector('#row h3').textContent").startswith(" ".join(row))
    assert not page.evaluate("document.querySelector('.tip').classList.contains('hidden')")
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)


def test_hostile_names_are_text(tmp_path, opened):
    folder = made(tmp_path / "run", extra=HOSTILE, models=("<b>a</b>", HOSTILE, "__proto__"), layer=HOSTILE)
    page = opened(saved(folder))
    for text, _ in hovered(page, steps=4):
        assert "  ×  " in text
    assert page.evaluate("window.pwned === undefined")
    assert page.evaluate("document.querySelectorAll('script, img, b, iframe').length") == 6
    assert page.evaluate("document.querySelector('.warning').textContent") == HOSTILE
    assert page.evaluate("document.title") == f"study{HOSTILE} - repsim"
    cells = page.evaluate("[...document.querySelectorAll('td, th button')].map((c) => c.textContent)")
    for text in (
        f"loss{HOSTILE}",
        f"value{HOSTILE}",
        f"h10{HOSTILE}",
        f"finding{HOSTILE}",
        f"model.m{HOSTILE}",
        HOSTILE,
        "__proto__",
    ):
        assert text in cells or text == f"loss{HOSTILE}", text
    assert f"loss{HOSTILE}" in page.evaluate("[...document.querySelectorAll('caption')].map((c) => c.textContent)")
    options = page.evaluate("[...document.querySelectorAll('select[name=rows] option')].map((o) => o.textContent)")
    assert options == ["all models", "<b>a</b>", HOSTILE, "__proto__"]


LONG = "n" * 10_000
TURNED = "a\u202e\u2067b\u200f"


def test_long_and_turning_names_keep_their_place(tmp_path, opened):
    """Names of 10,000 characters leave the page as wide as a phone; names that turn text around are shown as codes."""
    folder = made(tmp_path / "run", extra=LONG[:900], models=(LONG, TURNED), layer=TURNED, measures=("cka",))
    page = opened(saved(folder), width=390, height=844, mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    shown = "a\\u202e\\u2067b\\u200f"
    options = page.evaluate("[...document.querySelectorAll('select[name=rows] option')].map((o) => o.textContent)")
    assert options[2] == shown
    assert not set(TURNED) - {"a", "b"} & set(page.evaluate("document.documentElement.textContent + document.title"))
    assert page.evaluate("Math.max(...[...document.querySelectorAll('td')].map((c) => c.textContent.length))") == 1000
    assert max(len(t) for t in page.evaluate("[...document.querySelectorAll('td')].map((c) => c.title)")) >= len(LONG)
    (text, _), *_ = hovered(page, steps=2)
    assert f"{shown}@" in text
    listed = report.save_overview(tmp_path)
    assert not set(TURNED) - {"a", "b"} & set(listed.read_text())
    page = opened(listed, width=390, height=844, mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('tbody').offsetHeight") < 2000


def test_the_policy_stops_what_is_not_of_the_page(tmp_path, chromium):
    chromium.open(saved(made(tmp_path / "run")))
    chromium.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s); })()"
    )
    assert chromium.evaluate("window.pwned === undefined")
    assert chromium.evaluate("fetch('https://example.org').then(() => 'sent', () => 'stopped')") == "stopped"
    texts = " ".join(complaint["entry"]["text"] for complaint in chromium.complaints() if "entry" in complaint)
    assert "script-src" in texts
    assert "default-src" in texts


def test_a_phone_and_the_dark_need_no_sideways_scrolling(tmp_path, opened):
    file = report.save([made(tmp_path / "one"), made(tmp_path / "two", seed=1)], tmp_path / "both.html")
    page = opened(file, width=390, height=844, mobile=True, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    shade = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(shade) == "rgb(18, 23, 28)"
    page.evaluate("document.querySelector('header button').click()")
    assert page.evaluate(shade) == "rgb(255, 255, 255)"


def test_print_opens_what_is_folded_and_folds_it_again(tmp_path, opened):
    page = opened(saved(made(tmp_path / "run")), dark=True)
    page.evaluate("addEventListener('beforeprint', () => { window.folded = document.querySelectorAll('details:not([open])').length; })")  # fmt: skip
    page.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert page.evaluate("window.folded") == 0
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") > 2
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 28)"


def test_nothing_is_cut_off_in_print(tmp_path, opened):
    """On A4, 718 pixels wide within its margins: a table of 13 columns fits, the numbers of a long curve are left out."""
    folder = made(tmp_path / "run", measures=())
    names = ["head", "tail", "head layer", "tail layer", "loss", "own loss", "penalty", "penalty se", "accuracy lost", "accuracy lost se", "KL", "KL se"]  # fmt: skip
    row = ["gelu_trained_3l_a", "solu_trained_3l_b", "resid_post@0", "resid_post@10", *(0.0001234 for _ in range(8))]
    long = Curve(x=Axis(name="step"), y=Axis(name="loss"), at=list(range(60)), lines={"loss": [0.1234] * 60})
    changed(folder, tables={"stitching": Table(columns=names, rows=[row])}, curves={"loss": long})
    page = opened(saved(folder), width=718)
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") == 718
    assert page.evaluate("document.querySelector('#summary table').offsetHeight") > 0
    page.call("Emulation.setEmulatedMedia", media="", features=[])


def test_150_layers_answer_every_move(tmp_path, opened):
    """8 models, 22,500 cells: the readout follows the pointer. benchmarks/report_page.py measures how fast."""
    sizes = (17, 18, 18, 19, 19, 19, 20, 20)
    folder = made(tmp_path / "run", models=[f"model_{i}" for i in range(8)], sizes=sizes, measures=("cka",))
    page = opened(saved(folder))
    left, top, width, height = box(page, ".map canvas")
    told = set()
    for step in range(40):
        page.mouse("mouseMoved", left + width * (0.2 + 0.015 * step), top + height * 0.5)
        told.add(page.evaluate(READOUT))
    assert len(told) >= 20


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """The outputs folder of a complete run with text that may do harm, and of one that failed."""
    root = tmp_path / "outputs"
    monkeypatch.setenv("REPSIM_OUTPUTS", str(root))
    whole = made(root / "2026" / "one", extra=HOSTILE)
    (whole / "figures").mkdir(exist_ok=True)
    for name, colour in (("cka-se", 0.2), ("cka-all", 0.8), ("a", 0.4)):
        matplotlib.image.imsave(whole / "figures" / f"{name}.png", np.full((600, 300, 3), colour))
    saved(whole)
    failed = results.create(root / "2026" / "two", name="broken", study="probes", seed=3, command=[], overrides=[])
    failed.finish("failed", "no such layer")
    return root


def test_the_page_of_all_runs_lists_them_newest_first(two_runs, repsim):
    code, out, err = repsim("report")
    assert (code, err) == (0, "")
    page = (two_runs / "index.html").read_text()
    assert out.strip() == str(two_runs / "index.html")
    broken, whole = inside(page)["runs"]
    assert (broken["name"], broken["status"], broken["error"]) == ("broken", "failed", "no such layer")
    assert broken["page"] is None
    assert broken["thumbnail"] is None
    assert broken["measures"] == []
    assert whole["data"] == reader.read_manifest(two_runs / "2026" / "one").get("data", {}).get("source", "")
    assert whole["page"] == "2026/one/report.html"
    assert whole["models"] == ["small", "large"]
    assert whole["warnings"] == 1
    assert whole["seconds"] == reader.read_manifest(two_runs / "2026" / "one")["seconds"]
    picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(whole["thumbnail"])))
    assert picture.shape[:2] == (160, 80)  # within 240 x 160, of the map of all models
    assert abs(float(picture[0, 0, 0]) - 0.8) < 0.02
    assert "<script>window.pwned" not in page
    assert "</script><!--" not in page


def test_the_page_of_all_runs_reads_what_changed_alone(two_runs, monkeypatch):
    """Of two runs one changes: the other is taken from the page that stands there, with the same content."""
    first = inside(report.save_overview(two_runs).read_text())
    read = []
    monkeypatch.setattr(overview, "_read_config_or_nothing", lambda folder: read.append(folder.name) or {})
    assert inside(report.save_overview(two_runs).read_text()) == first
    assert read == []
    with results.amend(two_runs / "2026" / "one") as run:
        run.warn("another")
    broken, whole = inside(report.save_overview(two_runs).read_text())["runs"]
    assert read == ["one"]
    assert (broken, whole["warnings"]) == (first["runs"][0], 2)
    (two_runs / "index.html").write_text("<p>no page of ours")
    report.save_overview(two_runs)
    assert read == ["one", "one", "two"]


def test_no_run_has_no_page_of_all_runs(tmp_path, repsim):
    code, _, err = repsim("report")
    assert code == 2
    assert "RUN: no run can be read in" in err
    assert not list(tmp_path.iterdir())
    code, _, err = repsim("report", "--output", str(tmp_path / "x.html"))
    assert code == 2
    assert "--output: of runs that are named" in err


def test_the_page_of_all_runs_is_searched_and_sorted_in_a_browser(two_runs, opened):
    file = report.save_overview(two_runs)
    page = opened(file, width=390, mobile=True)
    shown = "[...document.querySelectorAll('tbody tr:not(.hidden) td:nth-child(2)')].map((cell) => cell.textContent)"
    first, second = page.evaluate(shown)
    assert first == "broken"
    assert second == f"study{HOSTILE}"
    page.evaluate("document.querySelector('th button').click()")
    assert page.evaluate(shown) == ["broken", f"study{HOSTILE}"]
    page.evaluate("document.querySelector('th button').click()")
    assert page.evaluate(shown) == [f"study{HOSTILE}", "broken"]
    page.evaluate(
        "{ const field = document.getElementById('search'); field.value = 'failed prob';"
        "field.dispatchEvent(new Event('input')); }"
    )
    assert page.evaluate(shown) == ["broken"]
    assert page.evaluate("document.querySelector('[role=status]').textContent") == "1 of 2 runs"
    first, *rest = downloaded(page, "main", "CSV").decode().splitlines()
    assert first == "folder,name,started,status,study,models,data,measures,seed,seconds,warnings,error"
    (broken,) = rest
    assert broken.startswith("2026/two,broken,")
    assert broken.endswith(",no such layer")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.pwned") is None
