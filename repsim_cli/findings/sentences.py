"""What two models come to in sentences, never without chance: for the terminal and the page."""

from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from repsim_cli.figures.chance import Chance, level_of
from repsim_cli.findings import answering
from repsim_cli.findings.answering import Sides
from repsim_cli.runs.content import Measured, Results

NOTHING = "have nothing in common beyond chance"
LEVEL = 0.05  # the share of pairs of unrelated models of which some layers are above chance


def sentences(whole: Results, read: answering.Read, first: str, second: str) -> Iterator[str]:
    """Says in a sentence how alike two models are by the first measure, and of each other whether it says so too."""
    told: tuple[str, list[float]] | None = None
    for measured in whole.measures:
        found = answering.two_models(measured, read, first, second)
        if not found or not (layers := answering.along(sides := found[0])):
            continue
        said, numbers = _said(measured, sides, layers)
        near = [value if sides.larger else -value for _, value in layers]
        if told is None:
            told = said, near
            yield f"{first} and {second} {said}: {numbers}"
            continue
        against = (said == NOTHING) != (told[0] == NOTHING) or opposite(near, told[1])
        what = said if said == NOTHING else said.removeprefix("are ")
        how = "agrees" if said == told[0] else f"says {'otherwise' if against else 'less'}, {what}"
        yield f"{measured.card['label']} {how}: {numbers}"


def opposite(near: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one measure rises along the layers where another falls, by their correlation.

    >>> opposite([0.1, 0.2, 0.3], [0.5, 0.3, 0.4]), opposite([0.1, 0.2, 0.3], [0.5, 0.3, 0.6])
    (True, False)
    """
    if len(near) != len(other) or len(near) < 3 or not np.ptp(near) or not np.ptp(other):
        return False
    return bool(np.corrcoef(near, other)[0, 1] < 0)


def _said(measured: Measured, sides: Sides, layers: Sequence[tuple[str, float]]) -> tuple[str, str]:
    """What a measure says of two models in words, and the numbers of it with what chance gives."""
    word, _ = answering.layer_words([*sides.rows, *sides.columns])
    trend = answering.trend([value for _, value in layers], measured.card)
    near = sorted(layers, key=lambda each: each[1], reverse=measured.larger_is_closer)
    shown = [layers[0], layers[-1]] if trend else [near[0], near[-1]]
    what = ("" if sides.same_layers else "best matches, ") + measured.card["label"]
    numbers = " and ".join(f"{value:z.2f} {_at(word(layer))}" for layer, value in dict(shown).items())
    numbers += "" if sides.same_layers else f" of {sides.first}"
    said = f"are {trend}" if trend else f"are most alike {_at(word(near[0][0]))}"
    if _is_chance(measured, sides):
        said = NOTHING
    by = "" if measured.larger_is_closer else " (smaller is closer)"
    beside = [_by_chance(measured, sides)]
    if (floor := measured.floor) is not None:
        best = near[0][1] if measured.larger_is_closer else -near[0][1]
        above = best > (floor["value"] if measured.larger_is_closer else -floor["value"])
        beside.append(f"{'' if above else 'no more than '}the {floor['unit']} alone {floor['value']:z.2f}")
    return said, f"{what} {numbers}{by}; {', '.join(beside)}"


def _at(layer: str) -> str:
    return f"in {layer}" if layer.startswith("block ") else f"at {layer}"


def chance_of(measured: Measured, sides: Sides) -> Chance | None:
    """The level of chance of two models."""
    drawn = [] if sides.chance is None else [sides.chance]
    return level_of(measured.chance, measured.null, drawn, np.empty(0))[0]


def _by_chance(measured: Measured, sides: Sides) -> str:
    chance = chance_of(measured, sides)
    if chance is None:
        return "chance is not known here"
    return f"chance {f'at most {chance.high:z.2g}' if measured.larger_is_closer else f'at least {chance.low:z.2g}'}"


def _is_chance(measured: Measured, sides: Sides) -> bool:
    """Whether no pair of layers is closer than the closest of so many random pairings of the rows would be."""
    spread = (measured.chance or {}).get("spread")
    if sides.chance is None or not spread:
        return False
    ahead = (sides.values - sides.chance) * (1 if sides.larger else -1)
    limit = NormalDist().inv_cdf(1 - LEVEL / ahead.size) * spread
    return bool(np.nanmax(ahead, initial=-np.inf) <= limit)
