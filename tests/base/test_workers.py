"""The processes that work for another end when it does."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from repsim_cli.base.workers import ProcessEnded, WorkerProcess

SPAWNED = """
import time
from repsim_cli.base.workers import WorkerProcess
if __name__ == "__main__":
    for _ in range(2):
        WorkerProcess.start().ask(time.sleep, 60)
    print("started", flush=True)
    time.sleep(60)
"""
HEARING = """
import signal
from repsim_cli.base.workers import WorkerProcess
for _ in range(2):
    worker = WorkerProcess.start()
    worker.ask(signal.pthread_sigmask, signal.SIG_BLOCK, ())
    print(*sorted(number.name for number in worker.answer()))
"""
JOBLIB = """
import os, time
from joblib import Parallel, delayed
from repsim_cli.base.workers import follow_joblib
def work(seconds):
    os.write(1, b"started\\n")  # at once, so that the lines of two workers do not mix
    time.sleep(seconds)
follow_joblib()
Parallel(n_jobs=2)(delayed(work)(60) for _ in range(8))
"""
SWEEP = """
import os, sys, time
from joblib import Parallel, delayed
from repsim_cli.base import signals
from repsim_cli.base.workers import follow_joblib
def job(number):
    try:
        with signals.interruptible():
            os.write(1, b"started\\n")
            time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.1 + number)  # one takes longer to record it
        open(f"interrupted-{number}", "w").close()
        os._exit(signals.INTERRUPTED)
follow_joblib()
try:
    with signals.interruptible():
        Parallel(n_jobs=2)(delayed(job)(number) for number in range(8))
except KeyboardInterrupt:
    sys.exit(signals.INTERRUPTED)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [SPAWNED, JOBLIB])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGHUP])
def test_workers_end_with_their_parent(tmp_path, script, sent):
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(sent)
    process.wait(timeout=60)
    process.stdout.close()
    end = time.monotonic() + 30
    while left := [worker for worker in workers if runs(worker)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "sent"), [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGHUP)], ids=["asked", "terminal closed"]
)
def test_the_jobs_of_an_interrupted_sweep_record_their_end(tmp_path, send, sent):
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
    send(process.pid, sent)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["interrupted-0", "interrupted-1"]
    assert "Traceback" not in err


def runs(process):
    """A zombie does not count."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_do_not_hear_the_terminal():
    """Signals that a terminal sends to all would end this process too; the first worker of a process hears them
    as little as the second."""
    asked = subprocess.run([sys.executable, "-c", HEARING], capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["SIGHUP", "SIGINT"] * 2


def test_calls_are_answered_in_their_order_until_the_process_ends():
    worker = WorkerProcess.start()
    for call in [(max, 1, 2), (os.getpid,), (os._exit, 3), (min, 1, 2)]:
        worker.ask(*call)
    assert [worker.answer(), worker.answer()] == [2, worker.process.pid]
    for _ in range(2):
        with pytest.raises(ProcessEnded, match="^exit code 3$"):
            worker.answer()
        worker.ask(min, 1, 2)
    worker.end()
