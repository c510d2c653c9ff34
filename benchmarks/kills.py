"""Kills real runs at random moments, resumes them, and compares what they leave with an undisturbed run.

Command: python benchmarks/kills.py [KILLS] [WORDS]     (200 by default: about 10 minutes on two cores)
         python benchmarks/kills.py 20 hardware.by_block=always     WORDS are added to the command that is killed
Prints the kills, the runs, the bytes that differ (0), and the time from a restart to the first new batch.

Every run is a process of its own, forked from one that has imported the libraries and done nothing else, so that the
seconds of import do not take most of the kills.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

WORDS = ["run", "-q", "model=[tiny_a,tiny_b]", "measure=[cka_unbiased]", "extract.length=64", "extract.batch_rows=256"]
WORDS += ["hardware.batch_size=4", "hardware.threads=1", "extract.sequences=160"]


class Outcome(NamedTuple):
    kills: int
    runs: int
    differing_bytes: int
    resumed: int
    seconds_to_resume: list[float]


class Runs:
    """Starts runs and tells how they ended."""

    def __enter__(self) -> "Runs":
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()

    def run(self, words: list[str], folder: Path, kill_after: float | None = None) -> int:
        """Runs in folder/outputs with folder/cache; the exit code, negative for the signal that ended it."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        folder.mkdir(exist_ok=True)
        print(json.dumps([words, str(folder)]), file=self.server.stdin, flush=True)
        process = int(self.server.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):  # it was faster
                os.kill(process, signal.SIGKILL)
        return int(self.server.stdout.readline())


def serve() -> None:
    """Forks a run for every line; answers with its process id, and later with its exit code."""
    import torch  # noqa: F401
    import transformers.models.gpt_neox.modeling_gpt_neox  # noqa: F401

    import repsim_cli.activations.rows
    import repsim_cli.cli.jobs
    import repsim_cli.figures.heatmap
    import repsim_cli.studies.similarity.study

    for line in sys.stdin:
        words, folder = json.loads(line)
        process = os.fork()
        if not process:
            os.environ.update(REPSIM_OUTPUTS=f"{folder}/outputs", REPSIM_CACHE=f"{folder}/cache")
            log = os.open(f"{folder}/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                repsim_cli.cli.main(words)
            except SystemExit as end:
                os._exit(int(end.code or 0))
            os._exit(1)
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def numbers(folder: Path) -> dict[str, bytes]:
    """The files that must be the same to the bit: results.json and every array."""
    files = [folder / "results.json", *sorted((folder / "arrays").iterdir())]
    return {file.name: file.read_bytes() for file in files}


def finished(outputs: Path) -> Path:
    (manifest,) = [m for m in outputs.rglob("manifest.json") if json.loads(m.read_text())["status"] == "complete"]
    return manifest.parent


def kill_runs(kills: int, seed: int = 0, more: Sequence[str] = ()) -> Outcome:
    """Runs are killed again and again until each completes; whole new runs are started until enough were killed. The
    undisturbed run is one without the words `more`."""
    moments = random.Random(seed)
    done = rounds = differing = resumed = 0
    resume_times = []
    with tempfile.TemporaryDirectory() as scratch, Runs() as runs:
        plain = Path(scratch) / "plain"
        runs.run(["doctor"], plain)  # the server's imports are done when this returns
        begin = time.monotonic()
        assert runs.run(WORDS, plain) == 0, (plain / "stderr").read_text()
        whole = time.monotonic() - begin
        expected = numbers(finished(plain / "outputs"))
        while done < kills:
            folder = Path(scratch) / f"run-{rounds}"
            code, resume = -signal.SIGKILL, []
            while code != 0:
                begin = time.monotonic()
                moment = moments.uniform(0.05, 1.0) * whole if done < kills else None
                code = runs.run([*WORDS, *more, *resume], folder, moment)
                done += code == -signal.SIGKILL
                if code == 0 and resume:
                    resume_times.append(time.monotonic() - begin)
                if code not in (0, -signal.SIGKILL):
                    raise AssertionError(f"a resumed run failed: {(folder / 'stderr').read_text()}")
                # killed before its run folder was there: nothing to resume yet
                begun = any((m.parent / "config.yaml").is_file() for m in folder.rglob("manifest.json"))
                resume = ["resume=latest"] if begun else []
            end = finished(folder / "outputs")
            resumed += len(json.loads((end / "manifest.json").read_text())["resumed"])
            left = numbers(end)
            assert left.keys() == expected.keys()
            for name, content in expected.items():
                differing += sum(x != y for x, y in zip(left[name], content, strict=False))
                differing += abs(len(left[name]) - len(content))
            rounds += 1
    return Outcome(done, rounds, differing, resumed, resume_times)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
        sys.exit()
    begin = time.monotonic()
    outcome = kill_runs(int(sys.argv[1]) if len(sys.argv) > 1 else 200, more=sys.argv[2:])
    print(
        f"{outcome.kills} kills in {outcome.runs} runs, {outcome.resumed} resumed from their folder, "
        f"{outcome.differing_bytes} bytes differ, {time.monotonic() - begin:.0f} s"
    )
    if outcome.seconds_to_resume:
        print(f"the last resume of a run took {statistics.median(outcome.seconds_to_resume):.2f} s (median)")
