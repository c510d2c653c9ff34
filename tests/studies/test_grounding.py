"""Grounding: groups of models on data of each test, compared by every measure, graded; bad input."""

import json

import numpy as np
import pytest
from recorded import recorded

from repsim_cli import results

ENTRY = (
    "{kind: finetuned, config: {model_type: bert, vocab_size: 120, hidden_size: 16, num_hidden_layers: 3,"
    " num_attention_heads: 2, intermediate_size: 16, max_position_embeddings: 40}, train: TRAIN,"
    " evaluate: {kind: overlap_nli, examples: 60}, seeds: [0, 1, 2], recipe: {length: 40, steps: 2, batch_size: 8}}"
)
PAIRS = "{kind: overlap_nli, split: train, examples: 60}"
WORDS = (
    "study=grounding",
    "model=[]",
    "+model.plain=" + ENTRY.replace("TRAIN", PAIRS),
    "+model.random=" + ENTRY.replace("TRAIN", f"{{kind: altered, data: {PAIRS}, random_labels: 1.0}}"),
    "measure=[cka,procrustes]",
    "extract=pooled",
    "extract.hook_points=[resid_post]",
    "extract.length=40",
    "extract.sequences=30",
    "extract.rows=30",
    "hardware.threads=1",
)
SEEDS = "seeds: {groups: {plain: plain}, data: {kind: overlap_nli, examples: 60}}"
LABELS = (
    "labels: {groups: {plain: plain, random: random},"
    " data: {kind: altered, data: {kind: overlap_nli, examples: 60}, shortcut: 0.5}}"
)


def test_every_test_has_data_and_groups_of_its_own(repsim, newest):
    code, _, err = repsim("run", *WORDS, f"+options.tests={{{SEEDS}, {LABELS}}}")
    assert code == 0, err
    record, manifest = recorded(newest()), json.loads((newest() / "manifest.json").read_text())
    assert len(manifest["models"]) == 6
    assert manifest["data of seeds"] != manifest["data of labels"]
    matrices = {name: results.read_array(newest(), x["values"]) for name, x in record["matrices"].items()}
    assert {name: x.shape for name, x in matrices.items()} == {
        "cka, seeds": (9, 9), "procrustes, seeds": (9, 9), "cka, labels": (18, 18), "procrustes, labels": (18, 18),
    }  # fmt: skip
    # the same models on other data
    assert not np.allclose(matrices["cka, seeds"], matrices["cka, labels"][:9, :9])
    rows = record["tables"]["grades"]["rows"]
    tests = {(row[1], row[2]) for row in rows}
    assert {of for name, of in tests if name in ("separation", "conformity")} == {"labels"}
    assert {of for name, of in tests if name not in ("separation", "conformity")} == {"seeds"}
    assert {row[9] for row in rows if row[2] == "labels"} == {6}
    groups = {tuple(row[:3]): row[3:] for row in record["tables"]["accuracy of groups"]["rows"]}
    assert groups["labels", "random", 3] == [0.0, 0.0, 0.0]
    assert groups["labels", "plain", 3] == groups["seeds", "plain", 3]
    # by hand: pairs of a group against pairs with a model of it, at the last layer
    last = matrices["cka, labels"][2::3, 2::3]
    within, across = last[:3, :3][np.triu_indices(3, 1)], last[:3, 3:].ravel()
    other = last[3:, 3:][np.triu_indices(3, 1)]
    conform = np.mean([(x[:, None] > across).mean() for x in (within, other)])
    (score,) = (row[4] for row in rows if row[:3] == ["cka", "conformity", "labels"])
    assert score == pytest.approx(conform)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("{}", "options.tests: none is named, got {}; write {NAME: {groups: {NAME: ENTRY}, data: {...}}}"),
        ("{seeds: 3}", "options.tests.seeds: wrong value, got 3; give keys of {groups, data}"),
        ("[a]", "options.tests: wrong value, got ['a']"),
        (f"{{{SEEDS.replace('plain: plain', 'plain: plane')}}}", "no such model, got 'plane'; did you mean 'plain'?"),
        (f"{{{SEEDS.replace('{plain: plain}', '{}')}}}", "options.tests.seeds.groups: no group is named, got {}"),
        (f"{{{SEEDS.replace('overlap_nli', 'overlap')}}}", "options.tests.seeds.data.kind: unknown data kind"),
        (f"{{{SEEDS.replace('examples', 'exampels')}}}", "options.tests.seeds.data.exampels: unknown key"),
    ],
)
def test_bad_tests(repsim, tests, message):
    code, _, err = repsim("run", *WORDS, f"+options.tests={tests}")
    assert code == 2
    assert message in err
