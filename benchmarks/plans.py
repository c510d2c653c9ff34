"""What plans say that measures take, against what they take: every measure alone, all pairs of four layers.

Command: python benchmarks/plans.py [MEASURE ...]

CPU seconds of one thread, as planned and as measured, for several numbers of rows and features. A larger size of a
measure that took more than LONGEST seconds is left out. off: measured over planned.
"""

import sys
import time
import warnings

import torch

from repsim_cli import measures
from repsim_cli.base.errors import RepsimError
from repsim_cli.base.settings import Hardware
from repsim_cli.engine.cost import estimate_pairs_cost
from repsim_cli.engine.pairs import compute_all_pairs

SIZES = ((256, 64), (1000, 64), (1000, 384))
LAYERS, LONGEST = 4, 8.0


def layers(rows: int, width: int) -> list[torch.Tensor]:
    """Layers that share most, each after a random rotation and a nonlinearity."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, width + 1) ** -0.5
    x = torch.randn(rows, width, generator=generator) * spectrum
    found = []
    for _ in range(LAYERS):
        step = torch.randn(width, width, generator=generator) / width**0.5
        x = x + 0.3 * torch.nn.functional.gelu(x @ step)
        found.append(x)
    return found


def taken(name: str, given: list[torch.Tensor]) -> tuple[float, float]:
    """Plans and takes the seconds of a measure."""
    bound = measures.get(name)
    count = len(given)
    hardware = Hardware(threads=1)
    planned = estimate_pairs_cost(
        [bound], [x.shape[1] for x in given], count * (count + 1) // 2, len(given[0]), hardware
    )
    labels = torch.arange(len(given[0])) % 8 if bound.card.labelled else None
    begin = time.process_time()
    compute_all_pairs({name: bound}, given, labels=labels)
    return planned.seconds, time.process_time() - begin


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = sys.argv[1:] or measures.names("activations")
    print("| measure | " + " | ".join(f"{n} x {d}: planned, taken, off" for n, d in SIZES) + " |")
    print("| --- |" + " --- |" * len(SIZES))
    for name in names:
        cells, last = [], 0.0
        for size in SIZES:
            if last > LONGEST:
                cells.append("")
                continue
            try:
                planned, last = taken(name, layers(*size))
                cells.append(f"{planned:.2g}, {last:.2g}, {last / planned:.2g}")
            except RepsimError as error:
                cells.append(type(error).__name__)
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
