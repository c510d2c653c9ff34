"""The same layer of two models side by side, as their rows pass: where all are equal, to rounding, rounded to a dtype,
but for a factor and an offset, or in another order, and where they first differ."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from repsim_cli.activations.readings import Layer, Reading
from repsim_cli.activations.rows import RowBlock
from repsim_cli.base.plain import join_into_ranges, name_blocks
from repsim_cli.models.precision import UNIT
from repsim_cli.models.source import Precomputed
from repsim_cli.runs.content import COPIES, SAME, Table

ROUNDINGS = 20  # times the square root of the depth: what rounding may have grown to
UNRELATED = 0.5  # of the norm, by which the first layers of models that have something in common differ at most
STREAM, FIRST = "resid_post", "embed"
POINT = re.compile(r"(\w+)@(\d+)")


def choose_ordered_layers(names: Sequence[str]) -> list[int]:
    """Chooses which layers are compared, so that one follows from the one before: the stream at the end of blocks, else
    the first kind of hook point, behind the embeddings; of names that are not hook points, all.

    >>> choose_ordered_layers(["embed", "mlp_out@0", "mlp_out@1", "resid_post@0", "resid_post@1"])
    [0, 3, 4]
    >>> choose_ordered_layers(["a", "b"])
    [0, 1]
    """
    kinds = [match[1] if (match := POINT.fullmatch(name)) else "" for name in names]
    kind = STREAM if STREAM in kinds else next(filter(None, kinds), "")
    return [i for i, each in enumerate(kinds) if not kind or each == kind or names[i] == FIRST]


def name_layers(names: Sequence[str], among: Sequence[str]) -> str:
    """Names layers in words, three or more that follow each other as a range. among: all of them, in order.

    >>> name_layers(["embed", "resid_post@0", "resid_post@1"], ["embed", "resid_post@0", "resid_post@1"])
    'embed, blocks 0 to 1'
    >>> name_layers(["a", "b", "c", "e"], "abcde")
    'a to c, e'
    """
    blocks = [int(match[2]) for name in names if (match := POINT.fullmatch(name))]
    places = [list(among).index(name) for name in names if not POINT.fullmatch(name)]
    parts = []
    for run in join_into_ranges(places):
        some = [among[place] for place in run]
        parts += [f"{some[0]} to {some[-1]}"] if len(some) > 2 else some
    return ", ".join([*parts, *([name_blocks(blocks)] if blocks else [])])


class Relation(NamedTuple):
    """What a layer of the second model may be of that of the first: equal; equal to rounding; one of them rounded to a
    dtype, the second where `second`; the first with its features in this order; or else the first times a factor plus
    an offset."""

    kind: str
    second: bool = True
    factor: float = 1.0
    offset: float = 0.0
    order: tuple[int, ...] = ()

    def is_true(self, x: Tensor, y: Tensor, limit: float, unit: float) -> bool:
        """Tells whether it holds of these rows. limit: of the mean difference over the norm. unit: a rounding."""
        if self.kind == EQUAL:
            return torch.equal(x, y)
        if self.kind == NEAR:
            off, count = measure_difference(x, y)
            return off <= limit * max(count, 1)
        if self.kind in ROUNDED:
            first, second = (x, y) if self.second else (y, x)
            # of float64 rows that were first cast to float32, one that was half way may be rounded to either side
            nudged = (first, first * (1 + 2 * UNIT[first.dtype]), first * (1 - 2 * UNIT[first.dtype]))
            same = [each.to(ROUNDED[self.kind]).to(second.dtype) == second for each in nudged]
            return bool(torch.stack(same).any(0).all())
        if self.kind == REORDERED:
            return torch.equal(x[:, list(self.order)], y)
        far = y.double() - self.factor * x.double() - self.offset
        return take_rms(far) <= FIT * unit * (abs(self.factor) * take_rms(x) + abs(self.offset) + take_rms(y))

    def describe(self, first: str, second: str) -> str:
        """Describes the comparison of these models."""
        if self.kind in ROUNDED:
            of, made = (first, second) if self.second else (second, first)
            return f"{made} is {of} rounded to {self.kind}"
        if self.kind == REORDERED:
            return f"{second} is {first} with its features in another order"
        if self.kind != FITTED:
            return self.kind
        times = first if self.factor == 1 else f"{self.factor:.6g} times {first}"
        sign = "plus" if self.offset > 0 else "minus"
        return f"{second} is {times}" + (f" {sign} {abs(self.offset):.6g}" if self.offset else "")


EQUAL, NEAR, REORDERED, FITTED = "identical", "the same to rounding", "reordered", "fitted"
ROUNDED = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ALWAYS = [Relation(EQUAL), Relation(NEAR), *(Relation(dtype, second) for dtype in ROUNDED for second in (True, False))]
DISTINCT = 0.9  # of the rows of a file: others may be equal by chance
DIGESTED = 100_000  # rows of a file that are looked for in another, or memory would grow with the file
MOVED = 0.1  # of the rows, of which more than that are at other places
FIT = 4.0  # roundings that values may be off a factor and an offset
FEWEST = 16  # values from which these are found
FEW = 32  # rows that are looked at first


def take_rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def hash_rows(x: Tensor) -> list[int]:
    """Hashes the bits of each row; a zero has one sign."""
    return [hash(row.tobytes()) for row in (x.float() + 0.0).contiguous().cpu().numpy()]


def say_moved_rows(first: str, second: str, rows: Sequence[int], others: Sequence[int]) -> str:
    """Says how many rows of the second file are those of the first at other places; empty where few are.

    rows, others: by `hash_rows`.

    >>> say_moved_rows("a", "b", [1, 2, 3, 4], [4, 1, 2, 3])
    '4 of 4 rows of b are rows of a that are not paired with them (of those compared, 0 is 3); put both in one order'
    """
    if rows == others:
        return ""
    place = {digest: i for i, digest in enumerate(rows)}
    moved = [j for j, digest in enumerate(others) if digest in place and digest != rows[j]]
    if len(place) < DISTINCT * len(rows) or len({others[j] for j in moved}) <= MOVED * len(others):
        return ""
    return (
        f"{len(moved):,} of {len(others):,} rows of {second} are rows of {first} that are not paired with them "
        f"(of those compared, {moved[0]} is {place[others[moved[0]]]}); put both in one order"
    )


def measure_difference(x: Tensor, y: Tensor) -> tuple[float, int]:
    """Adds up, over rows, the norm of the difference over that of the first, or of the second where the first is zero,
    which differs too; and counts the rows in which either is not."""
    norms = x.norm(dim=1)
    norms = torch.where(norms > 0, norms, y.norm(dim=1))
    return float(((x - y).norm(dim=1) / norms)[norms > 0].double().sum()), int((norms > 0).sum())


def fit_relations(x: Tensor, y: Tensor, unit: float) -> Iterator[Relation]:
    """Fits an order of the features, a factor, an offset, and the last two together to these rows. Nothing is fitted to
    a few values, nor to those of a layer that is constant in either."""
    x, y = x.double(), y.double()
    means, scale = (float(x.mean()), float(y.mean())), (take_rms(x), take_rms(y))
    apart = x - means[0], y - means[1]
    if x.numel() < FEWEST or not all(
        take_rms(part) > FIT * unit * size for part, size in zip(apart, scale, strict=True)
    ):
        return
    if torch.equal(x, y):
        return
    place = {digest: i for i, digest in enumerate(hash_rows(x.T))}
    order = tuple(place.get(digest, -1) for digest in hash_rows(y.T))
    if sorted(order) == list(range(len(order))):
        yield Relation(REORDERED, order=order)
    yield Relation(FITTED, factor=float((x * y).sum() / x.square().sum()))
    yield Relation(FITTED, offset=means[1] - means[0])
    slope = float((apart[0] * apart[1]).sum() / apart[0].square().sum())
    yield Relation(FITTED, factor=slope, offset=means[1] - slope * means[0])


@dataclass
class LayerBeside:
    """A layer of two models. limit: the mean difference over the norm up to which they are the same to rounding. unit:
    a rounding. true: the relations that all rows so far have; None before the first. off: the sum over rows of the norm
    of the difference over the norm. other: the rows with any difference."""

    limit: float
    unit: float
    true: list[Relation] | None = None
    off: float = 0.0
    other: int = 0

    def add(self, x: Tensor, y: Tensor, counted: bool) -> None:
        """Takes rows. counted: whether their differences are, beside those of layers before."""
        if self.true is None:  # few rows rule out nearly all, so that unrelated models cost little
            few = x[:FEW], y[:FEW]
            found = [*ALWAYS, *fit_relations(*few, self.unit)]
            self.true = [each for each in found if each.is_true(*few, self.limit * len(x), self.unit)]
        self.true = [each for each in self.true if each.is_true(x, y, self.limit, self.unit)]
        if counted and not self.is_equal:
            self.off += measure_difference(x, y)[0]
            self.other += int((x != y).any(1).sum())

    @property
    def is_equal(self) -> bool:
        return bool(self.true) and self.true[0].kind == EQUAL


@dataclass
class ModelPair:
    """Two models. places: of the layers that are compared, among those of the run. twice: it is one model, read on two
    texts if its layers differ."""

    names: Sequence[str]
    places: Sequence[tuple[int, int]]
    layers: Sequence[LayerBeside]
    twice: bool = False

    def add(self, rows: Sequence[Tensor]) -> None:
        """Takes rows of all layers. Those that differ are looked at no more, but for the first."""
        alike = True
        for (a, b), pair in zip(self.places, self.layers, strict=True):
            if alike or pair.true != []:
                pair.add(rows[a], rows[b].to(rows[a].device), alike)
            alike = alike and pair.true != []

    @property
    def is_copy(self) -> bool:
        """Tells whether one model is the other, to rounding, a factor or an offset."""
        return not self.twice and all(pair.true for pair in self.layers)

    def sentence(self, first: str, second: str, rows: int, alone: bool) -> str:
        """Says what the two have in common; empty where it is nothing. alone: they are all models of the run."""
        if all(pair.is_equal for pair in self.layers):
            return f"identical in {name_layers(self.names, self.names)}, all that are compared"
        if self.twice:
            return ""
        alike = [pair.true[0].describe(first, second) if pair.true else "" for pair in self.layers]
        place = alike.index("") if "" in alike else len(alike)
        off = self.layers[place].off / max(rows, 1) if place < len(self.layers) else 0.0
        few_rows = place < len(self.layers) and 2 * self.layers[place].other < rows
        if not any(alike) and not (alone and (off < UNRELATED or few_rows)):
            return ""
        parts = [self._name_alike(kind, alike, range(place)) for kind in dict.fromkeys(alike[:place])]
        if place < len(self.layers):
            other = self.layers[place].other
            few = f", in {other:,} of {rows:,} rows" if other < rows else ""
            first = name_layers([self.names[place]], self.names) + ", the first that is compared" * (place == 0)
            parts.append(f"first difference in {first} ({off:.2g} of the norm{few})")
        behind = dict.fromkeys(filter(None, alike[place:]))
        return ", ".join([*parts, *(self._name_alike(kind, alike, range(place, len(alike))) for kind in behind)])

    def _name_alike(self, kind: str, alike: Sequence[str], places: range) -> str:
        """Says where among these places layers are alike in a way, again where they were so before."""
        again = " again" if kind in alike[: places.start] else ""
        return f"{kind}{again} in {name_layers([self.names[i] for i in places if alike[i] == kind], self.names)}"


@dataclass
class SameLayers:
    """All two models whose layers have the same names and widths. passed: how many rows. digests: of the rows of the
    first layer of files, which others may have in another order."""

    readings: Sequence[Reading]
    dtype: str
    passed: int = 0
    pairs: dict[tuple[str, str], ModelPair] = field(default_factory=dict)
    digests: dict[str, list[int]] = field(default_factory=dict)

    def watch(self, stream: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """Passes the stream on, which has all rows of all layers, as models give them."""
        self.pairs, self.passed = dict(self._pairs(UNIT[getattr(torch, self.dtype)])), 0
        stored = {reading.label for reading in self.readings if isinstance(reading.source, Precomputed)}
        first = {label: of.places[0][side] for pair, of in self.pairs.items() for side, label in enumerate(pair)}
        self.digests = {label: [] for label in first if label in stored}
        for block in stream:
            for label, digests in self.digests.items():
                digests += hash_rows(block.rows[first[label]][: DIGESTED - len(digests)])
            for pair in self.pairs.values():
                pair.add(block.rows)
            self.passed += len(block.rows[0])
            yield block

    def _pairs(self, unit: float) -> Iterator[tuple[tuple[str, str], ModelPair]]:
        ends = list(itertools.accumulate((len(reading.layers) for reading in self.readings), initial=0))
        for (i, x), (j, y) in itertools.combinations(enumerate(self.readings), 2):
            if _list_layer_widths(x.layers) != _list_layer_widths(y.layers):
                continue
            chosen = choose_ordered_layers([layer.name for layer in x.layers])
            count, names = len(chosen), [x.layers[a].name for a in chosen]
            places = [(ends[i] + a, ends[j] + a) for a in chosen]
            twice = x.source is y.source
            layers = [LayerBeside(ROUNDINGS * unit * (number + 1) ** 0.5, unit) for number in range(count)]
            yield (x.label, y.label), ModelPair(names, places, layers, twice)

    def tables(self) -> dict[str, Table]:
        """Makes the table of who and what, and that of models all of whose layers are the same; none where no two
        models have anything in common."""
        said = [
            (pair, what)
            for pair, of in self.pairs.items()
            for what in (of.sentence(*pair, self.passed, len(self.readings) == 2), self._say_moved(*pair))
        ]
        rows = [[f"{a} beside {b}", what] for (a, b), what in said if what]
        copies = [[*pair] for pair, of in self.pairs.items() if of.is_copy]
        found = {SAME: Table(columns=["models", "the same layers"], rows=rows)} if rows else {}
        return found | ({COPIES: Table(columns=["model", "other"], rows=copies)} if copies else {})

    def _say_moved(self, first: str, second: str) -> str:
        if self.pairs[first, second].twice or not {first, second} <= self.digests.keys():
            return ""
        return say_moved_rows(first, second, self.digests[first], self.digests[second])


def _list_layer_widths(layers: Sequence[Layer]) -> list[tuple[str, int]]:
    return [(layer.name, layer.width) for layer in layers]
