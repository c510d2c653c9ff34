"""Model sources: what loads, what is refused and how it is said, and the hub's own loading code on a fake cache."""

import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.tiny import TINY, perturb

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.models.architectures import LENS
from repsim_cli.models.checkpoints import SHIPPED
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers

transformers = registry.models.get("transformers").function
random = registry.models.get("random").function
transformer_lens = registry.models.get("transformer_lens").function
shipped = registry.models.get("shipped").function
precomputed = registry.models.get("precomputed").function


def copied(folder, tmp_path, leave_out=()):
    target = tmp_path / "model"
    target.mkdir()
    for file in folder.iterdir():
        if file.name not in leave_out:
            (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize("beside", ["shipped", "random"])
def test_a_model_is_built_while_another_is_loaded(monkeypatch, beside):
    """transformers stops tying weights in the whole process while it loads; two loads at once would never start it again."""
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
        ({}, "path, hub: give exactly one of them"),
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
    (folder / "model.safetensors").unlink()
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
    with pytest.raises(BadInput, match=r"1 weights are missing .* \(first: h.1.mlp.c_fc.weight\); save the model"):
        transformers(path=str(folder)).load(False)
    misshapen = {**weights, "h.1.mlp.c_fc.weight": torch.zeros(3, 3)}
    safetensors.torch.save_file(misshapen, file, {"format": "pt"})
    message = (
        r"0 weights are missing and 1 have the wrong shape, .*\(first: h.1.mlp.c_fc.weight: \(3, 3\) for \(32, 128\)\)"
    )
    with pytest.raises(BadInput, match=message):
        transformers(path=str(folder)).load(False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "config, shipped, path, hub: give exactly one of them"),
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


def test_hub_ids_and_revisions_on_a_fake_cache(tiny_folder, tmp_path):
    """The real loading code, on a cache in the hub's layout: two revisions of one id give two sets of weights."""
    for step, commit in (("step1", "a" * 40), ("step2", "b" * 40)):
        repository = tmp_path / "models--EleutherAI--pythia-tiny"
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / step).write_text(commit)
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in tiny_folder("gpt_neox", seed=int(step[-1])).iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
    script = (
        "import json\n"
        "from repsim_cli.base import registry\n"
        "make = registry.models.get('transformers').function\n"
        "out = []\n"
        "for step in ('step1', 'step2'):\n"
        "    source = make(hub='EleutherAI/pythia-tiny', revision=step)\n"
        "    total = float(sum(p.double().sum() for p in source.load(False).parameters()))\n"
        "    out.append([total, len(source.tokenizer()), source.identity()])\n"
        "try:\n"
        "    make(hub='EleutherAI/pythia-tiny', revision='step3')\n"
        "except Exception as error:\n"
        "    out.append(str(error))\n"
        "print(json.dumps(out))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    one, two, missing = json.loads(done.stdout.splitlines()[-1])
    assert one[0] != two[0]
    assert one[1] == two[1] == 400
    assert (one[2]["commit"], two[2]["commit"]) == ("a" * 40, "b" * 40)
    assert one[2]["weights_hash"] != two[2]["weights_hash"]
    assert "hub: the model could not be read, got 'EleutherAI/pythia-tiny@step3'" in missing


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
    with pytest.raises(
        BadInput, match="1 weights are missing and 0 have the wrong shape, got .*; save the model again"
    ):
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
    """With another padding id than the tokenizer's, positions would be counted over the wrong tokens."""
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


SOLU = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_ctx": 64, "d_vocab": 400, "act_fn": "solu_ln"}


def test_native_models_are_known_before_their_weights_load(tokenizer_folder):
    source = transformer_lens(config=SOLU, tokenizer=str(tokenizer_folder))
    assert (source.layers, source.width, source.heads, source.head_width, source.context) == (2, 32, 4, 8, 64)
    assert (source.vocabulary, source.rotary, source.model_type) == (400, 0, "native solu_ln")
    block = 4 * (32 * 32 + 32) + 2 * 32 * 128 + 128 + 32 + 2 * 2 * 32 + 2 * 128
    assert source.parameters == 400 * 32 + 64 * 32 + 2 * block + 2 * 32
    assert len(source.tokenizer()) == 400
    one, again, other = (transformer_lens(config=SOLU, seed=seed).load(False).bridge.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["blocks.1.mlp.in.weight"], other["blocks.1.mlp.in.weight"])
    hashes = {transformer_lens(config=c, seed=s).identity()[k] for c, s, k in (
        (SOLU, 1, "weights_hash"), (SOLU, 2, "weights_hash"), (SOLU, 1, "config_hash"), ({**SOLU, "act_fn": "gelu"}, 1, "config_hash"))}  # fmt: skip
    assert len(hashes) == 4


def hidden(source, ids, model=None):
    points = expand(["resid_post", "final_norm"], "all", source)
    with capture(model or source.load(False), source, points) as reader:
        return torch.stack([*reader(ids, torch.ones_like(ids, dtype=torch.bool)).values()])


def old_names(state, heads):
    """A native model's weights as TransformerLens saved them before: by head, and inputs first."""
    out = {}
    for key, value in state.items():
        *path, module, kind = key.split(".")
        letter = "W" if kind == "weight" else "b"
        if module in ("q", "k", "v"):
            x = value.unflatten(0, (heads, -1))
            out[".".join([*path, f"{letter}_{module.upper()}"])] = x.transpose(1, 2) if x.ndim == 3 else x
        elif module == "o":
            out[".".join([*path, f"{letter}_O"])] = value.T.unflatten(0, (heads, -1)) if kind == "weight" else value
        elif module in ("in", "out"):
            out[".".join([*path, f"{letter}_{module}"])] = value.T if kind == "weight" else value
        elif module in ("embed", "pos_embed"):
            out[f"{module}.W_{'E' if module == 'embed' else 'pos'}"] = value
        elif module == "unembed":
            out[f"unembed.{letter}_U"] = value.T if kind == "weight" else value
        else:
            out[".".join([*path, module, letter.lower()])] = value
    return {k: v.contiguous() for k, v in out.items()}


def perturbed_solu():
    model = transformer_lens(config=SOLU).load(False)
    perturb(model)
    return model, {k: v.clone() for k, v in model.bridge.state_dict().items()}


def test_native_weights_from_a_file(tmp_path):
    model, state = perturbed_solu()
    ids = torch.arange(1, 13)[None]
    expected = hidden(transformer_lens(config=SOLU), ids, model)
    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(state, file)
    source = transformer_lens(config=SOLU, weights=str(file))
    assert torch.equal(hidden(source, ids), expected)
    assert source.identity()["weights_hash"].startswith("transformer_lens: ")
    old = old_names(state, 4)
    old.pop("unembed.b_U")
    old["blocks.0.attn.mask"] = torch.ones(3, 3)  # a buffer that the old files carry
    torch.save(old, tmp_path / "weights.pth")
    assert torch.equal(hidden(transformer_lens(config=SOLU, weights=str(tmp_path / "weights.pth")), ids), expected)


def legacy_folder(folder, state, **changes):
    """A model as the hub has them in TransformerLens' old format."""
    said = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_head": 8, "d_mlp": 128, "n_ctx": 64, "d_vocab": 400,
            "act_fn": "solu_ln", "attn_only": False, "normalization": "LN", "shortformer_pos": False,
            "tokenizer_name": "NeelNanda/tiny-tokenizer", "ln_eps": 1e-5, "lr": 0.001, **changes}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in said.items() if v is not ...}))
    torch.save(old_names(state, 4), folder / "model_final.pth")
    return folder


