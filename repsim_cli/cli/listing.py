"""`repsim list`: a line for everything that can be selected, set or named, each with a text of its own."""

import argparse
import importlib.util
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from repsim_cli.base.documents import list_leaves
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import name_package
from repsim_cli.cli import docstrings
from repsim_cli.cli.kinds import ROOMS, read_kind
from repsim_cli.cli.terminal import say
from repsim_cli.config.presets import GROUPS, TABLES, UNSELECTED, describe_group, read_table_entries
from repsim_cli.findings.leaderboard import grade

SETTING, RUN, ARCHITECTURE = "setting", "run", "architecture"
LISTED = (*UNSELECTED, *GROUPS, SETTING)  # the groups of `repsim list` alone, without the last
NEEDS, ALLOWS = "# Needs: ", "# Allows: "
FACT = re.compile(r"(Source|Cost|Command|Time|Expected|Claims)\w*: ")  # what the header of an experiment goes on with
SKIPPED = ("# @package", "# Example:", NEEDS, ALLOWS)
LONGEST, LEAST = 150, 30  # characters of a text, and of what is left of it where it is cut


class ListEntry(NamedTuple):
    """What a list says of a name: its text, what else is known of it, and a command."""

    name: str
    text: str
    notes: str = ""
    example: str = ""


def list_entries(group: str) -> list[ListEntry]:
    """Gives the entries of a group of `LISTED`."""
    if group == SETTING:
        return list(_list_settings())
    if group in UNSELECTED:
        room = ROOMS[group]
        told = {name: read_kind(group, name) for name in room.names() if room.own(name)}
        own = [
            ListEntry(name, docstrings.take_first_sentence(kind.prose[0]), example=kind.example)
            for name, kind in told.items()
        ]
        more = {name: point for name, point in room.plugins.items() if name not in told}
        return [*own, *(ListEntry(name, f"From the package {name_package(point)}") for name, point in more.items())]
    comments = describe_group(group)
    own = _name_own_settings(comments, read_table_entries(group)) if group in TABLES else {}
    return [
        ListEntry(
            name,
            shorten_entry(_summarise_comment(comment), own.get(name, "")),
            _list_allowed(comment) + (grade(name) if group == "measure" else "") + _say_missing_package(comment),
        )
        for name, comment in comments.items()
    ]


def _list_settings() -> Iterator[ListEntry]:
    """Lists every setting of a run that is not a setting of a component."""
    from repsim_cli.cli.describe import list_settings_topics

    for topic in list_settings_topics():
        for key, setting in topic.settings.items():
            path = f"{topic.path}.{key}" if topic.path else key
            yield ListEntry(
                path, shorten_entry(docstrings.take_first_sentence(setting.meaning or f"see repsim describe {path}"))
            )


def _summarise_comment(comment: list[str]) -> str:
    """The first sentence of a comment, before what it says of source, cost and command."""
    lines = [line.lstrip("# ").removeprefix("Question: ") for line in comment if not line.startswith(SKIPPED)]
    return docstrings.take_first_sentence(" ".join(itertools.takewhile(lambda line: not FACT.match(line), lines)))


def shorten_entry(text: str, own: str = "") -> str:
    """A text that ends, in a line, with what is an entry's own behind it.

    >>> shorten_entry("One; two")
    'One; two'
    >>> shorten_entry("A model (of some authors, " + 30 * "who wrote " + ") of 3 blocks")
    'A model of 3 blocks'
    """
    if len(text) > LONGEST:
        text = re.sub(r" \([^()]*\)", "", text)
    ends = [found.start() for found in re.finditer("[;:,] ", text[:LONGEST]) if _is_closed(text[: found.start()])]
    if len(text) > LONGEST:
        cut = ends[-1] if ends and ends[-1] >= LEAST else text[:LONGEST].rfind(" ")
        text = text[:cut] if ends and ends[-1] >= LEAST else f"{text[:cut]} ..."
    return f"{text} ({own})" if own else text


def _is_closed(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("()", "{}", "[]")) and text.count("`") % 2 == 0


