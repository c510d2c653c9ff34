"""What every analysis is given and gives, and how it registers itself.

An analysis is a function of a finished run and of its options, a frozen dataclass that may `check` them against the
plan of a run before any weight loads. Its file holds its claims and its figures too.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from repsim_cli.base import registry
from repsim_cli.figures.colours import choose_colour_range
from repsim_cli.findings.claims import Claim
from repsim_cli.runs import reader
from repsim_cli.runs.content import COPIES, Curve, Facts, Matrix, Measured, Results, Table, Verdict, read_facts

Job = tuple[str, Callable[[], Any]]  # the name of a figure, and what makes it
FEW = 3  # models up to which each has figures of its own in the overview


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is known of a run before it starts. models: those of the run, read as facts. measures: by label, as results
    keep them; settings: their names and settings. groups: by name, how many models each has. options: the study's.
    budget: whether values are split into their parts."""

    study: str
    models: Mapping[str, Facts]
    measures: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, int]
    base: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: bool = False
    settings: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerMap:
    """All layers of all models under one measure.

    values: (r, r), NaN where two layers were not compared. names, widths: of the layers. places: where those of each
    model are.
    """

    measure: Measured
    values: np.ndarray
    names: list[str]
    widths: list[int]
    places: dict[str, slice]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run folder whose study has measured everything. level: of confidence bands. left: by the path of an array, the
    cells that are read of it; others are read whole."""

    folder: Path
    manifest: Mapping[str, Any]
    results: Results
    level: float = 0.95
    left: Mapping[str, tuple[np.ndarray, ...]] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.manifest["seed"]

    @property
    def base(self) -> str | None:
        return self.manifest.get("base")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the study."""
        return self.manifest.get("options", {})

    @property
    def groups(self) -> dict[str, list[str]]:
        """The models of every group, in order; empty without groups."""
        return {name: list(models) for name, models in self.manifest.get("groups", {}).items()}

    @cached_property
    def models(self) -> dict[str, Facts]:
        return read_facts(self.manifest)

    @cached_property
    def seeds(self) -> dict[str, str]:
        """The entry that a model shares with other seeds of its training, by the label of the model."""
        return {label: about["entry"] for label, about in self.manifest.get("facts", {}).items() if about.get("entry")}

    @property
    def untrained(self) -> frozenset[str]:
        """The models with fresh weights, on which no claim about what training makes can rest."""
        return frozenset(label for label, about in self.models.items() if not about.trained)

    @cached_property
    def copies(self) -> list[list[str]]:
        """Groups the models that are one: by what was loaded, or by all layers that were compared, to rounding, a
        factor or an offset. Without those that were trained here, whose seeds and parts are what a study makes
        them."""
        given = [label for label, about in self.models.items() if not about.training]
        found = {label: {label} for label in given}
        loaded: dict[str, str] = {}
        pairs = list(self.results.tables[COPIES].rows) if COPIES in self.results.tables else []
        for label in given:
            identity = self.manifest.get("models", {}).get(label, {})
            if self.models[label].kind == "live" and identity.get("weights_hash"):
                same = repr(sorted((key, str(value)) for key, value in identity.items() if key not in WHENCE))
                pairs.append([loaded.setdefault(same, label), label])
        for first, second in pairs:
            if first in found and second in found and found[first] is not found[second]:
                found[first] |= found[second]
                found |= dict.fromkeys(found[first], found[first])
        groups = {id(group): [label for label in given if label in group] for group in found.values() if len(group) > 1}
        return list(groups.values())

    @cached_property
    def whole_trainings(self) -> list[str]:
        """Lists the entries of several seeds whose models all are in one group, where a group has several of these:
        groups then differ as trainings do, whatever they stand for."""
        of = {model: name for name, members in self.groups.items() for model in members}
        homes: dict[str, set[str]] = {}
        for label, entry in self.seeds.items():
            if label in of:
                homes.setdefault(entry, set()).add(of[label])
        seeds = Counter(entry for label, entry in self.seeds.items() if label in of)
        whole = {entry: next(iter(groups)) for entry, groups in homes.items() if len(groups) == 1 and seeds[entry] > 1}
        return list(whole) if max(Counter(whole.values()).values(), default=0) > 1 else []

    @property
    def trained(self) -> dict[str, list[str]]:
        """The models by how they were trained here, where that tells models apart: seeds of one recipe."""
        trainings = dict.fromkeys(about.training for about in self.models.values() if about.training)
        return {each: [label for label, about in self.models.items() if about.training == each] for each in trainings}

    def array(self, path: str) -> np.ndarray:
        return reader.read_array(self.folder, path)[self.left.get(path, ...)]

    def keep(self, path: str) -> np.ndarray:
        """An array that several analyses look at: read once."""
        if path not in self._kept:
            self._kept[path] = self.array(path)
        return self._kept[path]

    @cached_property
    def _kept(self) -> dict[str, np.ndarray]:
        return {}

    def limits(self, measured: Measured) -> tuple[float, float]:
        """The limits of the colours of a measure over all of its maps: figures of a run can be compared."""
        known = [values[np.isfinite(values)] for values in (self.keep(matrix.values) for matrix in measured.matrices)]
        ends = [end for values in known if values.size for end in (values.min(), values.max())]
        return choose_colour_range(np.array(ends), measured.card, "values")

    def select_kind(self, kind: str) -> list[Matrix]:
        """The matrices of a study that are not similarities of layers, by their `about.kind`."""
        return [matrix for matrix in self.results.matrices.values() if matrix.about.get("kind") == kind]

    @cached_property
    def maps(self) -> dict[str, LayerMap]:
        """The map of every measure between layers of the run's models, by the label of the measure."""
        return {
            measured.label: self.map_of(measured)
            for measured in self.results.measures
            if measured.matrices and all(matrix.rows.model in self.models for matrix in measured.matrices)
        }

    def map_of(self, measured: Measured) -> LayerMap:
        """Makes the map of all layers of all models under a measure."""
        sides = [side for matrix in measured.matrices for side in (matrix.rows, matrix.columns)]
        known = {side.model: side.layers for side in sides}
        order = dict.fromkeys([*self.manifest.get("models", ()), *known])
        layers = {model: known[model] for model in order if model in known}
        ends = np.cumsum([0, *map(len, layers.values())]).tolist()
        places = {model: slice(ends[i], ends[i + 1]) for i, model in enumerate(layers)}
        values = np.full((ends[-1], ends[-1]), np.nan)
        for matrix in measured.matrices:
            rows, columns = places[matrix.rows.model], places[matrix.columns.model]
            values[rows, columns] = self.array(matrix.values)
            if measured.card["symmetric"] and rows != columns:
                values[columns, rows] = values[rows, columns].T
        names = [name for of_model in layers.values() for name in of_model]
        widths = [width for model in layers for width in self.models[model].widths]
        return LayerMap(measured, values, names, widths, places)


