"""Dynamic sparse training of attention heads and MLP neurons, after NeuroPrune.

Source: Dhurandhar, Pedapati, Luss, Dan, Lozano, Das, Kollias, NeuroPrune, Findings of ACL 2024 (arXiv 2404.01306), with
which gao2024 made its sparse classifiers. No public code was available; what follows is from its published description.

From the source: sparsity is trained, during fine-tuning, by three mechanisms. MLP weights have an L1 penalty whose
weight is inversely proportional to the connectivity of their neuron, so that connected neurons keep their connections
and others lose theirs (preferential attachment). Attention has a group penalty. Heads that are alike are pruned down to
a dominating set. Whole rows and columns of the matrices become zero.

Ours, where the description leaves it open:
- A head is its rows of the query, key and value maps and its columns of the output map; a neuron is its row of the
  first MLP map and its column of the last. Both go with their biases, as a whole, and stay zero.
- A connection of a neuron is a weight above the mean magnitude of its block's remaining MLP weights.
- Penalties are applied after each step (proximal: soft thresholds), as AdamW applies its weight decay, and are given as
  shrinkage over the training, whatever its rate and length.
- Two heads are alike if the mean cosine of their maps W_Q'W_K and W_O W_V is high; these are what a head computes,
  whatever the basis of its features.
- The target is met exactly, in every block alike: what is removed grows along a cubic (Zhu and Gupta 2017), the neurons
  of least connectivity and the heads of least norm first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Fraction, From0, Share
from repsim_cli.models.architectures import find_architecture
from repsim_cli.models.points import Architecture
from repsim_cli.training.trained import Metrics


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Dynamic sparse training of attention heads and MLP neurons (`repsim_cli/training/sparse.py` has the method).

    target: the share of zero weights in the attention and MLP matrices of every block at the end, biases not counted;
        met within one neuron. 0: a dense model.
    penalty: what the penalties take from an averagely connected weight while groups are being removed, in mean
        magnitudes.
    until: the share of the steps over which groups are removed; the rest trains what is left.
    alike: heads of a block are alike if their cosine is above this; of those that are, a dominating set stays longest.
    """

    target: Annotated[float, Field(ge=0, lt=1)]
    penalty: From0 = 0.1
    until: Fraction = 0.7
    alike: Share = 0.5


class BlockUnits(NamedTuple):
    """The heads or the neurons of a block.

    weights: per matrix, (groups, ..., model width). biases: per matrix that has them, (groups, ...). All are views of
    the model's weights.
    """

    weights: list[Tensor]
    biases: list[Tensor]

    @property
    def count(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] - nothing counts items of it
        return len(self.weights[0])

    @property
    def size(self) -> int:
        """Weights per group."""
        return sum(part[0].numel() for part in self.weights)

    def norms(self) -> Float[Tensor, " groups"]:
        return torch.stack([part.flatten(1).square().sum(1) for part in self.weights]).sum(0).sqrt()

    def scale(self, factors: Float[Tensor, " groups"]) -> None:
        for part in self.weights:
            part.mul_(factors.view(-1, *[1] * (part.ndim - 1)))

    def clear(self, removed: Bool[Tensor, " groups"]) -> None:
        for part in (*self.weights, *self.biases):
            part[removed] = 0.0


class PrunedBlock(NamedTuple):
    heads: BlockUnits  # weights: value, the two others, output
    neurons: BlockUnits  # weights: first map, last map


def find_prunable_blocks(config: Any, backbone: nn.Module) -> list[PrunedBlock]:
    """The heads and neurons of every block of an encoder, as views of its weights.

    Raises BadInput where a block is not made of six linear maps (query, key, value, output, and two of the MLP), as in
    BERT.
    """
    table = find_architecture(config, backbone)
    blocks = []
    if table is not None and not table.stacks and table.shared is None:
        with torch.no_grad():
            blocks = [_make_pruned_block(table, backbone, layer) for layer in range(table.depth)]
    if not blocks or None in blocks:
        raise BadInput(
            "recipe.sparsity: the blocks are not of six linear maps (query, key, value, output, two of an MLP), got "
            f"model_type '{config.model_type}'; drop it, or use an encoder such as bert, roberta or distilbert"
        )
    return [block for block in blocks if block is not None]


