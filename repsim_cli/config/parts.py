"""The models, measures and groups of a configuration, as its study takes them."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput, Unreachable
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.schemas import Fields, attempt
from repsim_cli.base.settings import Group, Ranked, Significance
from repsim_cli.config.binding import bind, bind_component, wrap_model_function
from repsim_cli.config.presets import find_conf_folder

ALL = "all"


def bind_models(problems: list[str], plain: Fields, unreached: dict[str, Unreachable]) -> dict[str, Any]:
    """The model entries, bound; those that need the hub while it cannot be reached are noted with the error instead."""
    from repsim_cli.models.source import Series

    bound: dict[str, Any] = {}
    for label, entry in plain["model"].items():
        try:
            model = bind_component(problems, f"model.{label}", entry, registry.models, wrap_model_function)
            if isinstance(model, Series) and not model.local and model.make is None:
                model.checkpoints[-1].open()
            bound[label] = model
        except Unreachable as error:
            unreached[label] = error
    return bound


def say_unreachable(unreached: Mapping[str, Unreachable], entries: Mapping[str, Fields], name: str) -> Iterator[str]:
    """Says what cannot be had from the hub: bases of adapters, and models. name: of the run."""
    adapters = {label: entries[label]["path"] for label in unreached if entries[label].get("path") is not None}
    for label, adapter in adapters.items():
        yield (
            f"model.{label}: the base of an adapter cannot be reached ({unreached[label].reason}), got "
            f"{unreached[label].what}; connect, or download it and give {{kind: transformers, path: FOLDER, adapter: "
            f"{adapter}}}"
        )
    models = {label: lack for label, lack in unreached.items() if label not in adapters}
    if not models:
        return
    label, error = next(iter(models.items()))
    key = "folder" if entries[label]["kind"] == "series" else "path"
    folder = "FOLDER_{number}" if "{number}" in str(entries[label].get("hub")) else "FOLDER"
    yield (
        f"model: the hub cannot be reached ({error.reason}), got models of it: "
        f"{', '.join(f'{label} ({lack.what})' for label, lack in models.items())}; connect, or download them and "
        f"set model.{label}.hub=null model.{label}.{key}={folder} (files in the hub's cache are used as they are)"
        f"{_suggest_offline_run(name)}"
    )


def _suggest_offline_run(name: str) -> str:
    """Names the tiny form of the experiment that gave a run its name, where there is one, and the dry run."""
    tiny = "/" not in name and (find_conf_folder() / "experiment" / "tiny" / f"{name}.yaml").is_file()
    return f"; experiment=tiny/{name} needs no network, and dry_run=true plans this one" if tiny else ""


def find_misplaced(name: str, study: Any, models: Mapping[str, Any]) -> Iterator[str]:
    """Finds series of checkpoints where a study takes models, and models where it takes series."""
    from repsim_cli.models.source import Series

    for label, model in models.items():
        if isinstance(model, Series) and not study.takes_series:
            yield (
                f"model.{label}: the study {name} takes single models, got a series of {len(model.checkpoints)} "
                "checkpoints; give one of them as kind: transformers, or use the study convergence or effective_rank"
            )
        elif model is not None and not isinstance(model, Series) and study.takes_series:
            yield (
                f"model.{label}: the study {name} takes series of checkpoints, got a single model; "
                "give {kind: series, folder: DIR, pattern: 'step{step}'}"
            )


def say_unread_points(name: str, study: Any, entries: Mapping[str, Fields]) -> Iterator[str]:
    """Says which models have hook points of their own where a study reads the same ones of all."""
    if "extract" in inspect.signature(study).parameters and not study.fixed_points:
        return
    for label, entry in entries.items():
        if isinstance(entry, dict) and entry.get("hook_points"):
            yield (
                f"model.{label}.hook_points: the study {name} reads the same of every model, got "
                f"{entry['hook_points']}; drop it"
            )


# settings of significance that are read with these methods alone
TESTED = {
    **dict.fromkeys(("permutations", "order"), ("permutation",)),
    **dict.fromkeys(("family", "family_of", "alpha"), ("permutation", "closed_form")),
}


def say_untested(significance: Significance | None) -> Iterator[str]:
    """Says which settings of a test are given where there is none that reads them."""
    for key, methods in TESTED.items():
        value = getattr(significance, key, None)
        if significance is not None and significance.method not in methods and value != getattr(Significance, key):
            yield (
                f"significance.{key}: only for significance.method={' or '.join(methods)}, got {value} with "
                f"{significance.method}, which does not read it; set significance={methods[0]}, or leave it out"
            )


def expand_all_measures(chosen: Any, study: Any) -> Any:
    """The measures of the configuration: `kind: all` stands for all that read what the study reads, with their
    defaults; another entry of the same name replaces its default."""
    if not isinstance(chosen, dict) or {"kind": ALL} not in chosen.values():
        return chosen
    from repsim_cli import measures

    def defaults(name: str) -> Fields:
        parameters = inspect.signature(registry.measures.get(name).function).parameters
        return {"kind": name, **{key: parameter.default for key, parameter in parameters.items()}}

    others = {label: entry for label, entry in chosen.items() if entry != {"kind": ALL}}
    return {name: defaults(name) for name in measures.names(study.reads)} | others


def expand_value_lists(chosen: Any) -> Any:
    """Repeats each measure that has a list in place of a number for each of its values, which end the labels."""
    if not isinstance(chosen, dict):
        return chosen
    found: Fields = {}
    for label, entry in chosen.items():
        lists = [key for key, value in entry.items() if isinstance(value, list)] if isinstance(entry, dict) else []
        if len(lists) > 1:
            raise BadConfig([f"measure.{label}: several lists, got {', '.join(lists)}; give one number a list"])
        for key in lists:
            if not entry[key]:
                raise BadConfig([f"measure.{label}.{key}: an empty list; give numbers, or one"])
            found |= {f"{label}_{key}{value}": {**entry, key: value} for value in entry[key]}
        if not lists:
            found[label] = entry
    return found


def select_runnable(problems: list[str], plain: Fields, study: Any, skip: bool) -> tuple[Fields, dict[str, str]]:
    """The measures that the study can run here, and by label why it cannot run the others: they read something else, or
    need a package that is not installed."""
    from repsim_cli import measures
    from repsim_cli.engine.checks import select_suitable

    if "measure" not in inspect.signature(study).parameters:
        return {}, {}
    reads = study.reads
    advice = {
        "activations": "select e.g. measure=[cka_unbiased], or the study attention (experiment=ptb_attention)",
        "attention": "select e.g. measure=[attention_js], or the study similarity",
    }

    def check(entry: Any) -> None:
        if not isinstance(entry, dict) or entry.get("kind") not in registry.measures.names():
            return  # a problem of the entry itself
        card = measures.card(entry["kind"])
        if card.reads != reads:
            raise BadInput(
                f"measure: the study {plain['study']} compares {reads}, got {entry['kind']}, a measure of "
                f"{card.reads}; {advice[reads]}"
            )
        measures.check_package(entry["kind"])

    return attempt(problems, "", lambda: select_suitable(plain["measure"], check, skip)) or ({}, {})


def _bind_groups(problems: list[str], given: Any, labels: Sequence[str]) -> dict[str, Group] | None:
    """The groups by name, after a check that their models exist and are in a single group each."""
    if not isinstance(given, dict):
        return None
    groups: dict[str, Group] = {}
    of: dict[str, str] = {}
    for name, members in given.items():
        path = f"groups.{name}"
        if isinstance(members, dict):
            ranked = bind(problems, path, Ranked, members)
            if ranked is not None:
                groups[name] = ranked
            continue
        if not isinstance(members, list):  # a problem of the run's keys already
            continue
        groups[name] = members
        if len(members) < 2:
            problems.append(f"{path}: a group needs 2 models, got {len(members)}; name more")
        for label in members:
            _check_label(problems, path, label, labels)
            if label in of:
                problems.append(
                    f"{path}: a model is in one group only, got '{label}', which is in {of[label]}; drop it"
                )
            of[label] = name
    for by in dict.fromkeys(group.by for group in groups.values() if isinstance(group, Ranked)):
        asked = sum((g.top or 0) + (g.bottom or 0) for g in groups.values() if isinstance(g, Ranked) and g.by == by)
        if asked > len(labels):
            problems.append(f"groups: {asked} models are asked for by {by}, got {len(labels)} models; ask for fewer")
    return groups or None


def _check_base(problems: list[str], given: Any, labels: Sequence[str]) -> str | None:
    if not isinstance(given, str):  # a problem of the run's keys already, unless null
        return None
    _check_label(problems, "base", given, labels)
    return given


def _check_label(problems: list[str], path: str, label: Any, labels: Sequence[str]) -> None:
    if label not in labels:
        problems.append(f"{path}: no such model, got '{label}'; {did_you_mean(str(label), labels)}")


ROLES: dict[str, Callable[[list[str], Any, Sequence[str]], Any]] = {"groups": _bind_groups, "base": _check_base}
