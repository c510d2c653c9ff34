"""Checkpoints of a training run as a single model entry: a local folder, hub revisions, or shipped models."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from repsim_cli.base.documents import read
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, explain
from repsim_cli.base.registry import did_you_mean, models
from repsim_cli.base.settings import NotNegative
from repsim_cli.data.files import read_json_file
from repsim_cli.models.shapes import find_shipped_shape
from repsim_cli.models.source import Checkpoint, Series, Source
from repsim_cli.models.transformer_lens import transformer_lens
from repsim_cli.models.transformers import shipped, transformers

STEP = "{step}"
METRICS = "metrics.json"
SHIPPED_SERIES = {"tiny_a": {100: "tiny_a_step100", 400: "tiny_a_step400", 2000: "tiny_a"}}


@models.register("series")
def series(
    *,
    folder: str | None = None,
    hub: str | None = None,
    shipped: str | None = None,
    pattern: str = "step{step}",
    steps: list[NotNegative] | None = None,
    drop_downloads: bool = False,
) -> Series:
    """Checkpoints of one training run, two or more, for the studies of training.

    folder: a folder of checkpoint folders; give one of folder, hub and shipped.
    hub: a hub id whose revisions are the checkpoints.
    shipped: a training run whose checkpoints ship with the package: tiny_a.
    pattern: the name of a checkpoint folder or revision, with {step} where the number stands.
    steps: the steps to read; null: all in the folder. A hub id needs them.
    drop_downloads: remove each revision from the hub's cache after use, so that at most three are kept at a time.
    Example: repsim run study=convergence model=[] '+model.mine={kind: series, folder: DIR}' measure=[cka_unbiased]
    """
    given = {name: value for name, value in (("folder", folder), ("hub", hub), ("shipped", shipped)) if value}
    if len(given) != 1:
        got = f", got {given}" if given else ""
        raise BadInput(f"folder, hub, shipped: give exactly one of them{got}; e.g. folder: runs/a")
    if pattern.count(STEP) != 1:
        raise BadInput(f"pattern: not exactly one {STEP} in it, got '{pattern}'; e.g. 'step{{step}}'")
    if drop_downloads and hub is None:
        raise BadInput(f"drop_downloads: nothing is downloaded, got true with {', '.join(given)}; leave it false")
    if steps is not None and (len(set(steps)) < len(steps) or min(steps, default=0) < 0):
        raise BadInput(f"steps: not distinct numbers from 0 on, got {steps}; name each step once")
    if shipped is not None:
        checkpoints = _open_shipped(shipped, steps)
    elif folder is not None:
        checkpoints = [
            _make_local_checkpoint(step, place)
            for step, place in _find_step_folders(expand_path(folder), pattern, steps).items()
        ]
    else:
        if steps is None:
            raise BadInput("steps: needed with hub; list the steps, e.g. [0, 1000, 143000]")
        if pattern == "step{step}":
            _check_published(str(hub), steps)
        checkpoints = [
            _make_hub_checkpoint(step, str(hub), pattern.replace(STEP, str(step)), drop_downloads) for step in steps
        ]
    if len(checkpoints) < 2:
        raise BadInput(
            f"steps: a series needs two checkpoints, got {[checkpoint.step for checkpoint in checkpoints]}; name more"
        )
    return Series(checkpoints=sorted(checkpoints, key=lambda checkpoint: checkpoint.step), local=hub is None)


def _check_published(hub: str, steps: list[int]) -> None:
    """Raises BadInput for a step without a revision, where the steps of a published model are known."""
    shape = find_shipped_shape(hub)
    known = (shape.steps if shape is not None else None) or steps
    for step in steps:
        if step not in known:
            nearest = min(known, key=lambda other: abs(other - step))
            raise BadInput(f"steps: {hub} was published without this step, got {step}; the nearest is {nearest}")


def _find_step_folders(folder: Path, pattern: str, steps: list[int] | None) -> dict[int, Path]:
    """The checkpoint folder of each step; of requested steps even if it does not exist."""
    if not folder.is_dir():
        raise BadInput(f"folder: no such folder, got '{folder}'; check the path")
    expected = re.compile(r"(\d+)".join(re.escape(part) for part in pattern.split(STEP)))
    inside = sorted(place for place in folder.iterdir() if place.is_dir())
    there: dict[int, Path] = {}
    for place in inside:
        if match := expected.fullmatch(place.name):
            step = int(match[1])
            if step in there:
                raise BadInput(
                    f"pattern: two checkpoints of step {step}, got {there[step].name} and {place.name}; rename one"
                )
            there[step] = place
    if not there:
        names = ", ".join(place.name for place in inside[:5]) or "an empty folder"
        raise BadInput(f"pattern: no checkpoint is named '{pattern}' in '{folder}', got {names}; change the pattern")
    if steps is None:
        return there
    return {step: there.get(step, folder / pattern.replace(STEP, str(step))) for step in steps}


def _open_shipped(name: str, steps: list[int] | None) -> list[Checkpoint]:
    if name not in SHIPPED_SERIES:
        raise BadInput(f"shipped: no such series, got '{name}'; {did_you_mean(name, SHIPPED_SERIES)}")
    names = SHIPPED_SERIES[name]
    for step in steps or ():
        if step not in names:
            raise BadInput(f"steps: '{name}' ships without step {step}, got {steps}; it has {list(names)}")
    chosen = {step: names[step] for step in (steps if steps is not None else names)}
    return [Checkpoint(step=step, open=partial(shipped, name=model)) for step, model in chosen.items()]


def _make_local_checkpoint(step: int, place: Path) -> Checkpoint:
    def open_step() -> Source:
        try:
            return replace(open_local_model(place), metrics=partial(read_metrics, place))
        except OSError as error:
            raise BadInput(explain(error)) from None

    return Checkpoint(step=step, open=open_step)


def open_local_model(place: Path) -> Source:
    """A model on the disk, in the transformers format or in the native one of TransformerLens."""
    return (transformer_lens if is_native(place) else transformers)(path=str(place))


def is_native(place: Path) -> bool:
    """Tells whether a folder is in the native format of TransformerLens."""
    return (config := place / "config.json").is_file() and _is_native_config(config)


def _is_native_config(config: Path) -> bool:
    """Tells whether it is the config of a model in the native format of TransformerLens."""
    try:
        content = json.loads(read(config))
    except (ValueError, RecursionError):
        return False  # the checks of the transformers format say what is wrong
    return isinstance(content, dict) and "model_type" not in content and "d_model" in content


def read_metrics(folder: Path) -> dict[str, float]:
    """The metrics saved with a model; empty without a metrics.json."""
    file = folder / METRICS
    return read_json_file(file) if file.is_file() else {}


def _make_hub_checkpoint(step: int, hub: str, revision: str, drop: bool) -> Checkpoint:
    return Checkpoint(
        step=step,
        open=partial(transformers, hub=hub, revision=revision),
        drop=partial(drop_revision, hub, revision) if drop else lambda: None,
    )


def drop_revision(hub: str, revision: str) -> None:
    """Removes a revision from the hub's cache, except for files that other revisions share."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        scan = scan_cache_dir()
    except CacheNotFound:  # nothing was downloaded yet
        return
    commits = [
        commit.commit_hash
        for repository in scan.repos
        if repository.repo_id == hub and repository.repo_type == "model"
        for commit in repository.revisions
        if revision in commit.refs or commit.commit_hash == revision
    ]
    scan.delete_revisions(*commits).execute()
