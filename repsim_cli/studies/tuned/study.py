"""What further training, an adapter or rounding changed: models against their base, layer by layer, token by token."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from repsim_cli.activations.batching import TokenTally, count_batch_places, count_passes
from repsim_cli.activations.places import mark_kept_rows
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.remedies import Remedies
from repsim_cli.activations.row_batches import stream_row_batches
from repsim_cli.activations.rows import RowBlock, stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Medium, Medium0
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import (
    bound_pass,
    bound_sequence_length,
    count_most_rows,
    describe_models,
    find_usual_length,
)
from repsim_cli.engine.cached import Content, Tensors, open_units
from repsim_cli.engine.comparison import Comparison, make_comparison
from repsim_cli.engine.cost import Cost, describe_needs, estimate_forward_cost, estimate_pairs_cost
from repsim_cli.engine.counterparts import estimate_counterparts
from repsim_cli.engine.rows import hash_models, prepare, tally
from repsim_cli.engine.study import OfMeasures, Study
from repsim_cli.models.sizes import are_resident_together, count_resident_bytes
from repsim_cli.models.source import Source
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.content import Results
from repsim_cli.runs.results import Run, quiet
from repsim_cli.studies.tuned.blocks import (
    BlockStack,
    compute_block_changes,
    estimate_batch_bytes,
    estimate_block_costs,
    make_block_stacks,
    make_unpadded_batches,
)
from repsim_cli.studies.tuned.changes import CELLS, Change, encode_json
from repsim_cli.studies.tuned.models import open_models, use_base_tokenizer
from repsim_cli.studies.tuned.results import make_results


@studies.register("tuned")
class Tuned(Study):
    """Compares models with the model that they were made from (`base`), layer by layer and token by token.

    All models run over the same text, with their output heads; where they do not fit into memory together, the base
    runs with each of the others in turn. Every layer is compared with the same layer of the base, by the measures of
    the run, and for every token by the norm of the difference over the norm in the base and by the cosine. The
    distribution over the next token is compared with that of the base, KL(base || model) in nats. Every block of a
    model also runs on the base's own input, which tells what the block itself changes from what it only carries on.

    examples: how many tokens, and how many texts, are listed of each model: those that change most; of local files
        with `extract.keep_texts` alone.
    blocks: on how many sequences, the first ones, blocks run on the base's input; 0: on none.
    patching: put the base's block in place of each changed block of a model, one at a time, and measure on these
        sequences how much of the effect on the next token goes; a pass more for each changed block.
    Example: repsim run study=tuned model=[] +model.before='{kind: transformers, path: DIR}' +model.after='{kind:
        transformers, path: DIR}' base=before data=local_text data.path=FILE
    """

    # differences are those of the vectors as they are
    takes_remedies: ClassVar[Sequence[str]] = ("skip", "skip_tokens")
    by_block: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = ()

    def __init__(
        self,
        *,
        base: str | None = None,
        examples: Medium = 20,
        blocks: Medium0 = 16,
        patching: bool = False,
        **given: Unpack[OfMeasures],
    ):
        model, extract = given["model"], given["extract"]
        if base is None:
            raise BadInput("base: the model that the others were made from is needed; set base=LABEL")
        if len(model) < 2:
            raise BadInput(f"model: a model to compare with the base is needed, got {list(model)}; select two or more")
        if extract.unit not in ("token", "word") or extract.piece == "mean":
            got = extract.unit if extract.unit not in ("token", "word") else "piece=mean"
            raise BadInput(f"extract.unit: a row must be one token, got {got}; use extract=tokens")
        given["model"] = use_base_tokenizer(base, model)
        self.comparison = make_comparison(given, side_by_side=True)
        self.base, self.examples, self.blocks, self.patching = base, examples, blocks, patching
        self.readings, self.measures = self.comparison.readings, self.comparison.measures
        self.skipped = self.comparison.skipped
        self.reference = next(reading for reading in self.readings if reading.label == base)
        self.tuned = [reading for reading in self.readings if reading.label != base]
        footprint.check_fits(self.comparison, self.memory)
        self._check_layers()
        if patching and not blocks:
            raise BadInput("options.patching: it needs sequences to run on, got options.blocks=0; leave that at 16")
        if patching and len(set(self.comparison.devices.values())) > 1:
            raise BadInput(
                "options.patching: the blocks of two models are exchanged, got models on several devices; put them on "
                "one, or drop it"
            )

    def _check_layers(self) -> None:
        wanted = [(layer.name, layer.width) for layer in self.reference.layers]
        for reading in self.tuned:
            layers = [(layer.name, layer.width) for layer in reading.layers]
            if layers != wanted:
                raise BadInput(
                    f"model.{reading.label}: its layers are not those of the base '{self.base}', got {len(layers)} of "
                    f"width {layers[0][1]} for {len(wanted)} of width {wanted[0][1]}; compare models of one base"
                )

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: weights, a forward batch, rows of all layers, a pair of layers, and the logits of the base
        and of one other model at a time."""
        compared = self.comparison
        hardware, live = compared.hardware, compared.live
        turns = [[live[x.label] for x in [self.reference, *turn]] for turn in self._turns(self.tuned)]
        features = sum(layer.width for layer in compared.layers)
        vocabulary = max(source.vocabulary for source in live.values())
        squares = max(measure.slow.squares if measure.slow else measure.squares for measure in self.measures.values())
        cells = count_batch_places(bound_sequence_length(live, compared.extract), hardware) * vocabulary
        return {
            "Python and its libraries": 0.5e9,
            **bound_pass(live, compared.extract, hardware, features, together=True),
            "weights": max(count_resident_bytes(turn, hardware, together=True) for turn in turns),
            "output heads": 4.0 * max(sum(source.vocabulary * source.width for source in turn) for turn in turns),
            "logits": 4.0 * 4 * cells + 8.0 * 6 * CELLS,
            "rows": 4.0 * 3 * rows * features,
            "pairs of layers": 8.0 * 4 * rows**2 * squares,
            "changes": self._changes_bytes(),
            "blocks on the base's input": estimate_batch_bytes(live.values(), cells // vocabulary)
            if self.blocks
            else 0.0,
        }

    def plan(self) -> dict[str, Any]:
        """Describes what a run would do: models, layers, measures, forward passes, memory in GB."""
        compared, turns = self.comparison, self._turns(self.tuned)
        length = find_usual_length(compared.live, compared.data, compared.extract)
        counts = compared.extract.sequences, min(self.blocks, compared.extract.sequences)
        all_of_them, some = (count_passes(count, length, compared.hardware) for count in counts)
        patched = sum(compared.live[x.label].layers + 2 for x in self.tuned)
        return {
            "models": describe_models(compared.models, compared.hardware),
            "base": self.base,
            "layers of each": len(self.reference.layers),
            "measures": list(self.measures),
            "estimate": compared.extract.estimate,
            "outputs of": [label for label, source in compared.live.items() if predicts_next(source)],
            "in memory together": [" and ".join([self.base, *(x.label for x in turn)]) for turn in turns],
            "forward passes, unless stored": (len(self.tuned) + len(turns)) * all_of_them
            + (2 * len(self.tuned) + len(turns)) * some,
            **({"forward passes of patching, at most": patched * some} if self.patching else {}),
            **describe_needs(
                self._costs(),
                compared.hardware,
                memory=self.memory(footprint.count_rows_per_comparison(compared)),
                disk={"changes of every token": self._changes_bytes()},
                figures=len(self.measures) + 3,
            ),
        }

    def _changes_bytes(self) -> float:
        """Bytes of what is noted of every token, in float64."""
        extract, models, live = self.comparison.extract, self.comparison.models, self.comparison.live
        tokens = min(count_most_rows(models, extract), extract.sequences * bound_sequence_length(live, extract))
        return 8.0 * 3 * tokens * sum(len(reading.layers) for reading in self.tuned)

    def _costs(self) -> dict[str, Cost]:
        compared, rows = self.comparison, footprint.count_rows_per_comparison(self.comparison)
        extract, hardware, live = compared.extract, compared.hardware, compared.live
        length = find_usual_length(live, compared.data, extract)
        total = min(count_most_rows(compared.models, extract), extract.sequences * length)
        pairs = len(compared.layers) - len(self.reference.layers)
        widths = [layer.width for layer in compared.layers]
        count = 1.0 if extract.estimate == "full" else max(total / rows, 1.0)
        of_blocks = live[self.base], [live[x.label] for x in self.tuned], len(self._turns(self.tuned)), length
        return {
            "forward passes": estimate_forward_cost(
                live.values(), extract.sequences, length, hardware, vocabularies=True
            ),
            **(
                estimate_block_costs(*of_blocks, min(self.blocks, extract.sequences), hardware, patching=self.patching)
                if self.blocks
                else {}
            ),
            "similarity": estimate_pairs_cost(self.measures.values(), widths, pairs, rows, hardware, batches=count),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.comparison.hardware)
        with run.stage("data"):
            sequences = self.comparison.sequences(run)
            comparison = self.comparison.count_rows(run, sequences)
        changes = self._changes(run, comparison, sequences)
        with run.stage("results"):
            return make_results(run, comparison, self.reference, changes, sequences[self.base], self.examples)

    def _changes(self, run: Run, comparison: Comparison, sequences: Mapping[str, Sequences]) -> dict[str, Tensors]:
        """Measures what changed in each model, or reads it from the cache: only the others run, with the base."""
        identities = hash_models(run, comparison)
        keys: dict[str, str | None] = {}
        if comparison.cache:
            of_blocks = {"blocks": self.blocks, "patching": self.patching}
            content = Content.collect(comparison, sequences, identities, by=__name__, **of_blocks)
            keys = {x.label: content.make_change_key((self.base, x.label), comparison.measures) for x in self.tuned}
        with open_units(run, "changes", keys) as (known, keep):
            missing = [reading for reading in self.tuned if reading.label not in known]
            counts = tally(run, {x.label: x.source for x in [self.reference, *missing]} if missing else {})
            for turn in self._turns(missing):
                for label, change in self._measure(run, comparison, turn, sequences, counts).items():
                    keep(label, change)
                    known[label] = change
                gc.collect()
        return {reading.label: known[reading.label] for reading in self.tuned}

    def _turns(self, tuned: Sequence[Reading]) -> list[list[Reading]]:
        """Groups these models by which are in memory together, with the base: all, or each alone."""
        sources = [x.source for x in [self.reference, *tuned] if isinstance(x.source, Source)]
        return (
            [[*tuned]]
            if tuned and are_resident_together(sources, self.comparison.hardware)
            else [[reading] for reading in tuned]
        )

    def _measure(
        self,
        run: Run,
        comparison: Comparison,
        tuned: Sequence[Reading],
        sequences: Mapping[str, Sequences],
        counts: TokenTally,
    ) -> dict[str, Tensors]:
        """Measures what changed in these models, in a single pass over the text: each of them and the base run once."""
        with run.stage("models"):
            readings, modules = open_models(comparison, [self.reference, *tuned], run.warn)
        run.manifest["models_run"] = list(dict.fromkeys([*run.manifest["models_run"], *modules]))
        changes = {reading.label: Change() for reading in tuned}
        count, extract = len(self.reference.layers), comparison.extract
        with run.stage("activations, outputs and similarity"):
            rows = self._pair(readings, modules, sequences, changes, run, counts)
            taken = stream_row_batches(rows, extract, comparison.total, comparison.seed)
            both = ((batch[:count] * len(tuned), batch[count:]) for batch in taken)
            try:
                compared, notices = estimate_counterparts(
                    comparison.measures,
                    both,
                    names=[
                        (str(of_base), str(layer))
                        for reading in tuned
                        for of_base, layer in zip(self.reference.layers, reading.layers, strict=True)
                    ],
                    estimate=extract.estimate,
                    tile=comparison.hardware.tile,
                    labels=comparison.labels(sequences),
                )
            except Degenerate as error:
                raise RunFailed(str(error)) from error
        for notice in notices:
            run.warn(notice)
        of_each = (
            self._compute_block_changes(run, make_block_stacks(readings, modules, run.warn), sequences, counts)
            if self.blocks
            else {}
        )
        return {
            label: {
                **change.tensors(),
                **of_each.get(label, {}),
                **{f"of {name}": x.values[i * count : (i + 1) * count] for name, x in compared.items()},
                **{
                    f"why of {name}": encode_json(
                        [(r % count, why) for r, why in x.undefined.items() if r // count == i]
                    )
                    for name, x in compared.items()
                },
                **{
                    f"se of {name}": x.se[i * count : (i + 1) * count]
                    for name, x in compared.items()
                    if x.se is not None
                },
                "counted": torch.tensor([next(iter(compared.values())).rows, next(iter(compared.values())).batches]),
            }
            for i, (label, change) in enumerate(changes.items())
        }

    def _compute_block_changes(
        self, run: Run, models: Sequence[BlockStack], sequences: Mapping[str, Sequences], counts: TokenTally
    ) -> dict[str, dict[str, Tensor]]:
        """Computes what every block of these models changes; the first of them is the base."""
        if len(models) < 2:
            return {}
        base, *tuned = models
        extract, hardware = self.comparison.extract, self.comparison.hardware
        given = make_unpadded_batches(sequences[self.base], self.blocks, extract, hardware)
        with run.stage("blocks on the base's input"):
            progress = partial(run.progress, label="blocks on the base's input", unit="batches")
            return compute_block_changes(
                base, tuned, given, extract, patching=self.patching, progress=progress, tally=counts
            )

    def _pair(
        self,
        readings: Sequence[Reading],
        modules: Mapping[str, nn.Module],
        sequences: Mapping[str, Sequences],
        changes: Mapping[str, "Change"],
        run: Run,
        counts: TokenTally,
    ) -> Iterator[RowBlock]:
        """Rows of all layers, the base's first, a batch at a time; what changes token by token is noted on the way."""
        count, extract, hardware = len(self.reference.layers), self.comparison.extract, self.comparison.hardware
        remedies = Remedies(extract, mark_kept_rows(sequences[self.base], extract))
        progress = partial(run.progress, label="activations and outputs", unit="batches")

        def stream(reading: Reading, progress: Any) -> Iterator[RowBlock]:
            # with the sequences of all models, whose windows are then the same
            rows = stream_row_blocks([reading], Running(modules, sequences, tally=counts), extract, hardware, progress)
            return remedies.rows(rows)

        base, *others = (stream(x, quiet if i else progress) for i, x in enumerate(readings))
        for first, of_base in base:
            rows = of_base[:count]
            for reading, other in zip(readings[1:], others, strict=True):
                _, of_other = next(other)
                changes[reading.label].add(count, of_base, of_other)
                rows += of_other[:count]
            yield RowBlock(first, rows)
