"""`repsim describe`: what a name means. Texts come from docstrings, defaults from signatures, ranges from types."""

import argparse
import difflib
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from repsim_cli.base import registry
from repsim_cli.base.documents import read_yaml
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean, name_package
from repsim_cli.cli.docstrings import EXAMPLE
from repsim_cli.cli.glossary import look_up_terms
from repsim_cli.cli.kinds import GROUP, ROOMS, RUN, SELECTED, SETTINGS, read_kind
from repsim_cli.cli.settings import Setting, make_example_value, say_range_and_default
from repsim_cli.cli.terminal import say
from repsim_cli.config.presets import TABLES, describe_group, find_conf_folder, read_table_entries

HIDDEN = ("# @package", "# Allows:", f"# {EXAMPLE}")  # lines of comments that are shown elsewhere or not at all
MINE = "mine"  # the label of a model in examples
CHOICES = {"study": "study={}", "model": f"model=[] '+model.{MINE}={{{{kind: {{}}}}}}'"}
"""How a kind without an entry of its own is chosen."""
SUGGESTED = 3
ALIKE = 0.8  # of a name and a suggestion, from 0 to 1: 'none' is not what 'nope' meant
WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A meaning of a name. path: what precedes its settings on the command line. header: the comment of its file.

    given: the values that this file sets. facts: further lines. example: a command.
    """

    name: str
    title: str
    path: str = ""
    header: str = ""
    prose: Sequence[str] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    facts: Sequence[str] = ()
    example: str = ""


def describe_command(given: argparse.Namespace) -> int:
    """Answers `repsim describe`: what a name means, or of `model NAME` how that model is built."""
    if given.which is None:
        topics = find_meanings(given.name)
        if given.json:
            from repsim_cli.cli.machine import say_json

            say_json("describe", build_topics_json(topics))
        else:
            say(*"\n\n".join(map(show, topics)).split("\n"))
        return 0
    if given.json:
        raise BadInput(f"--json: only with a single name, got {given.name} {given.which}; drop --json")
    if given.name != "model":
        raise BadInput(f"repsim describe: two names, got {given.name} {given.which}; a model is: model NAME")
    from repsim_cli.cli.anatomy import describe_anatomy

    say(*describe_anatomy(given.which).split("\n"))
    return 0


def find_meanings(name: str) -> list[Topic]:
    """Finds all meanings of a name, or of a setting `NAME.KEY`. Raises BadInput with the near misses where there is
    none."""
    first, *keys = name.split(".")
    if first in SETTINGS:
        return [_narrow(_make_settings_topic(first), keys)]
    if name == RUN:
        return [_run_topic()]
    word = [Topic(name=name, title=term, prose=[text]) for term, text in look_up_terms(name)]
    meant, broken = _make_topics(make for of, make in list_topic_makers(usable=False) if of == first)
    if first in read_kind(GROUP, RUN).settings and not keys:
        return [_narrow(_run_topic(), [first]), *meant, *word]
    if word:
        return [*(meant if not keys else []), *word]
    if not keys and meant:
        return meant
    topics = build_catalogue() if not (meant or broken) or first in ROOMS else []
    if keys and (of := [topic for topic in topics if topic.name == keys[0] and topic.path.split(".")[0] == first]):
        meant, keys = of, keys[1:]  # measure.mutual_knn
    elif keys and not meant:  # data.split, options.within: of every data set or study that has it
        meant = _merge_alike([topic for topic in topics if topic.path == first and keys[0] in topic.settings], keys[0])
    if not meant:
        raise broken[0] if broken else _explain_unknown(name, [*map(_make_settings_topic, SETTINGS), *topics])
    with_key = [topic for topic in meant if keys and keys[0] in topic.settings]
    return [_narrow(topic, keys) for topic in with_key or meant]


def _make_topics(makers: Iterable[Callable[[], Topic]]) -> tuple[list[Topic], list[BadInput]]:
    """Makes topics; gives those of plug-ins that cannot be loaded as the errors that say why."""
    made: list[Topic] = []
    broken: list[BadInput] = []
    for make in makers:
        try:
            made.append(make())
        except BadInput as error:
            broken.append(error)
    return made, broken


def _merge_alike(topics: Sequence[Topic], key: str) -> list[Topic]:
    """A single topic for all that share the meaning of the setting."""
    alike: dict[str, list[Topic]] = {}
    for topic in topics:
        alike.setdefault(topic.settings[key].meaning, []).append(topic)
    return [replace(first, title=", ".join(t.title for t in (first, *others))) for first, *others in alike.values()]


def _explain_unknown(name: str, topics: Sequence[Topic]) -> BadInput:
    """The error with the near misses among names and settings, which may be given by their last part."""
    names = [topic.name for topic in topics]
    whole = [topic for topic in topics if topic.path not in SETTINGS or topic.path == topic.name]
    dotted = [f"{topic.name}.{key}" for topic in whole for key in topic.settings]
    near = [path for path in dotted if path.endswith(f".{name}")]
    near = near or difflib.get_close_matches(name, [*names, *dotted], n=SUGGESTED, cutoff=ALIKE)
    quoted = " or ".join(f"'{path}'" for path in near[:SUGGESTED])
    hint = f"did you mean {quoted}?" if near else "see repsim list"
    return BadInput(f"NAME: unknown name, got '{name}'; {hint}")


def _narrow(topic: Topic, keys: Sequence[str]) -> Topic:
    """The setting at these nested keys."""
    command = "repsim run" if topic.name in SETTINGS else topic.example
    of = "" if topic.path in SETTINGS else f", a setting of {topic.title}"
    for key in keys:
        if key not in topic.settings:
            hint = did_you_mean(key, topic.settings) if topic.settings else f"{topic.name} has no settings"
            raise BadInput(f"{topic.title}: no such setting, got '{key}'; {hint}")
        setting, path, value = topic.settings[key], _join(topic.path, key), topic.given.get(key)
        topic = Topic(
            name=key,
            title=f"{path}{of}",
            path=path,
            prose=[setting.meaning],
            settings=setting.inner or {},
            given=value if isinstance(value, dict) else {},
            facts=[say_range_and_default(setting, topic.given, key)],
            example=f"{command} {shlex.quote(f'{path}={make_example_value(setting, value)}')}",
        )
    return topic


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _make_settings_topic(name: str) -> Topic:
    """A group of settings that studies share."""
    told = read_kind(GROUP, name)
    return Topic(name=name, title=name, path=name, prose=told.prose, settings=told.settings, example=told.example)


def list_settings_topics() -> list[Topic]:
    """The keys of a run, and the groups of settings that studies share."""
    return [_run_topic(), *map(_make_settings_topic, SETTINGS)]


def _run_topic() -> Topic:
    """The keys of a run."""
    content = read_yaml(find_conf_folder() / "config.yaml")
    chosen = {
        group: choice for entry in content["defaults"] if isinstance(entry, dict) for group, choice in entry.items()
    }
    keys = {
        key: setting._replace(default=content[key]) if key in content else Setting(setting.meaning, "", chosen[key])
        for key, setting in read_kind(GROUP, RUN).settings.items()
    }
    return Topic(name=RUN, title="a run", settings=keys, example="repsim run")


class Selected(NamedTuple):
    """An entry that can be selected by name: the comment above it, what it sets, and a command."""

    name: str
    comment: str
    content: Mapping[str, Any]
    example: str


def list_selectable_entries(group: str) -> dict[str, Selected]:
    """Lists all entries of a group, by name."""
    return {name: _select(group, name, comment) for name, comment in describe_group(group).items()}


def _select(group: str, name: str, comment: Sequence[str]) -> Selected:
    """An entry, from the comment above it."""
    if group in TABLES:
        content, chosen = read_table_entries(group)[name], f"[{name}]"
    elif group == "data" and name in registry.data.plugins:
        content, chosen = {"kind": name}, name
    else:
        content, chosen = {} if group == "experiment" else read_yaml(find_conf_folder() / group / f"{name}.yaml"), name
    lines = [line.lstrip("# ") for line in comment if not line.startswith(HIDDEN)]
    given = [line.removeprefix("# ").removeprefix(EXAMPLE) for line in comment if line.startswith(f"# {EXAMPLE}")]
    example = given[0].replace("NAME", name) if given else f"repsim run {group}={chosen}"
    return Selected(name, "\n".join(lines), content, example)


def build_catalogue() -> list[Topic]:
    """Makes the topics of all studies, analyses, measures, kinds of models and data, and of all entries that can be
    selected."""
    return [make() for _, make in list_topic_makers(usable=True)]


def list_topic_makers(*, usable: bool) -> list[tuple[str, Callable[[], Topic]]]:
    """Lists the catalogue by names, each with what makes its topic and imports what it is about.

    usable: imports all plug-ins, and leaves out those that cannot be loaded.
    """
    topics: list[tuple[str, Callable[[], Topic]]] = []
    for group, room in SELECTED.items():
        chosen = list_selectable_entries(group)
        kinds = {name: selected.content["kind"] for name, selected in chosen.items()}
        names = room.list_usable() if usable else room.names()
        for kind in names:
            if kinds.get(kind) != kind:
                first = next((selected for selected in chosen.values() if selected.content["kind"] == kind), None)
                topics.append((kind, partial(_make_kind_topic, group, kind, first)))
        broken = {*room.names()} - {*names}
        topics += [
            (name, partial(_read_entry, group, selected))
            for name, selected in chosen.items()
            if kinds[name] not in broken
        ]
    analyses = registry.analyses.list_usable() if usable else registry.analyses.names()
    topics += [(name, partial(_make_analysis_topic, name)) for name in analyses]
    for group, make in {**dict.fromkeys(SETTINGS, _read_choice), "experiment": _make_experiment_topic}.items():
        topics += [(name, partial(make, group, name, comment)) for name, comment in describe_group(group).items()]
    return topics


def _read_choice(group: str, name: str, above: Sequence[str]) -> Topic:
    """A file of a group of settings that studies share. above: the comment in it."""
    _, comment, content, example = _select(group, name, above)
    title = f"{group} {name}"
    return replace(
        _make_settings_topic(group), name=name, title=title, header=comment, given=content, prose=[], example=example
    )


def _make_experiment_topic(group: str, name: str, above: Sequence[str]) -> Topic:
    _, comment, _, example = _select(group, name, above)
    return Topic(name=name, title=f"experiment {name}", header=comment, example=example)


def _make_kind_topic(group: str, kind: str, selected: Selected | None) -> Topic:
    """A registered component. selected: an entry of its kind, whose command is used where the docstring has none."""
    told = read_kind(group, kind)
    label = selected.name if selected and not told.example else kind if group == "measure" else MINE
    return Topic(
        name=kind,
        title=f"study {kind}" if group == "study" else f"{group} kind {kind}",
        path={"study": "options", "data": "data"}.get(group, f"{group}.{label}"),
        header=_name_origin(ROOMS[group], kind),
        prose=told.prose,
        settings=told.settings,
        facts=told.facts,
        example=told.example or (selected.example if selected else f"repsim run {CHOICES[group].format(kind)}"),
    )


def _name_origin(room: registry.Registry, name: str) -> str:
    """Names the package that registers a component; empty where it is repsim's own."""
    return f"From the package {name_package(room.plugins[name])}" if name in room.plugins else ""


