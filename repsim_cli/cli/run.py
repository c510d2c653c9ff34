"""`repsim run`: everything is checked first, then Hydra starts the jobs; each records how it ended."""

import csv
import io
import json
import logging
import multiprocessing
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from repsim_cli import cache, results, signals
from repsim_cli.cli.configs import COMPONENT_KEY, as_hydra_takes, as_typed, store, with_models
from repsim_cli.cli.show import summary
from repsim_cli.cli.terminal import QUIET, Bar, check_torch, complain, log, terminal_log
from repsim_cli.errors import BadInput, RepsimError, RunFailed
from repsim_cli.files import explained, readable, walk
from repsim_cli.presets import GROUPS, TABLES, conf_dir, described
from repsim_cli.registry import did_you_mean
from repsim_cli.workers import followed_joblib

COMMAND = "REPSIM_COMMAND"  # the command line, for manifests
STATUS_FILE = "REPSIM_STATUS_FILE"  # where the jobs of a command note how they ended


def run(words: list[str]) -> int:
    """Checks everything first, then hands over to Hydra; the jobs' own statuses make the exit code."""
    rest = [word for word in words if word not in ("-q", "--quiet")]
    if len(rest) < len(words):
        os.environ[QUIET] = "1"
    rest = [part for word in with_models(rest) for part in as_hydra_takes(word)]
    # conf/config.yaml reads it; set but empty means not set
    os.environ["REPSIM_OUTPUTS"] = str(results.outputs_root())
    with tempfile.TemporaryDirectory() as scratch:
        rest, configs, config_name = _repeated(rest, Path(scratch))
        rest = _unasked(rest)
        flags, overrides = _split(rest)
        check_torch()
        store()
        jobs: list[tuple[Any, Any]] = []
        if {"--cfg", "-c"} & set(flags):
            _composed(flags, overrides, configs, config_name)
        elif not set(PRINTING) & set(flags):
            jobs = _checked(_composed(flags, overrides, configs, config_name))
            plans = [
                plan_text(checked.keys.name, checked.plan(), checked.misfits)
                for _, checked in jobs
                if checked.keys.dry_run
            ]
            _say_untested(flags, overrides, configs, config_name)
            if plans:
                print("\n\n".join(plans))
                return 0
            results.check_root()
            cache.root()
        # on the file system of the runs, which the machines of a cluster share
        root = results.outputs_root()
        status_file = (root if root.is_dir() else Path(scratch)) / f".jobs-{os.getpid()}"
        for left in root.glob(".jobs-*"):
            process = left.name.removeprefix(".jobs-")
            if process.isdigit() and not results.alive(int(process)):
                left.unlink(missing_ok=True)  # of a command that was killed
        try:
            status_file.write_text("\n")  # reserves space on the disk, which may be full when the jobs end
        except OSError:
            status_file.unlink(missing_ok=True)
            raise
        os.environ[STATUS_FILE] = str(status_file)
        import hydra
        from hydra.errors import HydraException

        if jobs and _is_sweep(flags, jobs[0][0]):
            followed_joblib()  # its launcher's processes

        os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised here and shortened to a line
        sys.argv = ["repsim run", *rest]
        os.environ[COMMAND] = json.dumps(["repsim", "run", *words])
        code: Any = 0
        try:
            with signals.interruptible():
                if len(jobs) == 1 and not _is_sweep(flags, jobs[0][0]):
                    _alone(*jobs[0])
                else:
                    hydra.main(version_base="1.3", config_path=str(configs), config_name=config_name)(job)()
        except SystemExit as error:
            code = error.code
        except HydraException as error:
            raise BadInput(_hydra_line(error, rest)) from None
        except OSError as error:  # it cannot make the folder of a job
            results.drop_empty(Path(error.filename or root).parent)
            raise BadInput(explained(error, advice=results.ELSEWHERE)) from None
        except ValueError as error:
            raise BadInput(f"options: {error}, got {' '.join(_typed(rest))}; see repsim run --help") from None
        finally:
            lines = status_file.read_text().split("\n") if status_file.is_file() else []
            ended = [json.loads(line) for line in lines if line]
            status_file.unlink(missing_ok=True)
    if not ended:  # Hydra only printed, or failed before the first job
        return 0 if code in (0, None) else 1
    statuses = [status for status, _ in ended]
    bad = [status for status in statuses if status != "complete"]
    if len(ended) > 1:
        _sweep_table(Path(ended[0][1]).parent)
        if bad:
            print(f"{len(bad)} of {len(statuses)} jobs did not complete", file=sys.stderr)
    if "interrupted" in statuses:
        return 130
    if set(statuses) == {"refused"}:
        return 2
    return 1 if bad or code not in (0, None) else 0


