"""A kind of data: documents that count."""

from collections.abc import Generator

from repsim_cli import register_data
from repsim_cli.data.packing import Text


@register_data("counting")
def counting(*, count: int = 100) -> Text:
    """Documents of ten numbers in a row.

    count: how many documents.
    """

    def documents() -> Generator[str, None, None]:
        return (" ".join(str(first + step) for step in range(10)) for first in range(count))

    return Text(documents, f"{count} documents that count")
