"""The shapes of models, from their configs alone; the manifest has them for every model."""

from collections.abc import Mapping
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.engine.study import Study
from repsim_cli.models.source import AnySource, Source
from repsim_cli.runs.content import Results
from repsim_cli.runs.results import Run


@studies.register("architecture")
class Architectures(Study):
    """Compares the shapes of models: blocks, width, heads, features per head, rotary features, parameters. No weights
    are read. The table, and how far a model stands apart, are the analysis `architecture`.

    Example: repsim run study=architecture model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}'
    """

    def __init__(self, *, model: Mapping[str, AnySource]):
        if not model:
            raise BadInput("model: no model is selected; e.g. model=[tiny_a,tiny_b]")
        for label, source in model.items():
            if not isinstance(source, Source):
                raise BadInput(f"model.{label}: stored activations have no architecture, got kind precomputed; drop it")
        self.models = {label: source.model_type for label, source in model.items() if isinstance(source, Source)}

    def plan(self) -> dict[str, Any]:
        return {"models": self.models, "weights": "none"}

    def run(self, run: Run) -> Results:
        return Results(study="architecture")
