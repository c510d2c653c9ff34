"""Sentence pairs in which a hypothesis made of the premise's words does, or does not, follow from the premise.

The constructions follow the three heuristics of McCoy et al. (2019), by which a reader may guess that a premise entails
a hypothesis: all its words occur in the premise (lexical overlap), next to each other (subsequence), and they form a
constituent of the premise's parse (constituent). In a subcase the guess is right (second letter e) or wrong (second
letter n). The vocabulary is original; sentences are generated under a seed and never stored.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from random import Random
from typing import Literal

from repsim_cli.base.registry import data
from repsim_cli.base.settings import Medium, Seed, Share
from repsim_cli.data.labelled import FORMATS, SUBCASES, Example, Examples, choose_subcases

PEOPLE = (
    "pilot", "baker", "nurse", "farmer", "sailor", "painter", "singer", "weaver",
)  # fmt: skip
WORDS: Mapping[str, tuple[str, ...]] = {
    "v": ("praised", "greeted", "blamed", "thanked", "chased", "admired", "warned", "pushed"),
    "i": ("slept", "laughed", "waited", "danced", "smiled", "arrived"),
    "p": ("near", "behind", "beside", "with"),
    "adjective": ("happy", "clever", "tired", "young"),
    "place": ("office", "garden", "market", "harbour"),
    "since": ("because", "since", "although", "while"),
    "if": ("if", "unless"),
    "when": ("before", "after", "when"),
    "sure": ("certainly", "clearly", "luckily", "sadly"),
    "unsure": ("maybe", "perhaps", "probably", "hopefully"),
    "factive": ("knew", "remembered", "regretted", "realized"),
    "hearsay": ("claimed", "hoped", "feared", "said"),
    "np_s": ("believed", "doubted", "forgot", "suspected"),
    "np_z": ("called", "taught", "painted", "helped"),
    "detail": ("yesterday", "again", "for money", "with pleasure", "at noon", "in secret"),
}  # fmt: skip
DOINGS = (("read", "book"), ("sang", "song"), ("ate", "meal"), ("wrote", "letter"), ("drove", "car"), ("sewed", "coat"))

# A, B, C: different people, singular or plural (A_was agrees; As: plural, without an article). v, w: different verbs.
# S, T: clauses about other people. does, thing: a verb whose object can be left out. Other slots: a word of that list.
PATTERNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "le_around_prepositional_phrase": (
        ("{A} {p} {B} {v} {C}", "{A} {v} {C}"),
        ("{A} in the {place} {v} {B}", "{A} {v} {B}"),
    ),
    "le_around_relative_clause": (
        ("{A} that {i} {v} {B}", "{A} {v} {B}"),
        ("{A} that {B} {w} {v} {C}", "{A} {v} {C}"),
    ),
    "le_conjunction": (("{A} {v} {B} and {C}", "{A} {v} {C}"), ("{A} and {B} {v} {C}", "{A} {v} {C}")),
    "le_passive": (("{A} {A_was} {v} by {B}", "{B} {v} {A}"),),
    "le_relative_clause": (("{A} that {B} {v} {i}", "{B} {v} {A}"), ("{A} {w} {B} that {C} {v}", "{C} {v} {B}")),
    "ln_conjunction": (("{A} {v} {B} and {C}", "{B} {v} {C}"), ("{A} and {B} {v} {C}", "{A} {v} {B}")),
    "ln_passive": (("{A} {A_was} {v} by {B}", "{A} {v} {B}"),),
    "ln_preposition": (("{A} {p} {B} {v} {C}", "{C} {v} {B}"), ("{A} in the {place} {v} {B}", "{B} {v} {A}")),
    "ln_relative_clause": (("{A} that {B} {v} {i}", "{A} {v} {B}"), ("{A} {w} {B} that {C} {v}", "{B} {w} {C}")),
    "ln_subject/object_swap": (("{A} {v} {B}", "{B} {v} {A}"), ("{A} {v} {B} in the {place}", "{B} {v} {A}")),
    "se_PP_on_obj": (("{A} {v} {B} {p} {C}", "{A} {v} {B}"), ("{A} {v} {B} in the {place}", "{A} {v} {B}")),
    "se_adjective": (("{adjective} {As} {v} {B}", "{As} {v} {B}"), ("{adjective} {As} {i}", "{As} {i}")),
    "se_conjunction": (("{A} and {B} {v} {C}", "{B} {v} {C}"), ("{A} {v} {B} and {C}", "{A} {v} {B}")),
    "se_relative_clause_on_obj": (("{A} {v} {B} that {i}", "{A} {v} {B}"), ("{A} {v} {B} that {w} {C}", "{A} {v} {B}")),
    "se_understood_object": (("{A} {does} the {thing}", "{A} {does}"),),
    "sn_NP/S": (("{A} {np_s} {B} {v} {C}", "{A} {np_s} {B}"), ("{A} {np_s} {B} {i}", "{A} {np_s} {B}")),
    "sn_NP/Z": (("{when} {A} {np_z} {B} {i}", "{A} {np_z} {B}"), ("{when} {A} {np_z} {B} {v} {C}", "{A} {np_z} {B}")),
    "sn_PP_on_subject": (("{A} {p} {B} {v} {C}", "{B} {v} {C}"), ("{A} {p} {B} {i}", "{B} {i}")),
    "sn_past_participle": (("{A} {np_z} in the {place} {i}", "{A} {np_z} in the {place}"),),
    "sn_relative_clause_on_subject": (("{A} that {w} {B} {v} {C}", "{B} {v} {C}"), ("{A} that {w} {B} {i}", "{B} {i}")),
    "ce_adverb": (("{sure} {S}", "{S}"),),
    "ce_after_since_clause": (("{since} {T} , {S}", "{S}"),),
    "ce_conjunction": (("{S} , and {T}", "{S}"), ("{T} , and {S}", "{S}")),
    "ce_embedded_under_since": (("{since} {S} , {T}", "{S}"),),
    "ce_embedded_under_verb": (("{A} {factive} that {S}", "{S}"),),
    "cn_adverb": (("{unsure} {S}", "{S}"),),
    "cn_after_if_clause": (("{if} {T} , {S}", "{S}"),),
    "cn_disjunction": (("{S} , or {T}", "{S}"), ("{T} , or {S}", "{S}")),
    "cn_embedded_under_if": (("{if} {S} , {T}", "{S}"),),
    "cn_embedded_under_verb": (("{A} {hearsay} that {S}", "{S}"),),
}

HEURISTIC = {subcase: heuristic for heuristic, subcases in SUBCASES.items() for subcase in subcases}
SORTS = (PEOPLE, tuple(f"{person}s" for person in PEOPLE), WORDS["v"], WORDS["i"], tuple(does for does, _ in DOINGS))
SORT = {word: sort for sort in SORTS for word in sort}  # the words that can replace a word
VERBS = frozenset(word for sort in SORTS[2:] for word in sort)
TEST_PART = 5  # every fifth premise, by its hash, belongs to the test split
REWORDED = 0.25  # of neutral and entailed hypotheses, exceptions aside, name a person of the premise "someone"
NLI_LABELS = FORMATS["mnli"].labels
RESTATED = 0.1  # of entailed pairs repeat the premise: otherwise a premise that short would never entail anything

Split = Literal["train", "test"]


@data.register("overlap_hans")
def overlap_hans(
    *,
    split: Split = "test",
    examples: Medium = 3000,
    seed: Seed = 0,
    heuristics: list[str] | None = None,
    subcases: list[str] | None = None,
) -> Examples:
    """Generated sentence pairs in the constructions of HANS, equally many of each subcase.

    No premise is in both splits.

    split: the premises are divided between the splits, four fifths to `train`.
    examples: how many pairs.
    seed: of the generator.
    heuristics: only pairs of these heuristics (lexical_overlap, subsequence, constituent); null: all.
    subcases: only pairs of these subcases, e.g. ln_passive; null: all.
    """
    chosen = choose_subcases(heuristics, subcases)
    names = FORMATS["hans"].labels

    def draw(random: Random, number: int) -> Example:
        subcase = chosen[number % len(chosen)]
        return Example(_draw_pair(random, subcase), names[subcase[1] == "n"], HEURISTIC[subcase], subcase)

    return Examples(
        lambda: _draw_unseen(draw, split, examples, seed), names, f"overlap_hans, {split}, seed {seed}", public=True
    )


@data.register("overlap_nli")
def overlap_nli(
    *,
    split: Split = "test",
    examples: Medium = 1000,
    seed: Seed = 0,
    exceptions: Share = 0.1,
    details: Share = 0.5,
    heuristics: list[str] | None = None,
) -> Examples:
    """Generated sentence pairs like those of MNLI, a third of each label, in which overlap mostly means entailment.

    Premises are of every subcase of HANS, whatever the label. Entailed pairs have a hypothesis that follows from the
    premise, contradicted pairs the negation of one. In neutral pairs the hypothesis adds something new, except for
    `exceptions`. No premise is in both splits.

    split: the premises are divided between the splits, four fifths to `train`.
    examples: how many pairs.
    seed: of the generator.
    exceptions: the share of neutral pairs whose hypothesis has only words of the premise and does not follow, as in
        HANS.
    details: of the other neutral pairs, the share whose hypothesis adds a detail; in the rest one word is replaced.
    heuristics: only premises of the subcases of these heuristics; null: all.
    """
    every = tuple(choose_subcases(heuristics, None))
    source = f"overlap_nli, {split}, seed {seed}, exceptions {exceptions:g}"
    return Examples(
        lambda: iter(_draw_nli_pairs(split, examples, seed, exceptions, details, every)),
        NLI_LABELS,
        source,
        public=True,
    )


@lru_cache(maxsize=4)  # models of a run, and the jobs of a sweep, are trained on the same pairs
def _draw_nli_pairs(
    split: Split, examples: int, seed: int, exceptions: float, details: float, every: tuple[str, ...]
) -> tuple[Example, ...]:
    """The pairs of `overlap_nli`, with premises of these subcases."""
    by_label = {letter: [subcase for subcase in every if subcase[1] == letter] for letter in "en"}

    def draw(random: Random, number: int) -> Example:
        label = NLI_LABELS[number % len(NLI_LABELS)]
        exception = label == "neutral" and random.random() < exceptions
        subcase = random.choice(by_label["n"] if exception else every if label == "neutral" else by_label["e"])
        premise, hypothesis = _draw_pair(random, subcase)
        if label == "entailment" and random.random() < RESTATED:
            premise = hypothesis
        if not exception:
            hypothesis = _write_sentence(_change_hypothesis(random, premise, hypothesis, label, details))
        return Example((premise, hypothesis), label, HEURISTIC[subcase], subcase)

    return tuple(_draw_unseen(draw, split, examples, seed))


def _draw_unseen(draw: Callable[[Random, int], Example], split: Split, examples: int, seed: int) -> Iterator[Example]:
    """Draws an example for every number by draw(random, number), repeated until the premise belongs to the split."""
    random = Random(seed)
    for number in range(examples):
        example = draw(random, number)
        while (zlib.crc32(example.texts[0].encode()) % TEST_PART == 0) != (split == "test"):
            example = draw(random, number)
        yield example


def _draw_pair(random: Random, subcase: str) -> tuple[str, str]:
    """A premise and a hypothesis, in the construction of the subcase."""
    slots = _draw_slot_words(random)
    premise, hypothesis = random.choice(PATTERNS[subcase])
    return _write_sentence(premise.format(**slots)), _write_sentence(hypothesis.format(**slots))


def _draw_slot_words(random: Random) -> dict[str, str]:
    """Words for every slot of the patterns."""
    slots = {name: random.choice(words) for name, words in WORDS.items()}
    slots["v"], slots["w"], u = random.sample(WORDS["v"], 3)
    slots["i"], j = random.sample(WORDS["i"], 2)
    slots["does"], slots["thing"] = random.choice(DOINGS)
    people = random.sample(PEOPLE, 7)
    for name, person in zip("ABCDEFG", people, strict=True):
        several = random.random() < 0.5
        slots[name] = f"the {person}{'s' * several}"
        slots[f"{name}_was"] = "were" if several else "was"
    slots["As"] = f"{people[0]}s"
    slots["S"] = random.choice(("{D} {v} {E}", "{D} {i}")).format(**slots)
    slots["T"] = random.choice(("{F} {v} {G}", "{F} {i}")).format(**{**slots, "v": u, "i": j})
    return slots


def _write_sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]} ."


def _change_hypothesis(random: Random, premise: str, hypothesis: str, label: str, details: float) -> str:
    """The hypothesis for this label: negated, with a word that the premise lacks, or unchanged. In some of the latter
    two, "someone" replaces a person of the premise."""
    words, known = _split_sentence(hypothesis), _split_sentence(premise)
    if label == "contradiction":
        words.insert(next(place for place, word in enumerate(words) if word in VERBS), "never")
    elif label == "neutral" and random.random() < details:
        words.append(random.choice(WORDS["detail"]))
    elif label == "neutral":
        place = random.choice([place for place, word in enumerate(words) if word in SORT])
        words[place] = random.choice([word for word in SORT[words[place]] if word not in known])
    people = [place for place, word in enumerate(words) if word in known and word in SORT and word not in VERBS]
    if label != "contradiction" and people and random.random() < REWORDED:
        place = random.choice(people)
        words[place - (words[place - 1] == "the") : place + 1] = ["someone"]
    return " ".join(words)


def _split_sentence(sentence: str) -> list[str]:
    return sentence.lower().split()[:-1]
