"""Sub-networks of runs: what is recorded and drawn, claims on them, and targets from the command line."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
import torch
from helpers.sub_network_matrices import mirrored, planted

from repsim_cli import measures
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.figures.heatmap import merge_head_names
from repsim_cli.findings import map_figures, sub_networks
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.partitions import (
    parse_ranges,
)
from repsim_cli.findings.sub_networks import (
    Clustered,
    SubNetworks,
    choose_clustered,
    find_sub_networks,
    layer_wise_groups_are_the_published,
    layer_wise_training_gives_three_groups,
    make_curves,
    make_tables,
)
from repsim_cli.runs import reader
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM, Matrix, Measured, Results, Side
from repsim_cli.studies.modular_sums import finding_layers as modular_layers
from repsim_cli.studies.modular_sums.finding_layers import TrainedLayers
from repsim_cli.studies.probes import finding_targets as targets
from repsim_cli.studies.probes.finding_targets import Near


def test_what_is_recorded_is_in_the_order_of_the_network():
    labels, values = planted((6, 6), 0)
    names = [f"{kind}@{block}" for kind in "abcdef" for block in range(2)]
    shuffled = [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]  # by kind, as hook points are asked for
    given = parse_ranges(["0-2 6-8", "3-5 9-11"], 12)
    found = find_sub_networks(values[np.ix_(shuffled, shuffled)], names, False, SubNetworks(), given)
    assert found.layers == [f"{kind}@{block}" for block in range(2) for kind in "abcdef"]
    np.testing.assert_allclose(found.following, values.diagonal(1))
    assert [groups.labels.tolist() for groups in found.groups.values()] == [labels.tolist()] * 2
    own = pytest.approx(sklearn.metrics.adjusted_rand_score(labels, [0, 0, 0, 1, 1, 1] * 2))
    assert found.agreement == {
        "spectral and segments": 1,
        "spectral and blocks": 1,
        "segments and blocks": 1,
        **{f"{one} and given": own for one in ("spectral", "segments", "spectral, as many,", "segments, as many,")},
    }
    made = make_tables({"gw": {"m": found}})
    assert [row[:5] for row in made["sub-networks"].rows] == [
        ["gw", "m", "spectral", 2, "0-5, 6-11"],
        ["gw", "m", "segments", 2, "0-5, 6-11"],
    ]
    lines = make_curves({"gw": {"m": found}}, {"gw": "GW"})
    assert lines["sub-networks, gw, m"].at == found.layers
    assert lines["sub-networks, gw, m"].lines == {
        **dict.fromkeys(["spectral", "segments"], labels.tolist()),
        **dict.fromkeys(["spectral, as many as given", "segments, as many as given"], labels.tolist()),
    }
    following = lines["to the next layer, gw, m"]
    assert (following.at, str(following.y)) == (found.layers[:-1], "GW")
    scores = lines["scores of spectral, gw, m"]
    assert (scores.at, scores.lines["silhouette"]) == ([2, 3, 4, 5, 6], list(found.groups["spectral"].scores.values()))
    assert scores.lines["without groups"] == list(found.groups["spectral"].reference.values())
    of_it = choose_clustered([found], SubNetworks(), given)
    assert (of_it.counts, [x.tolist() for x in of_it.labels], of_it.given) == ([2], [labels.tolist()], given)
    assert choose_clustered([found], SubNetworks(clusters=2), None).counts == []
    assert choose_clustered([], SubNetworks(), None) == Clustered([], [], None, [])
    one = find_sub_networks(
        values, [f"h{i}" for i in range(12)], False, SubNetworks(method="segments", clusters=3), None
    )
    assert list(one.groups) == ["segments"]
    assert one.groups["segments"].count == 3
    assert one.agreement == {}
    gradient = np.abs(np.arange(12)[:, None] - np.arange(12.0))
    none = find_sub_networks(gradient, [f"h{i}" for i in range(12)], False, SubNetworks(), None)
    assert (none.groups["spectral"].count, none.agreement) == (1, {})  # one group each: no agreement
    assert list(make_tables({"gw": {"m": none}})) == ["sub-networks"]
    assert [name.partition(",")[0] for name in make_curves({"gw": {"m": one}}, {"gw": "GW"})] == [
        "sub-networks",
        "to the next layer",
        "scores of segments",
    ]


@pytest.mark.parametrize(("count", "overview"), [(3, True), (4, False)])
def test_few_models_have_figures_of_their_layers(tmp_path, count, overview):
    """The overview has them; on demand all models have."""
    labels = [f"m{i}" for i in range(count)]
    found = {label: find_sub_networks(planted((6, 6), 0)[1], [f"h{i}" for i in range(12)], False, SubNetworks(), None) for label in labels}  # fmt: skip
    lines = {name: replace(curve, analysis="sub_networks") for name, curve in make_curves({"cka": found}, {"cka": "CKA"}).items()}  # fmt: skip
    sides = [Side(model=label, layers=found[label].layers) for label in labels]
    matrices = [Matrix(rows=side, columns=side) for side in sides]
    measured = Measured(name="cka", label="cka", settings={}, estimate={}, card={}, matrices=matrices)
    whole = Results(study="similarity", measures=[measured], curves=lines)
    run = Finished(folder=tmp_path, manifest={}, results=whole)
    names = [f"cka-{label}-layers" for label in labels]
    assert [name for name, _ in sub_networks.draw_figures(run, False)] == (names if overview else [])
    assert [name for name, _ in sub_networks.draw_figures(run, True)] == names
    assert [name for name, _ in map_figures.draw_figures(run, False)] == ([] if overview else ["cka-panels"])


def test_closest_layers():
    near = {"names": ["a", "b", "c", "d"], "values": {"c1": np.array([0.5, 0.2, 0.21, 0.9])}}
    found = targets.make_tables({"gw": {"m": Near(**near)}, "cka": {"m": Near(**near, larger_is_closer=True)}})
    assert found["closest to targets"].rows == [["gw", "m", "c1", "b", 0.2, 1], ["cka", "m", "c1", "d", 0.9, 0]]
    ranked = found["layers by target"].rows
    assert [row[4] for row in ranked] == ["b", "c", "a", "d", "d", "a", "c", "b"]
    assert ranked[1] == ["gw", "m", "c1", 2, "c", 0.21]
    assert targets.rank_layers(np.ones(3)) == [0, 1, 2]


def test_claims_on_targets():
    names = [f"{kind}@{block}" for block in range(14) for kind in ("resid_pre", "attn_scores.h0", "resid_post")]
    at = np.arange(42)
    near = Near(names=names, values={"c1": np.abs(at - 2.0), "c2": np.abs(at - 4.0), "c3": np.abs(at - 5.5)})
    claims = (
        targets.c1_is_nearest_to_the_first_block,
        targets.c2_is_nearest_to_the_second_block,
        targets.c_is_near_the_last_blocks,
    )
    found = [claim([near] * 5) for claim in claims]
    assert [judgement.value for judgement in found] == [1, 0, 1]
    similar = Near(names=names, values={c: -x for c, x in near.values.items()}, larger_is_closer=True)
    assert [claim([similar] * 5) for claim in claims] == found
    assert [(judgement.verdict, judgement.units) for judgement in found] == [("holds", 5), ("fails", 5), ("holds", 5)]
    few = Near(names=names[:9], values={c: x[:9] for c, x in near.values.items()})
    assert [claim([few] * 5).verdict for claim in claims] == ["unclear", "fails", "unclear"]  # 1 in 9 is by chance
    why = (
        "no p below 0.5 can be reached (1 seed, each as likely so as not, and by chance among 42 layers); needs 5 seeds"
    )
    assert (claims[0]([near]).verdict, claims[0]([near]).why) == ("not testable here", why)
    assert [claim([Near()]).why for claim in claims] == [
        "needs 5 models trained block by block with resid_post@0, and options.targets with c1",
        "needs 5 models trained block by block with resid_post@1, and options.targets with c2",
        "needs 5 models trained block by block with resid_post@1 and resid_post@2, and options.targets with c3",
    ]


def test_claims_on_sub_networks():
    three = layer_wise_training_gives_three_groups
    counts = ([3] * 5, [4] * 5, [3, 3, 3, 1, 1], [3])
    apart = [planted((8, 12, 10), seed)[1] for seed in range(5)]
    verdicts = [three(Clustered(x, apart=apart[: len(x)])).verdict for x in counts]
    assert verdicts == ["holds", "fails", "unclear", "not testable here"]
    why = "needs 5 models trained block by block, and sub_networks with spectral clusters to be chosen"
    assert three(Clustered()).why == why
    labels, given = [0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2, 1]
    published = layer_wise_groups_are_the_published(Clustered(labels=[np.array(labels)], given=np.array(given)))
    assert published.value == pytest.approx(sklearn.metrics.adjusted_rand_score(labels, given))
    assert (published.verdict, published.why) == ("not testable here", "needs 3 seeds with a value, got 1 seed")
    why = "needs sub_networks.given of a model trained block by block, and 3 seeds of it"
    assert layer_wise_groups_are_the_published(Clustered([3])).why == why


def test_claims_on_the_layers_of_single_models():
    names = [f"{kind}@{block}" for block in range(3) for kind in ("resid_pre", "attn_scores.h0", "resid_post")]
    at = np.arange(9)
    steps = np.abs(at[:, None] - at).astype(float)
    flat = np.ones((9, 9)) - np.eye(9)
    ends = [np.where((at[:, None] > 5) & (at > 5), near, 1.0) * flat for near in (0.09, 0.1, 0.11)]
    whole = TrainedLayers(
        names={BY_BLOCK: names, END_TO_END: names, ONE_SUM: names[:3]},
        apart={
            BY_BLOCK: [steps * x for x in (0.9, 1, 1.1)],
            END_TO_END: ends,
            ONE_SUM: [mirrored(np.array([[0, 3, 9], [0, 0, 2.0], [0, 0, 0]]))],
        },
    )
    alike, larger = modular_layers.end_to_end_training_ends_alike, modular_layers.layer_wise_distances_are_larger
    pattern, first = modular_layers.training_changes_the_pattern, modular_layers.attention_makes_the_first_differences
    assert alike(whole).value == pytest.approx(np.log([0.09, 0.1, 0.11]).mean())
    assert (alike(whole).verdict, alike(whole).units) == ("holds", 3)
    sums = [np.log([x.sum() for x in found]).mean() for found in (whole.apart[BY_BLOCK], ends)]
    assert larger(whole).value == pytest.approx(sums[0] - sums[1])
    assert larger(whole).verdict == "holds"
    assert (pattern(whole).verdict, pattern(whole).units, first(whole).value) == ("holds", 3, None)
    even = replace(whole, apart={**whole.apart, END_TO_END: [flat] * 3})
    assert "end to end do not grow with the layers between (rho = nan, 0.3 is needed)" in pattern(even).why
    other = TrainedLayers(
        names={END_TO_END: names[:3], BY_BLOCK: names}, apart={END_TO_END: [flat[:3, :3]], BY_BLOCK: [flat]}
    )
    assert alike(other).why == "needs a last block of two layers, and one before it"
    assert larger(other).why == "needs four layers of each"
    assert pattern(other).why == "the two models have different layers"
    assert first(other).why == "needs 3 seeds trained on one sum"
    fewer = replace(whole, apart={**whole.apart, END_TO_END: whole.apart[END_TO_END][:2]})
    assert pattern(fewer).why == "needs as many seeds trained block by block as end to end, got 3 and 2"
    plain = TrainedLayers(names={ONE_SUM: ["resid_pre@0", "z@0.h0"]}, apart={ONE_SUM: [flat[:2, :2]]})
    assert first(plain).why == "no attention map is among the layers"
    assert larger(plain).why == "needs 3 seeds trained block by block and end to end"
    # too few layers give no number at all
    for count in (1, 2):
        trainings = (ONE_SUM, END_TO_END, BY_BLOCK)
        few = TrainedLayers(
            names=dict.fromkeys(trainings, ["pattern@0.h0", "z@0.h0"][:count]),
            apart={training: [flat[:count, :count]] for training in trainings},
        )
        assert pattern(few).why == "needs four layers of each"
        assert first(few).why == "needs three layers, and two in a row that are not attention maps"
        assert larger(few).why == "needs four layers of each"


def test_pairs_that_are_not_wanted_are_skipped():
    x = [torch.randn(12, 3, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    of = torch.tensor([0, 0, 1, 1])
    wanted = of[:, None] == of
    for name in ("gromov_wasserstein", "hard_correlation_match", "mutual_knn", "cka"):
        bound = {name: measures.get(name)}
        whole, part = (compute_all_pairs(bound, x, wanted=which)[name] for which in (None, wanted))
        torch.testing.assert_close(part[wanted], whole[wanted], rtol=0, atol=0)
        if name == "gromov_wasserstein":
            assert part[~wanted].isnan().all()


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Two synthetic networks: in one each of three blocks makes a new representation that its layers hardly change; in
    the other all layers are alike. And a function of the input that the second block computes."""
    folder = tmp_path_factory.mktemp("networks")
    rng = np.random.default_rng(0)

    def layers(sources, noise):
        made = [source + noise * rng.normal(size=source.shape) for source in sources for _ in range(12 // len(sources))]
        return {f"h{i}": x.astype(np.float32) for i, x in enumerate(made)}

    blocks = [
        rng.normal(size=(40, 20)),
        rng.choice([-5, 5], (40, 1)) + rng.normal(size=(40, 3)) / 9,
        rng.exponential(size=(40, 1)),
    ]
    for name, arrays in (
        ("blocks", layers(blocks, 0.02)),
        ("even", layers([rng.normal(size=(40, 6))], 0.5)),
        ("sums", {"c1": blocks[1].astype(np.float32)}),
        ("short", {"c1": blocks[1][:30].astype(np.float32)}),
    ):
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def words(networks, *labels, **settings):
    """settings: options of the study, or whole keys."""
    entries = [f"+model.{label}={{kind: precomputed, path: {networks / label}.npz}}" for label in labels]
    whole = ("claims", "+analyses")
    given = [f"{'' if key.startswith(whole) else '+options.'}{key}={value}" for key, value in settings.items()]
    return ["run", "model=[]", *entries, "extract.estimate=full", "extract.rows=40", "hardware.threads=1", *given]


@pytest.mark.slow
@pytest.mark.drawn
def test_planted_networks_from_the_command_line(repsim, newest, networks):
    options = ["+options.within=true", "+options.targets=sums"]
    given = "+analyses.sub_networks={given: {blocks: [0-3, 4-7, 8-11]}}"
    wanted = "claims=[layer_wise_training_gives_three_groups,attention_makes_the_first_differences,c_is_near_the_last_blocks]"
    code, out, err = repsim(*words(networks, "blocks", "even", "sums"), *options, given, wanted, "measure=[gromov_wasserstein,cka]")  # fmt: skip
    assert code == 0, err
    folder, found = newest(), reader.read_results(newest())
    for measure in found.measures:
        sides = [(m.rows.model, m.columns.model) for m in measure.matrices]
        assert sides == [("blocks", "blocks"), ("blocks", "sums"), ("even", "even"), ("even", "sums"), ("sums", "sums")]
    rows = {tuple(row[:3]): row[3:5] for row in found.tables["sub-networks"].rows if row[0] == "gromov_wasserstein"}
    assert {model for _, model, _ in rows} == {"blocks", "even"}
    assert rows["gromov_wasserstein", "blocks", "segments"] == [3, "0-3, 4-7, 8-11"]
    assert rows["gromov_wasserstein", "blocks", "spectral"] == [3, "0-3, 4-7, 8-11"]
    assert rows["gromov_wasserstein", "even", "spectral"] == [1, "0-11"]
    agreed = {tuple(row[:3]): row[3] for row in found.tables["agreement of sub-networks"].rows}
    assert agreed["gromov_wasserstein", "blocks", "spectral and given"] == 1
    assert found.curves["sub-networks, cka, even"].analysis == "sub_networks"
    closest = {tuple(row[:3]): row[3:5] for row in found.tables["closest to targets"].rows}
    for measure in found.measures:
        values = np.load(folder / measure.matrices[1].values)[:, 0]
        best = values.argmin() if measure.name == "gromov_wasserstein" else values.argmax()
        assert closest[measure.label, "blocks", "c1"] == [f"h{best}", pytest.approx(values[best])]
        assert 4 <= best < 8
    assert {verdict.name: verdict.why for verdict in found.claims} == {
        "layer_wise_training_gives_three_groups": "needs 5 models trained block by block, and sub_networks with spectral clusters to be chosen",
        "attention_makes_the_first_differences": "needs 3 seeds trained on one sum",
        "c_is_near_the_last_blocks": "needs 5 models trained block by block with resid_post@1 and resid_post@2, and options.targets with c3",
    }  # fmt: skip
    figures = {file.stem for file in (folder / "figures").glob("*.png")}
    assert figures == {
        *(f"{name}-{model}-layers" for name in ("gromov_wasserstein", "cka") for model in ("blocks", "even")),
        *(f"measures-{model}-{model}" for model in ("blocks", "even")),
    }
    assert "gromov_wasserstein-blocks-layers.png" in out
    assert repsim("plot", newest(), "--all")[0] == 0
    figures = {file.stem for file in (folder / "figures").glob("*.png")}
    assert "cka-00-02-blocks-sums" in figures
    # what is made anew keeps its claims, and its options where no others are given
    code, _, err = repsim("analyse", newest(), "+analyses.sub_networks={clusters: 2}")
    assert code == 0, err
    assert repsim("analyse", newest(), "claims=[layer_wise_groups_are_the_published]")[0] == 0
    again = reader.read_results(newest())
    assert again.analyses["sub_networks"]["options"]["clusters"] == 2
    assert {row[3] for row in again.tables["sub-networks"].rows} == {2}
    names = {verdict.name for verdict in again.claims}
    assert names == {verdict.name for verdict in found.claims} | {"layer_wise_groups_are_the_published"}
    assert not [name for name in figures if name.endswith("-all") or name.startswith("cka-00-00")]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (("blocks", "sums"), {"targets": "sum"}, "options.targets: no such model, got 'sum'; did you mean"),
        (("sums",), {"targets": "sums"}, "options.targets: a model to compare with is needed, got 'sums' alone; add one"),
        (("blocks", "even"), {"within": "true", "+analyses.localization": "{}"}, "options.within: analyses.localization needs the layers of all models, got pairs within models alone; drop one"),
        (("blocks", "even"), {"within": "true", "claims": "[early_layers_agree]"}, "options.within: claims needs the layers of all models"),
        (("sums",), {"+analyses.sub_networks": "{}"}, "analyses.sub_networks: 4 layers of a model are needed, got 1; read more"),
        (("blocks",), {"+analyses.sub_networks": "{clusters: 13}"}, "analyses.sub_networks.clusters: more than the layers of 'blocks', got 13 of 12; lower it"),
        (("blocks",), {"+analyses.sub_networks": "{given: {block: [0-11]}}"}, "analyses.sub_networks.given: no such model, got 'block'; did you mean"),
        (("blocks",), {"+analyses.sub_networks": "{given: {blocks: [0-10]}}"}, "analyses.sub_networks.given.blocks: all of its 12 layers are needed, got none for 11; put it in a group"),
        (("blocks",), {"+analyses.sub_networks": "{method: spectra}"}, "analyses.sub_networks.method: wrong value, got 'spectra'; give"),
        (("blocks", "short"), {"targets": "short"}, "model: models have different numbers of rows, got blocks: 40, short: 30; rows must be paired"),
    ],
)  # fmt: skip
def test_what_is_asked_of_single_models_is_checked(repsim, networks, labels, options, message):
    code, _, err = repsim(*words(networks, *labels, **options), "measure=[cka]")
    assert code == 2
    assert err.startswith(f"error: {message}")


def test_heads_stand_together_on_crowded_axes():
    names = [f"q@{block}.h{head}" for block in range(2) for head in range(4)]
    assert merge_head_names([*names, "resid_post@1"]) == [(1.5, "q@0"), (5.5, "q@1"), (8.0, "resid_post@1")]
