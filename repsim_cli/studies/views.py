"""The rows of every layer looked at directly: their distances, their neighbours, and how layers match them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from repsim_cli.activations.inputs import check_modality, paired, tokenizers
from repsim_cli.activations.rows import (
    Layer,
    devices,
    readings,
    row_labels,
    row_numbers,
)
from repsim_cli.analysis.claims.finding import check_names
from repsim_cli.analysis.claims.views import SHIFT_CLAIMS, VIEW_CLAIMS, overlap_verdicts, plan_verdicts, shift_verdicts
from repsim_cli.analysis.couplings import Plan, matched
from repsim_cli.analysis.histograms import DistanceScale, apart, divergence, histograms, spread
from repsim_cli.analysis.neighbourhoods import chance, nearest, overlap, plane
from repsim_cli.analysis.sub_networks import in_order
from repsim_cli.data.base import Data, Sequences, draw
from repsim_cli.errors import BadInput, Degenerate, RunFailed
from repsim_cli.findings.evidence import without
from repsim_cli.measures.gromov import Space, space
from repsim_cli.models.source import AnySource, Source
from repsim_cli.registry import did_you_mean, studies
from repsim_cli.results import Run, slug
from repsim_cli.settings import Above0, Extract, Hardware, Medium, NotNegative, Positive, Tries


@dataclass(frozen=True)
class Part:
    tables: Any = None
    curves: Any = None
    claims: Any = ()
    more: Any = None


def joined(parts: Any) -> Any:
    raise NotImplementedError


from repsim_cli.studies.bounds import check_rows_fit, in_gb, most_rows, passing, shown, usual_length
from repsim_cli.studies.cost import distances_time, forward_time, times
from repsim_cli.studies.sample import counted, inputs, prepare, sample

View = Literal["histograms", "neighbours", "couplings"]
ALL: tuple[View, ...] = ("histograms", "neighbours", "couplings")
SAMPLES, PAIRS = 3, 5  # drawn where none are named, as published
PLANE, FULL = "t-SNE plane", "full space"
DISTANCES = ["model", "layer", "mean", "standard deviation", "KL(layer || previous)", "KL(previous || layer)"]
KEPT = ["model", "space", "sample", "mean with the first layer", "mean without it", "by chance"]
COUPLED = [
    "model", "rows", "columns", "starts", "objective", "from", "objective of the identity", "coupling",
    "on the diagonal", "within classes",
]  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The few rows that are looked at one by one: where they stand among the sampled ones, their numbers in the run,
    and their classes where the data has some. Rows of a class stand together."""

    places: Int[np.ndarray, " n"]
    numbers: list[int]
    classes: list[str] | None

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, place: int) -> str:
        return f"row {self.numbers[place]}" + (f" ({self.classes[place]})" if self.classes else "")

    def codes(self) -> Int[np.ndarray, " n"] | None:
        return None if self.classes is None else np.unique(self.classes, return_inverse=True)[1]


