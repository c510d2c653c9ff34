"""DictConfig -> a checked study, bound by the functions' signatures; all problems are reported at once, by key path."""

import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, Field

from repsim_cli.base import registry
from repsim_cli.base.documents import find_interpolation, find_unwritable_text
from repsim_cli.base.errors import BadConfig, Unreachable
from repsim_cli.base.planning import collect_unfit, use_known
from repsim_cli.base.schemas import STRICT, Fields, attempt, give_up, validate_values
from repsim_cli.base.settings import Extract, Hardware, Seed, Significance
from repsim_cli.config.analyses import bind_analyses
from repsim_cli.config.binding import (
    MISSING,
    bind,
    bind_component,
    bind_components,
    check_arguments,
    expand_families,
    wrap_data_function,
    wrap_measure_function,
)
from repsim_cli.config.compose import drop_hydra_keys
from repsim_cli.config.executor import OF_RUNS, PORTS, check_executor
from repsim_cli.config.extract import extract_of
from repsim_cli.config.parts import (
    ROLES,
    bind_models,
    expand_all_measures,
    expand_value_lists,
    find_misplaced,
    say_unreachable,
    say_unread_points,
    say_untested,
    select_runnable,
)
from repsim_cli.config.unread import say_unread
from repsim_cli.data.base import Data
from repsim_cli.data.parallel import say_how_columns_are_read
from repsim_cli.figures.frame import Figures, read_figure_settings
from repsim_cli.findings.analyse import choose_options, find_analysis_card
from repsim_cli.findings.analysis import Planned
from repsim_cli.findings.claims import find_claims
from repsim_cli.report import tracking
from repsim_cli.runs.content import Facts
from repsim_cli.runs.reader import GROUPS


