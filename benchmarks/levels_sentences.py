"""Promises of the sentences on two models: that unrelated ones are said to be so, and layers that are as alike to be as
alike, whichever error the measure has."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from levels import LEAST, Promise

import repsim_cli
from repsim_cli.findings.answering import LESS, MORE
from repsim_cli.findings.sentences import ACROSS, BLIND, MOST_ALIKE, NOTHING, say_how_alike
from repsim_cli.runs import reader

Rng = np.random.Generator

SENTENCE = "sentence of an answer: unrelated models have something in common"
DEPTH = "sentence of an answer: equally alike layers differ with depth"
TREND = "sentence of an answer: layers are more alike with depth"
NAMES = ("cka_unbiased", "mutual_knn")
# whose error is known from leaving out groups of documents
PLANTED = (
    "procrustes",
    "ridge",
    "linear_regression",
    "mean_cca",
    "gulp",
    "ensd",
    "relative_l2",
    "hard_correlation_match",
)
LEFT_OUT = (*PLANTED, "effective_rank_difference", "magnitude_difference", "cycle_knn")


SAID = [
    *((name, *shape) for name in NAMES for shape in ((4, 15, 20), (10, 40, 10))),
    *((name, 12, 200, 1) for name in ("cka_unbiased", "procrustes")),
    ("procrustes", 1, 200, 1),
    *((name, 8, 12, 25) for name in ("cka_unbiased", "mutual_knn", "rsa")),
    ("mutual_knn", 16, 500, 1),
]
LENGTHS = "whose norms are log-normal"
MOST = (150, *[6] * 11)  # rows of documents
UNEVEN = (40, 3, 80, 12, 7, 22, 15, 60, 5, 9, 33, 18)  # rows of documents


Model = dict[str, np.ndarray]


def say(models: tuple[Model, Model], documents: np.ndarray, names: Sequence[str], batch: int = 0) -> dict[str, str]:
    """Says what the answer says of two models by each measure alone. batch: rows of each batch; 0: one sample."""
    rows = {"extract.estimate": "per_batch", "extract.batch_rows": batch} if batch else {"extract.estimate": "full"}
    found = repsim_cli.compare(
        dict(zip("ab", models, strict=True)), documents=documents.tolist(), measures=[*names],
        settings={**rows, "cache": False},
    )  # fmt: skip
    whole, read = reader.read_results(found.folder), partial(reader.read_array, found.folder)
    alone = {measured.name: replace(whole, measures=[measured]) for measured in whole.measures}
    return {name: " ".join(say_how_alike(of, read, "a", "b")) for name, of in alone.items()}


def find_depth(layers: int, count: int, size: int, rng: Rng) -> dict[str, bool]:
    """Finds the measures by which the answer says of two models whose layers are all as alike that some are more so.
    What is a layer's own passes on from layer to layer."""
    documents = np.repeat(np.arange(count), size)
    stream = rng.normal(size=(count, 12))[documents] + rng.normal(size=(len(documents), 12))

    def model() -> Model:
        own = rng.normal(size=(layers, len(documents), 12))
        for i in range(1, layers):
            own[i] = 0.9 * own[i - 1] + 0.19**0.5 * own[i]
        return {f"layer {i}": stream + own[i] for i in range(layers)}

    return find_differences(say((model(), model()), documents, (*NAMES, *LEFT_OUT)))


def find_differences(said: dict[str, str]) -> dict[str, bool]:
    """Finds the measures by which some layers are said to be more alike than others."""
    words = MORE, LESS, MOST_ALIKE, ACROSS, "closer to another layer"
    return {name: any(word in of for word in words) for name, of in said.items()}


def find_depth_in_batches(layers: int, batches: int, rng: Rng) -> dict[str, bool]:
    """Finds the same of layers that share nothing but what all do, of few batches of 100 independent rows."""
    count = 100 * batches
    shared = rng.normal(size=(count, 12))

    def model() -> Model:
        return {f"layer {i}": shared + 1.2 * rng.normal(size=shared.shape) for i in range(layers)}

    return find_differences(say((model(), model()), np.arange(count), NAMES, batch=100))


def find_depth_of_odd(layers: int, sizes: Sequence[int], odd: str, rng: Rng) -> dict[str, bool]:
    """Finds the same of layers of documents of these sizes that share nothing but what all do, whose rows are odd."""
    documents = np.repeat(np.arange(len(sizes)), sizes)

    def draw() -> np.ndarray:
        of_documents = rng.normal(size=(len(sizes), 12))[documents] if len(sizes) < len(documents) else 0.0
        return of_documents + rng.normal(size=(len(documents), 12))

    shared, scales = draw(), np.exp(rng.normal(size=(len(documents), 1))) if odd == LENGTHS else 1.0

    def model() -> Model:
        return {f"layer {i}": scales * (shared + draw()) for i in range(layers)}

    return find_differences(say((model(), model()), documents, NAMES))


def find_trend(layers: int, count: int, size: int, rng: Rng) -> dict[str, bool]:
    """Finds the measures by which the answer says of two models that they are more alike with depth. Of each layer both
    share a signal, beside noise that falls."""
    documents = np.repeat(np.arange(count), size)
    shared = rng.normal(size=(layers, count, 12))[:, documents] + rng.normal(size=(layers, len(documents), 12))

    def model() -> Model:
        scales = np.linspace(2.0, 0.7, layers)
        return {f"layer {i}": shared[i] + scale * rng.normal(size=shared[i].shape) for i, scale in enumerate(scales)}

    said = say((model(), model()), documents, PLANTED)
    return {name: f"are {MORE}" in of for name, of in said.items()}


