"""How weights come into memory: the type they get, what is copied, and what they take."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from helpers.tiny import TINY

from repsim_cli.activations.readings import choose_loading
from repsim_cli.activations.stored import make_activations_key
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.loading import Loading, keep_in_one_place
from repsim_cli.models.rounding import Quantize, round_to_steps

transformers, random = (registry.models.get(kind).function for kind in ("transformers", "random"))
HALF = Loading(dtype=torch.bfloat16)


def anonymous():
    """Bytes of this process that are no pages of files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])


@pytest.fixture(scope="module")
def larger(shared):
    """A folder with 38 MB of bfloat16 weights."""

    def make(folder):
        settings = {**TINY["llama"], "hidden_size": 512, "vocab_size": 30000, "intermediate_size": 1024}
        with torch.device("meta"):
            model = import_transformers().AutoModel.from_config(inline_config(settings), dtype=torch.bfloat16)
        model.to_empty(device="cpu")
        for weights in model.state_dict().values():
            weights.fill_(0.5)
        model.save_pretrained(folder)

    return shared("larger", make)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_of_the_dtype_of_their_file_are_its_pages(larger):
    source = transformers(path=str(larger))
    source.load(False, HALF)  # what else is imported and kept
    before = anonymous()
    model = source.load(False, HALF)
    size = sum(x.numel() * x.element_size() for x in model.parameters())
    assert size > 37e6
    assert anonymous() - before < size / 4


@pytest.mark.parametrize("kind", ["llama", "bert", "gpt2"])
@pytest.mark.parametrize("made", ["saved", "random"])
def test_a_model_has_the_dtype_and_the_numbers_of_a_later_conversion(tiny_folder, kind, made):
    path = str(tiny_folder(kind))
    source = transformers(path=path) if made == "saved" else random(config=TINY[kind], tokenizer="characters")
    loaded, converted = source.load(False, HALF), source.load(False)
    assert {x.dtype for x in loaded.parameters()} == {torch.bfloat16}
    assert {x.dtype for x in converted.parameters()} == {torch.float32}
    for name, weights in converted.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].nan_to_num(), weights.bfloat16().nan_to_num()), name


@pytest.mark.parametrize("made", ["saved", "random"])
def test_rotary_frequencies_are_not_rounded(tiny_folder, made):
    source = transformers(path=str(tiny_folder("llama")))
    if made == "random":
        source = random(config=TINY["llama"], tokenizer="characters")
    exact, found = (dict(source.load(False, how).named_buffers()) for how in (Loading(), HALF))
    assert torch.equal(exact["rotary_emb.inv_freq"], found["rotary_emb.inv_freq"])


def test_rounding_is_done_in_float32_whatever_the_dtype(tiny_folder):
    path = str(tiny_folder("llama"))
    given = transformers(path=path).load(False, HALF).layers[0].mlp.up_proj.weight
    found = transformers(path=path, quantize=Quantize(bits=4)).load(False, HALF).layers[0].mlp.up_proj.weight
    assert torch.equal(found, round_to_steps(given.detach().float(), 4, inputs=1).bfloat16())


def test_the_key_of_activations_holds_dtype_rounding_and_adapter(tiny_folder, tmp_path):
    place = np.zeros((1, 4), np.int32)
    sequences = Sequences(inputs=place, mask=place == 0, text=place == 0, document=place, position=place, documents=1)
    path = str(tiny_folder("llama"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = peft.LoraConfig(target_modules=["q_proj"])
        peft.get_peft_model(import_transformers().AutoModel.from_pretrained(path), settings).save_pretrained(tmp_path)
    extract = Extract(hook_points=["resid_post"])
    entries = [{}, {"quantize": Quantize(bits=8)}, {"quantize": Quantize(bits=4)}, {"adapter": str(tmp_path)}]
    entries.append({"quantize": Quantize(bits=8), "adapter": str(tmp_path)})
    keys = [
        make_activations_key(transformers(path=path, **entry).identity(), sequences, extract, [], dtype)
        for entry in entries
        for dtype in ("float32", "bfloat16")
    ]
    assert len(set(keys)) == 2 * len(entries)


def test_a_run_loads_in_its_dtype_on_its_device():
    found = choose_loading(Hardware(dtype="bfloat16", device="meta"), "cpu")
    assert found == Loading(dtype=torch.bfloat16, device="cpu")
    assert keep_in_one_place(replace(found, spread={"cpu": 10})) == found
