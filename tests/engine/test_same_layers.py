"""The same layer of two models: what is equal, what is equal to rounding, and where two models first differ."""

import itertools
import shutil

import pytest
import safetensors.torch
import torch

import repsim_cli
from repsim_cli.activations.readings import Layer, Reading
from repsim_cli.activations.rows import RowBlock
from repsim_cli.engine.same_layers import SameLayers, choose_ordered_layers, measure_difference
from repsim_cli.models.checkpoints import SHIPPED
from repsim_cli.models.source import Precomputed
from repsim_cli.runs.content import COPIES, SAME

NAMES = [f"resid_post@{block}" for block in range(4)]


def no_rows(name, rows):
    raise AssertionError("rows are given as a stream")


def said(*models, **how):
    """The sentences about these models."""
    tables = compared(*models, **how)
    return dict(tables[SAME].rows) if SAME in tables else {}


def compared(*models, names=NAMES, dtype="float32", blocks=2, twice=False):
    """The tables about these models; each is the rows of its layers. twice: it is one model, on several texts."""
    sources = [Precomputed(names=names, rows=8, widths=[5] * len(names), read=no_rows, identity=dict) for _ in models]
    readings = [
        Reading(
            label,
            sources[0 if twice else "abcdef".index(label)],
            [],
            [Layer(label, name, x.shape[1]) for name, x in zip(names, rows, strict=True)],
        )
        for label, rows in zip("abcdef", models, strict=False)
    ]
    same = SameLayers(readings, dtype)
    size = -(-len(models[0][0]) // blocks)
    stream = (
        RowBlock(start, [x[start : start + size] for rows in models for x in rows])
        for start in range(0, len(models[0][0]), size)
    )
    for _ in same.watch(stream):
        pass
    return same.tables()


@pytest.fixture
def rows():
    return torch.randn(4, 8, 5, generator=torch.Generator().manual_seed(0))


def test_one_model_on_two_texts_is_no_other_model(rows):
    assert said(rows, rows, twice=True) == {"a beside b": "identical in blocks 0 to 3, all that are compared"}
    for layer in (0, 2):
        assert said(rows, changed(rows, layer, 0.1), twice=True) == {}
        assert said(rows, changed(rows, layer, 0.1)) != {}


def changed(rows, layer, by, at=slice(None)):
    """Layers of which each row, from this one on, is off by so much of its norm."""
    other = rows.clone()
    other[layer:, at] += by * rows[layer:, at].norm(dim=-1, keepdim=True) * torch.eye(5)[0]
    return other


def test_copies_are_listed_whatever_makes_them_so(rows):
    turned = rows + 0.1 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    tables = compared(rows, rows.clone(), 2 * rows, rows.bfloat16().float(), turned, changed(rows, 3, 0.03))
    assert tables[COPIES].rows == [[a, b] for a, b in itertools.combinations("abcd", 2) if {a, b} != {"c", "d"}]
    assert COPIES not in compared(rows, rows, twice=True)


def test_identical_to_rounding_and_different(rows):
    assert said(rows, rows.clone()) == {"a beside b": "identical in blocks 0 to 3, all that are compared"}
    assert said(rows, changed(rows, 3, 0.03)) == {
        "a beside b": "identical in blocks 0 to 2, first difference in block 3 (0.03 of the norm)"
    }
    # in the second part of the rows alone
    assert said(rows, changed(rows, 2, 0.2, at=slice(6, 8))) == {
        "a beside b": "identical in blocks 0 to 1, first difference in block 2 (0.05 of the norm, in 2 of 8 rows)"
    }
    rounded = changed(rows, 1, 3e-7)
    assert said(rows, rounded) == {"a beside b": "identical in block 0, the same to rounding in blocks 1 to 3"}
    assert said(rows, changed(rounded, 3, 0.1))["a beside b"].endswith("blocks 1 to 2, first difference in block 3 (0.1 of the norm)")  # fmt: skip
    assert said(rows, changed(rows, 0, 3e-3), dtype="bfloat16")["a beside b"] == "the same to rounding in blocks 0 to 3"


def test_features_in_another_order_are_named_and_make_a_copy(rows):
    order = torch.tensor([2, 0, 1, 4, 3])
    tables = compared(rows, rows[..., order])
    assert tables[SAME].rows == [["a beside b", "b is a with its features in another order in blocks 0 to 3"]]
    assert tables[COPIES].rows == [["a", "b"]]
    assert said(rows, changed(rows[..., order], 0, 1e-3)) == {}  # no bits of it are the same
    twice = rows.clone()
    twice[..., 1] = twice[..., 0]
    assert said(twice, twice[..., order]) == {}  # features that no order tells apart


def test_rows_of_files_in_another_order_are_told_from_rows_that_are_equal_by_chance(rows):
    rows = torch.randn(4, 40, 5, generator=torch.Generator().manual_seed(2))
    moved = torch.roll(rows, 1, 1)
    text = "40 of 40 rows of b are rows of a that are not paired with them (of those compared, 0 is 39); put both in one order"
    assert said(rows, moved) == {"a beside b": text}
    some = torch.cat([rows[:, :30], rows[:, 30:].flip(1)], 1)
    assert [what[:23] for _, what in compared(rows, some)[SAME].rows] == [
        "first difference in blo",
        "10 of 40 rows of b are ",
    ]
    assert said(rows, moved, twice=True) == {}
    codes = (rows > 0).float()  # of which many are equal
    assert "not paired" not in str(said(codes, torch.roll(codes, 1, 1)))
    zeros = rows.clone()
    zeros[:, 20:] = 0
    assert "not paired" not in str(said(rows, zeros))
    assert "not paired" not in str(said(zeros, rows))


def test_few_rows_that_are_far_off_are_counted(rows):
    far = rows.clone()
    far[:, 3] *= 1e4
    assert said(rows, far)["a beside b"].endswith("in 1 of 8 rows)")


def test_what_has_nothing_in_common_is_not_spoken_of(rows):
    other = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    assert said(rows, other) == {}
    assert said(rows, changed(rows, 0, 0.1)) == {
        "a beside b": "first difference in block 0, the first that is compared (0.1 of the norm)"
    }
    near = changed(rows, 2, 0.1)
    assert set(said(rows, other, near)) == {"a beside c"}
    assert said(rows, changed(rows, 0, 0.1), other) == {}
    assert said(rows, rows[..., :4]) == {}  # of another width


def test_layers_that_follow_from_each_other(rows):
    names = ["embed", "mlp_out@0", "resid_post@0", "resid_post@1"]
    other = rows.clone()
    other[1] += 1
    assert said(rows, other, names=names) == {"a beside b": "identical in embed, blocks 0 to 1, all that are compared"}
    assert said(rows, changed(rows, 2, 0.1), names=["a", "b", "c", "d"])["a beside b"].startswith("identical in a, b, first difference in c (")  # fmt: skip
    assert choose_ordered_layers(["mlp_out@0", "attn_out@0", "mlp_out@1"]) == [0, 2]


def test_a_row_of_zeros_and_layers_behind_a_difference(rows):
    zeros = rows.clone()
    zeros[0, 0] = 0
    assert said(zeros, zeros.clone())["a beside b"].startswith("identical")
    behind = changed(rows, 1, 0.5)
    behind[2:] = rows[2:]
    assert said(rows, behind)["a beside b"] == (
        "identical in block 0, first difference in block 1 (0.5 of the norm), identical again in blocks 2 to 3"
    )
    first = changed(rows, 0, 2.0)
    first[1:] = rows[1:]  # what is equal behind it shows that the models have something in common
    assert said(rows, first)["a beside b"] == (
        "first difference in block 0, the first that is compared (2 of the norm), identical in blocks 1 to 3"
    )
    both = behind.clone()
    both[3, :, 1] += 1
    assert said(rows, both, names=["a", "b", "c", "d"])["a beside b"].endswith(
        "(0.5 of the norm), identical again in c"
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda x: x.half().float(), "b is a rounded to float16"),
        (lambda x: x.bfloat16().float(), "b is a rounded to bfloat16"),
        (lambda x: 3 * x, "b is 3 times a"),
        (lambda x: -0.5 * x, "b is -0.5 times a"),
        (lambda x: x + 1, "b is a plus 1"),
        (lambda x: x - 0.25, "b is a minus 0.25"),
        (lambda x: 2 * x + 3, "b is 2 times a plus 3"),
    ],
)
def test_copies_in_another_precision_scale_or_place(change, what):
    rows = torch.randn(4, 80, 5, generator=torch.Generator().manual_seed(0))
    assert said(rows, change(rows)) == {"a beside b": f"{what} in blocks 0 to 3"}
    other = change(rows)
    other[2] = torch.roll(rows[2], 1, 0)
    assert said(rows, other)["a beside b"].startswith(f"{what} in blocks 0 to 1, first difference in block 2 (")
    assert said(rows, other)["a beside b"].endswith(f" of the norm), {what} again in block 3")
    late = change(rows)
    late[:, -1] = rows[:, -1] + 0.1 * rows[:, 0]  # the last row alone is otherwise
    assert what not in said(rows, late).get("a beside b", "")
    if "rounded" in what:
        assert said(change(rows), rows) == {"a beside b": f"{what.replace('b is a', 'a is b')} in blocks 0 to 3"}


