"""Boundaries between blocks: planted ones in any order of the file, gradients, seeds, refusals, and a run."""

from itertools import pairwise

import numpy as np
import pytest

from repsim_cli.findings.analysis import Finished, LayerMap
from repsim_cli.findings.boundaries import (
    AGREEMENT,
    STABILITY,
    TABLE,
    Boundaries,
    Parted,
    boundaries,
    find_model_blocks,
)
from repsim_cli.findings.claims import UNTESTABLE, find_claims
from repsim_cli.runs import reader
from repsim_cli.runs.content import Facts, Measured, Results

CLAIMS = [
    "fine_tuning_parts_blocks", "sparser_models_differ_less", "boundaries_are_stable_over_seeds",
    "gromov_wasserstein_is_clearest",
]  # fmt: skip
STEPS = np.abs(np.arange(9)[:, None] - np.arange(9)).astype(float)


def two_blocks(cut, count=9, gap=5.0):
    """Distances 1 within and 1 + gap between the blocks before the cut and after it."""
    after = np.arange(count) >= cut
    values = 1 + gap * (after[:, None] != after)
    np.fill_diagonal(values, 0)
    return values


def of_run(tmp_path, maps, **manifest):
    """A finished run of models with nine blocks; maps: by measure, whether larger is closer and the values by model."""
    run = Finished(
        folder=tmp_path, manifest={"models": {}, "facts": {}, **manifest}, results=Results(study="similarity")
    )
    run.__dict__["maps"] = {}
    for name, (larger, models) in maps.items():
        card = {"label": name, "larger_is_closer": larger}
        measured = Measured(name=name, label=name, settings={}, estimate={}, card=card, matrices=[])
        ends = np.arange(len(models) + 1) * 10
        values, order = np.zeros((ends[-1], ends[-1])), np.random.default_rng(0).permutation(9)
        for start, own in zip(ends, models.values(), strict=False):
            values[start + 1 : start + 10, start + 1 : start + 10] = own[np.ix_(order, order)]
        names = ["embed", *(f"resid_post@{i}" for i in order)] * len(models)
        places = {model: slice(*part) for model, part in zip(models, pairwise(ends.tolist()), strict=True)}
        run.__dict__["maps"][name] = LayerMap(measured, values, names, [8] * len(names), places)
    return run


def test_a_planted_boundary(tmp_path):
    distances = {"base": STEPS, "a": two_blocks(6), "b": two_blocks(3)}
    similarities = {"base": 1 - STEPS / 20, "a": 1 - two_blocks(6) / 10, "b": 1 - two_blocks(4) / 10}
    maps = {"gromov_wasserstein": (False, distances), "cka": (True, similarities)}
    models = {"a": {"metrics": {"accuracy": 0.9}}, "b": {"metrics": {"sparsity": 0.7}}}
    part = boundaries(of_run(tmp_path, maps, models=models, base="base"), Boundaries(), find_claims(CLAIMS))
    rows = [dict(zip(part.tables[TABLE].columns, row, strict=True)) for row in part.tables[TABLE].rows]
    found = {(row["measure"], row["model"]): row for row in rows}
    gw = {model: found["gromov_wasserstein", model] for model in distances}
    assert [gw[model]["boundary after"] for model in "ab"] == ["resid_post@5", "resid_post@2"]
    assert [gw[model]["largest step after"] for model in "ab"] == ["resid_post@5", "resid_post@2"]
    assert [gw[model]["segments"] for model in ("base", "a")] == [1, 2]
    assert gw["a"]["relative depth"] == pytest.approx(2 / 3)
    assert gw["a"]["mean distance"] == pytest.approx((36 + 5 * 18) / 36)
    assert gw["base"]["clearness"] <= 0 < gw["a"]["clearness"]
    assert [gw[model]["clearer than without groups"] for model in distances] == ["no", "yes", "yes"]
    assert [gw[model]["sparsity"] for model in distances] == [None, 0.0, 0.7]
    assert found["cka", "b"]["boundary after"] == "resid_post@3"
    agreement = {row[0]: row[1:] for row in part.tables[AGREEMENT].rows}
    assert agreement["base"] == [None, 0, 0, 0, None]  # gradients: no boundary that measures could agree on
    assert agreement["a"] == ["resid_post@5", 2, 2, 2, 1.0]
    assert agreement["b"][:4] == ["resid_post@2", 2, 1, 2]
    assert 0.5 < agreement["b"][4] < 1
    verdicts = {(one.name, one.measure): one for one in part.claims}
    assert len(verdicts) == 3 * 2 + 1
    apart = verdicts["fine_tuning_parts_blocks", "gromov_wasserstein"]
    assert apart.value == pytest.approx(np.log(3.5) - np.log(STEPS.sum() / 72))
    assert (apart.verdict, apart.why, apart.over) == (
        UNTESTABLE,
        "needs 3 models with a value, got 2 models",
        "2 models",
    )


