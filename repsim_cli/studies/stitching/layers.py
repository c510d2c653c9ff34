"""Stitch layers: maps from the residual stream of one model into that of another, and how they are initialised.

`affine` is the published layer: a LayerNorm (without weights, which the map after it would only repeat) and an affine
map. `linear` is the map alone, `orthogonal` a rotation or reflection and a shift, `identity` no change at all,
`least_squares` the linear map fitted in closed form, with intercept, and not trained.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal
from torch.nn.utils.parametrize import is_parametrized

from repsim_cli.base.errors import BadInput

Layers = Literal["affine", "linear", "orthogonal", "identity", "least_squares"]
Init = Literal["least_squares", "identity"]


def _affine(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(inner, elementwise_affine=False), nn.Linear(inner, outer))


def _linear(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, outer))


def _orthogonal(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(orthogonal(nn.Linear(inner, outer), orthogonal_map="matrix_exp"))


@dataclass(frozen=True)
class Kind:
    """build(inner width, outer width): the layer, whose last module is the map. trained: whether it is trained."""

    build: Callable[[int, int], nn.Sequential]
    trained: bool = True
    equal_widths: bool = False


KINDS: dict[str, Kind] = {
    "affine": Kind(_affine),
    "linear": Kind(_linear),
    "orthogonal": Kind(_orthogonal, equal_widths=True),
    "identity": Kind(lambda inner, outer: nn.Sequential(), trained=False, equal_widths=True),
    "least_squares": Kind(_linear, trained=False),
}


def check_layer(kind: Layers, init: Init, head: tuple[str, int], tail: tuple[str, int]) -> None:
    """Raises BadInput where the layer or its initialisation needs equal widths; head, tail: (label, width)."""
    if head[1] == tail[1]:
        return
    got = f"got {head[1]} ({head[0]}) and {tail[1]} ({tail[0]})"
    if KINDS[kind].equal_widths:
        raise BadInput(f"options.recipe.layer: {kind} needs equal widths, {got}; use affine, linear or least_squares")
    if init == "identity" and KINDS[kind].trained:
        raise BadInput(f"options.recipe.init: identity needs equal widths, {got}; use least_squares")


class PairedSums:
    """Sums over paired rows from which a linear map between them is fitted, in float64.

    normalise: the modules of the layer before its map.
    """

    def __init__(self, layer: nn.Sequential, inner: int, outer: int, device: torch.device):
        self.normalise = layer[:-1]
        self.count = 0
        self.x, self.y, self.xx, self.xy = (
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in ((inner,), (outer,), (inner, inner), (inner, outer))
        )

    @torch.no_grad()
    def add(self, x: Float[Tensor, "n inner"], y: Float[Tensor, "n outer"]) -> None:
        x, y = self.normalise(x.float()).double(), y.double()
        self.count += len(x)
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.xx += x.T @ x
        self.xy += x.T @ y

    def covariances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means of x and y; the covariance of x, and of x and y, both times the count."""
        mean_x, mean_y = self.x / self.count, self.y / self.count
        return (
            mean_x,
            mean_y,
            self.xx - self.count * torch.outer(mean_x, mean_x),
            self.xy - self.count * torch.outer(mean_x, mean_y),
        )


@torch.no_grad()
def start_at_identity(layer: nn.Sequential) -> None:
    """Sets the map of a layer to the identity; equal widths."""
    linear: Any = layer[-1]
    _set_orthogonal(linear, torch.eye(linear.out_features), torch.zeros(linear.out_features))


@torch.no_grad()
def start_at_least_squares(layer: nn.Sequential, kind: Layers, moments: PairedSums) -> None:
    """Sets the map, with intercept, to the best predictor of y from x, orthogonal where the layer is."""
    mean_x, mean_y, xx, xy = moments.covariances()
    if kind == "orthogonal":
        left, _, right = torch.linalg.svd(xy)
        weights = left @ right
    else:
        # rows behind a LayerNorm sum to zero, so that the covariance is singular: the map of smallest norm
        weights = torch.linalg.pinv(xx, hermitian=True, rtol=1e-10) @ xy
    _set_orthogonal(layer[-1], weights.T, mean_y - mean_x @ weights)


def _set_orthogonal(linear: Any, weights: Tensor, bias: Tensor) -> None:
    """The weights of an orthogonal map are not a parameter: its parameters follow from the tensor that they
    are set to."""
    weights = weights.to(linear.bias)
    linear.weight = weights if is_parametrized(linear) else nn.Parameter(weights)
    linear.bias.copy_(bias)
