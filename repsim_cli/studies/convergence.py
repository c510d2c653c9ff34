"""How layers converge during training: every checkpoint against the last one of its run, layer by layer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from repsim_cli.activations.cached import from_cache
from repsim_cli.activations.rows import Reading, batches, blocks, total_rows
from repsim_cli.activations.stored import Recorder
from repsim_cli.analysis import claims as findings
from repsim_cli.analysis.convergence import Curve, curve
from repsim_cli.data.base import Data, Sequences
from repsim_cli.errors import BadInput, Degenerate, RepsimError, RunFailed
from repsim_cli.measures import Measure
from repsim_cli.models.source import Checkpoint, Precomputed, Series, Source
from repsim_cli.registry import studies
from repsim_cli.results import Run, quiet
from repsim_cli.settings import Extract, Hardware, Significance
from repsim_cli.similarity import Counterparts, estimate_counterparts
from repsim_cli.studies.similarity import Similarity

Missing = Literal["stop", "skip"]
GAPS = ["model", "step", "why"]


@dataclass(frozen=True)
class Gap:
    """A checkpoint that could not be read."""

    model: str
    step: int
    why: str


@studies.register("convergence")
class Convergence:
    """Similarity of the layers of every checkpoint to the same layers of the last one, per measure and hook point.

    previous: also to the checkpoint before. missing: a checkpoint that is missing or broken stops the run, or is
    skipped and shown as a gap. claims: published findings about such curves, by name.
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
        previous: bool = False,
        missing: Missing = "stop",
        claims: list[str] | None = None,
    ):
        if not model:
            raise BadInput("model: no model is selected, got none; e.g. model=[tiny_a_series]")
        settings = {
            "data": data,
            "measure": measure,
            "extract": extract,
            "hardware": hardware,
            "seed": seed,
            "cache": cache,
        }
        self.previous, self.claims, self.hardware, self.measures = previous, claims or [], hardware, measure
        findings.check_names(self.claims, findings.TRAINING_CLAIMS)
        self.trainings = {label: Training(label, series, missing, settings) for label, series in model.items()}

    def plan(self) -> dict[str, Any]:
        each = {label: training.plan() for label, training in self.trainings.items()}
        return {
            "models": {label: next(iter(plan["models"].values())) for label, plan in each.items()},
            "checkpoints": {
                label: ", ".join(str(one.step) for one in training.series.checkpoints)
                for label, training in self.trainings.items()
            },
            "measures": next(iter(each.values()))["measures"],
            "forward passes": sum(
                plan["forward passes"] * len(self.trainings[label].series.checkpoints) for label, plan in each.items()
            ),
            "memory, GB": max((plan["memory, GB"] for plan in each.values()), key=lambda memory: memory["in all"]),
        }

    def run(self, run: Run) -> dict[str, Any]:
        curves = self.curves(run)
        return {
            "measures": [],
            "tables": gap_table(self.gaps()),
            "curves": named(curves),
            "claims": [
                verdict
                for label, bound in self.measures.items()
                if bound.card.larger_is_closer
                for verdict in findings.training_verdicts(self.claims, label, _to_last(curves, label), [])
            ],
        }

    def curves(self, run: Run) -> list[Curve]:
        """One curve per measure, hook point and model (and what it is compared with)."""
        if self.hardware.threads:
            torch.set_num_threads(self.hardware.threads)
        run.manifest.update(device=self.hardware.device, threads=torch.get_num_threads(), models={})
        found = []
        for training in self.trainings.values():
            with training.held(run):
                found += training.curves(run, self.previous)
        return found

    def gaps(self) -> list[Gap]:
        return [gap for training in self.trainings.values() for gap in training.gaps]


