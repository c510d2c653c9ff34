"""The effective rank of what writes to the residual stream during training, beside how early layers converge."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple, Unpack

import torch
from torch import nn

from repsim_cli.base.closure import collect_code
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.data.base import Sequences
from repsim_cli.engine.curves import make_curve, name_curves
from repsim_cli.engine.study import OfSeries, Study
from repsim_cli.models.source import find_backbone_path
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.cache import make_cache_key, use
from repsim_cli.runs.content import Curve, Results
from repsim_cli.runs.results import Run
from repsim_cli.studies.training_run.ranks import WRITERS, Attention, Normaliser, Writers
from repsim_cli.studies.training_run.study_convergence import Convergence
from repsim_cli.studies.training_run.trainings import Missing, OpenedCheckpoint, Training
from repsim_cli.training.pretrain import add_loss_gradients

HEAD = "AutoModelForCausalLM"
LABELS = {"min": "effective rank / largest possible", "H": "effective rank / H"}


class Rank(NamedTuple):
    """Proportional effective ranks of one checkpoint, a value per layer. of: parameters or gradients."""

    model: str
    step: int
    of: str
    point: str
    values: list[float]


@studies.register("effective_rank")
class EffectiveRank(Study):
    """Measures the effective rank of parameters and of gradients, per layer and checkpoint, beside convergence.

    Ranks are proportional, as `normaliser` says. The gradients are those of the next-token loss on the sequences of the
    run. The convergence of the same layers is measured as in the study `convergence`, under one measure.

    attention: the matrices of an attention layer: the mean over `heads` of W_O, the mean over heads of the `circuit`
        W_O W_V, or the `whole` W_O.
    normaliser: what ranks are divided by: the largest possible rank (`min`) or the number of inner features (`H`).
    gradients: compute the ranks of gradients too.
    missing: a checkpoint that is missing or broken stops the run (`stop`), or is left out and shown as a gap (`skip`).
    Example: repsim run study=effective_rank model=[] +model.mine='{kind: series, folder: DIR}' measure=[cka_unbiased]
        extract=writers extract.length=auto
    """

    takes_series: ClassVar[bool] = True
    fixed_points: ClassVar[bool] = True

    def __init__(
        self,
        *,
        attention: Attention = "heads",
        normaliser: Normaliser = "min",
        gradients: bool = True,
        missing: Missing = "stop",
        **given: Unpack[OfSeries],
    ):
        measure, extract = given["measure"], given["extract"]
        if len(measure) != 1:
            raise BadInput(f"measure: one measure says which layers are early, got {list(measure)}; e.g. [cka]")
        (self.measure,) = measure
        if not measure[self.measure].card.larger_is_closer:
            raise BadInput(
                f"measure: early layers have a large similarity, got the distance {self.measure}; e.g. [cka]"
            )
        if attention == "circuit" and gradients:
            raise BadInput(
                "options.gradients: W_O W_V is not a parameter and has no gradient, got attention=circuit; "
                "set options.gradients=false, or attention=heads"
            )
        if tuple(extract.hook_points) != WRITERS or extract.layers != "all":
            raise BadInput(
                f"extract.hook_points: the table needs {list(WRITERS)} of all layers, got {extract.hook_points} "
                f"of {extract.layers}; select extract=writers"
            )
        self.convergence = Convergence(**given, missing=missing)
        self.hardware, self.readings = given["hardware"], self.convergence.readings
        self.attention: Attention = attention
        self.normaliser: Normaliser = normaliser
        self.gradients = gradients
        self.writers = {label: self._writers(label, training) for label, training in self.convergence.trainings.items()}

    def _writers(self, label: str, training: Training) -> Writers:
        source = training.last
        if self.gradients and not (predicts_next(source) or source.model_type.startswith("native")):
            raise BadInput(
                f"model.{label}: {source.model_type} has no next-token loss to take gradients of, got "
                "gradients=true; set options.gradients=false, or use a model that predicts the next token"
            )
        try:
            return Writers(source, self.attention)
        except BadInput as error:
            raise BadInput(f"model.{label}: {error}") from None

    def plan(self) -> dict[str, Any]:
        kinds = ["parameters", *(["gradients"] if self.gradients else [])]
        parts = self.convergence.costs()
        if self.gradients:  # a backward pass costs two forward ones, and needs one of its own
            parts["gradients"] = 3 * parts["forward passes"]
        plan = {**self.convergence.plan(), "ranks of": kinds, "attention": self.attention}
        return {**plan, **self.convergence.needs(parts)}

    def run(self, run: Run) -> Results:
        ranks: list[Rank] = []
        similarity = self.convergence.curves(
            run, lambda training, checkpoint: ranks.extend(self._ranks(run, training, checkpoint))
        )
        curves = [*similarity, *self._curves(ranks)]
        return Results(study="effective_rank", tables=self.convergence.tables(run), curves=name_curves(curves))

    def _curves(self, ranks: Sequence[Rank]) -> Iterator[Curve]:
        """A curve per model and kind of matrix, of parameters and of gradients."""
        for label, of, point in dict.fromkeys((rank.model, rank.of, rank.point) for rank in ranks):
            training = self.convergence.trainings[label]
            yield make_curve(
                quantity=of,
                label=LABELS[self.normaliser],
                point=point,
                model=label,
                parameters=training.last.parameters,
                steps=[checkpoint.step for checkpoint in training.series.checkpoints],
                layers=[f"{point}@{layer}" for layer in range(training.last.layers)],
                values={
                    rank.step: rank.values for rank in ranks if (rank.model, rank.of, rank.point) == (label, of, point)
                },
            )

    def _ranks(self, run: Run, training: Training, opened: OpenedCheckpoint) -> list[Rank]:
        """Proportional effective ranks of all layers of a checkpoint, from the cache where they are there."""
        sequences, code = training.tokens if self.gradients else None, collect_code(__name__)
        parts = {
            "code": code and code.key,
            "weights": opened.identity["weights_hash"],
            "config": opened.identity.get("config_hash"),
            "attention": self.attention,
            "normaliser": self.normaliser,
            "gradients of": sequences.hash() if sequences else None,
        }
        step = opened.checkpoint.step
        with run.stage("ranks"), ExitStack() as held:
            entry = None
            if training.compared.cache and code is not None:
                try:
                    entry = held.enter_context(use("ranks", [make_cache_key(parts)]))[make_cache_key(parts)]
                except OSError as error:
                    run.warn(f"cache: {error.filename} cannot be used ({error.strerror}); continuing without it")
            if entry is not None and entry.complete:
                values = entry.meta["values"]
            else:
                values = self._compute(self.writers[training.label], opened, sequences)
                if entry is not None:
                    try:
                        entry.folder.mkdir(parents=True, exist_ok=True)
                        entry.finish(values=values)
                    except OSError as error:
                        run.warn(f"cache: {entry.folder} cannot be written ({error.strerror}); continuing without it")
        return [Rank(training.label, step, of, point, layers) for of, point, layers in values]

    def _compute(
        self, writers: Writers, opened: OpenedCheckpoint, sequences: Sequences | None
    ) -> list[tuple[str, str, list[float]]]:
        """Computes the ranks at a checkpoint: (parameters or gradients, kind of matrix, a value per layer)."""
        source, device = opened.source, self.hardware.device
        if sequences is None:
            backbone: nn.Module = source.load(False).to(device)
            kinds = {"parameters": False}
        else:
            model: Any = source.with_head(HEAD).to(device)
            add_loss_gradients(model, sequences.ids, sequences.mask, self.hardware.batch_size)
            backbone = model.get_submodule(find_backbone_path(model, source)) if source.plain else model
            kinds = {"parameters": False, "gradients": True}
        with torch.no_grad():
            return [
                (
                    of,
                    point,
                    [
                        writers.rank(backbone, point, layer, gradient=gradient, normaliser=self.normaliser)[1]
                        for layer in range(source.layers)
                    ],
                )
                for of, gradient in kinds.items()
                for point in WRITERS
            ]
