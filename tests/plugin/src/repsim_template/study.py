"""A study: how many parameters the models have."""

from collections.abc import Mapping
from typing import Any

from repsim_cli import BadInput, register_study
from repsim_cli.engine.study import Study
from repsim_cli.models.source import AnySource, Source
from repsim_cli.runs.content import Results, Table
from repsim_cli.runs.results import Run


@register_study("parameters")
class Parameters(Study):
    """How many parameters do the models have?"""

    def __init__(self, *, model: Mapping[str, AnySource]):
        self.models = {label: source for label, source in model.items() if isinstance(source, Source)}
        if stored := [label for label in model if label not in self.models]:
            raise BadInput(f"model.{stored[0]}: parameters are needed, got stored activations; drop it")

    def plan(self) -> dict[str, Any]:
        return {"models": [*self.models]}

    def run(self, run: Run) -> Results:
        with run.stage("hashes"):  # which weights these are, for whoever reads the run
            run.input("models", {label: source.identity() for label, source in self.models.items()})
        rows = [[label, source.parameters] for label, source in self.models.items()]
        return Results(tables={"parameters": Table(columns=["model", "parameters"], rows=rows)})
