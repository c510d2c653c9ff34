"""Checks shapes and types of every call of the package: `REPSIM_TYPES=1`."""

import os
from pathlib import Path

import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

import repsim_cli

# marks a test that gives less than the types ask for, or something else
untyped = pytest.mark.skipif(bool(os.environ.get("REPSIM_TYPES")), reason="REPSIM_TYPES refuses what it gives")
TOLD = ("api",)  # whose functions take whatever a program gives, and say what is wrong with it
check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, too, as for pyright


def check_calls() -> None:
    """Checks every call of the rooms that are imported from now on."""
    (package,) = map(Path, repsim_cli.__path__)
    rooms = sorted(file.parent.name for file in package.glob("*/__init__.py") if file.parent.name not in TOLD)
    install_import_hook([f"repsim_cli.{room}" for room in rooms], "helpers.typed.check")
