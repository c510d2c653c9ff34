"""Runs that are killed, interrupted, repeated, compared; faults while they run."""

import builtins
import errno
import io
import json
import os
import shutil
from pathlib import Path

import kills
import numpy as np
import pytest
import torch
import yaml
from helpers.nights import nightly
from helpers.timers import set_timers

from repsim_cli.runs import folders, reader, results

SMALL = ("model=[tiny_a,tiny_b]", "measure=[cka_unbiased]", "extract.length=32", "extract.sequences=24")
SMALL = (*SMALL, "extract.batch_rows=64", "hardware.batch_size=2")


@pytest.mark.nightly
def test_kills_lose_nothing():
    """Real processes, SIGKILL at random moments, until each run is complete: the same bits as undisturbed."""
    outcome = kills.kill_runs(8)
    assert outcome.kills == 8
    assert outcome.differing_bytes == 0
    assert outcome.resumed > 0


class Stop(Exception):
    pass


@pytest.fixture
def broken_off(repsim, newest, monkeypatch):
    """A run that breaks off after three batches, its state saved; returns the folder."""

    def run(*words):
        set_timers(monkeypatch, due=True)
        seen = []
        from repsim_cli.engine import estimates

        original = estimates.compute_all_pairs

        def counted(*args, **kwargs):
            seen.append(1)
            if len(seen) > 3:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        monkeypatch.setattr(estimates, "compute_all_pairs", counted)
        assert repsim("run", *SMALL, *words)[0] == 130
        monkeypatch.setattr(estimates, "compute_all_pairs", original)
        return newest()

    return run


def numbers(folder):
    return {f.name: f.read_bytes() for f in [folder / "results.json", *sorted((folder / "arrays").iterdir())]}


@pytest.mark.slow
def test_a_state_without_the_matrices_of_its_batches(repsim, newest, monkeypatch):
    """The matrices are computed again: standard errors are of all batches, not of zeros."""
    from repsim_cli.engine import matrices

    words = (*SMALL, "extract.estimate=ratio_of_sums", "significance.bands=true")
    original = matrices._keep

    def broken(*args):
        def keep(batch, values):
            if batch == 3:
                raise KeyboardInterrupt
            original(*args)(batch, values)

        return keep

    set_timers(monkeypatch, due=True)
    monkeypatch.setattr(matrices, "_keep", broken)
    assert repsim("run", *words)[0] == 130
    monkeypatch.setattr(matrices, "_keep", original)
    folder = newest()
    assert (folder / reader.STATE).is_file()
    (kept,) = folder.glob(".per-batch-*")
    kept.unlink()
    assert repsim("run", "-q", *words, "resume=latest")[0] == 0
    assert repsim("run", "-q", *words, "cache=false")[0] == 0
    assert newest() != folder
    resumed, whole = (sorted((of / "arrays").glob("*-se.npy")) for of in (folder, newest()))
    assert len(whole) == 3
    assert [file.read_bytes() for file in resumed] == [file.read_bytes() for file in whole]


def changed(folder, change):
    """The manifest as `change` leaves it."""
    manifest = reader.read_manifest(folder)
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.slow
def test_other_models_are_not_mixed_into_a_run(repsim, broken_off):
    folder = broken_off()
    began = reader.read_manifest(folder)["models"]["tiny_a"]["weights_hash"]
    changed(folder, lambda manifest: manifest["models"]["tiny_a"].update(weights_hash="another"))
    code, _, err = repsim("run", *SMALL, "resume=latest")
    assert code != 0
    got = f"models.tiny_a.weights_hash: another then, {began} now"
    assert f"resume: {folder} began with other input, got {got}; start a new run" in err
    changed(folder, lambda manifest: manifest["models"]["tiny_a"].update(weights_hash=began))
    assert repsim("run", *SMALL, "resume=latest")[0] == 0


