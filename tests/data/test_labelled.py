"""Labelled text and treebanks: official formats, labels by name, pairs, and what is said of bad files."""

import io
import json
import urllib.request

import datasets
import numpy as np
import pytest
from helpers.data_files import load, table

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.labelled import Example, Examples

EXTRACT = Extract(hook_points=["embed"], unit="mean", length=32, sequences=1000)
MNLI = [
    "index",
    "promptID",
    "pairID",
    "genre",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
    "sentence1",
    "sentence2",
    "label1",
    "gold_label",
]
HANS = [
    "gold_label",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
    "sentence1",
    "sentence2",
    "pairID",
    "heuristic",
    "subcase",
    "template",
]
PAIRS = [("Rain falls.", 'It is "wet" outside.'), ("A dog runs", "A cat runs"), ("We met", "We did meet")]


def labels_of(sequences):
    return [sequences.labels.names[code] for code in sequences.labels.codes]


MNLI_ROWS = [
    {"sentence1": a, "sentence2": b, "gold_label": label}
    for (a, b), label in zip(PAIRS, ["contradiction", "-", "entailment"], strict=True)
]


def test_mnli_in_the_official_format(tmp_path, gpt_tokenizer):
    file = table(tmp_path / "dev_matched.tsv", MNLI, MNLI_ROWS)
    for path in (file, tmp_path):
        data = load("mnli", path)
        assert [e if isinstance(e, str) else e.texts for e in data.read()] == [PAIRS[0], "no gold label", PAIRS[2]]
        found = data.sequences(gpt_tokenizer, EXTRACT, 0)
        assert labels_of(found) == ["contradiction", "entailment"]
        assert found.labels.names == ("entailment", "neutral", "contradiction")
        assert found.labels.counts() == {"entailment": 1, "neutral": 0, "contradiction": 1}
        assert found.dropped == {"no gold label": 1}
        assert found.documents == 2


@pytest.mark.parametrize(
    ("kind", "name", "content", "texts", "labels"),
    [
        ("sst2", "dev.tsv", "sentence\tlabel\nit 's \"good \t1\nbad\t0\n", [("it 's \"good ",), ("bad",)], ["positive", "negative"]),
        ("qnli", "dev.tsv", "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tnot_entailment\n", [("Who?", "He.")], ["not_entailment"]),
        ("qqp", "dev.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA?\tB?\t1\n", [("A?", "B?")], ["duplicate"]),
        ("qqp", "train.csv", 'id,question1,question2,is_duplicate\n1,"A, b?",C?,0\n', [("A, b?", "C?")], ["not_duplicate"]),
        ("yelp", "test.csv", '"2","Good, ""very""\\n"\n"1","Bad"\n', [('Good, "very"\\n',), ("Bad",)], ["positive", "negative"]),
        ("mnli", "dev.jsonl", json.dumps({"sentence1": "A", "sentence2": "B", "gold_label": "neutral"}) + "\n", [("A", "B")], ["neutral"]),
    ],
)  # fmt: skip
def test_official_formats(tmp_path, kind, name, content, texts, labels):
    (tmp_path / name).write_text(content)
    found = list(load(kind, tmp_path / name).read())
    assert [example.texts for example in found] == texts
    assert [example.label for example in found] == labels


def test_files_of_other_forms(tmp_path):
    """Files without a header, and with labels written another way, are read only when told so."""
    (tmp_path / "a.tsv").write_text("fine film\t1\n")
    (tmp_path / "b.txt").write_text("0 a dull place\n")
    with pytest.raises(BadInput, match=r"line 2: no column 'sentence', got 'fine film', '1'; .* e.g. data.columns=\[sentence,label\]"):  # fmt: skip
        (tmp_path / "a2.tsv").write_text("fine film\t1\nbad film\t0\n")
        load("sst2", tmp_path / "a2.tsv")
    (example,) = load("sst2", tmp_path / "a.tsv", columns=["sentence", "label"]).read()
    assert (example.texts, example.label) == (("fine film",), "positive")
    spelled = {0: "negative", 1: "positive"}
    (example,) = load("yelp", tmp_path / "b.txt", columns=["label", "text"], labels=spelled).read()
    assert (example.texts, example.label) == (("a dull place",), "negative")
    with pytest.raises(BadInput, match=r"line 1: unknown label, got '0'; known: negative, positive, 1 \(negative\), 2 \(positive\); set data.labels='\{0: NAME\}'"):  # fmt: skip
        load("yelp", tmp_path / "b.txt", columns=["label", "text"])
    with pytest.raises(BadInput, match="labels.0: no such label, got 'negativ'; did you mean 'negative'"):
        load("yelp", tmp_path / "b.txt", labels={0: "negativ"})


