"""Gromov-Wasserstein's default against plain descents: the better of two starts, and the best of twelve.

    python benchmarks/starts.py [ROWS [PAIRS]]        by default 400 200

Pairs of layers of the same model among Models L, E and 0 of the modular sums and the known functions (c1, c2, c;
one-hot), the pairs of the experiment modsum_gw (see gromov_wasserstein.py), in an order drawn under seed 0; then each
known function with the six layers of Model L that are closest to it by the default. The two starts are the rows' own
pairing and POT's, the twelve these and ten drawn permutations. A line is printed for every 20 pairs, for all so far.
Seconds are CPU seconds of one thread, the mean over pairs.
"""

import itertools
import sys
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from gromov_wasserstein import layers, timed
from threadpoolctl import threadpool_limits

from repsim_cli.measures.gromov import Space, best_gromov, space

DRAWN = 10
CLOSEST = 6
MODELS = ("modsum_l", "modsum_e", "modsum_0")


class Solvers(NamedTuple):
    """(CPU seconds, objective) by each."""

    default: tuple[float, float]
    pot: tuple[float, float]
    two: tuple[float, float]
    twelve: tuple[float, float]


def solved(a: Space, b: Space) -> Solvers:
    def of(start: str, restarts: int = 0) -> tuple[float, float]:
        return timed(lambda: best_gromov(a, b, start=start, restarts=restarts, seed=0).value)  # type: ignore[arg-type]

    def better(*found: tuple[float, float]) -> tuple[float, float]:
        seconds, values = zip(*found, strict=True)
        return sum(seconds), min(values)

    pot, identity = of("pot"), of("identity", DRAWN)
    alone = of("identity")
    return Solvers(of("best"), pot, better(pot, alone), better(pot, identity))


def described(what: str, found: list[Solvers]) -> None:
    seconds, values = np.array(found).transpose(2, 1, 0)
    default, pot, two, twelve = np.where(values > 1e-12, values, 1e-12)
    cells = [what, str(len(found))]
    for other in (two, twelve):
        cells += [f"{default.mean() / other.mean():.4f}", f"{(default / other).mean():.4f}"]
    cells += [f"{(twelve / two).mean():.4f}", f"{(default / two).max():.3f}"]
    cells += [f"{100 * (default > pot * (1 + 1e-9)).mean():.1f} %", f"{(default / pot).max():.4f}"]
    cells += [f"{seconds[k].mean():.3f}" for k in (0, 2, 3)]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    n, count = [int(word) for word in sys.argv[1:]] + [400, 200][len(sys.argv) - 1 :]
    torch.set_num_threads(1)
    with threadpool_limits(1):
        of = partial(space, cost_scale="mean")
        targets = {name: of(x) for name, x in layers(n, "modsum_targets").items()}
        models = {model: {name: of(x) for name, x in layers(n, model).items()} for model in MODELS}
        solved(*list(targets.values())[:2])  # compiles
        pairs = [pair for found in models.values() for pair in itertools.combinations(found.values(), 2)]
        pairs += [pair for found in models.values() for pair in itertools.product(targets.values(), found.values())]
        drawn = np.random.default_rng(0).choice(len(pairs), count, replace=False)
        print(
            "| pairs | number | default / two: of means | mean | default / twelve: of means | mean | twelve / two | "
            "largest default / two | above POT | largest | seconds: default | two | twelve |"
        )
        print("| --- " * 13 + "|")
        found = []
        for k in drawn:
            found.append(solved(*pairs[k]))
            if len(found) % 20 == 0:
                described("of the study", found)
        print("\n| function | layer | default | two | twelve |\n| --- | --- | --- | --- | --- |")
        of_l = models["modsum_l"]
        for target, known in targets.items():
            values = {name: best_gromov(known, of_l[name], start="best", restarts=0, seed=0).value for name in of_l}
            for name in sorted(values, key=values.__getitem__)[:CLOSEST]:
                found = solved(known, of_l[name])
                cells = [f"{value:.5f}" for _, value in (found.default, found.two, found.twelve)]
                print("| " + " | ".join([target, name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
