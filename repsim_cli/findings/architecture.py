"""The shapes of models side by side, and which of them stand apart from their neighbours in size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from pydantic import Field

from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import FAILS, HOLDS, Claim, Fact, Untestable, claim
from repsim_cli.runs.content import Facts, Table

NEIGHBOURS = 2  # on either side, by parameters
COLUMNS = ["model", "depth", "width", "heads", "d_head", "rotary", "parameters", "d_head / neighbours", "stands apart"]
SMALL = 0.6667  # of the median of its neighbours
PYTHIA_2_8B = ("gpt_neox", 32, 2560)  # family, blocks, width


@dataclass(frozen=True, kw_only=True)
class ArchitectureOptions:
    """A table of the shapes of models, the smallest first, which says of each model whether it stands apart.

    It does where its features per head are more than `factor` times, or less than 1 / `factor` of, the median over the
    next two smaller and the next two larger models; with fewer than two such neighbours nothing is said.

    factor: how far a model stands apart.
    """

    factor: Annotated[float, Field(gt=1, le=1e9)] = 1.5


def compute_neighbour_ratios(values: Sequence[int]) -> list[float | None]:
    """Computes each value over the median of its neighbours; None where it has fewer than two.

    >>> compute_neighbour_ratios([64, 64, 256, 128])
    [0.4, 0.5, 4.0, 0.8]
    """
    ratios: list[float | None] = []
    for i, value in enumerate(values):
        near = [*values[max(0, i - NEIGHBOURS) : i], *values[i + 1 : i + 1 + NEIGHBOURS]]
        ratios.append(value / median(near) if len(near) >= 2 else None)
    return ratios


def compare_head_widths(models: Mapping[str, Facts]) -> dict[str, float | None]:
    """Features per head over the median of the neighbours', by model, the smallest first."""
    order = sorted(models, key=lambda label: models[label].parameters or 0)
    return dict(zip(order, compute_neighbour_ratios([models[label].head_width or 0 for label in order]), strict=True))


def tabulate_architectures(models: Mapping[str, Facts], factor: float) -> Table:
    rows = []
    for label, ratio in compare_head_widths(models).items():
        model = models[label]
        apart = "" if ratio is None or 1 / factor <= ratio <= factor else "small" if ratio < 1 else "large"
        shape = [model.blocks, model.width, model.heads, model.head_width, model.rotary, model.parameters]
        rows.append([label, *shape, ratio, apart])
    return Table(columns=COLUMNS, rows=rows)


@claim(
    "Brown et al. 2023, table 1",
    statistic="d_head of 2.8b over the median of its neighbours in size",
    threshold=SMALL,
    unit="fact",
    published="below",
)
def pythia_2_8b_has_a_small_head(models: Mapping[str, Facts]) -> Fact | Untestable:
    """2.8b has an unexpectedly small attention head."""
    for label, ratio in compare_head_widths(models).items():
        model = models[label]
        if (model.family, model.blocks, model.width) == PYTHIA_2_8B and ratio is not None:
            return Fact(ratio, HOLDS if ratio < SMALL else FAILS)
    return Untestable("needs a model of the shape of Pythia 2.8b and two neighbours")


@analysis(studies=("architecture",), unasked=lambda planned: True)
def architecture(run: Finished, options: ArchitectureOptions, claims: Sequence[Claim]) -> Part:
    verdicts = [each.verdict("d_head", run.models) for each in claims]
    return Part(tables={"architecture": tabulate_architectures(run.models, options.factor)}, claims=verdicts)
