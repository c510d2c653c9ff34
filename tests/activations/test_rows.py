"""From sequences to rows: tokens and pooled sequences, whatever the batch; labels and pairing of rows."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.activations.places import (
    count_kept_rows,
    have_same_rows,
    list_row_documents,
    list_row_labels,
    mark_read_places,
)
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.row_batches import take_rows
from repsim_cli.activations.rows import pool, stream_row_blocks
from repsim_cli.activations.stored import Running, make_activations_key
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.models.architectures import ARCHITECTURES
from repsim_cli.runs import reader

TEXTS = ["rain falls", "a dog runs outside and a cat runs", "we met", "it is wet", "we did meet a wet cat"]
FIRST, SECOND = TEXTS, TEXTS[::-1]


def extract(unit, **settings):
    return Extract(hook_points=["embed", "resid_post"], unit=unit, length=32, **settings)


@pytest.fixture
def data(tmp_path):
    rows = "".join(f"{a}\t{b}\t{label}\n" for a, b, label in zip(FIRST, SECOND, "ncenc", strict=True))
    names = {"e": "entailment", "n": "neutral", "c": "contradiction"}
    (tmp_path / "a.tsv").write_text(rows)
    columns = ["premise", "hypothesis", "label"]
    return registry.data.get("mnli").function(path=str(tmp_path / "a.tsv"), columns=columns, labels=names)


def model(tiny_folder, kind):
    source = registry.models.get("transformers").function(path=str(tiny_folder(kind)))
    return source, source.load(False)


def rows(source, module, sequences, settings, batch_size):
    found = plan_readings({"m": source}, settings)
    hardware = Hardware(batch_size=batch_size)
    parts = [
        block.rows
        for block in stream_row_blocks(found, Running({"m": module}, {"m": sequences}), settings, hardware, iter)
    ]
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def close(a, b, tolerance):
    torch.testing.assert_close(a, b, atol=tolerance * float(b.abs().max().clamp_min(1)), rtol=0)


UNITS = [("token", "drop"), ("token", "keep"), ("mean", "drop"), ("mean", "keep"), ("first", "drop"), ("last", "drop")]


@pytest.mark.parametrize(("unit", "padding"), UNITS)
@pytest.mark.parametrize("kind", ["bert", "gpt2", "gpt_neox"])
def test_rows_are_those_of_each_example_alone(tiny_folder, data, bert_tokenizer, gpt_tokenizer, kind, unit, padding):
    """Each example by itself, unpadded, through the library; and the same in batches of any size."""
    source, module = model(tiny_folder, kind)
    tokenizer = bert_tokenizer if kind == "bert" else gpt_tokenizer
    settings = extract(unit, padding=padding)
    sequences = data.sequences(tokenizer, settings, 0)
    found = rows(source, module, sequences, settings, batch_size=2)
    for batch_size in (1, 3, 5):
        for x, y in zip(rows(source, module, sequences, settings, batch_size), found, strict=True):
            close(x, y, 1e-6)
    if (unit, padding) == ("token", "keep"):
        assert len(found[0]) == sequences.mask.size
        assert sequences.mask.shape[1] == settings.length > sequences.mask.sum(1).max()
        return
    expected = []
    for a, b in zip(FIRST, SECOND, strict=True):
        given = tokenizer(a, b, return_tensors="pt")
        with torch.inference_mode():
            states = torch.stack(module(**given, output_hidden_states=True).hidden_states)[:, 0].float()
        special = torch.isin(given["input_ids"][0], torch.tensor([tokenizer.cls_token_id or -1, tokenizer.sep_token_id or -1]))  # fmt: skip
        places = ~special if padding == "drop" else torch.ones_like(special)
        expected.append({
            "token": lambda x, p=places: x[:, p],
            "mean": lambda x, p=places: x[:, p].mean(1, keepdim=True),
            "first": lambda x: x[:, :1],
            "last": lambda x: x[:, -1:],
        }[unit](states))  # fmt: skip
    expected = torch.cat(expected, dim=1)
    # the library's last hidden states come after the final norm, which BERT has not
    for layer in range(3 + (kind == "bert")):
        close(found[layer], expected[layer], 1e-5)


def test_token_types_reach_models_that_know_them(tiny_folder, data, bert_tokenizer):
    """BERT's rows are others without them; GPT-2 would take them for ids of words."""
    settings = extract("mean")
    sequences = data.sequences(bert_tokenizer, settings, 0)
    without = type(sequences)(**{**vars(sequences), "segments": None})
    for kind, differs in {"bert": True, "gpt2": False, "gpt_neox": False}.items():
        source, module = model(tiny_folder, kind)
        assert source.segments is differs
        one, two = (rows(source, module, s, settings, 2)[1] for s in (sequences, without))
        assert (not torch.equal(one, two)) is differs


