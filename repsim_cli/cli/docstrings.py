"""Docstrings that are shown to users: a description, the meaning of each setting, an example.

The first paragraph is the description. Below it is a line `KEY: meaning` per keyword argument, continued on indented
lines, and where it helps `Example: repsim run ...`.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LINE = re.compile(r"([a-z]\w*): (.+)")
EXAMPLE = "Example: "
# of a sentence, not of an abbreviation
END = re.compile(r"(?<!\bal)(?<!\bfig)(?<!\beq)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)\. |(?<=\?) ")
REGISTERED = re.compile(r"studies\.register\('(\w+)'\)")


class Text(NamedTuple):
    """A docstring: its paragraphs, the meaning of each setting, the example command."""

    prose: list[str]
    settings: dict[str, str]
    example: str

    @property
    def sentence(self) -> str:
        """The first sentence, on a single line."""
        return first_sentence(self.prose[0])


def first_sentence(text: str) -> str:
    """The first sentence of a text, without its full stop.

    >>> first_sentence("Every neuron (Gurnee et al. 2024, fig. 3). More.")
    'Every neuron (Gurnee et al. 2024, fig. 3)'
    """
    return END.split(" ".join(text.split()), maxsplit=1)[0].removesuffix(".")


def parsed(docstring: str | None) -> Text:
    r"""
    >>> parsed("One row per example.\n\nrows: how many are drawn,\n    under the seed\nExample: repsim run").settings
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
    return Text(prose, meaning, meaning.pop(EXAMPLE))


def studies() -> dict[str, Text]:
    """The texts of all studies, read from their source, as importing them takes seconds."""
    texts = {}
    for classes, _ in _sources("studies/*/study*.py"):
        for node in classes.values():
            for name in filter(None, map(REGISTERED.fullmatch, map(ast.unparse, node.decorator_list))):
                texts[name[1]] = parsed(ast.get_docstring(node))
    return dict(sorted(texts.items()))


def analyses() -> dict[str, Text]:
    """The texts of the settings of all analyses, the second parameter of their functions, read from the source."""
    texts = {}
    for classes, functions in _sources("findings/*.py", "studies/*/finding*.py"):
        for node in functions.values():
            if any(ast.unparse(decorator).startswith("analysis(") for decorator in node.decorator_list):
                options = node.args.args[1].annotation
                texts[node.name] = parsed(ast.get_docstring(classes[ast.unparse(options)])) if options else parsed("")
    return dict(sorted(texts.items()))


def _sources(*patterns: str) -> Iterator[tuple[dict[str, ast.ClassDef], dict[str, ast.FunctionDef]]]:
    """The classes and functions of every file, by name."""
    for file in sorted(file for pattern in patterns for file in Path(__file__).parent.parent.glob(pattern)):
        body = ast.parse(file.read_text()).body
        yield (
            {node.name: node for node in body if isinstance(node, ast.ClassDef)},
            {node.name: node for node in body if isinstance(node, ast.FunctionDef)},
        )
