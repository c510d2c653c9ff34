"""Two torch modules, one DataLoader, the same layers: `repsim_cli.compare` against pytorch-cka on its own terms.

Command: python benchmarks/modules.py          (about 3 minutes of one core; needs pip install pytorch-cka)
Terms:   minibatch CKA, unbiased HSIC summed over the DataLoader's batches and normalised at the end, eval mode, one
         thread. repsim also compares each module with itself, diagnoses the layers, hashes what was compared, and
         leaves a run that can be saved; pytorch-cka returns the one matrix.
Time:    CPU seconds of the process, both packages by turns, the median of three after one turn that is not counted;
         `forward` is both modules alone.
Error:   the largest difference from the same formula in float64, of activations that are kept whole.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import repsim_cli

TURNS = 3


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(channels, out, 1, stride) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.short(x) + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """A ResNet-18 for small images, `width` channels at first."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        wide = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.ModuleList(
            Block(wide[stage] if first else wide[stage + 1], wide[stage + 1], 2 if first and stage else 1)
            for stage in range(4)
            for first in (True, False)
        )
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Perceptron(nn.Module):
    """24 layers of one width, where the similarity is most of the work."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(24))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def exact(models: Sequence[nn.Module], loader: DataLoader, layers: Sequence[str]) -> Tensor:
    """Minibatch CKA (Nguyen et al. 2021) in float64, HSIC by the formula of Song et al. (2012)."""
    sums: dict[tuple[int, int], Tensor] = {}
    for (batch,) in loader:
        grams = []
        for model in models:
            kept: dict[str, Tensor] = {}
            handles = [
                model.get_submodule(name).register_forward_hook(
                    lambda _, __, out, name=name, kept=kept: kept.update({name: out.flatten(1).double()})
                )
                for name in layers
            ]
            with torch.no_grad():
                model(batch)
            for handle in handles:
                handle.remove()
            grams += [(kept[name] @ kept[name].T).fill_diagonal_(0) for name in layers]
        n = len(batch)
        for i, k in enumerate(grams):
            for j, m in enumerate(grams):
                crossed = (k * m).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k.sum(0) @ m.sum(0))
                sums[i, j] = sums.get((i, j), torch.zeros((), dtype=torch.float64)) + crossed / (n * (n - 3))
    size = len(layers)
    return torch.stack(
        [
            torch.stack([sums[i, j] / (sums[i, i] * sums[j, j]).sqrt() for j in range(size, 2 * size)])
            for i in range(size)
        ]
    )


def seconds_of(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def forwards(models: Sequence[nn.Module], loader: DataLoader) -> None:
    with torch.inference_mode():
        for (batch,) in loader:
            for model in models:
                model(batch)


def theirs(models: Sequence[nn.Module], loader: DataLoader, layers: Sequence[str]) -> Tensor:
    from cka import compute_cka

    return compute_cka(*models, loader, layers=list(layers), device="cpu", progress=False)[0]


def ours(models: Sequence[nn.Module], loader: DataLoader, layers: Sequence[str]) -> Tensor:
    found = repsim_cli.compare(
        dict(zip("ab", models, strict=True)),
        loader,
        measures=["cka_unbiased"],
        layers=layers,
        settings={"extract.estimate": "ratio_of_sums", "extract.batch_rows": loader.batch_size},
    )
    return torch.from_numpy(found.matrix("a", "b").values)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, rows = torch.randn(256, 3, 32, 32), torch.randn(4096, 512)
    blocks, layers = [f"blocks.{i}" for i in range(8)], [f"layers.{i}" for i in range(24)]
    cases = {
        "ResNet-18, 8 layers, 256 images in batches of 64": (ResNet(64), ResNet(64), images, 64, blocks),
        "24 x 512 perceptron, 24 layers, 4096 rows in batches of 512": (
            Perceptron(512),
            Perceptron(512),
            rows,
            512,
            layers,
        ),
    }
    print(f"torch {torch.__version__}, one thread, CPU seconds")
    for name, (a, b, x, size, chosen) in cases.items():
        models, loader = (a.eval(), b.eval()), DataLoader(TensorDataset(x), batch_size=size)
        steps = {
            "forward": partial(forwards, models, loader),
            "pytorch-cka": partial(theirs, models, loader, chosen),
            "repsim": partial(ours, models, loader, chosen),
        }
        times: dict[str, list[float]] = {step: [] for step in steps}
        for turn in range(TURNS + 1):
            for step, run in steps.items():
                seconds = seconds_of(run)
                if turn:
                    times[step].append(seconds)
        middle = {step: statistics.median(found) for step, found in times.items()}
        errors = {step: float((steps[step]() - exact(models, loader, chosen)).abs().max()) for step in list(steps)[1:]}
        print(f"{name}: " + ", ".join(f"{step} {found:.2f}" for step, found in middle.items()))
        print(f"  repsim / pytorch-cka {middle['repsim'] / middle['pytorch-cka']:.2f}; largest errors {errors}")


if __name__ == "__main__":
    sys.exit(main())
