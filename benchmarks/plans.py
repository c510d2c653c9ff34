"""What plans say that measures and runs take, against what they take.

Commands: python benchmarks/plans.py [MEASURE ...]
          python benchmarks/plans.py workloads [NAME ...]

Measures: CPU seconds of one thread, as planned and as measured, all pairs of four layers, for several numbers of rows
and features. A larger size of a measure that took more than LONGEST seconds is left out. off: measured over planned.

Workloads: the memory of whole runs, in MB (10^6 bytes), as planned and at its peak. Counted are the private pages of
the process and of those it starts (RssAnon, read every few milliseconds): not those of files that are mapped, as
libraries, weights and stored rows, which the system takes back when it needs room. idle: the peak of a run of 64 stored
rows, and of 64 rows of the four tiny models: Python, libraries, figures. Planned and peak are less that, and less what
the plan has for it, so that large constants do not hide what grows. off: planned over peak.
"""

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import torch
from compare import located
from safetensors.torch import save_file

from repsim_cli import measures
from repsim_cli.base.errors import RepsimError
from repsim_cli.base.settings import Hardware
from repsim_cli.engine.cost import estimate_pairs_cost
from repsim_cli.engine.pairs import compute_all_pairs

SIZES = ((256, 64), (1000, 64), (1000, 384))
LAYERS, LONGEST = 4, 8.0
EVERY = 0.004  # seconds
BASE = "Python and its libraries"

# a name: rows, width and layers of each of two stored models, or none; the words of the command
FULL = "extract.estimate=full extract.rows={rows}"
STORED = "run model=[] significance.clusters=row "
WORKLOADS: dict[str, tuple[tuple[int, int, int] | None, str]] = {
    "tiny models, CKA and neighbours, 4,096 rows": (None, "run extract.estimate=full extract.rows=4096"),
    "batches, CKA, 12 layers, 8 of 1,024 rows x 768": (
        (8192, 768, 6),
        f"{STORED} measure=[cka_unbiased] extract.estimate=per_batch extract.batch_rows=1024",
    ),
    "moments, CKA, 12 layers of 10,000 x 768": (
        (10_000, 768, 6),
        f"{STORED} measure=[cka,linear_regression] extract.estimate=moments",
    ),
    "sampled neighbours, 2 layers of 50,000 x 384": (
        (50_000, 384, 1),
        f"{STORED} measure=[mutual_knn] extract.estimate=sampled extract.rows=4096",
    ),
    "neighbours, 2 layers of 20,000 x 768": ((20_000, 768, 1), f"{STORED} measure=[mutual_knn] {FULL}"),
    "RSA, 6 layers of 4,096 x 256": ((4096, 256, 3), f"{STORED} measure=[rsa] {FULL}"),
    "Procrustes and PWCCA, 6 layers of 2,048 x 768": (
        (2048, 768, 3),
        f"{STORED} measure=[procrustes,pwcca] {FULL}",
    ),
    "Gromov-Wasserstein, 4 layers of 1,500 x 64": (
        (1500, 64, 2),
        f"{STORED} measure=[gromov_wasserstein] {FULL}",
    ),
    "effective ranks, 12 layers of 4,096 x 768": (
        (4096, 768, 6),
        f"{STORED} measure=[effective_rank_difference] {FULL}",
    ),
    "views, 6 layers of 2,048 x 256, 512 matched": (
        (2048, 256, 3),
        f"{STORED} study=views measure=[] {FULL} options.batch=512",
    ),
    "attention of tiny models": (None, "run experiment=tiny/ptb_attention"),
    "compare SmolLM2 and MiniLM, 1,024 rows": (None, "compare {smollm2} {minilm} --set extract.rows=1024"),
}
IDLE = {
    "stored rows": ((64, 8, 1), f"{STORED} measure=[cka] {FULL}"),
    "models": (None, "run extract.sequences=16 extract.batch_rows=64"),
}


def layers(rows: int, width: int, count: int = LAYERS, seed: int = 0) -> list[torch.Tensor]:
    """Layers that share most, each after a random rotation and a nonlinearity."""
    shared, own = (torch.Generator().manual_seed(number) for number in (0, seed))
    spectrum = torch.arange(1, width + 1) ** -0.5
    x = torch.randn(rows, width, generator=shared) * spectrum
    found = []
    for _ in range(count):
        step = torch.randn(width, width, generator=own if seed else shared) / width**0.5
        x = x + 0.3 * torch.nn.functional.gelu(x @ step)
        found.append(x)
    return found


def taken(name: str, given: list[torch.Tensor]) -> tuple[float, float]:
    """Plans and takes the seconds of a measure."""
    bound = measures.get(name)
    count = len(given)
    hardware = Hardware(threads=1)
    planned = estimate_pairs_cost(
        [bound], [x.shape[1] for x in given], count * (count + 1) // 2, len(given[0]), hardware
    )
    labels = torch.arange(len(given[0])) % 8 if bound.card.labelled else None
    begin = time.process_time()
    compute_all_pairs({name: bound}, given, labels=labels)
    return planned.seconds, time.process_time() - begin


