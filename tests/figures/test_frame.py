"""Styles of figures, and names in scripts that the font lacks."""

import re
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from repsim_cli.figures import frame, lines
from repsim_cli.figures.colours import choose_card_colours
from repsim_cli.figures.frame import Style, save
from repsim_cli.figures.heatmap import draw_heatmap

NAMES = ["層一", "レイヤー 2", "층", "طبقة", "plain"]


def figure(names=NAMES):
    values = np.arange(25.0).reshape(5, 5) / 25
    ink = choose_card_colours({"larger_is_closer": True}, "values")
    drawn, axes = draw_heatmap(values, names, names, "模型 by layer", "similarity", (0.0, 1.0), ink, "{:.2f}")
    axes.set_xlabel("模型")
    return drawn


def saved(folder, names=NAMES, **style):
    """The figure as it is saved, and all its text."""
    kept = []

    def make():
        kept.append(figure(names))
        return kept[-1]

    frame.save(folder, [("a", make)], style=frame.Style(format=("svg",), **style))
    return kept[-1], [text.get_text() for text in frame._find_figure_texts(kept[-1]) if text.get_text()]


def key_of(folder):
    return dict(line.split(" ", 1) for line in (folder / "labels.txt").read_text().splitlines())


def test_words_without_a_font_are_numbered(tmp_path, monkeypatch):
    """#1 and so on, one number per word in all figures of a folder; labels.txt has the words."""
    monkeypatch.setattr(frame, "_list_fonts", lambda: frozenset({frame.PLAIN}))
    _, texts = saved(tmp_path)
    key = key_of(tmp_path)
    number = {word: name for name, word in key.items()}
    assert set(number) == {"層一", "レイヤー", "층", "模型"}
    for shown in (
        number["層一"],
        f"{number['レイヤー']} 2",
        number["模型"],
        f"{number['模型']} by layer",
        "طبقة",
        "plain",
    ):
        assert shown in texts
    assert not any(ord(c) > 0x2000 for text in texts for c in text)
    saved(tmp_path, names=["新", *NAMES[1:]])
    assert key_of(tmp_path) == key | {f"#{len(key) + 1}": "新"}


def test_an_installed_font_is_used(tmp_path, monkeypatch):
    """Here one that is said to have what the plain one lacks: it stands behind it, only where it is needed."""
    other, useless = "Noto Sans CJK JP", "Noto Sans Nothing"
    latin, wanted = {*range(128), *range(0x600, 0x700)}, {ord(c) for name in (*NAMES, "模型") for c in name}
    has = {frame.PLAIN: latin, other: wanted, useless: set()}
    monkeypatch.setattr(frame, "_list_fonts", lambda: frozenset(has))
    monkeypatch.setattr(frame, "_list_font_characters", has.__getitem__)
    families = []

    def noting(make):
        families.append(font_manager.FontProperties().get_family())
        return make()

    made = frame._make_legible_figure(lambda: noting(figure), frame.PLAIN, tmp_path / "labels.txt")
    assert families == [[frame.PLAIN], [frame.PLAIN, other]]
    assert made.axes[0].get_xlabel() == "模型"
    families.clear()
    frame._make_legible_figure(lambda: noting(Figure), frame.PLAIN, tmp_path / "labels.txt")
    assert families == [[frame.PLAIN]]
    assert not (tmp_path / "labels.txt").exists()


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75)])
def test_width_and_titles(tmp_path, width, inches):
    names = [f"resid_post@{i}" for i in range(5)]
    made, texts = saved(tmp_path, names=names, width=width, titles=False, colours="magma")
    (points,) = re.findall(r'<svg [^>]*width="([\d.]+)pt"', (tmp_path / "a.svg").read_text())
    assert float(points) / 72 == pytest.approx(inches, abs=0.005)
    assert made.get_tightbbox().width <= inches
    assert not any("by layer" in text for text in texts)
    assert made.axes[0].get_images()[0].get_cmap().name == "magma"
    labels = [label for label in made.axes[0].get_yticklabels() if label.get_visible()]
    boxes = [label.get_window_extent() for label in labels]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(label.get_fontsize() == 7 for label in labels)  # text around axes keeps its size


