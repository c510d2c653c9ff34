"""`fit_map` and `apply_map`: vectors of one model in the space of another, from Python and for `repsim map`."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from repsim_cli.api.compare import check_keys, forget_afterwards, read_names
from repsim_cli.api.entries import compose_configuration, label_entries, make_model_entry
from repsim_cli.api.new_run import perform_in
from repsim_cli.base.arrays import convert_to_tensor
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.config.binding import bind_model
from repsim_cli.config.run import validate
from repsim_cli.config.words import set_key, spread_groups
from repsim_cli.models.source import Precomputed
from repsim_cli.runs.results import Progress, quiet
from repsim_cli.studies.vectors.stored import VectorMap, load_map


def fit_map(  # noqa: PLR0913 - the public interface
    old: Any,
    new: Any,
    data: Any = None,
    *,
    kinds: Sequence[str] = (),
    layers: Sequence[Sequence[str]] = (),
    names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | Sequence[str] = MappingProxyType({}),
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> list[VectorMap]:
    """Fits maps from vectors of the old model to those of the new one, and scores them on held-out documents.

    old, new: models or stored rows, as `compare` takes them; rows are paired, by ids where the files have them.
    data: as of `compare`; None: text that ships with the package, and with stored rows none.
    kinds: which of rotation, affine, ridge and low_rank; none: all.
    layers: pairs of layers such as ("resid_post@3", "resid_post@3"); none: the last of each.
    names: of the two models in the records; None: the last parts of their paths that differ.
    settings: further keys of a run, such as {"extract.rows": 4096}.
    folder: a new or empty folder for the run, with figures and report; None: it is not kept.
    progress: as of `compare`.
    Returns a map per kind, sorted by layer and kind; `record["held out"]` has the scores, with their
    intervals.
    Raises repsim_cli.BadInput for what cannot be mapped, before any model runs, and RunFailed for values that are not
    finite.
    Example: repsim_cli.fit_map(old_rows, new_rows, kinds=["ridge"])[0](old_rows)
    """
    check_keys(settings)
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise BadInput(f"layers: not pairs of layers, got {layers!r:.60}; give a list of pairs")
    with forget_afterwards():
        named = all(isinstance(each, str | os.PathLike) for each in (old, new))
        models = label_entries(
            [old, new] if named else ["old", "new"], None if names is None else read_names("names", names)
        )
        entries = {label: make_model_entry(label, given) for label, given in zip(models, (old, new), strict=True)}
        live = [label for label, entry in entries.items() if not isinstance(bind_model(label, entry), Precomputed)]
        own: dict[str, Any] = {"study": "vector_map", "name": "vector_map"}
        own |= {"options.kinds": found} if (found := read_names("kinds", kinds)) else {}
        own |= {"options.layers": [list(pair) for pair in layers]} if layers else {}
        own |= {"extract.layers": [-1]} if live and not layers else {}
        by_key = spread_groups(settings) if isinstance(settings, Mapping) else {}
        words = [word for key, value in {**own, **by_key}.items() for word in set_key(key, value)]
        words += [] if isinstance(settings, Mapping) else settings
        config = compose_configuration(entries, data, [], "pooled" if live else "auto", "none", words)
        checked = validate(config)
        if checked.keys.dry_run:
            raise BadInput("dry_run: a plan has no map, got true; use repsim run study=vector_map dry_run=true")
        if checked.keys.resume:
            raise BadInput(f"resume: only for repsim run, got {checked.keys.resume}; use repsim run study=vector_map")
        scratch = None if folder is not None else Path(tempfile.mkdtemp(prefix="repsim-"))
        try:
            place = perform_in(expand_path(folder or f"{scratch}/run"), checked, progress, drawn=scratch is None)
            maps = [load_map(file) for file in (place / "maps").iterdir()]
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
    return sorted(maps, key=lambda each: (each.record["from"]["layer"], each.record["kind"]))


def apply_map(given: VectorMap | str | os.PathLike[str], rows: Any) -> np.ndarray:
    """Maps rows (n, d) of the old model; float32 (n, d of the new model).

    given: a map of `fit_map`, or a file that `VectorMap.save` or `repsim map fit` wrote.
    Raises repsim_cli.BadInput for rows of another width, and for numbers that are not finite.
    Example: repsim_cli.apply_map("map.safetensors", rows)
    """
    chosen = given if isinstance(given, VectorMap) else load_map(given)
    tensor = convert_to_tensor("rows", rows).cpu()
    return chosen((tensor.float() if tensor.is_floating_point() else tensor).numpy())
