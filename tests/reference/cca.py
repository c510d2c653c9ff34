"""Slow, obvious versions of the CCA family, from the papers, in numpy float64: by covariances and least squares."""

import numpy as np

CONVENTIONS = {
    "eigenspace_overlap": lambda entry: {} if entry["centred"] else None,
    "gulp": lambda entry: None if entry["squared"] else {"lam": float(entry["lam"])},
}


def centred(z):
    return z - z.mean(0)


def root(c, power):
    """A symmetric matrix to a power."""
    values, vectors = np.linalg.eigh(c)
    return (vectors * values**power) @ vectors.T


def canonical(x, y):
    """(directions of x, correlations, directions of y): all of norm 1 in sample space."""
    x, y = centred(x), centred(y)
    a, b = root(x.T @ x, -0.5), root(y.T @ y, -0.5)
    u, rho, vt = np.linalg.svd(a @ x.T @ y @ b)
    k = len(rho)
    return x @ a @ u[:, :k], rho, y @ b @ vt.T[:, :k]


def rho(x, y):
    return canonical(x, y)[1]


def gaussian_mutual_information(x, y):
    """Entropies of Gaussians: H(x) + H(y) - H(x, y), from log determinants of covariances."""
    both = np.cov(np.hstack([x, y]).T)
    k = x.shape[1]
    parts = (both[:k, :k], both[k:, k:], both)
    one, other, joint = (np.linalg.slogdet(np.atleast_2d(part))[1] for part in parts)
    return (one + other - joint) / 2


def mean_cca(x, y):
    return rho(x, y).mean()


def yanai_cca(x, y):
    return (rho(x, y) ** 2).sum() / min(x.shape[1], y.shape[1])


def pillai_trace(x, y):
    x, y = centred(x), centred(y)
    return np.trace(np.linalg.inv(x.T @ x) @ x.T @ y @ np.linalg.inv(y.T @ y) @ y.T @ x)


def eigenspace_overlap(x, y):
    return (rho(x, y) ** 2).sum() / max(x.shape[1], y.shape[1])


def principal(z, variance):
    """Scores of the fewest principal components that hold this share of the variance."""
    z = centred(z)
    values, vectors = np.linalg.eigh(z.T @ z)
    values, vectors = values[::-1], vectors[:, ::-1]
    for k in range(1, len(values) + 1):
        if values[:k].sum() / values.sum() >= variance:
            return z @ vectors[:, :k]
    return z


def svcca(x, y, variance=0.99):
    return mean_cca(principal(x, variance), principal(y, variance))


def weighted(directions, correlations, x):
    weights = [sum(abs(h @ neuron) for neuron in centred(x).T) for h in directions.T]
    return np.average(correlations, weights=weights)


def pwcca(x, y):
    directions, correlations, _ = canonical(x, y)
    return weighted(directions, correlations, x)


def pwsim(x, y, variance=0.99):
    directions, correlations, _ = canonical(principal(x, variance), principal(y, variance))
    return weighted(directions, correlations, x)


def residuals(x, y):
    """What least squares with an intercept leaves of x's neurons, fitted from y."""
    design = np.column_stack([y, np.ones(len(y))])
    return x - design @ np.linalg.lstsq(design, x, rcond=None)[0]


def linear_regression(x, y):
    return 1 - (residuals(x, y) ** 2).sum() / (centred(x) ** 2).sum()


def gulp(x, y, lam=0.0):
    """Boix-Adsera et al. 2022, section 2.2, by covariances of representations of unit total variance."""

    def unit(z):
        return centred(z) / np.sqrt((centred(z) ** 2).sum() / len(z))

    def shrink(c):
        return np.linalg.inv(c + lam * np.eye(len(c)))

    x, y = unit(x), unit(y)
    a, b, c = (p.T @ q / len(x) for p, q in ((x, x), (y, y), (x, y)))
    own = [np.trace(shrink(m) @ m @ shrink(m) @ m) for m in (a, b)]
    return np.sqrt(sum(own) - 2 * np.trace(shrink(a) @ c @ shrink(b) @ c.T))