def test_a_folder_in_the_format_of_transformer_lens(tmp_path, tokenizer_folder):
    model, state = perturbed_solu()
    folder = legacy_folder(tmp_path / "model", state)
    ids = torch.arange(1, 13)[None]
    expected = hidden(transformer_lens(config=SOLU), ids, model)
    source = transformer_lens(path=str(folder), tokenizer=str(tokenizer_folder))
    assert torch.equal(hidden(source, ids), expected)
    assert len(source.tokenizer()) == 400
    with pytest.raises(BadInput, match="hub: the model could not be read, got 'NeelNanda/tiny-tokenizer'"):
        transformer_lens(path=str(folder)).tokenizer()
    legacy_folder(folder, state, shortformer_pos=True)
    with pytest.raises(
        BadInput, match="config.json: only shortformer_pos False is supported, got True in .*; use another model"
    ):
        transformer_lens(path=str(folder))
    legacy_folder(folder, state, act_fn=...)
    with pytest.raises(BadInput, match="config.json: act_fn is missing, got .*; add it"):
        transformer_lens(path=str(folder))
    legacy_folder(folder, state, ln_eps=0.5)
    assert transformer_lens(path=str(folder)).load(False).bridge.cfg.eps == 0.5
    (folder / "model_final.pth").unlink()
    with pytest.raises(BadInput, match=r"path: no model.safetensors and no \*final.pth in it, got .*; give a folder"):
        transformer_lens(path=str(folder))


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def test_code_in_a_weights_file_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"embed.W_E": Evil()}, tmp_path / "w.pth")
    source = transformer_lens(config=SOLU, weights=str(tmp_path / "w.pth"))
    with pytest.raises(BadInput, match="weights: not a complete file of weights, got .*w.pth'.*; copy it again"):
        source.load(False)
    assert not (tmp_path / "evil").exists()


