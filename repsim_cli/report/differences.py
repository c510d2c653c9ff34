"""What two runs differ in: settings, texts and models; and how far their matrices do, matched by measure, model labels
and layer names, in units of their standard errors too."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.documents import list_leaves
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.figures.heatmap import draw_heatmap
from repsim_cli.runs.reader import read_applied_config, read_array, read_manifest, read_results

SMALLEST_RANGE = 1e-12
UNSAID = ("name", "figures", "analyses", "claims")  # keys of a configuration that no number rests on
PLACE = ("source", "commit", "revision")  # where a manifest says that a model is from, not what it is
NONE = "none"


class RunInputs(NamedTuple):
    """What two runs rest on and differ in. settings: by key the value of each. texts: what each read. models: by label,
    how."""

    settings: dict[str, tuple[str, str]]
    texts: list[tuple[str, str]]
    models: dict[str, str]


def find_input_differences(first: Path, second: Path) -> RunInputs:
    """Finds the settings, texts and models in which two runs differ."""
    configs = [_read_settings(folder) for folder in (first, second)]
    keys = [key for key in dict.fromkeys([*configs[0], *configs[1]]) if configs[0].get(key) != configs[1].get(key)]
    settings = {key: (configs[0].get(key, NONE), configs[1].get(key, NONE)) for key in keys}
    read = [read_manifest(folder) for folder in (first, second)]
    names = [key for key in dict.fromkeys([*read[0], *read[1]]) if key == "data" or key.startswith("data of ")]
    data = [(read[0].get(name) or {}, read[1].get(name) or {}) for name in names]
    texts = [(_read(a), _read(b)) for a, b in data if _identify_data(a) != _identify_data(b)]
    models = [manifest.get("models", {}) for manifest in read]
    differ = {
        label: "in the second run alone" if label not in models[0] else "in the first run alone"
        for label in dict.fromkeys([*models[0], *models[1]])
        if label not in models[0] or label not in models[1]
    }
    differ |= {
        label: "other weights or rows"
        for label in models[0]
        if label not in differ and _drop_model_place(models[0][label]) != _drop_model_place(models[1][label])
    }
    return RunInputs(settings, texts, differ)


def _read_settings(folder: Path) -> dict[str, str]:
    """The configuration of a run by key; of `model` nothing, since what a model is stands in the manifest."""
    if not (folder / "config.yaml").is_file():
        return {}
    return dict(
        list_leaves({key: value for key, value in read_applied_config(folder).items() if key not in (*UNSAID, "model")})
    )


def _identify_data(data: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(data.get(key) for key in ("hash", "sequences", "rows_kept"))


def _read(data: Mapping[str, Any]) -> str:
    """Says in words what was read of a text."""
    if not data:
        return NONE
    rows = f", {data['rows_kept']:,} rows" if isinstance(data.get("rows_kept"), int) else ""
    return f"{data.get('sequences', '?')} sequences of {data.get('source', '?')}{rows}"


def _drop_model_place(about: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps what a manifest says of a model, without where the model lies."""
    return {key: value for key, value in about.items() if key not in PLACE}


class PairDifference(NamedTuple):
    """A pair of models under a measure; `block` is the second run minus the first on the layers that both have, NaN
    where a run has no value. error: the standard error of the difference, as if the runs were independent; None where a
    run has none."""

    measure: str
    rows: str
    columns: str
    row_layers: list[str]
    column_layers: list[str]
    block: np.ndarray
    error: np.ndarray | None = None

    @property
    def known(self) -> np.ndarray:
        """The sizes of the differences where both runs have a value."""
        return np.abs(self.block[~np.isnan(self.block)])

    @property
    def largest(self) -> float:
        return float(self.known.max())

    @property
    def mean(self) -> float:
        return float(self.known.mean())

    @property
    def _most(self) -> tuple[np.intp, ...]:
        return np.unravel_index(int(np.nanargmax(np.abs(self.block))), self.block.shape)

    @property
    def signed(self) -> float:
        """The largest difference, below 0 where the second run has less."""
        return float(self.block[self._most])

    @property
    def where(self) -> tuple[str, str]:
        """Names the layers that differ most."""
        i, j = self._most
        return self.row_layers[i], self.column_layers[j]

    @property
    def _units(self) -> np.ndarray | None:
        if self.error is None:
            return None
        size, error = np.abs(self.block), self.error
        return np.divide(size, error, out=np.where(size == 0, 0.0, np.nan), where=error > 0)

    @property
    def in_errors(self) -> np.ndarray | None:
        """The sizes of the differences in units of their standard errors, where both runs have both; a difference of 0
        is 0 of them. None where there are none."""
        units = self._units
        known = None if units is None else units[~np.isnan(units)]
        return None if known is None or not known.size else known

    @property
    def largest_in_errors(self) -> float | None:
        """The largest difference in units of its own standard error; None where it has none."""
        units = self._units
        return None if units is None or np.isnan(units[self._most]) else float(units[self._most])


