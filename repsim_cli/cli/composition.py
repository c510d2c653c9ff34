"""The words of a command line -> the configuration of each job, composed by Hydra."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repsim_cli import folders, results
from repsim_cli.cli.configs import COMPONENT_KEY, as_typed
from repsim_cli.documents import interpolated
from repsim_cli.errors import BadInput
from repsim_cli.files import readable, walk
from repsim_cli.presets import GROUPS, TABLES, conf_dir, described, shipped
from repsim_cli.registry import did_you_mean

VALUED = ("--config-dir", "--cfg", "--package", "--info")
PRINTING = ("--cfg", "--info", "--hydra-help", "--shell-completion")
SHORT = {"-cd": "--config-dir", "-c": "--cfg", "-p": "--package", "-i": "--info", "-sc": "--shell-completion"}
SHORT |= {"-m": "--multirun"}
FLAGS = (*VALUED, *PRINTING, *SHORT, "--resolve", "--multirun")


UNASKED = "++claims=[]"


def typed(words: Sequence[str]) -> list[str]:
    """The words as the user gave them."""
    return [as_typed(word) for word in words if word != UNASKED]


def unasked(words: list[str]) -> list[str]:
    """The words; with claims=[] where they replace the models of an experiment, whose claims are about its own."""
    keys = [word.partition("=")[0].lstrip("+") for word in words]
    selected = [i for i, key in enumerate(keys) if re.fullmatch(r"model|model\.[^.]+", key)]
    if not selected or "claims" in keys:
        return words
    return [*words[: selected[0]], UNASKED, *words[selected[0] :]]  # Hydra wants all overrides together


def split(words: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """Hydra's flags (by their long names, with their values) and the overrides."""
    flags: dict[str, str | None] = {}
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-"):
            overrides.append(word)
        else:
            flag, equals, value = word.partition("=")
            flag = SHORT.get(flag, flag)
            flags[flag] = value if equals else next(remaining, None) if flag in VALUED else None
    for flag in flags:
        if flag not in FLAGS:
            raise BadInput(
                f"repsim run: unknown option, got '{flag}'; {did_you_mean(flag, {*FLAGS, '--quiet', '-q', '--from'})}"
            )
    return flags, overrides


def repeated(words: list[str], scratch: Path) -> tuple[list[str], Path, str]:
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
    default = shipped(conf_dir() / "config.yaml")
    rest = words[:at] + words[at + 2 :]
    choices = [entry for entry in default["defaults"] if isinstance(entry, dict)]
    anew = [entry for entry in choices if _selected(next(iter(entry)), rest)]
    logging_off = [entry for entry in choices if "override" in next(iter(entry))]
    repeated = results.read_config(folders.find(words[at + 1]))
    for key in {"defaults", "hydra"} & repeated.keys():
        raise BadInput(f"--from: not a key that a run writes, got '{key}' in its config.yaml; drop it there")
    if text := interpolated(repeated):
        raise BadInput(
            f"--from: not a value that a run writes, got '{text}' in its config.yaml; write what it stands for"
        )
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


def composed(flags: dict[str, str | None], overrides: list[str], configs: Path, config_name: str) -> list[Any]:
    """The configuration of each job of the command."""
    from hydra import compose, initialize_config_dir
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from repsim_cli.cli.loader import Loader

    made = []
    try:
        with initialize_config_dir(str(configs.resolve()), version_base="1.3"):
            if (config_dir := flags.get("--config-dir")) is not None:
                _check_config_dir(Path(config_dir))
                engine: Any = GlobalHydra.instance().hydra
                path = engine.config_loader.get_search_path()
                path.prepend("command-line", f"file://{Path(config_dir).resolve()}", SearchPathQuery(provider="schema"))
                engine.config_loader = Loader(path)
            for job_overrides in _jobs(overrides) if "--multirun" in flags else [overrides]:
                made.append(compose(config_name, job_overrides, return_hydra_config=True))
                _check_labels(made[-1], job_overrides)
    except (HydraException, ValueError, TypeError) as error:  # as Hydra raises for overrides that make no sense
        raise BadInput(hydra_line(error, overrides)) from None
    finally:
        GlobalHydra.instance().clear()
    return made


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
        raise BadInput(f"overrides: the sweep expands to no jobs, got {' '.join(typed(overrides))}; check its globs")
    return jobs


def hydra_line(error: Exception, overrides: list[str]) -> str:
    """Hydra's message as one line, with the near misses."""
    text = " ".join(str(error).split())
    if "LexerNoViableAlt" in text or "mismatched input" in text or "no viable alternative" in text:
        labelled = next(filter(None, map(LABELLED.fullmatch, overrides)), None)
        if labelled is not None:
            return _in_braces(labelled[1], labelled[2], labelled[3])
        return (
            f"overrides: cannot be read, got {' '.join(typed(overrides))[:200]}; write KEY=VALUE, with "
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
    content = shipped(conf_dir() / "config.yaml")
    return sorted({*content, *GROUPS} - {"defaults", "hydra"})
