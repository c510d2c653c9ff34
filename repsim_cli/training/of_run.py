"""A model that a run trained, by the run's name and its own."""

from pathlib import Path
from typing import Any

from repsim_cli import cache
from repsim_cli.errors import BadInput
from repsim_cli.models.source import Source
from repsim_cli.models.transformers import transformers
from repsim_cli.registry import did_you_mean, models
from repsim_cli.results import find, read_manifest
from repsim_cli.training.trained import KIND


@models.register("trained")
def trained(*, run: str, name: str) -> Source:
    """run: a run folder, its name, or latest. name: of a model that the run trained: the label in its results, or
    stepN of a pre-training."""
    folder = find(run)
    known = _trained(folder)
    if not known:
        raise BadInput(f"run: it trained no model, got '{run}' ({folder}); name a run of finetune or pretrain")
    if name not in known:
        raise BadInput(f"name: {folder} has no such model, got '{name}'; {did_you_mean(name, known)}")
    if not known[name].is_dir():
        raise BadInput(
            f"name: no longer in the cache, got '{name}' of {folder}; train it again, repsim run --from {folder}"
        )
    return transformers(path=str(known[name]))


def _trained(folder: Path) -> dict[str, Path]:
    """Where the models that a run trained lie: in the cache, or in the run folder."""
    identities: dict[str, dict[str, Any]] = read_manifest(folder).get("models", {})
    stored = {label: one["trained"] for label, one in identities.items() if "trained" in one}
    own = {place.name: place for place in sorted((folder / "models").glob("*")) if place.is_dir()}
    return {**{label: cache.root() / KIND / key / "model" for label, key in stored.items()}, **own}
