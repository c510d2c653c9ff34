"""How far Gromov-Wasserstein's default, the better of two starts, is above the best of twelve.

    python benchmarks/starts.py [ROWS]        by default 400

Layers of Model L of the modular sums (see gromov_wasserstein.py): 100 pairs drawn at random, and every layer with each
known function (c1, c2, c; one-hot). Twelve starts are the default's two and ten drawn permutations.
"""

import sys

import numpy as np
import torch
from gromov_wasserstein import layers
from threadpoolctl import threadpool_limits

from repsim_cli.measures.gromov import Space, best_gromov, space

PAIRS, DRAWN = 100, 10


def excess(a: Space, b: Space) -> tuple[float, float]:
    """The default's objective, and the least of twelve starts."""
    default = best_gromov(a, b, start="best", restarts=0, seed=0).value
    return default, best_gromov(a, b, start="best", restarts=DRAWN, seed=0).value


def described(what: str, found: list[tuple[float, float]]) -> None:
    default, best = np.array(found).T
    above = 100 * (default / np.where(best > 0, best, 1) - 1)
    print(
        f"| {what} | {len(found)} | {above.mean():.1f} % | {np.quantile(above, 0.9):.1f} % | {above.max():.1f} % | "
        f"{100 * (above > 0.1).mean():.0f} % |",
        flush=True,
    )


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    torch.set_num_threads(1)
    with threadpool_limits(1):
        found, targets = layers(n, "modsum_l"), layers(n, "modsum_targets")
        spaces = {name: space(x, cost_scale="mean") for name, x in found.items()}
        names, draw = list(spaces), np.random.default_rng(0)
        drawn = [draw.choice(len(names), 2, replace=False) for _ in range(PAIRS)]
        print("| pairs | number | mean excess | 90 % | largest | above by more than 0.1 % |")
        print("| --- | --- | --- | --- | --- | --- |")
        described("drawn at random", [excess(spaces[names[i]], spaces[names[j]]) for i, j in drawn])
        closest = []
        for target, x in targets.items():
            values = [excess(space(x, cost_scale="mean"), one) for one in spaces.values()]
            described(f"{target} with every layer", values)
            two, twelve = (int(np.argmin([value[k] for value in values])) for k in (0, 1))
            closest.append(
                f"| {target} | {names[two]}, {values[two][0]:.4f} | {names[twelve]}, {values[twelve][1]:.4f} |"
            )
        print("\n| function | closest layer of two starts | of twelve |\n| --- | --- | --- |")
        print("\n".join(closest))


if __name__ == "__main__":
    main()
