"""A model run by block: the bits of an ordinary pass, whatever the architecture; interrupted, refused, and from the command."""

import json
import os
import signal
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers.tiny import perturb
from helpers.tiny_configs import tiny_config

from repsim_cli.activations import by_block
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import cut_sequence_windows, stream_row_blocks
from repsim_cli.activations.stored import Running, open_entry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.engine import bounds
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.loading import Loading
from repsim_cli.models.parts import list_block_names
from repsim_cli.models.sizes import (
    count_by_block_bytes,
    count_resident_bytes,
    count_weight_bytes,
    goes_by_block,
    list_models_alone,
)
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.results import quiet

LENGTHS = [12, 12, 9, 7, 12]
KINDS = ["embed", "resid_pre", "resid_post", "resid_mid", "q", "attn_out", "mlp_out", "final_norm"]
TWO = Hardware(batch_size=2)


def sequences(lengths):
    """Random tokens in sequences of these lengths, padded on the right."""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.where(mask, np.random.default_rng(0).integers(3, 90, mask.shape), 0)
    position, document = (
        np.where(mask, x, -1) for x in np.broadcast_arrays(*np.ogrid[: len(mask), : mask.shape[1]])[::-1]
    )
    return Sequences(inputs=ids, mask=mask, text=mask, document=document, position=position, documents=len(mask))


@pytest.fixture(scope="session")
def typed(shared):
    """typed(name, settings...): a model of this type or variant of tiny_configs.yaml, from its folder."""

    def make(name, settings, folder):
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            config = inline_config(tiny_config(name))
            for key, value in settings.items():
                setattr(config, key, value)
            model = import_transformers().AutoModel.from_config(config)
            perturb(model)
            model.save_pretrained(folder)

    def source(name, **settings):
        folder = shared("-".join(["typed", name, *settings]), partial(make, name, settings))
        return models.get("transformers").function(path=str(folder))

    return source


@pytest.fixture
def entry(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    return Entry("activations", "key")


def points(source, kinds=KINDS):
    """The names of these kinds that the model has."""
    table = source.architecture
    stacks = {f"{name}.": stack for name, stack in table.stacks.items()} or {"": table}
    return [
        f"{prefix}{kind}"
        for prefix, stack in stacks.items()
        for kind in kinds
        if any(stack.find(kind, layer) for layer in range(stack.depth))
    ]


def ordinary(source, given, extract, hardware=TWO):
    (reading,) = found = plan_readings({"m": source}, extract)
    module = source.load(reading.eager, Loading(dtype=getattr(torch, hardware.dtype)))
    stream = stream_row_blocks(found, Running({"m": module}, {"m": given}), extract, hardware, quiet)
    return [torch.cat(x) for x in zip(*(rows for _, rows in stream), strict=True)]


def run(source, given, extract, entry, hardware=TWO, part=None):
    """The rows of every layer from a pass by block."""
    (reading,) = plan_readings({"m": source}, extract)
    part = part or by_block.make_part_loader(source, reading.eager, Loading(dtype=getattr(torch, hardware.dtype)))
    windows = cut_sequence_windows({"m": given}, extract, hardware)
    by_block.run_by_block(by_block.ByBlock(reading, part, given, windows, extract, hardware, entry), quiet)
    stored = open_entry(entry, {})
    return [stored.read(layer.name, slice(0, stored.rows)) for layer in reading.layers]


def assert_same(got, expected):
    assert len(got) == len(expected) > 0
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


TYPES = [
    "gpt2",
    "llama",
    "gpt_neox",
    "bert",
    "gemma3_text",
    "mixtral",
    "deberta-v2",
    "mamba",
    "xlnet",
    "bloom",
    "t5",
    "bart",
]


@pytest.mark.parametrize("name", TYPES)
def test_the_same_bits_as_an_ordinary_pass(name, typed, entry):
    source, given = typed(name), sequences(LENGTHS)
    extract = Extract(hook_points=points(source), length=12)
    assert_same(run(source, given, extract, entry), ordinary(source, given, extract))
    assert all(name.startswith("rows-") for name in entry.files)  # the stream is gone


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_same_bits_in_each_dtype(dtype, typed, entry):
    source, given, hardware = typed("llama"), sequences(LENGTHS), Hardware(batch_size=2, dtype=dtype)
    extract = Extract(hook_points=["resid_post", "final_norm"], length=12)
    assert_same(run(source, given, extract, entry, hardware), ordinary(source, given, extract, hardware))


def test_a_stream_in_half_precision_is_close(typed, entry):
    source, given = typed("llama"), sequences(LENGTHS)
    extract = Extract(hook_points=["resid_post"], length=12)
    expected = ordinary(source, given, extract)
    got = run(source, given, extract, entry, Hardware(batch_size=2, stream="bfloat16"))
    assert torch.equal(got[0], expected[0])  # block 0 reads no stream from the disk
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(got[1:], expected[1:], strict=True)]
    assert all(1e-5 < error < 2e-2 for error in errors)


