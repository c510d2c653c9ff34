"""DictConfig -> a checked study, bound by the functions' signatures; all problems are reported at once, by key path."""

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field

from repsim_cli import registry, tracking
from repsim_cli.binding import (
    MISSING,
    STRICT,
    Fields,
    attempt,
    bind,
    checked,
    component,
    components,
    data_function,
    expanded,
    give_up,
    measure_function,
    model_function,
    validated,
)
from repsim_cli.content import Facts, Results
from repsim_cli.documents import interpolated
from repsim_cli.draw.frame import Figures, settings_of
from repsim_cli.errors import BadConfig, BadInput, Unreachable
from repsim_cli.findings.analyse import card_of, chosen
from repsim_cli.findings.analysis import Planned
from repsim_cli.findings.claims import known
from repsim_cli.planning import checking
from repsim_cli.registry import did_you_mean
from repsim_cli.results import GROUPS
from repsim_cli.settings import (
    WORDS,
    Extract,
    Group,
    Hardware,
    Ranked,
    Seed,
    Significance,
    check_executor,
)

ALL = "all"
LONGEST = 512  # tokens of `extract.length=auto`
# by unit, what `auto` means for language models: on real models, blocks are recognised best (benchmarks/remedies.py)
USUAL: dict[str, Fields] = {
    "token": {"skip": 4, "normalise": "features"},
    "word": {"skip": 2, "normalise": "features"},
}
# `extract.sequences` and `extract.rows` where they are auto
STRETCHES, SENTENCES, POOLED, ROWS = 64, 2048, 1024, 4096
UNCHANGED: Fields = {"skip": 0, "normalise": "none"}


class RunKeys(BaseModel):
    """The keys of conf/config.yaml; what the groups hold is checked by the functions they name.

    name: of the run folder, after its time.
    study: what the run measures; see `repsim list study`.
    seed: of all that is random: samples, fresh weights, permutations, training.
    dry_run: print the plan and stop.
    resume: a run folder, or `latest`, the newest unfinished run of the same configuration; null: a new run.
    cache: read and write stored activations, matrices and solved pairs.
    skip_unsuitable: leave out measures that do not suit the study, its settings or its data, with a warning; otherwise
        they stop the run before it starts.
    options: the settings of the study, by name; see `repsim describe STUDY`.
    analyses: what follows from what the study measured: {NAME: {SETTING: VALUE}}.
    claims: the names of published findings to test.
    figures: which figures are drawn, and how: {which: overview, width: column, format: [png, svg, pdf], colours: NAME,
        titles: false, font: NAME}. `overview` leaves out figures of single pairs of models and of standard errors;
        `figures=all` draws them.
    track: `tensorboard`, `mlflow` or `wandb`: the numbers, tables and figures of the run are logged there too, in files
        on this machine unless the settings of these packages say otherwise (extras of these names); null: nowhere.
    groups: groups of models by name: {NAME: [LABEL, ...]}, or by a metric that they were saved with,
        {NAME: {top: 10, by: METRIC}} or {NAME: {bottom: 10, by: METRIC}}; null: none.
    base: the label of the model that others are compared with; null: none.
    model: the models by label; `model=[NAME,NAME]` selects from `repsim list model`.
    measure: the measures by label; `measure=[NAME,NAME]` selects from `repsim list measure`.
    data: the data set; `data=NAME` selects from `repsim list data`.
    extract: which activations become rows, and how they are used; `extract=NAME` selects from `repsim list extract`.
    significance: how far from chance; `significance=NAME` selects from `repsim list significance`.
    hardware: devices, batch sizes, memory; `hardware=NAME` selects from `repsim list hardware`.
    """

    model_config = STRICT

    name: Annotated[str, Field(pattern=r"^\w[\w.@+-]*$")]
    study: str
    seed: Seed
    dry_run: bool
    resume: str | None
    cache: bool
    skip_unsuitable: bool = False
    options: Fields
    analyses: Fields = {}
    claims: list[str] = []
    figures: str | Fields = "overview"
    track: Literal["tensorboard", "mlflow", "wandb"] | None = None
    groups: dict[str, list[str] | Fields] | None = None
    base: str | None = None
    model: dict[str, Fields]
    measure: dict[str, Fields]
    data: Fields
    extract: Fields
    significance: Fields
    hardware: Fields


