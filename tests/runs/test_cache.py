"""The cache: keys, checksums, what is damaged, eviction, sharing."""

import json
import multiprocessing
import os
import shutil
import time

import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.runs import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def filled(key: str, size: int = 1000) -> None:
    with cache.use("work", [key]) as entries:
        entries[key].write("part", lambda path: path.write_bytes(os.urandom(size)) and None)
        entries[key].finish(note="done")


def test_an_entry_is_found_again():
    filled("k1")
    with cache.use("work", ["k1"]) as entries:
        assert entries["k1"].complete
        assert entries["k1"].meta["note"] == "done"
        assert len(entries["k1"].files["part"].read_bytes()) == 1000


def test_an_unfinished_entry_keeps_its_parts():
    with cache.use("work", ["k1"]) as entries:
        entries["k1"].write("a", lambda path: path.write_text("x") and None)
    with cache.use("work", ["k1"]) as entries:
        assert not entries["k1"].complete
        assert list(entries["k1"].files) == ["a"]


def test_a_damaged_part_is_dropped_with_a_warning(caplog):
    filled("k1")
    with cache.use("work", ["k1"]) as entries:
        entries["k1"].files["part"].write_bytes(b"other")
    with caplog.at_level("WARNING", "repsim"):
        cache.log.propagate = True
        with cache.use("work", ["k1"]) as entries:
            assert not entries["k1"].complete
            assert not entries["k1"].files
    assert "is damaged; it is dropped and computed again" in caplog.text


def rewritten(change):
    return lambda place: place.write_bytes(change(place.read_bytes()))


def flipped(share):
    """One bit, at this share of the file."""

    def change(content):
        at = int(share * (len(content) - 1))
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

    return rewritten(change)


def put_instead(make):
    def change(place):
        place.unlink()
        make(place)

    return change


DAMAGE = {
    **{f"a bit at {share}": flipped(share) for share in (0.0, 0.3, 0.5, 0.9, 1.0)},
    "cut": rewritten(lambda content: content[:-1]),
    "emptied": rewritten(lambda content: b""),
    "longer": rewritten(lambda content: content + b"0"),
    "nested": rewritten(lambda content: b"[" * 100_000),
    "an empty document": rewritten(lambda content: b"{}"),
    "no UTF-8": rewritten(lambda content: b"\xff\xfe"),
    "a pipe": put_instead(os.mkfifo),
    "a folder": put_instead(os.mkdir),
    "a link to nowhere": put_instead(lambda place: place.symlink_to("nowhere")),
    "an endless file": put_instead(lambda place: place.symlink_to("/dev/zero")),
    "of another entry": lambda place: place.write_bytes((other(place)).read_bytes()),
    "gone": lambda place: place.unlink(),
}


EDITS = {
    **{f"no {key}": lambda meta, key=key: meta.pop(key) for key in ("rows", "names", "widths", "files")},
    "fewer rows": lambda meta: meta["rows"].popitem(),
    "other rows": lambda meta: meta["rows"].update(dict.fromkeys(meta["rows"], 1)),
    "rows in words": lambda meta: meta.update(rows="many"),
    "other names": lambda meta: meta["names"].reverse(),
    "another name": lambda meta: meta["names"].__setitem__(0, "embed"),
    "files that are a list": lambda meta: meta.update(files=list(meta["files"])),
    "fewer files": lambda meta: meta["files"].popitem(),
    "a file outside": lambda meta: meta["files"].update(x="../x"),
}


def other(place):
    """The file of the same name in the other entry of its kind."""
    name = place.name.rpartition("-")[0]
    return next(file for file in place.parents[1].glob(f"*/{name}-*") if file.parent != place.parent)


def edited(change):
    def rewrite(place):
        meta = json.loads(place.read_text())
        change(meta)
        place.write_text(json.dumps(meta))

    return rewrite


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def cache_of_two(folder, make):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPSIM_CACHE", str(folder))
        make(0), make(1)
    return folder


@pytest.fixture(scope="module")
def activations(tmp_path_factory):
    """A cache with the activations of two models."""
    return cache_of_two(tmp_path_factory.mktemp("activations") / "cache", recorded)


