"""Couplings of least cost with uniform weights: exact one-to-one assignments, warm-started from similar problems."""

import logging
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.base.errors import Degenerate

PIVOTS = 100_000_000  # of the network simplex
# of the entropic couplings behind a first guess, in standard deviations of the cost
WIDTHS = np.array([0.1, 0.03, 0.01, 0.003, 0.001, 0.0003])
LEFT_OUT = {0.05: 6, 0.2: 5, 0.7: 2}  # how many widths are skipped if less than this share of the rows moved before
TIE = 1e-13  # of the size of the costs: cells that differ by rounding alone
# the same of either precision, and what is larger than all costs
TIES = {"float64": (TIE, 1e300), "float32": (1e-6, 1e30)}

log = logging.getLogger("repsim")

Coupling = Float[np.ndarray, "_ _"]
Matched = Int[np.ndarray, " n"]
Prices = Float[np.ndarray, " n"]


@cache
def load_compiled() -> Any:
    """The module of the fast solver; None without numba, or without a folder for its cache."""
    try:
        from repsim_cli.measures.compiled import augmenting
    except ImportError:
        return None
    except RuntimeError as error:  # of numba, which cannot write its cache folder
        log.warning("the fast assignment solver is not used: %s; set NUMBA_CACHE_DIR", error)
        return None
    return augmenting


def assign(
    cost: Float[np.ndarray, "n n"],
    last: Matched | None = None,
    prices: Prices | None = None,
    moved: float = 1.0,
) -> tuple[Matched, Prices | None]:
    """The column of every row in the assignment of least cost, and the prices of the columns (None without numba).

    last, prices: the answer to a similar problem, to begin from; unless costs are tied, they change nothing but the
        time. moved: the share of rows whose column changed in that problem.
    """
    fast = load_compiled()
    if fast is None:
        return find_cheapest_coupling(cost).argmax(1), None
    widths = WIDTHS[next((count for share, count in LEFT_OUT.items() if moved < share), 0) :]
    start = cost.min(0) if prices is None else prices
    if len(widths):
        start = fast.estimate_prices(cost, start, widths)
    guess = np.arange(len(cost)) if last is None else last
    number, (tie, far) = cost.dtype.type, TIES[cost.dtype.name]
    return fast.augment(cost, start.astype(number), guess, number(tie * np.abs(cost[0]).max()), number(far))


def find_cheapest_coupling(cost: Float[np.ndarray, "n m"], pivots: int = PIVOTS) -> Float[np.ndarray, "n m"]:
    """The exact coupling of least cost with uniform weights, by POT's network simplex. Raises Degenerate where it takes
    more pivots."""
    from ot.lp import emd  # importing POT takes most of a second

    n, m = cost.shape
    # the solver returns an empty plan where all costs are negative
    coupling, log = emd(np.full(n, 1 / n), np.full(m, 1 / m), cost - cost.min(), numItermax=pivots, log=True)
    if log["warning"] is not None:
        raise Degenerate(f"transport: no optimal coupling, got '{log['warning']}' for {n} x {m} rows; use fewer rows")
    return coupling


def find_exact_coupling(cost: Float[np.ndarray, "n m"]) -> Coupling:
    """The exact coupling of least cost with uniform weights."""
    return make_coupling(assign(cost)[0]) if len(cost) == cost.shape[1] else find_cheapest_coupling(cost)


def make_coupling(matched: Matched) -> Coupling:
    """Makes the coupling with all weight on the cells (i, matched[i])."""
    coupling = np.zeros((len(matched), len(matched)))
    coupling[np.arange(len(matched)), matched] = 1 / len(matched)
    return coupling


def read_matching(coupling: Coupling) -> np.ndarray | None:
    """The permutation p with all weight on the cells (i, p[i]), if the coupling is a permutation."""
    rows, columns = coupling.nonzero()
    single = len(rows) == len(coupling) == coupling.shape[1] and len(set(columns)) == len(rows)
    return columns if single and (rows == np.arange(len(rows))).all() else None
