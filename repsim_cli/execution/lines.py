"""Files of JSON lines by which two processes on different machines talk: one appends to a file, the other reads it.

Each look opens the file anew: that is when NFS fetches what another machine has written, while a new file may stay
unseen for half a minute.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Lines:
    """A file that exists. read: the bytes of the lines that `new` has returned."""

    path: Path
    read: int = 0

    def write(self, **line: Any) -> None:
        """Appends a line in one piece. Raises FileNotFoundError where the file was removed."""
        number = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(number, json.dumps(line).encode() + b"\n")
        finally:
            os.close(number)

    def new(self) -> list[dict[str, Any]]:
        """The lines since the last call. What a process that was killed left of one is dropped."""
        with open(self.path, "rb") as stream:
            stream.seek(self.read)
            text = stream.read()
        end = text.rfind(b"\n") + 1
        self.read += end
        records = []
        for line in text[:end].splitlines():
            with suppress(json.JSONDecodeError, UnicodeDecodeError):
                records.append(json.loads(line))
        return records

    def skip(self) -> None:
        """Passes over the lines that are there."""
        self.new()
