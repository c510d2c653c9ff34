"""What is compared with what: every layer with every layer, by which measures, on which rows, against which chance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from repsim_cli.activations.exchange import Exchange
from repsim_cli.activations.inputs import try_sequences
from repsim_cli.activations.segments import Segments
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import write_percent
from repsim_cli.base.settings import IN_BATCHES, LEFT_OUT, STREAMED, WORDS, Significance
from repsim_cli.data.base import Sequences
from repsim_cli.data.copies import count_copied_texts, warn_of_copies
from repsim_cli.engine import significance as judging
from repsim_cli.engine.bounds import count_most_rows
from repsim_cli.engine.checks import (
    check_constant,
    check_documents,
    check_measure,
    check_pairs,
    check_rows,
    check_targets,
    count_rows_at_once,
    say_lacking_pairs,
    select_suitable,
    warn_of_few_rows,
)
from repsim_cli.engine.clusters import BUILT_IN, Clusters, cluster_rows
from repsim_cli.engine.corrections import check_family
from repsim_cli.engine.extraction import Extraction, make_extraction
from repsim_cli.engine.study import OfMeasures
from repsim_cli.engine.undefined import Wanted
from repsim_cli.measures import Measure
from repsim_cli.measures.base import is_cosine
from repsim_cli.models.source import Precomputed, PrecomputedWords
from repsim_cli.runs.results import Run

NONE = Significance(chance=False, floor=False)  # values alone
WITHOUT_CHANCE = ("moments", "ratio_of_sums")  # estimates that hold no pairs of rows
MORE_DOCUMENTS = "give more documents (of local text data.sample_by=paragraph makes one of each paragraph)"
FULL = 0.9  # of the rows: a test on fewer gives a warning


@dataclass(frozen=True, kw_only=True)
class Comparison(Extraction):
    """All layers of some models, compared with each other.

    measures: by label. skipped: by label, why a measure is left out; unsuitable ones may be.
    within: layers are compared with those of the same model alone, and all layers with those of the model `targets`.
    side_by_side: all layers are read together, of whole models.
    scatter: one sample also says how far its values lie apart by the drawn documents.

    Known once the rows are counted:
    clusters: which rows depend on each other. exchanged: those that permutations move; None: no permutation is drawn.
    apart: the document of every row, from 0, where measures that have such a form leave out pairs of rows of one
        document; None: all pairs count.
    units: which rows chance is of random pairings of; None: it is not known, `unknown` says why.
    room: bytes for the cross products of second moments in one pass over the rows. groups: layers whose rows are in
    memory together; None: all.
    """

    measures: Mapping[str, Measure]
    significance: Significance = NONE
    skip_unsuitable: bool = False
    skipped: Mapping[str, str] = field(default_factory=dict)
    within: bool = False
    targets: str | None = None
    side_by_side: bool = False
    scatter: bool = True
    clusters: Clusters | None = None
    exchanged: Segments | None = None
    apart: np.ndarray | None = None
    units: Exchange | None = None
    unknown: str = ""
    room: float = 0.0
    groups: Sequence[Sequence[int]] | None = None

    @cached_property
    def wanted(self) -> Wanted | None:
        """The pairs of layers that are compared, as a mask (layers, layers); None: all of them."""
        if not self.within:
            return None
        of = np.array([layer.model for layer in self.layers])
        either = of == self.targets
        return torch.from_numpy((of[:, None] == of) | either | either[:, None])

    @property
    def pairs(self) -> int:
        """The number of pairs of layers that are compared."""
        count = len(self.layers)
        return count * (count + 1) // 2 if self.wanted is None else int(self.wanted.triu().sum())

    @property
    def documents(self) -> np.ndarray:
        """Gives the document of every row, once the rows are clustered."""
        assert self.clusters is not None
        return self.clusters.documents

    @property
    def slow(self) -> bool:
        return any(bound.slow is not None for bound in self.measures.values())

    def count_rows(self, run: Run, sequences: Mapping[str, Sequences]) -> "Comparison":
        """Adds the number of rows, and keeps the measures that they suit. Raises BadInput where they are too few."""
        counted = super().count_rows(run, sequences)
        total, extract = counted.total, self.extract.fit_to(counted.total)
        in_batches = extract.estimate in IN_BATCHES
        if (in_batches and total < extract.batch_rows) or (self.significance.bands and extract.estimate == "full"):
            raise self.explain_too_few_rows(str(total))
        if in_batches and (left := total % extract.batch_rows) > LEFT_OUT * total:
            run.warn(
                f"extract.batch_rows: {left:,} of {total:,} rows are left out, since they fill no batch of "
                f"{extract.batch_rows:,}; set extract.batch_rows=auto, or extract.estimate=full"
            )
        rows = count_rows_at_once(extract, total)

        def check(bound: Measure) -> None:
            if bound.card.labelled and all(inputs.labels is None for inputs in sequences.values()):
                raise BadInput(
                    f"data: {bound.name} needs a label per row, got none in {self.data.source}; use other data"
                )
            check_rows(bound, self.layers, rows)

        measures, skipped = select_suitable(self.measures, check, self.skip_unsuitable)
        for label, why in skipped.items():
            run.skip(label, why)
        used = rows if extract.estimate == "full" else total
        chance = self.significance.chance and extract.estimate not in WITHOUT_CHANCE
        warn_of_few_rows(run, measures, self.layers, rows, used, replace(self.significance, chance=chance))
        return replace(counted, measures=measures, extract=extract)

    def add_clusters(
        self, run: Run, sequences: Mapping[str, Sequences], significance: Significance | None = None
    ) -> "Comparison":
        """Adds the clusters of its rows, and those that permutations move, once the rows are counted. Raises BadInput
        where these are too few for a measure. significance: what the clusters are for, if not for this comparison."""
        clusters = cluster_rows(
            significance or self.significance, self.readings, self.data, sequences, self.extract, self.total
        )
        if clusters.blocks:
            count = len(np.unique(clusters.documents))
            run.warn(
                f"significance.clusters: the text is one document, got {count:,} sequences of it as blocks in place of "
                "documents; p may be too small where blocks next to each other depend on each other: "
                "significance.order=shifts keeps their order, data.sample_by=paragraph makes documents of "
                "the paragraphs of local text"
            )
        self._warn_of_copies(run, sequences)
        clustered = replace(self, clusters=clusters, whole=clusters.whole)
        clustered = replace(
            clustered, apart=clustered._find_documents_apart(run, (significance or self.significance).clusters)
        )
        units, unknown = clustered._units()
        return replace(clustered, exchanged=clustered._exchange(run), units=units, unknown=unknown)

    def _warn_of_copies(self, run: Run, sequences: Mapping[str, Sequences]) -> None:
        """Warns where many of the texts that are read are copies."""
        if (given := next(iter(sequences.values()), None)) is None:
            return
        over_batches = self.extract.estimate in IN_BATCHES  # in each of which a text may stand
        then = {"then": "errors take them as independent"} if self.extract.pooled or over_batches else {}
        warn_of_copies(*count_copied_texts(given), run.warn, "data", **then)

    def _units(self) -> tuple[Exchange | None, str]:
        """Finds the units whose random pairings chance is of; or None, and why it is not known."""
        assert self.clusters is not None
        if not self.significance.chance:
            return None, "significance.chance=false"
        if self.extract.estimate in WITHOUT_CHANCE:
            return None, f"extract.estimate={self.extract.estimate} holds no pairs of rows; use full or per_batch"
        if self.extract.estimate == "sampled":
            return self._exchange_single_rows()
        units = self.clusters.exchange(self._numbers_of_batches())
        return units, "" if units else "no two documents or sequences of a batch have rows in the same places"

    def _exchange_single_rows(self) -> tuple[Exchange | None, str]:
        """Takes rows as units, where each is a document: a random pairing makes their neighbours rows at random."""
        if len(np.unique(self.documents)) < len(self.documents):
            return None, "of sampled rows chance is that of rows at random, and rows of a document depend on each other"
        rows = np.arange(len(self.documents))
        return Exchange(rows, np.zeros_like(rows), "rows"), ""

    def _find_documents_apart(self, run: Run, clusters: str) -> np.ndarray | None:
        """Finds the documents of whose rows pairs are left out. Raises BadInput where too few would be left."""
        wanted, forms = self.extract.pairs, {label: x for label, x in self.measures.items() if x.apart is not None}
        if wanted == "all":
            return None
        if wanted == "other_documents" and clusters == "row":
            raise BadInput(
                "significance.clusters: rows of a document are declared independent of each other, got row with "
                "extract.pairs=other_documents; set extract.pairs=all, or another significance.clusters"
            )
        assert self.clusters is not None
        of_one = self.clusters.blocks  # whose pairs of rows are all of one document
        documents = np.unique(0 * self.documents if of_one else self.documents, return_inverse=True)[1]
        if not forms or len(documents) == documents.max(initial=-1) + 1:
            return None
        for rows in self._numbers_of_batches():
            sizes = np.unique(documents[rows], return_counts=True)[1].tolist()
            if lacking := say_lacking_pairs(sizes, forms):
                lacking = f"extract.pairs: a batch has {lacking}"
                if wanted == "other_documents":
                    raise BadInput(
                        f"{lacking}, got other_documents; {MORE_DOCUMENTS}, raise the rows of a batch, or set "
                        "extract.pairs=all"
                    )
                few = documents.max() + 1 < self.batches  # so that errors over batches know little of other documents
                run.warn(
                    f"{lacking}, so that all pairs of rows count; values are above 0 for unrelated models too"
                    + (", and errors over batches say nothing of other documents" if few else "")
                    + (f"; {MORE_DOCUMENTS}" if self.live else "")
                )
                return None
        return documents

    def documents_apart(self, batch: int) -> torch.Tensor | None:
        """Numbers the document of every row of a batch, from 0, where pairs of rows of one document are left out."""
        if self.apart is None:
            return None
        codes = np.unique(self.apart[self.numbers(batch)], return_inverse=True)[1]
        return torch.from_numpy(codes).to(self.hardware.device)

    def pairs_of(self, measure: Measure) -> str:
        """Says which pairs of rows the measure is of: `other_documents` or `all`."""
        return "all" if self.apart is None or measure.apart is None else "other_documents"

    def _numbers_of_batches(self) -> list[np.ndarray]:
        return [self.numbers(batch) for batch in range(self.batches)]

    def _exchange(self, run: Run) -> Segments | None:
        if self.significance.method != "permutation":
            return None
        assert self.clusters is not None
        widest = max(layer.width for layer in self.layers)
        least = max(widest + 1 if bound.card.refuses_wide else bound.rows_needed for bound in self.measures.values())
        exchanged = self.clusters.segments(self._numbers_of_batches(), least)
        if exchanged.share < FULL:
            run.warn(
                f"significance: p values and calibrated scores are of {write_percent(exchanged.share)} of the rows, in "
                f"{exchanged.count} segments of equal length, one per document, that can be exchanged"
            )
        return exchanged

    def explain_too_few_rows(self, got: str) -> BadInput:
        advice = "give more text, raise sequences or length, " if self.live else ""
        return BadInput(
            f"extract.batch_rows: the data has fewer rows than one batch, got {got} for {self.extract.batch_rows}; "
            f"lower batch_rows, {advice}or use extract.estimate=full"
        )


def make_comparison(
    given: OfMeasures,
    significance: Significance = NONE,
    *,
    among: Iterable[str] | None = None,
    within: bool = False,
    targets: str | None = None,
    side_by_side: bool = False,
) -> Comparison:
    """Binds the measures to what is read of the models. Raises BadInput where they cannot be compared like this.

    given: the keys of the run.
    significance: what is tested of the pairs.
    among: all models of the run, which share its devices; None means those of `given`.
    within: whether layers are compared with those of the same model alone.
    targets: the model whose layers all others are compared with; None: no such one.
    side_by_side: whether all layers are read together, of whole models.
    """
    if not given["measure"]:
        raise BadInput("measure: no measure is selected; e.g. measure=[cka_unbiased]")
    if side_by_side and (estimate := given["extract"].estimate) in STREAMED:
        raise BadInput(f"extract.estimate: layers are compared pair by pair, got {estimate}; use per_batch or full")
    extraction, skip_unsuitable = make_extraction(given, among=among), given.get("skip_unsuitable", False)
    if (most := count_most_rows(extraction.models, extraction.extract)) < 2 * extraction.extract.batch_rows:
        extraction = replace(extraction, extract=extraction.extract.fit_to(most))
    extract, live = extraction.extract, extraction.live
    labelled = bool(live) and extraction.data.labelled
    # of several measures those without a standard error of one sample stay without it
    judged = replace(significance, jackknife=False) if any(map(is_cosine, given["measure"].values())) else significance

    def check(bound: Measure) -> None:
        check_measure(bound, extraction.layers, extract, labelled=labelled)
        judging.check_measure(judged, bound)

    measures, skipped = select_suitable(given["measure"], check, skip_unsuitable)
    models = extraction.models
    check_constant(models, measures)
    check_targets(targets, models)
    stored = any(isinstance(source, PrecomputedWords) for source in models.values())
    several = bool(live) and (extract.unit in ("token", *WORDS) or extraction.data.packs(extract))
    stored |= any(isinstance(source, Precomputed) and source.documents is not None for source in models.values())
    check_documents(significance, models)
    check_pairs(extract, models)
    dependent = significance.clusters not in BUILT_IN or (significance.clusters == "document" and (several or stored))
    judging.check(significance, extract.estimate, dependent)
    symmetric = all(measure.card.symmetric for measure in measures.values())
    check_family(significance, [len(reading.layers) for reading in extraction.readings], symmetric)
    comparison = extraction.extend(
        Comparison,
        measures=measures,
        skipped=skipped,
        significance=significance,
        skip_unsuitable=skip_unsuitable,
        within=within,
        targets=targets,
        side_by_side=side_by_side,
    )
    if extract.estimate in IN_BATCHES and most < extract.batch_rows:
        raise comparison.explain_too_few_rows(f"at most {most}")
    if significance.clusters not in BUILT_IN or significance.held:
        tried = try_sequences(live, comparison.tokenizers, comparison.data, extract, comparison.seed)
        if tried:
            cluster_rows(significance, comparison.readings, comparison.data, tried, extract, total=0)
    return comparison
