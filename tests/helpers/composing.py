"""Configurations as the command line composes them."""

from pathlib import Path

from repsim_cli.config.compose import compose, task
from repsim_cli.config.words import as_hydra_takes

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(str(f.relative_to(CONF / "experiment").with_suffix("")) for f in CONF.glob("experiment/**/*.yaml"))


def composed(*overrides):
    return task(*compose([part for word in overrides for part in as_hydra_takes(word)]))