def test_pool():
    x = torch.tensor([[[1.0], [3.0], [8.0]], [[5.0], [float("nan")], [7.0]], [[1.0], [1.0], [1.0]]])
    chosen = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    assert pool(x, chosen).tolist() == [[2.0], [6.0]]


def test_kept_and_counts(data, bert_tokenizer):
    sequences = data.sequences(bert_tokenizer, extract("mean"), 0)
    for unit in ("first", "last"):
        alone = mark_read_places(sequences, extract(unit))
        place = 0 if unit == "first" else sequences.mask.sum(1) - 1
        assert (alone.sum(1) == 1).all()
        assert (alone.argmax(1) == place).all()
    assert not (mark_read_places(sequences, extract("mean", padding="keep")) & ~sequences.mask).any()
    assert count_kept_rows(sequences, extract("mean")).tolist() == [1] * 5
    assert count_kept_rows(sequences, extract("token")).tolist() == sequences.text.sum(1).tolist()


def test_labels_of_rows(data, bert_tokenizer):
    sequences = data.sequences(bert_tokenizer, extract("mean"), 0)
    codes = [1, 2, 0, 1, 2]
    assert list_row_labels(sequences, extract("mean")).tolist() == codes
    assert list_row_labels(sequences, extract("token")).tolist() == np.repeat(codes, sequences.text.sum(1)).tolist()
    assert list_row_documents(sequences, extract("mean")).tolist() == [0, 1, 2, 3, 4]
    assert (
        list_row_documents(sequences, extract("token")).tolist() == np.repeat(range(5), sequences.text.sum(1)).tolist()
    )
    unlabelled = type(sequences)(**{**vars(sequences), "labels": None})
    assert list_row_labels(unlabelled, extract("mean")) is None


def test_pooled_examples_are_paired_across_tokenizers(data, bert_tokenizer, gpt_tokenizer):
    one, two = (data.sequences(tokenizer, extract("mean"), 0) for tokenizer in (bert_tokenizer, gpt_tokenizer))
    assert have_same_rows(one, two, extract("mean"))
    assert not have_same_rows(one, two, extract("token"))
    assert have_same_rows(one, one, extract("token"))
    few = data.sequences(gpt_tokenizer, extract("mean", sequences=3), 0)
    other = data.sequences(gpt_tokenizer, extract("mean", sequences=3), 1)
    assert few.example.tolist() != other.example.tolist()
    assert not have_same_rows(few, other, extract("mean"))
    text = registry.data.get("embedded_text").function()
    packed = [text.sequences(gpt_tokenizer, extract("mean", sequences=8), seed) for seed in (0, 1)]
    assert not have_same_rows(*packed, extract("mean"))
    assert have_same_rows(packed[0], packed[0], extract("mean"))


def test_what_the_cache_tells_apart(tiny_folder, data, bert_tokenizer):
    source, _ = model(tiny_folder, "bert")
    (reading,) = plan_readings({"m": source}, extract("mean"))
    sequences = data.sequences(bert_tokenizer, extract("mean"), 0)
    without = type(sequences)(**{**vars(sequences), "segments": None})
    identity = {"weights_hash": "x"}

    def key(sequences, settings):
        return make_activations_key(identity, sequences, settings, reading.points, "float32")

    others = [key(sequences, extract(unit, padding=padding)) for unit, padding in UNITS]
    assert len({*others, key(without, extract("mean"))}) == len(UNITS) + 1
    assert key(sequences, extract("mean")) == key(sequences, extract("mean", estimate="full"))


