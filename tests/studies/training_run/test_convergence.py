"""Convergence during training: every number again by another road, gaps, resuming, counterparts."""

import json
import shutil
from importlib import resources

import numpy as np
import pytest
import reference
import torch
from helpers.recorded import recorded

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.counterparts import estimate_counterparts
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.models import transformers
from repsim_cli.runs import reader
from repsim_cli.runs.content import DIAGNOSTICS, IDENTICAL

SMALL = (
    "experiment=tiny/pythia_convergence",
    "claims=[larger_models_converge_earlier,earlier_layers_converge_faster]",
    "model=[]",
    "extract.length=32",
    "extract.sequences=6",
    "extract.rows=150",
)


STEPS = [0, 5, 20]


@pytest.fixture
def folder(tmp_path, tiny_folder):
    for seed, step in enumerate(STEPS):
        shutil.copytree(tiny_folder("gpt2", seed), tmp_path / "run" / f"step{step}")
    return tmp_path / "run"


def entry(folder, **more):
    words = "".join(f", {key}: {value}" for key, value in more.items())
    return f"+model.mine={{kind: series, folder: {folder}{words}}}"


def curves(folder):
    """Those over steps, without the diagnostics of the last checkpoint."""
    return {name: curve for name, curve in reader.read_results(folder).curves.items() if curve.x.name == "step"}


def values(curve):
    """The values of every layer, in order."""
    return list(curve.lines.values())


def rows_of(folder, kind):
    """A hook point's rows of every layer and step, by hooks of our own on the sampled tokens."""
    source = registry.models.get("transformers").function(path=str(folder / "step0"))
    from repsim_cli.data.packing import pack

    text = registry.data.get("embedded_text").function()
    made = pack(text, source.tokenizer(), length=32, sequences=6, pool=1024, separator="auto", seed=0)
    chosen = np.sort(np.random.default_rng(0).permutation(made.mask.size)[:150])
    found = {}
    for step in STEPS:
        model = registry.models.get("transformers").function(path=str(folder / f"step{step}")).load(False)
        seen = []
        for block in model.h:
            module = block.attn.c_proj if kind == "attn_out" else block.mlp.c_proj
            module.register_forward_hook(lambda module, given, out, seen=seen: seen.append(out))
        with torch.inference_mode():
            model(input_ids=torch.from_numpy(made.ids).long(), attention_mask=torch.from_numpy(made.mask).long())
        found[step] = [x.reshape(-1, x.shape[-1])[chosen].double().numpy() for x in seen]
    return found


@pytest.mark.slow
@pytest.mark.drawn
def test_numbers_equal_a_plain_recomputation(repsim, newest, folder):
    code, out, err = repsim("run", *SMALL, entry(folder), "options.previous=true", "extract.padding=keep")
    assert code == 0, err
    found = curves(newest())
    (diagnosed,) = [table for name, table in reader.read_results(newest()).tables.items() if name == DIAGNOSTICS]
    assert {tuple(row[:2]) for row in diagnosed.rows} == {
        ("mine", f"{point}@{i}") for i in range(3) for point in ("attn_out", "mlp_out")
    }
    assert list(found) == [
        f"cka to {against}, {point}, mine" for against in ("last", "previous") for point in ("attn_out", "mlp_out")
    ]
    for point in ("attn_out", "mlp_out"):
        rows = rows_of(folder, point)
        one = found[f"cka to last, {point}, mine"]
        assert (one.at, list(one.lines)) == (STEPS, [f"{point}@{i}" for i in range(3)])
        wanted = [[reference.cka(rows[step][i], rows[20][i]) for step in STEPS] for i in range(3)]
        np.testing.assert_allclose(values(one), wanted, atol=1e-6)
        np.testing.assert_allclose(one.mean, np.mean(wanted, 0), atol=1e-6)
        np.testing.assert_allclose(one.bands["quartiles"].low, np.percentile(wanted, 25, axis=0), atol=1e-6)
        assert one.about["levels"] == {"mean at step 0": pytest.approx(np.mean(wanted, 0)[0], abs=1e-6)}
        assert found[f"cka to previous, {point}, mine"].about["levels"] == {}
        before = values(found[f"cka to previous, {point}, mine"])
        wanted = [[None, *(reference.cka(rows[b][i], rows[a][i]) for a, b in ((0, 5), (5, 20)))] for i in range(3)]
        assert [row[0] for row in before] == [None] * 3
        np.testing.assert_allclose([row[1:] for row in before], [row[1:] for row in wanted], atol=1e-6)
    names = {file.name for file in (newest() / "figures").glob("*.png")}
    assert {"cka_to_last-attn_out-all.png", "cka_to_last-mlp_out-00-mine.png"} < names
    assert "claim larger_models_converge_earlier (cka): not testable here" in out


