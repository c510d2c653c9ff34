"""The analyses of a run: which ones it has, their results beside the measured ones, and all figures."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repsim_cli.base import environment, registry
from repsim_cli.base.errors import BadConfig, BadInput, RunFailed
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import name_package
from repsim_cli.figures.frame import Figures, Style, read_figure_settings, save
from repsim_cli.findings.analysis import Analysis, Finished, Part, Planned
from repsim_cli.findings.answering import list_directed_pairs
from repsim_cli.findings.claims import Claim, find_claims
from repsim_cli.findings.complete import complete
from repsim_cli.findings.sentences import is_chance
from repsim_cli.runs import reader
from repsim_cli.runs.content import Matrix, Measured, Results, Verdict
from repsim_cli.runs.results import Progress, Run, quiet

MAPS = "maps"  # the analysis whose figures show cells without a value; others do without their layers
ANALYSES = "analyses."  # what the error of a failed analysis begins with


def choose_options(
    planned: Planned, given: Mapping[str, Any], claims: Sequence[str]
) -> tuple[dict[str, Any], list[Claim]]:
    """The options of every analysis of a run, by name, and its claims. Analyses are those that are asked for, those
    that the study's runs always have, and those that test the claims. given: the options of those that are asked for.
    Raises BadConfig with every analysis or claim that does not exist, belongs to other studies, or does not suit the
    plan of the run.
    """
    tested = find_claims(claims)
    of_claims = {claim.analysis for claim in tested}
    known = [
        name for name in registry.analyses.names() if name in {*given, *of_claims} or _is_at_hand(name, planned.study)
    ]
    cards = {name: find_analysis_card(name) for name in known}
    problems = [
        f"claims: {claim.name} is about {_say_other_studies(cards[claim.analysis], planned)}"
        for claim in tested
        if planned.study not in cards[claim.analysis].studies
    ]
    options: dict[str, Any] = {}
    for name, card in cards.items():
        if name in given:
            options[name] = given[name]
        elif planned.study in card.studies and (name in of_claims or card.unasked(planned)):
            if needed := [each.name for each in dataclasses.fields(card.options) if _is_required(each)]:
                named = " and ".join(claim.name for claim in tested if claim.analysis == name)
                settings = ", ".join(f"{key}: ..." for key in needed)
                problems.append(f"claims: {named} needs settings; set analyses.{name}={{{settings}}}")
            else:
                options[name] = card.options()
    for name, settings in options.items():
        if planned.study not in cards[name].studies:
            problems.append(f"analyses.{name}: it is about {_say_other_studies(cards[name], planned)}")
            continue
        if planned.options.get("within") and not cards[name].within and name in {*given, *of_claims}:
            key = f"analyses.{name}" if name in given else "claims"
            problems.append(
                f"options.within: {key} needs the layers of all models, got pairs within models alone; drop one"
            )
        if hasattr(settings, "check") and (name in given or cards[name].unasked(planned)):
            try:
                settings.check(planned)
            except BadInput as error:
                # a problem with one setting starts with its name, and so continues the key path
                key = re.split("[.,:]", str(error))[0] in {setting.name for setting in dataclasses.fields(settings)}
                problems.append(f"analyses.{name}{'.' if key else ': '}{error}")
    if problems:
        raise BadConfig(list(dict.fromkeys(problems)))
    return options, tested


def _is_at_hand(name: str, study: str) -> bool:
    """Tells whether runs of the study may have an analysis unasked: those of packages alone where it is of the same."""
    point, beside = registry.analyses.plugins.get(name), registry.studies.plugins.get(study)
    if point is None or registry.analyses.own(name):
        return True
    return beside is not None and name_package(beside) == name_package(point)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _say_other_studies(card: Analysis, planned: Planned) -> str:
    return f"runs of the study {' or '.join(card.studies)}, got {planned.study}; drop it"


def find_analysis_card(name: str) -> Analysis:
    """Finds the card of an analysis. Raises BadInput for one that does not exist."""
    return registry.analyses.get(name).card


def analyse(run: Run, options: Mapping[str, Any], claims: Sequence[Claim], level: float) -> Results:
    """Adds the results of the analyses to a run's results.json, each in place of what it made before.

    Raises BadInput where the run lacks what one needs; what was measured, and the analyses before it, are kept.
    """
    whole = reader.read_results(run.folder)
    finished = Finished(folder=run.folder, manifest=run.manifest, results=whole.leave_out_analyses(), level=level)
    given, left_out = complete(finished)
    for warning in left_out if options else ():
        run.warn(warning)
    code = environment.describe_code()
    try:
        for name, settings in options.items():
            tested = [claim for claim in claims if claim.analysis == name]
            try:
                compute = partial(find_analysis_card(name).compute, given, settings, tested)
                part = Part() if given is None else registry.analyses.call(name, compute, RunFailed)
            except BadInput as error:
                raise BadInput(f"{ANALYSES}{name}: {error}") from error
            verdicts = note_short(refuse_units(part.claims, finished, tested), finished, tested)
            part = dataclasses.replace(part, claims=verdicts)
            for warning in part.warnings:
                run.warn(warning)
            kept = whole.leave_out_analysis(name).leave_out_claims({claim.name for claim in tested})
            whole = add_part(run, kept, name, part, {"options": dataclasses.asdict(settings), "code": code})
    finally:
        run.write_results(whole)
    return whole


def refuse_units(verdicts: Sequence[Verdict], run: Finished, claims: Sequence[Claim]) -> list[Verdict]:
    """Gives the verdicts; claims over models cannot be tested where all models of a run are untrained, where some are
    copies of each other, or where groups that are held against others have whole trainings: none of these are
    independent units. Claims across models cannot where no two have anything in common beyond chance: then levels of
    chance are compared."""
    by_name = {claim.name: claim for claim in claims if claim.unit != "fact"}
    dependent = {name: _say_dependent(run, claim) for name, claim in by_name.items()}
    measures = run.results.measures if any(claim.across for claim in by_name.values()) else []
    unrelated = [measured.label for measured in measures if _are_all_unrelated(run, measured)]

    def refuse(each: Verdict) -> Verdict:
        if each.name not in by_name:
            return each
        why = dependent[each.name]
        if not why and by_name[each.name].across and any(f"{each.measure},".startswith(f"{x},") for x in unrelated):
            why = "needs two models that have something in common beyond chance by this measure"
        return by_name[each.name].untestable(each.measure, why) if why else each

    return [refuse(each) for each in verdicts]


def _are_all_unrelated(run: Finished, measured: Measured) -> bool:
    """Tells whether a measure compares different models, and none has anything in common with another beyond chance."""
    found = [is_chance(measured, sides) for sides in list_directed_pairs(measured, run.keep)]
    return bool(found) and all(found)


def _say_dependent(run: Finished, claim: Claim) -> str:
    """Says why the models of a run are not independent units of a claim; empty where they are."""
    if run.models and run.untrained >= run.models.keys():
        return "needs trained models, got untrained ones"
    if run.copies:
        named = "; ".join(f"{', '.join(group[:-1])} and {group[-1]}" for group in run.copies)
        return f"needs models that are independent, got copies: {named}; keep one of them"
    if claim.across == "groups" and run.whole_trainings:
        return (
            "needs models that could be in either group, got all seeds of a training in one: "
            f"{', '.join(run.whole_trainings)}; group one seed of each, or the seeds of one"
        )
    return ""


def note_short(verdicts: Sequence[Verdict], run: Finished, claims: Sequence[Claim]) -> list[Verdict]:
    """The verdicts with a note on every model that falls short of what it was trained for, where they rest on it."""
    short = run.manifest.get("short", {})
    models = {
        claim.name: {label for training in claim.of for label in run.trained.get(training, [])}
        for claim in claims
        if claim.of
    }
    return [
        verdict
        for each in verdicts
        for verdict in reader.qualify(
            [each], {label: why for label, why in short.items() if label in models.get(each.name, short)}
        )
    ]


def add_part(run: Run, whole: Results, name: str, part: Part, record: Mapping[str, Any]) -> Results:
    """The results with a part of this analysis, its arrays saved. record: its options and code."""
    matrices: dict[str, Matrix] = {}
    for label, (array, matrix) in part.matrices.items():
        values = run.write_array(slug(name, label), array)
        matrices[label] = dataclasses.replace(matrix, values=values, analysis=name)
    return dataclasses.replace(
        whole,
        matrices=whole.matrices | matrices,
        tables=whole.tables | {label: dataclasses.replace(x, analysis=name) for label, x in part.tables.items()},
        curves=whole.curves | {label: dataclasses.replace(x, analysis=name) for label, x in part.curves.items()},
        claims=[*whole.claims, *part.claims],
        analyses=whole.analyses | {name: dict(record)},
        warnings=run.manifest["warnings"],
    )


def read_drawing(folder: Path) -> Figures:
    """Reads which figures the configuration of a run asks for, and how they are drawn."""
    given = reader.read_config(folder).get("figures", {}) if (folder / "config.yaml").is_file() else {}
    return Figures(**read_figure_settings(given))


def draw(
    folder: Path,
    progress: Progress = quiet,
    *,
    whole: bool = False,
    only: Collection[str] | None = None,
    into: Path | None = None,
    style: Style | None = None,
) -> list[Path]:
    """Draws the figures of a run and returns their paths; models below their aim are marked in them.

    whole: all figures, not those of the overview alone. only: those of these analyses. into: the folder of the files;
    None: figures/ of the run.
    """
    before = reader.read_results(folder)
    manifest = reader.read_manifest(folder)
    for matrix in [*before.matrices.values(), *(matrix for x in before.measures for matrix in x.matrices)]:
        reader.read_array(folder, matrix.values, mapped=True)  # no figure is drawn of a damaged run
    drawn = [name for name in before.analyses if only is None or name in only]

    def jobs(shown: Results) -> list[tuple[str, Any]]:
        run = Finished(folder=folder, manifest=manifest, results=shown)
        given = {name: run if name == MAPS else complete(run)[0] for name in drawn}
        makers = {name: find_analysis_card(name).figures for name in drawn}
        return [job for name, its in given.items() if its and (make := makers[name]) for job in make(its, whole)]

    # files are named by the models' labels, figures show these with their marks
    names, makers = jobs(before), jobs(reader.mark_labels(before))
    both = [(name, make) for (name, _), (_, make) in zip(names, makers, strict=True)]
    return save(into or folder / "figures", both, progress, style or read_drawing(folder)) if both else []
