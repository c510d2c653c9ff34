"""Every kind of figure, of few and many layers and models, with short and long names, at each width: its texts do not
touch and lie inside the width, and at the width of a column it is the picture that was looked at and approved.

`REPSIM_APPROVE=1 python -m pytest tests/figures/test_layout.py` approves what is drawn now; look at the pictures that git
then shows as changed.
"""

import os
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from helpers.drawn_kinds import KINDS
from helpers.drawn_topics import TOPICS
from matplotlib.legend import Legend
from matplotlib.text import Text
from PIL import Image

from repsim_cli.figures import frame
from repsim_cli.figures.frame import INCHES, MARGIN, Style
from repsim_cli.figures.layout import LEAST, MATRIX, TITLED

EVERY = KINDS | TOPICS
APPROVED = Path(__file__).parent / "approved"
DIFFERENT, FEW = 96, 3  # two pictures differ where more pixels than these differ by more, of 255
# whose layout differs there
AT_PAGE = (
    "map of 60 models", "map and calibrated map", "small maps", "couplings of 8 plans, tiny", "sub-networks",
    "feature maps of 10 layers, tiny", "58 measures",
)  # fmt: skip

# that take a second
LARGE = (
    "58 measures", "changed blocks of 3 models", "stitching of long names, tiny", "feature maps of 10 layers, tiny",
    "convergence of 60 models", "remedies", "changed blocks", "layers of 60 models", "sub-networks of 200 layers, negative",
    "stitching grid", "boxes of 6 groups", "universality of 20 measures", "200 layers over training, tiny",
    "histograms of 7 layers, large", "map of 20 models about common shapes", "map of 7 models, tiny", "probes of 24 blocks",
    "layers over training", "small maps", "map and calibrated map",
)  # fmt: skip


def words(figure: Any) -> list[tuple[str, Any]]:
    """The boxes of all that is written outside legends."""
    parts = [child for axes in figure.axes for child in (axes, *axes.child_axes)]
    labels = []
    for axes in parts:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
            labels += [axis.label, *(label for at, label in ticks if low - 1e-9 <= at <= high + 1e-9)]
        labels += [*axes.texts, axes.title, axes._left_title, axes._right_title]
        labels += [axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text()]
    labels += figure.texts  # titles among them
    return [
        (label.get_text(), label.get_window_extent()) for label in labels if label.get_text() and label.get_visible()
    ]


def list_touching(written: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [
        (first, second)
        for (first, a), (second, b) in combinations(written, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        *(pytest.param(kind, "column", marks=[pytest.mark.slow] * (kind in LARGE)) for kind in EVERY),
        *(pytest.param(kind, "page", marks=pytest.mark.nightly) for kind in AT_PAGE),
    ],
)
def test_texts_lie_apart_and_the_picture_is_approved(tmp_path, kind, width):
    settings: Any = frame.STYLE | (frame.COLUMN if width == "column" else {})
    with matplotlib.rc_context(settings):
        figure = frame._fit_figure(EVERY[kind], Style(width=width), tmp_path / "labels.txt")
        box = figure.get_tightbbox()
        written = words(figure)
    assert box.width <= INCHES[width] - 2 * MARGIN + 0.02
    assert box.height <= 12
    assert list_touching(written) == []
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text() and text.get_visible()) >= LEAST
    for axes in figure.axes:
        if axes.get_label() == MATRIX:
            assert axes.get_window_extent().width / figure.dpi >= 0.8
    if width == "column":
        drawn, approved = tmp_path / "drawn.png", APPROVED / f"{re.sub(r'[^0-9a-z]+', '-', kind)}.png"
        with matplotlib.rc_context(settings):
            figure.savefig(drawn, dpi=72, bbox_inches=box.padded(MARGIN))
        if os.environ.get("REPSIM_APPROVE"):
            Image.open(drawn).convert("RGB").quantize(256).save(approved, optimize=True)
        expected, actual = (np.asarray(Image.open(file).convert("RGB"), float) for file in (approved, drawn))
        high, wide, _ = np.minimum(expected.shape, actual.shape)
        assert np.abs(np.subtract(expected.shape, actual.shape)).max() <= 1  # sizes are rounded
        differences = np.abs(expected[:high, :wide] - actual[:high, :wide]).max(2)
        assert np.count_nonzero(differences > DIFFERENT) <= FEW


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY)
def test_nothing_is_written_over_other_axes_and_figures_are_not_mostly_empty(tmp_path, kind):
    """Figures have the size of a run's: texts do not touch, titles lie beside colour bars and other panels, labels of
    colour bars are no longer than these, and axes take half of the width, or stand below a title that takes more."""
    with matplotlib.rc_context(frame.STYLE):
        figure = frame._fit_figure(EVERY[kind], Style(), tmp_path / "labels.txt")
        box, boxes = figure.get_tightbbox(), {axes: axes.get_window_extent() for axes in figure.axes}
        written = words(figure)
        titles = [
            (axes, title.get_text(), title.get_window_extent())
            for axes in figure.axes
            for title in (axes.title, axes._left_title, axes._right_title)
            if title.get_text()
        ]
        for legend in figure.findobj(Legend):  # one that stands beside axes fills the width, one above them does not
            above = all(legend.get_window_extent().y0 >= axes.y1 for axes in boxes.values())
            legend.set_in_layout(not above)
        around = [axes.get_tightbbox(for_layout_only=True) for axes in figure.axes]
        bars = [axes for axes in figure.axes if hasattr(axes, "_colorbar")]
        long = [
            axes.get_ylabel() for axes in bars if axes.yaxis.label.get_window_extent().height > 1.1 * boxes[axes].height
        ]
    across = [
        (title, other.get_label())
        for axes, title, a in titles
        for other, b in boxes.items()
        if other is not axes and min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert list_touching(written) == []
    assert across == []
    assert long == []
    wide = (max(x.x1 for x in around) - min(x.x0 for x in around)) / figure.dpi
    assert 2 * wide >= box.width or box.width <= TITLED + 0.1
