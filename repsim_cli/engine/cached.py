"""Finished matrices and solved pairs in the cache, by content: no run computes again what another has computed.

An entry holds what is computed together. The matrix of all models is an entry: a measure whose pairs come from a single
product gives the same bits only for the same set of models. Where pairs are solved one by one, their bits do not depend
on the other models: each pair of models is an entry too, and a run with one more model solves only the new pairs.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from repsim_cli.activations.cached import Identities
from repsim_cli.activations.places import list_row_labels, mark_kept_rows
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.stored import make_activations_key
from repsim_cli.base import registry
from repsim_cli.base.closure import collect_code, collect_function_code
from repsim_cli.base.settings import STREAMED
from repsim_cli.data.base import Sequences
from repsim_cli.engine.extraction import Extraction, locate_model_layers
from repsim_cli.engine.known import KnownPairs
from repsim_cli.engine.permuted import convert_to_notes
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.undefined import Wanted
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.models.source import Precomputed, PrecomputedIds, PrecomputedWords
from repsim_cli.runs.cache import Entry, make_cache_key, trim, use
from repsim_cli.runs.content import Table
from repsim_cli.runs.results import Run

NULLS = "permutations"  # the kind of their entries


@dataclass(frozen=True, kw_only=True)
class Content:
    """What determines the matrices of a run.

    models: a hash of the rows of each reading, None where there is none. shared: what solved pairs depend on too.
    whole: what only the matrix of all models depends on. labels: a digest of the rows' classes. pairs: of the documents
    of whose rows pairs are left out.
    """

    readings: Sequence[Reading]
    models: Sequence[str | None]
    shared: Mapping[str, Any]
    whole: Mapping[str, Any]
    labels: str | None
    pairs: str | None = None

    @classmethod
    def collect(
        cls,
        extraction: Extraction,
        sequences: Mapping[str, Sequences],
        identities: Identities,
        *,
        by: str,
        pairs: str | None = None,
        **whole: Any,
    ) -> "Content":
        """Collects what the matrices of this extraction depend on.

        by: the module that computes from these rows. pairs: as of the Content. whole: what else the matrices of all
        models depend on.
        """
        extract, hardware, code = extraction.extract, extraction.hardware, collect_code(by)
        given = next(iter(sequences.values()), None)
        codes = None if given is None else list_row_labels(given, extract)
        left = None if given is None else mark_kept_rows(given, extract)
        remedies = (
            {"remedies": [extract.remedies, [] if left is None else hash_arrays([left])]} if extract.remedies else {}
        )

        def rows_of(reading: Reading) -> str | None:
            identity, source = identities[reading.label], reading.source
            if not identity["weights_hash"] or code is None:
                return None
            if isinstance(source, Precomputed):
                if (reader := collect_function_code(source.read, source.identity)) is None:
                    return None
                words = source.ids if isinstance(source, PrecomputedIds) else None
                if isinstance(source, PrecomputedWords):
                    words = [sentence.text for sentence in source.sentences]
                arrays = {"arrays": identity["weights_hash"], "names": source.names, "words": words}
                arrays |= {} if source.documents is None else {"documents": hash_arrays([np.array(source.documents)])}
                return make_cache_key({"code": reader.key, **arrays})
            return make_activations_key(identity, sequences[reading.label], extract, reading.points, hardware.dtype)

        return cls(
            readings=extraction.readings,
            models=[rows_of(reading) for reading in extraction.readings],
            shared={
                "code": code and code.key,
                "estimate": extract.estimate,
                "rows": [extraction.total, hash_arrays([extraction.numbers(0)])],
                "device": torch.device(hardware.device).type,
                **remedies,
            },
            whole={"seed": extraction.seed, "tile": hardware.tile, **whole},
            labels=None if codes is None else hash_arrays([codes]),
            pairs=pairs,
        )

    def make_matrix_key(self, measure: Measure) -> str | None:
        """The key of the measure's matrix of all models, if it can be cached."""
        described, layers = self._measure(measure), [[x.label, *map(str, x.layers)] for x in self.readings]
        if described["its code"] is None or None in self.models:
            return None
        return make_cache_key({**self.shared, **self.whole, **described, "models": self.models, "layers": layers})

    def of_rows(self, measure: Measure | None) -> str | None:
        """The key of what is kept of the rows behind the maps, with their shares in this measure; None where it cannot
        be cached."""
        described, layers = measure and self._measure(measure), [[x.label, *map(str, x.layers)] for x in self.readings]
        if None in self.models or (described and described["its code"] is None):
            return None
        parts = {"seed": self.whole["seed"], "pairs": self.pairs, "measure": described}
        return make_cache_key({**self.shared, **parts, "models": self.models, "layers": layers})

    def make_null_key(self, measure: Measure, block: range) -> str | None:
        """The key of a block of the measure's permutations, if it can be cached."""
        matrix = self.make_matrix_key(measure)
        return None if matrix is None else make_cache_key({"matrix": matrix, "permutations": [block.start, block.stop]})

    def make_tables_key(self) -> str | None:
        """The key of the tables of all layers, if they can be cached."""
        if None in self.models:
            return None
        layers = [[reading.label, *map(str, reading.layers)] for reading in self.readings]
        parts = {name: self.shared.get(name) for name in ("code", "remedies")}
        parts |= {"total": self.shared["rows"][0], "seed": self.whole["seed"]}
        return make_cache_key({**parts, "models": self.models, "layers": layers})

    def make_pair_keys(self, measure: Measure, wanted: Wanted | None) -> dict[tuple[int, int], str]:
        """The keys of the measure's solved pairs, by the numbers of two models; none where it solves no pairs."""
        parts, places = {**self.shared, **self._measure(measure)}, locate_model_layers(self.readings)
        if not is_solved_singly(measure, self.shared["estimate"]) or parts["its code"] is None:
            return {}
        return {
            (i, j): make_cache_key({**parts, "models": [a, b]})
            for i, a in enumerate(self.models)
            for j, b in enumerate(self.models)
            if a is not None and b is not None and (i <= j or not measure.card.symmetric)
            if wanted is None or bool(wanted[places[i], places[j]].any())
        }

    def make_change_key(self, models: tuple[str, str], measures: Mapping[str, Measure]) -> str | None:
        """The key of what differs between two models, under all of these measures; None where it cannot be cached."""
        rows = {reading.label: layers for reading, layers in zip(self.readings, self.models, strict=True)}
        described = {label: self._measure(measure) for label, measure in measures.items()}
        if any(rows[model] is None for model in models) or any(x["its code"] is None for x in described.values()):
            return None
        return make_cache_key(
            {**self.shared, **self.whole, "measures": described, "models": [rows[model] for model in models]}
        )

    def _measure(self, measure: Measure) -> dict[str, Any]:
        return {
            "measure": measure.name,
            "settings": dict(measure.settings),
            "its code": make_measure_code_key(measure),
            "labels": self.labels if measure.card.labelled else None,
            "pairs": None if measure.apart is None else self.pairs,
        }


