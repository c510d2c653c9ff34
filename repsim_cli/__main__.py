"""The process of `repsim`: it answers signals before it imports anything that takes time, and until its last moment."""

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # instead of Python's traceback, until `main` answers


def main() -> None:
    """Runs the command of the terminal, with what must be set before torch is imported."""
    # read when torch is imported: threads that spin while they wait slow down every process on the same CPUs
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from repsim_cli.base import garbage, signals

    signals.handle(signals.end)
    garbage.pause()
    from repsim_cli import cli

    try:
        cli.main()
    finally:
        garbage.skip_final_collection()


if __name__ == "__main__":
    main()
