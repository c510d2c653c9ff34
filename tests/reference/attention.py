"""Slow, obvious versions of the attention measures, from the paper, in numpy float64.

x, y: lists of one array (heads, query, key) per sentence.
"""

import numpy as np

from reference import cca, hsic


def best(x, y, similarity):
    heads = range(len(x[0])), range(len(y[0]))
    return np.mean([max(similarity([a[h] for a in x], [b[k] for b in y]) for k in heads[1]) for h in heads[0]])


def attention_norm(x, y):
    return best(x, y, lambda a, b: 1 - np.mean([np.sqrt(((p - q) ** 2).sum()) for p, q in zip(a, b, strict=True)]))


def rows(a, b):
    return [(p, q) for left, right in zip(a, b, strict=True) for p, q in zip(left, right, strict=True)]


def attention_pearson(x, y):
    def similarity(a, b):
        return np.mean([np.corrcoef(p, q)[0, 1] for p, q in rows(a, b) if np.ptp(p) > 1e-12 and np.ptp(q) > 1e-12])

    return best(x, y, similarity)


def divergence(p, q):
    m = (p + q) / 2
    return sum(sum(r * np.log(r / s) for r, s in zip(side, m, strict=True) if r > 0) for side in (p, q)) / 2


def attention_js(x, y):
    return best(x, y, lambda a, b: 1 - np.mean([divergence(p, q) for p, q in rows(a, b)]))


def cells(x, y, zeros):
    x, y = (np.concatenate([maps.reshape(len(maps), -1) for maps in side], 1).T for side in (x, y))
    kept = ((x != 0).all(1) & (y != 0).all(1)) | (zeros == "keep")
    return x[kept], y[kept]


def attention_cka(x, y, zeros="drop"):
    return hsic.cka(*cells(x, y, zeros))


def attention_svcca(x, y, zeros="drop"):
    return cca.svcca(*cells(x, y, zeros))


def attention_pwcca(x, y, zeros="drop"):
    return cca.pwsim(*cells(x, y, zeros))
