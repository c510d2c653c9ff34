"""The rows behind the maps of a run: nearest rows, shares and texts, checked before they are used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.documents import Unreadable, find_misfit, read_json
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import find_inside
from repsim_cli.runs.content import BEHIND, TEXTS

SHAPE = {
    "layers": [list],
    "measure": str,
    "unit": str,
    "rows": int,
    "of": int,
    "tokens": list | None,  # pyright: ignore[reportMissingTypeArgument] - a type at run time
    "texts": [{"pieces": [str], "rows": [int]}],
    "without": str,
}
NUMBERS = {"nearest": "int16", "pairs": "int16", "values": "float64", "shares": "float32"}


class Kept(NamedTuple):
    """What a run kept of its rows, as `engine/behind.py` wrote it.

    about: the layers, the measure of the shares, what a row is, and the texts. arrays: `nearest`, `pairs`, `values` and
    `shares`.
    """

    about: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def read_rows(folder: Path) -> Kept | None:
    """Reads what a run kept of its rows; None where it kept none.

    Raises BadInput where it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    files = [find_inside(folder, name) for name in (TEXTS, BEHIND)]
    if any(file is None or not file.is_file() for file in files):
        return None
    text, numbers = files
    assert text is not None
    assert numbers is not None
    try:
        about, arrays = read_json(text), load_file(numbers)
    except (Unreadable, SafetensorError, OSError) as error:
        raise BadInput(f"{text}: cannot be read, got {error}; the run is damaged, run it again") from error
    if wrong := find_misfit(about, SHAPE) or _say_misfit(about, arrays):
        raise BadInput(f"{text}: {wrong}; the run is damaged, run it again")
    return Kept(about, arrays)


def _say_misfit(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Says what of the arrays does not fit the texts; empty where all does."""
    layers, n = len(about["layers"]), about["rows"]
    kinds = {name: NUMBERS.get(name, "") for name in arrays}
    if any(str(array.dtype) != kinds[name] for name, array in arrays.items()) or "nearest" not in arrays:
        return f"arrays of other kinds, got {', '.join(sorted(arrays))}"
    pairs = arrays.get("pairs", np.empty((0, 2)))
    shapes = {"nearest": (layers, n, arrays["nearest"].shape[-1]), "pairs": (len(pairs), 2), "values": (len(pairs),)}
    shapes["shares"] = (len(pairs), n)
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            return f"{name} of another shape, got {array.shape} for {shapes[name]}"
    rows = [row for text in about["texts"] for row in text["rows"]]
    lengths = all(len(text["rows"]) == len(text["pieces"]) for text in about["texts"])
    named = all(len(layer) == 2 and all(isinstance(part, str) for part in layer) for layer in about["layers"])
    within = max([-1, *rows]) < n and arrays["nearest"].max(initial=-1) < n and pairs.max(initial=0) < layers
    tokens = about["tokens"]
    tokens_fit = tokens is None or (len(tokens) == n and all(isinstance(token, int) for token in tokens))
    finite = all(np.isfinite(arrays[name]).all() for name in ("values", "shares") if name in arrays)
    return "" if lengths and named and within and tokens_fit and finite else "rows that are not of this run"
