"""The universality grid: models of every value of a factor against seeds of its base, twins and chance; bad input."""

import json
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli import measures
from repsim_cli.base import registry
from repsim_cli.engine.corrections import correct_by_max_t
from repsim_cli.engine.matrices import compute_matrices
from repsim_cli.models.transformers import draw_untrained, make_shape_key
from repsim_cli.runs import reader
from repsim_cli.studies.universality import study
from repsim_cli.studies.universality.finding import MARKERS
from repsim_cli.studies.universality.study import compare_by_closest_layers

ENTRY = (
    "{kind: finetuned, config: {model_type: bert, vocab_size: 120, hidden_size: WIDTH, num_hidden_layers: 2,"
    " num_attention_heads: 2, intermediate_size: 16, max_position_embeddings: 40}, train: {kind: overlap_nli, split:"
    " train, examples: 60}, evaluate: {kind: overlap_nli, examples: 60}, seeds: SEEDS, recipe: {length: 40, steps: 2,"
    " batch_size: 8}}"
)


def entry(width: int, *seeds: int) -> str:
    return ENTRY.replace("WIDTH", str(width)).replace("SEEDS", str(list(seeds)))


WORDS = (
    "study=universality",
    "model=[]",
    f"+model.small={entry(16, 0, 1, 2)}",
    f"+model.narrow={entry(8, 3, 4, 5)}",
    f"+model.other={entry(16, 3, 4, 5)}",
    "measure=[cka_unbiased,procrustes,linear_regression]",
    "data=overlap_nli",
    "data.examples=80",
    "extract=pooled",
    "extract.hook_points=[resid_post]",
    "extract.length=40",
    "extract.sequences=60",
    "extract.rows=60",
    "significance=permutation",
    "significance.permutations=39",
    "hardware.threads=1",
)
FACTOR = "{base: small, values: {half: narrow, more: other}}"


@pytest.mark.drawn
@pytest.mark.slow
def test_every_value_is_compared_with_seeds_twins_and_chance(repsim, newest, monkeypatch):
    """The run is interrupted in the second of its comparisons, and resumed."""
    words = ("run", *WORDS, f"+options.factors={{any: {FACTOR}}}")
    compared = iter((compute_matrices, mock.Mock(side_effect=KeyboardInterrupt)))
    monkeypatch.setattr(study, "compute_matrices", lambda *args, **more: next(compared)(*args, **more))
    assert repsim(*words)[0] == 130
    monkeypatch.setattr(study, "compute_matrices", compute_matrices)
    code, _, err = repsim(*words, "resume=latest")
    assert code == 0, err
    record, manifest = recorded(newest()), json.loads((newest() / "manifest.json").read_text())
    # nine trained models, three untrained in each of two shapes
    assert len(manifest["models"]) == 15
    assert record["about"] == {"alpha": 0.05, "margin": 0.2}
    rows = [dict(zip(record["tables"]["universality"]["columns"], row, strict=True))
            for row in record["tables"]["universality"]["rows"]]  # fmt: skip
    assert [(row["measure"], row["value"]) for row in rows] == [
        (measure, value)
        for measure in ("cka_unbiased", "procrustes", "linear_regression")
        for value in ("half", "more")
    ]
    assert {row["models"] for row in rows} == {"3 x 3"}
    nulls = {}
    for row in rows:
        matrix = record["matrices"][f"{row['measure']}, any, {row['value']}"]
        values = reader.read_array(newest(), matrix["values"])
        fresh = reader.read_array(newest(), matrix["details"]["untrained"])
        null = reader.read_array(newest(), matrix["details"]["null"])
        assert (values.shape, fresh.shape) == ((6, 6), (6, 6) if row["value"] == "half" else (3, 3))
        assert row["similarity"] == pytest.approx(values[:3, 3:].mean())
        assert row["seeds"] == pytest.approx(values[:3, :3][np.triu_indices(3, 1)].mean())
        assert (row["least of seeds"], row["largest of seeds"]) == pytest.approx(
            (values[:3, :3][np.triu_indices(3, 1)].min(), values[:3, :3][np.triu_indices(3, 1)].max())
        )
        pairs = fresh[:3, 3:] if row["value"] == "half" else fresh[np.triu_indices(3, 1)]
        assert row["untrained"] == pytest.approx(pairs.mean())
        assert row["chance"] == pytest.approx(null.mean())
        nulls.setdefault(row["measure"], []).append(null)
        assert matrix["about"]["tested"] == pytest.approx(values[0, 3])  # pooled rows all trade places
    assert not any(np.array_equal(*of_both) for of_both in nulls.values())  # of other models
    # the same permutations for both values: max-T over the values of a measure
    of_cka = [record["matrices"][f"cka_unbiased, any, {value}"] for value in ("half", "more")]
    nulls = [reader.read_array(newest(), matrix["details"]["null"]) for matrix in of_cka]
    expected = correct_by_max_t(
        torch.tensor([x["about"]["tested"] for x in of_cka]), torch.from_numpy(np.stack(nulls, 1))
    )
    assert [x["about"]["p_family"] for x in of_cka] == pytest.approx(expected.tolist())
    assert [row[:3] for row in record["tables"]["universality of factors"]["rows"]] == [
        [measure, "any", 2] for measure in ("cka_unbiased", "procrustes", "linear_regression")
    ]
    assert not {row["verdict"] for row in rows} - {*MARKERS}
    # two steps of training change nothing
    assert {row["verdict"] for row in rows} == {"undecided"}
    assert {row["margin"] for row in rows} == {0.2}
    assert sorted(file.stem for file in (newest() / "figures").glob("*.png"))[0] == "universality-factors"
    for name in ("factors", "values"):
        assert (newest() / "figures" / f"universality-{name}.png").is_file()
    # again, with weights
    folder = str(newest())
    code, _, err = repsim("analyse", folder, "+analyses.universality.weights={procrustes: 1.0}")
    assert code == 0, err
    again = recorded(newest())["tables"]
    assert again["universality"] == record["tables"]["universality"]
    assert again["universality by weight of measures"]["rows"] == [["any", 0.0, 0.0, 0.0, 0.0, 1.0, 0.2]]
    code, _, err = repsim("analyse", folder, "+analyses.universality.weights={procrust: 1.0}")
    assert code == 2
    assert "analyses.universality: weights: no such measure, got 'procrust'; did you mean 'procrustes'?" in err
    code, out, err = repsim("run", *WORDS, f"+options.factors={{any: {FACTOR}}}", "dry_run=true")
    assert code == 0, err
    assert "any: ['half', 'more']" in out
    assert "same: above 0.8 of the way from untrained twins to seeds (margin 0.2)" in out


