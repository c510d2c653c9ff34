"""Altered data: how many examples are altered, in what way, and what stays."""

from collections import Counter
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.data.altered import add_word_noise, make_label_colours
from repsim_cli.data.images import Images, Pixels
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.labels import match_labels

COUNT = 2000
LABELS = ("negative", "neutral", "positive")


def plain(label=lambda i: LABELS[i % 3]):
    return Examples(
        lambda: (Example((f"word{i} of the text", "and its pair"), label(i)) for i in range(COUNT)), LABELS, "made up"
    )


def altered(**settings):
    return registry.data.get("altered").function(data=plain(), **settings)


def read(data):
    return data.examples()[0]


def near(count, expected):
    """Whether a share is within four standard errors of a binomial."""
    share = expected / COUNT
    return abs(count - expected) <= 4 * np.sqrt(COUNT * share * (1 - share))


def test_nothing_altered_is_the_same():
    assert read(altered()) == read(plain())
    assert altered().names == LABELS
    assert altered().source == "made up, altered (nothing), seed 0"


def test_random_labels_are_new_and_equally_often():
    data = altered(random_labels=0.5, new_labels=4)
    assert data.names == (*LABELS, "random_0", "random_1", "random_2", "random_3")
    pairs = list(zip(read(data), read(plain()), strict=True))
    counts = Counter(one.label for one, _ in pairs if one.label.startswith("random"))
    assert near(sum(counts.values()), COUNT / 2)
    assert all(near(counts[f"random_{k}"], COUNT / 8) for k in range(4))
    assert all(one.texts == other.texts for one, other in pairs)
    assert all(one.label == other.label for one, other in pairs if not one.label.startswith("random"))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_shortcut_is_right_in_its_share_and_else_names_another_label(share):
    told = Counter()
    for one, other in zip(read(altered(shortcut=share)), read(plain()), strict=True):
        word, rest = one.texts[0].split(" ", 1)
        assert (rest, one.texts[1], one.label) == (*other.texts, other.label)
        told[(int(word[6]) - LABELS.index(one.label)) % 3] += 1
    assert near(told[0], share * COUNT)
    assert near(told[1], (1 - share) * COUNT / 2)
    assert near(told[2], (1 - share) * COUNT / 2)


def test_noise_alters_its_share_of_the_words_of_the_first_text():
    words = [f"w{i}" for i in range(4000)]
    made = add_word_noise(words, 0.2, Random(0))
    kept = len(set(made))
    # a quarter of the altered words is deleted, a quarter replaced, by a word that is there already
    assert abs(kept - 4000 * (1 - 0.2 / 2)) < 4 * np.sqrt(4000 * 0.1 * 0.9)
    assert abs(len(made) - 4000) < 4 * np.sqrt(4000 * 0.1)
    swapped = sum(int(a[1:]) == int(b[1:]) + 1 for a, b in pairwise(made))
    assert 120 < swapped < 240  # a quarter, where the word before is still there
    assert add_word_noise(["alone"], 1.0, Random(2)) != []
    assert add_word_noise(words, 0.0, Random(0)) == words
    for one, other in zip(read(altered(noise=0.5)), read(plain()), strict=True):
        assert one.texts[1] == other.texts[1]
        assert set(one.texts[0].split()) <= set(other.texts[0].split())


def test_the_same_seed_gives_the_same_and_another_seed_other_examples():
    settings = {"random_labels": 0.5, "shortcut": 0.5, "noise": 0.3}
    assert read(altered(**settings)) == read(altered(**settings))
    assert read(altered(**settings)) != read(altered(**settings, seed=1))


def test_a_model_may_know_more_labels_than_the_data_has():
    names = altered(random_labels=1.0).names
    scored = match_labels(names, LABELS[::-1], "model.m")
    assert scored.correct(np.array([0, 1, 2, 5]), np.array([2, 1, 0, 0])).tolist() == [True, True, True, False]
    with pytest.raises(BadInput, match="its labels are not those of the data"):
        match_labels(LABELS, names, "model.m")


