"""A worker that a scheduler starts: `python -m repsim_cli.execution.pilot FOLDER NAME` works for the driver whose job
is in FOLDER, until that driver ends."""

import json
import os
import sys
import threading
import time
import uuid
from pathlib import Path

import filelock

from repsim_cli.execution.lines import Lines
from repsim_cli.execution.pool import Held
from repsim_cli.execution.worker import find_token_file

JOB = "job.json"
BEAT = 10.0  # seconds between two signs of life
LOOK = 5.0  # seconds
LONGEST_PAUSE = 0.2  # seconds between two looks for orders


def open_worker_files(folder: Path, name: str) -> tuple[Lines, Lines]:
    """Orders to a worker, and its answers."""
    return Lines(folder / f"{name}.orders"), Lines(folder / f"{name}.answers")


def is_driven(token: str) -> bool:
    """Says whether the driver still holds its lock. token: names the file of the lock."""
    file = find_token_file(token)
    if not file.is_file():
        return False
    try:
        with filelock.FileLock(file, timeout=0):
            return False
    except filelock.Timeout:
        return True


def perform_orders(folder: Path, name: str, look: float = LOOK) -> None:
    """Performs what is ordered. Raises FileNotFoundError where the driver has removed the folder.

    A worker has several lives if the scheduler starts it anew; each heeds its own orders only. look: seconds
    between two looks, while there is nothing to do, at whether the driver has ended.
    """
    orders, answers = open_worker_files(folder, name)
    orders.skip()
    job = json.loads((folder / JOB).read_text())
    os.environ |= job["environment"]
    life = uuid.uuid4().hex
    answers.write()  # ends what a former life may have left of a line
    threading.Thread(target=_send_heartbeats, args=(answers, life), daemon=True).start()
    held = Held(name)
    ready = held.prepare_worker(job)
    answers.write(life=life, ready=ready)
    if ready["error"]:
        return
    last = looked = time.monotonic()
    while True:
        for order in orders.new():
            if order["life"] != life:
                continue
            if "unit" not in order:  # the driver has given this life up
                return
            answers.write(life=life, number=order["number"], record=held.run(order["unit"]))
            last = time.monotonic()
        now = time.monotonic()
        if now - max(last, looked) > look:
            looked = now
            if not is_driven(job["token"]):
                return
        time.sleep(min(LONGEST_PAUSE, 0.001 + (now - last) / 20))


def _send_heartbeats(answers: Lines, life: str) -> None:
    while True:
        time.sleep(BEAT)
        try:
            answers.write(life=life)
        except FileNotFoundError:
            os._exit(0)


if __name__ == "__main__":
    try:
        perform_orders(Path(sys.argv[1]), sys.argv[2])
    except FileNotFoundError as error:
        sys.exit(f"the driver has ended: {error}")
