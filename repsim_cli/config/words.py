"""The words of a command: what they mean to Hydra, and Hydra's answers as the user shall read them."""

import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.config.presets import GROUPS, TABLES, describe_group, find_conf_folder, find_model_entry, read_shipped

VALUED = ("--config-dir", "--cfg", "--package", "--info")
PRINTING = ("--cfg", "--info", "--hydra-help", "--shell-completion")
SHORT = {"-cd": "--config-dir", "-c": "--cfg", "-p": "--package", "-i": "--info", "-sc": "--shell-completion"}
SHORT |= {"-m": "--multirun"}
FLAGS = (*VALUED, *PRINTING, *SHORT, "--resolve", "--multirun")


UNASKED = "++claims=[]"


def restore_words(words: Sequence[str]) -> list[str]:
    """The words as the user gave them."""
    return [restore_typed(word) for word in words if word != UNASKED]


def drop_claims(words: list[str]) -> list[str]:
    """The words; with claims=[] where they replace the models of an experiment, whose claims are about its own."""
    keys = [word.partition("=")[0].lstrip("+") for word in words]
    selected = [i for i, key in enumerate(keys) if re.fullmatch(r"model|model\.[^.]+", key)]
    if not selected or "claims" in keys:
        return words
    return [*words[: selected[0]], UNASKED, *words[selected[0] :]]  # Hydra wants all overrides together


def split_words(words: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """Splits words into Hydra's flags (by their long names, with their values) and the overrides."""
    flags: dict[str, str | None] = {}
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-"):
            overrides.append(word)
        else:
            flag, equals, value = word.partition("=")
            flag = SHORT.get(flag, flag)
            flags[flag] = value if equals else next(remaining, None) if flag in VALUED else None
            if flag in VALUED and flag != "--info" and not flags[flag]:
                raise BadInput(f"{flag}: no value; write {flag} VALUE")
    for flag in flags:
        if flag not in FLAGS:
            key = flag.lstrip("-").replace("-", "_")
            near = did_you_mean(flag, {*FLAGS, "--quiet", "-q", "--from"})
            hint = f"write {key}=VALUE" if key.partition(".")[0] in _run_keys() else near
            raise BadInput(f"repsim run: unknown option, got '{flag}'; {hint}")
    return flags, overrides


# a key of a component, which may have more keys than its YAML lists; its kind is always listed
COMPONENT_KEY = re.compile(
    r"(?:(?P<group>model|measure)\.(?P<label>[^.=]+)|data|extract|significance|hardware|options|analyses|figures)\.(?!kind=)[^=]+="
)
NAMED_MODEL = re.compile(r"\+?model\.([\w-]+)=((?!\{|null$|\?\?\?$).+)")
FIGURES_KEY = re.compile(r"figures=(.*)", re.DOTALL)
GROUPS_KEY = re.compile(r"\+{0,2}(groups(?:\.[^.=]+)?)=")


def spell_out_models(words: list[str]) -> list[str]:
    """The words of a command with `model.LABEL=NAME`, where NAME is a folder, file, hub id or entry, spelled out.

    Models that are named this way are the only ones unless `model=` selects others.
    """
    named = {word: match for word in words if (match := NAMED_MODEL.fullmatch(word))}
    spelled = [_spell(*named[word].groups()) if word in named else word for word in words]
    selected = any(word.startswith("model=") for word in words)
    return spelled if selected or not named else ["model=[]", *spelled]


def _spell(label: str, name: str) -> str:
    return f"+model.{label}={write_override_value(find_model_entry(name))}"


def write_override_value(value: Any) -> str:
    """A value in the grammar of Hydra's overrides, whose keys have no quotes.

    >>> write_override_value({"kind": "x", "seeds": [0, None], "data": {"a b": "c d"}})
    '{kind: "x", seeds: [0, null], data: {a\\\\ b: "c d"}}'
    """
    if isinstance(value, Mapping):
        keys = {re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)): each for key, each in value.items()}
        return f"{{{', '.join(f'{key}: {write_override_value(each)}' for key, each in keys.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_override_value, value))}]"
    if isinstance(value, str | os.PathLike):  # a backslash is one, but where a quote follows
        inner = re.sub(r'(\\*)("|$)', lambda end: 2 * end[1] + end[2].replace('"', '\\"'), os.fspath(value))
        return f'"{inner}"'
    try:
        return json.dumps(value, default=lambda number: number.item())  # of numpy
    except (TypeError, AttributeError, ValueError):
        raise BadInput(f"settings: not a plain value, got {value!r:.60}; give text, a number or a list") from None


