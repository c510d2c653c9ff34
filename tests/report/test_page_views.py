"""The linked views of a comparison, and the rows behind it, in a real browser."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from helpers.made_runs import HOSTILE, made, saved
from safetensors.torch import save_file

import repsim_cli
from repsim_cli import report
from repsim_cli.base.errors import BadInput
from repsim_cli.runs import reader, results
from repsim_cli.runs.content import BEHIND, TEXTS

ROWS = 40
CLICK = "new MouseEvent('click', {bubbles: true})"


@pytest.mark.parametrize("measure", ["cka", "procrustes"])
def test_the_card_and_the_sentence_have_one_level_of_chance(tmp_path, opened, monkeypatch, measure):
    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path))
    rows = np.random.default_rng(0).normal(size=(2, 100, 8))
    run = repsim_cli.compare({"a": rows[0], "b": rows[1]}, measures=[measure])
    page = opened(saved(run.folder), width=1400)
    (reach,) = re.findall(r"chance (at (?:most|least) [\d.]+)", text(page, ".lead"))
    cards = page.evaluate("[...document.querySelectorAll('.card')].map((c) => c.textContent)")
    assert any(card.startswith("0 of 1layers ") and f"chance ({reach})" in card for card in cards), (reach, cards)


def with_rows(folder, text="word", texts=True):
    """Adds rows to a made-up run: in the first layers of both models all nearest rows are the same, else none."""
    sides = {m.rows.model: m.rows.layers for m in reader.read_results(folder).measures[0].matrices if m.rows == m.columns}  # fmt: skip
    layers = [(model, layer) for model, own in sides.items() for layer in own]
    near = np.stack([[(row + 1 + np.arange(10) + (0 if layer.endswith("@0") else 10 * i % 30)) % ROWS for row in range(ROWS)] for i, (_, layer) in enumerate(layers)])  # fmt: skip
    shares = np.linspace(0.0, 0.02, ROWS, dtype=np.float32)[None]
    second = len(sides["small"])
    arrays = {"nearest": near.astype(np.int16), "pairs": np.array([[0, second]], dtype=np.int16), "values": shares.sum(1, dtype=float), "shares": shares}  # fmt: skip
    with results.amend(folder) as run:
        save_file({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / BEHIND)
        pieces = [f" {text}{row % 4}" for row in range(ROWS)]
        passages = [{"pieces": ["start", *pieces[:20]], "rows": [-1, *range(20)]}, {"pieces": pieces[20:], "rows": [*range(20, ROWS)]}]  # fmt: skip
        about = {"layers": layers, "measure": "cka", "unit": "token", "rows": ROWS, "of": 120, "tokens": [row % 4 for row in range(ROWS)], "texts": passages if texts else [], "without": "" if texts else "keep_texts=true"}  # fmt: skip
        run.write_text(TEXTS, json.dumps(about))
    return folder


def text(page, selector):
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")


def best(folder):
    """The closest layers of the two models, by the first measure."""
    matrix = next(m for m in reader.read_results(folder).measures[0].matrices if m.rows != m.columns)
    values = reader.read_array(folder, matrix.values)
    return values, np.unravel_index(values.argmax(), values.shape)


def test_the_page_opens_on_the_closest_layers_of_two_models(tmp_path, opened):
    """Question, sentence with chance, four cards; a choice in one view moves the others."""
    folder = made(tmp_path / "run", measures=("cka", "procrustes"))
    page = opened(saved(folder), width=1400)
    values, (i, j) = best(folder)
    assert text(page, "h1") == "small and large"
    assert text(page, "#results > p").startswith("Which layers of small and large answer to each other")
    assert text(page, ".lead").startswith("small and large are ")
    assert "chance is not known" in text(page, ".lead")
    cards = page.evaluate("[...document.querySelectorAll('.card')].map((c) => c.textContent)")
    assert len(cards) == 4
    assert cards[0].startswith(f"{values[i, j]:.2f}closest: block {i} of small and block {j} of large")
    assert cards[3].startswith("no warning")
    chosen = (
        "[...document.querySelectorAll('.block.chosen')].map((b) => b.getAttribute('aria-label').split(' answers')[0])"
    )
    assert page.evaluate(chosen) == [f"small resid_post@{i}", f"large resid_post@{j}"]
    assert text(page, "#row h3") == f"small resid_post@{i} against the layers of large"
    page.evaluate(f"document.querySelectorAll('.block')[{(i + 1) % 3}].dispatchEvent({CLICK})")
    assert text(page, "#row h3") == f"small resid_post@{(i + 1) % 3} against the layers of large"
    page.evaluate("(() => { const s = document.querySelector('#views select'); s.value = 'procrustes'; s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert page.evaluate("document.querySelector('select[name=measure]').value") == "procrustes"
    assert "PROCRUSTES" in text(page, ".card")
    page.evaluate("document.querySelector('#views summary').click()")
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    told = page.evaluate("[...document.querySelectorAll('#views tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")  # fmt: skip
    matrix = next(m for m in reader.read_results(folder).measures[1].matrices if m.rows != m.columns)
    nearest = reader.read_array(folder, matrix.values).argmin(1)
    assert [row[:2] for row in told] == [[f"resid_post@{a}", f"resid_post@{b}"] for a, b in enumerate(nearest)]


def test_blocks_answer_to_the_keyboard(tmp_path, opened):
    page = opened(saved(made(tmp_path / "run", measures=("cka",))))
    page.evaluate("document.querySelector('.block[tabindex=\"0\"]').focus()")
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowDown", "Enter"):
        page.press(key)
    assert text(page, "#row h3") == "small resid_post@1 against the layers of large"
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused).startswith("small resid_post@1 answers to large")


def test_tokens_are_coloured_by_agreement_and_have_neighbours(tmp_path, opened):
    """All ten are in both lists in the first layers of both models; in others, as the lists have it."""
    folder = with_rows(made(tmp_path / "run", measures=("cka",)))
    page = opened(saved(folder), width=1400)
    pick = "((i) => document.querySelectorAll('.block')[i].dispatchEvent({}))({})"
    (run,) = [json.loads(text(page, "#data"))["runs"][0]]
    assert run["rows"]["rows"] == ROWS
    page.evaluate(pick.format(CLICK, 0))
    first = next(j for j in range(5) if f"large resid_post@{j}" in page.evaluate("document.querySelectorAll('.block')[0].getAttribute('aria-label')"))  # fmt: skip
    token = "document.querySelector('.token[data-row=\"5\"]')"
    page.evaluate(f"{token}.dispatchEvent({CLICK})")
    lists = page.evaluate("[...document.querySelectorAll('.near ol')].map((l) => [...l.children].map((c) => c.querySelector('b').textContent))")  # fmt: skip
    shift = 0 if first == 0 else 10 * (3 + first) % 30
    assert lists[0] == [f" word{(6 + k) % 4}" for k in range(10)]
    assert lists[1] == [f" word{(6 + k + shift) % 4}" for k in range(10)]
    both = 10 if shift == 0 else 0
    assert f"{both} of 10 in both" in text(page, "#rows .views > div > .view h3")
    assert page.evaluate("document.querySelectorAll('.near .shared').length") == 2 * both
    assert page.evaluate(f"{token}.getAttribute('aria-pressed')") == "true"
    page.evaluate(f"{token}.focus()")
    page.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.row") == "6"


def test_shares_can_be_shown_where_they_are_kept(tmp_path, opened):
    """Layers that answer to each other have them; others have agreement alone."""
    folder = made(tmp_path / "run", measures=("cka",))
    matrix = next(m for m in reader.read_results(folder).measures[0].matrices if m.rows != m.columns)
    with results.amend(folder) as run:
        values = np.full((3, 5), 0.1)
        values[0, 0], values[1, 4], values[2, 3] = 0.9, 0.5, 0.4
        run.write_array(matrix.values.removeprefix("arrays/").removesuffix(".npy"), values)
    page = opened(saved(with_rows(folder)), width=1400)
    assert "the shares of the rows add up to it" in text(page, "#rows p")
    assert page.evaluate("document.querySelectorAll('#rows select').length") == 2
    heads = page.evaluate("[...document.querySelectorAll('#rows th')].map((h) => h.textContent)")
    assert heads == ["token", "rows", "of 10 nearest", "share of cka"]
    page.evaluate(f"document.querySelectorAll('.block')[1].dispatchEvent({CLICK})")
    assert "shares" not in text(page, "#rows p")
    assert page.evaluate("document.querySelectorAll('#rows select').length") == 1


def test_without_texts_the_page_says_where_they_would_stand(tmp_path, opened):
    page = opened(saved(with_rows(made(tmp_path / "run", measures=("cka",)), texts=False)))
    assert "The texts would stand here: keep_texts=true" in text(page, "#rows")
    assert "no. 0" in text(page, "#rows table")


def test_hostile_texts_are_text_and_a_phone_shows_them(tmp_path, opened):
    folder = with_rows(made(tmp_path / "run", measures=("cka",)), text=HOSTILE + "n" * 300 + "\u202e")
    page = opened(saved(folder), width=390, height=844, mobile=True, dark=True)
    assert page.evaluate("window.pwned === undefined")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelectorAll('#rows script, #rows img').length") == 0
    assert "\u202e" not in text(page, "#rows")


@pytest.mark.parametrize("wrong", [{"rows": 41}, {"texts": [{"pieces": ["a"], "rows": [99]}]}, {"layers": []}, {"tokens": ["x"] * ROWS}])  # fmt: skip
def test_rows_that_do_not_fit_are_refused(tmp_path, wrong):
    folder = with_rows(made(tmp_path / "run", measures=("cka",)))
    about = json.loads((folder / TEXTS).read_text()) | wrong
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with results.amend(copy) as run:
        run.write_text(TEXTS, json.dumps(about))
    with pytest.raises(BadInput, match=r"rows.json: .*; the run is damaged, run it again"):
        report.build_page([copy])
    (folder / TEXTS).write_text(json.dumps(about))
    with pytest.raises(BadInput, match="rows.json: not as the run left it"):
        report.build_page([folder])
