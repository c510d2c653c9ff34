"""Which layer answers to which: of each layer of a model the closest layer of another, and what two models come to."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from repsim_cli.figures.heatmap import name_by_block
from repsim_cli.findings.extremes import find_width
from repsim_cli.runs.content import CHANCE, Matrix, Measured

COLUMNS = ["measure", "model", "layer", "other_model", "closest_layer", "value", CHANCE, "margin"]
EQUAL = 0.02  # of the largest value: what counts as no change with depth
SCATTER = 4.0  # standard deviations, at least, by which values of several layers differ
FINER = 3  # decimals more than a map needs, at most, to show that two values differ
MORE, LESS = "more alike with depth", "less alike with depth"
EVERYWHERE = "about as alike at every depth"
WITHIN_ERROR = "as alike at every depth within error"
NAMED = 5  # layers of a path that a title names
NO_ERRORS = "; errors are not known"
TREND = 0.8  # Spearman's rho of closeness and depth from which on a trend is said
Read = Callable[[str], np.ndarray]  # gives the array of a path


class Sides(NamedTuple):
    """The cells of two models under a measure, those of the first in rows. values: NaN where a cell has none. chance:
    the mean of random pairings; p: family-wise, of a test; se: standard errors; None where they are not known."""

    first: str
    second: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Float[np.ndarray, "r c"]
    chance: Float[np.ndarray, "r c"] | None
    larger: bool
    p: Float[np.ndarray, "r c"] | None = None
    se: Float[np.ndarray, "r c"] | None = None

    @property
    def closeness(self) -> Float[np.ndarray, "r c"]:
        """Values where larger is closer."""
        return self.values if self.larger else -self.values

    @property
    def same_layers(self) -> bool:
        """Tells whether both models have layers of the same names, so that each layer has its like in the other."""
        return list(self.rows) == list(self.columns)


class ClosestLayer(NamedTuple):
    """The layer of the other model that is closest to a layer; of equally close ones the first. chance: of this pair of
    layers. margin: how much closer it is than the second closest; None where there is no second."""

    layer: str
    closest: str
    value: float
    chance: float | None
    margin: float | None


def list_directed_pairs(measured: Measured, read: Read, first: str = "", second: str = "") -> Iterator[Sides]:
    """Gives every two models of a measure in both directions, or the two that are named; a measure that has a direction
    has a matrix for each."""
    models = {first, second} if first else None
    for matrix in measured.matrices:
        between = {matrix.rows.model, matrix.columns.model}
        if len(between) == 2 and models in (None, between):
            yield from _read_both_directions(measured, matrix, read)


def find_both_directions(measured: Measured, read: Read, first: str, second: str) -> list[Sides]:
    """Gives two models in both directions, from the first to the second first; none where the measure lacks them."""
    return sorted(list_directed_pairs(measured, read, first, second), key=lambda sides: sides.first != first)


def _read_both_directions(measured: Measured, matrix: Matrix, read: Read) -> Iterator[Sides]:
    paths = {"chance": matrix.details.get(CHANCE), "p": matrix.p_family, "se": matrix.se}
    beside = {what: None if path is None else read(path) for what, path in paths.items()}
    values, rows, columns, larger = read(matrix.values), matrix.rows, matrix.columns, measured.larger_is_closer
    yield Sides(rows.model, columns.model, rows.layers, columns.layers, values, larger=larger, **beside)
    if measured.card["symmetric"]:
        turned = {what: None if cells is None else cells.T for what, cells in beside.items()}
        yield Sides(columns.model, rows.model, columns.layers, rows.layers, values.T, larger=larger, **turned)


def find_closest_columns(values: Float[np.ndarray, "r c"], larger: bool) -> list[int | None]:
    """Finds the column of the closest cell of each row, the first of equal ones; None where no cell has a value.

    >>> find_closest_columns(np.array([[0.1, 0.9], [np.nan, np.nan]]), larger=True)
    [1, None]
    """
    near = values if larger else -values
    return [None if np.isnan(row).all() else int(np.nanargmax(row)) for row in near]


def find_near_columns(values: Float[np.ndarray, "r c"], larger: bool, least: float) -> list[list[int]]:
    """Finds the columns of each row that are not told apart from the closest one, itself among them; none where no cell
    has a value. least: the least lead that tells two cells apart.

    >>> find_near_columns(np.array([[0.1, 0.9, 0.8], [np.nan] * 3]), larger=True, least=0.2)
    [[1, 2], []]
    """
    near = values if larger else -values
    return [[] if np.isnan(row).all() else np.flatnonzero(row >= np.nanmax(row) - least).tolist() for row in near]


def say_closest(
    models: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    closest: Sequence[int | None],
    near: Sequence[Sequence[int]] | None,
) -> str:
    """Says in a line which layers of the second model are the closest to some layers of the first, spread over depth.

    near: by layer of the first model, the layers of the second that cannot be told apart from its closest one. None:
        the error of values is not known, and the line says so.

    >>> say_closest(("a", "b"), ["resid_post@0", "resid_post@1"], ["resid_post@0", "resid_post@4"], [0, 1], [[0], [1]])
    "a's blocks 0 and 1 are closest to b's 0 and 4"
    >>> say_closest(("a", "b"), ["x", "y", "z"], ["x", "y", "z"], [0, None, 2], [[0], [], [2]])
    'Each layer of a is closest to the same layer of b (no value for y)'
    >>> say_closest(("a", "b"), ["x", "y", "z"], ["x", "y", "z"], [0, 1, 0], [[0, 2], [0, 1, 2], [0]])
    "a's layers x and z are closest to b's x or z and x within error; 1 of 3 as close to all"
    >>> say_closest(("a", "b"), ["x", "y"], ["x", "y"], [0, 1], None)
    'Each layer of a is closest to the same layer of b; errors are not known'
    >>> say_closest(("a", "b"), ["x", "y"], ["x", "y"], [0, 0], [[0, 1], [0, 1]])
    'No layer of a is closer to one layer of b than to the others, within error'
    """
    shown, said = name_by_block([*rows, *columns])
    blocks = [i for i, row in enumerate(rows) if not said or shown[i] != row]  # the others have names of their own
    known = [i for i in blocks if closest[i] is not None]
    if not known:
        return f"{models[0]} and {models[1]}: no layers that can be compared"
    untold = [] if near is None else [i for i in known if len(near[i]) > 1]
    if len(known) > 1 and len(untold) < len(known) and all(rows[i] == columns[closest[i] or 0] for i in known):
        doubt = f"; {len(untold)} of {len(known)} not told apart from the next" if untold else ""
        lacking = [rows[i] for i in blocks if closest[i] is None]
        named = ", ".join(lacking) if len(lacking) <= NAMED else f"{len(lacking)} layers"
        doubt = (f" (no value for {named})" if lacking else "") + (NO_ERRORS if near is None else doubt)
        return f"Each layer of {models[0]} is closest to the same layer of {models[1]}{doubt}"
    told = [i for i in known if near is None or len(near[i]) < len(columns) or len(columns) == 1]
    if not told:
        return f"No layer of {models[0]} is closer to one layer of {models[1]} than to the others, within error"
    count = min(NAMED, len(told))
    places = [told[round(i * (len(told) - 1) / max(count - 1, 1))] for i in range(count)]
    others = shown[len(rows) :]
    found = [[closest[i] or 0] if near is None else near[i] for i in places]
    names = [[shown[i] for i in places], [_name_near(each, others) for each in found]]
    one, many = ("block", "blocks") if said.endswith("by block") else ("layer", "layers")
    first, second = (" and ".join(filter(None, [", ".join(side[:-1]), side[-1]])) for side in names)
    kind, verb = (one, "is") if count == 1 else (many, "are")
    doubt = NO_ERRORS if near is None else " within error" if any(len(each) > 1 for each in found) else ""
    doubt += f"; {len(known) - len(told)} of {len(known)} as close to all" if len(told) < len(known) else ""
    return f"{models[0]}'s {kind} {first} {verb} closest to {models[1]}'s {second}{doubt}"


def _name_near(places: Sequence[int], names: Sequence[str]) -> str:
    """Names layers that follow each other by the first and the last.

    >>> _name_near([0, 2, 3, 4], list("abcdef")), _name_near([1], list("abcdef"))
    ('a or c to e', 'b')
    """
    parts = np.split(np.array(places), np.flatnonzero(np.diff(places) > 1) + 1)
    ends = [(names[int(part[0])], names[int(part[-1])]) for part in parts]
    return " or ".join(first if first == last else f"{first} to {last}" for first, last in ends)


def find_closest_layers(sides: Sides) -> list[ClosestLayer]:
    """Finds the closest layer of each layer that has a value.

    >>> values = np.array([[0.9, 0.7], [0.2, np.nan]])
    >>> [(each.closest, each.value) for each in find_closest_layers(Sides("a", "b", "xy", "pq", values, None, True))]
    [('p', 0.9), ('p', 0.2)]
    """
    found = []
    for i, j in enumerate(find_closest_columns(sides.values, sides.larger)):
        if j is None:
            continue
        known = sides.closeness[i][~np.isnan(sides.closeness[i])]
        margin = float(np.diff(np.sort(known)[-2:])[0]) if known.size > 1 else None
        chance = None if sides.chance is None or np.isnan(sides.chance[i, j]) else float(sides.chance[i, j])
        found.append(ClosestLayer(sides.rows[i], sides.columns[j], float(sides.values[i, j]), chance, margin))
    return found


def list_untold_layers(found: Sequence[ClosestLayer], least: float) -> set[str]:
    """Lists the layers whose closest layer cannot be told apart from the second closest. least: the lead from which on
    it can."""
    return {each.layer for each in found if each.margin is not None and each.margin <= least}


def tabulate_closest_layers(measures: Sequence[Measured], read: Read) -> list[list[Any]]:
    """Lists for each layer of each model the closest of each other model, under every measure: rows of `COLUMNS`."""
    return [
        [measured.label, sides.first, layer, sides.second, *rest]
        for measured in measures
        for sides in list_directed_pairs(measured, read)
        for layer, *rest in find_closest_layers(sides)
    ]


def list_layer_values(sides: Sides) -> list[tuple[str, float]]:
    """Gives the layers in order with their values: of the same layer where both models have it, else of the closest."""
    if sides.same_layers:
        values = zip(sides.rows, sides.values.diagonal().tolist(), strict=True)
        return [(layer, value) for layer, value in values if not np.isnan(value)]
    return [(each.layer, each.value) for each in find_closest_layers(sides)]


def find_least_change(values: Sequence[float] | np.ndarray, noise: float) -> float:
    """Finds the least difference between values of layers that counts: 2 % of the largest value, and what noise gives:
    with one mean for all, any two would differ by it in 5 of 100 cases at most.

    >>> find_least_change([0.5, -1.0], noise=0.001), find_least_change([0.5, 1.0], noise=0.1)
    (0.02, 0.4)
    >>> round(find_least_change([1.0] * 33, noise=0.1), 2)
    0.55
    """
    return max(_find_least_visible(values), find_scatter(len(values), noise))


def _find_least_visible(values: Sequence[float] | np.ndarray) -> float:
    return EQUAL * float(np.nanmax(np.abs(values), initial=0.0))


def find_scatter(count: int, noise: float) -> float:
    """Finds the difference that any two of `count` values with one mean exceed in 5 of 100 cases at most."""
    return max(SCATTER, math.sqrt(2) * find_width(count)) * noise


def describe_depth_trend(values: Sequence[float], larger: bool, noise: float | None) -> str:
    """Says how closeness changes with depth; empty where it neither rises, falls nor stays, or where the noise of
    values is not known and they do not stay. noise: the standard deviation of a value, None where it is not known.

    >>> [describe_depth_trend(values, True, 0.001) for values in ([0.5, 0.6, 0.7], [0.5, 0.51, 0.5], [3, 2, 2.5, 3.1])]
    ['more alike with depth', 'about as alike at every depth', '']
    >>> describe_depth_trend([0.5, 0.6, 0.7], True, 0.1), describe_depth_trend([0.5, 0.6, 0.7], True, None)
    ('as alike at every depth within error', '')
    """
    if len(values) < 2:
        return ""
    near = np.array(values) if larger else -np.array(values)
    if np.ptp(near) <= _find_least_visible(values):
        return EVERYWHERE
    if noise is None:
        return ""
    least = find_least_change(values, noise)
    if np.ptp(near) <= least:
        return WITHIN_ERROR
    near = np.round(near / least, 1)  # layers that are alike have one rank: a single odd one is not a trend
    ranks = (near[:, None] > near).sum(1) + ((near[:, None] == near).sum(1) - 1) / 2
    rho = np.corrcoef(ranks, np.arange(len(near)))[0, 1] if len(near) > 2 else 0.0
    return MORE if rho >= TREND else LESS if rho <= -TREND else ""


def choose_number_format(values: Float[np.ndarray, "..."], *apart: tuple[float, float]) -> str:
    """Chooses how the numbers of a map, and what stands beside them, are written: with two decimals; where all are
    small or some are large, with three digits of the largest. apart: values that must not look equal unless they are,
    for which up to three decimals are added.

    >>> [choose_number_format(np.array([values])) for values in ([0.2, 0.9], [2e-4, 3e-4], [np.nan, 12345.0], [1e12])]
    ['z,.2f', 'z,.6f', 'z,.0f', '.3g']
    >>> choose_number_format(np.array([0.9637]), (0.9637, 0.9561))
    'z,.3f'
    """
    most = np.nanmax(np.abs(values), initial=0.0)
    if most and not 1e-6 <= most < 1e9:
        return ".3g"
    fewest = 2 if not most or 0.1 <= most < 100 else max(0, 2 - int(np.floor(np.log10(most))))
    forms = [f"z,.{decimals}f" for decimals in range(fewest, fewest + FINER + 1)]
    return next((form for form in forms if not any(a != b and f"{a:{form}}" == f"{b:{form}}" for a, b in apart)),
                forms[0])  # fmt: skip


def pair_with_one(values: Float[np.ndarray, "..."]) -> list[tuple[float, float]]:
    """Pairs the values that two decimals write as 1 and five do not with 1, as values that must not look equal.

    >>> pair_with_one(np.array([0.5, 0.998, 1.0, np.nan]))
    [(0.998, 1.0)]
    """
    return [(float(value), 1.0) for value in values[(np.round(values, 2) == 1) & (np.round(values, 5) != 1)]]


def describe_range(values: Float[np.ndarray, " k"]) -> list[str]:
    """Describes values by their mean, the lowest and the highest, with a decimal more than those of a map.

    >>> describe_range(np.array([0.25, 0.5])), describe_range(np.array([0.0, 2e6]))
    (['mean 0.375', 'lowest 0.250', 'highest 0.500'], ['mean 1,000,000', 'lowest 0', 'highest 2,000,000'])
    """
    digits = choose_number_format(values[None], *pair_with_one(values)).replace(".2f", ".3f")
    parts = {"mean": values.mean(), "lowest": values.min(), "highest": values.max()}
    return [f"{name} {value:{digits}}" for name, value in parts.items()]


def leave_out_diagonal(matrix: Matrix, values: Float[np.ndarray, "r c"]) -> Float[np.ndarray, " k"]:
    """Leaves out the cells of each layer with itself, which would raise the mean within a model, unless there are no
    others."""
    same = matrix.rows == matrix.columns and len(values) > 1
    return values[~np.eye(len(values), dtype=bool)] if same else values.ravel()


def split_by_hook_point(matrix: Matrix, read: Read) -> Iterator[tuple[str, Float[np.ndarray, " k"]]]:
    """Gives the name of a pair of models and the values between other layers, by hook point where both have several."""
    rows, columns = ([layer.partition("@")[0] for layer in side.layers] for side in (matrix.rows, matrix.columns))
    values, name = read(matrix.values), f"{matrix.rows.model} x {matrix.columns.model}"
    points = [point for point in dict.fromkeys(rows) if point in columns]
    if len(points) < 2 or len(set(rows)) == len(rows):  # names of layers that are not hook points differ throughout
        yield name, leave_out_diagonal(matrix, values)
        return
    for point in points:
        inside = values[[row == point for row in rows]][:, [column == point for column in columns]]
        yield f"{name}, {point}", leave_out_diagonal(matrix, inside)


def pick_extreme_pairs(sides: Sides, count: int) -> tuple[list[tuple[str, str, float]], list[tuple[str, str, float]]]:
    """Picks the closest pairs of layers and the furthest, the most extreme first; a layer of the first model once in
    each."""
    flat = sides.closeness.ravel()
    order = [int(at) for at in np.argsort(-flat, kind="stable") if not np.isnan(flat[at])]

    def pick(places: Sequence[int]) -> list[tuple[str, str, float]]:
        by_row: dict[int, int] = {}
        for at in places:
            by_row.setdefault(at // len(sides.columns), at)
        cells = [divmod(at, len(sides.columns)) for at in [*by_row.values()][:count]]
        return [(sides.rows[i], sides.columns[j], float(sides.values[i, j])) for i, j in cells]

    return pick(order), pick(order[::-1])


def make_layer_namer(names: Sequence[str]) -> tuple[Callable[[str], str], str]:
    """Makes the function that names a layer in words, and what is said once of all of them.

    >>> word, said = make_layer_namer(["embed", "resid_post@0"])
    >>> word("embed"), word("resid_post@0"), said
    ('embed', 'block 0', 'resid_post by block')
    """
    shown, said = name_by_block(names)
    words = {name: f"block {block}" if block != name else name for name, block in zip(names, shown, strict=True)}
    return lambda name: words[name], said
