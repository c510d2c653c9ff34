"""The command line: subcommands, and the bridge to Hydra. The only module that prints or exits."""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from repsim_cli import __version__, results
from repsim_cli.errors import BadConfig, BadInput, RepsimError
from repsim_cli.registry import did_you_mean

log = logging.getLogger("repsim")

COMMAND = "REPSIM_COMMAND"  # the words of this command, for the manifests
STATUS_FILE = "REPSIM_STATUS_FILE"  # where the jobs of one command note how they ended
QUIET = "REPSIM_QUIET"
GROUPS = ("experiment", "model", "data", "measure", "extract", "hardware")


def conf_dir() -> Path:
    """The configs: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 all complete, 1 a job failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    terminal = _terminal()
    try:
        if words[:1] == ["run"] and not {"-h", "--help"} & set(words):
            code = run(words[1:])
        else:
            parsed = parser().parse_args(words or ["--help"])
            code = parsed.command(parsed)
    except RepsimError as error:
        complain(error)
        code = 2 if isinstance(error, BadInput) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    finally:
        log.removeHandler(terminal)
    sys.exit(code)


def _terminal() -> logging.Handler:
    """What the user must see of the log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.levelno >= logging.ERROR or not os.environ.get(QUIET))
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    return handler


def complain(error: RepsimError, job: str = "") -> None:
    lines = error.problems if isinstance(error, BadConfig) else [" ".join(str(error).split("\n"))]
    for line in lines:
        print(f"error: {job}{line}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="repsim",
        description="Compare the inside of language models: from one config to similarity matrices, figures and JSON.",
        epilog="example: repsim run experiment=tiny/pythia_cka",
    )
    top.add_argument("--version", action="version", version=f"repsim {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable, help: str, example: str, description: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=help,
            description=description or f"{help[0].upper()}{help[1:]}.",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=command)
        return sub

    sub = add("run", lambda _: 0, "run an experiment", "repsim run experiment=tiny/pythia_cka seed=1", RUN_HELP)
    sub.usage = "repsim run [-q] [-m] [KEY=VALUE ...]"

    sub = add("list", list_command, "list what can be selected, or the runs", "repsim list experiment")
    sub.add_argument("what", nargs="?", choices=(*GROUPS, "run"), help="one group (all groups by default)")

    sub = add("show", show_command, "show a run: how it ended, its numbers, its files", "repsim show latest")
    sub.add_argument("run", metavar="RUN", help="a path, `latest`, or a name")

    sub = add("compare", compare_command, "compare the numbers of two runs", "repsim compare latest baseline")
    sub.add_argument("first", metavar="RUN", help="a path, `latest`, or a name")
    sub.add_argument("second", metavar="RUN", help="the same; differences are second minus first")
    sub.add_argument("--output", metavar="DIR", help="draws heatmaps of the differences and writes the table there")

    add("doctor", doctor_command, "say what this machine and installation offer", "repsim doctor")

    sub = add("cache", cache_command, "show, limit or clear stored activations", "repsim cache --limit 20GB")
    sub.add_argument("--clear", action="store_true", help="remove all entries that no run is using")
    sub.add_argument("--limit", metavar="SIZE", help="the most that all entries may take together; kept for later runs")

    sub = add("plot", plot_command, "draw the figures of a run again, from its files", "repsim plot latest")
    sub.add_argument("run", metavar="RUN", help="a path, `latest`, or a name")

    sub = add(
        "measure",
        measure_command,
        "compare two arrays (n, d) with paired rows",
        "repsim measure mutual_knn X.npy Y.npy k=5 --json",
    )
    sub.add_argument("name", metavar="NAME", help="a measure; see repsim list measure")
    sub.add_argument("x", metavar="X.npy", help="rows of the matrix entry")
    sub.add_argument("y", metavar="Y.npy", help="columns of the matrix entry")
    sub.add_argument("settings", metavar="key=value", nargs="*", default=[], help="settings of the measure")
    sub.add_argument("--json", action="store_true", help="print value, settings and card as JSON")
    return top


