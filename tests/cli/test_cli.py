"""The real command line, end to end, offline: runs, sweeps, exit codes, and one line for every bad input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import reference
import safetensors.torch
import torch
import yaml
from helpers.nights import nightly
from helpers.recorded import recorded

from repsim_cli.base import registry
from repsim_cli.cli import doctor
from repsim_cli.config.presets import GROUPS
from repsim_cli.runs import folders, reader

SMALL = ("model=[]", "data=embedded", "extract.length=32", "extract.sequences=12", "extract.batch_rows=64")


def local(label, folder):
    return f"+model.{label}={{kind: transformers, path: {folder}}}"


def stacked(folder, what="values"):
    """All matrices of the first measure as one, rows and columns in the order of the models."""
    measure = recorded(folder)["measures"][0]
    labels = list(dict.fromkeys(m["rows"]["model"] for m in measure["matrices"]))
    grid = [[None] * len(labels) for _ in labels]
    for m in measure["matrices"]:
        i, j = labels.index(m["rows"]["model"]), labels.index(m["columns"]["model"])
        grid[i][j] = reader.read_array(folder, m[what])
        grid[j][i] = grid[i][j].T
    return np.block(grid)


@pytest.mark.drawn
def test_the_default_run(repsim, newest):
    code, out, err = repsim("run", "-q")
    assert (code, out, err) == (0, "", "")
    folder = newest()
    manifest, found = reader.read_manifest(folder), recorded(folder)
    assert manifest["status"] == "complete"
    assert set(manifest["models"]) == {"tiny_a_step100", "tiny_a_step400", "tiny_a", "tiny_b"}
    assert all(len(model["weights_hash"]) == 64 for model in manifest["models"].values())
    assert manifest["data"]["rows_kept"] + manifest["data"]["rows_dropped"] == manifest["data"]["tokens"] == 64 * 128
    assert [m["label"] for m in found["measures"]] == ["cka_unbiased", "mutual_knn"]
    assert all(len(m["matrices"]) == 10 for m in found["measures"])
    for name, digest in manifest["files"].items():
        assert reader.hash_file(folder / name) == digest
    assert {p.name for p in folder.iterdir()} == {
        "manifest.json", "config.yaml", "results.json", "arrays", "figures", "report.html", "repsim.log", "rows.json", "rows.safetensors",
    }  # fmt: skip


def activations(folder, sequences, hook):
    """Block outputs by the library's own hidden states, at the positions that are text: (layers, rows, width)."""
    source = registry.models.get("transformers").function(path=str(folder))
    with torch.inference_mode():
        states = source.load(False)(
            input_ids=torch.from_numpy(sequences.ids).long(),
            attention_mask=torch.from_numpy(sequences.mask).long(),
            output_hidden_states=True,
        ).hidden_states
    return [states[layer].double().numpy()[sequences.text] for layer in hook]


@pytest.mark.parametrize("estimate", ["full", "per_batch"])
def test_numbers_equal_a_plain_recomputation(repsim, newest, tiny_folder, estimate):
    """From text to matrix by another road: the library's hidden states and the reference measure."""
    from repsim_cli.data.packing import pack

    one, two = tiny_folder("gpt_neox", 0), tiny_folder("gpt_neox", 1)
    code, _, err = repsim(
        "run", *SMALL, local("one", one), local("two", two), "measure=[cka_unbiased]", "extract.layers=[0,1]",
        f"extract.estimate={estimate}", "extract.rows=150", "extract.skip=0", "extract.normalise=none", "extract.pairs=all", "seed=3",
    )  # fmt: skip
    assert code == 0, err
    tokenizer = registry.models.get("transformers").function(path=str(one)).tokenizer()
    text = registry.data.get("embedded_text").function()
    sequences = pack(text, tokenizer, length=32, sequences=12, pool=1024, separator="auto", seed=3)
    layers = [x for folder in (one, two) for x in activations(folder, sequences, (1, 2))]
    if estimate == "full":
        chosen = np.sort(np.random.default_rng(3).permutation(len(layers[0]))[:150])
        batches = [[x[chosen] for x in layers]]
    else:
        batches = [[x[i : i + 64] for x in layers] for i in range(0, len(layers[0]) - 63, 64)]
    values = np.array([[[reference.cka_unbiased(a, b) for b in batch] for a in batch] for batch in batches])
    np.testing.assert_allclose(stacked(newest()), values.mean(0), atol=1e-6)
    if estimate == "per_batch":
        error = values.std(0, ddof=1) / np.sqrt(len(batches))
        np.testing.assert_allclose(stacked(newest(), "se"), error, atol=1e-6)