class Training(Similarity):
    """One training run: its last checkpoint as the similarity study sees a model, with the same checks and cache."""

    def __init__(self, label: str, series: Series, missing: Missing, settings: Mapping[str, Any]):
        self.label, self.series, self.missing = label, series, missing
        self.gaps: list[Gap] = []
        *others, last = series.checkpoints
        try:
            final = last.open()
        except BadInput as error:
            raise BadInput(f"model.{label}, step {last.step}: {error}") from None
        super().__init__(model={label: final}, significance=Significance(), **settings)
        for checkpoint in others if series.local else ():
            try:
                found = checkpoint.open()
            except BadInput as error:
                if missing == "stop":
                    raise BadInput(f"{self.unreadable(checkpoint, error)}") from None
                continue
            self._check_shape(checkpoint, found)

    def memory(self, rows: int) -> dict[str, float]:
        """The similarity study's, and without a cache the activations of the checkpoints that are compared."""
        features = sum(layer.width for layer in self.layers)
        kept = 0.0 if self.cache else 4.0 * 3 * self._most_rows() * features
        return {**super().memory(rows), "checkpoints": kept}

    def unreadable(self, checkpoint: Checkpoint, error: RepsimError) -> str:
        return (
            f"model.{self.label}, step {checkpoint.step}: missing or broken, got '{error}'; "
            "mend it, or set options.missing=skip to leave a gap"
        )

    def _check_shape(self, checkpoint: Checkpoint, found: Source) -> None:
        last = self.live[self.label]
        own, wanted = ((s.model_type, s.layers, s.width, s.heads, s.vocabulary) for s in (found, last))
        if own != wanted:
            raise BadInput(
                f"model.{self.label}, step {checkpoint.step}: another shape than the last checkpoint, got "
                f"{own} for {wanted} (type, blocks, width, heads, vocabulary); leave this step out"
            )

    def tokens(self, run: Run) -> Sequences:
        """What every checkpoint is run on."""
        return self.sequences(run)[self.label]

    @contextmanager
    def held(self, run: Run) -> Iterator[None]:
        """While it lasts, the checkpoints are there: what is not is trained."""

        def progress(items: Iterable, *, label: str, unit: str) -> Iterator:
            return run.progress(items, label=f"{self.label}: {label}", unit=unit)

        with ExitStack() as stack:
            with run.stage("training"):
                stack.enter_context(self.series.held(progress))
            yield

    def curves(self, run: Run, previous: bool) -> list[Curve]:
        """Every checkpoint is loaded, run once, compared and freed; the last one's activations stay."""
        self.gaps = []
        with run.stage("data"):
            sequences = self.sequences(run)
            total = total_rows(self.readings, sequences, self.extract)
            run.manifest["rows"] = total
            self._check_rows(run, total)
        values: dict[tuple[str, str], dict[int, Counterparts]] = {}
        checkpoints = self.series.checkpoints
        with ExitStack() as held:
            with run.stage("activations"):
                try:
                    last = self._activations(run, held, checkpoints[-1], sequences)
                except RepsimError as error:
                    raise RunFailed(f"model.{self.label}, step {checkpoints[-1].step}: {error}") from error
            before: tuple[Checkpoint, Reading] | None = None
            stacks = [held.enter_context(ExitStack()) for _ in checkpoints]
            for i in run.progress(range(len(checkpoints)), label=self.label, unit="checkpoints"):
                checkpoint = checkpoints[i]
                try:
                    with run.stage("activations"):
                        own = last if i == len(stacks) - 1 else self._activations(run, stacks[i], checkpoint, sequences)
                except RepsimError as error:
                    if self.missing == "stop":
                        raise RunFailed(self.unreadable(checkpoint, error)) from error
                    self.gaps.append(Gap(self.label, checkpoint.step, str(error)))
                    run.warn(f"model.{self.label}, step {checkpoint.step}: left out as a gap ({error})")
                    before = None
                else:
                    others = {"last": (checkpoints[-1], last), **({"previous": before} if previous and before else {})}
                    with run.stage("similarity"):
                        for against, (other, reading) in others.items():
                            found = self._compared(run, own, reading, sequences, total, (checkpoint, other))
                            for measure, pair in found.items():
                                values.setdefault((measure, against), {})[checkpoint.step] = pair
                    before = (checkpoint, own) if previous else None
                    del own  # where no cache holds it, it goes before the next one comes
                if i:
                    stacks[i - 1].close()
        return [one for key, by_step in values.items() for one in self._curves(*key, by_step)]

    def _curves(self, measure: str, against: str, by_step: Mapping[int, Counterparts]) -> Iterator[Curve]:
        """One curve per hook point."""
        reading, bound = self.readings[0], self.measures[measure]
        points = [point.kind if point.layer is not None else str(point) for point in reading.points]
        for point in dict.fromkeys(points):
            places = [i for i, other in enumerate(points) if other == point]
            se = {step: pair.se[places].tolist() for step, pair in by_step.items() if pair.se is not None}
            yield curve(
                quantity=f"{measure} to {against}",
                label=bound.card.label,
                point=point,
                model=self.label,
                parameters=self.live[self.label].parameters,
                steps=[one.step for one in self.series.checkpoints],
                layers=[reading.layers[i].name for i in places],
                values={step: pair.values[places].tolist() for step, pair in by_step.items()},
                se=se,
                bounds=bound.card.bounds,
            )

    def _compared(
        self,
        run: Run,
        own: Reading,
        other: Reading,
        sequences: Mapping[str, Sequences],
        total: int,
        steps: tuple[Checkpoint, Checkpoint],
    ) -> dict[str, Counterparts]:
        rows = blocks([own, other], {}, {}, sequences, self.extract, self.hardware, quiet)

        def halves() -> Iterator[tuple[Sequence[Tensor], Sequence[Tensor]]]:
            for batch in batches(rows, self.extract, total, self.seed):
                yield batch[: len(own.layers)], batch[len(own.layers) :]

        named = [tuple(f"{layer} at step {one.step}" for one in steps) for layer in own.layers]
        try:
            found, notices = estimate_counterparts(
                self.measures,
                halves(),
                names=[(a, b) for a, b in named],
                estimate=self.extract.estimate,
                tile=self.hardware.tile,
                labels=lambda batch: self._labels(sequences, total, batch),
            )
        except Degenerate as error:
            raise RunFailed(str(error)) from error
        for notice in notices:
            run.warn(notice)
        return found

    def _activations(
        self, run: Run, held: ExitStack, checkpoint: Checkpoint, sequences: Mapping[str, Sequences]
    ) -> Reading:
        """The checkpoint's activations: from the cache, or from one pass; the model is freed when this returns.

        They stay in the cache while `held` is open, or in memory where no cache can hold them.
        """
        source = checkpoint.open()
        self._check_shape(checkpoint, source)
        identity = source.identity()
        run.manifest["models"][f"{self.label}, step {checkpoint.step}"] = identity
        own = replace(self.readings[0], source=source)
        entry = held.enter_context(self._entries(run, sequences, {self.label: identity})).get(self.label)
        if entry is None or not entry.complete:
            module = source.load(False).to(self.devices[self.label], getattr(torch, self.hardware.dtype))
            attempts = [{self.label: Recorder(entry)}, {}] if entry is not None else [{}]
            for recorders in attempts:  # a second time where the cache could not be written
                rows = blocks([own], {self.label: module}, recorders, sequences, self.extract, self.hardware, quiet)
                kept = [[] if recorders else [x.cpu() for x in block] for _, block in rows]
                if entry is not None and entry.complete:
                    break
            else:
                return replace(own, source=self._in_memory(kept, identity), points=[])
        return from_cache(own, {self.label: entry}, {self.label: identity})

    def _in_memory(self, kept: Sequence[Sequence[Tensor]], identity: dict[str, Any]) -> Precomputed:
        names = [layer.name for layer in self.layers]
        whole = {name: torch.cat([rows[i] for rows in kept]) for i, name in enumerate(names)}
        return Precomputed(
            names=names,
            rows=len(whole[names[0]]),
            widths=[layer.width for layer in self.layers],
            read=lambda name, rows: whole[name][rows],
            identity=lambda: identity,
        )


def _to_last(curves: Sequence[Curve], measure: str) -> list[Curve]:
    return [one for one in curves if one["quantity"] == f"{measure} to last"]


def gap_table(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Which checkpoints are gaps; no table where none is."""
    rows = [[gap.model, gap.step, gap.why] for gap in gaps]
    return {"checkpoints left out": {"columns": GAPS, "rows": rows}} if rows else {}


def named(curves: Sequence[Curve]) -> dict[str, Curve]:
    """Curves by name, as results.json keeps them."""
    return {f"{one['quantity']}, {one['point']}, {one['model']}": one for one in curves}
