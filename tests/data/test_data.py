"""Readers of text, packing, and what they say of bad files."""

import json
from functools import partial

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.data import packing
from repsim_cli.data.packing import find_separator_id, pack, split_document
from repsim_cli.data.text import Text

local_text = registry.data.get("local_text").function


class Characters:
    """A tokenizer of one token per character; id 0 is the separator."""

    def __init__(self, eos=0, sep=None, bos=None, pad=None):
        self.eos_token_id, self.sep_token_id, self.bos_token_id, self.pad_token_id = eos, sep, bos, pad

    def __call__(self, text, **_):
        return {"input_ids": [ord(c) for c in text]}


def text_of(documents):
    return Text(lambda: (document for document in documents), "documents")


def packed(documents, tokenizer=None, **settings):
    defaults = {"length": 5, "sequences": 10**6, "pool": 10**6, "separator": "auto", "seed": 0}
    return pack(text_of(documents), tokenizer or Characters(), **{**defaults, **settings})


@given(documents=st.lists(st.text(alphabet="abcdef", min_size=1), min_size=1), length=st.integers(1, 9))
def test_packing_keeps_every_token_in_its_place(documents, length):
    found = packed(documents, length=length)
    joined = "".join("\0" + document for document in documents)
    assert "".join(map(chr, found.ids[found.mask])) == joined
    assert found.text.sum() == sum(map(len, documents))
    for token, document, position in zip(
        found.ids[found.text], found.document[found.text], found.position[found.text], strict=True
    ):
        assert chr(token) == documents[document][position]
    assert (found.document[~found.text] == -1).all()
    assert not found.mask[:-1].size or found.mask[:-1].all()


def test_the_seed_draws_sequences_from_the_pool():
    documents = ["abcdefghi" * 20]
    one, again, other = (packed(documents, sequences=6, pool=20, seed=seed).ids for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    first = packed(documents, sequences=20, pool=20).ids
    rows = {tuple(row) for row in first}
    assert {tuple(row) for row in one} <= rows
    assert len(one) == 6


def test_hash_tells_row_ids_apart():
    assert packed(["ab", "cd"], separator="none").hash() != packed(["abcd"], separator="none").hash()
    assert packed(["abcd"]).hash() == packed(["abcd"]).hash()


def test_separators():
    assert find_separator_id(Characters(eos=None, sep=7), "auto") == 7
    assert find_separator_id(Characters(eos=None), "auto") is None
    assert find_separator_id(Characters(eos=3), "none") is None
    with pytest.raises(BadInput, match=r"extract.separator: the tokenizer has no bos token, got 'bos'; use auto"):
        find_separator_id(Characters(), "bos")


def test_a_separator_in_the_text_is_a_row():
    found = packed(["a\0b"])
    assert "".join(map(chr, found.ids[found.text])) == "a\0b"


def test_no_tokens():
    with pytest.raises(BadInput, match="documents: no tokens, got 1 documents; give a text with words"):
        packed([""], separator="none")


RECORDS = ["first\ntext", "zweiter Text", "третий"]


def write(folder, name, column="text"):
    file = folder / name
    lines = "".join(json.dumps({column: text}) + "\n" for text in RECORDS).encode()
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.table({column: RECORDS}), file)
    else:
        file.write_bytes(zstandard.compress(lines) if name.endswith(".zst") else lines)
    return str(file)


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.zst", "c.parquet"])
def test_formats_give_the_same_documents(tmp_path, name):
    assert list(local_text(path=write(tmp_path, name)).documents()) == RECORDS
    assert list(local_text(path=write(tmp_path, name, "body"), column="body").documents()) == RECORDS
    with pytest.raises(BadInput, match=r"no column 'text', got body; set data.column"):
        local_text(path=write(tmp_path, name, "body"))


@pytest.mark.parametrize(("name", "content"), [("a.txt", b"one\n"), ("a.jsonl", b'{"text": "one"}\n')])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
    assert [text.strip() for text in local_text(path=str(tmp_path / name)).documents()] == ["one"]