def test_one_block_at_a_time_is_loaded_and_none_behind_the_last_that_is_read(typed, entry):
    source, given, loaded = typed("llama"), sequences(LENGTHS), []
    extract = Extract(hook_points=["resid_post"], layers=[1], length=12)
    ready = by_block.make_part_loader(source, False, Loading())

    def part(kept):
        assert all(weight.is_meta for block in loaded[1:] for weight in block.parameters())
        loaded.append(ready(kept))
        return loaded[-1]

    (rows,) = run(source, given, extract, entry, part=part)
    assert torch.equal(rows, ordinary(source, given, extract)[0])
    names = [{name.split(".weight")[0] for name, _ in model.named_parameters()} for model in loaded]
    assert len(loaded) == 3  # what is outside of blocks, block 0, block 1
    assert names[0] == {"embed_tokens", "norm"}


def test_a_model_that_sees_padding_runs_batches_of_equal_length(typed, entry, caplog):
    source, given = typed("mobilebert"), sequences([12, 12, 9, 11, 12])
    extract = Extract(hook_points=["resid_post"], length=12)
    expected = ordinary(source, given, extract)
    caplog.clear()
    with caplog.at_level("INFO", logger="repsim"):
        assert_same(run(source, given, extract, entry), expected)
    assert "padding changes its activations" in caplog.text


def killed(block, source, given, extract, entry):
    """A process that is killed while it runs this block: in its second batch."""
    ready, passed = by_block.make_part_loader(source, False, Loading()), []

    def die(*_):
        passed.append(1)
        if len(passed) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def part(kept):
        model = ready(kept)
        if kept(block):
            model.get_submodule(block).register_forward_hook(die)
        return model

    process = os.fork()
    if not process:
        try:
            run(source, given, extract, entry, part=part)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.slow
def test_killed_and_resumed(typed, entry):
    source, given, read = typed("t5"), sequences([12] * 5), []
    extract = Extract(hook_points=points(source, ["resid_post", "final_norm"]), length=12)
    for block in ("encoder.block.1", "decoder.block.0", "decoder.block.2"):
        assert killed(block, source, given, extract, entry) == -signal.SIGKILL
    ready = by_block.make_part_loader(source, False, Loading())

    def part(kept):
        read.append([block for block in list_block_names(source) if kept(block)])
        return ready(kept)

    entry.load()
    assert_same(run(source, given, extract, entry, part=part), ordinary(source, given, extract))
    assert read == [[], ["decoder.block.2"]]


def test_blocks_of_other_batches_are_run_again(typed, entry):
    source, given = typed("llama"), sequences([12] * 5)
    extract = Extract(hook_points=["resid_post"], length=12)
    assert killed("layers.1", source, given, extract, entry) == -signal.SIGKILL
    entry.load()
    before = set(entry.files)
    assert len(before) == 2  # the rows of block 0, and its stream
    other = Hardware(batch_size=3)
    assert_same(run(source, given, extract, entry, other), ordinary(source, given, extract, other))
    assert not before & set(entry.files)