@pytest.mark.parametrize("own", [9.0, 500.0, np.nan])
def test_what_a_layer_has_with_itself_says_nothing_of_the_others(own):
    """A measure may have no largest value (`ensd`), or a layer none with itself."""
    late = np.arange(12) >= 6
    values = np.where(late[:, None] == late, 8.0, 3.0) + np.random.default_rng(0).normal(0, 0.1, (12, 12))
    np.fill_diagonal(values, [9.0] * 4 + [own] + [9.0] * 7)
    blocks = find_model_blocks(values, True)
    assert (blocks.cut, blocks.groups) == (6, 2)
    assert blocks.clearness > 0.1


def test_stability_over_seeds(tmp_path):
    by_model = {"x_0": two_blocks(6), "x_1": two_blocks(6), "y_0": two_blocks(3), "y_1": STEPS, "alone": STEPS}
    by_model |= {"z_0": STEPS, "z_1": STEPS}
    run = of_run(tmp_path, {"gw": (False, by_model)})
    about = {"kind": "live", "family": "", "layers": [], "widths": []}
    run.__dict__["models"] = {label: Facts(**about, entry=label[:-2] if "_" in label else "") for label in by_model}
    table = boundaries(run, Boundaries(), []).tables[STABILITY]
    assert table.rows == [["gw", "x", 2, 1.0, 1.0], ["gw", "y", 2, None, 0.0], ["gw", "z", 2, None, None]]


def judged(name, *given):
    return find_claims([name])[0](*given)


def parted(**models):
    blocks = {label: own for label, values in models.items() if (own := find_model_blocks(values, False)) is not None}
    return Parted(models=blocks, base="base", entries={label: "a" for label in ("a_0", "a_1")})


def test_what_cannot_be_tested_and_why():
    gradient = parted(base=STEPS, a_0=STEPS, a_1=STEPS)
    clearer = "a boundary clearer than in surrogates without groups"
    assert find_model_blocks(np.zeros((9, 9)), False) is None
    for name, why in {
        "boundaries_are_stable_over_seeds": f"needs two seeds of one entry with {clearer}",
        "sparser_models_differ_less": "needs fine-tuned models of three sparsities, got 0",
    }.items():
        assert (judged(name, gradient).verdict, judged(name, gradient).why) == (UNTESTABLE, why)
    alone = Parted(models=gradient.models)
    assert judged("fine_tuning_parts_blocks", alone).why == "needs a base, and 3 models that were fine-tuned from it"
    shallow = parted(base=STEPS, a_0=two_blocks(4, 6), a_1=two_blocks(6))
    for name in ("fine_tuning_parts_blocks", "boundaries_are_stable_over_seeds"):
        assert judged(name, shallow).why == "the models have different numbers of blocks"
    equal = Parted(models={x: gradient.models["a_0"] for x in "abc"}, sparsity={"a": 0.0, "b": 0.5, "c": 0.9})
    assert judged("sparser_models_differ_less", equal).why == "all models have the same mean distance"
    assert judged("gromov_wasserstein_is_clearest", {"cka": gradient}).why == (
        "needs the measure gromov_wasserstein, and others"
    )
    one = {name: parted(base=STEPS, a=two_blocks(6)) for name in ("gromov_wasserstein", "cka")}
    assert judged("gromov_wasserstein_is_clearest", one).why == "needs 3 models with a value, got 1 model"


def test_too_few_blocks_are_refused_before_the_run(repsim):
    code, _, err = repsim("run", "model=[tiny_a]", "extract.layers=[0,1,2]", "+analyses.boundaries={}")
    assert code == 2
    assert (
        "analyses.boundaries: the outputs of 4 blocks are needed, got 3; read them: extract.hook_points=[resid_post]"
        in err
    )


@pytest.mark.slow
@pytest.mark.drawn
def test_a_run(repsim, newest):
    small = ("extract=pooled", "data=overlap_nli", "extract.sequences=40", "extract.rows=40", "hardware.threads=1")
    models = ("model=[tiny_a_step100,tiny_a]", "base=tiny_a_step100", "measure=[cka,rsa]", "options.within=true")
    asked = ("+analyses.boundaries={}", "claims=[fine_tuning_parts_blocks,gromov_wasserstein_is_clearest]")
    assert repsim("run", *small, *models, *asked)[0] == 0
    found = reader.read_results(newest())
    assert found.tables[TABLE].column("measure") == ["cka", "cka", "rsa", "rsa"]
    assert (newest() / "figures" / "boundaries.png").is_file()
    assert [claim.measure for claim in found.claims] == ["cka", "rsa", "all measures"]
    assert [claim.value is None for claim in found.claims] == [False, False, True]
    assert not any(curve.analysis == "base_model" for curve in found.curves.values())  # needs pairs of models
