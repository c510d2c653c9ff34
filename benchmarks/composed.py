"""Gromov-Wasserstein from composed couplings: one of (a, h) and one of (h, c) make a start for (a, c).

    python benchmarks/composed.py [SEED]        by default 0

Eleven layers of Model L of the modular sums at 1000 rows (see gromov_wasserstein.py) are drawn under the seed. Three
of them are hubs, to which the others are solved by `start: best`; all 28 pairs of the others are then solved by `best`
and from the couplings composed over the hubs. Seconds are CPU seconds of one thread, the mean over pairs; those of the
couplings to the hubs are left out.
"""

import itertools
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from gromov_wasserstein import layers
from threadpoolctl import threadpool_limits

from repsim_cli.measures.assignment import read_matching
from repsim_cli.measures.gromov_descents import MANY_ROWS, Trial, compute_assignment_objective, lower_further
from repsim_cli.measures.gromov_search import find_best_gromov
from repsim_cli.measures.gromov_spaces import Space, order_pair, prepare_space

ROWS, HUBS, OTHERS = 1000, 3, 8
ROUGH = {0.8: 1e-2}  # diagonal and tolerance of a short descent


def best(a: Space, b: Space) -> Trial:
    """The assignment is of the rows of a to those of b."""
    found = find_best_gromov(a, b, start="best", restarts=0, seed=0)
    matched = read_matching(found.coupling)
    assert matched is not None
    return Trial("best", matched if order_pair(a, b)[0] is a else np.argsort(matched), found.value)


def composed(a: Space, b: Space, over: list[tuple[Trial, Trial]], rough: bool) -> Trial:
    """over: for each hub the assignments of the rows of a and of b to its rows. rough: descend a little from every
    composed start before the lowest is chosen."""
    trials, sides = [], (a.distances, b.distances)
    for of_a, of_b in over:
        matched = np.argsort(of_b.matched)[of_a.matched]
        trial = Trial("composed", matched, compute_assignment_objective(*sides, matched))
        trials.append(lower_further(trial, *sides, ROUGH)[0] if rough else trial)
    return lower_further(min(trials, key=lambda trial: trial.value), *sides, MANY_ROWS)[0]


def timed(solve: Callable[..., Trial], *given: object) -> tuple[float, float]:
    """CPU seconds, and the objective."""
    start = time.process_time()
    value = solve(*given).value
    return time.process_time() - start, value


def main() -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):
        states = [prepare_space(x, cost_scale="mean", blocks=True) for x in layers(ROWS).values()]
        drawn = np.random.default_rng(int(*sys.argv[1:] or [0])).choice(len(states), HUBS + OTHERS, replace=False)
        hubs, others = ([states[i] for i in part] for part in np.split(drawn, [HUBS]))
        to_hubs = [[best(state, hub) for hub in hubs] for state in others]
        solved = []
        for i, j in itertools.combinations(range(OTHERS), 2):
            pair, over = (others[i], others[j]), list(zip(to_hubs[i], to_hubs[j], strict=True))
            solved.append([timed(best, *pair), *(timed(composed, *pair, over, rough) for rough in (False, True))])
    names = ("`best`", "lowest composed start", "all composed starts")
    by: dict[str, np.ndarray] = dict(zip(names, np.array(solved).swapaxes(0, 1), strict=True))
    for name in names[1:]:
        both = np.stack([by["`best`"], by[name]])
        by[f"the lower of `best` and {name}"] = np.stack([both[:, :, 0].sum(0), both[:, :, 1].min(0)], axis=1)
    print("| start | seconds | mean objective | mean ratio to `best` | largest |\n| --- | --- | --- | --- | --- |")
    for name, (seconds, values) in ((name, table.T) for name, table in by.items()):
        ratios = values / by["`best`"][:, 1]
        print(f"| {name} | {seconds.mean():.3f} | {values.mean():.5f} | {ratios.mean():.4f} | {ratios.max():.3f} |")


if __name__ == "__main__":
    main()