def test_what_a_document_of_a_txt_file_is(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n\n\nthree\n")
    for sample_by, expected in {
        "document": ["one\ntwo\n\n\nthree\n"],
        "paragraph": ["one\ntwo\n", "three\n"],
        "line": ["one", "two", "three"],
    }.items():
        assert list(local_text(path=str(file), sample_by=sample_by).documents()) == expected


def test_zst_of_several_frames(tmp_path):
    file = tmp_path / "a.jsonl.zst"
    file.write_bytes(b"".join(zstandard.compress(json.dumps({"text": t}).encode() + b"\n") for t in RECORDS))
    assert list(local_text(path=str(file)).documents()) == RECORDS


def test_splits_of_the_embedded_text():
    embedded = registry.data.get("embedded_text").function
    train, validation = (list(embedded(split=split).documents()) for split in ("train", "validation"))
    assert (len(train), len(validation)) == (2077, 230)
    assert not set(train) & set(validation)


def test_pile_reads_the_official_format(tmp_path):
    file = tmp_path / "val.jsonl.zst"
    file.write_bytes(
        zstandard.compress(
            "".join(json.dumps({"text": t, "meta": {"pile_set_name": "X"}}) + "\n" for t in RECORDS).encode()
        )
    )
    assert list(registry.data.get("pile").function(files=str(file)).documents()) == RECORDS


def test_pile_without_network():
    message = r"data: the Pile could not be read, got 'hf://.*check the network, or download the file"
    with pytest.raises(BadInput, match=message):
        next(registry.data.get("pile").function().documents())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "it has no text, got white space or nothing; give"),
        ("a.txt", b" \n\n", "it has no text, got white space or nothing"),
        ("a.txt", b"caf\xe9 au lait", "not UTF-8, got byte 0xe9; iconv -f ENCODING -t UTF-8 converts it"),
        ("a.jsonl", b"", "it has no text, got white space or nothing"),
        ("a.jsonl", b'{"text": "x"', r"line 1: not JSON, got '\{\"text\": \"x\"'"),
        ("a.jsonl", b"[1]\n", "line 1: not an object, got '\[1\]'; one JSON object a line"),
        ("a.jsonl", b'{"text": 3}\n', "line 1: column 'text' is not text, got 3; set data.column"),
        ("a.jsonl.zst", b"not zstd", "not a complete .zst file"),
        ("a.parquet", b"PAR1", "not a parquet file"),
        ("a.csv", b"text\nx\n", r"path: a table, got '.*a.csv'; say data=table data.path=.*a.csv data.text=COLUMN"),
        ("a.tsv", b"text\nx\n", r"path: a table, got '.*a.tsv'; say data=table"),
        ("a.xml", b"text\nx\n", r"path: unknown kind of file, got '.*a.xml'; use .txt, .jsonl"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        local_text(path=str(tmp_path / name))


def test_truncated_zst(tmp_path):
    whole = zstandard.compress("".join(json.dumps({"text": str(i) * 50}) + "\n" for i in range(9999)).encode())
    file = tmp_path / "a.jsonl.zst"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        BadInput, match=r"a.jsonl.zst: not a complete .zst file, got 'the file ends inside a frame'; download it again"
    ):
        list(local_text(path=str(file)).documents())


def test_a_missing_file_suggests(tmp_path):
    (tmp_path / "corpus.txt").write_text("x")
    with pytest.raises(BadInput, match="path: no such file, got '.*corpsu.txt'; did you mean 'corpus.txt'"):
        local_text(path=str(tmp_path / "corpsu.txt"))
    with pytest.raises(BadInput, match="path: not a file, got"):
        local_text(path=str(tmp_path))


@given(document=st.text(alphabet="ab \n", min_size=1), size=st.integers(1, 7))
def test_pieces_make_the_document_again(document, size):
    found = list(split_document(document, size))
    assert "".join(found) == document
    assert all(0 < len(piece) <= size for piece in found[:-1])


def test_a_document_in_pieces_is_packed_as_a_whole(monkeypatch):
    documents = ["some words that are cut\nin pieces", "and more"]
    whole = packed(documents)
    monkeypatch.setattr(packing, "split_document", partial(split_document, size=4))
    assert packed(documents).hash() == whole.hash()


def test_one_huge_line_is_read_no_further_than_needed(tmp_path):
    """30 MB without a newline: only the pieces that fill the pool are tokenized."""

    class Counting(Characters):
        seen = 0

        def __call__(self, text, **_):
            Counting.seen += len(text)
            return super().__call__(text)

    (tmp_path / "huge.txt").write_text("word " * 6_000_000)
    text = local_text(path=str(tmp_path / "huge.txt"))
    found = pack(text, Counting(), length=100, sequences=10, pool=20, separator="auto", seed=0)
    assert found.ids.shape == (10, 100)
    assert Counting.seen <= packing.PIECE
