"""Ctrl-C, SIGTERM and a closed terminal: one word and exit code 130 at any moment, never a traceback."""

import importlib
import os
import signal
import subprocess
import sys

import pytest

from repsim_cli.base import signals
from repsim_cli.runs import reader

AT_IMPORT = """
import importlib.abc, os, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{name}":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
sys.argv = ["repsim", "--version"]
from repsim_cli.__main__ import main
main()
"""
AT_EXIT = """
import atexit, os, sys
atexit.register(os.kill, os.getpid(), {number})
sys.argv = ["repsim", "--version"]
from repsim_cli.__main__ import main
main()
"""


def default():
    """Restores SIGINT, which is ignored where the tests themselves run in the background, and children inherit that."""
    for number in signals.ENDS:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", signals.ENDS)
@pytest.mark.parametrize(
    ("moment", "name", "told"),
    [
        (AT_IMPORT, "repsim_cli.base.signals", ""),
        (AT_IMPORT, "repsim_cli.cli", "interrupted\n"),
        (AT_EXIT, "", "interrupted\n"),
    ],
)
def test_the_first_and_the_last_moments(moment, name, told, number):
    words = [sys.executable, "-c", moment.format(name=name, number=int(number))]
    found = subprocess.run(words, capture_output=True, text=True, preexec_fn=default, check=False)
    assert (found.returncode, found.stderr) == (signals.INTERRUPTED if told else -number, told)


@pytest.fixture
def ours():
    """The tests' own handlers, put back."""
    before = {number: signal.getsignal(number) for number in signals.ENDS}
    default()
    yield
    signals.restore(before)


@pytest.mark.parametrize("number", signals.ENDS)
def test_jobs_are_interrupted(ours, number):
    with pytest.raises(KeyboardInterrupt), signals.interruptible():
        os.kill(os.getpid(), number)
    assert signals.was_interrupted()
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_comparison_records_its_interruption(ours, repsim, newest, monkeypatch):
    importlib.import_module("repsim_cli.api.new_run")  # else it would take the function that interrupts, and keep it
    monkeypatch.setattr(
        "repsim_cli.execution.perform.perform", lambda *given, **how: os.kill(os.getpid(), signal.SIGTERM)
    )
    code, _, err = repsim("compare", "tiny_a", "tiny_b")
    said = "interrupted; the same command with --set resume=latest resumes it"
    assert (code, err.splitlines()[-1]) == (signals.INTERRUPTED, said)
    assert reader.read_manifest(newest())["status"] == "interrupted"


def test_what_is_ignored_stays_ignored(ours):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals.interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert not signals.was_interrupted()


def test_another_library_keeps_its_handler(ours):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    with signals.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_an_interrupt_waits_for_the_end_of_a_held_section(ours):
    done = []
    with signals.interruptible(), pytest.raises(KeyboardInterrupt):
        with signals.delay():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("recorded")
        done.append("not reached")
    assert done == ["recorded"]


def test_a_second_interrupt_does_not_disturb_the_record_of_the_first(ours):
    done = []
    with pytest.raises(KeyboardInterrupt), signals.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            with signals.delay():
                os.kill(os.getpid(), signal.SIGHUP)
                done.append("recorded")
            done.append("ended")
    assert done == ["recorded", "ended"]


def test_ctrl_c_inside_code_that_is_made(tmp_path):
    """Python remembers an interrupt inside `exec` of text, and ends a module by a signal, whoever caught it."""
    (tmp_path / "interrupted.py").write_text(
        "from unittest.mock import patch\nfrom repsim_cli import cli\n"
        "with patch('repsim_cli.cli._check', lambda words: exec('raise KeyboardInterrupt')):\n    cli.main(['list'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
