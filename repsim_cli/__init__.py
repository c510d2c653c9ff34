"""repsim: compare the inside of language models; `compare`, `verify`, `load` and `grade` for Python programs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repsim_cli.api.compare import compare
    from repsim_cli.api.plugins import register_data, register_measure, register_model, register_study
    from repsim_cli.api.result import Result, load
    from repsim_cli.api.vector_maps import apply_map, fit_map
    from repsim_cli.api.verify import assert_same, verify
    from repsim_cli.base.errors import BadInput, Degenerate, RepsimError, RunFailed
    from repsim_cli.studies.grounding.own_measure import grade

__version__ = "0.2.0"
__all__ = [
    "BadInput", "Degenerate", "RepsimError", "Result", "RunFailed", "apply_map", "assert_same", "compare", "fit_map",
    "grade", "load", "register_data", "register_measure", "register_model", "register_study", "verify",
]  # fmt: skip
_ROOMS = {
    "Result": "api.result",
    "compare": "api.compare",
    "load": "api.result",
    "grade": "studies.grounding.own_measure",
}
_ROOMS |= dict.fromkeys(("apply_map", "fit_map"), "api.vector_maps")
_ROOMS |= dict.fromkeys(("assert_same", "verify"), "api.verify")
_ROOMS |= {f"register_{what}": "api.plugins" for what in ("data", "measure", "model", "study")}
_ROOMS |= dict.fromkeys(("BadInput", "Degenerate", "RepsimError", "RunFailed"), "base.errors")


def __getattr__(name: str) -> Any:
    """Imports what Python programs use when it is first used, so that the command line starts without it."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"repsim_cli.{_ROOMS[name]}"), name)
