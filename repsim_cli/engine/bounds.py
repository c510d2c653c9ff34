"""What a run will need: its models, rows and memory, checked before it starts, and as plan() shows them."""

import bisect
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from repsim_cli.activations.batching import count_batch_places
from repsim_cli.activations.readings import Reading
from repsim_cli.base.planning import note_unfit
from repsim_cli.base.settings import WORDS, Extract, Hardware
from repsim_cli.data.base import Data
from repsim_cli.models.sizes import count_resident_bytes, count_weight_bytes, describe_placement
from repsim_cli.models.source import AnySource, Source
from repsim_cli.runs import cache


def describe_models(
    models: Mapping[str, AnySource], hardware: Hardware, devices: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Describes each model: its kind, its size, the bytes of its weights. devices: where they go, by label."""
    return {
        label: (
            f"{source.model_type}, {source.layers} blocks of {source.width}, {source.parameters:,} parameters, "
            f"{count_weight_bytes(source, hardware.dtype) / 1e9:.3g} GB in {hardware.dtype}"
            + (
                f" ({where})"
                if (where := describe_placement(source, hardware))
                else f" on {devices[label]}"
                if devices
                else ""
            )
            + (f", read at {', '.join(source.hook_points)}" if source.hook_points else "")
            if isinstance(source, Source)
            else f"precomputed, {source.rows} rows of {len(source.names)} layers"
        )
        for label, source in models.items()
    }


def check_disk(need: float, folder: Path, what: str, advice: str) -> None:
    """Calls `note_unfit` where a run would write more bytes than are free on the disk of the folder."""
    if need > (free := count_free_bytes(folder)):
        note_unfit(f"{what} need {need / 1e9:.2f} GB, got {free / 1e9:.2f} GB free on the disk of {folder}; {advice}")


def count_free_bytes(folder: Path) -> int:
    """Bytes that are free on the disk on which the folder is, or would be."""
    return shutil.disk_usage(next(place for place in [folder, *folder.parents] if place.exists())).free


def describe_disk_use(parts: Mapping[str, float], activations: float = 0.0) -> dict[str, str]:
    """Lists what a run writes, by part, in GB, and what is free on the disk of the cache. Parts of 0 are left out.

    parts: bytes. activations: bytes of those in the cache, which takes none beyond its limit.
    """
    limit, sizes = cache.limit(), {**parts, "free": float(count_free_bytes(cache.find_cache_folder()))}
    shown = {part: f"{size / 1e9:.3g}" for part, size in sizes.items() if size}
    if not activations:
        return shown
    exceeding = f"none, {activations / 1e9:.3g} exceed its {limit / 1e9:.3g}"
    return {"activations in the cache": exceeding if activations > limit else f"{activations / 1e9:.3g}", **shown}


def convert_to_gb(memory: Mapping[str, float]) -> dict[str, float]:
    """Bytes by part in GB, and their sum."""
    return {part: round(size / 1e9, 3) for part, size in {**memory, "in all": sum(memory.values())}.items()}


def bound_sequence_length(live: Mapping[str, Source], extract: Extract) -> int:
    """The largest number of tokens of a sequence, or of patches of an image."""
    patches = [source.context or 0 for source in live.values() if source.modality == "images"]
    return max(patches, default=extract.length)


EXAMPLE = 64  # tokens of an example or sentence, for estimates


def find_usual_length(live: Mapping[str, Source], data: Data, extract: Extract) -> int:
    """The usual number of tokens of a sequence: examples are rarely as long as they may be."""
    longest = bound_sequence_length(live, extract)
    return longest if data.packs(extract) or extract.padding == "keep" else min(longest, EXAMPLE)


def count_most_rows(models: Mapping[str, AnySource], extract: Extract) -> int:
    """The largest number of rows that the data can have; of words nothing is known before they are read."""
    live = {label: source for label, source in models.items() if isinstance(source, Source)}
    read = extract.sequences * (bound_sequence_length(live, extract) if extract.unit == "token" else 1)
    stored = [source.rows for source in models.values() if not isinstance(source, Source)]
    return min([*stored, *([sys.maxsize if extract.unit in WORDS else read] if live else [])])


def count_all_rows(models: Mapping[str, AnySource], data: Data, extract: Extract) -> int:
    """The most rows that the run can have; for words, one per place."""
    live = {label: source for label, source in models.items() if isinstance(source, Source)}
    read = extract.sequences * find_usual_length(live, data, extract)
    return min([count_most_rows(models, extract), *([read] if live else [])])


def count_activation_bytes(
    models: Mapping[str, AnySource], readings: Iterable[Reading], data: Data, extract: Extract
) -> float:
    """Bytes of the rows of the live models."""
    live = [reading for reading in readings if isinstance(reading.source, Source)]
    return (
        4.0 * count_all_rows(models, data, extract) * sum(layer.width for reading in live for layer in reading.layers)
    )


def bound_pass(
    live: Mapping[str, Source], extract: Extract, hardware: Hardware, features: int, *, together: bool = False
) -> dict[str, float]:
    """Bytes, estimated: weights of the models that are in memory at a time, and the activations of a forward batch and
    the rows of a window, which holds no more tokens. features: of all layers. together: the study always needs all
    models."""
    return {
        "weights": count_resident_bytes([*live.values()], hardware, together=together),
        "forward": 4.0 * 2 * count_batch_places(bound_sequence_length(live, extract), hardware) * features
        if live
        else 0.0,
    }


def check_memory(need: float, hardware: Hardware, advice: str) -> None:
    """Calls `note_unfit` where a run needs more bytes than it may use."""
    if need > (limit := hardware.memory_limit):
        note_unfit(
            f"hardware.memory_gb: the run needs about {need / 1e9:.2f} GB, got a limit of {limit / 1e9:.2f} GB; "
            f"{advice}"
        )


def suggest_memory_limit(need: float) -> str:
    """The limit of memory with which a run would fit. need: the bytes that it takes."""
    return f"hardware.memory_gb={need / 1e9 + 0.1:.1f} would do"


def check_rows_fit(
    memory: Callable[[int], Mapping[str, float]],
    rows: int,
    hardware: Hardware,
    live: Mapping[str, Source],
    *,
    key: str = "rows",
    least: int = 4,
) -> None:
    """Calls `note_unfit` where the rows (extract.`key`) need too much memory. The message says how many rows would fit,
    where that is `least` or more, or else which other setting to change."""

    def need(rows: int) -> float:
        return sum(memory(rows).values())

    fits = bisect.bisect_right(range(rows), hardware.memory_limit, key=need) - 1
    advice = (
        f"extract.{key}={fits} would fit"
        if fits >= least
        else suggest_settings(memory(rows), hardware, live, processes=bool(memory(0).get("processes")))
    )
    check_memory(need(rows), hardware, advice)


def suggest_settings(
    parts: Mapping[str, float], hardware: Hardware, live: Mapping[str, Source], *, processes: bool = False
) -> str:
    """Names the settings with which a run that needs these parts of memory, in bytes, would fit."""
    need, forward = sum(parts.values()), parts.get("forward", 0.0)
    excess = need - hardware.memory_limit
    advice = [suggest_memory_limit(need)]
    batch = int((forward - excess) * hardware.batch_size / forward) if forward else 0
    if 1 <= batch < hardware.batch_size and hardware.batch_tokens is None:
        advice.insert(0, f"hardware.batch_size={batch} would fit")
    if processes:
        advice.append("hardware.processes=1 needs less")
    # a model's weights, and its share of the memory that grows with the number of features
    features = {label: source.layers * source.width for label, source in live.items()}
    by_feature = (forward + parts.get("rows", 0.0)) / max(sum(features.values()), 1)
    together = parts.get("weights", 0.0) >= sum(count_weight_bytes(source, hardware.dtype) for source in live.values())

    def weights(labels: Sequence[str]) -> float:
        return count_resident_bytes([live[label] for label in labels], hardware, together=together)

    left = sorted(live, key=lambda label: live[label].parameters)
    dropped: list[str] = []
    while excess > 0 and left:
        before = weights(left)
        dropped.append(left.pop())
        excess -= before - weights(left) + by_feature * features[dropped[-1]]
    return f"{', '.join(advice)}, or {'leave out ' + ', '.join(dropped) if left else 'use smaller models'}"
