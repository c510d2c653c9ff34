"""Shortest augmenting paths for a dense assignment problem, compiled: needs numba (the extra `fast`)."""

from typing import no_type_check

import numba
import numpy as np

FAR = 1e300
FAST_MATH = {"nnan", "ninf", "nsz", "reassoc", "contract", "arcp"}


@numba.njit(cache=True, fastmath=FAST_MATH)
@no_type_check  # the tests' type checker would wrap what is compiled
def augment(cost, prices, last, tolerance):
    """The assignment of least cost: columns (n,) by row, and the column prices that prove it.

    cost (n, n) float64. prices (n,): any to start with; the nearer to optimal the faster. last (n,): a guess of the
    assignment; of its cells those are kept that are within the tolerance of the cheapest at these prices.
    """
    n = len(cost)
    prices = prices.copy()
    profits = np.empty(n)
    column_of, row_of = np.full(n, -1), np.full(n, -1)
    for i in range(n):
        low = FAR
        for j in range(n):
            low = min(low, cost[i, j] - prices[j])
        profits[i] = low
        j = last[i]
        if cost[i, j] - prices[j] <= low + tolerance and row_of[j] < 0:
            column_of[i], row_of[j] = j, i
            profits[i] = cost[i, j] - prices[j]
    distance, reached = np.empty(n), np.empty(n)  # of columns still open, FAR once scanned; of the k-th scanned
    through, scanned = np.empty(n, np.int64), np.empty(n, np.int64)
    for start in range(n):
        if column_of[start] >= 0:
            continue
        for j in range(n):
            distance[j] = cost[start, j] - prices[j] - profits[start]
            through[j] = start
        count = 0
        while True:
            low = FAR
            for j in range(n):
                low = min(low, distance[j])
            near = 0
            while distance[near] != low:
                near += 1
            if row_of[near] < 0:
                break
            scanned[count], reached[count] = near, low
            count += 1
            distance[near] = FAR
            i = row_of[near]
            offset = low - profits[i]
            for j in range(n):
                via = cost[i, j] - prices[j] + offset
                if (via < distance[j]) & (distance[j] < FAR):
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
