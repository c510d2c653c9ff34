"""Level and power of permutation nulls for dependent rows: `python benchmarks/nulls.py [power packed level]`.

Two representations of two features, unrelated but for what the table names, are tested by linear CKA with 99 random
pairings. CKA's own norms do not change with the pairing, so that |X'PY|^2 is the statistic. Ways to draw the null:

segments      one segment of equal length per document; segments trade places (`repsim_cli/activations/segments.py`)
end to end    whole documents in another order, laid end to end
circular      all rows of one side shifted by a random number of rows
multiplier    every document's part of X'Y times a random sign (a wild bootstrap), on all rows
"""

import argparse
from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter
from scipy.stats import beta

from repsim_cli.activations import segments

PAIRINGS, LONGEST = 99, 300
LEVELS = (0.05, 0.01)
METHODS = ("segments", "end to end", "circular", "multiplier")
EFFECTS = ("document", "autocorrelated", "position")
POWER, ENOUGH = 0.8, 0.8  # of row permutation; of which share segments must have

LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "all 20 rows": lambda rng, k: np.full(k, 20),
    "14 to 16": lambda rng, k: rng.integers(14, 17, k),
    "3 to 5": lambda rng, k: rng.integers(3, 6, k),
    "lognormal": lambda rng, k: np.clip(np.exp(rng.normal(np.log(12), 1, k)).round().astype(int), 1, LONGEST),
    "3 to 40": lambda rng, k: rng.integers(3, 41, k),
    "6 to 32": lambda rng, k: rng.integers(6, 33, k),
}


def side(rng: np.random.Generator, lengths: np.ndarray, effect: str, shift: np.ndarray) -> np.ndarray:
    """Rows (n, 2) of one representation."""
    inside = np.arange(lengths.max())[None] < lengths[:, None]
    x = rng.standard_normal((*inside.shape, 2), dtype=np.float32)
    if effect == "autocorrelated":
        # a long correlation, begun in its stationary state
        x[:, 1:] *= np.float32(np.sqrt(1 - 0.9**2))
        x = lfilter([1], [1, -0.9], x, axis=1).astype(np.float32)
    elif effect != "none":
        x += rng.standard_normal((len(lengths), 1, 2), dtype=np.float32)
    if effect == "position":
        x += 3 * np.exp(-np.arange(inside.shape[1], dtype=np.float32) / 4)[None, :, None] * shift
    return x[inside]


def statistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|X'Y|^2 of every pairing y (pairings, n, 2)."""
    return np.square(np.matmul((x - x.mean(0)).T, y - y[0].mean(0))).sum((1, 2))