UNASKED = "++claims=[]"


def _typed(words: Sequence[str]) -> list[str]:
    """The words as the user gave them."""
    return [as_typed(word) for word in words if word != UNASKED]


def _unasked(words: list[str]) -> list[str]:
    """The words; with claims=[] where they replace the models of an experiment, whose claims are about its own."""
    keys = [word.partition("=")[0].lstrip("+") for word in words]
    selected = [i for i, key in enumerate(keys) if re.fullmatch(r"model|model\.[^.]+", key)]
    if not selected or "claims" in keys:
        return words
    return [*words[: selected[0]], UNASKED, *words[selected[0] :]]  # Hydra wants all overrides together


def _say_untested(flags: dict[str, str | None], overrides: list[str], configs: Path, config_name: str) -> None:
    """Says that the claims of an experiment, or of the run that is repeated, are not tested on other models."""
    experiment = [word for word in overrides if word.startswith("experiment=")]
    if UNASKED not in overrides or not (experiment or config_name != "config"):
        return
    for config in _composed(flags, experiment, configs, config_name):
        if config.claims:
            what = f"the {len(config.claims)} of {config.name} are about its own models and are not tested"
            log.warning("claims: %s; claims=[NAME,...] asks for those that suit yours", what)


def _sweep_table(folder: Path) -> None:
    """Writes the sweep's jobs.json and jobs.csv, and prints their path."""
    jobs = results.jobs(folder)
    if not jobs:  # all were refused, or they resumed runs of an earlier sweep
        return
    text = io.StringIO()
    table = csv.DictWriter(text, list(jobs[0]))
    table.writeheader()
    table.writerows(jobs)
    results.write(folder / "jobs.json", results.dumps(jobs).encode())
    results.write(folder / "jobs.csv", text.getvalue().encode())
    if not os.environ.get(QUIET):
        print(f"jobs: {folder}/jobs.csv")


VALUED = ("--config-dir", "-cd", "--cfg", "-c", "--package", "-p", "--info", "-i")
PRINTING = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc")
FLAGS = (*VALUED, *PRINTING, "--resolve", "--multirun", "-m")


def _split(words: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """Hydra's flags (with their values) and the overrides."""
    flags: dict[str, str | None] = {}
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-"):
            overrides.append(word)
        elif "=" in word:
            flag, value = word.split("=", 1)
            flags[flag] = value
        else:
            flags[word] = next(remaining, None) if word in VALUED else None
    for flag in flags:
        if flag not in FLAGS:
            raise BadInput(
                f"repsim run: unknown option, got '{flag}'; {did_you_mean(flag, {*FLAGS, '--quiet', '-q', '--from'})}"
            )
    return flags, overrides


def _repeated(words: list[str], scratch: Path) -> tuple[list[str], Path, str]:
    """Takes `--from RUN` out of the words: that run's configuration instead of conf/config.yaml.

    A group that the command selects (model=[a], data=pile) replaces that of the run's configuration; another study
    drops its options, analyses and claims.
    """
    import yaml

    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--from=") else [word])]
    if "--from" not in words:
        return words, conf_dir(), "config"
    at = words.index("--from")
    if at + 1 == len(words) or not words[at + 1]:
        raise BadInput("--from: no run, got nothing; e.g. --from latest")
    experiment = next((word for word in words if word.startswith("experiment=")), None)
    if experiment:
        raise BadInput(f"--from: the run's configuration is complete, got {experiment} as well; give one of them")
    default = yaml.safe_load((conf_dir() / "config.yaml").read_text())
    rest = words[:at] + words[at + 2 :]
    choices = [entry for entry in default["defaults"] if isinstance(entry, dict)]
    anew = [entry for entry in choices if _selected(next(iter(entry)), rest)]
    logging_off = [entry for entry in choices if "override" in next(iter(entry))]
    repeated = results.read_config(results.find(words[at + 1]))
    for key in {"defaults", "hydra"} & repeated.keys():
        raise BadInput(f"--from: not a key that a run writes, got '{key}' in its config.yaml; drop it there")
    kept = {key: value for key, value in repeated.items() if not _selected(key, rest)}
    if any(word.startswith("study=") for word in rest):
        kept |= {"options": {}, "analyses": {}, "claims": []}
    content = {
        "defaults": [*anew, "_self_", *logging_off],
        **kept,
        "resume": None,
        "dry_run": False,
        "hydra": {**default["hydra"], "searchpath": [f"file://{conf_dir().resolve()}"]},
    }
    (scratch / "repeat.yaml").write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False))
    return rest, scratch, "repeat"


