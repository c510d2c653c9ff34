"""A slow, obvious version of held-out ridge regression: a fit for every penalty, fold and fold that chooses, in numpy."""

import numpy as np

PENALTIES = [np.inf, *10.0 ** np.arange(1, -8.5, -0.5)]


def squared_error(x, y, fitted, scored, penalty):
    """The error of the scored rows of x, predicted from y by the fitted rows."""
    centre, offset = y[fitted].mean(0), x[fitted].mean(0)
    design, of_x = y[fitted] - centre, x[fitted] - offset
    weights = np.zeros((y.shape[1], x.shape[1]))
    if np.isfinite(penalty):
        square = design.T @ design
        weights = np.linalg.solve(square + penalty * np.trace(square) * np.eye(len(square)), design.T @ of_x)
    return np.sum((x[scored] - offset - (y[scored] - centre) @ weights) ** 2)


def ridge(x, y, folds=5, fold=None):
    """fold: of every row; by default blocks of rows."""
    n = len(x)
    if fold is None:
        fold = np.concatenate([np.full(len(part), f) for f, part in enumerate(np.array_split(np.arange(n), folds))])
    error = total = 0.0
    for f in np.unique(fold):

        def chosen(penalty, f=f):
            others = [g for g in np.unique(fold) if g != f]
            return sum(squared_error(x, y, (fold != f) & (fold != g), fold == g, penalty) for g in others)

        best = min(PENALTIES, key=chosen)
        error += squared_error(x, y, fold != f, fold == f, best)
        total += squared_error(x, y, fold != f, fold == f, np.inf)
    return 1 - error / total
