"""Pre-training: the same bits after a kill, metrics that a plain computation gives, series trained when needed."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import transformers
from helpers.recorded import recorded
from helpers.timers import set_timers

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.runs import reader
from repsim_cli.runs.content import REACHED, Axis, Curve
from repsim_cli.studies.pretrain.finding import say_loss
from repsim_cli.training import finetune, pretrain
from repsim_cli.training import series as trained_series

CONFIG = "{model_type: gpt_neox, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 32, tie_word_embeddings: true, bos_token_id: 0, eos_token_id: 0}"  # fmt: skip
SHORT = ("options.recipe.length=32", "options.recipe.batch_size=4")
RUN = (
    "-q", "experiment=pretrain_tiny", f"options.recipe.config={CONFIG}", *SHORT, "options.recipe.steps=6",
    "options.recipe.save=log",
)  # fmt: skip
SERIES = f"+model.mine={{kind: pretrained_series, recipe: {{config: {CONFIG}, length: 32, steps: 6, batch_size: 4}}}}"
STUDY = (
    "-q", "experiment=tiny/pythia_convergence", "model=[]", SERIES, "extract.length=32", "extract.sequences=6",
    "extract.rows=150",
)  # fmt: skip


def stops_at(monkeypatch, step):
    """The loss of this step is asked for by a user who presses Ctrl-C."""
    asked, loss = [], pretrain.compute_next_token_loss

    def stopping(model, ids):
        asked.append(1)
        if len(asked) > step:
            raise KeyboardInterrupt
        return loss(model, ids)

    set_timers(monkeypatch, due=True)
    monkeypatch.setattr(pretrain, "compute_next_token_loss", stopping)
    return asked


@pytest.fixture(autouse=True)
def less_text(monkeypatch):
    """A tenth of the text, for speed."""
    from repsim_cli.data import packing

    pack = packing.pack
    monkeypatch.setattr(pretrain, "pack", lambda *a, **k: pack(*a, **{**k, "sequences": 400, "pool": 400}))


def weights(folder):
    return {place.parent.name: place.read_bytes() for place in folder.rglob("model.safetensors")}


@pytest.mark.slow
@pytest.mark.drawn
def test_a_run_that_was_killed_ends_with_the_same_bits(repsim, newest, monkeypatch):
    assert repsim("run", *RUN)[0] == 0
    whole, wanted = recorded(newest()), weights(newest() / "models")
    assert set(wanted) == {"step0", "step1", "step2", "step4", "step6"}
    assert len(set(wanted.values())) == 5
    with monkeypatch.context() as patch:
        asked = stops_at(patch, 3)
        assert repsim("run", *RUN, "name=again")[0] == 130
    assert (newest() / reader.STATE).is_file()
    loss = pretrain.compute_next_token_loss
    monkeypatch.setattr(pretrain, "compute_next_token_loss", lambda *a: asked.append(1) or loss(*a))
    asked.clear()
    assert repsim("run", *RUN, "name=again", "resume=latest")[0] == 0
    assert len(asked) == 3  # the other half
    found = recorded(newest())
    assert weights(newest() / "models") == wanted
    assert (found["curves"], found["tables"]) == (whole["curves"], whole["tables"])
    assert not (newest() / reader.STATE).exists()
    assert (newest() / "figures" / "loss.png").is_file()
    losses = found["curves"]["held-out loss"]["lines"]["loss"]
    ((who, said),) = found["tables"][REACHED]["rows"]
    assert who == "held-out loss"
    assert said.startswith(f"{losses[0]:.3g} at step 0 to {losses[-1]:.3g} nats per token at step 6")


def test_a_loss_that_rises_again_is_said_with_where_it_was_lowest():
    curve = Curve(
        x=Axis(name="step"), y=Axis(name="loss", unit="nats"), at=[0, 10, 20, 30], lines={"loss": [5.0, 2.0, 2.5, None]}
    )
    assert say_loss(curve) == "5 at step 0 to 2.5 nats at step 20; lowest at step 10, 2"


@pytest.mark.slow
def test_metrics_are_those_of_a_plain_loss(repsim, newest):
    import transformers as library

    assert repsim("run", *RUN)[0] == 0
    place = newest() / "models" / "step6"
    said = json.loads((place / "metrics.json").read_text())
    text = registry.data.get("embedded_text").function(split="train")
    tokenizer = library.AutoTokenizer.from_pretrained(place)
    made = pretrain.pack(text, tokenizer, length=32, sequences=0, pool=0, separator="eos", seed=0)
    held_out = torch.from_numpy(made.ids[made.mask.all(1)][::20]).long()
    model = library.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(input_ids=held_out, labels=held_out)
    hits = (found.logits[:, :-1].argmax(-1) == held_out[:, 1:]).float().mean()
    assert said["loss"] == pytest.approx(float(found.loss), abs=2e-3)  # float16 weights
    assert said["accuracy"] == pytest.approx(float(hits), abs=5e-3)
    assert recorded(newest())["tables"]["held-out text"]["rows"][-1] == [6, 768, *said.values()]


@pytest.mark.slow
def test_a_series_is_trained_once_and_goes_on_after_a_kill(repsim, newest, monkeypatch):
    with monkeypatch.context() as patch:
        stops_at(patch, 4)
        assert repsim("run", *STUDY)[0] == 130
    asked, loss = [], pretrain.compute_next_token_loss
    monkeypatch.setattr(pretrain, "compute_next_token_loss", lambda *a: asked.append(1) or loss(*a))
    assert repsim("run", *STUDY, "resume=latest")[0] == 0
    assert len(asked) == 2
    first = recorded(newest())["curves"]
    assert first["cka to last, mlp_out, mine"]["at"] == [0, 1, 2, 4, 6]
    sources = [model["source"] for model in reader.read_manifest(newest())["models"].values()]
    assert all(source.startswith("trained here, models/") for source in sources)
    assert repsim("run", *STUDY)[0] == 0
    assert len(asked) == 2
    assert recorded(newest())["curves"] == first


@pytest.mark.slow
def test_the_view_of_a_training(repsim, newest):
    words = [word for word in STUDY if not word.startswith("experiment")]
    words += ["experiment=tiny/training_view", "measure=[cka,procrustes]", "extract.rows=100"]
    code, _, err = repsim("run", *words)
    assert code == 0, err
    found = recorded(newest())
    rows = found["tables"]["distance and metrics"]["rows"]
    assert found["tables"]["distance and metrics"]["columns"][3:] == ["mean over pairs of layers", "loss", "accuracy"]
    assert [row[:3] for row in rows[:5]] == [["mine", "cka", step] for step in (0, 1, 2, 4, 6)]
    assert rows[0][4] > rows[4][4]  # it learns
    for record in found["measures"]:
        for step, matrix, row in zip((0, 1, 2, 4, 6), record["matrices"], [r for r in rows if r[1] == record["name"]], strict=True):  # fmt: skip
            values = reader.read_array(newest(), matrix["values"])
            assert matrix["rows"] == {"model": f"step {step}", "layers": ["resid_post@0", "resid_post@1"]}
            assert row[3] == pytest.approx(values[0, 1], abs=1e-12)
    # the last checkpoint, as the study of single models compares its layers
    folder = next(iter((newest().parents[2] / "cache" / "models").glob("*/model-*/step6")))
    again = [word for word in words if not word.startswith(("+model", "experiment"))]
    again += [f"+model.mine={{kind: transformers, path: {folder}}}", "extract.estimate=full", "significance=none"]
    again += ["extract.skip=0", "extract.normalise=none"]
    assert repsim("run", *again)[0] == 0
    alone = recorded(newest())["measures"][0]["matrices"][0]
    assert reader.read_array(newest(), alone["values"])[0, 1] == pytest.approx(rows[4][3], abs=1e-6)


def test_the_steps_that_are_kept():
    def recipe(save, steps=20):
        return pretrain.PretrainRecipe(config={"model_type": "gpt2"}, save=save, steps=steps)

    assert recipe("log").kept == [0, 1, 2, 4, 8, 16, 20]
    assert recipe("log", 16).kept == [0, 1, 2, 4, 8, 16]
    assert recipe([20, 3]).kept == [3, 20]
    with pytest.raises(BadInput, match="save: no such step, got 21; steps go from 0 to 20"):
        recipe([21])
    assert recipe([20, 3, 3]).kept == [3, 20]
    with pytest.raises(BadInput, match="save: no step is kept"):
        recipe([])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"vocabulary": 256}, "vocabulary: a token for each of the 256 bytes .*, got 256; raise it to 257 or more"),
        ({"length": 40}, "length: longer than the context of the model, got 40 for max_position_embeddings=32"),
    ],
)
def test_recipes_that_no_model_can_be_trained_by(given, match):
    with pytest.raises(BadInput, match=match):
        pretrain.PretrainRecipe(config={"model_type": "gpt2", "n_positions": 32}, **{"length": 32, **given})


@pytest.mark.parametrize("causal", [True, False])
def test_a_model_that_sees_the_next_tokens_is_refused(causal):
    sizes = {
        "vocab_size": 300,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    config = transformers.BertConfig(**sizes, is_decoder=causal)
    model, ids = transformers.BertLMHeadModel(config).train(), torch.arange(10)[None]
    with (
        nullcontext()
        if causal
        else pytest.raises(BadInput, match="tokens do not see the next ones is needed, got BertLMHeadModel")
    ):
        pretrain.check_causal(model, ids)
    assert model.training


def test_too_little_text():
    text = registry.data.get("embedded_text").function(split="train")
    few = type(text)(documents=lambda: (d for d in ["one word"]), source="few")
    recipe = pretrain.PretrainRecipe(config={"model_type": "gpt2"}, vocabulary=300, length=8, steps=1)
    with pytest.raises(BadInput, match="data: too little text to train on, got . sequences of 8; give more"):
        pretrain.make_corpus(few, recipe, seed=0)


def test_a_rate_reaches_its_height_within_the_training():
    assert [pretrain.TextRecipe(steps=steps).rising for steps in (1, 9, 20, 300, 1000)] == [1, 1, 2, 30, 50]
    assert pretrain.TextRecipe(steps=20, warm_up=19).rising == 19
    for short in (
        lambda: pretrain.TextRecipe(steps=20, warm_up=20),
        lambda: finetune.FineTuneRecipe(steps=20, warm_up=20),
        lambda: finetune.EncoderRecipe(epochs=1, batch_size=5, warm_up=40).total(100),
    ):
        with pytest.raises(BadInput, match="warm_up: as long as the training, which has 20 steps; lower it, or train"):
            short()


def test_a_loss_that_is_not_finite(monkeypatch):
    model = torch.nn.Linear(2, 2)
    monkeypatch.setattr(pretrain, "compute_next_token_loss", lambda model, ids: model.weight.sum() * float("inf"))
    with pytest.raises(RunFailed, match="training: the loss is not finite, got (nan|inf|-inf) at step 0; lower learn"):
        recipe = pretrain.TextRecipe(steps=2, batch_size=1)
        list(pretrain.train_causal_model(model, np.zeros((4, 3), int), recipe, steps=range(2), seed=0))


def test_metrics_that_cannot_be_read(tmp_path):
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(BadInput, match=r"path: metrics.json cannot be used, got '.*metrics.json' \(.*\); fix it"):
        trained_series.read_metrics(tmp_path)


def test_one_layer_has_no_distances(repsim):
    code, _, err = repsim("run", "experiment=tiny/training_view", "extract.layers=[0]")
    assert (code, err) == (
        2,
        "error: extract: two layers are needed, got one of width_64_series; read more hook points\n",
    )
    assert repsim("run", "experiment=tiny/training_view", "model=[]")[2].startswith(
        "error: model: no model is selected; e.g. model=[tiny_a_series]"
    )


@pytest.mark.nightly
def test_the_shipped_models_are_made_again(repsim, newest, monkeypatch):
    from repsim_cli.models.checkpoints import find_shipped

    with monkeypatch.context() as patch:
        stops_at(patch, 101)
        set_timers(patch, due=False)
        assert repsim("run", "-q", "experiment=pretrain_tiny", "hardware.threads=1")[0] == 130
    made, shipped = newest() / "models" / "step100", find_shipped("tiny_a_step100")
    for name in ("config.json", "tokenizer.json"):
        assert (made / name).read_bytes() == (shipped / name).read_bytes(), name
    # on another processor than theirs rounding leads to other weights, of a loss between 6.2 nats at first and 3 at last
    tokenizer = transformers.AutoTokenizer.from_pretrained(shipped)
    text = "\n\n".join(registry.data.get("embedded_text").function(split="validation").documents())
    ids = tokenizer(text, return_tensors="pt").input_ids[0, :2048].view(16, 128)
    models = [transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (made, shipped)]
    losses = [model(ids, labels=ids).loss.item() for model in models]
    assert losses[0] == pytest.approx(losses[1], abs=0.25)