@dataclass(frozen=True)
class RunConfig:
    """A validated run: the study bound to its settings, the keys as plain values, and the models by label.

    skipped: by label, why a measure of the configuration is not computed. misfits: in a dry run, why the run would be
    refused on this machine. notes: warnings about settings that the run changes. unknown: in a dry run, the models
    whose shapes only the hub has while it cannot be reached; the study is then None. analyses: their options, by name.
    claims: those that they test. facts: about every model, for the manifest. options: of the study as plain values, the
    defaults of those that are not given among them.
    """

    keys: RunKeys
    study: Any
    models: Mapping[str, Any]
    skipped: Mapping[str, str]
    analyses: Mapping[str, Any] = field(default_factory=dict)
    claims: Sequence[Any] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    misfits: Sequence[str] = ()
    notes: Sequence[str] = ()
    unknown: Mapping[str, Unreachable] = field(default_factory=dict)
    options: Fields = field(default_factory=dict)

    def plan(self) -> Fields:
        """What the run would do."""
        skipped = {"measures skipped": self.skipped} if self.skipped else {}
        notes = {"notes": list(self.notes)} if self.notes else {}
        if self.study is not None:
            return {**self.study.plan(), **skipped, **notes, "analyses": list(self.analyses)}
        unknown = {
            label: f"shape unknown: {error.what} ships with none, and the hub cannot be reached ({error.reason})"
            for label, error in self.unknown.items()
        }
        return {
            "models": {**dict.fromkeys(self.models, "shape known"), **unknown},
            "measures": [label for label in self.keys.measure if label not in self.skipped],
            **skipped,
            "layers, forward passes, memory": "not known without these shapes",
        }

    def yaml(self) -> str:
        return OmegaConf.to_yaml(OmegaConf.create(self.keys.model_dump()))


def validate(config: DictConfig) -> RunConfig:
    """Raises BadConfig with every problem found, before any weight loads.

    A dry run takes shapes that ship with the package, not the hub's, and is not refused where the run does not fit this
    machine.
    """
    problems: list[str] = []
    plain = _plain(config, problems)
    with checking(dry=plain.get("dry_run") is True) as misfits:
        return _validated(plain, problems, misfits)


def of_keys(keys: Fields) -> RunConfig:
    """The run of the plain keys of another `RunConfig`. Raises BadConfig with every problem on this machine."""
    with checking(dry=False) as misfits:
        return _validated(keys, [], misfits)


