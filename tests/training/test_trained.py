"""Models that are trained when they are first needed: once, kept with their metrics, gone on with after a kill."""

import json

import numpy as np
import pytest
import torch

from repsim_cli.base import registry
from repsim_cli.runs import cache
from repsim_cli.runs.results import quiet
from repsim_cli.training import state
from repsim_cli.training.pretrain import TextRecipe
from repsim_cli.training.trained import Trained

CONFIG = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "d_vocab": 512, "act_fn": "solu_ln"}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))


def test_a_model_is_trained_once_and_stays():
    calls = []

    def train(folder, scratch, progress):
        calls.append(scratch)
        (folder / "weights").write_text("w")
        return {"accuracy": 0.5}

    one = Trained({"seed": 0}, train)
    folder = one.folder()
    assert folder.parent == cache.find_cache_folder() / "models" / one.key
    assert (folder / "weights").read_text() == "w"
    assert json.loads((folder / "metrics.json").read_text()) == one.metrics() == {"accuracy": 0.5}
    assert Trained({"seed": 0}, train).folder() == folder
    assert len(calls) == 1
    assert not calls[0].exists()
    # the process that asked for it still needs it
    assert cache.trim(0)[0] == 0
    assert Trained({"seed": 1}, train).folder() != folder


def test_a_training_that_was_killed_goes_on():
    def train(folder, scratch, progress):
        state = scratch / "step"
        if not state.exists():
            state.write_text("7")
            (folder / "half").write_text("h")
            raise KeyboardInterrupt
        (folder / "weights").write_text(state.read_text())
        return {}

    one = Trained({"seed": 2}, train)
    with pytest.raises(KeyboardInterrupt):
        one.folder()
    assert [file.name for file in sorted(one.folder().iterdir())] == ["metrics.json", "weights"]


@pytest.mark.nightly
def test_small_language_models():
    """The same bits again; nothing is trained before weights are asked for; its loss is the one it was saved with."""
    kind = registry.models.get("pretrained").function
    settings = {"config": CONFIG, "tokenizer": "tiny_a", "recipe": TextRecipe(length=16, steps=3, warm_up=1)}
    found = kind(**settings)
    assert not (cache.find_cache_folder() / "models").exists()
    assert found.trained  # its similarity with other models is not what chance gives
    seen = []

    def progress(items, label, unit):
        seen.append((label, unit))
        return quiet(items)

    found.make(progress)
    assert seen == [("training", "steps")]
    identity, metrics = found.identity(), found.metrics()
    assert set(metrics) == {"training_loss", "held_out_loss"}
    assert identity["metrics"] == metrics
    model = found.with_head("AutoModelForCausalLM")
    ids = torch.arange(12).reshape(1, 12)
    backbone = found.load(False)
    assert torch.equal(model(ids).logits, backbone.bridge(ids, return_type="logits"))
    assert kind(**settings, seed=1).identity()["weights_hash"] != identity["weights_hash"]
    cache.Entry("models", identity["source"].split("/")[1]).folder.rename(cache.find_cache_folder() / "elsewhere")
    assert kind(**settings).identity() == identity


def test_the_state_of_a_training_that_was_changed_is_dropped(tmp_path, monkeypatch):
    said, file = [], tmp_path / "state.safetensors"
    monkeypatch.setattr(state.log, "warning", lambda text, *given: said.append(text % given))
    model = torch.nn.Linear(2, 2)
    optimiser, draw = torch.optim.SGD(model.parameters(), momentum=0.9), np.random.default_rng(0)
    state.save_state(file, model, optimiser, draw, {"losses": torch.ones(3)})
    assert state.is_resumable(file)
    assert state.restore_state(file, model, optimiser, draw)["losses"].tolist() == [1, 1, 1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert not state.is_resumable(file)
    assert (said, file.exists()) == (
        [f"{file}: the state of a training is damaged; it is dropped, and the training begins again"],
        False,
    )
    assert not state.is_resumable(None)
