"""Whether p values, verdicts, bands and chance keep what they promise: `python benchmarks/levels.py [NAME ...]`.

Each promise is simulated under settings of its own kind. The table has the promised rate or value, the simulated one,
its error and the number of draws. `--tiny` draws each twice, to see that all run. The promises are in `levels_*.py`.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, groupby

import numpy as np
from joblib import Parallel, delayed

PARTS = (
    "levels_claims",
    "levels_shared",
    "levels_planted",
    "levels_universality",
    "levels_nulls",
    "levels_sentences",
    "levels_corrections",
)
PARTS += ("levels_budget", "levels_shares")
LEAST = 0.8  # power
FARTHEST = 0.02  # that a rate may be from its nominal value, however few the draws


Drawn = float | str | Mapping[str, float]


@dataclass(frozen=True)
class Promise:
    """What a draw gives, on average.

    of: what is promised, e.g. `p of significance=permutation, documents`. setting: what is drawn.
    kind: `level`: a share of false positives. `cover`: of intervals. `power`: a share of true positives, at least
        0.8. `value`: a mean.
    nominal: the promised rate or value.
    draw: of a generator, whether it happened, or the value; or what happened, where `counted` is what is promised; or
        several of these by name, of which `counted` is one. Promises of one draw that follow each other are drawn
        together.
    """

    of: str
    setting: str
    kind: str
    nominal: float
    draws: int
    draw: Callable[[np.random.Generator], Drawn]
    counted: str | None = None

    def number(self, drawn: Drawn) -> float:
        if isinstance(drawn, Mapping):
            return float(drawn[str(self.counted)])
        return float(drawn if self.counted is None else drawn == self.counted)


@dataclass(frozen=True)
class Simulated:
    mean: float
    error: float
    seconds: float


def simulated(promises: Sequence[Promise], draws: int, seed: int) -> list[Simulated]:
    """Simulates promises of one draw."""
    began = time.process_time()
    first, found = promises[0], []
    drawn = [first.draw(rng) for rng in np.random.default_rng([seed, len(first.of), len(first.setting)]).spawn(draws)]
    seconds = (time.process_time() - began) / len(promises)
    for promise in promises:
        values = np.array([promise.number(each) for each in drawn])
        rate = promise.kind in ("level", "cover")
        deviation = np.sqrt(promise.nominal * (1 - promise.nominal)) if rate else values.std(ddof=1)
        found.append(Simulated(float(values.mean()), float(deviation / np.sqrt(draws)), seconds))
    return found


def kept(promise: Promise, found: Simulated) -> str:
    """Says whether the promise is kept: within three errors, and a rate within 0.02, of what is nominal.
    A level below that, or a cover above, is kept at the cost of power.
    """
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
    alike = [list(some) for _, some in groupby(promises, key=lambda promise: id(promise.draw))]
    tasks = (delayed(simulated)(some, 2 if given.tiny else some[0].draws, given.seed) for some in alike)
    columns = ["promise", "setting", "kind", "nominal", "simulated", "error", "draws", "kept", "s"]
    print("| " + " | ".join(columns) + " |\n" + "| - " * len(columns) + "|")
    verdicts, seconds = [], 0.0
    drawn = chain.from_iterable(Parallel(n_jobs=given.jobs, return_as="generator")(tasks))
    for promise, found in zip(promises, drawn, strict=True):
        verdicts.append(kept(promise, found))
        seconds += found.seconds
        nominal = f"at least {LEAST}" if promise.kind == "power" else f"{promise.nominal:g}"
        count = 2 if given.tiny else promise.draws
        numbers = f"{nominal} | {found.mean:.3f} | {found.error:.3f} | {count} | {verdicts[-1]} | {found.seconds:.0f}"
        print(f"| {promise.of} | {promise.setting} | {promise.kind} | {numbers} |", flush=True)
    counts = ", ".join(f"{verdict}: {verdicts.count(verdict)}" for verdict in sorted(set(verdicts)))
    print(f"\n{len(verdicts)} promises, kept: {counts}; {seconds:.0f} CPU seconds")
    sys.exit(1 if "NO" in verdicts and not given.tiny else 0)


if __name__ == "__main__":
    main()
