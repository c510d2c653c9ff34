"""What a user may not read or write is named in one line; the table of `tests/helpers/permissions.py`, as an ordinary user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import permissions

from repsim_cli.base import files


@pytest.mark.slow
@pytest.mark.nightly
def test_the_table_as_an_unprivileged_user(tmp_path, tiny_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    permissions.make(tiny_folder("gpt2"))
    process = subprocess.run(
        [sys.executable, permissions.__file__, str(tmp_path)],
        preexec_fn=permissions.unprivileged,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    wrong = [row for row in rows if (problem := unanswered(*row)) and row.append(problem) is None]
    assert not wrong, "\n".join(map(str, wrong))
    expected = len(permissions.ROWS) + len(permissions.WRITTEN) + len(permissions.PASSED_OVER) + 3
    assert (process.returncode, len(rows)) == (0, expected), process.stderr


def unanswered(table, name, place, code, out, err, left):
    """What is wrong with an answer; None where nothing is."""
    lines = err.splitlines()
    if "Traceback" in err or "internal error" in err or code is None:
        return "a traceback"
    if not any(place in line and "Permission denied" in line and ";" in line for line in lines):
        return "the place and the reason are not named"
    if table == "passed over":
        return None if code == 0 and not any(line.startswith("error") for line in lines) else "not passed over"
    if (code, out) != (2, "") or len(lines) != 1 or not lines[0].startswith("error: "):
        return "not one line and exit code 2"
    return "something is left behind" if left else None


def test_an_explanation_names_the_folder_on_the_way(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    error = PermissionError(13, "Permission denied", str(tmp_path / "a" / "b"))
    assert files.explain(error) == (
        f"{tmp_path}/a/b: cannot be used, got 'Permission denied'; change its permissions or ask its owner, or choose "
        "another path"
    )
    monkeypatch.setattr(files, "_find_closed", lambda path: path.parent)
    assert f"got 'Permission denied' for the folder '{tmp_path}/a'; change" in files.explain(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device"), "a file: cannot be used, got 'No space left on device'; free space"),
        (OSError(5, "Input/output error", "x"), "x: cannot be used, got 'Input/output error'; check the disk"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: cannot be used, got 'No such file .*; check the"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), r"TMPDIR: no folder for temporary files can be written, got \['/tmp'\]; set it to one that can"),
        (OSError("said by a library"), "a file: cannot be used, got 'said by a library'; check the path"),
    ],
)  # fmt: skip
def test_explanations(error, text):
    import re

    assert re.match(text, files.explain(error))


def test_an_explanation_with_a_path_and_advice_of_its_own():
    error = OSError(28, "No space left on device")
    assert files.explain(error, Path("x"), "wait") == "x: cannot be used, got 'No space left on device'; wait"
