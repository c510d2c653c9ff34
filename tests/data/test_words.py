"""Words as the common grid: pieces of words under any tokenizer, long sentences, words that get lost, rows of words."""

import numpy as np
import pytest
import torch
from helpers.treebanks import SENTENCES, WORDS, conllu
from helpers.word_rows import extract, grid
from hypothesis import given
from hypothesis import strategies as st

from repsim_cli.activations.inputs import describe_inputs, load_tokenizers, make_sequences
from repsim_cli.activations.places import count_kept_rows, have_same_rows, list_row_documents
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import pool_words, stream_row_blocks
from repsim_cli.activations.stored import Running, make_activations_key
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Hardware
from repsim_cli.data.treebank import Treebank
from repsim_cli.data.words import check_offsets, find_word_spans
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.runs import reader

GRID = [(i, j) for i, words in enumerate(SENTENCES) for j in range(len(words))]


def treebank(tmp_path, sentences=SENTENCES):
    (tmp_path / "a.conllu").write_text(conllu(sentences))
    return registry.data.get("ewt").function(path=str(tmp_path / "a.conllu"))


def aligned(sentences, tokenizer, **settings):
    data = Treebank(lambda: iter(sentences), "data")
    several = tokenizer if isinstance(tokenizer, dict) else {"m": tokenizer}
    found = data.align(several, extract(**{"length": 64, "sequences": 1000} | settings), 0)
    return found if isinstance(tokenizer, dict) else found["m"]


@pytest.mark.parametrize("piece", ["last", "first", "mean"])
@pytest.mark.parametrize("length", [32, 8])
def test_every_tokenizer_gives_the_same_words_in_the_same_order(tmp_path, three, piece, length):
    settings = extract(piece=piece, length=length)
    found = treebank(tmp_path).align(three, settings, 0)
    shapes = {label: sequences.mask.sum() for label, sequences in found.items()}
    assert len(set(shapes.values())) == 3  # they differ in their tokens
    for sequences in found.values():
        assert grid(sequences, settings) == GRID
        assert list_row_documents(sequences, settings).tolist() == [sentence for sentence, _ in GRID]
        assert have_same_rows(found["bytes"], sequences, settings)
        assert sequences.example.tolist() == found["bytes"].example.tolist()
        assert np.array_equal(sequences.position, sequences.word)
        assert not sequences.word[~sequences.text].clip(0).any()
    assert found["words"].split == (length == 8) * 2
    assert found["words"].text.sum() == WORDS


WORD = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=8)


@given(st.lists(WORD, min_size=1, max_size=12), st.sampled_from([6, 64]))
def test_pieces_of_bytes_make_the_word(tokenizer_folder, words, length):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    sequences = aligned([words], tokenizer, length=length)
    made = {}
    for ids, word in zip(sequences.ids, sequences.word, strict=True):
        for number in dict.fromkeys(word[word >= 0].tolist()):
            assert number not in made
            made[number] = tokenizer.decode(ids[word == number]).removeprefix(" ")
    assert list(made) == list(range(len(words)))
    if not sequences.truncated:
        assert list(made.values()) == words


@given(st.data())
def test_word_pieces_make_the_word(bert_tokenizer, data):
    known = bert_tokenizer.get_vocab()
    letters = [c for c in "abcdefghijklmnopqrstuvwxyz" if c in known and f"##{c}" in known]
    words = data.draw(st.lists(st.text(letters, min_size=1, max_size=8), min_size=1, max_size=12))
    sequences = aligned([words], bert_tokenizer, length=128)
    ids, word = sequences.ids[0], sequences.word[0]
    assert (word >= 0).sum() == len(ids) - 2
    made = [bert_tokenizer.convert_ids_to_tokens(ids[word == i].tolist()) for i in range(len(words))]
    assert ["".join(token.removeprefix("##") for token in tokens) for tokens in made] == words


def test_long_sentences_are_split_at_the_same_words_for_all(three):
    words = SENTENCES[1]
    found = aligned([["we", "met"], words], three, length=9)
    counts = [three["bytes"](" ".join(words[:i]))["input_ids"] for i in range(1, 9)]
    fits = sum(len(ids) <= 9 for ids in counts)
    assert 1 < fits < 8
    for sequences in found.values():
        assert sequences.word[1].max() + 1 == fits
        assert sequences.example[:2].tolist() == [0, 1]
        assert (sequences.mask.sum(1) <= 9).all()
        assert sequences.split == 1
    # each stretch has the template's tokens
    assert (found["pieces"].ids[:, 0] == three["pieces"].cls_token_id).all()
    settings = extract(length=9)
    assert grid(found["bytes"], settings) == [(0, 0), (0, 1), *((1, j) for j in range(8))]
    with pytest.raises(BadInput, match=r"extract.length: text 1 .'a dog runs .*has 21 tokens for 'bytes', got a len"):
        aligned([["we", "met"], words], three, length=9, long="refuse")
    assert aligned([["we", "met"]], three, length=9, long="refuse")["bytes"].split == 0


