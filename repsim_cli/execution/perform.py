"""What happens in a run between its start and its end, whether a command or Python began it."""

import dataclasses

from repsim_cli.base import garbage, registry
from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.config.run import RunConfig
from repsim_cli.execution.units import perform_ahead
from repsim_cli.findings import analyse
from repsim_cli.report import tracking
from repsim_cli.runs.content import Results
from repsim_cli.runs.results import Run
from repsim_cli.runs.schema import from_json, to_json
from repsim_cli.training import trained


def perform(checked: RunConfig, run: Run, *, drawn: bool = True) -> None:
    """Trains the models that are missing, measures, analyses, and draws the figures and logs the run where asked to."""
    garbage.resume()
    keys = checked.keys
    for label, why in checked.skipped.items():
        run.skip(label, why)
    for note in checked.notes:
        run.warn(note)
    perform_ahead(checked, run)
    trained.train_missing(checked.models, run, keys.hardware.get("threads"))
    short = trained.find_shortfalls(checked.models, run)
    facts = {label: dataclasses.asdict(about) for label, about in checked.facts.items()}
    reasons = {label: shortfall.why for label, shortfall in short.items()}
    about = {"facts": facts, "measures": checked.measures, "base": keys.base, "options": checked.options}
    run.manifest.update(about, short=reasons)
    marks = {label: shortfall.mark for label, shortfall in short.items()}

    def measure() -> None:
        measured = checked.study.run(run)
        if not isinstance(measured, Results):
            raise TypeError(f"run() gives, in place of Results, {type(measured).__name__}")
        for text in measured.warnings:
            run.warn(text)
        filled = {"study": keys.study, "marks": marks, "warnings": run.manifest["warnings"]}
        whole = dataclasses.replace(measured, **filled)
        if not registry.studies.own(keys.study):
            from_json(to_json(whole))  # which says what could not be read again
        run.write_results(whole)

    try:
        registry.studies.call(keys.study, measure, RunFailed)
    except Degenerate as error:  # bad input of a measure, and a run that has started
        raise RunFailed(str(error)) from error
    with run.stage("analyses"):
        try:
            analyse.analyse(run, checked.analyses, checked.claims, keys.significance.get("level", 0.95))
        except BadInput as error:  # of a run that has measured
            raise RunFailed(str(error)) from error
    if drawn:
        with run.stage("figures"):
            analyse.draw(run.folder, run.progress, whole=analyse.read_drawing(run.folder).which == "all")
    if keys.track is not None:
        with run.stage("tracking"):
            tracking.track(keys.track, run)
