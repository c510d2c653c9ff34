"""Tells whether errors are those of coarser weights: of each linear map, the noise that rounding its weights gives on
its own inputs, and the map that is worse than its bits.

A map whose weights are rounded to steps s has noise of energy sum(s^2 / 12 x^2) on inputs x. The share of a step in the
largest weight of its row or group is the same for all maps of equal bits, and so is the noise, measured over predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from repsim_cli.studies.verify.error import module_of, role_of
from repsim_cli.studies.verify.replay import Finding
from repsim_cli.studies.verify.rounding import Places

GROUPS = (0, 32, 64, 128, 256)  # weights that share a step; 0: those of a row
WORSE = 3.0  # dB beyond what its bits give
SPREAD = 1.0  # dB, of the maps that are as their bits give
BITS = (1.5, 12.0)
FEWEST = 4  # maps
UNIFORM = 0.65  # of a step: a rounding is off by half of one at most, other noise of its size by more


@dataclass(frozen=True)
class Noise:
    """By scheme (weights of a group, whether around zero), dB of the measured noise over that of one step in the
    largest weight."""

    over: Mapping[tuple[int, bool], float]


def steps(weights: Tensor, group: int, centred: bool) -> Tensor:
    """Half of the range of each group of weights into one output: (outputs, groups)."""
    grouped = weights.unflatten(1, (-1, group or weights.shape[1]))
    return grouped.abs().amax(2) if centred else (grouped.amax(2) - grouped.amin(2)) / 2


def noise_of(finding: Finding) -> Noise | None:
    """None where the place is no linear map, or what enters it is not known."""
    role, module = role_of(finding), module_of(finding)
    weights = getattr(module, "weight", None)
    if role not in ("linear", "embed") or not isinstance(weights, Tensor) or weights.ndim != 2:
        return None
    if finding.candidate is None or finding.reference is None:
        return None
    places = Places(finding.batch.mask)
    c, r = (places.tokens(x)[0].double().flatten(1) for x in (finding.candidate, finding.reference))
    w = weights.detach().double()
    if role == "embed":
        if finding.batch.ids is None or c.shape[1] != w.shape[1] or int(finding.batch.ids.max()) >= len(w):
            return None
        w = w[finding.batch.ids[finding.batch.mask]]
        squares = torch.ones(1, w.shape[1], dtype=torch.float64)
    else:
        if finding.entered is None or c.shape != r.shape:
            return None
        w = w.T if type(module).__name__ == "Conv1D" else w
        x = places.tokens(finding.entered)[0].double().flatten(1)
        if x.shape[1] != w.shape[1]:
            return None
        squares = x.square().sum(0, keepdim=True)
    energy = float((c - r).square().sum())
    over = {}
    for group in GROUPS:
        if group and w.shape[1] % group:
            continue
        by_group = squares.unflatten(1, (-1, group or w.shape[1])).sum(2)
        for centred in (True, False):
            expected = float((steps(w, group, centred).square() * by_group).sum()) / 12
            if energy > 0 and expected > 0:
                over[group, centred] = 10 * math.log10(energy / expected)
    return Noise(over) if over else None


@dataclass(frozen=True)
class Fit:
    """scheme: the one by which the maps agree best. bits: of their weights. worse: the maps that are more than WORSE dB
    beyond it, with how much."""

    scheme: tuple[int, bool]
    bits: float
    worse: Mapping[tuple[str, str], float]

    def about(self, count: int) -> str:
        group, _ = self.scheme
        what = f"groups of {group} weights" if group else "a step for each row"
        return f"the errors of {count} linear maps are what rounding to about {self.bits:.1f} bits gives ({what})"


def fitted(noises: Mapping[tuple[str, str], Noise]) -> Fit | None:
    """Finds the rounding that the errors of these maps come from; None where they come from none."""
    best: tuple[float, tuple[int, bool], float] | None = None
    if len(noises) < FEWEST:
        return None
    for scheme in {scheme for noise in noises.values() for scheme in noise.over}:
        over = [noise.over[scheme] for noise in noises.values() if scheme in noise.over]
        if len(over) < len(noises):
            continue
        middle = median(over)
        spread = 1.48 * median(abs(each - middle) for each in over)
        if best is None or spread < best[0]:
            best = spread, scheme, middle
    if best is None or best[0] > SPREAD:
        return None
    _, scheme, middle = best
    bits = 1 + -middle / (20 * math.log10(2))
    if not BITS[0] <= bits <= BITS[1]:
        return None
    worse = {place: noise.over[scheme] - middle for place, noise in noises.items()}
    return Fit(scheme, bits, {place: by for place, by in worse.items() if by > WORSE})


def rounded(fit: Fit, pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Tells whether weights are off by no more than a rounding: (reference's, candidate's), each (outputs, inputs)."""
    group, centred = fit.scheme
    beyond = []
    for x, y in pairs:
        half = steps(x.double(), group, centred).repeat_interleave(group or x.shape[1], 1)
        step = half / 2 ** (fit.bits - 1)
        beyond.append(((x.double() - y.double()).abs() > UNIFORM * step).double().mean())
    return not beyond or float(torch.stack(beyond).median()) < 1e-2
