"""Model sources: what loads, what is refused and how it is said."""

import json
import threading
import warnings

import pytest
import safetensors.torch
import torch
from helpers.tiny import TINY, perturb

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.models.checkpoints import SHIPPED
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers

transformers = registry.models.get("transformers").function
random = registry.models.get("random").function
shipped = registry.models.get("shipped").function


def copied(folder, tmp_path, leave_out=()):
    target = tmp_path / "model"
    target.mkdir()
    for file in folder.iterdir():
        if file.name not in leave_out:
            (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize("beside", ["shipped", "random"])
def test_a_model_is_built_while_another_is_loaded(monkeypatch, beside):
    """transformers stops tying weights in the whole process while it loads; two loads at once would never start it
    again."""
    from transformers import GPTNeoXModel, PreTrainedModel

    begin, begun, other, tie = GPTNeoXModel.__init__, threading.Event(), threading.Event(), PreTrainedModel.tie_weights

    def slowly(self, config):
        begin(self, config)
        if threading.current_thread() is loader:
            begun.set()
            other.wait(0.3)

    heads = []
    loader = threading.Thread(target=lambda: heads.append(shipped(name="tiny_b").with_head("AutoModelForCausalLM")))
    source = shipped(name="tiny_a") if beside == "shipped" else random(shipped="tiny_a")
    shipped(name="tiny_b")
    monkeypatch.setattr(GPTNeoXModel, "__init__", slowly)
    loader.start()
    assert begun.wait(60)
    heads.append(source.with_head("AutoModelForCausalLM"))
    other.set()
    loader.join()
    assert [model.lm_head.weight is model.gpt_neox.embed_in.weight for model in heads] == [True, True]
    assert PreTrainedModel.tie_weights is tie


def test_a_folder_is_known_before_its_weights_load(tiny_folder):
    source = transformers(path=str(tiny_folder("llama")))
    assert (source.layers, source.width, source.heads, source.kv_heads, source.context) == (3, 32, 4, 2, 64)
    model = source.load(False)
    assert source.parameters == sum(p.numel() for p in model.parameters())
    assert all(p.device.type == "meta" for p in source.skeleton.parameters())
    assert len(source.identity()["weights_hash"]) == 64


def test_half_precision_weights_are_read_as_float32():
    model = shipped(name="tiny_a").load(False)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    with safetensors.safe_open(SHIPPED / "tiny_a" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


def test_shipped_models_are_four_files_of_at_most_3_mb():
    files = sorted(SHIPPED.rglob("*.safetensors"))
    assert len(files) == 4
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*")) < 3e6
    assert len({file.read_bytes() for file in files}) == 4


def test_random_weights_depend_on_the_seed_alone():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 10}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, again, other = (random(config=config, seed=seed).load(False).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["wte.weight"], other["wte.weight"])
    assert torch.equal(state, torch.get_rng_state())


def test_a_random_twin_has_the_shape_and_tokenizer_of_its_model():
    twin, original = random(shipped="tiny_a", seed=3), shipped(name="tiny_a")
    assert twin.parameters == original.parameters
    assert twin.tokenizer().get_vocab() == original.tokenizer().get_vocab()
    a, b = (next(source.load(False).parameters()) for source in (twin, original))
    assert a.shape == b.shape
    assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "path, hub: give exactly one of them; path is a folder"),
        ({"path": "x", "hub": "y"}, "path, hub: give exactly one of them, got path=x, hub=y"),
        ({"path": "/no/such/folder"}, "path: no such folder, got '/no/such/folder'; check the path"),
        ({"path": "FOLDER", "revision": "step3"}, "revision: a local folder has none, got 'step3'; name the folder"),
        ({"hub": "EleutherAI/none"}, "hub: the model could not be read, got 'EleutherAI/none' .*use path: FOLDER"),
    ],
)
def test_bad_arguments(tiny_folder, arguments, message):
    if arguments.get("path") == "FOLDER":
        arguments = {**arguments, "path": str(tiny_folder("gpt2"))}
    with pytest.raises(BadInput, match=message):
        transformers(**arguments)


