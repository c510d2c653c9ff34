"""Effective ranks of what writes to the residual stream: against plain SVDs, by architecture, and of gradients."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.measures.statistics import effective_rank, proportional_effective_rank
from repsim_cli.models.points import Architecture
from repsim_cli.studies.training_run.ranks import Writers, effective_ranks, estimate_rounding, singular_values

SMALL = (
    "experiment=tiny/pythia_effective_rank",
    "model=[]",
    "extract.length=32",
    "extract.sequences=6",
    "extract.rows=150",
)
WHERE = {
    "gpt_neox": ("layers.{}.attention.dense", "layers.{}.mlp.dense_4h_to_h", "layers.{}.attention.query_key_value"),
    "gpt2": ("h.{}.attn.c_proj", "h.{}.mlp.c_proj", "h.{}.attn.c_attn"),
    "llama": ("layers.{}.self_attn.o_proj", "layers.{}.mlp.down_proj", "layers.{}.self_attn.v_proj"),
    "bert": ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.output.dense", "encoder.layer.{}.attention.self.value"),
    **dict.fromkeys(("mistral", "qwen3", "gemma2", "olmo2", "granite"),
                    ("layers.{}.self_attn.o_proj", "layers.{}.mlp.down_proj", "layers.{}.self_attn.v_proj")),
    "gpt_neo": ("h.{}.attn.attention.out_proj", "h.{}.mlp.c_proj", "h.{}.attn.attention.v_proj"),
    "gptj": ("h.{}.attn.out_proj", "h.{}.mlp.fc_out", "h.{}.attn.v_proj"),
    "phi": ("layers.{}.self_attn.dense", "layers.{}.mlp.fc2", "layers.{}.self_attn.v_proj"),
}  # fmt: skip


def direct(matrix):
    """exp of the entropy of the singular values, by numpy in float64."""
    sigma = np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False)
    p = sigma / sigma.sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def random(kind):
    from helpers.tiny import TINY
    from helpers.tiny_configs import tiny_config

    return registry.models.get("random").function(config=TINY.get(kind) or tiny_config(kind))


def plain(model, kind, layer):
    """W_O (D, H), W_V (H, D) and the MLP's output projection (D, H) from the library's own names."""
    names = [name.format(layer) for name in WHERE[kind]]
    output, mlp, value = (model.get_submodule(name).weight.detach().double().numpy() for name in names)
    if kind == "gpt2":
        return output.T, np.split(value.T, 3)[2], mlp.T
    if kind == "gpt_neox":
        value = value.reshape(4, 3, 8, 32)[:, 2].reshape(32, 32)
    return output, value, mlp


@pytest.mark.parametrize("kind", WHERE)
def test_every_architecture_against_a_direct_svd(kind):
    source = random(kind)
    model = source.load(False)
    for layer in (0, 2):
        output, value, mlp = plain(model, kind, layer)
        heads = [output[:, 8 * h : 8 * (h + 1)] for h in range(4)]
        share = source.heads // source.kv_heads  # heads that share their values
        values = [value[8 * (h // share) : 8 * (h // share + 1)] for h in range(4)]
        wanted = {
            "heads": np.mean([direct(x) for x in heads]),
            "circuit": np.mean([direct(x @ y) for x, y in zip(heads, values, strict=True)]),
            "whole": direct(output),
        }
        for attention, rank in wanted.items():
            writers = Writers(source, attention)
            most = 32 if attention == "whole" else 8
            found = writers.rank(model, "attn_out", layer, gradient=False, normaliser="min")
            assert found == pytest.approx((rank, rank / most), abs=1e-8)
            one = writers.rank(model, "mlp_out", layer, gradient=False, normaliser="min")
            assert one == pytest.approx((direct(mlp), direct(mlp) / 32), abs=1e-8)
            printed = writers.rank(model, "mlp_out", layer, gradient=False, normaliser="H")[1]
            assert printed == pytest.approx(proportional_effective_rank(torch.from_numpy(mlp)), abs=1e-8)


def test_shipped_weights_against_a_direct_svd():
    source = registry.models.get("shipped").function(name="tiny_a")
    model, writers = source.load(False), Writers(source, "whole")
    for layer in range(6):
        for point, name in (("attn_out", "attention.dense"), ("mlp_out", "mlp.dense_4h_to_h")):
            weight = model.get_submodule(f"layers.{layer}.{name}").weight.detach()
            found = writers.rank(model, point, layer, gradient=False, normaliser="min")
            assert found[0] == pytest.approx(direct(weight), abs=1e-8)
            assert found[0] == pytest.approx(effective_rank(weight), abs=1e-8)


def test_rank_one_and_orthogonal_matrices():
    torch.manual_seed(0)
    thin, wide = torch.randn(40, 1).double(), torch.randn(1, 24).double()
    turned = torch.linalg.qr(torch.randn(40, 24).double()).Q
    for gram in (True, False):
        assert float(effective_ranks(singular_values((thin @ wide)[None], gram=gram))) == pytest.approx(1, abs=1e-8)
        for matrix in (turned, turned.T):
            assert float(effective_ranks(singular_values(matrix[None], gram=gram))) == pytest.approx(24, abs=1e-8)


def test_gram_eigenvalues_are_used_where_they_are_exact_and_nowhere_else(monkeypatch):
    torch.manual_seed(0)
    gaussian = torch.randn(2, 32, 128).double()
    left, _, right = torch.linalg.svd(torch.randn(32, 128).double(), full_matrices=False)
    nearly_low = left @ torch.diag(torch.logspace(0, -9, 32).double()) @ right
    batch = torch.cat([gaussian, nearly_low[None]])
    taken = []
    svdvals = torch.linalg.svdvals
    monkeypatch.setattr(torch.linalg, "svdvals", lambda x: taken.append(len(x)) or svdvals(x))
    found = effective_ranks(singular_values(batch, gram=True))
    assert taken == [1]
    np.testing.assert_allclose(found, [direct(x) for x in batch], atol=1e-8)
    singular_values(gaussian, gram=False)
    assert taken == [1, 2]
    squares = torch.linalg.eigvalsh(batch @ batch.mT).flip(-1)
    assert (estimate_rounding(squares) < 1e-10).tolist() == [True, True, False]


def test_zeros_have_no_effective_rank():
    with pytest.raises(RunFailed, match="no effective rank, got singular values that sum to 0.0; leave it out"):
        effective_ranks(torch.zeros(1, 3))


def test_models_without_such_matrices():
    with pytest.raises(BadInput, match=r"xlnet has no one matrix for attn_out in block 0 \(its attention comp"):
        Writers(random("xlnet"), "heads")
    with pytest.raises(
        BadInput, match=r"mixtral has no one matrix for mlp_out in block 0 \(its MLP is a mixture of ex"
    ):
        Writers(random("mixtral"), "heads")
    for table in (None, Architecture("layers", {})):
        with pytest.raises(BadInput, match="gpt2 has no one matrix for attn_out in block 0; use another"):
            Writers(replace(random("gpt2"), architecture=table), "heads")


@pytest.fixture
def folder(tmp_path, tiny_folder):
    """Three checkpoints with tied embeddings, and so with a head."""
    for seed, step in enumerate((0, 5, 60)):
        shutil.copytree(tiny_folder("gpt2", seed), tmp_path / "run" / f"step{step}")
    return tmp_path / "run"


def entry(folder, **more):
    words = "".join(f", {key}: {value}" for key, value in more.items())
    return f"+model.mine={{kind: series, folder: {folder}{words}}}"


def trained_once_over(place):
    """The model after a backward pass of the library's own loss, on all sequences of the run at once."""
    import transformers as library

    from repsim_cli.data.packing import pack

    source = registry.models.get("transformers").function(path=str(place))
    text = registry.data.get("embedded_text").function()
    made = pack(text, source.tokenizer(), length=32, sequences=6, pool=1024, separator="auto", seed=0)
    ids, mask = torch.from_numpy(made.ids).long(), torch.from_numpy(made.mask)
    model = library.AutoModelForCausalLM.from_pretrained(place).eval()
    model(input_ids=ids, attention_mask=mask.long(), labels=ids.masked_fill(~mask, -100)).loss.backward()
    return model


