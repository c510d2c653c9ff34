"""Similarity of every layer of every model with every layer of every model."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from repsim_cli import cache, results
from repsim_cli import significance as judging
from repsim_cli.activations.batching import passes
from repsim_cli.activations.diagnostics import MOST
from repsim_cli.activations.inputs import check_modality, paired, tokenizers
from repsim_cli.activations.readings import devices, readings
from repsim_cli.activations.rows import AT_ONCE
from repsim_cli.content import Results, Table
from repsim_cli.data.base import Data, Sequences
from repsim_cli.errors import BadInput
from repsim_cli.measures import InnerProduct, Measure
from repsim_cli.measures.inner import Kernel, Packed
from repsim_cli.models.sizes import goes_by_block, run_alone
from repsim_cli.models.source import AnySource, PrecomputedWords, Source
from repsim_cli.registry import studies
from repsim_cli.results import Run
from repsim_cli.segments import Segments
from repsim_cli.settings import ALL_REMEDIES, WORDS, Extract, Group, Hardware, Significance
from repsim_cli.similarity.grams import Shape, in_groups, kernels_of
from repsim_cli.similarity.moments import BYTES, passes_of
from repsim_cli.studies.bounds import (
    activations,
    all_rows,
    check_disk,
    check_rows_fit,
    most_rows,
    passing,
    places,
    shown,
    usual_length,
)
from repsim_cli.studies.checks import (
    check_groups,
    check_measure,
    check_rows,
    check_targets,
    check_within,
    suitable,
    warn_of_few_rows,
)
from repsim_cli.studies.cost import Cost, forward_cost, moments_cost, needs, pairs_cost
from repsim_cli.studies.feature_maps import check_feature_maps, kept_maps
from repsim_cli.studies.grouped import chosen, listed, of_groups
from repsim_cli.studies.matrices import Clusters, Matrices, clusters_of, matrices_of, records
from repsim_cli.studies.permutations import blocks_of
from repsim_cli.studies.robustness import REMEDIES, under_remedies
from repsim_cli.studies.sample import counted, inputs, prepare
from repsim_cli.studies.solved import solved

STORED_ALONE = 0.4e9  # bytes of Python and its libraries where no model runs
RESERVE = 0.01  # of the memory limit that cross products leave: page tables, fragments of the heap
STAYING = 0.05  # of the rows in place under random orders: more gives a warning
FULL = 0.9  # of the rows: a test on fewer gives a warning


@studies.register("similarity")
class Similarity:
    """Compares all layers of all models under one or several measures.

    within: compare only layers of the same model, and all layers with those of `targets`.
    targets: the label of known functions of the input (kind: modular_targets or precomputed); null: none.
    robustness: measure the map under each remedy too; the analysis of that name sets it.
    feature_maps: keep the feature maps of an image of each class; the analysis of that name sets it.
    Example: repsim run study=similarity model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}' data=local_text data.path=FILE
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_groups: ClassVar[bool] = True  # whether layers may be read group by group
    by_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        model: Mapping[str, AnySource],
        data: Data,
        measure: Mapping[str, Measure],
        extract: Extract,
        significance: Significance,
        hardware: Hardware,
        seed: int,
        cache: bool = True,
        skip_unsuitable: bool = False,
        groups: Mapping[str, Group] | None = None,
        base: str | None = None,
        within: bool = False,
        targets: str | None = None,
        robustness: bool = False,
        feature_maps: bool = False,
    ):
        if not model:
            raise BadInput("model: no model is selected, got none; e.g. model=[tiny_a,tiny_b]")
        if not measure:
            raise BadInput("measure: no measure is selected, got none; e.g. measure=[cka_unbiased]")
        self.groups, self.members = groups or {}, listed(groups or {})
        self.data = data
        self.extract, self.significance, self.hardware = extract, significance, hardware
        self.seed, self.cache = seed, cache
        self.base, self.within, self.targets, self.robustness = base, within, targets, robustness
        self.feature_maps = feature_maps
        self._take(of_groups(model, self.members))
        check_modality(self.live, data)
        check_groups(self.groups, self.models, self.readings)
        if feature_maps:
            check_feature_maps(self.readings)
        self.skip_unsuitable = skip_unsuitable
        self.measures, self.skipped = suitable(measure, self._check_measure, skip_unsuitable)
        check_targets(targets, self.models)
        if within:
            check_within({"groups": self.groups, "significance": significance.method != "none"})
        self.devices = devices(hardware, list(model))
        stored = any(isinstance(source, PrecomputedWords) for source in model.values())
        several = bool(self.live) and (extract.unit in ("token", *WORDS) or data.packs(extract))
        dependent = (several or stored) and significance.clusters == "document"
        judging.check(significance, extract.estimate, dependent)
        judging.check_family(significance, [len(reading.layers) for reading in self.readings])
        in_batches = extract.estimate in ("per_batch", "ratio_of_sums")
        if in_batches and (most := most_rows(self.models, extract)) < extract.batch_rows:
            raise self._too_few_rows(f"at most {most}")
        key = "rows" if extract.estimate == "full" else "batch_rows"
        check_rows_fit(self.memory, self.rows(), hardware, self.live, key=key)
        check_disk(
            self._packed(),
            results.outputs_root(),
            "REPSIM_OUTPUTS: the packed Gram matrices",
            f"hardware.memory_gb={self._together_gb() + 0.1:.1f} needs none, or read fewer layers or less text",
        )
        check_disk(
            self._beside(),
            results.outputs_root(),
            "REPSIM_OUTPUTS: the rows of models that run one after the other",
            "read fewer layers or less text",
        )
        self.tokenizers = tokenizers(self.live, data, extract)

    def _check_measure(self, bound: Measure) -> None:
        check_measure(bound, self.layers, self.extract, labelled=bool(self.live) and not self.data.running)
        judging.check_measure(self.significance, bound)

    @property
    def slow(self) -> bool:
        return any(bound.slow is not None for bound in self.measures.values())

    def _take(self, models: Mapping[str, AnySource]) -> None:
        """Sets the models and what is read of them."""
        self.models = dict(models)
        self.live = {label: source for label, source in models.items() if isinstance(source, Source)}
        self.readings = readings(models, self.extract)
        self.layers = [layer for reading in self.readings for layer in reading.layers]

    def wanted(self) -> Tensor | None:
        """Which pairs of layers are compared; None: all of them."""
        if not self.within:
            return None
        models = list(self.models)
        of = torch.tensor([models.index(layer.model) for layer in self.layers])
        either = of == (-1 if self.targets is None else models.index(self.targets))
        return (of[:, None] == of) | either | either[:, None]

    def rows(self) -> int:
        """Rows that are compared at a time."""
        extract = self.extract
        return min(extract.rows, most_rows(self.models, extract)) if extract.estimate == "full" else extract.batch_rows

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: weights, activations of a forward batch, a batch of rows of as many layers as are read
        together, Gram tiles."""
        if (groups := self.together(rows)) is None:
            return self._of_features(rows, sum(layer.width for layer in self.layers))
        return self._of_features(rows, max(sum(self.layers[a].width for a in group) for group in groups))

    def together(self, rows: int | None = None) -> list[list[int]] | None:
        """The layers whose batches of so many rows are in memory together, where those of all layers do not fit and
        tiles in files can stand for them; else None."""
        rows, limit = rows or self.rows(), self.hardware.memory_limit
        widths = [layer.width for layer in self.layers]
        whole, none = (sum(self._of_features(rows, features).values()) for features in (sum(widths), 0))
        if whole <= limit or not self._packable:
            return None
        return in_groups(widths, sum(widths) * (limit - none) / (whole - none))

    @property
    def _packable(self) -> bool:
        """Whether tiles of Gram matrices are all that the run needs of the rows."""
        tested = self.significance.method != "none" or self.significance.jackknife
        inner = self.extract.estimate != "moments" and kernels_of(self.measures) is not None
        return self.by_groups and inner and not tested

    def _together_gb(self) -> float:
        """Memory with the rows of all layers."""
        return sum(self._of_features(self.rows(), sum(layer.width for layer in self.layers)).values()) / 1e9

    def _of_features(self, rows: int, features: int) -> dict[str, float]:
        """`memory` where layers of so many features are read together."""
        hardware, measures = self.hardware, self.measures.values()
        everything = sum(layer.width for layer in self.layers)
        tile = min(hardware.tile, rows)
        kernels = {kernel for m in measures if isinstance(m, InnerProduct) for kernel in (m.row, m.column)}
        packed = sum(isinstance(kernel, Packed) for kernel in kernels)
        whole = any(isinstance(kernel, Kernel) and kernel.whole for kernel in kernels)
        parts = {
            "Python and its libraries": 0.5e9 if self.live else STORED_ALONE,
            **passing(self.live, self.extract, hardware, everything, together=not self.by_block),
            "diagnostics": 4.0 * min(MOST, most_rows(self.models, self.extract)) * features,
        }
        if self.extract.estimate == "moments":
            return self._of_moments(parts, rows, features)
        return {
            **parts,
            "rows": 4.0 * 3 * rows * features,
            "distances": 4.0 * rows**2 * (packed * len(self.layers) / 2 + whole),
            "matrices": 8.0
            * rows**2
            * max(m.slow.squares * hardware.workers if m.slow else m.squares * len(self.layers) for m in measures),
            "processes": 0.35e9 * hardware.workers if hardware.workers > 1 and self.slow else 0.0,
            "null": 8.0 * 2 * len(self.layers) ** 2 * self.significance.permutations * len(self.measures)
            if self.significance.method == "permutation"
            else 0.0,
            "tiles": 4.0 * len(self.layers) * tile**2 + 8.0 * 2 * len(self.layers) ** 2,
        }

    def _of_moments(self, parts: Mapping[str, float], rows: int, features: int) -> dict[str, float]:
        """The same with second moments, whose cross products take what the rest leaves, if they need it."""
        widths = [layer.width for layer in self.layers]
        least = BYTES * max(widths) ** 2
        copies, at_once = 1 + bool(self.extract.remedies), rows if self.live else min(rows, AT_ONCE)
        of_rows = 4.0 * copies * at_once * features + 1.5 * BYTES * AT_ONCE * features
        # layers are decomposed one by one, once the rows have passed
        parts = {**parts, "rows": max(of_rows, 10.0 * least - parts["diagnostics"])}
        products = BYTES * sum(a * b for a, b in itertools.combinations_with_replacement(widths, 2))
        left = int((1 - RESERVE) * self.hardware.memory_limit - sum(parts.values()))
        return {**parts, "cross products": float(max(least, min(products, left)))}

    def plan(self) -> dict[str, Any]:
        """What a run would do: models, layers, pairs, forward passes, memory in GB."""
        count, extract, wanted = len(self.layers), self.extract, self.wanted()
        pairs = count * (count + 1) // 2 if wanted is None else int(wanted.triu().sum())
        length = usual_length(self.live, self.data, extract)
        return {
            "models": shown(self.models, self.hardware, self.devices),
            **({"by block": self._by_block()} if self._by_block() else {}),
            "layers": count,
            "pairs of layers": pairs,
            **({"groups": dict(self.groups)} if self.groups else {}),
            "measures": list(self.measures),
            **({"remedies": list(REMEDIES)} if self.robustness else {}),
            "estimate": extract.estimate,
            "tokens": extract.sequences * places(self.live, extract) if self.live else 0,
            "forward passes": self._turns() * len(self.live) * passes(extract.sequences, length, self.hardware),
            **({"rows, at most": most} if (most := most_rows(self.models, extract)) < sys.maxsize else {}),
            "passes over the rows": self._form(),
            **({"processes": self.hardware.workers} if self.slow else {}),
            **needs(
                self.costs(pairs),
                self.hardware,
                memory=self.memory(self.rows()),
                disk=self.disk(),
                activations=self.stored(),
                figures=len(self.measures),
            ),
        }

    def _by_block(self) -> list[str]:
        """The models that are run by block."""
        if not self.by_block:
            return []
        return [label for label, source in self.live.items() if goes_by_block(source, self.hardware)]

    def _passes(self) -> int:
        """How often the rows of all layers are read."""
        if self.extract.estimate != "moments":
            return 1
        return len(passes_of([layer.width for layer in self.layers], self.room()))

    def _packed(self) -> float:
        """Bytes of tiles in files."""
        extract = self.extract
        batches = 1 if extract.estimate == "full" else self._total() // extract.batch_rows
        kernels, groups = kernels_of(self.measures) or [], self.together()
        shape = Shape(batches, self.rows(), self.hardware.tile)
        return 0.0 if groups is None else float(shape.size * len(self.layers) * len(kernels))

    def _form(self) -> str:
        """How often the rows are read, and what is kept of them meanwhile."""
        if self.extract.estimate != "moments":
            if (groups := self.together()) is None:
                return "1, a batch of all layers at a time"
            return f"1, layers in {len(groups)} groups, packed Gram matrices of {self._packed() / 1e9:.3g} GB in files"
        products = BYTES * sum(a.width * b.width for a, b in itertools.combinations_with_replacement(self.layers, 2))
        room, count = self.room(), len(self.layers) * (len(self.layers) + 1) // 2
        at_a_time = f", {room / 1e9:.3g} GB at a time" if room < products else ""
        return f"{self._passes()}, for {count} cross products of {products / 1e9:.3g} GB{at_a_time}"

    def _total(self) -> int:
        return all_rows(self.models, self.data, self.extract)

    def stored(self) -> float:
        """Bytes of the activations of live models, where the cache is on."""
        return self.cache * activations(self.models, self.readings, self.data, self.extract)

    @property
    def cached(self) -> bool:
        """Whether the activations of all live models stay in the cache."""
        return self.cache and self.stored() <= cache.limit()

    def _turns(self) -> int:
        """How often each model runs: once, unless its activations do not stay in the cache."""
        return 1 if self.cached or len(run_alone(self.live, self.hardware)) == len(self.live) else self._passes()

    def _beside(self) -> float:
        """Bytes of the rows of models that run one after the other, where the cache does not take them."""
        if not self.by_block or self.cached:
            return 0.0
        alone = self.live if self.extract.features_changed else run_alone(self.live, self.hardware)
        return 4.0 * self._total() * sum(layer.width for layer in self.layers if layer.model in alone)

    def disk(self) -> dict[str, float]:
        """Bytes in the run folder, of packed Gram matrices and prepared layers."""
        states = 2.0 * BYTES * sum(layer.width**2 for layer in self.layers)
        return {
            "packed Gram matrices": self._packed(),
            "prepared layers": states if self.extract.estimate == "moments" else 0.0,
        }

    def costs(self, pairs: int) -> dict[str, Cost]:
        """Of so many pairs of layers, roughly."""
        extract, hardware = self.extract, self.hardware
        length = usual_length(self.live, self.data, extract)
        total = self._total()
        widths, bounds = [layer.width for layer in self.layers], list(self.measures.values())
        if extract.estimate == "moments":
            similarity = moments_cost(bounds, widths, pairs, total, hardware)
        else:
            permutations = self.significance.permutations if self.significance.method == "permutation" else 0
            similarity = self.compared(bounds, pairs, permutations)
        return {
            "forward passes": self._turns() * forward_cost(self.live.values(), extract.sequences, length, hardware),
            "similarity": (len(REMEDIES) if self.robustness else 1) * similarity,
        }

    def compared(self, bounds: Sequence[Measure], pairs: int, permutations: int) -> Cost:
        """Of so many pairs of layers on all rows, as they are and permuted."""
        batches = 1.0 if self.extract.estimate == "full" else max(self._total() / self.extract.batch_rows, 1.0)
        widths = [layer.width for layer in self.layers]
        return pairs_cost(bounds, widths, pairs, self.rows(), self.hardware, batches=batches, permutations=permutations)

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        self.choose(run)
        with run.stage("data"):
            sequences = self.sequences(run)
            self.readings = paired(self.readings, sequences, self.data, self.extract, run.warn)
            total = self.counted(run, sequences)
            clusters = clusters_of(self.significance, self.readings, sequences, self.extract, total)
            trading = self.trading(run, clusters)
        matrices, tables = matrices_of(
            run,
            self,
            self.measures,
            self.significance,
            sequences,
            total,
            clusters=clusters,
            trading=trading,
            wanted=self.wanted(),
            room=self.room(),
            groups=self.together(),
            blocks=blocks_of(self),
        )
        further = {}
        if self.robustness:
            with run.stage("remedies"):
                further |= under_remedies(run, self, sequences)
        if self.feature_maps:
            with run.stage("feature maps"):
                further |= kept_maps(run, self, sequences)
        with run.stage("results"):
            return replace(self._results(run, matrices, trading, tables), matrices=further)

    def trading(self, run: Run, clusters: Clusters) -> Segments | None:
        """The rows that permutations move. Raises BadInput where they are too few for a measure."""
        if self.significance.method != "permutation":
            return None
        widest = max(layer.width for layer in self.layers)
        least = max(widest + 1 if bound.card.refuses_wide else bound.rows_needed for bound in self.measures.values())
        trading = clusters.segments(self.extract, self.seed, least)
        if trading.share < FULL:
            run.warn(
                f"significance: p values and calibrated scores are of {100 * trading.share:.0f} % of the rows, in "
                f"{trading.count} segments of equal length, one per document, that can trade places"
            )
        if trading.in_place > STAYING:
            together = "" if self.extract.estimate == "full" else ", or use extract.estimate=full"
            run.warn(
                f"significance: random pairings leave {100 * trading.in_place:.0f} % of the rows in place, as few "
                "segments of a batch can trade places; chance holds as much of the similarity; give more documents"
                + together
            )
        return trading

    def choose(self, run: Run) -> None:
        """With groups: keeps only their models, some chosen by the metrics that they were saved with."""
        if not self.groups:
            return
        with run.stage("groups"):
            self.members = chosen(run, self.groups, self.models)
            self._take(of_groups(self.models, self.members))
            self.tokenizers = {label: self.tokenizers[label] for label in self.live}

    def sequences(self, run: Run) -> dict[str, Sequences]:
        return inputs(run, self.live, self.tokenizers, self.data, self.extract, self.seed)

    def counted(self, run: Run, sequences: Mapping[str, Sequences]) -> int:
        """The number of rows. Raises BadInput where they are too few."""
        total, estimate = counted(run, self, sequences), self.extract.estimate
        if estimate in ("per_batch", "ratio_of_sums") and total < self.extract.batch_rows:
            raise self._too_few_rows(str(total))
        at_a_time = {"full": min(total, self.extract.rows), "moments": total}.get(estimate, self.extract.batch_rows)

        def check(bound: Measure) -> None:
            if bound.card.labelled and all(inputs.labels is None for inputs in sequences.values()):
                raise BadInput(
                    f"data: {bound.name} needs a label per row, got none in {self.data.source}; use other data"
                )
            check_rows(bound, self.layers, at_a_time)

        self.measures, skipped = suitable(self.measures, check, self.skip_unsuitable)
        for label, why in skipped.items():
            run.skip(label, why)
        used, tested = at_a_time if estimate == "full" else total, self.significance.method != "none"
        warn_of_few_rows(run, self.measures, self.layers, at_a_time, used, tested)
        return total

    def room(self) -> float:
        """Bytes for the cross products of second moments in one pass over the rows."""
        return self.memory(self.rows()).get("cross products", 0.0)

    def _too_few_rows(self, got: str) -> BadInput:
        advice = "give more text, raise sequences or length, " if self.live else ""
        return BadInput(
            f"extract.batch_rows: the data has fewer rows than one batch, got {got} for {self.extract.batch_rows}; "
            f"lower batch_rows, {advice}or use extract.estimate=full"
        )

    def _results(
        self, run: Run, matrices: Matrices, trading: Segments | None, of_layers: Mapping[str, Table]
    ) -> Results:
        measures, tables = records(
            run,
            self.readings,
            self.measures,
            matrices,
            self.significance,
            trading=trading,
            wanted=self.wanted(),
        )
        names = [str(layer) for reading in self.readings for layer in reading.layers]
        tables |= solved(run, names, self.measures, matrices) | dict(of_layers)
        return Results(study="similarity", measures=measures, tables=tables)
