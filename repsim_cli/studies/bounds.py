"""What a run will need, known before it starts: its models, rows and memory, checked and as plan() shows them."""

import bisect
import sys
from collections.abc import Callable, Mapping

from repsim_cli.models.source import AnySource, Source
from repsim_cli.planning import unfit
from repsim_cli.settings import Extract, Hardware


def shown(models: Mapping[str, AnySource]) -> dict[str, str]:
    return {
        label: (
            f"{one.model_type}, {one.layers} blocks of {one.width}, {one.parameters:,} parameters"
            if isinstance(one, Source)
            else f"precomputed, {one.rows} rows"
        )
        for label, one in models.items()
    }


def in_gb(memory: Mapping[str, float]) -> dict[str, float]:
    """Bytes by part in GB, and their sum."""
    return {part: round(size / 1e9, 3) for part, size in {**memory, "in all": sum(memory.values())}.items()}


def places(live: Mapping[str, Source], extract: Extract) -> int:
    """Tokens of a sequence at most, or patches of an image."""
    patches = [source.context or 0 for source in live.values() if source.modality == "images"]
    return max(patches, default=extract.length)


def most_rows(models: Mapping[str, AnySource], extract: Extract) -> int:
    """Rows that the data can have at most; of words nothing is known before they are read."""
    live = {label: source for label, source in models.items() if isinstance(source, Source)}
    own = extract.sequences * (places(live, extract) if extract.unit == "token" else 1)
    stored = [source.rows for source in models.values() if not isinstance(source, Source)]
    return min([*stored, *([sys.maxsize if extract.unit == "word" else own] if live else [])])


def passing(live: Mapping[str, Source], extract: Extract, hardware: Hardware, features: int) -> dict[str, float]:
    """Bytes, estimated: weights, and what one forward batch leaves of all layers, of so many features."""
    return {
        "weights": 4.0 * sum(source.parameters for source in live.values()),
        "forward": 4.0 * 2 * hardware.batch_size * places(live, extract) * features if live else 0.0,
    }


def check_memory(need: float, hardware: Hardware, advice: str) -> None:
    """Raises BadInput (in a dry run, notes) where a run needs more bytes than it may use."""
    if need > (limit := hardware.memory_limit):
        unfit(
            f"hardware.memory_gb: the run needs about {need / 1e9:.2f} GB, got a limit of {limit / 1e9:.2f} GB; "
            f"{advice}"
        )


def check_rows_fit(
    memory: Callable[[int], Mapping[str, float]], rows: int, hardware: Hardware, *, key: str = "rows", least: int = 4
) -> None:
    """Raises BadInput where so many rows (extract.`key`) need too much; it says how many fit, if `least` or more do."""
    several = "hardware.processes=1, or " if memory(0).get("processes") else ""

    def need(rows: int) -> float:
        return sum(memory(rows).values())

    fits = bisect.bisect_right(range(rows), hardware.memory_limit, key=need) - 1
    enough = f"hardware.memory_gb={need(rows) / 1e9 + 0.1:.1f} would do, or use {several}fewer or smaller models"
    check_memory(need(rows), hardware, f"extract.{key}={fits} would fit" if fits >= least else enough)
