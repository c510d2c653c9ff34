"""Run folders of an earlier state of the code: shown, compared, reported, plotted, exported, analysed and loaded."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

import repsim_cli

EARLIER = Path(__file__).parents[1] / "earlier"
SHOWN = {"similarity": "0.833", "convergence": "6.8 s", "probes": "0.1625"}


@pytest.mark.drawn
@pytest.mark.parametrize("study", SHOWN)
def test_all_that_reads_a_run_folder_reads_it(study, repsim, tmp_path):
    run, other = (shutil.copytree(EARLIER / study, tmp_path / name) for name in ("run", "other"))
    found = json.loads((run / "results.json").read_text())
    assert SHOWN[study] in repsim("show", run)[1]
    for words in (["analyse"], ["plot"], ["report"], ["export", "--csv"]):
        code, _, err = repsim(words[0], run, *words[1:])
        assert code == 0, err
    after = json.loads((run / "results.json").read_text())
    for measure in after["measures"]:
        assert (measure.pop("chance", None), measure.pop("floor", None)) == (
            None,
            None,
        )  # runs of that time did not say
    for name, table in after["tables"].items():
        kept = [column in found["tables"][name]["columns"] for column in table["columns"]]  # others came later
        table["columns"] = list(itertools.compress(table["columns"], kept))
        table["rows"] = [list(itertools.compress(row, kept)) for row in table["rows"]]
    for results in (after, found):
        for curve in results["curves"].values():
            curve["y"].pop("name")  # an analysis that is made anew names axes as today
    assert {**after, "analyses": ...} == {**found, "analyses": ...}  # with the commit that made them
    assert any((run / "figures").glob("*.png"))
    assert any((run / "export").glob("*.csv"))
    assert study in (run / "report.html").read_text()
    assert repsim_cli.load(run).folder == run
    code, out, err = repsim("diff", run, other)
    if study == "similarity":
        assert code == 0, err
        assert out.count("largest         0 (0 se)   mean size         0 (median 0 se)") == 6
    else:
        assert "share no measure" in err