def recorded(seed):
    """The rows of a small model on two windows: computed, or from the cache -> (a tensor per layer, windows
    computed)."""
    import torch

    from repsim_cli.activations.stored import Recorder, open_entry

    layers, windows = ["resid_post@0", "resid_post@1"], [slice(0, 4), slice(4, 8)]
    rows = torch.arange(2 * 8 * 3).reshape(2, 8, 3) / 7 + seed
    computed = 0
    with cache.use("activations", [f"key{seed}"]) as entries:
        entry = entries[f"key{seed}"]
        if not entry.complete:
            recorder = Recorder(entry)
            for window in windows:
                if recorder.read(window) is None:
                    recorder.write(window, list(rows[:, window]))
                    computed += 1
            recorder.finish(layers, windows)
        found = open_entry(entry, {})
        return torch.stack([found.read(name, slice(0, found.rows)) for name in found.names]), computed


@pytest.fixture(scope="module")
def trained_model(tmp_path_factory):
    return cache_of_two(tmp_path_factory.mktemp("models") / "cache", made)


def made(seed):
    """A trained model -> (its weights, whether it was trained now)."""
    import safetensors.torch
    import torch

    from repsim_cli.training.trained import Trained

    calls = []

    def train(folder, scratch, progress):
        calls.append(1)
        (folder / "step1").mkdir()
        safetensors.torch.save_file({"w": torch.arange(6) / 7 + seed}, folder / "step1" / "model.safetensors")
        return {"loss": 0.5 + seed}

    one = Trained({"seed": seed}, train)
    weights = safetensors.torch.load_file(one.folder() / "step1" / "model.safetensors")["w"]
    return torch.cat([weights, torch.tensor([one.metrics()["loss"]])]), len(calls)


ENTRIES = {
    "record of activations": ("activations", recorded, "entry-*"),
    "first batch": ("activations", recorded, "00000000*"),
    "second batch": ("activations", recorded, "00000004*"),
    "record of a model": ("models", made, "entry-*"),
    "weights": ("models", made, "model-*/step1/model.safetensors"),
    "metrics": ("models", made, "model-*/metrics.json"),
}


CASES = [
    *((entry, name, change) for entry in ENTRIES for name, change in DAMAGE.items()),
    *(("record of activations", name, edited(change)) for name, change in EDITS.items()),
]


@pytest.mark.parametrize(("entry", "what", "damage"), CASES, ids=[f"{entry}, {name}" for entry, name, _ in CASES])
def test_whatever_is_damaged_is_dropped_and_computed_again(
    own_cache, activations, trained_model, caplog, monkeypatch, entry, what, damage
):
    kind, compute, pattern = ENTRIES[entry]
    if what == "of another entry" and kind == "models" and "record" not in entry:
        pattern = "model-*"
        damage = lambda place: (shutil.rmtree(place), shutil.copytree(other(place), place))  # noqa: E731
    shutil.copytree({"activations": activations, "models": trained_model}[kind], own_cache)
    folder = next(f for f in (own_cache / kind).iterdir() if f.is_dir() and not f.name.endswith("1"))
    seed = int(kind == "models" and folder.name != trained_key(0))
    expected, computed = compute(seed)
    before = contents(folder)
    assert not computed
    (place,) = folder.glob(pattern)
    damage(place)
    monkeypatch.setattr(cache.log, "propagate", True)
    with caplog.at_level("WARNING", "repsim"):
        found, computed = compute(seed)
    assert found.tolist() == expected.tolist()
    assert contents(folder) == before
    if (entry.startswith("record of"), what) != (True, "gone"):  # as if it had been killed before it was finished
        assert "is damaged; it is dropped and computed again" in caplog.text
    assert computed == int(not entry.startswith("record of a"))


def trained_key(seed):
    from repsim_cli.training.trained import Trained

    return Trained({"seed": seed}, lambda *_: {}).key


@pytest.mark.parametrize("change", [os.mkfifo, lambda place: place.write_text("x")], ids=["a pipe", "a file"])
def test_what_is_there_instead_of_an_entry(own_cache, change):
    (own_cache / "activations").mkdir(parents=True)
    change(own_cache / "activations" / "key0")
    assert recorded(0)[1] == 2
    assert recorded(0)[1] == 0


