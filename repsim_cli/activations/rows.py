"""Activations of all models of a run as one stream of paired rows: every model runs once per batch of tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from repsim_cli.activations.capture import Reader, capture
from repsim_cli.activations.hook_points import ATTENTION, HookPoint, expand
from repsim_cli.data.packing import Sequences
from repsim_cli.errors import BadInput, RepsimError, RunFailed
from repsim_cli.models.source import AnySource, Precomputed, Source
from repsim_cli.settings import Extract, Hardware


class Layer(NamedTuple):
    """One representation of the run: a model's label and the name of a hook point or stored array."""

    model: str
    name: str
    width: int

    def __str__(self) -> str:
        return f"{self.name} of '{self.model}'"


@dataclass(frozen=True)
class Reading:
    """What is read from one model. points: empty for precomputed activations."""

    label: str
    source: AnySource
    points: list[HookPoint]
    layers: list[Layer]


def check_device(device: str) -> None:
    """Raises BadInput for a device that this machine does not have."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"hardware.device: not usable here, got '{device}' ({reason[:100]}); use cpu") from None


def readings(models: Mapping[str, AnySource], extract: Extract) -> list[Reading]:
    """What is read from each model, in order. Raises BadInput (key path first) before any weight loads."""
    found = []
    for label, source in models.items():
        if isinstance(source, Precomputed):
            layers = [Layer(label, name, width) for name, width in zip(source.names, source.widths, strict=True)]
            found.append(Reading(label, source, [], layers))
            continue
        try:
            points = expand(extract.hook_points, extract.layers, source)
        except BadInput as error:
            raise BadInput(f"extract.hook_points, model.{label}: {error}") from None
        if any(point.kind in ATTENTION for point in points):
            raise BadInput(
                "extract.hook_points: an attention pattern has no row per token, got 'pattern'; "
                "use q, k, v, z or attn_out"
            )
        if source.context is not None and extract.length > source.context:
            raise BadInput(
                f"extract.length, model.{label}: longer than the model's context, got {extract.length}; "
                f"at most {source.context}"
            )
        layers = [Layer(label, str(point), width(point, source)) for point in points]
        found.append(Reading(label, source, points, layers))
    return found


def width(point: HookPoint, source: Source) -> int:
    """Features per row, where the config says so (an MLP's or an unknown module's: four times the width)."""
    per_head = source.width // source.heads
    if point.head is not None:
        return per_head
    if point.kind in ("k", "v"):
        return source.kv_heads * per_head
    return 4 * source.width if point.kind in ("mlp_pre", "mlp_post", "module") else source.width


def kept(sequences: Sequences, padding: str) -> Bool[np.ndarray, "N L"]:
    """Which tokens become rows: with `drop` those of documents alone, with `keep` all."""
    return sequences.text if padding == "drop" else np.ones_like(sequences.text)


def blocks(
    found: Sequence[Reading],
    modules: Mapping[str, nn.Module],
    sequences: Sequences | None,
    extract: Extract,
    hardware: Hardware,
    progress: Callable[[Sequence[int]], Iterator[int]],
) -> Iterator[list[Tensor]]:
    """Paired rows (m, d_r) of every layer of every model, float32, one forward batch at a time, in row order."""
    if sequences is None:
        total = min(r.source.rows for r in found if isinstance(r.source, Precomputed))
        for start in progress(range(0, total, extract.batch_rows)):
            yield _stored(found, slice(start, min(total, start + extract.batch_rows)))
        return
    keep = kept(sequences, extract.padding)
    done = 0
    with ExitStack() as stack:
        readers = {
            r.label: stack.enter_context(capture(modules[r.label], r.source, r.points))
            for r in found
            if isinstance(r.source, Source)
        }
        for start in progress(range(0, len(sequences.ids), hardware.batch_size)):
            batch = slice(start, start + hardware.batch_size)
            ids = torch.from_numpy(sequences.ids[batch]).long().to(hardware.device)
            mask = torch.from_numpy(sequences.mask[batch]).to(hardware.device)
            chosen = torch.from_numpy(keep[batch]).to(hardware.device)
            stored = slice(done, done + int(chosen.sum()))
            done = stored.stop
            rows: list[Tensor] = []
            for reading in found:
                if isinstance(reading.source, Precomputed):
                    rows += _stored([reading], stored)
                else:
                    rows += _live(reading, readers[reading.label], ids, mask, chosen, start)
            yield rows


def _stored(found: Sequence[Reading], rows: slice) -> list[Tensor]:
    taken = []
    for reading in found:
        assert isinstance(reading.source, Precomputed)
        for layer in reading.layers:
            x = reading.source.read(layer.name, rows)
            _check_finite(x, layer, f"rows {rows.start} to {rows.stop - 1}", "mend the stored array (read as float32)")
            taken.append(x)
    return taken


def _live(reading: Reading, read: Reader, ids: Tensor, mask: Tensor, chosen: Tensor, start: int) -> list[Tensor]:
    try:
        found = read(ids, mask)
    except RepsimError as error:
        raise RunFailed(f"model.{reading.label}: {error}") from error
    taken = []
    for point, layer in zip(reading.points, reading.layers, strict=True):
        x = found.pop(point)
        if x.ndim != 3:
            raise RunFailed(f"{layer}: not (batch, position, features), got {tuple(x.shape)}; choose another module")
        rows = x[chosen].float()
        where = f"sequences {start} to {start + len(ids) - 1}"
        _check_finite(rows, layer, where, "check the model's weights, or leave this layer out")
        taken.append(rows)
    return taken


def _check_finite(x: Tensor, layer: Layer, where: str, advice: str) -> None:
    finite = torch.isfinite(x)
    if not finite.all():
        raise RunFailed(f"{layer}: activations are not finite, got {float(x[~finite][0])} in {where}; {advice}")


def total_rows(found: Sequence[Reading], sequences: Sequences | None, extract: Extract) -> int:
    """Rows that the run has, the same for every model; raises BadInput where stored activations disagree."""
    stored = {r.label: r.source.rows for r in found if isinstance(r.source, Precomputed)}
    if sequences is not None:
        stored["(tokens)"] = int(kept(sequences, extract.padding).sum())
    if len(set(stored.values())) != 1:
        listed = ", ".join(f"{label}: {rows}" for label, rows in stored.items())
        raise BadInput(f"model: models have different numbers of rows, got {listed}; rows must be paired")
    return next(iter(stored.values()))


def batches(stream: Iterator[list[Tensor]], extract: Extract, total: int, seed: int) -> Iterator[list[Tensor]]:
    """The stream regrouped as the estimate asks: one batch of rows sampled under the seed (`full`), or batches
    of exactly `batch_rows` rows in row order, the rest left out."""
    if extract.estimate == "full":
        chosen = np.sort(np.random.default_rng(seed).permutation(total)[: extract.rows])
        return _sampled(stream, torch.from_numpy(chosen))
    return _regrouped(stream, extract.batch_rows)


def _sampled(stream: Iterator[list[Tensor]], chosen: Tensor) -> Iterator[list[Tensor]]:
    out: list[Tensor] = []
    done = filled = 0
    for rows in stream:
        m = len(rows[0])
        inside = chosen[(chosen >= done) & (chosen < done + m)] - done
        if not out:
            out = [x.new_empty(len(chosen), x.shape[1]) for x in rows]
        for x, target in zip(rows, out, strict=True):
            target[filled : filled + len(inside)] = x[inside.to(x.device)]
        done, filled = done + m, filled + len(inside)
    yield out


def _regrouped(stream: Iterator[list[Tensor]], size: int) -> Iterator[list[Tensor]]:
    pending: list[Tensor] = []
    for rows in stream:
        pending = [torch.cat([old, x]) for old, x in zip(pending, rows, strict=True)] if pending else rows
        whole = len(pending[0]) // size
        for i in range(whole):
            yield [x[i * size : (i + 1) * size] for x in pending]
        pending = [x[whole * size :].clone() for x in pending]