def test_batch_size_and_tile_change_nothing(repsim, newest, tiny_folder):
    runs = []
    for batch, tile in ((1, 16), (5, 512), (12, 33)):
        words = (f"hardware.batch_size={batch}", f"hardware.tile={tile}", "measure=[cka]", "seed=1")
        assert repsim("run", "-q", *SMALL, local("one", tiny_folder("llama")), *words)[0] == 0
        runs.append(stacked(newest()))
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], atol=1e-6)


def test_the_same_seed_gives_the_same_bits(repsim, newest, tiny_folder):
    runs = []
    for seed in (0, 0, 1):
        assert repsim("run", "-q", *SMALL, local("one", tiny_folder("bert")), f"seed={seed}")[0] == 0
        runs.append({f.name: f.read_bytes() for f in (newest() / "arrays").iterdir()})
    assert runs[0] == runs[1] != runs[2]


def test_all_measures_and_hook_points_of_one_model(repsim, newest, tiny_folder):
    points = "embed,resid_post,attn_out,mlp_out,q@1.h2,v@0,mlp_post@2,final_norm,module:h.1.ln_1"
    words = (f"extract.hook_points=[{points}]", "measure=[cka,cka_unbiased,procrustes,mutual_knn]")
    code, out, err = repsim("run", *SMALL, local("mine", tiny_folder("gpt2")), *words)
    assert code == 0, err
    found = recorded(newest())
    assert [m["label"] for m in found["measures"]] == ["cka", "cka_unbiased", "procrustes", "mutual_knn"]
    layers = found["measures"][0]["matrices"][0]["rows"]["layers"]
    assert layers[:4] == ["embed", "resid_post@0", "resid_post@1", "resid_post@2"]
    assert layers[-5:] == ["q@1.h2", "v@0", "mlp_post@2", "final_norm", "module:h.1.ln_1"]
    for measure in found["measures"]:
        values = reader.read_array(newest(), measure["matrices"][0]["values"])
        best = 1.0 if measure["card"]["larger_is_closer"] else 0.0
        np.testing.assert_allclose(np.diagonal(values), best, atol=1e-6)
    assert found["measures"][0]["label"] in out
    assert not [w for w in found["warnings"] if "inflated" in w]  # chance stands beside every value


def test_biased_cka_with_few_rows_warns_without_chance(repsim, newest, tiny_folder):
    words = ("measure=[cka]", "extract.batch_rows=20", "extract.skip=0", "significance.chance=false")
    _, out, _ = repsim("run", *SMALL, local("mine", tiny_folder("gpt2")), *words)
    expected = "cka: 20 rows for 32 features (resid_post@0 of 'mine'); biased CKA is inflated"
    assert expected in recorded(newest())["warnings"][0]
    assert f"warning: {expected}" in out


def test_ratio_of_sums(repsim, newest, tiny_folder):
    words = ("measure=[cka,cka_unbiased]", "extract.estimate=ratio_of_sums")
    assert repsim("run", *SMALL, local("mine", tiny_folder("gpt2")), *words)[0] == 0
    for measure in recorded(newest())["measures"]:
        assert measure["estimate"]["kind"] == "ratio_of_sums"
        assert measure["matrices"][0]["se"] is None


def test_precomputed_activations_alone_and_beside_a_model(repsim, newest, tiny_folder, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"h{i}": rng.normal(size=(150, 4 + i)).astype("float32") for i in range(3)}
    np.savez(tmp_path / "acts.npz", **arrays)
    stored = f"+model.stored={{kind: precomputed, path: {tmp_path / 'acts.npz'}}}"
    words = ("model=[]", stored, "measure=[cka]", "extract.estimate=full", "extract.rows=1000")
    code, out, _ = repsim("run", *words)
    assert code == 0
    assert "warning: extract.rows: 1000 rows were requested, the data have 150; all are used" in out
    expected = [[reference.cka(a, b) for b in arrays.values()] for a in arrays.values()]
    np.testing.assert_allclose(stacked(newest()), expected, atol=1e-6)
    code, out, err = repsim("run", *SMALL, stored, local("mine", tiny_folder("gpt2")))
    assert (code, out) == (2, "")
    assert "error: model: models have different numbers of rows, got stored: 150, (data): 3" in err


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


def test_sweeps_give_each_job_its_folder_and_status(repsim, newest, tmp_path, tiny_folder):
    code, _, err = repsim("run", "-m", "-q", *SMALL, local("a", tiny_folder("gpt2")), "seed=0,1", "measure=[cka]")
    assert code == 0, err
    made = folders.list_run_folders(tmp_path / "outputs")
    assert [reader.read_manifest(f)["seed"] for f in made] == [0, 1]
    assert len({f.parent for f in made}) == 1
    assert {f.name for f in made} == {"0-similarity", "1-similarity"}