def gradients_of(place):
    """W_O's and the MLP projection's gradients of GPT-2."""
    blocks = trained_once_over(place).transformer.h
    return [(block.attn.c_proj.weight.grad.T, block.mlp.c_proj.weight.grad.T) for block in blocks]


@pytest.mark.slow
@pytest.mark.drawn
def test_the_study_against_plain_gradients_and_svds(repsim, newest, folder):
    code, out, err = repsim("run", *SMALL, entry(folder), "hardware.batch_size=4")
    assert code == 0, err
    found = recorded(newest())
    curves = found["curves"]
    for i, step in enumerate((0, 5, 60)):
        for layer, (output, mlp) in enumerate(gradients_of(folder / f"step{step}")):
            heads = np.mean([direct(output[:, 8 * h : 8 * (h + 1)]) for h in range(4)])
            # gradients in float32 depend on how the sequences are batched
            assert curves["gradients, attn_out, mine"]["lines"][f"attn_out@{layer}"][i] == pytest.approx(
                heads / 8, rel=1e-4
            )
            assert curves["gradients, mlp_out, mine"]["lines"][f"mlp_out@{layer}"][i] == pytest.approx(
                direct(mlp) / 32, rel=1e-4
            )
    model = registry.models.get("transformers").function(path=str(folder / "step5")).load(False)
    for layer in range(3):
        weight = model.h[layer].mlp.c_proj.weight.detach()
        assert curves["parameters, mlp_out, mine"]["lines"][f"mlp_out@{layer}"][1] == pytest.approx(
            direct(weight) / 32, abs=1e-8
        )
    rows = found["tables"]["early convergence and large rank"]["rows"]
    assert [row[:4] for row in rows] == [
        ["mine", point, of, 3] for of in ("parameters", "gradients") for point in ("attn_out", "mlp_out")
    ]
    assert "early convergence and large rank:" in out
    assert (newest() / "figures" / "gradients-mlp_out-all.png").is_file()
    assert found["analyses"]["ranks"]["options"] == {
        "early_similarity": 0.45, "early_share": 0.1, "large_parameters": 0.95, "large_gradients": 0.9,
    }  # fmt: skip


