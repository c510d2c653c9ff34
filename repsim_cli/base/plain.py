"""Labels and other texts, which may hold any character, as names of files, cells of CSV and lines of a terminal."""

import csv
import hashlib
import io
import itertools
import re
from collections.abc import Container, Iterable, MutableMapping
from typing import Any

PART, WHOLE = 60, 180  # characters of a label in a name, and of the name
# characters that turn the text beside them around, such as a number behind a name
TURNING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# those that steer a terminal or end a line, and halves of surrogates, which cannot be encoded
STEERING = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *TURNING, *range(0xD800, 0xE000))
SHOWN = {i: chr(i).encode("unicode_escape").decode() for i in STEERING}
# what a spreadsheet takes for a formula, also in the wide form, and what it takes for a number
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\n]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


class Name(str):
    """A name made of labels; they tell names apart that are written the same."""

    parts: tuple[str, ...]

    def __new__(cls, text: str, parts: tuple[str, ...]) -> "Name":
        made = super().__new__(cls, text)
        made.parts = parts
        return made


def join_into_ranges(numbers: Iterable[int]) -> list[range]:
    """Joins ascending numbers to ranges of those that follow each other.

    >>> join_into_ranges([0, 1, 2, 4])
    [range(0, 3), range(4, 5)]
    """
    made: list[range] = []
    for number in numbers:
        if made and made[-1].stop == number:
            made[-1] = range(made[-1].start, number + 1)
        else:
            made.append(range(number, number + 1))
    return made


def name_blocks(numbers: Iterable[int]) -> str:
    """Names blocks in words, those that follow each other as a range.

    >>> name_blocks([0, 1, 2, 4]), name_blocks([3])
    ('blocks 0 to 2, 4', 'block 3')
    """
    numbers = list(numbers)
    parts = [f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in join_into_ranges(numbers)]
    return f"block{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def slug(*labels: str) -> Name:
    """Labels as a safe part of a file name, joined by hyphens. A label that was shortened, or changed beyond
    underscores for spaces and commas, ends with a hash of the whole. A label that is a name stands for its labels.

    >>> slug("cka, words", "resid_post@3"), slug("../my model@3")
    ('cka__words-resid_post@3', 'my_model@3-ba29c2b4')
    """
    parts = tuple(part for label in labels for part in getattr(label, "parts", (label,)))
    return Name(_cut("-".join(map(_make_slug_part, parts)), WHOLE, parts), parts)


def _make_slug_part(label: str) -> str:
    kept = re.sub(r"[^\w.@-]", "_", label, flags=re.ASCII).lstrip("._") or "x"
    return _cut(kept, PART if kept == re.sub("[ ,]", "_", label) else 0, label)


def _cut(text: str, most: int, of: Any) -> str:
    """The text, or where it is longer its beginning with a hash of what it stands for."""
    return text if len(text) <= most else f"{text[: (most or PART) - 9]}-{_hash(of)}"


def _hash(of: Any) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()[:8]


def make_unique_filename(name: str, given: MutableMapping[str, tuple[str, ...]]) -> str:
    """The name of a file, with a hash where other labels already gave this name, or one that differs in case alone,
    which some file systems take for the same. given: those before.

    Raises RuntimeError for labels that were given before: one of two results would be lost.
    """
    made = slug(name)
    stem, parts = str(made), made.parts
    while given.get(stem.casefold(), parts) != parts:
        stem += f"-{_hash(parts)}"
    if stem.casefold() in given:
        raise RuntimeError(f"{stem}: the file of this name is written twice")
    given[stem.casefold()] = parts
    return stem


def find_free_key(key: str, taken: Container[str]) -> str:
    """The key, with a number where it is taken: labels may hold what joins them.

    >>> find_free_key("a, b", {"a, b": 0})
    'a, b 2'
    """
    numbered = (f"{key} {number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([key], numbered) if each not in taken)


def say_count(count: int, unit: str) -> str:
    """A number of units in words.

    >>> say_count(1, "model"), say_count(3, "pair of models")
    ('1 model', '3 pairs of models')
    """
    first, *rest = unit.split(" ", 1)
    return " ".join([str(count), first if count == 1 else f"{first}s", *rest])


def write_share(value: float) -> str:
    """Writes a value that is about 1 at most with two decimals, and with more what is less and would be written as 1.

    >>> write_share(0.5), write_share(0.998), write_share(1.0), write_share(-3.0)
    ('0.50', '0.998', '1.00', '-3.00')
    """
    return _write_below(value, 1, ".2f")


def write_interval(value: float, low: float, high: float) -> str:
    """Writes a share with its interval.

    >>> write_interval(0.996, 0.5, 1.0)
    '0.996 [0.50, 1.00]'
    """
    return f"{write_share(value)} [{write_share(low)}, {write_share(high)}]"


def write_percent(share: float, form: str = ".0f") -> str:
    """Writes a share in percent, and what is less than all not as 100 %.

    >>> write_percent(0.5), write_percent(0.998), write_percent(1), write_percent(1 / 3, ".3g")
    ('50 %', '99.8 %', '100 %', '33.3 %')
    """
    return f"{_write_below(100 * share, 100, form)} %"


def _write_below(value: float, bound: int, form: str) -> str:
    """Writes a value in a form, and what is below the bound, by more than rounding, so that it is read as such."""
    forms = [form, *(f".{decimals}f" for decimals in range(1, 6))]
    return next((text for text in (f"{value:{each}}" for each in forms) if float(text) < bound), f"{value:{form}}")


def say_duration(seconds: float) -> str:
    """Says a duration in its unit.

    >>> say_duration(0.2), say_duration(42.0), say_duration(600.0), say_duration(5400.0), say_duration(300_000.0)
    ('1 s', '42 s', '10 min', '1.5 h', '3.5 days')
    """
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def escape(text: str) -> str:
    r"""The text in one line, where control characters, and those that turn text around, are shown as their codes.

    >>> print(escape("a\x1b[2Jb\n\u202e"))
    a\x1b[2Jb\n\u202e
    """
    return text.translate(SHOWN)


def encode_csv(rows: Iterable[Iterable[Any]]) -> bytes:
    """Rows as CSV. Text that a spreadsheet would take for a formula begins with an apostrophe; numbers stay.

    >>> encode_csv([["=1+1", "-2", -2, "a-b"]])
    b"'=1+1,-2,-2,a-b\\n"
    """
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows([_escape_formula(value) for value in row] for row in rows)
    return stream.getvalue().encode()


def _escape_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.replace("\r", "\n")  # which csv puts into quotes
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text