WHENCE = ("source", "revision", "commit")  # of what was loaded: the same weights may lie in several places


@dataclass(frozen=True, kw_only=True)
class Part:
    """What an analysis adds to results.json. matrices: by name the array and all that is known of it."""

    matrices: Mapping[str, tuple[np.ndarray, Matrix]] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    claims: Sequence[Verdict] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Analysis:
    """studies: whose runs it takes. unasked: whether it is part of a run that does not ask for it. options: its
    dataclass. within: whether it can do without comparisons of layers of different models. needs: the option of the
    study that measures what it reads."""

    name: str
    studies: Collection[str]
    unasked: Callable[[Planned], bool]
    options: type
    compute: Callable[..., Part]
    figures: Callable[..., Iterator[Job]] | None
    within: bool = False
    needs: str = ""


def analysis(
    *,
    studies: Sequence[str],
    unasked: Callable[[Planned], bool] = lambda planned: False,
    figures: Callable[..., Iterator[Job]] | None = None,
    within: bool = False,
    needs: str = "",
) -> Callable[[Callable[..., Part]], Callable[..., Part]]:
    """Registers `NAME(run, options, claims)` under its name; the type of `options` is the dataclass of its settings.

    unasked: whether a run of these studies has it without asking (where all options have defaults).
    claims: those of its file that are asked for.
    figures(run, whole): the jobs that draw what the study measured and the analysis added; whole: all figures, not
    those of the overview alone.
    within: whether it can do without comparisons of layers of different models.
    needs: the option of the study that measures what it reads; asking for the analysis sets it.
    """

    def register(compute: Callable[..., Part]) -> Callable[..., Part]:
        name = compute.__name__
        options = get_type_hints(compute)[list(inspect.signature(compute).parameters)[1]]
        card = Analysis(name, studies, unasked, options, compute, figures, within, needs)
        return registry.analyses.register(name, card)(compute)

    return register


def select_claims(claims: Sequence[Claim], on: str) -> list[Claim]:
    """Selects the claims about one kind of result."""
    return [claim for claim in claims if claim.on == on]
