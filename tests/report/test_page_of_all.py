"""The page of all runs."""

import base64
import io

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from helpers.made_runs import HOSTILE, made, saved
from helpers.pages import (
    downloaded,
    inside,
)

from repsim_cli import report
from repsim_cli.report import overview
from repsim_cli.runs import reader, results


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
    """One of two runs changes: the other is taken from the page that stands there, with the same content."""
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
    assert "--output: only for named runs" in err


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
