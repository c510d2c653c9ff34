"""Groups of models in runs: claims, roles, groups by a metric and groups that are given."""

import itertools
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from helpers.composing import CONF
from helpers.grouped_models import models, planted
from hydra import compose, initialize_config_dir

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.settings import Extract, Hardware, Ranked, Significance
from repsim_cli.config.run import validate
from repsim_cli.engine.grouped import resolve_groups, say_group_ties
from repsim_cli.engine.study import Study
from repsim_cli.findings.analyse import find_analysis_card
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.distances import (
    GroupDistances,
    between_group_distances_are_larger,
    clusters_are_the_groups,
    combine_layer_distances,
    make_group_distances,
)
from repsim_cli.findings.groups import (
    Depths,
    groups_alike_early,
    groups_differ_late,
)
from repsim_cli.findings.permuted_groups import compute_separation
from repsim_cli.models.source import describe_model
from repsim_cli.runs import reader, results
from repsim_cli.studies.stitching import finding_penalties as penalties


def test_claims_on_similarity_and_distance():
    rng, shares = np.random.default_rng(7), np.array([0.25, 0.5, 0.75, 1.0])
    groups = models(5, 5)
    here, gone = (Depths(groups, planted(rng, apart=apart), shares, False) for apart in (0.5, 0.0))
    assert groups_differ_late(here).verdict == "holds"
    turned = replace(here, values=-here.values, larger_is_closer=True)
    assert groups_differ_late(turned) == groups_differ_late(here)
    late = groups_differ_late(here)
    assert (late.why, round(late.p, 4)) == ("252 groupings of the models", 0.0079)
    assert groups_differ_late(gone).verdict == "unclear"
    no_early = replace(here, shares=np.array([0.6, 0.7, 0.8, 1.0]))
    assert groups_alike_early(no_early).why == "needs layers in the first half and beyond 75 % of the depth"
    assert groups_alike_early(gone).why.startswith("the groups do not differ in late layers (p = ")
    assert penalties.early_layers_cost_little(replace(here, shares=shares + 0.5)).why == "no layer lies there"
    pair = replace(here, groups=models(2), values=here.values[:2, :2])
    why = "needs 3 models with a value, got 2 models"
    assert penalties.early_layers_cost_little(pair).why == why
    found = make_group_distances(groups, combine_layer_distances(here.values), 0)
    assert between_group_distances_are_larger(found).verdict == "holds"
    assert clusters_are_the_groups(found).verdict == "holds"
    small = Depths(models(3, 3), here.values[2:8, 2:8], shares, False)
    assert groups_differ_late(small).why == "groups of this size have no p below 0.1; needs two groups of 4 models"
    assert groups_differ_late(replace(small, groups=models(6))).why == "needs two groups of 4 models"
    assert groups_differ_late(replace(here, shares=shares / 2)).why == "no layer lies beyond 75 % of the depth"
    assert clusters_are_the_groups(GroupDistances(small.groups, found.values)).verdict == "not testable here"


def test_early_layers_are_compared_where_late_ones_differ_in_any_unit():
    """The unit, and whether a measure grows or falls with closeness, change neither verdict nor p."""
    shares, met = np.array([0.25, 0.5, 0.75, 1.0]), set()
    for seed, apart, early in itertools.product(range(4), (0.0, 0.02, 1.0), (0.0, 0.6)):
        values = planted(np.random.default_rng(seed), apart=apart)
        values[:5, 5:, :2] += early * apart
        values[5:, :5, :2] += early * apart
        depths = Depths(models(5, 5), values, shares, False)
        late, found = groups_differ_late(depths), groups_alike_early(depths)
        assert found.why.startswith("the groups do not differ in late layers") == (late.verdict != "holds")
        met.add((late.value > 0, found.verdict))
        for other in (replace(depths, values=10 * values), replace(depths, values=-values, larger_is_closer=True)):
            again = groups_alike_early(other)
            assert (again.verdict, again.p) == (found.verdict, pytest.approx(found.p) if found.p else None)
    assert {(False, "not testable here"), (True, "not testable here"), (True, "holds"), (True, "fails")} <= met