def _validated(plain: Fields, problems: list[str], misfits: list[str]) -> RunConfig:
    named = isinstance(plain.get("study"), str)
    study = attempt(problems, "study: ", lambda: registry.studies.get(str(plain["study"]))) if named else None
    if study is not None and isinstance(plain["measure"], dict):
        plain["measure"] = _every(plain["measure"], study.function)
    keys = attempt(problems, "", lambda: validated(RunKeys, plain))
    if any(not isinstance(plain.get(group), dict) for group in GROUPS) or not named:
        give_up(problems)
    if study is None:
        raise BadConfig(problems)
    skip = plain.get("skip_unsuitable") is True
    runnable, skipped = _runnable(problems, plain, study.function, skip)

    unreached: dict[str, Unreachable] = {}
    groups: dict[str, Callable[[], Any]] = {
        "model": lambda: expanded(problems, _models(problems, plain, unreached)),
        "measure": lambda: components(problems, "measure", {"measure": runnable}, registry.measures, measure_function),
        "data": lambda: component(problems, "data", plain["data"], registry.data, data_function),
        "extract": lambda: _extract(problems, notes, plain["extract"], bound, remedied),
        "significance": lambda: bind(problems, "significance", Significance, plain["significance"]),
        "hardware": lambda: bind(problems, "hardware", Hardware, plain["hardware"]),
        "seed": lambda: plain.get("seed"),
        "cache": lambda: plain.get("cache"),
        "skip_unsuitable": lambda: skip,
    }
    wanted = inspect.signature(study.function).parameters
    remedied = study.function.takes_remedies
    bound: Fields = {}
    notes: list[str] = []
    for name, make in groups.items():
        if name in wanted:
            bound[name] = make()
    if unreached and not plain["dry_run"]:
        problems.append(_out_of_reach(unreached, plain["model"]))
    options = checked(problems, "options", study.function, plain["options"], without={*groups, *ROLES})
    if "model" in bound:
        problems += _misplaced(plain["study"], study.function, bound["model"])
        problems += _unread(plain["study"], study.function, plain["model"])
    extract = bound.get("extract")
    problems += [
        f"extract.{key}: the study {plain['study']} reads {'features' if remedied else 'rows'} as models give them, "
        f"got {value}; leave it at its default"
        for key, value in (extract.remedies if extract is not None else {}).items()
        if key not in remedied
    ]
    if plain["hardware"].get("by_block") == "always" and not study.function.by_block:
        problems.append(
            f"hardware.by_block: the study {plain['study']} needs whole models, got always; set hardware.by_block=auto"
        )
    attempt(problems, "", lambda: check_executor(plain["hardware"], plain.get("cache") is True))
    if "significance" not in wanted and plain["significance"].get("method", "none") != "none":
        problems.append(
            f"significance: the study {plain['study']} tests none, got {plain['significance']['method']}; "
            "use significance=none"
        )
    for role, make in ROLES.items():
        if role in wanted:
            bound[role] = None if unreached else make(problems, plain.get(role), list(bound["model"]))
        elif plain.get(role) is not None:
            problems.append(f"{role}: the study {plain['study']} takes none, got {plain[role]!r}; set {role}=null")
    analyses = _analyses(problems, plain.get("analyses"))
    _figures(problems, plain.get("figures", {}))
    attempt(problems, "", lambda: tracking.check(plain.get("track")))
    attempt(problems, "", lambda: known(_texts(plain.get("claims"))))
    signature = inspect.signature(study.function).parameters
    options |= {needs: True for name in analyses if (needs := card_of(name).needs) in signature}
    give_up(problems)
    if unreached:
        return RunConfig(keys, None, bound["model"], skipped, misfits=misfits, unknown=unreached)
    instance = attempt(problems, "", lambda: study.function(**bound, **options))
    give_up([*problems, *([] if plain["dry_run"] else misfits)])
    skipped |= instance.skipped
    facts = _facts(instance, bound.get("model", {}))
    recorded = _recorded(plain["options"], options)
    planned = _planned(keys, instance, facts, recorded)
    settled = attempt(problems, "", lambda: chosen(planned, analyses, keys.claims))
    give_up(problems)
    asked, claims = settled
    models = bound.get("model", {})
    return RunConfig(keys, instance, models, skipped, asked, claims, facts, misfits, notes, options=recorded)


def _recorded(given: Any, bound: Any) -> Any:
    """Bound settings as plain values, defaults among them; entries of data as they were given."""
    from repsim_cli.data.base import Data

    if isinstance(bound, Data):
        return given
    parts = {each.name: getattr(bound, each.name) for each in fields(bound)} if is_dataclass(bound) else bound
    if isinstance(parts, dict):
        return {key: _recorded((given or {}).get(key), part) for key, part in parts.items()}
    return bound


def _texts(given: Any) -> list[str]:
    """Of a list its texts: anything else is a problem of the run's keys already."""
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _figures(problems: list[str], given: Any) -> None:
    """Checks how figures are drawn. What is neither a word nor a mapping is a problem of the run's keys already."""
    if isinstance(given, str | dict):
        settings = settings_of(given)
        figures = bind(problems, "figures", Figures, settings)
        if figures is not None and {"colours", "font"} & set(settings):
            attempt(problems, "figures.", figures.check)


def _analyses(problems: list[str], given: Any) -> dict[str, Any]:
    """The options of the analyses by name, bound to their dataclasses. Unless it is a mapping, `given` is a problem of
    the run's keys already."""
    bound: dict[str, Any] = {}
    for name, settings in given.items() if isinstance(given, dict) else ():
        card = attempt(problems, "analyses: ", lambda name=name: card_of(name))
        if not isinstance(settings, dict | None):
            problems.append(f"analyses.{name}: no settings, got {settings!r}; write {{SETTING: VALUE}}")
        elif card is not None:
            bound[name] = bind(problems, f"analyses.{name}", card.options, settings or {})
    return bound