def p_value(rng: np.random.Generator, method: str, x: np.ndarray, y: np.ndarray, lengths: np.ndarray) -> float:
    n, ids = len(x), np.repeat(np.arange(len(lengths)), lengths)
    if method == "multiplier":
        part = ((x - x.mean(0))[:, :, None] * (y - y.mean(0))[:, None, :]).reshape(n, 4)
        parts = np.add.reduceat(part, np.cumsum(lengths) - lengths)
        signs = np.concatenate([np.ones((1, len(lengths))), rng.choice([-1.0, 1.0], (PAIRINGS, len(lengths)))])
        values = np.square(signs @ parts).sum(1)
        return float(np.mean(values[0] <= values * (1 + 1e-6)))
    if method == "rows":
        orders = rng.permuted(np.tile(np.arange(n), (PAIRINGS, 1)), axis=1)
    elif method == "segments":
        first = np.zeros(n, int)
        first[np.cumsum(lengths) - lengths] = segments.BOTH
        chosen = segments.find_segments([ids], [first])
        rows, ((group,),) = chosen.rows(0), chosen.batches
        orders = chosen.orders(0, PAIRINGS, [int(rng.integers(1 << 31))])
        # the same sums of whole segments at once
        k, length = group.shape
        x, y = ((z[rows] - z[rows].mean(0)).reshape(k, length, 2) for z in (x, y))
        products = np.stack([x[:, :, a] @ y[:, :, b].T for a in range(2) for b in range(2)])
        moved = np.concatenate([np.arange(k)[None], orders[:, ::length] // length])
        values = np.square(products[:, np.arange(k), moved].sum(2)).sum(0)
        return float(np.mean(values[0] <= values * (1 + 1e-6)))
    elif method == "end to end":
        places = rng.permuted(np.tile(np.arange(len(lengths)), (PAIRINGS, 1)), axis=1)
        orders = np.argsort(places[:, ids], axis=1, kind="stable")
    else:
        orders = (np.arange(n)[None] + rng.integers(1, n, (PAIRINGS, 1))) % n
    values = statistic(x, np.concatenate([y[None], y[orders]]))
    return float(np.mean(values[0] <= values * (1 + 1e-6)))


def rates(method: str, lengths: str, documents: int, effect: str, draws: int, signal: float = 0.0) -> np.ndarray:
    """p values of `draws` pairs of representations; signal: of what x has of y in every row."""
    rng = np.random.default_rng([len(method), documents, draws])
    found = np.empty(draws)
    for i in range(draws):
        sizes = LENGTHS[lengths](rng, documents)
        x, y = (side(rng, sizes, effect, rng.standard_normal(2, dtype=np.float32)) for _ in range(2))
        found[i] = p_value(rng, method, x + np.float32(signal) * y, y, sizes)
    return found


def shown(p: np.ndarray) -> str:
    """Rates at both levels, with * where the lower 99 % limit is above the level or the rate clearly is."""
    words = []
    for level, most in zip(LEVELS, (0.06, 0.015), strict=True):
        hits = int((p <= level + 1e-9).sum())
        lowest = beta.ppf(0.01, hits, len(p) - hits + 1) if hits else 0.0
        words.append(f"{hits / len(p):.3f}{'*' if lowest > level or hits / len(p) > most else ''}")
    return " / ".join(words)


def power(documents: int, draws: int) -> tuple[float, float, float]:
    """(signal, power of row permutation, power of segments) at 0.05, at the signal where the first is about POWER."""

    def at(method: str, signal: float, count: int) -> float:
        return float((rates(method, "all 20 rows", documents, "none", count, signal) <= 0.05 + 1e-9).mean())

    low, high = 0.0, 1.0
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (low, middle) if at("rows", middle, 300) > POWER else (middle, high)
    return high, at("rows", high, draws), at("segments", high, draws)


def packed(rng: np.random.Generator, median: float, method: str) -> float:
    """p of unrelated representations of packed text: 64 of 1024 sequences of 128 tokens, in batches of 1024 rows.

    Documents have lognormal lengths. Effects that both sides share: of the first token of a sequence, which is 30 times
    as large as others, and of the first tokens of a document. Each side alone: documents, autocorrelated rows.
    """
    length, size, pool = 128, 1024, 1024 * 128
    lengths = np.clip(np.exp(rng.normal(np.log(median), 0.8, 4 * pool // int(median))).round().astype(int), 4, 20_000)
    taken = np.sort(rng.permutation(1024)[:64])[:, None] * length + np.arange(length)
    document = np.repeat(np.arange(len(lengths)), lengths)[taken.ravel()]
    position = taken.ravel() - (lengths.cumsum() - lengths)[document]
    place = np.tile(np.arange(length), 64)
    x, y = (
        lfilter([1], [1, -0.9], rng.standard_normal((len(place), 2)), axis=0)
        + rng.standard_normal((len(lengths), 2))[document]
        + 3 * np.exp(-position / 3)[:, None] * rng.standard_normal(2)
        + 30 * (place == 0)[:, None] * rng.standard_normal(2)
        for _ in range(2)
    )
    beginnings = segments.SEQUENCE * (place == 0) + segments.DOCUMENT * (position == 0)
    ids = [document[i : i + size] for i in range(0, len(document), size)]
    if method == "end to end":
        drawn = []
        for one in ids:
            inside = np.unique(one, return_inverse=True)[1]
            places = rng.permuted(np.tile(np.arange(inside[-1] + 1), (PAIRINGS, 1)), axis=1)
            drawn.append((np.arange(size), np.argsort(places[:, inside], axis=1, kind="stable")))
    else:
        chosen = segments.find_segments(ids, [beginnings[i : i + size] for i in range(0, len(beginnings), size)])
        seed = int(rng.integers(1 << 31))
        drawn = [(chosen.rows(b), chosen.orders(b, PAIRINGS, [seed, b])) for b in range(len(ids)) if chosen.batches[b]]
    values = np.zeros(1 + PAIRINGS)
    for b, (rows, orders) in enumerate(drawn):
        own, other = x[b * size + rows], y[b * size + rows]
        norms = [float(np.linalg.norm((z - z.mean(0)).T @ (z - z.mean(0)))) for z in (own, other)]
        values += statistic(own, np.concatenate([other[None], other[orders]])) / np.prod(norms)
    return float(np.mean(values[0] <= values * (1 + 1e-6)))


def print_power(given: argparse.Namespace) -> None:
    print("\npower at 0.05 of a signal in every row, documents of 20 rows, rows that do not depend on each other\n")
    print("| documents | signal | rows trade places | segments |\n| --- | --- | --- | --- |")
    for documents in given.documents:
        signal, rows, own = power(documents, 1000)
        print(
            f"| {documents} | {signal:.3f} | {rows:.3f} | {own:.3f}{'*' if own < ENOUGH * rows else ''} |", flush=True
        )


def print_packed(given: argparse.Namespace) -> None:
    print(f"\npacked text, rejected at 0.05 / 0.01, {given.draws} pairs each; * too often\n")
    print("| tokens of a document, median | segments | end to end |\n| --- | --- | --- |")
    for median in (40, 200, 1500):
        cells = []
        for method in ("segments", "end to end"):
            rng = np.random.default_rng(median)
            cells.append(shown(np.array([packed(rng, median, method) for _ in range(given.draws)])))
        print(f"| {median} | " + " | ".join(cells) + " |", flush=True)


def print_level(given: argparse.Namespace) -> None:
    print(f"\nrejected at 0.05 / 0.01, {given.draws} pairs each; * too often")
    for effect in EFFECTS:
        print(f"\n| effect: {effect} | documents | " + " | ".join(given.methods) + " |", flush=True)
        print("| --- | --- |" + " --- |" * len(given.methods))
        for lengths in LENGTHS:
            for documents in given.documents:
                cells = [shown(rates(method, lengths, documents, effect, given.draws)) for method in given.methods]
                print(f"| {lengths} | {documents} | " + " | ".join(cells) + " |", flush=True)


PARTS = {"power": print_power, "packed": print_packed, "level": print_level}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--draws", type=int, default=4000, help="pairs of unrelated representations per cell")
    parser.add_argument("--documents", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    given = parser.parse_args()
    for part in given.parts:
        PARTS[part](given)


if __name__ == "__main__":
    main()
