"""Which rows depend on each other, and which may take each other's place."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from repsim_cli.activations.exchange import Exchange, combine, find_exchange
from repsim_cli.activations.inputs import find_stored_documents
from repsim_cli.activations.places import (
    count_kept_rows,
    list_row_documents,
    list_row_places,
    list_row_positions,
    list_row_properties,
    list_row_tokens,
    mark_kept_rows,
    mark_row_beginnings,
)
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.segments import BOTH, Segments, find_segments
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import WORDS, Extract, Significance
from repsim_cli.data.base import Data, Sequences
from repsim_cli.engine.checks import needs_clusters
from repsim_cli.models.source import PrecomputedWords

BUILT_IN = ("document", "row")  # clusters beside the columns of the data
OF_ROWS = ("token", "previous_token", "position")  # beside the columns of the data
Rows = Int[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Which rows of the run depend on each other.

    documents: the document of every row, what clusters documents, or the row itself. beginnings: what the row is the
    first of (see `segments.py`). whole: how many rows each sequence has, where only whole sequences may be sampled, so
    that documents keep their segments. held: by name, what rows must share to take each other's place. what: the
    clusters, in words. blocks: whether they are sequences of the only document, in place of documents.
    """

    documents: Rows
    beginnings: Rows
    whole: np.ndarray | None
    held: Mapping[str, Rows]
    what: str = "documents"
    blocks: bool = False

    def segments(self, batches: Sequence[Rows], least: int) -> Segments:
        """Finds which rows of each batch are exchanged, at least `least`.

        Raises BadInput where too few documents can be, or where what rows must share differs inside a document.
        """
        alone = len(np.unique(self.documents)) == len(self.documents)
        inside = [] if alone else [name for name in self._name_varying_inside() if name != "position"]
        if inside:
            raise BadInput(
                "significance.within: rows of a document depend on each other, so that no exchange of single rows "
                f"keeps its level, got {inside[0]} with clusters of several rows; set significance.clusters=row where "
                "rows do not depend on each other, or significance=none for the level of chance within it; "
                "significance.budget=true tests what is shared beyond the token"
            )
        codes = self._codes([name for name in self.held if alone or name != "position"])
        documents, beginnings, alike = ([part[x] for x in batches] for part in (self.documents, self.beginnings, codes))
        return find_segments(documents, beginnings, alike, least)

    def _name_varying_inside(self) -> list[str]:
        """Names what differs between rows of one document."""
        _, document = np.unique(self.documents, return_inverse=True)
        count = document.max() + 1
        return [name for name, rows in self.held.items() if combine(document, rows).max() + 1 > count]

    def _codes(self, names: Sequence[str]) -> Rows:
        """Numbers what these say of every row together."""
        return combine(np.zeros_like(self.documents), *(self.held[name] for name in names))

    def exchange(self, batches: Sequence[Rows]) -> Exchange | None:
        """Finds the units whose random pairings chance is of; None where too few rows have a partner."""
        inside = self._name_varying_inside()
        held = self._codes(inside) if inside and inside != ["position"] else None
        alike = self._codes([name for name in self.held if name not in inside]) if self.held else None
        found = find_exchange(self.documents, self.beginnings, batches, alike, held)
        if found is None:
            return None
        what, names = self.what if found.what == "documents" else found.what, ", ".join(self.held)
        return found._replace(what=f"{what} within {names}" if names else what)


def cluster_rows(
    significance: Significance,
    readings: Sequence[Reading],
    data: Data,
    sequences: Mapping[str, Sequences],
    extract: Extract,
    total: int,
) -> Clusters:
    """Clusters the rows by `significance.clusters`. Sentences are the documents of stored words; of other stored rows a
    file names them, or nothing is tested. Raises BadInput for a column that the data lacks."""
    stored = [r.source.sentences for r in readings if isinstance(r.source, PrecomputedWords)]
    told, clusters = find_stored_documents(readings), significance.clusters
    given = next(iter(sequences.values()), None)
    held = {name: _group_rows_by_property("within", name, data, given, extract) for name in significance.held}
    column = None if clusters in BUILT_IN else _group_rows_by_property("clusters", clusters, data, given, extract)
    blocks = given is not None and not told and column is None and _uses_blocks(significance, given, extract)
    if clusters == "row" or not (sequences or stored or told):
        return Clusters(documents=np.arange(total), beginnings=np.full(total, BOTH), whole=None, held=held)
    if given is not None:
        documents, beginnings = list_row_documents(given, extract), mark_row_beginnings(given, extract)
        documents = list_row_places(given, extract)[:, 0] if blocks else documents
        whole = count_kept_rows(given, extract)
        left = mark_kept_rows(given, extract)
        if told and needs_clusters(significance):
            told = told if left is None else np.array(told)[left].tolist()
            if len(set(zip(told, documents.tolist(), strict=True))) > len(set(told)):
                raise BadInput(
                    "significance.clusters: rows that the texts count as independent share one of the stored "
                    "`documents`, got document; drop these, or set significance.clusters=row"
                )
    else:
        lengths = Counter(told).values() if told else [sentence.words for sentence in stored[0]]
        whole = np.array(list(lengths))
        documents, beginnings = np.repeat(np.arange(len(whole)), whole), np.zeros(whole.sum(), int)
        beginnings[(whole.cumsum() - whole)[whole > 0]] = BOTH
    sampled = significance.method == "permutation" and (whole > 1).any()
    return Clusters(
        documents=documents if column is None else column,
        beginnings=beginnings,
        whole=whole if sampled else None,
        held=held,
        what="blocks of the text" if blocks else "documents" if column is None else f"documents by {clusters}",
        blocks=blocks,
    )


def _uses_blocks(significance: Significance, given: Sequences, extract: Extract) -> bool:
    """Tells whether sequences stand in for documents: several are needed, and the text is a single one."""
    needed = significance.method != "none" or significance.budget
    return needed and extract.unit in ("token", *WORDS) and given.of_one


def _group_rows_by_property(key: str, name: str, data: Data, given: Sequences | None, extract: Extract) -> Rows:
    """Numbers what `name` says of every row. Raises BadInput where nothing of this name is known."""
    known = {} if given is None else list_row_properties(data, given, extract)
    positions = None if given is None else list_row_positions(given, extract)
    if name in known:
        return np.unique(known[name], return_inverse=True)[1]
    if key == "within" and positions is not None and given is not None and name in OF_ROWS:
        of_rows = positions if name == "position" else list_row_tokens(given, extract, before=name == "previous_token")
        return np.unique(of_rows, return_inverse=True)[1]
    names = [*known, *(OF_ROWS if key == "within" and positions is not None else ("document", "row"))]
    raise BadInput(f"significance.{key}: no such property of these rows, got '{name}'; {did_you_mean(name, names)}")
