"""The models of a sample of `grounding`: their groups, what is read of them, what they predict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from repsim_cli.activations.batching import batch_by_length, measure_lengths
from repsim_cli.activations.inputs import name_errors
from repsim_cli.activations.outputs import compute_logits, limit_output_padding
from repsim_cli.activations.places import count_kept_rows
from repsim_cli.activations.readings import Reading
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.labels import match_labels
from repsim_cli.engine.extraction import Extraction, make_extraction
from repsim_cli.engine.study import OfModels
from repsim_cli.findings.groups import group_layers_by_point
from repsim_cli.models.source import AnySource, describe_model
from repsim_cli.studies.grounding.measure import Place

HEAD = "AutoModelForSequenceClassification"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows, and the models that are compared on them.

    data: what the models read.
    tests: {TEST: {GROUP: ENTRY of `model`}}: the seeds of each entry are a group. Several groups are to be told apart;
        a single group tests whether layers are found again in other seeds, and whether distances follow the differences
        of the models.
    """

    data: Data
    tests: dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class SampleReader(Extraction):
    """The layers that are read of the models of a sample. tests: the models of every group. points: by hook point, the
    layers of each model there."""

    tests: dict[str, dict[str, list[str]]]
    points: dict[str, dict[str, list[str]]]

    def choose_layers(self, test: str, point: str) -> list[list[str]]:
        """The layers of each model of a test: all of a single group, the last of several groups."""
        groups = self.tests[test]
        every = [self.points[point][model] for members in groups.values() for model in members]
        return every if len(groups) == 1 else [layers[-1:] for layers in every]

    def members(self, test: str) -> list[str]:
        return [model for members in self.tests[test].values() for model in members]

    @property
    def cases(self) -> list[Place]:
        return [(test, point) for test in self.tests for point in self.points]


def make_sample_reader(where: str, sample: Sample, given: OfModels) -> SampleReader:
    """Plans how the sample's tests are read. Raises BadInput, below the key path `where`, for tests that the models of
    the run do not allow."""
    every = given["model"]
    tests = {test: _list_group_models(f"{where}.tests.{test}", groups, every) for test, groups in sample.tests.items()}
    if not tests:
        raise BadInput(f"{where}.tests: none is named, got {{}}; write {{TEST: {{GROUP: ENTRY}}}}")
    labels = dict.fromkeys(label for groups in tests.values() for members in groups.values() for label in members)
    read = make_extraction(
        {**given, "model": {label: every[label] for label in labels}, "data": sample.data}, among=every
    )
    points = _list_layers_by_point(where, read.readings)
    for test, groups in tests.items():
        if len(groups) == 1:
            _check_equal_layers(f"{where}.tests.{test}", next(iter(groups.values())), points)
    return read.extend(SampleReader, tests=tests, points=points)


def _list_group_models(where: str, groups: Mapping[str, str], model: Mapping[str, AnySource]) -> dict[str, list[str]]:
    """The models of every group of a test. Raises BadInput for an entry that is not there."""
    entries = {label: getattr(source, "entry", "") or label for label, source in model.items()}
    known = list(dict.fromkeys(entries.values()))
    members: dict[str, list[str]] = {}
    for group, wanted in groups.items():
        members[group] = [label for label, entry in entries.items() if entry == wanted]
        if not members[group]:
            raise BadInput(f"{where}.{group}: no such model, got '{wanted}'; {did_you_mean(wanted, known)}")
    if not groups:
        raise BadInput(f"{where}: no group is named, got {{}}; write {{GROUP: ENTRY}}")
    return members


def _list_layers_by_point(where: str, read: Sequence[Reading]) -> dict[str, dict[str, list[str]]]:
    """Lists the layers of each model by hook point. Raises BadInput where a model lacks a hook point."""
    by_model = {
        reading.label: group_layers_by_point(describe_model(reading.label, reading.source, reading.layers))
        for reading in read
    }
    first = next(iter(by_model.values()))
    points: dict[str, dict[str, list[str]]] = {point: {} for point in first}
    for reading in read:
        of = by_model[reading.label]
        if list(of) != list(first):
            raise BadInput(
                f"{where}: models with the same hook points are needed, got {', '.join(of)} of '{reading.label}' and "
                f"{', '.join(first)} of '{read[0].label}'; choose extract.hook_points that all have"
            )
        for point, at in of.items():
            points[point][reading.label] = [reading.layers[i].name for i in at.places]
    return points


def _check_equal_layers(where: str, models: Sequence[str], points: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Raises BadInput unless the models of a single group have the same layers."""
    for of in points.values():
        for model in models[1:]:
            if of[model] != of[models[0]]:
                raise BadInput(
                    f"{where}: models of equal depth are needed, got {len(of[models[0]])} layers of '{models[0]}' and "
                    f"{len(of[model])} of '{model}'; choose extract.layers that both have"
                )


# ---- what they predict ----


class PredictedClasses(NamedTuple):
    """What a classifier predicts for the rows, and its accuracy there."""

    labels: list[str]
    probabilities: Float[np.ndarray, "n c"]
    accuracy: float


def predict_classes(
    reader: SampleReader, sequences: Mapping[str, Sequences], numbers: Int[np.ndarray, " n"]
) -> dict[str, PredictedClasses]:
    """Computes what the classifiers among the models predict for these rows, and their accuracy; none without labels.

    sequences: by model. numbers: of the rows among those that are kept.
    """
    labels = next(iter(sequences.values())).labels
    made = {}
    counts = count_kept_rows(next(iter(sequences.values())), reader.extract)
    at = np.repeat(np.arange(len(counts)), counts)[numbers]  # a sequence may give no row
    for label, source in reader.live.items():
        if labels is None or not (source.has_head and source.labels):
            continue
        given = sequences[label].take(at)
        module = name_errors(label, partial(source.with_head, HEAD)).to(reader.devices[label])
        padding = limit_output_padding(module, given, segments=source.segments)
        batches = list(batch_by_length(measure_lengths(given.mask), reader.hardware, padding))
        logits = torch.cat(list(compute_logits(module, given, batches, segments=source.segments))).cpu()
        probabilities = logits.double().softmax(-1).numpy()[np.argsort(np.concatenate(batches))]
        right = match_labels(source.labels, labels.names, f"model.{label}")
        correct = right.correct(probabilities.argmax(-1), labels.codes[at])
        made[label] = PredictedClasses(list(source.labels), probabilities, float(correct.mean()))
    return made