@pytest.mark.parametrize("size", [5.2, 6.1, 7.0])
def test_letters_are_as_wide_in_pixels_as_in_the_layout(tmp_path, size):
    made = Figure(figsize=(2, 1))
    made.add_axes((0, 0, 1, 1)).set_yticks([0.5], ["part of speech of the next word, and of the last"], fontsize=size)
    save(tmp_path, [("a", lambda: made)], style=Style(width="column", format=("png",)))
    assert np.all(imread(tmp_path / "a.png")[:, :4, :3] == 1)  # the margin is white


def test_panels_keep_their_names_without_titles(tmp_path):
    def made():
        drawn = Figure()
        for panel, name in zip(drawn.subplots(1, 2), ("resid_post@0", "resid_post@1"), strict=True):
            panel.set_title(name, loc="left")
        drawn.suptitle("Stitched models\nCKA, 10 rows")
        return drawn

    for titles in (True, False):
        figure = frame._fit_figure(made, Style(titles=titles), tmp_path / "labels.txt")
        assert [panel.get_title(loc="left") for panel in figure.axes] == ["resid_post@0", "resid_post@1"]
        written = [text.get_text() for text in figure.texts if text.get_text()]
        assert sorted(written) == (["CKA, 10 rows", "Stitched models"] if titles else [])


@pytest.mark.slow
def test_panels_of_a_column_stand_below_each_other_and_keep_their_size(tmp_path):
    made = Figure(figsize=(15.6, 3))
    panels: Any = made.subplots(1, 6, sharey=True)
    for number, axes in enumerate(panels):
        axes.barh(range(4), [1, 2, 3, 4])
        axes.set_title(f"resid_post@{number}", loc="left")
    panels[0].set_yticks(range(4), [f"gelu_trained_{i} → solu_trained_{i}" for i in range(4)])
    panels[3].set_xlabel("KL of the outputs from the tail's own, nats")
    made.suptitle("Stitched models: stitch layer affine, 150 steps; bars: standard error over 200 sequences")
    save(tmp_path, [("a", lambda: made)], style=Style(width="column", format=("png",)))
    made.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in panels]
    assert made.get_tightbbox().width <= 3.25
    assert min(box.width for box in boxes) >= 1.1 * made.dpi
    assert min(box.height for box in boxes) >= made.dpi
    outer = [axes.get_tightbbox() for axes in panels]
    assert not [1 for a, b in combinations(outer, 2) if a.overlaps(b)]


# Machado et al. (2009): linear RGB as people without the middle cones see it
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
GREY = np.tile([0.2126, 0.7152, 0.0722], (3, 1))
APART = 10  # CIE76, of two lines side by side


def lab(colour, seen_as):
    """The colour in CIELAB, as it is seen."""
    rgb = np.array(to_rgb(colour))
    linear = seen_as @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear.clip(0, 1)
    x, y, z = (
        v ** (1 / 3) if v > (6 / 29) ** 3 else v / (3 * (6 / 29) ** 2) + 4 / 29 for v in xyz / [0.9505, 1, 1.089]
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen_as", [np.eye(3), DEUTERANOPIA, GREY], ids=["all colours", "deuteranopia", "grey"])
def test_lines_are_told_apart_by_colour_or_dashes(seen_as):
    """Lines are as many as a legend names; more have their names at their ends. Colours alone, where they are seen,
    tell all."""
    styles = frame.choose_line_styles(lines.FEW)
    for a, b in combinations(styles, 2):
        apart = np.linalg.norm(lab(a["color"], seen_as) - lab(b["color"], seen_as))
        assert apart > APART or a["linestyle"] != b["linestyle"], (a, b, apart)
    if seen_as is not GREY:
        assert all(np.linalg.norm(lab(a, seen_as) - lab(b, seen_as)) > APART for a, b in combinations(frame.COLOURS, 2))


def test_the_page_has_the_colours_of_the_figures():
    """The order is the same, too: colours are of the same hue, dark enough for words on white; in the dark scheme
    bright enough."""
    css = (resources.files("repsim_cli") / "assets" / "report" / "page.css").read_text()
    shades = [re.findall(rf"--line-{k + 1}: (#\w+)", css) for k in range(4)]
    for colour, (light, dark, *_) in zip(frame.COLOURS, shades, strict=False):
        hues = [np.degrees(np.arctan2(*lab(each, np.eye(3))[:0:-1])) for each in (colour, light, dark)]
        assert all(abs((hue - hues[0] + 180) % 360 - 180) < 40 for hue in hues), (colour, light, dark, hues)
        assert lab(light, np.eye(3))[0] < 50 < lab(dark, np.eye(3))[0]
