"""What the values of a measure would be by chance, or else those of models with fresh weights."""

from collections.abc import Sequence

import numpy as np

from repsim_cli.figures.chance import Chance, choose_chance_level
from repsim_cli.findings.analysis import Finished, LayerMap
from repsim_cli.runs.content import CHANCE, Measured


def find_chance_of_values(
    run: Finished, measured: Measured, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> tuple[Chance | None, str]:
    """Finds what these values of a measure would be by chance, and says what that is. Where it is not known, values of
    models with fresh weights stand for it, unless all are of such models. rows, columns: the model of each layer."""
    drawn = [
        run.keep(matrix.details[CHANCE])
        for matrix in measured.matrices
        if CHANCE in matrix.details and matrix.rows.model in rows and matrix.columns.model in columns
    ]
    untrained = [model for model, facts in run.manifest.get("facts", {}).items() if not facts.get("trained", True)]
    fresh = [np.isin(side, untrained) for side in (rows, columns)]
    across = fresh[0][:, None] != fresh[1]
    return choose_chance_level(measured.chance, measured.null, drawn, np.empty(0) if across.all() else values[across])


def find_chance_mark(
    run: Finished, measured: Measured, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> tuple[Chance | None, str]:
    """The mark of chance for the colour bar, and what the title says of it."""
    chance, said = find_chance_of_values(run, measured, values, rows, columns)
    if chance is not None:
        return chance, f"▸ beside the colours: {said}"
    why = (measured.chance or {}).get("unknown", "")
    return None, f"chance is not known here: {why}" if why else ""


def list_chance_levels(run: Finished, layers: LayerMap, *, within: bool = False) -> dict[str, list[float]]:
    """Lists, for curves of a measure, the lowest, median and highest cell by chance, by what that is; empty where it is
    not known. within: the curves are of layers of one model too, which are alike in an untrained model, so that values
    between models with fresh weights and others do not stand for chance."""
    owners = [model for model, place in layers.places.items() for _ in layers.names[place]]
    values = np.full_like(layers.values, np.nan) if within else layers.values
    chance, said = find_chance_of_values(run, layers.measure, values, owners, owners)
    return {} if chance is None else {said: [chance.low, chance.middle, chance.high]}
