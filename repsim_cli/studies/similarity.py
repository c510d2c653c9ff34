"""Similarity of every layer of every model with every layer of every model."""

import bisect
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from repsim_cli import significance as judging
from repsim_cli.activations.cached import cached, from_cache
from repsim_cli.activations.inputs import check_modality, described, named, paired, sequences_of, tokenizers
from repsim_cli.activations.rows import (
    Reading,
    batches,
    blocks,
    devices,
    readings,
    row_documents,
    row_labels,
    row_numbers,
    total_rows,
)
from repsim_cli.activations.stored import Recorder
from repsim_cli.analysis.claims.finding import check_names
from repsim_cli.analysis.claims.groups import OF_GROUPS
from repsim_cli.analysis.claims.sub_networks import LAYER_CLAIMS
from repsim_cli.analysis.sub_networks import FEWEST, Labels, parsed
from repsim_cli.cache import Entry
from repsim_cli.data.base import Data, Sequences
from repsim_cli.errors import BadInput, Degenerate, RunFailed
from repsim_cli.measures import Measure
from repsim_cli.measures.base import cosine
from repsim_cli.measures.inner import Kernel, Packed
from repsim_cli.models.source import AnySource, Source
from repsim_cli.registry import did_you_mean, studies
from repsim_cli.results import STATE, Run, slug, write
from repsim_cli.settings import Extract, Group, Hardware, Significance, SubNetworks
from repsim_cli.similarity import (
    SimilarityMatrix,
    State,
    Work,
    check_estimate,
    estimate_all_pairs,
    moment_pairs,
    note_name,
    of_sums,
)
from repsim_cli.studies.analyses import (
    OF_MAPS,
    Compared,
    Part,
    agreed,
    by_groups,
    by_layer,
    joined,
    of_single_models,
    solved,
    tested,
    with_base,
)
from repsim_cli.studies.grouped import (
    check_metrics,
    chosen,
    listed,
    of_groups,
)
from repsim_cli.studies.record import measure_record, places_of

log = logging.getLogger("repsim")
CLOSEST = ["measure", "model a", "model b", "layer a", "layer b", "value", "p", "calibrated"]
SAVE_EVERY = 5.0  # seconds between two saved states of the running means


