"""Malformed model folders: each gets one clear line that says what to do, exit code 2, and leaves nothing."""

import json
import struct

import pytest
import safetensors.torch
import torch
from helpers.refusals import check, pipe


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


def with_index(text):
    """An index of shards, which is read where there is no single file."""

    def change(folder):
        (folder / "model.safetensors.index.json").write_text(text)
        (folder / "model.safetensors").unlink()

    return change


def with_config(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def with_tokenizer(**changes):
    def change(folder):
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def with_model_of_tokenizer(model):
    def change(folder):
        file = folder / "tokenizer.json"
        plain = {"post_processor": None, "decoder": None, "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}}
        file.write_text(json.dumps({**json.loads(file.read_text()), **plain, "model": model}))

    return change


def with_weights(change):
    def rewrite(folder):
        file = folder / "model.safetensors"
        weights = safetensors.torch.load_file(file)
        change(weights)
        safetensors.torch.save_file(weights, file, {"format": "pt"})

    return rewrite


def pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def header_that_lies(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10**12) + b"{}")


FOLDERS = {
    "no config": without("config.json"),
    "no weights": without("model.safetensors"),
    "no tokenizer": without("tokenizer.json"),
    "pickled weights": pickle_only,
    "truncated weights": truncated,
    "weights with a wrong header": header_that_lies,
    "text for weights": with_text("model.safetensors", "words"),
    "empty weights": with_text("model.safetensors", ""),
    "broken config": with_text("config.json", "{"),
    "config that is a list": with_text("config.json", "[]"),
    "config without a type": with_text("config.json", "{}"),
    "unknown architecture": with_config(model_type="gpt99"),
    "architecture with code of its own": with_config(auto_map={"AutoModel": "model.Model"}),
    "no layers": with_config(n_layer=0),
    "more layers than weights": with_config(n_layer=9),
    "heads that do not divide": with_config(n_head=5),
    "another width": with_config(n_embd=64),
    "a vocabulary that is too small": with_config(vocab_size=9),
    "broken tokenizer": with_text("tokenizer.json", "{"),
    "tokenizer of nothing": with_text("tokenizer.json", "{}"),
    "missing weight": with_weights(lambda w: w.pop("h.0.ln_1.weight")),
    "misshapen weight": with_weights(lambda w: w.update({"h.0.ln_1.weight": torch.zeros(2)})),
    "negative heads": with_config(n_head=-2),
    "negative width": with_config(n_embd=-32),
    "a million layers": with_config(n_layer=1_000_000),
    "layers as text": with_config(n_layer="x"),
    "negative vocabulary": with_config(vocab_size=-5),
    "endless vocabulary": with_config(vocab_size=10**12),
    "a thousand million labels": with_config(num_labels=10**9),
    "hidden states as text": with_config(output_hidden_states="x"),
    "attentions as text": with_config(output_attentions="x"),
    "flag as text": with_config(use_cache="x"),
    "unknown activation": with_config(activation_function="zzz"),
    "architectures as a number": with_config(architectures=5, n_layer=0),
    "part of text as a number": with_config(text_config=5),
    "type as a list": with_config(model_type=["gpt2"]),
    "unknown kind of layers": with_config(layer_types=["x"]),
    "rotation as a number": with_config(rope_parameters=5),
    "quantization as text": with_config(quantization_config="x"),
    "unknown quantization": with_config(quantization_config={"quant_method": "nope"}),
    **{
        f"{kind} without its package": with_config(quantization_config={"quant_method": kind, "bits": 4})
        for kind in ("bitsandbytes_4bit", "gptq", "awq", "aqlm", "quanto", "eetq", "hqq", "compressed-tensors")
    },
    "length of a tokenizer as text": with_tokenizer(model_max_length="x"),
    "class of a tokenizer as a number": with_tokenizer(tokenizer_class=5),
    "padding token as a number": with_tokenizer(pad_token=5),
    "names of inputs as a number": with_tokenizer(model_input_names=5),
    "tokenizer without a model": with_model_of_tokenizer(None),
    "word pieces without [UNK]": with_model_of_tokenizer(
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 9,
            "vocab": {"a": 0},
        }
    ),
    "words without [UNK]": with_model_of_tokenizer({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
    "unigrams without an unknown one": with_model_of_tokenizer(
        {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}
    ),
    "deep config": with_text("config.json", "[" * 100_000),
    "tokenizer's config that is a list": with_text("tokenizer_config.json", "[]"),
    "broken index": with_index("["),
    "index of nothing": with_index("{}"),
    "index of numbers": with_index('{"weight_map": {"a": 5}}'),
    "index that leaves": with_index('{"weight_map": {"a": "../../a"}}'),
    "pipe for the tokenizer's config": pipe("tokenizer_config.json"),
    "pipe for the weights": pipe("model.safetensors"),
    "shard that is not there": with_index('{"weight_map": {"a": "part-2.safetensors"}}'),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_model_folders(repsim, tmp_path, tiny_folder, what):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_folder("gpt2").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    FOLDERS[what](folder)
    entry = f"+model.mine={{kind: transformers, path: {folder}}}"
    code, out, err = repsim("run", "model=[]", "measure=[cka]", entry, "extract.length=32", "extract.batch_rows=64")
    check(code, out, err, tmp_path / "outputs")
    assert "model.mine" in err