def test_a_failing_job_stops_no_other(repsim, tmp_path, tiny_folder):
    """The second of three jobs has weights that are not finite."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in tiny_folder("gpt2").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["h.1.mlp.c_proj.bias"][0] = float("nan")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    good = tiny_folder("gpt2")
    paths = f"+model.x={{kind: transformers, path: {good}}},{{kind: transformers, path: {folder}}}"
    code, _, err = repsim("run", "-m", "-q", *SMALL, paths, "measure=[cka]", "seed=0,1")
    assert code == 1
    statuses = [reader.read_manifest(f)["status"] for f in folders.list_run_folders(tmp_path / "outputs")]
    assert sorted(statuses) == ["complete", "complete", "failed", "failed"]
    assert "resid_post@1 of 'x': activations are not finite, got nan in sequences 0 to 7; check the model's" in err
    assert "error: job 2 (" in err
    assert "2 of 4 jobs did not complete" in err


def test_dry_run_starts_nothing(repsim, tmp_path):
    code, out, _ = repsim("run", "dry_run=true", "model=[tiny_a,tiny_b]")
    assert code == 0
    assert "in all: 0.6" in out
    for line in ("tiny_a: gpt_neox, 6 blocks of 64, 332,800 parameters", "layers: 12", "pairs of layers: 78"):
        assert line in out
    assert "forward passes: 16" in out
    assert not (tmp_path / "outputs").exists()


@pytest.mark.drawn
def test_unsuitable_measures_are_skipped_with_the_reason(repsim, newest, tmp_path):
    """Those that the settings exclude, and those for which the data turns out to be too small."""
    (tmp_path / "a.txt").write_text("".join(f"the {i} th sentence about a program\n" for i in range(60)))
    words = [
        "run", "model=[tiny_a]", "extract=pooled", "extract.layers=[0,-1]", "data=local_text", "data.sample_by=line",
        f"data.path={tmp_path / 'a.txt'}", "significance=permutation", "significance.permutations=19",
    ]  # fmt: skip
    code, _, err = repsim(*words, "measure=[gromov_wasserstein,cka_unbiased]")
    assert code == 2
    assert err.count("error: ") == 1
    assert "skip_unsuitable=true runs the others" in err
    code, out, err = repsim(*words, "measure=[gromov_wasserstein,mean_cca,cka_unbiased]", "skip_unsuitable=true")
    assert code == 0, err
    reasons = {
        "gromov_wasserstein": "significance.method: gromov_wasserstein does not depend on how rows are paired",
        "mean_cca": "measure: mean_cca needs more rows than features, got 60 for 64",
    }
    found, manifest = recorded(newest()), reader.read_manifest(newest())
    assert [one["name"] for one in found["measures"]] == ["cka_unbiased"]
    assert manifest["measures_skipped"].keys() == reasons.keys()
    report = (newest() / "report.html").read_text()
    for name, reason in reasons.items():
        assert manifest["measures_skipped"][name].startswith(reason)
        line = f"measure.{name}: skipped as unsuitable ({manifest['measures_skipped'][name]})"
        assert line in manifest["warnings"]
        assert line in found["warnings"]
        assert f"  warning: {line}" in out
        assert reason in report
    before = len(folders.list_run_folders(tmp_path / "outputs"))
    code, out, err = repsim(*words, "measure=[mean_cca,pwcca]", "skip_unsuitable=true")
    assert (code, out) == (2, "")
    assert "mean_cca needs more rows than features, got 60 for 64 " in err
    assert "(2 of 2 measures are unsuitable)" in err
    assert len(folders.list_run_folders(tmp_path / "outputs")) == before


def test_words_go_with_the_default_measures(repsim, newest):
    code, _, err = repsim("run", "model=[tiny_a]", "extract=words", "data=embedded_sentences", "extract.sequences=20")
    assert code == 0, err
    assert [one["name"] for one in recorded(newest())["measures"]] == ["cka_unbiased", "mutual_knn"]
    assert reader.read_manifest(newest())["data"]["length"] == 256  # the context of the model


def test_a_study_on_tiny_models_passes_no_length_on(repsim, newest, tmp_path, tiny_folder):
    """Reviews of more than the 32 tokens that the study's own models read."""
    rows = "".join(f"{i} {'a rather long review of a film ' * 6}\t{i % 2}\n" for i in range(40))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + rows)
    code, _, err = repsim(
        "run", "-q", "experiment=tiny/mnli_cka", "model=[tiny_a]", "groups=null", "data=sst2",
        f"data.path={tmp_path / 'dev.tsv'}", "extract.sequences=40",
    )  # fmt: skip
    assert code == 0, err
    manifest = reader.read_manifest(newest())
    assert (manifest["data"]["length"], manifest["data"]["examples_truncated"]) == (256, {})
    code, _, err = repsim(
        "run", "model=[]", local("a", tiny_folder("gpt2")), "measure=[cka]", "data=sst2", "extract=pooled",
        f"data.path={tmp_path / 'dev.tsv'}", "extract.length=auto",
    )  # fmt: skip
    assert code == 0, err
    assert "extract.length: 40 of 40 examples were cut to 64 tokens for 'a'" in err


