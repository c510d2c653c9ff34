"""Hashes of large files are remembered, and a file that changed is read again."""

import hashlib
import os
import time

import pytest

from repsim_cli import cache
from repsim_cli.models import checkpoints
from repsim_cli.models.checkpoints import hash_files


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that changed some time ago, and counts as large."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checkpoints, "REMEMBERED", 1)
    monkeypatch.setattr(checkpoints, "TICK", -(10**15))
    place = tmp_path / "weights"
    place.write_bytes(b"as it was")
    return place


@pytest.fixture
def read(monkeypatch):
    """The files that are read, call by call."""
    calls = []
    hashed = checkpoints._hashed
    monkeypatch.setattr(checkpoints, "_hashed", lambda files: calls.append([f.name for f in files]) or hashed(files))
    return calls


def of(*contents):
    return hashlib.sha256(b"".join(contents)).hexdigest()


def test_a_file_is_read_once(file, read):
    assert [hash_files([file]) for _ in range(3)] == [of(b"as it was")] * 3
    assert read == [["weights"]]


def test_files_are_known_in_their_order(file, read):
    other = file.with_name("other")
    other.write_bytes(b"and another")
    assert hash_files([file, other]) == of(b"as it was", b"and another")
    assert hash_files([other, file]) == of(b"and another", b"as it was")
    assert hash_files([file, other]) == of(b"as it was", b"and another")
    assert len(read) == 2


def test_a_file_of_equal_size_and_time_is_read_again_where_it_changed(file, read):
    hash_files([file])
    before = file.stat()
    time.sleep(0.05)  # times of change are those of the clock's last tick
    file.write_bytes(b"as it is.")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as programs do that copy files
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert hash_files([file]) == of(b"as it is.")
    assert len(read) == 2


def test_a_file_that_is_replaced_is_read_again(file, read):
    hash_files([file])
    new = file.with_name("new")
    new.write_bytes(b"as it is.")
    new.replace(file)
    assert hash_files([file]) == of(b"as it is.")


def test_a_file_that_changed_just_now_is_not_remembered(file, read, monkeypatch):
    monkeypatch.setattr(checkpoints, "TICK", 3600 * 10**9)
    assert [hash_files([file]) for _ in range(2)] == [of(b"as it was")] * 2
    assert len(read) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(file, monkeypatch):
    hashed = checkpoints._hashed

    def changed(files):
        found = hashed(files)
        file.write_bytes(b"as it is")
        return found

    monkeypatch.setattr(checkpoints, "_hashed", changed)
    hash_files([file])
    assert not (cache.root() / "hashes").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"files": 1}', '{"sha256": "1"}'])
def test_a_damaged_record_is_written_again(content, file, read):
    hash_files([file])
    (record,) = (cache.root() / "hashes").iterdir()
    whole = record.read_text()
    record.write_text(content)
    assert hash_files([file]) == of(b"as it was")
    assert record.read_text() == whole


def test_a_cache_that_cannot_be_written_leaves_nothing_remembered(file, read):
    cache.root().write_text("no folder")
    assert [hash_files([file]) for _ in range(2)] == [of(b"as it was")] * 2
    assert len(read) == 2


def test_small_files_are_always_read(file, read, monkeypatch):
    monkeypatch.setattr(checkpoints, "REMEMBERED", 1 << 26)
    assert [hash_files([file]) for _ in range(2)] == [of(b"as it was")] * 2
    assert not cache.root().exists()
