"""Which clustering finds planted sub-networks: `python benchmarks/clusterings.py [SEEDS]` (5 by default) prints tables
and draws clusterings.png beside this file.

Partitions are planted in distances between 12, 24 or 93 layers: blocks (2 to 4 contiguous groups of unequal sizes),
recurring groups (each in two or three runs of layers, as attention maps are in every block), or none (a line, a line
that levels off, a random walk, and layers that are all as far apart). Groups are either points around a centre, or a
random walk with jumps between groups. Distances between groups are CONTRAST times those within, on average; every
distance is multiplied by exp(noise * a normal deviate). In half of the matrices some layers are copies of the one
before, at distance 0. Measured matrices have the groups planted in representations instead, which CKA and
Gromov-Wasserstein compare.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.sparse.csgraph import laplacian
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering
from threadpoolctl import threadpool_limits

from repsim_cli import measures
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.figures.frame import COLOURS, MARKERS, save
from repsim_cli.findings.partitions import (
    MOST,
    Labels,
    Square,
    choose_partition,
    cluster_eigenvectors,
    compare_partitions,
    convert_to_affinities,
    convert_to_distances,
    decompose_walk,
    divide,
    find_contiguous_segments,
    find_spectral_clusters,
    renumber,
    replace_by_lag_means,
    silhouette,
)

LAYERS = (12, 24, 93)
NOISE = (0.0, 0.2, 0.4, 0.7, 1.0)
NONE = ("line", "levelling off", "walk", "noise")
CONTRAST = 3.0
MEASURES, DEPTH, ROWS = (
    ("cka", "gromov_wasserstein"),
    24,
    60,
)  # of measured matrices; their noise is 3 * noise times the signal
STRUCTURE = 0.25  # silhouette below which there are no clusters (Kaufman and Rousseeuw 1990)


class Case(NamedTuple):
    kind: str
    noise: float
    labels: Labels
    values: Square
    larger: bool = False


# ---- what is planted ----


def runs(rng: np.random.Generator, pieces: int, layers: int) -> np.ndarray:
    """The piece of every layer: contiguous, of unequal sizes, none below two layers."""
    sizes = 2 + rng.multinomial(layers - 2 * pieces, rng.dirichlet(np.full(pieces, 3.0)))
    return np.repeat(np.arange(pieces), sizes)


def labelled(rng: np.random.Generator, kind: str, layers: int) -> np.ndarray:
    if kind not in ("blocks", "recurring"):
        return np.zeros(layers, int)
    groups = int(rng.integers(2, 5))
    if kind == "blocks":
        return runs(rng, groups, layers)
    times = 2 if 6 * groups > layers else int(rng.integers(2, 4))
    if 2 * groups * times > layers:
        groups = 3
    return runs(rng, groups * times, layers) % groups


def points(rng: np.random.Generator, kind: str, labels: np.ndarray) -> np.ndarray:
    """(layers, features): their distances between groups are CONTRAST times those within, on average."""
    layers, at = len(labels), np.arange(len(labels), dtype=float)
    if kind in ("line", "levelling off"):
        return at[:, None]
    if kind == "noise":
        return np.eye(layers)
    steps = rng.normal(size=(layers, 20))
    if kind == "walk":
        return steps.cumsum(0)
    groups = [labels == group for group in range(labels.max() + 1)]
    within = steps
    if rng.random() < 0.5:  # along a random walk, else around the centre
        for group in groups:
            within[group] = within[group].cumsum(0)
    within -= np.stack([within[group].mean(0) for group in groups])[labels]
    centres = rng.normal(size=(len(groups), 20))
    if rng.random() < 0.5:
        centres = centres.cumsum(0)
    same = squareform(labels[:, None] == labels, checks=False)
    low, high = 0.0, 1e3  # of the distance between centres, by bisection
    for _ in range(40):
        middle = (low + high) / 2
        apart = pdist(within + middle * centres[labels])
        low, high = (middle, high) if apart[~same].mean() < CONTRAST * apart[same].mean() else (low, middle)
    return within + high * centres[labels]


def planted(kind: str, layers: int, noise: float, seed: int) -> Case:
    rng = np.random.default_rng((seed, layers, (*NONE, "blocks", "recurring").index(kind)))
    labels = labelled(rng, kind, layers)
    values = squareform(pdist(points(rng, kind, labels)))
    if kind == "levelling off":
        values = 1 - np.exp(-5 * values / layers)
    values = values * np.exp(noise * squareform(rng.normal(size=layers * (layers - 1) // 2)))
    if rng.random() < 0.5:  # copies of the layer before, as block outputs are the next block's inputs
        inner = 1 + np.flatnonzero(labels[1:] == labels[:-1])
        for layer in rng.choice(inner, max(1, layers // 31), replace=False):
            values[layer], values[:, layer] = values[layer - 1], values[:, layer - 1]
            values[layer, layer] = 0
    return Case(kind, noise, labels, values)


def measured(measure: str, kind: str, noise: float, seed: int) -> Case:
    """Representations of ROWS rows. The layers of a group share a signal of six dimensions, of which each has a
    rotation, a drift that grows along the network, and noise of its own; of kind `walk` there is the drift alone."""
    rng = np.random.default_rng((seed, ("walk", "blocks", "recurring").index(kind)))
    labels = labelled(rng, kind, DEPTH)
    scale = np.geomspace(2, 0.5, 6)
    shared = rng.normal(size=(labels.max() + 1, ROWS, 6)) * scale
    drift = rng.normal(size=(DEPTH, ROWS, 6)).cumsum(0) * scale / np.sqrt(DEPTH) * (1 if kind == "walk" else 0.3)
    layers = []
    for signal in shared[labels] + drift:
        rotated = signal @ np.linalg.qr(rng.normal(size=(24, 24)))[0][:6]
        layers.append(torch.from_numpy(rotated + 3 * noise * rotated.std() * rng.normal(size=rotated.shape)))
    bound = measures.get(measure)
    values = compute_all_pairs({measure: bound}, layers)[measure].numpy()
    return Case(f"{measure}, {kind}", noise, labels, values, bound.card.larger_is_closer)


# ---- how it is sought ----


def tree(apart: Square, count: int, method: str) -> Labels:
    return renumber(fcluster(linkage(squareform(apart, checks=False), method), count, "maxclust"))


def k_means(apart: Square, count: int) -> Labels:
    """Clusters by k-means, on the coordinates of classical multidimensional scaling."""
    centre = np.eye(len(apart)) - 1 / len(apart)
    values, vectors = eigh(-centre @ apart**2 @ centre / 2, subset_by_index=[len(apart) - MOST, len(apart) - 1])
    return KMeans(count, n_init=3, random_state=0).fit_predict(vectors * np.sqrt(np.maximum(values, 0)))


def gaussian(apart: Square, count: int) -> Labels:
    """scikit-learn's, where the kernel is as wide as the median of the distances."""
    near = np.exp(-((apart / np.median(squareform(apart, checks=False))) ** 2) / 2)
    cut = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    return cut.fit_predict(near)


