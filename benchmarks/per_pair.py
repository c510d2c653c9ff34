"""Per-pair code of measures, as public libraries have it: float32 torch or numpy, everything anew for every pair."""

import numpy as np
import scipy.linalg
import scipy.spatial.distance
import scipy.stats
import torch
from sklearn.neighbors import NearestNeighbors


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def feature_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = centred(x), centred(y)
    return float((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm()))


def hsic1(k: torch.Tensor, l: torch.Tensor) -> torch.Tensor:  # noqa: E741
    n, one = len(k), torch.ones(len(k), 1)
    k, l = k.clone().fill_diagonal_(0), l.clone().fill_diagonal_(0)  # noqa: E741
    terms = torch.trace(k @ l) + (one.T @ k @ one) * (one.T @ l @ one) / ((n - 1) * (n - 2))
    return (terms - 2 / (n - 2) * (one.T @ k @ l @ one)) / (n * (n - 3))


def gram_cka_unbiased(x: torch.Tensor, y: torch.Tensor) -> float:
    k, l = x @ x.T, y @ y.T  # noqa: E741
    return float(hsic1(k, l) / (hsic1(k, k) * hsic1(l, l)).sqrt())


def rbf_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    n = len(x)
    centre = torch.eye(n) - 1 / n

    def kernel(z: torch.Tensor) -> torch.Tensor:
        squared = torch.cdist(z, z) ** 2
        return torch.exp(-squared / (2 * squared.median()))

    k, l = centre @ kernel(x) @ centre, centre @ kernel(y) @ centre  # noqa: E741
    return float((k * l).sum() / (k.norm() * l.norm()))


def above(square: np.ndarray) -> np.ndarray:
    return square[np.triu_indices(len(square), 1)]


def rsa(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(scipy.stats.spearmanr(*(above(1 - np.corrcoef(z.numpy())) for z in (x, y)))[0])


def rsm_norm(x: torch.Tensor, y: torch.Tensor) -> float:
    sides = (centred(z) / centred(z).norm() for z in (x, y))
    return float(np.linalg.norm(np.subtract(*(scipy.spatial.distance.pdist(z.numpy()) for z in sides))))


def knn_sets(z: torch.Tensor, k: int = 10) -> np.ndarray:
    z = centred(z).numpy()
    found = NearestNeighbors(n_neighbors=k + 1, metric="cosine", algorithm="brute").fit(z)
    return found.kneighbors(z, return_distance=False)[:, 1:]


def knn_mutual(x: torch.Tensor, y: torch.Tensor) -> float:
    pairs = zip(knn_sets(x), knn_sets(y), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in pairs]))


def knn_jaccard(x: torch.Tensor, y: torch.Tensor) -> float:
    pairs = zip(knn_sets(x), knn_sets(y), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in pairs]))


def regression(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = centred(x), centred(y)
    return float(1 - (x - y @ torch.linalg.lstsq(y, x).solution).norm() ** 2 / x.norm() ** 2)


def best_correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    correlations = np.corrcoef(x.numpy().T, y.numpy().T)[: x.shape[1], x.shape[1] :]
    return float(np.abs(correlations).max(1).mean())


def row_cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((1 - torch.nn.functional.cosine_similarity(x, y)).mean())


def canonical(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    u, v = (np.linalg.svd(centred(z).numpy(), full_matrices=False)[0] for z in (x, y))
    return np.linalg.svd(u.T @ v, compute_uv=False)


def truncated(x: torch.Tensor, y: torch.Tensor) -> float:
    bases = []
    for z in (x, y):
        u, s, _ = np.linalg.svd(centred(z).numpy(), full_matrices=False)
        bases.append(u[:, : int((np.cumsum(s**2) / np.sum(s**2) < 0.99).sum()) + 1])
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).mean())


def orthogonal(x: torch.Tensor, y: torch.Tensor) -> float:
    x, y = (centred(z) / centred(z).norm() for z in (x, y))
    return float(np.sqrt(max(0, 2 - 2 * scipy.linalg.svd((x.T @ y).numpy())[1].sum())))


def bures(x: torch.Tensor, y: torch.Tensor) -> float:
    k, l = ((centred(z) @ centred(z).T).double().numpy() for z in (x, y))  # noqa: E741
    values, vectors = np.linalg.eigh(k)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    fidelity = np.sqrt(np.linalg.eigvalsh(root @ l @ root).clip(0)).sum()
    return float(fidelity / np.sqrt(np.trace(k) * np.trace(l)))


def lanczos_msid(x: torch.Tensor, y: torch.Tensor, probes: int = 100, steps: int = 10) -> float:
    times = np.logspace(-1, 1, 256)

    def trace(z: torch.Tensor) -> np.ndarray:
        graph = NearestNeighbors(n_neighbors=5).fit(z.numpy()).kneighbors_graph()
        graph = ((graph + graph.T) > 0).astype(float)
        root = 1 / np.sqrt(np.asarray(graph.sum(1)).ravel())
        total = np.zeros(256)
        for _ in range(probes):
            v = np.random.default_rng(0).normal(size=len(root))
            basis, alphas, betas = [v / np.linalg.norm(v)], [], []
            for _ in range(steps):
                w = basis[-1] - root * (graph @ (root * basis[-1]))
                alphas.append(basis[-1] @ w)
                w -= np.stack(basis).T @ (np.stack(basis) @ w)
                betas.append(np.linalg.norm(w))
                basis.append(w / betas[-1])
            theta, tau = scipy.linalg.eigh_tridiagonal(np.array(alphas), np.array(betas[:-1]))
            total += (tau[0] ** 2 * np.exp(-np.outer(times, theta))).sum(1) / probes
        return total

    weights = np.exp(-2 * (times + 1 / times))
    return float((weights * np.abs(trace(x) - trace(y))).max())