def test_a_run_is_not_compared_with_itself(repsim, newest, tmp_path):
    words = ["run", "-q", "model=[tiny_a]", "measure=[cka]", "extract.sequences=16", "extract.layers=[0]", "name=one"]
    assert repsim(*words)[0] == 0
    first = newest()
    code, out, err = repsim("diff", "latest", "one")
    assert (code, out) == (2, "")
    assert err == f"error: RUN: two different runs are needed, got {first} twice; see repsim list run\n"
    assert repsim(*words)[0] == 0
    code, _, err = repsim("diff", "latest", "one")
    assert code == 2
    assert f"got {newest()} twice; the run of this name before it is {first}" in err
    assert repsim("diff", "latest", str(first))[0] == 0


def test_the_summary_gives_values_by_hook_point_and_of_many_measures(repsim, newest):
    words = ["run", "model=[tiny_a]", "extract.sequences=16", "extract.layers=[0,-1]"]
    code, out, err = repsim(
        *words,
        "extract.hook_points=[resid_post,mlp_out]",
        "measure=[cka,gromov_wasserstein]",
        "extract.estimate=full",
        "extract.rows=16",
        "hardware.processes=1",
    )
    assert code == 0, err
    assert "audited pairs" in out
    assert "audit of pairs" not in out
    (record, _) = recorded(newest())["measures"]
    values = reader.read_array(newest(), record["matrices"][0]["values"])
    for i, point in enumerate(("resid_post", "mlp_out")):
        block = values[2 * i : 2 * i + 2, 2 * i : 2 * i + 2]
        assert re.search(rf"    tiny_a x tiny_a, {point} +mean {block.mean():6.3f}   lowest {block.min():6.3f}", out)
    many = ["cka", "cka_unbiased", "rsa", "stress", "procrustes", "cosine", "euclidean"]
    code, out, err = repsim(*words, "extract.length=32", f"measure=[{','.join(many)}]")
    assert code == 0, err
    lines = out.splitlines()
    for name in many:
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"  {name}: ")]
        assert re.match(r"    mean  ?-?\d+\.\d{3}   lowest +-?\d+\.\d{3}   highest ", lines[at + 1])


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


@pytest.mark.drawn
def test_show_list_and_plot(repsim, newest, tiny_folder):
    assert repsim("run", "-q", *SMALL, local("a", tiny_folder("gpt2")), "name=mine")[0] == 0
    for name in ("latest", "mine", str(newest())):
        code, out, _ = repsim("show", name)
        assert code == 0
        assert out.startswith("mine: complete,")
        assert "a x a" in out
    code, out, _ = repsim("list", "run")
    assert code == 0
    assert "complete" in out
    assert str(newest()) in out
    before = {f.name: f.read_bytes() for f in (newest() / "figures").iterdir()}
    for file in (newest() / "figures").iterdir():
        file.unlink()
    code, out, _ = repsim("plot", "mine")
    assert code == 0
    assert len(out.splitlines()) == len(before)
    assert before == {f.name: f.read_bytes() for f in (newest() / "figures").iterdir()}
    for group in GROUPS:
        code, out, _ = repsim("list", group)
        assert code == 0
        assert all(line.split(None, 1)[1] for line in out.splitlines())


def test_measure_command(repsim, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 5)), rng.normal(size=(30, 4))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    files = (tmp_path / "x.npy", tmp_path / "y.npy")
    code, out, _ = repsim("measure", "cka", *files)
    assert code == 0
    assert float(out) == pytest.approx(reference.cka(x, y), abs=1e-12)
    code, out, _ = repsim("measure", "mutual_knn", *files, "k=5", "--json")
    record = json.loads(out)
    assert record["value"] == pytest.approx(reference.mutual_knn(x, y, 5))
    assert record["settings"] == {"k": 5, "rows": "centred"}
    assert record["card"]["larger_is_closer"]


def test_measure_command_warns_of_too_few_rows(repsim, tmp_path):
    """Noise, 20 rows of 50 features: numbers near 1 come with a warning, a refusal with a measure that is right."""
    rng = np.random.default_rng(0)
    files = (tmp_path / "x.npy", tmp_path / "y.npy")
    for file in files:
        np.save(file, rng.normal(size=(20, 50)))
    code, out, err = repsim("measure", "svcca", *files)
    assert (code, float(out) > 0.9) == (0, True)
    assert "WARNING: svcca: x: 20 rows for 50 features; svcca is inflated when there are not many more rows" in err
    assert "WARNING: svcca: y: 20 rows for 50 features" in err
    code, out, err = repsim("measure", "svcca", *files, "--json")
    assert (len(json.loads(out)["warnings"]), err) == (2, "")
    code, _, err = repsim("measure", "mean_cca", *files)
    assert (code, err.strip().endswith("any data would score the same; use more rows, or cka_unbiased")) == (2, True)
    code, out, err = repsim("measure", "cka_unbiased", *files)
    assert (code, abs(float(out)) < 0.2, err) == (0, True, "")


