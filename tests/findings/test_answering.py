"""Which layer answers to which: planted maps, both directions of a measure, gaps, trends."""

import math

import numpy as np
import pytest

from repsim_cli.findings import answering
from repsim_cli.findings.answering import Sides
from repsim_cli.findings.driving import say_driving
from repsim_cli.runs.behind import Kept
from repsim_cli.runs.content import CHANCE, Matrix, Measured, Side

LIKE = {"larger_is_closer": True, "symmetric": True, "bounds": [0.0, 1.0], "label": "L"}


def sides(values, larger=True, chance=None, columns="pqrs"):
    values = np.array(values, float)
    return Sides(
        "a", "b", list("xyzw"[: len(values)]), list(columns[: values.shape[1]]), values, chance, larger
    )  # fmt: skip


def test_the_closest_its_chance_and_its_lead():
    values, chance = [[0.9, 0.7, 0.1], [0.2, 0.2, 0.3], [np.nan] * 3], np.full((3, 3), 0.05)
    found = answering.find_closest_layers(sides(values, chance=chance))
    assert [(each.layer, each.closest, each.value, each.chance) for each in found] == [
        ("x", "p", 0.9, 0.05),
        ("y", "r", 0.3, 0.05),
    ]
    assert [each.margin for each in found] == pytest.approx([0.2, 0.1])
    (distance,) = answering.find_closest_layers(sides([[3.0, 1.0, 1.5]], larger=False))
    assert (distance.closest, distance.value, distance.margin, distance.chance) == ("q", 1.0, 0.5, None)
    assert answering.find_closest_layers(sides([[0.4]]))[0].margin is None


@pytest.mark.parametrize("symmetric", [True, False])
def test_both_directions(symmetric):
    """A symmetric measure is transposed; one with a direction has a matrix for each."""
    arrays = {"ab": np.array([[0.9, 0.1], [0.8, 0.2]]), "ba": np.array([[0.3, 0.4], [0.5, 0.6]]), "aa": np.eye(2)}
    arrays["chance"] = np.array([[0.0, 0.1], [0.2, 0.3]])
    of = {model: Side(model=model, layers=[f"{model}0", f"{model}1"]) for model in "ab"}
    names = ["aa", "ab"] if symmetric else ["aa", "ab", "ba"]
    details = {"ab": {CHANCE: "chance"}}
    measured = Measured(
        name="m",
        label="m",
        settings={},
        estimate={},
        card=LIKE | {"symmetric": symmetric},
        matrices=[
            Matrix(rows=of[name[0]], columns=of[name[1]], values=name, details=details.get(name, {})) for name in names
        ],
    )
    rows = answering.tabulate_closest_layers([measured], arrays.__getitem__)
    assert [row[1:5] for row in rows[:2]] == [["a", "a0", "b", "b0"], ["a", "a1", "b", "b0"]]
    assert [row[6] for row in rows[:2]] == [0.0, 0.2]
    closest = "a0" if symmetric else "a1"
    assert [row[1:5] for row in rows[2:]] == [["b", "b0", "a", closest], ["b", "b1", "a", "a1"]]
    assert [row[6] for row in rows[2:]] == ([0.0, 0.3] if symmetric else [None, None])
    first, second = answering.find_both_directions(measured, arrays.__getitem__, "b", "a")
    assert (first.first, second.first) == ("b", "a")
    assert not answering.find_both_directions(measured, arrays.__getitem__, "a", "c")


def test_along_is_the_same_layer_or_the_closest():
    square = sides([[0.5, 0.9], [0.1, 0.6]], columns="xy")
    assert answering.list_layer_values(square) == [("x", 0.5), ("y", 0.6)]
    assert answering.list_layer_values(sides([[0.5, 0.9], [0.1, 0.6]])) == [("x", 0.9), ("y", 0.6)]


def test_trends_of_distances_and_of_alike_layers():
    assert answering.describe_depth_trend([10.0, 20.0, 30.0], False, 0.1) == "less alike with depth"
    assert answering.describe_depth_trend([10.0, 10.1, 10.0], False, 0.001) == "about as alike at every depth"
    assert answering.describe_depth_trend([0.2, 0.9, 0.2, 0.9], True, 0.001) == ""
    assert answering.describe_depth_trend([0.2], True, 0.001) == ""
    for odd in range(6):  # a single layer that fails makes no trend, wherever it stands
        values = np.ones(6) - 1e-6 * np.arange(6)
        values[odd] = 0
        assert answering.describe_depth_trend(values.tolist(), True, 1e-9) == ""


