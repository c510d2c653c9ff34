"""Published ranks of measures beside those of a run."""

import numpy as np
import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.analysis import Finished
from repsim_cli.runs.content import Results
from repsim_cli.studies.grounding import finding_resi as resi


def test_published_numbers():
    tests = resi.read_published()
    assert {test: len(measures) for test, measures in tests.items()} == {
        "labels": 23, "shortcut": 23, "augmentation": 23,
    }  # fmt: skip
    assert tests["labels"]["aligned_cosine"] == pytest.approx((0.9944 + 1) / 2, abs=1e-4)
    assert tests["augmentation"]["cka"] == pytest.approx((0.6072 + 0.4788) / 2, abs=1e-4)
    # no constant measure at the chance of mixed numbers of seeds (0.0909): the tables are of five seeds
    assert min(min(measures.values()) for measures in tests.values()) > 10 / 110


def test_agreement_by_hand():
    x = np.arange(8.0)
    assert resi.correlate_with_interval(x, x**2, 0.95) == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
    value, low, high = resi.correlate_with_interval(x, np.array([3.0, 1, 0, 7, 5, 2, 6, 4]), 0.95)
    assert value == pytest.approx(1 - 6 * 48 / (8 * 63))
    assert low < value < high
    assert resi.correlate_with_interval(x[:3], -x[:3], 0.95) == (pytest.approx(-1), None, None)


@pytest.mark.parametrize("correlation", [0.0, 0.85])
@pytest.mark.parametrize("measures", [8, 23])
def test_intervals_of_agreement_cover(measures, correlation):
    rng, true, covered = np.random.default_rng(measures), 6 / np.pi * np.arcsin(correlation / 2), 0
    for _ in range(400):
        x, noise = rng.normal(size=(2, measures))
        _, low, high = resi.correlate_with_interval(x, correlation * x + (1 - correlation**2) ** 0.5 * noise, 0.95)
        covered += low <= true <= high
    assert covered / 400 == pytest.approx(0.96, abs=0.03)


def test_unknown_tests():
    with pytest.raises(BadInput, match="tests.labels: no such test, got 'label'; did you mean 'labels'?"):
        resi.Resi(tests={"labels": "label"})


def test_ranks_stand_side_by_side(monkeypatch, tmp_path):
    """Measures of this run that agree with the published order in one test, and have the opposite one in another."""
    known = resi.read_published()
    names = ["aligned_cosine", "cka", "rsa", "gulp", "svcca", "pwcca"]
    ours = {
        "labels": {name: known["labels"][name] / 2 for name in names} | {"unpublished": 0.9},
        "noise": {name: -known["augmentation"][name] for name in names},
        "shortcut": {name: 0.5 for name in names[:2]},
    }
    monkeypatch.setattr(resi, "average_separation_scores", lambda run, tests: ours)
    run = Finished(folder=tmp_path, manifest={"seed": 0}, results=Results(study="grounding"))
    tables = resi.resi(run, resi.Resi(), []).tables
    rhos = {row[0]: row[1:3] for row in tables["agreement with ReSi"].rows}
    assert rhos["labels"] == [6, pytest.approx(1)]
    assert rhos["noise"] == [6, pytest.approx(-1)]
    assert "shortcut" not in rhos
    rows = {(row[0], row[1]): row[2:] for row in tables["measures beside ReSi"].rows}
    assert rows["aligned_cosine", "labels"] == [
        pytest.approx(0.4986, abs=1e-4),
        1.0,
        pytest.approx(0.9972, abs=1e-4),
        1.0,
    ]
    assert rows["rsa", "noise"][1] == 6.0
    assert rows["rsa", "noise"][3] == 1.0


def test_a_run_without_these_tests(monkeypatch, tmp_path):
    monkeypatch.setattr(resi, "average_separation_scores", lambda run, tests: {})
    run = Finished(folder=tmp_path, manifest={"seed": 0}, results=Results(study="grounding"))
    with pytest.raises(BadInput, match="tests: none has groups and three measures that were published, got labels"):
        resi.resi(run, resi.Resi(), [])
