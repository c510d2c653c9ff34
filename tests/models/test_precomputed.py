"""Stored rows: files that are read, and files that are refused."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed

precomputed = registry.models.get("precomputed").function
ARRAYS = {f"h{i}": np.random.default_rng(i).normal(size=(20, 3 + i)).astype("float32") for i in (0, 2, 10)}


def stored(folder, kind, arrays=ARRAYS):
    file = folder / f"acts.{kind}"
    if kind == "npz":
        np.savez(file, **arrays)
    elif kind == "safetensors":
        safetensors.torch.save_file({k: torch.from_numpy(v) for k, v in arrays.items()}, file)
    else:
        with h5py.File(file, "w") as archive:
            for name, array in arrays.items():
                archive[name] = array
    return str(file)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5"])
def test_precomputed(tmp_path, kind):
    file = stored(tmp_path, kind)
    source = precomputed(path=file)
    assert source.names == ["h0", "h2", "h10"]
    assert (source.rows, source.widths) == (20, [3, 5, 13])
    np.testing.assert_array_equal(source.read("h10", slice(5, 9)), ARRAYS["h10"][5:9])
    assert precomputed(path=file, layers=["h10", "h0"]).names == ["h10", "h0"]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e4m3fn"])
def test_rows_of_a_safetensors_file(dtype, tmp_path):
    """Any part of them, in any type, with and without metadata; they are read, not mapped."""
    x = torch.randn(4000, 300).to(getattr(torch, dtype))
    safetensors.torch.save_file(
        {"a": torch.zeros(3, 3), "h0": x}, file := tmp_path / "acts.safetensors", metadata={"by": "x"}
    )
    source = precomputed(path=str(file), layers=["h0"])
    for rows in (slice(0, 4000), slice(17, 63), slice(3990, 4100), slice(3, 3)):
        assert torch.equal(source.read("h0", rows), x[rows].float())
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(file.name)]
    of_maps = Path("/proc/self/smaps").read_text()
    sizes = [int(of_maps.partition(place)[2].partition("Rss:")[2].split()[0]) for place in mapped]
    assert sum(sizes) < x.nbytes / 1000 / 2


def test_a_safetensors_file_that_was_cut_off_after_it_was_opened(tmp_path):
    safetensors.torch.save_file({"h0": torch.ones(100, 10)}, file := tmp_path / "acts.safetensors")
    source = precomputed(path=str(file))
    with file.open("r+b") as opened:
        opened.truncate(1000)
    with pytest.raises(RunFailed, match=r"rows of 'h0' cannot be read, got '50 to 99' \(the file was cut off\)"):
        source.read("h0", slice(50, 100))


@pytest.mark.parametrize(
    ("name", "arrays", "layers", "message"),
    [
        ("npz", {"a": np.zeros(5, "f4")}, None, r"array 'a' must be \(n, d\) of floats, got float32 \(5,\)"),
        ("npz", {"a": np.zeros((5, 2), "i4")}, None, r"array 'a' must be \(n, d\) of floats, got int32"),
        (
            "npz",
            {"a": np.zeros((5, 2), "f4"), "b": np.zeros((6, 2), "f4")},
            None,
            r"different numbers of rows, got \[5, 6\]",
        ),
        (
            "npz",
            {"a": np.zeros((5, 0), "f4")},
            None,
            r"array 'a' has no columns, got \(5, 0\); write one that has some",
        ),
        ("npz", {}, None, "no arrays at its top level"),
        ("npz", ARRAYS, ["h1"], "layers: no such array, got 'h1'; did you mean"),
    ],
)
def test_bad_precomputed_arrays(tmp_path, name, arrays, layers, message):
    with pytest.raises(BadInput, match=message):
        precomputed(path=stored(tmp_path, name, arrays), layers=layers)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5"])
def test_broken_precomputed_files(tmp_path, kind):
    file = tmp_path / f"acts.{kind}"
    file.write_bytes(b"nonsense that is long enough to be a header")
    with pytest.raises(BadInput, match=f"not a complete .{kind} file of numbers, got .*; write it again"):
        precomputed(path=str(file))
    with pytest.raises(BadInput, match=r"path: no such file"):
        precomputed(path=str(file) + "x")
    other = tmp_path / "acts.pkl"
    other.write_bytes(b"x")
    with pytest.raises(BadInput, match=r"path: unknown kind of file, got '.*pkl'; use .npy, .npz, .safetensors"):
        precomputed(path=str(other))


def test_object_arrays_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "acts.npz", a=np.array([[{}]], dtype=object))
    with pytest.raises(
        BadInput, match=r"acts.npz: 'a' is of Python objects, got dtype object; save numbers, ids with .astype\(str\)"
    ):
        precomputed(path=str(tmp_path / "acts.npz"))


def test_a_choice_of_blocks_leaves_stored_layers_and_says_so(repsim, newest, tmp_path):
    np.savez(tmp_path / "x.npz", **{f"l{i}": np.random.default_rng(i).normal(size=(30, 4)) for i in range(3)})
    words = ("model=[]", f"+model.m={{kind: precomputed, path: {tmp_path / 'x.npz'}}}", "measure=[cka]")
    code, _, err = repsim("run", "-q", *words, "extract.estimate=full", "extract.layers=[0]")
    assert code == 0, err
    warnings = json.loads((newest() / "manifest.json").read_text())["warnings"]
    assert any("extract.layers: stored rows have no blocks, got [0]" in each for each in warnings)
    code, _, err = repsim("run", "-q", *words, "extract.estimate=full")
    assert code == 0, err
    assert not any(
        "extract.layers" in each for each in json.loads((newest() / "manifest.json").read_text())["warnings"]
    )
