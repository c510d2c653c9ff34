"""Native models of TransformerLens: what loads, what is refused, code that is never run."""

import os

import pytest
import safetensors.torch
import torch
from helpers.native import SOLU, legacy_folder, old_names, perturbed_solu, transformer_lens
from helpers.tiny import TINY, perturb

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.base.errors import BadInput
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers


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
