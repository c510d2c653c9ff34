"""Configurations as the command line composes them."""

from pathlib import Path

from repsim_cli.config.compose import compose, drop_hydra_keys
from repsim_cli.config.words import convert_to_overrides

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(str(f.relative_to(CONF / "experiment").with_suffix("")) for f in CONF.glob("experiment/**/*.yaml"))


def composed(*overrides):
    return drop_hydra_keys(*compose([part for word in overrides for part in convert_to_overrides(word)]))
