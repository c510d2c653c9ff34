"""Units of work on workers: what an engine costs, how it scales, and what kills leave.

Command: python benchmarks/engines.py [starts] [overhead] [slots] [bits] [stitches] [kills] [processes] [ray] [slurm]
    (ray needs pip install -e '.[ray]'; slurm a cluster: scripts/slurm_trial python benchmarks/engines.py bits slurm)

starts:   processes of our own (`WorkerProcess`), of concurrent.futures and of loky, which import nothing: time to the
    first answer and to a later one, and whether a process goes on when another one of its pool is killed.
overhead: 2000 units that do nothing but leave a file in the cache, on 2 workers: CPU time of the driver per unit, and
    the time from asking a worker to its answer.
slots:    4000 units that sleep for a second, on 200 threads of 4 Ray actors: efficiency against 20 s.
bits:     a run of six models with Gromov-Wasserstein pairs on 1, 2 and 4 workers of each engine: its numbers against
    those of the run alone, wall time and efficiency; CPU seconds of its units, which other load changes less, and
    the share of the time of the units in which workers had one.
stitches: the same of a run of stitches.
kills:    small units on 2 workers, while 50 times a random worker or the driver is killed: values, and what was
    computed twice though it was complete.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from joblib.externals.loky import ProcessPoolExecutor as LokyExecutor

from repsim_cli.base.settings import Hardware
from repsim_cli.base.workers import WorkerProcess
from repsim_cli.execution import Unit, make_executor
from repsim_cli.execution.driver import start_driver
from repsim_cli.execution.ray_cluster import Ray
from repsim_cli.execution.records import read_records
from repsim_cli.runs import folders, reader, results
from repsim_cli.runs.cache import make_cache_key, use

HERE = Path(__file__).parent
LOG, UNITS, PAUSE = "log", 4, 0.3  # of kills: what units write, units for each kill, seconds that a unit sleeps
ENGINES = {
    "processes": ["hardware.executor=processes"],
    "ray": ["hardware.executor=ray", "hardware.address=local"],
    "slurm": ["hardware.executor=slurm"],
}
PAIRS = [
    "model=[random_tiny]",
    "+model.random_tiny.seeds=[0,1,2,3,4,5]",
    "measure=[cka_unbiased,gromov_wasserstein]",
    "extract.estimate=full",
    "extract.rows=300",
    "extract.layers=[0,-1]",
    "hardware.threads=1",
]
STITCHES = [
    "model=[random_tiny]",
    "+model.random_tiny.seeds=[0,1]",
    "study=stitching",
    "extract.layers=[1]",
    "extract.sequences=64",
    "+options.evaluation=16",
    "+options.recipe={steps: 20, warm_up: 2}",
    "hardware.threads=1",
]


def start_own(count: int) -> tuple[Any, list[int], Any]:
    """Starts workers; gives how to ask one, the processes, and how to end them."""
    workers = [WorkerProcess.start() for _ in range(count)]

    def ask(*call: Any) -> Any:
        workers[-1].ask(*call)
        return workers[-1].answer()

    return ask, [worker.process.pid for worker in workers], lambda: [worker.end() for worker in workers]


def start_pool(pool: Any) -> tuple[Any, list[int], Any]:
    """The same of a library's pool."""
    pool.submit(abs, 0).result()
    return lambda *call: pool.submit(*call).result(), list(pool._processes), lambda: pool.shutdown()


MECHANISMS = {
    "our own": start_own,
    "concurrent.futures": lambda count: start_pool(ProcessPoolExecutor(count, get_context("spawn"))),
    "loky": lambda count: start_pool(LokyExecutor(count)),
}


def starts() -> None:
    print("| processes | first answer, ms | later answers, ms | when another one is killed |")
    print("| --- | --- | --- | --- |")
    for name, start in MECHANISMS.items():
        first, later = [], []
        for _ in range(7):
            begin = time.perf_counter()
            ask, _, stop = start(1)
            for times in (first, *[later] * 1000):
                ask(abs, 0)
                times.append(1000 * (time.perf_counter() - begin))
                begin = time.perf_counter()
            stop()
        ask, (victim, *_), stop = start(2)
        os.kill(victim, signal.SIGKILL)
        try:
            end = "goes on" if ask(time.sleep, 1) is None else ""
        except BrokenProcessPool:
            end = "ends"
        stop()
        print(f"| {name} | {np.median(first):.0f} | {np.median(later):.3f} | {end} |")


def distance(number: int) -> str:
    """The Procrustes distance of two random matrices, all of its bits."""
    x, y = np.random.default_rng(number).standard_normal((2, 200, 100))
    nuclear = np.linalg.svd(x.T @ y, compute_uv=False).sum()
    return float((x * x).sum() + (y * y).sum() - 2 * nuclear).hex()


