"""A model that a run trained, by the run's name and its own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean, models
from repsim_cli.models.source import Source
from repsim_cli.models.transformers import transformers
from repsim_cli.runs.folders import find
from repsim_cli.runs.reader import read_manifest
from repsim_cli.training.trained import find_stored


@models.register("trained")
def trained(*, run: str, name: str) -> Source:
    """A model that an earlier run trained.

    run: the run folder, its name, or `latest`.
    name: the label of the model in the run's results, or stepN of a pre-training.
    Example: repsim run model=[] +model.mine='{kind: trained, run: RUN, name: LABEL}'
    """
    folder = find(run)
    manifest = read_manifest(folder)
    known = _find_trained(folder, manifest.get("models", {}))
    if not known:
        raise BadInput(f"run: it trained no model, got '{run}' ({folder}); name a run of finetune or pretrain")
    if name not in known:
        raise BadInput(f"name: {folder} has no such model, got '{name}'; {did_you_mean(name, known)}")
    place = known[name]()
    if place is None:
        raise BadInput(
            f"name: no longer in the cache, got '{name}' of {folder}; train it again, repsim run --from {folder}"
        )
    source = transformers(path=str(place))
    metrics = manifest.get("models", {}).get(name, {}).get("metrics")
    about = {} if metrics is None else {"metrics": metrics}
    entry = manifest.get("facts", {}).get(name, {}).get("entry", "")
    return replace(source, identity=lambda: {**source.identity(), **about}, entry=entry)


def _find_trained(folder: Path, identities: dict[str, dict[str, Any]]) -> dict[str, Callable[[], Path | None]]:
    """Finds the models that a run trained, by label: in the cache, if they are still there, or in the run folder."""
    keys = {label: str(identity["trained"]) for label, identity in identities.items() if "trained" in identity}
    kept = [place for place in sorted((folder / "models").glob("*")) if place.is_dir()]
    return {
        **{label: partial(find_stored, key) for label, key in keys.items()},
        **{place.name: lambda place=place: place for place in kept},
    }
