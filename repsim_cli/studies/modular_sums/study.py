"""Training of models of modular sums: what each stage reached, and its remaining errors."""

from collections.abc import Mapping
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Hardware
from repsim_cli.engine.bounds import describe_models
from repsim_cli.engine.cost import describe_trainings
from repsim_cli.engine.study import Study
from repsim_cli.models.source import AnySource, Source
from repsim_cli.runs.content import Axis, Curve, Results, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.modular_sums.train import CURVES, MISTAKES
from repsim_cli.training.trained import read_kept

COLUMNS = {
    "training accuracy": "training_accuracy",
    "validation accuracy": "validation_accuracy",
    "training loss, nats": "training_loss",
    "validation loss, nats": "validation_loss",
}
AXES = {
    "loss": Axis(name="cross-entropy", unit="nats"),
    "accuracy": Axis(name="share of rows with all outputs right"),
}


@studies.register("modular_training")
class ModularTraining(Study):
    """Trains models of modular sums (kind `modular`): learning curves, and what each stage of the training reached.

    The cross-entropy of a stage is the sum over its outputs. Models that are in the cache are not trained again, and an
    interrupted training resumes, whichever study needs the model.

    Example: repsim run study=modular_training model=[] +model.mine='{kind: modular, recipe: {moduli: [11, 7], blocks:
        2}}'
    """

    def __init__(self, *, model: Mapping[str, AnySource]):
        if not model:
            raise BadInput("model: no model is selected; e.g. model=[modsum_0]")
        for label, source in model.items():
            if not isinstance(source, Source) or source.make is None or source.modality != "numbers":
                raise BadInput(f"model.{label}: not trained on modular sums, got another kind; give kind: modular")
        self.models = {label: source for label, source in model.items() if isinstance(source, Source)}

    def plan(self) -> dict[str, Any]:
        return {
            "models": describe_models(self.models, Hardware()),
            **describe_trainings(self.models.values(), Hardware()),
        }

    def run(self, run: Run) -> Results:
        with run.stage("models"):
            identities = {label: source.identity() for label, source in self.models.items()}
            run.input("models", identities)
            curves, wrong = (
                {label: read_kept(identity["trained"], name) for label, identity in identities.items()}
                for name in (CURVES, MISTAKES)
            )
        run.save_manifest()
        tables = {
            "training": Table(
                columns=["model", "stage", "epochs", "kept after", *COLUMNS],
                rows=[
                    [
                        label,
                        stage,
                        int(looks["epoch"][-1]),
                        int(looks["epoch"][best]),
                        *(looks[column][best] for column in COLUMNS.values()),
                    ]
                    for label, stages in curves.items()
                    for stage, looks in stages.items()
                    for best in [looks["epoch"].index(identities[label]["metrics"][f"{stage}_epochs"])]
                ],
            ),
            "wrong validation rows": Table(
                columns=["model", "sum", "predicted - true, mod p", "rows"],
                rows=[
                    [label, stage, *pair]
                    for label, stages in wrong.items()
                    for stage, pairs in stages.items()
                    for pair in pairs
                ],
            ),
        }
        return Results(
            study="modular_training",
            tables={name: table for name, table in tables.items() if table.rows},
            curves={
                f"{quantity} of {stage}, {label}": Curve(
                    x=Axis(name="epoch"),
                    y=axis,
                    at=looks["epoch"],
                    lines={rows: looks[f"{rows}_{quantity}"] for rows in ("training", "validation")},
                    about={"quantity": quantity, "model": label, "stage": stage},
                )
                for label, stages in curves.items()
                for stage, looks in stages.items()
                for quantity, axis in AXES.items()
            },
        )
