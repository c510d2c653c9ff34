"""The one composer: the words of a command, or of a program, with what they change -> configurations, by Hydra.

The command line, `--from`, `compare` and the jobs of sweeps, in whatever process, are composed here.
"""

import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.errors import HydraException, OverrideParseException
from hydra.experimental.callback import Callback
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from repsim_cli.base.documents import check_yaml, find_interpolation
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.base.files import check_readable, walk
from repsim_cli.base.registry import data, did_you_mean
from repsim_cli.config.guard import OWN_FILES, Guarded
from repsim_cli.config.presets import (
    GROUPS,
    TABLES,
    describe_group,
    find_conf_folder,
    read_preset,
    read_shipped,
    read_table_entries,
)
from repsim_cli.config.words import COMPONENT_KEY, restore_typed, restore_words, say_hydra_error, say_unreadable_word
from repsim_cli.runs import folders, reader

OWN, GIVEN = "config", "given"  # primary configurations: conf/config.yaml, and what a program or a run gives
MOST_JOBS = 10_000  # of a sweep
LOST = ("UncompletedJobError", "TerminatedWorkerError", "BrokenProcessPool")  # of submitit and joblib: a job was killed
ALONE = threading.RLock()  # Hydra composes one configuration at a time


class Tables(ConfigSource):
    """The entries of the tables as files of a group, so that model=NAME and measure=NAME select them."""

    @staticmethod
    def scheme() -> str:
        return "tables"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in TABLES

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        return name in read_table_entries(group) if group in TABLES else group == "data" and name in data.plugins

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        known = (
            read_table_entries(config_path) if config_path in TABLES else data.plugins if config_path == "data" else {}
        )
        return sorted(known) if results_filter is not ObjectType.GROUP else []

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        config = OmegaConf.create({name: read_table_entries(group)[name]} if group in TABLES else {"kind": name})
        return ConfigResult(self.provider, self.full_path(), config, {"package": None})


class Own(ConfigSource):
    """The files of --config-dir, each checked before Hydra reads it, which hangs or fails in its own ways on some."""

    @staticmethod
    def scheme() -> str:
        return OWN_FILES

    def _place(self, config_path: str) -> Path:
        return Path(self.path) / config_path

    def available(self) -> bool:
        return self._place("").is_dir()

    def is_group(self, config_path: str) -> bool:
        return self._place(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self._place(self._normalize_file_name(config_path)).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        found: list[str] = []
        for place in self._place(config_path).iterdir():
            self._list_add_result(found, os.path.join(config_path, place.name), place.name, results_filter)
        return sorted(found)

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._place(self._normalize_file_name(config_path))
        try:
            check_yaml(file)
            header, config = self._get_header_dict(file.read_text(encoding="utf-8")[:512]), OmegaConf.load(file)
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            reason = " ".join(str(error).split("full_key:")[0].replace(' in "<unicode string>",', "").split())
            raise BadInput(f"--config-dir: a file is not the YAML of a run, got {file} ({reason}); mend it") from None
        if config_path.partition("/")[0] == "experiment":
            _check_experiment(file, header, config)
        return ConfigResult(self.provider, self.full_path(), config, header)


def _check_experiment(file: Path, header: Mapping[str, Any], config: Any) -> None:
    """Raises BadInput for an experiment that would change nothing of a run."""
    if not config:
        raise BadInput(f"--config-dir: an experiment that sets no key, got {file}; write some into it, such as seed: 1")
    if header.get("package") != "_global_":
        raise BadInput(
            f"--config-dir: an experiment's keys are those of a run, got {file} without the line that says so; begin "
            "it with # @package _global_"
        )


class TablePlaces(SearchPathPlugin):
    """Makes Hydra look into the tables too."""

    def manipulate_search_path(self, search_path: Any) -> None:
        search_path.append("repsim", "tables://")


def register() -> None:
    """Makes the tables known to Hydra."""
    for plugin in (Tables, Own, TablePlaces):
        Plugins.instance().register(plugin)


@contextmanager
def open_loader(folder: str | None = None) -> Iterator[Guarded]:
    """Hydra's loader for conf/ and the folder of --config-dir. Hydra of a program that calls this stays as it was."""
    with ALONE:
        register()
        known = GlobalHydra.instance()
        before, known.hydra = known.hydra, None
        try:
            with hydra.initialize_config_dir(str(find_conf_folder().resolve()), version_base="1.3"):
                if folder is not None:
                    _check_config_dir(Path(folder))
                yield Guarded(GlobalHydra.instance().config_loader(), folder)
        finally:
            GlobalHydra.instance().hydra = before


def compose(words: list[str], primary: str = OWN, folder: str | None = None, sweep: bool = False) -> list[Any]:
    """The configuration of each job of a command, with Hydra's part. Raises BadInput with the near misses.

    folder: of --config-dir. sweep: the words have several values, of which every combination is a job.
    """
    made = []
    with open_loader(folder) as loader, convert_hydra_errors(words):
        for job in _expand_sweep_jobs(words, loader) if sweep else [words]:
            made.append(loader.load_configuration(primary, job))
            _check_labels(made[-1], job)
    return made


def drop_hydra_keys(config: Any) -> Any:
    """A configuration without Hydra's part."""
    return OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])


