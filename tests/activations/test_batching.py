"""Batches of similar length: which sequences run together, and that rows and maps do not depend on it."""

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repsim_cli.activations.attention import plan_attention_readings, stream_attention_maps
from repsim_cli.activations.batching import (
    PADDING,
    TokenTally,
    batch_by_length,
    count_batch_places,
    count_passes,
    cut_windows,
    limit_padding,
    measure_lengths,
)
from repsim_cli.activations.outputs import limit_output_padding
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import stream_row_blocks
from repsim_cli.activations.stored import Recorder, Running
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.engine.bounds import bound_pass
from repsim_cli.runs import cache, reader

LENGTHS = np.random.default_rng(0).geometric(0.12, size=30).clip(1, 30)
HARDWARE = [
    Hardware(batch_size=2),
    Hardware(batch_size=8),
    Hardware(batch_size=30, batch_tokens=40),
]


def sequences(lengths=LENGTHS, places=None):
    """Random tokens; every token is a word."""
    rng = np.random.default_rng(1)
    mask = np.arange(places or max(lengths)) < np.asarray(lengths)[:, None]
    word = np.where(mask, np.arange(mask.shape[1]), -1)
    return Sequences(
        inputs=np.where(mask, rng.integers(5, 500, mask.shape), 0).astype(np.int32),
        mask=mask,
        text=mask,
        document=np.where(mask, np.arange(len(lengths))[:, None], -1),
        position=word,
        word=word,
        documents=len(lengths),
        example=np.arange(len(lengths)),
    )


@pytest.mark.parametrize("hardware", HARDWARE)
def test_batches(hardware):
    batches = list(batch_by_length(LENGTHS, hardware))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
    longest = [LENGTHS[batch].max() for batch in batches]
    assert longest == sorted(longest, reverse=True)
    for batch, length in zip(batches, longest, strict=True):
        assert (np.diff(batch) > 0).all()
        assert len(batch) <= hardware.batch_size
        assert len(batch) * length <= (hardware.batch_tokens or np.inf)
        assert LENGTHS[batch].sum() >= (1 - PADDING) * len(batch) * length
    for batch in batch_by_length(LENGTHS, hardware, padding=0.0):
        assert len(set(LENGTHS[batch])) == 1


def test_equal_lengths_are_batches_in_order():
    given = np.full(20, 7)
    assert [b.tolist() for b in batch_by_length(given, Hardware(batch_size=8))] == [
        list(range(8)), list(range(8, 16)), list(range(16, 20)),
    ]  # fmt: skip
    assert cut_windows(given, count_batch_places(7, Hardware(batch_size=8))) == [
        slice(0, 8),
        slice(8, 16),
        slice(16, 20),
    ]


@pytest.mark.parametrize("most", [1, 30, 64, 10**6])
def test_windows_cover_the_data_in_order(most):
    found = cut_windows(LENGTHS, most)
    assert [i for window in found for i in range(window.start, window.stop)] == list(range(len(LENGTHS)))
    for i, window in enumerate(found):
        size = LENGTHS[window].sum()
        assert size <= most or window.stop == window.start + 1
        if i + 1 < len(found):  # one more would be too many
            assert size + LENGTHS[window.stop] > most


def test_a_sequence_of_more_than_batch_tokens_is_run_alone():
    hardware = Hardware(batch_size=8, batch_tokens=10)
    assert [len(b) for b in batch_by_length(np.asarray([25, 5, 12, 5]), hardware)] == [1, 1, 2]
    assert (count_batch_places(25, hardware), count_batch_places(4, hardware)) == (25, 10)
    assert count_batch_places(25, Hardware(batch_size=8)) == 200
    assert (count_passes(9, 5, hardware), count_passes(9, 25, hardware), count_passes(9, 1, hardware)) == (5, 9, 2)


@pytest.mark.parametrize(
    ("lengths", "run"), [([3, 40, 18, 25, 60], [18, 34]), ([3, 9, 20], [9, 20]), ([50, 60], [50, 60]), ([7, 7], [])]
)
def test_whether_padding_is_ignored_is_seen_of_a_short_sequence(lengths, run):
    seen = []

    def compute(some):
        seen.append(some.mask.shape[1])
        return [torch.ones(1, 2)]

    assert limit_padding(compute, sequences(lengths), np.asarray(lengths), torch.float32) == PADDING
    assert seen == run


def test_the_memory_of_a_batch():
    extract = Extract(hook_points=["resid_post"], length=32)
    live = {"a": registry.models.get("shipped").function(name="tiny_a")}
    sizes = [bound_pass(live, extract, hardware, features=10)["forward"] for hardware in HARDWARE]
    assert sizes == [4 * 2 * places * 10 for places in (2 * 32, 8 * 32, 40)]


