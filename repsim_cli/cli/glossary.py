"""The words of the pages, which `repsim describe` explains too."""

import re
from functools import cache
from pathlib import Path

MARKS = re.compile(r"\[([^]]*)\]\([^)]*\)|\*(\w+)\*")  # a link, a stressed word


def find_glossary() -> Path:
    """The glossary: inside the installed package, or among the pages of a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "assets" / "glossary.md"
    return inside if inside.is_file() else package.parent / "docs" / "glossary.md"


@cache
def read_glossary() -> dict[str, str]:
    """Reads the glossary: by heading (`Checkpoint, step`) the text below it, without Markdown's marks.
    Empty where there is no file.
    """
    if not find_glossary().is_file():
        return {}
    _, *parts = re.split(r"^## ", find_glossary().read_text(), flags=re.M)
    parted = (part.partition("\n") for part in parts)
    return {heading.strip(): MARKS.sub(r"\1\2", " ".join(text.split())) for heading, _, text in parted}


def look_up_terms(name: str) -> list[tuple[str, str]]:
    """The headings of which a word, in the singular or plural, is one, and their texts.

    >>> [heading for heading, _ in look_up_terms("hook_points")]
    ['Hook point']
    """
    asked = _make_word_key(name)
    return [
        (heading, text) for heading, text in read_glossary().items() if asked in map(_make_word_key, heading.split(","))
    ]


def _make_word_key(word: str) -> str:
    single = re.sub("ies$", "y", word.strip().lower().replace("_", " "))
    return single.removeprefix("the ").removesuffix("s")
