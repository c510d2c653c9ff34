"""What a map keeps, on rows that it was not fitted on: each score with an interval over documents."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

from repsim_cli.studies.vectors.fits import From, Rows, To

AT = (1, 10)  # neighbours
# in place of a kind of map
AS_THEY_ARE, RENEWED, BY_CHANCE = "as they are", "all rows made anew", "chance"
BEFORE = "old rows on old rows"  # of a probe, before anything is mapped
MAIN = f"recall@{max(AT)} of new neighbours"  # what the best map is chosen by
PROBE, DIRECTION = "probe: right of held-out rows", "direction: right of held-out rows"
VECTOR_MAPS = "vector maps"  # the table of all scores
MAPS_COLUMNS = [
    "from", "from layer", "to", "to layer", "map", "rows", "documents", "rows held out", "documents held out", "score",
    "value", "low", "high",
]  # fmt: skip
BLOCK = 1024  # queries whose similarities with the store are held at a time
LEVEL = 0.95


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
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * left.std(ddof=1) / np.sqrt(count))
    return MapScore(value, value - half, min(value + half, most))


def units(x: Rows) -> Rows:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1.0)


def retrieve_nearest(queries: Rows, store: Rows, documents: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n k"]:
    """Finds the max(AT) rows of the store that are nearest to each query by cosine, nearest first, of other
    documents."""
    queries, store, found = units(queries), units(store), []
    for start in range(0, len(queries), BLOCK):
        rows = slice(start, start + BLOCK)
        alike = queries[rows] @ store.T
        alike[documents[rows, None] == documents] = -np.inf
        found.append(np.argsort(-alike, axis=1, kind="stable")[:, : max(AT)])
    return np.concatenate(found)


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
    found, ones = retrieve_nearest(given.y, store, given.documents), np.ones(len(store))
    return {
        f"recall@{at} of {name} neighbours": divide_over_documents(
            count_shared(found, truth, at), ones, given.documents
        )
        for name, truth in (("old", given.old), ("new", given.new))
        for at in AT
    }


def compute_chance_recall(given: HeldOut) -> dict[str, MapScore]:
    """Computes the recall of rows of other documents that are drawn at random."""
    of = np.unique(given.documents, return_inverse=True)[1]
    others = len(of) - np.bincount(of)[of]
    values = {at: float(np.minimum(at / others, 1.0).mean()) for at in AT}
    return {f"recall@{at} of {name} neighbours": MapScore(*[values[at]] * 3) for name in ("old", "new") for at in AT}


def score_mapped_rows(given: HeldOut, mapped: Rows, mean: Float[np.ndarray, " d"]) -> dict[str, MapScore]:
    """Scores mapped old rows, by name: R^2 against the mean of the fitted rows, the cosine of each with its new row,
    and the neighbours that they keep."""
    error, total = (np.square(given.y - other).sum(1) for other in (mapped, mean))
    left = divide_over_documents(error, total, given.documents, np.inf)
    cosines = (units(mapped) * units(given.y)).sum(1)
    return {
        "R^2": MapScore(1 - left.value, 1 - left.high, min(1 - left.low, 1.0)),
        "cosine": divide_over_documents(cosines, np.ones(len(cosines)), given.documents),
        **score_retrieved_neighbours(given, mapped),
    }