def test_gradients_of_a_type_that_the_table_alone_knows(repsim, newest, tmp_path, tokenizer_folder):
    from helpers.tiny import perturb
    from helpers.tiny_configs import tiny_config
    from transformers import AutoModelForCausalLM

    from repsim_cli.models.configs import inline_config

    config = inline_config({**tiny_config("gemma2"), "vocab_size": 512})
    for step in (0, 9):
        torch.manual_seed(step)
        model = AutoModelForCausalLM.from_config(config)
        perturb(model)
        model.save_pretrained(tmp_path / "run" / f"step{step}")
        shutil.copytree(tokenizer_folder, tmp_path / "run" / f"step{step}", dirs_exist_ok=True)
    code, _, err = repsim("run", "-q", *SMALL, entry(tmp_path / "run"))
    assert code == 0, err
    lines = recorded(newest())["curves"]["gradients, mlp_out, mine"]["lines"]
    for layer, block in enumerate(trained_once_over(tmp_path / "run" / "step9").model.layers):
        expected = direct(block.mlp.down_proj.weight.grad) / 32
        assert lines[f"mlp_out@{layer}"][1] == pytest.approx(expected, rel=1e-4)


def test_parameters_alone_of_a_model_without_a_loss(repsim, newest, tmp_path, tiny_folder):
    for seed, step in enumerate((0, 9)):
        shutil.copytree(tiny_folder("bert", seed), tmp_path / "run" / f"step{step}")
    words = (*SMALL, entry(tmp_path / "run"))
    code, _, err = repsim("run", *words)
    assert code == 2
    assert err.startswith(
        "error: model.mine: bert has no next-token loss to take gradients of, got gradients=true; set "
        "options.gradients=false, or use a model that predicts the next token"
    )
    assert repsim("run", "-q", *words, "options.gradients=false", "options.attention=circuit")[0] == 0
    steps = [curve for curve in recorded(newest())["curves"].values() if curve["x"]["name"] == "step"]
    assert {curve["about"]["quantity"] for curve in steps} == {"cka to last", "parameters"}


