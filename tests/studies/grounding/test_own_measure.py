"""A measure of one's own, graded on planted representations: an oracle, noise, a constant; bad input."""

from functools import partial

import pytest
import torch

import repsim_cli
from repsim_cli import measures
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.measures import Card
from repsim_cli.runs import folders, reader
from repsim_cli.runs.content import Results
from repsim_cli.studies.grounding import own_measure as custom

grade = partial(repsim_cli.grade, beside=("procrustes", "euclidean"))


def card(**claims):
    usual = {
        "label": "mine", "larger_is_closer": True, "bounds": (None, None), "symmetric": True, "is_metric": False,
        "invariant_to": frozenset(), "minimum_rows": 2, "cost": "n d", "source": "a test",
    }  # fmt: skip
    return Card(**(usual | claims))


@pytest.mark.slow
def test_an_oracle_is_first_and_noise_has_chance():
    """The oracle knows which representation is which: from planted marks in the rows it finds group, model and layer."""
    layers, _ = custom.plant_models()
    known = {tuple(x[0].tolist()): i for i, x in enumerate(layers.rows)}

    def closeness(a, b):
        (group_a, layer_a), (group_b, layer_b) = ((i // 20, i % 4) for i in (a, b))
        return -abs(layer_a - layer_b) - 10.0 * (group_a != group_b)

    oracle = grade(lambda x: known.get(tuple(x[0].tolist()), 0), closeness, card=card())
    scores = {row["test"]: row["score"] for row in oracle.tests}
    for test in ("identification", "monotonicity", "order of layers", "separation", "conformity"):
        assert scores[test] == pytest.approx(1), test
    generator = torch.Generator().manual_seed(0)
    noise = grade(lambda x: x, lambda a, b: float(torch.rand(1, generator=generator)), card=card())
    for row in noise.tests:
        assert abs(row["score"] - row["chance"]) < 0.35, row["test"]
    assert noise.mean_rank > oracle.mean_rank
    assert noise.place == noise.measures == 3


@pytest.mark.slow
def test_a_distance_is_read_as_one():
    measure = measures.get("procrustes")
    mine = grade(measure.prepare, measure.compare, card=measure.card)
    assert mine.place == 1
    assert mine.mean_rank < 2
    band = f"{mine.low:.1f} to {mine.high:.1f} over models"
    assert str(mine).startswith(f"mean rank {mine.mean_rank:.1f} ({band}), 1 of 3 measures")


@pytest.mark.slow
def test_a_constant_says_why():
    mine = grade(lambda x: x, lambda a, b: 1.0, card=card())
    why = {row["test"]: row["why"] for row in mine.tests if row["score"] is None}
    assert why["order of layers"] == "all similarities are equal"
    assert "all similarities are equal" in str(mine)


@pytest.mark.slow
def test_a_measure_without_any_value():
    with pytest.raises(
        Degenerate, match="no test gives it a score, got a value is not finite; check prepare and compare"
    ):
        grade(lambda x: x, lambda a, b: float("nan"), card=card())


def test_a_run_without_representations(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "find", lambda run: tmp_path)
    monkeypatch.setattr(reader, "read_manifest", lambda folder: {})
    monkeypatch.setattr(reader, "read_results", lambda folder: Results(study="similarity"))
    with pytest.raises(BadInput, match="run: stored representations are needed, got a run of study=similarity"):
        repsim_cli.grade(lambda x: x, lambda a, b: 1.0, card=card(), run=tmp_path)


def test_the_module_has_nothing_else():
    with pytest.raises(AttributeError, match="has no attribute 'grades'"):
        repsim_cli.grades  # noqa: B018
