"""What the cache knows of configs: the same as is said anew, and nothing once anything that it rests on has changed."""

import json
import shutil
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from helpers.tiny_configs import NAMES, tiny_config

from repsim_cli.base import environment
from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import use_known
from repsim_cli.models import decoders, points
from repsim_cli.models.configs import describe_config, find_config, inline_config
from repsim_cli.models.described import Described, _decode, _encode, describe_once
from repsim_cli.models.transformers import transformers
from repsim_cli.runs.cache import find_cache_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path, tiny_folder):
    return shutil.copytree(tiny_folder("llama"), tmp_path / "model")


@pytest.fixture
def describe(folder):
    """describe(): what is said of the folder's config by checks of a run, and how often that was found out anew."""
    anew: list[int] = []

    def find_out() -> Described:
        anew.append(1)
        return describe_config(find_config(str(folder)), str(folder))

    def describe(*, dry=False, cached=True, **more):
        with use_known(cached, write=not dry):
            return describe_once((folder / "config.json").read_bytes, find_out, **more), len(anew)

    return describe


def records():
    return sorted((find_cache_folder() / "configs").glob("*/entry-*"))


@pytest.mark.parametrize("name", [name for group in NAMES if group != "images" for name in NAMES[group]])
def test_every_type_can_be_kept(name):
    says = describe_config(inline_config(tiny_config(name)), None)
    assert says.of_library
    for each in fields(says):
        kept = json.dumps(_encode(value := getattr(says, each.name)))
        again = _decode(json.loads(kept))
        assert json.dumps(_encode(again)) == kept
        assert type(again) is type(value)
        if each.name != "architecture":
            assert again == value


def test_parts_of_tables_compute_the_same_once_they_are_read():
    x, pick = torch.randn(2, 3, 24), points.take_hidden_states
    for part in (
        points.take_equal_part(1, 3),
        points.read_interleaved(2),
        decoders.take_last_features(5, "x").pick,
        partial(points.scale_pick, pick, 0.5),
    ):
        again = _decode(json.loads(json.dumps(_encode(part))))
        assert torch.equal(again(x, 4), part(x, 4))


@pytest.mark.parametrize("part", [lambda value, heads: value, torch.nn.functional.relu, {"a"}, partial(print, end="")])
def test_what_is_no_part_of_a_table_is_not_kept(part):
    with pytest.raises(ValueError, match="no "):
        _encode(part)


def test_a_record_names_functions_of_models_alone():
    for name in ("os:system", "repsim_cli.models.points:Point.__new__", "repsim_cli.cli:main"):
        with pytest.raises(ValueError, match="no function of a table"):
            _decode({"function": [name]})


def test_what_is_known_is_not_found_out_again(describe):
    first, once = describe()
    again, twice = describe()
    assert (once, twice, len(records())) == (1, 1, 1)
    assert {**vars(again), "architecture": None} == {**vars(first), "architecture": None}
    assert again.architecture == first.architecture


def test_another_config_is_described_anew(describe, folder):
    before, _ = describe()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    after, anew = describe()
    assert (before.layers, after.layers, anew) == (3, 2, 2)
    assert after.config_hash != before.config_hash


def test_other_code_or_versions_describe_anew(describe, monkeypatch):
    describe()
    assert describe(maker="repsim_cli.models.points")[1] == 2
    monkeypatch.setattr(environment, "read_version", lambda name: "another")
    assert describe()[1] == 3
    assert describe()[1] == 3


@pytest.mark.parametrize("harm", ["cut", "other numbers", "no file", "other fields"])
def test_a_broken_record_is_made_again(describe, harm, caplog):
    says, _ = describe()
    (record,) = records()
    if harm == "cut":
        record.write_text(record.read_text()[:50])
    elif harm == "other numbers":
        record.write_text(record.read_text().replace('"layers": 3', '"layers": 4'))
    elif harm == "no file":
        record.unlink()
    else:
        from repsim_cli.runs.cache import Entry

        Entry("configs", record.parent.name).finish(says={"layers": 3, "depth": 3})
    again, anew = describe()
    assert (again.layers, again.parameters, anew) == (says.layers, says.parameters, 2)
    assert ("is damaged" in caplog.text) == (harm in ("cut", "other numbers"))
    assert describe()[1] == 2


def test_nothing_is_kept_without_the_cache(describe):
    assert [describe(cached=False)[1], describe(cached=False)[1]] == [1, 2]
    assert not find_cache_folder().exists()


def test_what_is_refused_or_planned_leaves_nothing(describe):
    assert [describe(dry=True)[1], describe(dry=True)[1]] == [1, 2]
    with pytest.raises(BadInput), use_known(True, write=True):
        describe_once(lambda: b"{}", lambda: describe(dry=True)[0])
        raise BadInput("of another key")
    assert not find_cache_folder().exists()
    assert [describe()[1], describe(dry=True)[1]] == [4, 4]


def test_a_cache_that_cannot_be_written_is_done_without(describe):
    find_cache_folder().write_text("no folder")
    assert [describe()[1], describe()[1]] == [1, 2]


def test_weights_are_checked_though_the_config_is_known(folder):
    """A model whose config is known runs as before."""
    from safetensors.torch import load_file, save_file

    def open_model():
        with use_known(True, write=True):
            return transformers(path=str(folder))

    fresh, known = open_model(), open_model()
    assert len(records()) == 1
    tokens = torch.arange(6)[None]
    assert torch.equal(known.load(False)(tokens)[0], fresh.load(False)(tokens)[0])
    assert sum(p.numel() for p in known.skeleton.parameters()) == known.parameters
    weights = load_file(folder / "model.safetensors")
    kept = {name: x for name, x in weights.items() if "layers.1." not in name}
    assert 0 < len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match="^path: weights of block 1 are missing, got 2 of 3 blocks"):
        open_model()


@pytest.mark.parametrize("changed", [{"quantized": True}, {"modality": "images"}, {"of_library": False}])
def test_what_depends_on_more_is_described_each_time(describe, changed):
    """Quantized weights on the machine, models of images on further packages."""
    says, anew = replace(describe()[0], **changed), []
    for _ in range(2):
        with use_known(True, write=True):
            assert describe_once(lambda: b"{}", lambda: anew.append(1) or says) is says
    assert len(anew) == 2


def test_a_model_that_a_program_adds_to_transformers_is_not_of_the_library():
    from transformers import AutoConfig, AutoModel, LlamaConfig, LlamaModel

    class MineConfig(LlamaConfig):
        model_type = "mine_of_a_test"

    class Mine(LlamaModel):
        config_class = MineConfig

    AutoConfig.register("mine_of_a_test", MineConfig)
    AutoModel.register(MineConfig, Mine)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    assert not describe_config(MineConfig(**small), None).of_library


def test_a_file_that_changes_meanwhile_is_not_kept(describe):
    says, texts = describe(cached=False)[0], iter([b"before", b"after"])
    with use_known(True, write=True):
        assert describe_once(lambda: next(texts), lambda: says) is says
    assert not records()
