"""Probes of every representation: which layers know a target, and which tell it linearly."""

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import numpy as np
from jaxtyping import Int

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.settings import Fraction, Small
from repsim_cli.base.timer import Timer
from repsim_cli.base.workers import follow_joblib
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import check_rows_fit, count_most_rows, describe_models
from repsim_cli.engine.cost import Cost, describe_needs, measure_speed
from repsim_cli.engine.extraction import make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.findings.layers import order_layers
from repsim_cli.models.source import Precomputed, Source
from repsim_cli.runs.content import Matrix, Results, Side, Table
from repsim_cli.runs.results import SAVE_EVERY, Run, write
from repsim_cli.studies.probes.targets import (
    TARGETS,
    decode_classes,
    describe_targets,
    make_label_targets,
    refuse_unlabelled,
)
from repsim_cli.training.probes import (
    ERRORS,
    LINEAR,
    PROBES,
    ProbeFit,
    ProbeUnit,
    Record,
    Split,
    Targets,
    combine_tests,
    describe_probe_settings,
    find_largest_class,
    fit_unit,
)

DONE = ".probes.json"  # what a run that was killed has finished, until its end
FIT = 2.0  # seconds of CPU time that an MLP takes on 3000 rows
COLUMNS = [
    "model", "layer", "target", "probe", "error", "error on fitted rows", "control", "converged", "selectivity", "p",
]  # fmt: skip
Fits = dict[tuple[str, str], dict[Record, list[ProbeFit]]]  # by model and layer; one of every split


