"""What makes results: the versions of packages, the code and its commit, and the command."""

import json
import os
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("repsim-cli", "torch", "transformers", "tokenizers", "numpy", "scipy", "hydra-core", "matplotlib")
COMMAND = "REPSIM_COMMAND"  # the words of the command line, which sets it


def read_command() -> list[str]:
    """The words of the command that this process, or the one that started it, carries out; of a program none."""
    return json.loads(os.environ.get(COMMAND, "[]"))


def read_versions() -> dict[str, str | None]:
    """Versions of the packages that numbers may depend on."""
    return {package: read_version(package) for package in PACKAGES}


def describe_code() -> dict[str, Any]:
    """The code that makes results now."""
    return {"version": read_version("repsim-cli"), **(read_git_state() or {"commit": None, "dirty": None})}


@cache
def read_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def read_git_state() -> dict[str, Any] | None:
    """Commit and whether files differ from it, of the checkout that this code runs from; None without one."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if "repsim_cli/base/environment.py" not in git("ls-files", "--full-name", "environment.py"):
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
