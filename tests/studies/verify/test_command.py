"""`repsim verify`, `repsim_cli.verify` and `assert_same`: verdicts, exit codes, files, and what is refused."""

import copy
import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import repsim_cli
from repsim_cli.api.verify import save_reference
from repsim_cli.base.errors import BadInput
from repsim_cli.models.checkpoints import SHIPPED
from repsim_cli.runs import reader
from repsim_cli.studies.verify.configs import list_different_settings, read_settings


@pytest.fixture
def broken(tmp_path):
    """The shipped model tiny_a without one bias."""
    folder = tmp_path / "broken"
    shutil.copytree(SHIPPED / "tiny_a", folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layers.1.attention.dense.bias"))
    safetensors.torch.save_file(
        {**weights, name: torch.zeros_like(weights[name])}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


def test_the_same_model(repsim, newest):
    code, out, _ = repsim("verify", "tiny_a", "tiny_a")
    assert code == 0
    assert out.startswith("IDENTICAL   every bit is the same, in 11 parts on 5 kinds of input\n")
    assert reader.read_manifest(newest())["status"] == "complete"
    assert reader.read_results(newest()).about["verify"]["verdict"] == "IDENTICAL"
    assert (newest() / "report.html").is_file()
    assert repsim("verify", "tiny_a", "tiny_a", "--fail-on", "rounding")[0] == 0


def test_a_broken_model(repsim, newest, broken, tmp_path):
    code, out, _ = repsim("verify", "tiny_a", broken, "--json", "--junit", tmp_path / "verify.xml")
    assert code == 1
    record = json.loads(out)
    assert record["verdict"] == "DIFFERENT"
    (first,) = record["differences"]
    assert (first["block"], first["point"], first["kind"]) == (1, "attn_out", "offset")
    assert first["tensors"] == ["layers.1.attention.dense.bias"]
    case = ElementTree.parse(tmp_path / "verify.xml").getroot()[0]
    assert case[0].tag == "failure"
    assert case[0].attrib["message"].startswith("DIFFERENT   first at block 1, attn_out (attention.dense)")
    table = reader.read_results(newest()).tables["differences"]
    assert table.column("kind") == ["offset"]


@pytest.mark.parametrize("how", ["never", "always"])
def test_a_weight_of_another_shape_names_its_model(repsim, broken, how):
    weights = safetensors.torch.load_file(broken / "model.safetensors")
    name = next(name for name in weights if name.endswith("layers.1.attention.dense.bias"))
    safetensors.torch.save_file({**weights, name: torch.zeros(7)}, broken / "model.safetensors", {"format": "pt"})
    code, _, err = repsim("verify", "tiny_a", broken, "--by-block", how)
    assert code == 2
    assert "model.broken.path: 1 weight has the wrong shape, got " in err


def test_from_python(broken):
    with pytest.raises(AssertionError, match="first at block 1, attn_out"):
        repsim_cli.assert_same("tiny_a", str(broken), ["Some words of a text, and some more of them."])
    repsim_cli.assert_same("tiny_a", "tiny_a", ["Some words of a text, and some more of them."])


def test_text_of_ones_own(repsim, broken, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("A text of my own. " * 40)
    code, out, _ = repsim("verify", "tiny_a", broken, "--text", file)
    assert code == 1
    assert "layers.1.attention.dense.bias differs in 64 of 64 values; no other tensor does" in out


def test_another_tokenizer_is_the_first_difference(repsim, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(SHIPPED / "tiny_a", folder)
    file = folder / "tokenizer.json"
    settings = json.loads(file.read_text())
    settings["model"]["merges"] = settings["model"]["merges"][:-60]
    file.write_text(json.dumps(settings))
    code, out, _ = repsim("verify", "tiny_a", folder)
    assert code == 1
    assert out.startswith("DIFFERENT   first at token ids")
    assert "the tokenizers differ: 60 of 255 merges differ (" in out


def test_modules_of_a_program():
    a, b = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2))
    b.load_state_dict(a.state_dict())
    assert repsim_cli.verify(a, b, [torch.randn(10, 4)]).verdict == "IDENTICAL"
    b[2].bias.data[1] += 1
    (difference,) = repsim_cli.verify(a, b, [torch.randn(10, 4)]).differences
    assert difference.unit == "2"
    answer = repsim_cli.verify(a, b, [torch.randn(10, 4)])
    assert repr(answer) == str(answer)
    with pytest.raises(BadInput, match="texts: a module that reads no tokens takes batches, got Sequential"):
        repsim_cli.verify(a, b)


def test_a_module_without_parts_is_one_part():
    torch.manual_seed(0)
    a, x = nn.Linear(5, 3), torch.randn(16, 5)
    same, other, scaled = copy.deepcopy(a), nn.Linear(5, 3), copy.deepcopy(a)
    scaled.weight.data[1] *= 1.1
    assert str(repsim_cli.verify(a, same, [x])).startswith("IDENTICAL   every bit is the same, in 1 part on text")
    assert repsim_cli.verify(a, same, [x.numpy()], quick=True).same
    (difference,) = repsim_cli.verify(a, other, [x]).differences
    assert (difference.unit, difference.kind) == ("module", "checkpoint")
    (difference,) = repsim_cli.verify(a, scaled, [x]).differences
    assert difference.about == "row 1 of its weights is multiplied by 1.1"
    assert difference.tensors == ["weight"]
    assert repsim_cli.verify(a, copy.deepcopy(a).bfloat16().float(), [x]).verdict == "AS QUANTISED"
    assert repsim_cli.verify(nn.Identity(), nn.Identity(), [x]).same


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], r"all are empty, got \[\]; give some, or drop texts"),
        ([""], r"all are empty, got \[''\]; give some"),
        ([" ", "\n\t"], "all are empty, got .*; give some"),
        ([1, 2], "no batch with items, got int as batch 0; give texts, or tensors of a torch module"),
        ([None], "no batch with items, got NoneType as text; give"),
        ([b"a"], "no batch with items, got bytes as text; give"),
        ([()], "no batch with items, got tuple as text; give"),
        ([{"x": 1}], "no batch with items, got dict as text; give"),
        ([torch.zeros(0, 4)], r"no batch with items, got one of shape \(0, 4\) as text; give"),
        (["a", torch.zeros(2, 4)], "texts and batches in one list, got both; give one kind"),
        (5, "not a list, got int; give one of texts, or of batches of a module"),
        ({"a": "b"}, "not a list, got dict; give"),
        (torch.zeros(2, 4), "not a list, got Tensor; give"),
    ],
)
def test_texts_that_are_none(texts, message, quick):
    with pytest.raises(BadInput, match=f"^texts: {message}"):
        repsim_cli.verify("tiny_a", "tiny_a", texts, quick=quick)
    with pytest.raises(BadInput, match=f"^texts: {message}"):
        repsim_cli.verify(nn.Linear(4, 4), nn.Linear(4, 4), texts, quick=quick)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_ids": 3}, r"layer_ids: not whole numbers, got 3; write \[0, 4, 8\]"),
        ({"layer_ids": ["a"]}, r"layer_ids: not whole numbers, got \['a'\]; write"),
        ({"memory_gb": "x"}, "memory_gb: not above 0, got 'x'; give gigabytes"),
    ],
)
def test_settings_of_a_program(settings, message):
    with pytest.raises(BadInput, match=f"^{message}"):
        repsim_cli.verify("tiny_a", "tiny_a", **settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiny_a", "nowhere"), "models.nowhere: neither a model nor a folder, got 'nowhere'"),
        (("tiny_a", "tiny_a", "--text", "nowhere.txt"), "nowhere.txt"),
        (
            ("tiny_a", "tiny_a", "--junit", "nowhere/v.xml"),
            "--junit: not a file in a folder that exists, got 'nowhere/v.xml'",
        ),
    ],
)
def test_bad_input_ends_with_2(repsim, words, message):
    code, _, err = repsim("verify", *words)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_stored_activations_without_token_ids_are_refused(repsim, tmp_path):
    safetensors.torch.save_file({"layer": torch.randn(8, 4)}, tmp_path / "rows.safetensors")
    code, _, err = repsim("verify", "tiny_a", tmp_path / "rows.safetensors")
    assert code == 2
    assert "rows: a model runs on whole sequences, got no token ids; write them as `token_ids`" in err
    np.save(tmp_path / "rows.npy", np.ones((8, 4)))
    code, _, err = repsim("verify", "tiny_a", tmp_path / "rows.npy")
    assert code == 2
    wanted = (
        "candidate: of stored activations, .npz, .safetensors, .hdf5, .h5, .parquet files with token ids are compared"
    )
    assert f"{wanted}, got '{tmp_path / 'rows.npy'}'; give one, or a model" in err
    with pytest.raises(BadInput, match=f"{wanted}, got ndarray; give one, or a model"):
        repsim_cli.verify("tiny_a", np.ones((8, 4)))