LIBRARY: dict[str, Callable[[Square, int], Labels]] = {
    "average linkage": partial(tree, method="average"),
    "complete linkage": partial(tree, method="complete"),
    "k-means on MDS": k_means,
    "spectral, Gaussian": gaussian,
}


def spectrum(case: Case, count: int) -> Labels:
    return cluster_eigenvectors(decompose_walk(convert_to_affinities(case.values, case.larger))[:, :count])


def pieces(apart: Square, count: int) -> Labels:
    _, starts = divide(apart, count)
    return np.isin(np.arange(len(apart)), starts[-1][1:]).cumsum()


def counts(apart: Square) -> range:
    return range(2, min(MOST, len(apart) // 2) + 1)


def by_silhouette(apart: Square, ways: Callable[[int], Labels]) -> Labels:
    """The partition into as many groups as have the largest silhouette; one group where that is below STRUCTURE.
    ways: the partition into a number of groups.
    """
    best = max(counts(apart), key=lambda k: silhouette(apart, ways(k)))
    return ways(best) if silhouette(apart, ways(best)) >= STRUCTURE else np.zeros(len(apart), int)


def gaps(values: Square, larger: bool) -> np.ndarray:
    """The gaps between eigenvalues k and k + 1 of the normalised Laplacian, k from 2 on."""
    whole = eigh(laplacian(convert_to_affinities(values, larger), normed=True), eigvals_only=True)
    return np.diff(whole[1 : counts(values)[-1] + 1])


def eigengap(case: Case) -> int:
    """The number with the largest gap; never one."""
    return 2 + int(gaps(case.values, case.larger).argmax())


def gap_above_gradient(case: Case) -> int:
    """The number whose gap is furthest above that of the mean over layers as far apart, where it is by enough."""
    order = decompose_walk(convert_to_affinities(case.values, case.larger))[:, 1].argsort(kind="stable")
    above = gaps(case.values, case.larger) - gaps(replace_by_lag_means(case.values[np.ix_(order, order)]), case.larger)
    return 2 + int(above.argmax()) if above.max() >= 0.08 + 1.2 / len(order) else 1


def cost_share(apart: Square) -> int:
    """The last number of segments that removes a tenth of the cost of a single one."""
    costs, _ = divide(apart, counts(apart)[-1])
    return 1 + int((-np.diff(costs) >= 0.1 * costs[0]).cumprod().sum())


def density(apart: Square) -> Labels:
    """HDBSCAN, groups of two or more; layers that it calls noise are one more group."""
    search = HDBSCAN(min_cluster_size=2, metric="precomputed", allow_single_cluster=True, copy=True)
    return renumber(search.fit_predict(apart))


def answers(case: Case) -> Iterator[tuple[str, Labels]]:
    """The groups by method, where the data choose their number."""
    values, larger = case.values, case.larger
    apart = convert_to_distances(values, larger)
    yield "spectral (package)", find_spectral_clusters(values, larger, count=None).labels
    yield "segments (package)", find_contiguous_segments(values, larger, count=None).labels
    linked = choose_partition(apart, False, lambda x: partial(tree, x, method="average"), None)
    yield "average linkage, surrogates", linked.labels
    yield "spectral, eigengap", spectrum(case, eigengap(case))
    yield "spectral, eigengap above a gradient's", spectrum(case, gap_above_gradient(case))
    yield "spectral, silhouette", by_silhouette(apart, partial(spectrum, case))
    yield "segments, cost", pieces(apart, cost_share(apart))
    for name, method in LIBRARY.items():
        yield f"{name}, silhouette", by_silhouette(apart, partial(method, apart))
    yield "HDBSCAN", density(apart)


def as_many(case: Case) -> Iterator[tuple[str, Labels]]:
    """The groups by method, as many as were planted."""
    count, apart = int(case.labels.max()) + 1, convert_to_distances(case.values, case.larger)
    yield "spectral (package)", spectrum(case, count)
    yield "segments (package)", pieces(apart, count)
    for name, method in LIBRARY.items():
        yield name, method(apart, count)


# ---- what is reported ----

Scores = Mapping[tuple[str, float], list[float]]  # by method and noise


def scored(cases: Iterator[Case], ways: Callable[[Case], Iterator[tuple[str, Labels]]]) -> tuple[Scores, Scores]:
    """Adjusted Rand index with the planted groups, and whether the number is right."""
    agreed, right = defaultdict(list), defaultdict(list)
    for case in cases:
        for method, labels in ways(case):
            agreed[method, case.noise].append(compare_partitions(labels, case.labels))
            right[method, case.noise].append(float(labels.max() == case.labels.max()))
    return agreed, right


def table(what: str, scores: Scores) -> None:
    print(f"\n{what}:\n\n| method | {' | '.join(map(str, NOISE))} |\n| --- |{' --- |' * len(NOISE)}")
    for method in dict.fromkeys(method for method, _ in scores):
        print(f"| {method} | {' | '.join(f'{np.mean(scores[method, noise]):.2f}' for noise in NOISE)} |", flush=True)


def figure(panels: Mapping[str, tuple[str, Scores]]) -> Any:
    """panels: by title, the label of the vertical axis and what is shown; bands: two standard errors over matrices."""
    from matplotlib.figure import Figure

    names = ("spectral (package)", "segments (package)", "spectral, eigengap above a gradient's")
    names += ("average linkage, silhouette", "k-means on MDS, silhouette", "HDBSCAN")
    drawing = Figure(figsize=(3.1 * len(panels), 3.1))
    for axes, (title, (label, scores)) in zip(drawing.subplots(1, len(panels)), panels.items(), strict=True):
        for name, colour, marker in zip(names, COLOURS, MARKERS, strict=False):
            mean, error = (
                np.array([f(scores[name, x]) for x in NOISE]) for f in (np.mean, lambda v: np.std(v) / np.sqrt(len(v)))
            )
            axes.plot(NOISE, mean, color=colour, marker=marker, markersize=4, linewidth=1.4, label=name)
            axes.fill_between(NOISE, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel("noise", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        axes.set_ylim(-0.05, 1.05)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    drawing.tight_layout()
    handles, _ = drawing.axes[0].get_legend_handles_labels()
    drawing.legend(handles, names, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, fontsize=8, frameon=False)
    return drawing


def main() -> None:
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    torch.set_num_threads(1)

    def made(*kinds: str) -> Iterator[Case]:
        return (planted(*each) for each in product(kinds, LAYERS, NOISE, seeds))

    panels = {}
    with threadpool_limits(1):
        for kind, title in (("blocks", "contiguous blocks"), ("recurring", "recurring groups")):
            table(f"Adjusted Rand index, {title}, as many groups as were planted", scored(made(kind), as_many)[0])
            agreed, right = scored(made(kind), answers)
            table(f"Adjusted Rand index, {title}, number chosen", agreed)
            table(f"Share of right numbers, {title}", right)
            panels[title] = ("adjusted Rand index", agreed)
        _, right = scored(made(*NONE), answers)
        wrong = {key: [1 - value for value in values] for key, values in right.items()}
        table("Share of matrices without groups in which groups are found", wrong)
        panels["no groups"] = ("share with more than one", wrong)
        for measure, kinds in product(MEASURES, (("blocks", "recurring"), ("walk",))):
            cases = (measured(measure, *each) for each in product(kinds, NOISE, seeds))
            agreed, right = scored(cases, answers)
            table(
                f"{measure}, {' and '.join(kinds)}: "
                + ("adjusted Rand index" if len(kinds) > 1 else "share of single groups"),
                agreed if len(kinds) > 1 else right,
            )
    with TemporaryDirectory() as folder:
        save(Path(folder), [("clusterings", lambda: figure(panels))])
        small = Image.open(Path(folder) / "clusterings.png").convert("RGB").quantize(128)
        small.save(Path(__file__).parent / "clusterings.png", optimize=True)


if __name__ == "__main__":
    main()
