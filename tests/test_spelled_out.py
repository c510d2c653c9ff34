"""A token is special because the tokenizer added it, never because of its id: those that a text spells out are tokens of
the text in every unit. Expected rows are those of one text at a time, unpadded, through transformers alone."""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny import perturb
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, BertConfig, ByT5Tokenizer, LlamaConfig, PreTrainedTokenizerFast

from repsim_cli.activations.inputs import describe_inputs, load_tokenizers, make_sequences
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base import registry
from repsim_cli.base.settings import EveryData, Extract, Hardware
from repsim_cli.data.base import apply_keys
from repsim_cli.data.memory import wrap_texts as documents
from repsim_cli.data.packing import pack
from repsim_cli.data.padding import pad
from repsim_cli.runs import reader

VOCABULARY = ["<s>", "</s>", "<unk>", "!", ".", "?", "[", "]", *"abcdefgh"]
# by what is special: the tokens added before, between and behind texts, and the names of tokens
KINDS = {
    "pad is a word": ("", "", "", {"pad_token": "!"}),
    "pad, eos and bos are one token": ("", "", "", {"pad_token": "</s>", "eos_token": "</s>", "bos_token": "</s>"}),
    "pad, eos and bos are one word": ("", "", "", {"pad_token": "!", "eos_token": "!", "bos_token": "!"}),
    "pad is unk": ("", "", "", {"pad_token": "<unk>", "eos_token": "</s>"}),
    "no pad": ("", "", "", {"eos_token": "</s>"}),
    "bos": ("<s>", "", "", {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}),
    "bos is a word": (".", "", "", {"bos_token": ".", "eos_token": "?", "pad_token": "!"}),
    "eos": ("", "", "</s>", {"eos_token": "</s>", "pad_token": "!"}),
    "eos is a word": ("", ".", ".", {"eos_token": ".", "pad_token": "."}),
    "cls and sep": ("<s>", "</s>", "</s>", {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "!"}),
    "cls and two sep": ("<s>", "</s> </s>", "</s>", {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<s>"}),
    "cls and sep are words": ("?", ".", ".", {"cls_token": "?", "sep_token": ".", "pad_token": "!"}),
    "padded on the left": ("<s>", "", "</s>", {"eos_token": "</s>", "pad_token": "!", "padding_side": "left"}),
    "cut on the left": ("<s>", "", "</s>", {"eos_token": "</s>", "pad_token": "!", "truncation_side": "left"}),
}
TEXTS = ["a b ! c", "</s> a", "! ! !", "xyz a <unk> .", "<s> a </s> <s> b", "? !", "d"]
LONG = ". a ? b ! c . d </s> e !"
PAIRS = [("a ! .", "</s> b"), ("! ?", "!"), ("xyz", "<s> <unk>"), ("a", ". .")]
LENGTH = 9
TEMPLATE = "{% for m in messages %}{{ '<s> [ ' + m['content'] + ' ] </s>' }}{% endfor %}"


def tokenizer_of(kind):
    before, between, behind, names = KINDS[kind]
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    whole = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    whole.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {behind}".split(),
        pair=f"{before} $A {between} $B {behind}".split(),
        special_tokens=[(name, ids[name]) for name in {*f"{before} {between} {behind}".split()}],
    )
    return PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="<unk>", **names)


@pytest.fixture(scope="module", params=[LlamaConfig, BertConfig])
def folder(request, tmp_path_factory):
    """A random model, without a tokenizer."""
    size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = AutoModel.from_config(request.param(vocab_size=len(VOCABULARY), **size))
    perturb(model)
    place = tmp_path_factory.mktemp("model")
    model.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def alone(folder):
    """alone(ids): embeddings and the states behind the first block, (2, tokens, d), of a text by itself."""
    module = AutoModel.from_pretrained(folder).eval()

    def states(ids):
        with torch.inference_mode():
            return torch.cat(module(torch.tensor([ids]), output_hidden_states=True).hidden_states[:2])

    return states


