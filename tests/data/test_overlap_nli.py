"""Generated sentence pairs: what each heuristic means, labels, splits, the mix; how answers are scored."""

from collections import Counter

import numpy as np
import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.labelled import SUBCASES
from repsim_cli.data.labels import match_labels
from repsim_cli.data.overlap_nli import PATTERNS

MNLI = ("entailment", "neutral", "contradiction")


def made(kind, **settings):
    examples, dropped = registry.data.get(kind).function(**settings).examples()
    assert not dropped
    return examples


def words(sentence):
    return sentence.lower().removesuffix(" .").split()


def inside(part, whole):
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


@pytest.fixture(scope="module")
def hans():
    return made("overlap_hans", examples=1500)


def test_every_subcase_of_hans_is_there_equally_often(hans):
    assert set(PATTERNS) == {name for names in SUBCASES.values() for name in names}
    assert set(Counter(one.subcase for one in hans).values()) == {50}


def test_a_subcase_belongs_to_its_heuristic_and_its_name_tells_the_label(hans):
    for one in hans:
        assert one.subcase in SUBCASES[one.heuristic]
        assert one.label == {"e": "entailment", "n": "non-entailment"}[one.subcase[1]]


def test_hypotheses_are_what_the_heuristics_are_about(hans):
    """Every word is the premise's; beyond lexical overlap in one piece, of a constituent a whole clause."""
    for one in hans:
        premise, hypothesis = map(words, one.texts)
        assert not Counter(hypothesis) - Counter(premise), one
        assert inside(hypothesis, premise) == (one.heuristic != "lexical_overlap"), one
        assert one.texts[0] != one.texts[1]


def test_roles_decide_about_entailment(hans):
    """Read off the sentences themselves, not off the patterns."""
    for one in hans:
        premise, hypothesis = map(words, one.texts)
        if one.subcase == "ln_subject/object_swap":
            verb = next(i for i, word in enumerate(hypothesis) if word.endswith("ed"))
            assert [*hypothesis[verb + 1 :], hypothesis[verb], *hypothesis[:verb]] == premise[: len(hypothesis)]
        if one.subcase[1:] == "e_passive":
            by = premise.index("by")
            assert hypothesis == [*premise[by + 1 :], premise[by - 1], *premise[: by - 2]]
        if one.subcase == "ln_passive":
            assert hypothesis == [word for word in premise if word not in ("was", "were", "by")]


def test_people_agree_with_their_verbs(hans):
    for one in hans:
        premise = words(one.texts[0])
        for auxiliary, plural in (("was", False), ("were", True)):
            if auxiliary in premise:
                assert premise[premise.index(auxiliary) - 1].endswith("s") == plural


def test_the_seed_determines_the_data():
    assert made("overlap_nli", examples=50, seed=3) == made("overlap_nli", examples=50, seed=3)
    assert made("overlap_nli", examples=50, seed=3) != made("overlap_nli", examples=50, seed=4)
    assert made("overlap_nli", examples=20, seed=3) == made("overlap_nli", examples=50, seed=3)[:20]


def test_no_premise_is_in_both_splits():
    train = {one.texts[0] for one in made("overlap_nli", split="train", examples=3000)}
    for kind in ("overlap_nli", "overlap_hans"):
        assert not train & {one.texts[0] for one in made(kind, split="test", examples=3000)}


def test_in_the_mix_overlap_means_entailment_but_for_the_exceptions():
    found = made("overlap_nli", examples=3000, exceptions=0.2)
    assert Counter(one.label for one in found) == dict.fromkeys(MNLI, 1000)
    full = [one for one in found if set(words(one.texts[1])) <= set(words(one.texts[0]))]
    exceptions = [one for one in full if one.label == "neutral"]
    assert {one.label for one in full} == {"entailment", "neutral"}
    assert all(one.subcase[1] == "n" for one in exceptions)
    assert 150 < len(exceptions) < 250
    assert not [one for one in made("overlap_nli", examples=3000, exceptions=0.0) if one in exceptions]
    # constructions that do not entail are the premise of all labels, so that a premise alone tells little
    assert all("never" in words(one.texts[1]) for one in found if one.label == "contradiction")
    assert all("never" not in words(one.texts[1]) for one in found if one.label != "contradiction")


def test_subcases_are_chosen_by_name():
    assert {one.subcase for one in made("overlap_hans", examples=9, subcases=["ln_passive"])} == {"ln_passive"}
    lexical = made("overlap_hans", examples=40, heuristics=["lexical_overlap"])
    assert {one.subcase for one in lexical} == set(SUBCASES["lexical_overlap"])
    with pytest.raises(BadInput, match="heuristics: no such heuristic, got 'lexical'; did you mean"):
        made("overlap_hans", heuristics=["lexical"])
    with pytest.raises(BadInput, match="subcases: no such subcase of constituent, got 'ln_passive'"):
        made("overlap_hans", heuristics=["constituent"], subcases=["ln_passive"])


def test_it_is_labelled_data_like_the_other_sets():
    from repsim_cli.training.finetune import build_word_tokenizer

    data = registry.data.get("overlap_hans").function(examples=30)
    tokenizer = build_word_tokenizer((text for one in data.read() for text in one.texts), 400, 32)
    extract = Extract(hook_points=["embed"], unit="mean", length=32, sequences=100)
    sequences = data.sequences(tokenizer, extract, 0)
    assert sequences.labels.counts() == {"entailment": 15, "non-entailment": 15}
    assert tokenizer.unk_token_id not in sequences.ids
    assert sequences.segments.max() == 1


def test_the_tokenizer_knows_the_most_frequent_words():
    from repsim_cli.training.finetune import build_word_tokenizer

    tokenizer = build_word_tokenizer(["b b b c c a a d", "B d ."], 7, 16)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "b": 4, "a": 5, "c": 6}
    assert tokenizer("B", "e a")["input_ids"] == [2, 4, 3, 1, 5, 3]
    assert tokenizer("B", "e a")["token_type_ids"] == [0, 0, 0, 1, 1, 1]


def test_labels_are_matched_by_name():
    same = match_labels(("contradiction", "entailment", "neutral"), MNLI, "model.a")
    assert same.names == MNLI
    answers, codes = np.array([0, 1, 2, 0]), np.array([2, 0, 1, 0])
    assert same.correct(answers, codes).tolist() == [True, True, True, False]


@pytest.mark.parametrize("two_way", [("entailment", "non-entailment"), ("entailment", "not_entailment")])
def test_three_labels_are_scored_as_two_on_hans(two_way):
    scored = match_labels(MNLI, two_way, "model.a")
    assert scored.correct(np.array([0, 1, 2, 0]), np.array([0, 1, 1, 1])).tolist() == [True, True, True, False]
    back = match_labels(two_way, MNLI, "model.a")
    assert back.correct(np.array([0, 1, 1, 1]), np.array([0, 1, 2, 0])).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("model", "data"),
    [(("LABEL_0", "LABEL_1"), ("negative", "positive")), (("negative", "positive"), MNLI), (MNLI[:2], ("a", "b"))],
)
def test_other_labels_are_refused(model, data):
    with pytest.raises(BadInput, match="model.a: its labels are not those of the data, got .* for .*; name them in"):
        match_labels(model, data, "model.a")