def test_measure_all_prints_each_result_as_it_comes(repsim, tmp_path, monkeypatch, capsys):
    seen = []

    def names():
        for name in ("cka", "mean_cca", "svcca"):
            yield name
            seen.append(capsys.readouterr())

    monkeypatch.setattr("repsim_cli.measures.names", names)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 50)))
    code, out, _ = repsim("measure", "all", *[tmp_path / "x.npy"] * 2)
    assert code == 0
    assert [len(text.out.splitlines()) for text in seen] == [1, 0, 1]
    assert seen[0].out.startswith("cka ")
    assert seen[0].err.startswith("WARNING: cka: x: 20 rows for 50 features")
    assert out.startswith("not applicable: mean_cca: x: mean_cca needs more rows than features")


def test_help_ends_with_an_example(repsim):
    for words in ((), ("run",), ("list",), ("describe",), ("show",), ("plot",), ("measure",)):
        code, out, _ = repsim(*words, "--help")
        assert code == 0
        assert out.strip().splitlines()[-1].startswith("example: repsim ")


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
    assert err.startswith("error: --config-dir: a file is no YAML of a run, got ")
    assert "ours.yaml" in err


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


BAD = [
    (["experiment=pythia"], "experiment: no such name, got 'pythia'; did you mean 'pythia_cka'"),
    (["experiment=tiny/pythia_ck"], "experiment: no such name, got 'tiny/pythia_ck'; did you mean"),
    (["model=[tiny_c]"], "model: no such name, got 'tiny_c'; did you mean 'tiny_"),
    (["measure=[ckaa]"], "measure: no such name, got 'ckaa'; did you mean 'cka'"),
    (["data=embeded"], "data: no such name, got 'embeded'; did you mean 'embedded'"),
    (["extract=token"], "extract: no such name, got 'token'; did you mean 'tokens'?"),
    (["hardware=gpu"], "hardware: no such name, got 'gpu'; "),
    (["extract.lenght=3"], "extract.lenght: unknown key, got 3; did you mean 'length' or 'long'?"),
    (["sed=3"], "sed: unknown key, got 'sed=3'; did you mean 'seed'?"),
    (["model=[3]"], "model: a group is selected by name, got 'model=[3]'; write model=NAME"),
    (["dat.path=x"], "dat.path: unknown key, got 'dat.path=x'; did you mean 'data'?"),
    (["data.pathh=x"], "data.pathh: unknown key, got 'x'; known: chat, shuffle_words, split"),
    (["options.targts=[]"], "options.targts: unknown key, got []; did you mean 'targets'?"),
    (["analyses.map.x=1"], "analyses: unknown analysis, got 'map'; did you mean 'maps'?"),
    (["hardware.thread=2"], "hardware.thread: unknown key, got 2; did you mean 'threads'"),
    (["model.tiny_a.nam=tiny_b"], "model.tiny_a.nam: unknown key, got 'tiny_b'; did you mean 'name'?"),
    (["model.tiny.name=tiny_b"], "model.tiny: not selected, got 'model.tiny.name=tiny_b'; did you mean 'tiny_a'?"),
    (["measure.cka.k=3"], "measure.cka: not selected, got 'measure.cka.k=3'; known: cka_unbiased, mutual_knn"),
    (["--cfg", "job", "model.tiny.name=tiny_b"], "model.tiny: not selected, got 'model.tiny.name=tiny_b'; did you"),
    (["-m", "model=[tiny_a],[tiny_b]", "model.tiny_a.name=tiny_b"], "model.tiny_a: not selected, got 'model.tiny_a."),
    (["model.tiny_.kind=random"], "model.tiny_.kind: unknown key, got 'model.tiny_.kind=random'; did you mean 'tiny_"),
    (
        ["model.x={kind: shipped, name: tiny_a}"],
        "model.x: unknown key, got 'model.x={kind: shipped, name: tiny_a}'; add it with +model.x={",
    ),
    (["-m", "experiment=glob(no_such*)"], "overrides: the sweep expands to no jobs, got "),
    (
        ["data.path=a=b[", "data=local_text"],
        "overrides: cannot be read, got data.path=a=b[; write 'data.path=\"a=b[\"';",
    ),
    (["extract.length=long"], "extract.length: wrong value, got 'long'; give integer"),
    (["extract.length=64.5"], "extract.length: wrong value, got 64.5; give integer"),
    (["extract.hook_points=resid_post"], "extract.hook_points: wrong value, got 'resid_post'; give list"),
    (["extract.hook_points=[]"], "extract.hook_points: too few, got []; give at least 1"),
    (["extract.hook_points=[resid_pots]"], "unknown hook point, got 'resid_pots'; did you mean 'resid_post'"),
    (["extract.layers=[6]"], "layers: layer out of range, got 6; the model has layers 0 to 5"),
    (
        ["extract.batch_rows=100000"],
        "extract.batch_rows: the data has fewer rows than one batch, got at most 8192 for 100000",
    ),
    (["data=local_text"], "data.path: missing; set data.path=VALUE"),
    (["data=local_text", "data.path=EMPTY"], "it has no text, got white space or nothing; give"),
    (["data=local_text", "data.path=/no/file.txt"], "data.path: no such file, got '/no/file.txt'; check the path"),
    (["data=local_text", "data.path=JSONL", "data.column=body"], "no column 'body', got text; set data.column"),
    (
        ["+model.x={kind: transformers, path: /no/model}"],
        "model.x.path: no such folder, got '/no/model'; check the path",
    ),
    (["+model.x={kind: transformer}"], "model.x.kind: unknown model kind, got 'transformer'; did you mean"),
    (["+model.x={path: y}"], "model.x.kind: missing, got {'path': 'y'}; write {kind: NAME, ...}"),
    (
        ["+model.x={kind: transformers, hub: a/b}"],
        "model: the hub cannot be reached (HF_HUB_OFFLINE is set), got models of it: x (a/b)",
    ),
    (
        ["+model.x=LLAMA", "extract.length=64"],
        "model: tokenizers differ, got a different vocabulary for 'x' than for 'tiny_a'; use extract=pooled",
    ),
    (["hardware.memory_gb=0"], "hardware.memory_gb: wrong value, got 0; give greater than 0"),
    (["--bogus"], "repsim run: unknown option, got '--bogus'; known: "),
    (["--multrun"], "repsim run: unknown option, got '--multrun'; did you mean '--multirun'"),
    (["+model.a b={kind: shipped}"], "overrides: cannot be read, got "),
    (["name=../evil"], "name: wrong value, got '../evil'; use letters, digits and . _ - + @, a letter or digit first"),
    (["seed=-1"], "seed: wrong value, got -1; give greater than or equal to 0"),
    (["extract.layers=[]"], "no hook point is left, got layers [] of a model with 6; select some"),
    (
        ["measure=[mutual_knn]", "measure.mutual_knn.k=2000"],
        "extract.batch_rows: mutual_knn needs at least 2001 rows, got 1024",
    ),
    (["+model.x=NOTOKENIZER", "extract.length=64"], "model.x.path: no tokenizer in it, got "),
    (
        ["+model.x=SHAPES", "extract.length=64", "model=[]"],
        "model.x.path: 0 weights are missing and 1 have the wrong shape, got ",
    ),
    (["+model.x=VOCABULARY", "extract.length=64", "model=[]"], "model.x: its vocabulary has 20 tokens, got id "),
    (["model=3"], "model: a group is selected by name, got 'model=3'; write model=NAME, or +model.KEY=VALUE"),
    (["extract.length"], "overrides: "),
    (["-m", "seed=0,x"], "seed: wrong value, got 'x'; give integer"),
    (["--config-dir", "/no/conf"], "--config-dir: no such folder, got '/no/conf'; name a folder"),
]


