"""Curves of training: a number per layer and checkpoint of one model. A checkpoint that could not be read is a gap."""

from collections.abc import Mapping, Sequence

import numpy as np

from repsim_cli.runs.content import Axis, Band, Curve, Numbers, omit_nan

BANDS = {"quartiles": (25, 75), "deciles": (10, 90)}  # percentiles over layers


def make_curve(
    *,
    label: str,
    steps: Sequence[int],
    layers: Sequence[str],
    values: Mapping[int, Sequence[float]],
    se: Mapping[int, Sequence[float]] | None = None,
    bounds: Sequence[float | None] = (0.0, 1.0),
    **about: object,
) -> Curve:
    """A line per layer, with their mean and percentiles. values, se: by step, one number per layer; no step, or NaN: a
    gap. The mean and the percentiles are of the layers that have a value.

    label: of the y axis. about: what tells this curve from others: quantity, point, model, parameters, and more.
    """

    def split_by_layer(numbers: Mapping[int, Sequence[float]]) -> dict[str, Numbers]:
        return {
            layer: [omit_nan(numbers[step][i]) if step in numbers else None for step in steps]
            for i, layer in enumerate(layers)
        }

    def percentile(percent: int) -> Numbers:
        return [float(np.percentile(there[step], percent)) if step in there else None for step in steps]

    there = {step: some for step, x in values.items() if (some := [value for value in x if not np.isnan(value)])}

    return Curve(
        x=Axis(name="step"),
        y=Axis(name=label),
        at=list(steps),
        lines=split_by_layer(values),
        mean=[float(np.mean(there[step])) if step in there else None for step in steps],
        bands={
            name: Band(low=percentile(low), high=percentile(high), of=f"{low}th to {high}th percentile of layers")
            for name, (low, high) in BANDS.items()
        },
        errors=split_by_layer(se) if se else {},
        bounds=list(bounds),
        about=about,
    )


def name_curves(curves: Sequence[Curve]) -> dict[str, Curve]:
    """Curves by name, as results.json keeps them."""
    return {", ".join(str(x.about[key]) for key in ("quantity", "point", "model")): x for x in curves}
