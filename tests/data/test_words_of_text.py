"""Words of plain text and of pairs, and spans of them: the same under every tokenizer."""

import numpy as np
import pytest
import torch
from helpers.word_rows import extract, grid

from repsim_cli.activations.inputs import describe_inputs, load_tokenizers, make_sequences
from repsim_cli.activations.places import have_same_rows
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Hardware
from repsim_cli.data import packing
from repsim_cli.data.packing import Text
from repsim_cli.data.words import find_word_spans
from repsim_cli.runs import reader


def said(sequences, texts):
    """The words of every row, by document and number: no word is in two sequences, all ascend."""
    for row in range(len(sequences.ids)):
        inside = sequences.word[row][sequences.word[row] >= 0]
        assert (np.diff(inside) >= 0).all()
    rows = grid(sequences, extract())
    assert rows == sorted(set(rows))
    words = [[text[a:b] for a, b in find_word_spans(text)] for text in texts]
    return [words[document][word] for document, word in rows]


def plain(documents):
    return Text(lambda: (document for document in documents), "documents")


DOCUMENTS = [
    'He said: "It isn\'t 3.14\u2014no!"  Then,\n\n(after a while) he left. ' * 3,
    "A short one.",
    "...",
    "A dog runs outside; \u201cwe\u201d met a cat, e.g. the grey cat of J.R.R. Smith-Jones. " * 4,
]


@pytest.mark.parametrize("length", [12, 64])
def test_words_of_plain_text_are_the_same_for_every_tokenizer(three, length):
    data = plain(DOCUMENTS)
    three = {
        label: tokenizer for label, tokenizer in three.items() if label != "words"
    }  # which knows white space alone
    found = data.align(three, extract(length=length), 0)
    every = [text[a:b] for text in DOCUMENTS for a, b in find_word_spans(text)]
    for sequences in found.values():
        assert have_same_rows(found["bytes"], sequences, extract())
        assert said(sequences, DOCUMENTS) == every
        assert sequences.mask.sum(1).max() <= length
        assert sequences.dropped == {"no word": 1}
        assert (sequences.lost, sequences.split, sequences.documents) == (0, 0, 4)
    if length == 64:
        # nothing of the text is lost at the cuts, punctuation included; the white space there is
        tokenizer = three["bytes"]
        kept = [tokenizer.decode(ids[text]) for ids, text in zip(found["bytes"].ids, found["bytes"].text, strict=True)]
        first = [part for part, document in zip(kept, found["bytes"].example, strict=True) if document == 0]
        assert len(first) > 1
        assert "".join("".join(first).split()) == "".join(DOCUMENTS[0].split())


def test_stretches_of_text_are_drawn_from_the_pool(gpt_tokenizer):
    data = plain(DOCUMENTS)
    every = data.sequences(gpt_tokenizer, extract(length=12), 0)
    few = data.sequences(gpt_tokenizer, extract(length=12, pool=5, sequences=3), 0)
    assert len(every.ids) > 5
    assert len(few.ids) == 3
    longest = few.ids.shape[1]
    pool = [tuple(ids[:longest]) for ids in every.ids[:5].tolist()]
    assert all(tuple(ids) in pool for ids in few.ids.tolist())


