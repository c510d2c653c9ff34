"""Charts of curves on a page, in a real browser."""

from dataclasses import replace
from xml.etree import ElementTree

from helpers.made_runs import made, saved
from helpers.pages import box, changed, downloaded

from repsim_cli.runs.content import Axis, Band, Curve


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
