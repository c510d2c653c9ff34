"""`repsim compare`: the layers of two models, in a new run; `repsim diff`: the numbers of two runs."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repsim_cli.base import signals
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import treatment
from repsim_cli.cli.run import plan_lines
from repsim_cli.cli.show import spread, summary
from repsim_cli.cli.terminal import Bar, check_torch, say
from repsim_cli.config.presets import FILES, entries, entry_of
from repsim_cli.figures.chance import Chance, pairings
from repsim_cli.runs import folders, reader, results
from repsim_cli.runs.content import CHANCE

if TYPE_CHECKING:
    from repsim_cli.api.result import Result

TAKEN = {  # by `extract.normalise`, what it takes away
    "features": "a rotation now counts, and features that hardly vary as much as the others",
    "directions": "what few directions alone share counts less",
    "rows": "how long rows are counts for nothing",
}


def compare_command(parsed: argparse.Namespace) -> int:
    _check_models(parsed.first, parsed.second)
    check_torch()
    from datetime import datetime

    from repsim_cli.api.compare import MEASURES, perform_in
    from repsim_cli.api.entries import configuration, labelled, model_entry
    from repsim_cli.api.result import Result
    from repsim_cli.config.run import validate

    if parsed.column and not parsed.data:
        raise BadInput(f"--column: of a table, got '{parsed.column}' without one; name it with --data")
    models = labelled([parsed.first, parsed.second])
    config = configuration(
        {label: model_entry(label, model) for label, model in models.items()},
        {"path": parsed.data, "text": parsed.column} if parsed.column else parsed.data,
        measures=[name.strip() for name in parsed.measure.split(",")] if parsed.measure else MEASURES,
        rows=parsed.rows,
        significance=parsed.significance,
        settings=parsed.set,
    )
    checked = validate(config)
    if checked.keys.dry_run:
        say(*plan_lines(checked.keys.name, checked.plan(), checked.misfits))
        return 0
    now = datetime.now()
    place = results.unused(results.outputs_root() / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-compare")
    try:
        with signals.interruptible():
            result = Result(perform_in(place, checked, Bar(), drawn=True))
    finally:
        results.drop_empty(place)
    families = list(result.manifest["models"]) != list(models)
    say(*(summary(result.folder) if families else _answer(result, *models)))
    return 0


def _check_models(*names: str) -> None:
    """Raises BadInput for runs, which `diff` compares, and for what is nothing at all."""
    runs = [name for name in names if name not in entries("model") and _exists(folders.find, name)]
    models = [name for name in names if name not in runs and (Path(name).exists() or _exists(entry_of, name))]
    if runs and models:
        raise BadInput(
            f"compare: a run and a model cannot be compared, got the run '{runs[0]}' and the model '{models[0]}'; give "
            "two models, or two runs to repsim diff"
        )
    if runs:
        raise BadInput(f"compare: of models, got the run '{runs[0]}'; use repsim diff {' '.join(names)}")
    if not models:
        raise BadInput(
            f"compare: neither a run nor a model, got '{names[0]}'; {did_you_mean(names[0], entries('model'))} "
            "See repsim list run and repsim list model"
        )


def _exists(find: Callable[[str], Any], name: str) -> bool:
    try:
        find(name)
    except BadInput:
        return False
    return True


def _answer(result: "Result", a: str, b: str) -> Iterator[str]:
    """How similar the layers of two models are, in about ten lines."""
    manifest = result.manifest
    yield f"{manifest['name']}: {manifest['status']}, {manifest['seconds']:.1f} s, seed {manifest['seed']}"
    yield from (f"  {who}: {what}" for who, what in result.answers)
    if given := manifest.get("data"):
        taken, available = given["sequences"], given["sequences_available"] or given["sequences"]
        first = "the first " if available == given["pool"] else ""
        read = f"{taken:,} of {first}{available:,}" if taken < available else f"all {taken:,}"
        more = "; more by --set extract.sequences=N" if taken < available else ""
        yield f"  data: {read} sequences of {given['source']}{more}"
    if treated := treatment(manifest.get("remedies", {})):
        taken = TAKEN.get(manifest["remedies"].get("normalise"))
        yield f"  rows: {treated}" + (f" ({taken})" if taken else "")
    for measured in result.results.measures:
        estimate, better = measured.estimate, "larger" if measured.larger_is_closer else "smaller"
        rows = f"{estimate['rows']:,} of {estimate['rows_available']:,} {estimate.get('unit', 'rows')}"
        pairs = f", {of}" if (of := result.results.pairs_of(measured)) else ""
        yield f"  {measured.label}: {measured.card['label']}, {better} is closer, {estimate['kind']}, {rows}{pairs}"
        for first, second in [(a, b)] if measured.card["symmetric"] else [(a, b), (b, a)]:
            values = result.matrix(first, second, measured.label).values
            yield f"    {first} x {second}  {spread(values)}"
            if np.isnan(values).all():
                continue
            row, column, numbers = result.closest_numbers(first, second, measured.label)
            value = numbers["values"]
            yield f"    closest by {measured.label}: {row} of {first} and {column} of {second}, {value:z.3f}"
            if measured.null is not None:
                yield f"      {_judged(measured.null, numbers)}"
                if needed := measured.null.get("permutations_for_q"):
                    yield f"      q is left out, as it cannot be small: significance.permutations={needed} would do"
            yield f"    {_chance(result.chance(first, second, measured.label), measured.chance or {})}"
            if measured.token_alone:
                yield f"    {measured.token_alone}"
    if result.warnings:
        yield f"  warnings: {len(result.warnings)}, see repsim show {result.folder}"
    yield f"  folder: {result.folder}"
    yield f"  report: {result.folder / 'report.html'}"


def _chance(chance: Chance | None, record: Mapping[str, Any]) -> str:
    """The level of chance and what it is of, or why it is not known."""
    if chance is None:
        return f"chance is not known here: {record.get('unknown', 'no layers have a value')}"
    cells = (
        f"{chance.low:z.3f}" if chance.high - chance.low < 5e-4 else f"{chance.low:z.3f} to {chance.high:z.3f} by cell"
    )
    spread = f", a single pairing within {record['spread']:.2g} (sd)" if record.get("spread") else ""
    return f"chance: {cells}, the mean of {pairings(record)}{spread}"


def _judged(null: Mapping[str, Any], numbers: Mapping[str, float | None]) -> str:
    """What the test says of the closest layers, as the table `closest layers` has it."""
    by_chance = f"chance {numbers[CHANCE]:z.3f}; " if numbers.get(CHANCE) is not None else ""
    tested = (
        f"{numbers['tested']:z.3f} on the {100 * null['share']:.0f} % of rows that were tested: "
        if numbers.get("tested") is not None
        else ""
    )
    named = {"calibrated": "calibrated", "p": "p", "p_family": "family-wise p"}
    said = ", ".join(f"{name} {numbers[what]:.3g}" for what, name in named.items() if numbers.get(what) is not None)
    faults = "; ".join(null.get("not_valid", ()))
    return by_chance + tested + said + (f" (not valid: {faults})" if faults else "")


def _run(name: str) -> Path:
    """The folder of a run. Raises BadInput, which says so where the name is that of a model."""
    place = Path(name)
    try:
        return folders.find(name)
    except BadInput:
        if name in entries("model") or place.suffix in FILES or (place / "config.json").is_file():
            raise BadInput(f"diff: of runs, got the model '{name}'; use repsim compare MODEL MODEL") from None
        raise


def diff_command(parsed: argparse.Namespace) -> int:
    from repsim_cli.report import differences as comparison

    first, second = _run(parsed.first), _run(parsed.second)
    if first.resolve() == second.resolve():
        name = reader.read_manifest(first)["name"]
        others = [f for f in folders.runs(results.outputs_root()) if f.resolve() != first.resolve()]
        same = [folder for folder in others if reader.read_manifest(folder)["name"] == name]
        hint = f"the run of this name before it is {same[-1]}" if same else "see repsim list run"
        raise BadInput(f"RUN: two different runs are needed, got {first} twice; {hint}")
    differences, unmatched = comparison.compare(first, second)
    if parsed.output:
        Path(parsed.output).mkdir(parents=True, exist_ok=True)
    say(f"{second} minus {first}")
    width = max(len(f"{d.rows} x {d.columns}") for d in differences)
    for d in differences:
        pair = f"{d.rows} x {d.columns}"
        say(f"  {d.measure:16}  {pair:{width}}  largest {d.largest:9.3g}   mean {d.mean:9.3g}   {d.known.size} cells")
    for line in unmatched:
        say(f"  not compared: {line}")
    if parsed.output:
        from repsim_cli.figures.frame import save

        folder = Path(parsed.output)
        record = {"first": str(first), "second": str(second), "differences": comparison.table(differences)}
        results.write(folder / "comparison.json", results.dumps(record).encode())
        for file in save(folder, list(comparison.figures(differences, (first.name, second.name))), Bar()):
            if file.suffix == ".png":
                say(str(file))
    return 0