ODD_FOLDERS = ("NOTOKENIZER", "SHAPES", "VOCABULARY")


def odd_folders(tmp_path, good):
    """Copies of a model folder that lack a tokenizer, or hold weights of another shape or a smaller vocabulary."""
    folders = {}
    for name in ODD_FOLDERS:
        folder = folders[name] = tmp_path / name.lower()
        folder.mkdir()
        for file in good.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    (folders["NOTOKENIZER"] / "tokenizer.json").unlink()
    weights = safetensors.torch.load_file(good / "model.safetensors")
    changes = {"SHAPES": ("h.0.attn.c_proj.bias", 7), "VOCABULARY": ("wte.weight", 20)}
    for name, (key, size) in changes.items():
        changed = {**weights, key: weights[key][:size].clone()}
        safetensors.torch.save_file(changed, folders[name] / "model.safetensors", {"format": "pt"})
    config = json.loads((good / "config.json").read_text())
    (folders["VOCABULARY"] / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))
    return folders


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_and_starts_nothing(repsim, tmp_path, tiny_folder, words, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.jsonl").write_text('{"text": "words"}\n')
    odd = odd_folders(tmp_path, tiny_folder("gpt2")) if any(word.endswith(ODD_FOLDERS) for word in words) else {}
    stand_ins = {
        "EMPTY": str(tmp_path / "empty.txt"),
        "JSONL": str(tmp_path / "a.jsonl"),
        "LLAMA": f"{{kind: transformers, path: {tiny_folder('llama')}}}",
        **{name: f"{{kind: transformers, path: {folder}}}" for name, folder in odd.items()},
    }
    for name, value in stand_ins.items():
        words = [word.replace(name, value) for word in words]
    model = [] if any(word.startswith("model=") for word in words) else ["model=[tiny_a]"]
    code, out, err = repsim("run", *model, *words)
    assert (code, out) == (2, "")
    lines = err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err
    assert not list((tmp_path / "outputs").rglob("*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure", "ckaa", "x.npy", "x.npy"], "error: unknown measure, got 'ckaa'; did you mean 'cka'"),
        (["measure", "mutual_knn", "x.npy", "x.npy", "q=3"], "mutual_knn.q: unknown key, got 3; known: k"),
        (
            ["measure", "mutual_knn", "x.npy", "x.npy", "k=a"],
            "mutual_knn.k: wrong value, got 'a'; give a whole number from 1, or a number above 0 below 1\n",
        ),
        (
            ["measure", "mutual_knn", "x.npy", "x.npy", "k=0"],
            "got 0; give a whole number from 1, or a number above 0 b",
        ),
        (["measure", "mutual_knn", "x.npy", "x.npy", "k=2.5"], "got 2.5; give a whole number from 1, or a number abo"),
        (
            ["measure", "cka", "x.npy", "x.npy", "--labels", "x.npy"],
            "--labels: cka reads no labels, got x.npy; drop it",
        ),
        (["measure", "mutual_knn", "x.npy", "x.npy", "k"], "settings: not key=value, got 'k'; e.g. k=5"),
        (["measure", "cka", "x.npy", "none.npy"], "none.npy: no such file; check the path"),
        (["measure", "cka", "x.npy", "text.npy"], "text.npy: cannot be read as .npy, got"),
        (["measure", "cka", "x.npy", "short.npy"], "x and y must be (n, d) with the same n, got (9, 2) and (8, 2)"),
        (["measure", "cka", "x.npy", "nan.npy"], "y: not finite, got nan in row 0; fix the array"),
        (["show", "latest"], "RUN: no runs in outputs, got 'latest'; start one with repsim run"),
        (["plot", "x"], "RUN: no runs in outputs, got 'x'; start one"),
    ],
)
def test_bad_input_of_the_other_commands(repsim, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPSIM_OUTPUTS", "outputs")
    x = np.random.default_rng(0).normal(size=(9, 2))
    np.save("x.npy", x)
    np.save("short.npy", x[1:])
    np.save("nan.npy", np.where(x == x[0, 0], np.nan, x))
    Path("text.npy").write_text("1 2 3")
    code, out, err = repsim(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("place", ["/dev/null/outputs", "a-file"])
def test_an_output_folder_that_cannot_be_written(repsim, tmp_path, monkeypatch, place):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path / place))
    code, out, err = repsim("run", "model=[tiny_a]")
    assert (code, out) == (2, "")
    reason = "Not a directory" if place.startswith("/dev") else "File exists"
    assert f"cannot be used, got '{reason}'; set REPSIM_OUTPUTS to a folder that can be written" in err
    assert len(err.strip().splitlines()) == 1
    code, out, err = repsim("compare", "tiny_a", "tiny_b", "--quiet")
    assert (code, out, err.count("\n"), reason in err) == (2, "", 1, True)


