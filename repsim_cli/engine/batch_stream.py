"""The batches of a run: as they are read, or, where all layers do not fit into memory together, from tiles on the
disk."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.grams import BatchShape, Keep, make_kernel_lister, pack_batches
from repsim_cli.engine.prepared import Batch
from repsim_cli.engine.rows import Rows
from repsim_cli.measures import Measure
from repsim_cli.runs.cache import Entry, make_cache_key
from repsim_cli.runs.results import Progress, Run, dumps

PACKED = "packed"  # the folder of tiles, in that of the run, until all batches are compared
ROWS = "diagnostics.json"  # of the layers of a group, beside their tiles


def make_batch_stream(run: Run, rows: Rows, comparison: Comparison) -> Callable[[int], Iterable[Batch]]:
    """Makes the function that yields the batches after the first `seen`: as they are read, or, where the layers do not
    all fit into memory, from tiles on the disk, one group of layers after the other."""
    # values of one sample follow when all of it is read
    of = "activations" if comparison.extract.estimate == "full" else "activations and similarity"
    progress = partial(run.progress, label=of, unit="batches")

    def batches(seen: int) -> Iterable[Batch]:
        if rows.groups is None:
            return rows.stream(progress, seen=seen)
        measures, hardware = comparison.measures, comparison.hardware
        shape = BatchShape(comparison.batches, len(comparison.numbers(0)), hardware.tile)
        keep = keep_tiles(run, rows, measures, shape, progress)
        stream = partial(rows.stream_layers, progress=progress)
        kernels = make_kernel_lister(measures, comparison.documents_apart)
        names, device = comparison.names, hardware.device
        return pack_batches(keep, kernels, rows.groups, stream, shape, names=names, device=device)(seen)

    return batches


def keep_tiles(run: Run, rows: Rows, measures: Mapping[str, Measure], shape: BatchShape, progress: Progress) -> Keep:
    """Tiles of finished groups of layers, with their diagnostics, stay in the run's folder until the run is complete:
    one that was cut off resumes with the next group."""
    layers, diagnosis = rows.extraction.layers, rows.diagnosis
    parts = {"models": rows.identities, "measures": list(measures), "shape": shape, "groups": rows.groups}
    parts |= {"pairs": rows.extraction.extract.pairs}
    entry = Entry("packed", make_cache_key({**parts, "diagnosed": diagnosis is not None}), home=run.folder / PACKED)
    entry.load()

    def keep(group: Sequence[int], save: Callable[[Path], None]) -> Path:
        name, members = f"{group[0]:05d}+{len(group)}", [layers[a] for a in group]

        def whole(folder: Path) -> None:
            rows.record(progress)
            save(folder)
            if diagnosis is not None:
                (folder / ROWS).write_text(dumps([diagnosis.rows[layer] for layer in members]))

        if name not in entry.files:
            entry.write(name, whole)
        if diagnosis is not None:
            diagnosis.rows |= dict(zip(members, json.loads((entry.files[name] / ROWS).read_text()), strict=True))
        return entry.files[name]

    return keep
