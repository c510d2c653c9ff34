"""The parser of the words of a command."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from repsim_cli.base.plain import escaped


class Parser(argparse.ArgumentParser):
    """Its errors show the words as `say` does; settings may follow each other (--set a=1 b=2)."""

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        found, left = self.parse_known_args(words)
        if left and hasattr(found, "set") and all("=" in word and not word.startswith("-") for word in left):
            found.set, left = [*found.set, *left], []
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found

    def error(self, message: str) -> NoReturn:
        super().error(escaped(message))
