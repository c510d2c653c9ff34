"""`repsim map fit` and `repsim map apply`: vectors of one model in the space of another."""

import argparse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from repsim_cli.base import signals
from repsim_cli.base.errors import BadInput
from repsim_cli.cli.terminal import Bar, check_torch, say
from repsim_cli.runs import reader, results
from repsim_cli.studies.vectors.stored import check_target, choose_best_map, load_map, map_file


def fit_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim map fit`: fits maps from the vectors of one model to those of another, and keeps the best."""
    if parsed.column is not None and not parsed.data:
        raise BadInput(f"--column: only for a table, got '{parsed.column}' without one; name the table with --data")
    if parsed.out is not None:
        if check_target(parsed.out).exists():
            raise BadInput(f"--out: the file exists, got '{parsed.out}'; name a new one")
    check_torch()
    from repsim_cli.api.vector_maps import fit_map

    now = datetime.now()
    place = results.take_unused(results.find_outputs_root() / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}-vector_map")
    data = {"path": parsed.data, "text": parsed.column} if parsed.column is not None else parsed.data
    try:
        with signals.interruptible():
            maps = fit_map(
                parsed.old,
                parsed.new,
                data,
                kinds=() if parsed.kind is None else parsed.kind.split(","),
                layers=[pair.split(",") for pair in parsed.layers],
                names=None if parsed.names is None else parsed.names.split(","),
                settings=parsed.set,
                folder=place,
                progress=Bar(),
            )
    finally:
        results.drop_empty(place)
    say(*_read_maps(place))
    if parsed.out:
        say(f"  written: {choose_best_map(maps).save(parsed.out)}")
    return 0


def _read_maps(place: Path) -> Iterator[str]:
    """Reads what the maps of a run keep, the run's warnings, and where all of it is."""
    found = reader.read_results(place)
    yield from (f"{who}: {what}" for who, what in found.answers)
    for file in sorted((place / "maps").iterdir()):
        yield f"  {file}"
        scores = load_map(file).record["held out"].items()
        yield from (f"    {name:28} {x['value']:.3f}  [{x['low']:.3f}, {x['high']:.3f}]" for name, x in scores)
    yield from (f"  warning: {text}" for text in found.warnings)
    yield f"  run: {place}"


def apply_command(parsed: argparse.Namespace) -> int:
    given = load_map(parsed.map)
    name, rows = map_file(given, parsed.rows, parsed.out, parsed.array)
    old, new = given.record["from"], given.record["to"]
    say(
        f"{Path(parsed.out)}: {rows:,} rows of '{name}', from {old['layer']} of {old['model']} to {new['layer']} of "
        f"{new['model']} ({len(given.weight)} to {len(given.bias)} numbers)"
    )
    return 0