def stretch_one_direction(rows: np.ndarray, rng: Rng) -> np.ndarray:
    """Gives one direction 99 % of the variance."""
    first = rows[:, :1] * np.sqrt(99 * (rows.shape[1] - 1))
    return np.concatenate([first, rows[:, 1:]], 1)


def make_few_giant(rows: np.ndarray, rng: Rng) -> np.ndarray:
    """Makes 2 % of the rows a hundred times as long, of a layer as of no other."""
    scales = np.where(rng.permutation(len(rows)) < len(rows) / 50, 100.0, 1.0)
    return rows * scales[:, None]


def clear_most(rows: np.ndarray, rng: Rng) -> np.ndarray:
    """Makes four rows in five 0, others of each layer."""
    return rows * (rng.permutation(len(rows)) < len(rows) / 5)[:, None]


ODD: dict[str, Callable[[np.ndarray, Rng], np.ndarray]] = {
    "one direction has 99 % of the variance": stretch_one_direction,
    "2 % of the rows are giant": make_few_giant,
    "80 % of the rows are 0": clear_most,
}


def says_more(layers: int, count: int, size: int | tuple[int, ...], name: str, rng: Rng, odd: str = "") -> bool:
    """Says whether the answer says of two unrelated models that they are alike. size: of the documents, or of each.
    odd: what is odd about the rows."""
    documents = np.repeat(np.arange(count), size)

    def model() -> Model:
        stream = rng.normal(size=(count, 16))[documents] + rng.normal(size=(len(documents), 16))
        noise = rng.normal(size=(layers, len(documents), 24))
        made = [stream @ rng.normal(size=(16, 24)) + noise[i] for i in range(layers)]
        return {f"layer {i}": ODD[odd](rows, rng) if odd else rows for i, rows in enumerate(made)}

    said = say((model(), model()), documents, [name])[name]
    return NOTHING not in said and BLIND not in said


def of_depth(layers: int, count: int, size: int) -> list[Promise]:
    """The promises of two models whose layers are as alike, or more and more so."""
    setting, at = f"{layers} layers each, {count} documents of {size} rows", (layers, count, size)
    alike, planted = partial(find_depth, *at), partial(find_trend, *at)
    return [
        *(
            Promise(DEPTH, f"{setting}; {name}", "level", 0.05, 100, alike, counted=name)
            for name in (*NAMES, *LEFT_OUT)
        ),
        *(Promise(TREND, f"{setting}; {name}", "power", LEAST, 100, planted, counted=name) for name in PLANTED),
    ]


PROMISES: list[Promise] = [
    *(
        Promise(
            SENTENCE, f"unrelated models, {layers} layers each, {count} documents of {size} rows; {name}", "level",
            0.05, 100, partial(says_more, layers, count, size, name),
        )
        for name, layers, count, size in SAID
    ),
    *(
        Promise(
            SENTENCE, f"unrelated models, 4 layers each, 12 documents of 3 to 80 rows; {name}", "level", 0.05, 100,
            partial(says_more, 4, len(UNEVEN), UNEVEN, name),
        )
        for name in ("cka_unbiased", "mutual_knn", "rsa", "procrustes")
    ),
    *(
        Promise(
            SENTENCE, f"unrelated models, 4 layers each, 200 documents of 1 rows, {odd}; {name}", "level", 0.05, 100,
            partial(says_more, 4, 200, 1, name, odd=odd),
        )
        for odd in ODD
        for name in ("cka_unbiased", "mutual_knn", "rsa", "procrustes")
        if odd != "80 % of the rows are 0" or name in ("cka_unbiased", "mutual_knn")  # RSA has no value of such rows
    ),
    *(
        Promise(DEPTH, f"{layers} layers each, {batches} batches of 100 rows; {name}", "level", 0.05, 100, draw, name)
        for layers, batches in ((4, 2), (8, 2), (8, 3), (8, 4))
        for draw in [partial(find_depth_in_batches, layers, batches)]
        for name in NAMES
    ),
    *(
        Promise(DEPTH, f"{layers} layers each, {rows}; {name}", "level", 0.05, 100, draw, name)
        for layers, rows, sizes, odd in (
            (4, "4 documents of 50 rows", (50,) * 4, ""),
            (12, "4 documents of 50 rows", (50,) * 4, ""),
            (4, "12 documents of 3 to 80 rows", UNEVEN, ""),
            (12, "12 documents of 3 to 80 rows", UNEVEN, ""),
            (4, "one document of 150 rows and 11 of 6", MOST, ""),
            (12, "one document of 150 rows and 11 of 6", MOST, ""),
            (12, f"200 documents of 1 rows, {LENGTHS}", (1,) * 200, LENGTHS),
        )
        for draw in [partial(find_depth_of_odd, layers, sizes, odd)]
        for name in NAMES
    ),
    *(promise for shape in ((4, 200, 1), (12, 20, 10)) for promise in of_depth(*shape)),
]  # fmt: skip
