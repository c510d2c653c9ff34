"""What tests of finished matrices share: stored activations, and a run on them."""

import numpy as np
import pytest

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware, Significance
from repsim_cli.measures import gromov
from repsim_cli.models.precomputed import precomputed
from repsim_cli.runs import results
from repsim_cli.runs.schema import to_json


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Stored activations of three layers each, 48 rows; one layer of `c` has a dead neuron."""
    folder, draw = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    first, mix = draw.normal(size=(48, 6)), draw.normal(size=(6, 6))
    for label in "abcd":
        layers = {}
        for name in ("x", "y", "z"):
            first = np.tanh(first @ mix) + 0.3 * draw.normal(size=(48, 6))
            layers[name] = first.astype(np.float32)
        if label == "c":
            layers["y"][:, 0] = 1.0
        np.savez(folder / f"{label}.npz", **layers)
    return folder


QUICK = {"gromov_wasserstein": {"start": "pot"}}  # in place of all starts


@pytest.fixture
def compared(files, tmp_path, own_cache):
    """compared(labels, measures, **settings): what a run of the similarity study leaves -> (its numbers, its run)."""

    def run(
        labels,
        names,
        *,
        cache=True,
        seed=0,
        significance=None,
        tile=512,
        within=False,
        change=(),
        progress=results.quiet,
        data=None,
        **extract,
    ):
        sources = {label: precomputed(path=str(files / f"{label[0]}.npz")) for label in labels}
        study = registry.studies.get("similarity").function(
            model={**sources, **dict(change)},
            data=data or registry.data.get("embedded_text").function(split="validation"),
            measure=names
            if isinstance(names, dict)
            else {name: measures.get(name, **QUICK.get(name, {})) for name in names},
            extract=Extract(
                hook_points=["resid_post"], **{"estimate": "full", "rows": 48, "batch_rows": 12, **extract}
            ),
            significance=Significance(**{"chance": False, **(significance or {})}),
            hardware=Hardware(tile=tile, processes=1),
            seed=seed,
            cache=cache,
            within=within,
        )
        made = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
        made.progress = progress
        found = study.run(made)
        arrays = {file.name: file.read_bytes() for file in sorted((made.folder / "arrays").iterdir())}
        made.finish("complete")
        return (to_json(found), arrays, made.manifest["warnings"]), made

    return run


@pytest.fixture
def solved(monkeypatch):
    """The pairs that were solved, one by one."""
    pairs = []
    original = gromov.find_best_gromov

    def counted(*sides, **settings):
        pairs.append(sides)
        return original(*sides, **settings)

    monkeypatch.setattr(gromov, "find_best_gromov", counted)
    return pairs
