"""Maps, trees and curves of few and many layers and models, with short and long names, and with values of all kinds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from repsim_cli.figures.heatmap import (
    Chance,
    Panel,
    add_model_names,
    add_strips,
    add_tree,
    draw_heatmap,
    draw_small_heatmaps,
    find_matrix_axes,
)
from repsim_cli.figures.lines import draw_by_layer, draw_quantities
from repsim_cli.findings.distances import build_linkage_tree
from repsim_cli.runs.content import Axis, Band, Curve, Table
from repsim_cli.studies.training_run import finding_convergence as convergence
from repsim_cli.studies.training_run import finding_training_view as training_view

CARD = {"label": "CKA (unbiased)", "larger_is_closer": True, "bounds": [None, 1.0]}
LONG = "ROBERTA_large_finetuned_on_mnli_seed"
VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda values: values,
    "negative": lambda values: values - 0.7,
    "tiny": lambda values: 1e-7 * values,
}


def square(count: int, kind: str = "") -> np.ndarray:
    return VALUES[kind](np.random.default_rng(0).uniform(size=(count, count)))


def models(count: int, stem: str) -> list[str]:
    return [f"{stem}_{i}" for i in range(count)]


def grid(
    count: int,
    layers: int,
    stem: str = "m",
    kind: str = "",
    beside: bool = False,
    layer: str = "{}",
    said: str = "resid_post by block",
) -> Any:
    """A map of all layers of all models, as findings/map_figures.py draws it."""
    names = [layer.format(i) for _ in range(count) for i in range(layers)]
    values = square(len(names), kind)
    ends = np.arange(0, len(names) + 1, layers)
    second = Panel(values=values, label="calibrated score (0: chance)", limits=(0.0, 1.0), colours="viridis")
    figure, axes = draw_heatmap(
        values, names, names, "CKA (unbiased)\nmean over 31 batches, 31,744 rows\n▸ beside the colours: chance",
        "CKA (unbiased) (larger is closer)", (float(values.min()), float(values.max())), "viridis", "{:.2g}",
        ends[:-1].tolist(), chance=Chance(low=0.1, middle=0.2, high=0.4), beside=second if beside else None,
    )  # fmt: skip
    first, *others = find_matrix_axes(figure)
    for each in (first, *others):
        aside = each is not first and each.get_position().y0 == first.get_position().y0
        for which in "x" if aside else "xy":
            add_model_names(each, which, models(count, stem), ends, said)
    add_strips(axes, {"largest feature": np.zeros(len(names)), "largest 1 % of rows": np.ones(len(names))})
    return figure


def leaves(count: int, stem: str) -> Any:
    values = square(count)
    values = values + values.T
    np.fill_diagonal(values, 0)
    names = models(count, stem)
    figure, axes = draw_heatmap(values, names, names, "Distances", "distance", (0.0, 2.0), "viridis", "{:.2f}")
    add_tree(figure, axes, build_linkage_tree(values), "distance")
    return figure


def small(count: int, layers: int, stem: str = "m") -> Any:
    names = [f"resid_post@{i}" for i in range(layers)]
    matrices = [(model, square(layers), names, names) for model in models(count, stem)]
    return draw_small_heatmaps(matrices, CARD, f"CKA (unbiased) with {LONG}, resid_post by block")[0]


def curves(
    count: int, layers: int, stem: str = "m", kind: str = "", ways: int = 1, measure: str = "cka"
) -> list[Curve]:
    line = VALUES[kind](np.linspace(0, 1, layers)).tolist()
    return [
        Curve(
            x=Axis(name="layer"),
            y=Axis(name=f"mean {measure} over all other layers"),
            at=[f"resid_post@{i}" for i in range(layers)],
            lines={way: [value / (1 + i + k) for value in line] for k, way in enumerate(("row", "column")[:ways])},
            bands={"row": Band(low=line, high=line, of="95 % over draws")} if i else {},
            about={"quantity": "mean cka", "model": model, "levels": {"chance": 0.1}},
        )
        for i, model in enumerate(models(count, stem))
    ]


def trained(count: int, steps: list[int], stem: str = "m") -> list[Curve]:
    line: Any = np.linspace(0, 1, len(steps)).tolist()
    return [
        Curve(
            x=Axis(name="step"),
            y=Axis(name="CKA"),
            at=steps,
            lines={"resid_post@0": line},
            mean=line,
            bands={"quartiles": Band(low=line, high=line, of="25th to 75th percentile of layers")},
            bounds=[0.0, 1.0],
            about={"quantity": "cka to last", "point": "resid_post", "model": model, "parameters": 1000 + i},
        )
        for i, model in enumerate(models(count, stem))
    ]


def view(count: int, stem: str = "m") -> Any:
    columns = ["model", "measure", "step", "distance", "loss", "accuracy"]
    rows = [
        [m, "gromov_wasserstein", s, s / 9, 3.0 / (1 + s), s / 1000] for m in models(count, stem) for s in (0, 1, 900)
    ]
    return training_view._draw_training_view(Table(columns=columns, rows=rows), "gromov_wasserstein")


KINDS: dict[str, Callable[[], Any]] = {
    "map of 2 models, 200 layers, negative": lambda: grid(2, 200, LONG, "negative"),
    "map of 7 models, tiny": lambda: grid(7, 3, LONG, "tiny"),
    "map of modules": lambda: grid(2, 14, LONG, layer="encoder.layers.{}.self_attention.output_projection", said=""),
    "map of modules by block": lambda: grid(
        2, 14, LONG, said="encoder.layers.*.self_attention.output_projection by block"
    ),
    "map of 60 models": lambda: grid(60, 1, LONG),
    "map and calibrated map": lambda: grid(2, 7, "m", beside=True),
    "tree of 2": lambda: leaves(2, "m"),
    "tree of 60": lambda: leaves(60, LONG),
    "small maps": lambda: small(5, 200, LONG),
    "layers of 60 models": lambda: draw_by_layer(curves(60, 4, LONG, "negative", ways=2)),
    "200 layers": lambda: draw_by_layer(curves(2, 200, LONG, "tiny")),
    "long label": lambda: draw_by_layer(curves(2, 6, measure="cka_unbiased_without_the_first_places")),
    "quantities": lambda: draw_quantities([curves(2, 12, LONG)] * 3, ()),
    "convergence of 60 models": lambda: convergence._draw_means_by_model(trained(60, [9601, 9801, 10001], LONG)),
    "training view": lambda: view(3, LONG),
}