def test_a_pair_of_models_without_a_value_is_no_verdict():
    """No statistic is as large as one that is missing: p would be 0."""
    values = planted(np.random.default_rng(7), apart=0.5)
    values[2, 7] = values[7, 2] = np.nan
    depths = Depths(models(5, 5), values, np.array([0.25, 0.5, 0.75, 1.0]), False)
    for claim in (groups_differ_late, groups_alike_early, penalties.early_layers_cost_little):
        found = claim(depths)
        assert (found.verdict, found.value, found.p) == ("not testable here", None, None)
        assert found.why == "a value that it rests on is not known"


def test_the_early_share_has_the_error_of_the_jackknife():
    groups, shares = models(5, 5), np.array([0.25, 0.5, 0.75, 1.0])
    values = planted(np.random.default_rng(7), apart=0.5)
    values[:5, 5:, 0] += 0.1
    values[5:, :5, 0] += 0.1

    def gap(layers, kept):
        between = [values[i, j, layers].mean() for i in kept for j in kept if (i < 5) != (j < 5)]
        within = [values[i, j, layers].mean() for i in kept for j in kept if (i < 5) == (j < 5) and i != j]
        return np.mean(between) - np.mean(within)

    def share(kept):
        return gap([0, 1], kept) / gap([3], kept)

    found = groups_alike_early(Depths(groups, values, shares, False))
    left_out = [share([i for i in range(10) if i != gone]) for gone in range(10)]
    assert found.value == pytest.approx(share(range(10)))
    assert found.se == pytest.approx(3 * np.std(left_out))


METRICS = {
    "u": {"acc": 0.9, "f1": 1.0},
    "v": {"acc": 0.1, "f1": 2.0},
    "w": {"acc": 0.5, "f1": 3.0},
    "x": {"acc": 0.5, "f1": 4.0},
}


def test_groups_by_a_metric():
    top, bottom = Ranked(by="acc", top=2), Ranked(by="acc", bottom=2)
    assert resolve_groups({"good": top, "bad": bottom}, METRICS) == {"good": ["u", "w"], "bad": ["x", "v"]}
    assert resolve_groups({"good": ["w", "x"], "bad": Ranked(by="f1", bottom=2)}, METRICS)["bad"] == ["v", "u"]
    members = resolve_groups({"good": top, "bad": bottom}, METRICS)
    assert say_group_ties({"good": top, "bad": bottom}, members, METRICS) == [
        "groups: good and bad both have models of acc 0.5; ask for fewer models"
    ]
    with pytest.raises(BadInput, match="groups.good.by: 'u' was saved without loss, got acc, f1; use another metric"):
        resolve_groups({"good": Ranked(by="loss", top=2)}, METRICS)
    with pytest.raises(
        BadInput, match="groups.bad: a model is in one group only, got 'w', which is in good too; ask for fewer"
    ):
        resolve_groups({"good": top, "bad": Ranked(by="f1", top=2)}, METRICS)