def test_a_limit_that_is_a_pipe_or_nonsense(own_cache):
    own_cache.mkdir()
    (own_cache / "limit").write_text("many")
    assert cache.limit() == cache.DEFAULT_LIMIT
    (own_cache / "limit").unlink()
    os.mkfifo(own_cache / "limit")
    assert cache.limit() == cache.DEFAULT_LIMIT


def test_a_path_that_is_not_utf8(repsim, monkeypatch, tmp_path):
    for variable in ("REPSIM_CACHE", "REPSIM_OUTPUTS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
            code, out, err = repsim("run", "model=[tiny_a]", "measure=[cka]")
            assert (code, out) == (2, "")
            assert f"error: {variable}: not a path in UTF-8, got b'{tmp_path}/caf\\xe9'; set it to another" in err
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_disk_that_is_full_while_a_model_is_saved(own_cache):
    """The error is worded as the weights' library says it."""
    import safetensors

    from repsim_cli.training.trained import Trained

    def train(folder, scratch, progress):
        (folder / "model.safetensors").write_text("half")
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    one = Trained({"seed": 3}, train)
    with pytest.raises(OSError, match="No space left on device") as caught:
        one.folder()
    assert caught.value.filename == str(own_cache / "models" / one.key)
    assert [place.name for place in (own_cache / "models" / one.key).iterdir()] == ["training"]


def test_the_least_recently_used_goes_first():
    for number, key in enumerate(("old", "newer", "newest")):
        filled(key)
        os.utime(cache.find_cache_folder() / "work" / key, (number, number))
    with cache.use("work", ["old"]):
        pass  # used now
    assert cache.trim(2500) == (1, pytest.approx(2000, abs=400))
    assert sorted(f.name for f in cache._measure_entry_sizes()) == ["newest", "old"]


def test_what_a_process_reads_is_never_removed():
    filled("k1")
    with cache.use("work", ["k1"]) as entries:
        assert cache.trim(0)[0] == 0
        assert entries["k1"].files["part"].is_file()
    assert cache.trim(0) == (1, 0)


def test_what_computes_an_entry_may_ask_for_it_again():
    """A checkpoint that stands twice in a series does: neither waits for the other, and the entry stays while one is
    used."""
    with cache.use("work", ["k1", "k2"]) as outer:
        outer["k1"].write("part", lambda path: path.write_text("x") and None)
        outer["k1"].finish()
        with cache.use("work", ["k1"]) as inner:
            assert inner["k1"].complete
        with cache.use("work", ["k2"]) as inner:
            assert not inner["k2"].complete
        assert cache.trim(0)[0] == 0
        assert outer["k1"].files["part"].is_file()
    assert cache.trim(0)[0] == 1


def test_a_dead_reader_does_not_count():
    filled("k1")
    mark = cache.find_cache_folder() / "work" / f"k1.using-{cache.socket.gethostname()}-999999999"
    mark.touch()
    assert cache.trim(0) == (1, 0)
    assert not mark.exists()


def _compute(root, log, key):
    os.environ["REPSIM_CACHE"] = str(root)
    with cache.use("work", [key]) as entries:
        if not entries[key].complete:
            with open(log, "a") as stream:
                stream.write("computed\n")
            time.sleep(0.3)
            entries[key].write("part", lambda path: path.write_text("x") and None)
            entries[key].finish()


@pytest.mark.slow
def test_one_process_computes_while_others_wait(tmp_path, own_cache):
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    workers = [context.Process(target=_compute, args=(own_cache, log, "k1")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert log.read_text() == "computed\n"


@pytest.mark.parametrize(
    ("text", "size"), [("20GB", 2 * 10**10), ("500 mb", 5 * 10**8), ("0", 0), ("1e6", 10**6), ("1e3 kb", 10**6)]
)
def test_sizes(text, size):
    assert cache.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "20 XB", "-3GB", "1..2", "7", "5KB"])
def test_bad_sizes(text):
    with pytest.raises(BadInput, match="size: (not a size|negative|[0-9]+ bytes hold nothing), got .* e.g. 20GB"):
        cache.parse_size(text)