RUN_HELP = """\
Run an experiment, or the default one, into a new folder under outputs/ (or REPSIM_OUTPUTS).

  KEY=VALUE           sets a key or selects from a group: experiment=NAME model=[a,b] data=local_text seed=1
  +model.NAME='{kind: transformers, path: DIR}'
                      adds a model of your own
  -m, --multirun      runs every combination of the values given with commas: seed=0,1,2
  -q, --quiet         prints errors only
  dry_run=true        prints the plan (models, layers, pairs, forward passes, memory) and stops
  --cfg job           prints the composed configuration
  --config-dir DIR    adds a folder of YAML of your own
  --from RUN          repeats a run with its configuration; KEY=VALUE changes it
  resume=latest       goes on with the newest unfinished run of the same configuration; resume=RUN with that one
  cache=false         neither reads nor writes stored activations (repsim cache shows them)
"""


# ---------------------------------------------------------------- run


def run(words: list[str]) -> int:
    """Checks everything first, then hands over to Hydra; the jobs' own statuses make the exit code."""
    rest = [word for word in words if word not in ("-q", "--quiet")]
    if len(rest) < len(words):
        os.environ[QUIET] = "1"
    # conf/config.yaml reads it; set but empty means not set
    os.environ["REPSIM_OUTPUTS"] = str(results.outputs_root())
    with tempfile.TemporaryDirectory() as scratch:
        rest, configs, config_name = _repeated(rest, Path(scratch))
        flags, overrides = _split(rest)
        if not set(PRINTING) & set(flags):
            plans = _check(flags, overrides, configs, config_name)
            if plans:
                print("\n\n".join(plans))
                return 0
            results.check_root()
        # on the file system of the runs, which the machines of a cluster share
        root = results.outputs_root()
        status_file = (root if root.is_dir() else Path(scratch)) / f".jobs-{os.getpid()}"
        status_file.touch()
        os.environ[STATUS_FILE] = str(status_file)
        import hydra

        sys.argv = ["repsim run", *rest]
        os.environ[COMMAND] = json.dumps(["repsim", "run", *words])
        code: Any = 0
        try:
            hydra.main(version_base="1.3", config_path=str(configs), config_name=config_name)(job)()
        except SystemExit as error:
            code = error.code
        except ValueError as error:
            raise BadInput(f"options: {error}, got {' '.join(rest)}; see repsim run --help") from None
        finally:
            ended = [json.loads(line) for line in status_file.read_text().splitlines()] if status_file.is_file() else []
            status_file.unlink(missing_ok=True)
    if not ended:  # Hydra only printed something, or failed before the first job
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


def _sweep_table(folder: Path) -> None:
    """Writes the sweep's jobs.json and jobs.csv and says where."""
    import csv
    import io

    jobs = results.jobs(folder)
    text = io.StringIO()
    table = csv.DictWriter(text, list(jobs[0]) if jobs else ["job"])
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
            raise BadInput(f"repsim run: unknown option, got '{flag}'; {did_you_mean(flag, (*FLAGS, '--quiet', '-q'))}")
    return flags, overrides