def test_what_cannot_be_altered():
    with pytest.raises(BadInput, match="data: labelled examples or images are needed, got"):
        registry.data.get("altered").function(data=registry.data.get("embedded_text").function())
    bare = registry.data.get("altered").function(data=plain(lambda i: None), shortcut=0.5)
    with pytest.raises(BadInput, match="made up: an example has no label; add them"):
        read(bare)
    alone = Examples(lambda: iter(()), ("only",), "made up")
    with pytest.raises(BadInput, match="shortcut: it needs two labels, got only; give other data, or null"):
        registry.data.get("altered").function(data=alone, shortcut=0.5)


def images(count=COUNT, channels=3, labels=4):
    values = np.full((count, 8, 8, channels), 64, np.uint8)
    return Images(lambda: Pixels(values, np.arange(count) % labels), tuple("abcd")[:labels], "made up")


def pixels(data=None, **settings):
    return registry.data.get("altered").function(data=data or images(), **settings).read()


def test_images_that_are_not_altered_are_the_same():
    made, before = pixels(), images().read()
    assert (made.values == before.values).all()
    assert (made.codes == before.codes).all()
    assert made.white == before.white == 255


def test_random_labels_of_images_are_new_and_equally_often():
    data = registry.data.get("altered").function(data=images(), random_labels=0.5, new_labels=4)
    assert data.names == (*"abcd", "random_0", "random_1", "random_2", "random_3")
    made, before = data.read().codes, images().read().codes
    assert near((made >= 4).sum(), COUNT / 2)
    assert all(near((made == 4 + k).sum(), COUNT / 8) for k in range(4))
    assert (made[made < 4] == before[made < 4]).all()


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_dot_has_the_colour_of_the_label_in_its_share(share):
    """One square of 3 x 3 pixels in one colour; the rest of the image is as it was."""
    made = pixels(shortcut=share)
    marked = (made.values != 64).any(-1)
    place = np.zeros((8, 8), bool)
    place[1:4, 1:4] = True
    assert (marked == place).all()
    colour = np.array([image[dot] for image, dot in zip(made.values, marked, strict=True)])
    assert (colour == colour[:, :1]).all()
    own = (colour[:, 0, None] == 255 * make_label_colours(4)).all(-1)
    assert (own.sum(1) == 1).all()
    off = (own.argmax(1) - made.codes) % 4
    assert near((off == 0).sum(), share * COUNT)
    assert all(near((off == k).sum(), (1 - share) * COUNT / 3) for k in (1, 2, 3))


def test_noise_has_its_deviation_and_stays_within_black_and_white():
    values = pixels(noise=0.1).values
    assert values.std() == pytest.approx(25.5, rel=0.02)
    assert values.mean() == pytest.approx(64, abs=0.3)
    assert values.min() >= 0
    assert pixels(noise=1.0).values.max() == 255


def test_alterations_of_images_do_not_change_each_other():
    everything = {"random_labels": 0.5, "shortcut": 0.5, "noise": 0.2}
    for _ in range(2):
        both, dots = pixels(**everything), pixels(shortcut=0.5)
        at = (dots.values != 64).any(-1)
        assert (both.values[at] == dots.values[at]).all()
        assert (both.codes == pixels(random_labels=0.5).codes).all()
    assert not np.array_equal(both.values, pixels(**everything, seed=1).values)
    assert not np.array_equal(both.codes, pixels(**everything, seed=1).codes)


def test_a_dot_needs_colours():
    with pytest.raises(BadInput, match=r"shortcut: a dot needs colours, got images of 1 channel \(made up\); give 3"):
        pixels(images(channels=1), shortcut=0.5)


def test_a_run_on_altered_data(repsim):
    code, _, err = repsim(
        "run", "data=altered", "model=[tiny_a]", "extract=pooled", "extract.sequences=20", "extract.rows=20",
        "data.noise=0.3", "measure=[cka]",
    )  # fmt: skip
    assert code == 0, err
