"""The commands on what a run left, and convert, doctor and cache."""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.cli.answer import say_treated_rows, wrap_sentence
from repsim_cli.cli.follow import follow
from repsim_cli.cli.machine import build_run_json, say_json
from repsim_cli.cli.sweep import show_sweep
from repsim_cli.cli.terminal import Bar, check_torch, say
from repsim_cli.execution.records import FILE, read_records
from repsim_cli.findings.answering import describe_range, split_by_hook_point
from repsim_cli.report.headline import list_sentences
from repsim_cli.runs import folders, reader, results
from repsim_cli.runs.content import (
    ANSWERS,
    BUDGET,
    BY_SCALE,
    BY_TOKEN,
    CAPPED,
    DIAGNOSTICS,
    DIRECTIONS,
    IDENTICAL,
    OF_LAYER_DIFFERENCES,
    OF_LAYER_ERRORS,
    OF_WEIGHTS,
    WITHOUT_VALUE,
    Measured,
    Table,
    Verdict,
)


def summarise_run(folder: Path) -> list[str]:
    """A summary of a run: how it ended, each measure by pair of models, claims, warnings, where the files are."""
    manifest = reader.read_manifest(folder)
    took = reader.count_seconds(manifest)
    after = "" if took is None else f" {took:.1f} s,"
    lines = [f"{manifest['name']}: {manifest['status']},{after} seed {manifest['seed']}"]
    whole = reader.read_results(folder) if manifest["status"] == "complete" or reader.has_results(manifest) else None
    if whole is not None:
        lines += [line for text in list_sentences(folder, whole).say_main() for line in wrap_sentence(text)]
    if manifest.get("error"):
        lines.append(f"  error: {manifest['error']}")
    lines += say_treated_rows(manifest)
    if whole is not None:
        many = len(whole.measures) > SHOWN_MEASURES
        for measure in whole.measures:
            lines += _measure_lines(folder, measure, whole.pairs_of(measure), brief=many)
        for name, table in whole.tables.items():
            if table.rows and name not in UNPRINTED:
                lines += _write_table_lines(name, table)
        for claim in whole.claims:
            lines.append(f"  claim {claim.name} ({claim.measure}): {claim.verdict} ({_say_evidence(claim)})")
    lines += [f"  warning: {warning}" for warning in manifest["warnings"]]
    lines.append(f"  folder: {folder}")
    figures = sorted((folder / "figures").glob("*.png"))
    grids = [figure for figure in figures if figure.stem.endswith(("-all", "-layers"))]
    # beside maps of all layers: what a study draws of the whole run, and no single pairs
    shown = [*(figure for figure in figures if "-" not in figure.stem), *grids] if grids else figures
    if len(shown) <= SHOWN_MEASURES:
        lines += [f"  figure: {figure}" for figure in shown]
    elif figures:
        lines.append(f"  figures: {len(figures)} in {folder / 'figures'}")
    if (folder / "report.html").is_file():
        lines.append(f"  report: {folder / 'report.html'}")
    return lines


def _say_evidence(claim: Verdict) -> str:
    """The value of a claim with its error, threshold and p; the reason where it has none or cannot be tested."""
    if claim.value is None:
        return claim.why
    error = "" if claim.se is None else f" ± {claim.se:.2g}"
    parts = [f"{claim.value:z.3f}{error}", f"threshold {claim.threshold}"]
    if claim.decided is not None:
        parts.append(f"p = {claim.decided:.2g}")
    parts += [claim.basis] if claim.basis else []
    return ", ".join([*parts, claim.why] if claim.verdict == "not testable here" else parts)


def _write_table_lines(name: str, table: Table) -> Iterator[str]:
    """A table of a single row as a sentence, of several rows as columns."""
    cells = [[_format_cell(value) for value in row] for row in table.rows[:SHOWN_ROWS]]
    if len(cells) == 1:
        yield f"  {name}: " + ", ".join(f"{c} {v}" for c, v in zip(table.columns, cells[0], strict=True))
        return
    widths = [max(len(row[i]) for row in [table.columns, *cells]) for i in range(len(table.columns))]
    yield f"  {name}:"
    for row in [table.columns, *cells]:
        first, *rest = (f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(row))
        yield "    " + "  ".join([first, *rest]).rstrip()
    if len(table.rows) > SHOWN_ROWS:
        yield f"    and {len(table.rows) - SHOWN_ROWS} more rows: see results.json"


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)


SHOWN_MEASURES, SHOWN_PAIRS, SHOWN_ROWS = 6, 12, 12  # the most that are printed in full
AUDIT = "audit of pairs by another solver"
# tables that sentences or other tables summarise
UNPRINTED = (
    AUDIT,
    BUDGET,
    BY_SCALE,
    BY_TOKEN,
    CAPPED,
    DIAGNOSTICS,
    WITHOUT_VALUE,
    DIRECTIONS,
    IDENTICAL,
    OF_LAYER_DIFFERENCES,
    OF_LAYER_ERRORS,
    OF_WEIGHTS,
    *ANSWERS,
)


