"""Numbers that the authors of wu2020 test their code with; localization, claims on maps, stored words."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from helpers.recorded import recorded
from helpers.treebanks import SENTENCES, WORDS, conllu

from repsim_cli import measures
from repsim_cli.activations.inputs import pair_rows
from repsim_cli.activations.readings import Reading
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.findings.base_model import compare_with_base, compute_similarity_to_base
from repsim_cli.findings.claims import find_claims
from repsim_cli.findings.localization import average_over_others, measure_localization
from repsim_cli.findings.maps import ClaimMap
from repsim_cli.models.sentence_files import write_sentences
from repsim_cli.models.source import describe_model

# contextual-corr-analysis, tests/: f1, f2, f3 are these 10 x 2 draws, and what its code says of their pairs
FIXTURES = np.random.RandomState(0).randn(3, 10, 2)
PAIRS = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
STRONGEST = [  # |r| of each neuron's best partner (maxcorr)
    (0.23845301568508148, 0.1293896734714508),
    (0.23722361028194427, 0.5554977059364319),
    (0.09392203390598297, 0.23845301568508148),
    (0.4508991241455078, 0.08866079151630402),
    (0.5279974341392517, 0.5554977059364319),
    (0.08866079151630402, 0.4508991241455078),
]
RESIDUALS = [  # sums of squares that a regression leaves of each neuron, whose own sum of squares is 9 (linreg)
    (8.479826927185059, 8.767545700073242),
    (8.339704513549805, 4.910735607147217),
    (8.887153625488281, 8.447637557983398),
    (7.079151153564453, 8.891857147216797),
    (6.405300617218018, 6.204168796539307),
    (8.91811466217041, 7.108542442321777),
]
STANDARDISED_CKA = {(0, 1): 0.04030122341789755, (0, 2): 0.3155463863261887, (1, 2): 0.1056196561315231}


def test_fixtures_of_the_original():
    neuronsim, mixedsim, cka = (measures.get(name) for name in ("neuronsim", "mixedsim", "cka"))
    for (a, b), strongest, left in zip(PAIRS, STRONGEST, RESIDUALS, strict=True):
        x, y = FIXTURES[a], FIXTURES[b]
        assert neuronsim(x, y) == pytest.approx(np.mean(strongest), abs=1e-6)
        assert mixedsim(x, y) == pytest.approx(np.mean(np.sqrt(1 - np.array(left) / 9)), abs=1e-6)
    # this fixture is older than the paper: its neurons are standardised first
    standardised = FIXTURES / FIXTURES.std(1, keepdims=True)
    for (a, b), value in STANDARDISED_CKA.items():
        assert cka(standardised[a], standardised[b]) == pytest.approx(value, abs=1e-6)


CLAIMS = (
    "same_family_is_closer", "lower_layers_agree_across_families", "adjacent_layers_are_closer",
    "top_attention_changes_most", "neurons_are_block_diagonal", "single_heads_match_across_families",
    "neurons_differ_between_models", "localization_rises_with_depth", "top_layers_change_most",
    "fine_tuning_delocalizes_the_top",
)  # fmt: skip


def test_localization_by_hand():
    neurons = np.array([[1.0, 0.2, 0.4], [0.6, 1.0, 0.8], [0.0, 0.1, 1.0]])
    spread = np.array([[1.0, 0.5, 0.3], [0.5, 1.0, 0.1], [0.3, 0.1, 1.0]])
    found = measure_localization(neurons, spread)
    np.testing.assert_allclose(found["row"], [0.3 - 0.4, 0.7 - 0.3, 0.05 - 0.2])
    np.testing.assert_allclose(found["column"], [0.3 - 0.4, 0.15 - 0.3, 0.6 - 0.2])
    np.testing.assert_allclose(average_over_others(spread)["row"], average_over_others(spread)["column"])


def test_similarity_to_the_base_is_that_of_the_same_layer():
    """Models have the base's architecture, depth and width; others cannot come from it."""
    values = np.arange(121.0).reshape(11, 11)
    places = {"base": slice(0, 2), "a": slice(2, 4), "deeper": slice(4, 7), "other": slice(7, 9), "wider": slice(9, 11)}
    families = {name: "one" for name in places} | {"other": "two"}
    whole = ClaimMap(models=places, families=families, values={}, names=[], widths=[8] * 9 + [9] * 2, rows=100)
    assert {k: v.tolist() for k, v in compute_similarity_to_base(values, whole, "base").items()} == {"a": [2.0, 14.0]}
    assert {k: v.tolist() for k, v in compute_similarity_to_base(values, whole, "a").items()} == {"base": [22.0, 34.0]}


