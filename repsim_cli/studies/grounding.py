"""Models that are known to differ, or to be alike, compared under every measure: which measures see it?"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.activations.inputs import described, sequences_of
from repsim_cli.activations.rows import Reading
from repsim_cli.content import COMPARED, Matrix, Results, Side
from repsim_cli.data.base import Data
from repsim_cli.errors import BadInput
from repsim_cli.measures import Measure
from repsim_cli.models.source import AnySource
from repsim_cli.registry import did_you_mean, studies
from repsim_cli.results import Run
from repsim_cli.settings import Extract, Hardware, Seed, Significance
from repsim_cli.studies.matrices import clusters_of, matrices_of
from repsim_cli.studies.record import card_record
from repsim_cli.studies.sample import prepare
from repsim_cli.studies.similarity import Similarity


@dataclass(frozen=True, kw_only=True)
class GroundingTest:
    """Models to tell apart, and the data that they are compared on.

    groups: {NAME: ENTRY of `model`}: the seeds of each entry are a group. A single group tests whether layers are found
        again in other seeds.
    data: what all of them read.
    """

    groups: dict[str, str]
    data: Data


@studies.register("grounding")
class Grounding:
    """Compares groups of models whose differences are known, for the analysis `grades`, which ranks the measures.

    tests: {NAME: {groups: {NAME: ENTRY}, data: {...}}}, each on data of its own.
    Example: repsim run study=grounding model=[tiny_plain] 'options.tests={seeds: {groups: {plain: tiny_plain}, data:
        {kind: overlap_nli}}}' extract=pooled
    """

    def __init__(
        self,
        *,
        model: Mapping[str, AnySource],
        measure: Mapping[str, Measure],
        extract: Extract,
        hardware: Hardware,
        seed: Seed,
        cache: bool = True,
        skip_unsuitable: bool = False,
        tests: dict[str, GroundingTest],
    ):
        if not tests:
            raise BadInput("options.tests: none is named, got {}; write {NAME: {groups: {NAME: ENTRY}, data: {...}}}")
        self.groups = {name: _members(name, test, model) for name, test in tests.items()}
        self.parts = {
            name: Similarity(
                model={label: model[label] for labels in self.groups[name].values() for label in labels},
                data=test.data,
                measure=measure,
                extract=extract,
                significance=Significance(clusters="row"),
                hardware=hardware,
                seed=seed,
                cache=cache,
                skip_unsuitable=skip_unsuitable,
            )
            for name, test in tests.items()
        }
        self.hardware = hardware

    @property
    def readings(self) -> list[Reading]:
        return list({reading.label: reading for part in self.parts.values() for reading in part.readings}.values())

    @property
    def measures(self) -> dict[str, Measure]:
        """Those that suit every test."""
        first, *others = (part.measures for part in self.parts.values())
        return {label: bound for label, bound in first.items() if all(label in other for other in others)}

    @property
    def skipped(self) -> dict[str, str]:
        return {label: why for part in self.parts.values() for label, why in part.skipped.items()}

    def plan(self) -> dict[str, Any]:
        plans = {name: part.plan() for name, part in self.parts.items()}
        return {
            "tests": {
                name: {group: len(labels) for group, labels in groups.items()} for name, groups in self.groups.items()
            },
            "measures": list(self.measures),
            **{
                key: sum(plan[key] for plan in plans.values())
                for key in ("layers", "pairs of layers", "tokens", "forward passes")
            },
            "time, roughly": {name: plan["time, roughly"] for name, plan in plans.items()},
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        run.manifest["models"] = {}
        matrices: dict[str, Matrix] = {}
        for name, part in self.parts.items():
            with run.stage(name):
                matrices |= self._of_test(run, name, part)
        for key in ("data", "rows", "models_run", "matrices_cached"):
            run.manifest.pop(key, None)
        return Results(study="grounding", matrices=matrices)

    def _of_test(self, run: Run, name: str, part: Similarity) -> dict[str, Matrix]:
        """A matrix of all layers of all models per measure."""
        sequences = sequences_of(part.live, part.tokenizers, part.data, part.extract, part.seed)
        description, notices = described(sequences, part.data, part.extract)
        run.input(f"data of {name}", description)
        for notice in notices:
            run.warn(f"{name}: {notice}")
        run.manifest["data"] = dict(description)
        known = run.manifest["models"]
        total = part.counted(run, sequences)
        measures = {label: part.measures[label] for label in self.measures if label in part.measures}
        made, _ = matrices_of(
            run,
            part,
            {f"{label}, {name}": bound for label, bound in measures.items()},
            part.significance,
            sequences,
            total,
            clusters=clusters_of(part.significance, part.readings, sequences, part.extract, total),
            trading=None,
            wanted=None,
            side=part.side(),
        )
        run.manifest["models"] = known | run.manifest["models"]
        layers = [f"{reading.label} {layer.name}" for reading in part.readings for layer in reading.layers]
        side = Side(model=name, layers=layers)
        record = partial(Matrix, rows=side, columns=side, n=min(total, part.extract.rows))
        return {
            f"{label}, {name}": record(
                values=run.write_array(f"{name}-{label}", np.asarray(made[f"{label}, {name}"].values)),
                label=bound.card.label,
                about={
                    "kind": COMPARED,
                    "test": name,
                    "measure": label,
                    "card": card_record(bound),
                    "groups": self.groups[name],
                },
            )
            for label, bound in measures.items()
        }


def _members(name: str, test: GroundingTest, model: Mapping[str, AnySource]) -> dict[str, list[str]]:
    """The models of every group of a test. Raises BadInput for an entry that is not there."""
    entries = {label: getattr(source, "entry", "") or label for label, source in model.items()}
    known, where = list(dict.fromkeys(entries.values())), f"options.tests.{name}.groups"
    groups: dict[str, list[str]] = {}
    for group, entry in test.groups.items():
        groups[group] = [label for label, own in entries.items() if own == entry]
        if not groups[group]:
            raise BadInput(f"{where}.{group}: no such model, got '{entry}'; {did_you_mean(entry, known)}")
    if not groups:
        raise BadInput(f"{where}: no group is named, got {{}}; write {{NAME: ENTRY}}")
    return groups