@studies.register("similarity")
class Similarity:
    """plan() answers for the run before any weight loads; run() does it and returns the results.

    within: compare layers of one model alone, and all with those of `targets`, the label of known functions of the
    input (kind: modular_targets, or precomputed).
    """

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
        groups: Mapping[str, Group] | None = None,
        base: str | None = None,
        claims: list[str] | None = None,
        agreement: bool = False,
        distances: bool = False,
        by_layer: bool = False,
        within: bool = False,
        targets: str | None = None,
        sub_networks: SubNetworks | None = None,
        couplings: bool = False,
    ):
        if not model:
            raise BadInput("model: no model is selected, got none; e.g. model=[tiny_a,tiny_b]")
        if not measure:
            raise BadInput("measure: no measure is selected, got none; e.g. measure=[cka_unbiased]")
        self.groups, self.members = groups or {}, listed(groups or {})
        self.data, self.measures = data, measure
        self.extract, self.significance, self.hardware = extract, significance, hardware
        self.seed, self.cache = seed, cache
        self.claims, self.agreement, self.distances = claims or [], agreement, distances
        self.base, self.by_layer, self.couplings = base, by_layer, couplings
        self.within, self.targets, self.sub_networks = within, targets, sub_networks
        self._take(of_groups(model, self.members))
        check_modality(self.live, data)
        for bound in measure.values():
            check_estimate(bound, extract.estimate)
            key = "rows" if extract.estimate == "full" else "batch_rows"
            rows = sys.maxsize if extract.estimate == "moments" else getattr(extract, key)
            if rows < bound.rows_needed:
                raise BadInput(
                    f"extract.{key}: {bound.name} needs at least {bound.rows_needed} rows, got {rows}; raise it"
                )
            self._check_widths(bound, rows)
            if bound.card.labelled and (not self.live or data.packed):
                raise BadInput(
                    f"measure: {bound.name} needs a label per row, got data without labels; use e.g. data=mnli"
                )
        check_names(self.claims, {**OF_MAPS, **(OF_GROUPS if self.groups else {})})
        self._check_groups()
        self._check_single_models()
        if agreement and len(measure) < 3:
            raise BadInput(f"options.agreement: 3 measures are needed, got {len(measure)}; select more")
        if couplings:
            self._check_couplings()
        self.devices = devices(hardware, list(model))
        dependent = (
            bool(self.live)
            and (extract.unit in ("token", "word") or data.packed)
            and significance.clusters == "document"
        )
        judging.check(significance, measure, extract.estimate, dependent)
        if self._in_batches() and self._most_rows() < extract.batch_rows:
            raise self._too_few_rows(f"at most {self._most_rows()}")
        self._check_memory()
        self.tokenizers = tokenizers(self.live, data, extract)

    def _in_batches(self) -> bool:
        return self.extract.estimate in ("per_batch", "ratio_of_sums")

    def _take(self, models: Mapping[str, AnySource]) -> None:
        """What is read of these models."""
        self.models = dict(models)
        self.live = {label: source for label, source in models.items() if isinstance(source, Source)}
        self.readings = readings(models, self.extract)
        self.layers = [layer for reading in self.readings for layer in reading.layers]

    def _check_groups(self) -> None:
        """Raises BadInput where models of groups have no counterparts, or no distance follows."""
        if self.distances and len(self.groups) < 2:
            raise BadInput(f"options.distances: clusters need 2 groups, got {len(self.groups)}; set groups")
        if not self.groups:
            return
        check_metrics(self.groups, self.models)
        first, *others = self.readings
        for reading in others:
            own, wanted = ([layer.name for layer in one.layers] for one in (reading, first))
            if own != wanted:
                raise BadInput(
                    f"groups: models of equal depth are needed, got {len(wanted)} layers of '{first.label}' and "
                    f"{len(own)} of '{reading.label}'; leave one of them out, or choose extract.layers that both have"
                )
        for bound in self.measures.values() if self.distances else ():
            if not bound.card.is_metric and (bound.inner is None or bound.inner.value is not cosine):
                raise BadInput(
                    f"options.distances: {bound.name} is neither a metric nor a cosine, got no angle; use cka_unbiased"
                )

    def _check_single_models(self) -> None:
        """Raises BadInput where what is asked of single models has no answer; sets the given groups of layers."""
        if self.targets is not None and self.targets not in self.models:
            near = did_you_mean(self.targets, self.models)
            raise BadInput(f"options.targets: no such model, got '{self.targets}'; {near}")
        if self.targets is not None and len(self.models) < 2:
            raise BadInput(f"options.targets: a model to compare with is needed, got '{self.targets}' alone; add one")
        across = {
            "groups": self.groups,
            "base": self.base,
            "options.agreement": self.agreement,
            "options.by_layer": self.by_layer,
            "options.claims": [name for name in self.claims if name not in LAYER_CLAIMS],
            "significance": self.significance.method != "none",
        }
        for key, asked in across.items() if self.within else ():
            if asked:
                raise BadInput(
                    f"options.within: {key} needs the layers of all models, got pairs within models alone; drop one"
                )
        self.given: dict[str, Labels] = {}
        depths = {reading.label: len(reading.layers) for reading in self.readings if reading.label != self.targets}
        if self.sub_networks is None:
            return
        where, count = "options.sub_networks", self.sub_networks.clusters or 1
        if max(depths.values()) < FEWEST:
            raise BadInput(f"{where}: {FEWEST} layers of a model are needed, got {max(depths.values())}; read more")
        for label, depth in depths.items():
            if FEWEST <= depth < count:
                raise BadInput(f"{where}.clusters: more than the layers of '{label}', got {count} of {depth}; lower it")
        for label, groups in (self.sub_networks.given or {}).items():
            if label not in depths:
                raise BadInput(f"{where}.given: no such model, got '{label}'; {did_you_mean(label, depths)}")
            try:
                self.given[label] = parsed(groups, depths[label])
            except BadInput as error:
                raise BadInput(f"{where}.given.{label}: {error}") from None

    def _wanted(self) -> Tensor | None:
        """Which pairs of layers the run is about, where not all are."""
        if not self.within:
            return None
        models = list(self.models)
        of = torch.tensor([models.index(layer.model) for layer in self.layers])
        either = of == (-1 if self.targets is None else models.index(self.targets))
        return (of[:, None] == of) | either | either[:, None]

    def _check_couplings(self) -> None:
        """Raises BadInput where there is no one matching of rows for a pair of layers."""
        matching = [label for label, bound in self.measures.items() if bound.slow and bound.slow.matches]
        if not matching:
            raise BadInput(
                f"options.couplings: no measure matches rows, got {', '.join(self.measures)}; select gromov_wasserstein"
            )
        if self.extract.estimate != "full":
            raise BadInput(
                f"options.couplings: they are of one sample, got {self.extract.estimate}; use extract.estimate=full"
            )

    def _check_widths(self, bound: Measure, rows: int) -> None:
        """Whether the measure takes these widths, with this number of rows."""
        wide = max(self.layers, key=lambda layer: layer.width)
        narrow = min(self.layers, key=lambda layer: layer.width)
        if bound.card.equal_widths and wide.width != narrow.width:
            raise BadInput(
                f"measure: {bound.name} needs equal widths, got {narrow.width} ({narrow}) and {wide.width} ({wide}); "
                "use procrustes or cka_unbiased, or models of one width"
            )
        if bound.card.infinite_to_itself:
            raise BadInput(
                f"measure: {bound.name} of a layer with itself is infinite, got all pairs of layers; "
                "compare two arrays with `repsim measure`, or use mean_cca"
            )
        if bound.card.refuses_wide and rows <= wide.width:
            raise BadInput(
                f"measure: {bound.name} needs more rows than features, got {rows} for {wide.width} ({wide}); "
                "give it more rows, or use svcca or cka_unbiased"
            )

    def rows(self) -> int:
        """Rows that are compared at a time."""
        extract = self.extract
        return min(extract.rows, self._most_rows()) if extract.estimate == "full" else extract.batch_rows

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: weights, what one forward batch leaves, one batch of rows, and the Gram tiles."""
        hardware, measures = self.hardware, self.measures.values()
        features = sum(layer.width for layer in self.layers)
        tile = min(hardware.tile, rows)
        kernels = {kernel for m in self.measures.values() if m.inner for kernel in (m.inner.row, m.inner.column)}
        widest = max(layer.width for layer in self.layers)
        packed = sum(isinstance(kernel, Packed) for kernel in kernels)
        whole = any(isinstance(kernel, Kernel) and kernel.whole for kernel in kernels)
        return {
            "Python and its libraries": 0.5e9,
            "weights": sum(4.0 * s.parameters for s in self.live.values()),
            "forward": 4.0 * 2 * hardware.batch_size * self._places() * features if self.live else 0.0,
            "rows": 4.0 * 3 * rows * features,
            "distances": 4.0 * rows**2 * (packed * len(self.layers) / 2 + whole),
            # a block of two layers at least, what is prepared of every layer, and a batch in float64
            "moments": 8.0 * (4 * widest**2 + 3 * sum(x.width**2 for x in self.layers) + 2 * rows * features)
            if self.extract.estimate == "moments"
            else 0.0,
            "matrices": 8.0
            * rows**2
            * max(m.slow.squares * hardware.workers if m.slow else m.squares * len(self.layers) for m in measures),
            "processes": 0.35e9 * hardware.workers if hardware.workers > 1 and any(m.slow for m in measures) else 0.0,
            "null": 8.0 * 2 * len(self.layers) ** 2 * self.significance.permutations * len(self.measures)
            if self.significance.method == "permutation"
            else 0.0,
            "tiles": 4.0 * len(self.layers) * tile**2 + 8.0 * 2 * len(self.layers) ** 2,
        }

    def _most_rows(self) -> int:
        """Rows that the data can have at most; of words nothing is known before they are read."""
        stored = [source.rows for source in self.models.values() if not isinstance(source, Source)]
        if self.extract.unit == "word":
            return min([*stored, *([sys.maxsize] if self.live else [])])
        each = self._places() if self.extract.unit == "token" else 1
        return min([*stored, *([self.extract.sequences * each] if self.live else [])])

    def _places(self) -> int:
        """Tokens of a sequence at most, or patches of an image."""
        patches = [source.context or 0 for source in self.live.values() if source.modality == "images"]
        return max(patches, default=self.extract.length)

    def _check_memory(self) -> None:
        def need(rows: int) -> float:
            return sum(self.memory(rows).values())

        limit, rows = self.hardware.memory_limit, self.rows()
        if need(rows) <= limit:
            return
        key = "rows" if self.extract.estimate == "full" else "batch_rows"
        fits = bisect.bisect_right(range(rows), limit, key=need) - 1
        enough = f"hardware.memory_gb={need(rows) / 1e9 + 0.1:.1f} would do"
        advice = f"extract.{key}={fits} would fit" if fits >= 4 else f"{enough}, or use fewer or smaller models"
        raise BadInput(
            f"hardware.memory_gb: the run needs about {need(rows) / 1e9:.2f} GB, got a limit of "
            f"{limit / 1e9:.2f} GB; {advice}"
        )

    def plan(self) -> dict[str, Any]:
        """What a run would do: models, layers, pairs, forward passes, memory in GB."""
        count, extract, wanted = len(self.layers), self.extract, self._wanted()
        pairs = count * (count + 1) // 2 if wanted is None else int(wanted.triu().sum())
        batch = min(self.hardware.batch_size, extract.sequences)
        memory = self.memory(self.rows())
        return {
            "models": {
                label: (
                    f"{source.model_type}, {source.layers} blocks of {source.width}, {source.parameters:,} parameters"
                    if isinstance(source, Source)
                    else f"precomputed, {source.rows} rows"
                )
                for label, source in self.models.items()
            },
            "layers": count,
            "pairs of layers": pairs,
            **({"groups": dict(self.groups)} if self.groups else {}),
            "measures": list(self.measures),
            "estimate": extract.estimate,
            "tokens": extract.sequences * self._places() if self.live else 0,
            "forward passes": len(self.live) * -(-extract.sequences // batch),
            **({"rows, at most": most} if (most := self._most_rows()) < sys.maxsize else {}),
            "memory, GB": {
                part: round(size / 1e9, 3) for part, size in {**memory, "in all": sum(memory.values())}.items()
            },
        }

    def run(self, run: Run) -> dict[str, Any]:
        extract, hardware = self.extract, self.hardware
        if hardware.threads:
            torch.set_num_threads(hardware.threads)
        run.manifest.update(device=hardware.device, threads=torch.get_num_threads())
        if self.groups:
            with run.stage("groups"):
                self._choose(run)
        with run.stage("data"):
            sequences = self.sequences(run)
            for bound in self.measures.values():
                if bound.card.labelled and self._labels(sequences, 1, 0) is None:
                    raise BadInput(
                        f"data: {bound.name} needs a label per row, got none in {self.data.source}; use other data"
                    )
            self.readings = paired(self.readings, sequences, self.data, extract)
            total = total_rows(self.readings, sequences, extract)
            run.manifest["rows"] = total
            self._check_rows(run, total)
        with run.stage("hashes"):
            identities = {label: source.identity() for label, source in self.models.items()}
            run.manifest["models"] = identities
        run.save_manifest()
        with self._entries(run, sequences, identities) as entries:
            found = [from_cache(reading, entries, identities) for reading in self.readings]
            live = {reading.label: reading.source for reading in found if isinstance(reading.source, Source)}
            run.manifest["models_run"] = list(live)
            dtype = getattr(torch, hardware.dtype)
            with run.stage("models"):
                modules = {
                    label: named(label, source.load, False).to(self.devices[label], dtype)
                    for label, source in live.items()
                }
            with run.stage("activations and similarity"):
                try:
                    if extract.estimate == "moments":
                        matrices = self._moments(run, modules, entries, identities, sequences, total)
                    else:
                        matrices = self._matrices(run, found, modules, entries, sequences, total)
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
        del modules
        with run.stage("results"):
            results = self._results(run, matrices)
        for label in matrices if self.significance.bootstrap else ():
            self._per_batch_file(run, label).unlink()
        return results

    def _choose(self, run: Run) -> None:
        """The models of the groups, some by the metrics that they were saved with; no other is run."""
        self.members = chosen(run, self.groups, self.models)
        self._take(of_groups(self.models, self.members))
        self.tokenizers = {label: self.tokenizers[label] for label in self.live}

    def sequences(self, run: Run) -> dict[str, Sequences]:
        """What each live model is run on, noted in the manifest."""
        sequences = sequences_of(self.live, self.tokenizers, self.data, self.extract, self.seed)
        if sequences:
            run.manifest["data"], notices = described(sequences, self.data, self.extract)
            for notice in notices:
                run.warn(notice)
        return sequences

    def _entries(self, run: Run, sequences: Mapping[str, Sequences], identities: Mapping[str, dict[str, Any]]) -> Any:
        if not self.cache or not sequences:
            return nullcontext({})
        live = [reading for reading in self.readings if reading.label in self.live]
        return cached(live, sequences, identities, self.extract, self.hardware.dtype, run.warn)

    def _per_batch_file(self, run: Run, label: str) -> Path:
        """Every batch's matrix, while the run goes on."""
        return run.folder / f".per-batch-{slug(label)}.npy"

    def _keep(self, run: Run, total: int) -> Callable[[int, Mapping[str, Tensor]], None]:
        """Writes every batch's matrix, where bands are asked for."""
        if not self.significance.bootstrap:
            return lambda batch, values: None
        shape = (total // self.extract.batch_rows, len(self.layers), len(self.layers))
        kept = {}
        for label in self.measures:
            file = self._per_batch_file(run, label)
            whole = file.is_file() and np.load(file, mmap_mode="r").shape == shape
            kept[label] = np.lib.format.open_memmap(file, "r+" if whole else "w+", np.float64, None if whole else shape)

        def keep(batch: int, values: Mapping[str, Tensor]) -> None:
            for label, matrix in values.items():
                kept[label][batch] = matrix.cpu().numpy()

        return keep

    def _clusters(self, sequences: Mapping[str, Sequences], total: int, batch: int) -> np.ndarray:
        """What every row of a batch belongs to: its document, or itself."""
        rows = row_numbers(self.extract, total, self.seed, batch)
        if not sequences or self.significance.clusters == "row":
            return rows
        return row_documents(next(iter(sequences.values())), self.extract)[rows]

    def _labels(self, sequences: Mapping[str, Sequences], total: int, batch: int) -> Tensor | None:
        """The class of every row of a batch, where the data has classes."""
        codes = row_labels(next(iter(sequences.values())), self.extract) if sequences else None
        return None if codes is None else torch.from_numpy(codes[row_numbers(self.extract, total, self.seed, batch)])

    def _work(self, run: Run) -> Work:
        return Work(
            folder=run.folder,
            processes=self.hardware.workers,
            progress=run.progress,
            couplings=self.couplings,
            seed=self.seed,
        )

    def _matrices(
        self,
        run: Run,
        found: Sequence[Reading],
        modules: Mapping[str, nn.Module],
        entries: Mapping[str, Entry],
        sequences: Mapping[str, Sequences],
        total: int,
    ) -> dict[str, SimilarityMatrix]:
        extract, hardware = self.extract, self.hardware
        recorders = {label: Recorder(entry) for label, entry in entries.items() if label in modules}
        file = run.folder / STATE
        state = safetensors.torch.load_file(file) if file.is_file() else None
        saved = time.monotonic()
        slow = any(measure.slow is not None for measure in self.measures.values())

        def save(state: State) -> None:
            nonlocal saved
            if slow or time.monotonic() - saved > SAVE_EVERY:
                write(file, safetensors.torch.save({k: v.cpu().contiguous() for k, v in state.items()}))
                saved = time.monotonic()

        def progress(steps: Sequence[int]) -> Iterator[int]:
            return run.progress(steps, label="activations and similarity", unit="batches")

        def permutations(steps: Sequence[Any], measure: str) -> Iterator[Any]:
            return run.progress(steps, label=f"permutations, {measure}", unit="steps")

        def stream(seen: int) -> Iterator[list[Tensor]]:
            first = seen * extract.batch_rows
            rows = blocks(found, modules, recorders, sequences, extract, hardware, progress, first)
            return batches(rows, extract, total, self.seed, first)

        with self._work(run) as work:
            matrices, notices = estimate_all_pairs(
                self.measures,
                stream,
                names=[str(layer) for layer in self.layers],
                estimate=extract.estimate,
                tile=hardware.tile,
                labels=partial(self._labels, sequences, total),
                statistics=judging.statistics(
                    self.significance, partial(self._clusters, sequences, total), self.seed, permutations
                ),
                each=self._keep(run, total),
                state=state,
                save=save,
                wanted=self._wanted(),
                work=work,
            )
        for notice in notices:
            run.warn(notice)
        file.unlink(missing_ok=True)
        return matrices

    def _moments(
        self,
        run: Run,
        modules: Mapping[str, nn.Module],
        entries: Mapping[str, Entry],
        identities: Mapping[str, dict[str, Any]],
        sequences: Mapping[str, Sequences],
        total: int,
    ) -> dict[str, SimilarityMatrix]:
        """The matrices from second moments: what one pass over the rows stored, the next ones read again."""
        recorders = {label: Recorder(entry) for label, entry in entries.items() if label in modules}
        places = places_of(self.readings)
        widths = [layer.width for layer in self.layers]

        def progress(steps: Sequence[int]) -> Iterator[int]:
            return run.progress(steps, label="activations and second moments", unit="batches")

        def passes(chosen: Sequence[int]) -> Iterator[list[Tensor]]:
            found, read = [], []
            for whole, place in zip(self.readings, places, strict=True):
                numbers = [a for a in range(place.start, place.stop) if a in chosen]
                if not numbers:
                    continue
                reading = from_cache(whole, entries, identities)
                if reading.points and reading.label in recorders:
                    numbers = list(range(place.start, place.stop))  # what is written must be whole
                own = [a - place.start for a in numbers]
                points = [reading.points[a] for a in own] if reading.points else []
                found.append(replace(reading, points=points, layers=[reading.layers[a] for a in own]))
                read += numbers
            kept = [read.index(a) for a in chosen]
            rows = blocks(found, modules, recorders, sequences, self.extract, self.hardware, progress)
            for batch in batches(rows, self.extract, total, self.seed):
                yield [batch[a] for a in kept]

        matrices, notices = moment_pairs(
            self.measures, passes, names=[str(layer) for layer in self.layers], widths=widths, side=self._side()
        )
        for notice in notices:
            run.warn(notice)
        return matrices

    def _side(self) -> int:
        """Features of a block of layers: a quarter of the memory that is left holds the products of two blocks."""
        free = self.hardware.memory_limit - sum(self.memory(self.rows()).values())
        return int((max(free, 0.0) / 4 / 8) ** 0.5)

    def _too_few_rows(self, got: str) -> BadInput:
        advice = "raise sequences or length" if self.live else "use extract.estimate=full"
        return BadInput(
            f"extract.batch_rows: the data has fewer rows than one batch, got {got} for {self.extract.batch_rows}; "
            f"lower batch_rows, or {advice}"
        )

    def _check_rows(self, run: Run, total: int) -> None:
        extract = self.extract
        asked = {"full": extract.rows, "moments": total}.get(extract.estimate, extract.batch_rows)
        if extract.estimate == "full":
            if total < asked:
                run.warn(f"extract.rows: {asked} rows were asked for, the data has {total}; all are used")
                asked = total
        elif total < asked:
            raise self._too_few_rows(str(total))
        for name, bound in self.measures.items():
            if asked < bound.rows_needed:
                raise BadInput(f"data: {name} needs at least {bound.rows_needed} rows, got {asked}; give more text")
            self._check_widths(bound, asked)
            wide = [layer for layer in self.layers if asked <= layer.width]
            if bound.card.width_limit and wide:
                run.warn(f"{name}: {asked} rows for {wide[0].width} features ({wide[0]}); {bound.card.width_limit}")

    def _results(self, run: Run, matrices: Mapping[str, SimilarityMatrix]) -> dict[str, Any]:
        records, closest = [], []
        names = [layer.name for layer in self.layers]
        for label, matrix in matrices.items():
            measure = self.measures[label]
            judged = judging.judge(self.significance, measure, matrix)
            extra: dict[str, Any] = {
                "se": matrix.statistics.get("se", matrix.se),
                "p": judged.p,
                "calibrated": judged.calibrated,
            }
            if measure.slow is not None:
                extra |= {key: matrix.statistics[key] for key in measure.slow.details}
                if self.couplings and measure.slow.matches:
                    extra["coupling"] = self._work(run).matchings(note_name(self.measures, label))
            if self.significance.bootstrap:
                batches = np.load(self._per_batch_file(run, label), mmap_mode="r")[: matrix.batches]
                finish = partial(of_sums, measure, names=names) if matrix.estimate == "ratio_of_sums" else torch.clone
                extra["low"], extra["high"] = judging.bands(batches, self.significance, self.seed, finish)
            records.append(
                measure_record(run, self.readings, label, measure, matrix, extra, judged.null, wanted=self._wanted())
            )
            if self.significance.method == "permutation":
                places = dict(zip(self.models, places_of(self.readings), strict=True))
                best = judging.best_pairs(self.significance, measure, matrix, places, names)
                closest += [[label, *row] for row in best]
        found = Compared(
            models=self.models,
            readings=self.readings,
            measures=self.measures,
            values={label: matrix.values.cpu().numpy() for label, matrix in matrices.items()},
            claims=self.claims,
            base=self.base,
        )
        parts = [
            Part(tables={"closest layers": {"columns": CLOSEST, "rows": closest}} if closest else {}),
            solved(run, found, matrices),
            tested(found),
            of_single_models(found, targets=self.targets, groups=self.sub_networks, given=self.given),
        ]
        if self.agreement:
            parts.append(agreed(run, found))
        if self.by_layer:
            parts.append(by_layer(found))
        if self.base:
            parts.append(with_base(found, self.base))
        if self.groups:
            level = self.significance.level
            own = by_groups(run, found, self.members, distances=self.distances, level=level, seed=self.seed)
            parts.append(own)
        return {"measures": records, **joined(parts)}
