"""Neighbours and distances of many rows: what whole runs take, planned and measured, exact and of sampled rows.

Command: python benchmarks/neighbours.py FOLDER [ROWS:WIDTH:ESTIMATE[:MEASURE] ...]     (20000:384:full
         20000:384:sampled by default; the largest ones are written into FOLDER as float16 and deleted at the end)

Two models of one layer that share 24 directions, `mutual_knn`, `k: 10`, or another measure; `sampled` takes 4096 rows,
`jackknife` a sample of 4096 rows by themselves (`extract.estimate=full`) with its error. One thread.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SHARED, AT_ONCE = 24, 10_000
JACKKNIFE = ["significance.jackknife=true", "significance.clusters=row"]
ESTIMATES = {
    "full": ["extract.estimate=full", "extract.rows={rows}"],
    "sampled": ["extract.estimate=sampled", "extract.rows=4096"],
    "per_batch": ["extract.estimate=per_batch"],
    "jackknife": ["extract.estimate=full", "extract.rows=4096", *JACKKNIFE],
}


def write(file: Path, rows: int, width: int, seed: int) -> None:
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    turn = own.standard_normal((SHARED, width), np.float32)
    out = np.lib.format.open_memmap(file, "w+", np.float16, (rows, width))
    for start in range(0, rows, AT_ONCE):
        signal = shared.standard_normal((min(AT_ONCE, rows - start), SHARED), np.float32)
        noise = own.standard_normal((len(signal), width), np.float32)
        out[start : start + AT_ONCE] = np.tanh(signal @ turn / 5) + noise / 4


def run(folder: Path, rows: int, width: int, estimate: str, measure: str = "mutual_knn") -> str:
    files = [folder / f"{label}.npy" for label in "ab"]
    for seed, file in enumerate(files, 1):
        write(file, rows, width, seed)
    words = [sys.executable, "-m", "repsim_cli", "run", "model=[]", f"measure=[{measure}]", "hardware.threads=1"]
    words += [f"+model.{file.stem}={{kind: precomputed, path: {file}}}" for file in files]
    words += [word.format(rows=rows) for word in ESTIMATES[estimate]]
    places = {"REPSIM_OUTPUTS": str(folder / "outputs"), "REPSIM_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **places}
    plan = subprocess.run([*words, "dry_run=true"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    planned = re.search(r"in all: ([\d.]+)\n", plan.stdout)
    start, child = time.monotonic(), subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status or planned is None:
        raise SystemExit(f"{rows} x {width}, {estimate}: no value, status {status}")
    (results,) = (folder / "outputs").rglob("results.json")
    cells = json.loads(results.read_text())["measures"][0]["matrices"][1]
    value, *se = (np.load(results.parent / cells[key]).item() for key in ("values", "se") if cells.get(key))
    shutil.rmtree(folder / "outputs")
    said = f"{value:.4f}{f' +- {se[0]:.4f}' if se else ''}"
    seconds, wall = used.ru_utime + used.ru_stime, time.monotonic() - start
    peak = used.ru_maxrss / 1e6
    return f"| {rows:,} x {width} | {estimate} | {said} | {planned[1]} | {peak:.2f} | {seconds:.0f} | {wall:.0f} |"


def main(folder: Path, cases: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    print("| rows | estimate | value | planned, GB | peak, GB | CPU, s | wall, s |", "| --- " * 7 + "|", sep="\n")
    try:
        for case in cases:
            rows, width, *rest = case.split(":")
            print(run(folder, int(rows), int(width), *rest), flush=True)
    finally:
        for name in ("outputs", "cache"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for label in "ab":
            (folder / f"{label}.npy").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["20000:384:full", "20000:384:sampled"])
