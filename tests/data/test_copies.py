"""Copies of a text in the data: rows of all of them are of one document, wherever sequences are cut."""

import json
from dataclasses import replace

import numpy as np
import pytest

from repsim_cli.activations.next_token import number_documents
from repsim_cli.activations.places import list_row_documents
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract
from repsim_cli.data.copies import count_copied_texts, number_texts
from repsim_cli.runs import reader

LONG = "rain falls on the roof all night and the gutters run over again"
TEXTS = [LONG, "a dog runs", LONG + " ", "a cat runs", LONG]


@pytest.fixture
def file(tmp_path):
    where = tmp_path / "texts.jsonl"
    where.write_text("\n".join(json.dumps({"text": text, "label": 0}) for text in TEXTS))
    return where


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("kind", ["local_text", "table"])
def test_their_rows_are_of_one_document(file, gpt_tokenizer, unit, kind):
    given = registry.data.get(kind).function(path=str(file))
    extract = Extract(hook_points=["resid_post"], unit=unit, length=7 if kind == "local_text" else 64, sequences=99)
    sequences = given.sequences(gpt_tokenizer, extract, 0)
    # an example of a table is compared to the last space
    assert sequences.copies == ({2: 0, 4: 0} if kind == "local_text" else {4: 0})
    apart = list_row_documents(replace(sequences, copies={}), extract)
    joined = list_row_documents(sequences, extract)
    assert np.unique(apart).tolist() == [0, 1, 2, 3, 4]
    assert joined.tolist() == [sequences.copies.get(each, each) for each in apart.tolist()]
    assert sequences.take(slice(1, 3)).copies == sequences.copies


def test_long_documents_are_compared_by_their_beginning_and_length():
    copies = {}
    texts = ["one two three four", "one two three six", "one two three four\n", "one two three five"]
    assert [text for _, text in number_texts(texts, copies, size=10)] == texts
    assert copies == {2: 0, 3: 0}


def test_errors_over_sequences_take_them_as_one(file, gpt_tokenizer):
    sequences = (
        registry.data.get("local_text")
        .function(path=str(file))
        .sequences(gpt_tokenizer, Extract(hook_points=["resid_post"], length=9, sequences=99), 0)
    )
    found = number_documents(sequences, lambda _: None, "data")
    assert not {2, 4} & set(found.tolist())
    assert len(found) == len(sequences.text)


def test_a_comparison_of_copied_documents_warns_and_finds_no_more_of_them(repsim, newest, tmp_path):
    file = tmp_path / "copied.jsonl"
    documents = list(registry.data.get("embedded_text").function(split="validation").documents())[:4]
    file.write_text("\n".join(json.dumps({"text": text}) for text in documents * 5))
    words = ["model=[tiny_a]", "measure=[cka_unbiased]", "data=local_text", f"data.path={file}", "extract.sequences=40"]
    code, _, err = repsim("run", *words, "extract.estimate=full", "significance=permutation")
    assert code == 2
    assert "10 documents are needed that can be exchanged in batches of 4 rows at least, got " in err
    code, _, err = repsim("run", *words, "extract.estimate=full")
    assert code == 0, err
    (warning,) = [text for text in reader.read_manifest(newest())["warnings"] if "copies" in text]
    assert warning.endswith("drop the copies, which count in every mean")
    assert "errors are over those that differ" in warning
    code, _, err = repsim("run", *words, "extract.estimate=per_batch", "extract.batch_rows=500")
    assert code == 0, err
    assert "texts are copies of others, and errors take them as independent" in " ".join(err.split())


def test_copies_are_counted_among_what_is_read(file, gpt_tokenizer):
    given = registry.data.get("local_text").function(path=str(file))
    sequences = given.sequences(gpt_tokenizer, Extract(hook_points=["resid_post"], length=7, sequences=99), 0)
    assert count_copied_texts(sequences) == (2, 5)
    of_last = sequences.take(np.flatnonzero((sequences.document == 4).any(1)))
    read = np.unique(of_last.document[of_last.text])
    assert (read.max(), 0 in read) == (4, False)  # the text that the last one repeats is not read
    assert count_copied_texts(of_last) == (0, len(read))
