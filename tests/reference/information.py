"""Slow, obvious versions of mutual information: counts row by row; Newton's method with second derivatives
row by row."""

import numpy as np
from scipy.special import digamma, softmax

SETTINGS = {"infonce": {"dims": 2}}  # 36 weights


def leading(x, dims):
    centred = x - x.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    u = u[:, s > 1e-10 * s[0]][:, :dims]
    return u * np.sqrt(len(x))


def mutual_information(x, y, k=5, dims=3):
    x, y = leading(x, dims), leading(y, dims)
    n, total = len(x), 0.0
    for i in range(n):
        in_x, in_y = np.linalg.norm(x - x[i], axis=1), np.linalg.norm(y - y[i], axis=1)
        larger = np.maximum(in_x, in_y)
        epsilon = np.sort(np.delete(larger, i))[k - 1]
        if np.sum(np.abs(larger - epsilon) <= 1e-6) > 1:
            around = [np.sum(side <= epsilon + 1e-6) for side in (larger, in_x, in_y)]
        else:
            around = [k, *(np.sum(side < epsilon - 1e-6) for side in (in_x, in_y))]
        total += digamma(around[0]) - digamma(around[1]) - digamma(around[2])
    return digamma(n) + total / n


def features(row):
    row = row * min(1.0, 3 * np.sqrt(len(row)) / np.linalg.norm(row))
    pairs = [row[i] * row[j] * (1 if i == j else np.sqrt(2)) for i in range(len(row)) for j in range(i, len(row))]
    return [1.0, *row, *pairs]


def infonce(x, y, batch=128, dims=2, seed=0):
    quarter = len(x) // 4
    size = min(batch, quarter)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (np.array([features(row) for row in leading(side, dims)]) for side in (x, y))

    def batches(rows):
        return [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]

    def entropy(weights, rows):
        """The entropy with its gradient and second derivatives, row by row."""
        wide_x, wide_y = x.shape[1], y.shape[1]
        total, slope, curvature = [], np.zeros((wide_x, wide_y)), np.zeros((wide_x * wide_y,) * 2)
        for some in batches(rows):
            scores = x[some] @ weights @ y[some].T
            for place, (u, v) in enumerate(zip(x[some], y[some], strict=True)):
                for line, own, others, wide in (
                    (scores[place], v, y[some], lambda c, u=u: np.kron(np.outer(u, u), c)),
                    (scores[:, place], u, x[some], lambda c, v=v: np.kron(c, np.outer(v, v))),
                ):
                    chances = softmax(line)
                    mean = chances @ others
                    total.append(-np.log(chances[place]))
                    slope = slope + (np.outer(u, mean - own) if own is v else np.outer(mean - own, v))
                    curvature = curvature + wide((others.T * chances) @ others - np.outer(mean, mean))
        return np.mean(total), slope.ravel() / len(total), curvature / len(total)

    def fitted(rows, penalty):
        prior = penalty / (size * len(batches(rows)))
        weights = np.zeros((x.shape[1], y.shape[1]))
        for _ in range(100):
            loss, slope, curvature = entropy(weights, rows)
            slope = slope + prior * weights.ravel()
            step = np.linalg.solve(curvature + prior * np.eye(len(slope)), slope).reshape(weights.shape)
            if slope @ step.ravel() < 1e-20:
                return weights
            share = 1.0
            while share > 1e-3 and (
                entropy(weights - share * step, rows)[0] + prior / 2 * np.sum((weights - share * step) ** 2)
                > loss + prior / 2 * np.sum(weights**2)
            ):
                share /= 2
            weights = weights - share * step
        raise AssertionError("not solved")

    first, second, last = order[:quarter], order[quarter : 2 * quarter], order[2 * quarter : 4 * quarter]
    penalty = min((1.0, 10.0, 100.0, 1000.0), key=lambda penalty: entropy(fitted(first, penalty), second)[0])
    return np.log(size) - entropy(fitted(order[: 2 * quarter], penalty), last)[0]