@pytest.mark.parametrize("estimate", ["full", "per_batch"])
@pytest.mark.parametrize("cache", ["true", "false"])
def test_remedies_are_those_of_a_comparison(repsim, newest, folder, estimate, cache):
    """The layers of a checkpoint and of the last, compared as two models."""
    words = ("-q", "measure=[cka_unbiased]", "extract.length=32", "extract.sequences=6", "extract.rows=100", f"cache={cache}",
             "extract.batch_rows=64", f"extract.estimate={estimate}", "extract.pairs=all", "data=embedded", "model=[]")  # fmt: skip
    assert repsim("run", *words, "study=convergence", entry(folder))[0] == 0
    trained, remedies = curves(newest()), json.loads((newest() / "manifest.json").read_text())["remedies"]
    assert (remedies["skip"], remedies["normalise"]) == (4, "directions")
    two = [
        f"+model.{name}={{kind: transformers, path: {folder / step}}}"
        for name, step in (("a", "step5"), ("b", "step20"))
    ]
    assert repsim("run", *words, *two)[0] == 0
    (measured,) = reader.read_results(newest()).measures
    (pair,) = [x for x in measured.matrices if (x.rows.model, x.columns.model) == ("a", "b")]
    wanted = np.diag(reader.read_array(newest(), pair.values))
    (line,) = trained.values()
    np.testing.assert_allclose([row[1] for row in values(line)], wanted, atol=1e-6)


@pytest.mark.drawn
@pytest.mark.slow
def test_all_checkpoints_with_all(repsim, newest, folder):
    words = (*SMALL, entry(folder), "options.pairs=true", "options.previous=true", "extract.padding=keep")
    assert repsim("run", "-q", *words)[0] == 0
    found = recorded(newest())
    (record,) = found["measures"]
    assert record["label"] == "cka between checkpoints of mine"
    layers = [f"{point}@{i}" for point in ("attn_out", "mlp_out") for i in range(3)]
    assert [m["rows"]["model"] for m in record["matrices"]] == layers
    for m in record["matrices"]:
        point, layer = m["rows"]["model"].split("@")
        assert m["rows"] == m["columns"] == {"model": m["rows"]["model"], "layers": ["step 0", "step 5", "step 20"]}
        square = reader.read_array(newest(), m["values"])
        assert (square == square.T).all()
        np.testing.assert_allclose(square.diagonal(), 1, atol=1e-6)
        np.testing.assert_array_equal(square[:, 2], found["curves"][f"cka to last, {point}, mine"]["lines"][f"{point}@{layer}"])  # fmt: skip
        before = found["curves"][f"cka to previous, {point}, mine"]["lines"][f"{point}@{layer}"]
        np.testing.assert_allclose([square[1, 0], square[2, 1]], before[1:], atol=1e-6)
    assert (newest() / "figures" / "cka_between_checkpoints_of_mine-panels.png").is_file()
    code, _, err = repsim("run", *words, "measure=[linear_regression]")
    assert (code, err.split("; use")[0]) == (
        2, "error: options.pairs: needs symmetric measures, got linear_regression",
    )  # fmt: skip


def test_one_checkpoint_loads_while_another_is_at_work(repsim, folder, monkeypatch):
    """A thread of its own loads it, and no more than one ahead."""
    import threading
    import weakref

    load, threads, alive, most = transformers.load, [], weakref.WeakSet(), []

    def noted(where, *more, **how):
        threads.append(threading.current_thread() is threading.main_thread())
        model = load(where, *more, **how)
        alive.add(model)
        most.append(len(alive))
        return model

    monkeypatch.setattr(transformers, "load", noted)
    assert repsim("run", "-q", *SMALL, entry(folder), "cache=false")[0] == 0
    assert threads == [False] * 3
    assert max(most) <= 2


def test_a_rerun_takes_every_checkpoint_from_the_cache(repsim, newest, folder, monkeypatch):
    loaded = []
    load = transformers.load
    monkeypatch.setattr(
        transformers, "load", lambda where, *more, **how: loaded.append(where) or load(where, *more, **how)
    )
    assert repsim("run", "-q", *SMALL, entry(folder))[0] == 0
    first = curves(newest())
    assert [where.rsplit("step")[-1] for where in loaded] == ["20", "0", "5"]
    loaded.clear()
    assert repsim("run", "-q", *SMALL, entry(folder))[0] == 0
    assert (loaded, curves(newest())) == ([], first)
    assert repsim("run", "-q", *SMALL, entry(folder), "cache=false", "options.previous=true")[0] == 0
    assert len(loaded) == 3
    assert {name: one for name, one in curves(newest()).items() if "last" in name} == first


