"""The words of a command as Hydra takes them."""

import json
import re
from functools import cache
from typing import Any

from repsim_cli.presets import TABLES, entries, entry_of

# a key of a component, which may have more keys than its YAML lists; its kind is always listed
COMPONENT_KEY = re.compile(
    r"(?:(?P<group>model|measure)\.(?P<label>[^.=]+)|data|extract|significance|hardware|options|analyses|figures)\.(?!kind=)[^=]+="
)
NAMED_MODEL = re.compile(r"\+?model\.([\w-]+)=((?!\{|null$|\?\?\?$).+)")
FIGURES_KEY = re.compile(r"figures=(.*)", re.DOTALL)
GROUPS_KEY = re.compile(r"\+{0,2}(groups(?:\.[^.=]+)?)=")


@cache
def store() -> None:
    """Makes the entries of the tables known to Hydra, so that model=NAME and measure=NAME select them.

    The processes that launchers start receive Hydra's store from this one.
    """
    from hydra.core.config_store import ConfigStore

    kept = ConfigStore.instance()
    for group in TABLES:
        for label, entry in entries(group).items():
            kept.store(group=group, name=label, node={label: entry}, provider="repsim")
    # Hydra copies its store in every composition, most of whose time that took; it copies what it takes from it too
    kept.__deepcopy__ = lambda memo: kept  # type: ignore[attr-defined]


def with_models(words: list[str]) -> list[str]:
    """The words of a command with `model.LABEL=NAME`, where NAME is a folder, file, hub id or entry, spelled out.

    Models that are named this way are the only ones unless `model=` selects others.
    """
    named = {word: match for word in words if (match := NAMED_MODEL.fullmatch(word))}
    spelled = [_spelled(*named[word].groups()) if word in named else word for word in words]
    selected = any(word.startswith("model=") for word in words)
    return spelled if selected or not named else ["model=[]", *spelled]


def _spelled(label: str, name: str) -> str:
    return f"+model.{label}={_as_override(entry_of(name))}"


def _as_override(value: Any) -> str:
    """A value in the grammar of Hydra's overrides, whose keys have no quotes.

    >>> _as_override({"kind": "x", "seeds": [0, None], "data": {"path": "a b"}})
    '{kind: "x", seeds: [0, null], data: {path: "a b"}}'
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_as_override(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_override, value))}]"
    return json.dumps(value, ensure_ascii=False)


def as_hydra_takes(word: str) -> list[str]:
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


def as_typed(word: str) -> str:
    return word.removeprefix("++")
