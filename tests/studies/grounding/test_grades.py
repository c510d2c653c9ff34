"""Grades of a run: measures in both directions, groups, runs without them, a real run."""

import io
import itertools

import numpy as np
import pytest
from helpers.planted_models import ACCURACY, GROUPS, LAYERS, noise, oracle
from helpers.recorded import recorded

from repsim_cli.base.errors import BadInput
from repsim_cli.figures.frame import OPTIONS
from repsim_cli.findings.analysis import Finished, LayerMap
from repsim_cli.findings.leaderboard import load_leaderboard
from repsim_cli.runs import reader
from repsim_cli.runs.content import Facts, Measured, Results, Table
from repsim_cli.studies.grounding import finding as grades
from repsim_cli.studies.grounding.finding import Grades
from repsim_cli.studies.grounding.scores import SCORES


def finished(tmp_path, maps, groups=None):
    """A run of models of LAYERS blocks; maps: by measure the similarities of `Models` and whether larger is closer."""
    models = [f"m{i}" for i in range(12)]
    names = [f"resid_post@{i}" for i in range(LAYERS)]
    facts = Facts(kind="live", family="bert", layers=names, widths=[8] * LAYERS, blocks=LAYERS)
    manifest = {
        "facts": {model: vars(facts) for model in models},
        "models": {model: {"metrics": {"accuracy": float(x)}} for model, x in zip(models, ACCURACY, strict=True)},
        **({"groups": groups} if groups else {}),
    }
    run = Finished(folder=tmp_path, manifest=manifest, results=Results(study="similarity"))
    run.__dict__["maps"] = {}
    for label, (similar, larger) in maps.items():
        measured = Measured(
            name=label, label=label, settings={}, estimate={}, card={"label": label, "larger_is_closer": larger},
            matrices=[],
        )  # fmt: skip
        whole = similar.transpose(0, 2, 1, 3).reshape(12 * LAYERS, 12 * LAYERS) * (1 if larger else -1)
        places = {model: slice(i * LAYERS, (i + 1) * LAYERS) for i, model in enumerate(models)}
        run.__dict__["maps"][label] = LayerMap(measured, whole, names * 12, [8] * 12 * LAYERS, places)
    return run


@pytest.mark.parametrize("larger", [True, False])
def test_the_oracle_is_first_in_both_directions(tmp_path, larger):
    members = {name: [f"m{i}" for i in np.flatnonzero(group == GROUPS)] for group, name in enumerate("abc")}
    run = finished(tmp_path, {"noise": (noise(0).similar, True), "oracle": (oracle().similar, larger)}, members)
    part = grades.grades(run, Grades(), [])
    best, worst = part.tables["measures by grade"].rows
    assert best[:2] == ["oracle", 1.0]
    assert worst[:2] == ["noise", 2.0]
    assert best[4] == worst[4] == 5
    rows = [dict(zip(grades.GRADES, row, strict=True)) for row in part.tables["grades"].rows]
    assert len(rows) == 10
    for row in rows:
        assert (row["data"], row["models of"], row["hook point"], row["models"]) == ("", "", "resid_post", 12)
        assert row["low"] <= row["score"] <= row["high"]
        assert row["rank"] == (1 if row["measure"] == "oracle" else 2)
        assert row["chance"] == pytest.approx(SCORES[row["test"]].chance(oracle()))


def test_without_groups_all_models_are_seeds_of_one(tmp_path):
    rows = grades.grades(finished(tmp_path, {"oracle": (oracle().similar, True)}), Grades(), []).tables["grades"].rows
    assert [row[1] for row in rows] == ["identification", "monotonicity", "order of layers", "accuracy"]


def test_nothing_to_grade(tmp_path):
    run = finished(tmp_path, {})
    with pytest.raises(BadInput, match="no test applies, got a run without two models of the same layers"):
        grades.grades(run, Grades(), [])


@pytest.mark.slow
def test_a_run_is_graded(repsim, newest):
    """Two seeds of one language model."""
    words = ("model=[tiny_a,tiny_b]", "measure=[cka_unbiased,mutual_knn,magnitude_difference]", "extract.sequences=16")
    code, _, err = repsim("run", *words, "analyses.grades={}", "extract.estimate=full", "extract.rows=500")
    assert code == 0, err
    tables = recorded(newest())["tables"]
    scores = {(row[0], row[1]): row[5] for row in tables["grades"]["rows"]}
    values = reader.read_array(newest(), recorded(newest())["measures"][0]["matrices"][1]["values"])
    same = [*(values.argmax(1) == np.arange(6)), *(values.argmax(0) == np.arange(6))]
    assert scores["cka_unbiased", "identification"] == pytest.approx(np.mean(same))
    assert scores["cka_unbiased", "order of layers"] > 0.5
    assert len(tables["measures by grade"]["rows"]) == 3


@pytest.mark.slow
def test_names_of_measures_meet_nothing():
    """Names in the figure of costs, once it is drawn, of half of the shipped grades."""
    rows = [[name, float(row["images"]), float(row["seconds per pair"])] for name, row in load_leaderboard().items()][
        ::2
    ]
    figure = grades._draw_ranks_against_cost(Table(columns=["measure", "mean rank", "seconds per pair"], rows=rows))
    figure.savefig(io.BytesIO(), format="png", **OPTIONS["png"])
    texts = figure.axes[0].texts
    boxes = [text.get_window_extent() for text in texts]
    marks = figure.axes[0].transData.transform([(seconds, rank) for _, rank, seconds in rows])
    assert len(texts) > 20
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert not any(box.count_contains(marks) for box in boxes)
