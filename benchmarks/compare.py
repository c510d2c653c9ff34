"""What a whole `repsim compare` costs, with and without the level of chance, against bare forward passes of its tokens.

Command: python benchmarks/compare.py [MODEL MODEL] [--turns N]
MODEL: a name of scripts/real_models (smollm2 and minilm, if none are given), or what `repsim compare` takes.

CPU seconds, user and system, of whole processes on one thread with an empty cache, by turns; medians of the turns.
bare: loads both models and runs as many places as the comparison ran, in batches of as many sequences, and nothing
else: no text is read, no hook is set. Ratios are of the sum of both, as the load of other processes changes seconds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALONE = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
WITHOUT = ("significance.chance=false", "significance.floor=false")


def located(name: str) -> str:
    """Finds a model of scripts/real_models; others are as they are given."""
    script = ROOT / "scripts" / "real_models"
    found = subprocess.run([sys.executable, script, name], capture_output=True, text=True)
    return found.stdout.strip() or name


def spent() -> float:
    """Sums the CPU seconds of all processes that were started and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(words: list[str], scratch: str) -> tuple[float, str]:
    """Runs a process; gives its CPU seconds and what it printed."""
    before = spent()
    environment = {**os.environ, **ALONE, "REPSIM_OUTPUTS": f"{scratch}/runs", "REPSIM_CACHE": f"{scratch}/cache"}
    ended = subprocess.run([sys.executable, *words], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return spent() - before, ended.stdout


def compared(models: list[str], settings: tuple[str, ...]) -> tuple[float, dict]:
    """Compares two models, with nothing in the cache; gives the CPU seconds and the manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        chosen = [part for setting in settings for part in ("--set", setting)]
        seconds, _ = measured(["-m", "repsim_cli", "compare", *models, "-q", *chosen], scratch)
        return seconds, json.loads(next(Path(scratch).rglob("manifest.json")).read_text())


def bare(models: list[str], data: dict) -> None:
    """Loads the models and runs their backbones on random tokens; prints the CPU seconds of each part."""
    import torch

    from repsim_cli.api.entries import make_model_entry
    from repsim_cli.config.binding import bind_model

    places, count = data["places"], data["sequences"]
    of_each = places.values() if isinstance(places, dict) else [places] * len(models)
    bound = [bind_model("model", make_model_entry("model", name)) for name in models]
    modules = [source.load(False) for source in bound]
    loaded, draw = time.process_time(), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for module, of_model in zip(modules, of_each, strict=True):
            ids = torch.randint(0, 250, (count, round(of_model / count)), generator=draw)
            for batch in ids.split(8):
                module(input_ids=batch, attention_mask=torch.ones_like(batch))
    print(json.dumps([loaded, time.process_time() - loaded]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["smollm2", "minilm"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        return bare(given.models, json.loads(given.bare))
    if len(given.models) != 2:
        parser.error("give two models, or none")
    models, seconds = [located(name) for name in given.models], {}
    for _ in range(given.turns):
        for name, settings in (("compare", ()), ("without chance and floor", WITHOUT)):
            taken, manifest = compared(models, settings)
            seconds.setdefault(name, []).append(taken)
        data = json.dumps({key: manifest["data"][key] for key in ("places", "sequences")})
        with tempfile.TemporaryDirectory() as scratch:
            printed = measured([__file__, *models, "--bare", data], scratch)[1]
        for name, taken in zip(("bare: imports and models", "bare: forward passes"), json.loads(printed), strict=True):
            seconds.setdefault(name, []).append(taken)
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    read = manifest["data"]
    print(f"load {os.getloadavg()[0]:.1f}; {read['places']} places in {read['sequences']} sequences")
    for name, taken in seconds.items():
        print(f"{name:26} {median[name]:7.1f} CPU s   ({', '.join(f'{each:.1f}' for each in taken)})")
    whole, less, load, passes = median.values()
    print(f"chance and floor: {whole / less:.3f} x; compare: {whole / (load + passes):.2f} x of bare")


if __name__ == "__main__":
    main()
