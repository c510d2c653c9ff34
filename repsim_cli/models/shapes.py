"""Shapes of published models, shipped with the package (assets/shapes.yaml): all that a dry run needs to know."""

import functools
import logging
import re
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from repsim_cli.base.planning import is_dry

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "shapes.yaml"
log = logging.getLogger("repsim")


class Vocabulary(NamedTuple):
    """Stands for the tokenizer of a published model in a dry run; equal for models that share a tokenizer."""

    name: str


class ModelShape(NamedTuple):
    """config: the keys of config.json that determine shapes. steps: those with a revision in the repository."""

    config: dict[str, Any]
    tokenizer: Vocabulary
    steps: tuple[int, ...] = ()


@functools.cache
def load_model_shapes() -> dict[str, ModelShape]:
    """The shapes that ship with the package, by hub id; {number} in an id stands for any number."""
    return {
        hub: ModelShape(
            entry.get("config", {}),
            Vocabulary(entry["tokenizer"]),
            tuple(
                step
                for part in entry.get("steps", ())
                for step in ([part] if isinstance(part, int) else range(part[0], part[1] + 1, part[2]))
            ),
        )
        for hub, entry in yaml.safe_load(FILE.read_text()).items()
    }


def find_shipped_shape(hub: str) -> ModelShape | None:
    """The shipped shape of a hub id; None where it is unknown."""
    known = load_model_shapes()
    return known.get(hub) or known.get(re.sub(r"\d+$", "{number}", hub))


def find_planned_shape(hub: str) -> ModelShape | None:
    """The shape that stands for a hub id in a dry run; None outside dry runs, and where it is unknown."""
    return find_shipped_shape(hub) if is_dry() else None


@functools.cache
def compare_with_shipped(hub: str, *settings: tuple[str, Any]) -> None:
    """Warns, once for each config, where the config on the hub differs from the shipped shape."""
    shape = find_shipped_shape(hub)
    given = dict(settings)
    different = [
        f"{key} {given.get(key)} for {value}"
        for key, value in (shape.config if shape else {}).items()
        if given.get(key) not in (None, value)
    ]
    if different:
        log.warning(
            "%s: the config on the hub differs from the shipped shape, got %s; runs use the hub's, dry runs the "
            "shipped one",
            hub,
            ", ".join(different),
        )