def analyses_of(
    manifest: Mapping[str, Any], results: Results, config: Fields, changes: Sequence[str]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """The options of the analyses of a finished run, by name, and its claims, changed by KEY=VALUE words.

    changes: `+analyses.NAME={...}` or `claims=[...]`. With changes only what they name is computed, by default
    with the options that the analysis had and the claims that it tested.
    Raises BadConfig with every problem.
    """
    try:
        given = OmegaConf.to_container(OmegaConf.from_dotlist([word.lstrip("+") for word in changes]))
    except (OmegaConfBaseException, ValueError) as error:
        raise BadInput(
            f"analyse: cannot be read, got {' '.join(changes)} ({error}); write +analyses.NAME={{}}"
        ) from None
    assert isinstance(given, dict)
    for key in given:
        if key not in ("analyses", "claims"):
            raise BadInput(f"analyse: neither analyses nor claims, got '{key}'; write +analyses.NAME={{}}")
    keys: Fields = {str(key): value for key, value in given.items()}
    asked = keys if changes else config
    settings, tested = dict(asked.get("analyses") or {}), list(asked.get("claims") or [])
    problems: list[str] = []
    if changes:
        anew = {*settings, *(claim.analysis for claim in attempt(problems, "", lambda: known(tested)) or ())}
        before = {name: made["options"] for name, made in results.analyses.items() if name in anew and made["options"]}
        settings = before | settings
        tested += [verdict.name for verdict in results.claims if verdict.analysis in anew]
    bound = _analyses(problems, settings)
    give_up(problems)
    models = {label: Facts(**facts) for label, facts in manifest["facts"].items()}
    groups = {name: len(models) for name, models in manifest.get("groups", {}).items()}
    planned = Planned(
        study=manifest["study"],
        models=models,
        measures={measured.label: measured.card for measured in results.measures},
        groups=groups,
        base=manifest.get("base"),
        options=manifest.get("options", {}),
    )
    options, claims = chosen(planned, bound, tested)
    named = {*bound, *(claim.analysis for claim in claims)}
    return ({name: options[name] for name in options if name in named} if changes else options), claims


def _facts(study: Any, models: Mapping[str, Any]) -> dict[str, Facts]:
    from repsim_cli.models.source import facts

    layers = {reading.label: reading.layers for reading in study.readings}
    return {label: facts(label, model, layers.get(label, ())) for label, model in models.items()}


def _planned(keys: RunKeys, study: Any, facts: Mapping[str, Facts], options: Fields) -> Planned:
    from repsim_cli.studies.record import card_record

    measures = {label: card_record(bound) for label, bound in study.measures.items()}
    groups = {name: len(group) if isinstance(group, list) else int(group.get("top") or group.get("bottom") or 0)
              for name, group in (keys.groups or {}).items()}  # fmt: skip
    return Planned(study=keys.study, models=facts, measures=measures, groups=groups, base=keys.base, options=options)


def _models(problems: list[str], plain: Fields, unreached: dict[str, Unreachable]) -> dict[str, Any]:
    """The model entries, bound; those that need the hub while it cannot be reached are noted with the error instead."""
    from repsim_cli.models.source import Series

    bound: dict[str, Any] = {}
    for label, entry in plain["model"].items():
        try:
            model = component(problems, f"model.{label}", entry, registry.models, model_function)
            if isinstance(model, Series) and not model.local and model.make is None:
                model.checkpoints[-1].open()
            bound[label] = model
        except Unreachable as error:
            unreached[label] = error
    return bound


def _out_of_reach(unreached: Mapping[str, Unreachable], entries: Mapping[str, Fields]) -> str:
    label, error = next(iter(unreached.items()))
    key = "folder" if entries[label]["kind"] == "series" else "path"
    folder = "FOLDER_{number}" if "{number}" in str(entries[label].get("hub")) else "FOLDER"
    return (
        f"model: the hub cannot be reached ({error.reason}), got models of it: "
        f"{', '.join(f'{label} ({lack.what})' for label, lack in unreached.items())}; connect, or download them and "
        f"set model.{label}.hub=null model.{label}.{key}={folder} (files in the hub's cache are used as they are)"
    )


def _misplaced(name: str, study: Any, models: Mapping[str, Any]) -> Iterator[str]:
    """Series of checkpoints where a study takes models, and models where it takes series."""
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


def _unread(name: str, study: Any, entries: Mapping[str, Fields]) -> Iterator[str]:
    """Hook points of single models where a study reads the same ones of all."""
    if "extract" in inspect.signature(study).parameters and not study.fixed_points:
        return
    for label, entry in entries.items():
        if isinstance(entry, dict) and entry.get("hook_points"):
            yield (
                f"model.{label}.hook_points: the study {name} reads the same of every model, got "
                f"{entry['hook_points']}; drop it"
            )


def _every(chosen: Any, study: Any) -> Any:
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


def _runnable(problems: list[str], plain: Fields, study: Any, skip: bool) -> tuple[Fields, dict[str, str]]:
    """The measures that the study can run here, and by label why it cannot run the others: they read something else, or
    need a package that is not installed."""
    from repsim_cli import measures
    from repsim_cli.studies.checks import suitable

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

    return attempt(problems, "", lambda: suitable(plain["measure"], check, skip)) or ({}, {})


def _groups(problems: list[str], given: Any, labels: Sequence[str]) -> dict[str, Group] | None:
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
            _known_label(problems, path, label, labels)
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


def _base(problems: list[str], given: Any, labels: Sequence[str]) -> str | None:
    if given is not None:
        _known_label(problems, "base", given, labels)
    return given if isinstance(given, str) else None


def _known_label(problems: list[str], path: str, label: Any, labels: Sequence[str]) -> None:
    if label not in labels:
        problems.append(f"{path}: no such model, got '{label}'; {did_you_mean(str(label), labels)}")


ROLES: dict[str, Callable[[list[str], Any, Sequence[str]], Any]] = {"groups": _groups, "base": _base}


def _plain(config: DictConfig, problems: list[str]) -> Fields:
    """The run's keys as plain values, interpolations resolved; an empty group is an empty mapping."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise BadConfig([f"{error.full_key or 'config'}: {str(error).splitlines()[0]}; fix the YAML"]) from None
    assert isinstance(plain, dict)
    if text := interpolated(plain):
        raise BadConfig([f"config: ${{ in a value would be replaced when it is read, got '{text}'; use another name"])
    keys: Fields = {str(k): v for k, v in plain.items() if k != "experiment"}
    for path, value in _leaves(keys, ""):
        if value == MISSING:
            problems.append(f"{path}: missing, got nothing; set {path}=VALUE")
    for group in GROUPS:
        if keys.get(group) is None:
            keys[group] = {}
    return keys


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _extract(
    problems: list[str], notes: list[str], given: Fields, bound: Fields, remedied: Collection[str]
) -> Extract | None:
    """The settings of extraction, with `auto` resolved and a length that every model can read: the models of a
    comparison have to read the same rows. bound: the models and data of the run; remedied: the remedies that the study
    takes."""
    from repsim_cli.models.source import Series, Source

    models = bound.get("model", {})
    running = bound.get("data") is not None and bound["data"].running
    sentences = given.get("unit") in WORDS and not running
    contexts: dict[str, int] = {}
    for label, model in models.items():
        with suppress(BadInput):  # of a broken checkpoint, which the study names
            source = model.checkpoints[-1].open() if isinstance(model, Series) else model
            if isinstance(source, Source) and source.modality == "text":
                contexts[label] = sys.maxsize if source.context is None else source.context
    shortest = min(contexts, key=contexts.__getitem__, default=None)
    most = sys.maxsize if shortest is None else contexts[shortest]
    usual = USUAL.get(str(given.get("unit")), {}) if len(contexts) == len(models) else {}
    automatic = {
        "length": min(LONGEST, most),
        "sequences": SENTENCES if sentences else STRETCHES if given.get("unit") in ("token", *WORDS) else POOLED,
        "rows": ROWS if given.get("unit") in ("token", *WORDS) else POOLED,
        "at_most": [key for key in ("sequences", "rows") if given.get(key) == "auto"],
        **{key: usual.get(key, none) if key in remedied else none for key, none in UNCHANGED.items()},
    }
    extract = bind(
        problems, "extract", Extract, given | {key: x for key, x in automatic.items() if given.get(key) == "auto"}
    )
    if extract is None or extract.length <= most:
        return extract
    notes.append(
        f"extract.length: lowered from {extract.length} to {most} tokens, the context of '{shortest}'; "
        "all models read the same rows"
    )
    return replace(extract, length=most)
