"""Linear layers of models on a CPU give what torch gives, up to the rounding of float32."""

import pytest
import torch
from torch import nn

from repsim_cli.activations import linear
from repsim_cli.activations.linear import speed_up_linear_layers


@pytest.fixture
def seen(monkeypatch):
    """The products that are taken; one of torch's own stands in where the processor has no faster one."""
    taken = []

    def product(x, y, bias):
        taken.append((tuple(x.shape), tuple(y.shape)))
        return nn.functional.linear(x, y, bias)

    real = linear.find_onednn_product()
    monkeypatch.setattr(
        linear, "find_onednn_product", lambda: lambda *given: (product(*given), (real or product)(*given))[1]
    )
    return taken


class Transposed(nn.Module):
    """A layer like Conv1D of transformers: weights (d, e)."""

    def __init__(self, d, e):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(d, e)), nn.Parameter(torch.randn(e))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("layer", [nn.Linear(40, 24), nn.Linear(40, 24, bias=False), Transposed(40, 24)])
@pytest.mark.parametrize("shape", [(3, 7, 40), (1, 1, 40)])
def test_the_layer_is_that_of_float64(layer, shape, seen):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), speed_up_linear_layers(torch.zeros(1)) as context:
        found = layer(x)
    assert context is not None
    assert len(seen) == 1
    exact = layer.double()(x.double()).detach()
    layer.float()
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)


def test_rows_that_do_not_lie_next_to_each_other(seen):
    layer, x = nn.Linear(40, 24), torch.randn(40, 7, 3).permute(2, 1, 0)
    with torch.inference_mode():
        with speed_up_linear_layers(torch.zeros(1)):
            found = layer(x)
        torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-5)
    assert seen == [((3, 7, 40), (24, 40))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_left_as_they_are(dtype, seen):
    layer, x = nn.Linear(40, 24).to(dtype), torch.randn(3, 40).to(dtype)
    with torch.inference_mode():
        for weights in (torch.zeros(1), layer.weight):
            with speed_up_linear_layers(weights):
                assert torch.equal(layer(x), layer.cpu()(x))
    assert not seen


def test_no_rows_and_weights_of_other_kinds_are_left_as_they_are(seen):
    class Marked(torch.Tensor):
        pass

    x, weight = torch.randn(3, 40), torch.randn(24, 40)
    with torch.inference_mode(), speed_up_linear_layers(weight):
        assert nn.functional.linear(x[:0], weight).shape == (0, 24)
        assert isinstance(nn.functional.linear(x, weight.as_subclass(Marked)), Marked)
        assert torch.addmm(x.new_ones(24), x, weight.T, beta=2).shape == (3, 24)
    assert not seen


def test_nothing_changes_where_no_product_is_faster(monkeypatch):
    monkeypatch.setattr(linear, "find_onednn_product", lambda: None)
    with speed_up_linear_layers(torch.zeros(1)) as context:
        assert context is None
