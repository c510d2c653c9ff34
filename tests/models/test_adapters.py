"""LoRA adapters: what is merged is what the package peft computes, and what is refused."""

import json
import logging
import shutil
import warnings

import peft
import pytest
import safetensors.torch
import torch
from helpers.tiny import TINY, perturb

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.pretrained import load_with_head

transformers = registry.models.get("transformers").function
CAUSAL = "AutoModelForCausalLM"


@pytest.fixture(scope="module")
def base(shared, tokenizer_folder):
    """tiny(kind): a folder with a whole causal language model."""

    def make(kind, folder):
        torch.manual_seed(5)
        model = import_transformers().AutoModelForCausalLM.from_config(inline_config(TINY[kind]))
        perturb(model)
        model.save_pretrained(folder)
        shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)

    return lambda kind: shared(f"headed-{kind}", lambda folder: make(kind, folder))


def adapted(base, folder, seed=0, headed=True, **settings):
    """Saves an adapter in the folder; the model with it, not merged."""
    torch.manual_seed(seed)
    auto = import_transformers().AutoModelForCausalLM if headed else import_transformers().AutoModel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(auto.from_pretrained(base), peft.LoraConfig(r=4, **settings))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name or "modules_to_save" in name:
                    weight.add_(0.2 * torch.randn_like(weight))
        model.save_pretrained(folder)
    return model.eval()


def logits_and_stream(source, ids):
    with torch.no_grad():
        logits = source.with_head(CAUSAL)(input_ids=ids).logits
    with capture(source.load(False), source, expand(["resid_post"], "all", source)) as reader:
        return logits, torch.stack([*reader(ids, torch.ones_like(ids, dtype=torch.bool)).values()])


