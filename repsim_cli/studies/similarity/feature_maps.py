"""Feature maps of single images, averaged over channels, as a strip of all layers shows them."""

from collections.abc import Sequence
from math import isqrt

from jaxtyping import Float
from torch import Tensor, nn

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import HookPoint
from repsim_cli.base.errors import RunFailed
from repsim_cli.models.source import Source

Map = Float[Tensor, "b h w"]


def compute_feature_maps(
    model: nn.Module, source: Source, points: Sequence[HookPoint], pixels: Float[Tensor, "b c i j"], before: int
) -> list[Map]:
    """The map of every hook point, for each image. before: places of the model's input before its patches."""
    with capture(model, source, points) as read:
        outputs = read(pixels, None)
    first = {point: before if x.shape[1] == source.context else 0 for point, x in outputs.items()}
    return [arrange_in_plane(outputs[point], first[point], str(point)) for point in points]


def arrange_in_plane(x: Float[Tensor, "b s d"], before: int, name: str) -> Map:
    """The mean over features at every place of a square grid; of a layer of one place its features, in a grid that is
    as square as their number allows. Raises RunFailed where the places form no square.

    >>> import torch
    >>> x = torch.arange(8.0).view(1, 4, 2)
    >>> arrange_in_plane(x, 0, "conv@0")[0].tolist()
    [[0.5, 2.5], [4.5, 6.5]]
    >>> arrange_in_plane(x[:, :1].repeat(1, 1, 3), 0, "linear@8").shape
    torch.Size([1, 2, 3])
    """
    places = x[:, before:]
    count = places.shape[1]
    if count == 1:
        features = places.shape[2]
        height = next(side for side in range(isqrt(features), 0, -1) if features % side == 0)
        return places[:, 0].unflatten(1, (height, -1)).float()
    side = isqrt(count)
    if side * side != count:
        raise RunFailed(f"{name}: its places form no square, got {count}; leave out analyses.feature_maps")
    return places.float().mean(2).unflatten(1, (side, side))