def session(config: Any, threads: int) -> Any:
    """perform(kind, args) of the units of this file."""

    def write(number: int) -> bool:
        with use("tried", [make_cache_key({"number": number})]) as entries:
            (entry,) = entries.values()
            if entry.complete:
                return False
            entry.write("value", lambda path: path.write_text(str(number)))
            entry.finish()
            return True

    def solve(number: int, folder: str) -> bool:
        with use("tried", [make_cache_key({"number": number})]) as entries:
            (entry,) = entries.values()
            if entry.complete:
                return False
            with open(Path(folder) / LOG, "a", buffering=1) as log:
                log.write(f"begin {number}\n")
                value = distance(number)
                time.sleep(PAUSE)
                entry.write("value", lambda path: path.write_text(value))
                entry.finish()
                log.write(f"end {number}\n")
            return True

    def sleep(seconds: float) -> bool:
        time.sleep(seconds)
        return True

    kinds = {"write": write, "solve": solve, "sleep": sleep}
    return lambda kind, args: kinds[kind](**args)


def driven(make: Any, folder: Path, units: list[Unit], name: str) -> tuple[float, float, Any]:
    """Wall and CPU seconds of the driver while the units run, and the run."""
    os.environ["REPSIM_CACHE"] = str(folder / "cache")
    run = results.create(folder / f"run-{os.getpid()}", name="tried", study="none", seed=0, command=[], overrides=[])
    with start_driver(make, run, name=name, session="engines:session", config={}, threads=1) as driver:
        begin, cpu = time.monotonic(), time.process_time()
        driver.perform(units, "units")
        return time.monotonic() - begin, time.process_time() - cpu, run


def overhead() -> None:
    print("| engine | driver's CPU per unit, ms | latency, ms | of it in the worker, ms |")
    print("| --- | --- | --- | --- |")
    for name in ENGINES:
        hardware = Hardware(executor=name, processes=2, address="local")  # type: ignore[arg-type]
        units = [Unit(kind="write", name=f"unit {n}", args={"number": n}) for n in range(2000)]
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu, run = driven(partial(make_executor, hardware, 1), Path(folder), units, name)
            lines = read_records(run.folder)
        inside = sum(line["seconds"] for line in lines) / len(lines)
        print(f"| {name} | {cpu / 2.0:.2f} | {wall * 2 / 2.0:.1f} | {inside * 1000:.1f} |")


def slots() -> None:
    hardware = Hardware(executor="ray", processes=4, address="local")
    units = [Unit(kind="sleep", name=f"unit {n}", args={"seconds": 1.0}) for n in range(4000)]
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu, _ = driven(lambda: Ray(hardware, 1, slots=50), Path(folder), units, "ray")
    print(f"4000 units of 1 s on 200 threads of 4 actors: {wall:.1f} s, efficiency {20 / wall:.0%}, driver {cpu:.1f} s")


def command(folder: Path, cache: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, "REPSIM_OUTPUTS": str(folder), "REPSIM_CACHE": str(folder / cache)}
    return [sys.executable, "-m", "repsim_cli", "run", "-q", *words], environment


def numbers(folder: Path) -> tuple[Any, dict[str, bytes]]:
    """The results and arrays of the run in this folder."""
    found = json.loads((folder / "results.json").read_text())
    for analysis in found["analyses"].values():
        analysis.pop("code")
    return found, {file.name: file.read_bytes() for file in (folder / "arrays").glob("*")}


def newest(folder: Path) -> Path:
    return folders.list_run_folders(folder)[-1]


def bits(words: list[str]) -> None:
    print("| engine | workers | wall, s | of it units, s | efficiency of units | their CPU, s | busy | same numbers |")
    print("| --- " * 8 + "|")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def measured(cache: str, words: list[str]) -> float:
            asked, environment = command(folder, cache, words)
            begin = time.monotonic()
            subprocess.run(asked, env=environment, check=True)
            return time.monotonic() - begin

        print(f"| none | - | {measured('alone', words):.1f} | - | - | - | - | - |")
        alone = numbers(newest(folder))
        for engine, choice in ENGINES.items():
            single = 0.0
            for workers in (1, 2, 4):
                wall = measured(f"{engine}-{workers}", [*words, *choice, f"hardware.processes={workers}"])
                run = newest(folder)
                timings = reader.read_manifest(run)["timings"]
                units = sum(seconds for stage, seconds in timings.items() if stage.startswith("units"))
                lines = read_records(run)
                cpu, spent = (sum(line[of] for line in lines) for of in ("cpu_seconds", "seconds"))
                single = single or units
                same = "yes" if numbers(run) == alone else "NO"
                efficiency = f"{single / units / workers:.0%}"
                cells = [engine, workers, f"{wall:.1f}", f"{units:.1f}", efficiency]
                cells += [f"{cpu:.1f}", f"{spent / units / workers:.0%}", same]
                print("| " + " | ".join(map(str, cells)) + " |")