@pytest.fixture(scope="module")
def run(folder):
    """run(tokenizer, data, unit): the rows of a run, (2, n, d), and what its manifest says of the data."""
    source = registry.models.get("transformers").function(path=str(folder))
    module = source.load(False)

    def read(tokenizer, data, unit, **settings):
        live = {"m": replace(source, tokenizer=lambda: tokenizer)}
        extract = Extract(hook_points=["embed", "resid_post@0"], unit=unit, length=LENGTH, **settings)
        sequences = make_sequences(live, load_tokenizers(live, data, extract), data, extract, 0)
        given = plan_readings(live, extract), Running({"m": module}, sequences), extract, Hardware(batch_size=5)
        parts = [torch.stack(block.rows) for block in stream_row_blocks(*given, iter)]
        return torch.cat(parts, 1), describe_inputs(sequences, data, extract)[0]

    return read


def close(found, expected):
    expected = torch.cat(expected, 1)
    torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.abs().max()), rtol=0)


def pooled(states, places, unit):
    """The rows of a text. places: those of its tokens that were not added."""
    return {
        "token": states[:, places],
        "mean": states[:, places].mean(1, keepdim=True),
        "first": states[:, :1],
        "last": states[:, -1:],
    }[unit]


def marked(kind, tokenizer, texts):
    """The ids of a text or pair as transformers gives them, and where its own tokens stand."""
    before, between, behind = (len(part.split()) for part in KINDS[kind][:3])
    ids = tokenizer(*texts, truncation=True, max_length=LENGTH)["input_ids"]
    places = list(range(before, len(ids) - behind))
    if len(texts) == 2:
        first = before + len(texts[0].split())
        del places[first - before : first - before + between]
    return ids, places


def table(tmp_path, texts):
    (tmp_path / "a.csv").write_text("\n".join(["text", *texts]) + "\n")
    return registry.data.get("table").function(path=str(tmp_path / "a.csv"))


@pytest.mark.parametrize("kind", KINDS)
def test_texts(run, alone, tmp_path, kind):
    tokenizer = tokenizer_of(kind)
    data = table(tmp_path, [*TEXTS, LONG])
    given = [marked(kind, tokenizer, [text]) for text in (*TEXTS, LONG)]
    states = [alone(ids) for ids, _ in given]
    special = {*KINDS[kind][3].values(), "<unk>"} - {"left"}
    in_text = Counter(VOCABULARY[ids[i]] for ids, places in given for i in places if VOCABULARY[ids[i]] in special)
    for unit in ("token", "mean", "first", "last"):
        found, record = run(tokenizer, data, unit)
        close(found, [pooled(x, places, unit) for x, (_, places) in zip(states, given, strict=True)])
        assert record["special_tokens_in_text"] == {"m": dict(in_text)}
        every = sum(len(ids) for ids, _ in given) if unit == "token" else len(given)
        assert (record["rows_kept"], record["rows_dropped"]) == (found.shape[1], every - found.shape[1])
        assert record["examples_truncated"] == {"m": 1}
    found, _ = run(tokenizer, data, "mean", padding="keep")
    close(found, [x.mean(1, keepdim=True) for x in states])


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_texts(run, alone, tmp_path, kind):
    tokenizer = tokenizer_of(kind)
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\tn\n" for a, b in PAIRS))
    settings = {"columns": ["premise", "hypothesis", "label"], "labels": {"n": "neutral"}}
    data = registry.data.get("mnli").function(path=str(tmp_path / "a.tsv"), **settings)
    given = [marked(kind, tokenizer, pair) for pair in PAIRS]
    for unit in ("token", "mean", "first", "last"):
        close(run(tokenizer, data, unit)[0], [pooled(alone(ids), places, unit) for ids, places in given])