def is_solved_singly(measure: Measure, estimate: str) -> bool:
    """Tells whether the pairs of layers are solved one by one."""
    return isinstance(measure, Pairwise) and measure.compare_all is None and estimate not in STREAMED


def make_measure_code_key(measure: Measure) -> dict[str, str | None] | None:
    """The key of the code of the measure, and of those that it names; None where a file cannot be read."""
    known, settings = {*registry.measures.names()}, json.dumps(dict(measure.settings))
    names, more = set(), {measure.name, *(name for name in known if f'"{name}"' in settings)}
    while True:
        names |= more
        code = collect_function_code(*(registry.measures.get(name).function for name in names))
        if code is None:
            return None
        more = (code.strings & known) - names
        if not more:
            return code.key


def hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


@dataclass(kw_only=True)
class FinishedMatrices:
    """matrices: those that the cache holds, by the label of their measure. missing: measures whose matrix it lacks."""

    run: Run
    matrices: dict[str, SimilarityMatrix] = field(default_factory=dict)
    missing: dict[str, Measure] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def keep(self, made: Mapping[str, SimilarityMatrix]) -> None:
        """Adds the matrices that were missing, here and in the cache."""
        self.matrices |= made
        for label in made.keys() & self.entries.keys():
            entry, matrix = self.entries[label], made[label]
            parts = {"values": matrix.values, **{f"observed {k}": part for k, part in matrix.statistics.items()}}
            if matrix.se is not None:
                parts["se"] = matrix.se
            whole = {name: part.cpu().contiguous() for name, part in parts.items()}
            try:
                entry.write("matrix", lambda path, whole=whole: safetensors.torch.save_file(whole, path))
                entry.finish(
                    estimate=matrix.estimate,
                    rows=matrix.rows,
                    batches=matrix.batches,
                    notices=list(matrix.notices),
                    undefined=[[*cell, why] for cell, why in matrix.undefined.items()],
                )
            except OSError as error:
                self.run.warn(f"cache: {entry.folder} cannot be written ({error.strerror}); continuing without it")
                return


def read_cached_matrix(entry: Entry) -> SimilarityMatrix:
    """A complete entry's matrix."""
    parts = safetensors.torch.load_file(entry.files["matrix"])
    about = {name: entry.meta[name] for name in ("estimate", "rows", "batches", "notices")}
    values, se = parts.pop("values"), parts.pop("se", None)
    observed = {name.removeprefix("observed "): part for name, part in parts.items()}
    undefined = {(a, b): why for a, b, why in entry.meta["undefined"]}
    return SimilarityMatrix(values=values, se=se, statistics=observed, undefined=undefined, **about)


