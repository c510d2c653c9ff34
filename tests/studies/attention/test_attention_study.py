"""Attention: maps by words, every architecture, the study from end to end."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from helpers.recorded import recorded
from helpers.timers import set_timers
from helpers.treebanks import SENTENCES, conllu

from repsim_cli import measures
from repsim_cli.activations.attention import (
    check_units,
    number_map_rows,
    plan_attention_readings,
    pool_attention_by_word,
    stream_attention_maps,
)
from repsim_cli.activations.stored import Running
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.treebank import Treebank
from repsim_cli.models.source import Precomputed
from repsim_cli.runs import reader
from repsim_cli.studies.attention import study as attention


def test_words_of_a_map_by_hand():
    """Two words of one and two pieces, and a special token: sums over columns, means over rows."""
    pattern = torch.tensor([[[0.2, 0.3, 0.1, 0.4], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.1, 0.4], [0.7, 0.1, 0.1, 0.1]]])
    kept = pool_attention_by_word(pattern, torch.tensor([0, 1, 1, 2]), "keep")
    torch.testing.assert_close(
        kept, torch.tensor([[[0.2, 0.4, 0.4], [0.05, 0.55, 0.4], [0.7, 0.2, 0.1]]]), atol=1e-7, rtol=0
    )
    dropped = pool_attention_by_word(pattern, torch.tensor([0, 1, 1, -1]), "drop_renormalise")
    torch.testing.assert_close(dropped, torch.tensor([[[1 / 3, 2 / 3], [1 / 12, 11 / 12]]]), atol=1e-7, rtol=0)


@pytest.fixture
def both(bert_tokenizer, gpt_tokenizer):
    """The same sentences under two tokenizers, one of which adds special tokens."""
    extract = Extract(hook_points=["pattern"], unit="word", length=32, sequences=9)
    data = Treebank(lambda: iter(SENTENCES), "")
    return data.align({"pieces": bert_tokenizer, "bytes": gpt_tokenizer}, extract, 0)


def test_two_tokenizers_give_maps_of_one_shape(both):
    lengths = [len(words) for words in SENTENCES]
    shapes = {}
    for label, sequences in both.items():
        of = number_map_rows(sequences, "drop_renormalise")
        shapes[label] = []
        for mask, row in zip(sequences.mask, of, strict=True):
            tokens = int(mask.sum())
            pattern = torch.rand(6, len(mask), len(mask)).where(torch.from_numpy(mask), 0)
            pattern /= pattern.sum(2, keepdim=True)
            made = pool_attention_by_word(pattern, torch.from_numpy(row), "drop_renormalise")
            shapes[label].append(tuple(made.shape[1:]))
            torch.testing.assert_close(made.sum(2), torch.ones(made.shape[:2]))
            whole = pool_attention_by_word(
                pattern, torch.from_numpy(number_map_rows(sequences, "keep")[len(shapes[label]) - 1]), "keep"
            )
            torch.testing.assert_close(whole.sum(2), torch.ones(whole.shape[:2]))
            assert tokens > shapes[label][-1][0]
        assert (of[~sequences.mask] == -1).all()
    assert shapes["pieces"] == shapes["bytes"] == [(t, t) for t in lengths]


def test_special_tokens_that_are_kept_are_words_of_their_own(both):
    of = {label: number_map_rows(sequences, "keep") for label, sequences in both.items()}
    assert (of["pieces"].max(1) + 1).tolist() == [len(words) + 2 for words in SENTENCES]
    assert of["pieces"][0][0] == 0
    with pytest.raises(
        BadInput,
        match=r"options.special: different sizes of maps in sentence 0, got 5 words and special tokens for 'pieces' and 4 "
        "for 'bytes'; use drop_renormalise, or models with the same tokenizer",
    ):
        check_units(of, both)


def test_a_token_of_no_word_between_pieces(both):
    """Pieces of a word stay together around it."""
    sequences = both["bytes"]
    sequences.word[0, :4] = [0, -1, 0, 1]
    sequences.word[0, 4:] = -1
    sequences.mask[0] = np.arange(sequences.mask.shape[1]) < 4
    assert number_map_rows(sequences, "keep")[0, :5].tolist() == [0, 1, 0, 2, -1]
    assert number_map_rows(sequences, "drop_renormalise")[0, :5].tolist() == [0, -1, 0, 1, -1]


@pytest.fixture(scope="session")
def two_folders(tmp_path_factory, tiny_folder, bert_tokenizer):
    """A causal and a bidirectional model whose tokenizers differ."""
    bert = tmp_path_factory.mktemp("bert")
    for file in tiny_folder("bert").iterdir():
        if file.name in ("config.json", "model.safetensors"):
            (bert / file.name).write_bytes(file.read_bytes())
    bert_tokenizer.save_pretrained(bert)
    return {"gpt": tiny_folder("gpt2"), "bert": bert}


@pytest.fixture
def words(two_folders, tmp_path):
    """The words of a command line that compares the two on a few sentences."""
    (tmp_path / "a.conllu").write_text(conllu(SENTENCES))
    models = [f"+model.{label}={{kind: transformers, path: {folder}}}" for label, folder in two_folders.items()]
    data = ["data=ewt", f"data.path={tmp_path / 'a.conllu'}", "extract=attention", "extract.length=32"]
    return ["study=attention", "model=[]", *models, *data, "hardware.batch_size=1"]


def plainly(folder, sentences):
    """Maps by words from the library's own output: token by token, pieces by the text they decode to."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    found = []
    for words in sentences:
        given = tokenizer(" ".join(words), return_offsets_mapping=True, return_tensors="pt")
        spans = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            attentions = model(**given, output_attentions=True).attentions
        starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
        pieces = [
            [k for k, (a, b) in enumerate(spans) if a < start + len(word) and b > start and b > a]
            for start, word in zip(starts, words, strict=True)
        ]
        layers = []
        for layer in attentions:
            a = layer[0].double().numpy()
            by_word = np.array(
                [
                    [[np.mean([sum(head[q, k] for k in key) for q in query]) for key in pieces] for query in pieces]
                    for head in a
                ]
            )
            layers.append(by_word / by_word.sum(2, keepdims=True))
        found.append(layers)
    return [[sentence[i] for sentence in found] for i in range(len(found[0]))]