def _is_readable_override(word: str) -> bool:
    """Tells whether Hydra's grammar has such an override."""
    try:
        OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError):
        return False
    return True


@contextmanager
def convert_hydra_errors(words: list[str]) -> Iterator[None]:
    """Turns Hydra's errors, and those that it raises for overrides that make no sense, into BadInput."""
    try:
        yield
    except RecursionError:
        raise BadInput(
            "config: nested without end, got lists of defaults that name themselves, or a value of too many brackets; "
            "mend it"
        ) from None
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:
        # options of Hydra and their values are not overrides
        tried = [word for word in words if "=" in word or isinstance(error, OverrideParseException)]
        unread = next((word for word in tried if not word.startswith("-") and not _is_readable_override(word)), None)
        raise BadInput(
            say_hydra_error(error, words) if unread is None else say_unreadable_word(unread, _is_readable_override)
        ) from None


def run_alone(job: Callable[[Any], Any], config: Any) -> None:
    """Runs the job of a command that is not a sweep, as Hydra does."""
    config.hydra.mode = RunMode.RUN
    context = HydraContext(config_loader=None, callbacks=Callback())  # type: ignore[arg-type]  # of launchers
    run_job(job, config, "hydra.run.dir", None, context)


def run_sweep(job: Callable[[Any], Any], words: list[str], primary: str, folder: str | None) -> None:
    """Runs the jobs of a sweep by the sweeper and launcher of its configuration."""
    words = [*words, "hydra.mode=MULTIRUN"]
    with open_loader(folder) as loader, convert_hydra_errors(words):
        config = loader.load_configuration(primary, words, RunMode.MULTIRUN)
        context = HydraContext(config_loader=loader, callbacks=Callback())  # type: ignore[arg-type]
        sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=job, config=config)
        with convert_launcher_errors(config.hydra.runtime.choices["hydra/launcher"]):
            sweeper.sweep(list(config.hydra.overrides.task))


@contextmanager
def convert_launcher_errors(launcher: str) -> Iterator[None]:
    """Turns what ends a launcher into an error of one line: BadInput where it does not start the jobs, RunFailed where
    it loses one. Jobs raise nothing themselves, so that what the launcher of one process raises is a fault of ours."""
    try:
        yield
    except (RepsimError, HydraException, OmegaConfBaseException):
        raise
    except Exception as error:
        if launcher == "basic" or (isinstance(error, OSError) and error.filename != "sbatch"):
            raise
        said = " ".join(str(error).replace("sbatch: error: ", "").split())[:300] or type(error).__name__
        if type(error).__name__ in LOST:
            raise RunFailed(f"hydra/launcher: {launcher} lost a job, got '{said}'; run the sweep again") from None
        raise BadInput(
            f"hydra/launcher: {launcher} does not start the jobs, got '{said}'; change hydra.launcher.*, or drop it"
        ) from None


