"""A model to verify: in memory, or on the disk, from where one part at a time comes into memory."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from repsim_cli.models import precision
from repsim_cli.models.parts import Kept, is_inside
from repsim_cli.studies.verify.configs import read_settings
from repsim_cli.studies.verify.units import ModelUnit, find_unit_key, split_into_units
from repsim_cli.studies.verify.weights import name_weights, round_some_weights

HELD = ("_parameters", "_buffers", "_non_persistent_buffers_set")


class InMemory:
    """A model with all of its weights."""

    def __init__(self, model: nn.Module):
        self.model = model

    @cached_property
    def units(self) -> list[ModelUnit]:
        return split_into_units(self.model)

    @cached_property
    def dtype(self) -> torch.dtype:
        return precision.find_main_dtype(self.model)

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights of the whole model, by the names that `name_weights` gives."""
        return name_weights(self.model)

    @property
    def settings(self) -> dict[str, str]:
        return read_settings(self.model)

    def backbone(self) -> "InMemory":
        """The model without its head."""
        return InMemory(self.model.base_model)  # type: ignore[arg-type]

    def copy_rounded(self, names: Collection[str], dtype: torch.dtype) -> "InMemory":
        """Copies the model with the weights of these names rounded."""
        return InMemory(round_some_weights(copy.deepcopy(self.model), names, dtype))

    def load(self, key: str) -> AbstractContextManager[None]:
        """Loads the weights of the units of this key while the context lasts; here they always are in memory."""
        return nullcontext()

    def find_weights(self, key: str) -> dict[str, Tensor]:
        """The weights of the loaded units of this key; of an empty one, those outside of all units."""
        return {name: x for name, x in self.weights.items() if find_unit_key(name, self.units) == key}


class OnDisk(InMemory):
    """A model whose units have no weights, but for those that are loaded: theirs are on the device `meta`."""

    def __init__(self, part: Callable[[Kept], nn.Module], bare: Callable[[], "OnDisk"] | None = None):
        """part: a model of transformers with the weights of some modules alone, in float32. bare: the same without a
        head; None: it has none."""
        self.part, self.bare, self.dtype = part, bare, torch.float32
        empty: Any = part(lambda name: False)
        kind: Any = type(empty).__base__
        with torch.device("meta"):
            shell: nn.Module = kind(empty.config)
        paths = {id(module): name for name, module in shell.named_modules()}
        self.paths = {unit.key: paths[id(unit.module)] for unit in split_into_units(shell)}
        super().__init__(part(lambda name: not any(is_inside(name, path) for path in self.paths.values())))
        sizes = (sum(x.numel() for x in shell.get_submodule(path).parameters()) for path in self.paths.values())
        self.largest = max(sizes, default=0)  # weights of a part
        for path in self.paths.values():
            _exchange(self.model.get_submodule(path), shell.get_submodule(path))

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        return _Weights(self)

    def backbone(self) -> InMemory:
        return self if self.bare is None else self.bare()

    def copy_rounded(self, names: Collection[str], dtype: torch.dtype) -> InMemory:
        return OnDisk(lambda kept: round_some_weights(self.part(kept), names, dtype))

    @contextmanager
    def load(self, key: str) -> Iterator[None]:
        if (path := self.paths.get(key)) is None:
            yield
            return
        own, part = self.model.get_submodule(path), self.part(lambda name: is_inside(name, path))
        given = part.get_submodule(path)
        del part
        _exchange(own, given)
        try:
            yield
        finally:
            _exchange(own, given)

    def find_weights(self, key: str) -> dict[str, Tensor]:
        return {name: x for name, x in name_weights(self.model).items() if find_unit_key(name, self.units) == key}


def _exchange(a: nn.Module, b: nn.Module) -> None:
    """Exchanges all tensors of two modules of one make."""
    for one, other in zip(a.modules(), b.modules(), strict=True):
        mine, theirs = ({k: v for k, v in vars(x).items() if k in HELD or isinstance(v, Tensor)} for x in (one, other))
        vars(one).update(theirs)
        vars(other).update(mine)


class _Weights(Mapping[str, Tensor]):
    """All weights of a model on the disk; the last unit that was asked for stays in memory."""

    def __init__(self, side: OnDisk):
        self.side = side
        self.units = {name: find_unit_key(name, side.units) for name in name_weights(side.model)}
        self.key, self.held = "", side.find_weights("")

    def __getitem__(self, name: str) -> Tensor:
        if (key := self.units[name]) != self.key:
            self.held = {}  # before the next comes
            with self.side.load(key):
                self.key, self.held = key, self.side.find_weights(key)
        return self.held[name]

    def __contains__(self, name: object) -> bool:
        return name in self.units

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[str]:
        return iter(self.units)