def test_long_documents_count_their_words_on(gpt_tokenizer):
    documents = [DOCUMENTS[0] * (packing.WINDOW // len(DOCUMENTS[0]) + 1), *DOCUMENTS[1:]]
    data = plain(documents)
    assert said(data.sequences(gpt_tokenizer, extract(length=64, sequences=10_000, pool=10_000), 0), documents) == [
        text[a:b] for text in documents for a, b in find_word_spans(text)
    ]


def test_words_that_a_tokenizer_merges_are_left_out_for_all(gpt_tokenizer):
    """Han: a token of two characters, which are two words. The others of the text stay."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["[UNK]", "\u5317\u4eac", "\u5e02", "\u5927", "\u5b66"]
    level = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)} | {f"##{n}": i + 9 for i, n in enumerate(names[2:])}, unk_token="[UNK]"))  # fmt: skip
    level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    merging = transformers.PreTrainedTokenizerFast(tokenizer_object=level, unk_token="[UNK]")
    data = plain(["\u5317\u4eac\u5e02 \u5927", "\u5b66"])
    found = data.align({"bytes": gpt_tokenizer, "merging": merging}, extract(sequences=2), 0)
    for sequences in found.values():
        assert grid(sequences, extract()) == [(0, 2), (0, 3), (1, 0)]
        assert sequences.words_dropped == {"a token of two words": 2}
        assert sequences.lost == 2
    record, notices = describe_inputs(found, data, extract(sequences=2))
    assert (record["rows_kept"], record["rows_dropped"]) == (3, 2)
    assert "data: 2 words of documents are left out for all models (a token of two words)" in notices
    with pytest.raises(BadInput, match="documents: no word is left, got 2 with a token of two words; use other data"):
        plain(["\u5317\u4eac"]).align({"merging": merging}, extract(), 0)


PAIRS = [
    ("A man isn't asleep.", "A dog, e.g. a cat, runs!", "neutral"),
    ("We met.", "We met.", "entailment"),
    ("word " * 40, "We met.", "contradiction"),
]


def test_words_of_pairs(tmp_path, bert_tokenizer, gpt_tokenizer):
    """The words of both texts in one count; a pair that is too long is left out, and no pair is split."""
    import json

    rows = [{"premise": a, "hypothesis": b, "label": label} for a, b, label in PAIRS]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = registry.data.get("mnli").function(path=str(tmp_path / "a.jsonl"))
    found = data.align({"bytes": gpt_tokenizer, "pieces": bert_tokenizer}, extract(length=48), 0)
    for sequences in found.values():
        assert have_same_rows(found["bytes"], sequences, extract())
        assert said(sequences, [f"{a} {b}" for a, b, _ in PAIRS]) == [
            "A", "man", "isn't", "asleep", "A", "dog", "e.g", "a", "cat", "runs", "We", "met", "We", "met",
        ]  # fmt: skip
        assert sequences.dropped == {"a pair of more than 48 tokens": 1}
        assert sequences.lost == 42
        assert sequences.labels.codes.tolist() == [1, 0]
    pieces = found["pieces"]
    of_second = pieces.segments[0][pieces.word[0] >= 4]
    assert (of_second == 1).all()
    assert (pieces.segments[0][(pieces.word[0] >= 0) & (pieces.word[0] < 4)] == 0).all()


def test_labels_follow_the_stretches_of_an_example(tmp_path, bert_tokenizer, gpt_tokenizer):
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\n{'a good film ' * 9}\t1\nbad .\t0\n")
    data = registry.data.get("sst2").function(path=str(tmp_path / "dev.tsv"))
    for sequences in data.align({"bytes": gpt_tokenizer, "pieces": bert_tokenizer}, extract(length=12), 0).values():
        assert sequences.example.tolist() == [0] * (len(sequences.ids) - 1) + [1]
        assert sequences.labels.codes.tolist() == [1] * (len(sequences.ids) - 1) + [0]
        assert sequences.split == 1
    with pytest.raises(BadInput, match=r"extract.length: text 0 .'a good film .* tokens for .*; raise it, or cut long"):
        data.align({"bytes": gpt_tokenizer}, extract(length=12, long="refuse"), 0)


def test_special_tokens_that_a_text_spells_out_are_words(bert_tokenizer, gpt_tokenizer):
    data = plain(["we [SEP] met"])
    for sequences in data.align({"bytes": gpt_tokenizer, "pieces": bert_tokenizer}, extract(), 0).values():
        assert grid(sequences, extract()) == [(0, 0), (0, 1), (0, 2)]
        assert not sequences.words_dropped


@pytest.mark.parametrize(
    "data", [["data=embedded"], ["data=local_text", "data.path=TXT"], ["data=sst2", "data.path=SST"]]
)
def test_models_with_different_tokenizers_meet_on_the_words_of_any_text(repsim, newest, tmp_path, tiny_folder, data):
    (tmp_path / "a.txt").write_text("\n".join(DOCUMENTS))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "".join(f"a good film {i}, isn't it\t1\nbad .\t0\n" for i in range(20)))  # fmt: skip
    named = [word.replace("TXT", str(tmp_path / "a.txt")).replace("SST", str(tmp_path / "dev.tsv")) for word in data]
    folders = (f"+model.{kind}={{kind: transformers, path: {tiny_folder(kind)}}}" for kind in ("bert", "gpt2"))
    code, _, err = repsim(
        "run", "-q", "model=[]", *folders, *named, "extract=words", "extract.sequences=20", "measure=[cka]",
        "extract.layers=[-1]",
    )  # fmt: skip
    assert code == 0, err
    about = reader.read_manifest(newest())["data"]
    assert about["unit"] == "word"
    assert about["rows_kept"] > 20


SPANS = [
    ("New York, a big city; Los Angeles too.", [[0, 8], [12, 20], [22, 33]]),
    ("nothing is marked here", []),
    ("an \u201cold\u201d  man isn't \u5317\u4eac here", [[3, 8], [10, 19], [20, 22]]),
]


def spanned(tmp_path, rows=SPANS):
    import json

    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text, "np": spans}) for text, spans in rows))
    return registry.data.get("local_text").function(path=str(tmp_path / "a.jsonl"), spans="np")


@pytest.mark.parametrize("length", [64, 8])
def test_spans_are_the_same_for_every_tokenizer(tmp_path, bert_tokenizer, gpt_tokenizer, length):
    found = spanned(tmp_path).align(
        {"bytes": gpt_tokenizer, "pieces": bert_tokenizer}, extract(unit="span", length=length), 0
    )
    for sequences in found.values():
        assert grid(sequences, extract(unit="span")) == [(i, j) for i in (0, 2) for j in range(3)]
        assert have_same_rows(found["bytes"], sequences, extract(unit="span"))
        assert sequences.dropped == {"no span": 1}
        assert sequences.mask.sum(1).max() <= length
    if length == 64:
        ids, word = found["bytes"].ids, found["bytes"].word
        texts = [gpt_tokenizer.decode(ids[row][word[row] == j]).strip() for row in range(2) for j in range(3)]
        assert texts == [text[a:b] for text, spans in SPANS for a, b in spans]


def test_a_span_is_pooled_over_its_tokens(tmp_path, tiny_folder, gpt_tokenizer):
    data, settings = spanned(tmp_path), extract(unit="span", piece="mean", hook_points=["embed"])
    live = {"m": registry.models.get("transformers").function(path=str(tiny_folder("gpt2")))}
    modules = {"m": live["m"].load(False)}
    sequences = make_sequences(live, load_tokenizers(live, data, settings), data, settings, 0)
    (block,) = stream_row_blocks(plan_readings(live, settings), Running(modules, sequences), settings, Hardware(), iter)
    text, spans = SPANS[0]
    given = gpt_tokenizer(text, return_offsets_mapping=True)
    with torch.inference_mode():
        states = modules["m"](torch.tensor([given["input_ids"]]), output_hidden_states=True).hidden_states[0][0]
    for row, (a, b) in zip(block.rows[0], spans, strict=False):
        inside = [max(start, a) < min(end, b) for start, end in given["offset_mapping"]]
        torch.testing.assert_close(row, states[torch.tensor(inside)].mean(0), atol=1e-5, rtol=1e-5)


def test_spans_that_a_tokenizer_cannot_tell_apart_are_left_out_for_all(tmp_path, bert_tokenizer, gpt_tokenizer):
    """Parts of a word piece; the byte-level tokenizer alone could."""
    (piece,) = [word for word in ("runs", "outside", "falls") if len(bert_tokenizer.tokenize(word)) == 1][:1]
    data = spanned(
        tmp_path, [(f"a dog {piece} now", [[2, 5], [6, 7], [7, 9], [-3 + 10 + len(piece), 10 + len(piece)]])]
    )
    found = data.align({"bytes": gpt_tokenizer, "pieces": bert_tokenizer}, extract(unit="span"), 0)
    for sequences in found.values():
        assert grid(sequences, extract(unit="span")) == [(0, 0), (0, 3)]
        assert sequences.words_dropped == {"a token of two spans": 2}
    _, notices = describe_inputs(found, data, extract(unit="span", sequences=1))
    assert f"data: 2 spans of {tmp_path / 'a.jsonl'} are left out for all models (a token of two spans)" in notices


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ([[3, 2]], r"line 1: not a span of the text behind the one before, got \[3, 2\] after 0; write \[START, END\] with 0 <= START < END <= 9"),
        ([[0, 4], [3, 5]], r"got \[3, 5\] after 4; write"),
        ([[0, 10]], r"got \[0, 10\] after 0"),
        ([["a", 2]], r"got \['a', 2\] after 0"),
        ([[0, True]], r"got \[0, True\] after 0"),
        ("x", "got 'x' after 0"),
        ([1, 2], "got 1 after 0"),
    ],
)  # fmt: skip
def test_bad_spans(tmp_path, marks, message):
    with pytest.raises(BadInput, match=message):
        spanned(tmp_path, [("some text", marks)])


def test_data_without_spans(tmp_path, tiny_folder):
    (tmp_path / "a.txt").write_text("some text")
    load = registry.data.get("local_text").function
    with pytest.raises(BadInput, match="spans: a .txt file has none, got 'np'; write .jsonl with the texts and their"):
        load(path=str(tmp_path / "a.txt"), spans="np")
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}')
    with pytest.raises(BadInput, match="line 1: no column 'np', got text; set data.spans"):
        load(path=str(tmp_path / "a.jsonl"), spans="np")
    source = registry.models.get("transformers").function(path=str(tiny_folder("bert")))
    message = (
        "extract.unit: spans need data that marks them, got .*a.txt; name their column: data=local_text data.spans="
    )
    with pytest.raises(BadInput, match=message):
        load_tokenizers({"m": source}, load(path=str(tmp_path / "a.txt")), extract(unit="span"))


def test_a_run_on_spans(repsim, newest, tmp_path, tiny_folder):
    spanned(tmp_path, SPANS * 4)
    folders = (f"+model.{kind}={{kind: transformers, path: {tiny_folder(kind)}}}" for kind in ("bert", "gpt2"))
    code, _, err = repsim(
        "run", "-q", "model=[]", *folders, "data=local_text", f"data.path={tmp_path / 'a.jsonl'}", "data.spans=np",
        "extract=words", "extract.unit=span", "extract.piece=mean", "measure=[cka]",
    )  # fmt: skip
    assert code == 0, err
    about = reader.read_manifest(newest())["data"]
    assert (about["unit"], about["rows_kept"]) == ("span", 24)
