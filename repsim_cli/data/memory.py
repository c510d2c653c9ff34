"""Texts of a Python program; configurations name them by a key that this process alone can resolve."""

from collections.abc import Generator, Iterator, Sequence

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import say_count
from repsim_cli.base.registry import data
from repsim_cli.data.base import Data
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.packing import Text

HELD: dict[str, Data] = {}


@data.register("memory")
def memory(*, key: str) -> Data:
    """Texts of a Python program that called `repsim_cli.compare`; no command can open them.

    key: their hash.
    Example: repsim_cli.compare({"a": "tiny_a", "b": "tiny_b"}, texts)
    """
    if key not in HELD:
        raise explain_gone("key: the texts", key)
    return HELD[key]


def explain_gone(what: str, key: str) -> BadInput:
    return BadInput(f"{what} was in the memory of another process, got '{key}'; call repsim_cli.compare there again")


def hold(key: str, texts: Data) -> dict[str, str]:
    """The entry of a configuration that stands for them from now on, in this process."""
    HELD[key] = texts
    return {"kind": "memory", "key": key}


def _check(given: Sequence[tuple[str, ...]]) -> None:
    """Raises BadInput where all texts are empty, and for half of a surrogate pair, which no tokenizer takes. given:
    texts, each with what belongs to it."""
    if not any(text.strip() for text, *_ in given):
        raise BadInput(f"data: no text, got {say_count(len(given), 'text')} of white space or nothing; give texts")
    for number, text in enumerate(map(" ".join, given)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"data: half of a surrogate pair, got {text[:60]!a} in text {number}; decode the text again"
            ) from None


def wrap_texts(given: Sequence[str]) -> Text:
    """Makes data of texts in memory, each a document."""
    _check([(text,) for text in given])

    def documents() -> Generator[str, None, None]:
        yield from given

    return Text(documents, f"{len(given)} texts in memory")


def label_texts(given: Sequence[tuple[str, str]]) -> Examples:
    """Makes data of (text, label) pairs in memory; labels are in the order of their first occurrence."""
    _check(given)
    names = tuple(dict.fromkeys(label for _, label in given))

    def read() -> Iterator[Example | str]:
        yield from (Example((text,), label) for text, label in given)

    return Examples(read, names, f"{len(given)} labelled texts in memory")
