"""Measures of outputs: hand-computed values, independent formulas, what their cards claim; the study that draws them."""

import json
import shutil
from importlib import resources

import numpy as np
import pytest
import torch
from helpers.composing import composed
from helpers.tiny_classifiers import TINY_FINETUNED
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from repsim_cli.runs.content import DIFFER
from repsim_cli.studies.outputs.outputs import CARDS, OutputSums

ALL = list(CARDS)


def compared(logits, answers=None, right=None, batches=1, of=None):
    logits = torch.as_tensor(np.array(logits), dtype=torch.float64)
    answers = logits.argmax(-1) if answers is None else torch.as_tensor(answers)
    of = torch.arange(logits.shape[1]) if of is None else torch.as_tensor(of)
    names = [name for name in ALL if right is not None or name != "accuracy_difference"]
    sums = OutputSums(names, documents=int(of.max()) + 1)
    for rows in np.array_split(np.arange(logits.shape[1]), batches):
        sums.add(logits[:, rows], answers[:, rows], None if right is None else torch.as_tensor(right)[rows], of[rows])
    return {name: sums.compute_matrix(name) for name in sums.measures}


@pytest.fixture
def random():
    return np.random.default_rng(0).normal(size=(3, 40, 4)) * 2


def test_by_hand():
    """Two models, two rows: (1, 0) against (0, 1), and (1/2, 1/2) against (3/4, 1/4)."""
    sure = 60.0
    logits = [[[sure, 0.0], [0.0, 0.0]], [[0.0, sure], [np.log(3.0), 0.0]]]
    found = compared(logits, right=[0, 0])
    half = 0.5 * np.log2(0.5 / 0.625) + 0.5 * np.log2(0.5 / 0.375)
    quarter = 0.75 * np.log2(0.75 / 0.625) + 0.25 * np.log2(0.25 / 0.375)
    assert found["output_jsd"][0][0, 1].item() == pytest.approx((1 + (half + quarter) / 2) / 2, abs=1e-12)
    kl = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    assert found["output_kl"][0][0, 1].item() == pytest.approx((sure + kl) / 2, abs=1e-9)
    assert found["disagreement"][0][0, 1].item() == 0.5
    assert found["accuracy_difference"][0][0, 1].item() == 0.5


def test_against_scipy(random):
    p = np.exp(random) / np.exp(random).sum(-1, keepdims=True)
    found = compared(random)
    for a in range(3):
        for b in range(3):
            jsd = np.mean([jensenshannon(x, y, base=2) ** 2 for x, y in zip(p[a], p[b], strict=True)])
            kl = np.mean([entropy(x, y) for x, y in zip(p[a], p[b], strict=True)])
            assert found["output_jsd"][0][a, b].item() == pytest.approx(np.nan_to_num(jsd), abs=1e-9)
            assert found["output_kl"][0][a, b].item() == pytest.approx(kl, abs=1e-9)
            assert found["disagreement"][0][a, b].item() == np.mean(p[a].argmax(1) != p[b].argmax(1))


