"""Comparison from Python: the models and texts of a program, hub ids or folders -> a result with labelled matrices.

A comparison is a run like any other, checked and computed by the same code; its folder is temporary until it is saved.
"""

import base64
import hashlib
import io
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Float
from omegaconf import OmegaConf

from repsim_cli import folders, report, results
from repsim_cli.activations.hook_points import KINDS
from repsim_cli.activations.inputs import share_tokens
from repsim_cli.binding import bind_model
from repsim_cli.config import validate
from repsim_cli.content import Measured, Results
from repsim_cli.data import memory as texts_in_memory
from repsim_cli.data.base import Data
from repsim_cli.errors import BadConfig, BadInput, RepsimError
from repsim_cli.execution import perform
from repsim_cli.findings.analyse import asked, card_of, draw
from repsim_cli.findings.analysis import Finished
from repsim_cli.models import memory as models_in_memory
from repsim_cli.models.memory import Forward, Maps
from repsim_cli.models.source import Precomputed, Source
from repsim_cli.presets import FILES, conf_dir, entries, entry_of, shipped
from repsim_cli.registry import did_you_mean
from repsim_cli.results import Progress, quiet

ROWS = ("auto", "tokens", "words", "pooled")
MEASURES = ("cka_unbiased", "mutual_knn")
SCREEN = 80  # dots per inch of the map in a notebook


class LabelledMatrix(NamedTuple):
    """values[i, j]: of layer rows[i] of one model and layer columns[j] of the other."""

    values: Float[np.ndarray, "r c"]
    rows: list[str]
    columns: list[str]


@dataclass(frozen=True)
class Result:
    """A run folder, read. `results` has all that it found, `manifest` how it came about."""

    folder: Path

    @cached_property
    def results(self) -> Results:
        return results.read_results(self.folder)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return results.read_manifest(self.folder)

    @property
    def measures(self) -> list[str]:
        return [measured.label for measured in self.results.measures]

    @property
    def warnings(self) -> list[str]:
        return list(self.manifest["warnings"])

    def matrix(self, first: str, second: str | None = None, measure: str | None = None) -> LabelledMatrix:
        """Of all layers of two models; of one with itself without `second`; under the first measure by default.

        Raises BadInput for a model or measure that the run does not have.
        """
        second, measured = first if second is None else second, self._measured(measure)
        for matrix in measured.matrices:
            pair = matrix.rows.model, matrix.columns.model
            if pair == (first, second):
                return LabelledMatrix(self._array(matrix.values), matrix.rows.layers, matrix.columns.layers)
            if measured.card["symmetric"] and pair == (second, first):
                return LabelledMatrix(self._array(matrix.values).T, matrix.columns.layers, matrix.rows.layers)
        models = sorted({side.model for matrix in measured.matrices for side in (matrix.rows, matrix.columns)})
        unknown = first if first not in models else second
        raise BadInput(f"no such pair of models, got '{first}' and '{second}'; {did_you_mean(unknown, models)}")

    def _measured(self, label: str | None) -> Measured:
        """The measure of this label, or the first. Raises BadInput where the run does not have it."""
        for measured in self.results.measures:
            if label in (None, measured.label):
                return measured
        raise BadInput(f"measure: not of this run, got '{label}'; {did_you_mean(str(label), self.measures)}")

    def _array(self, path: str) -> np.ndarray:
        return results.read_array(self.folder, path)

    def closest(self, first: str, second: str, measure: str | None = None) -> tuple[str, str, float]:
        """The closest layers of two models, and their value. Raises BadInput as `matrix` does."""
        values, rows, columns = self.matrix(first, second, measure)
        sign = 1 if self._measured(measure).larger_is_closer else -1
        i, j = np.unravel_index(np.nanargmax(sign * values), values.shape)
        return rows[i], columns[j], float(values[i, j])

    def frame(self) -> Any:
        """A pandas DataFrame with a row per measure and pair of layers: value, and se, p, p_family, q and calibrated
        where the run has them."""
        import pandas

        tables = []
        for measured in self.results.measures:
            for matrix in measured.matrices:
                pairs = [(a, b) for a in matrix.rows.layers for b in matrix.columns.layers]
                table = pandas.DataFrame(pairs, columns=["layer", "other_layer"])
                table.insert(0, "measure", measured.label)
                table.insert(1, "model", matrix.rows.model)
                table.insert(3, "other_model", matrix.columns.model)
                table["value"] = self._array(matrix.values).ravel()
                for name in ("se", "p", "p_family", "q", "calibrated"):
                    if (path := getattr(matrix, name)) is not None:
                        table[name] = self._array(path).ravel()
                tables.append(table)
        return pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()

    def plot(self, measure: str | None = None) -> Any:
        """A matplotlib figure: the map of all layers of all models under a measure, by default the first."""
        label = self._measured(measure).label
        run = Finished(
            folder=self.folder, manifest=results.read_facts(self.folder), results=results.marked(self.results)
        )
        make = card_of("maps").figures
        assert make is not None
        names = {name: maker for name, maker in make(run, False)}
        figure = next(maker for name, maker in names.items() if name.startswith(results.slug(label)))()
        figure._repr_png_ = lambda: _png(figure)  # notebooks show by themselves only what pyplot has made
        return figure

    def save(self, folder: str | os.PathLike[str]) -> "Result":
        """Copies the run folder to a new one that every command reads, and draws its figures and report where it has
        none.

        Raises BadInput where that exists.
        """
        target = Path(folder).expanduser()
        if target.exists():
            raise BadInput(f"save: it exists, got '{folder}'; name a new folder")
        shutil.copytree(self.folder, target)
        if not (target / report.FILE).exists():
            with results.amending(target):
                draw(target, whole=asked(target).which == "all")
            report.save([target], target / report.FILE)
        return Result(target)

    def __repr__(self) -> str:
        models = ", ".join(self.manifest["models"])
        return f"<repsim result of {models} by {', '.join(self.measures)}; {len(self.warnings)} warnings>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the means by pair of models, the warnings, and the first map."""
        import html

        frame = self.frame()
        table = ""
        if len(frame):
            means = frame.groupby(["measure", "model", "other_model"], sort=False)["value"].mean()
            table = means.rename("mean over layers").reset_index().to_html(index=False, float_format="%.3f")
        warnings = "".join(f"<li>{html.escape(text)}</li>" for text in self.warnings)
        picture = ""
        if self.measures:
            coded, name = base64.b64encode(_png(self.plot())).decode(), html.escape(self.measures[0])
            picture = f'<img style="max-width:100%" alt="{name}" src="data:image/png;base64,{coded}">'
        return f"{table}{f'<ul>{warnings}</ul>' if warnings else ''}{picture}"


