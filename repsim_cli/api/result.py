"""A run folder as Python programs read it: labelled matrices, a table, a figure."""

import base64
import io
import os
import shutil
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from repsim_cli import report
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.plain import say_count
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.chance import Chance, choose_chance_level
from repsim_cli.figures.frame import lay_out
from repsim_cli.findings.analyse import draw, read_drawing
from repsim_cli.findings.analysis import Finished
from repsim_cli.report.headline import list_sentences
from repsim_cli.runs import folders, reader, results
from repsim_cli.runs.content import CHANCE, Matrix, Measured, Results

SCREEN = 80  # dots per inch of the map in a notebook


class LabelledMatrix(NamedTuple):
    """values[i, j]: of layer rows[i] of one model and layer columns[j] of the other; NaN where there is none."""

    values: Float[np.ndarray, "r c"]
    rows: list[str]
    columns: list[str]


@dataclass(frozen=True)
class Result:
    """A run folder, read. `results` has all that it found, `manifest` how it came about."""

    folder: Path

    @cached_property
    def results(self) -> Results:
        return reader.read_results(self.folder)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return reader.read_manifest(self.folder)

    @property
    def measures(self) -> list[str]:
        return [measured.label for measured in self.results.measures]

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The sentences of the run, each after whom it is about: where two models are the same, and first differ."""
        return self.results.answers

    @property
    def sentences(self) -> list[str]:
        """The sentences of all that the run says, as `repsim compare` and `repsim show --json` have them."""
        return list_sentences(self.folder, self.results).say_all()

    @property
    def warnings(self) -> list[str]:
        return list(self.manifest["warnings"])

    def matrix(self, first: str, second: str | None = None, measure: str | None = None) -> LabelledMatrix:
        """The similarity of all layers of two models (without `second`, of one with itself), by default under the first
        measure.

        Raises BadInput for a model or measure that the run does not have.
        """
        matrix = self._matrix(first, second, measure)
        values, rows, columns = self._array(matrix.values), matrix.rows, matrix.columns
        if rows.model == first:
            return LabelledMatrix(values, rows.layers, columns.layers)
        return LabelledMatrix(values.T, columns.layers, rows.layers)

    def chance(self, first: str, second: str | None = None, measure: str | None = None) -> Chance | None:
        """The similarity that two models have by chance, as the lowest, median and highest cell: the mean over random
        pairings of documents, or of rows that do not depend on each other. None where it is not known.

        Raises BadInput as `matrix` does.
        """
        measured, details = self._find_measure(measure), self._matrix(first, second, measure).details
        drawn = [self._array(details[CHANCE])] if CHANCE in details else []
        return choose_chance_level(measured.chance, measured.null, drawn, np.empty(0))[0]

    def _matrix(self, first: str, second: str | None, measure: str | None) -> Matrix:
        """Finds the matrix of two models, in either order where the measure is symmetric."""
        second, measured = first if second is None else second, self._find_measure(measure)
        orders = [(first, second), (second, first)] if measured.card["symmetric"] else [(first, second)]
        for order in orders:
            for matrix in measured.matrices:
                if (matrix.rows.model, matrix.columns.model) == order:
                    return matrix
        models = sorted({side.model for matrix in measured.matrices for side in (matrix.rows, matrix.columns)})
        unknown = first if first not in models else second
        raise BadInput(f"no such pair of models, got '{first}' and '{second}'; {did_you_mean(str(unknown), models)}")

    def _find_measure(self, label: str | None) -> Measured:
        """The measure of this label, or the first. Raises BadInput where the run does not have it."""
        for measured in self.results.measures:
            if label in (None, measured.label):
                return measured
        if not self.measures:
            study = self.manifest["study"]
            raise BadInput(f"measure: this run has none, got the study {study}; read its sentences and results.tables")
        raise BadInput(f"measure: not of this run, got '{label}'; {did_you_mean(str(label), self.measures)}")

    def _array(self, path: str) -> np.ndarray:
        return reader.read_array(self.folder, path)

    def closest(self, first: str, second: str, measure: str | None = None) -> tuple[str, str, float]:
        """The closest layers of two models, and their value. Raises BadInput as `matrix` does, and where there is
        none."""
        row, column, numbers = self.closest_numbers(first, second, measure)
        assert numbers["values"] is not None  # the closest have a value
        return row, column, numbers["values"]

    def closest_numbers(
        self, first: str, second: str, measure: str | None = None
    ) -> tuple[str, str, dict[str, float | None]]:
        """The closest layers as `closest` finds them, with all numbers of this pair, by quantity."""
        matrix = self._matrix(first, second, measure)
        cells = {what: self._array(path) for what, path in matrix.cells.items()}
        found = reader.find_closest_cell(self._find_measure(measure), matrix, cells)
        if found is None:
            raise BadInput(
                f"closest: no layers of these models have a value, got '{first}' and '{second}'; name others"
            )
        row, column, numbers = found
        return (row, column, numbers) if matrix.rows.model == first else (column, row, numbers)

    def frame(self) -> Any:
        """A pandas DataFrame with a row per measure and pair of layers: value, and what else the run has of each cell
        (se, low, high, p, p_family, q, calibrated, tested, chance)."""
        import pandas

        tables = []
        for measured in self.results.measures:
            for matrix in measured.matrices:
                pairs = [(a, b) for a in matrix.rows.layers for b in matrix.columns.layers]
                table = pandas.DataFrame(pairs, columns=["layer", "other_layer"])
                table.insert(0, "measure", measured.label)
                table.insert(1, "model", matrix.rows.model)
                table.insert(3, "other_model", matrix.columns.model)
                for what, path in matrix.cells.items():
                    table["value" if what == "values" else what] = self._array(path).ravel()
                tables.append(table)
        return pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()

    def plot(self, measure: str | None = None) -> Any:
        """A matplotlib figure: the map of all layers of all models under a measure, by default the first; of two of
        them where not all are compared. Raises BadInput where there is no such measure."""
        from repsim_cli.findings.map_figures import draw_map

        run = Finished(
            folder=self.folder, manifest=reader.read_manifest(self.folder), results=reader.mark_labels(self.results)
        )
        figure = lay_out(self.folder / "figures", partial(draw_map, run, self._find_measure(measure)))
        # names and titles stand outside the figure; notebooks show by themselves only what pyplot has made
        figure.savefig = partial(type(figure).savefig, figure, bbox_inches="tight")
        figure._repr_png_ = lambda: _draw_png(figure)
        return figure

    def save(self, folder: str | os.PathLike[str]) -> "Result":
        """Copies the run folder to a new one that every command reads, and draws its figures and report where it has
        none.

        Raises BadInput where that exists, or cannot be written.
        """
        target = expand_path(folder)
        if target.exists():
            raise BadInput(f"save: it exists, got '{folder}'; name a new folder")
        try:
            shutil.copytree(self.folder, target)
        except OSError as error:  # shutil's has a list of (file, its copy, why)
            shutil.rmtree(target, ignore_errors=True)
            reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
            raise BadInput(
                f"save: not all could be copied to '{folder}', got '{reason}'; name another place"
            ) from error
        if not (target / report.FILE).exists():
            with results.amend(target):
                draw(target, whole=read_drawing(target).which == "all")
            report.save([target], target / report.FILE)
        return Result(target)

    def __repr__(self) -> str:
        whose = ", ".join(self.manifest.get("models", ())) or self.manifest["name"]
        by = f" by {', '.join(self.measures)}" if self.measures else ""
        return f"<repsim result of {whose}{by}; {say_count(len(self.warnings), 'warning')}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows: the means by pair of models, the warnings, and the first map."""
        import html

        frame = self.frame()
        table = ""
        if len(frame):  # of two layers each, as `repsim show` has it
            itself = (frame["model"] == frame["other_model"]) & (frame["layer"] == frame["other_layer"])
            means = frame[~itself].groupby(["measure", "model", "other_model"], sort=False)["value"].mean()
            table = means.rename("mean over layers").reset_index().to_html(index=False, float_format="%.3f")
        said = "".join(f"<p>{html.escape(text)}</p>" for text in self.sentences)
        warnings = "".join(f"<li>{html.escape(text)}</li>" for text in self.warnings)
        picture = ""
        if self.measures:
            coded, name = base64.b64encode(_draw_png(self.plot())).decode(), html.escape(self.measures[0])
            picture = f'<img style="max-width:100%" alt="{name}" src="data:image/png;base64,{coded}">'
        return f"{said}{table}{f'<ul>{warnings}</ul>' if warnings else ''}{picture}" or html.escape(repr(self))


def _draw_png(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=SCREEN)
    return drawn.getvalue()


def load(run: str | os.PathLike[str]) -> Result:
    """The result of a run folder, its name, or `latest`. Raises BadInput where there is none."""
    if not isinstance(run, str | os.PathLike):
        raise BadInput(f"run: not a path or a name, got {run!r}; give the folder of a run, its name, or 'latest'")
    folder = folders.find(os.fspath(run))
    reader.read_results(folder)
    return Result(folder)
