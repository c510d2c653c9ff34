"""Changes of tokens by hand and against scipy, and the tokens that are listed."""

import numpy as np
import pytest
import torch
from helpers.tiny_configs import tiny_config
from scipy.special import softmax
from scipy.stats import entropy

from repsim_cli.base import registry
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.content import COSINE, KL, NEXT, RELATIVE
from repsim_cli.studies.tuned import changes
from repsim_cli.studies.tuned.changes import (
    Change,
    Texts,
    compute_logit_divergences,
    compute_row_changes,
    find_lacking,
    measure_token_changes,
)

# ---- closed forms ----


def test_differences_by_hand():
    relative, cosine = compute_row_changes(
        torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[3.0, 0.0], [-2.0, 0.0]])
    )
    assert relative.tolist() == pytest.approx([0.8, 3.0])
    assert cosine.tolist() == pytest.approx([0.6, -1.0])
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    for base, other, relative in ((zeros, ones, np.nan), (zeros, zeros, np.nan), (ones, zeros, 1.0)):
        found, direction = compute_row_changes(base, other)
        assert found.tolist() == pytest.approx([relative], nan_ok=True)
        assert direction.isnan().all()


def test_divergences_against_scipy():
    base, tuned = np.random.default_rng(0).normal(size=(2, 50, 7)) * 3
    expected = [entropy(softmax(p), softmax(q)) for p, q in zip(base, tuned, strict=True)]
    for cells in (changes.CELLS, 20, 1):  # all rows at a time, two, and one
        found = compute_logit_divergences(torch.from_numpy(base), torch.from_numpy(tuned), cells)
        assert found.numpy() == pytest.approx(expected, abs=1e-12)
    assert compute_logit_divergences(torch.from_numpy(base), torch.from_numpy(base)).tolist() == [0.0] * 50


def test_changes_of_padded_vocabularies_and_of_models_without_a_head():
    x = torch.ones(5, 3)
    logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    change = Change()
    change.add(1, [x, logits], [x, torch.cat([logits, torch.full((5, 2), 9.0)], 1)])
    change.add(1, [x, logits], [2 * x, logits])
    found = change.tensors()
    assert (found[KL].shape, found[KL].abs().max(), found[RELATIVE].tolist()) == ((1, 10), 0, [[0.0] * 5 + [1.0] * 5])
    assert torch.equal(found[NEXT][0], found[NEXT][1])
    alone = Change()
    alone.add(1, [x, logits], [x])
    assert alone.tensors().keys() == {RELATIVE, COSINE}


def test_tokens_without_a_value_are_left_out_of_what_is_said_of_the_others():
    x = torch.tensor([[1.0, 0], [0, 0], [2, 0], [0, 0]])
    y = torch.tensor([[2.0, 0], [1, 0], [2, 0], [1, 0]])
    change = Change()
    change.add(2, [x, torch.ones(4, 2) * torch.tensor([[1.0], [1], [1], [0]])], [y, torch.ones(4, 2)])
    found = change.tensors()
    assert found[RELATIVE].tolist() == [
        pytest.approx(row, nan_ok=True) for row in ([1, np.nan, 0, np.nan], [0, 0, 0, np.nan])
    ]
    assert [row[:3] for row in find_lacking(found)] == [
        (RELATIVE, 0, 2),
        (RELATIVE, 1, 1),
        (COSINE, 0, 2),
        (COSINE, 1, 1),
    ]
    ((_, values, least),) = measure_token_changes(found)
    assert least == 1e-6
    assert values == pytest.approx([0.5, 0, 0, np.nan], nan_ok=True)
    ids, place = np.array([[0, 1], [2, 4]]), np.array([[0, 1], [0, 1]])
    mask = np.ones((2, 2), bool)
    sequences = Sequences(inputs=ids, mask=mask, text=mask, document=ids * 0, position=place, documents=2)
    texts = Texts(Letters(), sequences, Extract(hook_points=["embed"]))
    assert [row[2] for row in texts.tokens({"m": found}, 9)] == [0.5]  # what does not change is not listed
    assert [row[2:4] for row in texts.texts({"m": found}, 9)] == [[0.25, 2]]


class Letters:
    """Token i is the i-th of these."""

    def decode(self, ids, **_):
        return "".join("ab\n\x1bé"[i] for i in ids)


def test_the_text_around_a_token_is_escaped():
    ids = np.array([[0, 1, 2, 3, 4, 0]])
    mask = np.array([[True] * 5 + [False]])
    place = np.where(mask, np.arange(6), -1)
    sequences = Sequences(inputs=ids, mask=mask, text=mask, document=place * 0, position=place, documents=1)
    texts = Texts(Letters(), sequences, Extract(hook_points=["embed"]))
    change = {RELATIVE: torch.tensor([[0.0, 0.0, 3.0, 2.0, 0.0]])}
    by = "relative difference, mean over layers"
    assert list(texts.tokens({"m": change}, 2)) == [
        ["m", by, 3.0, "ab", "'\\n'", "\\x1bé", None, None],
        ["m", by, 2.0, "ab\\n", "'\\x1b'", "é", None, None],
    ]
    assert list(texts.texts({"m": change}, 2)) == [["m", by, 1.0, 5, "ab\\n\\x1bé"]]


def test_the_same_text_is_listed_once():
    ids = np.array([[0, 1, 0], [0, 1, 1], [0, 1, 1], [1, 1, 1]])
    mask = np.array([[True] * 3] * 3 + [[True, False, False]])
    sequences = Sequences(inputs=ids, mask=mask, text=mask, document=ids * 0, position=ids * 0, documents=4)
    texts = Texts(Letters(), sequences, Extract(hook_points=["embed"]))
    # "a", "ab" begin three sequences; "b" another
    change = {RELATIVE: torch.tensor([[3.0, 2.0, 1.0, 3.0, 2.0, 0.0, 3.0, 2.0, 0.0, 2.5]])}
    assert [(row[2], row[3], row[4]) for row in texts.tokens({"m": change}, 5)] == [
        (3.0, "", "'a'"), (2.5, "", "'b'"), (2.0, "a", "'b'"), (1.0, "ab", "'a'"),
    ]  # fmt: skip
    assert [(row[2], row[4]) for row in texts.texts({"m": change}, 5)] == [
        (2.5, "b"), (2.0, "aba"), (pytest.approx(5 / 3), "abb"),
    ]  # fmt: skip


def test_which_models_predict_the_next_token():
    kinds = ("llama", "gpt2", "gemma3_text", "mamba", "bert", "t5", "pegasus")
    sources = {kind: registry.models.get("random").function(config=tiny_config(kind)) for kind in kinds}
    assert [kind for kind, source in sources.items() if predicts_next(source)] == [
        "llama",
        "gpt2",
        "gemma3_text",
        "mamba",
    ]
