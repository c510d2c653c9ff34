"""Arrays in .npy files: room on the disk is taken before they are mapped, and other files are refused."""

import errno
import os

import numpy as np
import pytest

from repsim_cli.base.files import create_npy, open_npy


def test_all_of_a_mapped_file_has_room(tmp_path):
    """A page without room would end the process where it is written."""
    made = create_npy(tmp_path / "a.npy", np.float32, (1000, 300))
    about = (tmp_path / "a.npy").stat()
    assert about.st_blocks * 512 >= about.st_size > made.nbytes
    made[7] = 3
    assert np.load(tmp_path / "a.npy")[7].tolist() == [3] * 300


def test_a_full_disk_is_said_and_leaves_no_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        create_npy(tmp_path / "a.npy", np.float32, (9, 9))
    assert raised.value.filename == str(tmp_path / "a.npy")
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_takes_no_room_before(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    assert create_npy(tmp_path / "a.npy", np.float32, (9, 9)).shape == (9, 9)


@pytest.mark.parametrize("content", [b"", b"words", b"PK\x03\x04"])
def test_what_is_no_npy_file(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"it does not begin as numpy.save begins a file"):
        open_npy(tmp_path / "a.npy")


@pytest.mark.parametrize("mode", ["r", None])
def test_python_objects_are_not_unpickled(tmp_path, mode):
    np.save(tmp_path / "a.npy", np.array([{}, 1]), allow_pickle=True)
    with pytest.raises(ValueError, match="^Python objects$"):
        open_npy(tmp_path / "a.npy", mode)
