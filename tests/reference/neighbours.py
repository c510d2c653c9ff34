"""Slow, obvious versions of the neighbourhood measures, from the papers, in numpy float64."""

import numpy as np

CONVENTIONS = {"mutual_knn": lambda entry: {"k": entry["k"]}}


def mutual_knn(x, y, k=10):
    def neighbours(z):
        z = z - z.mean(0)
        sets = []
        for i in range(len(z)):
            cosines = [
                (-(z[i] @ z[j]) / (np.linalg.norm(z[i]) * np.linalg.norm(z[j])), j) for j in range(len(z)) if j != i
            ]
            sets.append({j for _, j in sorted(cosines)[:k]})
        return sets

    pairs = zip(neighbours(x), neighbours(y), strict=True)
    return sum(len(a & b) for a, b in pairs) / (k * len(x))
