"""Slow, obvious version of the multi-scale intrinsic distance: all eigenvalues of a dense Laplacian."""

import numpy as np

CONVENTIONS = {"msid": lambda entry: {"k": entry["k"]}}


def heat_trace(z, times, k):
    n = len(z)
    links = np.zeros((n, n))
    for i in range(n):
        near = sorted((np.linalg.norm(z[i] - z[j]), j) for j in range(n) if j != i)[:k]
        for _, j in near:
            links[i, j] = links[j, i] = 1
    degrees = links.sum(1)
    laplacian = np.eye(n) - links / np.sqrt(np.outer(degrees, degrees))
    return np.exp(-np.outer(times, np.linalg.eigvalsh(laplacian))).mean(1)


def msid(x, y, k=5):
    times = np.geomspace(0.1, 10, 256)
    return np.max(np.exp(-2 * (times + 1 / times)) * np.abs(heat_trace(x, times, k) - heat_trace(y, times, k)))
