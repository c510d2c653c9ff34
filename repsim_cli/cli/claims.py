"""`repsim claims`: the published findings that runs can test, and the verdicts of finished runs."""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.cli.machine import say_json
from repsim_cli.cli.terminal import log, say
from repsim_cli.config.presets import describe_group
from repsim_cli.runs import folders, reader, results

TINY = "tiny"
COLUMNS = ("claim", "source", "statistic", "holds where", "unit")


def claims_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim claims`: every claim with its verdict in the newest run of each name, or with `--check` in
    tiny runs, of which those that are missing are made first."""
    from repsim_cli.findings.claims import find_claims

    claims = find_claims(parsed.names or registry.claims.list_usable())
    claims = sorted(claims, key=lambda claim: (claim.source, claim.name))
    if parsed.check and parsed.json:
        raise BadInput("--json: not together with --check, got both; run --check first")
    if parsed.check:
        run_tiny_experiments(claims)
        runs = find_newest_runs(results.find_outputs_root())
        runs = {name: folder for name, folder in runs.items() if name.startswith(f"{TINY}_")}
        say(*make_claims_table(claims, read_verdicts(runs)))
        return 0
    by_claim = read_verdicts(find_newest_runs(results.find_outputs_root()), values=True)
    if parsed.json:
        say_json("claims", {"claims": [_build_claim_record(claim, by_claim.get(claim.name, {})) for claim in claims]})
        return 0
    for claim in claims:
        say(f"{claim.name} ({claim.source}, analysis {claim.analysis})")
        say(f"  {claim.says}")
        say(f"  holds where {claim.statistic} is {say_bound(claim)}")
        say(f"  unit: {claim.unit}")
        for run, words in by_claim.get(claim.name, {}).items():
            say(f"  {run}: {'; '.join(words)}")
    return 0


def _build_claim_record(claim: Any, by_run: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A claim with the verdicts of runs, as `machine.SHAPES` has it."""
    keys = ("name", "source", "analysis", "says", "statistic", "unit")
    return {**{key: getattr(claim, key) for key in keys}, "holds_where": say_bound(claim), "verdicts": dict(by_run)}


def say_bound(claim: Any) -> str:
    return f"at {'most' if claim.published == 'below' else 'least'} {claim.threshold:g}"


def find_newest_runs(root: Path) -> dict[str, Path]:
    """The newest run with results of each name."""
    known = folders.list_run_folders(root) if root.is_dir() else []
    return {
        manifest["name"]: folder for folder in known if reader.has_results(manifest := reader.read_manifest(folder))
    }


def read_verdicts(runs: Mapping[str, Path], *, values: bool = False) -> dict[str, dict[str, list[str]]]:
    """Reads the verdicts of runs, by claim and run: of every measure, with the number of units.
    Damaged runs are left out, with a warning. values: whether the value and p are said too.
    """
    by_claim: dict[str, dict[str, list[str]]] = {}
    for name, folder in sorted(runs.items()):
        try:
            tested = reader.read_results(folder, arrays=False).claims
        except BadInput as error:
            log.warning("%s", error)
            continue
        for verdict in tested:
            words = f"{verdict.measure} {verdict.verdict}"
            if values and verdict.value is not None:
                p = "" if verdict.decided is None else f"p = {verdict.decided:.2g}"
                said = ", ".join(filter(None, [p, verdict.basis]))
                words += f", {verdict.value:.3g}" + (f" ({said})" if said else "")
            elif verdict.over:
                words += f" ({verdict.over})"
            by_claim.setdefault(verdict.name, {}).setdefault(name, []).append(words)
    return by_claim


def make_claims_table(claims: Sequence[Any], by_claim: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterable[str]:
    """Makes a table in Markdown: a row per claim, with the verdicts of the runs."""
    yield f"| {' | '.join((*COLUMNS, 'verdicts'))} |"
    yield "|" + " --- |" * (len(COLUMNS) + 1)
    for claim in claims:
        words = [f"`{run}`: {'; '.join(each)}" for run, each in by_claim.get(claim.name, {}).items()]
        statistic = claim.statistic.replace("|", "\\|")
        cells = (f"`{claim.name}`", claim.source, statistic, say_bound(claim), claim.unit, "<br>".join(words))
        yield f"| {' | '.join(cells)} |"


def run_tiny_experiments(claims: Sequence[Any]) -> None:
    """Runs the tiny experiments that test these claims and have no complete run. Raises RunFailed where one fails."""
    there = find_newest_runs(results.find_outputs_root())
    for experiment, name, asked in list_tiny_experiments():
        if asked & {claim.name for claim in claims} and name not in there:
            words = [sys.executable, "-m", "repsim_cli", "run", "-q", f"experiment={experiment}"]
            if subprocess.run(words, check=False).returncode:
                raise RunFailed(f"claims: {experiment} did not complete; see repsim list run")


def list_tiny_experiments() -> Iterable[tuple[str, str, set[str]]]:
    """Lists every tiny experiment: how it is selected, the name of its runs, and the claims that it asks for."""
    from repsim_cli.config.compose import compose

    for experiment in describe_group("experiment"):
        if experiment.startswith(f"{TINY}/"):
            (config,) = compose([f"experiment={experiment}"])
            yield experiment, config.name, set(config.claims)
