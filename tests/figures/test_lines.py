"""Lines over layers and steps, and the lines of their texts."""

import pytest
from matplotlib.figure import Figure

from repsim_cli.figures.lines import draw_quantities
from repsim_cli.figures.texts import fold_lines
from repsim_cli.runs.content import Axis, Curve


def test_logarithmic_axes_begin_below_the_smallest_value():
    curve = Curve(x=Axis(name="layer"), y=Axis(name="ratio"), at=["0", "1"], lines={"ratio": [1.2, 30.0]}, about={"quantity": "ratio", "model": "m"})  # fmt: skip
    low, high = draw_quantities([[curve]], ("ratio",)).axes[0].get_ylim()
    assert (low, high) == (pytest.approx(1 / 1.1), pytest.approx(33))


def test_lines_are_folded_anew_for_another_room():
    text = Figure().text(0, 0, "column mean: the others' neurons, in it", fontsize=9)
    folded = []
    for inches in (1.2, 0.9, 1.2):
        fold_lines([text], inches)
        folded.append(text.get_text())
    assert folded[0] == folded[2] != folded[1]
    fold_lines([text], 9.0)
    assert "\n" not in text.get_text()
