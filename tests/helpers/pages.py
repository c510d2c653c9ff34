"""Pages of runs: what is in them, and what a browser shows of them."""

import base64
import io
import json
import re
from dataclasses import replace
from functools import cache

import matplotlib
import matplotlib.image
import numpy as np

from repsim_cli.runs import reader, results

FACTS = {"kind": "live", "family": "gpt_neox", "layers": [], "widths": []}  # of a model, in a manifest


def changed(folder, **parts):
    """Replaces parts of a run's results."""
    with results.amend(folder) as run:
        run.write_results(replace(reader.read_results(folder), **parts))


def inside(page):
    """The JSON inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


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
