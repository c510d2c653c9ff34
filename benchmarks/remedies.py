"""What remedies for layers of few large features or rows do: to maps of the layers of models, and to planted signals.

Command: python benchmarks/remedies.py [FILE MODEL ...]
FILE: .conllu (rows are words) or .txt (rows are tokens). MODEL: a folder in the transformers format or a .gguf file.
Without any: planted cases.

Models: the sentences or lines are split into two halves. On each, linear CKA gives a map of all blocks on 1500 rows.
recognised: the share of blocks whose row of the map of one half is nearest to their row of the other half's map.
depth: the mean over blocks of the Spearman correlation of CKA with the distance in depth, negated.
neighbour: the share of blocks whose most similar other block is the next or the one before.
rotated: CKA of the middle block with its exact rotation; 1 is right.
moves: how far cells move in the mean where the 2 % of rows that are largest in the middle block are left out.
rows lost: by what is skipped.

Planted: two tables of 160 rows that share a little, in each case hidden by what they do not share: unbiased CKA over
its standard deviation under random pairings, the median of 12 draws; above 1.8 in most is power.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from repsim_cli import measures
from repsim_cli.activations.readings import Layer
from repsim_cli.activations.remedies import Remedies
from repsim_cli.activations.rows import RowBlock
from repsim_cli.api.entries import compose_configuration, make_model_entry
from repsim_cli.api.new_run import new_run
from repsim_cli.base.settings import Extract
from repsim_cli.config.run import validate
from repsim_cli.engine.rows import sample

SCALES: dict[str, Mapping[str, Any]] = {
    "none": {},
    "features": {"normalise": "features"},
    "directions": {"normalise": "directions"},
    "rows": {"normalise": "rows"},
    "drop 0.05": {"drop_features": 0.05},
}
SKIPPED = (0, 2, 4)
LEFT_OUT = 0.02  # of the rows, the largest
ROWS = {"extract.estimate": "full", "extract.rows": 1500, "extract.normalise": "none", "extract.pairs": "all"}


def treated(layers: Sequence[Tensor], settings: Mapping[str, Any]) -> list[Tensor]:
    """The rows of every layer under a remedy."""
    remedies = Remedies(Extract(hook_points=["resid_post"], **settings), None)
    names = [Layer("any", str(number), x.shape[1]) for number, x in enumerate(layers)]
    if remedies.extract.features_changed:
        remedies.measure(iter([RowBlock(0, list(layers))]), names)
    return next(iter(remedies.apply(iter([RowBlock(0, list(layers))]), names))).rows


def cka(layers: Sequence[Tensor]) -> np.ndarray:
    """The map of all layers."""
    grams = []
    for x in layers:
        gram = (x - x.mean(0)) @ (x - x.mean(0)).T
        grams.append((gram / torch.linalg.matrix_norm(gram)).ravel())
    flat = torch.stack(grams)
    return (flat @ flat.T).double().numpy()


def halves(file: Path, folder: Path) -> list[tuple[Path, str]]:
    """Writes each half of the file into the folder; gives the halves, and what a row of each is."""
    words = file.suffix == ".conllu"
    parts = file.read_text(encoding="utf-8").split("\n\n" if words else "\n")
    found = []
    for half in (0, 1):
        if words:
            kept = "\n\n".join(part for part in parts[half::2] if part.strip()) + "\n\n"
        else:
            middle = len(parts) // 2
            kept = "\n".join(parts[:middle] if half == 0 else parts[middle:])
        place = folder / f"half_{half}{file.suffix}"
        place.write_text(kept, encoding="utf-8")
        found.append((place, "words" if words else "tokens"))
    return found


def rows_of(model: str, file: Path, rows: str, skip: int, folder: Path) -> tuple[list[Tensor], float]:
    """The rows of all blocks, and the share that is lost by skipping."""
    data: Any = {"kind": "ewt", "path": str(file)} if rows == "words" else str(file)
    more = {"extract.sequences": 300} if rows == "words" else {"extract.length": 256}
    settings = {**ROWS, "extract.skip": skip, **more}
    entry = {"mine": make_model_entry("mine", model)}
    checked = validate(compose_configuration(entry, data, ["cka"], rows, "none", settings, ["resid_post"], "cpu", 8, 0))
    with new_run(folder, reported=False, name="rows", study="similarity", seed=0, command=[], overrides=[]) as run:
        comparison = checked.study.comparison
        sequences = comparison.sequences(run)
        taken, _ = sample(run, comparison.pair_rows(run, sequences).count_rows(run, sequences), sequences)
        lost = run.manifest.get("remedies", {}).get("share_left_out", 0.0)
    return [x.float() for x in taken], lost


def scores(one: np.ndarray, two: np.ndarray) -> tuple[float, float, float]:
    """recognised, depth and neighbour."""
    count = len(one)
    off = ~np.eye(count, dtype=bool)
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    between = np.linalg.norm(one[:, None] - two[None], axis=2)
    depth = [spearmanr(m[i][off[i]], -apart[i][off[i]]).statistic for m in (one, two) for i in range(count)]
    nearest = [np.where(off[i], m[i], -np.inf).argmax() for m in (one, two) for i in range(count)]
    beside = np.abs(np.array(nearest) - np.tile(np.arange(count), 2)) == 1
    return float((between.argmin(1) == np.arange(count)).mean()), float(np.mean(depth)), float(beside.mean())


def rotated(x: Tensor, settings: Mapping[str, Any]) -> float:
    """CKA of a layer with its exact rotation, each under the remedy."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(x.shape[1], x.shape[1])))[0]
    turned = (x.double() @ torch.from_numpy(turn)).float()
    return float(cka([*treated([x], settings), *treated([turned], settings)])[0, 1])