@pytest.mark.slow
def test_other_code_is_warned_about(repsim, broken_off):
    folder = broken_off()
    changed(folder, lambda manifest: manifest["packages"].update(torch="1.0"))
    assert repsim("run", *SMALL, "resume=latest", "hardware.processes=1", "hardware.memory_gb=5")[0] == 0
    skipped, paired, warning = reader.read_manifest(folder)["warnings"]
    assert skipped.startswith("extract.skip: ")
    assert paired.startswith("extract.pairs: ")
    assert warning.startswith("the run resumes with other code than it began with: torch: 1.0 then, ")


REMEDIES = ("extract.skip=2", "extract.drop_features=0.2", "extract.normalise=features")


# test_walk.py walks through all stages of such runs
@pytest.mark.parametrize("words", nightly([(), ("cache=false",), REMEDIES], ("cache=false",), REMEDIES))
def test_resume_goes_on_with_the_same_bits(repsim, newest, broken_off, words, tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "one"))
    assert repsim("run", "-q", *SMALL, *words)[0] == 0
    expected = numbers(newest())
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "two"))
    folder = broken_off(*words)
    assert reader.read_manifest(folder)["status"] == "interrupted"
    assert (folder / reader.STATE).is_file()
    code, out, err = repsim("run", *SMALL, *words, "resume=latest")
    assert code == 0
    assert f"resuming {folder}" in err
    assert numbers(folder) == expected
    manifest = reader.read_manifest(folder)
    assert (manifest["status"], len(manifest["resumed"])) == ("complete", 1)
    assert not (folder / reader.STATE).exists()
    assert len(folders.list_run_folders(tmp_path / "outputs")) == 2
    code, out, _ = repsim("run", *SMALL, *words, f"resume={folder}")
    assert code == 0
    assert "already complete, nothing is left to do" in out


def test_resume_of_another_configuration_is_refused(repsim, broken_off):
    folder = broken_off()
    code, out, err = repsim("run", *SMALL, "seed=3", f"resume={folder}", "extract.layers=[0]")
    assert (code, out) == (2, "")
    assert (
        "has another configuration, got seed: 0 then, 3 now; extract.layers: all then, [0] now; start a new run" in err
    )
    assert reader.read_manifest(folder)["status"] == "interrupted"


def test_a_key_that_is_null_and_one_that_is_not_there_are_alike(repsim, broken_off):
    folder = broken_off()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["hardware"]["devices"] = None
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    code, _, err = repsim("run", *SMALL, "resume=latest")
    assert (code, f"resuming {folder}" in err) == (0, True)


def test_latest_is_the_newest_unfinished_run(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path))
    for number, status in enumerate(("complete", "interrupted", "failed", "complete")):
        run = results.create(tmp_path / str(number), name="a", study="similarity", seed=0, command=[], overrides=[])
        run.write_text("config.yaml", "{seed: 0, analyses: {}}")
        run.finish(status)
        changed(run.folder, lambda manifest, number=number: manifest.update(started=f"2026-01-0{number + 1}T00:00:00"))
    assert folders.find_unfinished({"seed": 0, "analyses": {}}) == (tmp_path / "2", False)


def test_resume_latest_without_one(repsim):
    code, out, err = repsim("run", *SMALL, "resume=latest")
    assert (code, out) == (2, "")
    assert "resume: no unfinished run of this configuration, got latest; start it without resume" in err


@pytest.mark.slow
def test_in_a_sweep_each_job_looks_for_its_own(repsim, tmp_path, broken_off):
    folder = broken_off("seed=1")
    code, _, err = repsim("run", "-m", "-q", *SMALL, "seed=0,1", "resume=latest")
    assert code == 0, err
    runs = folders.list_run_folders(tmp_path / "outputs")
    assert [reader.read_manifest(f)["seed"] for f in runs] == [1, 0]
    assert runs[0] == folder
    assert {reader.read_manifest(f)["status"] for f in runs} == {"complete"}
    assert not [f for f in runs if "resume=latest" in reader.read_manifest(f)["overrides"]]  # they differ by their seed