def test_a_weights_file_that_holds_something_else(tmp_path):
    torch.save([torch.ones(3)], tmp_path / "w.pth")
    with pytest.raises(BadInput, match="weights: not a state dict, got list in '.*w.pth'; save model.state_dict"):
        transformer_lens(config=SOLU, weights=str(tmp_path / "w.pth")).load(False)


def test_weights_of_another_config_are_refused(tmp_path):
    _, state = perturbed_solu()
    for name, given in (
        ("heads", old_names(state, 2)),
        ("less", {k: v for k, v in state.items() if "ln1" not in k}),
        ("more", {**state, "blocks.9.ln1.weight": torch.ones(32)}),
    ):
        safetensors.torch.save_file(given, tmp_path / f"{name}.safetensors")
        with pytest.raises(
            BadInput, match=f"weights: not those of this config, got '.*{name}.safetensors' .*; check both"
        ):
            transformer_lens(config=SOLU, weights=str(tmp_path / f"{name}.safetensors")).load(False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "path, hub: give exactly one of them"),
        ({"config": SOLU, "hub": "a/b"}, "config, path, hub: give exactly one, got config and 'a/b'; leave"),
        ({"config": SOLU, "revision": "step1"}, "config, path, hub: give exactly one, got config and 'step1'"),
        (
            {"hub": "a/b", "weights": "w.pth"},
            "weights: only a native config takes separate weights, got 'w.pth'; give config",
        ),
        ({"config": SOLU, "weights": "/no/w.pth"}, "weights: no such file, got '/no/w.pth'; check the path"),
        ({"config": SOLU, "weights": __file__}, "weights: unknown kind of file, got .*; use .safetensors, or a .pth"),
        ({"config": {**SOLU, "d_modle": 3}}, "config.d_modle: a native model has no such setting, got 3; did you mean"),
        ({"config": {"d_model": 32}}, "config.n_layers: missing or not a number, got None; set it"),
        ({"config": {**SOLU, "act_fn": "mish"}}, "config: no native model can be built from it, got .*mish.*; fix it"),
        ({"hub": "EleutherAI/none"}, "hub: the model could not be read, got 'EleutherAI/none'"),
        ({"path": "/no/such"}, "path: no such folder, got '/no/such'"),
    ],
)
def test_bad_transformer_lens_models(arguments, message):
    with pytest.raises(BadInput, match=message):
        transformer_lens(**arguments)


def test_a_native_model_has_no_tokenizer_of_its_own():
    with pytest.raises(BadInput, match="tokenizer: a native model has none; set tokenizer"):
        transformer_lens(config=SOLU).tokenizer()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("openai-gpt", "kind: TransformerLens loses the causal mask there, got model_type 'openai-gpt'; use kind: transformers"),
        ("albert", "kind: TransformerLens has no checked hook points there, got model_type 'albert'; use kind: transformers"),
    ],
)  # fmt: skip
def test_architectures_that_transformer_lens_gets_wrong(tiny_folder, kind, why):
    with pytest.raises(BadInput, match=why):
        transformer_lens(path=str(tiny_folder(kind)))


def test_a_head_that_the_checkpoint_lacks_is_never_read(tiny_folder):
    """A backbone was saved without its head; what a random one would give is NaN, which a run refuses."""
    source = transformer_lens(path=str(tiny_folder("gpt_neox")))
    points = expand(["module:unembed.hook_out", "final_norm"], "all", source)
    ids = torch.arange(1, 9)[None]
    with capture(source.load(False), source, points) as reader:
        logits, normed = reader(ids, torch.ones_like(ids, dtype=torch.bool)).values()
    assert logits.isnan().all()
    assert normed.isfinite().all()


def test_processing_is_refused_where_it_means_nothing(tiny_folder):
    with pytest.raises(
        BadInput, match="process_weights: norms after the additions cannot be folded, got model_type 'bert'"
    ):
        transformer_lens(path=str(tiny_folder("bert")), process_weights=True)


