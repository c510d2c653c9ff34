"""Makes rows that a head gives in place of its own: in another order, or noise in a cluster for each right answer."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.studies.stitching.models import Inputs, Layer

NONE = -1  # the answer after the last token of a sequence
LARGE = 2**31 - 1


def find_answers(inputs: Inputs, labels: Int[Tensor, " b"] | None) -> Int[Tensor, "b s"]:
    """Finds what is to be predicted at every place: the label of the sequence, or the next token; NONE after that."""
    if labels is not None:
        return labels[:, None].expand(inputs.ids.shape)
    following = torch.full_like(inputs.ids, NONE)
    following[:, :-1] = torch.where(inputs.mask[:, 1:], inputs.ids[:, 1:], NONE)
    return following


def alter(
    kind: str,
    streams: Mapping[Layer, Float[Tensor, "b s d"]],
    inputs: Inputs,
    labels: Int[Tensor, " b"] | None,
    seed: int,
) -> Mapping[Layer, Float[Tensor, "b s d"]]:
    """Changes the streams of a batch as this kind of head gives them; seed: of this batch."""
    if kind == "shuffled":
        return shuffle_head_rows(streams, inputs.mask, seed)
    if kind == "noise":
        return {
            layer: draw_clusters(stream, find_answers(inputs, labels), layer, seed) for layer, stream in streams.items()
        }
    return streams


def shuffle_head_rows(
    streams: Mapping[Layer, Float[Tensor, "b s d"]], mask: Bool[Tensor, "b s"], seed: int
) -> dict[Layer, Float[Tensor, "b s d"]]:
    """Puts the rows of a batch into another order, the same at every layer; padding stays where it is."""
    rows = mask.flatten().nonzero().flatten()
    order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    out = {}
    for layer, stream in streams.items():
        flat = stream.flatten(0, 1).clone()
        flat[rows.to(flat.device)] = flat[order.to(flat.device)]
        out[layer] = flat.reshape(stream.shape)
    return out


def draw_clusters(
    stream: Float[Tensor, "b s d"], answers: Int[Tensor, "b s"], layer: Layer, seed: int
) -> Float[Tensor, "b s d"]:
    """Draws normal noise about a centre for each answer, half of the variance each, of the size of the entries.

    A centre is drawn for its answer and layer alone, so that it is the same in every batch; the noise under the seed.
    """
    width, (unique, which) = stream.shape[-1], answers.unique(return_inverse=True)
    draw = torch.Generator()
    centres = torch.empty(len(unique), width)
    for i, answer in enumerate(unique.tolist()):
        centres[i] = torch.randn(width, generator=draw.manual_seed((answer + 1) * 1_000_003 + layer + 1))
    draw.manual_seed((seed * 1_000_003 + layer + 1) % LARGE)
    rows = centres[which] + torch.randn(*answers.shape, width, generator=draw)
    return (rows * float(stream.square().mean() / 2) ** 0.5).to(stream)
