"""The rows of every layer looked at directly: their distances, their neighbours, and how layers match them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from repsim_cli import measures
from repsim_cli.activations.places import list_row_labels
from repsim_cli.activations.readings import Layer
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.plain import find_free_key, slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.settings import Above0, Medium, NotNegative, Positive, Tries
from repsim_cli.data.base import Sequences, draw
from repsim_cli.engine import footprint
from repsim_cli.engine.behind import list_row_texts
from repsim_cli.engine.bounds import bound_pass, check_rows_fit, count_most_rows, describe_models
from repsim_cli.engine.cost import (
    Cost,
    describe_needs,
    estimate_distances_cost,
    estimate_pairs_cost,
    estimate_products,
)
from repsim_cli.engine.extraction import Extraction, make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.engine.without_value import NoValue, join_reasons
from repsim_cli.findings.layers import order_layers
from repsim_cli.measures.gromov_spaces import Space, prepare_space
from repsim_cli.runs.content import Matrix, Results, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.views.couplings import BEST, match_rows
from repsim_cli.studies.views.histograms import (
    DistanceScale,
    DistanceSpread,
    make_distance_histograms,
    make_jackknife_subsets,
    measure_distance_spreads,
    standardise_rows,
)
from repsim_cli.studies.views.neighbourhoods import FULL, PLANE, find_nearest_rows, project_to_plane

SAMPLES, PAIRS = 3, 5  # drawn where none are named, as published
PLANE_SQUARES, PAIR_SQUARES = 13.0, 20.0  # matrices (n, n) of float64 of a t-SNE, and of a pair that is matched
OF_PLANE = 1.5e6  # operations of a pair of rows in a t-SNE


@dataclass(frozen=True, kw_only=True)
class Histograms:
    """Histograms of the distances of all rows within each layer, in bins that the layers of a model share.

    bins: how many equal bins, from 0 to the largest distance in any layer of the model.
    scale: distances as they are (`none`), or divided by the mean of their layer (`mean`).
    """

    bins: Annotated[int, Field(ge=2, le=10_000)] = 50
    scale: DistanceScale = "none"


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The nearest rows of each row of the batch, in the plane of a t-SNE and in the full space of each layer.

    k: how many nearest rows.
    perplexity: of the t-SNE; below the number of rows of the batch.
    samples: rows whose neighbours are drawn and listed, as places in the batch from 0; null: three drawn at random.
    """

    k: Positive = 5
    perplexity: Above0 = 5.0
    samples: list[NotNegative] | None = None


@dataclass(frozen=True, kw_only=True)
class CouplingSettings:
    """How Gromov-Wasserstein matches the rows of the batch between pairs of layers of a model.

    pairs: [[LAYER, LAYER], ...], the same for each model; null: five of each model, drawn at random.
    restarts: random starts beside POT's and the identity.
    """

    pairs: list[list[str]] | None = None
    restarts: Tries = 0


@dataclass(frozen=True)
class ViewBatch:
    """The few rows that are looked at one by one: where they stand among the sampled ones, their numbers in the run,
    and their classes where the data has some. Rows of a class stand together."""

    places: Int[np.ndarray, " n"]
    numbers: list[int]
    classes: list[str] | None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def names(self) -> list[str]:
        classes = [f" ({name})" for name in self.classes] if self.classes else [""] * len(self)
        return [f"row {number}{of}" for number, of in zip(self.numbers, classes, strict=True)]


