"""Models in .gguf files, on tiny files that the writer of the package gguf makes here."""

import json

import gguf
import numpy as np
import pytest
import torch
from helpers.tiny import TINY, perturb
from transformers import tokenization_utils_base

import repsim_cli
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.api.entries import label_entries
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.config.presets import find_model_entry
from repsim_cli.models import gguf as files
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers

transformers = registry.models.get("transformers").function
random = registry.models.get("random").function
transformer_lens = registry.models.get("transformer_lens").function


@pytest.fixture(scope="module")
def tiny():
    """A Llama with a head, and its weights as llama.cpp stores them: the rows of q and k in another order."""
    torch.manual_seed(3)
    model = (
        import_transformers()
        .AutoModelForCausalLM.from_config(inline_config({**TINY["llama"], "vocab_size": 400}))
        .eval()
    )
    perturb(model)
    return model


in_package = gguf.quants._apply_over_grouped_rows  # before it is replaced


def written(model, tokenizer, file, kind=gguf.GGMLQuantizationType.F32, architecture="llama", more=()):
    """A .gguf file of the model, with quantized matrices of the blocks."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    backend = tokenizer.backend_tokenizer
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in tokenizer.all_special_ids else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in merges(backend)])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.eos_token_id)
    for key, value in more:
        writer.add_uint16(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2 and "layers" in name and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(names.get_name(name, (".weight",)), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def merges(backend):
    return json.loads(backend.to_str())["model"]["merges"]


@pytest.fixture
def file(tiny, gpt_tokenizer, tmp_path):
    return written(tiny, gpt_tokenizer, tmp_path / "tiny model.gguf")


def test_a_file_gives_config_tokenizer_and_weights(tiny, gpt_tokenizer, file):
    source = transformers(path=str(file))
    assert (source.layers, source.width, source.heads, source.kv_heads, source.context) == (3, 32, 4, 2, 64)
    model, whole = source.load(False), source.with_head("AutoModelForCausalLM")
    for name, weight in tiny.state_dict().items():
        assert torch.equal(whole.state_dict()[name], weight), name
    assert all(torch.equal(weight, tiny.model.state_dict()[name]) for name, weight in model.state_dict().items())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(whole(input_ids=ids).logits, tiny(input_ids=ids).logits)
    text = "The  capital\nof France is naïve."
    assert source.tokenizer()(text)["input_ids"] == gpt_tokenizer(text)["input_ids"]
    assert source.tokenizer().eos_token_id == gpt_tokenizer.eos_token_id
    assert source.tokenizer().name_or_path == str(file)
    assert source.identity()["source"] == str(file)


def test_quantized_weights_are_dequantized_to_float32(tiny, gpt_tokenizer, tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    source = transformers(path=str(written(tiny, gpt_tokenizer, tmp_path / "q8.gguf", kind)))
    model = source.load(True)
    weight, stored = tiny.model.layers[1].mlp.up_proj.weight.detach().numpy(), model.layers[1].mlp.up_proj.weight
    expected = gguf.dequantize(gguf.quantize(weight, kind), kind)
    assert stored.dtype == torch.float32
    np.testing.assert_array_equal(stored.detach().numpy(), expected)
    assert 0 < np.abs(expected - weight).max() < 0.02 * np.abs(weight).max()
    plain = transformers(path=str(written(tiny, gpt_tokenizer, tmp_path / "f32.gguf")))
    assert source.identity()["weights_hash"] != plain.identity()["weights_hash"]


def test_what_lies_beside_a_file_does_not_matter(file, tokenizer_folder, bert_tokenizer):
    expected = transformers(path=str(file)).tokenizer()("a dog runs")["input_ids"]
    bert_tokenizer.save_pretrained(file.parent)
    assert transformers(path=str(file)).tokenizer()("a dog runs")["input_ids"] == expected


def test_the_only_file_of_a_folder_and_other_kinds_of_entries(tiny, file):
    folder = transformers(path=str(file.parent))
    assert folder.identity() == transformers(path=str(file)).identity()
    twin = random(path=str(file), seed=1)
    assert (twin.layers, twin.trained) == (3, False)
    assert twin.tokenizer().get_vocab() == folder.tokenizer().get_vocab()
    ids = torch.arange(20)[None]
    streams = []
    for source in (folder, transformer_lens(path=str(file))):
        with capture(source.load(False), source, expand(["resid_post"], "all", source)) as reader:
            streams.append(torch.stack([*reader(ids, torch.ones_like(ids, dtype=torch.bool)).values()]))
    torch.testing.assert_close(streams[0], streams[1], rtol=1e-4, atol=1e-4)


def test_a_name_in_capital_letters(repsim, file):
    loud = file.rename(file.with_name("TINY.GGUF"))
    assert find_model_entry(str(loud)) == {"kind": "transformers", "path": str(loud)}
    assert [*label_entries([str(loud)])] == ["TINY"]
    code, out, err = repsim("describe", "model", loud)
    assert code == 0, err
    assert "type: llama, reads text" in out


def test_files_that_cannot_be_read(tiny, gpt_tokenizer, file, monkeypatch):
    whole = file.read_bytes()
    for cut in (0, 3, 30, 1000, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:cut])
        with pytest.raises(
            BadInput, match=r"path: not a complete .gguf file, got '.*tiny model.gguf' .*; copy it again"
        ):
            transformers(path=str(file))
    written(tiny, gpt_tokenizer, file, architecture="gpt9")
    with pytest.raises(BadInput, match=r"path: transformers cannot read this .gguf file, got .*gpt9 is not supported"):
        transformers(path=str(file))
    written(tiny, gpt_tokenizer, file, more=[("split.count", 3)])
    with pytest.raises(BadInput, match="path: one of 3 parts, got .*; join them with llama-gguf-split --merge"):
        transformers(path=str(file))
    (file.parent / "other.gguf").write_bytes(whole)
    with pytest.raises(BadInput, match="path: several .gguf files in it, got other.gguf, tiny model.gguf in .*; name"):
        transformers(path=str(file.parent))
    with pytest.raises(
        BadInput, match="path: no such folder, got '.*tiny modell.gguf'; did you mean 'tiny model.gguf'"
    ):
        transformers(path=str(file.parent / "tiny modell.gguf"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        BadInput, match=r"path: .gguf files need the package gguf, which is not installed; pip install -e '.\[gguf\]'"
    ):
        transformers(path=str(file.parent / "other.gguf"))


def test_scaled_rotary_frequencies_are_warned_about(tiny, gpt_tokenizer, tmp_path, caplog, monkeypatch):
    tensors = gguf.GGUFWriter.write_header_to_file

    def with_frequencies(writer):
        writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
        tensors(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", with_frequencies)
    transformers(path=str(written(tiny, gpt_tokenizer, tmp_path / "scaled.gguf")))
    assert "does not read how its rotary frequencies are scaled, got rope_freqs.weight" in caplog.text


def test_the_reader_gives_what_the_package_gives(file):
    reader = files._make_fast_reader()
    (original,) = reader.__bases__
    ours, theirs = reader(file), original(file)
    assert list(ours.fields) == [name for name in theirs.fields if name not in files.UNREAD]
    for name, field in theirs.fields.items():
        if name in files.UNREAD:
            continue
        assert ours.fields[name].contents() == field.contents(), name
        assert ours.fields[name].types == field.types
    assert [(t.name, t.n_bytes, t.data_offset) for t in ours.tensors] == [
        (t.name, t.n_bytes, t.data_offset) for t in theirs.tensors
    ]


def test_rows_are_dequantized_as_the_package_does(monkeypatch):
    files._make_fast_reader()
    rng = np.random.default_rng(0)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1):
        coded = gguf.quants.quantize(rng.normal(size=(2, 75, 64)).astype(np.float32), kind)
        ours = gguf.quants.dequantize(coded, kind)
        with monkeypatch.context() as with_theirs:
            with_theirs.setattr(gguf.quants, "_apply_over_grouped_rows", in_package)
            np.testing.assert_array_equal(ours, gguf.quants.dequantize(coded, kind))


def test_merges_are_those_that_transformers_derives():
    rng = np.random.default_rng(0)
    tokens = list(dict.fromkeys("".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(400)))
    vocab = {token: place for place, token in enumerate(tokens)}
    scores = {token: float(score) for token, score in zip(tokens, rng.integers(-9, 0, len(tokens)), strict=True)}
    for given in ({}, {"vocab_scores": scores}, {"vocab_scores": scores, "skip_tokens": tokens[:9]}):
        derived = tokenization_utils_base.generate_merges(vocab, **given)
        assert len(derived) > 50
        assert files.derive_merges(vocab, **given) == derived


def test_a_file_is_read_once_until_it_changes(file, monkeypatch):
    reads = []
    reader = files._make_fast_reader()
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: reads.append(str(path)) or reader(path))
    first = transformers(path=str(file))
    tokens = first.tokenizer()
    count = len(reads)
    again = transformers(path=str(file))
    assert again.tokenizer() is tokens
    assert len(reads) == count
    file.write_bytes(file.read_bytes())
    assert transformers(path=str(file)).tokenizer() is not tokens
    assert len(reads) > count


def test_a_run_on_a_file(repsim, newest, file):
    code, _, err = repsim(
        "run",
        "model=[]",
        f"+model.mine={{kind: transformers, path: '{file}'}}",
        "extract.length=32",
        "extract.sequences=8",
    )
    assert code == 0, err
    assert (newest() / "results.json").is_file()


def test_a_file_of_unrounded_weights_is_the_same_model(tiny, gpt_tokenizer, file, tmp_path):
    tiny.save_pretrained(tmp_path / "folder")
    gpt_tokenizer.save_pretrained(tmp_path / "folder")
    answer = repsim_cli.verify(str(tmp_path / "folder"), str(file), ["one two three", "four five"], quick=True)
    assert answer.verdict == "IDENTICAL"