def test_places_in_use():
    used = np.asarray([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    assert measure_lengths(used).tolist() == [3, 0, 4]


def of_models(kinds, tiny_folder):
    sources = {kind: registry.models.get("transformers").function(path=str(tiny_folder(kind))) for kind in kinds}
    return sources, {kind: source.load(True) for kind, source in sources.items()}


def rows(sources, modules, given, extract, hardware):
    """A tensor per layer, and what was run."""
    record = {}
    stream = stream_row_blocks(
        plan_readings(sources, extract),
        Running(modules, given, tally=TokenTally(record, list(sources))),
        extract,
        hardware,
        iter,
    )
    firsts, parts = zip(*stream, strict=True)
    counts = [len(part[0]) for part in parts]
    assert list(firsts) == (np.cumsum(counts) - counts).tolist()
    return [torch.cat(layer) for layer in zip(*parts, strict=True)], record


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        *(("gpt2", unit) for unit in ("token", "word", "mean", "last")),
        *((kind, "token") for kind in ("llama", "bert", "roberta", "albert", "xlnet")),
    ],
)
def test_rows_in_order_whatever_the_batch(tiny_folder, kind, unit):
    sources, modules = of_models([kind], tiny_folder)
    extract = Extract(hook_points=["resid_post"], unit=unit, length=32)
    given = sequences()
    expected = []
    for i, length in enumerate(LENGTHS):
        one = given.take(np.asarray([i]), int(length))
        expected.append(rows(sources, modules, {kind: one}, extract, Hardware())[0])
    expected = [torch.cat(layer) for layer in zip(*expected, strict=True)]
    for hardware in HARDWARE:
        found, record = rows(sources, modules, {kind: given}, extract, hardware)
        for x, y in zip(found, expected, strict=True):
            close(x, y)
        assert record["tokens_read"] == LENGTHS.sum()
        assert record["tokens_read"] <= record["places"] < 1.1 * LENGTHS.sum()
    again, _ = rows(sources, modules, {kind: given}, extract, HARDWARE[-1])
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))