@pytest.mark.parametrize("kind", KINDS)
def test_words_and_spans(run, alone, tmp_path, kind):
    """All that white space separates is a word of a treebank, and marked as a span."""
    tokenizer = tokenizer_of(kind)
    expected = [pooled(alone(ids), places, "token") for ids, places in (marked(kind, tokenizer, [x]) for x in TEXTS)]
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    spans = [[list(word.span()) for word in re.finditer(r"\S+", text)] for text in TEXTS]
    lines = [json.dumps({"text": text, "spans": marks}) for text, marks in zip(TEXTS, spans, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for unit, name, file, more in (("word", "ptb", "a.txt", {}), ("span", "local_text", "a.jsonl", {"spans": "spans"})):
        data = registry.data.get(name).function(path=str(tmp_path / file), **more)
        for piece in ("last", "mean"):
            found, record = run(tokenizer, data, unit, piece=piece)
            close(found, expected)
            assert (record["rows_kept"], record["rows_dropped"]) == (found.shape[1], 0)


@pytest.mark.parametrize("separator", ["auto", "none"])
@pytest.mark.parametrize("kind", ["pad, eos and bos are one token", "pad, eos and bos are one word", "bos is a word"])
def test_packed_text(run, alone, kind, separator):
    """What packing puts before documents is no row; the same token in a document is one."""
    tokenizer = tokenizer_of(kind)
    eos = [] if separator == "none" else [tokenizer.eos_token_id]
    each = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (*TEXTS, LONG)]
    ids = [i for one in each for i in (*eos, *one)]
    real = [added for one in each for added in (*[False] * len(eos), *[True] * len(one))]
    parts = [slice(start, start + LENGTH) for start in range(0, len(ids), LENGTH)]
    states = [(alone(ids[part]), np.flatnonzero(real[part])) for part in parts]
    data = documents([*TEXTS, LONG])
    found, record = run(tokenizer, data, "token", separator=separator)
    close(found, [x[:, places] for x, places in states])
    in_text = sum(one.count(tokenizer.eos_token_id) for one in each)
    assert record["special_tokens_in_text"]["m"][tokenizer.eos_token] == in_text > 0
    assert record["rows_kept"] + record["rows_dropped"] == record["tokens"] == len(ids)
    found, _ = run(tokenizer, data, "sequence", separator=separator, padding="keep", pool=len(ids) // LENGTH)
    close(found, [x.reshape(2, 1, -1) for x, _ in states if x.shape[1] == LENGTH])


@pytest.mark.parametrize("kind", ["pad is a word", "pad, eos and bos are one token", "bos is a word", "cls and sep"])
def test_what_a_chat_template_writes_is_added_and_nothing_else(run, alone, tmp_path, kind):
    tokenizer = tokenizer_of(kind)
    tokenizer.chat_template = TEMPLATE
    data = apply_keys(table(tmp_path, TEXTS), EveryData(chat=True))
    states = [alone(tokenizer(f"<s> [ {x} ] </s>", add_special_tokens=False)["input_ids"]) for x in TEXTS]
    for unit in ("token", "mean", "first", "last"):
        expected = [pooled(x, list(range(2, x.shape[1] - 2)), unit) for x in states]
        close(run(tokenizer, data, unit)[0], expected)


def test_a_tokenizer_in_python():
    found = pad([("a</s>b",), ("<pad>",), ("a",)], ByT5Tokenizer(), length=6, sequences=3, seed=0, source="texts")
    assert found.text.sum(1).tolist() == [3, 1, 1]
    assert found.mask.sum(1).tolist() == [4, 2, 2]


def test_a_separator_in_a_document_has_its_place_there():
    given = {"length": 4, "sequences": 9, "pool": 9, "separator": "auto", "seed": 0}
    found = pack(documents(["! a", "b !"]), tokenizer_of("pad, eos and bos are one word"), **given)
    assert found.document.tolist() == [[-1, 0, 0, -1], [1, 1, -1, -1]]
    assert found.position.tolist() == [[-1, 0, 1, -1], [0, 1, -1, -1]]


def test_skip_tokens_leaves_out_what_texts_spell(run, tmp_path):
    _, record = run(tokenizer_of("eos is a word"), table(tmp_path, TEXTS), "token", skip_tokens=["eos", "unk"])
    assert record["special_tokens_in_text"] == {"m": {".": 1, "<unk>": 2}}
    assert (record["rows_kept"], record["rows_skipped"]) == (21 - 3, 3)


def test_a_run_counts_them(repsim, newest, folder, tmp_path):
    tokenizer_of("pad is a word").save_pretrained(folder)
    table(tmp_path, TEXTS * 5)
    code, _, err = repsim(
        "run", "-q", "model=[]", f"+model.m={{kind: transformers, path: {folder}}}", "data=table",
        f"data.path={tmp_path / 'a.csv'}", "extract=pooled", "measure=[cka]",
    )  # fmt: skip
    assert code == 0, err
    manifest = reader.read_manifest(newest())["data"]
    assert manifest["special_tokens_in_text"] == {"m": {"!": 25, "<unk>": 10}}
    assert (manifest["rows_kept"], manifest["rows_dropped"]) == (35, 0)
