"""Which rows trade places under the permutation null."""

import numpy as np
import pytest
import torch
from helpers.nights import nightly
from hypothesis import given
from hypothesis import strategies as st

from repsim_cli import measures
from repsim_cli.activations.places import list_row_documents, mark_row_beginnings
from repsim_cli.activations.row_batches import select_batch_rows
from repsim_cli.activations.segments import BOTH, DOCUMENT, SEQUENCE, find_segments
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Significance
from repsim_cli.data.base import Sequences
from repsim_cli.engine import significance as judging


def laid(lengths, kind=BOTH):
    """Documents and beginnings of rows of such documents, one after the other."""
    lengths = np.asarray(lengths)
    beginnings = np.zeros(lengths.sum(), int)
    beginnings[lengths.cumsum() - lengths] = kind
    return np.repeat(np.arange(len(lengths)), lengths), beginnings


def test_documents_of_one_length_are_taken_whole():
    documents, beginnings = laid([4] * 12)
    found = find_segments([documents], [beginnings])
    assert (found.count, found.share) == (12, 1.0)
    assert found.rows(0).tolist() == list(range(48))
    stay = (found.orders(0, 4000, [0]) == np.arange(48)).mean()
    assert stay == pytest.approx(1 / 12, rel=0.05)
    assert (found.orders(0, 200, [0], shifted=True)[:, ::4] // 4 - np.arange(12) % 12 + 12).max() < 24
    assert found.exchange(0).units.tolist() == np.repeat(np.arange(12), 4).tolist()
    assert found.exchange(0).places.tolist() == [0, 1, 2, 3] * 12


def test_the_length_at_which_segments_hold_most_rows():
    """Lengths 2, 5 (six times) and 9 (five times): 11 segments of 5 rows hold more than 12 of 2 or 6 of 9."""
    documents, beginnings = laid([2, *[5] * 6, *[9] * 5])
    found = find_segments([documents], [beginnings])
    ((group,),) = found.batches
    assert group.shape == (11, 5)
    assert found.share == pytest.approx(55 / 77)
    assert group[:, 0].tolist() == [2, 7, 12, 17, 22, 27, 32, 41, 50, 59, 68]


def test_ten_documents_are_never_refused():
    """Half of them would hold more rows, but ten are needed."""
    documents, beginnings = laid([1] * 5 + [40] * 5)
    assert find_segments([documents], [beginnings]).count == 10
    with pytest.raises(
        BadInput, match=r"^significance.clusters: 10 documents are needed that can be exchanged, got 9 of 9; give"
    ):
        find_segments(*([part] for part in laid([3] * 9)))


def test_batches_with_too_few_rows_have_no_segments():
    """A measure that needs 30 rows is not tested on a batch with 12 in segments."""
    small, large = laid([3] * 4), laid([3] * 12)
    found = find_segments([small[0], large[0] + 4], [small[1], large[1]], least=30)
    assert [len(groups) for groups in found.batches] == [0, 1]
    assert found.rows(0).tolist() == []
    with pytest.raises(BadInput, match="that can be exchanged in batches of 50 rows at least, got 0 of 16"):
        find_segments([small[0], large[0] + 4], [small[1], large[1]], least=50)


def test_a_document_in_two_batches_is_used_in_one():
    documents, beginnings = laid([6] * 24)
    batches = [slice(0, 69), slice(69, 144)]  # the cut is in the middle of document 11
    found = find_segments([documents[b] for b in batches], [beginnings[b] for b in batches])
    used = [documents[b][found.rows(i)] for i, b in enumerate(batches)]
    assert not set(used[0]) & set(used[1])
    assert found.count == len(set(used[0]) | set(used[1])) == 23  # its second part begins nothing


@given(
    lengths=st.lists(st.integers(1, 30), min_size=12, max_size=60),
    kinds=st.randoms(use_true_random=False),
    cut=st.integers(40, 200),
)
def test_segments_are_alike_and_of_one_document_each(lengths, kinds, cut):
    documents, beginnings = laid(lengths)
    beginnings[beginnings > 0] = [kinds.choice((BOTH, DOCUMENT, SEQUENCE)) for _ in lengths]
    # sequences begin inside documents too
    beginnings[[i for i in range(0, len(beginnings), 17) if beginnings[i] == 0]] = SEQUENCE
    batches = [slice(start, start + cut) for start in range(0, len(documents), cut)]
    try:
        found = find_segments([documents[b] for b in batches], [beginnings[b] for b in batches])
    except BadInput:
        return
    used = []
    for number, (groups, batch) in enumerate(zip(found.batches, batches, strict=True)):
        own, first = documents[batch], beginnings[batch]
        for group in groups:
            assert (np.diff(group, axis=1) == 1).all()
            assert len({int(kind) for kind in first[group[:, 0]]}) == 1
            assert first[group[0, 0]] > 0
            assert (first[group[:, 1:]] == 0).all()
            assert (own[group] == own[group[:, :1]]).all()
            used += own[group[:, 0]].tolist()
        rows = found.rows(number)
        for order in found.orders(number, 3, [0]) if len(rows) else ():
            assert sorted(order.tolist()) == list(range(len(rows)))
            start = 0
            for k, length in (group.shape for group in groups):
                # a segment takes the place of another of its group, row by row
                moved = order[start : start + k * length].reshape(k, length)
                assert ((moved - start) % length == np.arange(length)).all()
                assert ((moved - start) // length == ((moved - start) // length)[:, :1]).all()
                start += k * length
    assert len(used) == len(set(used)) == found.count >= 10


def packed(document, position, text=None):
    """Sequences of packed text."""
    document, position = np.asarray(document), np.asarray(position)
    text = document >= 0 if text is None else text
    return Sequences(
        inputs=np.zeros_like(document),
        mask=np.ones_like(text),
        text=text,
        document=document,
        position=position,
        documents=4,
    )


def extract(**given):
    return Extract(hook_points=["resid_post"], **given)


def test_what_rows_begin():
    """A document inside a sequence begins there, whether its first token is kept or not; the rest of one does not."""
    given = packed([[0, 0, 1, 1], [1, -1, 2, 2], [-1, 3, 3, 3]], [[0, 1, 0, 1], [2, -1, 1, 2], [-1, 0, 1, 2]])
    assert mark_row_beginnings(given, extract()).tolist() == [BOTH, 0, DOCUMENT, 0, SEQUENCE, DOCUMENT, 0, BOTH, 0, 0]
    assert list_row_documents(given, extract()).tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    assert mark_row_beginnings(given, extract(unit="mean")).tolist() == [BOTH] * 3


def test_a_sample_of_whole_sequences():
    """Sequences are drawn until the next one would be too many rows; no more rows than asked for."""
    counts = np.array([5, 0, 7, 3, 6, 4])
    asked, total = extract(estimate="full", rows=14), int(counts.sum())
    of = np.repeat(np.arange(6), counts)
    seen = set()
    for seed in range(20):
        numbers = select_batch_rows(asked, total, seed, 0, counts)
        chosen = set(of[numbers].tolist())
        assert len(numbers) == sum(counts[i] for i in chosen) <= 14
        assert (np.diff(numbers) > 0).all()
        seen |= chosen
    assert seen == {0, 2, 3, 4, 5}
    assert select_batch_rows(asked, 14, 0, 0, np.array([7, 7])).tolist() == list(range(14))
    assert len(select_batch_rows(extract(estimate="full", rows=3), 8, 0, 0, np.array([4, 4]))) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly(["cka_unbiased", "mutual_knn"], "cka_unbiased"))
def test_unrelated_rows_of_unequal_sentences_are_not_found_related(name):
    """Two noise models with an effect of the sentence, sentences of 3 to 40 rows: 5 % are rejected, not all."""
    draws, hits = 60, 0
    settings = Significance(method="permutation", permutations=19)
    given = {name: measures.get(name)}
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        documents, beginnings = laid(rng.integers(3, 41, 30))
        sides = [
            torch.from_numpy(rng.normal(size=(len(documents), 12)) + 2 * rng.normal(size=(30, 12))[documents])
            for _ in range(2)
        ]
        null = judging.draw_pairings(
            settings,
            given,
            find_segments([documents], [beginnings]),
            names=["x", "y"],
            seed=seed,
            tile=512,
            labels=lambda batch: None,
            notes=lambda batch, label, shape: np.full(shape, np.nan),
        )
        found = null(0, sides)
        p = judging.p_values(found[name, "tested"], found[name, "null"], measures.card(name))
        hits += float(p[0, 1]) <= 0.05
    assert hits / draws < 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)
