"""`repsim run`: all jobs are composed and checked before the first starts; misspelt words load little."""

import os
from typing import NamedTuple

from repsim_cli.cli.terminal import QUIET, check_torch, log, say
from repsim_cli.config.words import (
    PRINTING,
    UNASKED,
    check_once,
    check_spelling,
    convert_to_overrides,
    drop_claims,
    spell_out_models,
    split_words,
)


def run(words: list[str]) -> int:
    """Checks everything first, then runs the jobs, whose own statuses make the exit code."""
    rest = [word for word in words if word not in ("-q", "--quiet")]
    if len(rest) < len(words):
        os.environ[QUIET] = "1"
    check_spelling(rest)
    check_once(rest)
    from repsim_cli.config.compose import compose, print_as_hydra, take_from
    from repsim_cli.config.guard import close_environment
    from repsim_cli.runs import cache, results

    rest = [part for word in spell_out_models(rest) for part in convert_to_overrides(word)]
    # conf/config.yaml reads it; set but empty means not set
    os.environ["REPSIM_OUTPUTS"] = str(results.find_outputs_root())
    close_environment()
    rest, primary = take_from(rest)
    rest = drop_claims(rest)
    flags, overrides = split_words(rest)
    asked = RunRequest(overrides, primary, flags.get("--config-dir"), "--multirun" in flags)
    configs = [] if "--shell-completion" in flags else compose(*asked)
    if flags.keys() & PRINTING:
        return print_as_hydra(rest, primary)
    check_torch()  # not before: misspelt words need none of what follows
    from repsim_cli.cli.job import plan_job
    from repsim_cli.cli.jobs import run_jobs
    from repsim_cli.config.run import validate

    cache.find_cache_folder()
    jobs = [(config, validate(config)) for config in configs]
    plans = [plan_job(checked, sweep=asked.sweep) for _, checked in jobs if checked.keys.dry_run]
    _say_untested(asked)
    if plans:
        for number, plan in enumerate(plans):
            say(*([""] if number else []), *plan)
        return 0
    results.check_root()
    return run_jobs(jobs, asked)


class RunRequest(NamedTuple):
    """What is composed: words, the primary configuration that they change, the folder of --config-dir, and whether
    the words have several values."""

    words: list[str]
    primary: str
    folder: str | None
    sweep: bool


def _say_untested(asked: RunRequest) -> None:
    """Says before the jobs start that the claims of an experiment, or of the run that is repeated, are not tested on
    other models."""
    from repsim_cli.config.compose import OWN, compose

    experiment = [word for word in asked.words if word.startswith("experiment=")]
    if UNASKED not in asked.words or not (experiment or asked.primary != OWN):
        return
    for config in compose(*asked._replace(words=experiment)):
        if config.claims:
            what = f"the {len(config.claims)} of {config.name} are about its own models and are not tested"
            log.warning("claims: %s; claims=[NAME,...] asks for those that suit yours", what)
