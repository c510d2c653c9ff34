"""Docstrings that are shown to users: a description, the meaning of each setting, an example.

The first paragraph is the description. Below it is a line `KEY: meaning` per keyword argument, continued on indented
lines, and where it helps `Example: repsim run ...`.
"""

import inspect
import re
from typing import NamedTuple

LINE = re.compile(r"([a-z]\w*): (.+)")
EXAMPLE = "Example: "
# of a sentence, not of an abbreviation
END = re.compile(r"(?<!\bal)(?<!\bfig)(?<!\beq)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\.\.)\. |(?<=\?) ")


class Docstring(NamedTuple):
    """A docstring: its paragraphs, the meaning of each setting, the example command."""

    prose: list[str]
    settings: dict[str, str]
    example: str


def take_first_sentence(text: str) -> str:
    """The first sentence of a text, without its full stop.

    >>> take_first_sentence("Every neuron (Gurnee et al. 2024, fig. 3). More.")
    'Every neuron (Gurnee et al. 2024, fig. 3)'
    >>> take_first_sentence("Of 1/2, 1/4 ... of the rows. More.")
    'Of 1/2, 1/4 ... of the rows'
    """
    return END.split(" ".join(text.split()), maxsplit=1)[0].removesuffix(".")


def parse(docstring: str | None) -> Docstring:
    r"""
    >>> parse("One row per example.\n\nrows: how many are drawn,\n    under the seed\nExample: repsim run").settings
    {'rows': 'how many are drawn, under the seed'}
    """
    first, *rest = re.split(r"\n{2,}", inspect.cleandoc(docstring or ""))
    prose, meaning = [first], {EXAMPLE: ""}
    for block in rest:
        others, key = [], None
        for line in block.split("\n"):
            if line.startswith(EXAMPLE):
                key = EXAMPLE
                meaning[key] = line.removeprefix(EXAMPLE)
            elif match := LINE.fullmatch(line):
                key = match[1]
                meaning[key] = match[2]
            elif key and line.startswith("    "):
                meaning[key] += f" {line.strip()}"
            else:
                key = None
                others.append(line)
        if others:
            prose.append("\n".join(others))
    return Docstring(prose, meaning, meaning.pop(EXAMPLE))