def test_a_run_that_stopped_goes_on_where_it_was(repsim, newest, folder, monkeypatch):
    load, loaded = transformers.load, []

    def breaks(where, *more, **how):
        if where.endswith("step5"):
            raise KeyboardInterrupt
        return load(where, *more, **how)

    with monkeypatch.context() as patch:
        patch.setattr(transformers, "load", breaks)
        assert repsim("run", "-q", *SMALL, entry(folder))[0] == 130
    monkeypatch.setattr(
        transformers, "load", lambda where, *more, **how: loaded.append(where) or load(where, *more, **how)
    )
    assert repsim("run", "-q", *SMALL, entry(folder), "resume=latest")[0] == 0
    assert [where.rsplit("step")[-1] for where in loaded] == ["5"]
    assert reader.read_manifest(newest())["status"] == "complete"


def test_a_cache_that_cannot_be_written_changes_nothing(repsim, newest, folder, monkeypatch):
    from repsim_cli.runs.cache import Entry

    assert repsim("run", "-q", *SMALL, entry(folder), "cache=false")[0] == 0
    wanted = curves(newest())

    def full(self, name, save):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Entry, "write", full)
    code, _, err = repsim("run", *SMALL, entry(folder), "options.previous=true")
    assert code == 0
    assert "cannot be written (No space left on device)" in err
    assert {name: one for name, one in curves(newest()).items() if "last" in name} == wanted


def test_a_missing_checkpoint_stops_the_run_or_is_a_gap(repsim, newest, folder):
    asked = entry(folder, steps="[0, 5, 7, 20]")
    code, _, err = repsim("run", *SMALL, asked)
    assert code == 2
    assert err.startswith("error: model.mine, step 7: missing or broken, got 'path: no such folder, got")
    assert err.rstrip().endswith("fix it, or set options.missing=skip to leave a gap")
    code, out, err = repsim("run", *SMALL, asked, "options.missing=skip", "options.previous=true")
    assert code == 0, err
    found = recorded(newest())
    one = found["curves"]["cka to last, attn_out, mine"]
    assert [[value is None for value in row] for row in one["lines"].values()] == [[False, False, True, False]] * 3
    assert one["mean"][2] is None
    assert one["bands"]["deciles"]["low"][2] is None
    assert found["curves"]["cka to previous, attn_out, mine"]["mean"][2:] == [None, None]
    assert found["tables"]["checkpoints left out"]["rows"][0][:2] == ["mine", 7]
    assert "warning: model.mine, step 7: left out as a gap (path: no such folder" in out
    json.dumps(found, allow_nan=False)


def test_a_checkpoint_that_breaks_while_it_is_read(repsim, newest, folder):
    import safetensors.torch

    def spoil(step):
        file = folder / f"step{step}" / "model.safetensors"
        weights = safetensors.torch.load_file(file)
        weights["h.0.mlp.c_proj.weight"][0, 0] = float("nan")
        safetensors.torch.save_file(weights, file, metadata={"format": "pt"})

    spoil(5)
    code, _, err = repsim("run", *SMALL, entry(folder))
    assert code == 1
    assert "model.mine, step 5: missing or broken, got 'attn_out@1 of 'mine': activations are not finite" in err
    assert repsim("run", "-q", *SMALL, entry(folder), "options.missing=skip")[0] == 0
    assert curves(newest())["cka to last, mlp_out, mine"].mean[1] is None
    spoil(20)
    code, _, err = repsim("run", *SMALL, entry(folder), "options.missing=skip")
    assert code == 1
    assert "error: model.mine, step 20: attn_out@1 of 'mine': activations are not finite" in err


def test_the_last_checkpoint_cannot_be_a_gap(repsim, folder):
    code, _, err = repsim("run", *SMALL, entry(folder, steps="[0, 5, 30]"), "options.missing=skip")
    assert code == 2
    assert err.startswith("error: model.mine, step 30: path: no such folder, got")


def test_checkpoints_of_another_shape(repsim, folder, tiny_folder):
    shutil.copytree(tiny_folder("gpt_neox"), folder / "step7")
    code, _, err = repsim("run", *SMALL, entry(folder), "options.missing=skip")
    assert code == 2
    assert err.startswith(
        "error: model.mine, step 7: another shape than the last checkpoint, got ('gpt_neox', 3, 32, 4, 512) for "
        "('gpt2', 3, 32, 4, 512) (type, blocks, width, heads, vocabulary); leave this step out"
    )


def test_claims_are_about_one_similarity_at_a_time(repsim, newest, folder):
    assert repsim("run", "-q", *SMALL, entry(folder), "measure=[cka,procrustes,rsa]")[0] == 0
    found = recorded(newest())
    assert sum(curve["x"]["name"] == "step" for curve in found["curves"].values()) == 6
    assert [claim["measure"] for claim in found["claims"]] == ["cka", "cka", "rsa", "rsa"]