class RunKeys(BaseModel):
    """The keys of conf/config.yaml; what the groups hold is checked by the functions they name.

    name: of the run folder, after its time.
    study: what the run measures; see `repsim list study`.
    seed: of all that is random: samples, fresh weights, permutations, training.
    dry_run: print the plan and stop.
    resume: a run folder, or `latest`, the newest unfinished run of the same configuration; null: a new run.
    cache: read and write stored activations, matrices and solved pairs, and what is known of configs and tokenizers.
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

    @property
    def measures(self) -> list[str]:
        """The labels of the measures that the study computes; none where it takes none."""
        taken = "measure" in inspect.signature(registry.studies.get(str(self.keys.study)).function).parameters
        return [label for label in self.keys.measure if taken and label not in self.skipped]

    def plan(self) -> Fields:
        """Plans what the run would do."""
        skipped = {"measures skipped": self.skipped} if self.skipped else {}
        notes = {"notes": list(self.notes)} if self.notes else {}
        if self.study is not None:
            executor = self.keys.hardware.get("executor")
            ports = {"open ports": PORTS[executor]} if executor in PORTS else {}
            analyses = {"analyses": list(self.analyses)} if self.analyses else {}
            planned = registry.studies.call(self.keys.study, lambda: dict(self.study.plan()))
            plan = {**planned, **ports, **skipped, **notes, **analyses}
            if "maps" in self.analyses and read_figure_settings(self.keys.figures).get("which") == "all":
                from repsim_cli.engine.cost import estimate_drawing

                plan["time, roughly"] |= estimate_drawing(len(self.models), len(plan["measures"]))
            return plan
        unknown = {
            label: f"shape unknown: {error.what} ships with none, and the hub cannot be reached ({error.reason})"
            for label, error in self.unknown.items()
        }
        return {
            "models": {**dict.fromkeys(self.models, "shape known"), **unknown},
            "measures": self.measures,
            **skipped,
            "layers, forward passes, memory": "not known without these shapes",
        }

    def yaml(self) -> str:
        return OmegaConf.to_yaml(OmegaConf.create(self.keys.model_dump()))


def validate(config: DictConfig) -> RunConfig:
    """Builds the run that a configuration describes. Raises BadConfig with every problem found, before any weight
    loads; one of a composed configuration, which has Hydra's part, is what it sets and its study can never use.

    A dry run takes shapes that ship with the package, not the hub's, and is not refused where the run does not fit this
    machine.
    """
    problems = [*say_unread(config)] if "hydra" in config else []
    plain = _resolve_keys(drop_hydra_keys(config), problems)
    dry = plain.get("dry_run") is True
    with collect_unfit(dry=dry) as misfits, use_known(plain.get("cache") is True, write=not dry):
        return _validate(plain, problems, misfits)


def build_from_keys(keys: Fields) -> RunConfig:
    """The run of the plain keys of another `RunConfig`. Raises BadConfig with every problem on this machine."""
    with collect_unfit(dry=False) as misfits, use_known(keys.get("cache") is True, write=True):
        return _validate(keys, [], misfits)


def _validate(plain: Fields, problems: list[str], misfits: list[str]) -> RunConfig:
    study, keys, written = _read_keys(plain, problems)
    skip = plain.get("skip_unsuitable") is True
    measured, skipped = select_runnable(problems, plain, study.function, skip)
    unreached: dict[str, Unreachable] = {}
    groups: dict[str, Callable[[], Any]] = {
        "model": lambda: expand_families(problems, bind_models(problems, plain, unreached)),
        "measure": lambda: bind_components(
            problems, "measure", {"measure": measured}, registry.measures, wrap_measure_function, written
        ),
        "data": lambda: bind_component(problems, "data", plain["data"], registry.data, wrap_data_function),
        "extract": lambda: extract_of(problems, notes, plain["extract"], bound, study.function),
        "significance": lambda: bind(problems, "significance", Significance, plain["significance"]),
        "hardware": lambda: bind(problems, "hardware", Hardware, plain["hardware"]),
        "seed": lambda: plain.get("seed"),
        "cache": lambda: plain.get("cache"),
        "skip_unsuitable": lambda: skip,
    }
    wanted = inspect.signature(study.function).parameters
    bound: Fields = {}
    notes: list[str] = []
    for name, make in groups.items():
        if name in wanted:
            bound[name] = make()
        elif name in OF_RUNS:
            make()
    if unreached and not plain["dry_run"]:
        problems += say_unreachable(unreached, plain["model"], str(plain.get("name")))
    check = partial(check_arguments, problems, "options", study.function, plain["options"], {*groups, *ROLES})
    options = registry.studies.call(study.name, check)
    if "model" in bound:
        problems += find_misplaced(plain["study"], study.function, bound["model"])
        problems += say_unread_points(plain["study"], study.function, plain["model"])
    _add_unsuited(problems, plain, study.function, bound.get("extract"), bound.get("data"))
    bound |= _bind_roles(plain, problems, wanted, None if unreached else list(bound.get("model", ())))
    notes += say_untested(bound.get("significance"))
    analyses = bind_analyses(problems, plain.get("analyses"))
    _check_figures(problems, plain.get("figures", {}))
    attempt(problems, "", lambda: tracking.check(plain.get("track")))
    attempt(problems, "", lambda: find_claims(_keep_texts(plain.get("claims"))))
    options |= {needs: True for name in analyses if (needs := find_analysis_card(name).needs) in wanted}
    give_up(problems)
    if unreached:
        return RunConfig(keys, None, bound["model"], skipped, misfits=misfits, unknown=unreached)
    make = partial(study.function, **bound, **options)
    instance = attempt(problems, "", lambda: registry.studies.call(study.name, make))
    give_up([*problems, *([] if plain["dry_run"] else misfits)])
    skipped |= instance.skipped
    facts = _collect_model_facts(instance, bound.get("model", {}))
    recorded = _record(plain["options"], options)
    planned = _plan(keys, instance, facts, recorded, getattr(bound.get("significance"), "budget", False))
    settled = attempt(problems, "", lambda: choose_options(planned, analyses, keys.claims))
    give_up(problems)
    asked, claims = settled
    models = bound.get("model", {})
    return RunConfig(keys, instance, models, skipped, asked, claims, facts, misfits, notes, options=recorded)


def _read_keys(plain: Fields, problems: list[str]) -> tuple[Any, Any, dict[str, str]]:
    """Reads the study's entry of the registry, the keys of a run, and by label of a measure the one that was written;
    gives up where nothing can be bound to them."""
    written: dict[str, str] = {}
    named = isinstance(plain.get("study"), str)
    study = attempt(problems, "study: ", lambda: registry.studies.get(str(plain["study"]))) if named else None
    if study is not None and isinstance(plain["measure"], dict):
        given = expand_all_measures(plain["measure"], study.function)
        written = {each: label for label, entry in given.items() for each in expand_value_lists({label: entry})}
        plain["measure"] = expand_value_lists(given)
    keys = attempt(problems, "", lambda: validate_values(RunKeys, plain))
    problems += [
        f"{group}: an empty label, got {label!r}; give it letters"
        for group in ("model", "measure")
        for label in (plain[group] if isinstance(plain.get(group), dict) else ())
        if isinstance(label, str) and not label.strip()
    ]
    if any(not isinstance(plain.get(group), dict) for group in GROUPS) or not named:
        give_up(problems)
    if study is None:
        raise BadConfig(problems)
    return study, keys, written


def _bind_roles(plain: Fields, problems: list[str], wanted: Container[str], models: list[str] | None) -> Fields:
    """Binds the roles of models that the study takes. models: their labels; None: not all shapes are known."""
    bound: Fields = {}
    for role, make in ROLES.items():
        if role in wanted:
            bound[role] = None if models is None else make(problems, plain.get(role), models)
        elif plain.get(role) is not None:
            problems.append(f"{role}: the study {plain['study']} takes none, got {plain[role]!r}; set {role}=null")
    return bound


def _add_unsuited(problems: list[str], plain: Fields, study: Any, extract: Extract | None, data: Data | None) -> None:
    """Adds the settings that the study cannot follow."""
    problems += [
        f"extract.{key}: the study {plain['study']} reads {'features' if study.takes_remedies else 'rows'} as models "
        f"give them, got {value}; leave it at its default"
        for key, value in (extract.remedies if extract is not None else {}).items()
        if key not in study.takes_remedies
    ]
    if extract is not None and extract.pairs != "all" and not study.takes_pairs:
        problems.append(
            f"extract.pairs: the study {plain['study']} compares all pairs of rows, got {extract.pairs}; set "
            "extract.pairs=all"
        )
    if data is not None and data.columned and not study.takes_columns:
        problems.append(say_how_columns_are_read(data.source))
    if plain["significance"].get("budget") and not study.takes_budget:
        problems.append(
            f"significance.budget: the study {plain['study']} splits no values, got true; use study=similarity"
        )
    if plain["hardware"].get("by_block") == "always" and not study.by_block:
        problems.append(
            f"hardware.by_block: the study {plain['study']} needs whole models, got always; set hardware.by_block=auto"
        )
    attempt(problems, "", lambda: check_executor(plain["hardware"], plain.get("cache") is True))
    if (
        "significance" not in inspect.signature(study).parameters
        and plain["significance"].get("method", "none") != "none"
    ):
        problems.append(
            f"significance: the study {plain['study']} tests no significance, got {plain['significance']['method']}; "
            "use significance=none"
        )


def _record(given: Any, bound: Any) -> Any:
    """The bound settings as plain values, defaults among them; entries of data as they were given."""
    from repsim_cli.data.base import Data

    if isinstance(bound, Data):
        return given
    parts = {each.name: getattr(bound, each.name) for each in fields(bound)} if is_dataclass(bound) else bound
    if isinstance(parts, dict):
        return {key: _record((given or {}).get(key), part) for key, part in parts.items()}
    return bound


def _keep_texts(given: Any) -> list[str]:
    """The texts of a list. Anything else is reported as a problem of the run's keys already."""
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _check_figures(problems: list[str], given: Any) -> None:
    """Checks how figures are drawn. What is neither a word nor a mapping is a problem of the run's keys already."""
    if isinstance(given, str | dict):
        settings = read_figure_settings(given)
        figures = bind(problems, "figures", Figures, settings)
        if figures is not None and {"colours", "font", "format"} & set(settings):
            attempt(problems, "figures.", figures.check)


