"""Configurations and words that somebody else wrote: none runs code, empties a file, or tells a variable's value."""

import json
import logging
import os
import re
import shutil

import pytest
import yaml

import repsim_cli
from repsim_cli.base.errors import BadInput
from repsim_cli.runs import reader, results

SECRET = "hunter2"
QUICK = ("model=[tiny_a]", "measure=[cka]", "extract.sequences=10", "extract.batch_rows=100", "cache=false")
# opening the canary like this empties it
TARGET = {"_target_": "logging.FileHandler", "filename": "CANARY", "mode": "w"}
LOGGING = {
    "version": 1,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "CANARY", "mode": "w"}},
    "root": {"handlers": ["file"]},
}
GLOBAL, ASK = "# @package _global_\n", "experiment=evil"
NOT_A_SETTING = "error: hydra: not a setting of a run, got 'hydra."


def hydra(**settings):
    return {"experiment/evil.yaml": GLOBAL + json.dumps({"hydra": settings})}


def overriding(group, content, **more):
    """An experiment whose list of defaults takes a file of the same folder for one of Hydra's groups."""
    defaults = [{f"override /hydra/{group}": "mine"}, "_self_"]
    return {
        "experiment/evil.yaml": GLOBAL + json.dumps({"defaults": defaults, **more}),
        f"hydra/{group}/mine.yaml": content if isinstance(content, str) else json.dumps(content),
    }