def test_modules_outside_of_blocks(typed, entry):
    source, given = typed("deberta-v2", conv_kernel_size=3), sequences(LENGTHS)
    extract = Extract(
        hook_points=["resid_post", "module:embeddings", "module:encoder", "module:encoder.layer.1.output"], length=12
    )
    assert_same(run(source, given, extract, entry), ordinary(source, given, extract))
    between = Extract(hook_points=["module:encoder.conv"], length=12)
    with pytest.raises(RunFailed, match=r"model.m: module:encoder.conv is between blocks, got a pass by block; set"):
        run(source, given, between, other := Entry("activations", "other"))
    assert not [file for file in other.folder.iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize(
    ("output", "kinds"), [({"x": 1}, "dict"), ((torch.ones(1), 2), "Tensor, int")], ids=["a mapping", "a number"]
)
def test_a_block_that_returns_something_else(output, kinds, tmp_path):
    with pytest.raises(
        RunFailed, match=rf"a block returns more than tensors, got {kinds}; set hardware.by_block=never"
    ):
        by_block.save_output(output, tmp_path / "file", None)


@pytest.mark.parametrize("fitting", [0, 1])
def test_out_of_memory(fitting, typed, entry, caplog):
    """Batches are halved until they fit; the rows are those of such batches."""
    source, given, extract = typed("llama"), sequences([12] * 5), Extract(hook_points=["resid_post"], length=12)

    def part(kept):
        model = by_block.make_part_loader(source, False, Loading())(kept)
        if kept("layers.1"):
            model.get_submodule("layers.1").register_forward_hook(full)
        return model

    def full(module, inputs, output):
        if len(inputs[0]) > fitting:
            raise torch.OutOfMemoryError

    if not fitting:
        with pytest.raises(RunFailed, match="model.m: one sequence does not fit into memory by block, got 12 tokens; "):
            run(source, given, extract, entry, part=part)
        return
    found = run(source, given, extract, entry, part=part)
    assert "model.m: out of memory with 2 sequences; starting with 1" in caplog.text
    assert_same(found, ordinary(source, given, extract, replace(TWO, batch_size=1)))


@pytest.fixture
def compared(repsim, newest, tiny_folder):
    """compared(words...): the values of a similarity run of two tiny models with these words, and its manifest."""
    texts = ["data=embedded", "measure=[cka_unbiased]", "extract.sequences=8", "extract.length=32"]
    batches = ["extract.batch_rows=64", "hardware.batch_size=2", "model=[]", "extract.normalise=none"]

    def run(*words):
        given = [f"+model.{kind}={{kind: transformers, path: {tiny_folder(kind)}}}" for kind in ("llama", "gpt2")]
        code, _, err = repsim("run", *texts, *batches, *given, *words)
        assert not code, err
        folder = newest()
        values = {file.name: file.read_bytes() for file in (folder / "arrays").iterdir()}
        return values, json.loads((folder / "manifest.json").read_text())

    return run


@pytest.mark.slow
def test_a_run_by_block_gives_the_bits_of_an_ordinary_run(compared):
    expected, whole = compared("hardware.by_block=never", "cache=false")
    by_blocks, manifest = compared("hardware.by_block=always", "cache=false")
    assert by_blocks == expected
    assert manifest["models_run"] == ["llama", "gpt2"]
    assert [manifest["data"][key] for key in ("tokens_read", "places")] == [
        whole["data"][key] for key in ("tokens_read", "places")
    ]
    assert "activations by block" in manifest["timings"]
    cached, manifest = compared("hardware.by_block=always", "extract.hook_points=[resid_post,final_norm]")
    assert manifest["models_run"] == ["llama", "gpt2"]
    _, manifest = compared("extract.hook_points=[resid_post,final_norm]", "+measure=[mutual_knn]")
    assert manifest["models_run"] == []  # the cache holds what an ordinary pass would have given
    half, manifest = compared(
        "hardware.by_block=always", "hardware.stream=float16", "extract.hook_points=[resid_post,final_norm]"
    )
    assert manifest["models_run"] == ["llama", "gpt2"]
    assert manifest["models"]["llama"]["stream"] == "float16"
    assert half != cached


def test_auto_is_by_block_where_the_weights_take_more_than_half_of_the_memory(typed):
    source = typed("llama")
    half = count_weight_bytes(source, "float32") / 1e9
    assert goes_by_block(source, Hardware(memory_gb=1.9 * half))
    assert not goes_by_block(source, Hardware(memory_gb=2.1 * half))
    assert not goes_by_block(source, Hardware(memory_gb=1.9 * half, by_block="never"))
    assert not goes_by_block(typed("albert"), Hardware(memory_gb=1e-9))
    always = Hardware(by_block="always")
    assert (
        count_by_block_bytes(source, "float32")
        < count_resident_bytes([source], Hardware())
        == count_weight_bytes(source, "float32")
    )
    assert count_resident_bytes([source, source], always) == count_by_block_bytes(source, "float32")
    assert list_models_alone({"a": source, "b": source}, always) == ["a", "b"]


REFUSED = {
    "albert": "a albert cannot be run by block (the blocks of albert share their weights)",
    "rwkv": "a rwkv cannot be run by block (the model rescales all of its blocks when it runs)",
    "xlstm": "a xlstm cannot be run by block (its blocks return more than tensors)",
    "zamba2": "a zamba2 cannot be run by block (its blocks share their attention)",
    "fsmt": "a fsmt cannot be run by block (no list of blocks is known in fsmt)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_by_block(name, typed):
    with pytest.raises(BadInput) as refused:
        goes_by_block(typed(name), Hardware(by_block="always"))
    assert str(refused.value) == f"hardware.by_block: {REFUSED[name]}, got always; set auto"


def test_not_of_models_that_are_spread(typed):
    source = typed("llama")
    assert not goes_by_block(source, Hardware(shard="auto", memory_gb=1e-6))
    with pytest.raises(
        BadInput, match=r"hardware.by_block: hardware.shard=auto spreads models instead, got always; drop"
    ):
        goes_by_block(source, Hardware(shard="auto", by_block="always"))


def test_refused_before_anything_starts(repsim, tiny_folder):
    path = tiny_folder("gpt2")
    words = ["run", "model=[]", "measure=[cka_unbiased]", "hardware.by_block=always"]
    code, _, err = repsim(*words, f"+model.mine={{kind: transformers, path: {path}, quantize: {{bits: 8}}}}")
    assert code == 2
    why = "its weights are not those of unquantized safetensors"
    assert f"hardware.by_block: a gpt2 cannot be run by block ({why}), got always; set auto" in err
    code, _, err = repsim(*words, "study=convergence", f"+model.mine={{kind: transformers, path: {path}}}")
    assert code == 2
    assert "hardware.by_block: the study convergence needs whole models, got always; set hardware.by_block=auto" in err


def test_the_plan_names_the_models_that_run_by_block(repsim, tiny_folder):
    words = [
        "run",
        "dry_run=true",
        "model=[tiny_a]",
        f"+model.mine={{kind: transformers, path: {tiny_folder('gpt2')}}}",
    ]
    code, out, err = repsim(*words, "extract.unit=mean", "extract.batch_rows=32", "hardware.by_block=always")
    assert not code, err
    assert "by block: tiny_a, mine" in out


def test_rows_that_do_not_fit_on_the_disk_are_a_misfit(repsim, tiny_folder, monkeypatch):
    monkeypatch.setattr(bounds, "count_free_bytes", lambda folder: 10**4)
    words = ["run", "dry_run=true", "cache=false", "model=[]", "extract.batch_rows=32", "hardware.by_block=always"]
    code, out, _ = repsim(*words, f"+model.mine={{kind: transformers, path: {tiny_folder('gpt2')}}}")
    assert code == 0
    assert "    REPSIM_OUTPUTS: the rows of models that run one after the other need 0.00 GB, got 0.00 GB free" in out
