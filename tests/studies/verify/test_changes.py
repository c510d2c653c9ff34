"""What was done to a tensor of weights, by its values in both models."""

import copy

import pytest
import torch
from plants import batches, built

from repsim_cli.studies.verify.answer import AS_QUANTISED
from repsim_cli.studies.verify.changes import name_weight_change
from repsim_cli.studies.verify.study import verify_models
from repsim_cli.studies.verify.weights import compute_weight_norms

NAME = "layers.1.mlp.up_proj.weight"


def _lower_rank(w):
    u, s, v = torch.linalg.svd(w, full_matrices=False)
    return (u[:, :16] * s[:16]) @ v[:16]


def _change_some(w, places, new):
    w[places] = new
    return w


CHANGES = {
    "zeroed row": (lambda w: _change_some(w, 7, 0.0), ("rows", "row 7 of its weights is zero")),
    "zeroed columns": (
        lambda w: _change_some(w, (slice(None), slice(8, 12)), 0.0),
        ("rows", "columns 8 to 11 of its weights are zero"),
    ),
    "most rows zeroed": (
        lambda w: _change_some(w, slice(20, None), 0.0),
        ("rows", "rows 20 to 95 of its weights are zero"),
    ),
    "another row": (lambda w: _change_some(w, 7, torch.ones(64)), ("rows", "row 7 of its weights differs")),
    "copied rows": (
        lambda w: _change_some(w, slice(8, 16), w[:8].clone()),
        ("rows", "rows 8 to 15 of its weights are those of rows 0 to 7"),
    ),
    "scaled rows": (
        lambda w: _change_some(w, slice(8, 16), 1.25 * w[8:16]),
        ("part", "rows 8 to 15 of its weights are multiplied by 1.25"),
    ),
    "swapped rows": (
        lambda w: _change_some(w, [3, 9], w[[9, 3]].clone()),
        ("permuted", "rows 3, 9 of its weights are in another order: heads, neurons, halves or tokens"),
    ),
    "reversed": (lambda w: w.flip(0), ("permuted", "its rows are in another order: heads, neurons, halves or tokens")),
    "pruned": (
        lambda w: w.masked_fill(w.abs() < w.abs().flatten().sort().values[1000], 0.0),
        ("pruned", "1,000 of its 6,144 weights are zero: it is pruned"),
    ),
    "pruned by two of four": (
        lambda w: w.view(-1, 4).scatter(1, w.view(-1, 4).abs().argsort(1)[:, :2], 0.0).view(w.shape),
        ("pruned", "3,072 of its 6,144 weights are zero: it is pruned"),
    ),
    "cut": (lambda w: w.clamp(-1, 1), ("clipped", None)),
    "few": (
        lambda w: _change_some(w, (torch.arange(5), torch.arange(5)), 9.0),
        ("weight", "5 of its 6,144 weights differ"),
    ),
    "lower rank": (_lower_rank, ("rank", "its weights have rank 16 of 64, where they had a higher one")),
    "adapter": (
        lambda w: w + torch.outer(w[:, 0], w[1]) + torch.outer(w[:, 2], w[3]),
        (
            "adapter",
            "its weights differ by a matrix of rank 2 of 64: an adapter is missing, merged twice or scaled",
        ),
    ),
    "zero": (torch.zeros_like, ("factor", "its weights are zero")),
    "noise": (lambda w: w + 0.05 * w.flip(0).sin(), None),
    "rounded": (lambda w: (w * 4).round() / 4, ("noise", None)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_done_to_a_matrix_is_named(change, dtype):
    """The kind is the same in 16 bits, where what is computed is rounded."""
    make, wanted = CHANGES[change]
    before = torch.randn(96, 64, generator=torch.Generator().manual_seed(5)).to(dtype)
    reference = {NAME: before}
    candidate = {NAME: make(before.float().clone()).to(dtype)}
    said = name_weight_change(NAME, reference, candidate, compute_weight_norms(reference))
    if wanted is None:
        assert said is None
    else:
        assert said is not None
        assert said[0] == wanted[0]
        assert wanted[1] in (None, said[1]) or dtype is torch.bfloat16


def test_low_ranks_of_wide_matrices_are_found_in_a_part():
    """Ranks are found without the singular values of all 1,200 rows."""
    draw = torch.Generator().manual_seed(6)
    before = torch.randn(1200, 1300, generator=draw)
    low = torch.randn(1200, 40, generator=draw) @ torch.randn(40, 1300, generator=draw) / 40**0.5
    norms = compute_weight_norms({NAME: before})
    assert name_weight_change(NAME, {NAME: before}, {NAME: low}, norms) == (
        "rank",
        "its weights have rank 40 of 1200, where they had a higher one",
    )
    added = name_weight_change(NAME, {NAME: before}, {NAME: before + 1e-2 * low}, norms)
    assert added is not None
    assert "rank 40 of 1200" in added[1]


def test_rows_of_a_large_table_are_counted():
    """Half of 40,000 rows are neither listed one by one nor compared with all others."""
    before = torch.randn(40_000, 3, generator=torch.Generator().manual_seed(8))
    after = before.clone()
    after[::2] = before[1::2]
    said = name_weight_change(NAME, {NAME: before}, {NAME: after}, {NAME: 1.0})
    assert said == ("rows", "rows 0, 2, 4 and 19997 more of its weights differ")


@pytest.mark.parametrize(("changed", "values"), [(1, "value"), (3, "values")])
def test_few_values_of_a_bias_are_counted(changed, values):
    before = torch.randn(64, generator=torch.Generator().manual_seed(7))
    after = before.clone()
    after[:changed] += 1
    name = "layers.1.mlp.up_proj.bias"
    said = name_weight_change(name, {name: before}, {name: after}, {name: 1.0})
    assert said == (
        "offset",
        f"{changed} of the 64 values of its bias {'differs' if changed == 1 else 'differ'}",
    )


def test_a_row_of_the_table_of_positions_is_named():
    reference = built("gpt2")
    broken = copy.deepcopy(reference)
    broken.transformer.wpe.weight.data[5] = 0
    first = verify_models(reference, broken, batches()).differences[0]
    assert (first.place or first.unit, first.kind, first.about) == ("wpe", "positions", "row 5 of its weights is zero")


def test_weights_in_floating_8_bits_are_as_quantised():
    reference = built("llama")
    rounded = copy.deepcopy(reference)
    for layer in rounded.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = module.weight.data.to(torch.float8_e4m3fn).float()
    answer = verify_models(reference, rounded, batches())
    assert (answer.verdict, answer.settings["precision"]) == (AS_QUANTISED, "float8_e4m3fn")