def print_as_hydra(words: list[str], primary: str) -> int:
    """Prints what a flag of Hydra asks for; returns the exit code. The words have been composed, and so checked."""
    register()
    sys.argv = ["repsim run", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised here and shortened to a line
    try:
        with convert_hydra_errors(words):
            hydra.main(version_base="1.3", config_path=str(find_conf_folder().resolve()), config_name=primary)(print)()
    except SystemExit as ended:
        return 1 if ended.code else 0
    return 0


def store_primary_config(
    keys: Mapping[str, Any], words: Sequence[str], presets: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Makes the keys of a run a primary configuration; returns its name.

    presets: by group, the file whose keys these change. A group that the words select (model=[a], data=pile) replaces
    that of the keys.
    """
    default = read_shipped(find_conf_folder() / "config.yaml")
    choices = _read_choices(default)
    used = [group for group in choices if group in presets or _is_selected(group, words)]
    anew = [{group: presets.get(group, choices[group])} for group in used]
    logging_off = [{group: name} for group, name in choices.items() if "override" in group]
    kept = {key: value for key, value in keys.items() if not _is_selected(key, words)}
    node = {"defaults": [*anew, "_self_", *logging_off], **kept, "hydra": default["hydra"]}
    ConfigStore.instance().store(name=GIVEN, node=node, provider="repsim")
    return GIVEN


def read_start(primary: str) -> dict[str, Any]:
    """Reads the keys that a command changes: those of conf/config.yaml, and what was stored in their place."""
    default = read_shipped(find_conf_folder() / "config.yaml")
    chosen = {group: name for group, name in _read_choices(default).items() if group in GROUPS and name}
    start = default | {group: read_preset(group, name) for group, name in chosen.items()}
    if primary == OWN:
        return start
    stored: Any = OmegaConf.to_container(ConfigStore.instance().load(f"{primary}.yaml").node)
    return start | stored


def _read_choices(default: Mapping[str, Any]) -> dict[str, Any]:
    """The files of groups that conf/config.yaml selects."""
    return {group: name for entry in default["defaults"] if entry != "_self_" for group, name in entry.items()}


def _is_selected(group: str, words: Sequence[str]) -> bool:
    return group in GROUPS and any(word.startswith(f"{group}=") for word in words)


def take_from(words: list[str]) -> tuple[list[str], str]:
    """Takes `--from RUN` out of the words: that run's configuration becomes the primary one, instead of
    conf/config.yaml. Another study drops its options, analyses and claims."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--from=") else [word])]
    if "--from" not in words:
        return words, OWN
    at = words.index("--from")
    if at + 1 == len(words) or not words[at + 1]:
        raise BadInput("--from: no run is named; e.g. --from latest")
    another = any(word.startswith("study=") for word in words)
    experiment = next((word for word in words if word.startswith("experiment=")), None)
    if experiment:
        raise BadInput(f"--from: the run's configuration is complete, got {experiment} as well; give one of them")
    folder = folders.find(words[at + 1])
    keys = reader.read_config(folder) if another else reader.read_applied_config(folder)
    for key in {"defaults", "hydra"} & keys.keys():
        raise BadInput(f"--from: not a key that a run writes, got '{key}' in its config.yaml; drop it there")
    if text := find_interpolation(keys):
        raise BadInput(
            f"--from: not a value that a run writes, got '{text}' in its config.yaml; write what it stands for"
        )
    rest = words[:at] + words[at + 2 :]
    if another:
        keys |= {"options": {}, "analyses": {}, "claims": []}
    return rest, store_primary_config({**keys, "resume": None, "dry_run": False}, rest)


def _check_config_dir(root: Path) -> None:
    """Checks the YAML of --config-dir: Hydra ignores unreadable files, and prefers a shipped file of the same name."""
    if not root.is_dir():
        raise BadInput(f"--config-dir: no such folder, got '{root}'; name a folder of YAML files")
    for folder, _, names in walk(root):
        for file in (folder / name for name in names if name.endswith(".yaml")):
            if file.exists() and not file.is_file():
                raise BadInput(f"--config-dir: not a regular file, got '{file}'; remove it")  # opening a pipe blocks
            check_readable(file)
            group, _, name = str(file.relative_to(root).with_suffix("")).partition("/")
            if group in GROUPS and name in describe_group(group):
                raise BadInput(f"--config-dir: the name of a {group} that ships, got '{file}'; rename it")


def _check_labels(composed: Any, words: list[str]) -> None:
    """Checks that no `model.LABEL.KEY=` has a label that is not selected, which would make a new entry."""
    for word in words:
        key = COMPONENT_KEY.match(restore_typed(word))
        if key is None or not key["label"]:
            continue
        known: Any = OmegaConf.to_container(composed[key["group"]])
        labels = [label for label, entry in known.items() if isinstance(entry, dict) and "kind" in entry]
        if key["label"] not in labels:
            raise BadInput(
                f"{key['group']}.{key['label']}: not selected, got '{restore_typed(word)}'; "
                f"{did_you_mean(key['label'], labels)}"
            )


def _expand_sweep_jobs(words: list[str], loader: Any) -> Iterator[list[str]]:
    """The words of each job of a sweep."""
    values = {
        word.get_key_element(): [*itertools.islice(word.sweep_string_iterator(), MOST_JOBS + 1)]
        if word.is_sweep_override()
        else [word.get_value_element_as_str()]
        for word in OverridesParser.create(loader).parse_overrides(words)
    }
    if math.prod(map(len, values.values())) > MOST_JOBS:
        raise BadInput(
            f"overrides: more than {MOST_JOBS:,} jobs, got {' '.join(restore_words(words)):.200}; name fewer values"
        )
    if not all(values.values()):
        raise BadInput(
            f"overrides: the sweep expands to no jobs, got {' '.join(restore_words(words))}; check its globs"
        )
    for job in itertools.product(*values.values()):
        yield [f"{key}={value}" for key, value in zip(values, job, strict=True)]
