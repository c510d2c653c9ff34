"""Slow, obvious versions of the neighbourhood measures, from the papers, in numpy float64."""

import numpy as np
from scipy.stats import rankdata

from reference.hsic import hsic1


def of_k(entry):
    return {"k": entry["k"]}


CONVENTIONS = {
    "mutual_knn": of_k,
    "jaccard_knn": of_k,
    "second_order_cosine": lambda entry: of_k(entry) if entry["vectors"] == "cosine similarities" else None,
    "rank_similarity": of_k,
    "rank_jaccard": of_k,
    "cycle_knn": of_k,
    "lcs_knn": of_k,
    "edit_distance_knn": of_k,
    "cknna": of_k,
}


def cosines(z):
    """Each distinct row once, so that equal rows tie exactly."""
    rows, which = np.unique(z - z.mean(0), axis=0, return_inverse=True)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ rows.T)[np.ix_(which, which)]


def lists(z, k):
    similarity = cosines(z)
    return [[j for _, j in sorted((-similarity[i, j], j) for j in range(len(z)) if j != i)[:k]] for i in range(len(z))]


def over_rows(score, x, y, k):
    return np.mean([score(a, b) for a, b in zip(lists(x, k), lists(y, k), strict=True)])


def jaccard(a, b):
    return len(set(a) & set(b)) / len(set(a) | set(b))


def ranks(a, b):
    common = set(a) & set(b)
    terms = []
    for j in common:
        p, q = a.index(j) + 1, b.index(j) + 1
        terms.append(2 / ((1 + abs(p - q)) * (p + q)))
    return sum(terms) / sum(1 / m for m in range(1, len(common) + 1)) if common else 0.0


def longest(a, b):
    if not a or not b:
        return 0
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i in range(len(a)):
        for j in range(len(b)):
            table[i + 1, j + 1] = table[i, j] + 1 if a[i] == b[j] else max(table[i, j + 1], table[i + 1, j])
    return table[-1, -1]


def edits(a, b):
    """Wagner and Fischer 1974."""
    table = np.add.outer(np.arange(len(a) + 1), np.arange(len(b) + 1))
    for i in range(len(a)):
        for j in range(len(b)):
            table[i + 1, j + 1] = min(table[i, j + 1] + 1, table[i + 1, j] + 1, table[i, j] + (a[i] != b[j]))
    return table[-1, -1]


def mutual_knn(x, y, k=10):
    return over_rows(lambda a, b: len(set(a) & set(b)) / k, x, y, k)


def jaccard_knn(x, y, k=10):
    return over_rows(jaccard, x, y, k)


def rank_similarity(x, y, k=10):
    return over_rows(ranks, x, y, k)


def rank_jaccard(x, y, k=10):
    return over_rows(lambda a, b: jaccard(a, b) * ranks(a, b), x, y, k)


def lcs_knn(x, y, k=10):
    return over_rows(longest, x, y, k)


def edit_distance_knn(x, y, k=10):
    return 1 - over_rows(edits, x, y, k) / k


def second_order_cosine(x, y, k=10):
    a, b, of_x, of_y = lists(x, k), lists(y, k), cosines(x), cosines(y)
    values = []
    for i in range(len(x)):
        union = sorted(set(a[i]) | set(b[i]))
        u, v = of_x[i, union], of_y[i, union]
        values.append(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))
    return np.mean(values)


def cycle_knn(x, y, k=10):
    a, b = lists(x, k), lists(y, k)
    return np.mean([any(i in a[j] for j in b[i]) for i in range(len(x))])


def cknna(x, y, k=10):
    def mask(z):
        matrix = np.zeros((len(z), len(z)))
        for i, near in enumerate(lists(z, k)):
            matrix[i, near] = 1
        return matrix

    a, b = mask(x), mask(y)
    of_x, of_y = cosines(x), cosines(y)
    own = hsic1(of_x * a, of_x * a) * hsic1(of_y * b, of_y * b)
    return hsic1(of_x * a * b, of_y * a * b) / np.sqrt(own)


def information_imbalance(x, y):
    """Places among all other rows, and of equally near ones the mean place."""
    n, places = len(x), []
    for i in range(n):
        of_x, of_y = ([np.inf if j == i else np.linalg.norm(z[i] - z[j]) for j in range(n)] for z in (x, y))
        places.append(rankdata(np.round(of_x, 10))[int(np.argmin(np.round(of_y, 10)))])
    return 2 * np.mean(places) / n
