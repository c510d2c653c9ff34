"""What two models come to in sentences, never without chance: for the terminal and the page."""

from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np

from repsim_cli.figures.chance import Chance, choose_chance_level
from repsim_cli.findings import answering
from repsim_cli.findings.answering import LESS, MORE, Sides, choose_number_format
from repsim_cli.findings.driving import say_driving
from repsim_cli.runs.behind import Kept
from repsim_cli.runs.content import Measured, Results

NOTHING = "have nothing in common beyond chance"
# of normal values; chance is skewed and its spread that of few pairings, so that 0.05 of unrelated models exceed it
LEVEL = 0.002


def sentences(whole: Results, read: answering.Read, first: str, second: str, kept: Kept | None = None) -> Iterator[str]:
    """Says in a sentence how alike two models are by the first measure, of each other whether it says so too, and last
    which rows are behind the similarity, as far as the run kept them."""
    told = ""
    for measured in whole.measures:
        found = answering.find_both_directions(measured, read, first, second)
        if not found or not (layers := answering.list_layer_values(sides := found[0])):
            continue
        said, numbers = _say(measured, sides, layers)
        if not told:
            told = said
            yield f"{first} and {second} {said}: {numbers}"
            continue
        against = _contradicts_first(
            told, said, [value if measured.larger_is_closer else -value for _, value in layers]
        )
        what = said if said == NOTHING else said.removeprefix("are ")
        how = "agrees" if said == told else f"says {'otherwise, ' if against else ''}{what}"
        yield f"{measured.card['label']} {how}: {numbers}"
    if told not in ("", NOTHING) and kept:
        yield from say_driving(kept, first, second)


def _contradicts_first(told: str, said: str, near: Sequence[float]) -> bool:
    """Tells whether a measure contradicts the first one. near: how close layers are by it, in order."""
    if (said == NOTHING) != (told == NOTHING) or {said, told} == {f"are {MORE}", f"are {LESS}"}:
        return True
    other_end = {f"are {MORE}": near[0], f"are {LESS}": near[-1]}.get(told)
    return said.startswith("are most alike") and other_end == max(near)


def _say(measured: Measured, sides: Sides, layers: Sequence[tuple[str, float]]) -> tuple[str, str]:
    """Says what a measure finds in two models in words, and its numbers with what chance gives."""
    word, _ = answering.make_layer_namer([*sides.rows, *sides.columns])
    trend = answering.describe_depth_trend([value for _, value in layers], measured.card)
    near = sorted(layers, key=lambda each: each[1], reverse=measured.larger_is_closer)
    shown = [layers[0], layers[-1]] if trend else [near[0], near[-1]]
    what = ("" if sides.same_layers else "best matches, ") + measured.card["label"]
    digits = choose_number_format(sides.values)
    numbers = " and ".join(f"{value:{digits}} {_say_layer(word(layer))}" for layer, value in dict(shown).items())
    numbers += "" if sides.same_layers else f" of {sides.first}"
    said = f"are {trend}" if trend else f"are most alike {_say_layer(word(near[0][0]))}"
    if is_chance(measured, sides):
        said = NOTHING
    by = "" if measured.larger_is_closer else " (smaller is closer)"
    beside = [_say_chance(measured, sides)]
    if (floor := measured.floor) is not None:
        best = near[0][1] if measured.larger_is_closer else -near[0][1]
        above = best > (floor["value"] if measured.larger_is_closer else -floor["value"])
        than = "" if above else f"no {'more' if measured.larger_is_closer else 'closer'} than "
        beside.append(f"{than}the {floor['unit']} alone {floor['value']:{digits}}")
    return said, f"{what} {numbers}{by}; {', '.join(beside)}"


def _say_layer(layer: str) -> str:
    return f"in {layer}" if layer.startswith("block ") else f"at {layer}"


def find_chance_level(measured: Measured, sides: Sides) -> Chance | None:
    """Finds the level of chance of two models."""
    drawn = [] if sides.chance is None else [sides.chance]
    return choose_chance_level(measured.chance, measured.null, drawn, np.empty(0))[0]


def _say_chance(measured: Measured, sides: Sides) -> str:
    chance = find_chance_level(measured, sides)
    if chance is None:
        return "chance is not known here"
    return f"chance {f'at most {chance.high:z.2g}' if measured.larger_is_closer else f'at least {chance.low:z.2g}'}"


def find_margin_over_chance(measured: Measured, cells: int) -> float | None:
    """Finds how far a pair of layers must be ahead of chance, of a map of so many cells, to be more than what random
    pairings of the rows give; None where their spread is not known."""
    spread = (measured.chance or {}).get("spread")
    return NormalDist().inv_cdf(1 - LEVEL / cells) * spread if spread and cells else None


def is_chance(measured: Measured, sides: Sides) -> bool:
    """Tells whether no pair of layers is closer than the closest of so many random pairings of the rows would be."""
    limit = find_margin_over_chance(measured, sides.values.size)
    if sides.chance is None or limit is None:
        return False
    ahead = (sides.values - sides.chance) * (1 if sides.larger else -1)
    return bool(np.isfinite(ahead).any() and np.nanmax(ahead) <= limit)