def _png(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=SCREEN, bbox_inches="tight")
    return drawn.getvalue()


def load(run: str | os.PathLike[str]) -> Result:
    """The result of a run folder, its name, or `latest`. Raises BadInput where there is none."""
    folder = folders.find(os.fspath(run))
    results.read_results(folder)
    return Result(folder)


def compare(
    models: Mapping[str, Any] | Sequence[Any],
    data: Any = None,
    *,
    measures: Sequence[str] = MEASURES,
    layers: Sequence[str] = (),
    rows: str = "auto",
    maps: str = "flattened",
    forward: Forward | None = None,
    significance: str = "none",
    device: str = "cpu",
    batch_size: int = 8,
    seed: int = 0,
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
    measures: names of `repsim list measure`.
    layers: hook points such as `resid_post` or `mlp_out`, or names or globs of modules; none: the residual stream of
        transformers, and of modules all that have weights and no parts.
    rows: `tokens` (the default for models that share a tokenizer), `words` (for others), or `pooled`: a row per text.
    maps: of modules, how outputs with positions become rows.
    forward: of modules, forward(module, batch) for signatures other than module(batch).
    significance: a name of `repsim list significance`.
    device: of the models and of the similarity.
    batch_size: texts or sequences per forward pass.
    seed: of the sample and the permutations.
    settings: further keys of a run, such as {"extract.sequences": 256}.
    folder: a new or empty folder for the run, with figures and report; None: it lasts as long as the result, and has
        them when it is saved.
    progress: called as progress(items, label=, unit=), gives the items.
    Raises BadInput for what cannot be compared, before any model runs.
    Example: repsim_cli.compare({"a": "openai-community/gpt2", "b": model}, texts).frame()
    """
    with _held():
        if isinstance(models, str):
            raise BadInput(f"models: a list or a mapping, got '{models}'; write ['{models}']")
        given = dict(models) if isinstance(models, Mapping) else labelled(models)
        measures, layers = ([each] if isinstance(each, str) else each for each in (measures, layers))
        if not given:
            raise BadInput("models: none is named, got {}; name two")
        for key, value, values in (("rows", rows, ROWS), ("maps", maps, get_args(Maps))):
            if value not in values:
                raise BadInput(f"{key}: unknown, got '{value}'; use {', '.join(values[:-1])} or {values[-1]}")
        kept = _modules(given, data, layers, forward, maps, batch_size)
        entries = {label: _entry(label, kept.get(label, model)) for label, model in given.items()}
        if kept:
            _check_batches(entries, kept, data)
            data = None
        config = _config(entries, data, measures, layers, rows, significance, device, batch_size, seed, settings)
        if folder is not None:
            return Result(_performed(Path(folder).expanduser(), config, progress, drawn=True))
        scratch = Path(tempfile.mkdtemp(prefix="repsim-"))
        try:
            result = Result(_performed(scratch / "run", config, progress, drawn=False))
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        weakref.finalize(result, shutil.rmtree, scratch, ignore_errors=True)
        return result


def _performed(folder: Path, config: dict[str, Any], progress: Progress, *, drawn: bool) -> Path:
    """Checks and runs a configuration in a new folder; returns the folder. drawn: with figures and report.

    Raises BadInput, or RunFailed.
    """
    checked = validate(OmegaConf.create(config))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BadInput(f"folder: it exists, got '{folder}'; name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    keys = checked.keys
    run = results.create(folder, name=keys.name, study=keys.study, seed=keys.seed, command=[], overrides=[])
    run.progress = progress
    run.write_text("config.yaml", checked.yaml())
    try:
        perform(checked, run, drawn=drawn)
    except KeyboardInterrupt:
        run.finish("interrupted", "interrupted by the user")
        raise
    except BaseException as error:
        run.finish("failed", str(error) if isinstance(error, RepsimError) else f"{type(error).__name__}: {error}")
        raise
    run.finish("complete")
    if drawn:
        report.save([run.folder], run.folder / report.FILE)
    return run.folder


@contextmanager
def _held() -> Any:
    """What is held in memory inside is let go at the end."""
    before = [dict(room.HELD) for room in (models_in_memory, texts_in_memory)]
    try:
        yield
    finally:
        for room, held in zip((models_in_memory, texts_in_memory), before, strict=True):
            room.HELD.clear()
            room.HELD.update(held)


def labelled(names: Sequence[Any]) -> dict[str, Any]:
    """The names by labels that can be keys: of a path its last part without the suffix of a file, of an object its
    class, numbered where two are the same.

    >>> labelled(["a/gpt2.v2", "b/gpt2.v2", "rows.parquet"])
    {'gpt2_v2': 'a/gpt2.v2', 'gpt2_v2_2': 'b/gpt2.v2', 'rows': 'rows.parquet'}
    """
    by_label: dict[str, Any] = {}
    for name in names:
        text = os.fspath(name) if isinstance(name, str | os.PathLike) else type(name).__name__
        last = text.rstrip("/").split("/")[-1]
        last = next((last.removesuffix(suffix) for suffix in FILES if last.endswith(suffix)), last)
        label = "".join(c if c.isalnum() or c in "-_" else "_" for c in last) or "model"
        by_label[label if label not in by_label else f"{label}_{len(by_label) + 1}"] = name
    return by_label


def _modules(
    models: Mapping[str, Any], data: Any, layers: Sequence[str], forward: Forward | None, maps: Any, batch_size: int
) -> dict[str, Precomputed]:
    """The activations of torch modules on batches, by label; of none where no module reads batches.

    Raises BadInput where there are modules and no batches.
    """
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    plain = [model for model in models.values() if isinstance(model, nn.Module) and not _is_transformers(model)]
    if not plain and not _are_batches(data):
        return {}
    if data is None or isinstance(data, str):
        raise BadInput(f"data: a torch module takes batches, got {data!r}; give a DataLoader, or a tensor")
    whole = {label: model[0] if isinstance(model, tuple) else model for label, model in models.items()}
    live = {label: model for label, model in whole.items() if isinstance(model, nn.Module)}
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size)
    batches = [data] if isinstance(data, Tensor | np.ndarray) else data
    return models_in_memory.of_modules(live, batches, layers, forward=forward, maps=maps)


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


def _is_transformers(model: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(model[0] if isinstance(model, tuple) and model else model, PreTrainedModel)


def _are_batches(data: Any) -> bool:
    from torch import Tensor
    from torch.utils.data import DataLoader

    return isinstance(data, Tensor | DataLoader)


def _entry(label: str, model: Any) -> dict[str, Any]:
    """The entry of a configuration for a model. Raises BadInput for what is none."""
    from torch import Tensor

    try:
        if isinstance(model, str | os.PathLike):
            return dict(entry_of(os.fspath(model)))
        if isinstance(model, Precomputed | Source):
            return models_in_memory.hold(model)
        if _is_transformers(model):
            parts = model if isinstance(model, tuple) else (model,)
            return models_in_memory.hold(models_in_memory.of_transformers(*parts))
        if isinstance(model, np.ndarray | Tensor):
            model = {"rows": model}
        if isinstance(model, Mapping) and isinstance(model.get("kind"), str):
            return dict(model)
        if isinstance(model, Mapping):
            return models_in_memory.hold(models_in_memory.of_arrays(model))
    except BadConfig:
        raise
    except BadInput as error:
        raise BadInput(f"models.{label}: {error}") from None
    raise BadInput(
        f"models.{label}: not a model, got {type(model).__name__}; give a folder, a hub id, a transformers model, a "
        "torch module or arrays"
    )


def _data(given: Any) -> dict[str, Any]:
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
        file = conf_dir() / "data" / f"{name}.yaml"
        if file.is_file():
            return shipped(file)
        place = Path(name).expanduser()
        if place.exists():
            tabular = place.is_dir() or place.suffix in (".csv", ".tsv")
            return {"kind": "table" if tabular else "local_text", "path": name}
        if name.count("/") == 1 and not name.startswith((".", "~", "/")) and not place.suffix:
            return {"kind": "table", "path": name}
        names = [each.stem for each in (conf_dir() / "data").glob("*.yaml")]
        raise BadInput(f"data: neither a file nor a data set, got '{name}'; {did_you_mean(name, names)}")
    if columns is not None:
        if "text" not in columns:
            raise BadInput(f"data: no column 'text', got {', '.join(map(str, columns))}; rename one")
        given = given["text"]
    items = list(given) if isinstance(given, Iterable) else []
    held: Data
    if items and all(isinstance(item, str) for item in items):
        held = texts_in_memory.texts(items)
    elif items and all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        held = texts_in_memory.labelled([(str(text), str(label)) for text, label in items])
    else:
        raise BadInput(f"data: neither texts nor (text, label) pairs, got {type(given).__name__}; give a list of texts")
    key = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    return texts_in_memory.hold(key, held)


def _config(
    models: dict[str, Any],
    data: Any,
    measures: Sequence[str],
    layers: Sequence[str],
    rows: str,
    significance: str,
    device: str,
    batch_size: int,
    seed: int,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """A whole configuration, with the defaults of the command line."""
    bound = {label: bind_model(label, entry) for label, entry in models.items()}
    stored = [label for label, model in bound.items() if isinstance(model, Precomputed)]
    known = entries("measure")
    for name in measures:
        if name not in known:
            raise BadInput(f"measures: no such measure, got '{name}'; {did_you_mean(name, known)}")
    unit = _unit(bound, rows)
    extract = shipped(conf_dir() / "extract" / f"{unit}.yaml")
    if len(stored) == len(bound):
        for key, value, none in (("data", data, None), ("rows", rows, "auto")):
            if value != none:
                raise BadInput(f"{key}: of models that run, got {str(value)!r:.60} with stored activations; drop it")
        extract |= {"estimate": "full", "rows": min(model.rows for model in bound.values())}
        extract["at_most"] = [] if "extract.rows" in settings else ["rows"]  # ids may be in one file alone
    elif layers:
        extract["hook_points"] = [_hook_point(name) for name in layers]
    config = {
        key: value for key, value in shipped(conf_dir() / "config.yaml").items() if key not in ("defaults", "hydra")
    }
    config |= {
        "name": "compare",
        "model": models,
        "measure": {name: dict(known[name]) for name in measures},
        "data": _data(data),
        "extract": extract,
        "significance": shipped(_preset("significance", significance)),
        "hardware": {**shipped(conf_dir() / "hardware" / "cpu.yaml"), "device": device, "batch_size": batch_size},
        "seed": seed,
        "cache": not stored,
    }
    for key, value in settings.items():
        *path, last = key.split(".")
        place = config
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise BadInput(f"settings: no such key of a run, got '{key}'; see repsim describe")
        place[last] = value
    return config


def _unit(bound: Mapping[str, Any], rows: str) -> str:
    """The name of the preset in conf/extract/."""
    if rows != "auto":
        return rows
    live = {label: model for label, model in bound.items() if isinstance(model, Source) and model.modality == "text"}
    return "tokens" if share_tokens(live) else "words"


def _hook_point(name: str) -> str:
    kind = name.split("@")[0].split(".")[-1]
    return name if kind in KINDS or name.startswith("module:") else f"module:{name}"


def _preset(group: str, name: str) -> Path:
    file = conf_dir() / group / f"{name}.yaml"
    if not file.is_file():
        names = [each.stem for each in (conf_dir() / group).glob("*.yaml")]
        raise BadInput(f"{group}: no such name, got '{name}'; {did_you_mean(name, names)}")
    return file
