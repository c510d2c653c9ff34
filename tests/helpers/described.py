"""Whatever has settings, and those it has."""

import inspect
from collections.abc import Collection, Iterator
from typing import Any

from repsim_cli.base import registry
from repsim_cli.base.settings import Ranked
from repsim_cli.cli.kinds import SELECTED, list_shared_settings
from repsim_cli.cli.settings import group_of, read_settings
from repsim_cli.config.run import RunKeys


def with_settings() -> Iterator[tuple[str, Any, Collection[str]]]:
    """Everything that has settings, and those it has: components, groups of settings, and the groups inside them."""
    for room, kinds in SELECTED.items():
        for name in kinds.names():
            function = kinds.get(name).function
            yield f"{room} {name}", function, read_settings(function, RunKeys.model_fields if room == "study" else ())
            for key, parameter in inspect.signature(function).parameters.items():
                if (group := group_of(parameter.annotation)) and key not in RunKeys.model_fields:
                    yield f"{room} {name}.{key}", group, read_settings(group)
    for name in registry.analyses.names():
        yield f"analysis {name}", (options := registry.analyses.get(name).card.options), read_settings(options)
    for name, function in {"groups": Ranked, **list_shared_settings()}.items():
        yield name, function, read_settings(function)


DESCRIBED = {name: (function, own) for name, function, own in with_settings()}
