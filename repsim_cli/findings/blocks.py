"""Block structure: where along a network the similarity between neighbouring layers drops."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from repsim_cli.base.plain import find_free_key
from repsim_cli.figures.lines import list_layer_figures
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.chance import list_chance_levels
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.layers import order_layers
from repsim_cli.runs.content import Axis, Curve, Table

COLUMNS = ["measure", "model", "largest drop", "similarity there", "median elsewhere"]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Of each model the similarity of every layer with the next, under every measure, and where it is lowest.

    least: a model of fewer layers is left out.
    """

    least: int = 4


def average_adjacent_layers(values: np.ndarray) -> np.ndarray:
    """(l - 1,): of each layer with the next, both directions averaged.

    >>> average_adjacent_layers(np.array([[1.0, 0.8, 0.1], [0.6, 1.0, 0.2], [0.1, 0.4, 1.0]])).round(6).tolist()
    [0.7, 0.3]
    """
    return (values.diagonal(1) + values.diagonal(-1)) / 2


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-neighbours_MEASURE"""
    yield from list_layer_figures(run.results.curves, "blocks", run.seeds)


@analysis(studies=("similarity", "attention"), figures=draw_figures)
def blocks(run: Finished, options: Blocks, claims: Sequence[Claim]) -> Part:
    rows, curves = [], {}
    for label, layers in run.maps.items():
        levels = list_chance_levels(run, layers, within=True)
        lowest = np.argmin if layers.measure.larger_is_closer else np.argmax
        for model, place in layers.places.items():
            order = order_layers(layers.names[place])
            names, values = [layers.names[place][i] for i in order], layers.values[place, place]
            if len(names) < max(options.least, 3):
                continue
            steps = average_adjacent_layers(values[np.ix_(order, order)])
            drop = int(lowest(steps))
            between = f"{names[drop]} and {names[drop + 1]}"
            rows.append([label, model, between, float(steps[drop]), float(np.median(np.delete(steps, drop)))])
            curves[find_free_key(f"neighbours, {label}, {model}", curves)] = Curve(
                x=Axis(name="layer"),
                y=Axis(name=f"{layers.measure.card['label']} with the layer before"),
                at=names[1:],
                lines={"neighbours": steps.tolist()},
                about={"quantity": f"neighbours {label}", "model": model, "levels": levels},
            )
    return Part(tables={"block structure": Table(columns=COLUMNS, rows=rows)}, curves=curves)
