"""What stitching costs within and between groups of models, by depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis, select_claims
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import weigh_by_jackknife
from repsim_cli.findings.groups import EARLY, LATE, Depths, list_group_figures, make_curves, measure_late_gap
from repsim_cli.findings.layers import read_block_number
from repsim_cli.findings.permuted_groups import leave_out_each, number_groups
from repsim_cli.runs.content import Curve, Table

LITTLE = 0.02  # a penalty in accuracy that is almost none
ACCURACY, PENALTY = "accuracy", "accuracy_penalty"  # quantities of stitched models that claims are about
BOUNDS = {ACCURACY: (0.0, 1.0), PENALTY: (-1.0, 1.0), "disagreement": (0.0, 1.0)}  # none: of losses
# columns of the table by direction, by quantity
COLUMNS = {
    ACCURACY: "accuracy",
    PENALTY: "accuracy lost",
    "loss_penalty": "loss added",
    "shared": "shared",
    "disagreement": "disagreement",
}


@dataclass(frozen=True, kw_only=True)
class Penalties:
    """What stitched models lose by depth, for pairs of models of one group and of two. It has no settings."""

    def check(self, planned: Planned) -> None:
        if not planned.groups:
            raise BadInput("pairs of models of one group and of two are compared, got no groups; set groups")


@claim(
    "Brown et al. 2023, figure 2 left",
    statistic="penalty beyond 75 % of the depth: pairs between groups minus pairs within",
    threshold=0.0,
    unit="model",
    on=PENALTY,
    across="groups",
)
def between_groups_cost_late(depths: Depths) -> Weighed | Untestable:
    """Beyond 75 % of the depth stitching between groups costs more than within."""
    return measure_late_gap(depths)


@claim(
    "Brown et al. 2023, figure 2 left",
    statistic="mean penalty within groups beyond 75 % of the depth",
    threshold=LITTLE,
    unit="model",
    published="below",
    on=PENALTY,
)
def within_groups_cost_little(depths: Depths) -> Weighed | Untestable:
    """Beyond 75 % of the depth stitching within a group costs almost nothing."""
    numbers = number_groups(depths.groups)
    same = (numbers[:, None] == numbers) & ~np.eye(len(numbers), dtype=bool)
    return _average_penalties(depths, same, depths.shares > LATE)


@claim(
    "Brown et al. 2023, figure 2 left",
    statistic="mean penalty of all pairs in the first half of the depth",
    threshold=LITTLE,
    unit="model",
    published="below",
    on=PENALTY,
)
def early_layers_cost_little(depths: Depths) -> Weighed | Untestable:
    """In early layers identity stitching costs almost nothing."""
    return _average_penalties(depths, ~np.eye(len(depths.values), dtype=bool), depths.shares <= EARLY)


def _average_penalties(depths: Depths, pairs: np.ndarray, at: np.ndarray) -> Weighed | Untestable:
    """The mean over some pairs at some depths, against the penalty that is almost none."""
    if not at.any():
        return Untestable("no layer lies there")
    values = depths.values[..., at].mean(2)

    def mean(kept: np.ndarray) -> float:
        part = np.ix_(kept, kept)
        return float(values[part][pairs[part]].mean()) if pairs[part].any() else float("nan")

    left_out = [mean(kept) for kept in leave_out_each(len(values))]
    value = mean(np.arange(len(values)))
    return Weighed(value, weigh_by_jackknife(value, LITTLE, left_out, "model"))


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """QUANTITY-resid_post-groups"""
    yield from list_group_figures(run.results.curves, "penalties", "Stitched models of groups, layer by layer")


class Stitched(NamedTuple):
    """One quantity of all stitched models. label: of an axis. layers: after which they are stitched."""

    label: str
    layers: list[str]
    depths: Depths


def collect_stitched(run: Finished) -> dict[str, Stitched]:
    """Reads by quantity what the study measured for all ordered pairs of models at each layer."""
    blocks = next(iter(run.models.values())).blocks or 1
    by_quantity = {}
    for quantity in COLUMNS:
        matrices = [x for x in run.select_kind("stitches") if x.about["quantity"] == quantity]
        if not matrices:
            continue
        layers = [matrix.about["layer"] for matrix in matrices]
        values = np.stack([run.array(matrix.values) for matrix in matrices], axis=2)
        values[np.diag_indices(len(values))] = 0.0  # of no pair, and left out of every mean
        shares = np.array([((read_block_number(layer) or 0) + 1) / blocks for layer in layers])
        depths = Depths(run.groups, values, shares, larger_is_closer=quantity in (ACCURACY, "shared"))
        by_quantity[quantity] = Stitched(matrices[0].label, layers, depths)
    return by_quantity


@analysis(studies=("stitching",), unasked=lambda planned: bool(planned.groups), figures=draw_figures)
def penalties(run: Finished, options: Penalties, claims: Sequence[Claim]) -> Part:
    lines: dict[str, Curve] = {}
    by_quantity = collect_stitched(run)
    if not by_quantity:
        return Part(claims=[each.untestable("stitches", "needs groups of models") for each in claims])
    for quantity, (label, layers, depths) in by_quantity.items():
        bounds = BOUNDS.get(quantity, (None, None))
        lines |= make_curves(quantity, label, "resid_post", layers, depths, level=run.level, bounds=bounds)
    verdicts = [
        each.verdict(quantity, depths)
        for quantity, (_, _, depths) in by_quantity.items()
        for each in select_claims(claims, quantity)
    ]
    return Part(curves=lines, tables={"by direction": _tabulate_group_means(by_quantity)}, claims=verdicts)


def _tabulate_group_means(by_quantity: Mapping[str, Stitched]) -> Table:
    """Means over pairs of different models by the groups of head and tail."""
    _, layers, first = next(iter(by_quantity.values()))
    numbers = number_groups(first.groups)
    different = ~np.eye(len(numbers), dtype=bool)
    rows: list[list[Any]] = []
    for i, head in enumerate(first.groups):
        for j, tail in enumerate(first.groups):
            pairs = (numbers[:, None] == i) & (numbers == j) & different
            for place, layer in enumerate(layers):
                means = [float(depths.values[pairs, place].mean()) for _, _, depths in by_quantity.values()]
                rows.append([head, tail, layer, *means])
    return Table(columns=["head of", "tail of", "layer", *(COLUMNS[quantity] for quantity in by_quantity)], rows=rows)