@studies.register("views")
class Views:
    """Analyses of the activations of any run: with its model, data and extract no model runs again.

    views: which ones (null: all). `histograms`: of all distances within each layer, in `bins` equal bins from 0 to the
    largest distance of the model (distance_scale: as they are, or over the mean of their layer), with the KL
    divergence between layers that follow each other in the network. `neighbours`: `batch` rows in the plane of a
    t-SNE (perplexity), and how many of the k nearest rows of some samples are those of the model's first layer, in
    that plane and in the full space. `couplings`: how Gromov-Wasserstein matches the batch between pairs of layers,
    from POT's start and as the best of this one, the identity and `restarts` drawn ones.
    samples: places in the batch, from 0 (null: 3 drawn). pairs: [[LAYER, LAYER], ...] of each model (null: 5 drawn).
    The batch is drawn from the rows of the run, and sorted by class where these have one.
    """

    def __init__(
        self,
        *,
        model: Mapping[str, AnySource],
        data: Data,
        extract: Extract,
        hardware: Hardware,
        seed: int,
        cache: bool = True,
        base: str | None = None,
        views: list[View] | None = None,
        bins: Annotated[int, Field(ge=2, le=10_000)] = 50,
        distance_scale: DistanceScale = "none",
        batch: Medium = 16,
        perplexity: Above0 = 5.0,
        k: Positive = 5,
        samples: list[NotNegative] | None = None,
        pairs: list[list[str]] | None = None,
        restarts: Tries = 0,
        claims: list[str] | None = None,
    ):
        if not model:
            raise BadInput("model: no model is selected, got none; e.g. model=[tiny_a,tiny_b]")
        if views == []:
            raise BadInput(f"options.views: none is selected, got []; choose of {', '.join(ALL)}, or null for all")
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: views are of one sample of rows, got {extract.estimate}; use full")
        self.models, self.data, self.extract, self.hardware = dict(model), data, extract, hardware
        self.seed, self.cache, self.base = seed, cache, base
        self.views: list[View] = list(dict.fromkeys(views or ALL))
        self.bins, self.perplexity, self.k, self.restarts = bins, perplexity, k, restarts
        self.distance_scale: DistanceScale = distance_scale
        self.batch, self.samples, self.pairs, self.claims = batch, samples, pairs, claims or []
        self.live = {label: source for label, source in model.items() if isinstance(source, Source)}
        check_modality(self.live, data)
        self.readings = readings(model, extract)
        self.layers = [layer for reading in self.readings for layer in reading.layers]
        self._check_claims()
        self._check_layers()
        self.most = min(extract.rows, most_rows(self.models, extract))
        self._check_rows(self.most)
        self.devices = devices(hardware, list(model))
        check_rows_fit(self.memory, self.most, hardware, self.live, least=max(4, batch))
        self.tokenizers = tokenizers(self.live, data, extract)

    def _check_claims(self) -> None:
        check_names(self.claims, VIEW_CLAIMS)
        for name in self.claims:
            if VIEW_CLAIMS[name] not in self.views:
                raise BadInput(
                    f"options.claims: {name} is about {VIEW_CLAIMS[name]}, got views {self.views}; add it to "
                    "options.views, or drop the claim"
                )

    def _check_layers(self) -> None:
        for reading in self.readings:
            if len(reading.layers) < 2:
                raise BadInput(
                    f"extract.hook_points, model.{reading.label}: layers are compared with each other, got "
                    f"{len(reading.layers)}; read two or more"
                )
            narrow = min(reading.layers, key=lambda layer: layer.width)
            if "neighbours" in self.views and narrow.width < 2:
                raise BadInput(
                    f"options.views: a plane needs 2 features, got {narrow.width} ({narrow}); leave this layer out, or "
                    "drop neighbours"
                )
            known = [layer.name for layer in reading.layers]
            for pair in self.pairs or ():
                if len(pair) != 2:
                    raise BadInput(f"options.pairs: two layers make a pair, got {pair}; give [[LAYER, LAYER], ...]")
                for name in pair:
                    if name not in known:
                        raise BadInput(
                            f"options.pairs, model.{reading.label}: no such layer, got '{name}'; "
                            f"{did_you_mean(name, known)}"
                        )

    def _check_rows(self, rows: int) -> None:
        """Raises BadInput where what is asked for needs more rows than these."""
        closely = [view for view in self.views if view != "histograms"]
        if rows < (least := max(2, self.batch if closely else 0)):
            raise BadInput(
                f"extract.rows: {'a batch' if closely else 'a distance'} needs {least} rows, got {rows}; "
                "raise extract.rows and extract.sequences, or lower options.batch"
            )
        if closely and self.batch < 3:
            raise BadInput(f"options.batch: neighbours and couplings need 3 rows, got {self.batch}; raise it")
        if "neighbours" not in self.views:
            return
        for key, value in (("k", self.k), ("perplexity", self.perplexity)):
            if value >= self.batch:
                raise BadInput(f"options.{key}: not below the {self.batch} rows of the batch, got {value}; lower it")
        chosen = self.samples or []
        if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(self.batch)):
            raise BadInput(
                f"options.samples: not distinct places from 0 to {self.batch - 1} of the batch, got {chosen}; "
                "name others"
            )

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: weights, what one forward batch leaves, the rows of all layers, and the distances."""
        features = sum(layer.width for layer in self.layers)
        widest = max(layer.width for layer in self.layers)
        return {
            "Python and its libraries": 0.6e9,
            **passing(self.live, self.extract, self.hardware, features),
            "rows": 4.0 * 2 * rows * features + 8.0 * 3 * rows * widest,
            # a block of 512 rows against all: squared, as distances, and where they stand
            "distances": 8.0 * 8 * min(rows, 512) * rows if "histograms" in self.views else 0.0,
            "batch": 8.0 * self.batch**2 * (10 + len(self.layers)) if set(self.views) - {"histograms"} else 0.0,
        }

    def plan(self) -> dict[str, Any]:
        """What a run would do: models, layers, views, rows, forward passes, memory in GB."""
        forward = -(-self.extract.sequences // self.hardware.batch_size)
        return {
            "models": shown(self.models),
            "layers": len(self.layers),
            "views": self.views,
            "rows, at most": self.most,
            "rows of the batch": self.batch,
            "forward passes, unless stored": forward * len(self.live),
            "memory, GB": in_gb(self.memory(self.most)),
            "time, roughly": times(self.times(), self.hardware, figures=2 * len(self.views) * len(self.models)),
        }

    def times(self) -> dict[str, float]:
        """Seconds, roughly; of couplings, Gromov-Wasserstein of a batch from all starts."""
        hardware, widths = self.hardware, [layer.width for layer in self.layers]
        length = usual_length(self.live, self.data, self.extract)
        parts = {"forward passes": forward_time(self.live.values(), self.extract.sequences, length, hardware)}
        if "histograms" in self.views:
            parts["distances"] = distances_time(widths, self.most, hardware)
        return parts

    def run(self, run: Run) -> dict[str, Any]:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = inputs(run, self.live, self.tokenizers, self.data, self.extract, self.seed)
            self.readings = paired(self.readings, sequences, self.data, self.extract)
            total = counted(run, self, sequences)
            self._check_rows(min(total, self.extract.rows))
        taken = iter(sample(run, self, sequences, total))
        rows = {reading.label: [next(taken) for _ in reading.layers] for reading in self.readings}
        orders = {reading.label: in_order([layer.name for layer in reading.layers]) for reading in self.readings}
        rows = {label: [own[i] for i in orders[label]] for label, own in rows.items()}
        self.layers = [reading.layers[i] for reading in self.readings for i in orders[reading.label]]
        batch = self._drawn_batch(sequences, total)
        makers: dict[View, Callable[[], Part]] = {
            "histograms": lambda: self._histograms(run, rows),
            "neighbours": lambda: self._neighbours(run, rows, batch),
            "couplings": lambda: self._couplings(run, rows, batch),
        }
        parts = []
        for view in self.views:
            with run.stage(view):
                parts.append(makers[view]())
        found = joined(parts)
        shown = {view: found.pop(view) for view in self.views}
        return {
            "measures": [],
            **found,
            "views": {"batch": {"rows": batch.numbers, "classes": batch.classes}, **shown},
        }

    def _drawn_batch(self, sequences: Mapping[str, Sequences], total: int) -> Batch:
        """Rows drawn from the sampled ones, those of a class together."""
        numbers = row_numbers(self.extract, total, self.seed, 0)
        places = draw(len(numbers), self.batch, self.seed)
        first = next(iter(sequences.values()), None)
        codes = None if first is None else row_labels(first, self.extract)
        if first is None or first.labels is None or codes is None:
            return Batch(places, numbers[places].tolist(), None)
        places = places[codes[numbers[places]].argsort(kind="stable")]
        classes = [first.labels.names[code] for code in codes[numbers[places]]]
        return Batch(places, numbers[places].tolist(), classes)

    def _names(self, label: str) -> list[str]:
        return [layer.name for layer in self.layers if layer.model == label]

    def _each(self, run: Run, rows: Mapping[str, list[Tensor]], step: Callable[[Tensor], Any], name: str) -> dict:
        """step of every layer, by model; its errors say which layer's."""

        def made(layer: Layer, x: Tensor) -> Any:
            try:
                return step(x)
            except Degenerate as error:
                raise RunFailed(f"{layer}: {error}") from error

        given = [x for own in rows.values() for x in own]
        numbered = run.progress(range(len(given)), label=name, unit="layers")
        done = iter([made(self.layers[i], given[i]) for i in numbered])
        return {label: [next(done) for _ in own] for label, own in rows.items()}

    def _histograms(self, run: Run, rows: Mapping[str, list[Tensor]]) -> Part:
        spreads = self._each(run, rows, spread, "distances")
        records, table, shifts, lines = [], [], {}, {}
        for number, (label, own) in enumerate(rows.items()):
            names = self._names(label)
            found = histograms(own, spreads[label], bins=self.bins, scale=self.distance_scale)
            forward = [divergence(after, before) for before, after in pairwise(found.counts)]
            backward = [divergence(before, after) for before, after in pairwise(found.counts)]
            for name, one, there, back in zip(names, spreads[label], [None, *forward], [None, *backward], strict=True):
                table.append([label, name, one.mean, one.deviation, there, back])
            shifts[label] = _between_blocks(names, forward)
            lines[label] = {"layers": names[1:], "KL": forward}
            stem = f"histograms-{number:02d}-{slug(label)}"
            records.append(
                {
                    "model": label,
                    "layers": names,
                    "rows": len(own[0]),
                    "scale": self.distance_scale,
                    "edges": run.write_array(f"{stem}-edges", found.edges),
                    "counts": run.write_array(stem, found.counts),
                    "kl": forward,
                }
            )
        return Part(
            tables={"distances": {"columns": DISTANCES, "rows": table}},
            curves={"KL from previous layer": {"label": "KL(layer || previous layer), nats", "by_layer": lines}},
            claims=shift_verdicts(self.claims, shifts, self._shifts_left_out(rows), self.base),
            more={"histograms": records},
        )

    def _shifts_left_out(self, rows: Mapping[str, list[Tensor]]) -> list[dict[str, list[float]]]:
        """KL between consecutive blocks of every model without each tenth of the rows, where claims ask for it."""
        if not any(name in SHIFT_CLAIMS for name in self.claims):
            return []
        total, found = len(next(iter(rows.values()))[0]), []
        for kept in without(total):
            parts = {label: [x[torch.from_numpy(kept)] for x in own] for label, own in rows.items()}
            counts = {
                label: histograms(own, [spread(x) for x in own], bins=self.bins, scale=self.distance_scale).counts
                for label, own in parts.items()
            }
            found.append(
                {
                    label: _between_blocks(self._names(label), [divergence(b, a) for a, b in pairwise(own)])
                    for label, own in counts.items()
                }
            )
        return found

    def _neighbours(self, run: Run, rows: Mapping[str, list[Tensor]], batch: Batch) -> Part:
        taken = self._taken(rows, batch)
        planes = self._each(run, taken, partial(plane, perplexity=self.perplexity, seed=self.seed), "t-SNE")
        chosen = self.samples or draw(len(batch), SAMPLES, self.seed).tolist()
        names, by_chance = [batch.name(place) for place in chosen], chance(len(batch), self.k)
        records, tables, means, lines = [], {}, [], {}
        overlaps: dict[str, list[np.ndarray]] = {PLANE: [], FULL: []}
        for number, (label, own) in enumerate(taken.items()):
            layers, shown = self._names(label), []
            around = {
                PLANE: np.stack([nearest(torch.from_numpy(x), self.k) for x in planes[label]]),
                FULL: np.stack([nearest(x, self.k) for x in own]),
            }
            for which, found in around.items():
                of_all = overlap(found[:1], found)
                kept = of_all[:, chosen]
                shown += [[which, layer, *row] for layer, row in zip(layers, kept.tolist(), strict=True)]
                for name, row in zip(names, kept.T, strict=True):
                    means.append([label, which, name, float(row.mean()), float(row[1:].mean()), by_chance])
                overlaps[which].append(of_all[1:])
                lines[label] = {**lines.get(label, {"layers": layers[1:]}), which: kept[1:].mean(1).tolist()}
            tables[f"neighbours of {label}"] = {"columns": ["space", "layer", *names], "rows": shown}
            stem = f"neighbours-{number:02d}-{slug(label)}"
            records.append(
                {
                    "model": label,
                    "layers": layers,
                    "k": self.k,
                    "samples": chosen,
                    "planes": run.write_array(f"{stem}-planes", np.stack(planes[label])),
                    "nearest": run.write_array(f"{stem}-nearest", around[PLANE][:, chosen]),
                }
            )
        about = f"overlap with the first layer's\n{self.k} nearest rows (by chance: {by_chance:.2f})"
        return Part(
            tables={"neighbours kept": {"columns": KEPT, "rows": means}, **tables},
            curves={"neighbours kept": {"label": about, "by_layer": lines}},
            claims=overlap_verdicts(self.claims, overlaps, by_chance),
            more={"neighbours": records},
        )

    def _couplings(self, run: Run, rows: Mapping[str, list[Tensor]], batch: Batch) -> Part:
        spaces = self._each(run, self._taken(rows, batch), _space, "distances")
        wanted = [(label, *pair) for label in rows for pair in self._pairs(label)]
        codes, records, table = batch.codes(), [], []
        plans: dict[str, list[Plan]] = {}
        for number in run.progress(range(len(wanted)), label="couplings", unit="pairs of layers"):
            label, one, other = wanted[number]
            names = self._names(label)
            a, b = (spaces[label][names.index(name)] for name in (one, other))
            for way, found in matched(a, b, restarts=self.restarts, seed=self.seed).items():
                plans.setdefault(way, []).append(found)
                kind = "permutation" if found.is_permutation else "spread"
                inside = None if codes is None else found.within(codes)
                solved = [found.objective, found.start, found.of_identity]
                table.append([label, one, other, way, *solved, kind, found.diagonal, inside])
                stem = f"couplings-{number:03d}-{slug(label)}-{slug(one)}-{slug(other)}-{slug(found.start)}"
                records.append(
                    {
                        "model": label,
                        "rows": one,
                        "columns": other,
                        "starts": way,
                        "coupling": run.write_array(stem, found.coupling),
                        "objective": found.objective,
                        "diagonal": found.diagonal,
                    }
                )
        return Part(
            tables={"couplings": {"columns": COUPLED, "rows": table}},
            claims=plan_verdicts(self.claims, plans),
            more={"couplings": records},
        )

    def _taken(self, rows: Mapping[str, list[Tensor]], batch: Batch) -> dict[str, list[Tensor]]:
        return {label: [x[torch.from_numpy(batch.places)] for x in own] for label, own in rows.items()}

    def _pairs(self, label: str) -> list[tuple[str, str]]:
        """The pairs of layers that are named, or some of all, drawn under the seed."""
        if self.pairs is not None:
            return [(one, other) for one, other in self.pairs]
        known = list(combinations(self._names(label), 2))
        return [known[i] for i in draw(len(known), PAIRS, self.seed)]


def _between_blocks(names: Sequence[str], kl: Sequence[float]) -> list[float]:
    """Of KL from each layer to the next those between the same point of two blocks: claims compare blocks."""
    points = [name.split("@")[0].rstrip("0123456789") for name in names]
    return [one for one, (before, after) in zip(kl, pairwise(points), strict=True) if before == after]


def _space(x: Tensor) -> Space:
    return space(apart(x)[0], cost_scale="mean")
