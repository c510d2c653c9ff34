"""The process of `repsim`: it answers signals before it imports anything that takes time, and until its last moment."""

from repsim_cli import signals


def main() -> None:
    signals.answer(signals.end)
    from repsim_cli import cli

    cli.main()


if __name__ == "__main__":
    main()