def spread_groups(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Spreads mappings of groups: they are merged with what is there.

    >>> spread_groups({"extract": {"rows": 9}, "seed": 1})
    {'extract.rows': 9, 'seed': 1}
    """
    spread: dict[str, Any] = {}
    for key, value in settings.items():
        nested = key in GROUPS and isinstance(value, Mapping)
        spread |= {f"{key}.{name}": inner for name, inner in value.items()} if nested else {key: value}
    return spread


def set_key(key: str, value: Any) -> list[str]:
    """The overrides that set a key of a program to a value, whether the configuration has the key or not."""
    word = f"{key}={write_override_value(value)}"
    if key in ("figures", "groups", *GROUPS):
        return convert_to_overrides(word)
    return [*([f"++{key}=null"] if isinstance(value, Mapping) else []), f"++{word}"]


def convert_to_overrides(word: str) -> list[str]:
    """The overrides that Hydra gets for a word of a command.

    A key of a component goes with `++`, as Hydra refuses keys that a YAML does not list; `validate` refuses those that
    the component does not know. `figures=WORD` is short for `figures.which=WORD`. `groups=...` and `groups.NAME=...`
    replace what an experiment has; Hydra would merge them, or refuse a list where it has a mapping.
    """
    if COMPONENT_KEY.match(word):
        return [f"++{word}"]
    if figures := FIGURES_KEY.fullmatch(word):
        return [f"++{word}" if figures[1].startswith("{") else f"++figures.which={figures[1]}"]
    key = GROUPS_KEY.match(word)
    return [word] if key is None else [f"++{key[1]}=null", f"++{word.lstrip('+')}"]


def restore_typed(word: str) -> str:
    return word.removeprefix("++")


def parse_settings(words: list[str], given_by: str = "settings") -> dict[str, Any]:
    """Values by key, from words key=value. Raises BadInput for others, which names the flag they were given by."""
    import yaml

    settings = {}
    for setting in words:
        key, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"{given_by}: not key=value, got '{setting}'; e.g. k=5")
        if key in settings:
            raise BadInput(f"{given_by}: given twice, got '{setting}'; give {key} once")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise BadInput(f"{given_by}: the value is not YAML, got '{setting}'; put it into quotes") from None
    return settings


SETTINGS = {"extract": "Extract", "significance": "Significance", "hardware": "Hardware"}
NAMES: dict[str, Callable[[], Collection[str]]] = {group: partial(describe_group, group) for group in GROUPS}
NAMES |= {"study": studies.names}
ADDED_KEY = re.compile(r"\+[\w.]+=")
PLAIN_KEY = re.compile(r"[A-Za-z_]\w*(?:\.[\w-]+)*")
PLAIN_NAMES = re.compile(r"\[?[A-Za-z][\w./-]*(?:,[A-Za-z][\w./-]*)*\]?")  # Hydra reads others as numbers


def check_spelling(words: Sequence[str]) -> None:
    """Checks the keys and the names of groups of plain words before Hydra starts, which checks all of them again.

    Raises BadInput with the near misses. Words that may mean what only Hydra knows, such as those of `--config-dir`,
    are left to it.
    """
    if any(word.startswith("-") and word not in ("-m", "--multirun") for word in words):
        return
    for key, equals, value in (word.partition("=") for word in words):
        if not equals or PLAIN_KEY.fullmatch(key) is None:
            continue
        first, *inner = key.split(".")
        if first not in {*_run_keys(), "hydra"}:
            raise BadInput(_say_unknown_key(key, words))
        if inner and first in SETTINGS and inner[0] not in (known := _list_group_keys(first)):
            raise BadInput(f"{key}: unknown key, got {value}; {did_you_mean(inner[0], known)}")
        if key in NAMES and PLAIN_NAMES.fullmatch(value) and value != "null":
            known = NAMES[key]()
            for name in value.strip("[]").split(","):
                if name.removesuffix(".yaml") not in known:
                    raise BadInput(_say_unknown_name(key, name))


def check_once(words: Sequence[str]) -> None:
    """Raises BadInput for a key that is added twice, and for a name that a list has twice: Hydra would drop one."""
    added = [word.partition("=")[0] for word in words if ADDED_KEY.match(word)]
    for key in added:
        if added.count(key) > 1:
            raise BadInput(f"{key.lstrip('+')}: added twice, got {key}= again; give each another name")
    for key, _, value in (word.partition("=") for word in words):
        if key in ("model", "measure") and PLAIN_NAMES.fullmatch(value) and value.startswith("["):
            names = value.strip("[]").split(",")
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise BadInput(f"{key}: a name twice, got '{twice}' in {value}; give each once")


def _say_unknown_key(key: str, words: Sequence[str]) -> str:
    return f"{key}: unknown key, got '{_find_given(key, words)}'; {did_you_mean(key.split('.')[0], _run_keys())}"


def _say_unknown_name(group: str, name: str) -> str:
    return f"{group}: no such name, got '{name}'; {did_you_mean(name, NAMES[group]())}"


def _list_group_keys(group: str) -> list[str]:
    """The keys of a group of settings that studies share."""
    from repsim_cli.base import settings  # starts pydantic

    return [each.name for each in fields(getattr(settings, SETTINGS[group]))]


def say_hydra_error(error: Exception, overrides: list[str]) -> str:
    """Hydra's message as one line, with the near misses."""
    text = " ".join(str(error).split())
    twice = any(part in text for part in ("Could not append", "Multiple values", "more than once"))
    if twice and (added := next(filter(None, map(ADDED.fullmatch, overrides)), None)):
        return f"{added[1]}: a group is selected without +, got '{added[0]}'; write {added[1]}={added[2] or 'NAME'}"
    cause = f" {error.__cause__}" if error.__cause__ else ""
    missing = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if missing:
        group, _, name = missing[1].partition("/")
        if group in GROUPS and name:
            return _say_unknown_name(group, name)
        return f"config: {text[:200]}; see repsim list"
    merged = re.search(r"Error merging override \+*([^=]+)=", text)
    if merged:
        return f"{merged[1]}: wrong kind of value, got '{_find_given(merged[1], overrides)}'; see repsim run --cfg job"
    number = next(filter(None, map(NUMBER.fullmatch, overrides)), None)
    if number and any(part in text for part in ("group override must be a string or a list", "is not iterable")):
        return _say_not_a_name(number[1], overrides)
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        key = override[1]
        if key in GROUPS:
            return _say_not_a_name(key, overrides)
        first, *rest = key.split(".")
        if first not in _run_keys():
            return _say_unknown_key(key, overrides)
        if first in TABLES and len(rest) == 2:
            hint = did_you_mean(rest[0], describe_group(first))
        else:
            hint = f"add it with +{_find_given(key, overrides)}, if there is such a key"
        return f"{key}: unknown key, got '{_find_given(key, overrides)}'; {hint}"
    return f"overrides: {(text + cause)[:400]}; see repsim run --help"


def _say_not_a_name(group: str, overrides: Sequence[str]) -> str:
    got = _find_given(group, overrides)
    return f"{group}: a group is selected by name, got '{got}'; write {group}=NAME, or +{group}.KEY=VALUE"


NUMBER = re.compile(rf"\+{{0,2}}({'|'.join(GROUPS)})=\[?([-+.\d].*|true|false|-?inf|nan)", re.IGNORECASE)
ADDED = re.compile(rf"\+{{1,2}}({'|'.join(GROUPS)})=(?!\{{)(.*)")
LABELLED = re.compile(r"\+{0,2}(model|measure)\.([^={]+)=(\{.*)", re.DOTALL)


def say_unreadable_word(word: str, reads: Callable[[str], bool]) -> str:
    """Says what to write for a word that Hydra cannot parse. reads: whether Hydra can parse a word."""
    key, equals, value = word.partition("=")
    labelled = LABELLED.fullmatch(word)
    spelled = [f"{key}={write_override_value(_parse_yaml(value))}"] if equals else []
    spelled += [f"+{labelled[1]}={write_override_value({labelled[2]: _parse_yaml(labelled[3])})}"] if labelled else []
    better = next((shlex.quote(restore_typed(each)) for each in spelled if reads(each)), None)
    general = "KEY=VALUE, with quotes around values that hold spaces or symbols"
    return (
        f"overrides: cannot be read, got {restore_typed(word)[:200]}; write {better or general}; labels of other "
        "letters than a to z, and unusual names, go into a YAML of your own (--config-dir)"
    )


def _parse_yaml(value: str) -> Any:
    """A list or a mapping as YAML has it, where the value is one; else the text."""
    import yaml

    try:
        return yaml.safe_load(value) if value[:1] in ("{", "[") else value
    except (yaml.YAMLError, ValueError, RecursionError):
        return value


def _find_given(key: str, overrides: Sequence[str]) -> str:
    return next((restore_typed(o) for o in overrides if o.lstrip("+~").startswith(f"{key}=")), key)


def _run_keys() -> list[str]:
    """The keys of the default configuration."""
    content = read_shipped(find_conf_folder() / "config.yaml")
    return sorted({*content, *GROUPS} - {"defaults", "hydra"})
