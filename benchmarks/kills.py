"""Kills real runs at random moments, resumes them, and compares what they leave with an undisturbed run.

Command: python benchmarks/kills.py [KILLS]     (200 by default: about 15 minutes on two cores)
Prints the kills, the runs, the bytes that differ (0), and how long resumed runs needed to go on.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

RUN = ["model=[tiny_a,tiny_b]", "measure=[cka_unbiased]", "extract.length=64", "extract.batch_rows=256"]
RUN += ["hardware.batch_size=4", "hardware.threads=1"]


class Outcome(NamedTuple):
    kills: int
    runs: int
    differing_bytes: int
    resumed_from_state: int


def start(words: list[str], outputs: Path, cache: Path) -> subprocess.Popen:
    environment = {**os.environ, "REPSIM_OUTPUTS": str(outputs), "REPSIM_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "repsim_cli.cli", "run", "-q", *RUN, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def numbers(folder: Path) -> dict[str, bytes]:
    """What must be the same to the bit: results.json and every array."""
    files = [folder / "results.json", *sorted((folder / "arrays").iterdir())]
    return {file.name: file.read_bytes() for file in files}


def finished(outputs: Path) -> Path:
    (manifest,) = [m for m in outputs.rglob("manifest.json") if json.loads(m.read_text())["status"] == "complete"]
    return manifest.parent


def kill_runs(kills: int, seed: int = 0, slow: tuple[str, ...] = ("extract.sequences=160",)) -> Outcome:
    """Runs are killed again and again until each completes; whole new runs are started until enough were killed."""
    moments = random.Random(seed)
    words = list(slow)
    done = rounds = differing = resumed = 0
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "plain"
        begin = time.monotonic()
        process = start(words, plain, Path(scratch) / "plain-cache")
        assert process.wait() == 0, process.communicate()[1]
        whole = time.monotonic() - begin
        expected = numbers(finished(plain))
        while done < kills:
            outputs, cache = Path(scratch) / f"outputs-{rounds}", Path(scratch) / f"cache-{rounds}"
            resume: list[str] = []
            while True:
                process = start(words + resume, outputs, cache)
                if done < kills:
                    try:
                        process.wait(timeout=moments.uniform(0.5, 1.0) * whole)
                    except subprocess.TimeoutExpired:
                        process.send_signal(signal.SIGKILL)
                        done += 1
                    _, error = process.communicate()
                else:
                    _, error = process.communicate()
                if process.returncode == 0:
                    break
                if process.returncode != -signal.SIGKILL and "no unfinished run" not in error:
                    raise AssertionError(f"a resumed run failed: {error}")
                # killed before the run folder was there: nothing to resume yet
                begun = any((m.parent / "config.yaml").is_file() for m in outputs.rglob("manifest.json"))
                resume = ["resume=latest"] if begun else []
            folder = finished(outputs)
            resumed += len(json.loads((folder / "manifest.json").read_text())["resumed"])
            left = numbers(folder)
            assert left.keys() == expected.keys()
            differing += sum(
                sum(x != y for x, y in zip(left[n], expected[n], strict=False)) + abs(len(left[n]) - len(expected[n]))
                for n in expected
            )
            rounds += 1
    return Outcome(done, rounds, differing, resumed)


if __name__ == "__main__":
    begin = time.monotonic()
    outcome = kill_runs(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    print(
        f"{outcome.kills} kills in {outcome.runs} runs ({outcome.resumed_from_state} resumed folders, the rest killed "
        f"before their folder was there), {outcome.differing_bytes} bytes differ, {time.monotonic() - begin:.0f} s"
    )