def configured(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return validate(compose("config", list(overrides)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["groups={one: [tiny_a]}"], "groups.one: a group needs 2 models, got 1; name more"),
        (["groups={one: [tiny_a, tiny_bb]}"], "groups.one: no such model, got 'tiny_bb'; did you mean 'tiny_b' or 'tiny_a'?"),
        (["groups={one: [tiny_a, tiny_b], two: [tiny_a_step100, tiny_b]}"], "groups.two: a model is in one group only, got 'tiny_b', which is in one; drop it"),
        (["groups={one: {top: 2}}"], "groups.one.by: missing; set it"),
        (["groups={one: {by: acc}}"], "groups.one: one of top and bottom says which models, got None and None; give one"),
        (["groups={one: {by: acc, tops: 2}}"], "groups.one.tops: unknown key, got 2; did you mean 'top'?"),
        (["groups={one: {by: acc, top: 1}}"], "groups.one.top: wrong value, got 1; give greater than or equal to 2"),
        (["groups={one: {by: acc, top: 3}, two: {by: acc, bottom: 2}}"], "groups: 5 models are asked for by acc, got 4 models; ask for fewer"),
        (["groups={one: {by: acc, top: 2}}"], "groups.one.by: 'tiny_a_step100' has no metrics, got acc; name the models of the group"),
        (["groups={one: 3}"], "groups.one"),
        (["groups=[tiny_a]"], "groups: wrong value, got ['tiny_a']; give a mapping from text to a list"),
        (["groups={one: [tiny_a, gelu_tiny_3l]}", "model=[tiny_a,gelu_tiny_3l]"], "groups: models of equal depth are needed, got 6 layers of 'tiny_a' and 3 of 'gelu_tiny_3l'; leave one of them out"),
        (["+analyses.distances={}"], "analyses.distances: clusters need 2 groups, got 0; set groups"),
        (["+analyses.distances={}", "groups={one: [tiny_a, tiny_b], two: [tiny_a_step100, tiny_a_step400]}", "measure=[mutual_knn]"], "analyses.distances: mutual_knn is neither a metric nor a cosine, got no angle; use cka_unbiased"),
        (["study=architecture", "base=tiny_a"], "base: the study architecture takes none, got 'tiny_a'; set base=null"),
    ],
)  # fmt: skip
def test_bad_roles_are_refused(overrides, message):
    with pytest.raises(BadConfig, match=re.escape(message)):
        configured(*overrides)


def test_roles_reach_the_studies_that_name_them(monkeypatch):
    class Fake(Study):
        def __init__(self, *, model, base: str | None = None, groups=None):
            self.base, self.groups = base, groups

    registry.studies.names()
    monkeypatch.setitem(registry.studies._entries, "fake", registry.RegistryEntry("fake", Fake, None))
    found = configured("study=fake", "base=tiny_b", "groups={one: [tiny_a, tiny_b], two: {by: acc, top: 2}}")
    assert found.study.base == "tiny_b"
    assert found.study.groups == {"one": ["tiny_a", "tiny_b"], "two": Ranked(by="acc", top=2)}
    assert "base: tiny_b" in found.yaml()
    with pytest.raises(BadConfig, match="base: no such model, got 'tiny_c'; did you mean 'tiny_b' or 'tiny_a'"):
        configured("study=fake", "base=tiny_c")


