"""Tables of one's own: columns by name and number, delimiters, encodings, and what is said of bad files."""

import json

import datasets
import numpy as np
import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract

EXTRACT = Extract(hook_points=["embed"], unit="mean", length=32, sequences=1000)
ROWS = [
    ("A fine film, really", "5", "drama", "r1"),
    ('He said "no";\nand left', "1", "comedy", "r2"),
    ("Le café est très bon", "5", "comedy", "r3"),
]
COLUMNS = ("review", "stars", "genre", "key")
NAMED = {"text": "review", "label": "stars", "group": "genre"}


def load(path, **settings):
    return registry.data.get("table").function(path=str(path), **settings)


def content(delimiter, header=True, quote='"'):
    def cell(value):
        doubled = value.replace(quote, 2 * quote)
        return f"{quote}{doubled}{quote}" if quote in value or delimiter in value or "\n" in value else value

    lines = [COLUMNS, *ROWS] if header else list(ROWS)
    return "".join(delimiter.join(map(cell, line)) + "\r\n" for line in lines)


def check(data):
    examples, dropped = data.examples()
    assert [example.texts for example in examples] == [(row[0],) for row in ROWS]
    assert data.labels_of_examples() == {"label": ["5", "1", "5"], "group": ["drama", "comedy", "comedy"]}
    assert data.names == ("1", "5")
    assert dropped == {}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_delimiters_and_headers(tmp_path, delimiter, name):
    (tmp_path / name).write_bytes(content(delimiter).encode())
    check(load(tmp_path / name, **NAMED))
    check(load(tmp_path / name, **NAMED, delimiter=delimiter))
    check(load(tmp_path / name, text=0, label=1, group=2, header=True))
    (tmp_path / name).write_bytes(content(delimiter, header=False).encode())
    check(load(tmp_path / name, text=0, label=1, group=2))
    counted = delimiter.join(map(str, range(len(COLUMNS)))) + "\r\n"
    (tmp_path / name).write_bytes((counted + content(delimiter, header=False)).encode())
    check(load(tmp_path / name, text=0, label=1, group=2))


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("utf-8", ""), ("utf-8-sig", ""), ("utf-16", " (utf-16)"), ("cp1252", " (cp1252)"), ("latin-1", " (latin-1)")],
)
def test_encodings(tmp_path, encoding, said):
    file = tmp_path / "a.csv"
    file.write_bytes(content(",").encode(encoding))
    data = load(file, **NAMED, encoding="latin-1" if encoding == "latin-1" else None)
    check(data)
    assert data.source == f"{file}{said}"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("cp932", "今日は天気がいいです。彼は学校に行きませんでした。"), ("gb18030", "今天天气很好，我不喜欢这部电影"),
     ("cp949", "오늘 날씨가 좋습니다. 그 영화는 별로였다."), ("cp1251", "Сегодня хорошая погода, мне не нравится этот фильм")],
)  # fmt: skip
def test_encodings_are_sniffed(tmp_path, encoding, text):
    (tmp_path / "a.csv").write_bytes(f"text\n{text}\n".encode(encoding))
    assert next(load(tmp_path / "a.csv").read()).texts == (text,)


def test_quotes_that_are_text(tmp_path):
    """A .tsv file, like GLUE's, whose quotes close nowhere."""
    (tmp_path / "a.tsv").write_text('text\tlabel\n"wet" outside\ta\n"open\tb\n')
    assert [example.texts[0] for example in load(tmp_path / "a.tsv", label="label").read()] == [
        '"wet" outside',
        '"open',
    ]


def test_a_single_column_with_commas(tmp_path):
    (tmp_path / "a.csv").write_text("text\none, two\nthree, four, five\n")
    assert [example.texts[0] for example in load(tmp_path / "a.csv").read()] == ["one, two", "three, four, five"]


def test_long_texts(tmp_path):
    """Beyond the limit of Python's reader, which stays as it was for others."""
    import csv

    (tmp_path / "a.csv").write_text(f'text,label\n"{"word " * 40_000}",a\n')
    assert len(next(load(tmp_path / "a.csv", label="label").read()).texts[0]) == 200_000
    assert csv.field_size_limit() == 131072


def test_other_files(tmp_path, monkeypatch):
    records = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    check(load(tmp_path / "a.jsonl", **NAMED))
    whole = datasets.Dataset.from_list(records)
    whole.to_parquet(tmp_path / "a.parquet")
    check(load(tmp_path / "a.parquet", **NAMED))
    whole.save_to_disk(tmp_path / "folder")
    check(load(tmp_path / "folder", **NAMED))
    datasets.DatasetDict({"test": whole}).save_to_disk(tmp_path / "splits")
    check(load(tmp_path / "splits", **NAMED, split="test"))
    with pytest.raises(BadInput, match="split: no such split, got 'train'; known: test"):
        load(tmp_path / "splits", **NAMED)
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or whole)
    data = load("someone/reviews", **NAMED, subset="plain")
    check(data)
    assert data.source == "someone/reviews, plain, train"
    assert asked == [(("someone/reviews", "plain"), {"split": "train", "revision": None})]


