"""The rows of every layer looked at directly: their distances, their neighbours, and how layers match them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import numpy as np

from repsim_cli import measures
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.settings import Medium
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
from repsim_cli.engine.extraction import make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.engine.without_value import NoValue, join_reasons
from repsim_cli.findings.layers import order_layers
from repsim_cli.runs.content import Matrix, Results
from repsim_cli.runs.results import Run
from repsim_cli.studies.views.couplings import PAIRS, CouplingSettings, make_coupling_matrices
from repsim_cli.studies.views.histograms import Histograms, make_histogram_matrices
from repsim_cli.studies.views.neighbourhoods import Neighbours, make_neighbour_matrices
from repsim_cli.studies.views.rows import LayerRows, draw_batch

PLANE_SQUARES, PAIR_SQUARES = 13.0, 20.0  # matrices (n, n) of float64 of a t-SNE, and of a pair that is matched
OF_PLANE = 1.5e6  # operations of a pair of rows in a t-SNE


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
    unread: ClassVar[Sequence[str]] = ()

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
        layers = [reading.layers[i] for reading in self.readings for i in orders[reading.label]]
        viewed, batch = LayerRows(layers, rows), draw_batch(extraction, sequences, self.batch)
        matrices: dict[str, Matrix] = {}
        if self.histograms:
            with run.stage("histograms"):
                matrices |= make_histogram_matrices(run, viewed, self.histograms)
        if self.neighbours:
            with run.stage("neighbours"):
                matrices |= make_neighbour_matrices(run, viewed, batch, self.neighbours, seed=self.seed)
        if self.couplings:
            with run.stage("couplings"):
                matrices |= make_coupling_matrices(run, viewed, batch, self.couplings, seed=self.seed)
        if not matrices:
            why = join_reasons(row[-1] for row in run.without_value)
            raise NoValue(f"options: no view has a value for two layers, got {why}; read other layers or data")
        texts = list_row_texts(extraction, sequences, np.array(batch.numbers))
        about = {"batch": {"rows": batch.numbers, "classes": batch.classes, "texts": texts}}
        return Results(study="views", matrices=matrices, tables=tables, about=about)
