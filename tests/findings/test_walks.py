"""Groups of layers against walks: those of layers that wander, however they do, are seldom clearer; planted ones are."""

import numpy as np
import pytest
from helpers.sub_network_matrices import planted
from scipy.spatial.distance import pdist, squareform

from repsim_cli.findings.boundaries import find_model_blocks
from repsim_cli.findings.partitions import divide_in_two, find_contiguous_segments, find_segment_ways
from repsim_cli.findings.walks import draw_reordered, make_group_finder, say_beyond_walks


def are_beyond(apart):
    blocks = find_model_blocks(apart, False)
    return blocks.clear and say_beyond_walks(blocks.apart, divide_in_two(blocks.apart), divide_in_two) == "yes"


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("steps", ["normal", "a few large", "growing"])
def test_boundaries_of_layers_that_wander_are_seldom_clearer_than_walks(steps, power):
    rng = np.random.default_rng(0)
    scale = {
        "normal": lambda: np.ones((12, 1)),
        "a few large": lambda: (3 / rng.chisquare(3, (12, 1))) ** 0.5,
        "growing": lambda: np.exp(np.linspace(0, 2, 12))[:, None],
    }[steps]
    found = [are_beyond(squareform(pdist((scale() * rng.normal(size=(12, 2))).cumsum(0))) ** power) for _ in range(40)]
    assert np.mean(found) <= 0.125  # in 40 draws of 0.05 no more than 5, but for 1 of 70 cases


@pytest.mark.parametrize("power", [1, 2])
def test_planted_groups_are_clearer_than_walks(power):
    labels, values = planted((8, 8), 0)
    apart = values**power
    finder = make_group_finder(find_segment_ways(False), False)
    assert find_contiguous_segments(apart, False, count=None).labels.tolist() == labels.tolist()
    assert say_beyond_walks(apart, labels, finder) == "yes"


def test_walks_have_the_steps_of_the_layers():
    places = np.random.default_rng(0).normal(size=(9, 3)).cumsum(0)
    apart = squareform(pdist(places)) ** 2
    placed, *walks = draw_reordered(apart, 2, 3)
    np.testing.assert_allclose(placed, apart, atol=1e-9)
    assert len(walks) == 3
    assert not np.allclose(walks[0], apart)
    same = np.zeros((6, 6))
    assert not any(walk.any() for walk in draw_reordered(same, 1, 2))
