"""The shapes of models side by side, from their configs alone, and which of them stand apart from their neighbours."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from repsim_cli.analysis.claims.finding import check_names, record
from repsim_cli.analysis.claims.shapes import SHAPE_CLAIMS
from repsim_cli.errors import BadInput
from repsim_cli.models.source import AnySource, Source
from repsim_cli.registry import studies
from repsim_cli.results import Run
from repsim_cli.settings import Above0

NEIGHBOURS = 2  # on either side, by parameters
COLUMNS = ["model", "depth", "width", "heads", "d_head", "rotary", "parameters", "d_head / neighbours", "stands apart"]


@studies.register("architecture")
class Architectures:
    """Compares the shapes of models: blocks, width, heads, features per head, rotary features, parameters.

    One row per model, the smallest backbone first. A model stands apart if its features per head are more than `factor`
    times, or less than 1 / `factor` of, the median over the next two smaller and the next two larger models; with fewer
    than two such neighbours nothing is said. No weights are read.

    factor: how far a model stands apart; above 1.
    claims: the names of published findings to test; null: none.
    Example: repsim run study=architecture model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}'
    """

    def __init__(self, *, model: Mapping[str, AnySource], factor: Above0 = 1.5, claims: list[str] | None = None):
        if not model:
            raise BadInput("model: no model is selected, got none; e.g. model=[tiny_a,tiny_b]")
        for label, source in model.items():
            if not isinstance(source, Source):
                raise BadInput(f"model.{label}: stored activations have no architecture, got kind precomputed; drop it")
        if factor <= 1:
            raise BadInput(f"options.factor: must be above 1, got {factor}; 1.5 is the default")
        self.models = {label: source for label, source in model.items() if isinstance(source, Source)}
        self.factor, self.claims = factor, claims or []
        check_names(self.claims, SHAPE_CLAIMS)

    def plan(self) -> dict[str, Any]:
        return {"models": {label: source.model_type for label, source in self.models.items()}, "weights": "none"}

    def run(self, run: Run) -> dict[str, Any]:
        with run.stage("shapes"):
            table = {"columns": COLUMNS, "rows": rows(self.models, self.factor)}
        ratios = {row[0]: row[COLUMNS.index("d_head / neighbours")] for row in table["rows"]}
        claims = [SHAPE_CLAIMS[name] for name in self.claims]
        return {
            "measures": [],
            "tables": {"architecture": table},
            "curves": {},
            "claims": [record(claim, "d_head", claim(ratios, self.factor)) for claim in claims],
            "factor": self.factor,
        }


def rows(models: Mapping[str, Source], factor: float) -> list[list[Any]]:
    """The rows of the table, smallest model first."""
    order = sorted(models, key=lambda label: models[label].parameters)
    found = [models[label] for label in order]
    ratios = to_neighbours([source.head_width for source in found])
    return [
        [
            label,
            source.layers,
            source.width,
            source.heads,
            source.head_width,
            source.rotary,
            source.parameters,
            ratio,
            "" if ratio is None or 1 / factor <= ratio <= factor else "small" if ratio < 1 else "large",
        ]
        for label, source, ratio in zip(order, found, ratios, strict=True)
    ]


def to_neighbours(values: Sequence[int]) -> list[float | None]:
    """Each value over the median of its neighbours; None where it has fewer than two.

    >>> to_neighbours([64, 64, 256, 128])
    [0.4, 0.5, 4.0, 0.8]
    """
    ratios: list[float | None] = []
    for i, value in enumerate(values):
        near = [*values[max(0, i - NEIGHBOURS) : i], *values[i + 1 : i + 1 + NEIGHBOURS]]
        ratios.append(value / median(near) if len(near) >= 2 else None)
    return ratios
