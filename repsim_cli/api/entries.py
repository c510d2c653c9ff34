"""What a program gives (models, texts, names of measures) -> the configuration of a run."""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repsim_cli.activations.hook_points import KINDS
from repsim_cli.activations.inputs import share_tokens
from repsim_cli.base import registry
from repsim_cli.base.documents import find_interpolation
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.planning import use_known
from repsim_cli.base.registry import did_you_mean
from repsim_cli.config.binding import MISSING, bind_model
from repsim_cli.config.compose import compose, store_primary_config
from repsim_cli.config.presets import FILES, find_conf_folder, find_model_entry, read_shipped, read_table_entries
from repsim_cli.config.words import convert_to_overrides, set_key, spread_groups
from repsim_cli.data import memory as texts_in_memory
from repsim_cli.data.base import Data
from repsim_cli.data.text import SUFFIXES as TEXTS
from repsim_cli.data.text import TABLES
from repsim_cli.models import memory as models_in_memory
from repsim_cli.models.source import Precomputed, PrecomputedIds, Source

MEASURES = ("cka_unbiased", "mutual_knn")  # the default
# what turns texts into rows
READ_FROM_TEXT = [
    *("hook_points", "layers", "unit", "piece", "padding", "length", "long", "sequences", "pool", "separator"),
    *("skip_tokens", "keep_texts"),
]
OF_RUNNING = re.compile(rf"data(\..*)?|extract(\.({'|'.join(READ_FROM_TEXT)}))?")


def label_entries(names: Sequence[Any], labels: Sequence[str] | None = None) -> dict[str, Any]:
    """The names by labels that can be keys: the given ones, or of a path its last part without the suffix of a file, of
    an object its class. Of paths with the same last part the last part that differs; what is the same is numbered.

    Raises BadInput for labels that are not one each, or not letters, digits, `-` and `_`.

    >>> label_entries(["a/gpt2.v2", "b/gpt2.v2", "rows.parquet"])
    {'a': 'a/gpt2.v2', 'b': 'b/gpt2.v2', 'rows': 'rows.parquet'}
    >>> list(label_entries(["tiny_a", "tiny_a"])), list(label_entries(["x/y", "y"], ["old", "new"]))
    (['tiny_a', 'tiny_a_2'], ['old', 'new'])
    >>> list(label_entries(["m", "m_3", "m"]))
    ['m', 'm_3', 'm_4']
    """
    if labels is not None:
        given = [label.strip() for label in labels]
        if not len(given) == len(set(given)) == len(names) or any(
            not label or label != _make_label_key(label) for label in given
        ):
            raise BadInput(
                f"names: {len(names)} different ones are needed, got '{','.join(labels)}'; write them with letters, "
                "digits, - and _"
            )
        return dict(zip(given, names, strict=True))
    parts = [_split_path_parts(name) for name in names]
    by_label: dict[str, Any] = {}
    for name, own in zip(names, parts, strict=True):
        alike = [other for other in parts if other[-1:] == own[-1:] and other != own]
        depth = next((i for i in range(1, len(own) + 1) if all(other[-i:][:1] != own[-i:][:1] for other in alike)), 1)
        label = _make_label_key(own[-depth]) if own else "model"
        numbered = (f"{label}_{i}" for i in itertools.count(len(by_label) + 1))
        by_label[next(each for each in itertools.chain([label], numbered) if each not in by_label)] = name
    return by_label


def _split_path_parts(name: Any) -> list[str]:
    """The parts of a path, the last without the suffix of a file; the class of an object."""
    if not isinstance(name, str | os.PathLike):
        return [type(name).__name__]
    text = os.fspath(name)
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        parts = [*Path(text).resolve().parts[1:]]
    last = parts[-1] if parts else ""
    return [*parts[:-1], Path(last).stem if last.lower().endswith(FILES) else last]


def _make_label_key(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text) or "model"


