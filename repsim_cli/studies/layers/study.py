"""Every layer of a model by itself: how many directions its texts take, how tokens move through them, and what each
block does."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Int

from repsim_cli.activations.batching import batch_by_length, measure_lengths
from repsim_cli.activations.hook_points import HookPoint
from repsim_cli.activations.next_token import HEAD, has_next, number_documents
from repsim_cli.activations.places import count_kept_rows
from repsim_cli.activations.readings import choose_loading
from repsim_cli.activations.rows import find_used
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Medium0, Small
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import bound_pass, check_memory, describe_models
from repsim_cli.engine.cost import Cost, describe_needs, estimate_distances_cost, estimate_forward_cost
from repsim_cli.engine.extraction import Extraction, find_sequence_length, make_extraction
from repsim_cli.engine.rows import open_rows, prepare, tally
from repsim_cli.engine.study import RESIDENT, SAMPLING, TEXTS, OfRows, Study
from repsim_cli.findings.layers import order_layers
from repsim_cli.measures import get
from repsim_cli.models.source import Source
from repsim_cli.runs.content import BY_SCALE, COPIES, OF_LAYER_DIFFERENCES, OF_LAYER_ERRORS, Results, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.layers import scores
from repsim_cli.studies.layers.columns import (
    ALIKE,
    BY_CHANCE,
    BY_SCALE_COLUMNS,
    COSINE,
    CURVATURE,
    DIFFERENCES_COLUMNS,
    DIMENSION,
    DOCUMENTS,
    DOCUMENTS_WITHOUT,
    ENTROPY,
    INFLUENCE,
    KL_WITHOUT,
    LOSS_WITHOUT,
    OF_LAYER,
    OF_LAYER_COLUMNS,
    RANK,
    SAME_CLASS,
    STANDING_OUT,
)
from repsim_cli.studies.layers.gathered import OfLayer, gather, select_text_values
from repsim_cli.studies.layers.scores import UNKNOWN, LayerEstimate, average_over_documents, compare_with_best
from repsim_cli.studies.layers.without import BlockLosses, compute_block_losses, say_why_unskippable

SAME = 1e-4  # relative difference of numbers of one model, whose neurons may be in another order
LEAST = 40  # texts of which an intrinsic dimension is estimated
SCALE = (1, 2, 4, 8, 16, 32, 64)
NEIGHBOURS = 10
TABLES = {
    OF_LAYER: OF_LAYER_COLUMNS,
    OF_LAYER_ERRORS: OF_LAYER_COLUMNS,
    BY_SCALE: BY_SCALE_COLUMNS,
    OF_LAYER_DIFFERENCES: DIFFERENCES_COLUMNS,
}


def find_copies(rows: Sequence[Sequence[Any]]) -> Iterator[list[str]]:
    """Finds two models all of whose layers have the same numbers, to rounding. rows: of OF_LAYER_COLUMNS."""
    numbers: dict[str, list[list[float]]] = {}
    for label, _, *values in rows:
        numbers.setdefault(label, []).append([math.nan if value is None else float(value) for value in values])
    for (a, first), (b, second) in combinations(numbers.items(), 2):
        if len(first) == len(second) and np.allclose(first, second, rtol=SAME, atol=SAME, equal_nan=True):
            yield [a, b]


def choose_texts(places: Int[np.ndarray, " n"], units: Int[np.ndarray, " N"], count: int) -> Int[np.ndarray, " m"]:
    """Chooses texts of as many documents as there are, since errors are over these. places: of the texts that may be
    chosen. units: the document of every text.

    >>> choose_texts(np.arange(1, 6), np.array([7, 7, 7, 7, 2, 3]), 3).tolist()
    [1, 4, 5]
    """
    firsts = np.unique(units[places], return_index=True)[1]
    others = np.setdiff1d(np.arange(len(places)), firsts)
    return np.sort(places[[*np.sort(firsts), *others][:count]])


@studies.register("layers")
class Layers(Study):
    """Looks at every layer of each model by itself, in place of comparing it with others.

    A sequence of the data is a text. Of the last tokens of all texts: the intrinsic dimension by the ratios of the
    distances to neighbours 2k and k, at several k, effective rank, similarity with the layer before, and, where the
    data has classes, how many of the nearest texts are of the same class. Of all tokens: the entropy of a text's rows,
    the curvature of the path from token to token, the mean cosine between texts, and how far the block turns its rows.
    Where models predict the next token, what is lost without each block.

    k: neighbours k and 2k give the intrinsic dimension that is drawn; the table has others.
    without: on how many sequences, the first ones of different documents, each block is left out once; 0: on none.
    Example: repsim run study=layers model=[] +model.mine='{kind: transformers, path: DIR}' extract=texts
        data=local_text data.path=FILE data.sample_by=paragraph
    """

    takes_remedies: ClassVar[Sequence[str]] = ("skip", "skip_tokens")
    by_block: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = (*SAMPLING, TEXTS, RESIDENT)

    def __init__(
        self,
        *,
        k: Small = 4,
        without: Medium0 = 16,
        **given: Unpack[OfRows],
    ):
        self.extract, self.hardware, self.k, self.without = given["extract"], given["hardware"], k, without
        if self.extract.unit != "token":
            raise BadInput(
                f"extract.unit: the study follows tokens through a text, got {self.extract.unit}; use token "
                "(extract=texts)"
            )
        if not given["model"]:
            raise BadInput("model: no model is selected; e.g. model=[tiny_a,tiny_b]")
        for label, source in given["model"].items():
            if not isinstance(source, Source):
                raise BadInput(f"model.{label}: texts are read by models, got stored rows; give a model")
        if self.extract.sequences < LEAST:
            raise BadInput(
                f"extract.sequences: an intrinsic dimension needs {LEAST} texts, got {self.extract.sequences}; read "
                "more"
            )
        if 4 * k > self.extract.sequences:
            raise BadInput(f"options.k: {self._say_too_few(self.extract.sequences)}")
        self.extractions = {
            label: make_extraction({**given, "model": {label: source}}) for label, source in given["model"].items()
        }
        self.readings = [reading for each in self.extractions.values() for reading in each.readings]
        check_memory(sum(self.memory().values()), self.hardware, "read fewer layers or sequences")

    def _say_too_few(self, texts: int) -> str:
        needed = f"neighbours {self.k} and {2 * self.k} are needed"
        return f"{needed}, the data have {texts} texts; lower it, or read more texts"

    def memory(self) -> dict[str, float]:
        """Bytes, estimated, of the model that takes most: what passes, the last rows of texts and their sums."""

        def estimate(each: Extraction) -> dict[str, float]:
            features = sum(layer.width for layer in each.layers)
            return {
                "Python and its libraries": 0.6e9,
                **bound_pass(each.live, self.extract, self.hardware, features),
                "texts": 16.0 * self.extract.sequences * features,
            }

        return max((estimate(each) for each in self.extractions.values()), key=lambda parts: sum(parts.values()))

    def plan(self) -> dict[str, Any]:
        models = {label: each.models[label] for label, each in self.extractions.items()}
        return {
            "models": describe_models(models, self.hardware),
            "layers": sum(len(reading.layers) for reading in self.readings),
            "texts, at most": self.extract.sequences,
            "each block left out": [
                label
                for label, each in self.extractions.items()
                if self.without and not say_why_unskippable(each.live[label])
            ],
            **describe_needs(self._costs(), self.hardware, memory=self.memory(), figures=2),
        }

    def _costs(self) -> dict[str, Cost]:
        passes, apart, without = Cost(), Cost(), Cost()
        for each in self.extractions.values():
            passes += footprint.estimate_passes_cost(each)
            apart += estimate_distances_cost(
                [layer.width for layer in each.layers], self.extract.sequences, self.hardware
            )
            for source in each.live.values() if self.without else ():
                count, length = min(self.without, self.extract.sequences), find_sequence_length(each)
                alone = estimate_forward_cost([source], count, length, self.hardware, vocabularies=True)
                without += (source.layers + 1) * alone if not say_why_unskippable(source) else Cost()
        return {"forward passes": passes, "distances": apart, **({"without blocks": without} if self.without else {})}

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        tables = {name: Table(columns=columns, rows=[]) for name, columns in TABLES.items()}
        diagnosed: dict[str, Table] = {}
        counted_rows = Counter[str]()  # of all models, in the manifest
        documents: dict[str, list[int]] = {DOCUMENTS: [], DOCUMENTS_WITHOUT: []}
        for label, extraction in self.extractions.items():
            with run.stage("data"):
                sequences = extraction.sequences(run, label)
                counted = extraction.count_rows(run, sequences)
                skipped = run.manifest.get("remedies", {}).get("rows_left_out", 0)
                counted_rows.update({"rows": run.manifest["rows"], "rows_left_out": skipped})
            given, counts = sequences[label], count_kept_rows(sequences[label], self.extract)
            texts = int((counts > 0).sum())
            if 4 * self.k > texts:
                raise BadInput(f"options.k: {self._say_too_few(texts)}")
            if texts < LEAST:
                raise BadInput(
                    f"extract.sequences: an intrinsic dimension needs {LEAST} texts, the data have {texts}; give more"
                )
            with open_rows(run, counted, sequences) as read, run.stage("activations"):
                progress = partial(run.progress, label=f"activations of {label}", unit="batches")
                gathered = gather(read.stream_all(progress), counts, len(counted.layers))
                for name, table in read.tables(counted.layers).items():
                    known = diagnosed.setdefault(name, table)
                    if known is not table:
                        known.rows.extend(table.rows)
            units = number_documents(given, run.warn, f"model.{label}")
            without = self._measure_block_losses(run, counted, given, units)
            documents[DOCUMENTS].append(len(np.unique(units)))
            if without is not None:
                documents[DOCUMENTS_WITHOUT].append(len(np.unique(without.units)))
            with run.stage("layers"):
                for name, rows in self._rows(run, counted, given, units, gathered, without).items():
                    tables[name].rows.extend(rows)
        run.manifest["rows"], left = counted_rows["rows"], counted_rows["rows_left_out"]
        if "remedies" in run.manifest:
            share = left / (counted_rows["rows"] + left)
            run.manifest["remedies"] |= {"rows_left_out": left, "share_left_out": share}
        if copies := list(find_copies(tables[OF_LAYER].rows)):
            tables[COPIES] = Table(columns=["model", "other"], rows=copies)
        about = {"k": self.k, **{name: min(counts) for name, counts in documents.items() if counts}}
        return Results(study="layers", tables=tables | diagnosed, about=about)

    def _measure_block_losses(
        self, run: Run, extraction: Extraction, given: Sequences, units: Int[np.ndarray, " N"]
    ) -> BlockLosses | None:
        """Measures what is lost without each block, on a few sequences; None where blocks cannot be left out."""
        ((label, source),) = extraction.live.items()
        if not self.without:
            return None
        model, why = None, say_why_unskippable(source)
        if why is None:
            try:
                model = source.with_head(HEAD, choose_loading(self.hardware, extraction.devices[label]))
            except BadInput as error:
                why = str(error)
        if model is None:
            run.warn(f"model.{label}: no block is left out ({why})")
            return None
        chosen = choose_texts(np.flatnonzero(has_next(given)), units, self.without)
        some = given.take(chosen)
        lengths = measure_lengths(find_used(some, self.extract))
        parts = list(batch_by_length(lengths, self.hardware))
        batches = [some.take(part, int(lengths[part].max())) for part in parts]
        with run.stage("without blocks"):
            counts = tally(run, extraction.models)
            progress = partial(run.progress, label=f"without blocks of {label}", unit="batches")
            with torch.inference_mode():
                found = compute_block_losses(model, source, batches, progress, lambda mask: counts(label, mask))
        return found._replace(units=units[chosen][np.concatenate(parts)])

    def _rows(
        self,
        run: Run,
        extraction: Extraction,
        given: Sequences,
        units: Int[np.ndarray, " N"],
        found: Sequence[OfLayer],
        without: BlockLosses | None,
    ) -> dict[str, list[list[Any]]]:
        """Makes the rows of each of TABLES."""
        (reading,) = extraction.readings
        counts = count_kept_rows(given, self.extract)
        texts = counts > 0
        documents = select_text_values(counts, units)
        classes = None if given.labels is None else select_text_values(counts, given.labels.codes)
        if classes is not None and len(np.unique(classes)) < 2:
            said = "the texts that are read are of one class alone: whether neighbours share it says nothing"
            run.warn(f"{reading.label}: {said}")
            classes = None
        sizes = torch.from_numpy(counts[texts]).double()
        order = order_layers([layer.name for layer in reading.layers])
        names, of_layers, scales, before = list[str](), list[dict[str, Any]](), [], None
        for at in run.progress(order, label=f"layers of {reading.label}", unit="layers"):
            layer, x = found[at], torch.cat(found[at].last)
            name = reading.layers[at].name
            lacking: list[str] = []

            steps = [k for k in SCALE if 4 * k < len(x)]
            most = max(*steps, self.k)
            near = scores.find_nearest_distances(x, min(3 * most + 20, len(x) - 1))
            by_scale = {
                k: _compute(
                    partial(scores.estimate_intrinsic_dimension, near, k, documents), lacking if k == self.k else []
                )
                for k in dict.fromkeys([*steps, self.k])
            }
            scales += [
                [reading.label, name, k, of.value, _read_standard_error(of)] for k in steps if (of := by_scale[k])
            ]
            same, by_chance = UNKNOWN, None
            if classes is not None:
                shares, by_chance = scores.compute_same_class_shares(near, NEIGHBOURS, classes)
                same = average_over_documents(shares, documents)
            numbers = {
                DIMENSION: by_scale[self.k] or UNKNOWN,
                RANK: _compute(partial(scores.effective_rank, x), lacking),
                ENTROPY: average_over_documents(layer.whole("entropy"), documents),
                CURVATURE: average_over_documents(layer.whole("curvature"), documents),
                COSINE: scores.mean_cosine(torch.cat(layer.sums), sizes),
                ALIKE: None if before is None else _compute(partial(get("cka_unbiased"), before, x), lacking),
                INFLUENCE: average_over_documents(layer.whole("influence"), documents) if at else UNKNOWN,
                SAME_CLASS: same,
                BY_CHANCE: by_chance,
                **_average_removal_effects(without, reading.points[at]),
            }
            names.append(name)
            of_layers.append(numbers)
            for why in dict.fromkeys(lacking):
                run.warn(f"{reading.label}@{name}: {why}")
            before = x
        return {BY_SCALE: scales} | {
            table: [[reading.label, name, *values] for name, values in zip(names, of, strict=True)]
            for table, of in _write_estimates(of_layers).items()
        }


def _write_estimates(of_layers: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float | None]]]:
    """Writes the numbers of every layer, their standard errors, and those of differences from the layer that stands
    out, each for its table."""
    apart = [
        compare_with_best([numbers[column] for numbers in of_layers], highest)
        for column, highest in STANDING_OUT.items()
    ]
    return {
        OF_LAYER: [[_read_value(number) for number in numbers.values()] for numbers in of_layers],
        OF_LAYER_ERRORS: [[_read_standard_error(number) for number in numbers.values()] for numbers in of_layers],
        OF_LAYER_DIFFERENCES: [[_read_value(error) for error in errors] for errors in zip(*apart, strict=True)],
    }


def _average_removal_effects(without: BlockLosses | None, point: HookPoint) -> dict[str, LayerEstimate]:
    """Averages what is lost without the block that ends here."""
    if without is None or point.kind != "resid_post" or point.layer is None:
        return {KL_WITHOUT: UNKNOWN, LOSS_WITHOUT: UNKNOWN}
    numbers = {KL_WITHOUT: without.kl, LOSS_WITHOUT: without.loss}
    return {name: average_over_documents(each[point.layer], without.units) for name, each in numbers.items()}


def _compute(make: Callable[[], Any], lacking: list[str]) -> Any:
    """Computes a number; where it has no value, notes why."""
    try:
        return make()
    except Degenerate as error:
        lacking.append(str(error))
        return None


def _read_value(number: Any) -> float | None:
    value = number.value if isinstance(number, LayerEstimate) else number
    return None if value is None or np.isnan(value) else value


def _read_standard_error(number: Any) -> float | None:
    return _read_value(number.se) if isinstance(number, LayerEstimate) else None
