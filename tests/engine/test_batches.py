"""Batches of documents in the order of their topics are told from those of documents in any order."""

import numpy as np
import pytest
import torch

import repsim_cli
from repsim_cli.engine.batches import SKETCH, WARNING, are_batches_apart, make_batches_observer

SIDES = [slice(0, 1), slice(1, 2)]


def average(streams, documents, batches):
    """What a run has of these streams, in equal batches of rows that follow each other."""
    parts = np.array_split(np.arange(len(documents)), batches)
    watch = make_batches_observer("cka", lambda batch: documents[parts[batch]], 0)
    seen = [watch(i, [stream[part] for stream in streams])["cka", "batches"] for i, part in enumerate(parts)]
    return torch.stack(seen).mean(0)


def draw(rng, *, topics, batches=6, documents=40, rows=4, width=24, decay=0.0):
    """Two models of unrelated documents, whose topics have effects; decay: of the variance over features."""
    count = batches * documents
    of, topic = np.repeat(np.arange(count), rows), np.repeat(np.arange(topics), -(-count // topics))[:count]
    scale = np.exp(-decay * np.arange(width))
    made = [
        torch.from_numpy(
            (rng.normal(size=(topics, width))[topic][of] * (topics > 1) + rng.normal(size=(count, width))[of])
            + rng.normal(size=(count * rows, width))
        )
        * torch.from_numpy(scale)
        for _ in range(2)
    ]
    return made, of, batches


@pytest.mark.parametrize("batches", [3, 4, 12])
@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0])
def test_documents_in_any_order_are_seldom_accused(batches, decay):
    rng = np.random.default_rng(batches)
    accused = 0
    for _ in range(100):
        made, of, count = draw(rng, topics=1, batches=batches, documents=20, rows=2, decay=decay)
        accused += are_batches_apart(average(made, of, count), count, SIDES)
    assert accused <= 5


@pytest.mark.parametrize("batches", [4, 12])
def test_topics_in_order_are_found(batches):
    rng = np.random.default_rng(batches)
    found = 0
    for _ in range(50):
        made, of, count = draw(rng, topics=batches, batches=batches)
        found += are_batches_apart(average(made, of, count), count, SIDES)
        one_side = [made[0], torch.from_numpy(rng.normal(size=made[1].shape))]
        assert not are_batches_apart(average(one_side, of, count), count, SIDES)
    assert found >= 45


def test_what_is_observed_is_what_plain_means_give():
    x = torch.arange(12.0, dtype=torch.float64).view(6, 2) ** 2
    documents = np.array([3, 3, 5, 5, 9, 9])
    (found,) = make_batches_observer("cka", lambda batch: documents, 7)(0, [x])["cka", "batches"]
    rows = x.double().numpy() @ np.random.default_rng(7).choice([-1.0, 1.0], (2, SKETCH))
    means = rows.reshape(3, 2, SKETCH).mean(1)
    np.testing.assert_allclose(found[:SKETCH], means.mean(0))
    np.testing.assert_allclose(found[SKETCH], (means.mean(0) ** 2).sum())
    np.testing.assert_allclose(found[SKETCH + 1], means.var(0, ddof=1).sum() / 3)
    assert make_batches_observer("cka", lambda batch: documents * 0, 7)(0, [x]) == {}
    assert not are_batches_apart(found[None], 2, SIDES[:1])


@pytest.mark.parametrize("ordered", [True, False])
def test_a_run_says_that_its_batches_are_of_topics(ordered):
    made, of, _ = draw(np.random.default_rng(0), topics=6)
    rows = np.arange(len(of)) if ordered else np.random.default_rng(1).permutation(len(of) // 4).repeat(4) * 4
    if not ordered:
        rows = rows + np.tile(np.arange(4), len(of) // 4)
    arrays = {name: stream[rows].numpy() for name, stream in zip("ab", made, strict=True)}
    settings = {"extract.estimate": "per_batch", "extract.batch_rows": 160, "significance.chance": False}
    found = repsim_cli.compare(arrays, documents=of[rows], measures=["cka"], settings=settings)
    assert (WARNING in found.warnings) == ordered
