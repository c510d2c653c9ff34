"""What is read from each model: its hook points, their widths, and the device that it runs on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from repsim_cli.activations.capture import find_output_shapes
from repsim_cli.activations.hook_points import (
    ATTENTION,
    BY_HEAD,
    HookPoint,
    choose_hook_points,
    count_heads,
    find_head_width,
)
from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import check_device
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.models.loading import Loading
from repsim_cli.models.sizes import check_spread, find_spread
from repsim_cli.models.source import AnySource, Precomputed, Source

INNER = ("mlp_pre", "mlp_post", "module")  # their width is not the model's
MLP_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "feed_forward_size", "d_inner")


class Layer(NamedTuple):
    """A representation of the run: the model's label, and the name of a hook point or stored array."""

    model: str
    name: str
    width: int

    def __str__(self) -> str:
        return f"{self.name} of '{self.model}'"


@dataclass(frozen=True)
class Reading:
    """What is read from a model. points: empty for stored activations."""

    label: str
    source: AnySource
    points: list[HookPoint]
    layers: list[Layer]

    @property
    def eager(self) -> bool:
        """Tells whether attention maps are read, which fused attention does not give."""
        return any(point.kind in ATTENTION for point in self.points)


def assign_devices(hardware: Hardware, labels: Sequence[str]) -> dict[str, str]:
    """The device of each model: named, in turn, or that of the run. Raises BadInput for a device that is not there."""
    check_spread(hardware)
    named = hardware.devices
    if isinstance(named, dict):
        for label in named:
            if label not in labels:
                raise BadInput(f"hardware.devices: no such model, got '{label}'; {did_you_mean(label, labels)}")
        places = {label: named.get(label, hardware.device) for label in labels}
    else:
        turn = named or [hardware.device]
        places = {label: turn[i % len(turn)] for i, label in enumerate(labels)}
    for device in dict.fromkeys([hardware.device, *places.values()]):
        check_device("hardware.device" if device == hardware.device else "hardware.devices", device)
    return places


def choose_loading(hardware: Hardware, device: str) -> Loading:
    """The way in which a run loads a model for this device."""
    return Loading(dtype=getattr(torch, hardware.dtype), device=device, spread=find_spread(hardware))


def plan_readings(models: Mapping[str, AnySource], extract: Extract) -> list[Reading]:
    """Plans what is read from each model, in order. Raises BadInput (key path first) before any weight loads."""
    chosen = []
    for label, source in models.items():
        if isinstance(source, Precomputed):
            layers = [Layer(label, name, width) for name, width in zip(source.names, source.widths, strict=True)]
            chosen.append(Reading(label, source, [], layers))
            continue
        points = choose_hook_points(label, source, extract)
        maps = [point for point in points if point.kind in ATTENTION]
        # with two numbers, as with whole sequences, all rows have the same number of keys
        even = extract.unit == "sequence" or (source.modality == "numbers" and extract.unit in ("first", "last"))
        if maps and (not even or maps[0].head is None):
            raise BadInput(
                f"extract.hook_points: an attention map has no row per token, got '{maps[0].kind}'; use q, k, v, z or "
                f"attn_out, or {maps[0].kind}.h* with extract.unit=sequence"
            )
        guessed = any(point.kind in INNER for point in points) or source.modality == "images"
        read = find_output_shapes(source, points) if guessed else {}
        if source.modality == "images" and not _allows_own_places(source, extract):
            _check_places(label, source, read)
        layers = [
            Layer(label, str(point), _compute_row_width(point, source, extract, read.get(point))) for point in points
        ]
        chosen.append(Reading(label, source, points, layers))
    return chosen


def _allows_own_places(source: Source, extract: Extract) -> bool:
    """Tells whether layers of an image model may have places of their own: where the places of an image become one row,
    whose length is known before the run."""
    sized = hasattr(getattr(source.skeleton, "config", None), "image_size")
    return extract.unit == "mean" or (extract.unit == "sequence" and sized)


def _compute_row_width(point: HookPoint, source: Source, extract: Extract, shape: tuple[int, int] | None) -> int:
    """Features of a row. shape: the places and features of the hook point, where a pass without weights gave them."""
    places, wide = shape or (None, find_point_width(point, source))
    if extract.unit != "sequence":
        return wide
    return wide * ((places if source.modality == "images" else None) or source.context or extract.length)


def _check_places(label: str, source: Source, read: Mapping[HookPoint, tuple[int, int]]) -> None:
    for point, (places, _) in read.items():
        if places != source.context:
            given = "of any size" if source.context == 1 else f"of {source.context} places"
            raise BadInput(
                f"extract.unit, model.{label}: {point} has places of its own, got {places} for images {given}; use "
                "extract=pooled (compare: --rows pooled)"
            )


def find_point_width(point: HookPoint, source: Source) -> int:
    """Features per row, from the config (inside an MLP that it does not describe, and for an unknown module, four times
    the width)."""
    if point.kind in ATTENTION:
        return source.context or 1
    if point.kind in BY_HEAD:
        wide = find_head_width(point, source)
        return wide if point.head is not None else wide * count_heads(point, source)
    if point.kind not in INNER:
        return source.width
    config = getattr(source.skeleton, "config", None)
    named = [getattr(config, name, None) for name in MLP_WIDTHS if point.kind != "module"]
    return next((wide for wide in named if isinstance(wide, int)), 4 * source.width)