def test_hans_by_heuristic_and_subcase(tmp_path):
    rows = [
        {"gold_label": "entailment", "sentence1": "A", "sentence2": "B", "heuristic": "constituent", "subcase": "ce_adverb"},
        {"gold_label": "non-entailment", "sentence1": "C", "sentence2": "D", "heuristic": "lexical_overlap", "subcase": "ln_passive"},
    ]  # fmt: skip
    file = table(tmp_path / "heuristics_evaluation_set.txt", HANS, rows)
    for settings, expected in {
        (): ["A", "C"],
        (("heuristics", "lexical_overlap"),): ["C"],
        (("subcases", "ce_adverb"),): ["A"],
        (("heuristics", "constituent"), ("subcases", "ce_adverb")): ["A"],
    }.items():
        found = load("hans", file, **{name: [value] for name, value in settings}).read()
        assert [example.texts[0] for example in found] == expected
    for settings, message in [
        ({"heuristics": ["lexical_overlp"]}, "heuristics: no such heuristic, got 'lexical_overlp'; did you mean 'lexical_overlap'"),
        ({"subcases": ["ln_pasive"]}, "subcases: no such subcase, got 'ln_pasive'; did you mean 'ln_passive'"),
        ({"heuristics": ["constituent"], "subcases": ["ln_passive"]}, "subcases: no such subcase of constituent, got 'ln_passive'; known: ce_adverb"),
    ]:  # fmt: skip
        with pytest.raises(BadInput, match=message):
            load("hans", file, **settings)


def by_number(names, labels):
    features = datasets.Features(
        premise=datasets.Value("string"), hypothesis=datasets.Value("string"), label=datasets.ClassLabel(names=names)
    )
    rows = {"premise": [a for a, _ in PAIRS], "hypothesis": [b for _, b in PAIRS], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize("where", ["hub", "parquet"])
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["entailment", "neutral", "contradiction"], ["entailment", "contradiction"]),
        (["contradiction", "entailment", "neutral"], ["contradiction", "neutral"]),
    ],
)
def test_numbers_of_the_hub_are_read_by_name(tmp_path, monkeypatch, gpt_tokenizer, where, names, expected):
    found = by_number(names, [0, -1, 2])
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or found)
    if where == "parquet":
        found.to_parquet(tmp_path / "a.parquet")
    data = load("mnli", tmp_path / "a.parquet" if where == "parquet" else None, split="validation_mismatched")
    sequences = data.sequences(gpt_tokenizer, EXTRACT, 0)
    assert labels_of(sequences) == expected
    assert sequences.labels.names == ("entailment", "neutral", "contradiction")
    assert sequences.dropped == {"no gold label": 1}
    if where == "hub":
        assert asked == [(("nyu-mll/glue", "mnli"), {"split": "validation_mismatched", "revision": None})]


