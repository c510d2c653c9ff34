"""Tells whether errors are those of coarser weights: of each linear map, the noise that rounding its weights gives on
its own inputs, and the map that is worse than its bits.

A map whose weights are rounded to steps s has noise of energy sum(s^2 / 12 x^2) on inputs x; inputs that are rounded to
steps t of each token add sum(t^2 / 12 w^2). The share of a step in the largest weight of its row or group, or in the
weight itself where it floats, is the same for all maps of equal bits, and so is the noise, measured over predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from repsim_cli.studies.verify.answer import name_places
from repsim_cli.studies.verify.error import find_module, name_role
from repsim_cli.studies.verify.found import Finding
from repsim_cli.studies.verify.rounding import Places

# weights that share a step; 0: those of a row, 1: a step for each weight, in its own size
GROUPS = (0, 1, 16, 32, 64, 128, 256)
# dB beyond what its bits give, of steps of one size, and of others, whose noise depends on how weights are spread
WORSE, LOOSELY = 3.0, 5.0
SPREAD = 1.0  # dB, of the maps that are as their bits give
BITS = (1.5, 12.0)
FEWEST = 4  # maps
# of a step: a rounding is off by half of one at most (of a floating one, whose steps double, by 0.71 of their mean), of
# other noise of its size 2 % and 1 % of the weights are off by more
UNIFORM, FLOATING, FEW = 0.65, 0.75, 4e-3
DISTINCT = 0.5  # of the weights of a group: rounded weights have few values, other noise as many as there are weights
LOOKED_AT = 128  # rows of weights, of each map


class Scheme(NamedTuple):
    """group: how many weights share a step, as in GROUPS. centred: whether steps lie around zero. inputs: whether these
    are rounded too."""

    group: int
    centred: bool
    inputs: bool

    def __str__(self) -> str:
        named = {0: "a step for each row", 1: "floating, a step in the size of each weight"}
        said = named.get(self.group, f"groups of {self.group} weights")
        return f"{said}, inputs rounded too" if self.inputs else said


@dataclass(frozen=True)
class Noise:
    """By scheme, dB of the measured noise over that of one step in the largest weight."""

    over: Mapping[Scheme, float]


def compute_half_ranges(weights: Tensor, group: int, centred: bool) -> Tensor:
    """Half of the range of each group of weights into one output: (outputs, groups)."""
    grouped = weights.unflatten(1, (-1, group or weights.shape[1]))
    return grouped.abs().amax(2) if centred else (grouped.amax(2) - grouped.amin(2)) / 2


def move_inputs_last(weights: Tensor, module: object) -> Tensor:
    """The weights of a linear map, (outputs, inputs)."""
    return weights.T if type(module).__name__ == "Conv1D" else weights


def measure_rounding_noise(finding: Finding) -> Noise | None:
    """Measures the noise of a finding over what each scheme predicts. None where the place is neither a linear map nor
    an embedding, or what enters it is not known."""
    role, module = name_role(finding), find_module(finding)
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
        squares, of_inputs = torch.ones(1, w.shape[1], dtype=torch.float64), 0.0
    else:
        if finding.entered is None or c.shape != r.shape:
            return None
        w = move_inputs_last(w, module)
        x = places.tokens(finding.entered)[0].double().flatten(1)
        if x.shape[1] != w.shape[1]:
            return None
        squares = x.square().sum(0, keepdim=True)
        of_inputs = float(x.abs().amax(1).square().sum() * w.square().sum())
    energy = float((c - r).square().sum())
    over = {}
    for group in GROUPS:
        if group and w.shape[1] % group:
            continue
        by_group = squares.unflatten(1, (-1, group or w.shape[1])).sum(2)
        for centred in (True, False) if group != 1 else (True,):
            of_weights = float((compute_half_ranges(w, group, centred).square() * by_group).sum())
            for inputs in (False, True) if of_inputs else (False,):
                expected = (of_weights + inputs * of_inputs) / 12
                if energy > 0 and expected > 0:
                    over[Scheme(group, centred, inputs)] = 10 * math.log10(energy / expected)
    return Noise(over) if over else None


@dataclass(frozen=True, eq=False)
class QuantisationFit:
    """scheme: the one by which the maps agree best. bits: of their weights. worse: the maps that are more than WORSE dB
    beyond it, with how much. maps: the others, by part and place."""

    scheme: Scheme
    bits: float
    worse: Mapping[tuple[str, str], float]
    maps: Sequence[tuple[str, str]]

    def about(self, total: int) -> str:
        """Says which maps are rounded, and how. total: the linear maps of all blocks."""
        count = len(self.maps)
        which = f"{count} of {total} linear maps" if count < total else f"{count} linear maps"
        if count + len(self.worse) < total:
            which += f" ({name_places(self.maps)})"
        return f"the errors of {which} are what rounding to about {self.bits:.1f} bits gives ({self.scheme})"


def find_quantisation_fits(noises: Mapping[tuple[str, str], Noise]) -> list[QuantisationFit]:
    """Finds the roundings that the errors of these maps may come from, the one by which they agree best first."""
    if len(noises) < FEWEST:
        return []
    found: list[tuple[float, QuantisationFit]] = []
    for scheme in dict.fromkeys(scheme for noise in noises.values() for scheme in noise.over):
        if any(scheme not in noise.over for noise in noises.values()):
            continue
        over = {place: noise.over[scheme] for place, noise in noises.items()}
        middle = median(over.values())
        spread = 1.48 * median(abs(each - middle) for each in over.values())
        bits = 1 - middle / (20 * math.log10(2))
        if spread <= SPREAD and BITS[0] <= bits <= BITS[1]:
            worse = {place: each - middle for place, each in over.items() if each - middle > WORSE}
            found.append(
                (spread, QuantisationFit(scheme, bits, worse, [place for place in over if place not in worse]))
            )
    return [fit for _, fit in sorted(found, key=lambda each: each[0])]


def copy_some_rows(weights: Tensor) -> Tensor:
    """A copy of some rows of (outputs, inputs), so that the others need not stay in memory."""
    return weights[:: max(1, len(weights) // LOOKED_AT)].clone()


def find_rounding(found: Sequence[QuantisationFit], pairs: Sequence[tuple[Tensor, ...]]) -> QuantisationFit | None:
    """Chooses the rounding that weights are off by, or of which they have the few values; None where it is none.

    pairs: some rows of weights of the reference and of the candidate; without any, errors alone decide.
    """
    if not pairs:
        return _keep_large_misfits(found[0]) if found else None
    most = {fit: [_measure_largest_error(fit, x.double(), y.double()) for x, y in pairs] for fit in found}
    within = [fit for fit in found if median(most[fit]) <= (FLOATING if fit.scheme.group == 1 else UNIFORM)]
    if within:
        return min(within, key=lambda fit: sum(most[fit]))
    groups = {fit: fit.scheme.group if fit.scheme.group > 1 else 0 for fit in found}
    few = next(
        (
            fit
            for fit in found
            if median(_measure_distinct_share(y.double(), groups[fit]) for _, y in pairs) <= DISTINCT
        ),
        None,
    )
    return few and _keep_large_misfits(few)


def _keep_large_misfits(fit: QuantisationFit) -> QuantisationFit:
    worse = {place: by for place, by in fit.worse.items() if by > LOOSELY}
    every = [*fit.maps, *fit.worse]
    return replace(fit, worse=worse, maps=[place for place in every if place not in worse])


def _measure_largest_error(fit: QuantisationFit, x: Tensor, y: Tensor) -> float:
    """Measures by how much of a step weights are off: the largest error, when the FEW largest are left out."""
    group, centred, _ = fit.scheme
    step = compute_half_ranges(x, group, centred).repeat_interleave(group or x.shape[1], 1) / 2 ** (fit.bits - 1)
    off = ((x - y).abs() / step.clamp_min(1e-300)).flatten()
    return float(off.kthvalue(max(1, int((1 - FEW) * len(off)))).values)


def _measure_distinct_share(weights: Tensor, group: int) -> float:
    """Measures how many different values the weights of a group have, as a share of their number."""
    ordered = weights.unflatten(1, (-1, group or weights.shape[1])).sort(2).values
    return float((ordered.diff(dim=2) != 0).double().mean())