def test_class_labels_are_names(tmp_path):
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["neg", "pos"]))
    rows = {"text": ["a", "b", "c"], "label": [1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", label="label").labels_of_examples() == {"label": ["pos", "neg", "pos"]}


def test_pairs_words_and_classes(tmp_path, bert_tokenizer):
    (tmp_path / "a.csv").write_text("text,other,topic\nrain falls,it is wet,x\na dog runs,a cat runs,y\n")
    pairs = load(tmp_path / "a.csv", second="other").sequences(bert_tokenizer, EXTRACT, 0)
    assert pairs.ids[0][pairs.mask[0]].tolist() == bert_tokenizer("rain falls", "it is wet")["input_ids"]
    assert pairs.labels is None
    words = load(tmp_path / "a.csv", group="topic").align({"a": bert_tokenizer}, EXTRACT, 0)["a"]
    assert words.word.max() == 2
    assert [words.labels.names[code] for code in words.labels.codes] == ["x", "y"]  # without a label, the group


def test_examples_of_some_groups(tmp_path):
    (tmp_path / "a.csv").write_bytes(content(",").encode())
    data = load(tmp_path / "a.csv", **NAMED, groups=["comedy"])
    assert [example.label for example in data.read()] == ["1", "5"]
    with pytest.raises(BadInput, match="groups: no such group, got 'comdy'; did you mean 'comedy'?"):
        load(tmp_path / "a.csv", **NAMED, groups=["comdy"])
    with pytest.raises(BadInput, match=r"groups: no column of groups is named, got \['drama'\]; set data.group"):
        load(tmp_path / "a.csv", text="review", groups=["drama"])


def test_what_is_left_out_is_counted(tmp_path, gpt_tokenizer):
    (tmp_path / "a.csv").write_text("text,label\none,a\n,b\ntwo,\nthree\nfour,b\n")
    data = load(tmp_path / "a.csv", label="label")
    found = data.sequences(gpt_tokenizer, EXTRACT, 0)
    assert found.dropped == {"an empty text": 1, "no label": 1, "missing or surplus columns": 1}
    assert np.array_equal(found.labels.codes, [0, 1])


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.csv", "text,label\na,b\n", {"text": "txt"}, "a.csv, line 2: no column 'txt', got 'text', 'label'; set data.text .--column. to a name, or to a number from 0"),
        ("a.txt", "Once upon a time.\nThere was.\n", {}, "no column 'text', got 'Once upon a time.'; .* running text and not a table, say data=local_text"),
        ("a.csv", "a,b\n", {"text": 2}, "a.csv, line 1: no column '2', got 0, 1; set data.text .--column. to a name"),
        ("a.csv", "", {}, "a.csv: it has no examples; give another file or split"),
        ("a.csv", "text\n\n", {}, "a.csv: it has no examples; give another file or split"),
        ("a.csv", 'text,label\n"a,b\nc,d\ne\n', {"label": "label"}, "a.csv, line 4: not a line of a table, got 'unexpected end of data'; close its quotes"),
        ("a.csv", "text,text\na,b\n", {}, "a.csv, line 1: two columns of one name, got 'text'; give it by its number"),
        ("a.csv", "text\n\xff\n", {"encoding": "ascii"}, "a.csv: not ascii, got 'a.csv' .*; set data.encoding"),
        ("a.csv", "text\na\n", {"encoding": "utf-7x"}, "a.csv: not utf-7x, got 'a.csv' .unknown encoding: utf-7x.; set data.encoding"),
        ("a.jsonl", '{"text": ["a"]}\n', {}, r"a.jsonl, line 1: column 'text' is not text, got \['a'\]; set data.text"),
        ("a.xml", "", {}, "path: unknown kind of file, got '.*a.xml'; use .csv, .tsv, .txt, .jsonl"),
        ("a.csv", None, {}, "path: no such file, got '.*a.csv'"),
    ],
)  # fmt: skip
def test_bad_tables(tmp_path, name, content, settings, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=message):
        load(tmp_path / name, **settings)


def test_folders_and_data_sets_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match="path: not a folder of a data set, got '.*; write it with Dataset.save_to_disk"):
        load(tmp_path)
    with pytest.raises(BadInput, match="data: it could not be read, got 'nobody/nothing'"):
        load("nobody/nothing")
