"""Stored rows that belong to documents: whole documents trade places, whatever the order of the rows."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import repsim_cli
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput

precomputed = registry.models.get("precomputed").function
DOCUMENTS = np.repeat(np.arange(12), 4)
MOVED = np.random.default_rng(2).permutation(48)
TESTED = {
    "measures": ["cka_unbiased"],
    "significance": "permutation",
    "settings": {"significance.permutations": 39},
}


def rows(seed):
    """Rows of a document share half of their variance."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(12, 5))[DOCUMENTS] + rng.normal(size=(48, 5))).astype(np.float32)


X, Y = rows(0), rows(1)


def npz(file, x, documents, name="documents", **more):
    np.savez(file.with_suffix(".npz"), h=x, **{name: documents}, **more)
    return file.with_suffix(".npz")


def safetensors(file, x, documents):
    save_file({"h": torch.from_numpy(x.copy()), "documents": torch.from_numpy(documents)}, file.with_suffix(".safetensors"))  # fmt: skip
    return file.with_suffix(".safetensors")


def parquet(file, x, documents):
    names = [f"text {each}" for each in documents]
    pyarrow.parquet.write_table(pyarrow.table({"document": names, "h": x.tolist()}), file.with_suffix(".parquet"))
    return file.with_suffix(".parquet")


def p_of(found):
    return found.frame().query("model == 'a' and other_model == 'b'").p.item()


@pytest.mark.parametrize("write", [npz, safetensors, parquet])
def test_files_hold_the_documents_of_their_rows(tmp_path, write):
    files = {label: str(write(tmp_path / label, x, DOCUMENTS)) for label, x in (("a", X), ("b", Y))}
    found = repsim_cli.compare(files, **TESTED)
    assert found.matrix("a", "b").rows == ["h"]
    null = found.results.measures[0].null
    assert (null["clusters"], null["segments"], null["share"]) == ("document", 12, 1.0)
    given = repsim_cli.compare({"a": X, "b": Y}, documents=[f"d{each}" for each in DOCUMENTS], **TESTED)
    assert p_of(given) == p_of(found)


def test_scattered_rows_of_a_document_move_together():
    """Rows stand in any order: 12 segments of 4 rows. A false test of single rows would reject."""
    found = repsim_cli.compare({"a": X[MOVED], "b": Y[MOVED]}, documents=DOCUMENTS[MOVED], **TESTED)
    null = found.results.measures[0].null
    assert (null["segments"], null["share"]) == (12, 1.0)
    together = repsim_cli.compare({"a": X, "b": Y}, documents=DOCUMENTS, **TESTED)
    assert found.matrix("a", "b").values == pytest.approx(together.matrix("a", "b").values, abs=1e-6)
    alone = {**TESTED, "settings": {**TESTED["settings"], "significance.clusters": "row"}}
    assert repsim_cli.compare({"a": X, "b": Y}, **alone).results.measures[0].null["segments"] == 48


def test_documents_follow_the_ids(tmp_path):
    ids = np.array([f"i{i}" for i in range(48)])
    files = {
        "a": str(npz(tmp_path / "a", X, DOCUMENTS, ids=ids)),
        "b": str(npz(tmp_path / "b", Y[MOVED], DOCUMENTS[MOVED], ids=ids[MOVED])),
    }
    found = repsim_cli.compare(files, **TESTED)
    assert p_of(found) == p_of(repsim_cli.compare({"a": X, "b": Y}, documents=DOCUMENTS, **TESTED))
    npz(tmp_path / "b", Y[MOVED], DOCUMENTS, ids=ids[MOVED])
    with pytest.raises(BadInput, match=r"model.b.documents: they differ from those of 'a', got '\d+' for '\d+' in row"):
        repsim_cli.compare(files, **TESTED)


