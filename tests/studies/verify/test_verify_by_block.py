"""By block, the answer is that of whole models, and one part of each is in memory at a time."""

import copy
import json
import threading
from pathlib import Path

import pytest
import torch
from planted import FAULTS, planted
from plants import built
from safetensors.torch import load_file, save_file

import repsim_cli
from repsim_cli.base.errors import BadInput
from repsim_cli.studies.verify.lockstep import Pass
from repsim_cli.studies.verify.passes import WeightComparison


def rounded(model):
    """Weights in 8 bits, a step for each row of the maps inside blocks."""
    model = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers." in name:
            step = module.weight.data.abs().amax(1, keepdim=True) / 127
            module.weight.data = (module.weight.data / step).round() * step
    return model


def other(model, fault):
    if fault == "none":
        return model
    if fault == "cast":
        return copy.deepcopy(model).bfloat16()
    return rounded(model) if fault == "rounded" else planted(model, fault, FAULTS[fault][1][-1])[0]


@pytest.fixture
def saved(tmp_path):
    """saved(name, fault): the folders of a model and of a copy with this fault, in many files and in one."""

    def make(name, fault="none"):
        model = built(name)
        model.save_pretrained(tmp_path / "a", max_shard_size="20KB")
        other(model, fault).save_pretrained(tmp_path / "b")
        return str(tmp_path / "a"), str(tmp_path / "b")

    return make


def record(answer):
    said = answer.record()
    return said, said.pop("settings")


@pytest.mark.parametrize(
    ("name", "fault", "verdict"),
    [
        ("llama", "none", "IDENTICAL"),
        pytest.param("llama", "rounded", "AS QUANTISED", marks=pytest.mark.slow),
        pytest.param("llama", "cast", "AS QUANTISED", marks=pytest.mark.slow),
        ("gpt2", "bias_lost", "DIFFERENT"),
        pytest.param("bert", "one_weight", "DIFFERENT", marks=pytest.mark.nightly),
        pytest.param("gemma2", "gain_changed", "DIFFERENT", marks=pytest.mark.nightly),
        pytest.param("mixtral", "router", "DIFFERENT", marks=pytest.mark.nightly),
        pytest.param("llama", "row_of_zeros", "DIFFERENT", marks=pytest.mark.slow),
    ],
)
def test_by_block_says_what_whole_models_say(saved, name, fault, verdict):
    pair = saved(name, fault)
    whole, none = record(repsim_cli.verify(*pair, by_block="never"))
    apart, settings = record(repsim_cli.verify(*pair, by_block="always"))
    assert apart == whole
    assert apart["verdict"] == verdict
    precision = {"precision": "bfloat16"} if fault == "cast" else {}
    assert (none, settings) == (precision, {"by_block": ["a", "b"], **precision})


def test_one_part_of_each_model_is_in_memory(saved, monkeypatch):
    most, add = [], WeightComparison.add

    def counted(self, key):
        held = [
            sum(x.numel() for x in side.model.parameters() if x.device.type != "meta")
            for side in (self.reference, self.candidate)
        ]
        most.extend(held)
        add(self, key)

    monkeypatch.setattr(WeightComparison, "add", counted)
    pair = saved("llama")
    repsim_cli.verify(*pair, memory_gb=1e-4)
    model = built("llama")
    parts = [model.model.embed_tokens, model.lm_head, *model.model.layers]
    largest = max(sum(x.numel() for x in part.parameters()) for part in parts)
    assert max(most) == largest < sum(x.numel() for x in model.parameters()) / 2


def test_a_model_in_memory_stays_there(saved):
    folder, _ = saved("llama")
    answer = repsim_cli.verify(built("llama"), folder, memory_gb=1e-4)
    assert answer.settings == {"by_block": ["a"]}
    assert answer.verdict == "IDENTICAL"


def test_without_a_head_on_one_side(saved, tmp_path):
    folder, _ = saved("llama")
    built("llama").model.save_pretrained(tmp_path / "bare")
    whole, _ = record(repsim_cli.verify(folder, str(tmp_path / "bare"), by_block="never"))
    apart, _ = record(repsim_cli.verify(folder, str(tmp_path / "bare"), by_block="always"))
    assert apart == whole
    assert apart["notes"][0] == "heads are not compared: the candidate has none"


def test_a_head_that_the_config_names_and_the_files_lack_is_refused(saved, tmp_path):
    folder, broken = saved("llama")
    settings = json.loads((Path(broken) / "config.json").read_text())
    assert settings["architectures"] == ["LlamaForCausalLM"]
    for file in Path(broken).glob("*.safetensors"):
        kept = {name: x for name, x in load_file(file).items() if name != "lm_head.weight"}
        save_file(kept, file, metadata={"format": "pt"})
    (Path(broken) / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
    for how in ("never", "always"):
        with pytest.raises(BadInput, match="no head for AutoModelForCausalLM, got .* without lm_head.weight"):
            repsim_cli.verify(folder, broken, by_block=how)


@pytest.mark.slow
def test_from_the_command(repsim):
    code, out, _ = repsim("verify", "tiny_a", "tiny_a", "--quick", "--by-block", "always")
    assert code == 0
    assert out.startswith("IDENTICAL   every bit is the same, in 11 parts on 3 kinds of input\n")


def test_what_is_refused(repsim, saved, tmp_path):
    albert = tmp_path / "albert"
    built("albert").save_pretrained(albert)
    for words, text in (
        (["tiny_a", albert, "--by-block", "always"], "--by-block: albert cannot be run by block"),
        (
            ["tiny_a", "tiny_a", "--memory-gb", "0.0001"],
            "--memory-gb: too little, got 0.0001 for 0.0002 GB of the largest part of tiny_a and 0.0002 GB of the largest",
        ),
        (
            [albert, albert, "--memory-gb", "1e-5"],
            "--memory-gb: too little, got 1e-05 for",
        ),
        (["tiny_a", "tiny_a", "--memory-gb", "-1"], "--memory-gb: not above 0, got -1.0"),
    ):
        code, _, err = repsim("verify", *words)
        assert (code, err.count("\n")) == (2, 1)
        assert text in err
    model = built("llama")
    for settings, text in (
        (
            {"by_block": "always"},
            "by_block: only models on the disk are read block by block, got always with models in memory",
        ),
        ({"by_block": "often"}, "by_block: not one of auto, always, never, got 'often'"),
    ):
        with pytest.raises(BadInput, match=text):
            repsim_cli.verify(model, model, **settings)


def test_a_pass_stops_raises_and_is_closed():
    before = threading.active_count()

    def runs(gate):
        gate("block 0")
        gate("block 0 (call 2)")
        raise ValueError("broken")

    first, second = Pass(runs), Pass(runs)
    assert [(first.step(), first.at, first.part)[1:] for _ in range(2)] == [
        ("block 0", "block 0"),
        ("block 0 (call 2)", "block 0"),
    ]
    with pytest.raises(ValueError, match="broken"):
        first.step()
    assert first.at is None
    second.step()
    for each in (first, second):
        each.close()
    assert threading.active_count() == before