def test_best_matches_of_noise_are_not_named():
    """Layers whose values differ by their noise alone, among which no layer is the closest."""
    rng, names = np.random.default_rng(0), list("abcdefgh")
    named = 0
    for _ in range(100):
        values = 0.5 + 0.02 * rng.normal(size=(8, 8))
        near = answering.find_near_columns(values, True, answering.find_scatter(math.ceil(8 * 8**0.5), 0.02))
        closest = answering.find_closest_columns(values, True)
        named += "No layer of a is closer" not in answering.say_closest(("a", "b"), names, names, closest, near)
    assert named <= 5


def test_the_closest_layers_are_among_those_that_are_named():
    """Planted closest layers are missed in 5 of 100 draws at most, and few others are named."""
    rng = np.random.default_rng(0)
    means = 0.5 - 0.03 * np.abs(np.arange(12)[:, None] - np.arange(12))
    missed, named = 0, []
    for _ in range(100):
        near = answering.find_near_columns(
            means + 0.01 * rng.normal(size=(12, 12)), True, answering.find_scatter(math.ceil(12 * 12**0.5), 0.01)
        )
        missed += any(layer not in each for layer, each in enumerate(near))
        named += [len(each) for each in near]
    assert missed <= 5
    assert np.mean(named) < 6


def test_extremes_name_a_layer_once():
    near, far = answering.pick_extreme_pairs(sides([[0.9, 0.8], [0.7, 0.1], [np.nan, 0.2]]), 2)
    assert near == [("x", "p", 0.9), ("y", "p", 0.7)]
    assert far == [("y", "q", 0.1), ("z", "q", 0.2)]


def test_which_tokens_are_behind_a_similarity():
    """The closest pair of layers: tokens by the shares of their rows, and by how many nearest rows both layers have."""
    rows, tokens = 8, [0, 0, 0, 1, 1, 1, 2, 3]
    pieces = ["the", "the", "the", " cat", " cat", " cat", "\x1b[2J", " sat"]
    about = {
        "layers": [["a", "resid_post@0"], ["a", "resid_post@1"], ["b", "embed"]], "measure": "cka", "unit": "token",
        "rows": rows, "of": 20, "tokens": tokens, "texts": [{"pieces": pieces, "rows": list(range(rows))}], "without": "",
    }  # fmt: skip
    near = np.tile(np.arange(2), (3, rows, 1))
    near[2, 3:6] = [4, 5]  # cats have others near
    arrays = {
        "nearest": near, "pairs": np.array([[0, 2], [1, 2]]), "values": np.array([0.2, 0.8]),
        "shares": np.array([[0.2 / rows] * rows, [0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.4, 0.04]]),
    }  # fmt: skip
    (said,) = say_driving(Kept(about, arrays), "b", "a")
    assert said == (
        "the tokens behind it, at block 1 and embed: '\\x1b[2J', 'the' and 'cat' (7 of 8 rows) make 95 % of the "
        "similarity; fewest shared neighbours of 2: 'cat' 0.0, 'the' 2.0"
    )
    copied = arrays | {"nearest": np.stack([near[0], near[2], near[2]])}  # block 1 is a copy of the embeddings
    (said,) = say_driving(Kept(about, copied), "b", "a")
    assert said.startswith("the tokens behind it, at block 0 and embed: ")
    assert said.endswith("; fewest shared neighbours of 2: 'cat' 0.0, 'the' 2.0")
    (said,) = say_driving(Kept(about, arrays | {"nearest": near[[0, 0, 0]]}), "b", "a")
    assert said.endswith("95 % of the similarity")
    untold = about | {"texts": [], "without": "texts of local files are kept with extract.keep_texts=true"}
    (said,) = say_driving(Kept(untold, arrays), "a", "b")
    assert said == "which tokens are behind it is not kept: texts of local files are kept with extract.keep_texts=true"
    assert not list(say_driving(Kept(about, arrays), "a", "c"))
    assert not list(say_driving(Kept(about, {"nearest": near}), "a", "b"))
    assert not list(
        say_driving(Kept(about, arrays | {"shares": -arrays["shares"]}), "a", "b")
    )  # no similarity to share
    (said,) = say_driving(Kept(about | {"tokens": None}, arrays), "a", "b")  # pooled: each row is a text
    assert said.startswith(
        "the texts behind it, at block 1 and embed: '\\x1b[2J', 'the' and 'the' (3 of 8 rows) make 75 %"
    )
