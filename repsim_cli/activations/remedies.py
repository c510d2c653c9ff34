"""Remedies for layers where a few features or rows hold most of the variance, applied between models and estimates.

In this order: rows of skipped places and tokens are left out, then features with a large share of the variance, then
features, directions or rows are brought to one scale. Shares and scales come from one pass over all rows that are left,
directions from rows spread over that pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.activations.places import mark_row_places, order_places
from repsim_cli.activations.principal import Capped, RowSample, cap_directions
from repsim_cli.activations.readings import Layer
from repsim_cli.activations.row_batches import regroup
from repsim_cli.activations.rows import RowBlock
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.runs.content import CAPPED, CAPPED_COLUMNS, LEFT_OUT, LEFT_OUT_COLUMNS, Table

PASSED = 1024  # rows whose sums are added at a time, however they come
DEAD = 1e-6  # share of a feature's root mean square below which its standard deviation is rounding


def skip_in_all(
    sequences: Mapping[str, Sequences], tokenizers: Mapping[str, Any], extract: Extract
) -> dict[str, Sequences]:
    """The sequences of every model, marked with what is skipped and with the rows that some model leaves out. Raises
    BadInput where no token is of a kind that is to be skipped, or no row is left.
    """
    if not extract.rows_skipped:
        return dict(sequences)
    if not sequences:
        raise BadInput(
            f"extract: stored activations do not say at which places their rows are, got {extract.remedies}; set "
            "extract.skip=0 and extract.skip_tokens=[], or leave rows out of the file"
        )
    if extract.unit == "sequence":
        raise BadInput(
            "extract.skip: a row of all tokens of a sequence has all its places, got unit=sequence; use unit=mean, or "
            "skip nothing"
        )
    marked = {label: replace(x, skip=find_skipped(x, tokenizers[label], extract)) for label, x in sequences.items()}
    for name in extract.skip_tokens:
        if name != "newline" and all(find_special_id(tokenizers[label], name) is None for label in sequences):
            raise BadInput(f"extract.skip_tokens: no tokenizer of the run has such a token, got {name}; drop it")
    lost = np.any([_mark_skipped_rows(given, extract) for given in marked.values()], axis=0)
    if lost.all():
        raise BadInput(_explain_nothing_left(len(lost), extract))
    return {label: replace(given, left_out=_mark_lost_places(given, lost, extract)) for label, given in marked.items()}


def _explain_nothing_left(rows: int, extract: Extract) -> str:
    settings = {f"skip={extract.skip}": "skip=0", f"skip_tokens={extract.skip_tokens}": "skip_tokens=[]"}
    given = {now: then for now, then in settings.items() if now != then}
    stand = [f"in the first {extract.skip} places"] if extract.skip else []
    stand += [f"at {', '.join(extract.skip_tokens)}"] if extract.skip_tokens else []
    return (
        f"extract.skip: no row is left of {rows}, as all stand {' or '.join(stand)} for some model, got "
        f"{', '.join(given)}; {' '.join(f'extract.{then}' for then in given.values())} reads them"
    )


def _mark_skipped_rows(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, " n"]:
    """Marks the rows that the model gives and that it skips: pooled rows where no place is left."""
    places, skip = mark_row_places(sequences, extract), sequences.skip
    assert skip is not None
    if extract.pooled:
        return ~np.any(places & ~skip, axis=1)[np.any(places, axis=1)]
    return skip[order_places(sequences, places, extract)]


def _mark_lost_places(sequences: Sequences, lost: Bool[np.ndarray, " n"], extract: Extract) -> Bool[np.ndarray, "N L"]:
    """The places of the rows that are lost; of pooled rows, all places of their sequence."""
    places, left_out = mark_row_places(sequences, extract), np.zeros_like(sequences.mask)
    if extract.pooled:
        left_out[np.flatnonzero(places.any(1))[lost]] = True
    else:
        left_out[order_places(sequences, places, extract)] = lost
    return left_out


def find_skipped(sequences: Sequences, tokenizer: Any, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """The places of a model that are skipped."""
    places = np.zeros_like(sequences.mask)
    places[:, : extract.skip] = True
    if extract.skip_tokens:
        if sequences.inputs.ndim != 2 or not hasattr(tokenizer, "decode"):
            raise BadInput(
                f"extract.skip_tokens: these models read no tokens of text, got {extract.skip_tokens}; set it to []"
            )
        ids = [find_special_id(tokenizer, name) for name in extract.skip_tokens if name != "newline"]
        if "newline" in extract.skip_tokens:
            texts = {int(token): tokenizer.decode([int(token)]) for token in np.unique(sequences.ids)}
            ids += [token for token, text in texts.items() if "\n" in text and text.isspace()]
        places |= np.isin(sequences.ids, [token for token in ids if token is not None])
    return places


def find_special_id(tokenizer: Any, name: str) -> int | None:
    """The id of a special token, None where the tokenizer has none."""
    return getattr(tokenizer, f"{name}_token_id", None)


class Scaling(NamedTuple):
    """What is done to the features of a layer. kept: those that are not left out, None: all; scale: what they are
    multiplied by, None: nothing; dropped, share: the features that are left out and their share of the variance;
    capped: the directions whose variance is."""

    kept: Int[Tensor, " k"] | None
    scale: Float[Tensor, " k"] | None
    dropped: list[int]
    share: float
    capped: Capped | None = None


class FeatureMoments:
    """Sums of the features of several layers and of their squares, around the means of the first rows that pass."""

    def __init__(self) -> None:
        self.count, self.shifts, self.sums, self.squares = 0, [], [], []

    def add(self, batch: Sequence[Float[Tensor, "n _"]]) -> None:
        wide = [x.double() for x in batch]
        if not self.shifts:
            self.shifts = [x.mean(0) for x in wide]
            self.sums, self.squares = ([torch.zeros_like(shift) for shift in self.shifts] for _ in range(2))
        for x, shift, total, square in zip(wide, self.shifts, self.sums, self.squares, strict=True):
            x = x - shift
            total += x.sum(0)
            square += x.square_().sum(0)
        self.count += len(wide[0])

    def compute(self, layer: int) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """The variances and the means of the features of a layer, float64."""
        total, square = self.sums[layer], self.squares[layer]
        variance = (square - total**2 / self.count).clamp_min(0) / self.count
        return variance, self.shifts[layer] + total / self.count


class Remedies:
    """What happens to the rows that models give.

    left: of every such row, whether it is a row of the run; None: all are.
    scalings: of the layers, once their rows have passed.
    """

    def __init__(self, extract: Extract, left: Bool[np.ndarray, " n"] | None):
        self.extract, self.left = extract, left
        self.before = None if left is None else np.concatenate([[0], left.cumsum()])
        self.scalings: dict[Layer, Scaling] = {}

    def first(self, row: int) -> int:
        """The row that models give which is this row of the run."""
        return row if self.before is None else int(np.searchsorted(self.before, row + 1)) - 1

    def rows(self, stream: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """The rows of the run, features as they are."""
        for block in stream:
            if self.left is None or self.before is None:
                yield block
                continue
            inside = torch.from_numpy(self.left[block.first : block.first + len(block.rows[0])])
            kept = [x[inside.to(x.device)] for x in block.rows]
            yield RowBlock(int(self.before[block.first]), kept)

    def measure(self, stream: Iterator[RowBlock], layers: Sequence[Layer]) -> None:
        """Takes shares and scales of features from all rows of the run, which pass in this stream."""
        extract = self.extract
        sample = RowSample() if extract.normalise == "directions" else None
        moments = FeatureMoments() if extract.drop_features < 1 or extract.normalise == "features" else None
        for batch in regroup(stream, PASSED, 0, rest=True):
            for taker in (sample, moments):
                if taker is not None:
                    taker.add(batch)
        for number, layer in enumerate(layers):
            scaling = Scaling(None, None, [], 0.0)
            if moments is not None:
                scaling = compute_scaling(*moments.compute(number), extract, layer)
            if sample is not None:
                rows = sample.join(number)
                scaling = scaling._replace(
                    capped=cap_directions(rows if scaling.kept is None else rows[:, scaling.kept.cpu()])
                )
            self.scalings[layer] = scaling

    def apply(self, stream: Iterator[RowBlock], layers: Sequence[Layer]) -> Iterator[RowBlock]:
        """The rows of the run as they are compared."""
        if not self.extract.features_changed and self.extract.normalise == "none":
            yield from self.rows(stream)
            return
        for first, rows in self.rows(stream):
            yield RowBlock(first, [self._apply(x, layer) for x, layer in zip(rows, layers, strict=True)])

    def _apply(self, x: Float[Tensor, "n d"], layer: Layer) -> Float[Tensor, "n k"]:
        scaling = self.scalings.get(layer)
        if scaling is not None and scaling.kept is not None:
            x = x[:, scaling.kept.to(x.device)]
        if scaling is not None and scaling.scale is not None:
            x = x * scaling.scale.to(x.device)
        if scaling is not None and scaling.capped is not None:
            x = scaling.capped.apply(x)
        if self.extract.normalise == "rows":
            norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            x = x / torch.where(norms > 0, norms, 1)
        return x

    def tables(self, layers: Sequence[Layer]) -> dict[str, Table]:
        """The features that are left out and the directions that are capped, a row per layer; no table where there can
        be none."""
        tables = {}
        if self.extract.drop_features < 1:
            rows = [[layer.model, layer.name, *list_dropped(self.scalings[layer])] for layer in layers]
            tables[LEFT_OUT] = Table(columns=LEFT_OUT_COLUMNS, rows=rows)
        if self.extract.normalise == "directions":
            found = [(layer, self.scalings[layer].capped) for layer in layers]
            rows = [[x.model, x.name, *((len(at.factors), at.share) if at else (0, 0.0))] for x, at in found]
            tables[CAPPED] = Table(columns=CAPPED_COLUMNS, rows=rows)
        return tables


def list_dropped(scaling: Scaling) -> list[Any]:
    return [len(scaling.dropped), ", ".join(map(str, scaling.dropped)), scaling.share]


def compute_scaling(
    variance: Float[Tensor, " d"], mean: Float[Tensor, " d"], extract: Extract, layer: Layer
) -> Scaling:
    """Finds which features are kept, and the factor of each. Raises RunFailed where none is left.

    variance, mean: of each feature over all rows of the layer.
    """
    total = float(variance.sum())
    shares = variance / total if total else variance
    kept = (shares <= extract.drop_features).nonzero()[:, 0]
    if not len(kept):
        raise RunFailed(
            f"extract.drop_features: every feature of {layer} has more than this share of the variance, got "
            f"{extract.drop_features}; raise it, or leave this layer out"
        )
    scale = None
    if extract.normalise == "features":
        deviation = variance.sqrt()
        # a constant feature stays as it is
        dead = deviation <= DEAD * (variance + mean.square()).sqrt()
        scale = torch.where(dead, 1.0, 1 / deviation)[kept].float()
    dropped = (shares > extract.drop_features).nonzero()[:, 0].tolist()
    return Scaling(kept if dropped else None, scale, dropped, float(shares[dropped].sum()))