def test_yelps_numbers_of_the_hub(monkeypatch):
    """The hub calls them "1" and "2", and numbers these 0 and 1."""
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["1", "2"]))
    found = datasets.Dataset.from_dict({"text": ["Good", "Bad"], "label": [1, 0]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: found)
    assert [example.label for example in load("yelp").read()] == ["positive", "negative"]


def test_numbers_without_names_are_refused(tmp_path):
    by_number(["a", "b", "c"], [0, 1, 2]).cast_column("label", datasets.Value("int64")).to_parquet(
        tmp_path / "a.parquet"
    )
    with pytest.raises(BadInput, match=r"row 0: unknown label, got '0'; known: entailment, neutral, contradiction; set data.labels="):  # fmt: skip
        load("mnli", tmp_path / "a.parquet")


@pytest.mark.parametrize("kind", ["mnli", "hans", "sst2", "yelp", "qnli", "qqp", "ptb", "ewt", "cifar10"])
def test_hub_without_network(kind, gpt_tokenizer):
    from repsim_cli.data.images import Patches

    tokenizer = Patches((32, 32), (4, 4), 3, (0.5,) * 3, (0.5,) * 3) if kind == "cifar10" else gpt_tokenizer
    with pytest.raises(BadInput, match=r"data: it could not be read, got '.*; check the network, or download it and set data.path"):  # fmt: skip
        load(kind).sequences(tokenizer, EXTRACT, 0)


@pytest.fixture
def web(monkeypatch, tmp_path):
    """{address: content}: what can be downloaded; asked: what was."""
    pages, asked = {}, []

    def urlopen(url, timeout):
        asked.append(url)
        if url not in pages:
            raise OSError(f"no {url}")
        return io.BytesIO(pages[url])

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return pages, asked


def test_files_of_the_web_are_read_as_local_ones(web, tmp_path, monkeypatch):
    pages, asked = web
    hans = "https://raw.githubusercontent.com/tommccoy1/hans/master/heuristics_train_set.txt"
    ewt = "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/master/en_ewt-ud-test.conllu"
    row = {"gold_label": "entailment", "sentence1": "A", "sentence2": "B"}
    pages[hans] = table(tmp_path / "a.txt", HANS, [row]).read_bytes()
    with pytest.raises(BadInput, match=f"data: it could not be read, got '{ewt}' .no {ewt}.; check the network"):
        load("ewt", split="test").sentences()
    pages[ewt] = b"1\tWords\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
    for _ in range(2):
        assert [example.label for example in load("hans", split="train").read()] == ["entailment"]
        assert load("ewt", split="test").sentences() == [["Words"]]
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert asked == [ewt, hans, ewt]


def test_a_hub_out_of_reach_is_found_at_once(web, monkeypatch):
    """The offline flag is not needed: the library would try again for half a minute."""

    def unreachable(address, timeout):
        assert address == ("huggingface.co", 443)
        raise OSError("no route")

    monkeypatch.setattr("socket.create_connection", unreachable)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: pytest.fail("tried"))
    for read in (load("sst2").read, load("ptb").read, load("cifar10").read):
        with pytest.raises(BadInput, match=r"data: it could not be read, got '.*' \(no route\); check the network"):
            list(read())
    with pytest.raises(BadInput, match=r"data: the Pile could not be read, got '.*' \(no route\); check the network"):
        list(load_pile().documents())


def load_pile():
    return registry.data.get("pile").function()


def test_pairs_by_the_tokenizers_own_template(tmp_path, bert_tokenizer, gpt_tokenizer):
    data = load("mnli", table(tmp_path / "a.tsv", ["premise", "hypothesis", "label"], [
        {"premise": a, "hypothesis": b, "label": "neutral"} for a, b in PAIRS
    ]))  # fmt: skip
    found = data.sequences(bert_tokenizer, EXTRACT, 0)
    for row, (a, b) in enumerate(PAIRS):
        expected = bert_tokenizer(a, b)
        size = len(expected["input_ids"])
        assert found.ids[row, :size].tolist() == expected["input_ids"]
        assert found.segments[row, :size].tolist() == expected["token_type_ids"]
        assert found.mask[row].tolist() == [True] * size + [False] * (found.ids.shape[1] - size)
        specials = {bert_tokenizer.cls_token_id, bert_tokenizer.sep_token_id}
        assert found.text[row, :size].tolist() == [i not in specials for i in expected["input_ids"]]
        assert found.position[row][found.text[row]].tolist() == list(range(size - 3))
    assert (found.document[found.text] == np.repeat(np.arange(3), found.text.sum(1))).all()
    assert (found.ids[~found.mask] == bert_tokenizer.pad_token_id).all()
    plain = data.sequences(gpt_tokenizer, EXTRACT, 0)
    assert plain.segments is None
    assert plain.ids[0][plain.mask[0]].tolist() == gpt_tokenizer(*PAIRS[0])["input_ids"]


def test_long_examples_are_cut_and_counted(tmp_path, bert_tokenizer):
    file = table(tmp_path / "a.tsv", ["sentence", "label"], [
        {"sentence": "rain falls", "label": 1}, {"sentence": "a dog runs " * 20, "label": 0}
    ])  # fmt: skip
    data = load("sst2", file)
    short = data.sequences(bert_tokenizer, Extract(hook_points=["embed"], length=6), 0)
    assert (short.truncated, short.ids.shape) == (1, (2, 6))
    assert short.ids[1, -1] == bert_tokenizer.sep_token_id
    assert data.sequences(bert_tokenizer, Extract(hook_points=["embed"], length=128), 0).truncated == 0
    with pytest.raises(BadInput, match="extract.length: too short for 2 special tokens and a word, got 2; raise it"):
        data.sequences(bert_tokenizer, Extract(hook_points=["embed"], length=2), 0)


