"""A run that computes is followed, by its log and by its page."""

import numpy as np
import pytest
from helpers.made_runs import CARDS
from helpers.pages import inside
from helpers.timers import replace_clock, set_timers

from repsim_cli import report
from repsim_cli.cli import follow
from repsim_cli.runs import reader, results, so_far
from repsim_cli.runs.content import Measured


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

    replace_clock(monkeypatch, follow, sleep=passes)
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
    replace_clock(monkeypatch, follow, sleep=lambda seconds: running.finish("failed", "out of luck"))
    code, out, _ = repsim("show", "one", "--follow")
    assert code == 0
    assert out.startswith("cka: 7 of 9 cells, mean 0.643, lowest 0.250, highest 1.000\nstudy: failed")


def test_the_page_of_a_running_run_reloads_itself(running, repsim, monkeypatch, chromium, opened):
    file, pages = running.folder / "report.html", []

    def passes(seconds):
        pages.append(file.read_text())
        running.finish("failed", "out of luck")

    replace_clock(monkeypatch, report, sleep=passes)
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
        "error: --follow: only for a run that is named; e.g. repsim report latest --follow\n",
    )
    code, _, err = repsim("report", "one", "one", "--follow", "--output", "both.html")
    assert (code, err) == (2, "error: --follow: only for a single run, got one one; name one run\n")
