"""What two models come to in sentences, never without chance: for the terminal and the page."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.base.plain import name_blocks
from repsim_cli.figures.chance import Chance, choose_chance_level
from repsim_cli.findings import answering
from repsim_cli.findings.answering import (
    EVERYWHERE,
    LESS,
    MORE,
    ClosestLayer,
    Sides,
    choose_number_format,
    pair_with_one,
)
from repsim_cli.findings.driving import say_driving
from repsim_cli.findings.extremes import compare_width
from repsim_cli.findings.student import find_t_quantile
from repsim_cli.runs.behind import Kept
from repsim_cli.runs.content import Measured, Results

NOTHING = "have nothing in common beyond chance"
BLIND = "cannot be told from unrelated models on these rows"
MOST_ALIKE = "are most alike"
ALONE = "can be compared at one layer"
ACROSS = "often have their closest layer at another depth"
BEYOND = "are alike beyond chance"  # where no error says at which layers they are more so
UNJUDGED = "have values of unknown error"  # nor any chance
BLOCK = re.compile(r"block (\d+)")
NAMED = 4  # layers that a sentence names at most
# of t, since the spread of chance is that of few pairings; chance is skewed, so that up to 0.03 of unrelated models
# exceed it (1 to 12 layers of 200 to 500 rows)
LEVEL = 0.002
SEEN = 0.5  # of the way from chance to the best value: where chance reaches further, these rows cannot tell


def say_how_alike(
    whole: Results, read: answering.Read, first: str, second: str, kept: Kept | None = None
) -> Iterator[str]:
    """Says in a sentence how alike two models are by the first measure, of each other whether it says so too, and last
    which rows are behind the similarity, as far as the run kept them."""
    told = ""
    for measured in whole.measures:
        found = answering.find_both_directions(measured, read, first, second)
        found = [sides for sides in found if answering.list_layer_values(sides)]  # a direction may have no value
        if not found:
            continue
        layers = answering.list_layer_values(found[0])
        said, numbers = _say_both_ways(measured, found)
        if not told:
            told = said
            yield f"{first} and {second} {said}{_say_within_floor(measured, found, said)}: {numbers}"
            continue
        near = [value if measured.larger_is_closer else -value for _, value in layers]
        noise = find_noise(measured, found[0])
        least = math.inf if noise is None else answering.find_scatter(len(layers), noise)
        against = _contradicts_first(told, said, near, least)
        how = "agrees" if said == told else f"says {'otherwise, ' if against else ''}that they {said}"
        yield numbers if said.startswith((ALONE, UNJUDGED)) else f"{measured.card['label']} {how}: {numbers}"
    if told not in ("", NOTHING, BLIND) and kept:
        yield from say_driving(kept, first, second)


def _say_both_ways(measured: Measured, found: Sequence[Sides]) -> tuple[str, str]:
    """Says what a measure finds in two models, the same whichever is named first: where it has a direction, or where
    their layers differ, as it looks from either model, if that is not the same."""
    there, *back = found
    if not back or (measured.card["symmetric"] and there.same_layers):
        return _say(measured, there, found)
    (said, numbers), (said_back, numbers_back) = (_say(measured, sides, [sides]) for sides in found)
    if said == said_back:
        return said, numbers
    if UNJUDGED in (said, said_back):
        return UNJUDGED, f"{numbers}; back {numbers_back}"
    return f"{said} from {there.first} to {there.second}, and {said_back} back", f"{numbers}; back {numbers_back}"


def _say_within_floor(measured: Measured, found: Sequence[Sides], said: str) -> str:
    """Says of two models that have something in common that no layers are more alike than what stands in a row alone
    makes them; empty where some are, or where that is not known."""
    if said in (NOTHING, BLIND) or (floor := measured.floor) is None:
        return ""
    best = max(float(np.nanmax(sides.closeness)) for sides in found)
    above = _is_above_floor(floor, best, measured.larger_is_closer)
    return "" if above else f", and are no more alike than the {floor['unit']} alone would make them"


def _is_above_floor(floor: Mapping[str, Any], closeness: float, larger: bool) -> bool:
    """Tells whether layers so close are closer than what stands in a row alone makes them."""
    return closeness > (floor["value"] if larger else -floor["value"])


def _contradicts_first(told: str, said: str, near: Sequence[float], least: float) -> bool:
    """Tells whether a measure contradicts the first one. near: how close layers are by it, in order. least: the least
    lead of the other end that tells it apart from the one that the first measure has as closer."""
    if {said, told} & {BLIND, UNJUDGED}:
        return False
    if (said == NOTHING) != (told == NOTHING) or {said, told} == {f"are {MORE}", f"are {LESS}"}:
        return True
    ends = {f"are {MORE}": (near[0], near[-1]), f"are {LESS}": (near[-1], near[0])}.get(told)
    return said.startswith(MOST_ALIKE) and ends is not None and ends[0] == max(near) and ends[0] - ends[1] > least


def _say(measured: Measured, sides: Sides, ways: Sequence[Sides]) -> tuple[str, str]:
    """Says what a measure finds in two models in words, and its numbers with what chance gives. ways: the directions in
    which layers may be closest to another one."""
    layers = answering.list_layer_values(sides)
    word, _ = answering.make_layer_namer([*sides.rows, *sides.columns])
    digits, noise = choose_digits(measured, sides), find_noise(measured, sides)
    values = [value for _, value in layers]
    by_layer = [(word(layer), f"{value:{digits}}") for layer, value in layers]
    what = ("" if sides.same_layers else "best matches, ") + measured.card["label"]
    of = "" if sides.same_layers else f" of {sides.first}"
    trend = answering.describe_depth_trend(values, measured.larger_is_closer, noise)
    if len(layers) > 1 and len({written for _, written in by_layer}) == 1:
        trend = EVERYWHERE  # what differs is beyond the decimals
    near = sorted(zip(values, by_layer, strict=True), reverse=measured.larger_is_closer)
    if trend:
        said, numbers = f"are {trend}", _say_ends(by_layer, values, answering.find_least_change(values, noise or 0.0))
    elif noise is None and len(layers) > 1:
        said = BEYOND if is_chance(measured, sides) is False else UNJUDGED
        numbers = _say_ends(by_layer, values, 0.0) + ", error not known" * (said == BEYOND)
    else:
        said, numbers = _say_most_alike(by_layer, near[0][1][1], near[-1][1][1])
        if said.startswith(MOST_ALIKE) and noise is not None:
            numbers += _say_as_alike(near, near[0][1][1], answering.find_scatter(len(values), noise))
    moved = [(way, each) for way in ways for each in find_displaced_layers(way, noise)]
    if by_chance := judge_chance(measured, sides):
        said, numbers = by_chance, _say_extremes(by_layer, near[0][1][1], near[-1][1][1])
    elif 2 * len(moved) >= len(ways) * max(len(layers), 2):
        said = ACROSS
        way, most = max(moved, key=lambda each: each[1].value if sides.larger else -each[1].value)
        numbers = (
            f"{len(moved)} of {len(ways) * len(layers)} layers are closest to another one, {word(most.layer)} of "
            f"{way.first} to {word(most.closest)} of {way.second} with {most.value:{digits}}; the same layers have "
            f"{_say_extremes(by_layer, near[0][1][1], near[-1][1][1])}"
        )
    elif moved:
        names = {each.layer for _, each in moved}
        numbers += f"; closer to another layer: {list_layers([word(layer) for layer in sides.rows if layer in names])}"
    by = "" if measured.larger_is_closer else " (smaller is closer)"
    without = "".join(f" ({lacking})" for lacking in _say_lacking(sides, word))
    beside = [_say_chance(measured, sides, digits)]
    if (floor := measured.floor) is not None:
        best = near[0][0] if measured.larger_is_closer else -near[0][0]
        above = _is_above_floor(floor, best, measured.larger_is_closer)
        than = "" if above else f"no {'more' if measured.larger_is_closer else 'closer'} than "
        beside.append(f"{than}the {floor['unit']} alone {floor['value']:{digits}}")
    return said, f"{what} {numbers}{of}{by}{without}; {', '.join(beside)}"


def _say_ends(by_layer: Sequence[tuple[str, str]], values: Sequence[float], least: float) -> str:
    """Says the values of the first and last layer, and of those that lie beyond both by more than the least change."""
    names, written = zip(*by_layer, strict=True)
    if len(set(written)) == 1:
        return f"{written[0]} at every layer"
    said = f"{written[0]} {_say_layer(names[0])} and {written[-1]} {_say_layer(names[-1])}"
    for sign, extreme in ((-1, "lowest"), (1, "highest")):
        signed = [sign * value for value in values]
        place = signed.index(max(signed))
        if signed[place] > max(signed[0], signed[-1]) + least:
            said += f", {extreme} {written[place]} {_say_layer(names[place])}"
    return said


def _say_most_alike(by_layer: Sequence[tuple[str, str]], best: str, worst: str) -> tuple[str, str]:
    """Says at which layers models are most alike, all that have the same written value, and the least alike beside
    them."""
    top = [name for name, value in by_layer if value == best]
    others = [name for name, value in by_layer if value != best]
    if len(by_layer) == 1:
        return f"{ALONE}, {top[0]}", best
    if not others:  # what differs is beyond the decimals
        return f"are {EVERYWHERE}", f"{best} at every layer"
    if len(top) == 1:
        return f"{MOST_ALIKE} {_say_layer(top[0])}", _say_extremes(by_layer, best, worst)
    but = len(others) <= NAMED and len(others) < len(top)
    where = f"at all layers but {list_layers(others)}" if but else _say_layers(top, len(by_layer))
    low = [name for name, value in by_layer if value == worst]
    return f"{MOST_ALIKE} {where}", f"{best} there and {worst} {_say_layers(low, len(by_layer))}"


def _say_as_alike(near: Sequence[tuple[float, tuple[str, str]]], best: str, least: float) -> str:
    """Says which further layers cannot be told apart from the most alike ones, whose value is written. near: values and
    how each is written, the best first. least: the lead from which on two can be told apart."""
    others = [name for value, (name, written) in near if written != best and abs(value - near[0][0]) <= least]
    others.sort(key=lambda name: int(match[1]) if (match := BLOCK.fullmatch(name)) else -1)
    return f"; as alike within error: {list_layers(others)}" if others else ""


def _say_extremes(by_layer: Sequence[tuple[str, str]], best: str, worst: str) -> str:
    """Says the largest and the smallest value, with all the layers that have them."""
    ends = [
        f"{end} {_say_layers([name for name, value in by_layer if value == end], len(by_layer))}"
        for end in dict.fromkeys((best, worst))
    ]
    return " and ".join(ends)


def _say_lacking(sides: Sides, word: Callable[[str], str]) -> Iterator[str]:
    """Names the layers of either model without any value."""
    missing = np.isnan(sides.values)
    lacking = (sides.first, sides.rows, 1), (sides.second, sides.columns, 0)
    for model, layers, axis in lacking:
        without = np.all(missing, axis=axis).tolist()
        if names := [word(layer) for layer, lacks in zip(layers, without, strict=True) if lacks]:
            yield f"no value for {list_layers(names)} of {model}"


def find_displaced_layers(sides: Sides, noise: float | None) -> list[ClosestLayer]:
    """Finds the layers that are closer to another layer than to their own like, by more than the least change that
    counts; none where the models have other layers. noise: the standard deviation of a value; of unknown noise none."""
    if not sides.same_layers or noise is None:
        return []
    least = answering.find_least_change(sides.values, noise)
    own = dict(zip(sides.rows, sides.closeness.diagonal().tolist(), strict=True))
    return [
        each
        for each in answering.find_closest_layers(sides)
        if (each.value if sides.larger else -each.value) - own[each.layer] > least
    ]


def _say_layer(layer: str) -> str:
    return f"in {layer}" if layer.startswith("block") else f"at {layer}"


def _say_layers(names: Sequence[str], count: int) -> str:
    """Says at which layers something is, by name where they are few. count: of all layers.

    >>> _say_layers([f"block {block}" for block in (0, 1, 2, 3, 7, 8, 12)], 31), _say_layers([*"abcde"], 31)
    ('in blocks 0 to 3, 7 to 8, 12', 'at 5 of 31 layers')
    """
    if len(names) == 1:
        return _say_layer(names[0])
    if len(names) == count:
        return "at every layer"
    listed = list_layers(names)
    parts = 1 + listed.count(", ") + listed.count(" and ")  # blocks in a row are one
    return _say_layer(listed) if parts <= NAMED else f"at {len(names)} of {count} layers"


def list_layers(names: Sequence[str]) -> str:
    """Names layers in a list, blocks by their numbers.

    >>> list_layers(["embed", "block 0", "block 1", "block 3"]), list_layers(["block 2", "block 4"])
    ('embed and blocks 0 to 1, 3', 'blocks 2, 4')
    """
    blocks = [int(match[1]) for name in names if (match := BLOCK.fullmatch(name))]
    parts = [name for name in names if not BLOCK.fullmatch(name)] + ([name_blocks(blocks)] if blocks else [])
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def choose_digits(measured: Measured, sides: Sides) -> str:
    """Chooses how values and chance of two models are written: so that the closest layers differ from chance, and that
    of the values nothing is written as 1 that is not."""
    best = np.nanmax(sides.closeness, initial=-np.inf) * (1 if sides.larger else -1)
    reach = find_reach_of_chance(measured, sides)
    apart = [] if reach is None else [(best, reach)]
    return choose_number_format(sides.values, *apart, *pair_with_one(sides.values))


def find_reach_of_chance(measured: Measured, sides: Sides) -> float | None:
    """Finds up to where chance brings the closest pair of layers, or its mean where no more is known; no further than
    values can be."""
    if (chance := find_chance_level(measured, sides)) is None:
        return None
    margin, best = find_margin_over_chance(measured, sides.values.size) or 0.0, find_best_value(measured)
    level = pick_chance_end(chance, sides)
    if best is not None:
        margin = min(margin, max(0.0, (best - level) * (1 if sides.larger else -1)))
    return level + (margin if sides.larger else -margin)


def find_best_value(measured: Measured) -> float | None:
    """Finds the bound of the measure on the side of closer values; None where there is none."""
    low, high = measured.card.get("bounds") or (None, None)
    return high if measured.larger_is_closer else low


def pick_chance_end(chance: Chance, sides: Sides) -> float:
    """Picks the level of the pair of layers that chance brings closest."""
    return chance.high if sides.larger else chance.low


def find_noise(measured: Measured, sides: Sides) -> float | None:
    """Finds the standard deviation of a value: that of all cells by their errors; without errors, where layers are
    compared, the larger of two: the scatter with the documents that were drawn, and that of a random pairing. None
    where the former is not known, since unrelated layers may scatter by a twentieth of what alike ones do. What few
    batches or documents tell is taken to be as much larger as Student's t is wider; errors of each layer over batches
    have degrees of freedom of their own."""
    chance, count = measured.chance or {}, _count_compared(sides)
    if sides.se is not None and np.isfinite(sides.se).any():
        error = math.sqrt(np.nanmean(np.square(sides.se)))
        batches = measured.estimate.get("batches", 1)
        return error * compare_width(count, (batches - 1) * min(sides.values.shape) or chance.get("freedom"))
    if chance.get("scatter") is None:
        return None
    return max(chance["scatter"] * compare_width(count, chance.get("freedom")), chance.get("spread") or 0.0)


def _count_compared(sides: Sides) -> int:
    """Counts values any two of which are compared as often as the closest layer of each layer with the others, all
    together."""
    return math.ceil(max(sides.values.shape) * len(sides.rows) ** 0.5)


def find_least_lead(measured: Measured, sides: Sides) -> float | None:
    """Finds by how much the closest layer must be ahead of the second closest to be told apart from it; None where no
    error is known. Noise tells none of the layers of the first model apart, all together."""
    noise = find_noise(measured, sides)
    return None if noise is None else answering.find_scatter(_count_compared(sides), noise)


def find_chance_level(measured: Measured, sides: Sides) -> Chance | None:
    """Finds the level of chance of two models."""
    drawn = [] if sides.chance is None else [sides.chance]
    return choose_chance_level(measured.chance, measured.null, drawn, np.empty(0))[0]


def _say_chance(measured: Measured, sides: Sides, digits: str) -> str:
    """Says up to where chance reaches, or what it is in the mean where no more is known."""
    if (reach := write_reach_of_chance(measured, sides, digits)) is None:
        return "chance is not known here"
    known = find_margin_over_chance(measured, sides.values.size) is not None
    at, mean = ("at most " if sides.larger else "at least ", "") if known else ("", " in the mean")
    doubtful = (measured.chance or {}).get("doubtful") or (measured.null or {}).get("not_valid")
    doubt = ", which is too little here (see the warnings)" if doubtful else ""
    return f"chance {at}{reach}{mean}{doubt}"


def write_reach_of_chance(measured: Measured, sides: Sides, digits: str | None = None) -> str | None:
    """Writes up to where chance reaches, the same in every place; None where it is not known. digits: None: those of
    the sentence on two models."""
    reach = find_reach_of_chance(measured, sides)
    return None if reach is None else f"{reach:{digits or choose_digits(measured, sides)}}"


def find_margin_over_chance(measured: Measured, cells: int) -> float | None:
    """Finds how far a pair of layers must be ahead of chance to be more than what random pairings of the rows give
    somewhere in a map of `cells`; None where their spread is not known."""
    known = measured.chance or {}
    spread, freedom = known.get("spread"), known.get("orders", 0) - (known.get("mean") != "exact")
    error, documents = known.get("closest") or known.get("scatter") or 0.0, known.get("documents") or 0
    parts = ((spread, freedom), (error, documents - 1))
    margins = [find_t_quantile(LEVEL / cells, free) * each for each, free in parts if each and cells and free > 0]
    return max(margins, default=None)


def judge_chance(measured: Measured, sides: Sides) -> str:
    """Says whether two models have nothing in common beyond chance, or cannot be told from unrelated ones; empty where
    they are alike."""
    if not is_chance(measured, sides):
        return ""
    chance, best = find_chance_level(measured, sides), find_best_value(measured)
    if chance is None or best is None:
        return NOTHING
    level = pick_chance_end(chance, sides)
    closer = float(np.nanmax(sides.closeness)) - level * (1 if sides.larger else -1)
    ahead = max(closer, find_margin_over_chance(measured, sides.values.size) or 0.0)
    return BLIND if ahead >= SEEN * abs(best - level) else NOTHING


def is_chance(measured: Measured, sides: Sides) -> bool | None:
    """Tells whether no pair of layers is closer than the closest cell of such a map would be under random pairings of
    the rows: by a test, where there was one that holds, else by the spread of a few pairings; None where neither is
    known."""
    null = measured.null or {}
    if "alpha" in null and "not_valid" not in null and sides.p is not None and np.isfinite(sides.p).any():
        return bool(np.nanmin(sides.p) > null["alpha"])
    limit = find_margin_over_chance(measured, sides.values.size)
    if sides.chance is None or limit is None:
        return None
    ahead = (sides.values - sides.chance) * (1 if sides.larger else -1)
    return bool(np.nanmax(ahead) <= limit) if np.isfinite(ahead).any() else None