def test_examples_are_drawn_from_all_under_the_seed(tmp_path, gpt_tokenizer):
    file = table(
        tmp_path / "a.tsv", ["sentence", "label"], [{"sentence": f"word {i}", "label": i % 2} for i in range(99)]
    )
    few = Extract(hook_points=["embed"], sequences=20, pool=5)
    data = load("sst2", file)
    one, again, other = (data.sequences(gpt_tokenizer, few, seed) for seed in (1, 1, 2))
    assert one.hash() == again.hash() != other.hash()
    assert one.example.max() > 5
    assert (np.diff(one.example) > 0).all()
    assert (one.labels.codes == one.example % 2).all()


def test_a_special_token_in_the_text_is_a_row(tmp_path, gpt_tokenizer):
    file = table(tmp_path / "a.tsv", ["sentence", "label"], [{"sentence": "a<|endoftext|>b", "label": 1}])
    found = load("sst2", file).sequences(gpt_tokenizer, EXTRACT, 0)
    assert found.text.sum() == found.mask.sum() == 3


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("mnli", "a.tsv", "", "a.tsv: it has no examples; give another file or split"),
        ("mnli", "a.tsv", "sentence1\tsentence2\tgold_label\nA\tB\t-\nC\tD\nE\t \tneutral\n",
         "it has no examples, got 1 with no gold label, 1 with missing or surplus columns, 1 with an empty text; give"),
        ("mnli", "a.tsv", "sentence1\tgold_label\nA\tneutral\n", "line 2: no column 'sentence2', got 'sentence1', 'gold_label'; name"),
        ("mnli", "a.tsv", "sentence1\tsentence2\tgold_label\nA\tB\tneutrl\n", "line 2: unknown label, got 'neutrl'; known: entailment, neutral, contradiction; set"),
        ("hans", "a.txt", "sentence1\tsentence2\tgold_label\nA\tB\tneutral\n", "unknown label, got 'neutral'; known: entailment, non-entailment"),
        ("mnli", "a.jsonl", "{", r"line 1: not JSON, got '\{' .*; one JSON object a line"),
        ("sst2", "a.jsonl", '{"sentence": "A", "label": "positive"}\n{"sentence": "B"}\n', "a.jsonl: labels are missing, got none for 1 of 2 examples; add them"),
        ("mnli", "a.jsonl", "[]\n", r"line 1: not an object, got '\[\]'; one JSON object a line"),
        ("yelp", "a.csv", '"1","' + "x" * 200_000 + '"\n', r"a.csv, line \d+: not CSV, got 'field larger than field limit .*; write it again"),
        ("mnli", "a.xml", "", "path: unknown kind of file, got '.*a.xml'; use .tsv, .txt, .csv"),
        ("mnli", "b.tsv", None, "path: no such file, got '.*b.tsv'"),
        ("ptb", "a.txt", "\n \n", "a.txt: it has no sentences, got white space or nothing; give another file"),
        ("ewt", "a.conllu", "# text = x\n", "a.conllu: it has no sentences, got white"),
        ("ewt", "a.conllu", "1\tA\n", r"a.conllu, line 1: not a line of CoNLL-U, got '1\\tA'; ten columns"),
        ("ewt", "a.txt", "A\n", "path: unknown kind of file, got '.*a.txt'; use .conllu"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, gpt_tokenizer, kind, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=message):
        load(kind, tmp_path / name).sequences(gpt_tokenizer, EXTRACT, 0)


def test_an_example_without_tokens(tmp_path, bert_tokenizer):
    file = table(tmp_path / "a.tsv", ["sentence", "label"], [{"sentence": "\x00", "label": 1}])
    with pytest.raises(BadInput, match=r"a.tsv: an example has no tokens, got \('\\x00',\); leave it out of the data"):
        load("sst2", file).sequences(bert_tokenizer, EXTRACT, 0)


@pytest.mark.parametrize(("kind", "split"), [("mnli", "validation"), ("hans", "dev"), ("yelp", "validation")])
def test_splits_that_are_not_there(kind, split):
    with pytest.raises(BadInput, match=f"split: no such split, got '{split}'; (did you mean|known)"):
        load(kind, split=split)


def test_unlabelled_files_have_no_labels(tmp_path, gpt_tokenizer):
    file = table(tmp_path / "test.tsv", ["index", "sentence"], [{"index": 0, "sentence": "fine"}])
    assert load("sst2", file).sequences(gpt_tokenizer, EXTRACT, 0).labels is None


def test_examples_that_are_kept_are_read_once():
    def read():
        readings.append(1)
        yield from [Example(("a",), "x"), "no label"]

    readings, data = [], Examples(read, ("x",), "two")
    kept = data.keep()
    assert kept.examples() == kept.examples() == data.examples() == ([Example(("a",), "x")], {"no label": 1})
    assert len(readings) == 2
