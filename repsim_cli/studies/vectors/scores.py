"""What a map keeps, on rows that it was not fitted on: each score with an interval over documents."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

from repsim_cli.engine.exchanges import draw_document_orders
from repsim_cli.engine.proportions import compute_wilson_interval, count_like
from repsim_cli.studies.vectors.fits import From, Rows, To

AT = (1, 10)  # neighbours
# in place of a kind of map
AS_THEY_ARE, RENEWED, BY_CHANCE = "as they are", "all rows made anew", "chance"
BEFORE = "old rows on old rows"  # of a probe, before anything is mapped
MAIN = f"recall@{max(AT)} of new neighbours"  # what the best map is chosen by
PROBE, DIRECTION = "probe: right of held-out rows", "direction: right of held-out rows"
VECTOR_MAPS = "vector maps"  # the table of all scores
DEPENDENT = "rows that follow each other are alike"  # the pairs of layers in which they are, of rows without documents
MAPS_COLUMNS = [
    "from", "from layer", "to", "to layer", "map", "rows", "documents", "rows held out", "documents held out", "score",
    "value", "low", "high",
]  # fmt: skip
BLOCK = 1024  # queries whose similarities with the store are held at a time
LEVEL = 0.95
PAIRINGS = 100  # random ones, for the reach of chance


def name_pair(old: str, old_layer: str, new: str, new_layer: str) -> str:
    return f"{old} {old_layer} to {new} {new_layer}"


class MapScore(NamedTuple):
    """low, high: of the 95 % interval over held-out documents, for this one fit and these other documents."""

    value: float
    low: float
    high: float


def divide_over_documents(
    part: np.ndarray, whole: np.ndarray, documents: Int[np.ndarray, " n"], most: float = 1.0
) -> MapScore:
    """Divides the sum of `part` by that of `whole`, each a number per row, with a t interval over documents
    (linearised).

    >>> divide_over_documents(np.array([1.0, 0.0, 1.0, 0.0]), np.ones(4), np.arange(4)).value
    0.5
    """
    of = np.unique(documents, return_inverse=True)[1]
    count = int(of.max()) + 1
    parts, wholes = (np.bincount(of, weights=each, minlength=count) for each in (part, whole))
    value = float(parts.sum() / wholes.sum())
    left = (parts - value * wholes) / wholes.mean()
    freedom = max(count_like(np.bincount(of)) - 1, 1)
    half = float(stdtrit(freedom, (1 + LEVEL) / 2) * left.std(ddof=1) / np.sqrt(count))
    return MapScore(value, value - half, min(value + half, most))


def share_over_documents(hits: Float[np.ndarray, " n"], documents: Int[np.ndarray, " n"], tries: int = 1) -> MapScore:
    """Takes the share of hits among the tries of every row, with Wilson's interval over documents."""
    return MapScore(float(hits.mean()), *compute_wilson_interval(hits, documents, tries))


def scale_to_unit_length(x: Rows) -> Rows:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1.0)