def test_from_repeats_a_run(repsim, newest):
    assert repsim("run", "-q", *SMALL, "seed=4", "name=first")[0] == 0
    first = newest()
    assert repsim("run", "-q", "--from", "first", "name=second")[0] == 0
    assert newest() != first
    again = numbers(newest())
    assert {k: v for k, v in numbers(first).items() if k.endswith(".npy")} == {
        k: v for k, v in again.items() if k.endswith(".npy")
    }
    assert repsim("run", "-q", "--from", str(first), "seed=5")[0] == 0
    assert reader.read_manifest(newest())["seed"] == 5
    assert (
        repsim("run", "-q", f"--from={first}", "model=[tiny_a_step100]", "measure=[cka]", "data=embedded_train")[0] == 0
    )
    config = reader.read_config(newest())
    assert (list(config["model"]), list(config["measure"])) == (["tiny_a_step100"], ["cka"])
    assert (config["data"]["split"], config["seed"]) == ("train", 4)
    code, out, err = repsim("run", "--from")
    assert (code, out) == (2, "")
    assert "--from: no run is named; e.g. --from latest" in err
    assert repsim("run", "--from", "nowhere")[0] == 2


@pytest.mark.slow
def test_two_writers_in_one_folder(repsim, broken_off):
    folder = broken_off()
    lock = results.claim_folder(folder)
    code, out, err = repsim("run", *SMALL, f"resume={folder}")
    assert (code, out) == (2, "")
    assert f"{folder}: another process is writing this run; wait for it" in err
    lock.release()
    assert repsim("run", "-q", *SMALL, f"resume={folder}")[0] == 0


@pytest.mark.slow
def test_the_output_folder_is_removed_during_the_run(repsim, newest, monkeypatch, tmp_path):
    from repsim_cli.engine import matrices

    original = matrices.estimate_matrices

    def removing(run, *rest, **more):
        shutil.rmtree(run.folder)
        return original(run, *rest, **more)

    set_timers(monkeypatch, due=False)
    monkeypatch.setattr(matrices, "estimate_matrices", removing)
    code, out, err = repsim("run", *SMALL)
    assert (code, out) == (1, "")
    assert "No such file or directory" in err
    assert "Traceback" not in err
    monkeypatch.setattr(matrices, "estimate_matrices", original)
    assert repsim("run", "-q", *SMALL)[0] == 0
    assert reader.read_manifest(newest())["models_run"] == []


def test_the_disk_fills_up_while_results_are_written(repsim, newest, monkeypatch):
    original = results.Run.write_array

    def full(self, name, array, *_):
        raise OSError(28, "No space left on device", str(self.folder))

    monkeypatch.setattr(results.Run, "write_array", full)
    code, _, err = repsim("run", *SMALL)
    assert code == 1
    folder = newest()
    told = f"{folder}: cannot be used, got 'No space left on device'; free space there, or choose another place"
    assert err.splitlines()[-1] == f"error: {told}"
    manifest = reader.read_manifest(folder)
    assert (manifest["status"], manifest["error"]) == ("failed", told)
    code, _, err = repsim("compare", "tiny_a", "tiny_b", "--set", "extract.sequences=4")
    assert (code, err.splitlines()[-1]) == (1, f"error: {told}".replace(str(folder), str(newest())))
    monkeypatch.setattr(results.Run, "write_array", original)
    assert repsim("run", "-q", *SMALL, "resume=latest")[0] == 0
    assert reader.read_manifest(folder)["status"] == "complete"
    assert reader.read_manifest(folder)["models_run"] == []


def test_a_clock_that_jumps_back(repsim, monkeypatch, tmp_path):
    """Durations do not go by the wall clock, and a folder's name that is taken gets a number."""
    import time

    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert repsim("run", "-q", *SMALL)[0] == 0
    assert repsim("run", "-q", *SMALL)[0] == 0
    for folder in folders.list_run_folders(tmp_path / "outputs"):
        manifest = reader.read_manifest(folder)
        assert manifest["seconds"] > 0
        assert all(seconds >= 0 for seconds in manifest["timings"].values())


