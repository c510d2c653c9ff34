"""A reference in a file whose inside is sketched: the same places as by rows, no alarm, and bits that are recognised."""

import json

import pytest
import safetensors
import torch
from planted import FAULTS, planted
from plants import batches, built
from torch import nn

from repsim_cli.api.verify import find_model, load_sides
from repsim_cli.base.settings import Hardware
from repsim_cli.studies.verify import saved
from repsim_cli.studies.verify.answer import IDENTICAL, ROUNDING, UNNAMED
from repsim_cli.studies.verify.reference import Precisions
from repsim_cli.studies.verify.replay import replay_pass
from repsim_cli.studies.verify.rounding import Places
from repsim_cli.studies.verify.sketches import COLUMNS, compute_checksum, judge_sketches, sketch_rows
from repsim_cli.studies.verify.study import verify_models
from repsim_cli.studies.verify.units import split_into_units

# what is planted where, and whether a sketch tells the kind
PLANTED = {
    ("bias_added", "llama"): True, ("scaled", "llama"): True, ("neuron_scaled", "gpt2"): False,
    ("heads_swapped", "llama"): False, ("future_seen", "gpt2"): False, ("residual", "llama"): True,
    ("block_skipped", "llama"): True, ("norm_missing", "gpt2"): False, ("adapter", "gpt2"): False,
    ("gain_changed", "llama"): False,
}  # fmt: skip


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Models, each with references of it: with rows of what is inside, and with sketches."""
    made = {}

    def of(name):
        if name not in made:
            model, kept = built(name), []
            for room in (2**30, 0):
                file = tmp_path_factory.mktemp("saved") / f"{name}.safetensors"
                saved.save(file, model, batches(model), name, inside=room)
                kept.append(saved.load(file))
            made[name] = model, *kept
        return made[name]

    return of


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_the_place_is_that_of_rows(references, fault, name):
    model, rows, sketches = references(name)
    broken, places = planted(model, fault, FAULTS[fault][1][-1])
    by_rows, by_sketches = (verify_models(side, broken, side.batches).differences for side in (rows, sketches))
    ours, theirs = by_rows[0], by_sketches[0]
    assert (theirs.unit, theirs.place) in places
    assert (theirs.unit, theirs.place, theirs.block) == (ours.unit, ours.place, ours.block)
    assert theirs.kind == (ours.kind if PLANTED[fault, name] else UNNAMED)
    assert theirs.relative == pytest.approx(ours.relative, rel=0.3)
    assert {each.unit for each in by_sketches} == {each.unit for each in by_rows}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_sums_are_no_fault_at_any_place(tmp_path, dtype):
    model, other = built("llama").to(dtype), built("llama").to(dtype)
    file = tmp_path / "reference.safetensors"
    saved.save(file, model, batches(model), "llama", inside=0)
    for module in other.modules():
        if type(module) is nn.Linear:
            halves = (module.weight[:, ::2].clone(), module.weight[:, 1::2].clone())
            module.forward = lambda x, halves=halves: x[..., ::2] @ halves[0].T + x[..., 1::2] @ halves[1].T
    reference, units = saved.load(file), split_into_units(other)
    assert verify_models(reference, other, reference.batches).verdict == ROUNDING
    keys = [unit.key for unit in units]
    of_text = reference.match(units)[0]
    seen = replay_pass(other, units, reference.batches[0], of_text, Precisions(dtype, None), inside=keys)
    assert (seen.findings, seen.inside) == ([], [])
    assert not seen.equal


def test_equal_bits_are_recognised(references):
    model, _, sketches = references("gpt2")
    assert verify_models(sketches, model, sketches.batches).verdict == IDENTICAL
    units = split_into_units(model)
    given = sketches.match(units)[0], Precisions(torch.float32, None)
    assert replay_pass(model, units, sketches.batches[0], *given, inside=[unit.key for unit in units]).equal


def test_what_is_said_of_sketches(repsim, tmp_path):
    first, _ = load_sides(find_model("reference", "tiny_a"), None, Hardware(by_block="never"))
    file = tmp_path / "tiny.safetensors"
    saved.save(file, first.model, batches(first.model), first.label, first.tokenizer, inside=400_000)
    with safetensors.safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["repsim_verify"])["batches"][0]
        of_rows = opened.get_slice("0/block 0/inside/mlp.act").get_shape()
        of_sketch = opened.get_slice("0/block 5/inside/mlp.act").get_shape()
    assert of_rows[-1] == 256
    assert of_sketch[1:] == [1, COLUMNS + 1]
    kept = [key for key in facts["order"] if key in facts["again"] and key not in facts["checksums"]]
    first = int(kept[-1].removeprefix("block ")) + 1
    assert 0 < first < 5
    code, out, _ = repsim("verify", file, "tiny_a")
    assert (code, out.split()[0]) == (0, IDENTICAL)
    assert (
        f"note    of blocks {first} to 5 the file holds sketches of what is inside; of what is wrong inside one" in out
    )


def test_a_sketch_has_no_bias():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 400, 96, generator=draw)
    rows = sketch_rows(x, Places(torch.ones(3, 400, dtype=torch.bool)))
    ratios = rows[..., :-1].square().sum(-1) / rows[..., -1].square()
    assert rows.shape == (1200, 1, COLUMNS + 1)
    torch.testing.assert_close(rows[:, 0, -1], x.norm(dim=-1).flatten())
    assert abs(float(ratios.mean()) - 1) < 4 * (2 / COLUMNS / 1200) ** 0.5
    assert float(ratios.std()) == pytest.approx((2 / COLUMNS) ** 0.5, rel=0.15)


def test_a_checksum_is_of_all_bytes():
    x = torch.zeros(2, 3)
    assert compute_checksum(x) == compute_checksum(x.T.contiguous().T)
    assert (
        len(
            {
                compute_checksum(x),
                compute_checksum(-x),
                compute_checksum(x.T),
                compute_checksum(x.bfloat16()),
                compute_checksum(torch.zeros(())),
            }
        )
        == 5
    )


def test_sketches_of_other_shapes_are_another_place():
    x = torch.ones(5, 1, COLUMNS + 1)
    assert not judge_sketches(x, x, None, torch.float32).faulty
    assert judge_sketches(x, x[:2], None, torch.float32).faulty
    assert judge_sketches(x, x[..., :4], None, torch.float32).faulty
