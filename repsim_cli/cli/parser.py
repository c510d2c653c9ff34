"""The parser of the words of a command."""

import argparse
import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from repsim_cli import __version__
from repsim_cli.base import garbage
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean

MORE = {"compare": "two models are compared, more by repsim run model.LABEL=MODEL ...; "}  # words too many, by command

LACKING = "the following arguments are required"  # how argparse says it

STARTING_RUNS = ("compare", "verify", "claims")  # import for seconds more, until `execution/perform.py`


class Parser(argparse.ArgumentParser):
    """Its errors are lines like all others; settings may follow each other (--set a=1 b=2)."""

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        found, left = self.parse_known_args(words)
        if left and hasattr(found, "set") and all("=" in word and not word.startswith("-") for word in left):
            found.set, left = [*found.set, *left], []
        command = f"repsim {words[0]}"
        if left:
            hint = self._find_part(words)._suggest(words[0], left[0])
            raise BadInput(f"{command}: unknown words, got {' '.join(left)}; {hint}see {command} --help")
        for name, value in vars(found).items():
            if value == "" or (isinstance(value, list) and "" in value):
                raise BadInput(f"{command}: {name.replace('_', '-')} is empty, got ''; give a value, or drop it")
        return found

    def _find_part(self, words: Sequence[str]) -> "Parser":
        """Finds the parser of the command, or of its part, that the words begin with."""
        of = next((action.choices for action in self._actions if isinstance(action.choices, Mapping)), {})
        return of[words[0]]._find_part(words[1:]) if words and words[0] in of else self

    def _suggest(self, command: str, word: str) -> str:
        """Suggests what a word that no argument takes may have meant; empty where nothing is near."""
        if not word.startswith("-"):
            return MORE.get(command, "")
        names = [name.lstrip("-") for name in self._option_string_actions]
        near = difflib.get_close_matches(word.split("=")[0].lstrip("-"), names, n=1)
        return "".join(f"did you mean --{name}? " for name in near)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"no such word, got '{value}'; {did_you_mean(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        if message.startswith(LACKING):  # argparse names the last ones, whichever was left out
            needed = [action for action in self._actions if action.required and not action.option_strings]
            words = " ".join(_name_words(action) for action in needed)
            raise BadInput(f"{self.prog}: too few words; give {words}, for {self.epilog}")
        raise BadInput(f"{self.prog}: {message}{' ' if message.endswith('?') else '; '}see {self.prog} --help")


def _name_words(action: argparse.Action) -> str:
    """Names what stands for an argument in the help, or the words that it may be."""
    return "|".join(action.choices) if isinstance(action.choices, Mapping) else str(action.metavar)


def read_column(word: str) -> int | str:
    """Takes a number for the place of a column, from 0, as settings do, and anything else for its name."""
    return int(word) if word.isdecimal() else word


def read_number(word: str) -> float:
    """Reads a number of a command."""
    try:
        return float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number, got '{word}'") from None


Argument = tuple[tuple[str, ...], dict[str, Any]]


class Command(NamedTuple):
    """A command of the terminal.

    call: MODULE.FUNCTION in `cli/`; empty where nothing is called, as by `run`, whose words go another way.
    help: its line in the list of commands. about: the head of its own help; empty: the same line.
    usage: its words; None: made from its arguments.
    parts: commands that follow its name.
    """

    name: str
    call: str
    help: str
    example: str
    arguments: Sequence[Argument] = ()
    about: str = ""
    usage: str | None = None
    parts: "Sequence[Command]" = ()


def argument(*names: str, **settings: Any) -> Argument:
    """An argument of a command, as `add_argument` of argparse takes it."""
    return names, settings


def make_parser(commands: Iterable[Command]) -> Parser:
    """Makes the parser of all commands, of which it imports none."""
    top = Parser(
        prog="repsim",
        description="Compare the inside of language models: from one config to similarity matrices, figures and JSON.",
        epilog="example: repsim run experiment=tiny/pythia_cka",
    )
    top.add_argument("--version", action="version", version=f"repsim {__version__}")
    _add_commands(top, "COMMAND", commands)
    return top


def _add_commands(parser: argparse.ArgumentParser, kind: str, commands: Iterable[Command]) -> None:
    """kind: what stands for their names in the help."""
    added = parser.add_subparsers(metavar=kind, required=True)
    for command in commands:
        sub = added.add_parser(
            command.name,
            usage=command.usage,
            help=command.help,
            description=command.about or f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"example: {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=_make_lazy_command(*command.call.split(".")) if command.call else lambda _: 0)
        for names, settings in command.arguments:
            sub.add_argument(*names, **settings)
        if command.parts:
            _add_commands(sub, "PART", command.parts)


def _make_lazy_command(module: str, name: str) -> Callable[..., Any]:
    """Makes what calls a command, whose module is imported then: help needs none of them."""

    def call(parsed: argparse.Namespace) -> int:
        command = getattr(importlib.import_module(f"repsim_cli.cli.{module}"), name)
        if module not in STARTING_RUNS:
            garbage.resume()
        return command(parsed)

    return call
