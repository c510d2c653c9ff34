"""The analyses and claims of a configuration, and what `repsim analyse` changes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.schemas import Fields, attempt, give_up
from repsim_cli.config.binding import bind
from repsim_cli.config.words import parse_settings
from repsim_cli.findings.analyse import choose_options, find_analysis_card
from repsim_cli.findings.analysis import Planned
from repsim_cli.findings.claims import find_claims
from repsim_cli.runs.content import Results, read_facts


def bind_analyses(problems: list[str], given: Any) -> dict[str, Any]:
    """The options of the analyses by name, bound to their dataclasses. Unless it is a mapping, `given` is a problem of
    the run's keys already."""
    bound: dict[str, Any] = {}
    for name, settings in given.items() if isinstance(given, dict) else ():
        card = attempt(problems, "analyses: ", lambda name=name: find_analysis_card(name))
        if not isinstance(settings, dict | None):
            problems.append(f"analyses.{name}: not settings, got {settings!r}; write {{SETTING: VALUE}}")
        elif card is not None:
            bound[name] = bind(problems, f"analyses.{name}", card.options, settings or {})
    return bound


def choose_analyses(
    manifest: Mapping[str, Any], results: Results, config: Fields, changes: Sequence[str]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """The options of the analyses of a finished run, by name, and its claims, changed by KEY=VALUE words.

    changes: `+analyses.NAME={...}` or `claims=[...]`. With changes only what they name is computed, by default
    with the options that the analysis had and the claims that it tested.
    Raises BadConfig with every problem.
    """
    asked = _parse_changes(changes) if changes else config
    settings, tested = dict(asked.get("analyses") or {}), list(asked.get("claims") or [])
    problems: list[str] = []
    if changes:
        anew = {*settings, *(claim.analysis for claim in attempt(problems, "", lambda: find_claims(tested)) or ())}
        before = {name: made["options"] for name, made in results.analyses.items() if name in anew and made["options"]}
        settings = before | settings
        kept = (verdict.name for verdict in results.claims if verdict.analysis in anew)  # one of each measure
        tested = list(dict.fromkeys([*tested, *kept]))
    bound = bind_analyses(problems, settings)
    give_up(problems)
    models = read_facts(manifest)
    groups = {name: len(models) for name, models in manifest.get("groups", {}).items()}
    planned = Planned(
        study=manifest["study"],
        models=models,
        measures={measured.label: measured.card for measured in results.measures},
        groups=groups,
        base=manifest.get("base"),
        options=manifest.get("options", {}),
        budget="budget" in results.about,
        settings={measured.label: (measured.name, measured.settings) for measured in results.measures},
    )
    options, claims = choose_options(planned, bound, tested)
    named = {*bound, *(claim.analysis for claim in claims)}
    return ({name: options[name] for name in options if name in named} if changes else options), claims


def _parse_changes(words: Sequence[str]) -> Fields:
    """The analyses and claims that are named by `+analyses.NAME={...}` and `claims=[...]`."""
    analyses: Fields = {}
    claims: list[Any] = []
    for key, value in parse_settings([word.lstrip("+") for word in words], "analyse").items():
        name, *inner = key.split(".")
        for part in reversed(inner):
            value = {part: value}
        if name == "analyses" and isinstance(value, dict):
            for each, settings in value.items():
                before = analyses.get(each)
                known = before if isinstance(before, dict) and isinstance(settings, dict) else None
                analyses[each] = settings if known is None else {**known, **settings}
        elif name == "claims" and isinstance(value, list):
            claims += value
        else:
            got = f"{key}={value}" if name in ("analyses", "claims") else name
            raise BadInput(f"analyse: neither analyses nor claims, got '{got}'; write +analyses.NAME={{}}")
    return {"analyses": analyses, "claims": claims}