def kills(count: int = 50) -> None:
    """Prints, for each engine, what so many kills of random workers amid their units cost.
    One in five is of the driver, after which another one starts on the same cache.
    """
    print("| engine | workers killed | drivers killed | units | begun again | computed twice | other values |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as place, served(engine) as address:
            folder, numbers = Path(place), range(UNITS * count)
            killed = killing(
                [sys.executable, __file__, "drive", engine, place, address, str(len(numbers))], folder, count
            )
            lines = [line.split() for line in (folder / LOG).read_text().splitlines()]
            os.environ["REPSIM_CACHE"] = str(folder / "cache")
            with use("tried", keys := [make_cache_key({"number": number}) for number in numbers]) as entries:
                values = [entries[named].files["value"].read_text() for named in keys]
        begun, ended, twice = Counter[str](), set[str](), 0
        for what, number in lines:
            if what == "end":
                ended.add(number)
                continue
            begun[number] += 1
            twice += number in ended
        again = begun.total() - len(begun)
        other = sum(value != distance(number) for number, value in zip(numbers, values, strict=True))
        print(f"| {engine} | {killed['worker']} | {killed['driver']} | {len(begun)} | {again} | {twice} | {other} |")


@contextlib.contextmanager
def served(engine: str) -> Iterator[str]:
    """The address of a cluster that outlives its drivers, which Ray needs for that."""
    if engine != "ray":
        yield "local"
        return
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 100 * 10**6}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**node)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def drive(engine: str, folder: str, address: str, count: str) -> None:
    """A driver of small units, in a process of its own."""
    hardware = Hardware(executor=engine, processes=2, address=address)  # type: ignore[arg-type]
    units = [Unit(kind="solve", name=f"unit {n}", args={"number": n, "folder": folder}) for n in range(int(count))]
    driven(partial(make_executor, hardware, 1), Path(folder), units, engine)


def killing(asked: list[str], folder: Path, count: int) -> Counter[str]:
    """Kills until a driver comes to its end: each time that a unit or two have begun, one victim. Counts what was
    killed."""
    draw, killed, seen = random.Random(0), Counter[str](), 0
    (log := folder / LOG).touch()
    while True:
        process = subprocess.Popen(asked)
        while process.poll() is None:
            time.sleep(0.05)
            begun = log.read_text().count("begin")
            if killed.total() >= count or begun < seen + 2:
                continue
            seen = begun
            time.sleep(draw.uniform(0.0, PAUSE))
            if killed.total() % 5 == 4:
                process.kill()
                killed["driver"] += 1
            elif victims := workers_of(folder):
                with contextlib.suppress(psutil.Error):
                    draw.choice(victims).kill()
                    killed["worker"] += 1
        if process.returncode != -signal.SIGKILL:
            break
    if process.returncode:
        raise SystemExit(f"{asked}: exit code {process.returncode}")
    return killed


def workers_of(folder: Path) -> list[psutil.Process]:
    """The processes that work for a driver that this process has started: its own, actors of Ray, tasks of a SLURM on
    this machine whose cache is in the folder."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in (words := " ".join(process.cmdline())) or words.startswith("ray::Held"):
                workers.append(process)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "repsim_cli.execution.pilot" in (words := process.cmdline()) and str(folder) in " ".join(words):
                workers.append(process)
    return workers


PARTS = {
    # from a process whose main module has no imports, which spawned processes would repeat
    "starts": lambda: subprocess.run([sys.executable, "-c", "import engines; engines.starts()"], check=True),
    "overhead": overhead,
    "slots": slots,
    "bits": partial(bits, PAIRS),
    "stitches": partial(bits, STITCHES),
    "kills": kills,
}

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.insert(0, str(HERE))
    os.environ["REPSIM_QUIET"] = "1"
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if sys.argv[1:2] == ["drive"]:
        sys.exit(drive(*sys.argv[2:]))
    if chosen := [name for name in sys.argv[1:] if name in ENGINES]:
        ENGINES = {name: ENGINES[name] for name in chosen}
    for part in [name for name in sys.argv[1:] if name not in chosen] or PARTS:
        print(f"\n{part}")
        PARTS[part]()
