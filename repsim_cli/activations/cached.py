"""The cache entries of a run's models: complete ones are read, the others recorded as the models run."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from repsim_cli.activations.places import count_given_rows
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.stored import make_activations_key, make_shard_key, open_entry
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences
from repsim_cli.runs.cache import Entry, limit, make_cache_key, trim, use

log = logging.getLogger("repsim")
Identities = Mapping[str, dict[str, Any]]


@contextmanager
def open_cache(
    live: Sequence[Reading],
    sequences: Mapping[str, Sequences],
    identities: Identities,
    extract: Extract,
    dtype: str,
    warn: Callable[[str], None],
    shard: tuple[int, int] | None = None,
) -> Iterator[dict[str, Entry]]:
    """The entries of live models, by label; without those that do not fit. Empty where the cache cannot be used.

    shard: (i, n): the entries are those of shard i of the n of each model; None: of all sequences.
    """
    if not live:
        yield {}
        return
    rows = int(count_given_rows(next(iter(sequences.values())), extract).sum())
    keys = {}
    for reading in live:
        label, size = reading.label, 4 * rows * sum(layer.width for layer in reading.layers)
        if not identities[label]["weights_hash"]:
            continue
        if size > limit():
            log.info("cache: %s needs %.1f GB, more than the limit; streamed", label, size / 1e9)
            continue
        keys[label] = make_activations_key(identities[label], sequences[label], extract, reading.points, dtype)
        if shard is not None:
            keys[label] = make_shard_key(keys[label], *shard)
    with ExitStack() as stack:
        try:
            entries = stack.enter_context(use("activations", list(keys.values())))
        except OSError as error:
            warn(f"cache: {error.filename} cannot be used ({error.strerror}); continuing without it")
            entries = {}
        yield {label: entries[key] for label, key in keys.items() if key in entries}
        if entries:
            trim()


@contextmanager
def entries_of(
    folder: Path,
    live: Sequence[Reading],
    sequences: Mapping[str, Sequences],
    identities: Identities,
    extract: Extract,
    dtype: str,
) -> Iterator[dict[str, Entry]]:
    """Entries of live models in a folder of the run, by label, for rows that the cache does not take. The folder is
    removed at the end; a run that was cut off keeps it and resumes from it."""
    entries = {}
    for reading in live:
        label = reading.label
        name = make_activations_key(identities[label], sequences[label], extract, reading.points, dtype)
        entries[label] = Entry("activations", make_cache_key({"label": label, "rows": name}), home=folder)
        entries[label].load()
    yield entries
    shutil.rmtree(folder, ignore_errors=True)


def find_cached_reading(reading: Reading, entries: Mapping[str, Entry], identities: Identities) -> Reading:
    """The reading, from the cache where the entry is complete."""
    entry = entries.get(reading.label)
    if entry is None or not entry.complete:
        return reading
    return replace(reading, source=open_entry(entry, identities[reading.label]), points=[])