@pytest.mark.parametrize("unit", ["token", "mean", "last"])
def test_the_batch_size_changes_no_result(repsim, newest, tmp_path, data, unit):
    """The command line: a matrix per batch size, from pairs with labels."""
    found = []
    for batch_size in (1, 2, 5):
        code, _, err = repsim(
            "run", "-q", "data=mnli", f"data.path={tmp_path / 'a.tsv'}", "data.columns=[premise,hypothesis,label]",
            "data.labels={n: neutral, c: contradiction, e: entailment}", "model=[tiny_a,tiny_b]", "measure=[cka]",
            "cache=false", "extract=pooled", f"extract.unit={unit}", f"hardware.batch_size={batch_size}",
            "extract.layers=[0,-1]",
        )  # fmt: skip
        assert code == 0, err
        measure = recorded(newest())["measures"][0]
        found.append(np.stack([reader.read_array(newest(), m["values"]) for m in measure["matrices"]]))
    assert np.abs(found[0] - found[1]).max() <= 1e-6
    assert np.abs(found[0] - found[2]).max() <= 1e-6
    manifest = reader.read_manifest(newest())["data"]
    assert manifest["labels"] == {"entailment": 1, "neutral": 2, "contradiction": 2}
    assert manifest["rows_kept"] == (5 if unit != "token" else measure["estimate"]["rows"])
    assert manifest["unit"] == unit


@pytest.fixture
def bert_folder(tmp_path, tiny_folder, bert_tokenizer):
    """A model whose tokenizer is not that of the shipped ones."""
    folder = tmp_path / "bert"
    folder.mkdir()
    for file in tiny_folder("bert").iterdir():
        if not file.name.startswith("tokenizer"):
            (folder / file.name).write_bytes(file.read_bytes())
    bert_tokenizer.save_pretrained(folder)
    return folder


def test_models_of_other_tokenizers_meet_on_pooled_examples(repsim, newest, tmp_path, bert_folder, data):
    words = (
        "run", "-q", "data=mnli", f"data.path={tmp_path / 'a.tsv'}", "data.columns=[premise,hypothesis,label]",
        "data.labels={n: neutral, c: contradiction, e: entailment}", "model=[tiny_a]", "measure=[cka]",
        f"+model.bert={{kind: transformers, path: {bert_folder}}}", "extract=pooled", "extract.length=32",
    )  # fmt: skip
    code, _, err = repsim(*words)
    assert code == 0, err
    matrices = recorded(newest())["measures"][0]["matrices"]
    assert [(m["rows"]["model"], m["columns"]["model"], m["n"]) for m in matrices][1] == ("tiny_a", "bert", 5)
    code, _, err = repsim(*words, "extract.unit=token")
    assert code == 2
    assert (
        "error: model: tokenizers differ, got a different vocabulary for 'bert' than for 'tiny_a'; use extract=pooled "
        "(a row per document or example) or extract=words (a row per word; compare: --rows words), or models that share a tokenizer"
    ) in err


def local_text(folder):
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return registry.data.get("local_text").function(path=str(folder / "a.txt"), sample_by="line")