@pytest.mark.slow
def test_native_models_of_transformer_lens(repsim, newest, tmp_path, tokenizer_folder):
    """Their weights lie behind hook points; the checkpoints are folders in the library's own format."""
    import json

    import safetensors.torch

    config = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_ctx": 32, "d_vocab": 512, "act_fn": "gelu"}
    lens = registry.models.get("transformer_lens").function
    weights = {}
    for step in (0, 9):
        place = tmp_path / "run" / f"step{step}"
        shutil.copytree(tokenizer_folder, place)
        weights[step] = lens(config=config, seed=step).load(False).bridge.state_dict()
        whole = {name: x.contiguous().clone() for name, x in weights[step].items()}
        safetensors.torch.save_file(whole, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(config))
    assert repsim("run", "-q", *SMALL, entry(tmp_path / "run"))[0] == 0
    curves = {name: curve for name, curve in recorded(newest())["curves"].items() if curve["x"]["name"] == "step"}
    assert len(curves) == 6
    for point, name in (("attn_out", ".o.weight"), ("mlp_out", "fc_out.weight"), ("mlp_out", ".out.weight")):
        for key in (key for key in weights[9] if key.endswith(name)):
            layer, matrix = int(key.split("blocks.")[1][0]), weights[9][key]
            parts = [matrix[:, 8 * h : 8 * h + 8] for h in range(4)] if point == "attn_out" else [matrix]
            wanted = np.mean([direct(part) / min(part.shape) for part in parts])
            assert curves[f"parameters, {point}, mine"]["lines"][f"{point}@{layer}"][1] == pytest.approx(
                wanted, abs=1e-8
            )
            weights[9][key] = None
    assert sum(x is None for x in weights[9].values()) == 4


def test_ranks_of_a_second_run_come_from_the_cache(repsim, newest, folder, monkeypatch, edited):
    from repsim_cli.studies.training_run import study_effective_rank as study

    assert repsim("run", "-q", *SMALL, entry(folder))[0] == 0
    first = recorded(newest())["curves"]
    monkeypatch.setattr(study, "add_loss_gradients", None)  # would fail
    assert repsim("run", "-q", *SMALL, entry(folder))[0] == 0
    assert recorded(newest())["curves"] == first
    edited("repsim_cli.studies.training_run.ranks")
    assert repsim("run", "-q", *SMALL, entry(folder))[0] == 1


def test_a_series_without_such_matrices(repsim, tmp_path, tiny_folder):
    for seed, step in enumerate((0, 9)):
        shutil.copytree(tiny_folder("xlnet", seed), tmp_path / "run" / f"step{step}")
    code, _, err = repsim("run", *SMALL, entry(tmp_path / "run"), "options.gradients=false")
    assert code == 2
    assert err.startswith("error: model.mine: xlnet has no one matrix for attn_out in block 0 (its attention")


def test_a_checkpoint_without_its_head_has_no_loss(repsim, newest, tmp_path, tiny_folder):
    for seed, step in enumerate((0, 9)):
        shutil.copytree(tiny_folder("gpt_neox", seed), tmp_path / "run" / f"step{step}")
    code, _, err = repsim("run", *SMALL, entry(tmp_path / "run"))
    assert code == 1
    assert "error: model.mine, step 9: path: its checkpoint has no head for AutoModelForCausalLM, got " in err


def test_gaps_are_gaps_in_every_curve(repsim, newest, folder):
    words = (*SMALL, entry(folder, steps="[0, 3, 5, 60]"), "options.missing=skip")
    assert repsim("run", "-q", *words)[0] == 0
    found = recorded(newest())
    assert [[v is None for v in one["mean"]] for one in found["curves"].values() if one["mean"]] == [
        [False, True, False, False]
    ] * 6
    assert [row[:2] for row in found["tables"]["checkpoints left out"]["rows"]] == [["mine", 3]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyses.ranks.early_similarity=1.5"], "analyses.ranks.early_similarity: wrong value, got 1.5; give less than or equal to 1"),
        (["analyses.ranks.large_gradients=-0.1"], "analyses.ranks.large_gradients: wrong value, got -0.1; give greater than or equal to 0"),
        (["options.attention=circuit"], "options.gradients: W_O W_V is not a parameter and has no gradient, got attention=circuit"),
        (["options.normaliser=max"], "options.normaliser: wrong value, got 'max'; give 'min' or 'H'"),
        (["measure=[cka,rsa]"], "measure: one measure says which layers are early, got ['cka', 'rsa']; e.g. [cka]"),
        (["measure=[procrustes]"], "measure: early layers have a large similarity, got the distance procrustes; e.g. [cka]"),
        (["extract.hook_points=[resid_post]"], "extract.hook_points: the table needs ['attn_out', 'mlp_out'] of all layers, got ['resid_post'] of all"),
    ],
)  # fmt: skip
def test_bad_settings(repsim, words, message):
    code, _, err = repsim("run", "experiment=tiny/pythia_effective_rank", *words)
    assert code == 2
    assert err.startswith(f"error: {message}")
