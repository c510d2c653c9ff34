"""What a series of checkpoints costs beyond loading them and their forward passes, and whether memory grows with it.

Command: python benchmarks/series.py          (about 5 minutes on one core)
Time:    CPU seconds of one thread; convergence of GPT-NeoX of 6 blocks, attn_out and mlp_out, CKA on 4096 and on 1024
         (one in eight, as published) of 8192 rows, against opening, hashing, loading and running the same checkpoints
         alone, by turns in one process.
Memory:  peak resident memory of whole `repsim run` processes of one shape, with 3 and with 20 checkpoints.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from repsim_cli.activations.rows import stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.measures import get
from repsim_cli.models.checkpoints import find_shipped
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.runs import results
from repsim_cli.studies.training_run.study_convergence import Convergence

EXTRACT = Extract(
    hook_points=["attn_out", "mlp_out"], padding="keep", length=128, sequences=64, estimate="full", rows=4096
)
HARDWARE = Hardware(threads=1)
TURNS = 3


def make(folder: Path, width: int, count: int) -> Path:
    """Checkpoints on the way from one random model to another."""
    config = inline_config(
        {
            "model_type": "gpt_neox",
            "hidden_size": width,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "intermediate_size": 4 * width,
            "vocab_size": 512,
        }
    )
    start, end, between = (import_transformers().AutoModel.from_config(config) for _ in range(3))
    for step in range(count):
        share = step / count
        mixed = {name: torch.lerp(x, end.state_dict()[name], share) for name, x in start.state_dict().items()}
        between.load_state_dict(mixed)
        between.save_pretrained(folder / f"step{step}")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(find_shipped("tiny_a") / name, folder / f"step{step}")
    return folder


def study(folder: Path, cache: bool, rows: int = 4096) -> Convergence:
    return Convergence(
        model={"m": registry.models.get("series").function(folder=str(folder))},
        data=registry.data.get("embedded_text").function(),
        measure={"cka": get("cka")},
        extract=replace(EXTRACT, rows=rows),
        hardware=HARDWARE,
        seed=0,
        cache=cache,
    )


def run_at(folder: Path) -> results.Run:
    return results.create(folder, name="benchmark", study="convergence", seed=0, command=[], overrides=[])


def bare(folder: Path, scratch: Path) -> None:
    """Opens, hashes, loads and runs every checkpoint, and does nothing else."""
    training = study(folder, cache=False).trainings["m"]
    sequences = training.start(run_at(scratch / "run"))
    for checkpoint in training.series.checkpoints:
        source = checkpoint.open()
        source.identity()
        reading = replace(training.reading, source=source)
        for _ in stream_row_blocks(
            [reading], Running({"m": source.load(False)}, sequences), EXTRACT, HARDWARE, results.quiet
        ):
            pass


def whole(folder: Path, scratch: Path, cache: bool, rows: int) -> None:
    study(folder, cache, rows).curves(run_at(scratch / "run"))


def cpu(job: Callable[[], None]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


def time_beyond(scratch: Path) -> None:
    print(
        "| width | checkpoints | rows | loading and forward passes | whole series | beyond | with the cache | beyond |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for width, count, rows in ((64, 8, 4096), (256, 4, 4096), (256, 4, 1024)):
        folder = make(scratch / f"width{width}", width, count)
        bare(folder, scratch)  # imports
        found: dict[str, list[float]] = {"bare": [], "whole": [], "cached": []}
        for turn in range(TURNS):
            os.environ["REPSIM_CACHE"] = str(scratch / f"cache{turn}")
            found["bare"].append(cpu(lambda folder=folder: bare(folder, scratch)))
            found["whole"].append(cpu(lambda folder=folder, rows=rows: whole(folder, scratch, False, rows)))
            found["cached"].append(cpu(lambda folder=folder, rows=rows: whole(folder, scratch, True, rows)))
            shutil.rmtree(scratch / f"cache{turn}")
        least, once, stored = (statistics.median(times) for times in found.values())
        print(
            f"| {width} | {count} | {rows} | {least:.2f} s | {once:.2f} s | {1 - least / once:.0%} "
            f"| {stored:.2f} s | {1 - least / stored:.0%} |",
            flush=True,
        )


def memory(scratch: Path) -> None:
    print("\n| checkpoints | peak memory | without the cache |")
    print("| --- | --- | --- |")
    for count in (3, 20):
        folder = make(scratch / f"count{count}", 128, count)
        peaks = []
        for cache in ("true", "false"):
            place = scratch / f"out-{count}-{cache}"
            words = ["experiment=tiny/pythia_convergence", "model=[]", "hardware.threads=1"]
            words += [f"+model.m={{kind: series, folder: {folder}}}", f"cache={cache}", f"hydra.run.dir={place}"]
            environment = {**os.environ, "REPSIM_CACHE": str(scratch / "cache"), "REPSIM_OUTPUTS": str(scratch)}
            command = [sys.executable, "-m", "repsim_cli.cli", "run", "-q", *words]
            subprocess.run(command, check=True, env=environment)
            peaks.append(json.loads((place / "manifest.json").read_text())["peak_memory_mb"])
        print(f"| {count} | {peaks[0]:.0f} MB | {peaks[1]:.0f} MB |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        time_beyond(Path(place))
        memory(Path(place))