def _measure_lines(folder: Path, measure: Measured, pairs: str, brief: bool) -> Iterator[str]:
    """The measure, and its values by pair of models and hook point. pairs: of rows; brief: over all pairs of layers."""
    estimate = measure.estimate
    better = "larger" if measure.larger_is_closer else "smaller"
    yield (
        f"  {measure.label}: {measure.card['label']}, {better} is closer, {estimate['kind']}, "
        f"{estimate['rows']:,} of {estimate['rows_available']:,} {estimate.get('unit', 'rows')} in "
        f"{estimate['batches']} batch{'es' if estimate['batches'] != 1 else ''}"
        f"{', ' + pairs if pairs else ''}"
    )
    shown = [
        named for pair in measure.matrices for named in split_by_hook_point(pair, partial(reader.read_array, folder))
    ]
    if brief:
        yield f"    {say_spread(np.concatenate([values.ravel() for _, values in shown]))}"
    if measure.token_alone:
        yield f"    {measure.token_alone}"
    if brief:
        return
    width = max((len(name) for name, _ in shown[:SHOWN_PAIRS]), default=0)
    for name, values in shown[:SHOWN_PAIRS]:
        yield f"    {name:{width}}  {say_spread(values)}"
    if len(shown) > SHOWN_PAIRS:
        yield f"    and {len(shown) - SHOWN_PAIRS} more: see results.json"


