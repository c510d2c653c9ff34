"""The hash of tensors tells apart all that makes them different."""

import torch

from repsim_cli.base.arrays import hash_tensors


def test_names_types_shapes_values_and_order_count():
    x = torch.arange(6.0)
    first = [("x", x), ("y", torch.zeros(0))]
    others = [
        [("z", x), ("y", torch.zeros(0))],
        [("x", x.double()), ("y", torch.zeros(0))],
        [("x", x.view(torch.int32)), ("y", torch.zeros(0))],
        [("x", x.view(2, 3)), ("y", torch.zeros(0))],
        [("x", x.view(3, 2)), ("y", torch.zeros(0))],
        [("x", x + 1), ("y", torch.zeros(0))],
        [("x", x), ("y", torch.zeros(0, 2))],
        first[::-1],
    ]
    assert len({hash_tensors(each) for each in (first, *others)}) == 9
    assert hash_tensors([("x", torch.arange(12.0)[::2] / 2), first[1]]) == hash_tensors(first)  # strides do not