@pytest.mark.drawn
def test_a_run_is_what_the_definition_gives(repsim, newest, words, two_folders):
    """The way from text to matrices, against loops over the library's attention; then the heads, drawn on demand."""
    claims = ["falls_with_layer_distance", "top_attention_changes_most", "single_heads_match_across_families"]
    more = ["base=bert", f"claims=[{','.join(claims)}]"]
    code, out, err = repsim("run", *words, "measure=[attention_js,attention_cka]", *more)
    assert code == 0, err
    folder = newest()
    layers = [layer for path in two_folders.values() for layer in plainly(path, SENTENCES)]
    found = recorded(folder)
    js, cka = found["measures"]
    for record, slow, pairs in ((js, reference.attention_js, 4), (cka, None, 3)):
        assert len(record["matrices"]) == pairs
        for m in record["matrices"]:
            sides = [[*two_folders].index(m[side]["model"]) * 3 for side in ("rows", "columns")]
            assert m["rows"]["layers"] == ["pattern@0", "pattern@1", "pattern@2"]
            values = reader.read_array(folder, m["values"])
            for i, j in np.ndindex(3, 3):
                a, b = layers[sides[0] + i], layers[sides[1] + j]
                if slow:
                    assert values[i, j] == pytest.approx(slow(a, b), abs=2e-6)
                else:
                    # cells that the causal model masks are left out for both, whatever the pair
                    seen = np.concatenate([np.tril(np.ones_like(one[0])).ravel() for one in a]) > 0
                    cells = [np.concatenate([o.reshape(4, -1) for o in side], 1).T[seen] for side in (a, b)]
                    assert values[i, j] == pytest.approx(reference.cka(*cells), abs=1e-5)
    assert sorted({one["name"] for one in found["claims"]}) == sorted(claims)
    assert not any("with bert" in name for name in found["curves"])  # another architecture is no copy of a base
    verdict = next(one for one in found["claims"] if one["name"] == claims[1] and one["measure"] == "attention_js")
    assert (verdict["verdict"], verdict["value"]) == ("not testable here", None)  # of three layers
    counts = [(m["estimate"]["rows"], m["estimate"]["rows_available"], m["estimate"]["unit"]) for m in (js, cka)]
    total, masked = sum(len(s) ** 2 for s in SENTENCES), sum(len(s) * (len(s) - 1) // 2 for s in SENTENCES)
    assert counts == [(17, 17, "words"), (total - masked, total, "cells")]
    assert f"attention_cka: {masked} of {total} cells are 0 in some head (as under a causal mask)" in err
    assert "17 of 17 words in 1 batch" in out
    assert list(found["matrices"]) == ["heads, attention_js"]
    heads = reader.read_array(folder, found["matrices"]["heads, attention_js"]["values"])
    assert heads.shape == (24, 24)
    assert heads[:4, 12:16].max(1).mean() == reader.read_array(folder, js["matrices"][1]["values"])[0, 0]
    assert {"attention_js-all.png", "attention_cka-all.png"} <= {f.name for f in (folder / "figures").iterdir()}

    code, out, _ = repsim("plot", folder, "--heads", "gpt@1", "bert")
    drawn = [Path(line).name for line in out.splitlines()]
    assert (code, drawn) == (0, ["heads-attention_js-gpt@1-bert.png", "heads-attention_js-gpt@1-bert.svg"])
    for given, text in (
        ("bart", "--heads: no such model, got 'bart'; did you mean 'bert'?"),
        ("gpt@7", "--heads: 'gpt' has no such layer, got 'gpt@7'; known: 0, 1, 2"),
    ):
        code, _, err = repsim("plot", folder, "--heads", given, "bert")
        assert (code, text in err) == (2, True)


def test_heads_of_a_run_without_them(repsim, newest):
    small = ["extract.length=16", "extract.sequences=4", "extract.batch_rows=16", "measure=[cka]", "model=[tiny_a]"]
    assert repsim("run", "-q", *small)[0] == 0
    code, _, err = repsim("plot", newest(), "--heads", "tiny_a", "tiny_a")
    assert code == 2
    assert "it has no matrices of heads, got --heads; choose a run with e.g. attention_js" in err


def test_an_interrupted_run_goes_on_with_the_same_bits(repsim, newest, words, monkeypatch):

    words = [*[word for word in words if "model.gpt" not in word], "measure=[attention_norm]"]
    assert repsim("run", "-q", *words, "cache=false")[0] == 0
    expected = {f.name: f.read_bytes() for f in (newest() / "arrays").iterdir()}
    set_timers(monkeypatch, due=True)
    seen = []
    norms = measures.get("attention_norm").sums

    def counted(maps):
        seen.append(maps.lengths)
        if len(seen) > 2:
            raise KeyboardInterrupt
        return norms(maps)

    monkeypatch.setattr("repsim_cli.measures.attention.sum_difference_norms", counted)
    assert repsim("run", *words)[0] == 130
    folder = newest()
    assert (folder / reader.STATE).is_file()
    monkeypatch.setattr(
        "repsim_cli.measures.attention.sum_difference_norms", lambda maps: seen.append(maps.lengths) or norms(maps)
    )
    code, _, err = repsim("run", *words, "resume=latest")
    assert (code, f"resuming {folder}" in err) == (0, True)
    assert len(seen) == 4  # two sums of the first run, one that was broken off, and that one again
    assert {f.name: f.read_bytes() for f in (folder / "arrays").iterdir()} == expected
    assert not (folder / reader.STATE).exists()


def test_one_model_at_a_time_gives_the_same_bits(repsim, newest, words, monkeypatch):
    """The run may be killed before its second model runs, and resume."""
    load, alive, most, loads = attention.load_model, [], [], []

    def counted(reading, study):
        loads.append(reading.label)
        if len(loads) == 4:
            raise KeyboardInterrupt
        module = load(reading, study)
        gc.collect()
        alive.append(weakref.ref(module))
        most.append(sum(model() is not None for model in alive))
        return module

    monkeypatch.setattr(attention, "load_model", counted)
    words = [*words, "measure=[attention_norm]", "cache=false"]
    assert repsim("run", *words)[0] == 0
    expected = {file.name: file.read_bytes() for file in (newest() / "arrays").iterdir()}
    read = reader.read_manifest(newest())["data"]
    words.append("hardware.resident=one")
    assert repsim("run", *words)[0] == 130
    code, _, err = repsim("run", *words, "resume=latest")
    assert code == 0, err
    assert loads == ["gpt", "bert", "gpt", "bert", "bert"]
    assert most == [1, 2, 1, 1]
    assert {file.name: file.read_bytes() for file in (newest() / "arrays").iterdir()} == expected
    assert reader.read_manifest(newest())["data"] == read
    assert not (newest() / "maps").exists()
    code, out, _ = repsim("run", *words, "dry_run=true")
    assert "in memory together: one model" in out
    assert "    maps: " in out


def test_maps_that_cannot_be_kept_are_refused(repsim, words, monkeypatch):
    monkeypatch.setattr(attention.Recorder, "write", lambda *given: None)
    code, _, err = repsim("run", *words, "measure=[attention_js]", "hardware.resident=one", "cache=false")
    assert code == 1
    assert "model.gpt: its maps cannot be kept while the next model runs, got no room at " in err
    assert "use hardware.resident=all" in err


def test_finished_matrices_are_not_computed_again(repsim, newest, words, monkeypatch, edited):
    words = [word for word in words if "model.gpt" not in word]
    assert repsim("run", "-q", *words, "measure=[attention_norm,attention_js]")[0] == 0
    expected = {f.name: f.read_bytes() for f in (newest() / "arrays").iterdir()}
    original, runs = attention.stream_attention_maps, []
    monkeypatch.setattr(attention, "stream_attention_maps", lambda *given: runs.append(1) or original(*given))
    assert repsim("run", "-q", *words, "measure=[attention_js]")[0] == 0
    for file in (newest() / "arrays").iterdir():
        assert file.read_bytes() == expected[file.name]
    manifest = reader.read_manifest(newest())
    assert (manifest["models_run"], manifest["matrices_cached"], runs) == ([], ["attention_js"], [])
    for count, more in enumerate((["cache=false"], ["+options.special=keep"], ["hardware.batch_size=2"]), 1):
        code, _, err = repsim("run", "-q", *words, "measure=[attention_js]", *more)
        assert (code, len(runs)) == (0, count), err
    edited("repsim_cli.engine.attention")
    assert repsim("run", "-q", *words, "measure=[attention_js]")[0] == 0
    assert len(runs) == 4


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["measure=[cka_unbiased]"], "measure: the study attention compares attention, got cka_unbiased, a measure of activations; select e.g. measure=[attention_js], or the study similarity"),
        (["study=similarity", "extract=tokens", "measure=[attention_js]"], "measure: the study similarity compares activations, got attention_js, a measure of attention; select e.g. measure=[cka_unbiased], or the study attention"),
        (["+model.gpt=", "+model.bert="], "model: no model is selected; e.g. model=[tiny_a,tiny_b]"),
        (["measure=[]"], "measure: no measure is selected; e.g. measure=[attention_js]"),
        (["extract=tokens"], "extract: attention is compared by words, got hook_points ['resid_post'] and unit token; select extract=attention"),
        (["extract.layers=[5]"], "extract.layers, model.gpt: layer out of range, got 5; the model has layers 0 to 2"),
        (["hardware.memory_gb=0.1"], "hardware.memory_gb: the run needs about 0.5"),
        (["claims=[adjacent]"], "claims: unknown claim, got 'adjacent'"),
        (["+options.special=drop"], "options.special: wrong value, got 'drop'; give 'drop_renormalise' or 'keep'"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_run(repsim, words, more, text):
    measure = [] if any(word.startswith("measure=") for word in more) else ["measure=[attention_js]"]
    words = [word for word in words if word.split("=")[0] not in {one.split("=")[0] for one in more}]
    more = [word for word in more if not word.startswith("+model")]
    words = [word for word in words if not ("data=embedded" in more and word.startswith("data."))]
    code, _, err = repsim("run", *words, *measure, *more)
    assert (code, text in err) == (2, True), err


def test_stored_activations():
    extract = Extract(hook_points=["pattern"], unit="word")
    stored = Precomputed(names=["a"], rows=3, widths=[2], read=lambda *_: None, identity=dict)
    with pytest.raises(BadInput, match="model.x: stored activations have no attention maps, got precomputed"):
        plan_attention_readings({"x": stored}, extract)


def source_of(folder):
    return registry.models.get("transformers").function(path=str(folder))


def stream(folder, eager, sequences, **settings):
    """The maps of one model."""
    source = source_of(folder)
    found = plan_attention_readings({"m": source}, Extract(hook_points=["pattern"], unit="word", length=32))
    given = {"special": "drop_renormalise", "hardware": Hardware(batch_size=2), "progress": iter, **settings}
    return list(stream_attention_maps(found, Running({"m": source.load(eager)}, {"m": sequences}), **given))


def test_a_model_without_attention_weights(two_folders, both):
    """What transformers' SDPA gives: nothing, without a word."""
    with pytest.raises(
        RunFailed,
        match="model.m: the model returns no attention weights, got None; use one that runs with eager attention",
    ):
        stream(two_folders["bert"], False, both["pieces"])


def test_a_pattern_of_another_shape(two_folders, both, monkeypatch):
    """A model that attends in windows has such a pattern."""
    monkeypatch.setattr("torch.Tensor.long", lambda x: x[:, :5].to(torch.int64))
    with pytest.raises(
        RunFailed, match=r"pattern@0 of 'm': not attention \(sentence, head, query, key\), got \(1, 4, "
    ):
        stream(two_folders["bert"], True, both["pieces"])


def test_attention_that_goes_to_special_tokens_alone(two_folders, both, monkeypatch):
    def all_to_the_first(pattern, of, special):
        return pool_attention_by_word(torch.zeros_like(pattern).index_fill_(2, torch.tensor(0), 1.0), of, special)

    monkeypatch.setattr("repsim_cli.activations.attention.pool_attention_by_word", all_to_the_first)
    with pytest.raises(
        RunFailed, match=r"model.m: a word's attention does not sum to 1, got an error of nan in sentence 0"
    ):
        stream(two_folders["bert"], True, both["pieces"])
    assert stream(two_folders["bert"], True, both["pieces"], special="keep")


@pytest.mark.parametrize("kind", ["gpt_neox", "llama", "roberta", "distilbert", "albert", "openai-gpt", "xlnet"])
def test_every_architecture_gives_its_attention(tiny_folder, both, kind):
    folder = tiny_folder(kind)
    (found,) = stream(folder, True, both["bytes"], hardware=Hardware(batch_size=9))
    assert found.lengths == [len(words) for words in SENTENCES]
    expected = plainly(folder, SENTENCES)
    for i, sentence in enumerate(found.sentences()):
        for layer, heads in enumerate(found.layers):
            np.testing.assert_allclose(sentence[heads], expected[layer][i], atol=1e-5)


def test_transformer_lens_gives_the_same_maps(tiny_folder, both):
    folder = tiny_folder("gpt2")
    lens = registry.models.get("transformer_lens").function(path=str(folder))
    extract = Extract(hook_points=["pattern"], unit="word", length=32)
    cells = []
    for source in (source_of(folder), lens):
        (one,) = stream_attention_maps(
            plan_attention_readings({"m": source}, extract), Running({"m": source.load(True)}, {"m": both["bytes"]}),
            "drop_renormalise", Hardware(batch_size=9), iter,
        )  # fmt: skip
        cells.append(one.cells)
    torch.testing.assert_close(*cells, atol=1e-5, rtol=0)


def test_what_attention_maps_have_no_use_for(repsim):
    words = ["experiment=tiny/ptb_attention", "model=[tiny_a]", "measure=[attention_js]"]
    assert repsim("run", *words, "extract.estimate=moments")[2].startswith(
        "error: extract.estimate: attention is compared over all sentences at once, got moments; use full"
    )
    assert repsim("run", *words, "significance=permutation")[2].startswith(
        "error: significance: the study attention tests no significance, got permutation; use significance=none"
    )