@studies.register("views")
class Views(StudyOfRows):
    """Looks at the rows of the layers themselves: their distances, their neighbours, and how layers match them.

    With the model, data and extract of a finished run no model runs again. All three views are made unless some are
    null.

    histograms: settings of the distances' histograms; null: none are made.
    neighbours: settings of the nearest rows; null: none are looked for.
    couplings: settings of the couplings between layers; null: none are computed.
    batch: how many rows neighbours and couplings look at, drawn from those of the run and sorted by class.

    Example: repsim run study=views model=[] +model.mine='{kind: transformers, path: DIR}' data=local_text
        data.path=FILE extract.estimate=full
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        base: str | None = None,
        histograms: Histograms | None,
        neighbours: Neighbours | None,
        couplings: CouplingSettings | None,
        batch: Medium = 16,
        **given: Unpack[OfRows],
    ):
        self.extraction, self.batch = make_extraction(given), batch
        self.extract, self.hardware, self.seed = given["extract"], given["hardware"], given["seed"]
        views = {"histograms": histograms, "neighbours": neighbours, "couplings": couplings}
        self.views = [name for name, settings in views.items() if settings is not None]
        if not self.views:
            raise BadInput(f"options: no view is made, all are null: {', '.join(views)}; set one of them to {{}}")
        if (got := self.extract.estimate) != "full":
            raise BadInput(f"extract.estimate: views are of one sample of rows, got {got}; use full")
        self.readings, self.layers = self.extraction.readings, self.extraction.layers
        self.histograms, self.neighbours, self.couplings = histograms, neighbours, couplings
        self._check_layers()
        self.most = min(self.extract.rows, count_most_rows(self.extraction.models, self.extract))
        self._check_rows(self.most)
        check_rows_fit(self.memory, self.most, self.hardware, self.extraction.live, least=max(4, batch))

    def _check_layers(self) -> None:
        for reading in self.readings:
            if len(reading.layers) < 2:
                raise BadInput(
                    f"extract.hook_points, model.{reading.label}: layers are compared with each other, got "
                    f"{len(reading.layers)}; read two or more"
                )
            narrow = min(reading.layers, key=lambda layer: layer.width)
            if self.neighbours and narrow.width < 2:
                raise BadInput(
                    f"options.neighbours: a plane needs 2 features, got {narrow.width} ({narrow}); leave this layer "
                    "out, or set options.neighbours=null"
                )
            known = [layer.name for layer in reading.layers]
            for pair in (self.couplings and self.couplings.pairs) or ():
                if len(pair) != 2:
                    raise BadInput(
                        f"options.couplings.pairs: two layers make a pair, got {pair}; give [[LAYER, LAYER], ...]"
                    )
                for name in pair:
                    if name not in known:
                        raise BadInput(
                            f"options.couplings.pairs, model.{reading.label}: no such layer, got '{name}'; "
                            f"{did_you_mean(name, known)}"
                        )

    def _check_rows(self, rows: int) -> None:
        """Raises BadInput where what is asked for needs more rows than these."""
        closely = bool(self.neighbours or self.couplings)
        if rows < (least := max(3, self.batch if closely else 0)):
            raise BadInput(
                f"extract.rows: {'a batch needs' if closely else 'histograms need'} {least} rows, got {rows}; "
                "raise extract.rows and extract.sequences" + (", or lower options.batch" if closely else "")
            )
        if closely and self.batch < 3:
            raise BadInput(f"options.batch: neighbours and couplings need 3 rows, got {self.batch}; raise it")
        if self.neighbours is None:
            return
        for key in ("k", "perplexity"):
            if (value := getattr(self.neighbours, key)) >= self.batch:
                raise BadInput(
                    f"options.neighbours.{key}: not below the {self.batch} rows of the batch, got {value}; lower it"
                )
        chosen = self.neighbours.samples or []
        if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(self.batch)):
            raise BadInput(
                f"options.neighbours.samples: not distinct places from 0 to {self.batch - 1} of the batch, got "
                f"{chosen}; name others"
            )

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: weights, what one forward batch leaves, the rows of all layers, and what the views hold."""
        features = sum(layer.width for layer in self.layers)
        widest = max(layer.width for layer in self.layers)
        return {
            "Python and its libraries": 0.6e9,
            **bound_pass(self.extraction.live, self.extract, self.hardware, features),
            "rows": 4.0 * 2 * rows * features + 8.0 * 3 * rows * widest,
            # a block of 512 rows against all: squared, as distances, where they stand, and without a tenth of the rows
            "distances": 8.0 * 10 * min(rows, 512) * rows if self.histograms else 0.0,
            "batch": 8.0 * self.batch**2 * max(PLANE_SQUARES * bool(self.neighbours), self._count_coupling_squares()),
        }

    def _count_coupling_squares(self) -> float:
        """Counts the (n, n) matrices of float64 that couplings hold: two or so of each layer, and those of a pair."""
        return PAIR_SQUARES + 2.0 * len(self.layers) if self.couplings else 0.0

    def plan(self) -> dict[str, Any]:
        """Describes what a run would do: models, layers, views, rows, forward passes, memory in GB."""
        return {
            "models": describe_models(self.extraction.models, self.hardware),
            "layers": len(self.layers),
            "views": self.views,
            "rows, at most": self.most,
            "rows of the batch": self.batch,
            "forward passes, unless stored": footprint.count_passes_of_models(self.extraction),
            **describe_needs(
                self.costs(),
                self.hardware,
                memory=self.memory(self.most),
                activations=footprint.count_stored(self.extraction),
                figures=2 * len(self.views) * len(self.extraction.models),
            ),
        }

    def costs(self) -> dict[str, Cost]:
        """Estimates the forward passes and the views."""
        hardware, widths = self.hardware, [layer.width for layer in self.layers]
        parts = {"forward passes": footprint.estimate_passes_cost(self.extraction)}
        if self.histograms:
            parts["distances"] = estimate_distances_cost(widths, self.most, hardware)
        if self.neighbours:
            parts["planes"] = estimate_products(OF_PLANE * self.batch**2 * len(widths), hardware)
        if self.couplings:
            solver = measures.get("gromov_wasserstein", restarts=self.couplings.restarts)
            parts["couplings"] = estimate_pairs_cost(
                [solver],
                widths,
                2 * self._count_pairs(self.couplings.pairs),
                self.batch,
                replace(hardware, processes=1),
            )
        return parts

    def _count_pairs(self, named: list[list[str]] | None) -> int:
        """Counts the pairs of layers that are matched, each from two kinds of starts."""
        if named is not None:
            return len(named) * len(self.readings)
        return sum(min(PAIRS, math.comb(len(reading.layers), 2)) for reading in self.readings)

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            self._check_rows(min(extraction.total, extraction.extract.rows))
        taken, tables = sample(run, extraction, sequences)
        sampled = iter(taken)
        rows = {reading.label: [next(sampled) for _ in reading.layers] for reading in self.readings}
        orders = {reading.label: order_layers([layer.name for layer in reading.layers]) for reading in self.readings}
        rows = {label: [layers[i] for i in orders[label]] for label, layers in rows.items()}
        self.layers = [reading.layers[i] for reading in self.readings for i in orders[reading.label]]
        batch = self._draw_batch(extraction, sequences)
        matrices: dict[str, Matrix] = {}
        if self.histograms:
            with run.stage("histograms"):
                matrices |= self._histograms(run, rows, self.histograms)
        if self.neighbours:
            with run.stage("neighbours"):
                matrices |= self._neighbours(run, rows, batch, self.neighbours)
        if self.couplings:
            with run.stage("couplings"):
                matrices |= self._couplings(run, rows, batch, self.couplings)
        if not matrices:
            why = join_reasons(row[-1] for row in run.without_value)
            raise NoValue(f"options: no view has a value for two layers, got {why}; read other layers or data")
        texts = list_row_texts(extraction, sequences, np.array(batch.numbers))
        about = {"batch": {"rows": batch.numbers, "classes": batch.classes, "texts": texts}}
        return Results(study="views", matrices=matrices, tables=tables, about=about)

    def _draw_batch(self, extraction: Extraction, sequences: Mapping[str, Sequences]) -> ViewBatch:
        """Rows drawn from the sampled ones, those of a class together."""
        numbers = extraction.numbers(0)
        places = draw(len(numbers), self.batch, self.seed)
        first = next(iter(sequences.values()), None)
        codes = None if first is None else list_row_labels(first, self.extract)
        if first is None or first.labels is None or codes is None:
            return ViewBatch(places, numbers[places].tolist(), None)
        places = places[codes[numbers[places]].argsort(kind="stable")]
        classes = [first.labels.names[code] for code in codes[numbers[places]]]
        return ViewBatch(places, numbers[places].tolist(), classes)

    def _names(self, label: str) -> list[str]:
        return [layer.name for layer in self.layers if layer.model == label]

    def _apply_to_layers(
        self, run: Run, rows: Mapping[str, list[Tensor]], step: Callable[[Tensor], Any], view: str, name: str
    ) -> dict[str, list[Any]]:
        """Applies `step` to every layer: the results by model, None where a layer has no value. A model of which fewer
        than two layers have one is left out."""
        missing: dict[Layer, str] = {}
        given = [x for layers in rows.values() for x in layers]
        made = []
        for i in run.progress(range(len(given)), label=name, unit="layers"):
            try:
                made.append(step(given[i]))
            except Degenerate as error:
                made.append(None)
                missing[self.layers[i]] = f"{self.layers[i]}: {error}"
        for layer, why in missing.items():
            run.without_value.append([view, layer.model, layer.model, layer.name, layer.name, why])
        if missing:
            run.warn(f"{view}: {len(missing)} of {len(given)} layers without a value: {join_reasons(missing.values())}")
        done = iter(made)
        by_model = {label: [next(done) for _ in layers] for label, layers in rows.items()}
        return {label: of for label, of in by_model.items() if sum(x is not None for x in of) >= 2}

    def _histograms(self, run: Run, rows: Mapping[str, list[Tensor]], settings: Histograms) -> dict[str, Matrix]:
        count = len(next(iter(rows.values()))[0])
        of, bins = make_jackknife_subsets(count), settings.bins
        spread = self._apply_to_layers(run, rows, partial(measure_distance_spreads, of=of), "histograms", "distances")
        matrices = {}
        for number, label in enumerate(spread):
            edges, counts = make_distance_histograms(rows[label], of, spread[label], bins=bins, scale=settings.scale)
            none = [[np.nan] * len(DistanceSpread._fields)]  # of a layer without a value
            stem = slug("histograms", f"{number:02d}", label)
            matrices[f"histograms of {label}"] = Matrix(
                rows=Side(model=label, layers=self._names(label)),
                columns=Side(model="bins", layers=[str(place) for place in range(bins)]),
                values=run.write_array(stem, counts[0]),
                n=count,
                label="pairs of rows",
                details={
                    "edges": run.write_array(slug(stem, "edges"), edges),
                    "spread": run.write_array(slug(stem, "spread"), np.array([(x or none)[0] for x in spread[label]])),
                    "left out": run.write_array(slug(stem, "left_out"), counts[1:]),
                },
                about={"kind": "histograms", "scale": settings.scale},
            )
        return matrices

    def _neighbours(
        self, run: Run, rows: Mapping[str, list[Tensor]], batch: ViewBatch, settings: Neighbours
    ) -> dict[str, Matrix]:
        drawn, k = self._take_batch(rows, batch), settings.k
        made = self._apply_to_layers(
            run, drawn, partial(project_to_plane, perplexity=settings.perplexity, seed=self.seed), "neighbours", "t-SNE"
        )
        samples = settings.samples or draw(len(batch), SAMPLES, self.seed).tolist()
        matrices = {}
        for number, label in enumerate(made):
            there = [i for i, x in enumerate(made[label]) if x is not None]
            planes = [made[label][i] for i in there]
            around = {
                PLANE: np.stack([find_nearest_rows(torch.from_numpy(x), k) for x in planes]),
                FULL: np.stack([find_nearest_rows(drawn[label][i], k) for i in there]),
            }
            stem = slug("neighbours", f"{number:02d}", label)
            matrices[f"neighbours of {label}"] = Matrix(
                rows=Side(model=label, layers=[self._names(label)[i] for i in there]),
                columns=Side(model="rows", layers=batch.names),
                values=run.write_array(slug(stem, "planes"), np.stack(planes)),
                n=len(batch),
                label="place in the plane of a t-SNE",
                details={
                    where: run.write_array(slug(stem, "nearest", where), places) for where, places in around.items()
                },
                about={"kind": "neighbours", "k": k, "samples": samples},
            )
        return matrices

    def _couplings(
        self, run: Run, rows: Mapping[str, list[Tensor]], batch: ViewBatch, settings: CouplingSettings
    ) -> dict[str, Matrix]:
        made = self._apply_to_layers(
            run, self._take_batch(rows, batch), _prepare_standardised_space, "couplings", "distances"
        )
        spaces = {
            label: {name: x for name, x in zip(self._names(label), of, strict=True) if x is not None}
            for label, of in made.items()
        }
        wanted = [(label, *pair) for label, of in spaces.items() for pair in self._pairs([*of], settings.pairs)]
        matrices = {}
        for number in run.progress(range(len(wanted)), label="couplings", unit="pairs of layers"):
            label, row, column = wanted[number]
            a, b = spaces[label][row], spaces[label][column]
            for starts, plan in match_rows(a, b, restarts=settings.restarts, seed=self.seed).items():
                of = ["best"] if starts == BEST else []  # both may lead from one start
                stem = slug("couplings", f"{number:03d}", label, row, column, *of, plan.start)
                matrices[find_free_key(f"coupling of {label}, {row} and {column}, {starts}", matrices)] = Matrix(
                    rows=Side(model=row, layers=batch.names),
                    columns=Side(model=column, layers=batch.names),
                    values=run.write_array(stem, plan.coupling),
                    n=len(batch),
                    label="mass",
                    about={
                        "kind": "couplings",
                        "model": label,
                        "starts": starts,
                        "objective": plan.objective,
                        "from": plan.start,
                        "objective of the identity": plan.of_identity,
                    },
                )
        return matrices

    def _take_batch(self, rows: Mapping[str, list[Tensor]], batch: ViewBatch) -> dict[str, list[Tensor]]:
        return {label: [x[torch.from_numpy(batch.places)] for x in layers] for label, layers in rows.items()}

    def _pairs(self, layers: Sequence[str], named: list[list[str]] | None) -> list[tuple[str, str]]:
        """The pairs of these layers that are named, or some of all, drawn under the seed."""
        if named is not None:
            return [(row, column) for row, column in named if row in layers and column in layers]
        known = list(combinations(layers, 2))
        return [known[i] for i in draw(len(known), PAIRS, self.seed)]


def _prepare_standardised_space(x: Tensor) -> Space:
    return prepare_space(standardise_rows(x)[0], cost_scale="mean")
