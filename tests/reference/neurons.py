"""Slow, obvious versions of the neuron measures, from the papers, in numpy float64."""

import itertools

import numpy as np
import scipy.optimize

from reference.cca import residuals


def correlations(x, y):
    return np.array([[np.corrcoef(a, b)[0, 1] for b in y.T] for a in x.T])


def neuronsim(x, y):
    return np.mean([max(abs(r) for r in row) for row in correlations(x, y)])


def soft_correlation_match(x, y):
    r = correlations(x, y)
    return (np.mean([max(row) for row in r]) + np.mean([max(row) for row in r.T])) / 2


def best_matching(gains):
    """The largest sum over all ways to give each row a column of its own."""
    gains = gains if len(gains) <= len(gains.T) else gains.T
    return max(
        sum(row[j] for row, j in zip(gains, chosen, strict=True))
        for chosen in itertools.permutations(range(gains.shape[1]), len(gains))
    )


def hard_correlation_match(x, y):
    r = correlations(x, y)
    return best_matching(r) / min(r.shape)


def soft_matching(x, y):
    """Optimal transport between uniform masses as a linear programme."""
    r = correlations(x, y)
    k, l = r.shape
    rows = np.kron(np.eye(k), np.ones(l))
    columns = np.kron(np.ones(k), np.eye(l))
    masses = np.concatenate([np.full(k, 1 / k), np.full(l, 1 / l)])
    plan = scipy.optimize.linprog((1 - r).ravel(), A_eq=np.vstack([rows, columns]), b_eq=masses, method="highs-ds")
    return 1 - plan.fun


def partial_soft_matching(x, y, mass=0.5):
    """A linear programme: no neuron gives more than its share, and the mass is moved."""
    r = correlations(x, y)
    k, l = r.shape
    shares = np.vstack([np.kron(np.eye(k), np.ones(l)), np.kron(np.ones(k), np.eye(l))])
    most = np.concatenate([np.full(k, 1 / k), np.full(l, 1 / l)])
    plan = scipy.optimize.linprog(-r.ravel(), shares, most, np.ones((1, k * l)), [mass], method="highs-ds")
    return -plan.fun / mass


def mixedsim(x, y):
    left = (residuals(x, y) ** 2).sum(0) / ((x - x.mean(0)) ** 2).sum(0)
    return np.mean(np.sqrt(1 - left))
