"""What can be selected: the files of conf/, and the models and measures of its two tables."""

import re
from functools import cache
from pathlib import Path
from typing import Any

GROUPS = ("experiment", "model", "data", "measure", "extract", "significance", "hardware")
TABLES = {"model": "models.yaml", "measure": "measures.yaml"}  # groups of which several may be selected, by label
LABEL = re.compile(r"(\w+):")
# a key of a component, which may have more keys than its YAML lists; its kind is always listed
COMPONENT_KEY = re.compile(
    r"(?:(?P<group>model|measure)\.(?P<label>[^.=]+)|data|extract|significance|hardware|options|analyses)\.(?!kind=)[^=]+="
)
GROUPS_KEY = re.compile(r"\+{0,2}(groups(?:\.[^.=]+)?)=")


def conf_dir() -> Path:
    """The configs: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent.parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "conf"


def described(group: str) -> dict[str, list[str]]:
    """The names of a group, sorted, each with the lines of its comment.

    In a table a comment describes the labels below it, up to the next comment.
    """
    if group in TABLES:
        return dict(sorted(_labels((conf_dir() / TABLES[group]).read_text())))
    root = conf_dir() / group
    return {
        str(file.relative_to(root).with_suffix("")): [line for line in file.read_text().splitlines() if line[:1] == "#"]
        for file in sorted(root.rglob("*.yaml"))
    }


def _labels(text: str) -> list[tuple[str, list[str]]]:
    comment: list[str] = []
    labels: list[tuple[str, list[str]]] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("#"):
            comment = [*comment, line] if before.startswith("#") else [line]
        elif key := LABEL.match(line):
            labels.append((key[1], comment))
        before = line
    return labels


@cache
def entries(group: str) -> dict[str, Any]:
    """The entries of a table, by label."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((conf_dir() / TABLES[group]).read_text(), loader)


@cache
def store() -> None:
    """Makes the entries of the tables known to Hydra, so that model=NAME and measure=NAME select them.

    The processes that launchers start receive Hydra's store from this one.
    """
    from hydra.core.config_store import ConfigStore

    for group in TABLES:
        for label, entry in entries(group).items():
            ConfigStore.instance().store(group=group, name=label, node={label: entry}, provider="repsim")


def as_hydra_takes(word: str) -> list[str]:
    """The overrides that Hydra gets for a word of a command.

    A key of a component goes with `++`, as Hydra refuses keys that a YAML does not list; `validate` refuses those that
    the component does not know. `groups=...` and `groups.NAME=...` replace what an experiment has; Hydra would merge
    them, or refuse a list where it has a mapping.
    """
    if COMPONENT_KEY.match(word):
        return [f"++{word}"]
    key = GROUPS_KEY.match(word)
    return [word] if key is None else [f"++{key[1]}=null", f"++{word.lstrip('+')}"]


def as_typed(word: str) -> str:
    return word.removeprefix("++")
