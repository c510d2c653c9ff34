"""What published runs cost on one machine and on clusters: a calculation by the plan's own numbers, and a check of it.

Command: python benchmarks/clusters.py [costs] [check]

costs: pythia_cka with 12b, 100 BERTs fine-tuned and compared, all pairs of 100 models under a slow measure: bytes
       moved, time, node-hours and what bounds them.
check: small runs here on one worker, with one thread: what is calculated for their units against what they took.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import repsim_cli
from repsim_cli.activations.batching import count_passes
from repsim_cli.config.compose import compose, drop_hydra_keys
from repsim_cli.config.run import validate
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import count_all_rows
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.cost import CALL, EFFICIENCY, SIDE, count_forward_operations, say_duration
from repsim_cli.execution.records import read_records
from repsim_cli.models.source import Source
from repsim_cli.runs import folders

STARTING = 10.0  # seconds until a worker has imported its libraries and checked the run
PREPARING = 0.45  # CPU seconds of a unit beside its work, on small runs: reading models and text, hashes, files
PER_NODE = 1e9  # bytes per second that a node reads or writes in the shared folder; a laptop's disk as well
SHARED = 5e9  # bytes per second of the shared folder in all
GPU = 1e13  # operations per second in float32 that a plan assumes of a GPU
MNLI, EPOCHS, LENGTH = 392_702, 3, 128  # examples, as `bert_mnli` is trained on them

BERTS = [
    *("experiment=mnli_cka", "model=[bert_mnli]", "groups={}", "claims=[]", "cache=true"),
    f"model.bert_mnli.seeds=[{','.join(map(str, range(100)))}]",
]
SOLVED = ["measure=[gromov_wasserstein]", "extract.estimate=full", "extract.rows=1000"]
PYTHIA = ",".join(f"pythia_{size}" for size in ("70m", "160m", "410m", "1b", "1_4b", "2_8b", "6_9b", "12b_shape"))


def tokenizer(model: str) -> str:
    """The word that gives a model that is a shape alone the tokenizer of another model."""
    folder = Path(repsim_cli.__file__).parent / "assets" / "models" / "tiny_a"
    return f"++model.{model}.tokenizer={folder}"


@dataclass(frozen=True)
class Place:
    """Machines with a device each worker. speed: of a device, in operations per second. cores: of all machines.
    cached: units leave their rows in the cache; else the run computes its rows as it needs them."""

    name: str
    nodes: int
    workers: int
    speed: float
    cores: int
    cached: bool


@dataclass(frozen=True)
class Work:
    """A unit. size: bytes that it reads and writes."""

    operations: float
    size: float
    calls: float = 0.0  # seconds of calls beside the operations

    def seconds(self, speed: float) -> float:
        return self.operations / speed + self.calls + PREPARING


@cache
def core() -> float:
    """Operations per second of one thread, by its CPU time: other processes do not count."""
    x, best = torch.rand(SIDE, SIDE), float("inf")
    torch.set_num_threads(1)
    for _ in range(8):
        start = time.process_time()
        _ = x @ x
        best = min(best, time.process_time() - start)
    return 2 * SIDE**3 / best


def planned(words: Sequence[str]) -> Comparison:
    """The comparison of a configuration, with the shapes that ship with the package."""
    (config,) = compose([*words, "dry_run=true"])
    return validate(drop_hydra_keys(config)).study.comparison


def written(compared: Comparison, label: str) -> float:
    """Bytes of the rows of a model."""
    return (
        4.0
        * count_all_rows(compared.models, compared.data, compared.extract)
        * sum(layer.width for layer in compared.layers if layer.model == label)
    )


def recordings(compared: Comparison, cached: bool = True, workers: int = 1) -> list[Work]:
    """A unit per model, or as many shards of it as there are workers for it, which reads its weights and writes its
    rows."""
    sequences, length = compared.extract.sequences, footprint.find_sequence_length(compared)
    shards = max(1, workers // len(compared.live))
    return [
        Work(
            count_forward_operations([model], sequences, length) / EFFICIENCY / shards,
            4.0 * model.parameters + written(compared, label) * cached / shards,
            CALL * model.layers * count_passes(sequences, length, compared.hardware) / shards,
        )
        for label, model in compared.live.items()
        for _ in range(shards)
    ]


def gatherings(compared: Comparison, workers: int) -> list[Work]:
    """A unit per model in shards, which reads them to hash them anew."""
    return [Work(0.0, written(compared, label)) for label in compared.live] if workers // len(compared.live) > 1 else []


def trainings(compared: Comparison) -> list[Work]:
    """A unit per fine-tuned BERT: three forward passes' worth of operations for each token."""

    def operations(model: Source) -> float:
        return 6.0 * MNLI * EPOCHS * LENGTH * (model.parameters - model.vocabulary * model.width) / EFFICIENCY

    return [Work(operations(model), 8.0 * model.parameters) for model in compared.live.values()]


def solvings(compared: Comparison) -> list[Work]:
    """A unit per slow measure and pair of models, on one core, which reads the rows of both."""
    widths = {label: [layer.width for layer in compared.layers if layer.model == label] for label in compared.live}
    labels, rows, units = list(widths), footprint.count_rows_per_comparison(compared), []
    for measure in compared.measures.values():
        for i, first in enumerate(labels):
            for second in labels[i:]:
                a, b = len(widths[first]), len(widths[second])
                pairs = a * (a + 1) / 2 if first == second else a * b
                read = sum(widths[first]) + sum(widths[second]) * (first != second)
                units.append(Work(2.0 * rows**3 * measure.slow.products * pairs, 4.0 * rows * read))
    return units


def packed(seconds: Sequence[float], workers: int) -> float:
    """The time at which the last of so many workers is ready, who each take the longest of what is left."""
    ends = [0.0] * workers
    for each in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += each
    return max(ends)