@studies.register("probes")
class Probes(StudyOfRows):
    """Fits probes from the representations of models to known targets, and measures their errors on held-out rows.

    Targets are the labels of the data or stored representations. Examples have `label`, those of HANS also `heuristic`
    and `subcase`, those of tables also `group`, words of treebanks `upos`, `xpos` and `deprel`. Probes are linear, or
    MLPs of two layers, those of scikit-learn with its defaults, on features as they are (`ridge_classification`:
    standardised). Rows are split by documents (examples, sentences). Each probe has a control with meaningless labels
    (those of other documents, or a random one for each type of word). They are fitted in the processes of hardware.

    targets: the label of the stored representations that are the targets: one feature per class with a single 1 in each
        row, or one whole number; null: the labels of the data.
    labels: which labels of the data; null: all in which the rows differ.
    keep_together: labels of the data that are not targets; documents with the same one, such as `group`, are on the
        same side of every split; null: each document is drawn for itself.
    probes: which of linear_regression (of numbers), linear_classification (least squares on indicators of the classes),
        ridge_classification (the same, with a penalty chosen by leaving out rows), logistic_classification,
        mlp_regression and mlp_classification; null: ridge_classification.
    train_share: the share of the documents that probes are fitted on, drawn under the run's seed.
    splits: how many times documents are drawn; errors are means over the splits.
    Example: repsim run study=probes model=[tiny_a,tiny_b] data=overlap_nli extract=pooled
        options.splits=5
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        probes: list[str] | None = None,
        targets: str | None = None,
        labels: list[str] | None = None,
        keep_together: str | None = None,
        train_share: Fraction = 0.8,
        splits: Small = 1,
        **given: Unpack[OfRows],
    ):
        model, extract = given["model"], given["extract"]
        probes = ["ridge_classification"] if probes is None else probes
        stored = {label: source for label, source in model.items() if isinstance(source, Precomputed)}
        live = [label for label, source in model.items() if isinstance(source, Source)]
        self.probed = [label for label in model if label != targets]
        if not self.probed:
            raise BadInput("model: no model to probe is selected, got the targets alone; e.g. model=[tiny_a]")
        if targets is None and not live:
            raise BadInput(
                "options.targets: the labels of the data need a model that is run on it, got stored representations "
                "alone; select stored targets too, and name them"
            )
        if targets is not None and targets not in stored:
            hint = did_you_mean(targets, stored) if stored else "select one, e.g. modsum_targets"
            raise BadInput(f"options.targets: no stored representations of this name, got '{targets}'; {hint}")
        if targets is not None and labels is not None:
            raise BadInput(f"options.labels: targets are stored, got {labels} beside '{targets}'; drop one of them")
        if targets is not None and keep_together is not None:
            raise BadInput(
                f"options.keep_together: targets are stored, got '{keep_together}' beside '{targets}'; drop one of them"
            )
        if not probes:
            raise BadInput(f"options.probes: none is selected; choose of {', '.join(PROBES)}")
        for name in probes:
            if name not in PROBES:
                raise BadInput(f"options.probes: no such probe, got '{name}'; {did_you_mean(name, PROBES)}")
            if targets is None and PROBES[name].task == "number":
                raise BadInput(f"options.probes: labels of the data are not numbers, got {name}; use a classification")
        data = given["data"]
        if targets is None and not (data.labelled or data.worded or data.labels_of_examples()):
            raise refuse_unlabelled(data, extract)
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: probes are fitted on one sample, got {extract.estimate}; use full")
        self.extraction = make_extraction(given)
        self.extract, self.hardware, self.seed = extract, given["hardware"], given["seed"]
        self.readings, self.keep_together = self.extraction.readings, keep_together
        self.targets, self.labels = targets, labels
        self.probes = {name: PROBES[name] for name in dict.fromkeys(probes)}
        self.train_share, self.splits = train_share, splits
        self.layers = [layer for reading in self.readings for layer in reading.layers if reading.label != targets]
        self.names = list(labels or ["labels"]) if targets is None else list(stored[targets].names)
        self.most = min(extract.rows, count_most_rows(model, extract))
        check_rows_fit(self.memory, self.most, self.hardware, self.extraction.live)

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: libraries, weights, the rows and a copy for the processes, and what one fit works on."""
        jobs, widest = self.hardware.workers, max(layer.width for layer in self.layers)
        return {
            "Python and its libraries": 0.5e9 + 0.15e9 * jobs,
            "weights": sum(4.0 * source.parameters for source in self.extraction.live.values()),
            "rows": 4.0 * 3 * rows * sum(layer.width for layer in self.layers),
            "fits": 8.0 * 4 * jobs * rows * widest,
        }

    def _units(self) -> list[ProbeUnit]:
        linear = any(probe.linear for probe in self.probes.values())
        return [
            unit
            for split in range(self.splits)
            for unit in (
                *(ProbeUnit(layer.model, layer.name, LINEAR, "", False, split) for layer in self.layers if linear),
                *(
                    ProbeUnit(layer.model, layer.name, name, target, control, split)
                    for layer in self.layers
                    for name, probe in self.probes.items()
                    if not probe.linear
                    for target in self.names
                    for control in (False, True)
                ),
            )
        ]

    def plan(self) -> dict[str, Any]:
        return {
            "models": describe_models({label: self.extraction.models[label] for label in self.probed}, self.hardware),
            "layers": len(self.layers),
            "targets": self.names,
            "probes": list(self.probes),
            "fits, with controls": 2 * len(self.layers) * len(self.names) * len(self.probes) * self.splits,
            "rows, at most": self.most,
            **describe_needs(
                self.costs(),
                self.hardware,
                memory=self.memory(self.most),
                activations=footprint.count_stored(self.extraction),
            ),
        }

    def costs(self) -> dict[str, Cost]:
        """Estimates the work: a linear probe is a decomposition, another one a training of a second or two."""
        slow = sum(unit.probe != LINEAR for unit in self._units())
        linear = self.splits * sum(4.0 * self.most * layer.width**2 + 40.0 * layer.width**3 for layer in self.layers)
        speed, trained = measure_speed("cpu")[0], slow * FIT * self.most / 3000
        return {
            "forward passes": footprint.estimate_passes_cost(self.extraction),
            "fits": Cost(linear + trained * speed, linear / speed + trained / self.hardware.workers),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        rows, targets, tables = self._rows(run)
        self.names = list(targets.classes)
        splits = [targets.split(self.train_share, self.seed + number) for number in range(self.splits)]
        with run.stage("probes"):
            fits = self._fits(run, rows, targets.classes, splits)
        results = self._results(run, fits, targets, splits, tables)
        (run.folder / DONE).unlink(missing_ok=True)
        return results

    def _rows(self, run: Run) -> tuple[dict[tuple[str, str], np.ndarray], Targets, dict[str, Table]]:
        """The sampled rows of every layer, by model and name; the targets; and the tables of the layers."""
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            given = next(iter(sequences.values()), None)
            numbers = extraction.numbers(0)
            documents = extraction.find_documents(sequences, run.warn)
            targets = None
            if self.targets is None:
                assert given is not None
                targets = make_label_targets(
                    self.extraction.data,
                    given,
                    self.extract,
                    numbers,
                    documents,
                    self.labels,
                    self.keep_together,
                )
        taken, tables = sample(run, extraction, sequences, self.layers)
        read = zip(extraction.layers, taken, strict=True)
        rows = {(layer.model, layer.name): x.cpu().numpy() for layer, x in read}
        if self.targets is not None:
            classes = {name: decode_classes(name, rows.pop((self.targets, name))) for name in self.names}
            targets = Targets(classes, {}, documents, np.arange(len(documents)))
        assert targets is not None
        return rows, targets, tables

    def _fits(
        self,
        run: Run,
        rows: Mapping[tuple[str, str], np.ndarray],
        targets: Mapping[str, np.ndarray],
        splits: Sequence[Split],
    ) -> Fits:
        """Fits all probes, by model and layer. Finished fits are written every few seconds, and are not done again."""
        from joblib import Parallel, delayed
        from sklearn.exceptions import ConvergenceWarning

        follow_joblib()
        file = run.folder / DONE
        done: list[Any] = json.loads(file.read_text()) if file.is_file() else []
        finished = {tuple(unit) for unit, _ in done}
        left = [unit for unit in self._units() if unit not in finished]
        computed = Parallel(n_jobs=min(self.hardware.workers, len(left) or 1), return_as="generator_unordered")(
            delayed(fit_unit)(
                unit,
                rows[unit.model, unit.layer],
                targets,
                tuple(self.probes),
                splits[unit.split],
                self.seed,
            )
            for unit in left
        )
        timer = Timer(SAVE_EVERY)
        # in a job of joblib fits are threads, which undo each other's filters
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            for _, fitted in zip(run.progress(left, label="probes", unit="fits"), computed, strict=True):
                done.append(fitted)
                if timer.is_due():
                    with timer.restart():
                        write(file, json.dumps(done).encode())
        fits: Fits = {(layer.model, layer.name): {} for layer in self.layers}
        for (model, layer, *_), records in sorted(done, key=lambda unit: unit[0][-1]):  # in the order of the splits
            for record, values in records:
                fits[model, layer].setdefault(tuple(record), []).append(ProbeFit(*values))
        return fits

    def _map_errors(
        self, run: Run, fits: Fits, label: str, layers: Sequence[str], probe: str, splits: Sequence[Split]
    ) -> Matrix:
        """The errors of a probe by layers of a model and targets, means over splits, with those of its control."""
        errors, control = (
            np.array(
                [
                    [[fit.error for fit in fits[label, layer][probe, target, way]] for target in self.names]
                    for layer in layers
                ]
            )
            for way in (False, True)
        )
        p = [
            [combine_tests([fit.p for fit in fits[label, layer][probe, target, False]]) for target in self.names]
            for layer in layers
        ]
        tested = {} if any(None in row for row in p) else {"p": np.array(p)}
        counted = [
            [
                count_by_document([fit.wrong for fit in fits[label, layer][probe, target, False]], splits)
                for target in self.names
            ]
            for layer in layers
        ]
        if not any(each is None for row in counted for each in row):
            held_out = [np.unique(split.documents[split.held_out], return_counts=True)[1].tolist() for split in splits]
            tested |= {"wrong by document": np.array(counted), "rows by document": count_by_document(held_out, splits)}
        stem = slug("probes", probe, label)
        ends = {"lowest": errors.min(2), "highest": errors.max(2)} if self.splits > 1 else {}
        return Matrix(
            rows=Side(model=label, layers=list(layers)),
            columns=Side(model=self.targets or "labels", layers=list(self.names)),
            values=run.write_array(stem, errors.mean(2)),
            n=len(splits[0].held_out),
            details={
                name: run.write_array(slug(stem, name), values)
                for name, values in {"control": control.mean(2), **ends, **tested}.items()
            },
            label="held-out error (0: perfect)",
            bounds=[0.0, 1.0],
            about={
                "kind": "probes",
                "probe": probe,
                "label": self.probes[probe].label,
                "error": ERRORS[self.probes[probe].task],
                "settings": describe_probe_settings(self.probes[probe], self.seed),
            },
        )

    def _results(
        self, run: Run, fits: Fits, targets: Targets, splits: Sequence[Split], tables: Mapping[str, Table]
    ) -> Results:
        """A row per probe of a layer, means over splits; and of every model and probe the errors, layers in the order
        of the network by targets."""
        rows: list[list[Any]] = []
        matrices: dict[str, Matrix] = {}
        for label in self.probed:
            named = [layer.name for layer in self.layers if layer.model == label]
            layers = [named[place] for place in order_layers(named)]
            for probe in self.probes:
                matrices[f"{probe}, {label}"] = self._map_errors(run, fits, label, layers, probe, splits)
                for target in self.names:
                    for layer in layers:
                        fitted = (fits[label, layer][probe, target, way] for way in (False, True))
                        rows.append([label, layer, target, probe, *_average_fits(*fitted)])
        largest = {
            name: float(np.mean([1 - find_largest_class(classes, split)[1] for split in splits]))
            for name, classes in targets.classes.items()
        }
        return Results(
            study="probes",
            matrices=matrices,
            tables={
                "probes": Table(columns=COLUMNS, rows=rows),
                "targets": Table(columns=TARGETS, rows=list(describe_targets(targets, splits[0], largest))),
                **tables,
            },
            about={
                "classes": {name: len(np.unique(classes)) for name, classes in targets.classes.items()},
                "rows fitted on": len(splits[0].fitted),
                "rows held out": len(splits[0].held_out),
                "splits": self.splits,
                "error of the largest class": largest,
                "document of every row": run.write_array("probes-documents", targets.documents),
                "whether it is held out, by split": run.write_array(
                    "probes-held-out",
                    np.array([np.isin(np.arange(len(targets.documents)), split.held_out) for split in splits]),
                ),
            },
        )


def count_by_document(
    counts: Sequence[Sequence[int] | None], splits: Sequence[Split]
) -> Int[np.ndarray, " documents"] | None:
    """Adds up what was counted in the held-out documents of every split; None where one was not counted."""
    if any(each is None for each in counts):
        return None
    documents = np.unique(splits[0].documents)
    total = np.zeros(len(documents), int)
    for each, split in zip(counts, splits, strict=True):
        total[np.isin(documents, split.documents[split.held_out])] += np.array(each)
    return total


def _average_fits(fits: Sequence[ProbeFit], shuffled: Sequence[ProbeFit]) -> list[Any]:
    """Averages over splits, as the last of `COLUMNS` have it. shuffled: on labels without meaning."""
    error = float(np.mean([each.error for each in fits]))
    fitted = float(np.mean([each.fitted_error for each in fits]))
    control = float(np.mean([each.error for each in shuffled]))
    converged = all(each.converged for each in fits)
    return [error, fitted, control, converged, control - error, combine_tests([each.p for each in fits])]
