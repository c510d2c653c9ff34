"""The same layer of two models side by side, as their rows pass: where all are equal, and where they first differ."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from repsim_cli.activations.readings import Layer, Reading
from repsim_cli.activations.rows import RowBlock
from repsim_cli.base.plain import name_blocks
from repsim_cli.models.precision import UNIT
from repsim_cli.runs.content import Table

ROUNDINGS = 20  # times the square root of the depth: what rounding may have grown to
UNRELATED = 0.5  # of the norm, by which the first layers of models that have something in common differ at most
STREAM, FIRST = "resid_post", "embed"
POINT = re.compile(r"(\w+)@(\d+)")


def choose_ordered_layers(names: Sequence[str]) -> list[int]:
    """Chooses which layers are compared, so that one follows from the one before: the stream at the end of blocks, else
    the first kind of hook point, behind the embeddings; of names that are no hook points, all.

    >>> choose_ordered_layers(["embed", "mlp_out@0", "mlp_out@1", "resid_post@0", "resid_post@1"])
    [0, 3, 4]
    >>> choose_ordered_layers(["a", "b"])
    [0, 1]
    """
    kinds = [match[1] if (match := POINT.fullmatch(name)) else "" for name in names]
    kind = STREAM if STREAM in kinds else next(filter(None, kinds), "")
    return [i for i, each in enumerate(kinds) if not kind or each == kind or names[i] == FIRST]


def name_layers(names: Sequence[str]) -> str:
    """Names layers in words.

    >>> name_layers(["embed", "resid_post@0", "resid_post@1"]), name_layers(["a"])
    ('embed, blocks 0 to 1', 'a')
    """
    matches = [POINT.fullmatch(name) for name in names]
    blocks = [int(match[2]) for match in matches if match]
    others = [name for name, match in zip(names, matches, strict=True) if not match]
    return ", ".join([*others, *([name_blocks(blocks)] if blocks else [])])


@dataclass
class ModelPair:
    """Two models. places: of the layers that are compared, among those of the run. exact, close: how many of them,
    from the first on, are equal, or equal to rounding, so far. off: by layer, the sum over rows of the norm of the
    difference over the norm. twice: it is one model, read on two texts if its layers differ."""

    names: Sequence[str]
    places: Sequence[tuple[int, int]]
    exact: int
    close: int
    off: list[float]
    twice: bool = False

    def add(self, rows: Sequence[Tensor], unit: float) -> None:
        """Takes rows of all layers. Those behind the first layer that differs are not looked at."""
        for number, (a, b) in enumerate(self.places[: self.close + 1]):
            x, y = rows[a], rows[b].to(rows[a].device)
            if torch.equal(x, y):
                continue
            self.exact = min(self.exact, number)
            norms = x.norm(dim=1)
            norms = torch.where(norms > 0, norms, y.norm(dim=1))  # a row of zeros in one of them differs too
            off = float(((x - y).norm(dim=1) / norms)[norms > 0].double().sum())
            self.off[number] += off
            if off > ROUNDINGS * unit * (number + 1) ** 0.5 * max(int((norms > 0).sum()), 1):
                self.close = min(self.close, number)
                return

    def sentence(self, rows: int, alone: bool) -> str:
        """Says what the two have in common; empty where it is nothing. alone: they are all models of the run."""
        if self.exact == len(self.names):
            return f"identical in {name_layers(self.names)}, all that are compared"
        if self.twice:
            return ""
        parts = [f"identical in {name_layers(self.names[: self.exact])}"] if self.exact else []
        if self.exact < self.close:
            parts.append(f"the same to rounding in {name_layers(self.names[self.exact : self.close])}")
        if self.close < len(self.names):
            off = self.off[self.close] / max(rows, 1)
            if not self.close and not (alone and off < UNRELATED):
                return ""
            parts.append(f"first difference in {name_layers([self.names[self.close]])} ({off:.2g} of the norm)")
        return ", ".join(parts)


@dataclass
class SameLayers:
    """All two models whose layers have the same names and widths. passed: how many rows."""

    readings: Sequence[Reading]
    dtype: str
    passed: int = 0
    pairs: dict[tuple[str, str], ModelPair] = field(default_factory=dict)

    def watch(self, stream: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """Passes the stream on, which has all rows of all layers, as models give them."""
        self.pairs, self.passed, unit = dict(self._pairs()), 0, UNIT[getattr(torch, self.dtype)]
        for block in stream:
            for pair in self.pairs.values():
                pair.add(block.rows, unit)
            self.passed += len(block.rows[0])
            yield block

    def _pairs(self) -> Iterator[tuple[tuple[str, str], ModelPair]]:
        ends = list(itertools.accumulate((len(reading.layers) for reading in self.readings), initial=0))
        for (i, x), (j, y) in itertools.combinations(enumerate(self.readings), 2):
            if _list_layer_widths(x.layers) != _list_layer_widths(y.layers):
                continue
            chosen = choose_ordered_layers([layer.name for layer in x.layers])
            count, names = len(chosen), [x.layers[a].name for a in chosen]
            places = [(ends[i] + a, ends[j] + a) for a in chosen]
            twice = x.source is y.source
            yield (x.label, y.label), ModelPair(names, places, count, count, [0.0] * count, twice)

    def table(self) -> Table | None:
        """Makes the table of who and what; None where no two models have anything in common."""
        said = {pair: of.sentence(self.passed, len(self.readings) == 2) for pair, of in self.pairs.items()}
        rows = [[f"{a} beside {b}", what] for (a, b), what in said.items() if what]
        return Table(columns=["models", "the same layers"], rows=rows) if rows else None


def _list_layer_widths(layers: Sequence[Layer]) -> list[tuple[str, int]]:
    return [(layer.name, layer.width) for layer in layers]