def test_a_layer_is_compared_with_the_base_with_other_seeds_and_with_other_trainings():
    """The base, two seeds of one training, one of another; values of the same layer are of pairs, plus the layer."""
    models = {label: slice(2 * i, 2 * i + 2) for i, label in enumerate(["base", "a_0", "a_1", "b_0"])}
    pairs = np.arange(16.0).reshape(4, 4)
    values = np.kron(pairs, np.eye(2)) + np.tile(np.diag([0.0, 0.5]), (4, 4))
    entries = {"a_0": "a", "a_1": "a", "b_0": "b"}
    names = ["resid_post@0", "resid_post@1"] * 4
    families = dict.fromkeys(models, "one")
    more = {"families": families, "values": {}, "names": names, "widths": [8] * 8, "rows": 100, "base": "base"}
    found = compare_with_base(values, ClaimMap(models=models, entries=entries, **more), "base")
    # of b there is no other seed, so that no model is compared with any
    assert [(label, *sorted(lines)) for label, lines in found.items()] == [
        (label, "other trainings", "same layer") for label in ("a_0", "a_1", "b_0")
    ]
    assert found["a_1"]["same layer"].tolist() == [2.0, 2.5]
    assert found["a_1"]["other trainings"].tolist() == [11.0, 11.5]
    assert found["b_0"]["other trainings"].tolist() == [13.5, 14.0]
    twins = compare_with_base(values, ClaimMap(models=models, entries=entries | {"b_0": "a"}, **more), "base")
    assert sorted(twins["a_0"]) == ["other seeds", "same layer"]
    assert twins["a_0"]["other seeds"].tolist() == [6.5, 7.0]
    lone = compare_with_base(values, ClaimMap(models=models, **more), "base")
    assert lone["a_0"]["other trainings"].tolist() == [6.5, 7.0]  # without entries each model is a training


def test_localization_counts_trainings_where_there_are_several():
    neurons = np.full((16, 16), 0.4) + np.repeat([0.3, 0.0, 0.2, 0.1], 4)[:, None]
    labels = ["base", "a_0", "a_1", "b_0"]
    found = ClaimMap(
        models={label: slice(4 * i, 4 * i + 4) for i, label in enumerate(labels)},
        families=dict.fromkeys(labels, "one"), values={"neuronsim": neurons, "svcca": np.full((16, 16), 0.5)},
        names=[f"resid_post@{i}" for i in range(4)] * 4, widths=[8] * 16, rows=100, base="base",
        entries={"a_0": "a", "a_1": "a", "b_0": "b"},
    )  # fmt: skip
    (claim,) = find_claims(["fine_tuning_delocalizes_the_top"])
    judgement = claim(found)
    assert (judgement.value, judgement.why) == (pytest.approx(0.2), "needs 3 tasks with a value, got 2 tasks")
    three = claim(replace(found, entries={}))
    assert (three.value, three.why) == (pytest.approx(0.2), "spread of 3 tasks")
    assert three.se == pytest.approx(0.1 * (1 + 1 / 3) ** 0.5)
    # the seeds of a single training are one unit
    assert claim(replace(found, entries=dict.fromkeys(labels[1:], "a"))).why == "needs 3 tasks with a value, got 1 task"


def maps(neurons, cka, svcca=None, base=None):
    """Three models of four layers, two of them of one family."""
    places = {"a": slice(0, 4), "b": slice(4, 8), "c": slice(8, 12)}
    kinds = {"a": "one", "b": "one", "c": "two"}
    values = {"neuronsim": neurons, "cka": cka, **({} if svcca is None else {"svcca": svcca})}
    names = [f"resid_post@{i}" for i in range(4)] * 3
    return ClaimMap(models=places, families=kinds, values=values, names=names, widths=[8] * 12, rows=100, base=base)


