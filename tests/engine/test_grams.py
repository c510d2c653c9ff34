"""Layers whose rows do not fit into memory together: the same bits from the tiles of their Gram matrices in files."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli import measures
from repsim_cli.engine import footprint, grams
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.grams import BatchShape, make_kernel_lister, pack_batches
from repsim_cli.engine.rows import Rows
from repsim_cli.measures.inner import (
    collect_matrix_tiles,
    compute_inner_products,
    compute_products_from_tiles,
    count_tile_cells,
)
from repsim_cli.measures.kernels import prepare_states
from repsim_cli.runs import reader

NAMES = ["cka", "cka_unbiased"]
WIDTHS = [5, 90, 33, 64]


def rows_of(n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [7 + torch.randn(n, d, generator=generator, dtype=dtype) for d in WIDTHS]


@pytest.mark.parametrize(
    ("n", "tile", "dtype"), [(300, 128, torch.float32), (70, 512, torch.float64), (701, 333, torch.float32)]
)
def test_products_of_tiles_are_products(n, tile, dtype):
    xs = rows_of(n, dtype)
    for name in NAMES:
        kernel = measures.get(name).row
        states = [prepare_states([kernel], x, {})[kernel] for x in xs]
        (expected,) = compute_inner_products([(kernel, kernel)], {kernel: states}, n, tile, watch=lambda *_: None)
        tiles = [collect_matrix_tiles(kernel, state, n, tile) for state in states]
        assert torch.equal(compute_products_from_tiles(tiles, n, tile), expected)
        assert len(tiles[0].cells) == count_tile_cells(n, tile)


@pytest.mark.parametrize("pairs", ["all", "other_documents"])
@pytest.mark.parametrize("estimate", ["per_batch", "ratio_of_sums"])
def test_estimates_from_tiles_are_those_from_rows(tmp_path, estimate, pairs):
    xs, bound, size = rows_of(420), {name: measures.get(name) for name in NAMES}, 140
    starts, names, read = range(0, 420, size), list("abcd"), []

    def stream(chosen):
        read.append(list(chosen))
        return ([xs[a][i : i + size] for a in chosen] for i in starts)

    def documents(batch):
        return None if pairs == "all" else torch.arange(size) // (10 + batch)

    settings = {"names": names, "estimate": estimate, "tile": 64, "documents": documents}
    expected, _ = estimate_all_pairs(bound, lambda seen: stream(range(4)), **settings)
    read.clear()

    def keep(group, save):
        folder = tmp_path / str(group[0])
        if not folder.exists():
            save(folder)
        return folder

    batches = pack_batches(
        keep, make_kernel_lister(bound, documents), [[0, 1], [2], [3]], stream, BatchShape(3, size, 64), names=names
    )
    assert read == [[0, 1], [2], [3]]
    found, _ = estimate_all_pairs(bound, batches, **settings)
    for name in NAMES:
        assert torch.equal(found[name].values, expected[name].values)
        assert (found[name].rows, found[name].batches) == (420, 3)
        if estimate == "per_batch":
            assert torch.equal(found[name].se, expected[name].se)
    size_of_files = sum(file.stat().st_size for file in tmp_path.rglob("*.npy"))
    assert size_of_files == pytest.approx(BatchShape(3, size, 64).size * 4 * 2, rel=0.01)


def values_of(folder):
    return [
        reader.read_array(folder, m[key])
        for one in recorded(folder)["measures"]
        for m in one["matrices"]
        for key in ("values", "se")
        if m.get(key)
    ]


@pytest.mark.parametrize("words", [["cache=true"], ["cache=false", "extract.estimate=full", "extract.rows=500"]])
def test_runs_in_groups_of_layers(repsim, newest, monkeypatch, tmp_path, words):
    """Models that run, whose features are brought to one scale first: the same numbers and diagnostics, in groups of
    layers that do not end with the models."""
    words = ["run", "model=[tiny_a,tiny_b]", "measure=[cka,cka_unbiased]", "extract.sequences=16", *words]
    words += ["extract.batch_rows=300", "hardware.threads=1"]
    found = []
    for groups in (None, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]):
        monkeypatch.setattr(footprint, "group_layers_by_memory", lambda comparison, rows=None, groups=groups: groups)
        monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / f"cache-{groups is None}"))
        code, _, err = repsim(*words)
        assert code == 0, err
        folder = newest()
        found.append((values_of(folder), recorded(folder)["tables"]))
        assert not [file for file in folder.iterdir() if "packed" in file.name]
    (expected, tables), (values, others) = found
    assert len(values) == len(expected) > 0
    assert all(np.array_equal(a, b) for a, b in zip(values, expected, strict=True))
    assert others == tables


@pytest.mark.slow
def test_the_plan_chooses_what_fits(repsim, tmp_path):
    """Rows where they fit, else tiles in files; no choice for measures that need more of the rows, or on a full disk."""
    x = np.zeros((3000, 4096), np.float16)
    x[:, 0] = np.arange(3000)
    np.savez(tmp_path / "a.npz", **{f"h{i}": x for i in range(4)})
    words = ["run", "model=[]", f"+model.a={{kind: precomputed, path: {tmp_path / 'a.npz'}}}", "dry_run=true"]
    _, out, err = repsim(*words, "measure=[cka_unbiased]", "hardware.memory_gb=1")
    assert "passes over the rows: 1, a batch of all layers at a time\n" in out, err
    _, out, _ = repsim(*words, "measure=[cka_unbiased]", "hardware.memory_gb=0.6")
    assert "passes over the rows: 1, layers in 2 groups, packed Gram matrices of 0.0189 GB in files\n" in out
    assert "packed Gram matrices: 0.0189\n" in out
    assert "does not run here" not in out
    _, out, _ = repsim(*words, "measure=[mutual_knn]", "hardware.memory_gb=0.6")
    assert "hardware.memory_gb: the run needs about 0.88 GB, got a limit of 0.60 GB; extract.batch_rows=" in out
    live = ["run", "model=[tiny_a]", "measure=[cka]", "extract.estimate=full", "extract.rows=90000000"]
    _, out, err = repsim(*live, "extract.sequences=1000000", "dry_run=true", "hardware.memory_gb=20")
    assert "; extract.rows=" in out, err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda place: Usage(10**6))
        _, out, _ = repsim(*words, "measure=[cka_unbiased]", "hardware.memory_gb=0.6")
    assert "REPSIM_OUTPUTS: the packed Gram matrices need 0.02 GB, got 0.00 GB free on the disk of " in out
    assert "hardware.memory_gb=0.9 needs none, or read fewer layers or less text" in out


def test_a_killed_run_resumes_with_the_tiles_of_finished_groups(repsim, newest, monkeypatch):
    """Killed before its last group, and again while batches are compared: the same bits and diagnostics, and every
    group is read once."""
    words = ["run", "model=[tiny_a]", "measure=[cka]", "extract.sequences=8", "extract.batch_rows=200"]
    words += ["extract.normalise=none", "cache=false", "hardware.threads=1"]
    groups = [[0, 1], [2, 3], [4, 5]]
    monkeypatch.setattr(footprint, "group_layers_by_memory", lambda comparison, rows=None: groups)
    assert repsim(*words)[0] == 0
    expected, tables = values_of(newest()), recorded(newest())["tables"]
    of_layers, grams_of, read, kills = Rows.stream_layers, grams._read_batch_grams, [], []

    def killed(where, step, *given):
        if where not in kills:
            kills.append(where)
            raise KeyboardInterrupt
        return step(*given)

    def counted(self, chosen, progress):
        if chosen == groups[-1]:
            killed("groups", list)
        read.append(list(chosen))
        return of_layers(self, chosen, progress)

    monkeypatch.setattr(Rows, "stream_layers", counted)
    monkeypatch.setattr(grams, "_read_batch_grams", partial(killed, "batches", grams_of))
    assert repsim(*words)[0] == 130
    assert read == groups[:2]
    assert repsim(*words, "resume=latest")[0] == 130
    assert (newest() / "packed").is_dir()
    code, _, err = repsim(*words, "resume=latest")
    assert code == 0, err
    assert (read, kills) == (groups, ["groups", "batches"])
    assert all(np.array_equal(a, b) for a, b in zip(values_of(newest()), expected, strict=True))
    assert recorded(newest())["tables"] == tables
    assert not (newest() / "packed").exists()


class Usage(int):
    @property
    def free(self):
        return int(self)
