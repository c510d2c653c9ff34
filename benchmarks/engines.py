"""Units of work on workers: what an engine costs, how it scales, and what kills leave.

Command: python benchmarks/engines.py [overhead] [slots] [bits] [kills] [processes] [ray] [slurm]
    (ray needs pip install -e '.[ray]'; slurm a cluster: scripts/slurm_trial python benchmarks/engines.py bits slurm)

overhead: 2000 units that do nothing but leave a file in the cache, on 2 workers: CPU time of the driver per unit, and
    the time from asking a worker to its answer.
slots:    4000 units that sleep for a second, on 200 threads of 4 Ray actors: efficiency against 20 s.
bits:     a run of six models with Gromov-Wasserstein pairs, and one of stitches, on 1 and 2 workers of each engine:
          their numbers against those of the run alone, wall time and efficiency.
kills:    the same run, while random workers and the driver are killed: what was computed twice.
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
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from repsim_cli import results
from repsim_cli.cache import key, using
from repsim_cli.executors import Unit, executor_of
from repsim_cli.executors.driver import driving
from repsim_cli.executors.ray_cluster import Ray
from repsim_cli.executors.records import FILE, read_records
from repsim_cli.settings import Hardware

HERE = Path(__file__).parent
ENGINES = {
    "processes": ["hardware.executor=processes"],
    "ray": ["hardware.executor=ray", "hardware.address=local"],
    "slurm": ["hardware.executor=slurm"],
}
PAIRS = [
    "model=[tiny_a_step100,tiny_a_step400,tiny_a,tiny_b,random_tiny]",
    "+model.random_tiny.seeds=[0,1]",
    "measure=[cka_unbiased,gromov_wasserstein]",
    "extract.estimate=full",
    "extract.rows=200",
    "hardware.threads=1",
]
STITCHES = [
    "model=[tiny_a,tiny_b]",
    "study=stitching",
    "extract.layers=[1,2]",
    "extract.sequences=200",
    "+options.recipe={steps: 60, warm_up: 10}",
    "hardware.threads=1",
]


def session(config: Any, threads: int) -> Any:
    """perform(kind, args) of the units of this file."""

    def write(number: int) -> bool:
        with using("tried", [key({"number": number})]) as entries:
            (entry,) = entries.values()
            if entry.complete:
                return False
            entry.write("value", lambda path: path.write_text(str(number)))
            entry.finish()
            return True

    def sleep(seconds: float) -> bool:
        time.sleep(seconds)
        return True

    kinds = {"write": write, "sleep": sleep}
    return lambda kind, args: kinds[kind](**args)


def driven(make: Any, folder: Path, units: list[Unit], name: str) -> tuple[float, float, Any]:
    """Wall and CPU seconds of the driver while the units run, and the run."""
    os.environ["REPSIM_CACHE"] = str(folder / "cache")
    run = results.create(folder / "run", name="tried", study="none", seed=0, command=[], overrides=[])
    with driving(make, run, name=name, session="engines:session", config={}, threads=1) as driver:
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
            wall, cpu, run = driven(partial(executor_of, hardware, 1), Path(folder), units, name)
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
    """Those of the run in this folder."""
    found = json.loads((folder / "results.json").read_text())
    for analysis in found["analyses"].values():
        analysis.pop("code")
    return found, {file.name: file.read_bytes() for file in (folder / "arrays").glob("*")}


def newest(folder: Path) -> Path:
    return results.runs(folder)[-1]


def bits() -> None:
    print("| run | engine | workers | wall, s | of it units, s | efficiency of units | same numbers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for what, words in {"pairs": PAIRS, "stitches": STITCHES}.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)

            def measured(cache: str, words: list[str], folder: Path = folder) -> float:
                asked, environment = command(folder, cache, words)
                begin = time.monotonic()
                subprocess.run(asked, env=environment, check=True)
                return time.monotonic() - begin

            print(f"| {what} | none | - | {measured('alone', words):.1f} | - | - | - |")
            alone = numbers(newest(folder))
            for engine, choice in ENGINES.items():
                single = 0.0
                for workers in (1, 2):
                    wall = measured(f"{engine}-{workers}", [*words, *choice, f"hardware.processes={workers}"])
                    run = newest(folder)
                    timings = results.read_manifest(run)["timings"]
                    units = sum(seconds for stage, seconds in timings.items() if stage.startswith("units"))
                    single = single or units
                    same = "yes" if numbers(run) == alone else "NO"
                    efficiency = f"{single / units / workers:.0%}"
                    print(f"| {what} | {engine} | {workers} | {wall:.1f} | {units:.1f} | {efficiency} | {same} |")


def kills(count: int = 25) -> None:
    """For each engine, so many kills of random workers, and once in five of the run itself, which then resumes. A run
    that ends before is started again, with an empty cache."""
    for engine, choice in ENGINES.items():
        draw, killed, facts = random.Random(0), Counter[str](), Counter[str]()
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            asked, environment = command(folder / "alone", "cache", PAIRS)
            subprocess.run(asked, env=environment, check=True)
            alone = numbers(newest(folder / "alone"))
            while killed.total() < count:
                own = folder / str(facts["runs"])
                words, again = [*PAIRS, *choice, "hardware.processes=2"], list[str]()
                while code := _killed(*command(own, "cache", [*words, *again]), draw, killed, count):
                    if code != -signal.SIGKILL:
                        raise SystemExit(f"{engine}: exit code {code}, see {own}")
                    again = ["resume=latest"]
                done = read_records(newest(own))
                computed = Counter(line["unit"] for line in done if line["computed"])
                facts["runs"] += 1
                facts["differ"] += numbers(newest(own)) != alone
                facts["computed"] += len(computed)
                facts["twice"] += sum(times > 1 for times in computed.values())
                facts["lost"] += sum(line["status"] == "lost" for line in done)
        print(
            f"{engine}: {killed['worker']} workers and {killed['run']} runs killed; {facts['runs']} runs completed, "
            f"{facts['differ']} with other numbers; {facts['computed']} units computed, {facts['twice']} of them "
            f"twice, {facts['lost']} attempts lost with their worker"
        )


def _killed(
    asked: list[str], environment: dict[str, str], draw: random.Random, killed: Counter[str], count: int
) -> int:
    """The exit code of a run during which, after each unit or two, a worker or the run itself is killed."""
    process, outputs = subprocess.Popen(asked, env=environment), Path(environment["REPSIM_OUTPUTS"])
    seen = 0
    while process.poll() is None:
        time.sleep(0.2)
        records = sum(len(file.read_bytes().splitlines()) for file in outputs.glob(f"*/*/{FILE}"))
        if killed.total() >= count or records <= seen:
            continue
        seen = records
        time.sleep(draw.uniform(0.0, 2.0))
        victims = workers_of(process.pid)
        if not victims or process.poll() is not None:
            continue
        if killed.total() % 5 == 4:
            process.kill()
            killed["run"] += 1
        else:
            with contextlib.suppress(psutil.Error):
                draw.choice(victims).kill()
                killed["worker"] += 1
    return process.returncode


def workers_of(pid: int) -> list[psutil.Process]:
    """The processes that work for a driver: its own, actors of its own Ray, tasks of a SLURM on this machine."""
    try:
        below = psutil.Process(pid).children(recursive=True)
        pilots = [p for p in psutil.process_iter() if "repsim_cli.executors.pilot" in p.cmdline()]
        own = [p for p in below if "spawn_main" in " ".join(p.cmdline()) or p.cmdline()[:1] == ["ray::Held.run"]]
        return own + pilots
    except psutil.Error:
        return []


PARTS = {"overhead": overhead, "slots": slots, "bits": bits, "kills": kills}

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path.insert(0, str(HERE))
    os.environ["REPSIM_QUIET"] = "1"
    if chosen := [name for name in sys.argv[1:] if name in ENGINES]:
        ENGINES = {name: ENGINES[name] for name in chosen}
    for part in [name for name in sys.argv[1:] if name not in chosen] or PARTS:
        print(f"\n{part}")
        PARTS[part]()