@pytest.mark.slow
def test_single_models_are_judged_without_seeds(repsim, newest):
    words = [word for word in WORDS if not word.startswith(("+model", "measure"))]
    for label, width, seed in (("small", 16, 0), ("narrow", 8, 3), ("other", 16, 4)):
        words.append(f"+model.{label}={entry(width, seed)}")
    values = "{base: small, values: {half: narrow, more: other}}"
    code, _, err = repsim("run", *words, "measure=[cka_unbiased,procrustes]", f"+options.factors={{any: {values}}}")
    assert code == 0, err
    table = recorded(newest())["tables"]["universality"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert [row["models"] for row in rows] == ["1 x 1"] * 4
    unknown = ("low", "high", "seeds", "least of seeds", "largest of seeds", "p below seeds", "share of seeds", "p of same",
               "p of unrelated")  # fmt: skip
    for row in rows:
        assert {row[name] for name in unknown} == {None}
        assert row["verdict"] in {*MARKERS} - {"same", "unrelated"}
        assert 0 < row["p against untrained"] <= 1


def test_similarity_of_models_is_that_of_closest_layers():
    values = np.array([[9.0, 9.0, 0.1, 0.5, 0.3], [9.0, 9.0, 0.2, 0.1, 0.4],
                       [0.6, 0.5, 9.0, 9.0, 9.0], [0.7, 0.1, 9.0, 9.0, 9.0], [0.2, 0.3, 9.0, 9.0, 9.0]])  # fmt: skip
    # of the first model 0.5 and 0.4, of the second 0.6, 0.7 and 0.3
    made = compare_by_closest_layers(values, [slice(0, 2), slice(2, 5)], measures.card("linear_regression"))
    assert made[0, 1] == made[1, 0] == pytest.approx((0.45 + 1.6 / 3) / 2)


def test_untrained_twins_have_the_shape_and_random_weights():
    trained = registry.models.get("shipped").function(name="tiny_a")
    one, again, other = (draw_untrained(trained, seed) for seed in (0, 0, 1))
    weights = [next(iter(source.load(False).parameters())).detach() for source in (trained, one, again, other)]
    assert torch.equal(weights[1], weights[2])
    assert len({weight.shape for weight in weights}) == 1
    assert not any(torch.equal(weights[1], weights[i]) for i in (0, 3))
    assert not one.trained
    assert one.identity() != other.identity()
    assert make_shape_key(one) == make_shape_key(other) == make_shape_key(trained)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+options.factors={}"], "options.factors: none is named; write {NAME: {base: ENTRY, values: {NAME: ENTRY}}}"),
        ([f"+options.factors={{any: {FACTOR.replace('narrow', 'narow')}}}"], "options.factors.any.values.half: no such entry of model, got 'narow'; did you mean 'narrow'?"),
        ([f"+options.factors={{any: {FACTOR.replace('base: small', 'base: smal')}}}"], "options.factors.any.base: no such entry of model, got 'smal'; did you mean 'small'?"),
        ([f"+options.factors={{any: {FACTOR.replace('base', 'bose')}}}"], "options.factors.any.bose: unknown key"),
        (["+options.factors={any: {base: small, values: {half: narrow}}}"], "options.factors.any.values: two or more are needed, got ['half']; name more"),
        (["+options.factors={any: {base: small, values: {half: narrow, all: small}}}"], "options.factors.any.values.all: it is the base, got 'small'; name another entry"),
        ([f"+options.factors={{any: {FACTOR}}}", "significance=none"], "significance.method: similarity is compared with random pairings of rows, got none; use significance=permutation"),
        ([f"+options.factors={{any: {FACTOR}}}", "cache=false"], "cache: each model is read in several comparisons, got false; leave it true"),
        ([f"+options.factors={{any: {FACTOR}}}", "significance.alpha=0.001"], "options.factors.any.values.half: too few to show that one of 2 values is the same at margin 0.2 and alpha 0.001, got 3 models against 3 seeds of the base; 5 models of it are needed"),
        ([f"+options.factors={{any: {FACTOR}}}", "+options.margin=0.05"], "got 3 models against 3 seeds of the base; 11 seeds of the base and 11 models of it are needed"),
        ([f"+options.factors={{any: {FACTOR}}}", "+options.margin=0.9"], "options.margin: wrong value, got 0.9; give less than or equal to 0.5"),
        ([f"+options.factors={{any: {FACTOR}}}", "model.narrow.seeds=[3]"], "got 1 models against 3 seeds of the base; 3 models of it are needed"),
        ([f"+options.factors={{any: {FACTOR}}}", "model.other.seeds=[3,4]"], "options.factors.any.values.more: too few to show that one of 2 values is the same at margin 0.2 and alpha 0.05, got 2 models against 3 seeds of the base; 3 models of it are needed"),
        ([f"+options.factors={{any: {FACTOR}, more: {FACTOR}, third: {FACTOR}, fourth: {FACTOR}, fifth: {FACTOR}, sixth: {FACTOR}, seventh: {FACTOR}, eighth: {FACTOR}}}"], "too few to show that one of 16 values is the same at margin 0.2 and alpha 0.05, got 3 models against 3 seeds of the base; 4 models of it are needed"),
        ([f"+options.factors={{any: {FACTOR}}}", "+options.twins=2"], "options.twins: wrong value, got 2; give greater than or equal to 3"),
        ([f"+options.factors={{any: {FACTOR.replace('narrow', 'elmo_original')}}}", "model=[elmo_original]", "model.elmo_original.path=/nowhere"], "model.elmo_original"),
        ([f"+options.factors={{any: {FACTOR}}}", "+analyses.universality.weights={cka_unbaised: 1}"], "analyses.universality.weights: no such measure, got 'cka_unbaised'; did you mean 'cka_unbiased'?"),
    ],
)  # fmt: skip
def test_bad_input(repsim, tmp_path, words, message):
    code, _, err = repsim("run", *WORDS, *words)
    assert code == 2
    assert message in err, err


def test_models_without_common_rows(repsim):
    fresh = "{{kind: random, shipped: tiny_a{}, seeds: {}}}"
    words = [f"+model.base_lm={fresh.format('', [0, 1, 2])}", f"+model.more={fresh.format('', [3, 4, 5])}",
             f"+model.other={fresh.format(', tokenizer: word_pieces', [6, 7, 8])}"]  # fmt: skip
    factors = "+options.factors={any: {base: base_lm, values: {more: more, other: other}}}"
    code, _, err = repsim("run", "study=universality", "model=[]", *words, "significance=permutation", factors)
    assert code == 2
    assert "model: tokenizers differ, got a different vocabulary for 'other_6' than for 'base_lm_0'" in err
