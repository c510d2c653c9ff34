"""Sparse dictionaries: planted features are recovered, a killed training ends with the same bits, files of SAELens."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from helpers.timers import set_timers

from repsim_cli.base.errors import BadInput
from repsim_cli.studies.dictionaries import train as dictionaries
from repsim_cli.studies.dictionaries.compare import (
    compute_cosines,
    cross_reconstruction,
    match_one_to_one,
    measure_dictionary_quality,
    score_linear_maps,
)
from repsim_cli.studies.dictionaries.formats import Dictionary, load, save
from repsim_cli.studies.dictionaries.train import (
    Autoencoder,
    DictionaryRecipe,
    compute_dictionary_loss,
    keep_largest,
    list_model_folders,
    train_dictionary,
)

ROWS, FEATURES, PLANTED, ACTIVE = 6000, 32, 48, 3
RECIPE = DictionaryRecipe(width=64, k=ACTIVE, steps=300, batch_size=256, learning_rate=0.01)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))


def sparse(rows=ROWS, planted=PLANTED, active=ACTIVE):
    made = torch.Generator().manual_seed(100)
    on = torch.rand(rows, planted, generator=made) < active / planted
    return on * (1 + torch.rand(rows, planted, generator=made)), made


def unit(count, width, made):
    return F.normalize(torch.randn(count, width, generator=made), dim=1)


def fitted(rows, recipe, seed=0, digest="x"):
    return [
        load(folder)
        for folder in list_model_folders(train_dictionary(rows, recipe, seed=seed, digest=digest), len(rows))
    ]


def recovered(dictionary, truth):
    """The share of true directions that a latent follows with a cosine of 0.9."""
    values = compute_cosines(dictionary.decoder, truth, False)
    return float((values[match_one_to_one(values)] > 0.9).mean())


def test_planted_features_are_recovered():
    code, made = sparse()
    truth = unit(PLANTED, FEATURES, made)
    x = 5 * code @ truth + 20 * torch.randn(FEATURES, generator=made)
    (found,) = fitted([x[:5400]], RECIPE, seed=1)
    of = measure_dictionary_quality(found, x[:5400], x[5400:])
    assert recovered(found, truth) >= 0.85
    assert of.explained > 0.9
    assert of.active == pytest.approx(ACTIVE, abs=0.3)
    assert 0 < (~of.alive).sum() <= 64 - 0.85 * PLANTED  # more latents than features
    assert found.decoder.norm(dim=1) == pytest.approx(np.ones(64), abs=1e-5)
    fresh = Autoencoder([FEATURES], 64, 1).directions()[0].detach()
    assert recovered(Dictionary(fresh.T, fresh[:, 0], fresh, fresh[0], fresh[:, 0]), truth) == 0


def test_one_code_of_two_models_and_not_of_a_third():
    code, made = sparse(3000, 16, 2)
    x, y = code @ unit(16, 12, made), 10 * code @ unit(16, 20, made) + 3
    other = torch.randn(3000, 8, generator=made)
    recipe = DictionaryRecipe(width=32, k=2, steps=300, batch_size=256, learning_rate=0.01)
    seen, held_out = ([part[own] for part in (x, y, other)] for own in (slice(2500), slice(2500, None)))
    values = cross_reconstruction(fitted(seen, recipe), seen, held_out)
    assert values[:2, :2].min() > 0.7
    assert max(values[:2, 2].max(), values[2, :2].max()) < 0.1
    linear = score_linear_maps(seen, held_out)
    assert linear[1, 0] == pytest.approx(1, abs=1e-9)  # 20 features hold all of the code
    assert abs(linear[0, 2]) < 0.05


def test_a_training_that_was_killed_ends_with_the_same_bits(monkeypatch):
    recipe = DictionaryRecipe(width=16, k=2, steps=12, batch_size=32, dead_after=2)
    x = sparse(400)[0] @ unit(PLANTED, 8, torch.Generator().manual_seed(3))
    set_timers(monkeypatch, due=True)
    steps, whole = [], compute_dictionary_loss

    def noting(autoencoder, recipe, rows, step, draw):
        if steps == list(range(7)):
            steps.append("killed")
            raise KeyboardInterrupt
        steps.append(step)
        return whole(autoencoder, recipe, rows, step, draw)

    (wanted,) = list_model_folders(train_dictionary([x], recipe, seed=0, digest="whole"), 1)
    monkeypatch.setattr(dictionaries, "compute_dictionary_loss", noting)
    with pytest.raises(KeyboardInterrupt):
        train_dictionary([x], recipe, seed=0, digest="killed").folder()
    (found,) = list_model_folders(train_dictionary([x], recipe, seed=0, digest="killed"), 1)
    assert steps == [*range(7), "killed", *range(7, 12)]
    assert (found / "sae_weights.safetensors").read_bytes() == (wanted / "sae_weights.safetensors").read_bytes()
    assert list_model_folders(train_dictionary([x], recipe, seed=0, digest="killed"), 1) == [found]  # from the cache
    assert len(steps) == 13
    assert fitted([x], recipe, seed=1)[0].decoder.shape == (16, 8)


def test_the_largest_latents_of_a_batch():
    values = torch.tensor([[3.0, 2.0, 0.5], [1.0, 0.1, 0.0]])
    assert keep_largest(values, 1).tolist() == [[3.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    assert torch.equal(keep_largest(values, 3), values)


def test_dead_latents_learn_by_the_auxiliary_loss_alone():
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    gradients = {}
    for auxiliary in (0.0, 0.1):
        recipe = DictionaryRecipe(width=12, k=1, batch_size=64, auxiliary=auxiliary, dead_after=1)
        autoencoder = Autoencoder([6], 12, 0)
        with torch.no_grad():
            autoencoder.encoders[0][:, 4:] *= 1e-3  # too small to be among the largest
        for step in range(3):
            autoencoder.zero_grad()
            compute_dictionary_loss(autoencoder, recipe, [x], step, np.random.default_rng(0)).backward()
        assert autoencoder.idle[4:].tolist() == [3.0] * 8
        gradients[auxiliary] = autoencoder.decoders[0].grad[4:].abs().amax(1)
    assert not gradients[0.0].any()
    assert gradients[0.1].min() > 0


# ---- files ----

ENCODER = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, -1.0]])


def written(folder, config, **tensors):
    folder.mkdir()
    weights = {"W_enc": ENCODER, "b_enc": torch.tensor([0.0, 0.5, 0.0]), "W_dec": ENCODER.T.contiguous(),
               "b_dec": torch.tensor([1.0, 0.0])}  # fmt: skip
    weights = {name: x for name, x in {**weights, **tensors}.items() if x is not None}
    safetensors.torch.save_file(weights, folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"d_in": 2, "d_sae": 3, **config}))
    return folder


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [1.0, 1.5, 0.0]),
        ({"architecture": "standard", "apply_b_dec_to_input": False}, [2.0, 1.5, 1.0]),
        ({"architecture": "jumprelu"}, [0.0, 1.5, 0.0]),
        ({"architecture": "topk", "k": 1}, [0.0, 1.5, 0.0]),
        ({"architecture": "topk", "k": 2}, [1.0, 1.5, 0.0]),
    ],
)
def test_dictionaries_of_saelens(tmp_path, config, expected):
    folder = written(tmp_path / "given", config, threshold=torch.tensor([1.0, 1.0, 1.0]))
    found = load(folder)
    code = found.encode(torch.tensor([[2.0, 1.0]]))
    assert code.tolist() == [expected]
    a, b, c = expected
    assert found.decode(code).tolist() == [[a + c + 1, b - c]]


X = torch.tensor([[2.0, 1.0], [0.3, -1.0]])
BIAS, OFFSET, CUT = torch.tensor([0.0, 0.5, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.2, 0.5])


def of_others(name):
    """The file, its config and tensors, and what the other program makes of X, written anew from its description."""
    linear = {"encoder.weight": ENCODER.T.contiguous(), "encoder.bias": BIAS}
    raw = {"W_enc": ENCODER, "b_enc": BIAS, "W_dec": ENCODER.T.contiguous(), "b_dec": OFFSET}
    centred, plain = (X - OFFSET) @ ENCODER + BIAS, X @ ENCODER + BIAS
    top = torch.zeros_like(centred).scatter_(1, centred.relu().topk(1, dim=1).indices, 1.0)
    return {
        "sparsify": ("sae.safetensors", {"k": 1}, {**linear, "W_dec": ENCODER.T.contiguous(), "b_dec": OFFSET}, centred.relu() * top, OFFSET),
        "gemma scope": ("params.npz", None, {**raw, "threshold": CUT}, plain.relu() * (plain > CUT), OFFSET),
        "jumprelu": ("ae.safetensors", None, {**raw, "threshold": CUT}, plain.relu() * (plain > CUT), OFFSET),
        "batch top k": ("ae.safetensors", None, {**linear, "decoder.weight": ENCODER.contiguous(), "b_dec": OFFSET, "k": torch.tensor(1), "threshold": torch.tensor(0.6)}, centred.relu() * (centred > 0.6), OFFSET),
        "top k": ("ae.safetensors", None, {**linear, "decoder.weight": ENCODER.contiguous(), "b_dec": OFFSET, "k": torch.tensor(1), "threshold": torch.tensor(-1.0)}, centred.relu() * top, OFFSET),
        "standard": ("mine.safetensors", None, {**linear, "decoder.weight": ENCODER.contiguous(), "bias": OFFSET}, centred.relu(), OFFSET),
        "april update": ("mine.safetensors", None, {**linear, "decoder.weight": ENCODER.contiguous(), "decoder.bias": OFFSET}, plain.relu(), OFFSET),
    }[name]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["sparsify", "gemma scope", "jumprelu", "batch top k", "top k", "standard", "april update"]
)
def test_dictionaries_of_other_programs(tmp_path, name):
    file, config, tensors, code, offset = of_others(name)
    if file.endswith(".npz"):
        np.savez(tmp_path / file, **{key: x.numpy() for key, x in tensors.items()})
    else:
        safetensors.torch.save_file(tensors, tmp_path / file)
    if config is not None:
        (tmp_path / "cfg.json").write_text(json.dumps(config))
    found = load(tmp_path / file if file.startswith("mine") else tmp_path)
    assert torch.allclose(found.encode(X), code)
    assert torch.allclose(found.decode(code), code @ ENCODER.T + offset)


def test_a_dictionary_is_read_as_it_was_written(tmp_path):
    made = Dictionary(ENCODER, torch.ones(3), ENCODER.T, torch.ones(2), torch.full((3,), 0.5))
    save(made, tmp_path / "own")
    assert all(torch.equal(x, getattr(made, name)) for name, x in vars(load(tmp_path / "own")).items() if name not in ("k", "centred"))  # fmt: skip


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"architecture": "gated"}, {}, "path: unknown architecture of a dictionary, got 'gated'; use standard, jumprelu, topk"),
        ({"normalize_activations": "layer_norm"}, {}, "path: cfg.json asks for more than is supported, got normalize_activations=layer_norm; fold it first"),
        ({"architecture": "topk", "k": 4}, {}, "path: k is from 1 to 3, got 4; write it again"),
        ({"architecture": "topk", "k": 1.5}, {}, "path: k is from 1 to 3, got none; write it again"),
        ({}, {"r_mag": torch.ones(3)}, "path: a gated dictionary cannot be read, got r_mag in sae_weights.safetensors; use another"),
        ({}, {"b_enc": torch.full((3,), torch.nan)}, "path: not finite, got b_enc in sae_weights.safetensors; write it again"),
        ({}, {"W_dec": None}, r"path: W_enc \(d, m\) and W_dec \(m, d\) are needed, got .*'W_enc': \(2, 3\).*; write it again"),
        ({}, {"W_dec": torch.ones(2, 2)}, r"path: W_enc \(d, m\) and W_dec \(m, d\) are needed, got"),
        ({}, {"b_dec": torch.ones(3)}, r"path: b_dec has 2 numbers, got \(3,\); write it again"),
    ],
)  # fmt: skip
def test_broken_dictionaries_are_refused(tmp_path, config, tensors, message):
    with pytest.raises(BadInput, match=message):
        load(written(tmp_path / "given", config, **tensors))


def test_folders_that_hold_no_dictionary_are_refused(tmp_path):
    with pytest.raises(
        BadInput, match="path: no dictionary in the folder, got '.*'; name one with sae_weights.safetensors, sae.safe"
    ):
        load(tmp_path)
    (tmp_path / "ae.pt").write_bytes(b"pickled")
    with pytest.raises(BadInput, match="params.npz, ae.safetensors; save the tensors of ae.pt as ae.safetensors"):
        load(tmp_path)
    folder = written(tmp_path / "given", {})
    (folder / "sae_weights.safetensors").write_bytes(b"broken")
    with pytest.raises(BadInput, match="path: sae_weights.safetensors cannot be read, got .*; write it again"):
        load(folder)
    (folder / "params.npz").write_bytes(b"broken")
    with pytest.raises(BadInput, match="path: params.npz cannot be read, got .*; write it again"):
        load(folder / "params.npz")
    written(tmp_path / "other", {}, threshold=torch.tensor(1.0))
    (tmp_path / "other" / "cfg.json").unlink()
    with pytest.raises(BadInput, match="path: no cfg.json in the folder, got '.*other'; copy it too"):
        load(tmp_path / "other")
    folder = written(tmp_path / "list", {})
    (folder / "cfg.json").write_text("[]")
    with pytest.raises(BadInput, match="path: cfg.json is not a mapping, got list; write it again"):
        load(folder)
    (folder / "cfg.json").write_text("{")
    with pytest.raises(BadInput, match="path: cfg.json cannot be read, got .*; write it again"):
        load(folder)
    with pytest.raises(BadInput, match="k: more active latents than there are, got 9 of 8; lower k"):
        DictionaryRecipe(width=8, k=9)