def test_a_model_with_a_cache_of_keys():
    model = AutoModelForCausalLM.from_pretrained(SHIPPED / "tiny_a")
    assert model.config.use_cache
    assert repsim_cli.verify("tiny_a", model, ["Some words of a text, and some more of them."]).verdict == "ROUNDING"


def test_several_models_are_refused():
    entry = {"kind": "transformers_family", "path": str(SHIPPED / "tiny_{number}"), "numbers": [1]}
    with pytest.raises(BadInput, match="reference"):
        repsim_cli.verify(entry, "tiny_a")


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="folder: it exists"):
        repsim_cli.verify("tiny_a", "tiny_a", folder=tmp_path)


def test_a_reference_from_a_file(repsim, broken, tmp_path):
    file = tmp_path / "reference.safetensors"
    assert repsim("verify", "tiny_a", "--save", file)[:2] == (0, f"{file}\n")
    code, out, _ = repsim("verify", file, "tiny_a")
    assert (code, out.split()[0]) == (0, "IDENTICAL")
    code, _, err = repsim("verify", "tiny_a", file)
    assert (code, err) == (
        2,
        f"error: candidate: what --save wrote is a reference, got '{file}' second; give the file first\n",
    )
    assert "--quick: a saved reference has its own rounding" in repsim("verify", file, "tiny_a", "--quick")[2]
    code, out, _ = repsim("verify", file, broken, "--json")
    assert code == 1
    (first,) = json.loads(out)["differences"]
    assert (first["unit"], first["point"], first["place"]) == ("block 1", "attn_out", "attention.dense")
    assert (first["kind"], first["tensors"]) == ("offset", ["layers.1.attention.dense.bias"])


