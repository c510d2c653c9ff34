"""Runs that leave out pairs of rows of one document: what they give, record, say and refuse."""

import numpy as np
import pytest
import torch

import repsim_cli
from repsim_cli import BadInput, measures
from repsim_cli.measures.base import restrict_to_other_documents

DOCUMENTS = np.repeat(np.arange(12), [5, 8, 3, 9, 6, 6, 6, 6, 6, 6, 6, 7])
NAMES = ["cka_unbiased", "cka", "rsa", "mutual_knn"]


def arrays(documents=DOCUMENTS, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=(documents.max() + 1, 6))[documents] + rng.normal(size=(len(documents), 6))).astype("f4")
        for name in "ab"
    }


def compared(pairs, documents=DOCUMENTS, names=NAMES, **settings):
    return repsim_cli.compare(
        arrays(documents),
        measures=names,
        documents=documents.tolist(),
        significance=settings.pop("significance", "none"),
        settings={"extract.pairs": pairs, **settings},
    )


def test_a_run_leaves_pairs_out_and_says_of_which_measures():
    result, xs = compared("other_documents"), arrays()
    for name in NAMES:
        expected = restrict_to_other_documents(measures.get(name), torch.from_numpy(DOCUMENTS))(xs["a"], xs["b"])
        assert float(result.matrix("a", "b", name).values[0, 0]) == pytest.approx(expected, abs=1e-5)
    recorded = {measured.label: measured.estimate["pairs"] for measured in result.results.measures}
    assert recorded == {name: "all" if name == "cka" else "other_documents" for name in NAMES}
    said = {measured.label: measured.pairs for measured in result.results.measures}
    assert (said["rsa"], said["cka"]) == ("pairs of rows of different documents", "")
    assert result.results.measures[0].chance["mean"] == "exact"
    assert compared("all").results.measures[0].estimate["pairs"] == "all"


def test_a_row_per_document_gives_the_same_bits():
    each = np.arange(30)
    both = [compared(pairs, each) for pairs in ("all", "other_documents")]
    for name in NAMES:
        assert np.array_equal(*(result.matrix("a", "b", name).values for result in both))


def test_tests_and_errors_are_of_the_same_pairs():
    equal = np.repeat(np.arange(12), 5)
    settings = {"significance": "permutation", "significance.permutations": 39, "significance.jackknife": True}
    result = compared("other_documents", equal, ["cka_unbiased"], **settings)
    row = result.frame().query("model == 'a' and other_model == 'b'").iloc[0]
    assert row["p"] > 0.05
    assert abs(row["value"]) < 0.15
    assert 0.01 < row["se"] < 0.2
    assert result.results.measures[0].null["share"] == 1


def test_what_cannot_be_had_is_refused_in_one_line():
    two, large = np.repeat([0, 1], 20), np.repeat([0, 1, 2], [40, 3, 3])
    with pytest.raises(BadInput, match="extract.pairs: a batch has rows of 2 documents, where 3 are needed, got other"):
        compared("other_documents", two)
    with pytest.raises(BadInput, match="a batch has 6 rows beside those of its largest document, where 11 are needed"):
        compared("other_documents", large)
    with pytest.raises(BadInput, match="extract.pairs: nothing says which rows of 'a' are of one document, got other"):
        repsim_cli.compare(arrays(), settings={"extract.pairs": "other_documents"})
    with pytest.raises(
        BadInput, match="declared independent of each other, got row with extract.pairs=other_documents"
    ):
        compared("other_documents", **{"significance.clusters": "row"})


def test_auto_keeps_all_pairs_where_too_few_would_be_left():
    few = compared("auto", np.repeat([0, 1], 20), ["cka_unbiased"])
    assert few.results.measures[0].estimate["pairs"] == "all"
    (warning,) = [text for text in few.warnings if text.startswith("extract.pairs")]
    assert warning.startswith("extract.pairs: a batch has rows of 2 documents, where 3 are needed")
    assert "errors over batches" not in warning
    assert compared("auto", names=["cka_unbiased"]).results.measures[0].estimate["pairs"] == "other_documents"


@pytest.mark.parametrize(("count", "few"), [(1, True), (2, True), (4, False)])
def test_errors_over_batches_of_few_documents_are_said_to_be_of_these(count, few):
    documents = np.arange(80) // (80 // count)
    settings = {"extract.estimate": "per_batch", "extract.batch_rows": 20}
    found = compared("auto", documents, ["cka_unbiased"], **settings).warnings
    (warning,) = [text for text in found if text.startswith("extract.pairs")]
    assert ("errors over batches say nothing of other documents" in warning) == few


def test_a_study_of_all_pairs_refuses(repsim):
    code, _, said = repsim("run", "study=views", "model=[tiny_a]", "extract.pairs=other_documents", "dry_run=true")
    assert code == 2
    assert "extract.pairs: the study views compares all pairs of rows, got other_documents; set extract" in said