def _selected(group: str, words: list[str]) -> bool:
    return group in GROUPS and any(word.startswith(f"{group}=") for word in words)


def _checked(composed: list[Any]) -> list[tuple[Any, Any]]:
    """The configuration of each job with what it says, validated."""
    from omegaconf import OmegaConf

    from repsim_cli.config import validate

    return [
        (config, validate(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])))
        for config in composed
    ]


def _is_sweep(flags: dict[str, str | None], config: Any) -> bool:
    from hydra.types import RunMode

    return bool({"-m", "--multirun"} & set(flags)) or config.hydra.mode == RunMode.MULTIRUN


def _alone(config: Any, checked: Any) -> None:
    """Runs the job of a command that is no sweep as Hydra does, which would compose its configuration twice more."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.utils import run_job
    from hydra.types import HydraContext, RunMode

    config.hydra.mode = RunMode.RUN
    context = HydraContext(config_loader=None, callbacks=Callbacks(config))  # type: ignore[arg-type]  # of launchers
    run_job(partial(job, checked=checked), config, "hydra.run.dir", None, context)


def _composed(flags: dict[str, str | None], overrides: list[str], configs: Path, config_name: str) -> list[Any]:
    """The configuration of each job of the command."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    multirun = "-m" in flags or "--multirun" in flags
    config_dir = next((flags[f] for f in ("--config-dir", "-cd") if f in flags), None)
    extra = []
    if config_dir:
        _check_config_dir(Path(config_dir))
        extra = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"]
    composed = []
    try:
        with initialize_config_dir(str(configs.resolve()), version_base="1.3"):
            for job_overrides in _jobs(overrides) if multirun else [overrides]:
                composed.append(compose(config_name, [*job_overrides, *extra], return_hydra_config=True))
                _check_labels(composed[-1], job_overrides)
    except (HydraException, ValueError) as error:  # Hydra raises both for overrides that make no sense
        raise BadInput(_hydra_line(error, overrides)) from None
    finally:
        GlobalHydra.instance().clear()
    return composed


def _check_config_dir(root: Path) -> None:
    """Checks the YAML of --config-dir: Hydra ignores unreadable files, and prefers a shipped file of the same name."""
    if not root.is_dir():
        raise BadInput(f"--config-dir: no such folder, got '{root}'; name a folder of YAML files")
    for folder, _, names in walk(root):
        for file in (folder / name for name in names if name.endswith(".yaml")):
            readable(file)
            group, _, name = str(file.relative_to(root).with_suffix("")).partition("/")
            if group in GROUPS and name in described(group):
                raise BadInput(f"--config-dir: the name of a {group} that ships, got '{file}'; rename it")


def _check_labels(composed: Any, overrides: list[str]) -> None:
    """Checks that no `model.LABEL.KEY=` has a label that is not selected, which would make a new entry."""
    from omegaconf import OmegaConf

    for word in overrides:
        key = COMPONENT_KEY.match(as_typed(word))
        if key is None or not key["label"]:
            continue
        entries: Any = OmegaConf.to_container(composed[key["group"]])
        labels = [label for label, entry in entries.items() if isinstance(entry, dict) and "kind" in entry]
        if key["label"] not in labels:
            raise BadInput(
                f"{key['group']}.{key['label']}: not selected, got '{as_typed(word)}'; "
                f"{did_you_mean(key['label'], labels)}"
            )


