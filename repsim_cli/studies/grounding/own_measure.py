"""A measure of one's own, graded on the tests that the measures of this package are graded on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from repsim_cli import measures
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.permuted_groups import number_groups
from repsim_cli.measures import Card, Measure, Pairwise
from repsim_cli.runs import folders, reader
from repsim_cli.studies.grounding import grading
from repsim_cli.studies.grounding.finding import compare_truncated, read_cases, split_by_model
from repsim_cli.studies.grounding.grading import GRADES, Case
from repsim_cli.studies.grounding.measure import (
    GradedLayers,
    Measurement,
    Place,
    make_measurement,
    measure_probe_accuracy,
    truncate_layers,
)
from repsim_cli.studies.grounding.scores import Models

BESIDE = ("cka_unbiased", "procrustes", "rsa", "mutual_knn", "svcca", "euclidean")
MINE = "this measure"


class Grade(NamedTuple):
    """How a measure does in every test.

    mean_rank: over the tests, 1 is the best. low, high: a band over models, None where there is none. place: among all
    measures, by mean rank. measures: how many these are. tests: a row per test, with the keys of the table `grades`.
    seconds: of CPU time per pair of layers.
    """

    mean_rank: float
    low: float | None
    high: float | None
    place: int
    measures: int
    tests: list[dict[str, Any]]
    seconds: float

    def __str__(self) -> str:
        band = "" if self.low is None else f" ({self.low:.1f} to {self.high:.1f} over models)"
        place = f"{self.place} of {self.measures} measures"
        lines = [f"mean rank {self.mean_rank:.1f}{band}, {place}, {self.seconds:.2g} s per pair"]
        for row in self.tests:
            score = row["why"] if row["score"] is None else f"{row['score']:6.3f}  rank {row['rank']:g}"
            where = ", ".join(filter(None, [row["test"], row["models of"], row["data"], row["hook point"]]))
            lines.append(f"  {where:48} {score}  (chance {row['chance']:.2f})")
        return "\n".join(lines)


def grade(
    prepare: Callable[[torch.Tensor], Any],
    compare: Callable[[Any, Any], float],
    *,
    card: Card,
    run: str | Path | None = None,
    beside: Sequence[str] = BESIDE,
    level: float = 0.95,
) -> Grade:
    """Grades a measure on tests of which the answer is known, and ranks it among other measures.

    prepare(x): what depends on a single representation (n, d), float32, rows in the same order for all.
    compare(a, b): the number for two prepared representations.
    card: what the measure claims; only larger_is_closer, symmetric and minimum_rows are used here.
    run: a run of `study=grounding`, by folder or name, whose stored representations are compared and whose measures it
        is ranked among; None: planted representations (two groups of five models of four layers that differ by a
        rotation and noise).
    beside: names of the measures that it is ranked among on planted representations.
    level: of the band of the mean rank, over models.

    Raises BadInput for a run without stored representations, and Degenerate where no test gives a score.

    >>> from repsim_cli.measures import Card
    >>> card = Card(label="mean cosine of rows", larger_is_closer=True, bounds=(-1.0, 1.0), symmetric=True,
    ...             is_metric=False, invariant_to=frozenset(), minimum_rows=2, cost="n d", source="an example")
    >>> graded = grade(torch.nn.functional.normalize, lambda a, b: float((a * b).sum(1).mean()), card=card)
    >>> graded.measures, len(graded.tests), graded.place > 3
    (7, 7, True)
    """
    mine = Pairwise(name=MINE, card=card, prepare=prepare, compare=compare)
    cases, seconds = _grade_on_run(mine, folders.find(str(run))) if run is not None else _grade_planted(mine, beside)
    tests = [each for case in cases for each in grading.grade_all(case)]
    standings = grading.list_standings(tests, level)
    standing = next((each for each in standings if each.measure == MINE), None)
    if standing is None:
        raise Degenerate(f"no test gives it a score, got {tests[0].why[MINE]}; check prepare and compare")
    place = 1 + sum(each.mean < standing.mean for each in standings)
    rows = [dict(zip(GRADES, row, strict=True)) for row in grading.list_grades(tests, level) if row[0] == MINE]
    return Grade(standing.mean, standing.low, standing.high, place, len(standings), rows, seconds)


def _grade_on_run(mine: Measure, folder: Path) -> tuple[list[Case], float]:
    """The tests of a run, with this measure beside the others, and its seconds per pair."""
    finished = Finished(folder=folder, manifest=reader.read_manifest(folder), results=reader.read_results(folder))
    if finished.results.study != "grounding":
        raise BadInput(
            f"run: stored representations are needed, got a run of study={finished.results.study} ({folder}); "
            "give a run of study=grounding"
        )
    made, seconds = {}, []
    for data, about in finished.results.about["samples"].items():
        layers = _read_stored(finished, about)
        made[data] = make_measurement(mine, layers)
        seconds += [cost.seconds for cost in made[data].costs[:1]]
    cases = [_add_measure(case, made[case.data], mine) for case in read_cases(finished, "accuracy")]
    return cases, float(np.mean(seconds)) if seconds else float("nan")


def _read_stored(run: Finished, about: dict[str, Any]) -> GradedLayers:
    """The representations of a sample, as the study compared them."""
    rows = [torch.from_numpy(run.array(path)).float() for _, path in about["layers"]]
    compared: dict[Place, np.ndarray] = {}
    for place, at in about["compared"].items():
        test, _, point = place.rpartition(", ")
        compared[test, point] = np.array(at)
    labels = None if about["labels"] is None else torch.from_numpy(run.array(about["labels"])).long()
    return GradedLayers(
        names=[name for name, _ in about["layers"]],
        rows=rows,
        compared=compared,
        truncated={
            (test, point): truncate_layers([rows[i] for i in at.ravel()])
            for (test, point), at in compared.items()
            if f"{test}, {point}" in about["probes"]
        },
        labels=labels,
    )


def _add_measure(case: Case, made: Measurement, mine: Measure) -> Case:
    """The case with this measure added."""
    place, sign = (case.test, case.point), 1 if mine.card.larger_is_closer else -1
    if place not in made.compared:
        return case._replace(failed={**case.failed, MINE: made.failed[place]})
    like = max(case.models.values(), key=lambda models: models.truncated is not None)
    cut = like.truncated and made.truncated.get(place)
    models = replace(
        like,
        similar=split_by_model(sign * made.compared[place], like.count),
        truncated=replace(like.truncated, similar=sign * cut.reshape(like.truncated.similar.shape))
        if like.truncated is not None and cut is not None
        else None,
    )
    return case._replace(models={**case.models, MINE: models})


# ---- planted representations ----

ROWS, WIDTH, DEPTH, SEEDS, NOISE = 200, 16, 4, 5, 0.6


def _grade_planted(mine: Measure, beside: Sequence[str]) -> tuple[list[Case], float]:
    """The tests on planted representations, with others beside this one, and its seconds per pair."""
    layers, tests = plant_models()
    probes = {
        place: {
            "whole": [
                measure_probe_accuracy(layers.rows[i], _require_labels(layers), 0)
                for i in layers.compared[place].ravel()
            ],
            "accuracy": [
                [measure_probe_accuracy(x, _require_labels(layers), 0) for x in each.values()] for each in cut
            ],
        }
        for place, cut in layers.truncated.items()
    }
    bound = {name: measures.get(name) for name in beside} | {MINE: mine}
    made = {name: make_measurement(measure, layers) for name, measure in bound.items()}
    cases = []
    for (test, point), groups in tests.items():
        of, failed = {}, {}
        for name, measure in bound.items():
            sign, place = 1 if measure.card.larger_is_closer else -1, (test, point)
            if place not in made[name].compared:
                failed[name] = made[name].failed[place]
                continue
            count = sum(map(len, groups.values()))
            cut = made[name].truncated.get(place)
            of[name] = Models(
                similar=split_by_model(sign * made[name].compared[place], count),
                groups=number_groups(groups),
                apart={},
                truncated=compare_truncated(None if cut is None else sign * cut, probes.get(place), count),
            )
        cases.append(Case("planted", test, point, groups, of, failed))
    return cases, made[MINE].costs[0].seconds if made[MINE].costs else float("nan")


def _require_labels(layers: GradedLayers) -> torch.Tensor:
    assert layers.labels is not None
    return layers.labels


def plant_models() -> tuple[GradedLayers, Mapping[Place, Mapping[str, Sequence[str]]]]:
    """Two groups of models: within a group, layers differ by a rotation and noise; a layer is a nonlinear map of the
    one before, with weights of the group."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    first = normal(ROWS, WIDTH)
    rows, names = [], []
    groups = {group: [f"{group}{seed}" for seed in range(SEEDS)] for group in "ab"}
    for members in groups.values():
        signal = [first]
        for _ in range(DEPTH - 1):
            signal.append(signal[-1] + 0.8 * torch.tanh(signal[-1] @ normal(WIDTH, WIDTH) / 2))
        for model in members:
            for layer, x in enumerate(signal):
                rotation, _ = torch.linalg.qr(normal(WIDTH, WIDTH))
                rows.append(x @ rotation + NOISE * normal(ROWS, WIDTH))
                names.append(f"layer {layer} of '{model}'")
    at = np.arange(2 * SEEDS * DEPTH).reshape(2 * SEEDS, DEPTH)
    seeds, apart = ("seeds", "layers"), ("groups", "layers")
    layers = GradedLayers(
        names=names,
        rows=rows,
        compared={seeds: at[:SEEDS], apart: at[:, -1:]},
        truncated={seeds: truncate_layers([rows[i] for i in at[:SEEDS].ravel()])},
        labels=(first[:, 0] > 0).long(),
    )
    return layers, {seeds: {"a": groups["a"]}, apart: groups}