@pytest.mark.parametrize(("keep", "ids"), [("last", slice(-4, None)), ("first", slice(4))])
def test_a_word_longer_than_a_stretch_keeps_the_pieces_that_fit(gpt_tokenizer, bert_tokenizer, keep, ids):
    word = "x" * 9 + "yz"
    sequences = aligned([["a", word, "a"]], gpt_tokenizer, length=4, piece=keep)
    assert sequences.truncated == 1
    whole = gpt_tokenizer(word)["input_ids"]
    assert len(whole) > 4
    assert sequences.ids[1].tolist() == whole[ids]
    assert [set(row[row >= 0]) for row in sequences.word] == [{0}, {1}, {2}]
    pair = aligned([["we", "runs"]], bert_tokenizer, length=3, piece=keep)
    assert pair.ids[:, 0].tolist() == [bert_tokenizer.cls_token_id] * 2
    assert pair.ids[:, -1].tolist() == [bert_tokenizer.sep_token_id] * 2


def test_sentences_whose_words_get_lost_are_left_out_for_all(tmp_path, three, caplog):
    import transformers
    from tokenizers import Tokenizer, models

    whole = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    merging = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="[UNK]")
    sentences = [["we", "met"], ["we", "\u200b", "met"], ["rain"]]
    found = aligned(sentences, three)
    for sequences in found.values():
        assert sequences.example.tolist() == [0, 2]
        assert (sequences.dropped, sequences.lost) == ({"a word without a token": 1}, 3)
    found = aligned(sentences, {**three, "whole": merging})
    assert found["bytes"].example.tolist() == [2]
    assert found["bytes"].dropped == {"a token of two words": 1, "a word without a token": 1}
    with pytest.raises(BadInput, match="data: no word is left, got 1 with a token of two words; use other data"):
        aligned([["we", "met"]], merging)
    record, notices = describe_inputs(aligned(sentences, three), treebank(tmp_path), extract(sequences=3))
    assert (record["rows_kept"], record["rows_dropped"], record["sentences_split"]) == (3, 3, 0)
    assert any("1 examples of" in notice and "(a word without a token)" in notice for notice in notices)


def test_empty_sentences_are_counted(tmp_path, gpt_tokenizer):
    (tmp_path / "a.txt").write_text("we met\n\n \nrain falls .\n")
    data = registry.data.get("ptb").function(path=str(tmp_path / "a.txt"))
    sequences = data.sequences(gpt_tokenizer, extract(), 0)
    assert sequences.dropped == {"no word": 2}
    assert sequences.example.tolist() == [0, 1]


def test_notices(tmp_path, three):
    data = treebank(tmp_path, [*SENTENCES, ["x" * 30]])
    record, notices = describe_inputs(data.align(three, extract(length=9), 0), data, extract(length=9, sequences=5))
    assert record["rows_kept"] == WORDS + 1
    assert record["sentences_split"] == 1
    assert notices[0].startswith("extract.length: 1 words have their pieces cut to 9 tokens for 'bytes'")
    assert "extract.length: 1 texts are longer than 9 tokens for some model and are read in several" in notices[-1]


def test_what_cannot_be_aligned(three):
    class Slow:
        is_fast = False

    with pytest.raises(BadInput, match="tokenizer: words are found by character offsets, got Slow without any; save"):
        check_offsets(Slow())
    with pytest.raises(BadInput, match="extract.length: too short for 2 special tokens and a word of 'pieces', got 2"):
        aligned(SENTENCES, three, length=2)
    images = registry.data.get("digits").function()
    with pytest.raises(BadInput, match="extract.unit: words need text, got scikit-learn digits; use extract=tokens"):
        load_tokenizers({}, images, extract())


def test_rows_are_the_pieces_of_each_sentence_alone(tmp_path, tiny_folder, bert_tokenizer, gpt_tokenizer):
    """Each sentence by itself, unpadded, through the library; models with other tokenizers see the same words."""
    data = treebank(tmp_path)
    live = {kind: registry.models.get("transformers").function(path=str(tiny_folder(kind))) for kind in ("bert", "gpt2")}  # fmt: skip
    modules = {kind: source.load(False) for kind, source in live.items()}
    by_model = {"bert": bert_tokenizer, "gpt2": gpt_tokenizer}
    for piece in ("last", "first", "mean"):
        settings = extract(piece=piece)
        sequences = make_sequences(live, by_model, data, settings, 0)
        found = plan_readings(live, settings)
        stream = stream_row_blocks(found, Running(modules, sequences), settings, Hardware(batch_size=3), iter)
        rows = [torch.cat(layer) for layer in zip(*[block.rows for block in stream], strict=True)]
        assert {len(x) for x in rows} == {WORDS}
        layers = [layer for reading in found for layer in reading.layers]
        for place, layer in enumerate(layers):
            if layer.name == "resid_post@2" and layer.model == "gpt2":
                continue  # the library's is taken after the final norm
            depth = 0 if layer.name == "embed" else int(layer.name[-1]) + 1
            expected = []
            for words in SENTENCES:
                given = by_model[layer.model](" ".join(words), return_tensors="pt")
                number = torch.tensor([-1 if w is None else w for w in words_of(given, words)])
                with torch.inference_mode():
                    states = modules[layer.model](**given, output_hidden_states=True).hidden_states[depth][0]
                for word in range(len(words)):
                    x = states[number == word]
                    expected.append({"last": x[-1], "first": x[0], "mean": x.mean(0)}[piece])
            torch.testing.assert_close(rows[place], torch.stack(expected), atol=1e-4, rtol=1e-4)


