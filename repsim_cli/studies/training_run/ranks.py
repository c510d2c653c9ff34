"""Effective ranks of the matrices that write to the residual stream: attention output circuit and MLP projection.

A matrix is (D, H): from H inner features to the D of the residual stream.
"""

import itertools
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.models.points import Point
from repsim_cli.models.source import Source

Attention = Literal["heads", "circuit", "whole"]
Normaliser = Literal["min", "H"]
WRITERS = ("attn_out", "mlp_out")
INNER = {"attn_out": "z", "mlp_out": "mlp_post"}  # what their matrices take
TOLERANCE = 1e-10  # of the effective rank, relative, up to which Gram eigenvalues are trusted


def singular_values(matrices: Float[Tensor, "b d h"], *, gram: bool) -> Float[Tensor, "b k"]:
    """Singular values in float64, descending, k = min(d, h).

    gram: from the eigenvalues of the smaller Gram matrix where their rounding leaves the effective rank alone to
    `TOLERANCE`, and through the SVD where not; without it all through the SVD.
    """
    matrices = matrices.double()
    if not gram:
        return torch.linalg.svdvals(matrices)
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    squares = torch.linalg.eigvalsh(wide @ wide.mT).flip(-1)
    values = squares.clamp(min=0).sqrt()
    doubtful = estimate_rounding(squares) > TOLERANCE
    if doubtful.any():
        values[doubtful] = torch.linalg.svdvals(matrices[doubtful])
    return values


def estimate_rounding(squares: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """Relative error of the effective rank that rounding of Gram eigenvalues can leave; infinite where one is lost.

    An eigenvalue is known to eps k l_1, so sigma_i to eps k l_1 / (2 sigma_i); exp(entropy) moves by
    |log p_i| + entropy per unit of p_i.
    """
    k = squares.shape[-1]
    floor = torch.finfo(torch.float64).eps * k * squares[:, :1]
    sigma = squares.clamp(min=0).sqrt()
    p = sigma / sigma.sum(-1, keepdim=True)
    entropy = torch.special.entr(p).sum(-1, keepdim=True)
    error = (floor / (2 * sigma) / sigma.sum(-1, keepdim=True) * (entropy - p.log())).sum(-1)
    lost = (squares <= 10 * floor).any(-1)
    return torch.where(lost | ~torch.isfinite(error), torch.inf, error)


def effective_ranks(values: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """exp of the entropy of the singular values over their sum, in [1, k]. Raises RunFailed for zeros and NaN."""
    total = values.sum(-1, keepdim=True)
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise RunFailed(f"no effective rank, got singular values that sum to {float(total.min())}; leave it out")
    return torch.special.entr(values / total).sum(-1).exp()


class Writers:
    """Where a model keeps the matrices that write to the residual stream. Raises BadInput where a block has none."""

    def __init__(self, source: Source, attention: Attention):
        self.source, self.attention = source, attention
        modules, table = source.skeleton_modules, source.architecture
        wanted = (*WRITERS, "v") if attention == "circuit" else WRITERS
        for kind, layer in itertools.product(wanted, range(source.layers)):
            place = table and table.projection(kind, layer)
            weight = place and getattr(_find_hooked_module(source.skeleton, modules.get(place.module)), "weight", None)
            if weight is None or weight.ndim != 2:
                why = table and (
                    table.say_why_missing(kind, layer) or table.say_why_missing(INNER.get(kind, kind), layer)
                )
                where = f"block {layer} ({why})" if why else f"block {layer}"
                raise BadInput(f"{source.model_type} has no one matrix for {kind} in {where}; use another model")

    def rank(
        self, model: nn.Module, point: str, layer: int, *, gradient: bool, normaliser: Normaliser
    ) -> tuple[float, float]:
        """Effective and proportional effective rank of what writes at `point`, mean over heads where it has heads.

        model: the backbone. normaliser: the largest rank possible (`min`), or the number H of inner features.
        """
        matrices, most, inner = self.matrices(model, point, layer, gradient)
        ranks = effective_ranks(matrices)
        value = float(ranks.mean())
        return value, value / (most if normaliser == "min" else inner)

    def matrices(
        self, model: nn.Module, point: str, layer: int, gradient: bool
    ) -> tuple[Float[Tensor, "b k"], int, int]:
        """Singular values of the matrices at a point of one layer, their largest possible rank, and H."""
        output = self._weight(model, point, layer, gradient)
        if point == "mlp_out" or self.attention == "whole":
            return singular_values(output[None], gram=not gradient), min(output.shape), output.shape[1]
        assert self.source.architecture is not None
        heads_of_layer = self.source.architecture.heads.get(layer)
        width = heads_of_layer.value_width if heads_of_layer else self.source.head_width
        heads = output.unflatten(1, (-1, width)).transpose(0, 1)
        if self.attention == "heads":
            return singular_values(heads, gram=not gradient), min(heads.shape[1:]), width
        values = self._weight(model, "v", layer, gradient).unflatten(0, (-1, width))
        values = values.repeat_interleave(len(heads) // len(values), dim=0)
        # the values of a product of (D, d_head) and (d_head, D) are those of the product of their triangles
        left, right = (torch.linalg.qr(side.double()).R for side in (heads, values.mT))
        return singular_values(left @ right.mT, gram=False), min(heads.shape[1:]), width

    def _weight(self, model: nn.Module, point: str, layer: int, gradient: bool) -> Float[Tensor, "d h"]:
        """A module's matrix (outputs, inputs), or its gradient; of a fused projection the part that `point` reads."""
        assert self.source.architecture is not None
        place = self.source.architecture.projection(point, layer)
        assert place is not None
        module = _find_hooked_module(model, self.source.modules(model)[place.module])
        weight = module.weight.grad if gradient else module.weight
        assert isinstance(weight, Tensor)
        weight = weight.detach()
        if type(module).__name__ != "Conv1D":  # GPT-2's is (inputs, outputs)
            weight = weight.T
        return pick_columns(place, weight, self.source.heads).T


def _find_hooked_module(model: nn.Module, module: nn.Module | None) -> Any:
    """The module itself, or where it is a hook point of TransformerLens, the layer whose output it sees."""
    if module is None or type(module).__name__ != "HookPoint":
        return module
    name = next(name for name, other in model.named_modules() if other is module)
    above = model.get_submodule(name.rpartition(".")[0])
    return getattr(above, "original_component", above)


def pick_columns(place: Point, weight: Float[Tensor, "inputs outputs"], heads: int) -> Float[Tensor, "inputs part"]:
    """The columns that a hook point reads of its module's output."""
    return place.pick(weight[None], heads)[0]
