"""The warning of layers whose variance few features or rows hold, and the curves of the diagnostics."""

import json

import numpy as np
import pytest

from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.diagnostics import Diagnostics, compute_norm_ratio, diagnostics, is_concentrated
from repsim_cli.runs.content import (
    DIAGNOSED,
    DIAGNOSTICS,
    FEATURE_SHARE,
    NORMS,
    PARTICIPATION,
    Measured,
    Results,
    Table,
)


def row(name: str, share: float = 0.1, rows_share: float | None = 0.1, participation: float = 9.0, features: int = 64):
    return ["m", name, 2048, features, 5, share, rows_share, participation, 200.0, *[2.0] * (len(NORMS) - 1)]


def measured(label: str, sees: bool) -> Measured:
    card = {"label": label, "larger_is_closer": True, "sees_scale_of_features": sees}
    return Measured(name=label, label=label, settings={}, estimate={}, card=card, matrices=[])


def run_of(tmp_path, rows: list[list], *measures: Measured) -> Finished:
    tables = {DIAGNOSTICS: Table(columns=DIAGNOSED, rows=rows)}
    results = Results(study="similarity", tables=tables, measures=list(measures))
    return Finished(folder=tmp_path, manifest={}, results=results)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, False),
        ({"share": 0.51}, True),
        ({"rows_share": 0.51}, True),
        ({"rows_share": None}, False),
        ({"participation": 2.9}, True),
        ({"share": 0.9, "features": 7}, False),
    ],
)
def test_which_layers_are_named(values, named):
    assert is_concentrated(dict(zip(DIAGNOSED, row("h", **values), strict=True)), Diagnostics()) is named


def test_a_model_has_one_warning_that_names_layers_and_measures(tmp_path):
    rows = [row("embed"), *(row(f"resid_post@{i}", share=0.9 if i != 2 else 0.1) for i in range(5))]
    run = run_of(tmp_path, rows, measured("cka", True), measured("mean_cca", False), measured("rsa", True))
    part = diagnostics(run, Diagnostics(), [])
    (warning,) = part.warnings
    assert warning.startswith("model.m: in 4 of 6 layers ")
    assert "(resid_post@0 to resid_post@1, resid_post@3 to resid_post@4)" in warning
    assert "cka, rsa say little about the rest" in warning
    (other,) = diagnostics(run_of(tmp_path, rows, measured("mean_cca", False)), Diagnostics(), []).warnings
    assert "none of the measures in use depends on the scale of features" in other
    (alone,) = diagnostics(run_of(tmp_path, rows), Diagnostics(), []).warnings
    assert "what follows says little about the rest" in alone
    assert diagnostics(run, Diagnostics(share=0.95), []).warnings == []
    twice = diagnostics(run_of(tmp_path, [*rows, *(["n", *each[1:]] for each in rows[:2])]), Diagnostics(), []).warnings
    assert twice == [alone, "model.n: likewise in 1 of 2 layers (resid_post@0)"]


def test_places_are_skipped_only_where_rows_have_places(tmp_path):
    with_places, without = row("resid_post@0", share=0.9), row("layer1.0", share=0.9)
    without[-len(NORMS) : -1] = [None] * (len(NORMS) - 1)
    (warning,) = diagnostics(run_of(tmp_path, [with_places]), Diagnostics(), []).warnings
    assert "try extract.skip=4 or extract.normalise=directions or extract.drop_features=0.05, or all by" in warning
    (warning,) = diagnostics(run_of(tmp_path, [without]), Diagnostics(), []).warnings
    assert (
        "; try extract.normalise=directions or extract.drop_features=0.05, or all by analyses.robustness={}" in warning
    )


def test_curves_are_in_the_order_of_the_network(tmp_path):
    rows = [row("resid_post@1", share=0.3), row("resid_post@0", share=0.2), row("embed", share=0.1)]
    part = diagnostics(run_of(tmp_path, rows), Diagnostics(), [])
    curve = part.curves[f"{FEATURE_SHARE}, m"]
    assert (curve.at, curve.lines) == (["embed", "resid_post@0", "resid_post@1"], {FEATURE_SHARE: [0.1, 0.2, 0.3]})
    assert part.curves["norm at the first place over that elsewhere, m"].lines.popitem()[1] == [100.0] * 3
    assert compute_norm_ratio({NORMS[0]: None, NORMS[-1]: 2.0}) is None
    assert (
        diagnostics(Finished(folder=tmp_path, manifest={}, results=Results(study="views")), Diagnostics(), []).curves
        == {}
    )


@pytest.mark.slow
@pytest.mark.drawn
def test_a_massive_feature_is_seen_end_to_end(repsim, newest, tmp_path):
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(400, 16)).astype(np.float32)
    massive = plain.copy()
    massive[:, 3] *= 100
    np.savez(tmp_path / "rows.npz", h0=plain, h1=massive)
    entry = f"+model.mine={{kind: precomputed, path: {tmp_path / 'rows.npz'}}}"
    code, out, err = repsim("run", "model=[]", entry, "measure=[cka,mean_cca]", "extract.estimate=full")
    assert code == 0, err
    assert "in 1 of 2 layers a single feature" in out
    assert "(h1); cka says little about the rest" in out
    manifest, whole = (json.loads((newest() / name).read_text()) for name in ("manifest.json", "results.json"))
    assert any("(h1)" in warning for warning in manifest["warnings"])
    table = Table(**whole["tables"][DIAGNOSTICS])
    assert table.column("largest feature")[1] == 3
    assert table.column(FEATURE_SHARE)[1] > 0.99
    assert table.column(PARTICIPATION)[1] == pytest.approx(1, abs=0.01)
    assert table.column(NORMS[0]) == [None, None]
    assert (newest() / "figures" / "diagnostics.png").is_file()
    assert "share of variance in the largest feature" in (newest() / "report.html").read_text()
