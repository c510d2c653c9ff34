"""How settings are given: words, groups, configurations of one's own, completion."""

import json

import numpy as np
import pytest
import yaml

from repsim_cli.runs import reader


def test_one_job_is_composed_and_validated_once(repsim, tmp_path, monkeypatch):
    """Each takes a tenth of a second, which every run would pay."""
    from repsim_cli.config import guard, run

    calls = []

    def counted(function):
        return lambda *given, **named: (calls.append(function.__name__), function(*given, **named))[1]

    monkeypatch.setattr(guard, "check", counted(guard.check))
    monkeypatch.setattr(run, "validate", counted(run.validate))
    for label in ("a", "b"):
        np.savez(tmp_path / label, one=np.random.default_rng(0).normal(size=(30, 4)))
    files = [f"model.{label}={{kind: precomputed, path: {tmp_path / label}.npz}}" for label in ("a", "b")]
    words = ("run", "model=[]", *(f"+{file}" for file in files), "measure=[cka]", "extract.estimate=full")
    assert repsim(*words)[0] == 0
    assert calls == ["check", "validate"]
    # a configuration may ask for a sweep as well, which Hydra starts
    assert repsim(*words, "hydra.mode=MULTIRUN")[0] == 0
    (sweep,) = (tmp_path / "outputs").glob("*/*-sweep")
    assert [json.loads((job / "manifest.json").read_text())["status"] for job in sweep.glob("0-*")] == ["complete"]


def test_groups_are_set_one_by_one(repsim):
    words = ["run", "dry_run=true", "groups.x=[tiny_a,tiny_b]"]
    code, out, err = repsim(*words)
    assert code == 0, err
    assert "    x: ['tiny_a', 'tiny_b']" in out
    code, out, err = repsim(
        "run", "dry_run=true", "experiment=tiny/mnli_cka", "groups.generalizing=[tiny_nli_0,tiny_nli_1]"
    )
    assert code == 0, err
    assert "generalizing: ['tiny_nli_0', 'tiny_nli_1']" in out
    code, out, err = repsim("run", "dry_run=true", "extract.hook_points={a: b}")
    assert (code, out) == (2, "")
    line = "wrong kind of value, got 'extract.hook_points={a: b}'; see repsim run --cfg job"
    assert err == f"error: extract.hook_points: {line}\n"


def test_how_a_label_with_a_dot_is_written(repsim):
    for label in ("Qwen2.5-7B", "Qwen2.5", "v1.2.3"):
        code, out, err = repsim("run", "dry_run=true", "model=[]", f"+model.{label}={{kind: shipped, name: tiny_a}}")
        assert (code, out) == (2, "")
        said = f"got +model.{label}={{kind: shipped, name: tiny_a}}" if "-" in label else f"got '{label}'"
        assert f"{said}; write '+model={{{label}: {{kind: " in err
        assert len(err.splitlines()) == 1
        given = f"+model={{{label}: {{kind: shipped, name: tiny_a}}}}"
        code, out, err = repsim("run", "dry_run=true", "model=[]", given)
        assert code == 0, err
        assert f"    {label}: gpt_neox" in out


def test_hydra_still_answers(repsim):
    code, out, _ = repsim("run", "--cfg", "job", "experiment=tiny/pythia_cka")
    assert code == 0
    assert "name: tiny_pythia_cka" in out


def test_a_users_own_configs(repsim, tmp_path, newest):
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "ours.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: [tiny_a]\n  - override /measure: [procrustes]\nname: ours\n"
    )
    code, _, err = repsim(
        "run", "-q", "--config-dir", str(tmp_path / "mine"), "experiment=ours", "extract.sequences=10"
    )
    assert code == 0, err
    assert reader.read_manifest(newest())["name"] == "ours"


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2", "\t- x", "a: \xff\x00"])
def test_a_users_file_that_is_no_yaml(repsim, tmp_path, text):
    file = tmp_path / "mine" / "experiment" / "ours.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    code, out, err = repsim("run", "--config-dir", str(tmp_path / "mine"), "experiment=ours")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: --config-dir: a file is not the YAML of a run, got ")
    assert "ours.yaml" in err


@pytest.mark.slow
def test_a_key_that_the_yaml_does_not_list(repsim):
    """Given as any other, in sweeps and with quotes too."""
    path = 'model.feather_berts.path="DIR/bert_{number}"'
    words = ["model=[pythia_70m,feather_berts]", "model.pythia_70m.path=DIR", path, "model.feather_berts.hub=null"]
    words += ["data=hans", "data.subcases=[ln_passive]", "hardware.threads=2", "measure.mutual_knn.k=3"]
    code, out, err = repsim("run", "--cfg", "job", *words, "~model.pythia_70m.hub", "options.within=true")
    assert (code, err) == (0, "")
    config = yaml.safe_load(out)
    berts = config["model"].pop("feather_berts")
    assert config["model"] == {"pythia_70m": {"kind": "transformers", "path": "DIR"}}
    assert (berts["path"], berts["hub"]) == ("DIR/bert_{number}", None)
    assert (config["data"]["subcases"], config["hardware"]["threads"]) == (["ln_passive"], 2)
    assert (config["measure"]["mutual_knn"]["k"], config["options"]) == (3, {"within": True})
    for sweep in ("hardware.threads=1,2", "data=glob(embedded_*)"):
        code, out, err = repsim("run", "-m", "dry_run=true", "model=[tiny_a]", sweep)
        assert (code, err, out.count("plan of similarity")) == (0, "", 2)


@pytest.mark.parametrize("name", ["experiment/tiny/pythia_cka", "model/tiny_a", "measure/cka", "data/embedded"])
def test_a_users_file_with_the_name_of_one_that_ships(repsim, tmp_path, name):
    """Hydra would take the one that ships, or merge the two."""
    file = tmp_path / "own" / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("tiny_a: {kind: shipped, name: tiny_b}\n")
    code, out, err = repsim("run", "model=[tiny_a]", "--config-dir", str(tmp_path / "own"))
    group = name.partition("/")[0]
    assert (code, out) == (2, "")
    assert err == f"error: --config-dir: the name of a {group} that ships, got '{file}'; rename it\n"


def test_a_users_model_and_measure_are_selected_by_name(repsim, tmp_path):
    for group, label, entry in (
        ("model", "ours", "{kind: shipped, name: tiny_b}"),
        ("measure", "near", "{kind: mutual_knn}"),
    ):
        (tmp_path / group).mkdir()
        (tmp_path / group / f"{label}.yaml").write_text(f"{label}: {entry}\n")
    words = ["model=[ours,tiny_a]", "measure=[near,cka]", "measure.near.k=3", "dry_run=true"]
    code, out, err = repsim("run", "--config-dir", str(tmp_path), *words)
    assert (code, err) == (0, "")
    assert "  models\n    ours: " in out
    assert "near, cka" in out


def test_completion_knows_the_tables(repsim, monkeypatch):
    for typed, expected in (
        (
            "model=pythia_70m",
            ["model=pythia_70m", "model=pythia_70m_seeds", "model=pythia_70m_series", "model=pythia_70m_shape"],
        ),
        ("measure=mutual_k", ["measure=mutual_knn"]),
    ):
        monkeypatch.setenv("COMP_LINE", f"repsim {typed}")
        monkeypatch.setenv("COMP_POINT", "99")
        code, out, _ = repsim("run", "-sc", "query=bash")
        assert (code, out.split()) == (0, expected)
