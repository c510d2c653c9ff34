"""Asks real runs to end at many moments: exit code, recorded status, and the processes that are left 2 s later.

Command: python benchmarks/interrupts.py [STUDY ...]    (all: about 40 minutes on two idle cores)
Prints a row for every study and moment and a column for every signal. SIGINT and SIGHUP go to all processes of the run,
as from a terminal, SIGTERM and SIGKILL to the one that was started.

Moments up to 1 s count from the start of a process that has imported nothing; later ones from the fork of one that has
imported the libraries, so that they fall into the run's own work.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kills
import psutil

SMALL = ["model=[tiny_a,tiny_b]", "hardware.threads=1"]
GROMOV = ["measure=[gromov_wasserstein]", "extract.estimate=full", "extract.sequences=60"]
STUDIES = {
    "similarity": kills.WORDS[1:],
    "gromov_wasserstein": [*SMALL, *GROMOV, "extract.rows=700", "hardware.processes=2"],
    "probes": ["experiment=tiny/modsum_probes", "hardware.processes=2"],
    "fine-tuning": [
        "experiment=tiny/finetune_nli",
        "model.tiny_nli.seeds=[0,1,2]",
        "model.tiny_nli.shared.recipe.steps=200",
    ],
    "sweep": ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1,2", *kills.WORDS[2:]],
}
SIGNALS = {"INT": True, "TERM": False, "HUP": True, "KILL": False}  # whether all processes of the run get it
MOMENTS = ["0 s", "0.1 s", "1 s", "5 s", "middle", "last second"]
LEFT_AFTER = 2.0  # seconds
SCRIPT = "from repsim_cli.__main__ import main; main()"  # as the installed command does


def of_session(session: int) -> list[psutil.Process]:
    """The processes of a run that still run."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def places(folder: Path) -> dict[str, str]:
    return {"REPSIM_OUTPUTS": str(folder / "outputs"), "REPSIM_CACHE": str(folder / "cache")}


def cold(words: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """A run from the start of Python."""
    with (folder / "stderr").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "run", "-q", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, **places(folder)},
            start_new_session=True,
        )


class Forked:
    """A run from a process that has imported the libraries."""

    def __init__(self, words: list[str], folder: Path):
        self.pid = os.fork()
        if not self.pid:
            from repsim_cli import __main__ as start

            os.setsid()
            os.environ.update(places(folder))
            log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.argv = ["repsim", "run", "-q", *words]
            code: object = 1
            try:
                start.main()
            except SystemExit as end:
                code = end.code or 0
            finally:
                os._exit(int(str(code)))

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def imported() -> None:
    import hydra  # noqa: F401
    import joblib  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import sklearn.neural_network  # noqa: F401
    import torch
    import transformers.models.bert.modeling_bert
    import transformers.models.gpt_neox.modeling_gpt_neox  # noqa: F401

    import repsim_cli.cli.jobs
    import repsim_cli.figures.heatmap
    import repsim_cli.studies.similarity.study  # noqa: F401

    torch.set_num_threads(1)


def statuses(folder: Path) -> str:
    from repsim_cli.runs import reader

    found = [reader.read_manifest(m.parent)["status"] for m in sorted((folder / "outputs").rglob("manifest.json"))]
    return ", ".join(dict.fromkeys(found)) or "no run"


def ended(study: str, name: str, after: float, folder: Path, *, fresh: bool) -> str:
    """One run and one signal: `exit code, status, processes left`."""
    run = (cold if fresh else Forked)(STUDIES[study], folder)
    time.sleep(after)
    number = getattr(signal, f"SIG{name}")
    with contextlib.suppress(ProcessLookupError):  # it was faster
        (os.killpg if SIGNALS[name] else os.kill)(run.pid, number)
    code = run.wait()
    time.sleep(LEFT_AFTER)
    left = of_session(run.pid)
    text = (folder / "stderr").read_text()
    told = f"{code}, {statuses(folder)}, {len(left)} left" + (", TRACEBACK" if "Traceback" in text else "")
    for process in left:
        process.kill()
    if "Traceback" in text:
        print(study, name, after, text[-2000:], file=sys.stderr)
    return told


def rows(study: str, scratch: Path) -> list[list[str]]:
    """A row per moment, a cell per signal."""
    base = scratch / "base"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    if study == "probes":  # of a model that is trained once
        assert Forked(STUDIES[study], base).wait() == 0, (base / "stderr").read_text()
        shutil.rmtree(base / "cache" / "activations", ignore_errors=True)
    kept = scratch / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    (base / "cache").rename(kept) if study == "probes" else kept.mkdir()

    def place() -> Path:
        shutil.rmtree(base)
        base.mkdir()
        shutil.copytree(kept, base / "cache")
        return base

    begin = time.monotonic()
    assert Forked(STUDIES[study], place()).wait() == 0, (base / "stderr").read_text()
    whole = time.monotonic() - begin
    after = {"0 s": 0.0, "0.1 s": 0.1, "1 s": 1.0, "5 s": 5.0, "middle": whole / 2, "last second": whole - 0.5}
    print(f"{study}: {whole:.1f} s undisturbed", file=sys.stderr, flush=True)
    found = []
    for moment in MOMENTS:
        cells = [ended(study, name, after[moment], place(), fresh=moment in MOMENTS[:3]) for name in SIGNALS]
        found.append([study, moment, *cells])
        print(f"| {' | '.join(found[-1])} |", flush=True)
    return found


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    for name in SIGNALS.keys() - {"KILL"}:  # a shell may have them ignored
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_DFL)
    imported()
    print(f"| study | moment | {' | '.join(SIGNALS)} |\n|{' --- |' * (len(SIGNALS) + 2)}")
    with tempfile.TemporaryDirectory() as scratch:
        found = [row for study in sys.argv[1:] or STUDIES for row in rows(study, Path(scratch))]
    print(json.dumps({"runs": len(found) * len(SIGNALS), "seconds left after": LEFT_AFTER}))