@pytest.mark.parametrize("kind", ["gpt_neox", "gpt2", "llama", "native"])
def test_processed_weights_are_the_same_function_in_other_coordinates(tmp_path, kind):
    if kind == "native":
        _, state = perturbed_solu()
        safetensors.torch.save_file(state, tmp_path / "w.safetensors")
        arguments = {"config": {**SOLU}, "weights": str(tmp_path / "w.safetensors")}
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = import_transformers().AutoModelForCausalLM.from_config(inline_config(TINY[kind]))
        perturb(model)
        model.save_pretrained(tmp_path)
        arguments = {"path": str(tmp_path)}
    raw, processed = (transformer_lens(**arguments, process_weights=flag) for flag in (False, True))
    ids = torch.arange(1, 13)[None]
    models = [source.load(False) for source in (raw, processed)]
    with torch.no_grad():
        one, other = (m.bridge(ids).double().log_softmax(-1) for m in models)
    torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    plain, folded = hidden(raw, ids, models[0]), hidden(processed, ids, models[1])
    if kind == "llama":  # its norm does not centre, so its stream is left as it is
        torch.testing.assert_close(plain[:-1], folded[:-1], atol=1e-3, rtol=1e-3)
    else:
        assert (plain[:-1] - folded[:-1]).abs().max() > 0.1
        centred = plain[0] - plain[0].mean(-1, keepdim=True)
        torch.testing.assert_close(centred, folded[0], atol=1e-3, rtol=1e-3)
    assert raw.identity()["weights_hash"] != processed.identity()["weights_hash"]


def on_a_fake_hub(root, repositories, script):
    """The last line that a script prints, as JSON, on a cache in the hub's layout: {id: {revision: folder}}."""
    for name, revisions in repositories.items():
        repository = root / ("models--" + name.replace("/", "--"))
        (repository / "refs").mkdir(parents=True)
        for number, (revision, folder) in enumerate(revisions.items()):
            commit = "abcdef"[number] * 40
            (repository / "refs" / revision).write_text(commit)
            shutil.copytree(folder, repository / "snapshots" / commit)
    environment = {**os.environ, "HF_HUB_CACHE": str(root), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_every_architecture_and_format_on_a_fake_hub(tiny_folder, tokenizer_folder, tmp_path):
    """Ids and revisions, by both kinds; an old model of TransformerLens names its tokenizer by an id of its own."""
    repositories = {f"tiny/{kind}": {"main": tiny_folder(kind), "step2": tiny_folder(kind, seed=2)} for kind in TINY}
    _, state = perturbed_solu()
    repositories["NeelNanda/SoLU_2L"] = {"main": legacy_folder(tmp_path / "legacy", state)}
    repositories["NeelNanda/tiny-tokenizer"] = {"main": tokenizer_folder}
    script = (
        "import json\n"
        "from repsim_cli.base import registry\n"
        "out = {}\n"
        f"for kind, names in (('transformers', {list(TINY)}), ('transformer_lens', {list(LENS)})):\n"
        "    make = registry.models.get(kind).function\n"
        "    for name in names:\n"
        "        found = []\n"
        "        for revision in (None, 'step2'):\n"
        "            source = make(hub=f'tiny/{name}', revision=revision)\n"
        "            module = source.load(False)\n"
        "            total = sum(float(p.double().sum()) for p in module.parameters() if p.isfinite().all())\n"
        "            found.append([total, len(source.tokenizer()), source.identity()['commit'][0]])\n"
        "        out[f'{kind} {name}'] = found\n"
        "old = make(hub='NeelNanda/SoLU_2L')\n"
        "out['old'] = [old.model_type, len(old.tokenizer()), float(old.load(False).bridge.blocks[1].mlp.ln.weight.sum())]\n"
        "print(json.dumps(out))"
    )
    found = on_a_fake_hub(tmp_path / "hub", repositories, script)
    old = found.pop("old")
    assert old[:2] == ["native solu_ln", 400]
    assert old[2] == pytest.approx(float(state["blocks.1.mlp.ln.weight"].sum()))
    assert len(found) == len(TINY) + len(LENS)
    for name, (main, step) in found.items():
        assert main[0] != step[0], name
        assert (main[1], step[1]) == (400, 400), name
        assert (main[2], step[2]) == ("a", "b"), name


ARRAYS = {f"h{i}": np.random.default_rng(i).normal(size=(20, 3 + i)).astype("float32") for i in (0, 2, 10)}


def stored(folder, kind, arrays=ARRAYS):
    file = folder / f"acts.{kind}"
    if kind == "npz":
        np.savez(file, **arrays)
    elif kind == "safetensors":
        safetensors.torch.save_file({k: torch.from_numpy(v) for k, v in arrays.items()}, file)
    else:
        with h5py.File(file, "w") as archive:
            for name, array in arrays.items():
                archive[name] = array
    return str(file)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5"])
def test_precomputed(tmp_path, kind):
    file = stored(tmp_path, kind)
    source = precomputed(path=file)
    assert source.names == ["h0", "h2", "h10"]
    assert (source.rows, source.widths) == (20, [3, 5, 13])
    np.testing.assert_array_equal(source.read("h10", slice(5, 9)), ARRAYS["h10"][5:9])
    assert precomputed(path=file, layers=["h10", "h0"]).names == ["h10", "h0"]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e4m3fn"])
def test_rows_of_a_safetensors_file(dtype, tmp_path):
    """Any part of them, in any type, with and without metadata; they are read, not mapped."""
    x = torch.randn(4000, 300).to(getattr(torch, dtype))
    safetensors.torch.save_file(
        {"a": torch.zeros(3, 3), "h0": x}, file := tmp_path / "acts.safetensors", metadata={"by": "x"}
    )
    source = precomputed(path=str(file), layers=["h0"])
    for rows in (slice(0, 4000), slice(17, 63), slice(3990, 4100), slice(3, 3)):
        assert torch.equal(source.read("h0", rows), x[rows].float())
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(file.name)]
    of_maps = Path("/proc/self/smaps").read_text()
    sizes = [int(of_maps.partition(place)[2].partition("Rss:")[2].split()[0]) for place in mapped]
    assert sum(sizes) < x.nbytes / 1000 / 2