def retrieve_nearest(queries: Rows, store: Rows, documents: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n k"]:
    """Finds the max(AT) rows of the store that are nearest to each query by cosine, nearest first, of other
    documents."""
    queries, store, found = scale_to_unit_length(queries), scale_to_unit_length(store), []
    for start in range(0, len(queries), BLOCK):
        rows = slice(start, start + BLOCK)
        alike = queries[rows] @ store.T
        alike[documents[rows, None] == documents] = -np.inf
        found.append(find_largest(alike, max(AT)))
    return np.concatenate(found)


def find_largest(values: Float[np.ndarray, "n m"], count: int) -> Int[np.ndarray, "n k"]:
    """Finds the places of the `count` largest values of each row, the largest first, of equal ones the first.

    >>> find_largest(np.array([[1.0, 3.0, 2.0, 3.0, 2.0]]), 3).tolist()
    [[1, 3, 2]]
    """
    if count >= values.shape[1]:
        return np.argsort(-values, axis=1, kind="stable")
    least = -np.partition(-values, count - 1, axis=1)[:, count - 1, None]
    chosen = values >= least
    for row in np.flatnonzero(chosen.sum(1) > count):  # several are as large as the last
        chosen[row] = False
        chosen[row, np.argsort(-values[row], kind="stable")[:count]] = True
    found = np.nonzero(chosen)[1].reshape(-1, count)
    order = np.argsort(-np.take_along_axis(values, found, 1), axis=1, kind="stable")
    return np.take_along_axis(found, order, 1)


def count_shared(a: Int[np.ndarray, "n k"], b: Int[np.ndarray, "n k"], at: int) -> Float[np.ndarray, " n"]:
    """Counts the share of the first `at` neighbours that both have.

    >>> count_shared(np.array([[3, 1, 2]]), np.array([[3, 2, 9]]), 3).round(6).tolist()
    [0.666667]
    """
    same: Bool[np.ndarray, "n k k"] = a[:, :at, None] == b[:, None, :at]
    return same.any(2).mean(1)


class HeldOut(NamedTuple):
    """Rows of both models that no map was fitted on. old, new: the neighbours of each row among those of its model."""

    x: From
    y: To
    documents: Int[np.ndarray, " n"]
    old: Int[np.ndarray, "n k"]
    new: Int[np.ndarray, "n k"]


def hold_out(x: From, y: To, documents: Int[np.ndarray, " n"]) -> HeldOut:
    return HeldOut(x, y, documents, retrieve_nearest(x, x, documents), retrieve_nearest(y, y, documents))


def score_retrieved_neighbours(given: HeldOut, store: Rows) -> dict[str, MapScore]:
    """Scores what queries of the new model find in a store, by name: of the neighbours that the old vectors had, and
    of those that new vectors would have."""
    found = retrieve_nearest(given.y, store, given.documents)
    return {
        f"recall@{at} of {name} neighbours": share_over_documents(count_shared(found, truth, at), given.documents, at)
        for name, truth in (("old", given.old), ("new", given.new))
        for at in AT
    }


def compute_chance_recall(given: HeldOut, stores: Sequence[Rows]) -> dict[str, MapScore]:
    """Computes the recall of rows of other documents that are drawn at random, and what LEVEL of random pairings of
    documents lie between, of the best and the worst of the stores: where few rows are near to many, their recall
    differs from pairing to pairing by far more than that of rows that are independent."""
    of = np.unique(given.documents, return_inverse=True)[1]
    others = len(of) - np.bincount(of)[of]
    found = [retrieve_nearest(given.y, store, given.documents) for store in stores]
    pairings = [*draw_document_orders(of, PAIRINGS, 0)]
    made = {}
    for name, truth in (("old", given.old), ("new", given.new)):
        for at in AT:
            value = float(np.minimum(at / others, 1.0).mean())
            drawn = np.array([[count_shared(to[each], truth, at).mean() for each in found] for to in pairings])
            low, high = np.quantile(drawn.min(1), (1 - LEVEL) / 2), np.quantile(drawn.max(1), (1 + LEVEL) / 2)
            middle = float(drawn.mean()) - value  # a random row may be of the same document, which truth leaves out
            made[f"recall@{at} of {name} neighbours"] = MapScore(value, max(low - middle, 0.0), min(high - middle, 1.0))
    return made


def score_mapped_rows(given: HeldOut, mapped: Rows, mean: Float[np.ndarray, " d"]) -> dict[str, MapScore]:
    """Scores mapped old rows, by name: R^2 against the mean of the fitted rows, the cosine of each with its new row,
    and the neighbours that they keep."""
    error, total = (np.square(given.y - other).sum(1) for other in (mapped, mean))
    left = divide_over_documents(error, total, given.documents, np.inf)
    cosines = (scale_to_unit_length(mapped) * scale_to_unit_length(given.y)).sum(1)
    cosine = divide_over_documents(cosines, np.ones(len(cosines)), given.documents)
    return {
        "R^2": MapScore(1 - left.value, 1 - left.high, min(1 - left.low, 1.0)),
        "cosine": MapScore(cosine.value, max(cosine.low, -1.0), cosine.high),
        **score_retrieved_neighbours(given, mapped),
    }
