"""The report: one page from the files alone, what it holds and what it never does."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from helpers.made_runs import HOSTILE, made, saved
from helpers.pages import (
    inside,
)

from repsim_cli import report
from repsim_cli.base.errors import BadInput
from repsim_cli.report.headline import write_methods
from repsim_cli.runs import reader, results


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


@pytest.mark.parametrize(
    ("unit", "said"),
    [("word", "5 words of some text ("), ("mean", "5 examples, each the mean over its tokens, of some text (")],
)
def test_the_methods_say_what_a_row_is(tmp_path, unit, said):
    folder = made(tmp_path / "run")
    manifest, whole = json.loads((folder / "manifest.json").read_text()), reader.read_results(folder)
    about = {**manifest, "data": {"source": "some text", "unit": unit}, "remedies": {"skip": 2}}
    first, *others = whole.measures
    few = replace(first, estimate={"kind": "full", "rows": 5})
    assert said in write_methods(about, replace(whole, measures=[few, *others]))
    assert "on 5 rows (" in write_methods({**about, "data": None}, replace(whole, measures=[few]))


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
    (weights := tmp_path / "model.safetensors").write_text("precious")
    for place in (tmp_path, tmp_path / "absent" / "both.html", weights):
        code, _, err = repsim("report", one, "--output", place)
        problem = f"--output: no page can be written there, got '{place}'; name an .html file in a folder that exists"
        assert (code, err) == (2, f"error: {problem}\n")
    assert weights.read_text() == "precious"


def test_a_sweep_has_a_report_of_all_its_jobs(repsim, tmp_path):
    sweep = tmp_path / "outputs" / "2026-11-20" / "07-30-41-sweep"
    for seed in (0, 1):
        made(sweep / f"{seed}-study", seed=seed, measures=("cka",))
    code, out, _ = repsim("report", "07-30-41-sweep")
    assert (code, out) == (0, f"{sweep / 'report.html'}\n")
    runs = inside((sweep / "report.html").read_text())["runs"]
    assert [run["manifest"]["seed"] for run in runs] == [0, 1]
    code, out, _ = repsim("report", "2026-11-20/07-30-41-sweep")  # from the root of runs, as the names of runs are
    assert (code, out) == (0, f"{sweep / 'report.html'}\n")
    shown = repsim("show", "07-30-41-sweep")[1]
    assert "all values are those of" not in shown
    code, _, err = repsim("show", "07-30-41-sweep", "--follow")
    assert (code, err) == (2, f"error: --follow: only for a single run, got the sweep {sweep}; name one of its jobs\n")


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
