"""Every model on both texts of each pair: do pairs find each other, and how alike are all layers across columns?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np
from jaxtyping import Float
from torch import Tensor

from repsim_cli.activations.inputs import make_sequences
from repsim_cli.activations.places import have_same_rows
from repsim_cli.activations.remedies import skip_in_all
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.settings import Extract, Significance
from repsim_cli.data.alignment import SAME, Aligned
from repsim_cli.data.base import Sequences
from repsim_cli.data.parallel import Parallel
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import describe_models
from repsim_cli.engine.comparison import Comparison, make_comparison
from repsim_cli.engine.cost import describe_needs
from repsim_cli.engine.extraction import note_sequences
from repsim_cli.engine.matrices import compute_matrices
from repsim_cli.engine.proportions import compute_wilson_interval
from repsim_cli.engine.record import make_measure_records
from repsim_cli.engine.rows import hash_models, prepare, sample
from repsim_cli.engine.study import OfMeasures, Study
from repsim_cli.models.source import Source, describe_model
from repsim_cli.runs.content import ON, Results, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.parallel.columns import RETRIEVAL, RETRIEVAL_COLUMNS
from repsim_cli.studies.parallel.retrieval import (
    bound_retrieval_p,
    compute_token_retrieval,
    count_retrieved,
    make_unit_rows,
)

INDEPENDENT = ("row", "document")  # clusters under which each pair of texts is drawn by itself
UNITS = ("mean", "first", "last")  # of rows that are texts


class ColumnReader(NamedTuple):
    """A model on a column of texts."""

    model: str
    column: str

    def __str__(self) -> str:
        return f"{self.model}{ON}{self.column}"


def _check_unit(data: Parallel, extract: Extract) -> None:
    """Raises BadInput for rows that are not paired."""
    if data.alignment is not None and extract.unit != "word":
        raise BadInput(
            f"data.alignment: it pairs words, got extract.unit={extract.unit}; set extract.unit=word (extract=words), "
            "or drop it"
        )
    if data.alignment is None and extract.unit == "word":
        raise BadInput(
            "extract.unit: nothing says which words of two texts stand for each other, got word; set "
            "data.alignment=FILE (Pharaoh format, such as 0-0 1-2) or data.alignment=same"
        )
    if data.alignment is None and extract.unit not in UNITS:
        raise BadInput(
            f"extract.unit: texts are paired, not their tokens, got {extract.unit}; use {', '.join(UNITS)} "
            "(extract=pooled), or word with data.alignment"
        )


@studies.register("parallel")
class ParallelText(Study):
    """Reads every model on both texts of each pair, compares all layers of all models on all columns, and retrieves.

    A row is a text, or a word that is aligned with one of the other text (data.alignment). Retrieval is the share of
    rows whose nearest row in the other column, by cosine at the same layer, is their pair, among those of all texts:
    from the first column to the second, and back. A model is compared with itself, and with models of the same layers
    and widths. Beside it stand a 95 % interval over texts (over their documents, or significance.clusters), chance,
    1/n, what the right text or shared tokens alone give (all tokens of a row, with no mean taken out), and a bound of p
    under random pairings of texts, of each layer by itself.

    centred: take each column's mean from its rows before cosines: a language or a style moves all rows alike.
    Example: repsim run study=parallel model=[tiny_a] extract=pooled data=parallel data.path=FILE data.first=en
        data.second=de
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_block: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = True
    takes_columns: ClassVar[bool] = True

    def __init__(self, *, significance: Significance, centred: bool = True, **given: Unpack[OfMeasures]):
        data, extract = given["data"], given["extract"]
        if not isinstance(data, Parallel):
            raise BadInput(f"data: two columns of text are needed, got {data.source}; use data=parallel")
        _check_unit(data, extract)
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: pairs are found in one sample, got {extract.estimate}; use full")
        for label, source in given["model"].items():
            if not isinstance(source, Source):
                raise BadInput(
                    f"model.{label}: stored rows are of one text, got no model; give the rows of each column as a "
                    "model of its own to study=similarity"
                )
        self.columns, self.centred = data.columns(), centred
        self.chosen_by_word = data.alignment is not None and data.alignment.source == SAME
        self.labels = {str(each): each for each in map(ColumnReader._make, product(given["model"], self.columns))}
        read = {label: given["model"][each.model] for label, each in self.labels.items()}
        first = next(iter(self.columns.values()))
        self.comparison = make_comparison({**given, "model": read, "data": first}, significance)
        self.measures, self.skipped = self.comparison.measures, self.comparison.skipped
        self.readings = self.comparison.readings
        footprint.check_fits(self.comparison)

    def plan(self) -> dict[str, Any]:
        compared = self.comparison
        return {
            "models": describe_models(compared.models, compared.hardware, compared.devices),
            "columns": list(self.columns),
            "layers": len(compared.layers),
            "pairs of layers": compared.pairs,
            "measures": list(compared.measures),
            "chance": footprint.describe_planned_chance(compared),
            **footprint.describe_rows_and_passes(compared),
            **describe_needs(
                footprint.estimate_costs(compared, compared.pairs),
                compared.hardware,
                memory=footprint.estimate_comparison_memory(compared, footprint.count_rows_per_comparison(compared)),
                disk=footprint.estimate_disk(compared),
                activations=footprint.count_stored(compared),
                figures=len(compared.measures) + 1,
            ),
        }

    def run(self, run: Run) -> Results:
        comparison = self.comparison
        prepare(run, comparison.hardware)
        with run.stage("data"):
            sequences = self._sequences(run)
            comparison = comparison.count_rows(run, sequences).add_clusters(run, sequences)
        comparison = footprint.plan_memory(comparison)
        run.manifest["facts"] = {
            reading.label: asdict(describe_model(reading.label, reading.source, reading.layers))
            for reading in self.readings
        }
        identities = hash_models(run, comparison)
        matrices, of_layers = compute_matrices(run, comparison, sequences, identities=identities)
        taken, _ = sample(run, comparison, sequences)
        with run.stage("retrieval"):
            rows = list(self._retrieval(comparison, sequences, taken))
        with run.stage("results"):
            measures, tables = make_measure_records(run, comparison, matrices)
        retrieval = {RETRIEVAL: Table(columns=RETRIEVAL_COLUMNS, rows=rows)}
        return Results(study="parallel", measures=measures, tables=retrieval | tables | of_layers)

    def _sequences(self, run: Run) -> dict[str, Sequences]:
        """Tokenizes the inputs of every model on every column: the same pairs in the same order, less those that are
        skipped in any column."""
        compared, made = self.comparison, dict[str, Sequences]()
        whole = replace(compared.extract, skip=0, skip_tokens=[])
        for column, data in self.columns.items():
            labels = [label for label, each in self.labels.items() if each.column == column]
            live, tokenizers = ({label: of[label] for label in labels} for of in (compared.live, compared.tokenizers))
            made |= make_sequences(live, tokenizers, data, whole, compared.seed)
            if isinstance(data, Aligned) and (count := data.count_unspaced()):
                run.warn(
                    f"data: {count} texts of {data.source} have no white space, so that each is one word; segment them "
                    "before words are aligned"
                )
        sequences = skip_in_all({label: made[label] for label in self.labels}, compared.tokenizers, compared.extract)
        for column, data in self.columns.items():
            read = {label: of_label for label, of_label in sequences.items() if self.labels[label].column == column}
            note_sequences(run, read, data, compared.extract, of=column)
        first, *others = sequences.values()
        assert all(have_same_rows(first, other, compared.extract) for other in others)
        return sequences

    def _retrieval(
        self, comparison: Comparison, sequences: Mapping[str, Sequences], taken: Sequence[Float[Tensor, "n d"]]
    ) -> Iterator[list[Any]]:
        """Makes the rows of RETRIEVAL_COLUMNS, of each pair of models and each way between the columns, by layer."""
        places = dict(zip(self.labels, comparison.places, strict=True))
        layers = {label: comparison.layers[place] for label, place in places.items()}
        units = [make_unit_rows(x, self.centred) for x in taken]
        extract, rows = comparison.extract, comparison.numbers(0)
        known = comparison.significance.clusters in INDEPENDENT and not self.chosen_by_word
        assert comparison.clusters is not None
        units_of = comparison.clusters.documents[rows]
        texts = None if extract.pooled else comparison.find_documents(sequences)
        of_text = None if texts is None else len(np.unique(texts)) / len(texts)
        for a, b in product(self.labels, repeat=2):
            one, other = self.labels[a], self.labels[b]
            alike = [(x.name, x.width) for x in layers[a]] == [(x.name, x.width) for x in layers[b]]
            if one.column == other.column or not alike:
                continue
            tokens = None
            if one.model == other.model:
                columns = sequences[a], sequences[b]
                tokens = compute_token_retrieval(columns, extract, comparison.live[a].vocabulary, rows)
            for layer, x, y in zip(layers[a], units[places[a]], units[places[b]], strict=True):
                found, n = count_retrieved(x, y, texts), len(x)
                p = bound_retrieval_p(found.unique) if known else None
                place = [one.model, other.model, one.column, other.column, layer.name]
                yield [
                    *place,
                    found.share,
                    *compute_wilson_interval(found.hits, units_of),
                    n,
                    1 / n,
                    of_text,
                    tokens,
                    p,
                ]
