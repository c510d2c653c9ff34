"""Units of work for the tests of engines: small, without torch."""

import json
import os
import signal
import time
import warnings
from functools import partial
from pathlib import Path

from repsim_cli.base.errors import RunFailed
from repsim_cli.base.settings import Hardware
from repsim_cli.execution import Unit, make_executor
from repsim_cli.execution.driver import start_driver
from repsim_cli.execution.records import read_records
from repsim_cli.runs import results
from repsim_cli.runs.cache import make_cache_key, use

LOCAL = Hardware(executor="processes", processes=2)


def session(config, threads):
    """perform(kind, args) of the kinds below."""
    folder = Path(config["folder"])

    def write(name):
        """An entry of the cache, computed once."""
        with use("tried", [make_cache_key({"name": name})]) as entries:
            (entry,) = entries.values()
            if entry.complete:
                return False
            with open(folder / "computed", "a") as stream:
                stream.write(f"{name}\n")
            time.sleep(config.get("seconds", 0.0))
            entry.write("value", lambda path: path.write_text(json.dumps(name)))
            entry.finish()
            return True

    def fail(name, times):
        """Fails at its first attempts."""
        with open(folder / f"tries-{name}", "a+") as stream:
            stream.write("x")
            stream.flush()
            stream.seek(0)
            tried = len(stream.read())
        if tried <= times:
            warnings.warn("about to fail", stacklevel=1)
            raise RunFailed(f"{name}: it fails, got attempt {tried}; try again")
        return True

    def die(name, times):
        """Kills its worker at its first attempts."""
        with open(folder / f"tries-{name}", "a+") as stream:
            stream.write("x")
            stream.flush()
            stream.seek(0)
            tried = len(stream.read())
        if tried <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def wait(seconds):
        time.sleep(seconds)
        return True

    kinds = {"write": write, "fail": fail, "die": die, "wait": wait}
    return lambda kind, args: kinds[kind](**args)


def refuse(config, threads):
    from repsim_cli.base.errors import BadInput

    raise BadInput("model.a.path: no such folder, got '/models/a'; check the path")


def begin(folder, hardware=LOCAL, session="session", make=None, **config):
    """A context: the driver of a run in this folder whose units are those of `session`. make: its executor."""
    run = results.create(folder / "outputs" / "run", name="tried", study="none", seed=0, command=[], overrides=[])
    return start_driver(
        make or partial(make_executor, hardware, 1),
        run,
        name=hardware.executor,
        session=f"{Path(__file__).stem}:{session}",
        config={"folder": str(folder), **config},
        threads=1,
        price=2.0,
    )


def unit(kind, title, **args):
    return Unit(kind=kind, name=title, args=args)


def writes(count):
    return [unit("write", f"unit {i}", name=f"unit {i}") for i in range(count)]


def records(driving):
    return read_records(driving.run.folder)


def end(config, threads):
    """A worker that ends before it is ready."""
    os.kill(os.getpid(), signal.SIGKILL)


def spoil(config, threads):
    """Workers are refused once the first unit was tried."""
    from repsim_cli.base.errors import BadInput

    mark = Path(config["folder"]) / "spoilt"
    if mark.exists():
        raise BadInput("model.a.path: no such folder any more, got '/models/a'; check the path")

    def perform(kind, args):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return perform
