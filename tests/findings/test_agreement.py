"""Agreement between measures: by hand, against scipy, refusals, and the study itself."""

import importlib.util
import json

import numpy as np
import pytest
import scipy.stats

from repsim_cli import measures
from repsim_cli.base.errors import BadInput
from repsim_cli.findings.agreement import NAME, correlate_measures
from repsim_cli.findings.distances import build_linkage_tree
from repsim_cli.runs import reader


def drawn(seed, count=5):
    values = np.random.default_rng(seed).normal(size=(count, count))
    return values + values.T


def test_rank_correlations_are_scipys_and_distances_count_with_minus():
    one, other, third = drawn(0), drawn(1), np.random.default_rng(2).normal(size=(5, 5))
    rho = correlate_measures({"a": (one, True), "b": (other, True), "c": (third, False), "d": (-one, False)})
    off = ~np.eye(5, dtype=bool)
    assert rho[0, 1] == pytest.approx(scipy.stats.spearmanr(one[off], other[off])[0])
    assert rho[0, 2] == pytest.approx(-scipy.stats.spearmanr(one[off], third[off])[0])
    assert rho[0, 3] == pytest.approx(1)
    assert sorted(build_linkage_tree(1 - rho)[0, :2]) == [0, 3]  # merged first


def test_what_cannot_be_ranked_is_refused():
    with pytest.raises(BadInput, match="3 measures and 3 layers are needed, got 2 and 5; select more"):
        correlate_measures({"a": (drawn(0), True), "b": (drawn(1), True)})
    with pytest.raises(BadInput, match="b is the same for all pairs of layers, got 0.5; leave it out"):
        correlate_measures({"a": (drawn(0), True), "b": (np.full((5, 5), 0.5), True), "c": (drawn(1), True)})


@pytest.mark.slow
@pytest.mark.drawn
def test_the_study(repsim, newest):
    words = (
        "experiment=tiny/measure_agreement",
        "measure=[cka,cka_unbiased,rsa,mutual_knn]",
        "extract.sequences=4",
        "extract.rows=300",
    )
    assert repsim("run", *words, "model=[tiny_a]", "extract.layers=[0,2,3,-1]")[0] == 0
    whole = reader.read_results(newest())
    matrix = whole.matrices[NAME]
    rho, names = reader.read_array(newest(), matrix.values), matrix.rows.layers
    assert sorted(names) == ["cka", "cka_unbiased", "mutual_knn", "rsa"]
    assert rho.shape == (4, 4)
    assert (newest() / "figures" / "measure-agreement.png").is_file()
    assert rho[names.index("cka"), names.index("cka_unbiased")] > 0.9
    layers = sum(len(matrix.rows.layers) for matrix in whole.measures[0].matrices if matrix.rows == matrix.columns)
    assert matrix.n == layers * (layers - 1)
    table = whole.tables[NAME]
    assert table.column("measure") == names
    means = [(rho[i].sum() - 1) / 3 for i in range(4)]
    assert table.column("mean with the others") == pytest.approx(means)


def test_too_few_measures_are_refused_before_the_run(repsim):
    code, _, err = repsim("run", "experiment=tiny/measure_agreement", "measure=[cka]")
    assert code == 2
    assert "analyses.agreement: 3 measures are needed, got 1; select more" in err


@pytest.mark.slow
def test_measure_all(repsim, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6))
    files = [str(tmp_path / name) for name in ("x.npy", "y.npy", "labels.npy")]
    for file, array in zip(
        files, (x, x @ rng.normal(size=(6, 4)) + rng.normal(size=(80, 4)), np.arange(80) % 3), strict=True
    ):
        np.save(file, array)
    code, out, _ = repsim("measure", "all", *files[:2], "--json")
    found = {record["measure"]: record for record in json.loads(out)}
    assert code == 0
    assert list(found) == measures.names()
    for name, record in found.items():
        applies = not (measures.card(name).labelled or measures.card(name).equal_widths)
        assert (record["value"] is not None) == applies == (record["error"] is None)
        assert (record["value_y_to_x"] is not None) == (applies and not measures.card(name).symmetric)
    labelled = json.loads(repsim("measure", "all", *files[:2], "--labels", files[2], "--json")[1])
    assert all(record["value"] is not None for record in labelled if record["card"]["labelled"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, out, _ = repsim("measure", "all", *files[:2])
    assert "larger is closer" in out
    assert "not applicable: rtd: ripser: needed by rtd, and not installed; pip install -e '.[topology]'" in out
    assert repsim("measure", "all", *files[:2], "k=3")[2].startswith(
        "error: settings: all measures run with their defaults"
    )
