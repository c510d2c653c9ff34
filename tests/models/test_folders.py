"""Folders in any state: those that load give the weights that were saved, the others are refused with what is wrong."""

import json
import shutil

import pytest
import safetensors.torch
import torch
from helpers.tiny import TINY, perturb

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers

transformers = registry.models.get("transformers").function
CAUSAL = "AutoModelForCausalLM"


@pytest.fixture
def tiny(request):
    torch.manual_seed(4)
    settings = {**TINY["llama"], **getattr(request, "param", {})}
    model = import_transformers().AutoModelForCausalLM.from_config(inline_config(settings)).eval()
    perturb(model)
    return model


def renamed(folder, new_name):
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    safetensors.torch.save_file({new_name(name): weight for name, weight in weights.items()}, file, {"format": "pt"})


def configured(folder, **settings):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def littered(folder):
    for name in ("pytorch_model.bin", "README.md", ".gitattributes", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(b"junk")
    (folder / "original").mkdir()
    (folder / "generation_config.json").write_text("{not json")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-00001-of-00001.safetensors"}}')


STATES = {
    "as saved": lambda folder: None,
    "names without model.": lambda folder: renamed(folder, lambda name: name.removeprefix("model.")),
    "other files beside the weights": littered,
    "attention of another machine": lambda folder: configured(folder, attn_implementation="flash_attention_2"),
    "an old config": lambda folder: configured(
        folder, torch_dtype="bfloat16", rope_theta=10000.0, rope_parameters=None
    ),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("tiny", [{}, {"tie_word_embeddings": True}], indirect=True, ids=["untied", "tied"])
def test_folders_that_load(tiny, tmp_path, state):
    folder = tmp_path / "ein Modell, 模型"
    tiny.save_pretrained(folder)
    STATES[state](folder)
    source = transformers(path=str(folder))
    loaded, whole = source.load(False).state_dict(), source.with_head(CAUSAL).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in tiny.model.state_dict().items())
    assert all(torch.equal(whole[name], weight) for name, weight in tiny.state_dict().items())


def test_files_of_weights(tiny, tmp_path):
    """Sharded or not, the same model; a missing shard is named."""
    tiny.save_pretrained(tmp_path / "one")
    tiny.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    shards = sorted((tmp_path / "many").glob("model-*.safetensors"))
    assert len(shards) > 3
    one, many = (transformers(path=str(tmp_path / name)).load(False).state_dict() for name in ("one", "many"))
    assert all(torch.equal(one[name], many[name]) for name in one)
    # transformers reads the single file where both are there, and so does the identity
    shutil.copy(tmp_path / "one" / "model.safetensors", tmp_path / "many")
    hashes = [transformers(path=str(tmp_path / name)).identity()["weights_hash"] for name in ("one", "many")]
    assert hashes[0] == hashes[1]
    (tmp_path / "many" / "model.safetensors").unlink()
    shards[1].unlink()
    message = f"path: 1 of {len(shards)} files of weights are missing, got no {shards[1].name} in '.*many'; copy the"
    with pytest.raises(BadInput, match=message):
        transformers(path=str(tmp_path / "many"))
    (tmp_path / "many" / "model.safetensors.index.json").unlink()
    with pytest.raises(
        BadInput, match="path: no model.safetensors.index.json beside the files of weights, got .*; copy"
    ):
        transformers(path=str(tmp_path / "many"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_weights_of_every_width_are_read_as_float32(tiny, tmp_path, dtype):
    tiny.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    narrow = {name: w.to(getattr(torch, dtype)) for name, w in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(narrow, file, {"format": "pt"})
    configured(tmp_path, dtype=dtype)
    model = transformers(path=str(tmp_path)).load(False)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, narrow[f"model.{name}"].float()), name


def test_scaled_weights(tiny, tmp_path):
    """float8 with a scale per block is read as transformers reads it; without a word about the scales it is refused."""
    tiny.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    for name in [name for name in weights if "proj" in name]:
        scale = weights[name].abs().max() / 448
        weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scale[None, None]
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    message = "path: weights with scales, but no quantization_config in config.json, got .*weight_scale_inv in .*; copy"
    with pytest.raises(BadInput, match=message):
        transformers(path=str(tmp_path))
    configured(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    source = transformers(path=str(tmp_path))
    for loaded in (source.load(False), source.with_head(CAUSAL).model):
        for name, weight in tiny.model.state_dict().items():
            error = (loaded.state_dict()[name] - weight).abs().max() / weight.abs().max()
            assert error < 0.04, name


def test_a_tokenizer_of_sentencepiece_alone(tiny, tmp_path, caplog):
    """A tokenizer.model with its config splits text as sentencepiece does; where transformers has to guess, it says so."""
    import sentencepiece

    text = tmp_path / "text"
    text.write_text("some words of a sentence\nSome other words\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "pieces"), vocab_size=40, model_type="bpe", hard_vocab_limit=False, minloglevel=2
    )  # fmt: skip
    folder = tmp_path / "model"
    tiny.save_pretrained(folder)
    shutil.copy(tmp_path / "pieces.model", folder / "tokenizer.model")
    assert transformers(path=str(folder)).tokenizer().is_fast
    assert "transformers splits text in another way than the file, got" in caplog.text
    caplog.clear()
    names = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "add_bos_token": True}))
    tokenizer = transformers(path=str(folder)).tokenizer()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert tokenizer("some other words")["input_ids"] == [1, *pieces.encode("some other words")]
    assert "another way" not in caplog.text


def test_nobody_tuned_to_this_folder(repsim, newest, tiny, tmp_path, gpt_tokenizer):
    folder = tmp_path / "Some Org" / "Großes Modell-v2.1 (final)"
    tiny.to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
    gpt_tokenizer.save_pretrained(folder)
    code, _, err = repsim(
        "run",
        "model=[]",
        f"+model.x={{kind: transformers, path: '{folder}'}}",
        "extract.length=32",
        "extract.sequences=8",
    )
    assert code == 0, err
    assert (newest() / "results.json").is_file()