def _read_entry(group: str, selected: Selected) -> Topic:
    """An entry, with the description of its kind."""
    name, comment, content, example = selected
    if (kind := content["kind"]) not in ROOMS[group].names():  # measure=all
        return Topic(name=name, title=f"{group} {name}", header=comment, example=example)
    topic = _make_kind_topic(group, kind, selected)
    return replace(
        topic,
        name=name,
        title=f"{group} {name}",
        path=f"{group}.{name}" if group in TABLES else group,
        header=comment if name == kind else f"{comment}\n\nkind: {kind}",
        given=content,
        example=topic.example if name == kind and group == "data" else example,
    )


def _make_analysis_topic(name: str) -> Topic:
    told = read_kind("analysis", name)
    return Topic(
        name=name,
        title=f"analysis {name}",
        path=f"analyses.{name}",
        header=_name_origin(registry.analyses, name),
        prose=told.prose,
        settings=told.settings,
        facts=told.facts,
        example=told.example or f"repsim analyse latest +analyses.{name}={{}}",
    )


def show(topic: Topic) -> str:
    """A topic as text for a terminal."""
    blocks = [topic.title, textwrap.indent(topic.header, "  ")]
    blocks += [_fill_paragraph(paragraph) for paragraph in topic.prose]
    if topic.settings:
        lines = _write_setting_lines(topic.settings, topic.given, "    ")
        blocks.append("\n".join([f"  settings ({_join(topic.path, 'KEY')}=VALUE):", *lines]))
    blocks.append("\n".join(_fill(fact, "  ", "    ") for fact in topic.facts))
    blocks += [f"  example: {topic.example}"] if topic.example else []
    return "\n\n".join(filter(None, blocks))


def build_topics_json(topics: Iterable[Topic]) -> dict[str, Any]:
    """The meanings of a name for programs, as `SHAPES` of `machine.py` has them."""
    return {
        "meanings": [
            {
                "name": topic.name,
                "title": topic.title,
                "path": topic.path,
                "text": "\n\n".join(filter(None, [topic.header, *topic.prose])),
                "settings": {
                    key: {"meaning": setting.meaning, "range": say_range_and_default(setting, topic.given, key)}
                    for key, setting in topic.settings.items()
                },
                "facts": list(topic.facts),
                "example": topic.example,
            }
            for topic in topics
        ]
    }


def _write_setting_lines(described: Mapping[str, Setting], given: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, setting in described.items():
        yield _fill(f"{key}: {setting.meaning}", indent, f"{indent}    ")
        yield _fill(say_range_and_default(setting, given, key), f"{indent}    ", f"{indent}    ")
        if setting.inner:
            inner = given.get(key)
            yield from _write_setting_lines(setting.inner, inner if isinstance(inner, dict) else {}, f"{indent}    ")


def _fill_paragraph(text: str) -> str:
    return textwrap.indent(text, "  ") if ">>>" in text else _fill(text, "  ", "  ")


def _fill(text: str, first: str, others: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