# files of --config-dir, the words of the command, and what the refusal says
HOSTILE = {
    "callbacks": (hydra(callbacks={"x": TARGET}), [ASK], NOT_A_SETTING),
    "callbacks as a list": (hydra(callbacks=[TARGET]), [ASK], "error: "),
    "job logging": (hydra(job_logging=LOGGING), [ASK], NOT_A_SETTING),
    "hydra logging": (hydra(hydra_logging=LOGGING), [ASK], NOT_A_SETTING),
    "a factory of a formatter": (
        hydra(job_logging={"version": 1, "formatters": {"x": {"()": "logging.FileHandler", "filename": "CANARY"}}}),
        [ASK],
        NOT_A_SETTING,
    ),
    "a data set": ({"data/evil.yaml": GLOBAL + json.dumps({"hydra": {"callbacks": {"x": TARGET}}})}, ["data=evil"], NOT_A_SETTING),
    "a package in the file": ({"data/evil.yaml": f"# @package hydra.callbacks\nx: {json.dumps(TARGET)}"}, ["data=evil"], NOT_A_SETTING),
    "a package in the word": ({"data/evil.yaml": json.dumps({"x": TARGET})}, ["+data@hydra.callbacks=evil"], NOT_A_SETTING),
    "a package in the list": (
        {"experiment/evil.yaml": GLOBAL + "defaults: [/mine@hydra.callbacks: x]", "mine/x.yaml": json.dumps({"x": TARGET})},
        [ASK],
        NOT_A_SETTING,
    ),
    "a file of callbacks": ({"hydra/callbacks/mine.yaml": json.dumps({"x": TARGET})}, ["hydra/callbacks=mine"], NOT_A_SETTING),
    "callbacks in the list": (overriding("callbacks", {"x": TARGET}), [ASK], NOT_A_SETTING),
    "a file of logging": ({"hydra/job_logging/mine.yaml": json.dumps(LOGGING)}, ["hydra/job_logging=mine"], NOT_A_SETTING),
    "a file of Hydra's logging": ({"hydra/hydra_logging/mine.yaml": json.dumps(LOGGING)}, ["hydra/hydra_logging=mine"], NOT_A_SETTING),
    "another logging of Hydra": ({}, ["hydra/job_logging=default"], NOT_A_SETTING),
    "an environment": (overriding("env", GLOBAL + json.dumps({"hydra": {"callbacks": {"x": TARGET}}})), [ASK], NOT_A_SETTING),
    "output": (overriding("output", GLOBAL + json.dumps({"hydra": {"callbacks": {"x": TARGET}}})), [ASK], NOT_A_SETTING),
    "help": (overriding("help", {"template": "x"}), [ASK], NOT_A_SETTING),
    "a launcher": (overriding("launcher", TARGET), ["-m", ASK, "seed=0,1"], "error: hydra/launcher: no such plugin is installed, got 'mine'; known: basic, "),
    "a sweeper": (overriding("sweeper", TARGET), ["-m", ASK, "seed=0,1"], "error: hydra/sweeper: no such plugin is installed, got 'mine'; known: basic"),
    "a launcher's target": (hydra(launcher={"_target_": "os.getcwd"}), ["-m", ASK, "seed=0,1"], NOT_A_SETTING + "launcher._target_'"),
    "inside a launcher": (hydra(launcher={"inner": TARGET}), ["-m", ASK], "error: "),
    "a launcher's word": ({}, ["-m", "++hydra.launcher.inner._target_=os.getcwd"], NOT_A_SETTING + "launcher.inner._target_'"),
    "arguments of a launcher": ({}, ["-m", "hydra/launcher=joblib", "++hydra.launcher._args_=[1]"], NOT_A_SETTING + "launcher._args_'"),
    "inside a sweep": (hydra(sweeper={"params": {"x": TARGET}}), ["-m", ASK], "error: "),
    "values of a sweep": (hydra(sweeper={"params": {"+hydra.callbacks.x": json.dumps(TARGET).replace('"', "")}}), ["-m", ASK], NOT_A_SETTING),
    "a shell's commands": (
        {"experiment/evil.yaml": GLOBAL + "defaults: [override /hydra/launcher: submitit_local]\nhydra: {launcher: {setup: [touch x]}}"},
        ["-m", ASK],
        "error: ",
    ),
    "an interpolated launcher": (
        {"experiment/evil.yaml": GLOBAL + "defaults: [override /hydra/launcher: joblib]\nhydra: {launcher: {temp_folder: '${oc.env:SECRET}'}}"},
        ["-m", ASK, "seed=0,1"],
        "error: hydra.launcher.temp_folder: not a plain value, got ",
    ),
    "words in a file": (hydra(overrides={"task": ["+hydra.callbacks.x._target_=os.getcwd"]}), ["-m", ASK], NOT_A_SETTING + "overrides'"),
    "a place with a variable": (hydra(run={"dir": "${oc.env:SECRET}/x"}), [ASK], "error: hydra.run.dir: not a plain value, got "),
    "a place with a hidden variable": (hydra(run={"dir": "${${study}.env:SECRET}"}), [ASK], "error: hydra.run.dir: not a plain value, got "),
    "a place that is none": (hydra(sweep={"dir": None}), [ASK], "error: "),
    "a place of two lines": (hydra(run={"dir": "a\nb"}), [ASK], "error: hydra.run.dir: not a plain value, got "),
    "the working folder": (hydra(job={"chdir": True}), [ASK], NOT_A_SETTING + "job.chdir'"),
    "the environment": (hydra(job={"env_set": {"PATH": "."}}), [ASK], NOT_A_SETTING + "job.env_set.PATH'"),
    "a copied variable": (hydra(job={"env_copy": ["SECRET"]}), [ASK], NOT_A_SETTING + "job.env_"),
    "a copied variable that is not set": (hydra(job={"env_copy": ["NOT_SET_HERE"]}), [ASK], NOT_A_SETTING + "job.env_copy'"),
    "a subfolder": (hydra(output_subdir=".."), [ASK], NOT_A_SETTING + "output_subdir'"),
    "a key with a dot": (hydra(job_logging={**LOGGING, "root.handlers": []}), [ASK], NOT_A_SETTING),
    "the search path in a file": (hydra(searchpath=["file:///tmp"]), [ASK], "error: "),
    "the search path": ({}, ["hydra.searchpath=[pkg://evil]"], NOT_A_SETTING + "searchpath'"),
    "the search path with a plus": ({}, ["++hydra.searchpath=[pkg://evil]"], NOT_A_SETTING + "searchpath'"),
    "a whole part": ({}, ["++hydra={callbacks:{x:{_target_:logging.FileHandler,filename:CANARY,mode:w}}}"], NOT_A_SETTING),
    "a word": ({}, ["+hydra.callbacks.x={_target_:logging.FileHandler,filename:CANARY,mode:w}"], NOT_A_SETTING),
    "a removed part": ({}, ["~hydra.job_logging"], "error: "),
    "a removed place": ({}, ["~hydra.run.dir"], "error: "),
    "all of it removed": ({}, ["~hydra"], "error: "),
    "the primary file": ({"config.yaml": json.dumps({"hydra": {"callbacks": {"x": TARGET}}})}, ["hydra.verbose=true"], NOT_A_SETTING + "verbose'"),
    "another file of the name": ({}, ["--config-name", "evil"], "error: repsim run: unknown option, got '--config-name'"),
    "another folder": ({}, ["--config-path=."], "error: repsim run: unknown option, got '--config-path'"),
    "a pickle": ({}, ["--experimental-rerun=CANARY"], "error: repsim run: unknown option, got '--experimental-rerun'"),
    "a name": ({"experiment/evil.yaml": GLOBAL + "name: n${oc.env:SECRET}"}, [ASK], "error: name: a variable of the environment, got SECRET,"),
    "a hidden name": (
        {"experiment/evil.yaml": GLOBAL + "base: oc\nname: n${${base}.env:SECRET}"},
        [ASK],
        "error: name: a variable of the environment, got SECRET,",
    ),
    "a decoded name": (
        {"experiment/evil.yaml": GLOBAL + json.dumps({"base": r"\${oc.env:SECRET}", "name": "n${oc.decode:${base}}"})},
        [ASK],
        "error: name: a variable of the environment, got SECRET,",
    ),
    "a setting": ({}, ["data.split=${oc.env:SECRET}"], "error: data.split: a variable of the environment, got SECRET,"),
    "a place of the package": ({}, ["name=${oc.env:REPSIM_OUTPUTS}"], "error: name: a variable of the environment, got REPSIM_OUTPUTS,"),
    "text that would be read again": ({}, ["data=local_text", r"data.path='\${oc.env:SECRET}.txt'"], "error: config: ${ in a value would be replaced"),
}  # fmt: skip
# every way of starting, some of which resolve nothing
WAYS = {"plan": ["dry_run=true"], "sweep": ["-m"], "cfg": ["--cfg", "all"], "info": ["--info", "config"]}
EVERY_WAY = ("callbacks", "a file of logging", "a package in the file", "the search path", "a place with a variable")


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """canary(files, words) -> the words, with the folder of the files and the path of a file that must stay as it
    is."""
    file = tmp_path / "canary"
    file.write_text("alive")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", SECRET)
    (tmp_path / "mine").mkdir()

    def made(files, words):
        for name, content in files.items():
            place = tmp_path / "mine" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content.replace("CANARY", str(file)))
        return ["--config-dir", "mine", *(word.replace("CANARY", str(file)) for word in words)]

    yield made
    assert file.read_text() == "alive"
    assert not [path for path in tmp_path.rglob("*") if SECRET in path.name]
    assert not [
        path for path in (tmp_path / "outputs").rglob("*") if path.is_file() and SECRET in path.read_text("latin-1")
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_configuration_of_somebody_else(repsim, canary, tmp_path, name):
    files, words, text = HOSTILE[name]
    check(repsim("run", *canary(files, words), *QUICK), text)
    assert not list((tmp_path / "outputs").rglob("manifest.json"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EVERY_WAY)
def test_every_way_of_starting(repsim, canary, name, way):
    files, words, text = HOSTILE[name]
    check(repsim("run", *canary(files, words), *QUICK, *WAYS[way]), text)


def check(answer, text):
    code, out, err = answer
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert text in err
    assert SECRET not in err


def test_what_a_configuration_may_set(repsim, canary, tmp_path):
    """Places, the launcher and sweeper that are installed, and their plain values."""
    settings = {
        "run": {"dir": "runs/${now:%Y}-${name}"},
        "sweep": {"dir": "sweeps/${name}", "subdir": "${hydra:job.num}-${seed}"},
        "launcher": {"n_jobs": 1},
        "sweeper": {"max_batch_size": 5, "params": {"seed": "3,4"}},
    }
    defaults = [{"override /hydra/launcher": "joblib"}, {"override /hydra/sweeper": "basic"}]
    plain = {key: value for key, value in settings.items() if key != "launcher"}
    words = canary({"experiment/evil.yaml": GLOBAL + json.dumps({"hydra": plain})}, [ASK, *QUICK, "measure=[cka]"])
    assert repsim("run", *words)[0] == 0
    assert [path.parent.name[4:] for path in (tmp_path / "runs").glob("*/manifest.json")] == ["-similarity"]
    code, _, err = repsim("run", "-m", *words)
    assert code == 0, err
    assert sorted(path.parent.name for path in (tmp_path / "sweeps").rglob("manifest.json")) == ["0-3", "1-4"]
    words = canary({"experiment/evil.yaml": GLOBAL + json.dumps({"defaults": defaults, "hydra": settings})}, [ASK])
    code, out, err = repsim("run", "--cfg", "hydra", *words)
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["hydra"]["launcher"]["n_jobs"] == 1


def test_help_of_hydra(repsim, canary, monkeypatch):
    """Hydra's help sets up logging too."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    check(repsim("run", "--hydra-help", *canary(*HOSTILE["a file of logging"][:2])), NOT_A_SETTING)
    code, out, err = repsim("run", "--hydra-help")
    assert (code, err) == (0, "")
    assert "hydra/launcher" in out


def test_both_spellings_of_a_flag_are_one(repsim, canary, tmp_path):
    """Hydra takes the last one."""
    (tmp_path / "good").mkdir()
    words = canary(*HOSTILE["callbacks"][:2])
    check(repsim("run", "-m", "-cd", "good", *words, *QUICK), NOT_A_SETTING)
    code, _, err = repsim("run", "-m", *words, "-cd", "good", *QUICK)
    assert (code, "no such name, got 'evil'" in err) == (2, True)


FROM = {
    "a variable": ({"name": "n${oc.env:SECRET}"}, "error: --from: not a value that a run writes, got 'n${oc.env:SECRET}'"),
    "in a list": ({"claims": ["${oc.env:SECRET}"]}, "error: --from: not a value that a run writes, got '${oc.env:SECRET}'"),
    "in a key": ({"groups": {"${oc.env:SECRET}": []}}, "error: --from: not a value that a run writes, got "),
    "Hydra": ({"hydra": {"callbacks": {"x": TARGET}}}, "error: --from: not a key that a run writes, got 'hydra'"),
    "a list of files": ({"defaults": ["hydra/callbacks"]}, "error: --from: not a key that a run writes, got 'defaults'"),
    "a target": ({"options": TARGET}, "error: options._target_: unknown key"),
    "a target of data": ({"data": {"kind": "embedded_text", **TARGET}}, "error: data._target_: unknown key"),
    "a key with a package": ({"hydra.callbacks": {"x": TARGET}}, "error: hydra.callbacks: unknown key"),
}  # fmt: skip


@pytest.mark.parametrize("way", [[], ["-m", "seed=0,1"]], ids=["run", "sweep"])
@pytest.mark.parametrize("name", FROM)
def test_the_run_of_somebody_else(repsim, canary, finished, tmp_path, name, way):
    change, text = FROM[name]
    folder = tmp_path / "outputs" / "2026-01-01" / "theirs"
    shutil.copytree(finished(*QUICK), folder)
    content = yaml.safe_load((folder / "config.yaml").read_text())
    canary({}, [])
    (folder / "config.yaml").write_text(json.dumps(content | change).replace("CANARY", str(tmp_path / "canary")))
    code, out, err = repsim("run", "--from", folder, *way)
    assert (code, out) == (2, ""), err
    assert err.startswith(text)
    assert SECRET not in err


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "n${oc.env:SECRET}"},
        {"options": {"a": ["${oc.env:SECRET}"]}},
        {"data.split": "${seed}"},
        {"extract.layers": ["${oc.env:SECRET"]},
    ],
)
def test_settings_from_python(canary, settings):
    canary({}, [])
    with pytest.raises(
        BadInput, match=r"^settings, data, models: \$\{\.\.\.\} is not replaced here, got '.*; give its"
    ):
        repsim_cli.compare(["tiny_a", "tiny_b"], settings=settings)
    with pytest.raises(BadInput, match="^hydra: unknown key"):
        repsim_cli.compare(["tiny_a", "tiny_b"], settings={"hydra.callbacks.x": TARGET})


def test_words_of_compare(repsim, canary, tmp_path):
    canary({}, [])
    (tmp_path / "${oc.env:SECRET}.txt").write_text("text " * 1000)
    for words in (("--data", "${oc.env:SECRET}.txt"), ("--set", "name=n${oc.env:SECRET}")):
        check(
            repsim("compare", "tiny_a", "tiny_b", *words), "error: settings, data, models: ${...} is not replaced here"
        )
    check(repsim("compare", "tiny_a", "tiny_b", "--set", "hydra.callbacks.x.a=1"), "error: hydra: unknown key")


def test_a_run_in_a_folder_that_holds_something(repsim, canary, tmp_path):
    """A refused run removes its folder."""
    words = canary(hydra(run={"dir": "."}), [ASK, *QUICK, "name=x"])
    code, _, err = repsim("run", *words)
    assert code == 0, err
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.slow
def test_a_sweep_in_a_folder_that_holds_something(repsim, canary, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "multirun.yaml").write_text("mine")
    words = canary(hydra(sweep={"dir": "there"}), ["-m", ASK, *QUICK])
    check(repsim("run", *words), "error: hydra.sweep.dir: other files are in it, got 'there'; name a new folder")
    assert (tmp_path / "there" / "multirun.yaml").read_text() == "mine"
    (tmp_path / "new" / "0-x").mkdir(parents=True)  # as a sweep that was killed leaves it
    (tmp_path / "new" / "multirun.yaml").write_text("hydra:\n")
    for _ in range(2):  # a sweep's own folder may be used again
        assert repsim("run", "-q", *words, "hydra.sweep.dir=new")[0] == 0


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["repsim.log", "figures", "report.html", ".lock"])
def test_links_that_leave_a_run(repsim, finished, tmp_path, name):
    folder = tmp_path / "outputs" / "2026-01-01" / "theirs"
    shutil.copytree(finished(*QUICK), folder)
    (tmp_path / "away").mkdir()
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "away")
    for words in (("plot", folder), ("report", "latest"), ("export", "theirs", "--csv"), ("analyse", folder)):
        check(repsim(*words), f"a link that leaves the run, got '{name}'; remove it, or copy there what it links to")
    with pytest.raises(BadInput, match="a link that leaves the run"):
        results.reopen(folder)
    assert not list((tmp_path / "away").iterdir())


def test_resolved_printing(repsim, canary):
    words = canary(*HOSTILE["a name"][:2])
    check(repsim("run", "--cfg", "job", "--resolve", *words), "a variable of the environment, got SECRET")


def test_texts_may_hold_anything(canary):
    canary({}, [])
    texts = [f"text {word} with ${{oc.env:SECRET}} and more {word * 3}" for word in "abcdefghijkl"]
    result = repsim_cli.compare(["tiny_a", "tiny_b"], texts, measures="cka", rows="pooled")
    assert result.manifest["status"] == "complete"


def outside(folder, tmp_path):
    """A run whose first array is elsewhere, with the hash that it has there."""
    manifest, results_ = (json.loads((folder / f"{name}.json").read_text()) for name in ("manifest", "results"))
    name = re.search('"values": "(arrays/[^"]+)"', json.dumps(results_))[1]
    (folder / name).rename(tmp_path / "away.npy")
    other = f"arrays/{os.path.relpath(tmp_path / 'away.npy', folder / 'arrays')}"
    (folder / "results.json").write_text(json.dumps(results_).replace(name, other))
    manifest["files"][other] = manifest["files"].pop(name)
    manifest["files"]["results.json"] = reader.hash_file(folder / "results.json")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return other


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("command", ["plot", "export --csv", "report"])
def test_arrays_outside_a_run(repsim, finished, tmp_path, command, hashed):
    folder = tmp_path / "outputs" / "2026-01-01" / "theirs"
    shutil.copytree(finished(*QUICK), folder)
    other = outside(folder, tmp_path)
    if not hashed:
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["files"][other]
        (folder / "manifest.json").write_text(json.dumps(manifest))
    name, *flags = command.split()
    code, _, err = repsim(name, folder, *flags)
    assert (code, err.count("\n")) == (2, 1), err
    assert ("not as the run left it" if hashed else "an array outside the run") in err


def test_a_link_in_place_of_a_file_that_is_written(tmp_path):
    (tmp_path / "canary").write_text("alive")
    (tmp_path / ".report.html.partial").symlink_to("canary")
    results.write(tmp_path / "report.html", b"new")
    assert ((tmp_path / "canary").read_text(), (tmp_path / "report.html").read_text()) == ("alive", "new")


@pytest.mark.parametrize("name", ["../model.safetensors", "/CANARY", "a/../../model.safetensors", "", 3, "a\0b"])
def test_names_in_the_index_of_a_model(repsim, tmp_path, tiny_folder, name):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("gpt2"), folder)
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    name = name.replace("CANARY", str(tmp_path / "model.safetensors")) if isinstance(name, str) else name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    code, out, err = repsim("describe", "model", folder)
    assert (code, out) == (2, "")
    assert "path: model.safetensors.index.json does not name files of its folder, got" in err


def test_names_in_a_data_set(repsim, tmp_path):
    import datasets

    columns = {"h0": [[float(i), 1.0] for i in range(30)], "text": ["some words"] * 30}
    for place in ("whole", "other", "splits/train"):
        datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / place)
    state = json.loads((tmp_path / "whole" / "state.json").read_text())
    state["_data_files"][0]["filename"] = f"../other/{state['_data_files'][0]['filename']}"
    (tmp_path / "whole" / "state.json").write_text(json.dumps(state))
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train", "../other"]}')
    rows = f"+model.x={{kind: precomputed, path: {tmp_path / 'whole'}}}"
    check(
        repsim("run", "model=[]", rows, "measure=[cka]", "extract.estimate=full"), "state.json names a file outside its"
    )
    for place, text in (("whole", "state.json names"), ("splits", "dataset_dict.json names")):
        code, _, err = repsim("compare", "tiny_a", "tiny_b", "--data", tmp_path / place)
        assert (code, text in err) == (2, True), err
