"""The parser of the words of a command."""

import argparse
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from repsim_cli import __version__
from repsim_cli.base import garbage
from repsim_cli.base.errors import BadInput

STARTING_RUNS = ("compare", "verify", "claims")  # import for seconds more, until `execution/perform.py`


class Parser(argparse.ArgumentParser):
    """Its errors are lines like all others; settings may follow each other (--set a=1 b=2)."""

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        found, left = self.parse_known_args(words)
        if left and hasattr(found, "set") and all("=" in word and not word.startswith("-") for word in left):
            found.set, left = [*found.set, *left], []
        command = f"repsim {words[0]}"
        if left:
            raise BadInput(f"{command}: unknown words, got {' '.join(left)}; see {command} --help")
        for name, value in vars(found).items():
            if value == "" or (isinstance(value, list) and "" in value):
                raise BadInput(f"{command}: {name.replace('_', '-')} is empty, got ''; give a value, or drop it")
        return found

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{self.prog}: {message}; see {self.prog} --help")


def read_column(word: str) -> int | str:
    """Takes a number for the place of a column, from 0, as settings do, and anything else for its name."""
    return int(word) if word.isdecimal() else word


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
