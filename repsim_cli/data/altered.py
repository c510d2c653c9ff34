"""Labelled text altered on purpose: random labels, a shortcut to the label, noise in the words.

Groups of classifiers that are trained on data altered to different degrees are known to differ, so that they test
measures of similarity (ReSi, Klabunde et al. 2024).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from repsim_cli.data.base import Data
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.errors import BadInput
from repsim_cli.registry import data
from repsim_cli.settings import Medium, Seed, Share

Words = list[str]


@data.register("altered")
def altered(
    *,
    data: Data,
    random_labels: Share = 0.0,
    new_labels: Medium = 5,
    shortcut: Share | None = None,
    noise: Share = 0.0,
    seed: Seed = 0,
) -> Examples:
    """Labelled text with random labels, a shortcut or noise, as in the tests of ReSi (Klabunde et al. 2024).

    data: the labelled examples.
    random_labels: the share of examples whose label is replaced by a new one, drawn at random (`random_0`, ...).
    new_labels: how many new labels there are, where random_labels is above 0.
    shortcut: begins the first text with a word that names a label, [CLASS0] or another: the example's own in this share
        of the examples, else that of another label; null: no such word.
    noise: the share of the words of the first text that are deleted, changed for their neighbour, replaced by another
        word of the text or preceded by one, each as often (Wei and Zou 2019, without synonyms).
    seed: of all draws.
    Example: repsim run data=altered data.noise=0.3 data.shortcut=null extract=pooled
    """
    if not isinstance(data, Examples):
        raise BadInput(f"data: labelled examples are needed, got {data.source}; e.g. {{kind: sst2, ...}}")
    names = data.names + tuple(f"random_{k}" for k in range(new_labels if random_labels else 0))
    if shortcut is not None and len(data.names) < 2:
        raise BadInput(f"shortcut: it needs two labels, got {', '.join(data.names)}; give other data, or null")

    def read() -> Iterator[Example | str]:
        for number, example in enumerate(data.read()):
            yield example if isinstance(example, str) else of_example(example, Random(f"{seed} {number}"))

    def of_example(example: Example, random: Random) -> Example:
        if example.label is None:
            raise BadInput(f"{data.source}: labels are missing, got none for an example; add them")
        first, *others = example.texts
        if noise:
            first = " ".join(noisy(first.split(), noise, random))
        if shortcut is not None:
            right = data.names.index(example.label)
            wrong = [k for k in range(len(data.names)) if k != right]
            first = f"[CLASS{right if random.random() < shortcut else random.choice(wrong)}] {first}"
        label = random.choice(names[len(data.names) :]) if random.random() < random_labels else example.label
        return replace(example, texts=(first, *others), label=label)

    settings = {"random labels": random_labels, "shortcut": shortcut, "noise": noise}
    said = ", ".join(f"{name} {value:g}" for name, value in settings.items() if value)
    return Examples(read, names, f"{data.source}, altered ({said or 'nothing'}), seed {seed}")


def noisy(words: Words, share: float, random: Random) -> Words:
    """Every word is altered in this share of the cases; at least one word is left.

    >>> noisy("a film that never bores".split(), 0.0, Random(0))
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
