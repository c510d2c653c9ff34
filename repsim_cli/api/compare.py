"""A comparison is a run like any other, checked and computed by the same code, in a folder of its own."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np

from repsim_cli.api.entries import MEASURES, compose_configuration, is_transformers, label_entries, make_model_entry
from repsim_cli.api.new_run import perform_in
from repsim_cli.api.plugins import NAME
from repsim_cli.api.result import Result
from repsim_cli.api.until import Settings, check_target, choose_sample, make_sampler
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.config.binding import bind_model
from repsim_cli.config.run import RunConfig, validate
from repsim_cli.data import memory as texts_in_memory
from repsim_cli.models import memory as models_in_memory
from repsim_cli.models.recording import Forward, Maps, check_given_documents, record_modules
from repsim_cli.models.source import Precomputed
from repsim_cli.runs.results import Progress, quiet

ROWS = ("auto", "tokens", "words", "pooled")


def compare(  # noqa: PLR0913 - the public interface
    models: Mapping[str, Any] | Sequence[Any],
    data: Any = None,
    *,
    measures: Sequence[str | Callable[..., Any]] = MEASURES,
    layers: Sequence[str] = (),
    rows: str = "auto",
    maps: str = "flattened",
    forward: Forward | None = None,
    documents: Sequence[Any] | None = None,
    significance: str = "none",
    device: str = "cpu",
    batch_size: int = 8,
    seed: int = 0,
    until: float | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> Result:
    """Compares all layers of all models under every measure.

    models: by label, or a list: folders, .gguf files, hub ids, names of `repsim list model`, transformers
        models or (model, tokenizer), arrays (n, d) or {layer: array}, entries of a configuration ({"kind": ...}), or
        any torch module with batches as data.
    data: texts, (text, label) pairs, a file of text or a table, a name of `repsim list data`, a hub id, a
        datasets.Dataset or pandas.DataFrame with a column `text`, or the settings of a table ({"path": FILE, "text":
        COLUMN}; see `repsim describe table`); None: text that ships with the package. With modules: batches (tensors,
        tuples whose first item is the input, dicts), as from a DataLoader, a torch Dataset, or one tensor. With arrays:
        None.
    measures: names of `repsim list measure`, or functions of `register_measure`.
    layers: hook points such as `resid_post` or `mlp_out`, or names or globs of modules; none: the residual stream of
        transformers, and of modules all that have weights and no parts.
    rows: `tokens` (the default for models that share a tokenizer), `words` (for others), or `pooled`: a row per text
        (the default beside stored rows with ids).
    maps: of modules, how outputs with positions become rows: `flattened` or `pooled` (the mean over positions) to a row
        per item, or `positions`, each a row.
    forward: of modules, forward(module, batch) for signatures other than module(batch).
    documents: of arrays and modules, the document of each row, of modules of each item: rows of a document depend on
        each other. Texts are documents themselves, and stored files can hold theirs beside their rows.
    significance: a name of `repsim list significance`. Of arrays and modules it needs `documents`, or the setting
        {"significance.clusters": "row"}: all rows are independent.
    device: of the models and of the similarity.
    batch_size: texts or sequences per forward pass.
    seed: of the sample and the permutations.
    until: the largest standard error of layers of two models: few rows of few texts first, more while it is larger.
        Of measures that have one of a single sample (CKA); models run. None: the usual sample.
    settings: further keys of a run, such as {"extract.sequences": 256}.
    folder: a new or empty folder for the run, with figures and report; None: it lasts as long as the result, and has
        them when it is saved.
    progress: called as progress(items, label=, unit=), gives the items.
    Raises repsim_cli.BadInput for what cannot be compared, before any model runs, and RunFailed for values that are not
    finite; what a module raises on a batch passes through, with a note.
    Example: repsim_cli.compare({"a": "openai-community/gpt2", "b": model}, texts).frame()
    """
    with forget_afterwards():
        given = _label_models(models)
        plain = {"device": device, "batch_size": batch_size, "seed": seed}
        device, batch_size, seed = (_read_plain(key, value) for key, value in plain.items())
        measures, layers = read_names("measures", _register_functions(measures)), read_names("layers", layers)
        check_keys(settings)
        if not given:
            raise BadInput("models: none is named; name two")
        _check_word("rows", rows, ROWS)
        _check_word("maps", maps, get_args(Maps))
        if forward is not None and not callable(forward):
            raise BadInput(f"forward: not callable, got {str(forward)!r:.40}; use lambda module, batch: module(...)")
        kept = _record_module_activations(given, data, layers, forward, maps, documents, batch_size)
        entries = _make_entries(given, kept, documents)
        if kept:
            _check_batches(entries, kept, data)
            data = None

        def compose(settings: Settings, look: Sequence[str] | None = None) -> Any:
            return compose_configuration(
                entries,
                data,
                look or measures,
                rows,
                significance,
                settings,
                () if kept else layers,
                device,
                batch_size,
                seed,
            )

        config = compose(settings)
        if kept:
            _check_clusters(maps, config["significance"]["clusters"])
        checked = validate(config)
        if until is not None:
            checked = choose_sample(make_sampler(settings, compose), check_target(until), progress=progress)
        if checked.keys.dry_run:
            raise BadInput("dry_run: a plan has no result, got true; use repsim compare A B --set dry_run=true")
        return _perform(checked, folder, progress)


def _perform(checked: RunConfig, folder: str | os.PathLike[str] | None, progress: Progress) -> Result:
    """Runs a comparison in a folder, or in one that lasts as long as the result."""
    if folder is not None:
        return Result(perform_in(expand_path(folder), checked, progress, drawn=True))
    scratch = Path(tempfile.mkdtemp(prefix="repsim-"))
    try:
        result = Result(perform_in(scratch / "run", checked, progress, drawn=False))
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    weakref.finalize(result, shutil.rmtree, scratch, ignore_errors=True)
    return result


def _register_functions(given: Any) -> Any:
    """Puts the names of functions of `register_measure` in their places."""
    several = given if isinstance(given, list | tuple) else [given]
    return [_name_function(each) for each in several] if any(map(callable, several)) else given


def _name_function(given: Any) -> Any:
    """The name of a function of `register_measure`. Raises BadInput where another has this name by now."""
    name = getattr(given, NAME, None)
    if name is None:
        if callable(given):
            raise BadInput(
                f"measures: a function without a name, got {given!r:.60}; put @repsim_cli.register_measure('NAME', "
                "larger_is_closer=True) above it, or False"
            )
        return given
    if getattr(registry.measures.get(name).function, "__wrapped__", None) is not given:
        raise BadInput(f"measures: the name of another function, got '{name}'; register yours under a name of its own")
    return name


def _label_models(models: Any) -> dict[str, Any]:
    """The models by label. Raises BadInput for what is neither a list nor a mapping from labels."""
    if isinstance(models, str) or not isinstance(models, Mapping | Sequence):
        raise BadInput(f"models: a list or a mapping, got {str(models)!r:.40}; put it into a list")
    given = dict(models) if isinstance(models, Mapping) else label_entries(models)
    for label in given:
        if not isinstance(label, str) or not label.strip():
            raise BadInput(f"models: a label is text, got {label!r:.60}; write {{'base': ..., 'tuned': ...}}")
    return given


def _make_entries(
    models: Mapping[str, Any], kept: Mapping[str, Precomputed], documents: Sequence[Any] | None
) -> dict[str, Any]:
    """The entries of a configuration, by label. kept: what modules gave. documents: of the rows of what is stored."""
    entries = {label: make_model_entry(label, kept.get(label, model)) for label, model in models.items()}
    if documents is not None:
        stored = [label for label in entries if label not in kept]
        entries |= {label: _add_documents(label, entries[label], documents) for label in stored}
    return entries


def _check_word(key: str, value: str, values: Sequence[str]) -> None:
    if value not in values:
        raise BadInput(f"{key}: unknown, got '{value}'; use {', '.join(values[:-1])} or {values[-1]}")


def _check_clusters(maps: str, clusters: str) -> None:
    """Raises BadInput where the rows of modules are to be independent, and are not."""
    if maps == "positions" and clusters == "row":
        raise BadInput(
            "significance.clusters: positions of one input depend on each other, got row with maps='positions'; "
            "give documents=[...], one of each input, or use maps='pooled' or 'flattened'"
        )


def _read_plain(key: str, value: Any) -> Any:
    """Reads text or a number, which may be of numpy, or a device of torch. Raises BadInput for others."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__module__ == "torch" and key == "device":
        return str(value)
    if value is not None and not isinstance(value, str | int | float):
        raise BadInput(f"{key}: not a plain value, got {value!r:.60}; give text or a number")
    return value