def say_spread(values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    if not known.size:
        return "no value"
    lacking = f"   {values.size - known.size:,} of {values.size:,} without a value" if known.size < values.size else ""
    parts = (part.partition(" ") for part in describe_range(known))
    return "   ".join(f"{name} {value:>6}" for name, _, value in parts) + lacking


def show_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim show`: what a run found and how long its parts took, or the jobs of a sweep."""
    folder = folders.find_sweep(parsed.run)
    if folder is not None and parsed.json:
        raise BadInput(f"--json: only for a single run, got the sweep {folder}; its jobs.json has all jobs")
    if folder is not None:
        if parsed.follow:
            raise BadInput(f"--follow: only for a single run, got the sweep {folder}; name one of its jobs")
        return show_sweep(folder)
    folder = folders.find(parsed.run)
    if parsed.follow:
        follow(folder)
    if parsed.json:
        say_json("show", build_run_json(folder))
        return 0
    say(*summarise_run(folder))
    for name, seconds in reader.read_manifest(folder)["timings"].items():
        say(f"  {name}: {seconds:.1f} s")
    say(*_write_unit_lines(folder))
    if (folder.parent / "jobs.json").is_file():
        jobs = len(folders.list_jobs(folder.parent))
        say(f"  sweep: one of {jobs} jobs, which repsim show {folder.parent.name} gives together")
    return 0


def _write_unit_lines(folder: Path) -> Iterator[str]:
    """Writes where the units of a run ran, and how long, the longest first.
    Below them stand those that were not done, and the node-hours of all.
    """
    about = reader.read_manifest(folder).get("executor")
    records = read_records(folder)
    if not records:
        return
    done = sorted((r for r in records if r["status"] == "done"), key=lambda r: -r["seconds"])
    rows = [
        [r["unit"], r["worker"], r["host"], r["seconds"], r["attempt"], "computed" if r["computed"] else "cached"]
        for r in done[:SHOWN_ROWS]
    ]
    yield from _write_table_lines(
        "units", Table(columns=["unit", "worker", "host", "seconds", "attempt", "was"], rows=rows)
    )
    if len(done) > SHOWN_ROWS:
        yield f"    and {len(done) - SHOWN_ROWS} more: {folder / FILE}"
    for r in records:
        if r["status"] != "done":
            yield f"    {r['unit']}: {r['status']} on {r['worker']} at attempt {r['attempt']}, {r['error']}"
    if about:
        cost = f", cost {about['cost']:.4g}" if "cost" in about else ""
        yield f"  units took {about['node_hours']:.4g} node-hours on {', '.join(about['nodes'])}{cost}"


def plot_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim plot`: draws the figures of a run into its folder, or the attention of the heads that are
    named."""
    from repsim_cli.figures.frame import save
    from repsim_cli.findings import analyse
    from repsim_cli.studies.attention import finding as heads

    folder = folders.find(parsed.run)
    if parsed.heads:
        jobs = list(heads.draw_figures(folder, reader.read_results(folder), *parsed.heads))
        drawn = save(folder / "figures", jobs, Bar())
    else:
        drawn = analyse.draw(folder, Bar(), whole=parsed.all)
    if not drawn:
        raise BadInput(f"{folder}: it has no matrices to draw; choose a run of a similarity study")
    say(*map(str, drawn))
    return 0


def export_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim export`: writes the tables of a run in the formats asked for, and its figures as PDF."""
    from repsim_cli.figures.frame import Style
    from repsim_cli.findings import analyse
    from repsim_cli.report import export

    kinds = [kind for kind in export.FORMATS if getattr(parsed, kind)]
    if not kinds and not parsed.pdf:
        raise BadInput("repsim export: no format is asked for; add --csv, --latex, --parquet or --pdf")
    folder = folders.find(parsed.run)
    into = expand_path(parsed.output) if parsed.output else folder / "export"
    style = Style(width=parsed.width, format=("pdf",), colours=parsed.colours, titles=parsed.titles, font=parsed.font)
    style.check()
    written = export.export(folder, into, kinds)
    if parsed.pdf:
        written += analyse.draw(folder, Bar(), whole=parsed.all, into=into, style=style)
    if not written:
        raise BadInput(f"{folder}: it has no tables and no figures; choose another run")
    say(*map(str, written))
    return 0


def analyse_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim analyse`: analyses a finished run again, with the changes given, and draws its figures and report
    anew."""
    from repsim_cli import report
    from repsim_cli.config.analyses import choose_analyses
    from repsim_cli.findings.analyse import ANALYSES, analyse, draw, read_drawing

    folder = folders.find(parsed.run)
    whole, config = reader.read_results(folder), reader.read_config(folder)
    options, claims = choose_analyses(reader.read_manifest(folder), whole, config, parsed.changes)
    with results.amend(folder) as run:
        run.progress = Bar()
        analyse(run, options, claims, config["significance"]["level"])
        only = options.keys() if parsed.changes else None
        draw(folder, run.progress, whole=read_drawing(folder).which == "all", only=only)
        if not parsed.changes and str(run.manifest["error"]).startswith(ANALYSES):
            run.complete()
    report.save([folder], folder / report.FILE)
    say(*summarise_run(folder))
    return 0


def report_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim report`: one page of the runs that are named, or of all runs where none is."""
    from repsim_cli import report

    if not parsed.runs:
        return _save_runs_overview(parsed)
    if parsed.follow and (len(parsed.runs) > 1 or folders.find_sweep(parsed.runs[0]) is not None):
        raise BadInput(f"--follow: only for a single run, got {' '.join(parsed.runs)}; name one run")
    sweeps = [folders.find_sweep(run) for run in parsed.runs]
    each = [
        [folders.find(run)] if sweep is None else [sweep / job["job"] for job in folders.list_jobs(sweep)]
        for run, sweep in zip(parsed.runs, sweeps, strict=True)
    ]
    named = [folder for several in each for folder in several]
    if parsed.output is None and len(parsed.runs) > 1:
        raise BadInput(f"--output: a file is needed for {len(named)} runs; e.g. --output both.html")
    file = (sweeps[0] or named[0]) / report.FILE if parsed.output is None else expand_path(parsed.output)
    if file.is_dir() or not file.parent.is_dir() or file.suffix not in (".html", ".htm"):
        place = "name an .html file in a folder that exists"
        raise BadInput(f"--output: no page can be written there, got '{file}'; {place}")
    if parsed.follow:
        say(f"{file} reloads itself until the run ends")
        report.save_while_running(named[0], file)
    say(str(report.save(named, file)))
    return 0


def _save_runs_overview(parsed: argparse.Namespace) -> int:
    from repsim_cli import report

    if parsed.follow:
        raise BadInput("--follow: only for a run that is named; e.g. repsim report latest --follow")
    if parsed.output is not None:
        raise BadInput(f"--output: only for named runs, got '{parsed.output}' without any; name a RUN, or drop it")
    root = results.find_outputs_root()
    say(str(report.save_overview(root, Bar())))
    return 0


def doctor_command(parsed: argparse.Namespace) -> int:
    check_torch()
    from repsim_cli.cli import doctor

    if parsed.json:
        say_json("doctor", {"topics": dict(doctor.examine())})
        return 0
    for topic, lines in doctor.examine():
        say(topic)
        say(*(f"  {line}" for line in lines))
    return 0


def cache_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim cache`: sets its limit, clears it, and lists what it holds."""
    from repsim_cli.runs import cache

    if parsed.limit is not None:
        cache.write_limit(cache.parse_size(parsed.limit))
    if parsed.clear:
        removed, left = cache.trim(0)
        say(f"removed {removed} entries, {left / 1e9:.3f} GB left")
    kinds = cache.measure_cache_use()
    say(f"{cache.find_cache_folder()}: limit {cache.limit() / 1e9:g} GB")
    for kind, count, size in kinds:
        say(f"  {kind}: {count} entries, {size / 1e9:.3f} GB")
    return 0


def convert_command(parsed: argparse.Namespace) -> int:
    from repsim_cli.base.files import expand_path
    from repsim_cli.models.pickled import convert

    say(str(convert(parsed.source, expand_path(parsed.target), parsed.revision)))
    return 0
