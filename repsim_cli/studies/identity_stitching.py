"""Identity stitching of classifiers by groups: what is lost when one model's blocks go on from another's stream."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from repsim_cli.activations.inputs import check_modality, tokenizers
from repsim_cli.activations.rows import devices
from repsim_cli.cache import Entry, key, using
from repsim_cli.content import Matrix, Results, Side, Table
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.labelled import Examples
from repsim_cli.errors import BadInput
from repsim_cli.findings.groups import Members
from repsim_cli.models.source import AnySource, Source
from repsim_cli.registry import studies
from repsim_cli.results import Run, slug
from repsim_cli.settings import Extract, Group, Hardware
from repsim_cli.stitching.evaluate import (
    Estimate,
    Head,
    Scores,
    Stitch,
    check_outputs,
    classification,
    evaluate_stitches,
    same_layer,
)
from repsim_cli.stitching.models import check_stitchable, layer_name, layer_number, open_whole
from repsim_cli.studies.bounds import check_memory, shown, usual_length
from repsim_cli.studies.cost import forward_time, times
from repsim_cli.studies.grouped import check_metrics, chosen, listed, of_groups
from repsim_cli.studies.sample import inputs, prepare

AUTO = "AutoModelForSequenceClassification"
CODE = 1  # raise when a change of the code changes what a stitched model scores
OWN = ["model", "group", "accuracy", "standard error", "loss"]


class Quantity(NamedTuple):
    """What a stitched model has, and what the axis calls it."""

    label: str
    of: Callable[[Scores, Stitch], Estimate]


QUANTITIES = {
    "accuracy": Quantity("accuracy of the stitched model", lambda scores, stitch: scores.of(stitch, "correct")),
    "accuracy_penalty": Quantity(
        "accuracy lost against the tail alone", lambda scores, stitch: scores.penalty(stitch, "correct")
    ),
    "loss_penalty": Quantity("cross-entropy added, nats", lambda scores, stitch: scores.penalty(stitch, "loss")),
    "disagreement": Quantity("share of answers not the tail's", lambda scores, stitch: scores.of(stitch, "differs")),
}


@studies.register("identity_stitching")
class IdentityStitching:
    """Blocks 0..l of one classifier before blocks l+1..last and the outputs of another, for all pairs of models of the
    groups, both ways, at every block l; nothing is trained.

    extract.layers says which blocks, extract.length and extract.sequences on which examples; attention never reads
    padding, so that how far examples are padded changes nothing.
    """

    def __init__(
        self,
        *,
        model: Mapping[str, AnySource],
        data: Data,
        extract: Extract,
        hardware: Hardware,
        seed: int,
        cache: bool = True,
        groups: Mapping[str, Group] | None = None,
    ):
        if not groups:
            raise BadInput(
                "groups: pairs are made of the models of groups, got none; set groups={NAME: [LABEL, LABEL]}"
            )
        if not isinstance(data, Examples):
            raise BadInput(f"data: classifiers need labelled examples, got {data.source}; use e.g. data=mnli")
        self.groups, self.data = groups, data
        self.members = listed(groups)
        models = of_groups(model, self.members)
        check_metrics(groups, models)
        for label, source in models.items():
            check_stitchable(label, source, AUTO)
        self.models = {label: source for label, source in models.items() if isinstance(source, Source)}
        check_modality(self.models, data)
        check_outputs(self.models)
        self.task = classification(self.models, data.names)
        self.depth = self._depth()
        self.extract = replace(extract, unit="token", padding="drop")
        self._check_length()
        chosen_layers = range(self.depth) if extract.layers == "all" else extract.layers
        self.layers = [layer_number(layer, self.depth, "extract.layers") for layer in chosen_layers]
        self.hardware, self.seed, self.cache = hardware, seed, cache
        self.devices = devices(hardware, list(self.models))
        self.tokenizers = tokenizers(self.models, data, self.extract)
        check_memory(self.memory(), hardware, "lower hardware.batch_size, or use fewer models")

    def _depth(self) -> int:
        """The number of blocks of every model."""
        first, *others = self.models
        own = self.models[first]
        for label in others:
            other = self.models[label]
            for what, mine, its in (("depth", own.layers, other.layers), ("width", own.width, other.width)):
                if mine != its:
                    raise BadInput(
                        f"groups: models of equal {what} are needed, got {mine} ('{first}') and {its} ('{label}'); "
                        "leave one of them out"
                    )
        return own.layers

    def _check_length(self) -> None:
        for label, source in self.models.items():
            if source.context is not None and self.extract.length > source.context:
                raise BadInput(
                    f"extract.length, model.{label}: longer than the model's context, got {self.extract.length}; "
                    f"at most {source.context}"
                )

    def memory(self) -> float:
        """Bytes, estimated: weights of all models, and the streams of one batch."""
        width = next(iter(self.models.values())).width
        places = min(self.hardware.batch_size, self.extract.sequences) * self.extract.length
        return 0.5e9 + sum(4.0 * (one.parameters + places * width * (self.depth + 1)) for one in self.models.values())

    def plan(self) -> dict[str, Any]:
        sizes = [len(group) if isinstance(group, list) else group.top or group.bottom for group in self.groups.values()]
        count = sum(size or 0 for size in sizes)
        batches = -(-self.extract.sequences // self.hardware.batch_size)
        return {
            "models": shown(self.models),
            "groups": dict(self.groups),
            "layers": [layer_name(layer) for layer in self.layers],
            "pairs of models": count * (count - 1) // 2,
            "forward passes": count * batches,
            "passes of tails": count * (count - 1) * len(self.layers) * batches,
            "memory, GB": round(self.memory() / 1e9, 3),
            "time, roughly": times(self.times(count), self.hardware),
        }

    def times(self, models: int) -> dict[str, float]:
        """Seconds, roughly, for so many models: a tail is half of a model on average."""
        one = next(iter(self.models.values()))
        length = usual_length(self.models, self.data, self.extract)
        whole = forward_time([one], self.extract.sequences, length, self.hardware)
        return {
            "forward passes": models * whole,
            "tails": models * (models - 1) * len(self.layers) * whole / 2,
        }

    def run(self, run: Run) -> Results:
        hardware = self.hardware
        prepare(run, hardware)
        with run.stage("groups"):
            members = chosen(run, self.groups, self.models)
            live = {label: self.models[label] for group in members.values() for label in group}
        with run.stage("data"):
            own = {label: self.tokenizers[label] for label in live}
            found = inputs(run, live, own, self.data, self.extract, self.seed)
            sequences = next(iter(found.values()))
            if sequences.labels is None:
                raise BadInput(
                    f"data: accuracy needs a label per example, got none in {self.data.source}; use other data"
                )
            run.manifest["rows"] = len(sequences.ids)
        with run.stage("hashes"):
            identities = {label: source.identity() for label, source in live.items()}
            run.input("models", identities)
        run.save_manifest()
        stitches = [s for s in same_layer(map(Head, live), live, self.layers) if s.head.model != s.tail]
        with run.stage("models"):
            dtype = getattr(torch, hardware.dtype)
            wholes = {label: open_whole(label, one, AUTO, self.devices[label], dtype) for label, one in live.items()}
        with run.stage("stitched models"), self._entry(identities, sequences, stitches) as entry:
            scores = evaluate_stitches(
                {Head(label): whole for label, whole in wholes.items()},
                wholes,
                stitches,
                sequences,
                self.task,
                batch_size=hardware.batch_size,
                progress=run.progress,
                entry=entry,
            )
        with run.stage("results"):
            return self._results(run, members, scores)

    @contextmanager
    def _entry(
        self, identities: Mapping[str, Mapping[str, Any]], sequences: Sequences, stitches: list[Stitch]
    ) -> Iterator[Entry | None]:
        """Where the scores of every batch are kept."""
        if not self.cache or not all(one["weights_hash"] for one in identities.values()):
            yield None
            return
        assert sequences.labels is not None
        name = key(
            {
                "code": CODE,
                "models": {label: [one["weights_hash"], one.get("config_hash")] for label, one in identities.items()},
                "data": [sequences.hash(), sequences.labels.codes.tolist(), list(sequences.labels.names)],
                "stitches": [str(stitch) for stitch in stitches],
                "settings": [self.hardware.dtype, self.hardware.batch_size],
            }
        )
        with using("stitched", [name]) as entries:
            yield entries[name]

    def _results(self, run: Run, members: Members, scores: Scores) -> Results:
        """A matrix of all ordered pairs of models per quantity and layer: the head is the row, the tail the column."""
        labels = [label for group in members.values() for label in group]
        rows, columns = (Side(model=f"{part} of the stitched model", layers=labels) for part in ("head", "tail"))
        matrices = {}
        for name, quantity in QUANTITIES.items():
            for layer in self.layers:
                values = np.zeros((2, len(labels), len(labels)))
                for i, head in enumerate(labels):
                    for j, tail in enumerate(labels):
                        if head != tail:
                            values[:, i, j] = quantity.of(scores, Stitch(Head(head), tail, layer, layer))
                place = layer_name(layer)
                stem = f"{name}-{slug(place)}"
                matrices[f"{name}, {place}"] = Matrix(
                    rows=rows,
                    columns=columns,
                    values=run.write_array(f"{stem}-values", values[0]),
                    se=run.write_array(f"{stem}-se", values[1]),
                    n=run.manifest["rows"],
                    label=quantity.label,
                    about={"kind": "identity stitches", "quantity": name, "layer": place},
                )
        tables = {"models": Table(columns=OWN, rows=_own(members, scores))}
        return Results(study="identity_stitching", matrices=matrices, tables=tables)


def _own(members: Members, scores: Scores) -> list[list[Any]]:
    """Every model by itself."""
    rows = []
    for group, labels in members.items():
        for label in labels:
            correct = scores.of_own(label, "correct")
            rows.append([label, group, correct.value, correct.se, scores.of_own(label, "loss").value])
    return rows
