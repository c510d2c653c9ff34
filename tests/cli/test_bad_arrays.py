"""Malformed stored arrays: each gets one clear line that says what to do, exit code 2, and leaves nothing."""

import json
import os
import struct
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.refusals import check

from repsim_cli.models import precomputed
from repsim_cli.runs import reader


def npz(**arrays):
    return lambda file: np.savez(file, **arrays)


def damaged(file):
    np.savez(file, a=np.zeros((50, 3)))
    file.write_bytes(file.read_bytes()[:200])


def grouped(file):
    with h5py.File(file, "w") as archive:
        archive["model/layer0"] = np.zeros((50, 3))


def hdf5(write):
    def make(file):
        with h5py.File(file, "w") as archive:
            write(archive)

    return make


def sentences(index, array=None):
    def write(archive):
        archive["0"] = np.zeros((2, 3, 4)) if array is None else array
        archive["sentence_to_index"] = index

    return hdf5(write)


def packed(dtype, size, shape=(40, 4)):
    """A .safetensors file of zeros."""

    def make(file):
        header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))

    return make


def npy(header):
    """The bytes of an .npy file with this header and no more than 240 bytes of data."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(240)


def member(header, name="a.npy"):
    """An .npz file of one member, an array with this header."""

    def make(file):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, npy(header))

    return make


def flagged(place, value):
    """An .npz file whose member's two headers (in the archive, before the member) have this byte there."""

    def make(file):
        np.savez(file, a=X)
        content = bytearray(file.read_bytes())
        content[place] = content[content.index(b"PK\x01\x02") + place + 2] = value
        file.write_bytes(content)

    return make


