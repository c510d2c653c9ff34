"""Whether p values, verdicts, bands and chance keep what they promise: `python benchmarks/levels.py [NAME ...]`.

Each promise is simulated under settings of its own kind. The table has the promised rate or value, the simulated one,
its error and the number of draws. `--tiny` draws each twice, to see that all run. The promises are in `levels_*.py`.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from joblib import Parallel, delayed

PARTS = ("levels_claims", "levels_planted", "levels_universality", "levels_nulls", "levels_corrections")
LEAST = 0.8  # power
FARTHEST = 0.02  # that a rate may be from its nominal value, however few the draws


@dataclass(frozen=True)
class Promise:
    """What a draw gives, on average.

    of: what is promised, e.g. `p of significance=permutation, documents`. setting: what is drawn.
    kind: `level`: a share of false positives. `cover`: of intervals. `power`: a share of true positives, at least
        0.8. `value`: a mean.
    nominal: the promised rate or value.
    draw: of a generator, whether it happened, or the value.
    """

    of: str
    setting: str
    kind: str
    nominal: float
    draws: int
    draw: Callable[[np.random.Generator], float]


@dataclass(frozen=True)
class Simulated:
    mean: float
    error: float
    seconds: float


def simulated(promise: Promise, draws: int, seed: int) -> Simulated:
    began = time.process_time()
    streams = np.random.default_rng([seed, len(promise.of), len(promise.setting)]).spawn(draws)
    values = np.array([float(promise.draw(rng)) for rng in streams])
    rate = promise.kind in ("level", "cover")
    deviation = np.sqrt(promise.nominal * (1 - promise.nominal)) if rate else values.std(ddof=1)
    return Simulated(float(values.mean()), float(deviation / np.sqrt(draws)), time.process_time() - began)


def kept(promise: Promise, found: Simulated) -> str:
    """Whether the promise is kept: within three errors, and a rate within 0.02, of what is nominal. A level below that,
    or a cover above, is kept at the cost of power."""
    off = found.mean - promise.nominal
    if promise.kind == "power":
        return "yes" if found.mean >= LEAST else "NO"
    if abs(off) <= min(3 * found.error, math.inf if promise.kind == "value" else FARTHEST):
        return "yes"
    safe = off < 0 if promise.kind == "level" else off > 0
    return "safe side" if promise.kind != "value" and safe else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of what is promised or of the setting; all")
    parser.add_argument("--tiny", action="store_true", help="two draws each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    promises = [promise for part in PARTS for promise in import_module(part).PROMISES]
    if given.names:
        promises = [x for x in promises if any(name in f"{x.of} {x.setting}" for name in given.names)]
    draws = [2 if given.tiny else promise.draws for promise in promises]
    tasks = (delayed(simulated)(promise, count, given.seed) for promise, count in zip(promises, draws, strict=True))
    columns = ["promise", "setting", "kind", "nominal", "simulated", "error", "draws", "kept", "s"]
    print("| " + " | ".join(columns) + " |\n" + "| - " * len(columns) + "|")
    verdicts, seconds = [], 0.0
    for promise, count, found in zip(
        promises, draws, Parallel(n_jobs=given.jobs, return_as="generator")(tasks), strict=True
    ):
        verdicts.append(kept(promise, found))
        seconds += found.seconds
        nominal = f"at least {LEAST}" if promise.kind == "power" else f"{promise.nominal:g}"
        numbers = f"{nominal} | {found.mean:.3f} | {found.error:.3f} | {count} | {verdicts[-1]} | {found.seconds:.0f}"
        print(f"| {promise.of} | {promise.setting} | {promise.kind} | {numbers} |", flush=True)
    counts = ", ".join(f"{verdict}: {verdicts.count(verdict)}" for verdict in sorted(set(verdicts)))
    print(f"\n{len(verdicts)} promises, kept: {counts}; {seconds:.0f} CPU seconds")
    sys.exit(1 if "NO" in verdicts and not given.tiny else 0)


if __name__ == "__main__":
    main()