@contextmanager
def open_matrices(run: Run, measures: Mapping[str, Measure], content: Content | None) -> Iterator[FinishedMatrices]:
    """Gives the matrices of these measures that the cache holds. content None: it holds none and nothing is written."""
    keys = {} if content is None else {label: content.make_matrix_key(measure) for label, measure in measures.items()}
    with _use(run, "matrices", [entry_key for entry_key in keys.values() if entry_key is not None]) as entries:
        known = FinishedMatrices(run=run)
        for label, measure in measures.items():
            entry = entries.get(keys.get(label) or "")
            if entry is not None and entry.complete:
                known.matrices[label] = read_cached_matrix(entry)
                continue
            known.missing[label] = measure
            if entry is not None:
                known.entries[label] = entry
        run.manifest["matrices_cached"] = list(known.matrices)
        yield known


Tensors = Mapping[str, Tensor]


@contextmanager
def open_units(
    run: Run, kind: str, keys: Mapping[str, str | None]
) -> Iterator[tuple[dict[str, Tensors], Callable[[str, Tensors], None]]]:
    """Units of work that are a few tensors: those that the cache holds, by label, and a function that adds another.

    keys: by label; None: it cannot be cached.
    """
    with _use(run, kind, [unit for unit in keys.values() if unit is not None]) as entries:
        of = {label: entries[unit] for label, unit in keys.items() if unit in entries}
        known = {label: safetensors.torch.load_file(x.files["unit"]) for label, x in of.items() if x.complete}

        def keep(label: str, tensors: Tensors) -> None:
            if (entry := of.get(label)) is None:
                return
            whole = {name: part.cpu().contiguous() for name, part in tensors.items()}
            try:
                entry.write("unit", lambda path: safetensors.torch.save_file(whole, path))
                entry.finish()
            except OSError as error:
                run.warn(f"cache: {entry.folder} cannot be written ({error.strerror}); continuing without it")

        yield {**known}, keep


@contextmanager
def open_tables(run: Run, content: Content | None) -> Iterator[dict[str, Table]]:
    """Yields the tables of the run's layers that the cache holds, by name. Where it holds none, what the block adds to
    them is written at its end. content: None: there is nothing in the cache, and nothing is written."""
    entry_key = None if content is None else content.make_tables_key()
    with _use(run, "diagnostics", [] if entry_key is None else [entry_key]) as entries:
        entry = entries.get(entry_key or "")
        known = {} if entry is None else entry.meta.get("tables", {})
        tables = {name: Table(**table) for name, table in known.items()}
        yield tables
        if entry is not None and not known:
            try:
                entry.folder.mkdir(parents=True, exist_ok=True)
                entry.finish(tables={name: asdict(table) for name, table in tables.items()})
            except OSError as error:
                run.warn(f"cache: {entry.folder} cannot be written ({error.strerror}); continuing without it")


@contextmanager
def open_pairs(
    run: Run, measures: Mapping[str, Measure], content: Content | None, wanted: Wanted | None
) -> Iterator[dict[str, KnownPairs]]:
    """Opens the cache's entries of pairs that were solved one by one, by measure; new pairs are written even where the
    run fails."""
    keys = (
        {}
        if content is None
        else {label: content.make_pair_keys(measure, wanted) for label, measure in measures.items()}
    )
    with _use(run, "pairs", [pair for of_measure in keys.values() for pair in of_measure.values()]) as entries:
        by_measure = {
            label: KnownPairs(
                places=locate_model_layers(content.readings),
                entries={models: entries[pair] for models, pair in of_measure.items()},
            )
            for label, of_measure in keys.items()
            if content is not None and entries and of_measure
        }
        try:
            yield by_measure
        except BaseException:
            for known in by_measure.values():
                known.save()
            raise
        for known in by_measure.values():
            known.finish()


Fill = Callable[[int, str, np.ndarray], None]


@contextmanager
def open_nulls(
    run: Run, measures: Mapping[str, Measure], content: Content | None, blocks: Mapping[str, Sequence[range]]
) -> Iterator[Fill]:
    """Gives a function fill(batch, label, values) that copies permutations from the cache.

    It fills values (k, r, r) with those permutations of the batch that the cache holds.

    blocks: of the permutations of a measure, by its label.
    """
    keys = {
        (label, block): unit
        for label in measures.keys() & blocks.keys()
        for block in blocks[label]
        if content is not None and (unit := content.make_null_key(measures[label], block)) is not None
    }
    with _use(run, NULLS, list(keys.values())) as entries:

        def fill(batch: int, label: str, values: np.ndarray) -> None:
            for (of, block), unit in keys.items():
                if of == label and unit in entries and (file := entries[unit].files.get(f"{batch:05d}")):
                    values[block.start : block.stop] = convert_to_notes(safetensors.torch.load_file(file)["null"])

        yield fill


@contextmanager
def _use(run: Run, kind: str, keys: list[str]) -> Iterator[dict[str, Entry]]:
    """The entries, or none where the cache cannot be used."""
    with ExitStack() as stack:
        entries: dict[str, Entry] = {}
        if keys:
            try:
                entries = stack.enter_context(use(kind, keys))
            except OSError as error:
                run.warn(f"cache: {error.filename} cannot be used ({error.strerror}); continuing without it")
        lacking = any(not entry.complete for entry in entries.values())
        yield entries
    if lacking:
        trim()
