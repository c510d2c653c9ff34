"""The matrices of all layers of all models under several measures, and what training made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy

from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.claims import Weighed
from repsim_cli.findings.evidence import Evidence

Models = Mapping[str, slice]
FRESH = "fresh weights may give it, too: no untrained twin of each model is among them"
TWINS = "beyond what the untrained twins give"


@dataclass(frozen=True, kw_only=True)
class ClaimMap:
    """The matrices of all layers of all models. models: the places of their layers. families: of every model, its
    architecture. values: by the name of the measure. base: the model that others were fine-tuned from. names, widths:
    of every layer, its hook point and its number of features. rows: that the values rest on. untrained: the models with
    fresh weights. entries: by model, its entry where it shares that with others, such as seeds of its training."""

    models: Models
    families: Mapping[str, str]
    values: Mapping[str, np.ndarray]
    names: Sequence[str]
    widths: Sequence[int]
    rows: int
    base: str | None = None
    untrained: frozenset[str] = field(default_factory=frozenset)
    entries: Mapping[str, str] = field(default_factory=dict)

    def cells(self, same_family: bool) -> np.ndarray:
        """Pairs of different layers whose models are, or are not, of one family."""
        family = np.array([self.families[model] for model in self.owners()])
        return ((family[:, None] == family) == same_family) & ~np.eye(len(family), dtype=bool)

    def entry(self, model: str) -> str:
        """Names what the seeds of a training have in common; of other models their label."""
        return self.entries.get(model, model)

    def shape(self, model: str) -> tuple[Any, ...]:
        """Describes what an untrained twin of a model has in common with it."""
        return (self.families[model], *self.widths[self.models[model]])

    def owners(self) -> np.ndarray:
        """Names the model of every layer."""
        return np.repeat(list(self.models), [place.stop - place.start for place in self.models.values()])

    def keep_layers(self, kept: np.ndarray) -> "ClaimMap":
        """Keeps some layers. kept: whether each stays."""
        at, owners = np.flatnonzero(kept), self.owners()[kept]
        places = {model: np.flatnonzero(owners == model) for model in self.models if (owners == model).any()}
        return replace(
            self,
            models={model: slice(int(at[0]), int(at[-1]) + 1) for model, at in places.items()},
            values={name: x[np.ix_(at, at)] for name, x in self.values.items()},
            names=[self.names[i] for i in at.tolist()],
            widths=[self.widths[i] for i in at.tolist()],
        )

    def compute_values_of_noise(self, name: str) -> np.ndarray:
        """Computes what a measure gives at most for independent normal rows of these widths: the best of a layer's
        neurons correlates a little with any, and biased CKA of n rows is at most the root of the product of the widths
        over n - 1. Rows count as independent: repeated words raise both further. Of other measures 0."""
        widths = np.array(self.widths, float)
        if name == "neuronsim":
            return np.broadcast_to(
                [compute_largest_noise_correlation(width, self.rows) for width in self.widths],
                (len(widths), len(widths)),
            )
        if name == "cka":
            return np.sqrt(np.outer(widths, widths)) / (self.rows - 1)
        return np.zeros((len(widths), len(widths)))


def map_of(run: Finished) -> tuple[ClaimMap, dict[str, str]]:
    """Makes the map of a run under the measures that are larger for closer layers, and their labels by name."""
    first = next(iter(run.maps.values()))
    closer = {label: m for label, m in run.maps.items() if m.measure.larger_is_closer}
    facts = {model: run.models[model] for model in first.places}
    whole = ClaimMap(
        models=first.places,
        families={model: about.family for model, about in facts.items()},
        values={m.measure.name: m.values for m in closer.values()},
        names=first.names,
        widths=first.widths,
        rows=min(m.measure.estimate["rows"] // m.measure.estimate["batches"] for m in run.maps.values()),
        base=run.base,
        untrained=frozenset(run.untrained & facts.keys()),
        entries={model: about.entry for model, about in facts.items() if about.entry},
    )
    return whole, {m.measure.name: label for label, m in closer.items()}


@cache
def compute_largest_noise_correlation(neurons: int, rows: int) -> float:
    """Computes the largest of the absolute correlations with `neurons` neurons of independent normal values, on
    average.

    >>> round(compute_largest_noise_correlation(1, 100), 3), round(compute_largest_noise_correlation(64, 100), 3)
    (0.08, 0.258)
    """
    r = np.linspace(0, 1, 20_001)
    none_larger = scipy.stats.beta.cdf(r**2, 0.5, (rows - 2) / 2) ** neurons
    return float(scipy.integrate.trapezoid(1 - none_larger, r))


class TrainedMap(NamedTuple):
    """The trained models of a map. values: of their layers, minus those of the untrained twins where each model has one
    beside it. note: whether these were subtracted."""

    whole: ClaimMap
    values: np.ndarray
    note: str

    def squares(self, least: int) -> list[np.ndarray]:
        """Takes the values among the layers of every model that has at least `least`, both directions averaged."""
        parts = [self.values[place, place] for place in self.whole.models.values() if place.stop - place.start >= least]
        return [(part + part.T) / 2 for part in parts]

    def weigh(self, value: float, evidence: Evidence) -> Weighed:
        return Weighed(value, replace(evidence, how=f"{evidence.how}; {self.note}"))


def find_trained(whole: ClaimMap, values: np.ndarray) -> TrainedMap:
    """Finds what training made of a map, as far as the run can tell. An untrained model is the twin of a trained one
    that has its family and the widths of its layers."""
    free, twins = [model for model in whole.models if model in whole.untrained], {}
    kept = [model for model in whole.models if model not in whole.untrained]
    for model in kept:
        twin = next((other for other in free if whole.shape(other) == whole.shape(model)), None)
        if twin is not None:
            twins[model] = twin
            free.remove(twin)

    def take_values_among(models: Sequence[str]) -> np.ndarray:
        at = [i for model in models for i in range(whole.models[model].start, whole.models[model].stop)]
        return values[np.ix_(at, at)]

    part = whole.keep_layers(np.isin(whole.owners(), kept)) if kept else replace(whole, models={})
    if not kept or len(twins) < len(kept):
        return TrainedMap(part, take_values_among(kept), FRESH)
    return TrainedMap(part, take_values_among(kept) - take_values_among([twins[model] for model in kept]), TWINS)
