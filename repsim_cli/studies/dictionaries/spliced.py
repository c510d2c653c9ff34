"""Measures how well a dictionary says rows of a layer, and what the next token loses where it stands in for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import make_input_tensors
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import LOGITS, HookPoint, locate
from repsim_cli.activations.next_token import average_by_sequence, compare_next_tokens, find_next
from repsim_cli.activations.places import list_row_places
from repsim_cli.base.errors import RunFailed
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.models.calls import Hooks, exchange, find_entering
from repsim_cli.models.loading import make_input_template
from repsim_cli.models.points import Point, copy_tensor, take_hidden_states
from repsim_cli.models.source import Source, find_backbone_path
from repsim_cli.studies.dictionaries.columns import MEAN, SAID, SHUFFLED
from repsim_cli.studies.dictionaries.formats import Dictionary

KINDS = (SAID, SHUFFLED, MEAN)
CELLS = 2**24  # of a code held at a time


def say_why_unreplaceable(point: HookPoint, source: Source) -> str | None:
    """Says why what passes at a hook point cannot be replaced; None: it can."""
    place = locate(point, source)
    if place.side == "attention" or place.pick not in (take_hidden_states, copy_tensor) or place.call:
        return f"what passes at {point} of {source.model_type} cannot be replaced"
    return None


@dataclass(frozen=True, kw_only=True)
class SpliceReader:
    """A model whose layers are read, and replaced. head: whether it has an output head for the next token.

    model: with its head where it has one. progress, count: as in `layers.without`.
    """

    model: nn.Module
    source: Source
    extract: Extract
    head: bool
    progress: Callable[[Sequence[Any]], Iterator[Any]]
    count: Callable[[np.ndarray], None]

    @property
    def device(self) -> str:
        return str(make_input_template(self.model).device)

    def rows(self, batches: Sequence[Sequences], points: Sequence[HookPoint]) -> Iterator[dict[HookPoint, Tensor]]:
        """Reads the rows of these layers, (n, d) each."""
        backbone = self.model.get_submodule(find_backbone_path(self.model, self.source)) if self.head else self.model
        for batch in self.progress(batches):
            inputs, mask, more = make_input_tensors(batch, self.source, make_input_template(backbone))
            with capture(backbone, self.source, points) as read:
                found = read(inputs, mask, **more)
            self.count(batch.mask)
            sequence, place = self.places(batch)
            yield {point: x[sequence, place].float() for point, x in found.items()}

    def places(self, batch: Sequences) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        sequence, place = torch.from_numpy(list_row_places(batch, self.extract)).unbind(1)
        return sequence, place

    def run_replaced(
        self, batch: Sequences, place: Point | None, rows: Tensor | None, more: Sequence[HookPoint]
    ) -> Any:
        """Runs the model, with its head where it has one, with these rows in place of its own; None: with its own.
        Reads its logits, and these hook points."""
        inputs, mask, given = make_input_tensors(batch, self.source, make_input_template(self.model))
        hooks = Hooks()
        if place is not None and rows is not None:
            backbone = self.model.get_submodule(find_backbone_path(self.model, self.source))
            module, at = self.source.modules(backbone)[place.module], self.places(batch)
            (hooks.call_after if place.side == "output" else hooks.call_before)(module, _make_hook(rows, at))
        try:
            with capture(self.model, self.source, [*more, *([LOGITS] if self.head else [])]) as read:
                return read(inputs, mask, **given)
        finally:
            hooks.remove()
            self.count(batch.mask)


def _make_hook(rows: Tensor, at: tuple[Tensor, Tensor]) -> Callable[..., Any]:
    """Makes a hook, before a module or after it, that puts rows at these places."""

    def put(x: Tensor) -> Tensor:
        x = x.clone()
        x[at] = rows.to(x)
        return x

    def hook(args: tuple[Any, ...], kwargs: dict[str, Any], *out: Any) -> Any:
        if not out:
            found = find_entering(args, kwargs)
            if found is None:
                raise RunFailed("a layer is replaced where no stream enters; name another hook point")
            return exchange(args, kwargs, found[0], put(found[1]))
        (given,) = out
        return (put(given[0]), *given[1:]) if isinstance(given, tuple) else put(given)

    return hook


class Told(NamedTuple):
    """Holds what is measured of a dictionary in a model, by sequence of the data.

    squares: of the rows' distances to their mean. left: of what the dictionary, and the shuffled one, do not say.
    active: latents, summed over rows. rows: how many. loss, kl: by what rows are replaced by, of the sequences that
    have a next token, NaN elsewhere; None without a head. alive: the latents that are active on any row.
    """

    squares: Float[np.ndarray, " N"]
    left: Mapping[str, Float[np.ndarray, " N"]]
    active: Float[np.ndarray, " N"]
    rows: Float[np.ndarray, " N"]
    loss: Mapping[str, Float[np.ndarray, " N"]] | None
    kl: Mapping[str, Float[np.ndarray, " N"]] | None
    alive: Bool[np.ndarray, " m"]


def compute_layer_means(
    reader: SpliceReader, batches: Sequence[Sequences], points: Sequence[HookPoint]
) -> dict[HookPoint, Tensor]:
    """Computes the mean row of each layer."""
    total: dict[HookPoint, Tensor] = {}
    count = 0
    for rows in reader.rows(batches, points):
        count += len(next(iter(rows.values())))
        for point, x in rows.items():
            total[point] = total.get(point, 0) + x.double().sum(0)
    return {point: (x / count).float() for point, x in total.items()}


def shuffle_decoder(dictionary: Dictionary, seed: int) -> Dictionary:
    """Gives every latent the decoder direction of another at random."""
    order = torch.randperm(dictionary.width, generator=torch.Generator().manual_seed(seed))
    return Dictionary(**{**vars(dictionary), "decoder": dictionary.decoder[order.to(dictionary.decoder.device)]})


def tell(
    reader: SpliceReader,
    batches: Sequence[Sequences],
    members: Sequence[Int[np.ndarray, " b"]],
    dictionaries: Mapping[str, tuple[HookPoint, Dictionary]],
    seed: int,
) -> dict[str, Told]:
    """Measures dictionaries in a model, each at its hook point. members: the numbers of the sequences of each batch."""
    points = list(dict.fromkeys(point for point, _ in dictionaries.values()))
    middle = compute_layer_means(reader, batches, points)
    sums = {name: _Sums(sum(map(len, members)), each.width) for name, (_, each) in dictionaries.items()}
    others = {name: shuffle_decoder(each, seed) for name, (_, each) in dictionaries.items()}
    for batch, numbers in zip(reader.progress(batches), members, strict=True):
        whole = reader.run_replaced(batch, None, None, points)
        places, wanted = find_next(batch)
        at = reader.places(batch)
        sequence = torch.from_numpy(numbers)[at[0]]
        by_mean: dict[HookPoint, list[Tensor]] = {}
        for name, (point, dictionary) in dictionaries.items():
            x, found = whole[point][at].float(), sums[name]
            said = found.add(x, dictionary, others[name], middle[point], sequence)
            if not reader.head or not places.any():
                continue
            chosen, ids = torch.from_numpy(places), wanted.to(x.device)
            before = whole[LOGITS][chosen.to(x.device)]
            for kind, rows in said.items():
                lost = by_mean.get(point) if kind == MEAN else None  # the same for all dictionaries of a layer
                if lost is None:
                    changed = reader.run_replaced(batch, locate(point, reader.source), rows, ())[LOGITS]
                    lost = compare_next_tokens(before, changed[chosen.to(x.device)], ids)
                if kind == MEAN:
                    by_mean[point] = lost
                found.lose(kind, lost, places, numbers)
    return {name: found.tell(reader.head) for name, found in sums.items()}


class _Sums:
    """Adds up what `tell` measures, by sequence."""

    def __init__(self, count: int, width: int):
        self.of_rows = {
            name: torch.zeros(count, dtype=torch.float64) for name in ("squares", "active", "rows", SAID, SHUFFLED)
        }
        self.of_next = {part: {kind: np.full(count, np.nan) for kind in KINDS} for part in ("kl", "loss")}
        self.alive = torch.zeros(width, dtype=torch.bool)

    def add(
        self, x: Tensor, dictionary: Dictionary, other: Dictionary, middle: Tensor, sequence: Int[Tensor, " n"]
    ) -> dict[str, Tensor]:
        """Adds the rows of a batch; gives what stands in for them."""
        said: dict[str, list[Tensor]] = {SAID: [], SHUFFLED: []}
        active = []
        for part in x.split(max(1, CELLS // dictionary.width)):
            code = dictionary.encode(part)
            self.alive |= (code > 0).any(0).cpu()
            active.append((code > 0).sum(1))
            said[SAID].append(dictionary.decode(code))
            said[SHUFFLED].append(other.decode(code))
        rows = {kind: torch.cat(parts) for kind, parts in said.items()} | {MEAN: middle.expand_as(x)}
        left = {kind: (x - rows[kind]).double().square().sum(1) for kind in KINDS}
        numbers = {"squares": left.pop(MEAN), **left, "active": torch.cat(active), "rows": torch.ones(len(x))}
        for name, values in numbers.items():
            self.of_rows[name].index_add_(0, sequence, values.double().cpu())
        return rows

    def lose(self, kind: str, found: Sequence[Tensor], places: np.ndarray, numbers: Int[np.ndarray, " b"]) -> None:
        known = places.any(1)
        of_each = average_by_sequence(torch.stack(list(found)).cpu(), places)[:, torch.from_numpy(known)].numpy()
        for part, values in zip(("kl", "loss"), of_each, strict=True):
            self.of_next[part][kind][numbers[known]] = values

    def tell(self, head: bool) -> Told:
        sums = {name: x.numpy() for name, x in self.of_rows.items()}
        kl, loss = (self.of_next[part] if head else None for part in ("kl", "loss"))
        left = {kind: sums[kind] for kind in (SAID, SHUFFLED)}
        return Told(sums["squares"], left, sums["active"], sums["rows"], loss, kl, self.alive.numpy())
