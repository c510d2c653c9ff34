"""Universal neurons: which neurons of a model have a counterpart in models that were trained apart from it?"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Unpack

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Several
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import bound_pass, check_memory, count_most_rows, describe_models, suggest_settings
from repsim_cli.engine.cost import Cost, describe_needs, estimate_neurons_cost
from repsim_cli.engine.extraction import find_sequence_length, make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import open_rows, prepare
from repsim_cli.engine.study import TEXTS, OfRows
from repsim_cli.runs.content import COUNTERPARTS, Matrix, Results, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.neurons.counterparts import CrossMoments, NeuronCounterparts, find_counterparts

LEAST = 3  # rows


@studies.register("universal_neurons")
class UniversalNeurons(StudyOfRows):
    """Compares every neuron with every neuron of every other model (Gurnee et al. 2024).

    Of each neuron it keeps the largest Pearson correlation over rows with a neuron of each other model, in any of the
    layers that are read, and the largest with a neuron of that model after a random rotation of each of its layers: a
    correlation that a direction of no meaning reaches too. All models run once, and sums of products add up over
    batches.

    rotations: how many random rotations of each layer are drawn.
    absolute: take absolute correlations; published are signed ones.
    Example: repsim run study=universal_neurons model=[tiny_a,tiny_b] measure=[] extract.hook_points=[mlp_post]
        extract.estimate=moments
    """

    # correlations have no scale, and a neuron that is left out would have no number
    takes_remedies: ClassVar[Sequence[str]] = ("skip", "skip_tokens")
    by_block: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = ("extract.rows", TEXTS)

    def __init__(
        self,
        *,
        rotations: Several = 5,
        absolute: bool = False,
        **given: Unpack[OfRows],
    ):
        model, extract, hardware = given["model"], given["extract"], given["hardware"]
        if len(model) < 2:
            raise BadInput(f"model: neurons are compared between models, got {list(model)}; select two or more")
        if extract.estimate != "moments":
            raise BadInput(
                f"extract.estimate: correlations are of all rows, got {extract.estimate}; use extract.estimate=moments"
            )
        self.extraction = make_extraction(given)
        self.extract, self.hardware, self.seed = extract, hardware, given["seed"]
        self.readings, self.rotations, self.absolute = self.extraction.readings, rotations, absolute
        self.widths = [[layer.width for layer in reading.layers] for reading in self.readings]
        self._check_rows(count_most_rows(self.extraction.models, extract))
        need = self.memory()
        if sum(need.values()) > hardware.memory_limit:
            advice = suggest_settings(need, hardware, self.extraction.live)
            check_memory(sum(need.values()), hardware, f"read fewer layers (extract.layers=[0,-1]), {advice}")

    def _check_rows(self, rows: int) -> None:
        if rows < LEAST:
            raise BadInput(
                f"data: correlations need {LEAST} rows, got {rows}; give more rows (more text, or a larger "
                "extract.sequences)"
            )

    def memory(self) -> dict[str, float]:
        """Bytes, estimated: weights, a forward batch, rows, and sums of products between models and within layers."""
        neurons = [sum(widths) for widths in self.widths]
        pairs = (sum(neurons) ** 2 - sum(count**2 for count in neurons)) / 2
        widest = max(width for widths in self.widths for width in widths)
        squares = sum(width**2 for widths in self.widths for width in widths)
        return {
            "Python and its libraries": 0.5e9,
            **bound_pass(self.extraction.live, self.extract, self.hardware, sum(neurons)),
            "rows": (4.0 * 3 + 8.0) * self.extract.batch_rows * sum(neurons),
            "products": 8.0 * (pairs + squares + 4 * max(neurons) * widest),
        }

    def plan(self) -> dict[str, Any]:
        """Describes what a run would do: models, layers, neurons, forward passes, memory in GB."""
        return {
            "models": describe_models(self.extraction.models, self.hardware),
            "layers": sum(map(len, self.widths)),
            "neurons, at most": sum(map(sum, self.widths)),
            "rotations": self.rotations,
            "forward passes, unless stored": footprint.count_passes_of_models(self.extraction),
            **describe_needs(
                self._costs(),
                self.hardware,
                memory=self.memory(),
                activations=footprint.count_stored(self.extraction),
                figures=3,
            ),
        }

    def _costs(self) -> dict[str, Cost]:
        extract = self.extract
        total = min(
            count_most_rows(self.extraction.models, extract),
            extract.sequences * find_sequence_length(self.extraction),
        )
        return {
            "forward passes": footprint.estimate_passes_cost(self.extraction),
            "correlations": estimate_neurons_cost(self.widths, total, self.rotations, self.hardware),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            self._check_rows(extraction.total)
        moments = CrossMoments()
        ends = np.cumsum([0, *map(len, self.widths)])
        with open_rows(run, extraction, sequences) as rows, run.stage("activations and products"):
            for batch in rows.stream(partial(run.progress, label="activations and products", unit="batches")):
                moments.add([batch[start:end] for start, end in pairwise(ends)])
            tables = rows.tables(extraction.layers)
        varying = [moments.lengths(model)[1].cpu().numpy() for model in range(len(self.readings))]
        for reading, vary in zip(self.readings, varying, strict=True):
            if not vary.any():
                raise BadInput(
                    f"model.{reading.label}: no neuron varies over the rows, got {len(vary)} constant ones; "
                    "leave it out"
                )
        with run.stage("counterparts"):
            made = find_counterparts(
                moments,
                rotations=self.rotations,
                seed=self.seed,
                absolute=self.absolute,
                progress=partial(run.progress, label="counterparts", unit="pairs of models"),
            )
        matrices = dict(self._make_matrix(run, pair, best, varying, moments) for pair, best in made.items())
        return Results(study="universal_neurons", matrices=matrices, tables=tables)

    def _make_matrix(
        self,
        run: Run,
        pair: tuple[int, int],
        best: NeuronCounterparts,
        varying: Sequence[np.ndarray],
        moments: CrossMoments,
    ) -> tuple[str, Matrix]:
        """Makes the matrix of a pair of models, with its name: a row for each property of the first model's neurons, a
        column for each of them that varies.

        pair: the numbers of the model and of the other one.
        best: the counterpart of every neuron of the first in the other.
        varying: of every model, the numbers of the neurons that vary.
        moments: of all neurons.
        """
        a, b = pair
        model, other = self.readings[a].label, self.readings[b].label
        (layers, neurons), (layers_of_others, neurons_of_others) = (
            _number_neurons(moments.widths[side]) for side in pair
        )
        kept = varying[a]
        values = np.stack(
            [
                layers[kept],
                neurons[kept],
                layers_of_others[best.neuron[kept]],
                neurons_of_others[best.neuron[kept]],
                best.correlation[kept],
                *best.rotated[:, kept],
            ]
        )
        properties = ["layer", "neuron", "layer of the counterpart", "counterpart", "correlation"]
        return f"counterparts of {model} in {other}", Matrix(
            rows=Side(model=model, layers=[*properties, *(f"rotation {i}" for i in range(self.rotations))]),
            columns=Side(model="neurons", layers=[]),
            values=run.write_array(slug("counterparts", f"{a:02d}", f"{b:02d}", model, "in", other), values),
            n=moments.rows,
            label="absolute correlation" if self.absolute else "correlation",
            about={
                "kind": COUNTERPARTS,
                "other": other,
                "layers": [layer.name for layer in self.readings[a].layers],
                "layers of the other": [layer.name for layer in self.readings[b].layers],
                "neurons": len(kept),
                "constant": int((~kept).sum()),
            },
        )


def _number_neurons(widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The layer of every neuron, and its number in it."""
    return np.repeat(np.arange(len(widths)), widths), np.concatenate([np.arange(width) for width in widths])
