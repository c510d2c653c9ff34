"""The rows behind a map: shares that add up to the similarity, nearest rows, and texts that may be kept."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import repsim_cli
from repsim_cli import measures
from repsim_cli.engine import behind
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import restrict_to_other_documents
from repsim_cli.runs.content import BEHIND, TEXTS

TEXT = ["The first text has some words, and a few more.", "Another text, with other words: naïve café €5."] * 8


@pytest.mark.parametrize("name", ["cka", "cka_unbiased", "cka_rbf"])
@pytest.mark.parametrize("apart", [False, True])
def test_shares_add_up_to_the_similarity(name, apart):
    """Shares of every pair that is kept do, in tiles that do not divide the rows; with pairs of rows of one document
    left out too."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(70, 6, generator=generator)
    rows = [base @ torch.randn(6, d, generator=generator) + 0.3 * torch.randn(70, d, generator=generator) for d in (5, 8, 4, 7, 9)]  # fmt: skip
    documents = torch.arange(70) // 7 if apart else None
    measure = restrict_to_other_documents(measures.get(name), documents)
    names = [f"layer {i}" for i in range(5)]
    found = behind.compute_row_shares(measure, rows, names, [slice(0, 2), slice(2, 5)], 32)
    whole = compute_all_pairs({"m": measures.get(name)}, rows, documents=documents)["m"]
    assert set(map(tuple, found["pairs"].tolist())) >= {(0, 2), (1, 3)}  # layers of the same number
    for (a, b), value, share in zip(found["pairs"].tolist(), found["values"], found["shares"], strict=True):
        assert a < 2 <= b
        assert float(value) == pytest.approx(float(whole[a, b]), abs=1e-6)
        assert float(share.double().sum()) == pytest.approx(float(whole[a, b]), abs=1e-6)
    best = {(a, 2 + int(whole[a, 2:].argmax())) for a in range(2)}
    assert best <= set(map(tuple, found["pairs"].tolist()))


def test_the_share_of_a_row_is_what_the_definition_says():
    """Biased CKA from its formula: the sum of a row of the product of both centred Gram matrices, over both norms."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(40, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    found = behind.compute_row_shares(measures.get("cka"), rows, ["a", "b"], [slice(0, 1), slice(1, 2)], 512)
    k, m = ((x - x.mean(0)) @ (x - x.mean(0)).T for x in rows)
    expected = (k * m).sum(1) / (k.square().sum() * m.square().sum()).sqrt()
    np.testing.assert_allclose(found["shares"][0], expected, atol=1e-7)


def test_a_constant_layer_has_no_shares():
    rows = [torch.randn(40, 3), torch.ones(40, 3), torch.randn(40, 3)]
    found = behind.compute_row_shares(measures.get("cka"), rows, ["a", "b", "c"], [slice(0, 2), slice(2, 3)], 512)
    assert found["pairs"].tolist() == [[0, 2]]
    assert (
        behind.compute_row_shares(measures.get("cka"), rows[1:2] * 2, ["a", "b"], [slice(0, 1), slice(1, 2)], 512) == {}
    )


class Bytes:
    """A tokenizer of UTF-8 bytes."""

    def decode(self, ids, clean_up_tokenization_spaces):
        assert not clean_up_tokenization_spaces
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["plain text", "naïve €5 of 日本", "€" * 12])
def test_tokens_are_spelled_as_the_text_is(text):
    pieces = behind.spell(Bytes(), list(text.encode()))
    assert "".join(pieces) == text
    assert len(pieces) == len(text.encode())


def kept(**settings):
    """What a run of two models on texts of this test keeps."""
    whole = {"extract.estimate": "full", "extract.rows": 4096, "extract.length": 32, **settings}
    result = repsim_cli.compare({"a": "tiny_a", "b": "tiny_b"}, TEXT, settings=whole)
    return result, json.loads((result.folder / TEXTS).read_text()), load_file(result.folder / BEHIND)


def test_texts_of_ones_own_are_kept_where_that_is_asked_for(tmp_path, monkeypatch):
    """Else tokens are numbers by their first place among all, which nothing turns into text. A run whose matrices are
    cached keeps the same rows."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    result, about, arrays = kept()
    assert about["texts"] == []
    assert "extract.keep_texts=true" in about["without"]
    assert sorted(set(about["tokens"])) == list(range(len(set(about["tokens"]))))
    again, told, same = kept(**{"extract.keep_texts": True})
    assert again.manifest["matrices_cached"] == ["cka_unbiased", "mutual_knn"]
    assert all(np.array_equal(arrays[name], same[name]) for name in arrays)
    assert told["without"] == ""
    said = "".join("".join(text["pieces"]) for text in told["texts"])
    assert "The first text has some words" in said
    assert "naïve café €5" in said
    rows = [row for text in told["texts"] for row in text["rows"] if row >= 0]
    assert sorted(rows) == list(range(told["rows"]))
    assert told["rows"] == result.manifest["rows"]  # all rows of the run: values and overlaps are the run's
    for (a, b), share in zip(arrays["pairs"], arrays["shares"], strict=True):
        (first, layer), (second, other) = about["layers"][a], about["layers"][b]
        values = result.matrix(first, second, "cka_unbiased")
        assert share.sum(dtype=float) == pytest.approx(values.values[values.rows.index(layer), values.columns.index(other)], abs=1e-6)  # fmt: skip
    overlap = result.matrix("a", "b", "mutual_knn").values
    for i, j in ((0, 0), (5, 3)):
        lists = arrays["nearest"][i], arrays["nearest"][6 + j]
        both = [len(set(x) & set(y)) / 10 for x, y in zip(*lists, strict=True)]
        assert np.mean(both) == pytest.approx(overlap[i, j], abs=1e-9)


@pytest.mark.slow
def test_padding_has_rows_where_it_is_kept(repsim, newest):
    """The rows of padding, which brown2023 reads, are among the rows of their text."""
    data = "data=overlap_nli", "extract=padded_512", "extract.length=128", "extract.batch_rows=1024"
    code, _, err = repsim("run", "-q", "model=[tiny_a,tiny_b]", *data, "extract.sequences=8", "cache=false")
    assert code == 0, err
    told = json.loads((newest() / TEXTS).read_text())
    assert told["rows"] == 8 * 128
    assert all(len(text["rows"]) == len(text["pieces"]) for text in told["texts"])
    assert sorted(row for text in told["texts"] for row in text["rows"] if row >= 0) == list(range(told["rows"]))