def blocks(within, family, across):
    """A map of these means: within a model, between models of a family, between families."""
    model, kind = np.repeat([0, 1, 2], 4), np.repeat([0, 0, 1], 4)
    values = np.where(model[:, None] == model, within, np.where(kind[:, None] == kind, family, across))
    np.fill_diagonal(values, 1.0)
    return values


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("same_family_is_closer", "families"),
        ("lower_layers_agree_across_families", "families"),
        ("neurons_are_block_diagonal", "families"),
        ("neurons_are_block_diagonal", "values"),
        ("neurons_differ_between_models", "values"),
        ("neurons_differ_between_models", "one"),
        ("adjacent_layers_are_closer", "models"),
        ("localization_rises_with_depth", "values"),
        ("localization_rises_with_depth", "models"),
        ("top_layers_change_most", "base"),
        ("top_layers_change_most", "models"),
        ("tasks_diverge_at_the_top", "base"),
        ("tasks_diverge_at_the_top", "models"),
        ("tasks_diverge_at_the_top", "fresh"),
        ("fine_tuning_delocalizes_the_top", "base"),
        ("fine_tuning_delocalizes_the_top", "depth"),
        ("fine_tuning_delocalizes_the_top", "fresh"),
        ("localization_rises_with_depth", "fresh"),
    ],
)
def test_claims_that_cannot_be_tested_say_why(name, change):
    values = blocks(0.9, 0.8, 0.7)
    found = dict(vars(maps(values, values, values, base="a")))
    if change == "families":
        found["families"] = dict.fromkeys("abc", "one")
    elif change == "values":
        found["values"] = {"cka": values}
    elif change == "base":
        found["base"] = None
    elif change == "fresh":
        found["untrained"] = frozenset("abc")
    elif change == "one":
        found["models"] = {"a": slice(0, 12)}
    elif change == "models":
        found["models"] = {"a": slice(0, 2), "b": slice(2, 4), "c": slice(4, 6)}
        found["values"] = {k: v[:6, :6] for k, v in found["values"].items()}
        found["names"], found["widths"] = found["names"][:6], found["widths"][:6]
    else:
        found["models"] = {"a": slice(0, 4), "b": slice(4, 9), "c": slice(9, 12)}
    (claim,) = find_claims([name])
    whole = ClaimMap(**found)
    judgement = claim(whole, whole.values["cka"]) if claim.on == "map" else claim(whole)
    assert judgement.verdict == "not testable here"
    assert judgement.why


def states(seed=0, layers=3, d=5):
    """(words, array (layers, words, d)) of every sentence."""
    generator = np.random.default_rng(seed)
    return [(words, generator.normal(size=(layers, len(words), d)).astype(np.float32)) for words in SENTENCES]


def test_sentences_are_written_and_read(tmp_path):
    written = states()
    write_sentences(tmp_path / "elmo.hdf5", written)
    with h5py.File(tmp_path / "elmo.hdf5") as archive:
        assert json.loads(archive["sentence_to_index"][0])["we met"] == "2"
        assert archive["1"].shape == (3, 8, 5)
    source = registry.models.get("precomputed").function(path=str(tmp_path / "elmo.hdf5"))
    assert (source.names, source.rows, source.widths) == (["embed", "layer@0", "layer@1"], WORDS, [5] * 3)
    whole = np.concatenate([array for _, array in written], 1)
    for layer, name in enumerate(source.names):
        for rows in (slice(0, WORDS), slice(2, 3), slice(1, 12), slice(10, 99)):
            np.testing.assert_array_equal(source.read(name, rows), whole[layer, rows])
    assert describe_model("elmo_original", source, []).family == "elmo"
    (one,) = pair_rows(
        [Reading("m", source, [], [])],
        {},
        registry.data.get("embedded_text").function(),
        Extract(hook_points=["embed"]),
        pytest.fail,
    )
    np.testing.assert_array_equal(one.source.read("embed", slice(0, WORDS)), whole[0])
    backwards = source.put_in_order(source.sentences[::-1])
    np.testing.assert_array_equal(
        backwards.read("layer@1", slice(0, WORDS)), np.concatenate([array[2] for _, array in written[::-1]])
    )
    top = registry.models.get("precomputed").function(path=str(tmp_path / "elmo.hdf5"), layers=["layer@1"])
    np.testing.assert_array_equal(top.read("layer@1", slice(0, 4)), whole[2, :4])
    with h5py.File(tmp_path / "flat.h5", "w") as archive:  # one layer may be (words, d)
        archive["0"] = written[2][1][0]
        archive["sentence_to_index"] = np.array([json.dumps({"we met": "0"}).encode()])
    flat = registry.models.get("precomputed").function(path=str(tmp_path / "flat.h5"))
    np.testing.assert_array_equal(flat.read("embed", slice(0, 2)), written[2][1][0])