@pytest.mark.drawn
@pytest.mark.slow
def test_the_study_on_planted_groups(repsim, newest, tmp_path):
    """Stored activations of nine models whose groups part in the last of four layers; one model is in no group."""
    rng = np.random.default_rng(8)
    base, own = rng.normal(size=(4, 300, 6)), rng.normal(size=(2, 300, 6))
    words = []
    for name, group in [*((f"a{i}", 0) for i in range(4)), ("aside", 0), *((f"b{i}", 1) for i in range(4))]:
        layers = base + rng.normal(size=base.shape) / 2
        layers[3] = own[group] + rng.normal(size=(300, 6)) / 2
        np.savez(tmp_path / f"{name}.npz", **{f"h{i}": x for i, x in enumerate(layers)})
        words.append(f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}")
    wanted = [
        "groups_differ_late",
        "groups_alike_early",
        "between_group_distances_are_larger",
        "clusters_are_the_groups",
    ]
    code, _, err = repsim("run", "model=[]", *words, "measure=[cka_unbiased]", "extract.batch_rows=100", "groups={one: [a0, a1, a2, a3], two: [b0, b1, b2, b3]}", "+analyses.distances={}", f"claims=[{','.join(wanted)}]")  # fmt: skip
    assert code == 0, err
    found, manifest = reader.read_results(newest()), reader.read_manifest(newest())
    assert manifest["groups"] == {"one": {f"a{i}": {} for i in range(4)}, "two": {f"b{i}": {} for i in range(4)}}
    assert "aside" not in manifest["models"]
    verdicts = {verdict.name: verdict for verdict in found.claims}
    assert {name: verdict.verdict for name, verdict in verdicts.items()} == dict.fromkeys(wanted, "holds")
    late = verdicts["groups_differ_late"]
    assert (late.p, late.opposite_p, late.why) == (2 / 70, 1.0, "70 groupings of the models")
    assert verdicts["groups_alike_early"].se > 0
    said = repsim("show", newest())[1]
    value = f"holds ({late.value:.3f}, threshold 0.0, p = 0.029, 8 models, 70 groupings of the models)"
    assert f"  claim groups_differ_late (cka_unbiased, layers): {value}\n" in said
    curve = found.curves["cka_unbiased, layers, one-two"]
    assert len(curve.lines) == 16
    block = next(m for m in found.measures[0].matrices if (m.rows.model, m.columns.model) == ("a0", "b2"))
    counterparts = np.diagonal(reader.read_array(newest(), block.values))
    np.testing.assert_array_equal(curve.lines["a0 and b2"], counterparts)
    matrix = found.matrices["cka_unbiased, layers, between models"]
    assert (matrix.rows.layers[6], matrix.analysis) == ("b2", "distances")
    distance = reader.read_array(newest(), matrix.values)[0, 6]
    assert distance == pytest.approx(np.sqrt(np.square(np.arccos(counterparts)).sum()))
    rows = {row[1]: row[2:] for row in found.tables["clusters and groups"].rows}
    assert rows["spectral"] == rows["hierarchical"] == [1.0, pytest.approx(2 / 70), 70, True]
    of_models = {row[1]: row[2:] for row in found.tables["clusters of models"].rows}
    assert list(of_models) == [*(f"a{i}" for i in range(4)), *(f"b{i}" for i in range(4))]
    assert of_models["a1"][0] == "one"
    assert of_models["a1"] == of_models["a0"]
    assert of_models["a1"][1:] != of_models["b0"][1:]
    assert [row[1:3] for row in found.tables["distances by groups"].rows] == [["one-one", 6], ["one-two", 16], ["two-two", 6]]  # fmt: skip
    drawn = {file.stem for file in (newest() / "figures").glob("*.png")}
    assert {"cka_unbiased-layers-groups", "cka_unbiased__layers-distances", "cka_unbiased__layers-models"} <= drawn


def test_claims_bring_their_analyses_and_without_groups_are_not_testable(repsim, newest):
    wanted = "claims=[groups_differ_late,groups_alike_early,clusters_are_the_groups]"
    words = ["model=[tiny_a,tiny_a_step100]", "measure=[cka_unbiased,mutual_knn]", "extract.hook_points=[mlp_out]"]
    code, _, err = repsim("run", *words, "extract.sequences=4", wanted)
    assert code == 0, err
    found = reader.read_results(newest())
    assert set(found.analyses) == {"diagnostics", "maps", "groups", "distances"}
    assert {(verdict.name, verdict.measure): verdict.why for verdict in found.claims} == {
        ("groups_differ_late", "cka_unbiased, mlp_out"): "needs two groups of 4 models",
        ("groups_differ_late", "mutual_knn, mlp_out"): "needs two groups of 4 models",
        ("groups_alike_early", "cka_unbiased, mlp_out"): "needs two groups of 4 models",
        ("groups_alike_early", "mutual_knn, mlp_out"): "needs two groups of 4 models",
        ("clusters_are_the_groups", "cka_unbiased, mlp_out"): "needs two groups of 4 models",
    }
    assert {curve.analysis for curve in found.curves.values()} == {"diagnostics"}