def test_a_misspelt_folder_suggests(tmp_path):
    (tmp_path / "checkpoint-100").mkdir()
    with pytest.raises(BadInput, match="got '.*checkpoint-10'; did you mean 'checkpoint-100'"):
        transformers(path=str(tmp_path / "checkpoint-10"))


def test_folders_that_lack_something(tiny_folder, tmp_path):
    folder = copied(tiny_folder("gpt2"), tmp_path)
    tokenizer = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match="path: no tokenizer in it, got '.*model'; save the tokenizer there"):
        transformers(path=str(folder)).tokenizer()
    (folder / "tokenizer.json").write_bytes(tokenizer)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(BadInput, match="path: model.safetensors is not a complete safetensors file.*copy it again"):
        transformers(path=str(folder))
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.raises(BadInput, match="path: no model.safetensors in it, got weights.safetensors in .*; rename it if"):
        transformers(path=str(folder))
    (folder / "weights.safetensors").unlink()
    with pytest.raises(BadInput, match="path: no model.safetensors in it, got .*; give a folder with weights"):
        transformers(path=str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(BadInput, match=r"only pickled weights \(pytorch_model.bin\), which can run code"):
        transformers(path=str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(BadInput, match="path: config.json cannot be used, got .*; fix it"):
        transformers(path=str(folder))
    (folder / "config.json").write_text('{"model_type": "gpt9"}')
    with pytest.raises(BadInput, match="path: unknown architecture, got model_type 'gpt9' in .*; did you mean"):
        transformers(path=str(folder))
    (folder / "config.json").write_text('{"model_type": "gpt2", "auto_map": {"AutoModel": "a.B"}}')
    with pytest.raises(BadInput, match="path: the model needs code that comes with it, which is never run, got"):
        transformers(path=str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match="path: no config.json in it"):
        transformers(path=str(folder))


def test_more_blocks_than_the_config_says(tiny_folder, tmp_path):
    """transformers would leave them out, and say so in a table of its own alone."""
    folder = copied(tiny_folder("gpt2"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["n_layer"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    message = (
        r"path: the weights have more blocks than config.json, got h.1.attn.c_attn.\w+ in .* with blocks 0 to 0; corr"
    )
    with pytest.raises(BadInput, match=message):
        transformers(path=str(folder)).load(False)


def test_missing_and_misshapen_weights(tiny_folder, tmp_path):
    folder = copied(tiny_folder("gpt2"), tmp_path)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    lacking = {k: v for k, v in weights.items() if k != "h.1.mlp.c_fc.weight"}
    safetensors.torch.save_file(lacking, file, {"format": "pt"})
    with pytest.raises(
        BadInput, match=r"path: 1 weight is missing, got .* \(first: h.1.mlp.c_fc.weight\); save the model"
    ):
        transformers(path=str(folder)).load(False)
    misshapen = {**weights, "h.1.mlp.c_fc.weight": torch.zeros(3, 3)}
    safetensors.torch.save_file(misshapen, file, {"format": "pt"})
    message = r"path: 1 weight has the wrong shape, .*\(first: h.1.mlp.c_fc.weight: \(3, 3\) for \(32, 128\)\)"
    with pytest.raises(BadInput, match=message):
        transformers(path=str(folder)).load(False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "config, shipped, path, hub: give exactly one of them; config is e.g."),
        ({"config": {"n_layer": 2}}, "config.model_type: unknown, got 'None'; e.g. model_type: gpt2"),
        ({"config": {"model_type": "gpt22"}}, "config.model_type: unknown, got 'gpt22'; did you mean 'gpt2'"),
        (
            {"config": {"model_type": "gpt2", "n_layers": 2}},
            "config.n_layers: gpt2 has no such setting, got 2; did you",
        ),
        ({"config": {"model_type": "gpt2", "n_embd": 30, "n_head": 4}}, "config: no gpt2 can be built from it"),
        ({"shipped": "tiny_aa"}, "name: no such shipped model, got 'tiny_aa'; did you mean 'tiny_a'"),
    ],
)
def test_bad_random_models(arguments, message):
    with pytest.raises(BadInput, match=message):
        random(**arguments)


def test_a_random_model_from_a_config_has_no_tokenizer():
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 10}
    with pytest.raises(BadInput, match="tokenizer: a random model from a config has none; set tokenizer"):
        random(config=config).tokenizer()


HEADED = [
    (kind, auto)
    for kind, autos in {
        "gpt_neox": ("CausalLM", "SequenceClassification"),
        "gpt2": ("CausalLM", "SequenceClassification"),
        "llama": ("CausalLM", "SequenceClassification"),
        "bert": ("MaskedLM", "SequenceClassification"),
        "roberta": ("MaskedLM", "SequenceClassification"),
        "distilbert": ("MaskedLM", "SequenceClassification"),
        "albert": ("MaskedLM", "SequenceClassification"),
        "openai-gpt": ("CausalLM", "SequenceClassification"),
        "xlnet": ("CausalLM", "SequenceClassification"),
    }.items()
    for auto in autos
]


@pytest.mark.parametrize(("kind", "auto"), HEADED)
def test_checkpoints_with_a_head_give_their_backbone(tmp_path, kind, auto):
    """Bit for bit the backbone that was saved; a head is no missing weight."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        headed = getattr(import_transformers(), f"AutoModelFor{auto}").from_config(
            inline_config({**TINY[kind], "pad_token_id": 0})
        )
        perturb(headed)
        headed.eval().save_pretrained(tmp_path)
    ids = torch.randint(1, 400, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    loaded = transformers(path=str(tmp_path)).load(False)
    with torch.no_grad():
        expected = headed.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
        found = loaded(input_ids=ids, attention_mask=mask).last_hidden_state
    assert expected.std() > 0.1
    assert torch.equal(found, expected)
    if auto == "MaskedLM" and kind in ("bert", "roberta", "albert"):  # it was saved without one
        assert all(p.isnan().all() for name, p in loaded.named_parameters() if "pooler" in name)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    inside = f"{headed.base_model_prefix}."
    backbone = next(k for k in sorted(weights) if k.startswith(inside) and "pooler" not in k)
    del weights[backbone]
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadInput, match="path: 1 weight is missing, got .*; save the model again"):
        transformers(path=str(tmp_path)).load(False)


@pytest.mark.parametrize(
    ("kind", "context", "width", "heads"),
    [("roberta", 64, 32, 4), ("distilbert", 64, 32, 4), ("albert", 64, 32, 4), ("openai-gpt", 64, 32, 4), ("xlnet", None, 32, 4)],
)  # fmt: skip
def test_shapes_whatever_the_config_calls_them(kind, context, width, heads):
    source = random(config=TINY[kind])
    assert (source.layers, source.context, source.width, source.heads) == (3, context, width, heads)
    assert source.head_width == 8
    assert source.parameters == sum(p.numel() for p in source.load(False).parameters())
    assert source.model_type == kind


def test_roberta_counts_positions_from_its_padding_id(tiny_folder, tokenizer_folder):
    """Positions would be counted over the wrong tokens with another padding id than the tokenizer's."""
    assert transformers(path=str(tiny_folder("roberta"))).tokenizer().pad_token_id == 0
    other = random(config={**TINY["roberta"], "pad_token_id": 1}, tokenizer=str(tokenizer_folder))
    assert other.context == 63
    message = "tokenizer: it pads with id 0, by which roberta counts positions, got pad_token_id 1 in the config"
    with pytest.raises(BadInput, match=message):
        other.tokenizer()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "wav2vec2"}, "config: it reads neither text, images nor sound, got a model of input_values"),
        (
            {"model_type": "perceiver"},
            "config: it reads neither text, images nor sound, got a model of inputs; use another",
        ),
    ],
)
def test_models_that_are_no_stack_of_blocks(config, message):
    with pytest.raises(BadInput, match=message):
        random(config=config)


def test_the_same_weights_under_another_config_are_another_model(tiny_folder, tmp_path):
    folder = copied(tiny_folder("gpt2"), tmp_path)
    one = transformers(path=str(folder)).identity()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "activation_function": "relu"}))
    other = transformers(path=str(folder)).identity()
    assert one["weights_hash"] == other["weights_hash"]
    assert one["config_hash"] != other["config_hash"]


def test_rotary_features_per_head(tiny_folder):
    kinds = {"gpt_neox": 2, "llama": 8, "gpt2": 0, "bert": 0}
    assert {kind: random(config=TINY[kind]).rotary for kind in kinds} == kinds