def _jobs(overrides: list[str]) -> list[list[str]]:
    """The overrides of each job of a sweep."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(overrides)
    batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    jobs = [list(job) for batch in batches for job in batch]
    if not jobs:
        raise BadInput(f"overrides: the sweep expands to no jobs, got {' '.join(_typed(overrides))}; check its globs")
    return jobs


def _hydra_line(error: Exception, overrides: list[str]) -> str:
    """Hydra's message as one line, with the near misses."""
    text = " ".join(str(error).split())
    if "LexerNoViableAlt" in text or "mismatched input" in text or "no viable alternative" in text:
        labelled = next(filter(None, map(LABELLED.fullmatch, overrides)), None)
        if labelled is not None:
            return _in_braces(labelled[1], labelled[2], labelled[3])
        return (
            f"overrides: cannot be read, got {' '.join(_typed(overrides))[:200]}; write KEY=VALUE, with "
            "quotes around values that hold spaces or symbols; unusual names go into a YAML of your own (--config-dir)"
        )
    cause = f" {error.__cause__}" if error.__cause__ else ""
    missing = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if missing:
        group, _, name = missing[1].partition("/")
        if group in GROUPS and name:
            return f"{group}: no such name, got '{name}'; {did_you_mean(name, described(group))}"
        return f"config: {text[:200]}; see repsim list"
    merged = re.search(r"Error merging override \+*([^=]+)=", text)
    if merged:
        return f"{merged[1]}: wrong kind of value, got '{_given(merged[1], overrides)}'; see repsim run --cfg job"
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        key = override[1]
        if key in GROUPS:
            got = _given(key, overrides)
            return f"{key}: a group is selected by name, got '{got}'; write {key}=NAME, or +{key}.KEY=VALUE"
        keys = _run_keys()
        first, *rest = key.split(".")
        if first not in keys:
            hint = did_you_mean(first, keys)
        elif first in TABLES and len(rest) == 2:
            hint = did_you_mean(rest[0], described(first))
        else:
            hint = f"add it with +{_given(key, overrides)}, if there is such a key"
        return f"{key}: unknown key, got '{_given(key, overrides)}'; {hint}"
    return f"overrides: {(text + cause)[:400]}; see repsim run --help"


LABELLED = re.compile(r"\+{0,2}(model|measure)\.([^={\s]+)=(\{.*\})")


def _in_braces(group: str, label: str, entry: str) -> str:
    """The hint for a label that cannot be a key."""
    return (
        f"{group}: a label with a dot or symbols cannot be a key, got '{label}'; "
        f"write '+{group}={{{label}: {entry}}}', or a YAML of your own (--config-dir)"
    )


def _given(key: str, overrides: list[str]) -> str:
    return next((as_typed(o) for o in overrides if o.lstrip("+~").startswith(f"{key}=")), key)


def _run_keys() -> list[str]:
    """The keys of the default configuration."""
    import yaml

    content = yaml.safe_load((conf_dir() / "config.yaml").read_text())
    return sorted({*content, *GROUPS} - {"defaults", "hydra"})


def job(config: Any, checked: Any = None) -> None:
    """One job: validate unless done, run, record. Never raises, so that no job of a sweep stops another."""
    from hydra.core.hydra_config import HydraConfig

    status, folder = "failed", Path(HydraConfig.get().runtime.output_dir)
    try:
        with signals.interruptible():
            status = _job(config, checked, folder)
    except KeyboardInterrupt:
        status = "interrupted"
    except RepsimError as error:
        complain(error, _job_name())
        status = "refused" if isinstance(error, BadInput) else "failed"
    except OSError as error:
        complain(RunFailed(explained(error)), _job_name())
    finally:
        results.drop_empty(folder)  # Hydra made it; it is empty where the run was refused, or resumed another
        note = os.environ.get(STATUS_FILE)
        if note:
            with open(note, "a") as stream:
                stream.write(json.dumps([status, str(folder)]) + "\n")
    if status == "interrupted":
        if multiprocessing.parent_process() is not None:  # of a launcher, which would start its next job
            os._exit(signals.INTERRUPTED)
        raise KeyboardInterrupt