def read_sizes(pid: int) -> dict[str, int]:
    """Bytes of the pages of a process, by the name that the system gives them; nothing where it has ended."""
    with suppress(OSError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return {line[0][:-1]: 1024 * int(line[1]) for line in lines if line[-1:] == ["kB"]}
    return {}


def count_private_of_children(pid: int) -> int:
    """Bytes of the private pages of those that a process has started. For a moment a child has the command of its
    parent, and its pages, which are not counted again."""
    found = 0
    with suppress(OSError):
        place = Path(f"/proc/{pid}")
        command = (place / "cmdline").read_bytes()
        for child in [child for task in place.glob("task/*/children") for child in task.read_text().split()]:
            if Path(f"/proc/{child}/cmdline").read_bytes() != command:
                found += read_sizes(int(child)).get("RssAnon", 0) + count_private_of_children(int(child))
    return found


def watch(child: subprocess.Popen[bytes]) -> tuple[float, float]:
    """The peak of the private pages of a command, and its CPU seconds. Peaks too short to be seen are those of all
    pages less the most that files had. Raises SystemExit where it fails."""
    peak = most = of_files = 0
    while True:
        sizes = read_sizes(child.pid)
        most, of_files = max(most, sizes.get("VmHWM", 0)), max(of_files, sizes.get("RssFile", 0))
        peak = max(peak, sizes.get("RssAnon", 0) + count_private_of_children(child.pid))
        time.sleep(EVERY)
        ended, status, used = os.wait4(child.pid, os.WNOHANG)
        if ended:
            break
    if status:
        raise SystemExit(f"no value, status {status}")
    return float(max(peak, most - of_files)), used.ru_utime + used.ru_stime


def write_rows(folder: Path, shape: tuple[int, int, int]) -> Iterator[str]:
    """Writes two models of stored layers; gives the words that name them."""
    rows, width, count = shape
    for seed, label in enumerate("ab", 1):
        file = folder / f"{label}.safetensors"
        save_file({f"h{number}": x for number, x in enumerate(layers(rows, width, count, seed))}, file)
        yield f"+model.{label}={{kind: precomputed, path: {file}}}"


def measure_run(shape: tuple[int, int, int] | None, words: str) -> tuple[dict[str, float], float, float]:
    """Plans and runs a command: bytes planned, by part; the peak; CPU seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: located(name) for name in ("smollm2", "minilm") if f"{{{name}}}" in words}
        command = [sys.executable, "-m", "repsim_cli", *words.format(rows=shape and shape[0], **places).split()]
        command += write_rows(Path(scratch), shape) if shape else []
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        environment = {**os.environ, **threads, "REPSIM_OUTPUTS": f"{scratch}/runs", "REPSIM_CACHE": f"{scratch}/cache"}
        one = ["hardware.threads=1"] if command[3] == "run" else ["--set", "hardware.threads=1"]
        plan = subprocess.run(
            [*command, *one, "dry_run=true"], env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        lines = takewhile(lambda line: line.startswith("    "), plan.partition("memory, GB\n")[2].splitlines())
        parts = {part: 1e9 * float(size) for part, _, size in (line.strip().partition(": ") for line in lines)}
        return parts, *watch(subprocess.Popen([*command, *one], env=environment, stdout=subprocess.DEVNULL))


def compare_workloads(names: list[str]) -> None:
    idle = {}
    for what, workload in IDLE.items():
        parts, peak, _ = measure_run(*workload)
        idle[what] = peak
        print(f"idle, {what}: {parts[BASE] / 1e6:.0f} MB planned, {peak / 1e6:.0f} at the peak")
    print(
        "", "| run | planned, MB | peak, MB | off | largest parts of the plan | CPU, s |", "| --- " * 6 + "|", sep="\n"
    )
    for name in [each for each in WORKLOADS if not names or any(word in each for word in names)]:
        parts, peak, seconds = measure_run(*WORKLOADS[name])
        net = parts["in all"] - parts[BASE], peak - idle["stored rows" if WORKLOADS[name][0] else "models"]
        largest = sorted(set(parts) - {BASE, "in all", "limit"}, key=lambda part: -parts[part])[:3]
        said = ", ".join(f"{part} {parts[part] / 1e6:.0f}" for part in largest)
        cells = name, *(f"{size / 1e6:,.0f}" for size in net), f"{net[0] / net[1]:.2f}", said, f"{seconds:.0f}"
        print(f"| {' | '.join(cells)} |", flush=True)


def compare_times(names: list[str]) -> None:
    print("| measure | " + " | ".join(f"{n} x {d}: planned, taken, off" for n, d in SIZES) + " |")
    print("| --- |" + " --- |" * len(SIZES))
    for name in names or measures.names("activations"):
        cells, last = [], 0.0
        for size in SIZES:
            if last > LONGEST:
                cells.append("")
                continue
            try:
                planned, last = taken(name, layers(*size))
                cells.append(f"{planned:.2g}, {last:.2g}, {last / planned:.2g}")
            except RepsimError as error:
                cells.append(type(error).__name__)
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["workloads"]:
        compare_workloads(sys.argv[2:])
    else:
        compare_times(sys.argv[1:])
