"""Series of checkpoints as one model entry: which steps they have, in which order, and who may use them."""

import hashlib
import shutil

import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput


def series(**arguments):
    return registry.models.get("series").function(**arguments)


@pytest.fixture
def folder(tmp_path, tiny_folder):
    """Three checkpoints whose names sort differently as text."""
    for seed, name in enumerate(("run-step2", "run-step10", "run-step100")):
        shutil.copytree(tiny_folder("gpt2", seed), tmp_path / "runs" / name)
    (tmp_path / "runs" / "logs").mkdir()
    return tmp_path / "runs"


def test_steps_are_numbers(folder):
    found = series(folder=str(folder), pattern="run-step{step}")
    assert [one.step for one in found.checkpoints] == [2, 10, 100]
    assert found.local
    hashes = {one.open().identity()["weights_hash"] for one in found.checkpoints}
    assert len(hashes) == 3


def test_chosen_steps(folder):
    found = series(folder=str(folder), pattern="run-step{step}", steps=[100, 2])
    assert [one.step for one in found.checkpoints] == [2, 100]


def test_a_chosen_step_that_is_missing_is_named_when_it_is_opened(folder):
    found = series(folder=str(folder), pattern="run-step{step}", steps=[2, 50, 100])
    with pytest.raises(BadInput, match="path: no such folder, got '.*run-step50'"):
        found.checkpoints[1].open()


def test_the_shipped_series():
    found = series(shipped="tiny_a")
    assert [one.step for one in found.checkpoints] == [100, 400, 2000]
    final = registry.models.get("shipped").function(name="tiny_a").identity()
    assert found.checkpoints[-1].open().identity() == final


def test_hub_revisions_are_not_opened_before_they_are_needed():
    found = series(hub="nobody/nothing", steps=[143000, 0, 1000])
    assert [one.step for one in found.checkpoints] == [0, 1000, 143000]
    assert not found.local
    with pytest.raises(BadInput, match="hub: the model could not be read, got 'nobody/nothing@step1000'"):
        found.checkpoints[1].open()


def test_downloads_are_dropped_after_use(tmp_path, monkeypatch, folder):
    """A made-up cache of the hub: one revision goes, with the files that no other has; local folders stay."""
    import huggingface_hub

    repository = tmp_path / "hub" / "models--some--run"
    for step, name in enumerate(("run-step2", "run-step10")):
        commit = f"{step}" * 40
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / f"step{step}").write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "blobs").mkdir(exist_ok=True)
        for file in (folder / name).iterdir():
            blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.copy(file, blob)
            (repository / "snapshots" / commit / file.name).symlink_to(blob)
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "hub"))
    before = len(list((repository / "blobs").iterdir()))
    found = series(hub="some/run", steps=[0, 1, 2], drop_downloads=True)
    found.checkpoints[0].drop()
    assert [place.name for place in (repository / "snapshots").iterdir()] == ["1" * 40]
    assert len(list((repository / "blobs").iterdir())) == before - 1  # the weights; config and tokenizer are shared
    found.checkpoints[2].drop()  # never downloaded
    assert [place.name for place in (repository / "snapshots").iterdir()] == ["1" * 40]
    series(hub="some/run", steps=[0, 1]).checkpoints[1].drop()
    for one in series(folder=str(folder), pattern="run-step{step}").checkpoints:
        one.drop()
        one.open()
    assert [place.name for place in (repository / "snapshots").iterdir()] == ["1" * 40]
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "nowhere"))
    found.checkpoints[1].drop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shipped": "tiny_a", "drop_downloads": True}, "drop_downloads: nothing is downloaded, got true with shipped; leave it false"),
        ({}, "folder, hub, shipped: give exactly one of them; e.g. folder: runs/a"),
        ({"folder": "a", "hub": "b"}, "folder, hub, shipped: give exactly one of them, got {'folder': 'a', 'hub': 'b'}"),
        ({"folder": "nowhere"}, "folder: no such folder, got 'nowhere'; check the path"),
        ({"hub": "a/b"}, "steps: needed with hub; list the steps"),
        ({"hub": "a/b", "steps": [1]}, r"steps: a series needs two checkpoints, got \[1\]; name more"),
        ({"hub": "a/b", "steps": [1, 1]}, r"steps: not distinct numbers from 0 on, got \[1, 1\]; name each step once"),
        ({"hub": "a/b", "steps": [-1, 1]}, r"steps: not distinct numbers from 0 on, got \[-1, 1\]"),
        ({"hub": "a/b", "steps": [0, 1], "pattern": "main"}, r"pattern: not exactly one {step} in it, got 'main'; e.g. 'step{step}'"),
        ({"shipped": "tiny_c"}, "shipped: no such series, got 'tiny_c'; did you mean 'tiny_a'?"),
        ({"shipped": "tiny_a", "steps": [100, 101]}, r"steps: 'tiny_a' ships without step 101, got \[100, 101\]; it has \[100, 400, 2000\]"),
    ],
)  # fmt: skip
def test_bad_series(arguments, message):
    with pytest.raises(BadInput, match=message):
        series(**arguments)


def test_no_step_in_the_names(folder):
    with pytest.raises(BadInput, match="pattern: no checkpoint is named 'epoch{step}' in '.*', got logs, run-step10"):
        series(folder=str(folder), pattern="epoch{step}")


def test_one_checkpoint_only(folder):
    shutil.rmtree(folder / "run-step2")
    shutil.rmtree(folder / "run-step10")
    with pytest.raises(BadInput, match=r"steps: a series needs two checkpoints, got \[100\]; name more"):
        series(folder=str(folder), pattern="run-step{step}")


def test_one_step_twice(folder):
    (folder / "run-step0100").mkdir()
    with pytest.raises(
        BadInput, match="pattern: two checkpoints of step 100, got run-step0100 and run-step100; rename"
    ):
        series(folder=str(folder), pattern="run-step{step}")


def test_other_studies_refuse_a_series_and_these_refuse_a_model(repsim):
    code, _, err = repsim("run", "model=[tiny_a_series]")
    assert code == 2
    assert err.startswith(
        "error: model.tiny_a_series: the study similarity takes single models, got a series of 3 checkpoints; give one"
    )
    code, _, err = repsim("run", "experiment=tiny/pythia_convergence", "model=[tiny_a]")
    assert code == 2
    assert err.startswith(
        "error: model.tiny_a: the study convergence takes series of checkpoints, got a single model; give {kind: series"
    )
