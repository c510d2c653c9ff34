"""Gromov-Wasserstein by blocks, of more rows than `held_rows`: against the search with all distances, and planted.

Command: python benchmarks/gromov_blocks.py [full ROWS ...] [planted ROWS ...] [large ROWS ...] [lowrank ROWS ...]
         (by default full 300 700 2000 5000 planted 10000)

full: pairs of layers that share most, with the rows of one side as they are and shuffled. by blocks: its objective
over that with all distances. planted: a rotated copy of one of these layers, with noise of so many standard deviations,
as it is and shuffled. large: layers that share most, as they are and shuffled. lowrank: shuffled layers, the objectives
of POT's coupling of low rank, in distances and in their squares, which it minimises, beside those of the measure's
coupling and of the uniform one. CPU seconds of one thread, a state and a pair; peak memory of the process.
"""

import resource
import sys
import time
import warnings

import numpy as np
import torch
from ot.gromov import lowrank_gromov_wasserstein_samples
from plans import layers
from threadpoolctl import threadpool_limits

from repsim_cli import measures

WIDTH, NOISE, RANKS = 64, (0.0, 0.1, 0.3, 1.0), (10, 50)
DEFAULT = ["full", "300", "700", "2000", "5000", "planted", "10000"]


def taken(x: torch.Tensor, y: torch.Tensor, **settings: int) -> tuple[float, float]:
    begin = time.process_time()
    return measures.get("gromov_wasserstein", **settings)(x, y), time.process_time() - begin


def shuffled(x: torch.Tensor) -> torch.Tensor:
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]


def full(rows: int) -> None:
    given = layers(rows, WIDTH)
    sides = [(given[a], turn(given[b])) for a, b in ((0, 1), (0, 3), (1, 2)) for turn in (torch.clone, shuffled)]
    blocks, whole = (np.array([taken(x, y, held_rows=held) for x, y in sides]) for held in (rows - 1, rows))
    ratio, seconds = blocks[:, 0] / whole[:, 0], (blocks[:, 1].mean(), whole[:, 1].mean())
    shown = f"{ratio.min():.3f}, {ratio.mean():.3f}, {ratio.max():.3f}"
    print(f"| {rows:,} | {shown} | {seconds[0]:.1f} | {seconds[1]:.1f} |", flush=True)


def planted(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = layers(rows, WIDTH)[2]
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))[0]
    for noise in NOISE:
        y = 3 * x @ rotation + noise * 3 * x.std() * torch.randn(x.shape, generator=generator)
        found = [taken(x, turn(y), held_rows=rows - 1) for turn in (torch.clone, shuffled)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        said = " | ".join(f"{value:.3g} | {seconds:.0f}" for value, seconds in found)
        print(f"| {rows:,} | {noise} | {said} | {peak:.1f} |", flush=True)


def large(rows: int) -> None:
    given = layers(rows, WIDTH)
    for a, b in ((0, 1), (0, 3)):
        found = [taken(given[a], turn(given[b]), held_rows=rows - 1) for turn in (torch.clone, shuffled)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        said = " | ".join(f"{value:.3g} | {seconds:.0f}" for value, seconds in found)
        print(f"| {rows:,} | {a}, {b} | {said} | {peak:.1f} |", flush=True)


def lowrank(rows: int) -> None:
    x, y = (side - side.mean(0) for side in (layers(rows, WIDTH)[0], shuffled(layers(rows, WIDTH)[3])))
    distances = [torch.cdist(side, side) for side in (x, y)]
    costs = [[side / side.mean() for side in of] for of in (distances, [side**2 for side in distances])]

    def show(name: str, coupling: torch.Tensor, seconds: float) -> None:
        values = [float((a**2).mean() + (b**2).mean() - 2 * ((a @ coupling @ b) * coupling).sum()) for a, b in costs]
        print(f"| {rows:,} | {name} | {seconds:.0f} | {values[0]:.4f} | {values[1]:.4f} |", flush=True)

    show("uniform", torch.full((rows, rows), rows**-2.0), 0.0)
    begin = time.process_time()
    mass = measures.get("gromov_wasserstein", held_rows=rows - 1).align(x, y).mass
    show("the measure", mass.float(), time.process_time() - begin)
    for rank in RANKS:
        begin = time.process_time()
        q, r, g = lowrank_gromov_wasserstein_samples(x.double().numpy(), y.double().numpy(), rank=rank)
        seconds = time.process_time() - begin
        show(f"rank {rank}", torch.from_numpy((q / g) @ r.T).float(), seconds)


PARTS = {
    "full": (full, "| rows | by blocks: least, mean, most | CPU, s | with all distances, s |"),
    "large": (large, "| rows | layers | value | CPU, s | shuffled | CPU, s | peak, GB |"),
    "lowrank": (lowrank, "| rows | coupling | CPU, s | objective, distances | objective, squares |"),
    "planted": (planted, "| rows | noise | value | CPU, s | shuffled | CPU, s | peak, GB |"),
}


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    perform = full
    for word in words:
        if word in PARTS:
            perform, head = PARTS[word]
            print(head, "| --- " * (head.count("|") - 1) + "|", sep="\n")
        else:
            perform(int(word))


if __name__ == "__main__":
    with threadpool_limits(1):
        main(sys.argv[1:] or DEFAULT)
