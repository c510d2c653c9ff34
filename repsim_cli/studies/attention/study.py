"""Similarity of the attention of every layer of every model with that of every layer of every model."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Unpack

from repsim_cli.activations.attention import (
    Special,
    check_units,
    cut_sentence_windows,
    number_map_rows,
    plan_attention_readings,
    slice_heads_by_layer,
    stream_attention_maps,
)
from repsim_cli.activations.batching import TokenTally, count_batch_places
from repsim_cli.activations.cached import Identities, entries_of
from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.stored import Recorder, Running, name_window
from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import studies
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.attention import estimate_attention
from repsim_cli.engine.bounds import check_disk, check_memory, describe_models, suggest_memory_limit
from repsim_cli.engine.cached import Content, open_matrices
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.cost import Cost, describe_needs, estimate_forward_cost, estimate_products
from repsim_cli.engine.estimates import join_warnings
from repsim_cli.engine.extraction import find_sequence_length, make_extraction
from repsim_cli.engine.matrices import resume
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.record import measure_record
from repsim_cli.engine.rows import free_memory, hash_models, load_model, prepare, tally
from repsim_cli.engine.study import TEXTS, OfMeasures, Study
from repsim_cli.engine.without_value import keep_matrices
from repsim_cli.measures import Measure, OfAttention
from repsim_cli.models.sizes import are_resident_together, count_resident_bytes
from repsim_cli.models.source import Source
from repsim_cli.runs import results
from repsim_cli.runs.cache import make_cache_key
from repsim_cli.runs.content import Matrix, Results, Side
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Run

STAGE = "attention and similarity"


@studies.register("attention")
class Attention(Study):
    """Compares the attention maps of all layers of all models, by words, in one pass over the sentences.

    The pass keeps sums over pairs of heads, and an interrupted run resumes from the last ones saved. Models that do not
    fit into memory together run one after the other; their maps are in files of the run folder until the pass is over.
    `base` is the model that others were fine-tuned from.

    special: tokens that belong to no word ([CLS], separators) are left out and the rows renormalised
        (`drop_renormalise`), or are words of their own (`keep`).
    Example: repsim run study=attention model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}' data=embedded_sentences extract=attention measure=[attention_js]
    """

    reads: ClassVar[str] = "attention"
    fixed_points: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = ("extract.rows", "extract.batch_rows", TEXTS, "hardware.tile")

    def __init__(
        self,
        *,
        base: str | None = None,
        special: Special = "drop_renormalise",
        **given: Unpack[OfMeasures],
    ):
        measure, extract = given["measure"], given["extract"]
        if not measure:
            raise BadInput("measure: no measure is selected; e.g. measure=[attention_js]")
        if (extract.hook_points, extract.unit) != (["pattern"], "word"):
            raise BadInput(
                f"extract: attention is compared by words, got hook_points {extract.hook_points} and unit "
                f"{extract.unit}; select extract=attention"
            )
        if extract.estimate != "full":
            raise BadInput(
                f"extract.estimate: attention is compared over all sentences at once, got {extract.estimate}; use full"
            )
        self.extraction = make_extraction(given, read=plan_attention_readings)
        self.models, self.readings = self.extraction.live, self.extraction.readings
        self.extract, self.hardware = extract, given["hardware"]
        self.of_maps = {label: bound for label, bound in measure.items() if isinstance(bound, OfAttention)}
        self.measures: Mapping[str, Measure] = self.of_maps
        self.special: Special = special
        need = sum(self.memory().values())
        one = "hardware.resident=one needs less, " if len(self.models) > 1 and len(self._turns()) == 1 else ""
        advice = (
            f"{suggest_memory_limit(need)}, {one}or lower hardware.batch_size or extract.length, or use fewer models"
        )
        check_memory(need, self.hardware, advice)
        check_disk(
            self.count_stored(),
            results.find_outputs_root(),
            "REPSIM_OUTPUTS: the maps of models that run one after the other",
            "hardware.resident=all needs none, or lower extract.sequences",
        )

    def memory(self) -> dict[str, float]:
        """Bytes, estimated: weights, the maps of a batch (by tokens of one model, by words of all), the sums."""
        heads = {reading.label: sum(layer.width for layer in reading.layers) for reading in self.readings}
        cells = count_batch_places(self.extract.length, self.hardware) * self.extract.length
        return {
            "Python and its libraries": 0.5e9,
            "weights": max(count_resident_bytes(turn, self.hardware, together=True) for turn in self._turns()),
            "maps": 4.0 * cells * (2 * max(heads.values()) + 2 * sum(heads.values())),
            "sums": 8.0 * 8 * sum(heads.values()) ** 2,
        }

    def _turns(self) -> list[list[Source]]:
        """Groups the models by which are in memory together: all, or each alone."""
        models = [*self.models.values()]
        return [models] if are_resident_together(models, self.hardware) else [[source] for source in models]

    def count_stored(self) -> float:
        """Bytes of the maps in files, estimated."""
        heads = sum(layer.width for layer in self.extraction.layers)
        return 4.0 * heads * self._cells() if len(self._turns()) > 1 else 0.0

    def _cells(self) -> float:
        """Cells of the maps of a head, estimated: a word has two tokens or so, with the special ones."""
        return self.extract.sequences * (find_sequence_length(self.extraction) / 2) ** 2

    def plan(self) -> dict[str, Any]:
        """Describes what a run would do: models, layers, heads, pairs, forward passes, memory in GB."""
        count, heads, extract = (
            len(self.extraction.layers),
            sum(layer.width for layer in self.extraction.layers),
            self.extract,
        )
        return {
            "models": describe_models(self.models, self.hardware, self.extraction.devices),
            "in memory together": "all models" if len(self._turns()) == 1 else "one model",
            "layers": count,
            "pairs of layers": count * (count + 1) // 2,
            "pairs of heads": heads * (heads + 1) // 2,
            "measures": list(self.measures),
            "special tokens": self.special,
            "sentences, at most": extract.sequences,
            "forward passes": footprint.count_passes_of_models(self.extraction),
            **describe_needs(
                self.costs(heads),
                self.hardware,
                memory=self.memory(),
                disk={"maps": self.count_stored()},
                figures=3 * len(self.measures),
            ),
        }

    def costs(self, heads: int) -> dict[str, Cost]:
        """Estimates the work: each pair of heads reads every cell of every sentence, some measures with a logarithm."""
        sentences, length = self.extract.sequences, find_sequence_length(self.extraction)
        each = sum(40.0 if label.endswith("_js") else 2.0 for label in self.measures)
        return {
            "forward passes": estimate_forward_cost(self.models.values(), sentences, length, self.hardware),
            "similarity": estimate_products(each * self._cells() * heads**2 / 2, self.hardware),
        }

    def run(self, run: Run) -> Results:
        hardware = self.hardware
        prepare(run, hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            check_units(
                {label: number_map_rows(inputs_of, self.special) for label, inputs_of in sequences.items()}, sequences
            )
        identities, content = hash_models(run, self.extraction), None
        if self.extraction.cache:
            counted = replace(self.extraction, total=len(next(iter(sequences.values())).inputs))
            sizes = {"batch_size": hardware.batch_size, "batch_tokens": hardware.batch_tokens}
            more = {"special": self.special, **sizes}
            content = Content.collect(counted, sequences, identities, by=__name__, **more)
        with open_matrices(run, self.of_maps, content) as known:
            if known.missing:
                missing = {label: self.of_maps[label] for label in known.missing}
                known.keep(self._matrices(run, missing, sequences, identities))
            matrices = keep_matrices(run, {label: known.matrices[label] for label in self.measures})
        for notice in join_warnings(matrices.values()):
            run.warn(notice)
        with run.stage("results"):
            return self._results(run, matrices)

    def _matrices(
        self,
        run: Run,
        measures: Mapping[str, OfAttention],
        sequences: Mapping[str, Sequences],
        identities: Identities,
    ) -> dict[str, SimilarityMatrix]:
        run.manifest["models_run"] = list(self.models)
        counts, alone = tally(run, self.models), len(self._turns()) > 1
        file = run.folder / STATE
        state, save = resume(file, make_cache_key({"models": identities}))
        with ExitStack() as held:
            recorders = {}
            if alone:
                given = (
                    run.folder / "maps",
                    self.readings,
                    sequences,
                    identities,
                    self.extract,
                    self.hardware.dtype,
                )
                entries = held.enter_context(entries_of(*given))
                recorders = {label: Recorder(entry) for label, entry in entries.items()}
                for reading in self.readings:
                    self._record(run, reading, sequences, recorders[reading.label], counts)
            with run.stage("models"):
                modules = {} if alone else {x.label: load_model(x, self.extraction) for x in self.readings}
            progress = partial(run.progress, label=STAGE, unit="batches")

            def stream(seen: int) -> Iterator[AttentionMaps]:
                running = Running(modules, sequences, recorders, counts)
                return stream_attention_maps(self.readings, running, self.special, self.hardware, progress, seen)

            layers = [str(layer) for reading in self.readings for layer in reading.layers]
            with run.stage(STAGE):
                try:
                    matrices, _ = estimate_attention(
                        measures, stream, slice_heads_by_layer(self.readings), names=layers, state=state, save=save
                    )
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
        file.unlink(missing_ok=True)
        return matrices

    def _record(
        self, run: Run, reading: Reading, sequences: Mapping[str, Sequences], recorder: Recorder, counts: TokenTally
    ) -> None:
        """Loads a model, writes its attention maps into files, and frees it."""
        label, names = reading.label, {name_window(window) for window in cut_sentence_windows(sequences, self.hardware)}
        if names <= set(recorder.entry.files):
            return
        with run.stage("models"):
            modules = {label: load_model(reading, self.extraction)}
        with run.stage("attention"):
            progress = partial(run.progress, label=f"attention of {label}", unit="batches")
            running = Running(modules, sequences, {label: recorder}, counts)
            deque(stream_attention_maps([reading], running, self.special, self.hardware, progress), maxlen=0)
        modules.clear()
        free_memory()
        if not names <= set(recorder.entry.files):
            raise RunFailed(
                f"model.{label}: its maps cannot be kept while the next model runs, got no room at "
                f"{recorder.entry.folder}; free space there, or use hardware.resident=all"
            )

    def _results(self, run: Run, matrices: Mapping[str, SimilarityMatrix]) -> Results:
        measures, of_heads = [], {}
        comparison = self.extraction.extend(Comparison, measures=self.measures)
        every = [f"{reading.label} {layer.name}.h{head}" for reading in self.readings for layer in reading.layers
                 for head in range(layer.width)]  # fmt: skip
        for label, matrix in matrices.items():
            measure = self.of_maps[label]
            unit, left_out = measure.unit, int(matrix.statistics.get("left_out", 0))
            if left_out:
                run.warn(
                    f"{label}: {left_out:,} of {matrix.rows + left_out:,} cells are 0 in some head (as under a "
                    "causal mask) and left out for all models"
                )
            measured = measure_record(run, comparison, label, matrix, available=matrix.rows + left_out)
            measures.append(replace(measured, estimate={**measured.estimate, "unit": unit}))
            if "heads" in matrix.statistics:
                side = Side(model="heads", layers=every)
                file = run.write_array(slug(label, "heads"), matrix.statistics["heads"].numpy())
                of_heads[f"heads, {label}"] = Matrix(
                    rows=side, columns=side, values=file, n=matrix.rows, label=f"{measure.card.label} of two heads",
                    bounds=list(measure.card.bounds), about={"measure": label},
                )  # fmt: skip
        heads = [
            {
                "model": reading.label,
                "layers": [layer.name for layer in reading.layers],
                "heads": reading.layers[0].width,
            }
            for reading in self.readings
        ]
        return Results(study="attention", measures=measures, matrices=of_heads, about={"heads": heads})
