"""Classifiers trained on the same data under several seeds: do they agree beyond the training distribution?"""

from collections.abc import Mapping
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Hardware
from repsim_cli.engine.bounds import describe_models
from repsim_cli.engine.cost import describe_trainings
from repsim_cli.engine.study import Study
from repsim_cli.models.source import AnySource, Source
from repsim_cli.runs.content import Axis, Curve, Results
from repsim_cli.runs.results import Run
from repsim_cli.training.encoder import RECORD
from repsim_cli.training.trained import read_kept


@studies.register("finetune")
class Finetune(Study):
    """Trains classifiers (models of kind `finetuned`) and compares their metrics over seeds and by heuristic.

    Models that are in the cache are not trained again. They stay there, for other runs of the same entry; the manifest
    names each for {kind: trained, run: RUN, name: LABEL}. The entries say what is trained, and how.

    Example: repsim run study=finetune model=[] +model.mine='{kind: finetuned, path: DIR, train: {kind: mnli, path:
        FILE}, evaluate: {kind: mnli, path: FILE}, seeds: [0, 1]}'
    """

    def __init__(self, *, model: Mapping[str, AnySource]):
        if not model:
            raise BadInput("model: no model is selected; e.g. model=[tiny_nli]")
        for label, source in model.items():
            if not isinstance(source, Source) or source.make is None or not source.labels:
                raise BadInput(
                    f"model.{label}: not trained here as a classifier, got another kind; give kind: finetuned"
                )
        self.models = {label: source for label, source in model.items() if isinstance(source, Source)}

    def plan(self) -> dict[str, Any]:
        return {
            "models": describe_models(self.models, Hardware()),
            "labels": list(next(iter(self.models.values())).labels),
            **describe_trainings(self.models.values(), Hardware()),
        }

    def run(self, run: Run) -> Results:
        with run.stage("models"):
            identities = {label: source.identity() for label, source in self.models.items()}
            run.input("models", identities)
            records = {label: read_training(identity["trained"]) for label, identity in identities.items()}
        run.save_manifest()
        return Results(
            study="finetune",
            curves={
                f"training loss of {label}": Curve(
                    x=Axis(name="step"),
                    y=Axis(name="training loss", unit="nats"),
                    at=[int(step) for step in by_step],
                    lines={"loss": list(by_step.values())},
                    about={"quantity": "training loss", "model": label},
                )
                for label, by_step in ((label, record["loss"]) for label, record in records.items())
            },
            about={"evaluated": {label: record.get("evaluated") for label, record in records.items()}},
        )


def read_training(key: str) -> dict[str, Any]:
    """The record of the training of a model in the cache: seed, recipe, loss by step."""
    return read_kept(key, RECORD)