def test_batches_add_up(random):
    right = np.arange(40) % 4
    whole, parts = compared(random, right=right), compared(random, right=right, batches=7)
    for name in ALL:
        for one, other in zip(whole[name], parts[name], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_the_standard_error_is_that_of_a_mean(random):
    different = random.argmax(-1)[0] != random.argmax(-1)[1]
    expected = different.std(ddof=1) / np.sqrt(len(different))
    assert compared(random)["disagreement"][1][0, 1].item() == pytest.approx(expected, rel=1e-9)


def test_errors_are_over_documents_and_cover():
    """Errors of documents whose rows are one row over and over are those of as many rows; of uneven documents that
    share what they differ in, two hold the mean."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 30, 4))
    once, often = compared(rows), compared(np.repeat(rows, 5, axis=1), of=np.arange(150) // 5)
    for name in ("output_jsd", "output_kl", "disagreement"):
        torch.testing.assert_close(once[name][1], often[name][1])
    assert compared(rows, of=np.zeros(30, int))["output_jsd"][1] is None
    held = []
    for _ in range(300):
        sizes = rng.integers(1, 20, 25)
        of = np.repeat(np.arange(25), sizes)
        differ = rng.random(len(of)) < rng.beta(1, 3, 25)[of]
        answers = np.stack([np.zeros(len(of), int), differ.astype(int)])
        found, error = compared(np.zeros((2, len(of), 2)), answers, of=of)["disagreement"]
        held.append(abs(found[0, 1] - 0.25) <= 2 * error[0, 1])
    assert 0.9 <= np.mean(held) <= 0.98


def test_chance_is_what_answers_in_another_order_give():
    rng = np.random.default_rng(2)
    answers = [rng.choice(3, 400, p=[0.7, 0.2, 0.1]), rng.choice(3, 400, p=[0.5, 0.1, 0.4])]
    sums = OutputSums(["disagreement"], documents=400)
    sums.add(torch.zeros(2, 400, 3), torch.from_numpy(np.array(answers)), None, torch.arange(400))
    drawn = [(answers[0] != rng.permutation(answers[1])).mean() for _ in range(500)]
    assert sums.compute_chance("disagreement")[0, 1].item() == pytest.approx(np.mean(drawn), abs=0.004)
    assert sums.compute_chance("output_jsd") is None


@pytest.mark.parametrize("name", ALL)
def test_what_the_cards_claim(name, random):
    card, values = CARDS[name], compared(random, right=np.arange(40) % 4)[name][0].numpy()
    low, high = card.bounds
    assert card.reads == "outputs"
    assert np.diagonal(values) == pytest.approx(0, abs=1e-12)
    assert values.min() >= low
    assert high is None or values.max() <= high
    assert np.allclose(values, values.T) == card.symmetric
    if card.is_metric:
        assert all(values[a, b] <= values[a, c] + values[c, b] + 1e-12 for a, b, c in np.ndindex(3, 3, 3))


@pytest.mark.slow
@pytest.mark.drawn
def test_the_study_compares_classifiers(trained_once, repsim, newest):
    code, out, err = repsim(
        "run",
        "experiment=tiny/mnli_outputs",
        *TINY_FINETUNED,
        "data.examples=60",
        "options.outputs=[output_jsd,output_kl,disagreement,accuracy_difference]",
    )
    assert code == 0, err
    assert "accuracy:" in out
    assert "most accurate: tiny_nli_" in out
    found = json.loads((newest() / "results.json").read_text())
    labels = ["tiny_nli_0", "tiny_nli_1"]
    assert [m["matrices"][0]["rows"]["layers"] for m in found["measures"]] == [labels] * 4
    values = {m["name"]: np.load(newest() / m["matrices"][0]["values"]) for m in found["measures"]}
    accuracy = {label: value for label, value, _ in found["tables"]["accuracy"]["rows"]}
    expected = abs(accuracy["tiny_nli_0"] - accuracy["tiny_nli_1"])
    assert values["accuracy_difference"][0, 1] == pytest.approx(expected, abs=1e-12)
    assert (newest() / "figures" / "disagreement-all.png").is_file()
    # the same forward passes, one model after the other and by hand
    config = composed("experiment=tiny/mnli_outputs", *TINY_FINETUNED, "data.examples=60")
    study = validated(config).study
    answers = []
    for label in labels:
        source = study.models[label]
        one = study.data.sequences(study.tokenizers[label], study.extract, 0)
        model = source.with_head("AutoModelForSequenceClassification")
        with torch.no_grad():
            given = (torch.from_numpy(x).long() for x in (one.ids, one.mask, one.segments))
            ids, mask, segments = given
            answers.append(model(input_ids=ids, attention_mask=mask, token_type_ids=segments).logits.argmax(1).numpy())
        assert accuracy[label] == pytest.approx((answers[-1] == one.labels.codes).mean())
    assert values["disagreement"][0, 1] == pytest.approx((answers[0] != answers[1]).mean())


def validated(config):
    from repsim_cli.config.run import validate

    return validate(config)


def test_language_models_whose_numbers_are_other_tokens_are_refused(tmp_path):
    """Two tokens of one vocabulary have each other's numbers; the widths of the outputs are the same."""
    from repsim_cli.base.errors import BadConfig

    shutil.copytree(str(resources.files("repsim_cli") / "assets/models/tiny_a"), tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[300:302]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    file.write_text(json.dumps(tokenizer))
    other = f"+model.other={{kind: transformers, path: {tmp_path / 'other'}}}"
    with pytest.raises(
        BadConfig, match="model.other: next tokens are compared by their numbers, got other tokens than"
    ):
        validated(composed("study=outputs", "measure=[]", "extract=pooled", "model=[tiny_a]", other))


def test_the_study_compares_language_models(repsim, newest):
    code, _, err = repsim(
        "run",
        "study=outputs",
        "name=lm",
        "model=[tiny_a,tiny_b]",
        "measure=[]",
        "extract.sequences=4",
        "extract.length=32",
    )
    assert code == 0, err
    found = json.loads((newest() / "results.json").read_text())
    assert [m["name"] for m in found["measures"]] == ["output_kl", "output_jsd", "disagreement"]
    kl = np.load(newest() / found["measures"][0]["matrices"][0]["values"])
    assert kl[0, 1] != kl[1, 0]
    assert 0 < kl[0, 1] < 10
    said = dict(found["tables"][DIFFER]["rows"])
    assert said.keys() == {"output KL, nats", "output JSD, bits", "disagreement", "most accurate"}
    there, back = said["output KL, nats"].split("; ")
    assert there.startswith("tiny_a || tiny_b: ")
    assert back.startswith("tiny_b || tiny_a: ")
    assert ", where answers that are paired at random give 0." in said["disagreement"]
    assert found["measures"][0]["estimate"]["rows"] <= 4 * 31


@pytest.mark.slow
def test_copies_of_a_text_are_no_independent_texts(repsim, newest, tmp_path):
    texts = [
        f"the hacker number {i} wrote a program of {i * i} lines, and it ran {'well ' * (i % 5)}." for i in range(20)
    ]
    known = {}
    for times in (1, 4):
        (tmp_path / "a.txt").write_text("\n".join(texts * times))
        of_text = ("data=local_text", f"data.path={tmp_path / 'a.txt'}", "data.sample_by=line", "extract=texts")
        code, _, err = repsim(
            "run", "study=outputs", "measure=[]", "model=[tiny_a,tiny_b]", *of_text, f"extract.sequences={20 * times}"
        )
        assert code == 0, err
        assert ("outputs: 60 of 80 texts are copies of others" in err) == (times == 4)
        found = json.loads((newest() / "results.json").read_text())
        assert found["about"]["documents"] == 20
        assert 0 < found["about"]["freedom"] <= 19
        known[times] = [np.load(newest() / each["matrices"][0]["se"]) for each in found["measures"]]
    np.testing.assert_allclose(known[4], known[1], rtol=0.25, atol=1e-9)  # they are packed otherwise


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=[tiny_a]"], "model: outputs are compared between models, got 1; select two or more"),
        (["model=[tiny_a,tiny_b]", "+options.outputs=[output_jds]"], "options.outputs: no such measure of outputs, got 'output_jds'; did you mean 'output_jsd'"),
        (["model=[tiny_a,tiny_nli]", *TINY_FINETUNED], r"model.tiny_nli_0: its labels are not those of 'tiny_a', got \['entailment', 'neutral', 'contradiction'\] for \[\]"),
        (["model=[tiny_a,bert_like]"], "model.bert_like: it predicts no next token, got a bert; use a causal language"),
        (["model=[tiny_nli]", "data=embedded", *TINY_FINETUNED], "data: classifiers read examples, got running text"),
        (["model=[tiny_a]", "+model.other={kind: random, config: {model_type: gpt2, n_layer: 1, n_embd: 8, n_head: 1, vocab_size: 600}, tokenizer: tiny_a}"], "model.other: its vocabulary is not that of 'tiny_a', got 600 for 512 tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(overrides, message):
    from repsim_cli.base.errors import BadConfig

    with pytest.raises(BadConfig, match=message):
        validated(composed("study=outputs", "measure=[]", "extract=pooled", *overrides))
