"""A piece of the work of a run that may be computed anywhere: it leaves its result in the cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A pure function of its arguments, whose result is an entry of the cache.

    kind: of those that a worker of the run knows. args: plain JSON. group: of units that share what a worker holds.
    """

    kind: str
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""


Phase = tuple[str, Sequence[Unit]]  # a label, and units that need no other of them
Kinds = Mapping[str, Callable[..., bool]]  # by kind, (run, **args) -> whether the cache lacked the result
