"""What a run costs beyond the bare forward passes of its models, and whether memory grows with the data.

Command: python benchmarks/spine.py            (about 8 minutes on two cores)
Time:    two GPT-NeoX of the 70M Pythia shape (random weights, 6 x 512), batches of 1024 tokens, cka_unbiased of all
         layers; the run's stages against the same batches through both bare backbones, in one process, by turns.
Memory:  peak resident memory of whole `repsim run` processes of one shape, with 64 and with 1024 batches.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.row_batches import stream_row_batches
from repsim_cli.activations.rows import stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.packing import pack
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import get

PYTHIA_70M = {
    "model_type": "gpt_neox",
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "max_position_embeddings": 2048,
    "vocab_size": 50304,
}
BATCHES = 12


def time_beyond_forwards() -> None:
    """Bare forwards, forwards with capture, and the whole pass, by turns over the same batches."""
    make = registry.models.get("random").function
    models = {label: make(config=PYTHIA_70M, seed=seed) for seed, label in enumerate("ab")}
    tokenizer = registry.models.get("shipped").function(name="tiny_a").tokenizer()
    extract = Extract(hook_points=["resid_post"], length=1024, sequences=BATCHES, padding="keep")
    hardware = Hardware(batch_size=1)
    text = registry.data.get("embedded_text").function(split="train")
    sequences = pack(text, tokenizer, length=1024, sequences=BATCHES, pool=BATCHES, separator="auto", seed=0)
    modules = {label: source.load(False) for label, source in models.items()}
    found = plan_readings(models, extract)
    names = [str(layer) for reading in found for layer in reading.layers]
    measure = {"cka_unbiased": get("cka_unbiased")}

    @torch.inference_mode()
    def bare() -> None:
        for row in range(BATCHES):
            ids = torch.from_numpy(sequences.ids[row : row + 1]).long()
            for module in modules.values():
                module(input_ids=ids, attention_mask=torch.ones_like(ids))

    def stream():
        rows = stream_row_blocks(found, Running(modules, dict.fromkeys(models, sequences)), extract, hardware, iter)
        return stream_row_batches(rows, extract, sequences.ids.size, 0)

    def captured() -> None:
        for _ in stream():
            pass

    def whole() -> None:
        estimate_all_pairs(measure, lambda seen: stream(), names=names, estimate="per_batch", tile=hardware.tile)

    steps = {"bare forwards": bare, "forwards with capture": captured, "whole pass": whole}
    bare()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(3):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["bare forwards"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:24} {median / BATCHES:7.3f} s/batch   {median / base:5.2f} x bare")
    rows = next(iter(stream()))
    start = time.perf_counter()
    for _ in range(5):
        compute_all_pairs(measure, rows, names)
    print(f"{'similarity alone':24} {(time.perf_counter() - start) / 5:7.3f} s/batch   ({len(rows)} layers)")


def memory_by_batches() -> None:
    peaks = {}
    for count in (64, 1024):
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "experiment=tiny/pythia_cka",
                "data=embedded_train",
                "extract.length=256",
                "extract.batch_rows=256",
            ]
            words += ["extract.padding=keep", f"extract.sequences={count}", "extract.pool=1024", "-q"]
            environment = {**os.environ, "REPSIM_OUTPUTS": folder, "REPSIM_CACHE": folder}
            subprocess.run([sys.executable, "-m", "repsim_cli.cli", "run", *words], env=environment, check=True)
            manifest = json.loads(next(Path(folder).rglob("manifest.json")).read_text())
            results = json.loads(next(Path(folder).rglob("results.json")).read_text())
        assert results["measures"][0]["estimate"]["batches"] == count
        peaks[count] = manifest["peak_memory_mb"]
        timing = manifest["timings"]["activations and similarity"]
        print(f"{count:5} batches of 256 rows, 24 layers: peak {peaks[count]:.0f} MB, {timing:.1f} s")
    print(f"peak memory, 1024 against 64 batches: {peaks[1024] / peaks[64]:.3f}")


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    time_beyond_forwards()
    memory_by_batches()