def test_rows_of_float64_may_be_rounded_twice():
    """A value just above the middle of two numbers of float16 is the middle in float32, and then rounded to even."""
    rows = torch.randn(4, 80, 5, generator=torch.Generator().manual_seed(0)).double()
    rows[:, 0, 0] = 1 + 2.0**-11 + 2.0**-30
    rounded = torch.from_numpy(rows.numpy().astype("f2").astype("f4"))
    assert rounded[0, 0, 0] != rows.float().half().float()[0, 0, 0]
    assert said(rows.float(), rounded) == {"a beside b": "b is a rounded to float16 in blocks 0 to 3"}


def test_no_factor_is_found_where_values_are_few_or_constant():
    few = torch.tensor([[[1.0, 2.0]], [[3.0, 5.0]]])
    assert said(few, 2 * few, names=["a", "b"], blocks=1) == {}
    rows = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0))
    dead = rows.clone()
    dead[1] = 1
    assert said(rows, dead, names=["a", "b"]) == {
        "a beside b": f"identical in a, first difference in b ({measure_difference(rows[1], dead[1])[0] / 8:.2g} of the norm)"
    }
    unrelated = torch.randn(2, 2, 300, 5, generator=torch.Generator().manual_seed(1))
    assert said(*unrelated, names=["a", "b"]) == {}