def _job_name() -> str:
    """The prefix of a job's messages in a sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return ""
    overrides = ", ".join(_typed(hydra.overrides.task))
    return f"job {hydra.job.num} ({overrides[:120]}): "


def _job(config: Any, checked: Any, folder: Path) -> str:
    """Runs a job in its folder, or in that of the run that it resumes; returns how it ended."""
    from repsim_cli import report
    from repsim_cli.config import validate
    from repsim_cli.execution import perform

    checked = checked or validate(config)
    current, handler = None, logging.NullHandler()
    status, problem = "failed", "unknown"
    try:
        with signals.delayed():  # once its folder is there, the run's end is recorded
            current = _open(checked, folder)
        if current is None:
            return "complete"
        current.progress = Bar()
        handler = _log_file(current.folder)
        _write_config(current, checked)
        perform(checked, current)
        status, problem = "complete", None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or signals.interrupted():
            status, problem = "interrupted", "interrupted by the user"
            raise KeyboardInterrupt from error
        if isinstance(error, RepsimError):
            problem = str(error)
            resumed = current is not None and current.manifest["resumed"]
            status = "refused" if isinstance(error, BadInput) and not resumed else "failed"
            raise
        if isinstance(error, OSError):
            problem = explained(error)
            raise
        if current is None:
            raise
        problem = f"{type(error).__name__}: {error}"
        log.debug(traceback.format_exc())
        log.error("internal error: %s; please report it with %s/repsim.log", problem, current.folder)
    finally:
        log.removeHandler(handler)
        with suppress(OSError):  # the last lines of a log on a full disk
            handler.close()
        if current is not None:
            with signals.delayed():
                if status == "refused":
                    current.discard()
                else:
                    _finish(current, status, problem)
    if status == "complete" and current is not None:
        report.save([current.folder], current.folder / report.FILE)
        if not os.environ.get(QUIET):
            print(summary(current.folder))
    return status


def _open(checked: Any, folder: Path) -> results.Run | None:
    """A new run, or the run to resume; None where it is complete."""
    try:
        return _opened(checked, folder)
    except OSError as error:
        results.drop_empty(folder)
        raise BadInput(explained(error)) from error


def _opened(checked: Any, folder: Path) -> results.Run | None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    keys = checked.keys
    if keys.resume is not None:
        config = keys.model_dump()
        if keys.resume == "latest":
            target, complete = results.unfinished(config)
        else:
            target = results.find(keys.resume)
            complete = results.read_manifest(target)["status"] == "complete"
            different = results.differences(results.what(config), results.read_config(target))
            if different:
                raise BadInput(
                    f"resume: {target} has another configuration, got {'; '.join(different)}; start a new run"
                )
        if target is not None:
            results.drop_empty(folder)
            if complete:
                print(f"{target}: already complete, nothing is left to do")
                return None
            print(f"resuming {target}", file=sys.stderr)
            return results.reopen(target)
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            raise BadInput("resume: no unfinished run of this configuration, got latest; start it without resume")
    return results.create(
        folder,
        name=keys.name,
        study=keys.study,
        seed=keys.seed,
        command=json.loads(os.environ.get(COMMAND, "[]")),
        overrides=_typed(HydraConfig.get().overrides.task),
    )


def _write_config(current: results.Run, checked: Any) -> None:
    """Raises BadInput: a run without its configuration has not started."""
    try:
        current.write_text("config.yaml", checked.yaml())
    except OSError as error:
        raise BadInput(explained(error, advice=results.ELSEWHERE)) from error


def _finish(current: results.Run, status: str, problem: str | None) -> None:
    """Records the end. Raises RunFailed where this fails for a complete run; any other run has an error already."""
    try:
        current.finish(status, problem)
    except (RepsimError, OSError) as error:
        current.lock.release()
        if status == "complete":
            raise RunFailed(f"{current.folder}: complete, but this cannot be recorded: {error}") from error


def _log_file(folder: Path) -> logging.Handler:
    """Logs everything to repsim.log; in a process of a launcher, warnings and errors to the terminal as well."""
    try:
        handler = logging.FileHandler(folder / "repsim.log")
    except OSError as error:
        raise BadInput(explained(error, advice=results.ELSEWHERE)) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.handleError = lambda record: None  # a full disk stops the run at its next file, not at its log
    if not log.handlers:
        terminal_log()
    log.addHandler(handler)
    return handler


def plan_text(name: str, plan: dict[str, Any], misfits: Sequence[str]) -> str:
    """The plan of a dry run, a line per fact; then why the run itself would be refused."""
    lines = [f"plan of {name} (nothing was run)"]
    for key, value in plan.items():
        if isinstance(value, dict):
            lines.append(f"  {key}")
            lines += [f"    {inner}: {v}" for inner, v in value.items()]
        else:
            lines.append(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    if misfits:
        lines.append("  does not run here")
        lines += [f"    {problem}" for problem in dict.fromkeys(misfits)]
    return "\n".join(lines)
