"""Dense assignment problems by shortest augmenting paths, from good prices; compiled, by numba (the extra `fast`)."""

from typing import no_type_check

import numba
import numpy as np

FAR_SINGLE = np.float32(1e30)
ROUNDS = 4  # Sinkhorn's, at each width
FARTHEST = np.float32(0.94)  # to the power of 1024 about 1e-27: what is smaller slows every product down
FAST_MATH = {"nnan", "ninf", "nsz", "reassoc", "contract", "arcp"}


@numba.njit(cache=True, fastmath=FAST_MATH)
@no_type_check  # the tests' type checker would wrap what is compiled
def augment(cost, prices, last, tolerance, far):  # noqa: C901 - compiled loops stay one function
    """The assignment of least cost: columns (n,) by row, and the column prices that prove it.

    cost (n, n), in float32 least up to its rounding. prices (n,): any to start with; the nearer to optimal the faster.
    last (n,): a guess of the assignment; of its cells those are kept that are within the tolerance of the cheapest at
    these prices. far: larger than all costs. Prices, tolerance and far are of the type of the costs.
    """
    n = len(cost)
    prices = prices.copy()
    profits = np.empty(n, cost.dtype)
    column_of, row_of = np.full(n, -1), np.full(n, -1)
    for i in range(n):
        low = far
        for j in range(n):
            low = min(low, cost[i, j] - prices[j])
        profits[i] = low
        j = last[i]
        if cost[i, j] - prices[j] <= low + tolerance and row_of[j] < 0:
            column_of[i], row_of[j] = j, i
            profits[i] = cost[i, j] - prices[j]
    # of columns still open, far once scanned; of the k-th scanned
    distance, reached = np.empty(n, cost.dtype), np.empty(n, cost.dtype)
    through, scanned = np.empty(n, np.int64), np.empty(n, np.int64)
    for start in range(n):
        if column_of[start] >= 0:
            continue
        for j in range(n):
            distance[j] = cost[start, j] - prices[j] - profits[start]
            through[j] = start
        count = 0
        while True:
            low = far
            for j in range(n):
                low = min(low, distance[j])
            near = 0
            while distance[near] != low:
                near += 1
            if row_of[near] < 0:
                break
            scanned[count], reached[count] = near, low
            count += 1
            distance[near] = far
            i = row_of[near]
            offset = low - profits[i]
            for j in range(n):
                via = cost[i, j] - prices[j] + offset
                if (via < distance[j]) & (distance[j] < far):
                    distance[j] = via
                    through[j] = i
        profits[start] += low
        for k in range(count):
            j = scanned[k]
            profits[row_of[j]] += low - reached[k]
            prices[j] -= low - reached[k]
        i = -1
        while i != start:
            i = through[near]
            row_of[near] = i
            near, column_of[i] = column_of[i], near
    return column_of, prices


@numba.njit(cache=True, fastmath=FAST_MATH)
@no_type_check
def estimate_prices(cost, prices, widths):  # noqa: C901 - compiled loops stay one function
    """Column prices near the optimal ones: potentials of ever narrower entropic couplings, in float32.

    widths: in standard deviations of the cost. Any prices start `augment` rightly, so nothing depends on their accuracy
    but its time: exp(x) is (1 + x / 1024)^1024 here, and costs that float32 does not hold keep the prices given.
    """
    n = len(cost)
    mean, square = 0.0, 0.0
    for i in range(n):
        for j in range(n):
            mean += cost[i, j]
            square += cost[i, j] * cost[i, j]
    mean /= n * n
    variance = square / (n * n) - mean * mean
    if variance < 1e-60 or square > 1e60:
        return prices.copy()
    kernel = np.empty((n, n), np.float32)
    lowest, scaling, total = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    found = prices.astype(np.float32)
    one = np.float32(1)
    for width in widths:
        blur = width * np.sqrt(variance)
        lowest[:] = FAR_SINGLE
        for i in range(n):
            low = FAR_SINGLE
            for j in range(n):
                kernel[i, j] = np.float32(cost[i, j]) - found[j]
                low = min(low, kernel[i, j])
            for j in range(n):
                kernel[i, j] -= low
                lowest[j] = min(lowest[j], kernel[i, j])
        step = np.float32(-1 / (1024 * blur))
        scaling[:] = one
        for turn in range(ROUNDS):
            total[:] = 0
            for i in range(n):
                if turn == 0:
                    for j in range(n):
                        x = max(one + (kernel[i, j] - lowest[j]) * step, FARTHEST)
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        x *= x
                        kernel[i, j] = x
                weight = np.float32(0)
                for j in range(n):
                    weight += kernel[i, j] * scaling[j]
                weight = one / weight
                for j in range(n):
                    total[j] += weight * kernel[i, j]
            for j in range(n):
                scaling[j] = one / total[j]
        for j in range(n):
            found[j] += lowest[j] + np.float32(blur * np.log(scaling[j]))
    return found.astype(prices.dtype)