def words_of(given, words):
    """The word of every token, by counting spaces before its last character; None for special ones and for spaces."""
    text = " ".join(words)
    for token in range(given["input_ids"].shape[1]):
        span = given.token_to_chars(0, token)
        said = "" if span is None else text[span.start : span.end].strip()
        yield text[: span.end].rstrip().count(" ") if said else None


def test_pool_words():
    x = torch.tensor([[[1.0], [3.0], [8.0]], [[5.0], [float("nan")], [7.0]]])
    assert pool_words(x, torch.tensor([[0, 0, 1], [1, -1, 1]])).tolist() == [[2.0], [8.0], [6.0]]


def test_the_piece_is_in_the_key_of_the_cache(tmp_path, gpt_tokenizer):
    sequences = treebank(tmp_path).sequences(gpt_tokenizer, extract(), 0)
    keys = {
        make_activations_key({"weights_hash": "a"}, sequences, extract(**settings), [], "float32")
        for settings in ({"piece": "last"}, {"piece": "first"}, {"unit": "mean", "piece": "last"})
    }
    assert len(keys) == 3


@pytest.mark.slow
def test_runs_on_words_need_the_same_words(repsim, newest, tmp_path):
    """End to end, with a permutation null that moves whole sentences."""
    rng = np.random.default_rng(0)
    vocabulary = sorted({word for words in SENTENCES for word in words})
    treebank(tmp_path, [[vocabulary[i] for i in rng.integers(0, len(vocabulary), 5)] for _ in range(25)])
    code, _, err = repsim(
        "run", "model=[tiny_a,tiny_b]", "data=ewt", f"data.path={tmp_path / 'a.conllu'}", "measure=[cka,neuronsim]",
        "extract=tokens", "extract.unit=word", "extract.length=32", "extract.skip=0", "extract.estimate=full",
        "significance=permutation", "significance.permutations=19", "hardware.threads=1",
    )  # fmt: skip
    assert code == 0, err
    assert reader.read_manifest(newest())["rows"] == 125


def test_shipped_sentences_under_shipped_tokenizers():
    """Four kinds of tokens, the space among them for one; every word of every sentence."""
    data = registry.data.get("embedded_sentences").function()
    sentences = data.sentences()
    assert len(sentences) == 240
    names = ("tiny_a", "word_pieces", "unigrams", "characters")
    found = data.align({name: load_tokenizer(name) for name in names}, extract(length=128, sequences=240), 0)
    words = sum(map(len, sentences))
    for sequences in found.values():
        assert count_kept_rows(sequences, extract()).sum() == words
        assert sequences.dropped == {}
    assert found["characters"].split > 0
    said = found["unigrams"]
    pieces = load_tokenizer("unigrams").convert_ids_to_tokens(said.ids[0][said.word[0] == 0].tolist())
    assert "".join(pieces).replace("\u2581", "") == sentences[0][0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't can\u2019t l'avion \u2018so\u2019", ["I", "don't", "can\u2019t", "l'avion", "so"]),
        ("3.14 1,000.50 50% $5 -7 3/4 1st x2", ["3.14", "1,000.50", "50", "5", "7", "3", "4", "1st", "x2"]),
        ("e.g. U.S.A. a-b snake_case _ ok", ["e.g", "U.S.A", "a", "b", "snake_case", "ok"]),
        ("me@ex.org http://x.org/a", ["me", "ex.org", "http", "x.org", "a"]),
        ("no \U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea \u2014 ...!?", ["no"]),
        ("\u5317\u4eac\u5e02 \u30ab\u30bf \u3053\u3093", ["\u5317", "\u4eac", "\u5e02", "\u30ab\u30bf", "\u3053", "\u3093"]),
        ("\u0e01\u0e34\u0e19", ["\u0e01\u0e34", "\u0e19"]),  # Thai, without a dictionary
        ("cafe\u0301 na\u0308ive", ["cafe\u0301", "na\u0308ive"]),
        ("\u05e6\u05d4\"\u05dc \u0645\u0631\u062d\u0628\u0627", ["\u05e6\u05d4\"\u05dc", "\u0645\u0631\u062d\u0628\u0627"]),
        ("\ud55c\uad6d\uc5b4 \ub2e8\uc5b4", ["\ud55c\uad6d\uc5b4", "\ub2e8\uc5b4"]),
        ("one\r\ntwo\n\n three", ["one", "two", "three"]),
        ("", []),
        (" .,;\n", []),
    ],
)  # fmt: skip
def test_words_by_the_rules_of_unicode(text, words):
    assert [text[a:b] for a, b in find_word_spans(text)] == words