@pytest.mark.parametrize(
    ("tested", "settings"),
    [("permutation", {}), ("closed_form", {}), ("none", {"significance.jackknife": True})],
)
def test_rows_of_unknown_dependence_are_not_tested(tested, settings):
    given = {"measures": ["cka"], "significance": tested}
    with pytest.raises(BadInput, match=r"nothing says which rows of 'a' depend on each other; give the document"):
        repsim_cli.compare({"a": X, "b": Y}, settings=settings, **given)
    assert repsim_cli.compare({"a": X, "b": Y}, settings={**settings, "significance.clusters": "row"}, **given)


def test_the_closed_form_refuses_documents():
    with pytest.raises(BadInput, match="takes rows as independent, got closed_form; use significance=permutation"):
        repsim_cli.compare({"a": X, "b": Y}, documents=DOCUMENTS, measures=["cka"], significance="closed_form")


def test_documents_of_the_items_of_modules():
    torch.manual_seed(0)
    nets = {label: nn.Linear(3, 4) for label in "ab"}
    items, given = torch.randn(24, 3), {"layers": [], "maps": "pooled", **TESTED}
    with pytest.raises(BadInput, match="nothing says which rows of 'a' depend on each other"):
        repsim_cli.compare({"a": nn.Sequential(nets["a"]), "b": nn.Sequential(nets["b"])}, items, **given)
    found = repsim_cli.compare(
        {"a": nn.Sequential(nets["a"]), "b": nn.Sequential(nets["b"])},
        items,
        documents=np.repeat(range(12), 2),
        **given,
    )
    assert found.results.measures[0].null["segments"] == 12


@pytest.mark.parametrize(
    ("models", "documents", "message"),
    [
        ({"a": X, "b": Y}, [1, 2], "documents: one for each of 48 rows of 'a', got 2; give as many"),
        ({"a": X, "b": Y}, "chapter", "documents: a list, got str; give the document of each row"),
        (
            {"a": "tiny_a", "b": "tiny_b"},
            [1, 2],
            "documents: only arrays and modules take them, got 'a', whose texts are",
        ),
    ],
)
def test_bad_documents(models, documents, message):
    with pytest.raises(BadInput, match=message):
        repsim_cli.compare(models, documents=documents)


@pytest.mark.parametrize(
    ("documents", "settings", "message"),
    [
        (DOCUMENTS[:7], {}, "documents: 'documents' has another number of rows, got 7 for 48; write one a row"),
        (
            [*["x"] * 47, ""],
            {},
            "documents: 'documents' must have a document for each row, got none for row 47; fill it",
        ),
        (DOCUMENTS / 2, {}, r"documents: 'documents' must be text or whole numbers, got float64 \(48,\); write it"),
        (
            DOCUMENTS,
            {"documents": "document"},
            "documents: not an array of text or whole numbers, got 'document'; did you",
        ),
    ],
)
def test_bad_documents_of_a_file(tmp_path, documents, settings, message):
    with pytest.raises(BadInput, match=message):
        precomputed(path=str(npz(tmp_path / "a", X, documents)), **settings)


def test_texts_that_share_a_stored_document(tmp_path):
    """Stored rows of the examples of a table say that examples depend on each other: not tested as independent."""
    texts = [f"The {word} stood by the {other}." for word in ("cat", "dog", "cow", "hen") for other in "abcdefghijkl"]
    (tmp_path / "t.csv").write_text("key,text\n" + "".join(f"k{i},{text}\n" for i, text in enumerate(texts)))
    ids = np.array([f"k{i}" for i in range(48)])
    file = npz(tmp_path / "a", X, DOCUMENTS, ids=ids)
    models, data = {"s": str(file), "m": "tiny_a"}, {"path": str(tmp_path / "t.csv"), "text": "text", "id": "key"}
    settings = {"extract.estimate": "full", "significance.permutations": 39}
    with pytest.raises(BadInput, match="rows that the texts count as independent share one of the stored `documents`"):
        repsim_cli.compare(models, data, **{**TESTED, "settings": settings})
    assert repsim_cli.compare(models, data, **{**TESTED, "significance": "none", "settings": settings})
    alone = {**settings, "significance.clusters": "row"}
    assert repsim_cli.compare(models, data, **{**TESTED, "settings": alone}).results.measures[0].null["segments"] == 48