def pile(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return registry.data.get("pile").function(files=str(folder / "a.jsonl"))


def embedded(folder):
    return registry.data.get("embedded_text").function()


@pytest.mark.parametrize("unit", ["mean", "first", "last"])
@pytest.mark.parametrize("text", [local_text, pile, embedded])
def test_a_pooled_row_of_running_text_is_one_document(tmp_path, tiny_folder, gpt_tokenizer, text, unit):
    source, module = model(tiny_folder, "gpt2")
    settings = extract(unit, sequences=5, pool=5)
    data = text(tmp_path)
    sequences = data.sequences(gpt_tokenizer, settings, 0)
    found = rows(source, module, sequences, settings, batch_size=2)
    expected, cut = [], 0
    for document in islice(data.documents(), 5):
        given = gpt_tokenizer(document, return_tensors="pt", verbose=False)["input_ids"]
        cut += given.shape[1] > 32
        with torch.inference_mode():
            states = torch.stack(module(given[:, :32], output_hidden_states=True).hidden_states)[:-1, 0].float()
        expected.append({"mean": states.mean(1), "first": states[:, 0], "last": states[:, -1]}[unit])
    assert (sequences.truncated, cut > 0) == (cut, text is embedded)
    for x, y in zip(found[:3], torch.stack(expected, 1), strict=True):
        close(x, y, 1e-5)


def test_rows_that_are_chosen_of_blocks_come_in_their_order():
    layers, chosen = [torch.arange(10.0)[:, None], -torch.arange(10.0)[:, None]], torch.tensor([0, 3, 4, 9])
    taken = [take_rows([x[first : first + 4] for x in layers], first, chosen) for first in (0, 4, 8)]
    found = [torch.cat(parts) for parts in zip(*taken, strict=True)]
    assert all(torch.equal(x, layer[chosen]) for x, layer in zip(found, layers, strict=True))
    assert [len(x) for x, _ in taken] == [2, 1, 1]


def test_documents_are_rows_whatever_the_tokenizers(repsim, newest, tmp_path, bert_folder):
    """The command line: independent rows, cut documents counted for each model."""
    text = [*TEXTS, "a dog runs outside and a cat runs " * 8]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n\n" for line in text))
    words = (
        "run", "-q", "model=[tiny_a]", f"+model.bert={{kind: transformers, path: {bert_folder}}}", "measure=[cka]",
        "data=local_text", f"data.path={tmp_path / 'a.txt'}", "extract=pooled", "extract.length=32",
    )  # fmt: skip
    code, _, err = repsim(*words, "data.sample_by=paragraph", "significance=closed_form")
    assert code == 0, err
    manifest = reader.read_manifest(newest())
    counts = ("rows_kept", "documents_read", "examples_truncated")
    assert [manifest["data"][key] for key in counts] == [6, 6, {"tiny_a": 1, "bert": 1}]
    warning = "extract.length: 1 of 6 examples were cut to 32 tokens for 'tiny_a', 'bert'"
    assert warning in manifest["warnings"]
    code, _, err = repsim(*words)
    assert code == 2
    assert "error: extract.unit: a pooled row is a document, got one document in " in err
    assert (
        "; give a table or .jsonl with a text per row, split a .txt file (repsim run data.sample_by=paragraph)" in err
    )


def test_pooled_documents_are_stored(repsim, newest):
    words = ("run", "-q", "model=[tiny_a]", "measure=[cka]", "extract=pooled", "extract.sequences=20")
    assert repsim(*words)[0] == 0
    manifest = reader.read_manifest(newest())
    assert (manifest["data"]["rows_kept"], manifest["data"]["rows_dropped"], manifest["rows"]) == (20, 0, 20)
    assert repsim(*words)[0] == 0
    assert reader.read_manifest(newest())["models_run"] == []
    assert repsim(*words, "extract.unit=last")[0] == 0
    assert reader.read_manifest(newest())["models_run"] == ["tiny_a"]


def test_models_of_different_runs_are_compared_from_what_both_cached(repsim, newest):
    words = ("run", "-q", "measure=[cka]", "extract.sequences=2", "extract.batch_rows=64")
    for chosen, run in (("tiny_a", ["tiny_a"]), ("tiny_b", ["tiny_b"]), ("tiny_a,tiny_b", [])):
        assert repsim(*words, f"model=[{chosen}]")[0] == 0
        assert reader.read_manifest(newest())["models_run"] == run


def test_attention_maps_of_a_language_model(repsim, newest):
    """Maps are computed by eager attention, whatever the library would choose."""
    words = ["model=[tiny_a]", "measure=[cka]", "extract=pooled", "extract.unit=sequence", "extract.padding=keep"]
    words += ["extract.hook_points=[pattern.h0]", "extract.length=8", "extract.sequences=16"]
    assert repsim("run", *words)[0] == 0
    (measured,) = json.loads((newest() / "results.json").read_text())["measures"]
    layers = measured["matrices"][0]["rows"]["layers"]
    assert layers == [f"pattern@{layer}.h0" for layer in range(len(layers))]


def test_a_type_without_a_table_is_run_with_a_warning(repsim, newest, monkeypatch):
    monkeypatch.delitem(ARCHITECTURES, "gpt_neox")
    words = ["model=[tiny_a]", "measure=[cka]", "extract.length=16", "extract.sequences=4", "extract.estimate=full"]
    assert repsim("run", *words)[0] == 0
    (warning,) = (w for w in reader.read_manifest(newest())["warnings"] if "table" in w)
    assert warning == (
        "model.tiny_a: gpt_neox has no table of hook points; its blocks were found by structure (layers), and only the "
        "stream is read"
    )