def test_sentences_that_do_not_fit(tmp_path):
    load = registry.models.get("precomputed").function
    file = tmp_path / "elmo.hdf5"
    written = states()
    write_sentences(file, written)
    with pytest.raises(BadInput, match="layers: no such layer, got 'layer@2'; did you mean 'layer@1' or 'layer@0'"):
        load(path=str(file), layers=["layer@2"])
    with pytest.raises(BadInput, match=r"sentence 1: its array must be .layers, 8, d., got .3, 7, 5.; one row a word"):
        write_sentences(tmp_path / "b.hdf5", [written[0], (written[1][0], written[1][1][:, :7])])
    # the same text, but its first two words are one
    write_sentences(tmp_path / "b.hdf5", [(["rain falls", "."], np.ones((3, 2, 5))), *written[1:]])
    two = [Reading(name, load(path=str(tmp_path / f"{name}.hdf5")), [], []) for name in ("elmo", "b")]
    with pytest.raises(
        BadInput, match=r"model.b.path: sentence 0 has different words in .*b.hdf5', got 2 for 3 .'rain falls .'.;"
    ):
        pair_rows(two, {}, registry.data.get("embedded_text").function(), Extract(hook_points=["embed"]), pytest.fail)
    write_sentences(tmp_path / "few.hdf5", written[:1])
    two[1] = Reading("b", load(path=str(tmp_path / "few.hdf5")), [], [])
    with pytest.raises(
        BadInput, match=r"model.b.path: sentence 1 is not in '.*few.hdf5', got 'a dog runs outside .*; write it"
    ):
        pair_rows(two, {}, registry.data.get("embedded_text").function(), Extract(hook_points=["embed"]), pytest.fail)
    bad = [
        ({"0": np.ones((2, 3, 5)), "1": np.ones((3, 3, 5))}, r"got .3, 3, 5. at '1' after .2, 3, 5. in"),
        ({"0": np.ones((2, 3, 5))}, "got no array '1' in"),
        ({"0": np.ones(3)}, r"must be arrays .layers, words, d., got float64 .3,. at '0' in"),
        ({}, r"must be arrays .layers, words, d., got no array in"),
    ]
    for number, (arrays, message) in enumerate(bad):
        with h5py.File(tmp_path / f"c{number}.hdf5", "w") as archive:
            for key, array in arrays.items():
                archive[key] = array
            archive["sentence_to_index"] = np.array([json.dumps({"a b c": "0", "d e f": "1"}).encode()])
        with pytest.raises(BadInput, match=message):
            load(path=str(tmp_path / f"c{number}.hdf5"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A treebank, and stored activations of its words in another order."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(1)
    vocabulary = sorted({word for words in SENTENCES for word in words})
    sentences = [[vocabulary[i] for i in generator.integers(0, len(vocabulary), 6)] for _ in range(40)]
    (folder / "a.conllu").write_text(conllu(sentences))
    arrays = [(words, generator.normal(size=(4, 6, 8))) for words in sentences]
    write_sentences(folder / "elmo.hdf5", arrays[::-1])
    return folder


@pytest.mark.drawn
@pytest.mark.slow
def test_a_map_of_words_with_curves_and_claims(repsim, newest, corpus):
    """Live models of one tokenizer, a stored one, a base: matrices, curves by layer, claims, figures."""
    code, _, err = repsim(
        "run", "model=[tiny_a,tiny_b]", f"+model.elmo={{kind: precomputed, path: {corpus / 'elmo.hdf5'}}}", "base=tiny_a",
        "data=ewt", f"data.path={corpus / 'a.conllu'}", "measure=[neuronsim,svcca,cka]", "extract=words",
        "extract.length=32", "hardware.threads=1", "+analyses.localization={}",
        f"claims=[{','.join(CLAIMS)}]",
    )  # fmt: skip
    assert code == 0, err
    found = recorded(newest())
    assert {m["n"] for one in found["measures"] for m in one["matrices"]} == {240}
    curves = found["curves"]
    quantities = {
        "mean neuronsim", "mean svcca", "mean cka", "localization",
        "neuronsim with tiny_a", "svcca with tiny_a", "cka with tiny_a",
        "share of variance in the largest feature", "share of variance in the largest 1 % of rows",
        "participation ratio", "norm at the first place over that elsewhere",
    }  # fmt: skip
    assert {curve["about"]["quantity"] for curve in curves.values()} == quantities
    with_base = [c["about"]["model"] for c in curves.values() if c["about"]["quantity"] == "cka with tiny_a"]
    assert with_base == ["tiny_b"]
    elmo = curves["localization, elmo"]
    assert elmo["at"] == ["embed", "layer@0", "layer@1", "layer@2"]
    means = [curves[f"mean {name}, elmo"]["lines"]["row"] for name in ("neuronsim", "svcca")]
    np.testing.assert_allclose(elmo["lines"]["row"], np.subtract(*means))
    assert {claim["name"] for claim in found["claims"]} == set(CLAIMS)
    untested = {one["name"] for one in found["claims"] if one["value"] is None}
    # no measure of attention, one family without the stored model, whose four layers show no trend
    assert untested == {
        "single_heads_match_across_families",
        "lower_layers_agree_across_families",
        "neurons_are_block_diagonal",
    }
    drawn = {file.stem for file in (newest() / "figures").glob("by-layer-*.png")}
    assert {"by-layer-localization", "by-layer-mean_cka", "by-layer-cka_with_tiny_a"} <= drawn


def test_stored_words_need_rows_of_words(repsim, corpus):
    code, _, err = repsim(
        "run", "model=[tiny_a]", f"+model.elmo={{kind: precomputed, path: {corpus / 'elmo.hdf5'}}}", "data=ewt",
        f"data.path={corpus / 'a.conllu'}", "measure=[cka]", "extract.batch_rows=64", "hardware.threads=1",
    )  # fmt: skip
    assert code in (1, 2)
    assert "extract.unit: stored activations are of words, got token; use extract=words" in err
