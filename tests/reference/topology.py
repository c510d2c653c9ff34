"""Slow, obvious versions of the topological measures: all simplices, boundary matrices reduced column by column."""

import itertools

import numpy as np
from scipy.spatial.distance import cdist

# enough for a few dozen rows
SETTINGS = {"rtd": {"rows": 10, "subsets": 2}, "geometry_score": {"landmarks": 12, "repeats": 2, "gamma": 0.1}}


def loops(times):
    """Bars in dimension 1 of a filtration {simplex (sorted tuple): time}, deaths of what never dies infinite."""
    order = sorted(times, key=lambda simplex: (times[simplex], len(simplex), simplex))
    place = {simplex: i for i, simplex in enumerate(order)}
    lowest, bars, open_loops = {}, [], set()
    for i, simplex in enumerate(order):
        column = (
            {place[face] for face in itertools.combinations(simplex, len(simplex) - 1)} if len(simplex) > 1 else set()
        )
        while column and max(column) in lowest:
            column ^= lowest[max(column)]
        if column:
            lowest[max(column)] = column
            if len(simplex) == 3:
                open_loops.remove(max(column))
                bars.append((times[order[max(column)]], times[simplex]))
        elif len(simplex) == 2:
            open_loops.add(i)
    return bars + [(times[order[i]], np.inf) for i in open_loops]


def rips(distances):
    simplices = itertools.chain.from_iterable(itertools.combinations(range(len(distances)), k) for k in (1, 2, 3))
    return {s: max(distances[i, j] for i in s for j in s) for s in simplices}


def cross(x, y):
    r, s = ((d := cdist(z, z)) / np.quantile(d, 0.9) for z in (x, y))
    both = [np.block([[0 * a, a.T], [a, np.minimum(r, s)]]) for a in (r, s)]
    return sum(death - birth for matrix in both for birth, death in loops(rips(matrix))) / 2


def rtd(x, y, rows=10, subsets=2):
    generator = np.random.default_rng(0)
    drawn = [generator.choice(len(x), rows, replace=False) for _ in range(subsets)]
    return np.mean([cross(x[subset], y[subset]) for subset in drawn])


def witnessed(distances, longest):
    """Simplices of landmarks by the least relaxation at which some row is nearer to them than to all others."""
    times = {}
    for k in (1, 2, 3):
        for simplex in itertools.combinations(range(distances.shape[1]), k):
            others = np.delete(distances, simplex, axis=1)
            outside = others.min(1) if others.size else np.inf
            time = max(0, (distances[:, simplex].max(1) - outside).min())
            faces = itertools.combinations(simplex, k - 1) if k > 1 else ()
            time = max([time, *(times.get(face, np.inf) for face in faces)])
            if time <= longest:
                times[simplex] = time
    return times


def living_times(distances, longest):
    bars = loops(witnessed(distances, longest))
    ends = sorted({0, longest, *(min(end, longest) for bar in bars for end in bar)})
    shares = np.zeros(1000)
    for start, end in itertools.pairwise(ends):
        alive = sum(birth <= start and death >= end for birth, death in bars)
        shares[alive] += (end - start) / longest
    return shares


def geometry_score(x, y, landmarks=12, repeats=2, gamma=0.1):
    means = []
    for z in (x, y):
        z = z[np.argsort(np.linalg.norm(z - z.mean(0), axis=1))]
        generator = np.random.default_rng(0)
        drawn = [cdist(z, z[generator.choice(len(z), landmarks, replace=False)]) for _ in range(repeats)]
        means.append(np.mean([living_times(distances, gamma * distances.max()) for distances in drawn], axis=0))
    return np.sum((means[0] - means[1]) ** 2)