def moves(layers: Sequence[Tensor], settings: Mapping[str, Any], whole: np.ndarray) -> float:
    """The mean change of the cells of a map without the largest rows of its middle layer."""
    middle = layers[len(layers) // 2]
    norms = torch.linalg.vector_norm(middle - middle.mean(0), dim=1)
    kept = torch.sort(norms.argsort(descending=True)[int(LEFT_OUT * len(norms)) :]).values
    cells = np.triu_indices(len(layers), 1)
    return float(np.abs(cka(treated([x[kept] for x in layers], settings)) - whole)[cells].mean())


def of_models(file: str, models: Sequence[str]) -> None:
    print("| model | remedy | recognised | depth | neighbour | rotated | moves | rows lost |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        parts = halves(Path(file), Path(scratch))
        for model in models:
            for skip in SKIPPED:
                folders = (Path(scratch) / f"{Path(model).name} {skip} {half}" for half in (0, 1))
                read = [rows_of(model, *part, skip, folder) for part, folder in zip(parts, folders, strict=True)]
                for name, settings in SCALES.items():
                    maps = [cka(treated(layers, settings)) for layers, _ in read]
                    cells = [*scores(maps[0], maps[1]), np.mean([rotated(x[len(x) // 2], settings) for x, _ in read])]
                    cells.append(np.mean([moves(x, settings, m) for (x, _), m in zip(read, maps, strict=True)]))
                    numbers = [*(f"{x:.3f} |" for x in cells), f"{np.mean([lost for _, lost in read]):.0%} |"]
                    print(f"| {Path(model).stem} | skip {skip}, {name} |", *numbers, flush=True)


def planted(rng: np.random.Generator) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Draws two tables that share a signal in four directions, by what hides it; then in three large ones, or none."""
    n, d = 160, 64
    shared = rng.normal(size=(n, 4))
    base = [0.35 * shared @ rng.normal(size=(4, d)) + rng.normal(size=(n, d)) for _ in range(2)]
    massive = [np.hstack([100 * rng.normal(size=(n, 2)), x[:, 2:]]) for x in base]
    yield "two large features each", massive
    yield "the same, rotated", [x @ np.linalg.qr(rng.normal(size=(d, d)))[0] for x in massive]
    for x in base:
        x[rng.choice(n, 3, replace=False)] += 40 * rng.normal(size=d)
    yield "three large rows each", base
    shared = rng.normal(size=(n, 2))
    large = [rng.normal(size=(n, d)) for _ in range(2)]
    for x in large:
        x[:, :3] = 6 * 0.7 * (shared @ rng.normal(size=(2, 3)) + rng.normal(size=(n, 3)))
    yield "the signal in three large features alone", large
    yield "nothing shared", [rng.normal(size=(n, d)) * np.exp(rng.normal(size=d)) for _ in range(2)]


def stands_out(tables: Sequence[np.ndarray], settings: Mapping[str, Any], rng: np.random.Generator) -> float:
    """Unbiased CKA of two tables under a remedy, over its standard deviation under 40 random pairings."""
    x, y = (treated([torch.from_numpy(table).float()], settings)[0] for table in tables)
    value = partial(measures.get("cka_unbiased"), x)
    return float(value(y)) / float(np.std([float(value(y[rng.permutation(len(y))])) for _ in range(40)]))


def of_planted(draws: int = 12) -> None:
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(draws):
        for case, tables in planted(np.random.default_rng(seed)):
            for name, settings in SCALES.items():
                z = stands_out(tables, settings, np.random.default_rng(seed))
                found.setdefault(name, {}).setdefault(case, []).append(z)
    print("| remedy |", " | ".join(found["none"]), "|")
    print("| --- |", " --- |" * len(found["none"]))
    for name, cases in found.items():
        print(f"| {name} |", *(f"{np.median(each):.1f} |" for each in cases.values()), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        of_models(sys.argv[1], sys.argv[2:])
    else:
        of_planted()
