"""Gromov-Wasserstein: seconds against objectives, of `best` and of plain descents from one, two and twelve starts.

    python benchmarks/starts.py [ROWS [PAIRS]]        by default 400 200

Pairs of layers of the same model among Models L, E and 0 of the modular sums and the known functions (c1, c2, c;
one-hot), the pairs of the experiment modsum_gw (see gromov_wasserstein.py), in an order drawn under seed 0; then each
known function with the six layers of Model L that are closest to it by the default. Plain descents start from the rows'
own pairing and POT's (two), or from these and ten drawn permutations (twelve). The table is printed for every 20 pairs,
of all so far; ratios are to two starts. Seconds are CPU seconds of one thread, the mean over pairs.
"""

import itertools
import sys
from functools import partial

import numpy as np
import torch
from gromov_wasserstein import layers, timed
from threadpoolctl import threadpool_limits

from repsim_cli.measures.gromov_search import find_best_gromov
from repsim_cli.measures.gromov_spaces import Space, prepare_space

DRAWN = 10
TWO, TWELVE, POT, BEST = "two starts", "twelve starts", "POT's start", "`best`"
CLOSEST = 6
MODELS = ("modsum_l", "modsum_e", "modsum_0")


def solved(a: Space, b: Space) -> dict[str, tuple[float, float]]:
    """(CPU seconds, objective) by each."""

    def of(start: str, restarts: int = 0) -> tuple[float, float]:
        return timed(lambda: find_best_gromov(a, b, start=start, restarts=restarts, seed=0).value)  # type: ignore[arg-type]

    def better(*found: tuple[float, float]) -> tuple[float, float]:
        seconds, values = zip(*found, strict=True)
        return sum(seconds), min(values)

    pot, drawn = of("pot"), of("identity", DRAWN)
    return {POT: pot, TWO: better(pot, of("identity")), TWELVE: better(pot, drawn), BEST: of("best")}


def described(found: list[dict[str, tuple[float, float]]]) -> None:
    print(f"\n{len(found)} pairs\n\n| solver | seconds | of means | mean ratio | smallest | largest | above POT's |")
    print("| --- " * 7 + "|")
    values = {name: np.maximum([each[name][1] for each in found], 1e-12) for name in found[0]}
    for name, mine in values.items():
        ratios, above = mine / values[TWO], mine > values[POT] * (1 + 1e-9)
        cells = [name, f"{np.mean([each[name][0] for each in found]):.3f}"]
        cells += [f"{mine.mean() / values[TWO].mean():.4f}", f"{ratios.mean():.4f}"]
        cells += [f"{ratios.min():.3f}", f"{ratios.max():.3f}", f"{100 * above.mean():.1f} %"]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    n, count = [int(word) for word in sys.argv[1:]] + [400, 200][len(sys.argv) - 1 :]
    torch.set_num_threads(1)
    with threadpool_limits(1):
        of = partial(prepare_space, cost_scale="mean", blocks=True)
        targets = {name: of(x) for name, x in layers(n, "modsum_targets").items()}
        models = {model: {name: of(x) for name, x in layers(n, model).items()} for model in MODELS}
        solved(*list(targets.values())[:2])  # compiles
        pairs = [pair for found in models.values() for pair in itertools.combinations(found.values(), 2)]
        pairs += [pair for found in models.values() for pair in itertools.product(targets.values(), found.values())]
        drawn = np.random.default_rng(0).choice(len(pairs), count, replace=False)
        found = []
        for k in drawn:
            found.append(solved(*pairs[k]))
            if len(found) % 20 == 0:
                described(found)
        columns = [BEST, TWO, TWELVE]
        print("\n| function | layer | " + " | ".join(columns) + " |\n" + "| --- " * (2 + len(columns)) + "|")
        of_l = models["modsum_l"]
        for target, known in targets.items():
            values = {
                name: find_best_gromov(known, of_l[name], start="best", restarts=0, seed=0).value for name in of_l
            }
            for name in sorted(values, key=values.__getitem__)[:CLOSEST]:
                by = solved(known, of_l[name])
                cells = [f"{by[column][1]:.5f}" for column in columns]
                print("| " + " | ".join([target, name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
