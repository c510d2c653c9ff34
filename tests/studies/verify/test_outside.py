"""Faults of no listed kind are found where they stand, and no wrong name is given; errors of a few roundings as well."""

import copy

import pytest
import torch
from outside import OUTSIDE
from planted import FAULTS, planted
from plants import SMALL, batches, built, instead, planted_by, then

from repsim_cli.studies.verify.answer import DIFFERENT, ROUNDING, UNNAMED
from repsim_cli.studies.verify.study import verify_models

# what each had let in: a module whose output alone is another; an error of low rank with equal weights; positions of
# another shape; ids that only look like other rows
MENDED = {
    "branch_dropped": "factor",
    "output_centred": UNNAMED,
    "positions_restart_at_padding": "positions",
    "another_first_token": "tokens",
    "head_sees_the_token_before": "positions",
}


@pytest.fixture(scope="module")
def models():
    return {name: built(name) for name in ("gpt2", "llama")}


@pytest.mark.parametrize(("fault", "kind"), MENDED.items())
def test_a_fault_of_no_listed_kind_is_found_and_not_misnamed(models, fault, kind):
    broken, places = planted_by(lambda parts, block, *_: OUTSIDE[fault][1](parts, block), models["gpt2"])
    answer = verify_models(models["gpt2"], broken, batches()[:3])
    assert answer.verdict == DIFFERENT
    assert (answer.differences[0].unit, answer.differences[0].place) in places
    assert answer.differences[0].kind == kind
    assert kind in OUTSIDE[fault][0] | {UNNAMED}


@pytest.mark.parametrize("fault", ["gain_changed", "adapter", "residual", "epsilon"])
def test_an_error_of_few_roundings_keeps_its_name(models, fault):
    kind, sizes, _ = FAULTS[fault]
    size = 30 if fault == "epsilon" else SMALL[1]
    assert size in sizes
    broken, places = planted(models["llama"], fault, size)
    first = verify_models(models["llama"], broken, batches()[:2]).differences[0]
    assert (first.unit, first.place) in places
    assert first.kind == kind, first.about


def test_a_small_error_of_queries_is_no_rotation_and_one_of_an_activation_no_other_one(models):
    broken = copy.deepcopy(models["llama"])
    block = broken.model.layers[1]

    def noisy(x):
        return x * (1 + SMALL[2] * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))

    def rotated(kept):
        return lambda q, k, *args, **kwargs: (noisy(kept(q, k, *args, **kwargs)[0]), kept(q, k, *args, **kwargs)[1])

    instead(block.self_attn, "apply_rotary_pos_emb", rotated)
    then(block.mlp.act_fn, lambda out, _: noisy(out))
    answer = verify_models(models["llama"], broken, batches()[:2])
    assert [(each.place, each.kind) for each in answer.differences] == [
        ("self_attn:q", UNNAMED),
        ("mlp.act_fn", UNNAMED),
    ]


def of_neighbours(_):
    def rotated(q, k, cos, sin):
        cos, sin = (x[:, None, :, : x.shape[-1] // 2].repeat_interleave(2, -1) for x in (cos, sin))
        return tuple(x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin for x in (q, k))

    return rotated


ROTATIONS = {
    "rotated by the opposite angles: the rotation has the opposite sign": (
        "rotate_half",
        lambda half: lambda x: -half(x),
    ),
    "not rotated": ("apply_rotary_pos_emb", lambda _: lambda q, k, *__: (q, k)),
    "the same length in other directions: rotated by other angles, or in another layout": (
        "apply_rotary_pos_emb",
        of_neighbours,
    ),
}


@pytest.mark.parametrize("said", ROTATIONS)
def test_what_is_said_of_a_wrong_rotation(models, said):
    broken = copy.deepcopy(models["llama"])
    for block in broken.model.layers:
        instead(block.self_attn, *ROTATIONS[said])
    answer = verify_models(models["llama"], broken, batches()[:2])
    first, last = answer.differences[0], len(broken.model.layers) - 1
    assert (first.unit, first.place, first.kind) == ("block 0", "self_attn:q", "rotary")
    assert first.about.startswith(said)
    lines = answer.lines()
    assert lines[1].endswith("; what is rotated and its angles (rotary_emb) are right, so look at what rotates")
    assert f"on the reference's own inputs blocks 0 to {last}: q (self_attn), k (self_attn); embed, " in lines[-1]


def test_angles_of_the_other_sign(models):
    broken = copy.deepcopy(models["llama"])
    kept = broken.model.rotary_emb.forward
    broken.model.rotary_emb.forward = lambda *args, **kw: (kept(*args, **kw)[0], -kept(*args, **kw)[1])
    (first,) = verify_models(models["llama"], broken, batches()[:2]).differences
    assert (first.unit, first.kind) == ("rotary_emb", "rotary")
    assert first.about.startswith("rotated by the opposite angles")


def test_a_fault_of_scores_in_float16_is_not_hidden_by_the_mask(models):
    """What is masked there is no smaller than -65504, and was taken for scores, whose rounding was without bounds."""
    broken = copy.deepcopy(models["llama"]).half()
    broken.model.layers[1].self_attn.scaling *= 2
    first = verify_models(models["llama"], broken, batches()[:1]).differences[0]
    assert (first.unit, first.place, first.kind) == ("block 1", "self_attn:scores", "factor")
    whole = verify_models(models["llama"], copy.deepcopy(models["llama"]).half(), batches()[:3])
    assert whole.verdict == ROUNDING