def header(shape, descr="'<f8'"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def named_npy(file):
    np.savez(file.with_suffix(".npz"), a=X)
    file.with_suffix(".npz").rename(file)


X = np.random.default_rng(0).normal(size=(50, 3))
ARRAYS = {
    "missing.npz": lambda file: None,
    "empty.npz": lambda file: file.write_bytes(b""),
    "text.npz": lambda file: file.write_text("words"),
    "cut.npz": damaged,
    "nothing.npz": npz(),
    "flat.npz": npz(a=np.zeros(50)),
    "cube.npz": npz(a=np.zeros((50, 3, 2))),
    "integers.npz": npz(a=np.zeros((50, 3), int)),
    "objects.npz": npz(a=np.array([[{}] * 3] * 50, dtype=object)),
    "strings.npz": npz(a=np.array([["a"] * 3] * 50)),
    "complex.npz": npz(a=np.zeros((50, 3), complex)),
    "no-rows.npz": npz(a=np.zeros((0, 3))),
    "no-features.npz": npz(a=np.zeros((50, 0))),
    "unpaired.npz": npz(a=X, b=X[1:]),
    "few.npz": npz(a=X[:1]),
    "text.safetensors": lambda file: file.write_text("words that are no header"),
    "integers.safetensors": lambda file: safetensors.torch.save_file({"a": torch.zeros(50, 3, dtype=torch.int8)}, file),
    "text.hdf5": lambda file: file.write_text("words"),
    "grouped.hdf5": grouped,
    "text.npy": lambda file: file.write_text("words"),
    "empty.npy": lambda file: file.write_bytes(b""),
    "objects.npy": lambda file: np.save(file, np.array([{}, 1]), allow_pickle=True),
    "archive.npy": named_npy,
    "huge.npy": lambda file: file.write_bytes(npy(header((10**12, 3)))),
    "flat.npy": lambda file: np.save(file, X[0]),
    "text-member.npz": member("", name="a.txt"),
    "no-header.npz": member("abcde"),
    "open-header.npz": member("{'descr': '<f8', 'shape': (5, 6), "),
    "number.npz": member(header((5, 6), "1")),
    "deep.npz": member(header((5, 6), "[" * 3000 + "]" * 3000)),
    "huge.npz": member(header((10**12, 3))),
    "beyond-all.npz": member(header((10**25, 3))),
    "negative.npz": member(header((-5, 3))),
    "cut-data.npz": member(header((50, 3))),
    "dates.npz": member(header((5, 6), "'M8[D]'")),
    "encrypted.npz": flagged(6, 1),
    "compressed.npz": flagged(8, 99),
    "pipe.npz": lambda file: os.mkfifo(file),
    "folder.npz": lambda file: file.mkdir(),
    "strings.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=np.full((50, 3), b"a"))),
    "texts.hdf5": hdf5(lambda archive: archive.create_dataset("a", (50, 3), h5py.string_dtype())),
    "records.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=np.zeros((50, 3), [("x", "f4")]))),
    "nothing.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=h5py.Empty("f4"))),
    "number.hdf5": hdf5(lambda archive: archive.create_dataset("a", data=1.5)),
    "elsewhere.hdf5": hdf5(lambda archive: archive.create_dataset("a", (50, 3), "f4", external=[("/no/file", 0, 600)])),
    "link.hdf5": hdf5(lambda archive: archive.__setitem__("a", h5py.SoftLink("/b"))),
    "broken-index.hdf5": sentences([b"["]),
    "list-index.hdf5": sentences([b"[]"]),
    "number-index.hdf5": sentences([b'{"a": 0}']),
    "lists-index.hdf5": sentences([b'{"a": []}']),
    "deep-index.hdf5": sentences([b"[" * 60_000]),
    "scalar-index.hdf5": sentences(3.0),
    "empty-index.hdf5": sentences(np.zeros(0, "S1")),
    "text-sentence.hdf5": sentences([b'{"a b": "0"}'], np.full((2, 3, 4), b"a")),
    "whole-numbers.hdf5": sentences([b'{"a b": "0"}'], np.zeros((2, 3, 4), int)),
    "f4.safetensors": packed("F4", 80),
    "f6-e2m3.safetensors": packed("F6_E2M3", 120),
    "f6-e3m2.safetensors": packed("F6_E3M2", 120),
    "scales.safetensors": packed("F8_E8M0", 160),
    "c64.safetensors": packed("C64", 1280),
    "f99.safetensors": packed("F99", 640),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_stored_arrays(repsim, tmp_path, name):
    file = tmp_path / name
    ARRAYS[name](file)
    entry = f"+model.stored={{kind: precomputed, path: {file}}}"
    check(*repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40"), tmp_path / "outputs")


@pytest.mark.parametrize("name", [name for name in ARRAYS if name.endswith(".npy")])
def test_stored_arrays_of_the_other_commands(repsim, tmp_path, name):
    """`measure` and `map` read the same files."""
    file, good = tmp_path / name, tmp_path / "good.npy"
    ARRAYS[name](file)
    np.save(good, X)
    check(*repsim("measure", "cka", str(file), str(good)), tmp_path / "outputs")
    check(*repsim("map", "fit", str(file), str(good)), tmp_path / "outputs")


WIDE = np.random.default_rng(0).normal(size=(50, 4096))
MANY_ROWS = precomputed.AT_ONCE // (4 * WIDE.shape[1]) + 1  # too many to be read before a run


def write_hdf5(file, x, rows):
    """Writes so many rows that begin with these, and says where the third chunk of ten is; those not written take no
    room."""
    with h5py.File(file, "w") as archive:
        stored = archive.create_dataset("layer", (rows, x.shape[1]), x.dtype, chunks=(10, x.shape[1]), fletcher32=True)
        stored[: len(x)] = x
        return stored.id.get_chunk_info(2).byte_offset


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 1e30])
def test_stored_arrays_that_are_not_finite(repsim, tmp_path, newest, value):
    """Found before the run, in large files while the run reads them; nothing is computed from them."""
    x = WIDE.copy()
    x[7, 1] = value

    def run(rows):
        write_hdf5(tmp_path / "a.hdf5", x, rows)
        entry = f"+model.stored={{kind: precomputed, path: {tmp_path / 'a.hdf5'}}}"
        return repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40")

    code, out, err = run(len(x))
    assert (code, out) == (2, "")
    assert "error: model.stored.path: a value is not finite, or too large to be squared, got " in err
    assert "in row 7 of 'layer' in '" in err
    code, out, err = run(MANY_ROWS)
    assert (code, out) == (1, "")
    problem = "too large to be squared and summed" if value == 1e30 else "not finite"
    assert f"error: layer of 'stored': activations are {problem}, got " in err
    assert "in row 7; fix the array or what the module reads (float32)" in err
    assert reader.read_manifest(newest())["status"] == "failed"


def test_a_damaged_chunk_of_a_stored_array(repsim, tmp_path, newest):
    """The first row can be read. Files too large to be read before the run fail in it."""

    def run(rows):
        file = tmp_path / "a.hdf5"
        place = write_hdf5(file, WIDE, rows)
        content = bytearray(file.read_bytes())
        content[place + 5] ^= 255
        file.write_bytes(content)
        entry = f"+model.stored={{kind: precomputed, path: {file}}}"
        return file, *repsim("run", "model=[]", "measure=[cka]", entry, "extract.batch_rows=40")

    file, code, out, err = run(len(WIDE))
    assert (code, out) == (2, "")
    assert f"model.stored.path: rows of 'layer' in '{file}' cannot be read, got '0 to 49' (" in err
    file, code, out, err = run(MANY_ROWS)
    assert (code, out) == (1, "")
    assert f"error: {file}: rows of 'layer' cannot be read, got '0 to 39' (" in err
    assert "; write the file again" in err
    assert reader.read_manifest(newest())["status"] == "failed"


@pytest.mark.parametrize("dtype", [">f8", ">f4", "longdouble", "f2"])
@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_floats_of_any_kind_are_read(tmp_path, kind, dtype):
    file, x = tmp_path / f"a.{kind}", X.astype(dtype)
    if kind == "npz":
        np.savez(file, a=x)
    else:
        hdf5(lambda archive: archive.create_dataset("a", data=x))(file)
    from repsim_cli.base import registry

    read = registry.models.get("precomputed").function(path=str(file)).read("a", slice(3, 9))
    np.testing.assert_array_equal(read, x[3:9].astype(np.float32))