def _collect_model_facts(study: Any, models: Mapping[str, Any]) -> dict[str, Facts]:
    from repsim_cli.models.source import describe_model

    layers = {reading.label: reading.layers for reading in study.readings}
    return {label: describe_model(label, model, layers.get(label, ())) for label, model in models.items()}


def _plan(keys: RunKeys, study: Any, facts: Mapping[str, Facts], options: Fields, budget: bool) -> Planned:
    from repsim_cli.engine.record import make_card_record

    measures = {label: make_card_record(bound) for label, bound in study.measures.items()}
    groups = {name: len(group) if isinstance(group, list) else int(group.get("top") or group.get("bottom") or 0)
              for name, group in (keys.groups or {}).items()}  # fmt: skip
    return Planned(
        study=keys.study, models=facts, measures=measures, groups=groups, base=keys.base, options=options,
        budget=budget, settings={label: (bound.name, bound.settings) for label, bound in study.measures.items()},
    )  # fmt: skip


def _resolve_keys(config: DictConfig, problems: list[str]) -> Fields:
    """The run's keys as plain values, interpolations resolved; an empty group is an empty mapping."""
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise BadConfig([f"{error.full_key or 'config'}: {str(error).splitlines()[0]}; fix the YAML"]) from None
    assert isinstance(plain, dict)
    if text := find_interpolation(plain):
        raise BadConfig([f"config: ${{ in a value would be replaced when it is read, got '{text}'; use another name"])
    if text := find_unwritable_text(plain):
        raise BadConfig([f"config: text that no file can hold, got '{text}'; use UTF-8 without NUL"])
    keys: Fields = {str(k): v for k, v in plain.items() if k != "experiment"}
    for path, value in _list_leaf_values(keys, ""):
        if value == MISSING:
            problems.append(f"{path}: missing; set {path}=VALUE")
    for group in GROUPS:
        if keys.get(group) is None:
            keys[group] = {}
    return keys


def _list_leaf_values(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _list_leaf_values(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
