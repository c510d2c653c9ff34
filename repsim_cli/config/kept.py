"""Hydra's loader, which keeps what ships: a file of conf/ or of Hydra is read once in a process, and Hydra's part of a
configuration is merged once for each choice of its groups.
"""

from copy import copy, deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult

OF_HYDRA = "hydra/"
TOGETHER = "hydra/*"  # stands for the files of Hydra's part in a list of what is merged
Place = tuple[str, str, str]
READ: dict[Place, ConfigResult] = {}
MERGED: dict[tuple[Any, ...], Any] = {}


class KeptRepository(ConfigRepository):
    """Finds files by their names. What it keeps is shared: who changes it copies it before."""

    def place(self, config_path: str) -> Place | None:
        """The scheme, folder and name of what ships as a file, or is Hydra's own; None for others."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        scheme = "" if source is None else source.scheme()
        ships = scheme in ("pkg", "file") or (scheme == "structured" and config_path.startswith(OF_HYDRA))
        return (scheme, source.path, config_path) if source is not None and ships else None

    def load_config(self, config_path: str) -> ConfigResult | None:
        place = self.place(config_path)
        if place is None:
            return super().load_config(config_path)
        if place not in READ:
            READ[place] = super().load_config(config_path)  # type: ignore[assignment]  # it is there
        return copy(READ[place])

    def __deepcopy__(self, memo: Any) -> "KeptRepository":
        """Another with the same sources; Hydra asks for one in each composition."""
        other = copy(self)
        other.sources = [*self.sources]
        return other


class KeptLoader(ConfigLoaderImpl):
    """Composes as Hydra does."""

    def __init__(self, path: ConfigSearchPath) -> None:
        super().__init__(path)
        self.repository = KeptRepository(path)

    def _load_single_config(self, default: ResultDefault, repo: Any) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        # Hydra copies it into its package; without one, others would be merged into what is kept
        bare = loaded.config is repo.load_config(default.config_path).config
        return replace(loaded, config=deepcopy(loaded.config)) if bare else loaded

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: Any) -> Any:
        """Merges the files; those of Hydra's part come first."""
        compose = super()._compose_config_from_defaults_list
        own = [*takewhile(lambda default: str(default.config_path).startswith(OF_HYDRA), defaults)]
        key = tuple((repo.delegate.place(default.config_path), default.package) for default in own)
        if not own or any(place is None for place, _ in key):
            return compose(defaults, repo)
        if key not in MERGED:
            MERGED[key] = compose(own, repo)
        merged = ConfigResult("hydra", "", MERGED[key], {"package": ""}, is_schema_source=True)
        repo.cache[f"config_path={TOGETHER}"] = merged
        return compose([ResultDefault(config_path=TOGETHER, package="", primary=True), *defaults[len(own) :]], repo)
