"""Models that are known to differ, or to be alike, compared under every measure: which measures see it?"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from repsim_cli.activations.cached import Identities
from repsim_cli.activations.inputs import describe_inputs, make_sequences
from repsim_cli.activations.places import list_row_labels
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.settings import Several
from repsim_cli.engine import cost, footprint
from repsim_cli.engine.bounds import bound_pass, check_rows_fit, describe_models
from repsim_cli.engine.cached import Content, open_units
from repsim_cli.engine.checks import check_measure, select_suitable
from repsim_cli.engine.record import make_card_record
from repsim_cli.engine.rows import hash_models, open_rows, prepare
from repsim_cli.engine.study import OfModels, Study
from repsim_cli.measures import Measure
from repsim_cli.runs.cache import make_cache_key
from repsim_cli.runs.content import (
    COMPARED,
    COSTS,
    COSTS_COLUMNS,
    TRUNCATED,
    UNMEASURED,
    UNMEASURED_COLUMNS,
    Matrix,
    Measured,
    Results,
    Side,
    Table,
)
from repsim_cli.runs.results import Run
from repsim_cli.studies.grounding.measure import (
    GradedLayers,
    Measurement,
    PairCost,
    Place,
    make_measurement,
    measure_probe_accuracy,
    truncate_layers,
)
from repsim_cli.studies.grounding.readers import (
    PredictedClasses,
    Sample,
    SampleReader,
    make_sample_reader,
    predict_classes,
)


@studies.register("grounding")
class Grounding(Study):
    """Compares groups of models whose differences are known, for the analysis `grades`, which ranks the measures.

    samples: {NAME: {data: {...}, tests: {TEST: {GROUP: ENTRY}}}}; each model reads a sample once, for all its tests.
    slow: measures that are computed on at most `slow_rows` rows.
    slow_rows: rows of slow measures, at most.
    Example: repsim run study=grounding model=[tiny_plain] 'options.samples={pairs: {data: {kind: overlap_nli}, tests:
        {seeds: {plain: tiny_plain}}}}' extract=pooled
    """

    def __init__(
        self,
        *,
        measure: Mapping[str, Measure],
        skip_unsuitable: bool = False,
        samples: dict[str, Sample],
        slow: list[str] | None = None,
        slow_rows: Several = 200,
        **given: Unpack[OfModels],
    ):
        extract = given["extract"]
        if extract.estimate != "full" or not extract.pooled:
            got = f"{extract.estimate} of {extract.unit}s"
            raise BadInput(f"extract: grounding compares examples, each a row, at once, got {got}; use extract=pooled")
        if not samples:
            raise BadInput("options.samples: none is named; write {NAME: {data: {...}, tests: {...}}}")
        for label in slow or []:
            if label not in measure and not skip_unsuitable:
                raise BadInput(f"options.slow: no such measure, got '{label}'; {did_you_mean(label, measure)}")
        self.models, self.extract, self.hardware = dict(given["model"]), extract, given["hardware"]
        self.seed, self.cache = given["seed"], given.get("cache", True)
        self.slow, self.slow_rows = slow or [], slow_rows
        self.samples = {
            name: make_sample_reader(f"options.samples.{name}", sample, given) for name, sample in samples.items()
        }
        read = {reading.label: reading for reader in self.samples.values() for reading in reader.readings}
        self.readings = list(read.values())
        layers = [layer for reading in self.readings for layer in reading.layers]
        self.measures, self.skipped = select_suitable(
            measure, lambda bound: check_measure(bound, layers, extract, labelled=True), skip_unsuitable
        )
        check_rows_fit(self.memory, extract.rows, self.hardware, next(iter(self.samples.values())).live)

    def rows_of(self, label: str) -> int:
        return min(self.extract.rows, self.slow_rows if label in self.slow else self.extract.rows)

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated."""
        features = [sum(x.width for r in reader.readings for x in r.layers) for reader in self.samples.values()]
        layers = max(sum(len(reading.layers) for reading in reader.readings) for reader in self.samples.values())
        live = {label: source for reader in self.samples.values() for label, source in reader.live.items()}
        return {
            "Python and its libraries": 0.5e9,
            **bound_pass(live, self.extract, self.hardware, max(features)),
            "rows": 4.0 * 4 * rows * max(features),
            "matrices": 8.0 * rows**2 * max([1, *(bound.squares for bound in self.measures.values())]) * layers,
        }

    def plan(self) -> dict[str, Any]:
        extract, hardware = self.extract, self.hardware
        pairs = {name: _count_layer_pairs(reader) for name, reader in self.samples.items()}
        costs = {"forward passes": cost.Cost(), "similarity": cost.Cost()}
        forward, stored = 0, 0.0
        for name, reader in self.samples.items():
            widths = [layer.width for layer in reader.layers]
            stored += 2 * footprint.count_stored(reader)
            forward += 2 * footprint.count_passes_of_models(reader)
            costs["forward passes"] += 2 * footprint.estimate_passes_cost(reader)
            for label, bound in self.measures.items():
                costs["similarity"] += 2 * cost.estimate_pairs_cost(
                    [bound], widths, pairs[name], self.rows_of(label), hardware
                )
        return {
            "models": describe_models(self.models, self.hardware),
            "tests": {
                name: {
                    test: {group: len(members) for group, members in groups.items()}
                    for test, groups in reader.tests.items()
                }
                for name, reader in self.samples.items()
            },
            "measures": list(self.measures),
            "pairs of layers": sum(pairs.values()),
            "forward passes": forward,
            **cost.describe_needs(costs, hardware, memory=self.memory(extract.rows), activations=stored, figures=2),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        every = replace(next(iter(self.samples.values())), models=self.models, readings=self.readings)
        identities = hash_models(run, every)
        made = {name: self._read_sample(run, name, reader, identities) for name, reader in self.samples.items()}
        run.manifest["models_run"] = sorted({label for each in made.values() for label in each.models_run})
        with run.stage("results"):
            return self._results(run, made)

    def _read_sample(self, run: Run, name: str, reader: SampleReader, identities: Identities) -> "Made":
        """A sample read by all its models, and measured."""
        with run.stage(f"data of {name}"):
            sequences = make_sequences(reader.live, reader.tokenizers, reader.data, self.extract, self.seed)
            description, notices = describe_inputs(sequences, reader.data, self.extract)
            run.input(f"data of {name}", description)
            for notice in notices:
                run.warn(f"{name}: {notice}")
        # what the rows of this sample note in the manifest stands under its name
        part = replace(run, manifest={**run.manifest, "data": dict(description)})
        reader = reader.count_rows(part, sequences)
        reading = open_rows(part, reader, sequences, identities=identities, diagnose=False)
        with reading as rows, run.stage(f"activations of {name}"):
            (taken,) = rows.stream(partial(run.progress, label=f"activations, {name}", unit="batches"))
        numbers = reader.numbers(0)
        codes = list_row_labels(next(iter(sequences.values())), self.extract)
        labels = None if codes is None else torch.from_numpy(codes[numbers])
        with run.stage(f"outputs of {name}"):
            predicted = predict_classes(reader, sequences, numbers)
        layers, probes = self._layers(reader, taken, labels)
        content = Content.collect(reader, sequences, identities, by=__name__, tests=reader.tests)
        with run.stage(f"similarity, {name}"):
            measured = self._measure(run, name, layers, content if self.cache else None)
        run.manifest[f"data of {name}"] = part.manifest["data"] | {"rows": len(numbers)}
        return Made(
            reader=reader, layers=layers, predicted=predicted, probes=probes, measured=measured,
            models_run=part.manifest["models_run"],
        )  # fmt: skip

    def _layers(
        self, reader: SampleReader, rows: Sequence[Tensor], labels: Tensor | None
    ) -> tuple[GradedLayers, dict[Place, dict[str, Any]]]:
        """The layers that tests compare, and how well probes predict the labels from truncated ones."""
        read = [(layer.model, layer.name) for reading in reader.readings for layer in reading.layers]
        of = dict(zip(read, rows, strict=True))
        compared = {
            (test, point): [
                [(model, name) for name in names]
                for model, names in zip(reader.members(test), reader.choose_layers(test, point), strict=True)
            ]
            for test, point in reader.cases
        }
        used = list(dict.fromkeys(layer for models in compared.values() for layers in models for layer in layers))
        truncated, probes = {}, {}
        for (test, point), models in compared.items():
            if len(reader.tests[test]) > 1 or labels is None:
                continue
            whole = [of[layer] for layers in models for layer in layers]
            cut = truncate_layers(whole)
            truncated[test, point] = cut
            probes[test, point] = {
                "components": list(cut[0]),
                "whole": [measure_probe_accuracy(x, labels, self.seed) for x in whole],
                "accuracy": [[measure_probe_accuracy(x, labels, self.seed) for x in each.values()] for each in cut],
            }
        layers = GradedLayers(
            names=[f"{name} of '{model}'" for model, name in used],
            rows=[of[layer] for layer in used],
            compared={
                place: np.array([[used.index(layer) for layer in layers] for layers in models])
                for place, models in compared.items()
            },
            truncated=truncated,
            labels=labels,
        )
        return layers, probes

    def _measure(self, run: Run, sample: str, layers: GradedLayers, content: Content | None) -> dict[str, Measurement]:
        """Computes every measure on the layers of a sample; each is kept as soon as it is finished."""
        keys = (
            {} if content is None else {label: content.make_matrix_key(bound) for label, bound in self.measures.items()}
        )
        keys = {label: of and make_cache_key({"matrix": of, "rows": self.rows_of(label)}) for label, of in keys.items()}
        measured = {}
        with open_units(run, "grounding", keys) as (known, keep):
            for label in run.progress(list(self.measures), label=f"measures, {sample}", unit="measures"):
                if label in known:
                    made = _decode_measurement(known[label], layers)
                else:
                    made = make_measurement(self.measures[label], layers.first(self.rows_of(label)))
                    keep(label, _encode_measurement(made))
                for notice in made.notices:
                    run.warn(f"{sample}: {notice}")
                measured[label] = made
        return measured

    def _results(self, run: Run, made: Mapping[str, "Made"]) -> Results:
        unmeasured = [
            [label, sample, test, point, why]
            for sample, each in made.items()
            for label, measured in each.measured.items()
            for (test, point), why in measured.failed.items()
        ]
        unmeasured += [
            [label, sample, test, point, why]
            for label, why in self.skipped.items()
            for sample, each in made.items()
            for test, point in each.reader.cases
        ]
        for label, why in self.skipped.items():
            run.skip(label, why)
        costs = [
            [label, sample, *cost]
            for sample, each in made.items()
            for label, measured in each.measured.items()
            for cost in measured.costs
        ]
        return Results(
            study="grounding",
            measures=[self._record(run, label, bound, made) for label, bound in self.measures.items()],
            tables={
                UNMEASURED: Table(columns=UNMEASURED_COLUMNS, rows=unmeasured),
                COSTS: Table(columns=COSTS_COLUMNS, rows=costs),
            },
            about={"samples": {sample: each.about(run, sample) for sample, each in made.items()}},
        )

    def _record(self, run: Run, label: str, bound: Measure, made: Mapping[str, "Made"]) -> Measured:
        matrices, rows = [], self.rows_of(label)
        for sample, each in made.items():
            rows = min(rows, len(each.layers.rows[0]))
            measured = each.measured[label]
            for kind, parts in ((COMPARED, measured.compared), (TRUNCATED, measured.truncated)):
                for (test, point), values in parts.items():
                    stem = slug(sample, test, point, kind, label)
                    sides = each.sides(test, point, kind)
                    about = {"kind": kind, "data": sample, "test": test, "point": point}
                    path = run.write_array(stem, values)
                    matrices.append(Matrix(rows=sides[0], columns=sides[1], values=path, n=rows, about=about))
        return Measured(
            name=bound.name,
            label=label,
            settings=dict(bound.settings),
            estimate={"kind": "full", "rows": rows, "rows_available": self.extract.rows, "batches": 1},
            card=make_card_record(bound),
            matrices=matrices,
        )


@dataclass(frozen=True, kw_only=True)
class Made:
    """A sample that was read and measured."""

    reader: SampleReader
    layers: GradedLayers
    predicted: dict[str, PredictedClasses]
    probes: dict[Place, dict[str, Any]]
    measured: dict[str, Measurement]
    models_run: list[str]

    def sides(self, test: str, point: str, kind: str) -> tuple[Side, Side]:
        """Names the rows and columns of the matrix of a test at a hook point."""
        models, compared = self.reader.members(test), self.reader.choose_layers(test, point)
        names = [f"{model} {name}" for model, layers in zip(models, compared, strict=True) for name in layers]
        whole = Side(model=test, layers=names)
        if kind == TRUNCATED:
            left = [f"{count} components" for count in self.probes[test, point]["components"]]
            return whole, Side(model="components left", layers=left)
        return whole, whole

    def about(self, run: Run, sample: str) -> dict[str, Any]:
        """Collects what findings need beside the matrices. Rows of layers and their labels are written as arrays."""
        labels = self.layers.labels
        return {
            "modality": self.reader.data.modality,
            "tests": self.reader.tests,
            "points": list(self.reader.points),
            "outputs": {
                model: {
                    "labels": predicted.labels,
                    "probabilities": run.write_array(slug(sample, "outputs", model), predicted.probabilities),
                    "accuracy": predicted.accuracy,
                }
                for model, predicted in self.predicted.items()
            },
            "probes": {f"{test}, {point}": probes for (test, point), probes in self.probes.items()},
            "layers": [
                [name, run.write_array(slug(sample, "rows", f"{i:03d}"), rows.double().cpu().numpy())]
                for i, (name, rows) in enumerate(zip(self.layers.names, self.layers.rows, strict=True))
            ],
            "compared": {f"{test}, {point}": at.tolist() for (test, point), at in self.layers.compared.items()},
            "labels": None if labels is None else run.write_array(slug(sample, "labels"), labels.double().numpy()),
        }


def _encode_measurement(made: Measurement) -> dict[str, Tensor]:
    about = {
        "failed": [[*place, why] for place, why in made.failed.items()],
        "costs": made.costs,
        "notices": made.notices,
    }
    parts = {"about": torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)}
    for kind, of in ((COMPARED, made.compared), (TRUNCATED, made.truncated)):
        parts |= {f"{kind}\t{test}\t{point}": torch.from_numpy(values) for (test, point), values in of.items()}
    return parts


def _decode_measurement(parts: Mapping[str, Tensor], layers: GradedLayers) -> Measurement:
    about = json.loads(bytes(parts["about"].tolist()))
    kinds: dict[str, dict[Place, np.ndarray]] = {COMPARED: {}, TRUNCATED: {}}
    for name, values in parts.items():
        if name != "about":
            kind, test, point = name.split("\t")
            kinds[kind][test, point] = values.numpy()
    return Measurement(
        compared={place: kinds[COMPARED][place] for place in layers.compared if place in kinds[COMPARED]},
        truncated={place: kinds[TRUNCATED][place] for place in layers.truncated if place in kinds[TRUNCATED]},
        failed={(test, point): why for test, point, why in about["failed"]},
        costs=[PairCost(*cost) for cost in about["costs"]],
        notices=about["notices"],
    )


def _count_layer_pairs(reader: SampleReader) -> int:
    """Pairs of layers that some test compares, at most."""
    counts = [sum(map(len, reader.choose_layers(test, point))) for test, point in reader.cases]
    return sum(count * (count + 1) // 2 for count in counts)