def compare_runs(first: Path, second: Path) -> tuple[list[PairDifference], list[str]]:
    """The differences, and what only one of the runs has. Raises BadInput where they share nothing."""
    left, right = _read_matrix_blocks(first), _read_matrix_blocks(second)
    differences, unmatched = [], []
    for key in [*left, *(k for k in right if k not in left)]:
        if key not in left or key not in right:
            where = first if key in left else second
            unmatched.append(f"{key[0]}: {key[1]} x {key[2]} only in {where}")
            continue
        a, b = left[key], right[key]
        rows = [name for name in a.rows if name in b.rows]
        columns = [name for name in a.columns if name in b.columns]
        if not rows or not columns:
            unmatched.append(f"{key[0]}: {key[1]} x {key[2]} have no layer in common")
            continue
        places = [np.ix_([x.rows.index(n) for n in rows], [x.columns.index(n) for n in columns]) for x in (a, b)]
        block = b.values[places[1]] - a.values[places[0]]
        error = None if a.se is None or b.se is None else np.hypot(a.se[places[0]], b.se[places[1]])
        if np.isnan(block).all():
            unmatched.append(f"{key[0]}: {key[1]} x {key[2]} have no cell with a value in both")
            continue
        differences.append(PairDifference(*key, rows, columns, block, error))
    if not differences:
        raise BadInput(f"RUN: the runs share no measure and pair of models, got {first} and {second}; compare others")
    return differences, unmatched


class _Block(NamedTuple):
    """The values of a matrix, and their standard errors where it has them."""

    rows: list[str]
    columns: list[str]
    values: np.ndarray
    se: np.ndarray | None


def _read_matrix_blocks(folder: Path) -> dict[tuple[str, str, str], _Block]:
    """Reads the matrices by measure, row model and column model; those of symmetric measures in order of name."""
    blocks = {}
    for measure in read_results(folder).measures:
        for matrix in measure.matrices:
            rows, columns = matrix.rows, matrix.columns
            values = read_array(folder, matrix.values)
            se = None if matrix.se is None else read_array(folder, matrix.se)
            if measure.card["symmetric"] and rows.model > columns.model:
                rows, columns, values, se = columns, rows, values.T, None if se is None else se.T
            blocks[measure.label, rows.model, columns.model] = _Block(rows.layers, columns.layers, values, se)
    return blocks


def tabulate_differences(differences: list[PairDifference]) -> list[dict[str, Any]]:
    """A row per measure and pair of models."""
    return [
        {
            "measure": d.measure,
            "rows": d.rows,
            "columns": d.columns,
            "layers": d.known.size,
            "largest": d.largest,
            "signed": d.signed,
            "mean": d.mean,
            "where": list(d.where),
            "largest_in_errors": None if d.in_errors is None else float(d.in_errors.max()),
            "median_in_errors": None if d.in_errors is None else float(np.median(d.in_errors)),
        }
        for d in differences
    ]


def draw_figures(differences: list[PairDifference], names: tuple[str, str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A heatmap per measure and pair of models, zero in the middle of the scale. names: of the two runs."""
    for number, difference in enumerate(differences):
        name = slug(difference.measure, f"{number:02d}", difference.rows, difference.columns)
        yield name, partial(_draw_difference, difference, names)


def _draw_difference(difference: PairDifference, names: tuple[str, str]) -> Any:
    most = max(difference.largest, SMALLEST_RANGE)
    title = f"{difference.measure}: difference\n{names[1]} minus {names[0]}"
    figure, axes = draw_heatmap(
        difference.block,
        difference.row_layers,
        difference.column_layers,
        title,
        "difference",
        (-most, most),
        "RdBu_r",
        "{:.2g}",
    )
    axes.set_ylabel(difference.rows, parse_math=False)
    axes.set_xlabel(difference.columns, parse_math=False)
    return figure
