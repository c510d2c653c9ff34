"""Rotates the rows of many models onto one mean shape, depth by depth, and measures how far each is from it."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Unpack

import numpy as np
from pydantic import Field
from torch import Tensor

from repsim_cli.activations.readings import Layer
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import check_rows_fit, count_most_rows, describe_models
from repsim_cli.engine.cost import Cost, describe_needs, estimate_products
from repsim_cli.engine.extraction import make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.runs.content import Matrix, Results, Side, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.barycentre import shapes
from repsim_cli.studies.barycentre.columns import APART, FROM_COLUMNS, FROM_SHAPE, OF_PLACES, PLACE_COLUMNS

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
STEPS = 100  # of all rotations at one depth: of the models, of their groups of documents, by chance
Share = Annotated[float, Field(ge=0, le=1)]


@studies.register("barycentre")
class Barycentre(StudyOfRows):
    """Rotates the rows of all models onto their mean, the common shape, and says how far each model is from it.

    Rows are centred and of Frobenius norm 1, as for `procrustes`; narrower models are padded with zeros. All are
    rotated onto their mean, which is then taken anew, until their mean squared distance from it stops falling. Of two
    models each is half their Procrustes distance from it. Beside each distance stand its standard error over
    documents, and what rows that are paired at random give.

    depths: shares of the way through the layers that are read of each model, at each of which the models have one
        common shape; null: 0, 0.25, 0.5, 0.75 and 1.
    layers: in place of depths, a layer of each model in the order of the models, [[LAYER, LAYER, ...], ...]; null: by
        depth.
    Example: repsim run study=barycentre model=[tiny_a_step400,tiny_a,tiny_b] extract=words data=embedded_sentences
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        depths: list[Share] | None = None,
        layers: list[list[str]] | None = None,
        **given: Unpack[OfRows],
    ):
        models, extract = given["model"], given["extract"]
        if len(models) < 2:
            raise BadInput(f"model: a shape is common to two models or more, got {len(models)}; select more")
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: shapes are of one sample, got {extract.estimate}; use full")
        if depths is not None and layers is not None:
            raise BadInput("options.layers: they stand in place of depths, got both; drop one")
        self.extraction = make_extraction(given)
        self.readings, self.hardware, self.seed = self.extraction.readings, given["hardware"], given["seed"]
        self.places = self._find_layers_at_depths(depths) if layers is None else self._find_named(layers)
        self.most = min(extract.rows, count_most_rows(models, extract))
        check_rows_fit(self.memory, self.most, self.hardware, self.extraction.live)

    def _find_layers_at_depths(self, depths: Sequence[float] | None) -> dict[str, list[int]]:
        """Finds by depth the number of a layer of each model, among all; depths that have the same layers are one."""
        found: dict[tuple[int, ...], str] = {}
        for depth in DEPTHS if depths is None else depths:
            of_models = tuple(
                int(place.start) + int(depth * (place.stop - place.start - 1) + 0.5) for place in self.extraction.places
            )
            found.setdefault(of_models, f"{depth:g}")
        return {name: list(layers) for layers, name in found.items()}

    def _find_named(self, layers: Sequence[Sequence[str]]) -> dict[str, list[int]]:
        names, found = [layer.name for layer in self.extraction.layers], {}
        for chosen in layers:
            if len(chosen) != len(self.extraction.places):
                raise BadInput(
                    f"options.layers: a layer of each of {len(self.extraction.places)} models is needed, got "
                    f"{list(chosen)}; e.g. [[resid_post@3,resid_post@5]]"
                )
            for name, place in zip(chosen, self.extraction.places, strict=True):
                if name not in names[place]:
                    raise BadInput(f"options.layers: not read, got '{name}'; {did_you_mean(name, names[place])}")
            found[", ".join(dict.fromkeys(chosen))] = [
                names.index(name, place.start) for name, place in zip(chosen, self.extraction.places, strict=True)
            ]
        return found

    def _bound_width(self, rows: int) -> int:
        return min(rows, max(self.extraction.layers[at].width for of in self.places.values() for at in of))

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: libraries, weights, the rows, and the shapes of one depth, whole, turned and in groups."""
        models, wide = len(self.readings), self._bound_width(rows)
        return {
            "Python and its libraries": 0.5e9,
            "weights": sum(4.0 * source.parameters for source in self.extraction.live.values()),
            "rows": 4.0 * rows * sum(layer.width for layer in self.extraction.layers),
            "shapes": 8.0 * models * (6 * rows * wide + 3 * wide**2),
        }

    def plan(self) -> dict[str, Any]:
        layers = self.extraction.layers
        return {
            "models": describe_models(self.extraction.models, self.hardware),
            "depths": {name: [str(layers[at]) for at in of] for name, of in self.places.items()},
            "rows, at most": self.most,
            **describe_needs(
                self._costs(),
                self.hardware,
                memory=self.memory(self.most),
                activations=footprint.count_stored(self.extraction),
                figures=2,
            ),
        }

    def _costs(self) -> dict[str, Cost]:
        wide = self._bound_width(self.most)
        turns = STEPS * len(self.readings) * len(self.places) * (4.0 * self.most * wide**2 + 60.0 * wide**3)
        return {
            "forward passes": footprint.estimate_passes_cost(self.extraction),
            "rotations": estimate_products(turns, self.hardware),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            documents = extraction.find_documents(sequences, run.warn)
        taken, tables = sample(run, extraction, sequences)
        distances: list[list[Any]] = []
        places: list[list[Any]] = []
        matrices = {}
        with run.stage("common shapes"):
            for name, of in run.progress(list(self.places.items()), label="common shapes", unit="depths"):
                layers = [extraction.layers[at] for at in of]
                common, errors, chance, least = self._measure_common_shape(
                    run, [taken[at] for at in of], layers, documents
                )
                for i, (layer, distance) in enumerate(zip(layers, common.distances, strict=True)):
                    error = None if errors is None else float(errors[i])
                    distances.append([name, layer.model, layer.name, float(distance), error, float(chance[i])])
                counts = [len(documents), len(np.unique(documents)), common.mean.shape[1]]
                places.append([name, common.objective[-1], least, len(common.objective) - 1, *counts])
                side = Side(model=name, layers=[layer.model for layer in layers])
                matrices[f"{APART} at {name}"] = Matrix(
                    rows=side,
                    columns=side,
                    values=run.write_array(slug("apart", name), common.apart),
                    n=len(documents),
                    label="distance after the common rotation",
                    about={"kind": APART, "depth": name},
                )
        return Results(
            study="barycentre",
            matrices=matrices,
            tables={
                FROM_SHAPE: Table(columns=FROM_COLUMNS, rows=distances),
                OF_PLACES: Table(columns=PLACE_COLUMNS, rows=places),
                **tables,
            },
        )

    def _measure_common_shape(
        self, run: Run, rows: Sequence[Tensor], layers: Sequence[Layer], documents: np.ndarray
    ) -> tuple[shapes.Common, np.ndarray | None, np.ndarray, float]:
        """Makes the common shape of these layers, the errors of the distances from it, what chance gives, and the bound
        by pairs."""
        whole = shapes.convert_to_one_width(rows)
        for layer, x in zip(layers, whole, strict=True):
            if bool((x == x[0]).all()):
                raise BadInput(
                    f"options.depths: needs rows that differ, got one vector in all rows of {layer.name} of "
                    f"'{layer.model}'; leave it out"
                )
        made = shapes.normalise_shapes(whole)
        squared = shapes.compute_squared_procrustes(made)
        common = shapes.find_common_shape(made, shapes.rotate_onto_middle(made, squared))
        if len(common.objective) > shapes.MOST:
            run.warn(f"common shapes: the mean distance still falls after {shapes.MOST} steps")
        try:
            errors = shapes.estimate_distance_errors(whole, documents, common)
        except Degenerate as error:
            run.warn(f"common shapes: no errors are known ({error})")
            errors = None
        return common, errors, shapes.compute_chance_distances(made, self.seed), shapes.bound_mean_distance(squared)