def read_names(key: str, given: Any) -> list[str]:
    """Reads one name, or several. Raises BadInput for what are not names."""
    names = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(name, str) for name in names):
        raise BadInput(f"{key}: not names, got {given!r:.60}; give a list of text")
    return names


def check_keys(settings: Any) -> None:
    if not isinstance(settings, Mapping | list | tuple) or not all(isinstance(key, str) for key in settings):
        raise BadInput(f"settings: not by key, got {settings!r:.60}; write {{'extract.sequences': 256}}")


@contextmanager
def forget_afterwards() -> Any:
    """Forgets, when it ends, the models and texts in memory that were held inside."""
    before = [dict(room.HELD) for room in (models_in_memory, texts_in_memory)]
    try:
        yield
    finally:
        for room, held in zip((models_in_memory, texts_in_memory), before, strict=True):
            room.HELD.clear()
            room.HELD.update(held)


def _record_module_activations(
    models: Mapping[str, Any],
    data: Any,
    layers: Sequence[str],
    forward: Forward | None,
    maps: Any,
    documents: Sequence[Any] | None,
    batch_size: int,
) -> dict[str, Precomputed]:
    """Records the activations of torch modules on batches, by label; empty where no module reads batches.

    Raises BadInput where there are modules and no batches.
    """
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    plain = [model for model in models.values() if isinstance(model, nn.Module) and not is_transformers(model)]
    if not plain and not _are_batches(data):
        return {}
    if isinstance(data, str) or not isinstance(data, Iterable | Dataset):
        got = "" if data is None else f", got {data!r}"
        raise BadInput(f"data: a torch module takes batches{got}; give a DataLoader, or a tensor")
    whole = {label: model[0] if isinstance(model, tuple) else model for label, model in models.items()}
    live = {label: model for label, model in whole.items() if isinstance(model, nn.Module)}
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size)
    if isinstance(data, list | tuple) and any(isinstance(each, DataLoader) for each in data):
        raise BadInput(f"data: one DataLoader, got {len(data)} in a list; give one that has all batches")
    batches = [data] if isinstance(data, Tensor | np.ndarray) else data
    return record_modules(live, batches, layers, forward=forward, maps=maps, documents=documents)


