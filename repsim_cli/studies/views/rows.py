"""The rows of every layer, and the few of them that are looked at one by one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from repsim_cli.activations.places import list_row_labels
from repsim_cli.activations.readings import Layer
from repsim_cli.base.errors import Degenerate
from repsim_cli.data.base import Sequences, draw
from repsim_cli.engine.extraction import Extraction
from repsim_cli.engine.without_value import join_reasons
from repsim_cli.runs.results import Run


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


def draw_batch(extraction: Extraction, sequences: Mapping[str, Sequences], size: int) -> ViewBatch:
    """Draws rows from the sampled ones, those of a class together."""
    numbers = extraction.numbers(0)
    places = draw(len(numbers), size, extraction.seed)
    first = next(iter(sequences.values()), None)
    codes = None if first is None else list_row_labels(first, extraction.extract)
    if first is None or first.labels is None or codes is None:
        return ViewBatch(places, numbers[places].tolist(), None)
    places = places[codes[numbers[places]].argsort(kind="stable")]
    classes = [first.labels.names[code] for code in codes[numbers[places]]]
    return ViewBatch(places, numbers[places].tolist(), classes)


@dataclass(frozen=True)
class LayerRows:
    """The rows of every layer. layers: of all models, in order. rows: (n, d) of each layer, by model."""

    layers: list[Layer]
    rows: dict[str, list[Tensor]]

    def names(self, label: str) -> list[str]:
        """The names of the layers of a model."""
        return [layer.name for layer in self.layers if layer.model == label]

    def take(self, batch: ViewBatch) -> "LayerRows":
        """Takes the rows of a batch alone."""
        places = torch.from_numpy(batch.places)
        return LayerRows(self.layers, {label: [x[places] for x in layers] for label, layers in self.rows.items()})

    def apply(self, run: Run, step: Callable[[Tensor], Any], view: str, name: str) -> dict[str, list[Any]]:
        """Applies `step` to every layer: the results by model, None where a layer has no value. A model of which fewer
        than two layers have one is left out."""
        missing: dict[Layer, str] = {}
        given = [x for layers in self.rows.values() for x in layers]
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
        by_model = {label: [next(done) for _ in layers] for label, layers in self.rows.items()}
        return {label: of for label, of in by_model.items() if sum(x is not None for x in of) >= 2}
