"""`repsim compare`: the layers of two models, in a new run; `repsim diff`: the numbers of two runs."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repsim_cli.base import signals
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.files import expand_path, explain
from repsim_cli.base.registry import did_you_mean
from repsim_cli.cli.answer import answer
from repsim_cli.cli.follow import Watching
from repsim_cli.cli.job import RunJob, perform, plan_job
from repsim_cli.cli.machine import build_run_json, say_json
from repsim_cli.cli.plan import plan_in_short
from repsim_cli.cli.show import summarise_run
from repsim_cli.cli.terminal import QUIET, Bar, check_torch, is_quiet, say
from repsim_cli.config.presets import FILES, find_model_entry, read_table_entries
from repsim_cli.runs import cache, folders, reader, results

if TYPE_CHECKING:
    from repsim_cli.api.until import Settings
    from repsim_cli.report.differences import PairDifference, RunInputs


def compare_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim compare`: two models become a run, and its answer a few lines. Gives 1 where the run failed."""
    if parsed.quiet:
        os.environ[QUIET] = "1"
    _check_models(parsed.first, parsed.second)
    check_torch()
    from datetime import datetime

    from repsim_cli.api.entries import label_entries
    from repsim_cli.api.until import choose_sample, make_sampler, plan_samples, read_target
    from repsim_cli.config.run import validate

    if parsed.column is not None and not parsed.data:
        raise BadInput(f"--column: only for a table, got '{parsed.column}' without one; name the table with --data")
    models = label_entries([parsed.first, parsed.second], parsed.names.split(",") if parsed.names else None)
    words = [*parsed.set, *(["significance.budget=true"] if parsed.budget else [])]
    compose = partial(_compose_comparison, parsed, models)
    target, make, lines = None, None, list[str]()
    if parsed.until is None:
        checked = validate(compose(words))
    else:
        target, make = read_target(parsed.until), make_sampler(words, compose)
        checked, line = plan_samples(make)
        lines.append(line)
    if checked.keys.dry_run:
        if parsed.json:
            raise BadInput("--json: only for a run, got dry_run=true; drop one of them")
        say(*plan_job(checked), *lines)
        return 0
    tell = partial(say, aside=True) if not is_quiet() else lambda line: None
    for line in (plan_in_short(checked.plan()), *lines):
        tell(line)
    results.check_root()
    cache.find_cache_folder()
    now = datetime.now()
    place = results.take_unused(results.find_outputs_root() / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-compare")
    try:
        with signals.interruptible():
            if target and make:
                checked = choose_sample(make, target, tell=tell, progress=Bar())
                tell(plan_in_short(checked.plan()))
            status, folder = perform(RunJob(checked, place, words), Watching)
    except OSError as error:  # of a run that had started
        raise RunFailed(explain(error)) from error
    finally:
        results.drop_empty(place)
    if folder is None:  # it failed, or is complete already
        return int(status != "complete")
    if parsed.json:
        say_json("compare", build_run_json(folder))
    elif not is_quiet():
        families = list(reader.read_manifest(folder)["models"]) != list(models)
        say(*(summarise_run(folder) if families else answer(folder, *models)))
    return 0


def _compose_comparison(
    parsed: argparse.Namespace, models: Mapping[str, Any], settings: "Settings", look: Sequence[str] | None = None
) -> Any:
    """Composes the configuration of the comparison that was asked for.

    models: by label. settings: in words, or by key. look: measures in place of its own.
    """
    from repsim_cli.api.entries import MEASURES, compose_configuration, make_model_entry

    own = [name.strip() for name in parsed.measure.split(",")] if parsed.measure else MEASURES
    return compose_configuration(
        {label: make_model_entry(label, model) for label, model in models.items()},
        {"path": parsed.data, "text": parsed.column} if parsed.column is not None else parsed.data,
        measures=look or own,
        rows=parsed.rows,
        significance=parsed.significance,
        settings=settings,
    )


def _check_models(*names: str) -> None:
    """Raises BadInput for runs, which `diff` compares, and for what is nothing at all."""
    runs = [name for name in names if name not in read_table_entries("model") and _can_find(folders.find, name)]
    models = [name for name in names if name not in runs and (Path(name).exists() or _can_find(find_model_entry, name))]
    if runs and models:
        raise BadInput(
            f"compare: a run and a model cannot be compared, got the run '{runs[0]}' and the model '{models[0]}'; give "
            "two models, or two runs to repsim diff"
        )
    if runs:
        raise BadInput(f"compare: only for models, got the run '{runs[0]}'; use repsim diff {' '.join(names)}")
    if not models:
        raise BadInput(
            f"compare: neither a run nor a model, got '{names[0]}'; "
            f"{did_you_mean(names[0], read_table_entries('model'))} "
            "See repsim list run and repsim list model"
        )
    for name in names:
        if name not in models:
            find_model_entry(name)  # which says what is near


def _can_find(find: Callable[[str], Any], name: str) -> bool:
    try:
        find(name)
    except BadInput:
        return False
    return True


def _run(name: str) -> Path:
    """The folder of a run. Raises BadInput, which says so where the name is that of a model."""
    place = Path(name)
    try:
        return folders.find(name)
    except BadInput:
        if name in read_table_entries("model") or place.suffix.lower() in FILES or (place / "config.json").is_file():
            raise BadInput(f"diff: only for runs, got the model '{name}'; use repsim compare MODEL MODEL") from None
        raise


def diff_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim diff`: what differs between two runs, in what went in and in what came out."""
    from repsim_cli.report import differences as comparison

    first, second = _run(parsed.first), _run(parsed.second)
    if first.resolve() == second.resolve():
        name = reader.read_manifest(first)["name"]
        others = [f for f in folders.list_run_folders(results.find_outputs_root()) if f.resolve() != first.resolve()]
        same = [folder for folder in others if reader.read_manifest(folder)["name"] == name]
        hint = f"the run of this name before it is {same[-1]}" if same else "see repsim list run"
        raise BadInput(f"RUN: two different runs are needed, got {first} twice; {hint}")
    differences, unmatched = comparison.compare_runs(first, second)
    if parsed.output:
        expand_path(parsed.output).mkdir(parents=True, exist_ok=True)
    given = comparison.find_input_differences(first, second)
    record = {
        "first": str(first),
        "second": str(second),
        "texts": [{"first": a, "second": b} for a, b in given.texts],
        "models": given.models,
        "settings": {key: {"first": a, "second": b} for key, (a, b) in given.settings.items()},
        "differences": comparison.tabulate_differences(differences),
        "not_compared": unmatched,
    }
    if parsed.json:
        say_json("diff", record)
    else:
        say(f"{second} minus {first}", *_list_differences(given), *_write_difference_lines(differences))
        say(*(f"  not compared: {line}" for line in unmatched))
    if parsed.output:
        from repsim_cli.figures.frame import save

        folder = expand_path(parsed.output)
        results.write(folder / "comparison.json", results.dumps(record).encode())
        for file in save(folder, list(comparison.draw_figures(differences, (first.name, second.name))), Bar()):
            if file.suffix == ".png" and not parsed.json:
                say(str(file))
    return 0


def _list_differences(given: "RunInputs") -> Iterator[str]:
    """Lists what two runs rest on that is not the same: texts, models, settings; before any number is subtracted.
    Names last what is the same, if anything is.
    """
    yield from (f"  other texts: {a} | {b}; differences are of the texts too" for a, b in given.texts)
    yield from (f"  model {label}: {how}" for label, how in given.models.items())
    if given.settings:
        yield "  settings, first | second:"
        yield from (f"    {key}: {a} | {b}" for key, (a, b) in given.settings.items())
    same = [word for word, other in zip(("settings", "texts", "models"), given, strict=True) if not other]
    if same:
        yield f"  the same {', '.join(same)}"


def _write_difference_lines(differences: Sequence["PairDifference"]) -> Iterator[str]:
    """A line per measure and pair of models: the largest, with its sign, and the mean size, in units and in standard
    errors."""
    width = max(len(f"{d.rows} x {d.columns}") for d in differences)
    for d in differences:
        units = d.in_errors
        own, median = d.largest_in_errors, "" if units is None else f" (median {np.median(units):.2g} se)"
        largest = "" if own is None else f" ({own:.2g} se)"
        where = f" at {d.where[0]} x {d.where[1]}" if d.largest else ""
        yield (
            f"  {d.measure:16}  {f'{d.rows} x {d.columns}':{width}}  largest {d.signed:9.3g}{largest}   "
            f"mean size {d.mean:9.3g}{median}   {d.known.size} cells{where}"
        )
    if any(d.in_errors is not None for d in differences):
        yield "  se: standard errors of both runs, as if they were independent; of the same texts a difference has less"
    else:
        yield "  no standard errors: a single sample has none without significance.jackknife=true"