def _add_documents(label: str, entry: dict[str, Any], documents: Sequence[Any]) -> dict[str, str]:
    """The entry of stored rows that belong to these documents. Raises BadInput for a model that runs."""
    stored = bind_model(label, entry)
    if not isinstance(stored, Precomputed):
        raise BadInput(
            f"documents: only arrays and modules take them, got '{label}', whose texts are its documents; drop them"
        )
    told = check_given_documents(documents, stored.rows, f"rows of '{label}'")
    return models_in_memory.hold(replace(stored, documents=told))


def _check_batches(entries: Mapping[str, dict[str, Any]], kept: Collection[str], data: Any) -> None:
    """Raises BadInput for models whose rows are not those of the batches that the modules have read."""
    from torch.utils.data import DataLoader, SequentialSampler

    for label, entry in entries.items():
        if label in kept:
            continue
        if not isinstance(bind_model(label, entry), Precomputed):
            raise BadInput(
                f"models.{label}: a model of texts beside modules, got batches; give arrays of the same rows"
            )
        if isinstance(data, DataLoader) and not isinstance(data.sampler, SequentialSampler):
            raise BadInput(
                f"data: rows of '{label}' are paired with batches in order, got a DataLoader with a "
                f"{type(data.sampler).__name__}; give one with shuffle=False"
            )


def _are_batches(data: Any) -> bool:
    from torch import Tensor
    from torch.utils.data import DataLoader

    return isinstance(data, Tensor | DataLoader)