def phase(units: Sequence[Work], workers: int, speed: float, nodes: int) -> tuple[float, str]:
    """Seconds of units, and what bounds them."""
    rate = min(SHARED, PER_NODE * nodes) / min(workers, len(units))
    computing = [unit.seconds(speed) for unit in units]
    moving = [unit.size / rate for unit in units]
    seconds = [a + b for a, b in zip(computing, moving, strict=True)]
    took = packed(seconds, workers)
    if sum(moving) > sum(computing):
        return took, "the folder"
    return took, "the largest model" if workers > 1 and max(seconds) > 0.9 * took else "the devices"


def row(name: str, place: Place, compared: Comparison, *, trained: bool = False, solved: bool = False) -> str:
    """A row of the table of costs. trained: the trainings too. solved: pairs are solved one by one."""
    phases = [(trainings(compared), place.workers, place.speed)] if trained else []
    phases += [(recordings(compared, place.cached, place.workers), place.workers, place.speed)]
    if gathered := gatherings(compared, place.workers):
        phases += [(gathered, place.workers, place.speed)]
    phases += [(solvings(compared), place.cores, core())] if solved else []
    took = [phase(units, workers, speed, place.nodes) for units, workers, speed in phases]
    read = 0.0 if solved or not place.cached else footprint.count_stored(compared)
    similarity = 0.0 if solved else footprint.estimate_costs(compared, compared.pairs)["similarity"].operations
    took += [(similarity / place.speed + read / PER_NODE, "the run itself, on one node")]
    units = STARTING + sum(seconds for seconds, _ in took[:-1])
    moved = read + sum(unit.size for each, *_ in phases for unit in each)
    hours = (units * place.nodes + took[-1][0]) / 3600
    return (
        f"| {name} | {place.name} | {sum(len(each) for each, *_ in phases)} | {moved / 1e12:.2f} TB | "
        f"{say_duration(units)} | {say_duration(took[-1][0])} | {hours:,.1f} | {max(took)[1]} |"
    )


def costs() -> None:
    places = [
        Place("laptop, 8 cores", 1, 1, 8 * core(), 8, False),
        Place("a GPU, 16 cores", 1, 1, GPU, 16, False),
        Place("SLURM, 8 nodes of a GPU and 16 cores", 8, 8, GPU, 128, True),
        Place("SLURM, 32 nodes of a GPU and 16 cores", 32, 32, GPU, 512, True),
        Place("Ray, 4 nodes of 8 GPUs and 128 cores", 4, 32, GPU, 512, True),
    ]
    print(f"a core: {core() / 1e9:.0f} GFLOP/s in float32, measured here; a GPU: {GPU / 1e12:.0f} TFLOP/s, assumed\n")
    print("| run | where | units | through the folder | units | the run itself | node-hours | bound by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    compared = planned(["experiment=pythia_cka", f"model=[{PYTHIA}]", tokenizer("pythia_12b_shape"), "claims=[]"])
    for place in places:
        print(row("`pythia_cka` with 12b", place, compared))
    compared = planned(BERTS)
    for place in places:
        print(row("100 BERTs compared by CKA", place, compared))
        print(row("the same, fine-tuned first", place, compared, trained=True))
    compared = planned([*BERTS, *SOLVED])
    for place in places:
        print(row("all pairs of 100 BERTs, Gromov-Wasserstein of 1000 rows", place, compared, solved=True))


SMALL = {
    "rows of 4 models of 19 million weights": [
        *("model=[pythia_70m_shape]", "++model.pythia_70m_shape.seeds=[0,1,2,3]", "measure=[mutual_knn]"),
        *(tokenizer("pythia_70m_shape"), "extract.sequences=32", "extract.layers=[0,-1]"),
    ],
    "rows of 4 models of 64 features": [
        *("model=[tiny_a_step100,tiny_a_step400,tiny_a,tiny_b]", "measure=[mutual_knn]", "extract.sequences=64"),
    ],
    "Gromov-Wasserstein, 4 models, 1000 rows": [
        *("model=[tiny_a_step100,tiny_a_step400,tiny_a,tiny_b]", "measure=[gromov_wasserstein]"),
        *("extract.estimate=full", "extract.rows=1000", "extract.layers=[0,3]"),
    ],
}


def check() -> None:
    print("| run | CPU seconds of units: calculated | measured | rows, MB: calculated | in the cache |")
    print("| --- | --- | --- | --- | --- |")
    for name, words in SMALL.items():
        compared = planned(words)
        solved = "gromov_wasserstein" in compared.measures
        expected = sum(unit.seconds(core()) for unit in (solvings if solved else recordings)(compared))
        with tempfile.TemporaryDirectory() as folder:
            asked = [*words, "hardware.threads=1", "hardware.executor=processes", "hardware.processes=1"]
            environment = {**os.environ, "REPSIM_OUTPUTS": f"{folder}/outputs", "REPSIM_CACHE": f"{folder}/cache"}
            subprocess.run([sys.executable, "-m", "repsim_cli", "run", "-q", *asked], env=environment, check=True)
            (run,) = folders.list_run_folders(Path(folder) / "outputs")
            kind = "pairs" if solved else "activations"
            spent = sum(line["cpu_seconds"] for line in read_records(run) if line["kind"] == kind)
            files = [file for file in (Path(folder) / "cache" / "activations").rglob("*") if file.is_file()]
            held = sum(file.stat().st_size for file in files)
        stored = footprint.count_stored(compared)
        print(f"| {name} | {expected:.1f} | {spent:.1f} | {stored / 1e6:.1f} | {held / 1e6:.1f} |")


PARTS = {"costs": costs, "check": check}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        print(f"\n{part}")
        PARTS[part]()
