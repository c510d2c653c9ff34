"""Modules of a program's own, compared by `compare` over batches of its data."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repsim_cli
from repsim_cli.base.errors import BadInput
from repsim_cli.models import recording
from repsim_cli.models.recording import record_modules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.second(torch.relu(self.norm(self.first(x))))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_any_module(images):
    net = Net()
    net.first.eval()  # a mixture of modes
    loader = DataLoader(TensorDataset(images, torch.zeros(40)), batch_size=16)
    given = {"measures": ["cka"], "layers": ["first", "second", "head"], "maps": "pooled"}
    found = repsim_cli.compare({"net": net, "twin": net}, loader, **given)
    assert (net.training, net.first.training, net.norm.training) == (True, False, True)
    assert not net.first._forward_hooks
    with torch.no_grad():
        net.eval()
        conv = net.first(images)
        expected = [x.flatten(2).mean(2) if x.ndim == 4 else x for x in (conv, net.second(torch.relu(net.norm(conv))), net(images))]  # fmt: skip
    x, y, z = ((rows - rows.mean(0)).double() for rows in expected)

    def cka(a, b):
        return float((a.T @ b).square().sum() / torch.linalg.norm(a.T @ a) / torch.linalg.norm(b.T @ b))

    values = found.matrix("net", "twin").values
    assert found.matrix("net", "twin").rows == ["first", "second", "head"]
    np.testing.assert_allclose(values, [[cka(a, b) for b in (x, y, z)] for a in (x, y, z)], atol=1e-6)
    once = (batch for batch in DataLoader(TensorDataset(images), batch_size=16, shuffle=True))
    shuffled = repsim_cli.compare({"net": net, "twin": net}, once, **given)  # rows stay paired
    np.testing.assert_allclose(shuffled.matrix("net", "twin").values, values, atol=1e-6)
    by_forward = repsim_cli.compare(
        {"net": net}, {"x": images}.items(), forward=lambda net, pair: net(pair[1]), **given
    )
    np.testing.assert_allclose(by_forward.matrix("net").values, values, atol=1e-6)
    flat = repsim_cli.compare({"net": net}, images, measures=["cka"])
    assert flat.matrix("net").rows == ["first", "norm", "second", "head"]
    assert flat.manifest["facts"]["net"]["widths"] == [6 * 36, 6 * 36, 4 * 16, 2]
    places = repsim_cli.compare({"net": net}, images, measures=["cka"], layers=["first"], maps="positions")
    assert places.results.measures[0].estimate["rows_available"] == 40 * 36
    tested = {"layers": ["first"], "measures": ["cka"], "significance": "permutation"}
    with pytest.raises(BadInput, match="significance.clusters: nothing says which rows of 'net' depend on each other"):
        repsim_cli.compare({"net": net}, images, maps="positions", **tested)
    with pytest.raises(BadInput, match="positions of one input depend on each other, got row with maps='positions'"):
        repsim_cli.compare({"net": net}, images, maps="positions", settings={"significance.clusters": "row"}, **tested)
    told = repsim_cli.compare({"net": net}, images, maps="positions", documents=range(40), **tested)
    assert told.results.measures[0].null["segments"] == 40
    with pytest.raises(BadInput, match="data: one DataLoader, got 2 in a list"):
        repsim_cli.compare({"net": net}, [DataLoader(TensorDataset(images))] * 2)


def test_minibatch_cka_of_modules_is_exact(images):
    """The terms are those of other packages: sums over the batches of the DataLoader (benchmarks/modules.py)."""
    import modules

    pair, loader = (Net().eval(), Net().eval()), DataLoader(TensorDataset(images + 30), batch_size=20)
    layers = ["first", "norm", "second"]
    expected = modules.exact(pair, loader, layers).numpy()
    np.testing.assert_allclose(modules.ours(pair, loader, layers).numpy(), expected, atol=2e-6)


def test_rows_of_a_batch_are_not_copied(images):
    kept = record_modules({"net": Net()}, images.split(20), ["first"])["net"]
    assert kept.is_held(slice(20, 40))
    assert not kept.is_held(slice(10, 30))


def test_rows_beyond_the_memory_are_in_files():
    parts = [torch.randn(10, 2).numpy() for _ in range(3)]
    with ExitStack() as stack:
        rows = recording._Rows(["layer"], 2 * parts[0].nbytes, stack)
        for part in parts:
            rows.add({"layer": part}, len(part))
    kept = rows.keep("in memory", None)
    assert [kept.is_held(slice(start, start + 10)) for start in (0, 10, 20)] == [True, True, False]
    np.testing.assert_array_equal(kept.read("layer", slice(5, 30)), np.concatenate(parts)[5:])


def test_outputs_that_are_changed_in_place(images):
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 3)
    both = {
        "in_place": nn.Sequential(first, nn.ReLU(inplace=True), second),
        "apart": nn.Sequential(first, nn.ReLU(), second),
    }
    found = repsim_cli.compare(both, images, measures=["cka"])
    assert found.matrix("in_place", "apart").values.diagonal().tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ["frist"]}, "models.net.layers: no such module, got 'frist'; did you mean 'first'?"),
        ({"layers": ["first", "head"], "maps": "positions"}, "models.net.layers: they differ in their number of positions, got \\[40, 1440\\] rows"),
        ({"forward": lambda net, x: net.head(x.mean((2, 3))[:, :1].expand(-1, 4))}, "models.net.layer 'first': it did not run"),
        ({"forward": lambda net, x: (net(x), net(x))}, "models.net.layer 'first': it runs twice in a forward pass"),
    ],
)  # fmt: skip
def test_bad_layers(images, settings, message):
    with pytest.raises(BadInput, match=message):
        repsim_cli.compare({"net": Net()}, images, **settings)


def test_modules_that_give_no_rows(images):
    class Odd(nn.Module):
        def __init__(self, give):
            super().__init__()
            self.part, self.give = nn.Identity(), give

        def forward(self, x):
            self.part.forward = self.give
            return self.part(x)

    for give, message in [
        (lambda x: {"a": x}, "layer 'part': not a tensor, got dict"),
        (lambda x: x.sum(), "layer 'part': not one row per item, got torch.float32 \\(\\)"),
    ]:
        with pytest.raises(BadInput, match=message):
            repsim_cli.compare({"odd": Odd(give)}, images, layers=["part"])
    sizes = [torch.randn(4, 3, 8, 8), torch.randn(4, 3, 10, 10)]
    with pytest.raises(BadInput, match="layer 'first': batches differ in shape, got 216 and 384 features; give inputs"):
        repsim_cli.compare({"net": Net()}, sizes, layers=["first"])
    with pytest.raises(BadInput, match="data: no batch was given"):
        repsim_cli.compare({"net": Net()}, [])


def test_batches_in_other_forms(images):
    """A numpy array, a Dataset, a layer by its name alone, and modules without labels give the same values."""
    net = Net()

    def values(models, data):
        return repsim_cli.compare(models, data, measures="cka", layers="second").matrix("Net").values

    expected = values({"Net": net}, images)
    for models, data in [({"Net": net}, images.numpy()), ([net], TensorDataset(images)), ([net], [images.numpy()])]:
        np.testing.assert_allclose(values(models, data), expected, atol=1e-6)


def test_rows_of_others_are_those_of_the_batches(images):
    rows, loader = images.flatten(1), DataLoader(TensorDataset(images), batch_size=16, shuffle=True)
    with pytest.raises(
        BadInput, match="data: rows of 'x' are paired with batches in order, got .* RandomSampler; give"
    ):
        repsim_cli.compare({"net": Net(), "x": rows}, loader)
    with pytest.raises(
        BadInput, match="models.x: a model of texts beside modules, got batches; give arrays of the same"
    ):
        repsim_cli.compare({"net": Net(), "x": "tiny_a"}, images)
    repsim_cli.compare({"net": Net(), "x": rows}, images, layers=["head"], measures=["cka"])


def test_a_module_without_parts_is_a_layer():
    x = torch.randn(40, 5)
    found = repsim_cli.compare({"a": nn.Linear(5, 4), "b": nn.Linear(5, 3)}, [x], measures=["cka"]).matrix("a", "b")
    assert (found.rows, found.columns) == (["module"], ["module"])
    repsim_cli.compare({"a": nn.ReLU(), "b": nn.Linear(5, 3)}, [x], layers=["module"], measures=["cka"])


def test_batches_that_modules_do_not_take(images):
    with pytest.raises(RuntimeError) as failed:
        repsim_cli.compare({"net": Net()}, images[:, :1])
    shape = f"got a Tensor with {tuple(images[:, :1].shape)} of torch.float32; give batches as"
    assert failed.value.__notes__[0].startswith(f"data: the module failed on a batch, {shape}")
    with pytest.raises(repsim_cli.BadInput, match="forward: not callable, got 'x'; use lambda module, batch: module"):
        repsim_cli.compare({"net": Net()}, images, forward="x")
    assert failed.value.__notes__[1] == "in models.net"
    with pytest.raises(BadInput, match="^data: a torch module takes batches; give a DataLoader, or a tensor"):
        repsim_cli.compare({"net": Net()})
    with pytest.raises(BadInput, match="layers: no module with weights and no parts, got 0; name some"):
        repsim_cli.compare({"net": nn.Sequential(nn.ReLU())}, images)
    with pytest.raises(
        BadInput, match=r"layer '0': its first dimension is not the batch, got \(5, 7, 3\) for 7 items; ch"
    ):
        repsim_cli.compare({"net": nn.Sequential(nn.Linear(2, 3))}, [torch.zeros(7, 5, 2)], forward=lambda net, x: net(x.transpose(0, 1)))  # fmt: skip
