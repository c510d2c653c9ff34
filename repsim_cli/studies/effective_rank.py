"""The effective rank of what writes to the residual stream during training, beside how early layers converge."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from repsim_cli.analysis import claims as findings
from repsim_cli.analysis.convergence import Curve, curve, table
from repsim_cli.analysis.ranks import WRITERS, Attention, Normaliser, Writers
from repsim_cli.data.base import Data, Sequences
from repsim_cli.errors import BadInput, RepsimError, RunFailed
from repsim_cli.measures import Measure
from repsim_cli.models.source import Checkpoint, Series
from repsim_cli.registry import studies
from repsim_cli.results import Run
from repsim_cli.settings import Extract, Hardware
from repsim_cli.studies.convergence import Convergence, Gap, Missing, Training, gap_table, named
from repsim_cli.training.pretrain import add_loss_gradients

Share = Annotated[float, Field(ge=0, le=1)]
CAUSAL = ("gpt_neox", "gpt2", "llama", "openai-gpt")
LABELS = {"min": "effective rank / largest possible", "H": "effective rank / H"}


@studies.register("effective_rank")
class EffectiveRank:
    """Proportional effective rank per layer and checkpoint, of parameters and of gradients of the next-token loss on
    the sequences of the run; and with a measure, its convergence (as the study `convergence`) and the Matthews table.

    attention: mean over `heads` of W_O, the `circuit` W_O W_V of each head, or the `whole` W_O. normaliser: over the
    largest rank possible (`min`), or over the number of inner features (`H`). gradients: whether they are looked at.
    early_similarity, early_share: a layer is early that reaches this similarity within this share of training.
    large_parameters, large_gradients: least proportional rank at the end, of gradients in parts of the largest layer's.
    missing, claims: as of convergence.
    """

    takes_series: ClassVar[bool] = True

    def __init__(
        self,
        *,
        model: Mapping[str, Series],
        data: Data,
        measure: Mapping[str, Measure],
        extract: Extract,
        hardware: Hardware,
        seed: int,
        cache: bool = True,
        attention: Attention = "heads",
        normaliser: Normaliser = "min",
        gradients: bool = True,
        early_similarity: Share = 0.45,
        early_share: Share = 0.1,
        large_parameters: Share = 0.95,
        large_gradients: Share = 0.9,
        missing: Missing = "stop",
        claims: list[str] | None = None,
    ):
        if len(measure) != 1:
            raise BadInput(f"measure: one measure says which layers are early, got {list(measure)}; e.g. [cka]")
        (self.measure,) = measure
        if not measure[self.measure].card.larger_is_closer:
            raise BadInput(
                f"measure: early layers have a large similarity, got the distance {self.measure}; e.g. [cka]"
            )
        if attention == "circuit" and gradients:
            raise BadInput(
                "options.gradients: W_O W_V is no parameter and has no gradient, got attention=circuit; "
                "set options.gradients=false, or attention=heads"
            )
        if tuple(extract.hook_points) != WRITERS or extract.layers != "all":
            raise BadInput(
                f"extract.hook_points: the table needs {list(WRITERS)} of all layers, got {extract.hook_points} "
                f"of {extract.layers}; select extract=writers"
            )
        self.convergence = Convergence(
            model=model,
            data=data,
            measure=measure,
            extract=extract,
            hardware=hardware,
            seed=seed,
            cache=cache,
            missing=missing,
            claims=claims,
        )
        self.hardware, self.missing = hardware, missing
        self.attention: Attention = attention
        self.normaliser: Normaliser = normaliser
        self.gradients = gradients
        self.thresholds = {
            "early_similarity": early_similarity,
            "early_share": early_share,
            "large_parameters": large_parameters,
            "large_gradients": large_gradients,
        }
        self.writers = {label: self._writers(label, one) for label, one in self.convergence.trainings.items()}

    def _writers(self, label: str, training: Training) -> Writers:
        source = training.live[label]
        if self.gradients and source.model_type not in CAUSAL:
            raise BadInput(
                f"model.{label}: {source.model_type} has no next-token loss to take gradients of, got "
                f"gradients=true; set options.gradients=false, or use one of {', '.join(CAUSAL)}"
            )
        try:
            return Writers(source, self.attention)
        except BadInput as error:
            raise BadInput(f"model.{label}: {error}") from None

    def plan(self) -> dict[str, Any]:
        kinds = ["parameters", *(["gradients"] if self.gradients else [])]
        return {**self.convergence.plan(), "ranks of": kinds, "attention": self.attention}

    def run(self, run: Run) -> dict[str, Any]:
        similarity = self.convergence.curves(run)
        gaps = {(gap.model, gap.step): gap for gap in self.convergence.gaps()}
        ranks: list[Curve] = []
        for label, training in self.convergence.trainings.items():
            with run.stage("ranks"):
                ranks += self._curves(run, label, training, gaps)
        matthews = table(similarity, ranks, **self.thresholds)
        curves = [*similarity, *ranks]
        return {
            "measures": [],
            "tables": {"early convergence and large rank": matthews, **gap_table(list(gaps.values()))},
            "curves": named(curves),
            "claims": findings.training_verdicts(self.convergence.claims, self.measure, curves, matthews["rows"]),
            "thresholds": self.thresholds,
        }

    def _curves(self, run: Run, label: str, training: Training, gaps: dict[tuple[str, int], Gap]) -> list[Curve]:
        """A curve per kind of matrix, of parameters and of gradients."""
        checkpoints, depth = training.series.checkpoints, training.live[label].layers
        sequences = training.tokens(run) if self.gradients else None
        found: dict[tuple[str, str], dict[int, list[float]]] = {}
        for checkpoint in run.progress(checkpoints, label=f"{label}: ranks", unit="checkpoints"):
            if (label, checkpoint.step) in gaps:
                continue
            try:
                own = self._ranks(self.writers[label], checkpoint, sequences, depth)
            except RepsimError as error:
                if self.missing == "stop" or checkpoint is checkpoints[-1]:
                    raise RunFailed(training.unreadable(checkpoint, error)) from error
                gaps[label, checkpoint.step] = Gap(label, checkpoint.step, str(error))
                run.warn(f"model.{label}, step {checkpoint.step}: its ranks are left out as a gap ({error})")
                continue
            for key, values in own.items():
                found.setdefault(key, {})[checkpoint.step] = values
        return [
            curve(
                quantity=of,
                label=LABELS[self.normaliser],
                point=point,
                model=label,
                parameters=training.live[label].parameters,
                steps=[one.step for one in checkpoints],
                layers=[f"{point}@{layer}" for layer in range(depth)],
                values=by_step,
            )
            for (of, point), by_step in found.items()
        ]

    def _ranks(
        self, writers: Writers, checkpoint: Checkpoint, sequences: Sequences | None, depth: int
    ) -> dict[tuple[str, str], list[float]]:
        """Proportional effective ranks of all layers, by (parameters or gradients, kind of matrix)."""
        if sequences is None:
            backbone: nn.Module = checkpoint.open().load(False)
            kinds = {"parameters": False}
        else:
            with_head = checkpoint.open().with_head
            assert with_head is not None
            model: Any = with_head("AutoModelForCausalLM").to(self.hardware.device)
            add_loss_gradients(model, sequences.ids, sequences.mask, self.hardware.batch_size)
            backbone, kinds = model.base_model, {"parameters": False, "gradients": True}
        backbone = backbone.to(self.hardware.device)
        with torch.no_grad():
            return {
                (of, point): [
                    writers.rank(backbone, point, layer, gradient=gradient, normaliser=self.normaliser)[1]
                    for layer in range(depth)
                ]
                for of, gradient in kinds.items()
                for point in WRITERS
            }
