"""The parser of the words of a command."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from repsim_cli.base.errors import BadInput


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


def add_map(add: Callable[..., argparse.ArgumentParser], command: Callable[[str, str], Callable[..., Any]]) -> None:
    """The command `map` and its two parts. command: makes a part's function."""
    sub = add("map", lambda _: 0, "keep vectors when the model changes", "repsim map fit old.npy new.npy", MAP_HELP)
    parts = sub.add_subparsers(metavar="PART", required=True)
    fit = parts.add_parser("fit", help="fit maps on some documents and score them on others, in a new run folder")
    fit.set_defaults(command=command("vector_maps", "fit_command"))
    fit.add_argument("old", metavar="OLD", help="a model as of repsim compare, or a file of its rows")
    fit.add_argument("new", metavar="NEW", help="the same; rows of files are paired in order, or by ids in both files")
    fit.add_argument("--data", metavar="DATA", help="of models: a file of text, a table, or a name of repsim list data")
    fit.add_argument(
        "--column", metavar="NAME", type=read_column, help="of a table: the column of the text, or its number (text)"
    )
    fit.add_argument("--kind", metavar="NAME,...", help="of rotation, affine, ridge and low_rank (all)")
    fit.add_argument(
        "--layers", metavar="LAYER,LAYER", action="append", default=[], help="of the two models (the last of each)"
    )
    fit.add_argument("--names", metavar="NAME,NAME", help="of the models (the last parts of their paths that differ)")
    fit.add_argument("--out", metavar="MAP", help="a .safetensors file for the map that keeps most new neighbours")
    fit.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a setting of repsim run")
    use = parts.add_parser("apply", help="map the rows of a file into another file")
    use.set_defaults(command=command("vector_maps", "apply_command"))
    use.add_argument("map", metavar="MAP", help="a file that repsim map fit wrote")
    use.add_argument("rows", metavar="ROWS", help="a .npy, .parquet or .safetensors file of rows of the old model")
    use.add_argument("out", metavar="OUT", help="a new file of the same kind")
    use.add_argument("--array", metavar="NAME", help="the array or column, where several have the width of the map")


MAP_HELP = """Keep vectors when the model changes: `map fit` fits maps from rows of the old model to rows of the new one
on some documents, and says what they keep on others; `map apply` maps stored rows into a new file."""