def test_quick(repsim, broken):
    assert repsim("verify", "tiny_a", "tiny_a", "--quick")[0] == 0
    code, out, _ = repsim("verify", "tiny_a", broken, "--quick")
    assert code == 1
    assert out.startswith("DIFFERENT   first at block 1, attn_out")


def test_an_interrupted_run_says_so(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("repsim_cli.api.verify.verify_models", stop)
    with pytest.raises(KeyboardInterrupt):
        repsim_cli.verify("tiny_a", "tiny_a", folder=tmp_path / "run")
    assert reader.read_manifest(tmp_path / "run")["status"] == "interrupted"


def test_without_a_tokenizer_no_text_is_claimed(tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(SHIPPED / "tiny_a", folder, ignore=shutil.ignore_patterns("tokenizer*"))
    answer = repsim_cli.verify(str(folder), str(folder))
    assert "text" not in answer.inputs
    assert "rows of random tokens" in answer.inputs
    assert any("token ids are not compared: no tokenizer for bare" in note for note in answer.notes)


@pytest.mark.parametrize("by_block", ["never", pytest.param("always", marks=pytest.mark.slow)])
def test_weights_that_are_not_finite(repsim, tmp_path, by_block):
    folder, file = tmp_path / "lost", tmp_path / "reference.safetensors"
    shutil.copytree(SHIPPED / "tiny_a", folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights[next(name for name in weights if name.endswith("layers.1.attention.dense.bias"))][3] = float("nan")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    code, out, _ = repsim("verify", "tiny_a", folder, "--by-block", by_block, "--json")
    (first,) = json.loads(out)["differences"]
    assert (code, first["about"]) == (1, "layers.1.attention.dense.bias holds 1 NaN")
    code, out, err = repsim("verify", folder, "tiny_a", "--by-block", by_block)
    assert (code, out) == (2, "")
    assert "lost: weights that are not finite, got 1 NaN in layers.1.attention.dense.bias" in err
    code, _, err = repsim("verify", folder, "--save", file)
    assert (code, file.exists()) == (2, False)
    assert "weights that are not finite, got 1 NaN in layers.1.attention.dense.bias" in err
    assert repsim("verify", "tiny_a", "--save", file)[0] == 0
    code, out, _ = repsim("verify", file, folder)
    assert (code, out.split("kind    ")[1].split("\n")[0]) == (1, "layers.1.attention.dense.bias holds 1 NaN")


@pytest.mark.parametrize("by_block", ["never", "always"])
def test_weights_with_other_bits_are_said_where_nothing_differs(repsim, tmp_path, by_block):
    folder = tmp_path / "nearly"
    shutil.copytree(SHIPPED / "tiny_a", folder)
    weights = {name: x.float() for name, x in safetensors.torch.load_file(folder / "model.safetensors").items()}
    kernel = weights[next(name for name in weights if name.endswith("layers.1.attention.dense.weight"))]
    kernel[5, 7] += 4e-7 * kernel[5].norm()
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    code, out, _ = repsim("verify", "tiny_a", folder, "--by-block", by_block)
    assert (code, out.split()[0]) == (0, "ROUNDING")
    said = out.split("weights ")[1].split("\n")[0]
    of = f"layers.1.attention.dense.weight in 1 of {kernel.numel():,} values"
    assert said == f"other bits, within the rounding of their rows: {of}"


def settings_of(tmp_path, **changes):
    folder = tmp_path / "changed"
    shutil.copytree(SHIPPED / "tiny_a", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.slow
def test_settings_that_differ_are_named(repsim, tmp_path):
    folder = settings_of(tmp_path, layer_norm_eps=1e-3, use_cache=False, max_position_embeddings=64)
    answer = repsim_cli.verify("tiny_a", str(folder))
    assert answer.differences[0].kind == "epsilon"
    assert answer.config[0] == "layer_norm_eps is 1e-05 in the reference and 0.001 in the candidate"
    assert [each.split()[0] for each in answer.config] == ["layer_norm_eps", "max_position_embeddings"]
    lines = answer.lines()
    assert lines[2] == f"  config  {'; '.join(answer.config)}"
    assert repsim_cli.verify("tiny_a", "tiny_a").config == []
    file = save_reference("tiny_a", tmp_path / "reference.safetensors", ["Some words of a text."])
    assert repsim_cli.verify(file, str(folder)).config == answer.config


def test_settings_of_rotary_angles_are_named(repsim, tmp_path):
    angles = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    answer = repsim_cli.verify("tiny_a", str(settings_of(tmp_path, rope_parameters=angles, hidden_dropout=0.5)))
    assert answer.differences[0].kind == "rotary"
    (said,) = answer.config
    assert said.startswith("rope_parameters.rope_theta is 10000")


def test_settings_that_change_nothing_are_said_too(repsim, tmp_path):
    """A longer context of which no input makes use is one."""
    answer = repsim_cli.verify("tiny_a", str(settings_of(tmp_path, max_position_embeddings=100_000)))
    assert answer.verdict == "IDENTICAL"
    assert answer.lines()[1].startswith("  config  max_position_embeddings is ")


def test_settings_of_two_types_are_those_that_both_have():
    a = AutoConfig.for_model("llama", rms_norm_eps=1e-3)
    b = AutoConfig.for_model("mistral", rms_norm_eps=1e-5, sliding_window=7)
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    first.config, second.config = a, b
    said = list_different_settings(read_settings(first), read_settings(second), "epsilon")
    assert said[0] == "rms_norm_eps is 0.001 in the reference and 1e-05 in the candidate"
    assert not any(each.startswith("sliding_window") for each in said)
    assert list_different_settings(read_settings(first), read_settings(nn.Linear(1, 1))) == []