def test_models_are_chosen_by_their_metrics(tmp_path):
    """Metrics are those in the run; models of no group are left out."""
    from repsim_cli.base import registry as rooms

    shipped = rooms.models.get("shipped").function
    scores = {"tiny_a": 0.2, "tiny_a_step100": 0.9, "tiny_a_step400": 0.5, "tiny_b": 0.7, "copy": 0.1}
    sources = {
        label: replace(shipped(name="tiny_b" if label == "copy" else label), metrics=lambda s=score: {"hans": s})
        for label, score in scores.items()
    }
    study = rooms.studies.get("similarity").function(
        model=sources,
        data=rooms.data.get("embedded_text").function(split="validation"),
        measure={"cka_unbiased": measures.get("cka_unbiased")},
        extract=Extract(hook_points=["mlp_out", "resid_post"], length=32, sequences=4, batch_rows=50),
        significance=Significance(),
        hardware=Hardware(),
        seed=0,
        cache=False,
        groups={"low": Ranked(by="hans", bottom=2), "high": Ranked(by="hans", top=2)},
    )
    assert study.plan()["groups"]
    read = {reading.label: reading.layers for reading in study.readings}
    run = results.create(tmp_path / "run", name="x", study="similarity", seed=0, command=[], overrides=[])
    measured = study.run(run)
    assert run.manifest["groups"] == {
        "low": {"tiny_a": {"hans": 0.2}, "copy": {"hans": 0.1}},
        "high": {"tiny_a_step100": {"hans": 0.9}, "tiny_b": {"hans": 0.7}},
    }
    assert run.manifest["models_run"] == ["tiny_a", "copy", "tiny_a_step100", "tiny_b"]
    about = {label: asdict(describe_model(label, source, read[label])) for label, source in sources.items()}
    run.manifest.update(facts=about)
    part = find_analysis_card("groups").compute(
        Finished(folder=run.folder, manifest=run.manifest, results=measured), find_analysis_card("groups").options(), []
    )
    curve = part.curves["cka_unbiased, mlp_out, low-high"]
    assert curve.at == [f"mlp_out@{i}" for i in range(6)]
    assert curve.about["shares"] == [(i + 1) / 6 for i in range(6)]
    assert list(curve.lines)[3] == "copy and tiny_b"
    np.testing.assert_allclose(curve.lines["copy and tiny_b"], 1)
    run.discard()


def test_groups_that_are_given_replace_those_of_an_experiment(repsim):
    words = ["experiment=tiny/mnli_cka", "groups={a: [tiny_nli_0, tiny_nli_1], b: [tiny_nli_2, tiny_nli_3]}"]
    code, out, err = repsim("run", *words, "dry_run=true")
    assert code == 0, err
    assert "tiny_nli_3" in out
    assert "generalizing" not in out


def test_groups_that_differ_in_spread_alone_are_not_told_apart():
    """Models of one centre, of which those of one group scatter three times as far; and groups that lie apart."""
    held = {0.0: 0, 6.0: 0}
    for shift in held:
        for rng in np.random.default_rng(4).spawn(20):
            places = rng.normal(size=(10, 8)) * np.repeat([1.0, 3.0 if not shift else 1.0], 5)[:, None]
            places[5:, 0] += shift
            apart = np.linalg.norm(places[:, None] - places, axis=-1)
            found = compute_separation(apart, {"near": list("abcde"), "far": list("vwxyz")}, 0)
            held[shift] += found.value > 0 and found.evidence.above <= 0.05
            assert shift or found.wide == "far"
    assert held[0.0] <= 1 < 18 <= held[6.0]
    assert (
        "'far' are as far apart as models of two groups"
        in compute_separation(
            np.abs(np.subtract.outer([0, 0.1, 0.2, -9, 0, 9], [0, 0.1, 0.2, -9, 0, 9.0])),
            {"near": list("abc"), "far": list("xyz")},
            0,
        ).evidence.how
    )
