"""The real command line, end to end, offline: runs, sweeps, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import reference
import safetensors.torch
import torch
from helpers.recorded import recorded

from repsim_cli.base import registry
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
    """Another road from text to matrix: the library's hidden states and the reference measure."""
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


def test_sweeps_give_each_job_its_folder_and_status(repsim, newest, tmp_path, tiny_folder):
    code, _, err = repsim("run", "-m", "-q", *SMALL, local("a", tiny_folder("gpt2")), "seed=0,1", "measure=[cka]")
    assert code == 0, err
    made = folders.list_run_folders(tmp_path / "outputs")
    assert [reader.read_manifest(f)["seed"] for f in made] == [0, 1]
    assert [str(f.relative_to(made[0].parent)) for f in made] == ["0-similarity", "1-similarity"]
    for name in (str(made[0].parent), made[0].parent.name):
        code, _, err = repsim("export", name, "--csv")
        said = f"error: RUN: one run is needed, got the sweep '{name}'; name one of its jobs, e.g. {made[0]}\n"
        assert (code, err) == (2, said)
    assert f"  sweep: one of 2 jobs, which repsim show {made[0].parent.name} " in repsim("show", "similarity")[1]
    for path in ("/", str(tmp_path), "*"):  # a sweep is of this name, or at this place
        code, out, err = repsim("show", path)
        assert (code, out) == (2, ""), out


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_study_on_tiny_models_passes_no_length_on(repsim, newest, tmp_path, tiny_folder):
    """Reviews of more than the 32 tokens that the study's own models read."""
    rows = "".join(f"{i} {'a rather long review of a film ' * 6}\t{i % 2}\n" for i in range(40))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + rows)
    code, _, err = repsim(
        "run", "-q", "experiment=tiny/mnli_cka", "model=[tiny_a]", "groups=null", "data=sst2",
        f"data.path={tmp_path / 'dev.tsv'}", "extract.sequences=40", "extract.layers=[0,-1]",
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


@pytest.mark.slow
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
        other = block[~np.eye(2, dtype=bool)]  # without a layer itself
        assert re.search(rf"    tiny_a x tiny_a, {point} +mean {other.mean():6.3f}   lowest {other.min():6.3f}", out)
    many = ["cka", "cka_unbiased", "rsa", "stress", "procrustes", "cosine", "euclidean"]
    code, out, err = repsim(*words, "extract.length=32", f"measure=[{','.join(many)}]")
    assert code == 0, err
    lines = out.splitlines()
    for name in many:
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"  {name}: ")]
        assert re.match(r"    mean  ?-?\d+\.\d{3}   lowest +-?\d+\.\d{3}   highest ", lines[at + 1])


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


@pytest.mark.slow
def test_pretraining_makes_models_that_a_run_can_use(repsim, newest):
    code, _, err = repsim(
        "run", "-q", "experiment=pretrain_tiny", "data=embedded", "options.recipe.steps=3", "options.recipe.save=[0,3]"
    )
    assert code == 0, err
    folder = newest()
    found = recorded(folder)
    assert len(found["curves"]["training loss"]["lines"]["loss"]) == 3
    models = [local(f"step{step}", folder / "models" / f"step{step}") for step in (0, 3)]
    assert repsim("run", "-q", "model=[]", *models, "extract.sequences=4")[0] == 0
    values = stacked(newest())
    assert values.shape == (12, 12)
    assert repsim("run", "experiment=pretrain_tiny", "options.recipe.save=[9999]")[2].startswith(
        "error: options.recipe.save: no such step, got 9999; steps go from 0 to 2000"
    )


ODD = ("../../x", '模型 <script>alert(1)</script>; $(rm -rf .) a|b&c \'"" $x^2$', "x" * 300)


@pytest.mark.slow
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
