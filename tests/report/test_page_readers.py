"""Pages by keyboard, by touch, on a phone, in the dark, in print, and with names that do harm, in a real browser."""

import pytest
from helpers.made_runs import HOSTILE, made, saved
from helpers.pages import READOUT, box, changed, everything, hovered, read, value

from repsim_cli import report
from repsim_cli.runs.content import Axis, Curve, Table


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
    """A4 is 718 pixels wide within its margins: a table of 13 columns fits, the numbers of a long curve are left
    out."""
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


@pytest.mark.slow
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