def test_an_internal_error_is_recorded(repsim, newest, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("repsim_cli.engine.matrices.estimate_all_pairs", broken)
    code, out, err = repsim("run", "model=[tiny_a]")
    assert (code, out) == (1, "")
    assert "internal error: ZeroDivisionError: oops; please report it with" in err
    assert reader.read_manifest(newest())["status"] == "failed"
    assert "Traceback" in (newest() / "repsim.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [signal.SIGINT, *(pytest.param(sent, marks=pytest.mark.nightly) for sent in (signal.SIGTERM, signal.SIGHUP))],
)
def test_ctrl_c(tmp_path, sent):
    """The process that a terminal or a scheduler would stop: status interrupted, exit code 130, no traceback."""
    environment = {**os.environ, "REPSIM_OUTPUTS": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    words = ["run", "data=embedded_train", "extract.sequences=1000", "extract.pool=1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "repsim_cli.cli", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        # where the tests themselves run in the background, SIGINT is ignored and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        manifests = list(tmp_path.rglob("manifest.json"))
        if manifests and "models" in json.loads(manifests[0].read_text() or "{}"):
            break
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(sent)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted; the same command with resume=latest resumes it"
    assert reader.read_manifest(manifests[0].parent)["status"] == "interrupted"


def test_pretraining_makes_models_that_a_run_can_use(repsim, newest):
    code, _, err = repsim(
        "run", "-q", "experiment=pretrain_tiny", "data=embedded", "options.recipe.steps=3", "options.recipe.save=[0,3]"
    )
    assert code == 0, err
    folder = newest()
    found = recorded(folder)
    assert len(found["curves"]["training loss"]["lines"]["loss"]) == 3
    models = [local(f"step{step}", folder / "models" / f"step{step}") for step in (0, 3)]
    assert repsim("run", "-q", "model=[]", *models, "extract.sequences=10")[0] == 0
    values = stacked(newest())
    assert values.shape == (12, 12)
    assert repsim("run", "experiment=pretrain_tiny", "options.recipe.save=[9999]")[2].startswith(
        "error: options.recipe.save: no such step, got 9999; steps go from 0 to 2000"
    )


def test_an_empty_outputs_variable_counts_as_unset(repsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPSIM_OUTPUTS", "")
    assert repsim("run", "-q", "model=[tiny_a]", "extract.sequences=10", "measure=[cka]")[0] == 0
    assert len(folders.list_run_folders(tmp_path / "outputs")) == 1


def test_a_damaged_run_is_not_shown(repsim, newest, finished, tmp_path):
    shutil.copytree(finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10"), tmp_path / "outputs" / "run")
    array = next((newest() / "arrays").iterdir())
    array.write_bytes(b"")
    for command in ("show", "plot"):
        code, out, err = repsim(command, "latest")
        assert (code, out) == (2, "")
        assert f"{array.name}: not as the run left it, got another or no file; run it again" in err


TORCHLESS = [("run", "model=[tiny_a]"), ("measure", "cka", "x.npy", "y.npy"), ("doctor",)]


@pytest.mark.parametrize("words", nightly(TORCHLESS, *TORCHLESS[1:]))
def test_an_environment_with_which_torch_does_not_start(tmp_path, words):
    environment = {**os.environ, "TORCH_LOGS": "nonsense", "REPSIM_OUTPUTS": str(tmp_path / "outputs")}
    command = [sys.executable, "-m", "repsim_cli", *words]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    error = "error: TORCH_LOGS: torch does not start with it, got 'nonsense'; unset it\n"
    assert (found.returncode, found.stdout, found.stderr) == (2, "", error)
    assert not (tmp_path / "outputs").exists()


AT_START = """
import os, sys
sys.argv = ["repsim", "--version"]
from repsim_cli.__main__ import main
try:
    main()
except SystemExit:
    assert "torch" not in sys.modules
    print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize("given", [None, "active"])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(monkeypatch, given):
    """Set before torch is imported, which reads it once."""
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    else:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    found = subprocess.run([sys.executable, "-c", AT_START], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == (given or "passive")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("PASSIVE", "threads that wait sleep (OMP_WAIT_POLICY=passive)"),
        ("active", "threads that wait spin (OMP_WAIT_POLICY: active) and slow other processes down; set it to passive"),
    ],
)  # fmt: skip
def test_the_doctor_says_how_threads_wait(monkeypatch, policy, said):
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    assert said in doctor.describe_devices()


def test_an_environment_with_another_backend_of_figures(tmp_path, finished):
    shutil.copytree(finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10"), tmp_path / "run")
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    command = [sys.executable, "-m", "repsim_cli", "plot", str(tmp_path / "run")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


ODD = ("../../x", '模型 <script>alert(1)</script>; $(rm -rf .) a|b&c \'"" $x^2$', "x" * 300)


@pytest.mark.drawn
def test_odd_labels_are_harmless(repsim, tmp_path, newest):
    """A label is data everywhere: in file names, figures, JSON and on the terminal."""
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    content = {
        "defaults": [{"override /model": []}, {"override /measure": []}],
        "model": {label: {"kind": "shipped", "name": "tiny_a"} for label in ODD},
        "measure": {"".join(ODD)[:200]: {"kind": "cka"}},
        "extract": {"layers": [0], "sequences": 10},
    }
    (folder / "odd.yaml").write_text("# @package _global_\n" + json.dumps(content))
    before = {p for p in tmp_path.rglob("*")}
    code, out, err = repsim("run", "--config-dir", tmp_path / "conf", "experiment=odd")
    assert code == 0, err
    measures = recorded(newest())["measures"]
    assert {m["rows"]["model"] for m in measures[0]["matrices"]} == set(ODD)
    assert [label for label in ODD if label not in out] == []
    new = {p for p in tmp_path.rglob("*")} - before
    assert all(p.is_relative_to(tmp_path / "outputs") or p.is_relative_to(tmp_path / "cache") for p in new)
