"""Promises of the corrections for many cells, of the closed form, and of tests of stored rows."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from levels import Promise

from repsim_cli import measures
from repsim_cli.activations.segments import BOTH, Segments, find_segments
from repsim_cli.base.settings import Significance
from repsim_cli.engine.closed_null import compute_closed_form_null, compute_null_moments
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.significance import JudgedValues, judge_significance
from repsim_cli.measures.inner import Matrix

ALPHA = 0.05
CKA = measures.get("cka_unbiased")
CLOSED = Significance(method="closed_form", clusters="row")
Rows = Callable[[np.random.Generator, int, int], np.ndarray]


def norms(of: Callable[[np.random.Generator, int], np.ndarray]) -> Rows:
    """Normal rows, each multiplied by such a number."""
    return lambda rng, n, d: rng.normal(size=(n, d)) * of(rng, n)[:, None]


ROWS: dict[str, Rows] = {
    "normal rows": norms(lambda rng, n: np.ones(n)),
    "log-normal norms, sd 0.9": norms(lambda rng, n: rng.lognormal(sigma=0.9, size=n)),
    "log-normal norms, sd 1.2": norms(lambda rng, n: rng.lognormal(sigma=1.2, size=n)),
    "rows of t, 3 degrees": norms(lambda rng, n: (3 / rng.chisquare(3, n)) ** 0.5),
    "Pareto norms, exponent 2": norms(lambda rng, n: 1 + rng.pareto(2, n)),
    "one row 8 times as large": norms(lambda rng, n: np.where(np.arange(n) == 0, 8.0, 1.0)),
    "features of t, 3 degrees": lambda rng, n, d: rng.standard_t(3, size=(n, d)),
}


def closed_map(rng: np.random.Generator, rows: Rows, n: int, size: int, related: float) -> Matrix | None:
    """p_family in closed form of all layers of two models, `size` each, under HSIC without its bias. related: how much
    of the first layer the other model's first has."""
    sides = [[rows(rng, n, 16) for _ in range(size)] for _ in range(2)]
    sides[1][0] += related * sides[0][0]
    squares = [[torch.from_numpy(centred(x @ x.T)) for x in side] for side in sides]
    null = compute_closed_form_null(*([compute_null_moments(square) for square in side] for side in squares))
    cross = torch.stack([torch.stack([(a * b).sum() for b in squares[1]]) for a in squares[0]])
    parts = {"values": cross, "z": (cross - null.mean) / null.deviation} | null._asdict()
    whole = {what: torch.full((2 * size, 2 * size), torch.nan, dtype=torch.float64) for what in parts}
    for what, part in parts.items():
        whole[what][:size, size:] = part
    return of_two(judge_significance(CLOSED, CKA, matrix(whole), None, places([size, size])).p_family, size)


def centred(gram: np.ndarray) -> np.ndarray:
    """Without its diagonal, and with rows that sum to 0 (Szekely and Rizzo 2014)."""
    n = len(gram)
    gram = gram - np.diag(np.diag(gram))
    means = gram.sum(1) / (n - 2)
    made = gram - means[:, None] - means + means.sum() / (n - 1)
    return made - np.diag(np.diag(made))


def drawn_map(rng: np.random.Generator, sizes: list[int], settings: Significance, effect: float) -> JudgedValues:
    """Judges a map of statistics that share a factor, with nulls of different widths.
    effect: of the first cell of the first two models, in deviations.
    """
    count, k = sum(sizes), settings.permutations + 1
    both = rng.normal(size=(k, count, count)) + rng.normal(size=(k, 1, 1))
    both[0, 0, sizes[0]] += effect * 2**0.5
    both = torch.from_numpy(both * rng.lognormal(size=(count, count)))
    both = torch.where(torch.ones(count, count, dtype=torch.bool).triu(), both, both.mT)
    whole = {"values": both[0], "tested": both[0], "null": both[1:], "away": both[1:].mean(0)}
    return judge_significance(settings, CKA, matrix(whole), Segments([], 40, 1.0), places(sizes))