def _make_pruned_block(table: Architecture, backbone: nn.Module, layer: int) -> PrunedBlock | None:
    modules = dict(backbone.named_modules())
    places = (
        table.projection("v", layer),
        table.projection("attn_out", layer),
        table.find("mlp_pre", layer),
        table.projection("mlp_out", layer),
    )
    known = [modules[place.module] for place in places if place is not None]
    linear = [each for each in modules[f"{table.blocks}.{layer}"].modules() if isinstance(each, nn.Linear)]
    others = [each for each in linear if not any(each is module for module in known)]
    if len(known) != 4 or len(linear) != 6 or len(others) != 2 or layer not in table.heads:
        return None
    value, output, first, last = (each for each in known if isinstance(each, nn.Linear))
    inputs, heads = [value, *others], table.heads[layer].queries
    if len({each.weight.shape for each in (*inputs, output)}) != 1 or first.weight.shape != last.weight.T.shape:
        return None
    return PrunedBlock(
        heads=BlockUnits(
            [
                *(each.weight.detach().unflatten(0, (heads, -1)) for each in inputs),
                output.weight.detach().unflatten(1, (heads, -1)).permute(1, 2, 0),
            ],
            [each.bias.detach().unflatten(0, (heads, -1)) for each in inputs if each.bias is not None],
        ),
        neurons=BlockUnits(
            [first.weight.detach(), last.weight.detach().T],
            [] if first.bias is None else [first.bias.detach()],
        ),
    )


def compute_removal_progress(step: int, removing: int) -> float:
    """The share of all removals that is done after `step` steps: 1 - (1 - x)^3, where x rises to 1 over `removing`."""
    return 1 - (1 - min(1.0, step / removing)) ** 3


def count_units_to_remove(block: PrunedBlock, target: float) -> tuple[int, int]:
    """Counts the heads and neurons to remove so that this share of the block's weights is zero, or up to a neuron more.

    Heads are removed in the same share, rounded down, and more only where all neurons are too few for the rest.
    """
    heads, neurons = block
    wanted = target * (heads.count * heads.size + neurons.count * neurons.size)
    too_few = _round_up((wanted - neurons.count * neurons.size) / heads.size)
    of_heads = max(_round_down(target * heads.count), too_few)
    return of_heads, max(0, _round_up((wanted - of_heads * heads.size) / neurons.size))


def _round_down(number: float) -> int:
    return math.floor(round(number, 9))


def _round_up(number: float) -> int:
    return math.ceil(round(number, 9))


def measure_connectivity(neurons: BlockUnits) -> Float[Tensor, " neurons"]:
    """The share of each neuron's weights above the mean magnitude of the remaining neurons' weights."""
    left = (neurons.norms() > 0).sum()
    total = torch.stack([part.abs().sum() for part in neurons.weights]).sum()
    threshold = total / (left * neurons.size).clamp(min=1)
    above = torch.stack([(part.abs() > threshold).sum(1) for part in neurons.weights]).sum(0)
    return above / neurons.size


def compute_penalty_weights(connected: Float[Tensor, " neurons"]) -> Float[Tensor, " neurons"]:
    """The weights of the L1 penalty: the mean connectivity of the remaining neurons over each neuron's.

    An averagely connected neuron has 1; one without any connection has infinity.
    """
    alive = connected[connected > 0]
    return (alive.mean() if len(alive) else connected.new_tensor(1.0)) / connected


def shrink_neurons(neurons: BlockUnits, amount: float) -> None:
    """Moves every weight towards zero by its neuron's penalty times `amount` mean magnitudes, at most to zero."""
    left = (neurons.norms() > 0).sum()
    mean = torch.stack([part.abs().sum() for part in neurons.weights]).sum() / (left * neurons.size).clamp(min=1)
    by = (amount * mean * compute_penalty_weights(measure_connectivity(neurons))).nan_to_num(posinf=torch.inf)
    for part in neurons.weights:
        part.copy_(part.sign() * (part.abs() - by[:, None]).clamp(min=0))


def shrink_heads(heads: BlockUnits, amount: float) -> None:
    """Lowers the norm of every head by `amount` mean norms of the remaining heads, at most to zero."""
    norms = heads.norms()
    mean = norms.sum() / (norms > 0).sum().clamp(min=1)
    heads.scale((1 - amount * mean / norms.clamp(min=1e-30)).clamp(min=0))


def compute_head_similarities(heads: BlockUnits) -> Float[Tensor, "heads heads"]:
    """The mean cosine, over W_Q'W_K and W_O W_V, of the maps of each two heads; 0 for removed heads."""
    value, *others, output = heads.weights
    total = torch.zeros(heads.count, heads.count, device=value.device)
    for left, right in (others, (value, output)):
        # <A'B, C'D> = sum of AC' * BD', without a matrix of the model's width
        products = [torch.einsum("hid,gjd->hgij", part, part) for part in (left, right)]
        inner = (products[0] * products[1]).sum((2, 3))
        norms = inner.diagonal().clamp(min=1e-30).sqrt()
        total += inner / norms[:, None] / norms
    return total / 2


