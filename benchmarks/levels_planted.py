"""Promises of the claims that `levels_claims.py` has no nulls for: on the noise, truth and falsehood that tests plant.

Three that cluster layers take seconds a verdict. Each is a sign test of five seeds, on noise in the tests at night.
"""

import sys
from functools import partial
from pathlib import Path

from levels import Promise
from levels_claims import CLAIMS, level, power
from levels_claims import PROMISES as OTHERS

from repsim_cli.findings.claims import FAILS, HOLDS

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from findings.test_claims import CLUSTERED, FALSE_OF_NOISE, FALSEHOOD, NOISE, TABLE, TRUTH

FED = {promise.of.split()[1].rstrip(":") for promise in OTHERS}


def planted(name: str) -> list[Promise]:
    """A claim that noise makes false may fail on it."""

    chance = (HOLDS,) if name in FALSE_OF_NOISE else (HOLDS, FAILS)
    return [
        *level(name, "noise", partial(TABLE[name], NOISE), chance),
        power(name, "planted truth", partial(TABLE[name], TRUTH)),
        power(name, "planted falsehood", partial(TABLE[name], FALSEHOOD), FAILS),
    ]


UNFED = [name for name, claim in CLAIMS.items() if name not in {*FED, *CLUSTERED} and claim.unit != "fact"]
PROMISES: list[Promise] = [promise for name in UNFED for promise in planted(name)]