CASES = {
    "llama": ("llama", {"target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}),
    "fused": ("gpt_neox", {"target_modules": ["query_key_value"], "task_type": "CAUSAL_LM"}),
    "transposed": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "task_type": "CAUSAL_LM"}),
    "head": ("llama", {"target_modules": ["v_proj", "lm_head"], "task_type": "CAUSAL_LM"}),
    "whole modules": ("llama", {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"], "task_type": "CAUSAL_LM"}),
    "magnitudes": ("llama", {"target_modules": ["o_proj"], "use_dora": True, "task_type": "CAUSAL_LM"}),
    "patterns": ("llama", {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM",
                           "rank_pattern": {"model.layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"model.layers.1.self_attn.q_proj": 32}}),
    "some layers": ("llama", {"target_modules": ["q_proj"], "layers_to_transform": [1], "task_type": "CAUSAL_LM"}),
    "of the backbone": ("llama", {"target_modules": ["q_proj"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_merged_model_is_the_adapted_one(base, tmp_path, case):
    kind, settings = CASES[case]
    headed = case != "of the backbone"
    model = adapted(base(kind), tmp_path, headed=headed, **settings)
    source = transformers(path=str(base(kind)), adapter=str(tmp_path))
    plain = transformers(path=str(base(kind)))
    ids = torch.randint(1, 400, (2, 9), generator=torch.Generator().manual_seed(2))
    logits, stream = logits_and_stream(source, ids)
    with torch.no_grad():
        if headed:
            torch.testing.assert_close(logits, model(input_ids=ids).logits, rtol=1e-4, atol=1e-3)
        hidden = model.base_model.model.base_model(input_ids=ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(stream[:-1], torch.stack(hidden[1:-1]), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(stream, logits_and_stream(plain, ids)[1], atol=1e-3) or case == "head"
    assert list(dict(source.load(True).named_modules())) == list(dict(plain.load(True).named_modules()))
    assert {weight.dtype for weight in source.load(False).parameters()} == {torch.float32}


def test_the_identity_covers_base_and_adapter(base, tmp_path):
    for seed in (0, 1):
        adapted(base("llama"), tmp_path / str(seed), seed, target_modules=["q_proj"])
    settings = json.loads((tmp_path / "0" / "adapter_config.json").read_text())
    shutil.copytree(tmp_path / "0", tmp_path / "2")
    (tmp_path / "2" / "adapter_config.json").write_text(json.dumps({**settings, "lora_alpha": 16}))
    path = str(base("llama"))
    plain = transformers(path=path).identity()
    found = [transformers(path=path, adapter=str(tmp_path / name)).identity() for name in "012"]
    assert len({plain["weights_hash"], *(one["weights_hash"] for one in found)}) == 4
    assert {one["base_hash"] for one in found} == {plain["weights_hash"]}
    assert found[0]["adapter"] == str(tmp_path / "0")


def test_adapters_that_cannot_be_merged(base, tiny_folder, tmp_path, monkeypatch, caplog):
    folder, path = tmp_path / "lora", str(base("llama"))
    adapted(path, folder, target_modules=["q_proj"], task_type="CAUSAL_LM")

    def refused(message, **arguments):
        with pytest.raises(BadInput, match=message):
            transformers(**{"path": path, "adapter": str(folder), **arguments})

    refused("adapter: the base has no such module, got .*layers.0.self_attn.q_proj in .*; give the base that",
            path=str(base("gpt2")))  # fmt: skip
    refused("adapter: no adapter_config.json in it, got '.*tokenizer'; give the folder of a LoRA adapter",
            adapter=str(tiny_folder("llama").parent / "tokenizer"))  # fmt: skip
    refused("adapter: no adapter_config.json in it, got '.*none'", adapter=str(tmp_path / "none"))
    refused(
        "adapter: the model could not be read, got 'some/lora' .*use adapter: FOLDER", path=path, adapter="some/lora"
    )
    with caplog.at_level(logging.INFO, "repsim"):
        copy = shutil.copytree(path, tmp_path / "another name")
        transformers(path=str(copy), adapter=str(folder))
    assert "another name" in caplog.text

    weights = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    wide = {key: torch.zeros(4, 48) if "lora_A" in key else w for key, w in weights.items()}
    safetensors.torch.save_file(wide, folder / "adapter_model.safetensors")
    refused(r"adapter: it does not fit its base, got \(4, 48\) for model.layers.0.self_attn.q_proj of \(32, 32\); give")
    narrow = {key: torch.zeros(3, 32) if "lora_A" in key else w for key, w in weights.items()}
    safetensors.torch.save_file(narrow, folder / "adapter_model.safetensors")
    with pytest.raises(BadInput, match="adapter: cannot be merged into its base, got .*size mismatch"):
        transformers(path=path, adapter=str(folder)).load(False)
    safetensors.torch.save_file(
        {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)}, folder / "adapter_model.safetensors"
    )
    refused("adapter: it changes no module of the base, got .*; give its own base")
    (folder / "adapter_model.safetensors").write_bytes(b"short")
    refused("adapter: adapter_model.safetensors is not a complete safetensors file, got .*; copy it again")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(
        r"adapter: only pickled weights \(adapter_model.bin\), which can run code, got .*; save it again as safetensors"
    )
    (folder / "adapter_model.bin").unlink()
    refused("adapter: no adapter_model.safetensors in it, got .*; give a folder with weights")
    (folder / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    refused("adapter: only LoRA of the base's own modules is merged, got peft_type 'IA3' in .*; merge it yourself")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(r"adapter: needs the package peft, which is not installed; pip install -e '.\[peft\]'")


def test_an_adapter_beside_the_model_is_not_loaded_unasked(base, tmp_path):
    """transformers would; a folder is refused before, a repository of the hub once it is loaded."""
    whole = shutil.copytree(base("llama"), tmp_path / "both")
    adapted(base("llama"), whole, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(BadInput, match="path: an adapter is in it, got '.*both'; give the base model"):
        transformers(path=str(whole))
    with pytest.raises(
        BadInput, match="hub: an adapter is in it, got '.*both'; give its base model, and this as adapter"
    ):
        load_with_head(str(whole), None, CAUSAL)


def test_base_and_adapted_copy_in_one_run(repsim, newest, base, tmp_path):
    folder = tmp_path / "lora"
    adapted(base("llama"), folder, target_modules=["q_proj"], task_type="CAUSAL_LM")
    path = base("llama")
    code, _, err = repsim(
        "run",
        "model=[]",
        f"+model.base={{kind: transformers, path: '{path}'}}",
        f"+model.tuned={{kind: transformers, path: '{path}', adapter: '{folder}'}}",
        f"+model.coarse={{kind: transformers, path: '{path}', quantize: {{method: round, bits: 3}}}}",
        "extract.length=32",
        "extract.sequences=8",
        "measure=[cka]",
    )
    assert code == 0, err
    models = json.loads((newest() / "manifest.json").read_text())["models"]
    assert len({models[label]["weights_hash"] for label in ("base", "tuned", "coarse")}) == 3
    assert models["coarse"]["quantize"] == "round to 3 bits"


def test_the_folder_of_an_adapter_as_a_model(base, tmp_path):
    """Its base is the one that it names; where that is not here, the refusal says what to set."""
    folder, path = tmp_path / "lora", str(base("llama"))
    adapted(path, folder, target_modules=["q_proj"], task_type="CAUSAL_LM")
    assert transformers(path=str(folder)).identity() == transformers(path=path, adapter=str(folder)).identity()
    settings = json.loads((folder / "adapter_config.json").read_text())
    for name in ("/no/such/base", None, "", 5, "a b", "../x/y"):
        (folder / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": name}))
        with pytest.raises(BadInput, match="path: an adapter is in it, got '.*lora', whose base .* is not here; give"):
            transformers(path=str(folder))
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "gpt2"}))
    with pytest.raises(BadInput, match="hub: the model could not be read, got 'openai-community/gpt2'"):
        transformers(path=str(folder))


def test_an_adapter_with_a_grown_vocabulary(base, tokenizer_folder, tmp_path, monkeypatch):
    """The model is what peft makes of it, and reads with its own tokenizer; on the hub too."""
    folder, path = tmp_path / "lora", str(base("llama"))
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.add_tokens([f"<extra {i}>" for i in range(200)])
    torch.manual_seed(0)
    model = import_transformers().AutoModelForCausalLM.from_pretrained(path)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight.add_(0.2 * torch.randn_like(weight))
        model.save_pretrained(folder, save_embedding_layers=True)
    tokenizer.save_pretrained(folder)
    source = transformers(path=str(folder))
    assert (len(source.tokenizer()), source.skeleton.config.vocab_size) == (len(tokenizer), len(tokenizer))
    ids = torch.tensor([[5, len(tokenizer) - 1, 7, len(tokenizer) - 2]])
    with torch.no_grad():
        expected = model.eval()(input_ids=ids).logits
    torch.testing.assert_close(logits_and_stream(source, ids)[0], expected, rtol=1e-4, atol=1e-3)
    monkeypatch.setattr("repsim_cli.models.transformers.fetch_hub_files", lambda *_: folder)
    online = transformers(path=path, adapter="somebody/lora")
    assert (len(online.tokenizer()), online.skeleton.config.vocab_size) == (len(tokenizer), len(tokenizer))