def test_a_safetensors_file_that_was_cut_off_after_it_was_opened(tmp_path):
    safetensors.torch.save_file({"h0": torch.ones(100, 10)}, file := tmp_path / "acts.safetensors")
    source = precomputed(path=str(file))
    with file.open("r+b") as opened:
        opened.truncate(1000)
    with pytest.raises(RunFailed, match=r"rows of 'h0' cannot be read, got '50 to 99' \(the file was cut off\)"):
        source.read("h0", slice(50, 100))


@pytest.mark.parametrize(
    ("name", "arrays", "layers", "message"),
    [
        ("npz", {"a": np.zeros(5, "f4")}, None, r"array 'a' must be \(n, d\) of floats, got float32 \(5,\)"),
        ("npz", {"a": np.zeros((5, 2), "i4")}, None, r"array 'a' must be \(n, d\) of floats, got int32"),
        (
            "npz",
            {"a": np.zeros((5, 2), "f4"), "b": np.zeros((6, 2), "f4")},
            None,
            r"different numbers of rows, got \[5, 6\]",
        ),
        ("npz", {"a": np.zeros((5, 0), "f4")}, None, r"array 'a' must be \(n, d\) of floats, got float32 \(5, 0\)"),
        ("npz", {}, None, "no arrays at its top level"),
        ("npz", ARRAYS, ["h1"], "layers: no such array, got 'h1'; did you mean"),
    ],
)
def test_bad_precomputed_arrays(tmp_path, name, arrays, layers, message):
    with pytest.raises(BadInput, match=message):
        precomputed(path=stored(tmp_path, name, arrays), layers=layers)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "hdf5"])
def test_broken_precomputed_files(tmp_path, kind):
    file = tmp_path / f"acts.{kind}"
    file.write_bytes(b"nonsense that is long enough to be a header")
    with pytest.raises(BadInput, match=f"not a complete .{kind} file of numbers, got .*; write it again"):
        precomputed(path=str(file))
    with pytest.raises(BadInput, match=r"path: no such file"):
        precomputed(path=str(file) + "x")
    other = tmp_path / "acts.pkl"
    other.write_bytes(b"x")
    with pytest.raises(BadInput, match=r"path: unknown kind of file, got '.*pkl'; use .npy, .npz, .safetensors"):
        precomputed(path=str(other))


def test_object_arrays_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "acts.npz", a=np.array([[{}]], dtype=object))
    with pytest.raises(
        BadInput, match=r"acts.npz: 'a' is of Python objects, got dtype object; save numbers, ids with .astype\(str\)"
    ):
        precomputed(path=str(tmp_path / "acts.npz"))
