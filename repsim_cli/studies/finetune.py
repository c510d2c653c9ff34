"""Classifiers of one training data under several seeds: alike where they were trained to be, and elsewhere?"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.classifiers import CLASSIFIER_CLAIMS
from repsim_cli.analysis.claims.finding import check_names, record
from repsim_cli.errors import BadInput
from repsim_cli.models.source import AnySource, Source
from repsim_cli.registry import studies
from repsim_cli.results import Run
from repsim_cli.training.finetuned import RECORD
from repsim_cli.training.trained import kept


@studies.register("finetune")
class Finetune:
    """Trains classifiers (models of kind `finetuned`) and compares their metrics over seeds and by heuristic.

    Models that are in the cache are not trained again. They stay there, for other runs of the same entry; the manifest
    names each for {kind: trained, run: RUN, name: LABEL}. All weights are trained; what is trained is set by the
    entries.

    claims: the names of published findings to test; null: none.
    Example: repsim run study=finetune model=[tiny_nli] model.tiny_nli.train='{kind: mnli, path: FILE}'
    """

    def __init__(self, *, model: Mapping[str, AnySource], claims: list[str] | None = None):
        if not model:
            raise BadInput("model: no model is selected, got none; e.g. model=[tiny_nli]")
        for label, source in model.items():
            if not isinstance(source, Source) or source.make is None or not source.labels:
                raise BadInput(
                    f"model.{label}: not trained here as a classifier, got another kind; give kind: finetuned"
                )
        self.models = {label: source for label, source in model.items() if isinstance(source, Source)}
        self.claims = claims or []
        check_names(self.claims, CLASSIFIER_CLAIMS)

    def plan(self) -> dict[str, Any]:
        return {
            "models": {
                label: f"{one.model_type}, {one.layers} blocks of {one.width}, {one.parameters:,} parameters"
                for label, one in self.models.items()
            },
            "labels": list(next(iter(self.models.values())).labels),
            "weights": "trained where they are not in the cache",
            "time, roughly": "not estimated; what a training takes stands above its entry in conf/models.yaml",
        }

    def run(self, run: Run) -> dict[str, Any]:
        with run.stage("models"):
            found = {label: one.identity() for label, one in self.models.items()}
            run.manifest["models"] = found
            metrics = {label: one["metrics"] for label, one in found.items()}
            records = {label: training_record(one["trained"]) for label, one in found.items()}
        run.save_manifest()
        table = by_model(metrics)
        claims = [CLASSIFIER_CLAIMS[name] for name in self.claims]
        return {
            "measures": [],
            "tables": {"classifiers": table, "over seeds": over_models(table)},
            "curves": {
                f"training loss of {label}, nats": {
                    "steps": [int(step) for step in one["loss"]],
                    "loss": [*one["loss"].values()],
                }
                for label, one in records.items()
            },
            "claims": [record(claim, "accuracy", claim(list(metrics.values()))) for claim in claims],
            "classifiers": metrics,
        }


def training_record(key: str) -> dict[str, Any]:
    """What was noted while a model in the cache was trained: seed, recipe, loss by step."""
    return kept(key, RECORD)


def by_model(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """A row per model: accuracy where it was trained to be right, and by heuristic and label."""
    names = [name for name in next(iter(metrics.values())) if name.count("_") == 0 or name.endswith("entailment")]
    return {
        "columns": ["model", *names],
        "rows": [[label, *(one[name] for name in names)] for label, one in metrics.items()],
    }


def over_models(table: Mapping[str, Any]) -> dict[str, Any]:
    """The mean, the standard deviation and the ends of every column of numbers."""
    columns = ["metric", "lowest", "mean", "highest", "standard deviation"]
    rows = []
    for place, name in enumerate(table["columns"][1:], 1):
        values = np.array([row[place] for row in table["rows"]])
        spread = float(values.std(ddof=1)) if len(values) > 1 else None
        rows.append([name, float(values.min()), float(values.mean()), float(values.max()), spread])
    return {"columns": columns, "rows": rows}
