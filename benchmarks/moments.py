"""Second moments of more rows than fit into memory: what a run takes, and its values against numpy.

Command: python benchmarks/moments.py FOLDER [ROWS WIDTH GB [MEASURE ...]]     (root; 200000 1024 2 mean_cca
         linear_regression by default: 10 GB are written into FOLDER and deleted at the end, and 45 minutes of CPU time
         pass)

         python benchmarks/moments.py products [ROWS WIDTH LAYERS]     (8192 1024 8 by default: what the products take,
         against torch.mm in float32, and their error)

Two models of 12 layers, float16, in two files. Measures of `EXPECTED` with `extract.estimate=moments` in a cgroup (v1)
of GB that holds the run's page cache too. Prints the plan, the most anonymous memory, CPU and wall time, and the
largest difference of four cells of each matrix from numpy in float64 (products, QR and SVD of all rows).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from by_block import limited

from repsim_cli.engine.moments import _compute_covariances

LAYERS, SHARED = 12, 32
CELLS = [(0, 1), (3, 14), (14, 3), (11, 23)]


def write(file: Path, rows: int, width: int, seed: int) -> None:
    """Layers of a signal that both models have, turned and mixed with noise that grows with depth; one in memory."""
    nbytes = 2 * rows * width
    header = {
        f"h{layer}": {
            "dtype": "F16",
            "shape": [rows, width],
            "data_offsets": [layer * nbytes, (layer + 1) * nbytes],
        }
        for layer in range(LAYERS)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    signal = np.random.default_rng(0).standard_normal((rows, SHARED), np.float32)
    noise = np.random.default_rng(seed)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for layer in range(LAYERS):
            turn = noise.standard_normal((SHARED, width), np.float32)
            for start in range(0, rows, 10_000):
                part = signal[start : start + 10_000]
                x = part @ turn + (1 + layer) * noise.standard_normal((len(part), width), np.float32)
                opened.write(x.astype(np.float16).tobytes())


def layer_of(files: list[Path], layer: int, rows: int, width: int) -> np.ndarray:
    """Centred rows in float64."""
    file = files[layer // LAYERS]
    start = file.stat().st_size - 2 * LAYERS * rows * width + 2 * (layer % LAYERS) * rows * width
    x = np.fromfile(file, np.float16, rows * width, offset=start).reshape(rows, width).astype(np.float64)
    x -= x.mean(0)
    return x


def cka(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(x.T @ y).sum() / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y))


def mean_cca(x: np.ndarray, y: np.ndarray) -> float:
    bases = [np.linalg.qr(each)[0] for each in (x, y)]
    return float(np.linalg.svd(bases[1].T @ bases[0], compute_uv=False).mean())


def linear_regression(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.square(np.linalg.qr(y)[0].T @ x).sum() / np.square(x).sum())


EXPECTED = {each.__name__: each for each in (cka, mean_cca, linear_regression)}


def read(results: Path) -> Any:
    return json.loads(results.read_text())


def values(run: Path, measure: Any) -> np.ndarray:
    """The values of all layers of both models against all; of a symmetric measure b with a is a with b."""
    parts = {(m["rows"]["model"], m["columns"]["model"]): np.load(run / m["values"]) for m in measure["matrices"]}
    parts.setdefault(("b", "a"), parts["a", "b"].T)
    return np.block([[parts[row, column] for column in "ab"] for row in "ab"])


def main(folder: Path, rows: int, width: int, gb: float, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{label}.safetensors" for label in "ab"]
    words = [sys.executable, "-m", "repsim_cli", "run", "model=[]", f"measure=[{','.join(names)}]"]
    words += [f"+model.{file.stem}={{kind: precomputed, path: {file}}}" for file in files]
    words += ["extract.estimate=moments", f"hardware.memory_gb={gb}"]
    outputs = folder / "outputs"
    places = {"REPSIM_OUTPUTS": str(outputs), "REPSIM_CACHE": str(folder / "cache")}
    try:
        for seed, file in enumerate(files, 1):
            write(file, rows, width, seed)
        plan = subprocess.run([*words, "dry_run=true"], env={**os.environ, **places}, stdout=subprocess.PIPE, text=True)
        print(plan.stdout, flush=True)
        used = limited(words, places, round(gb * 1e9))
        print(
            f"anonymous memory at most {used.anonymous / 1e9:.2f} GB, read {used.read / 1e9:.1f} GB, "
            f"CPU {used.cpu:.0f} s, wall {used.wall:.0f} s",
            flush=True,
        )
        (results,) = outputs.rglob("results.json")
        measured = {measure["name"]: values(results.parent, measure) for measure in read(results)["measures"]}
        worst = dict.fromkeys(measured, 0.0)
        for a, b in CELLS:
            sides = [layer_of(files, layer, rows, width) for layer in (a, b)]
            for name in names:
                value = EXPECTED[name](*sides)
                print(f"{name} [{a}, {b}]: {measured[name][a, b]:.6f}, numpy {value:.6f}", flush=True)
                worst[name] = max(worst[name], abs(measured[name][a, b] - value))
            del sides  # before the next are read, or four would be held
        print(", ".join(f"{name}: differs by {worst[name]:.1e} at most" for name in worst))
    finally:
        for file in files:
            file.unlink(missing_ok=True)
        for place in (outputs, folder / "cache"):
            shutil.rmtree(place, ignore_errors=True)


def products(rows: int, width: int, layers: int) -> None:
    """Times all pairs of layers, in memory, one of them far from the origin and with massive features; one thread."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(rows, width, generator=generator) for _ in range(layers)]
    xs[0][:, 0] += 3000
    xs[0][:, 1] *= 500
    cells = [(a, b) for a in range(layers) for b in range(a, layers)]
    seconds, found = {}, {}

    def bare() -> None:
        for x, y in cells:
            torch.mm(xs[x].T, xs[y])

    def summed(single: bool) -> None:
        stream = ([x[i : i + 256] for x in xs] for i in range(0, rows, 256))
        found[single] = _compute_covariances(stream, range(layers), cells, single)[0]

    calls = {"torch.mm, float32": bare, "float32": partial(summed, True), "float64": partial(summed, False)}
    for name, call in calls.items():
        start = time.process_time()
        call()
        seconds[name] = time.process_time() - start
    for name, taken in seconds.items():
        print(f"{name}: {taken:.1f} CPU s, {taken / seconds['torch.mm, float32']:.2f} times")
    of_norm = [((found[True][c] - found[False][c]).norm() / found[False][c].norm()).item() for c in cells]
    sizes = [found[False][a, a].diagonal().sqrt() for a in range(layers)]
    apart = [(found[True][a, b] - found[False][a, b]) / sizes[a][:, None] / sizes[b] for a, b in cells]
    worst = max(float(each.abs().max()) for each in apart)
    print(f"float32 against float64: {max(of_norm):.1e} of the norm of a product at most, {worst:.1e} of |x_i| |y_j|")


if __name__ == "__main__":
    if sys.argv[1] == "products":
        rows, width, layers = (int(part) for part in sys.argv[2:] or (8192, 1024, 8))
        sys.exit(products(rows, width, layers))
    given = sys.argv[2:] or ["200000", "1024", "2"]
    main(
        Path(sys.argv[1]), int(given[0]), int(given[1]), float(given[2]), given[3:] or ["mean_cca", "linear_regression"]
    )
