"""How well the layers of a model are told apart by CKA under each remedy for layers of few large features or rows.

Command: python benchmarks/remedies.py FILE MODEL ...
FILE: .conllu (rows are words) or .txt (rows are tokens). MODEL: a folder in the transformers format or a .gguf file.

The sentences or lines are split into two halves. On each, linear CKA gives a map of all blocks on 1500 rows. Printed:
recognised: the share of blocks whose row of the map of one half is nearest to their row of the other half's map.
depth: the mean over blocks of the Spearman correlation of CKA with the distance in depth, negated.
neighbour: the share of blocks whose most similar other block is the next or the one before.
rows lost: by what is skipped.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

REMEDIES: dict[str, list[str]] = {
    "none": [],
    "skip 1": ["extract.skip=1"],
    "skip 4": ["extract.skip=4"],
    "features": ["extract.normalise=features"],
    "directions": ["extract.normalise=directions"],
    "rows": ["extract.normalise=rows"],
    "drop 0.05": ["extract.drop_features=0.05"],
    "skip 1, features": ["extract.skip=1", "extract.normalise=features"],
    "skip 2, features": ["extract.skip=2", "extract.normalise=features"],
    "skip 4, features": ["extract.skip=4", "extract.normalise=features"],
    "skip 1, directions": ["extract.skip=1", "extract.normalise=directions"],
    "skip 2, directions": ["extract.skip=2", "extract.normalise=directions"],
    "skip 4, directions": ["extract.skip=4", "extract.normalise=directions"],
    "skip 4, rows": ["extract.skip=4", "extract.normalise=rows"],
    "skip 4, drop 0.05": ["extract.skip=4", "extract.drop_features=0.05"],
}
RAW = ["extract.skip=0", "extract.normalise=none"]
COMMON = ["measure=[cka]", "extract.hook_points=[resid_post]", "extract.estimate=full", "extract.rows=1500"]


def halves(file: Path, folder: Path) -> list[list[str]]:
    """The settings of `data` and `extract` for each half of the file, written into the folder."""
    words = file.suffix == ".conllu"
    parts = file.read_text(encoding="utf-8").split("\n\n" if words else "\n")
    settings = []
    for half in (0, 1):
        if words:
            kept = "\n\n".join(part for part in parts[half::2] if part.strip()) + "\n\n"
        else:
            middle = len(parts) // 2
            kept = "\n".join(parts[:middle] if half == 0 else parts[middle:])
        place = folder / f"half_{half}{file.suffix}"
        place.write_text(kept, encoding="utf-8")
        how = ["extract=words", "extract.sequences=300"] if words else ["extract=tokens", "extract.length=256"]
        settings.append([f"data={'ewt' if words else 'local_text'}", f"data.path={place}", *how])
    return settings


def measured(settings: list[str], folder: Path) -> tuple[np.ndarray, float]:
    """The map of all blocks, and the share of rows that is lost."""
    outputs = Path(tempfile.mkdtemp(dir=folder))
    places = {"REPSIM_OUTPUTS": str(outputs), "REPSIM_CACHE": str(folder / "cache")}
    subprocess.run(["repsim", "run", "-q", *settings], env=os.environ | places, check=True, stderr=subprocess.DEVNULL)
    run = next(outputs.glob("*/*/manifest.json")).parent
    (measure,) = json.loads((run / "results.json").read_text())["measures"]
    remedies = json.loads((run / "manifest.json").read_text()).get("remedies", {})
    return np.load(run / measure["matrices"][0]["values"]), remedies.get("share_left_out", 0.0)


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


def main(file: str, *models: str) -> None:
    print("| model | remedy | recognised | depth | neighbour | rows lost |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        data = halves(Path(file), Path(scratch))
        for model in models:
            name = Path(model).stem
            entry = ["model=[]", f"+model.mine={{kind: transformers, path: '{Path(model).absolute()}'}}"]
            for remedy, settings in REMEDIES.items():
                runs = [measured([*entry, *COMMON, *half, *RAW, *settings], Path(scratch)) for half in data]
                recognised, depth, neighbour = scores(runs[0][0], runs[1][0])
                lost = np.mean([lost for _, lost in runs])
                print(
                    f"| {name} | {remedy} | {recognised:.2f} | {depth:.2f} | {neighbour:.2f} | {lost:.0%} |", flush=True
                )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