def find_dominating(alike: Bool[Tensor, "heads heads"], norms: Float[Tensor, " heads"]) -> list[int]:
    """Heads such that each remaining head is one of them or is like one; greedily few, larger norms first at ties."""
    uncovered = {head for head in range(len(norms)) if norms[head] > 0}
    near = {head: {head, *alike[head].nonzero().flatten().tolist()} for head in uncovered}
    chosen = []
    while uncovered:
        head = max(near, key=lambda each: (len(near[each] & uncovered), float(norms[each]), -each))
        chosen.append(head)
        uncovered -= near[head]
    return chosen


def order_heads(heads: BlockUnits, alike: float) -> Int[Tensor, " heads"]:
    """The order of removal: heads outside a dominating set, then the others, by norm. Removed heads come first."""
    norms = heads.norms()
    kept = torch.zeros(heads.count, dtype=torch.bool, device=norms.device)
    kept[find_dominating(compute_head_similarities(heads) > alike, norms)] = True
    by_norm = norms.argsort(stable=True)
    return by_norm[(kept[by_norm]).int().argsort(stable=True)]


def order_neurons(neurons: BlockUnits) -> Int[Tensor, " neurons"]:
    """The order of removal: by connectivity, equal ones by norm. Removed neurons come first."""
    by_norm = neurons.norms().argsort(stable=True)
    return by_norm[measure_connectivity(neurons)[by_norm].argsort(stable=True)]


class SparseTraining:
    """What acts on the weights of an encoder after each step of its training, to make it sparse.

    total: the steps of the training. `state_dict` has what was removed, for a training that resumes.
    """

    def __init__(self, config: Any, backbone: nn.Module, sparsity: Sparsity, total: int):
        self.blocks, self.sparsity = find_prunable_blocks(config, backbone), sparsity
        self.removing = math.ceil(sparsity.until * total)
        self.removed = {
            f"{kind}.{layer}": torch.zeros(groups.count, dtype=torch.bool, device=groups.weights[0].device)
            for layer, block in enumerate(self.blocks)
            for kind, groups in block._asdict().items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Prunes after a step: what was removed stays zero, the rest is penalised, and its least groups removed."""
        for layer, block in enumerate(self.blocks):
            for kind, groups in block._asdict().items():
                groups.clear(self.removed[f"{kind}.{layer}"])
            if self.sparsity.target == 0 or step > self.removing:
                continue
            shrink_heads(block.heads, self.sparsity.penalty / self.removing)
            shrink_neurons(block.neurons, self.sparsity.penalty / self.removing)
            done = compute_removal_progress(step, self.removing)
            heads, neurons = (_round_down(done * count) for count in count_units_to_remove(block, self.sparsity.target))
            self._remove("heads", layer, heads, lambda groups: order_heads(groups, self.sparsity.alike))
            self._remove("neurons", layer, neurons, order_neurons)

    def _remove(self, kind: str, layer: int, count: int, order: Callable[[BlockUnits], Tensor]) -> None:
        removed, groups = self.removed[f"{kind}.{layer}"], getattr(self.blocks[layer], kind)
        if count > int(removed.sum()):
            removed[order(groups)[:count]] = True
            groups.clear(removed)

    def state_dict(self) -> Mapping[str, Tensor]:
        return self.removed

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, removed in self.removed.items():
            removed.copy_(state[name])


def compute_achieved(blocks: list[PrunedBlock]) -> tuple[Metrics, list[Metrics]]:
    """Computes what pruning achieved, in all blocks together and in each: `sparsity`, the share of zero weights in the
    attention and MLP matrices; `heads_removed` and `neurons_removed`, the shares of those whose weights are all zero.
    """

    def measure(some: list[PrunedBlock]) -> Metrics:
        parts = [part for block in some for groups in block for part in groups.weights]
        norms = [torch.cat([getattr(block, kind).norms() for block in some]) for kind in PrunedBlock._fields]
        zero = sum(int((part == 0).sum()) for part in parts)
        return {
            "sparsity": zero / sum(part.numel() for part in parts),
            **{
                f"{kind}_removed": float((x == 0).double().mean())
                for kind, x in zip(PrunedBlock._fields, norms, strict=True)
            },
        }

    return measure(blocks), [measure([block]) for block in blocks]