def is_transformers(model: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(model[0] if isinstance(model, tuple) and model else model, PreTrainedModel)


def make_model_entry(label: str, model: Any) -> dict[str, Any]:
    """The entry of a configuration for a model. Raises BadInput for what is none."""
    if isinstance(model, str | os.PathLike):
        return dict(find_model_entry(os.fspath(model), f"models.{label}"))
    try:
        if isinstance(model, Precomputed | Source):
            return models_in_memory.hold(model)
        if is_transformers(model):
            parts = model if isinstance(model, tuple) else (model,)
            return models_in_memory.hold(models_in_memory.wrap_transformers(*parts))
        if _are_rows(model):
            model = {"rows": model}
        if isinstance(model, Mapping) and isinstance(model.get("kind"), str):
            return dict(model)
        if isinstance(model, Mapping):
            return models_in_memory.hold(models_in_memory.wrap_arrays(model))
    except BadConfig:
        raise
    except BadInput as error:
        raise BadInput(f"models.{label}: {error}") from None
    raise BadInput(
        f"models.{label}: not a model, got {type(model).__name__}; give a folder, a hub id, a transformers model, a "
        "torch module or arrays"
    )


def _are_rows(model: Any) -> bool:
    """Says whether a model is given as rows: an array, a tensor, a table, or a list of rows."""
    if isinstance(model, list | tuple) and model:
        return isinstance(model[0], list | tuple) or hasattr(model[0], "__array__")
    return hasattr(model, "__array__") or hasattr(model, "toarray")


def make_data_entry(given: Any) -> dict[str, Any]:
    """The entry of a configuration for texts. Raises BadInput for what is none."""
    if given is None:
        given = "embedded"
    # of datasets and pandas, where an iteration would give rows or names of columns
    columns = getattr(given, "column_names", getattr(given, "columns", None))
    if isinstance(columns, Mapping):
        raise BadInput(f"data: several splits, got {', '.join(map(str, columns))}; give one of them")
    if isinstance(given, Mapping):
        return {"kind": "table", **given}
    if isinstance(given, str | os.PathLike):
        name = os.fspath(given)
        file = find_conf_folder() / "data" / f"{name}.yaml"
        if file.is_file():
            return read_shipped(file)
        place = expand_path(name)
        if place.exists():
            return _make_file_entry(name, place)
        if name.count("/") == 1 and not name.startswith((".", "~", "/")) and not place.suffix:
            return {"kind": "table", "path": name}
        names = [each.stem for each in (find_conf_folder() / "data").glob("*.yaml")]
        raise BadInput(f"data: neither a file nor a data set, got '{name}'; {did_you_mean(name, names)}")
    if columns is not None:
        if "text" not in columns:
            raise BadInput(f"data: no column 'text', got {', '.join(map(str, columns))}; rename one")
        given = given["text"]
    items = list(given) if isinstance(given, Iterable) else []
    held: Data
    if items and all(isinstance(item, str) for item in items):
        held = texts_in_memory.wrap_texts(items)
    elif items and all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        held = texts_in_memory.label_texts([(str(text), str(label)) for text, label in items])
    else:
        odd = next((type(item).__name__ for item in items if not isinstance(item, str | tuple | list)), "no text")
        got = f"{type(given).__name__} of {odd}" if isinstance(given, Iterable) else type(given).__name__
        raise BadInput(f"data: neither texts nor (text, label) pairs, got {got}; give a list of texts")
    key = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    return texts_in_memory.hold(key, held)


def _make_file_entry(name: str, place: Path) -> dict[str, str]:
    """The entry for a file or folder. Raises BadInput for a file of another kind."""
    if place.is_file() and not name.endswith(known := (*TEXTS, *TABLES)):
        raise BadInput(f"data: unknown kind of file, got '{name}'; use {', '.join(known)}")
    tabular = place.is_dir() or place.suffix in TABLES
    return {"kind": "table" if tabular else "local_text", "path": name}


def compose_configuration(  # noqa: PLR0913 - the public interface
    models: dict[str, Any],
    data: Any,
    measures: Sequence[str],
    rows: str,
    significance: str,
    settings: Mapping[str, Any] | Sequence[str],
    layers: Sequence[str] = (),
    device: str = "cpu",
    batch_size: int = 8,
    seed: int = 0,
) -> Any:
    """A whole configuration, as `compose` gives it, with the defaults of the command line. settings: by key, or words
    KEY=VALUE."""
    settings = spread_groups(settings) if isinstance(settings, Mapping) else settings
    given = dict(settings) if isinstance(settings, Mapping) else _read_given(settings)
    words = _list_overrides(settings)
    keys = [re.split("[=@]", word.lstrip("+~"))[0] for word in words]
    _check_given_once(
        given,
        {
            "data": (data, None, ["data", *_list_data_keys(data)]),
            "measures": ([*measures], [*MEASURES], ["measure"]),
            "rows": (rows, "auto", ["extract"]),
            "significance": (significance, "none", ["significance", "significance.method"]),
            "layers": ([*layers], [], ["extract.hook_points"]),
            "device": (device, "cpu", ["hardware.device"]),
            "batch_size": (batch_size, 8, ["hardware.batch_size"]),
            "seed": (seed, 0, ["seed"]),
        },
    )
    _check_names_once(measures=measures, layers=layers)
    with use_known("cache" not in keys):
        bound = {label: bind_model(label, entry) for label, entry in models.items()}
    stored = [label for label, model in bound.items() if isinstance(model, Precomputed)]
    computed = _make_measure_entries(measures)
    _check_keys(keys)
    extract: dict[str, Any] = {}
    if len(stored) == len(bound):
        _check_stored(given, data, rows, layers)
        extract = {"estimate": "full", "rows": min(model.rows for model in bound.values())}
        extract["at_most"] = [] if "extract.rows" in keys else ["rows"]  # ids may be in one file alone
    elif layers:
        extract["hook_points"] = [_name_hook_point(name) for name in layers]
    with use_known("cache" not in keys):
        preset = _choose_extract_preset(bound, rows)
    presets = {"extract": preset, "significance": significance, "hardware": "cpu"}
    own = read_shipped(find_conf_folder() / "config.yaml")
    config = {key: value for key, value in own.items() if key not in ("defaults", "hydra")} | {
        "name": "compare",
        "model": models,
        "measure": computed,
        "data": make_data_entry(data),
        "extract": extract,
        "hardware": {"device": device, "batch_size": batch_size},
        "seed": seed,
        "cache": not stored,
    }
    if text := find_interpolation([config, words, presets]):
        raise BadInput(f"settings, data, models: ${{...}} is not replaced here, got '{text}'; give its value")
    (made,) = compose(words, store_primary_config(config, words, presets))
    return made


def _list_overrides(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """The settings as words that Hydra takes."""
    by_key = settings.items() if isinstance(settings, Mapping) else ()
    words = [word for key, value in by_key for word in set_key(key, value)]
    return words or [part for word in settings for part in convert_to_overrides(word)]


def _make_measure_entries(names: Sequence[str]) -> dict[str, Any]:
    """The entries of measures. Raises BadInput for an unknown name."""
    known = {name: {"kind": name} for name in registry.measures.list_added()} | read_table_entries("measure")
    for name in names:
        if name not in known:
            raise BadInput(f"measures: no such measure, got '{name}'; {did_you_mean(name, known)}")
    return {name: dict(known[name]) for name in names}


def _check_keys(keys: Iterable[str]) -> None:
    """Raises BadInput for keys that choose what a comparison is."""
    for key in keys:
        if other := re.match(r"(hydra|experiment|model$)\b", key):
            raise BadInput(f"{other[0]}: unknown key of a comparison, got '{key}'; use repsim run")


def _check_names_once(**lists: Sequence[str]) -> None:
    for key, names in lists.items():
        if len({*names}) < len(names):
            raise BadInput(f"{key}: not distinct, got {', '.join(names)}; name each once")


def _check_stored(given: Mapping[str, Any], data: Any, rows: str, layers: Sequence[str]) -> None:
    """Raises BadInput for what only models that run take, where all rows are stored."""
    asked = {"data": data, "rows": None if rows == "auto" else rows, "layers": ",".join(layers) or None}
    for key, value in (asked | {key: value for key, value in given.items() if OF_RUNNING.fullmatch(key)}).items():
        if value is not None:
            raise BadInput(f"{key}: only models that run take it, got {str(value)!r:.60} with stored rows; drop it")


def _list_data_keys(data: Any) -> list[str]:
    """Lists the settings of what is given as data: a file has its path, the name of a data set has none."""
    if isinstance(data, Mapping):
        return [f"data.{key}" for key in data]
    named = isinstance(data, str) and make_data_entry(data).get("path", MISSING) == MISSING
    return [] if named else ["data.path"]


def _read_given(words: Sequence[str]) -> dict[str, str]:
    """Reads the values of words KEY=VALUE. Raises BadInput where a key is given twice."""
    given: dict[str, str] = {}
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if key in given:
            raise BadInput(f"{key}: given twice, got {given[key]} and {value}; give it once")
        given[key] = value
    return given


def _check_given_once(given: Mapping[str, Any], asked: Mapping[str, tuple[Any, Any, Sequence[str]]]) -> None:
    """Raises BadInput where a setting says what an argument says too. asked: by argument, its value, its default and
    the keys of its settings."""
    for name, (value, default, keys) in asked.items():
        other = next((key for key in keys if key in given), None)
        if other is not None and value != default:
            raise BadInput(f"{name}: given twice, got {str(value)!r:.60} and {other}={given[other]}; give one of them")


def _choose_extract_preset(bound: Mapping[str, Any], rows: str) -> str:
    """The name of the preset in conf/extract/."""
    if rows != "auto":
        return rows
    live = {label: model for label, model in bound.items() if isinstance(model, Source) and model.modality == "text"}
    if live and any(isinstance(model, PrecomputedIds) for model in bound.values()):
        return "pooled"  # the ids are those of examples
    return "tokens" if share_tokens(live) else "words"


def _name_hook_point(name: str) -> str:
    kind = name.split("@")[0].split(".")[-1]
    return name if kind in KINDS or name.startswith("module:") else f"module:{name}"
