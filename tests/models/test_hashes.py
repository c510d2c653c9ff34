"""Hashes of large files are remembered, and a file that changed is read again."""

import hashlib
import os
import time
from functools import partial

import pytest
from helpers.timers import replace_clock

from repsim_cli.models import checkpoints
from repsim_cli.runs import cache

hash_files = partial(checkpoints.hash_files, many=1)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that changed an hour ago."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    now = time.time_ns
    replace_clock(monkeypatch, checkpoints, time_ns=lambda: now() + 3600 * 10**9)
    place = tmp_path / "weights"
    place.write_bytes(b"as it was")
    return place


@pytest.fixture
def read(monkeypatch):
    """The files that are read, call by call."""
    calls = []
    hashed = checkpoints._hash
    monkeypatch.setattr(checkpoints, "_hash", lambda files: calls.append([f.name for f in files]) or hashed(files))
    return calls


def of(*contents):
    first, *others = digests = [hashlib.sha256(content).hexdigest() for content in contents]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if others else first


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
    replace_clock(monkeypatch, checkpoints, time_ns=lambda: file.stat().st_ctime_ns + 10**9)
    assert [hash_files([file]) for _ in range(2)] == [of(b"as it was")] * 2
    assert len(read) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(file, monkeypatch):
    hashed = checkpoints._hash

    def changed(files):
        found = hashed(files)
        file.write_bytes(b"as it is")
        return found

    monkeypatch.setattr(checkpoints, "_hash", changed)
    hash_files([file])
    assert not (cache.find_cache_folder() / "hashes").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"files": 1}', '{"sha256": "1"}'])
def test_a_damaged_record_is_written_again(content, file, read):
    hash_files([file])
    (record,) = (cache.find_cache_folder() / "hashes").iterdir()
    whole = record.read_text()
    record.write_text(content)
    assert hash_files([file]) == of(b"as it was")
    assert record.read_text() == whole


def test_a_cache_that_cannot_be_written_leaves_nothing_remembered(file, read):
    cache.find_cache_folder().write_text("no folder")
    assert [hash_files([file]) for _ in range(2)] == [of(b"as it was")] * 2
    assert len(read) == 2


def test_small_files_are_always_read(file, read):
    assert [checkpoints.hash_files([file]) for _ in range(2)] == [of(b"as it was")] * 2
    assert not cache.find_cache_folder().exists()


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """linked(contents...): files of a snapshot in the hub's cache, whose blobs have the hashes of these contents."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / ("0" * 40)

    def make(*contents):
        for folder in (blobs, snapshot):
            folder.mkdir(parents=True)
        for number, content in enumerate(contents):
            blob = blobs / hashlib.sha256(content).hexdigest()
            blob.write_bytes(content)
            (snapshot / f"{number}").symlink_to(f"../../blobs/{blob.name}")
        return sorted(snapshot.iterdir())

    return make


@pytest.fixture
def digested(monkeypatch):
    """The files whose content is read."""
    calls = []
    digest = checkpoints._digest
    monkeypatch.setattr(checkpoints, "_digest", lambda file: calls.append(file.name) or digest(file))
    return calls


@pytest.mark.parametrize("contents", [[b"whole"], [b"a half", b"the other half"]])
def test_files_of_the_hub_are_known_by_the_names_of_their_blobs(contents, linked, digested, tmp_path):
    files = linked(*contents)
    copies = [tmp_path / file.name for file in files]
    for file, copy in zip(files, copies, strict=True):
        copy.write_bytes(file.read_bytes())
    assert hash_files(files) == of(*contents)
    assert digested == []
    assert hash_files(copies) == of(*contents)  # the same weights elsewhere
    assert digested == [file.name for file in files]


def through_the_link(file):
    file.write_bytes(b"other")


def with_an_old_time(file):
    """Sets the time, as programs do that keep times when they copy."""
    before = file.stat()
    file.write_bytes(b"other")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def with_a_copied_cache(file):
    """Copies that keep times: the link is made last, and is still older than what was written."""
    blob, time_ns = file.resolve(), file.lstat().st_mtime_ns
    file.write_bytes(b"other")
    file.unlink()
    file.symlink_to(f"../../blobs/{blob.name}")
    os.utime(file, ns=(time_ns, time_ns), follow_symlinks=False)


def by_another_link(file):
    """A new link to a link."""
    file.write_bytes(b"other")
    first = file.rename(file.with_name("first"))
    file.symlink_to(first.name)


def with_another_name(file):
    """A small file of the hub, named by its hash in git."""
    blob = file.resolve()
    blob.write_bytes(b"other")
    file.unlink()
    blob = blob.rename(blob.with_name("0" * 40))
    file.symlink_to(f"../../blobs/{blob.name}")


@pytest.mark.parametrize(
    "change", [through_the_link, with_an_old_time, with_a_copied_cache, by_another_link, with_another_name]
)
def test_a_file_of_the_hub_that_changed_is_read(change, linked, digested):
    (file,) = linked(b"whole")
    time.sleep(0.05)
    change(file)
    assert hash_files([file]) == of(b"other")
    assert digested == [file.name]
