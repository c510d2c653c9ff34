"""Configurations as the command line composes them."""

from pathlib import Path

from hydra import compose, initialize_config_dir

from repsim_cli.config.words import as_hydra_takes

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(str(f.relative_to(CONF / "experiment").with_suffix("")) for f in CONF.glob("experiment/**/*.yaml"))


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [part for word in overrides for part in as_hydra_takes(word)])