def test_compare_begins_with_it(repsim, newest, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(SHIPPED / "tiny_a", folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("layers.3.attention.dense.bias"))
    weights[name] = torch.zeros_like(weights[name])
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    words = ("compare", "tiny_a", folder, "--measure", "cka")
    settings = ("extract.sequences=8", "extract.estimate=full", "significance.chance=false")
    small = [word for setting in settings for word in ("--set", setting)]
    code, out, err = repsim(*words, *small)
    assert code == 0, err
    sentence = "identical in blocks 0 to 2, first difference in block 3 (0.03 of the norm)"
    assert out.splitlines()[1] == f"  tiny_a beside broken: {sentence}"
    result = repsim_cli.load(newest())
    assert result.answers == [("tiny_a beside broken", sentence)]
    assert sentence in result._repr_html_()
    assert repsim(*words, *small)[1].splitlines()[1] == out.splitlines()[1]  # from the cache
    assert repsim("show", newest())[1].splitlines()[1:3].count(f"  tiny_a beside broken: {sentence}") == 1


def test_rows_of_zeros_in_one_model_are_a_difference(rows):
    silent = rows.clone()
    silent[2:] = 0
    sentence = "identical in blocks 0 to 1, first difference in block 2 (1 of the norm)"
    for models in ([rows, silent], [silent, rows]):
        assert said(*models) == {"a beside b": sentence}
