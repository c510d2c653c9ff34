"""The error at a place: what works there, and the tensors of candidate and reference by token and feature."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from repsim_cli.studies.verify.found import OUT, Finding
from repsim_cli.studies.verify.rounding import Places, raise_precision, zero_masked_values
from repsim_cli.studies.verify.trace import IN

LEFT = 1e-4  # of the error's energy, that a rule leaves
ROUNDED = 2  # roundings, as many as are in the error itself
MOST = 0.01  # of its energy, that may be put down to them: errors that are smaller fit too many rules
INSIDE = ("q", "k", "v", "z", "qk", "scores", "pattern")


def name_role(finding: Finding) -> str:
    """Names what works at the place: a part of attention, the class of the module, or the sums between modules."""
    if finding.sketched:
        return "sketch"
    module, _, what = finding.place.rpartition(":")
    what = what.partition("#")[0]
    if finding.key == OUT:
        return "logits"
    if module and what in INSIDE:
        return what
    if finding.place.endswith(IN):
        return "sum"
    part = find_module(finding)
    name = type(part).__name__.lower()
    if part is finding.unit.module and finding.unit.block is not None:
        return "block"
    if "rotary" in name or hasattr(part, "inv_freq"):
        return "rotary"
    if isinstance(part, nn.Embedding):
        path = f"{finding.unit.key}.{finding.place}"
        return "positions" if "pos" in path or "wpe" in path else "types" if "type" in path else "embed"
    if "norm" in name:
        return "norm"
    if is_linear_map(part):
        return "linear"
    if "router" in name or "gate" in name:
        return "router"
    if "expert" in name:
        return "experts"
    known = any(word in name for word in ("act", "gelu", "silu", "relu", "tanh"))
    return "activation" if known and not list(part.children()) else "sum"


def is_linear_map(module: nn.Module) -> bool:
    return type(module).__name__.lower() in ("linear", "conv1d") or hasattr(module, "in_features")


def find_module(finding: Finding) -> nn.Module:
    """The reference's module at the place; the unit where it is none of its own."""
    path = finding.place.partition("#")[0].partition("[")[0].rpartition(":")[0] or finding.place.partition("#")[0]
    path = path.partition("[")[0].partition(":")[0]
    try:
        return finding.unit.module.get_submodule(path)
    except AttributeError:
        return finding.unit.module


@dataclass(frozen=True)
class ErrorTensors:
    """The tensors of a place by token: (tokens, features) in float64. x: what enters the module, where it is known."""

    finding: Finding
    role: str

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor, bool]:
        """C and R as (tokens, parts, d), with what is masked, and whether they are of tokens."""
        assert self.finding.candidate is not None
        assert self.finding.reference is not None
        places = Places(self.finding.batch.mask)
        (c, of_tokens), (r, _) = places.tokens(self.finding.candidate), places.tokens(self.finding.reference)
        return raise_precision(c).double(), raise_precision(r).double(), of_tokens

    @cached_property
    def c(self) -> Tensor:
        return zero_masked_values(self.parts[0]).flatten(1)

    @cached_property
    def r(self) -> Tensor:
        return zero_masked_values(self.parts[1]).flatten(1)

    @cached_property
    def e(self) -> Tensor:
        return self.c - self.r

    @cached_property
    def x(self) -> Tensor | None:
        if self.finding.entered is None:
            return None
        x, of_tokens = Places(self.finding.batch.mask).tokens(self.finding.entered)
        return x.double().flatten(1) if of_tokens and len(x) == len(self.c) else None

    @cached_property
    def relative(self) -> float:
        return float(self.e.norm() / self.r.norm().clamp_min(1e-300))

    def explain(self, fit: Tensor) -> float:
        """The share of the error's energy that `fit` explains."""
        return 1 - float((self.e - fit).square().sum() / self.e.square().sum().clamp_min(1e-300))

    @cached_property
    def rounding(self) -> float:
        """The share of the error's energy that is rounding."""
        return min((ROUNDED / max(self.finding.judged.whole, 1e-30)) ** 2, MOST)

    def is_(self, fit: Tensor, left: float = LEFT) -> bool:
        return 1 - self.explain(fit) < max(left, self.rounding)

    def gives(self, other: Tensor) -> bool:
        """Says whether the candidate gives this tensor."""
        return other.shape == self.c.shape and self.is_(other - self.r)

    @cached_property
    def linear(self) -> bool | None:
        """True if the error is a linear function of what enters, as that of other weights is. None where that is not
        known: with fewer tokens than features anything is."""
        return None if self.fit is None else self.is_(self.fit[0])

    @cached_property
    def fit(self) -> tuple[Tensor, Tensor] | None:
        """The linear function of what enters that is nearest to the error: its values, and its coefficients by feature
        that enters, the last of which is an offset."""
        if self.x is None or len(self.x) < self.x.shape[1] + 8:
            return None
        x = torch.cat([self.x, torch.ones_like(self.x[:, :1])], 1)
        coefficients = torch.linalg.lstsq(x, self.e, driver="gelsd").solution
        return x @ coefficients, coefficients

    @cached_property
    def slopes(self) -> tuple[Tensor, Tensor]:
        """The coefficients a and b of each feature, by least squares of the error on a + b R."""
        r0, e0 = self.r.mean(0), self.e.mean(0)
        spread = (self.r - r0).square().sum(0)
        b = ((self.e - e0) * (self.r - r0)).sum(0) / spread.clamp_min(1e-300)
        return e0 - b * r0, torch.where(spread > 1e-20, b, torch.zeros_like(b))

    @cached_property
    def hit(self) -> Tensor:
        """The features that the error is in."""
        energy = self.e.square().sum(0)
        return energy > max(1e-8 * float(energy.max()), 4 * self.rounding * float(energy.mean()))