def _name_own_settings(comments: Mapping[str, list[str]], content: Mapping[str, Any]) -> dict[str, str]:
    """Names, by entry, the settings that tell it from the others of its comment; of the only one, nothing."""
    by_comment: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for name, comment in comments.items():
        by_comment.setdefault(tuple(comment), {})[name] = dict(list_leaves(content[name]))
    own = {}
    for alike in by_comment.values():
        for name, leaves in alike.items():
            keys = find_telling(leaves, [other for label, other in alike.items() if label != name])
            own[name] = ", ".join(f"{_name(key)} {leaves[key]}" for key in keys)
    return own


def find_telling(leaves: Mapping[str, str], others: list[dict[str, str]]) -> list[str]:
    """The fewest settings, roughly, by which an entry is told from all others.

    >>> find_telling({"a": "1", "b": "2"}, [{"a": "1", "b": "3"}, {"a": "1"}])
    ['b']
    """
    keys: list[str] = []
    while others:
        told = {key: sum(other.get(key) != value for other in others) for key, value in leaves.items()}
        best = max(told, key=lambda key: told[key], default="")
        if not told.get(best):
            break
        keys.append(best)
        others = [other for other in others if other.get(best) == leaves[best]]
    return keys


def _name(key: str) -> str:
    """A setting by its last part, a kind by what it is of."""
    parts = key.split(".")
    return parts[-2] if parts[-1] == "kind" and len(parts) > 1 else parts[-1]


def _list_allowed(comment: list[str]) -> str:
    """The estimates and the significance of a measure."""
    return "".join(f" [{line.removeprefix(ALLOWS)}]" for line in comment if line.startswith(ALLOWS))


def _say_missing_package(comment: list[str]) -> str:
    """A note on the package that the comment names, where it is not installed."""
    for line in comment:
        if line.startswith(NEEDS) and importlib.util.find_spec(package := line.removeprefix(NEEDS)) is None:
            return f" (unavailable: needs {package}; pip install -e '.[topology]')"
    return ""


def describe_runs() -> list[dict[str, Any]]:
    """Describes the runs that can be read, the oldest first."""
    from repsim_cli.runs import folders, reader, results

    root = results.find_outputs_root()
    found = []
    for folder in folders.list_run_folders(root) if root.is_dir() else []:
        manifest = reader.read_manifest(folder)
        kept = {key: manifest[key] for key in ("name", "study", "status", "started")}
        found.append({**kept, "folder": str(folder)})
    return found


def list_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim list`: what there is of one group or of all, the runs, or the architectures."""
    if parsed.json:
        from repsim_cli.cli.machine import build_lists_json, say_json

        if parsed.what == ARCHITECTURE:
            raise BadInput(f"--json: of what can be selected or set, or of runs, got {ARCHITECTURE}; drop --json")
        groups = {None: LISTED, RUN: ()}.get(parsed.what, (parsed.what,))
        say_json("list", build_lists_json(groups, describe_runs() if parsed.what in (None, RUN) else ()))
        return 0
    if parsed.what == RUN:
        known = describe_runs()
        if not known:
            from repsim_cli.runs import results

            say(f"no runs that can be read in {results.find_outputs_root()}; start one with: repsim run")
        for run in known:
            say(f"{run['started'][:19]}  {run['status']:11}  {run['name']:24}  {run['folder']}")
        return 0
    if parsed.what == ARCHITECTURE:
        from repsim_cli.models import overview

        say(*overview.describe_model_types())
        return 0
    for group in [parsed.what] if parsed.what else LISTED[:-1]:
        if not parsed.what:
            say(f"{group}:")
        found = list_entries(group)
        width = max(len(entry.name) for entry in found)
        for entry in found:
            say(f"{'' if parsed.what else '  '}{entry.name:{width}}  {entry.text}{entry.notes}")
            if parsed.what and entry.example:
                say(f"  {entry.example}")
    if not parsed.what:
        say(f"one group: repsim list GROUP (also {SETTING}, {RUN}, {ARCHITECTURE}); one name: repsim describe NAME")
    return 0