@pytest.mark.parametrize("study", ["convergence", "training_view"])
def test_checkpoints_that_are_the_same_are_said_to_be(repsim, newest, tmp_path, study):
    shipped = resources.files("repsim_cli") / "assets" / "models" / "tiny_a"
    for step in (1, 10):
        (tmp_path / f"step{step}").symlink_to(str(shipped))
    series = f"+model.mine={{kind: series, folder: {tmp_path}}}"
    code, out, err = repsim(
        "run", f"study={study}", "model=[]", series, "measure=[cka]", "extract.sequences=4", "cache=false"
    )
    assert code == 0, err
    assert "mine: all checkpoints are identical, by their weights: those of steps 1, 10" in " ".join(out.split())
    assert "from step" not in out
    assert reader.read_results(newest()).tables[IDENTICAL].rows == [["mine", "1, 10", "yes"]]


def test_a_study_without_models(repsim):
    code, _, err = repsim("run", "experiment=tiny/pythia_convergence", "model=[]")
    assert (code, err) == (2, "error: model: no model is selected; e.g. model=[tiny_a_series]\n")
    wrong = repsim("run", "experiment=tiny/pythia_convergence", "claims=[larger_models_convert]")[2]
    assert wrong.startswith("error: claims: unknown claim, got 'larger_models_convert'; did you mean 'larger_mo")


def test_the_plan(repsim, folder):
    code, out, _ = repsim("run", *SMALL, entry(folder), "dry_run=true")
    assert code == 0
    assert "mine: 0, 5, 20" in out
    assert "forward passes: 3" in out


@pytest.mark.parametrize("estimate", ["full", "per_batch", "ratio_of_sums"])
def test_counterparts_are_the_cells_of_all_pairs(estimate):
    torch.manual_seed(0)
    left = [torch.randn(60, 8), torch.randn(60, 5)]
    right = [left[0] + torch.randn(60, 8), torch.randn(60, 5)]
    names = [
        "cka",
        "cka_unbiased",
        *(["yanai_cca", "procrustes", "mutual_knn", "linear_regression"] if estimate != "ratio_of_sums" else []),
    ]
    chosen = {name: measures.get(name) for name in names}
    size = 60 if estimate == "full" else 20

    def cut(sides):
        return [[x[i : i + size] for x in sides] for i in range(0, 60, size)]

    found, _ = estimate_counterparts(
        chosen,
        zip(cut(left), cut(right), strict=True),
        names=[("a", "b"), ("c", "d")],
        estimate=estimate,
    )
    whole, _ = estimate_all_pairs(chosen, lambda seen: cut(left + right), names=list("acbd"), estimate=estimate)
    for name in names:
        cells = [whole[name].values[i, i + 2].item() for i in range(2)]
        np.testing.assert_allclose(found[name].values, cells, atol=1e-6)
        if estimate == "per_batch":
            np.testing.assert_allclose(found[name].se, [whole[name].se[i, i + 2].item() for i in range(2)], atol=1e-6)
        else:
            assert found[name].se is None


def test_what_is_kept_of_the_right_side_changes_nothing():
    torch.manual_seed(0)
    right, kept, names = [torch.randn(60, 8), torch.randn(60, 70)], {}, [("a", "b"), ("c", "d")]
    chosen = {name: measures.get(name) for name in ("cka", "cka_rbf", "procrustes")}
    for _ in range(3):
        left = [torch.randn(60, 8), torch.randn(60, 70)]
        found, _ = estimate_counterparts(chosen, [(left, right)], names=names, estimate="full", kept=kept)
        wanted, _ = estimate_counterparts(chosen, [(left, right)], names=names, estimate="full")
        for name in chosen:
            assert torch.equal(found[name].values, wanted[name].values)
    assert kept[0]


def test_no_batch_at_all():
    with pytest.raises(BadInput, match="extract: no batch could be filled, got too few rows"):
        estimate_counterparts({"cka": measures.get("cka")}, [], names=[], estimate="full")


@pytest.mark.parametrize(("estimate", "measure"), [("moments", "cka"), ("sampled", "mutual_knn")])
def test_rows_in_a_stream_have_no_pairs_of_checkpoints(repsim, estimate, measure):
    words = ["model=[]", "+model.mine={kind: series, shipped: tiny_a}", f"measure=[{measure}]"]
    code, _, err = repsim("run", "study=convergence", *words, f"extract.estimate={estimate}")
    assert code == 2
    assert f"extract.estimate: layers are compared pair by pair, got {estimate}; use per_batch or full" in err