def _repeated(words: list[str], scratch: Path) -> tuple[list[str], Path, str]:
    """Takes `--from RUN` out of the words: that run's configuration instead of conf/config.yaml."""
    import yaml

    if "--from" not in words:
        return words, conf_dir(), "config"
    at = words.index("--from")
    if at + 1 == len(words):
        raise BadInput("--from: no run, got nothing; e.g. --from latest")
    own = yaml.safe_load((conf_dir() / "config.yaml").read_text())
    logging_off = [entry for entry in own["defaults"] if isinstance(entry, dict) and "override" in next(iter(entry))]
    repeated = {**results.read_config(results.find(words[at + 1])), "resume": None, "dry_run": False}
    content = {"defaults": ["_self_", *logging_off], **repeated, "hydra": own["hydra"]}
    (scratch / "repeat.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    return words[:at] + words[at + 2 :], scratch, "repeat"


def _check(flags: dict[str, str | None], overrides: list[str], configs: Path, config_name: str) -> list[str]:
    """Composes and validates every job of the command; returns the plans to print, if any asked for a dry run."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from repsim_cli.config import validate

    multirun = "-m" in flags or "--multirun" in flags
    own = next((flags[f] for f in ("--config-dir", "-cd") if f in flags), None)
    extra = []
    if own:
        if not Path(own).is_dir():
            raise BadInput(f"--config-dir: no such folder, got '{own}'; name a folder of YAML files")
        extra = [f"hydra.searchpath=[file://{Path(own).resolve()}]"]
    plans = []
    try:
        with initialize_config_dir(str(configs.resolve()), version_base="1.3"):
            for job_overrides in _jobs(overrides) if multirun else [overrides]:
                config = validate(compose(config_name, [*job_overrides, *extra]))
                if config.keys.dry_run:
                    plans.append(plan_text(config.keys.name, config.study.plan()))
    except (HydraException, ValueError) as error:  # Hydra raises both for overrides that make no sense
        raise BadInput(_hydra_line(error, overrides)) from None
    finally:
        GlobalHydra.instance().clear()
    return plans


def _jobs(overrides: list[str]) -> list[list[str]]:
    """The overrides of each job of a sweep."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(overrides)
    batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    jobs = [list(job) for batch in batches for job in batch]
    if not jobs:
        raise BadInput(f"overrides: no job comes of this sweep, got {' '.join(overrides)}; check its globs")
    return jobs


def _hydra_line(error: Exception, overrides: list[str]) -> str:
    """Hydra's message as one line, with the near misses."""
    import re

    text = " ".join(str(error).split())
    if "LexerNoViableAlt" in text or "mismatched input" in text or "no viable alternative" in text:
        return (
            f"overrides: cannot be read, got {' '.join(overrides)[:200]}; write KEY=VALUE, with quotes around values "
            "that hold spaces or symbols; unusual names go into a YAML of your own (--config-dir)"
        )
    cause = f" {error.__cause__}" if error.__cause__ else ""
    missing = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if missing:
        group, _, name = missing[1].partition("/")
        if group in GROUPS and name:
            return f"{group}: there is none of this name, got '{name}'; {did_you_mean(name, _names(group))}"
        return f"config: {text[:200]}; see repsim list"
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        key = override[1]
        parent, _, last = key.rpartition(".")
        beside = [k.rpartition(".")[2] for k in _known_keys() if k.rpartition(".")[0] == parent]
        return f"{key}: unknown key, got '{_given(key, overrides)}'; {did_you_mean(last, beside)}"
    return f"overrides: {(text + cause)[:400]}; see repsim run --help"


def _given(key: str, overrides: list[str]) -> str:
    return next((o for o in overrides if o.lstrip("+~").startswith(f"{key}=")), key)


def _known_keys() -> list[str]:
    """The dotted keys of the default configuration and of all single-choice groups."""
    import yaml

    known: list[str] = []
    for file in (
        conf_dir() / "config.yaml",
        *(f for g in ("data", "extract", "hardware") for f in _files(g)),
    ):
        content = yaml.safe_load(file.read_text()) or {}
        prefix = "" if file.name == "config.yaml" else f"{file.parent.name}."
        known += [f"{prefix}{key}" for key in content if key not in ("defaults", "hydra")]
    return sorted({*known, *GROUPS})


class Bar:
    """Progress: a bar on a terminal, plain lines elsewhere, nothing when quiet."""

    def __call__(self, items: Iterable, *, label: str, unit: str) -> Iterator:
        sized = list(items) if not hasattr(items, "__len__") else items
        if os.environ.get(QUIET):
            return iter(sized)
        if sys.stderr.isatty():
            from tqdm import tqdm

            return iter(tqdm(sized, desc=label, unit=f" {unit}", leave=False))
        return self._lines(sized, label, unit)

    def _lines(self, items: Any, label: str, unit: str) -> Iterator:
        start, total = time.monotonic(), len(items)
        shown = start
        for done, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            # at least every tenth of the work, but no more than one line in two seconds
            if (now - shown >= 2 and done * 10 // total > (done - 1) * 10 // total) or now - shown >= 30:
                rate = done / (now - start)
                left = (total - done) / rate
                print(f"{label}: {done}/{total} {unit}, {rate:.2f}/s, {left:.0f} s left", file=sys.stderr)
                shown = now


def job(config: Any) -> None:
    """One job: validate, run, record. Never raises, so that no job of a sweep stops another."""
    from hydra.core.hydra_config import HydraConfig

    status, folder = "failed", Path(HydraConfig.get().runtime.output_dir)
    try:
        status, folder = _job(config, folder)
    except RepsimError as error:
        complain(error, _job_name())
        status = "refused" if isinstance(error, BadInput) else "failed"
    except KeyboardInterrupt:
        status = "interrupted"
    finally:
        note = os.environ.get(STATUS_FILE)
        if note:
            with open(note, "a") as stream:
                stream.write(json.dumps([status, str(folder)]) + "\n")
    if status == "interrupted":
        raise KeyboardInterrupt


def _job_name() -> str:
    """In a sweep, which job speaks."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return ""
    own = ", ".join(f"{choice}" for choice in hydra.overrides.task)
    return f"job {hydra.job.num} ({own[:120]}): "


def _job(config: Any, folder: Path) -> tuple[str, Path]:
    """Runs one job in its folder, or in the one that it goes on with; returns how it ended and where."""
    from repsim_cli import plots
    from repsim_cli.config import validate

    checked = validate(config)
    current = _open(checked, folder)
    if current is None:
        return "complete", folder
    current.progress = Bar()
    handler = _log_file(current.folder)
    status, problem = "failed", "unknown"
    try:
        current.write_text("config.yaml", checked.yaml())
        found = {"schema": results.SCHEMA, "study": checked.keys.study, **checked.study.run(current)}
        found["warnings"] = current.manifest["warnings"]
        current.write_text("results.json", results.dumps(found))
        if found["measures"]:
            with current.stage("figures"):
                plots.draw(current.folder, current.progress)
        status, problem = "complete", None
    except KeyboardInterrupt:
        status, problem = "interrupted", "interrupted by the user"
        raise
    except RepsimError as error:
        problem = str(error)
        status = "refused" if isinstance(error, BadInput) and not current.manifest["resumed"] else "failed"
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        log.debug(traceback.format_exc())
        log.error("internal error: %s; please report it with %s/repsim.log", problem, current.folder)
    finally:
        log.removeHandler(handler)
        handler.close()
        if status == "refused":
            current.discard()
        else:
            _finish(current, status, problem)
    if status == "complete" and not os.environ.get(QUIET):
        print(summary(current.folder))
    return status, current.folder


def _open(checked: Any, folder: Path) -> results.Run | None:
    """A new run, or the one to go on with; None where that one is complete."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    keys = checked.keys
    if keys.resume is not None:
        own = keys.model_dump()
        if keys.resume == "latest":
            target, complete = results.unfinished(own)
        else:
            target = results.find(keys.resume)
            complete = results.read_manifest(target)["status"] == "complete"
            different = results.differences(
                {k: v for k, v in own.items() if k not in results.HOW}, results.read_config(target)
            )
            if different:
                raise BadInput(
                    f"resume: {target} has another configuration, got {'; '.join(different)}; start a new run"
                )
        if target is not None:
            results.drop_empty(folder)
            if complete:
                print(f"{target}: complete already, nothing is left to do")
                return None
            print(f"going on with {target}", file=sys.stderr)
            return results.reopen(target)
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            raise BadInput("resume: no unfinished run of this configuration, got latest; start it without resume")
    return results.create(
        folder,
        name=keys.name,
        study=keys.study,
        seed=keys.seed,
        command=json.loads(os.environ.get(COMMAND, "[]")),
        overrides=list(HydraConfig.get().overrides.task),
    )


def _finish(current: results.Run, status: str, problem: str | None) -> None:
    """Records the end; where the folder is gone, says so."""
    try:
        current.finish(status, problem)
    except (RepsimError, OSError) as error:
        print(f"error: {current.folder}: how the run ended ({status}) cannot be recorded: {error}", file=sys.stderr)


def _log_file(folder: Path) -> logging.Handler:
    """Everything into repsim.log; in a launcher's own process, what the user must see also to the terminal."""
    handler = logging.FileHandler(folder / "repsim.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    if not log.handlers:
        _terminal()
    log.addHandler(handler)
    return handler


def plan_text(name: str, plan: dict[str, Any]) -> str:
    """The plan of a dry run, a line a fact."""
    lines = [f"plan of {name} (nothing was run)"]
    for key, value in plan.items():
        if isinstance(value, dict):
            lines.append(f"  {key}")
            lines += [f"    {inner}: {v}" for inner, v in value.items()]
        else:
            lines.append(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return "\n".join(lines)


# ---------------------------------------------------------------- show, list, plot, measure


def summary(folder: Path) -> str:
    """A run in a screenful: how it ended, each measure by pair of models, claims, warnings, where the files are."""
    manifest = results.read_manifest(folder)
    lines = [f"{manifest['name']}: {manifest['status']}, {manifest.get('seconds', 0):.1f} s, seed {manifest['seed']}"]
    if manifest.get("error"):
        lines.append(f"  error: {manifest['error']}")
    if manifest["status"] == "complete" or (folder / "results.json").is_file():
        found = results.read_results(folder)
        for measure in found["measures"]:
            lines += _measure_lines(folder, measure)
        for name, table in found["tables"].items():
            for row in table["rows"]:
                lines.append(
                    f"  {name}: " + ", ".join(f"{c} {v:,.4g}" for c, v in zip(table["columns"], row, strict=True))
                )
        for claim in found["claims"]:
            value = claim["why"] if claim["value"] is None else f"{claim['value']:.3f}, threshold {claim['threshold']}"
            lines.append(f"  claim {claim['name']} ({claim['measure']}): {claim['verdict']} ({value})")
    lines += [f"  warning: {warning}" for warning in manifest["warnings"]]
    lines.append(f"  folder: {folder}")
    figures = sorted((folder / "figures").glob("*-all.png"))
    lines += [f"  figure: {figure}" for figure in figures]
    return "\n".join(lines)


SHOWN_PAIRS = 12


def _measure_lines(folder: Path, measure: dict[str, Any]) -> Iterator[str]:
    estimate = measure["estimate"]
    better = "larger" if measure["card"]["larger_is_closer"] else "smaller"
    yield (
        f"  {measure['label']}: {measure['card']['label']}, {better} is closer, {estimate['kind']}, "
        f"{estimate['rows']:,} of {estimate['rows_available']:,} rows in "
        f"{estimate['batches']} batch{'es' if estimate['batches'] != 1 else ''}"
    )
    pairs = measure["matrices"]
    width = max(len(f"{p['rows']['model']} x {p['columns']['model']}") for p in pairs)
    for pair in pairs[:SHOWN_PAIRS]:
        values = results.read_array(folder, pair["values"])
        name = f"{pair['rows']['model']} x {pair['columns']['model']}"
        spread = f"lowest {values.min():6.3f}   highest {values.max():6.3f}"
        yield f"    {name:{width}}  mean {values.mean():6.3f}   {spread}"
    if len(pairs) > SHOWN_PAIRS:
        yield f"    and {len(pairs) - SHOWN_PAIRS} more pairs of models: see results.json"


def show_command(parsed: argparse.Namespace) -> int:
    folder = results.find_sweep(parsed.run)
    if folder is not None:
        return _show_sweep(folder)
    folder = results.find(parsed.run)
    print(summary(folder))
    for name, seconds in results.read_manifest(folder)["timings"].items():
        print(f"  {name}: {seconds:.1f} s")
    return 0


def _show_sweep(folder: Path) -> int:
    jobs = results.jobs(folder)
    print(f"sweep {folder}: {len(jobs)} jobs")
    for found in jobs:
        print(f"  {found['job']:24}  {found['status']:11}  {found['seconds']:8.1f} s  {found['overrides']}")
        if found["error"]:
            print(f"    error: {found['error']}")
    return 0


def plot_command(parsed: argparse.Namespace) -> int:
    from repsim_cli import plots

    folder = results.find(parsed.run)
    if not results.read_results(folder)["measures"]:
        raise BadInput(f"{folder}: it has no matrices, got no figure to draw; choose a run of a similarity study")
    for file in plots.draw(folder, Bar()):
        print(file)
    return 0


def compare_command(parsed: argparse.Namespace) -> int:
    from repsim_cli.analysis import comparison

    first, second = results.find(parsed.first), results.find(parsed.second)
    differences, unmatched = comparison.compare(first, second)
    print(f"{second} minus {first}")
    width = max(len(f"{d.rows} x {d.columns}") for d in differences)
    for d in differences:
        pair = f"{d.rows} x {d.columns}"
        print(f"  {d.measure:16}  {pair:{width}}  largest {d.largest:9.3g}   mean {d.mean:9.3g}   {d.block.size} cells")
    for line in unmatched:
        print(f"  not compared: {line}")
    if parsed.output:
        from repsim_cli import plots
        from repsim_cli.plots import difference

        folder = Path(parsed.output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--output: no folder can be made there, got '{folder}' ({error.strerror})") from None
        record = {"first": str(first), "second": str(second), "differences": comparison.table(differences)}
        results.write(folder / "comparison.json", results.dumps(record).encode())
        for file in plots.save(folder, list(difference.figures(differences, (first.name, second.name))), Bar()):
            if file.suffix == ".png":
                print(file)
    return 0


def doctor_command(parsed: argparse.Namespace) -> int:
    from repsim_cli import doctor

    for topic, lines in doctor.examine():
        print(topic)
        for line in lines:
            print(f"  {line}")
    return 0


def cache_command(parsed: argparse.Namespace) -> int:
    from repsim_cli import cache

    if parsed.limit:
        cache.set_limit(cache.parse_size(parsed.limit))
    if parsed.clear:
        removed, left = cache.trim(0)
        print(f"removed {removed} entries, {left / 1e9:.3f} GB left in use")
    print(f"{cache.root()}: limit {cache.limit() / 1e9:g} GB")
    for kind, entries, size in cache.overview():
        print(f"  {kind}: {entries} entries, {size / 1e9:.3f} GB")
    return 0


def _files(group: str) -> list[Path]:
    return sorted((conf_dir() / group).rglob("*.yaml"))


def _names(group: str) -> list[str]:
    root = conf_dir() / group
    return [str(file.relative_to(root).with_suffix("")) for file in _files(group)]


def _headline(file: Path) -> str:
    for line in file.read_text().splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").removeprefix("Question: ")
    return ""


def list_command(parsed: argparse.Namespace) -> int:
    if parsed.what == "run":
        root = results.outputs_root()
        folders = results.runs(root) if root.is_dir() else []
        if not folders:
            print(f"no runs in {root}; start one with: repsim run")
        for folder in folders:
            manifest = results.read_manifest(folder)
            print(f"{manifest['started']}  {manifest['status']:11}  {manifest['name']:24}  {folder}")
        return 0
    for group in (parsed.what,) if parsed.what else GROUPS:
        if not parsed.what:
            print(f"{group}:")
        names = _names(group)
        width = max(map(len, names))
        for name, file in zip(names, _files(group), strict=True):
            print(f"{'' if parsed.what else '  '}{name:{width}}  {_headline(file)}")
    return 0


def measure_command(parsed: argparse.Namespace) -> int:
    import yaml

    from repsim_cli.config import bind_measure

    settings = {}
    for setting in parsed.settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise BadInput(f"settings: not key=value, got '{setting}'; e.g. k=5")
        if key in settings:
            raise BadInput(f"settings: given twice, got '{setting}'; give {key} once")
        settings[key] = yaml.safe_load(value)
    measure = bind_measure(parsed.name, settings)
    arrays = [_load_array(name) for name in (parsed.x, parsed.y)]
    try:
        value = measure(*arrays)
    except RepsimError as error:
        raise BadInput(str(error)) from error
    if parsed.json:
        record = {
            "measure": measure.name,
            "value": value,
            "settings": dict(measure.settings),
            "n": len(arrays[0]),
        }
        print(results.dumps({**record, "card": measure.card.record()}), end="")
    else:
        print(value)
    return 0


def _load_array(name: str) -> Any:
    import numpy as np

    try:
        array = np.load(name, allow_pickle=False)
    except FileNotFoundError:
        raise BadInput(f"{name}: no such file; check the path") from None
    except (OSError, ValueError, EOFError) as error:
        reason = "no array of numbers" if "pickle" in str(error) else str(error).splitlines()[0]
        raise BadInput(f"{name}: cannot be read as .npy, got {reason}; save it with numpy.save") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise BadInput(
            f"{name}: not an array of numbers, got {getattr(array, 'dtype', 'an archive')}; use .npy of floats"
        )
    return array


if __name__ == "__main__":
    main()
