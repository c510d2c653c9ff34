"""Labelled text or images altered on purpose: random labels, a shortcut to the label, noise in words or pixels.

Groups of classifiers that are trained on data altered to different degrees are known to differ, so that they test
measures of similarity (ReSi, Klabunde et al. 2024).
"""

import colorsys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import data
from repsim_cli.base.settings import Medium, Seed, Share
from repsim_cli.data.base import Data
from repsim_cli.data.images import Images, Pixels
from repsim_cli.data.labelled import Example, Examples

Words = list[str]
DOT = slice(1, 4)  # rows and columns of pixels: one from the edge, so that a shift by one leaves it whole


@dataclass(frozen=True)
class Alteration:
    """As of `altered`; labels: how many the data has."""

    labels: int
    random_labels: float
    new_labels: int
    shortcut: float | None
    noise: float
    seed: int


@data.register("altered")
def altered(
    *,
    data: Data,
    random_labels: Share = 0.0,
    new_labels: Medium = 5,
    shortcut: Share | None = None,
    noise: Share = 0.0,
    seed: Seed = 0,
) -> Data:
    """Labelled text or images with random labels, a shortcut or noise, as in the tests of ReSi (Klabunde et al. 2024).

    data: the labelled examples, or the images.
    random_labels: the share of examples whose label is replaced by a new one, drawn at random (`random_0`, ...).
    new_labels: how many new labels there are, where random_labels is above 0.
    shortcut: a mark that names a label, the example's own in this share of the examples, else another one, drawn at
        random. The first text begins with the word [CLASS0] or another; in an image a dot of 3 x 3 pixels in the upper
        left corner has the colour of the label (the hues are equally far apart); null: no mark.
    noise: of text, the share of the words of the first text that are deleted, changed for their neighbour, replaced by
        another word of the text or preceded by one, each as often (Wei and Zou 2019, without synonyms); of images, the
        standard deviation of the Gaussian noise of every pixel, as a share of white (ReSi: 0.12 to 0.25).
    seed: of all draws.
    Example: repsim run data=altered data.noise=0.3 data.shortcut=null extract=pooled
    """
    if not isinstance(data, Examples | Images):
        raise BadInput(f"data: labelled examples or images are needed, got {data.source}; e.g. {{kind: sst2, ...}}")
    if shortcut is not None and len(data.names) < 2:
        raise BadInput(f"shortcut: it needs two labels, got {', '.join(data.names)}; give other data, or null")
    names = data.names + tuple(f"random_{k}" for k in range(new_labels if random_labels else 0))
    settings = {"random labels": random_labels, "shortcut": shortcut, "noise": noise}
    said = ", ".join(f"{name} {value:g}" for name, value in settings.items() if value)
    source = f"{data.source}, altered ({said or 'nothing'}), seed {seed}"
    how = Alteration(len(data.names), random_labels, new_labels, shortcut, noise, seed)
    if isinstance(data, Images):
        return Images(lambda: alter_images(data.read(), how, data.source), names, source)
    return Examples(lambda: alter_examples(data, names, how), names, source, public=data.public)


def alter_examples(data: Examples, names: tuple[str, ...], how: Alteration) -> Iterator[Example | str]:
    """Gives every example of labelled data altered, each by random numbers of its own; a line that says why one is left
    out stays as it is.

    data: the examples.
    names: of all labels, the new ones behind those of the data.
    how: what is altered.
    """

    def alter_example(example: Example, random: Random) -> Example:
        if example.label is None:
            raise BadInput(f"{data.source}: an example has no label; add them")
        first, *others = example.texts
        if how.noise:
            first = " ".join(add_word_noise(first.split(), how.noise, random))
        if how.shortcut is not None:
            right = names.index(example.label)
            wrong = [k for k in range(how.labels) if k != right]
            first = f"[CLASS{right if random.random() < how.shortcut else random.choice(wrong)}] {first}"
        label = random.choice(names[how.labels :]) if random.random() < how.random_labels else example.label
        return replace(example, texts=(first, *others), label=label)

    for number, example in enumerate(data.read()):
        yield example if isinstance(example, str) else alter_example(example, Random(f"{how.seed} {number}"))


def alter_images(pixels: Pixels, how: Alteration, source: str) -> Pixels:
    """Alters images: noise, a coloured dot as a shortcut, random labels. Each alteration draws from a generator of its
    own, so that none changes what another draws."""
    values, codes = pixels.values.astype(np.float64), pixels.codes
    for_noise, for_dots, for_labels = np.random.default_rng(how.seed).spawn(3)
    count, channels = values.shape[0], values.shape[3]
    if how.noise:
        values = (values + for_noise.normal(0, how.noise * pixels.white, values.shape)).clip(0, pixels.white)
    if how.shortcut is not None:
        if channels != 3:
            raise BadInput(f"shortcut: a dot needs colours, got images of {channels} channel ({source}); give 3")
        named = draw_marks(codes, how.labels, how.shortcut, for_dots)
        values[:, DOT, DOT] = pixels.white * make_label_colours(how.labels)[named][:, None, None]
    drawn = how.labels + for_labels.integers(how.new_labels, size=count)
    return Pixels(values, np.where(for_labels.random(count) < how.random_labels, drawn, codes), pixels.white)


def draw_marks(
    codes: Int[np.ndarray, " n"], labels: int, right: float, random: np.random.Generator
) -> Int[np.ndarray, " n"]:
    """The labels that marks name: the own one in the share `right`, else each of the others as often."""
    others = (codes + random.integers(1, labels, len(codes))) % labels
    return np.where(random.random(len(codes)) < right, codes, others)


def make_label_colours(labels: int) -> Float[np.ndarray, "labels 3"]:
    """Hues at equal distances, from 0 to 1.

    >>> make_label_colours(3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return np.array([colorsys.hsv_to_rgb(label / labels, 1.0, 1.0) for label in range(labels)])


def add_word_noise(words: Words, share: float, random: Random) -> Words:
    """Alters each word with the probability `share`: drops it, swaps it with the one before, or puts a random word of
    the text in its place or before it. At least one word is left.

    >>> add_word_noise("a film that never bores".split(), 0.0, Random(0))
    ['a', 'film', 'that', 'never', 'bores']
    """
    changes: list[Callable[[Words, int], None]] = [
        lambda made, word: None,
        lambda made, word: made.insert(max(0, len(made) - 1), words[word]),
        lambda made, word: made.append(random.choice(words)),
        lambda made, word: made.extend((random.choice(words), words[word])),
    ]
    made: Words = []
    for word in range(len(words)):
        if random.random() < share:
            random.choice(changes)(made, word)
        else:
            made.append(words[word])
    return made or words[:1]