def matrix(statistics: dict[str, torch.Tensor]) -> SimilarityMatrix:
    return SimilarityMatrix(
        values=statistics["values"], se=None, estimate="full", rows=40, batches=1, statistics=statistics
    )


def places(sizes: list[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(*both) for both in pairwise(ends)]


def of_two(corrected: Matrix | None, size: int) -> Matrix | None:
    return None if corrected is None else corrected[:size, size:]


def heavy_rows(rng: np.random.Generator, *, rows: str, n: int, size: int, related: float) -> float:
    """Says whether a cell is found, or with related rows the first: 1 or 0."""
    found = closed_map(rng, ROWS[rows], n, size, related)
    if found is None:
        return 0.0
    return float((found[0, 0] if related else found.min()) <= ALPHA)


def corrections(rng: np.random.Generator, *, sizes: list[int], settings: Significance, effect: float, by: str) -> float:
    """Says whether a cell of two models is found, or with an effect the first: 1 or 0."""
    found = getattr(drawn_map(rng, sizes, settings, effect), by)
    if found is None:
        return 0.0
    owner = np.repeat(np.arange(len(sizes)), sizes)
    cells = found[owner[:, None] < owner]
    return float((found[0, sizes[0]] if effect else cells.min()) <= ALPHA)


def stored(rng: np.random.Generator, *, shared: float, documents: int, each: int) -> float:
    """Says whether p of one pair of layers is small: 1 or 0. Half of the variance is between documents.
    shared: what both models have in common.
    """
    count = documents * each
    of = np.repeat(np.arange(documents), each)
    common = shared * rng.normal(size=(count, 8))
    sides = [common + rng.normal(size=(documents, 8))[of] + rng.normal(size=(count, 8)) for _ in range(2)]
    moved = find_segments([of], [BOTH * (np.diff(of, prepend=-1) != 0)])
    left, right = (centred(x @ x.T) for x in sides)
    inside = moved.rows(0)
    left, right = (x[np.ix_(inside, inside)] for x in (left, right))
    orders = moved.orders(0, 39, [int(rng.integers(2**31))])
    values = [float((left * right[np.ix_(order, order)]).sum()) for order in (np.arange(count), *orders)]
    return float(np.mean(np.array(values) >= values[0]) <= ALPHA)


def closed(rows: str, related: float = 0.0) -> Promise:
    draw = partial(heavy_rows, rows=rows, n=60, size=6, related=related)
    setting, kind = f"{rows}, 60 rows, 36 cells", "power" if related else "level"
    return Promise("p_family in closed form (Holm)", setting, kind, ALPHA, 500 if related else 2000, draw)


def corrected(of: str, by: str, sizes: list[int], effect: float, **settings: Any) -> Promise:
    given = Significance(method="permutation", clusters="row", **settings)
    draw = partial(corrections, sizes=sizes, settings=given, effect=effect, by=by)
    setting = f"models of {' and '.join(map(str, sizes))} layers, {given.permutations} permutations"
    return Promise(of, setting, "power" if effect else "level", ALPHA, 500, draw)


PROMISES = [
    *(closed(rows) for rows in ("normal rows", "log-normal norms, sd 1.2", "rows of t, 3 degrees")),
    closed("normal rows", related=1.5),
    *(corrected("p_family by max-T, per map", "p_family", [12, 12], effect, permutations=99) for effect in (0.0, 6.0)),
    *(
        corrected("p_family by max-T, over the run", "p_family", [4] * 5, effect, family_of="run", permutations=99)
        for effect in (0.0, 6.0)
    ),
    *(corrected("q, where it is given", "q", [3, 3], effect, permutations=199) for effect in (0.0, 6.0)),
    *(
        Promise(
            "p of stored rows with documents",
            f"20 documents of 10 rows, {'related' if shared else 'independent'} models",
            "power" if shared else "level",
            ALPHA,
            500 if not shared else 100,
            partial(stored, shared=shared, documents=20, each=10),
        )
        for shared in (0.0, 1.0)
    ),
]