def test_out_of_memory_halves_the_batch(repsim, newest, monkeypatch):
    """An injected out-of-memory error: the run goes on with half the batch, says so, and gives the same numbers."""
    from repsim_cli.activations.rows import Forward

    original, sizes = Forward._read_layers, []

    def small(self, given, where):
        sizes.append(len(given.inputs))
        if len(given.inputs) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, given, where)

    words = (*SMALL[:-1], "hardware.batch_size=8", "cache=false", "model=[tiny_a]", "extract.normalise=none")
    assert repsim("run", "-q", *words)[0] == 0
    expected = numbers(newest())
    monkeypatch.setattr(Forward, "_read_layers", small)
    code, _, err = repsim("run", *words)
    assert code == 0
    assert "model.tiny_a: out of memory with 8 sequences; continuing with 4" in err
    assert "model.tiny_a: out of memory with 4 sequences; continuing with 2" in err
    assert sizes[:3] == [8, 4, 2]
    assert set(sizes[3:]) == {2}
    for name, content in numbers(newest()).items():
        if name.endswith(".npy"):
            a, b = (np.frombuffer(c[128:]) for c in (content, expected[name]))
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_one_sequence_that_does_not_fit(repsim, monkeypatch):
    from repsim_cli.activations.rows import Forward

    def never(self, given, where):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Forward, "_read_layers", never)
    code, _, err = repsim("run", *SMALL)
    assert code == 1
    assert "one sequence does not fit into the memory of cpu, got 32 tokens; lower extract.length" in err


def test_devices_in_turn_and_by_name():
    from repsim_cli.activations.readings import assign_devices
    from repsim_cli.base.errors import BadInput
    from repsim_cli.base.settings import Hardware

    assert assign_devices(Hardware(devices=["cpu", "cpu:0"]), ["a", "b", "c"]) == {"a": "cpu", "b": "cpu:0", "c": "cpu"}
    assert assign_devices(Hardware(devices={"b": "cpu:0"}), ["a", "b"]) == {"a": "cpu", "b": "cpu:0"}
    assert assign_devices(Hardware(), ["a"]) == {"a": "cpu"}
    with pytest.raises(BadInput, match="hardware.devices: no such model, got 'bb'; "):
        assign_devices(Hardware(devices={"bb": "cpu"}), ["b"])
    with pytest.raises(BadInput, match="hardware.devices: not usable here, got 'cuda:9'"):
        assign_devices(Hardware(devices=["cuda:9"]), ["b"])


def test_doctor(repsim):
    code, out, _ = repsim("doctor")
    assert code == 0
    for topic in ("versions", "memory and disk", "devices", "matrix kernels", "hub", "cache", "GFLOP/s", "limit 20 GB"):
        assert topic in out


@pytest.mark.parametrize("free", [0, 1, 2, 3, 4, 5, 6, 7, 9])
def test_an_outputs_disk_without_inodes(repsim, tmp_path, monkeypatch, free):
    """A few files and folders can still be made: one line, nothing left of a run that had not started, and the rest
    resumed once there is room."""
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    left = [free]

    def limited(make, creates):
        def made(path, *args, **kwargs):
            here = isinstance(path, str | Path) and Path(path).absolute().is_relative_to(outputs)
            if here and creates(args) and not Path(path).exists():
                if not left[0]:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                left[0] -= 1
            return make(path, *args, **kwargs)

        return made

    words = ("run", "model=[tiny_a]", *SMALL[1:])
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", limited(os.mkdir, lambda args: True))
        patch.setattr(os, "open", limited(os.open, lambda args: args[0] & os.O_CREAT))
        for module in (io, builtins):
            patch.setattr(module, "open", limited(io.open, lambda args: args and set(args[0]) & set("wax")))
        code, _, err = repsim(*words)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "No space left on device" in lines[0]
    assert "Traceback" not in err
    again, _, more = repsim(*words, "resume=latest")
    if free < 8:
        assert (code, list(outputs.iterdir())) == (2, [])
        assert (again, "resume: no unfinished run" in more) == (2, True)
    else:
        assert (code, again) == (1, 0)
        assert [reader.read_manifest(folder)["status"] for folder in folders.list_run_folders(outputs)] == ["complete"]