def test_a_stream_that_was_broken_off_continues_with_the_same_bits(tiny_folder, monkeypatch, tmp_path):
    """Finished windows come from the cache, the others are run as they would have been."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    sources, modules = of_models(["gpt2"], tiny_folder)
    extract, hardware, given = Extract(hook_points=["resid_post"], length=32), Hardware(batch_size=2), sequences()

    def stream(entry, record):
        found = plan_readings(sources, extract)
        return stream_row_blocks(found, Running(modules, {"gpt2": given}, {"gpt2": Recorder(entry)}, TokenTally(record, ["gpt2"])), extract, hardware, iter)  # fmt: skip

    expected, whole = rows(sources, modules, {"gpt2": given}, extract, hardware)
    with cache.use("activations", ["a"]) as entries:
        assert len(list(islice(stream(entries["a"], {}), 2))) == 2
        assert len(entries["a"].files) == 2
        assert not entries["a"].complete
        record = {}
        parts = [block.rows for block in stream(entries["a"], record)]
        assert entries["a"].complete
        assert 0 < record["places"] < whole["places"]
    assert all(torch.equal(torch.cat(x), y) for x, y in zip(zip(*parts, strict=True), expected, strict=True))


def test_models_with_other_tokens_sort_their_own_lengths(tiny_folder):
    """The rows of two models are those of each alone; the counts are given per model."""
    sources, modules = of_models(["gpt2", "bert"], tiny_folder)
    extract = Extract(hook_points=["resid_post"], unit="mean", length=32)
    given = {"gpt2": sequences(), "bert": sequences(LENGTHS[::-1])}
    found, record = rows(sources, modules, given, extract, Hardware(batch_size=4))
    alone = []
    for kind in sources:
        source, module, one = ({kind: x[kind]} for x in (sources, modules, given))
        alone += rows(source, module, one, extract, Hardware(batch_size=1))[0]
    for x, y in zip(found, alone, strict=True):
        close(x, y)
    assert set(record["places"]) == {"gpt2", "bert"}
    assert record["tokens_read"] == LENGTHS.sum()


def without_mask(module):
    """The same model, blind to which places are padding."""
    original = module.forward
    module.forward = lambda *args, attention_mask=None, **more: original(*args, **more)
    return module


def test_a_model_that_ignores_its_mask_runs_without_padding(tiny_folder):
    sources, modules = of_models(["bert"], tiny_folder)
    without_mask(modules["bert"])
    extract = Extract(hook_points=["resid_post"], unit="mean", length=32)
    expected, _ = rows(sources, modules, {"bert": sequences()}, extract, Hardware(batch_size=1))
    found, record = rows(sources, modules, {"bert": sequences()}, extract, Hardware(batch_size=8))
    for x, y in zip(found, expected, strict=True):
        close(x, y)
    assert record == {"tokens_read": LENGTHS.sum(), "places": LENGTHS.sum()}


def test_rows_of_padding_are_kept_where_asked_for(tiny_folder):
    sources, modules = of_models(["bert"], tiny_folder)
    extract = Extract(hook_points=["resid_post"], padding="keep", length=32)
    found, record = rows(sources, modules, {"bert": sequences(places=32)}, extract, Hardware())
    assert len(found[0]) == record["places"] == 32 * len(LENGTHS)


@pytest.mark.parametrize("blind", [False, True])
def test_attention_maps_in_order_whatever_the_batch(tiny_folder, blind):
    sources, modules = of_models(["bert"], tiny_folder)
    if blind:
        without_mask(modules["bert"])
    found = plan_attention_readings(sources, Extract(hook_points=["pattern"], unit="word", length=32))

    def run(hardware):
        record = {}
        given = {"bert": sequences()}
        parts = list(
            stream_attention_maps(
                found,
                Running(modules, given, tally=TokenTally(record, list(sources))),
                "drop_renormalise",
                hardware,
                iter,
            )
        )
        return [heads for part in parts for heads in part.sentences()], record

    expected, _ = run(Hardware(batch_size=1))
    assert [heads.shape[1] for heads in expected] == LENGTHS.tolist()
    for hardware in HARDWARE:
        for x, y in zip((result := run(hardware))[0], expected, strict=True):
            torch.testing.assert_close(x, y, atol=1e-5, rtol=0)
        places = result[1]["places"]
        assert places == LENGTHS.sum() if blind else LENGTHS.sum() <= places < 1.1 * LENGTHS.sum()


class Counts(torch.nn.Module):
    """A classifier or a language model of the number of tokens, which may count padding."""

    def __init__(self, blind, language):
        super().__init__()
        self.weight, self.blind, self.language = torch.nn.Parameter(torch.ones(1)), blind, language

    def forward(self, input_ids, attention_mask):
        seen = torch.ones_like(attention_mask) if self.blind else attention_mask
        logits = (seen.sum(1) * self.weight)[:, None].expand(-1, 3)
        places = input_ids.shape[1]
        return SimpleNamespace(logits=logits[:, None].expand(-1, places, -1) if self.language else logits)


@pytest.mark.parametrize("language", [False, True])
def test_outputs_of_a_model_that_ignores_its_mask(language):
    found = [limit_output_padding(Counts(blind, language), sequences(), segments=False) for blind in (False, True)]
    assert found == [PADDING, 0.0]


def test_counts_of_an_interrupted_run_continue():
    record = {"tokens_read": 5, "places": {"a": 6, "b": 7}}
    tally = TokenTally(record, ["a", "b"])
    tally("a", np.asarray([[True, True, False]]))
    assert record == {"tokens_read": {"a": 7, "b": 5}, "places": {"a": 9, "b": 7}}
    tally("b", np.asarray([[True, True]]))
    assert record == {"tokens_read": 7, "places": 9}


@pytest.mark.slow
def test_what_the_manifest_counts(repsim, newest):
    """Words: almost no padding, and nothing is run where the cache has all."""
    words = (
        "run",
        "-q",
        "data=embedded_sentences",
        "extract=words",
        "measure=[cka]",
        "model=[tiny_a,tiny_b]",
        "extract.sequences=60",
        "extract.layers=[-1]",
    )
    assert repsim(*words)[0] == 0
    data = reader.read_manifest(newest())["data"]
    assert data["tokens"] == data["tokens_read"] <= data["places"] < 1.1 * data["tokens_read"]
    assert repsim(*words, "measure=[cka_unbiased]")[0] == 0
    data = reader.read_manifest(newest())["data"]
    assert (data["tokens_read"], data["places"]) == (0, 0)


def test_a_plan_counts_the_passes_of_batch_tokens(repsim):
    def plan(*words):
        code, out, err = repsim("run", "dry_run=true", "data=embedded_sentences", "extract=words", *words)
        assert code == 0, err
        return out

    line = "forward passes: "
    counts = [
        int(next(row for row in plan(*words).splitlines() if line in row).split(line)[1].split()[0])
        for words in ((), ("hardware.batch_tokens=128",), ("hardware.batch_tokens=64",))
    ]
    assert counts[0] < counts[1] < counts[2]
