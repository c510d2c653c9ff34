"""Which measures tell the same story: rank correlations of measures over the same pairs of layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy
import scipy.cluster.hierarchy as hierarchy

from repsim_cli.base.errors import BadInput
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.heatmap import add_tree, draw_heatmap
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.distances import build_linkage_tree
from repsim_cli.runs.content import Matrix, Side, Table

COLUMNS = ["measure", "mean with the others", "closest", "with the closest"]
NAME = "agreement of measures"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Spearman's rho between all measures of a run, over all ordered pairs of different layers, and a tree of the
    measures. It has no settings."""

    def check(self, planned: Planned) -> None:
        if len(planned.measures) < 3:
            raise BadInput(f"3 measures are needed, got {len(planned.measures)}; select more")


def correlate_measures(maps: Mapping[str, tuple[np.ndarray, bool]]) -> np.ndarray:
    """(m, m): Spearman's rho between measures over all ordered pairs of different layers, distances taken with minus.

    maps: by measure the (r, r) values, and whether larger is closer.
    Raises BadInput for fewer than 3 measures or 3 layers, or a measure that is the same for all pairs.
    """
    layers = len(next(iter(maps.values()))[0]) if maps else 0
    if len(maps) < 3 or layers < 3:
        raise BadInput(f"3 measures and 3 layers are needed, got {len(maps)} and {layers}; select more of them")
    off = ~np.eye(layers, dtype=bool)
    pairs = np.stack([values[off] * (1 if larger else -1) for values, larger in maps.values()])
    for label, row in zip(maps, pairs, strict=True):
        if np.ptp(row) == 0:
            raise BadInput(
                f"{label} is the same for all pairs of layers, got {row[0]:.3g}; leave it out of the agreement"
            )
    rho = np.corrcoef(scipy.stats.rankdata(pairs, axis=1))
    rho = (rho + rho.T) / 2
    np.fill_diagonal(rho, 1)
    return rho


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """measure-agreement"""
    yield "measure-agreement", partial(_draw_measure_agreement, run, run.results.matrices[NAME])


def _draw_measure_agreement(run: Finished, matrix: Matrix) -> Any:
    rho, names = run.array(matrix.values), matrix.rows.layers
    return draw_agreement_map(rho, names, f"{matrix.n:,} ordered pairs of layers", matrix.label)


def draw_agreement_map(rho: np.ndarray, names: Sequence[str], over: str, label: str) -> Any:
    """The rank correlations of measures, in the order of their tree, those below 0 crossed out. over: what they are
    taken over."""
    below = rho < 0
    crosses = "; ×: below 0" if below.any() else ""
    title = f"Which measures say the same\nSpearman's rho over {over}{crosses}"
    figure, axes = draw_heatmap(
        rho, [*names], [*names], title, label, (0.0, 1.0), choose_colours(), "{:.2f}", crossed=below
    )
    add_tree(figure, axes, build_linkage_tree(1 - rho), "1 - rho")
    return figure


@analysis(studies=("similarity", "attention"), figures=draw_figures)
def agreement(run: Finished, options: Agreement, claims: Sequence[Claim]) -> Part:
    maps = {label: (x.values, x.measure.larger_is_closer) for label, x in run.maps.items()}
    rho, labels = correlate_measures(maps), list(maps)
    order = hierarchy.leaves_list(build_linkage_tree(1 - rho))
    others = np.where(np.eye(len(labels), dtype=bool), np.nan, rho)
    closest = np.nanargmax(others, axis=1)
    names = Side(model="measures", layers=[labels[i] for i in order])
    layers = len(next(iter(run.maps.values())).names)
    rows = [[labels[i], float(np.nanmean(others[i])), labels[closest[i]], float(others[i, closest[i]])] for i in order]
    matrix = Matrix(rows=names, columns=names, n=layers * (layers - 1), label="Spearman's rho", bounds=[-1.0, 1.0])
    return Part(
        matrices={NAME: (rho[np.ix_(order, order)], matrix)},
        tables={NAME: Table(columns=COLUMNS, rows=rows)},
    )
