"""What commands cost to start: CPU seconds and memory of whole processes.

Command: python benchmarks/commands.py [--turns N]

The peer is what a run cannot spare, the imports of torch, of one model of transformers and of matplotlib's figures. All
are run in turns; medians. The first turn, which may compile modules, does not count.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

PEER = ["-c", "import torch, transformers.models.gpt_neox.modeling_gpt_neox, matplotlib.figure"]
REPSIM = ["-m", "repsim_cli"]
RUN = [*REPSIM, "run", "-q", "experiment=tiny/pythia_cka", "hardware.threads=1"]
COMMANDS = {
    "imports of torch, GPT-NeoX and figures": PEER,
    "`--help`": [*REPSIM, "--help"],
    "`list`": [*REPSIM, "list"],
    "`describe cka`": [*REPSIM, "describe", "cka"],
    "`describe`, a misspelt name": [*REPSIM, "describe", "ckaa"],
    "`run`, a misspelt key": [*REPSIM, "run", "sed=1"],
    "`run`, a wrong value": [*REPSIM, "run", "seed=x"],
    "`run experiment=tiny/pythia_cka`, nothing in the cache": RUN,
    "the same, all in the cache": RUN,
}


def spend(words: list[str], scratch: str, cache: str) -> tuple[float, float]:
    """Runs a process; gives its CPU seconds, user and system, and its peak memory in MB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REPSIM_OUTPUTS": f"{scratch}/runs", "REPSIM_CACHE": cache}
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    turns = parser.parse_args().turns
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(turns + 1):
        with tempfile.TemporaryDirectory() as scratch:
            for name, words in COMMANDS.items():
                taken[name].append(spend(words, scratch, f"{scratch}/cache"))
    medians = {name: [statistics.median(part) for part in zip(*each[1:], strict=True)] for name, each in taken.items()}
    peer = next(iter(medians.values()))[0]
    print("| command | CPU seconds | of the imports | MB |\n| --- | --- | --- | --- |")
    for name, (seconds, memory) in medians.items():
        print(f"| {name} | {seconds:.2f} | {seconds / peer:.2f} | {memory:.0f} |")


if __name__ == "__main__":
    main()
