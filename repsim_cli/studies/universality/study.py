"""Models that differ from a base in one factor at a time, beside seeds of the base, untrained twins and chance."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Annotated, Any, ClassVar, NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field

from repsim_cli.activations.batching import count_passes
from repsim_cli.activations.inputs import name_errors
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.settings import Significance
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import count_activation_bytes, describe_models, find_usual_length
from repsim_cli.engine.comparison import Comparison, make_comparison
from repsim_cli.engine.corrections import correct_by_max_t
from repsim_cli.engine.cost import Cost, describe_needs, estimate_forward_cost
from repsim_cli.engine.extraction import make_noted_sequences
from repsim_cli.engine.matrices import compute_matrices
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.record import make_card_record
from repsim_cli.engine.rows import prepare
from repsim_cli.engine.study import TEXTS, OfMeasures, Study
from repsim_cli.measures import Card, Measure
from repsim_cli.models.source import AnySource, Source
from repsim_cli.models.transformers import draw_untrained, make_shape_key
from repsim_cli.runs.content import GRID, Matrix, Results, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.universality.rule import MARGIN, find_needed

UNREAD = ("chance", "floor", "jackknife", "bands", "family", "family_of")  # of significance: it tests in its own way

Models = Mapping[str, Source]


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What models differ in, and nothing else.

    base: the entry of `model` that the others differ from; its seeds are the ceiling.
    values: {NAME: ENTRY of `model`}, two or more, each with three models or more, as the base, or single models as the
        base is.
    """

    base: str
    values: dict[str, str]


class Cell(NamedTuple):
    """A value of a factor. trained: the seeds of the base, then those of the value. twins: untrained models in their
    shapes, those of the base first. shapes: how many these are. chance: a seed of each, under random pairings."""

    factor: str
    value: str
    seeds: int
    trained: Comparison
    twins: Comparison
    shapes: int
    chance: Comparison


@studies.register("universality")
class Universality(Study):
    """Compares the models of every value of every factor with those of the factor's base, and both with seeds of the
    base, with untrained twins and with random pairings of rows.

    The similarity of two models is the mean over the layers of both of the similarity with the closest layer of the
    other, since layers need not be at the same depth. Twins, seeds and random pairings have the same choice.

    factors: {NAME: {base: ENTRY, values: {NAME: ENTRY}}}.
    margin: the models of a value are `same` where they are shown to be more than 1 - margin of the way from untrained
        twins to seeds of the base. Refused are runs that would seldom show it, for the number of models and of values.
    twins: untrained models in each shape, at least 3.
    Example: repsim run study=universality model=[grid_base,grid_width_32,grid_width_128] significance=permutation
        'options.factors={width: {base: grid_base, values: {narrow: grid_width_32, wide: grid_width_128}}}'
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    takes_pairs: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = (*(f"significance.{key}" for key in UNREAD), TEXTS)

    def __init__(
        self,
        *,
        significance: Significance,
        factors: dict[str, Factor],
        margin: Annotated[float, Field(ge=0.05, le=0.5)] = MARGIN,
        twins: Annotated[int, Field(ge=3, le=100)] = 3,
        **given: Unpack[OfMeasures],
    ):
        if not factors:
            raise BadInput("options.factors: none is named; write {NAME: {base: ENTRY, values: {NAME: ENTRY}}}")
        if significance.method != "permutation":
            raise BadInput(
                "significance.method: similarity is compared with random pairings of rows, got "
                f"{significance.method}; use significance=permutation"
            )
        if not given.get("cache", True):
            raise BadInput("cache: each model is read in several comparisons, got false; leave it true")
        self.significance, self.margin = significance, margin
        self.hardware, self.data = given["hardware"], given["data"]
        self.extract, self.seed = given["extract"], given["seed"]
        known: dict[tuple[str, ...], Comparison] = {}

        def part(models: Models, tested: bool = False) -> Comparison:
            key = (*models, *(["tested"] if tested else []))
            if key not in known:
                significant = (
                    replace(significance, chance=False, floor=False)
                    if tested
                    else Significance(clusters="row", chance=False, floor=False)
                )
                known[key] = make_comparison({**given, "model": models}, significant)
                footprint.check_fits(known[key])
            return known[key]

        sizes: dict[str, tuple[int, int]] = {}
        self.cells: list[Cell] = []
        for name, factor in factors.items():
            where = f"options.factors.{name}"
            base = _find_entry_seeds(f"{where}.base", factor.base, given["model"])
            if len(factor.values) < 2:
                raise BadInput(f"{where}.values: two or more are needed, got {list(factor.values)}; name more")
            for value, entry in factor.values.items():
                others = _find_entry_seeds(f"{where}.values.{value}", entry, given["model"])
                if entry == factor.base:
                    raise BadInput(f"{where}.values.{value}: it is the base, got '{entry}'; name another entry")
                sizes[f"{where}.values.{value}"] = len(base), len(others)
                fresh, shapes = _draw_untrained_twins(base, others, twins)
                first = {label: seeds[label] for seeds in (base, others) for label in list(seeds)[:1]}
                whole = part({**base, **others})
                self.cells.append(Cell(name, value, len(base), whole, part(fresh), shapes, part(first, tested=True)))
        _check_seeds(sizes, margin, significance.alpha)
        every = (part for cell in self.cells for part in (cell.trained, cell.twins, cell.chance))
        self.parts = list({id(part): part for part in every}.values())
        self.live = {label: source for part in self.parts for label, source in part.live.items()}
        self.readings = list({reading.label: reading for part in self.parts for reading in part.readings}.values())
        one, *others = (part.measures for part in self.parts)
        self.measures = {label: bound for label, bound in one.items() if all(label in other for other in others)}
        self.skipped = {label: why for part in self.parts for label, why in part.skipped.items()}

    def plan(self) -> dict[str, Any]:
        length = find_usual_length(self.live, self.data, self.extract)
        costs = {
            "forward passes": estimate_forward_cost(self.live.values(), self.extract.sequences, length, self.hardware),
            "similarity": sum(
                (footprint.estimate_costs(part, part.pairs)["similarity"] for part in self.parts), Cost()
            ),
        }
        return {
            "factors": {name: [cell.value for cell in self.cells if cell.factor == name]
                        for name in dict.fromkeys(cell.factor for cell in self.cells)},
            "same": f"above {1 - self.margin:g} of the way from untrained twins to seeds (margin {self.margin:g})",
            "models": describe_models(self.live, self.hardware),
            "measures": list(self.measures),
            "pairs of layers": sum(part.pairs for part in self.parts),
            "pairs of rows": footprint.describe_planned_pairs(self.parts[0]),
            "forward passes": len(self.live) * count_passes(self.extract.sequences, length, self.hardware),
            **describe_needs(
                costs,
                self.hardware,
                memory=max(
                    (
                        footprint.estimate_comparison_memory(part, footprint.count_rows_per_comparison(part))
                        for part in self.parts
                    ),
                    key=lambda need: sum(need.values()),
                ),
                activations=count_activation_bytes(self.live, self.readings, self.data, self.extract),
                figures=3,
            ),
        }  # fmt: skip

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            tokenizers = {label: part.tokenizers[label] for part in self.parts for label in part.live}
            sequences = make_noted_sequences(run, self.live, tokenizers, self.data, self.extract, self.seed)
        known: dict[int, dict[str, SimilarityMatrix]] = {}
        measures = self.measures
        for part in self.parts:
            with run.stage("similarity"):
                known[id(part)] = self._matrices(run, part, measures, sequences)
            measures = {label: bound for label, bound in measures.items() if label in known[id(part)]}
        for key in ("models_run", "matrices_cached"):
            run.manifest.pop(key, None)
        matrices: dict[str, Matrix] = {}
        with run.stage("results"):
            for label, bound in measures.items():
                matrices |= dict(
                    self._test_measure(run, label, bound, {key: made[label] for key, made in known.items()})
                )
        about = {"alpha": self.significance.alpha, "margin": self.margin}
        return Results(study="universality", matrices=matrices, about=about)

    def _matrices(
        self, run: Run, part: Comparison, measures: Collection[str], given: Mapping[str, Sequences]
    ) -> dict[str, SimilarityMatrix]:
        """Computes the matrices of those measures that suit its rows."""
        sequences = {label: given[label] for label in part.live}
        part = part.pair_rows(run, sequences).count_rows(run, sequences)
        # of all parts, so that all have the same rows
        part = footprint.plan_memory(part.add_clusters(run, sequences, self.significance))
        measured = {label: bound for label, bound in part.measures.items() if label in measures}
        part = replace(part, measures=measured, scatter=False)
        return compute_matrices(run, part, sequences)[0]

    def _test_measure(
        self, run: Run, label: str, bound: Measure, made: Mapping[int, SimilarityMatrix]
    ) -> Iterator[tuple[str, Matrix]]:
        sign = 1.0 if bound.card.larger_is_closer else -1.0
        tested, nulls = [], []
        for cell in self.cells:
            places = cell.chance.places
            statistics = made[id(cell.chance)].statistics
            values = torch.cat([statistics["tested"][None], statistics["null"]]).cpu().numpy()
            similarities = np.array([compare_by_closest_layers(draw, places, bound.card)[0, 1] for draw in values])
            if not np.isfinite(similarities).all():
                raise RunFailed(f"{label}: a value is not finite; please report this with the run's config")
            tested.append(similarities[0])
            nulls.append(similarities[1:])
        family = correct_by_max_t(sign * torch.tensor(tested), sign * torch.from_numpy(np.stack(nulls, 1)))
        for cell, observed, null, p_family in zip(self.cells, tested, nulls, family.tolist(), strict=True):
            name = f"{label}, {cell.factor}, {cell.value}"
            whole, fresh = (
                compare_by_closest_layers(made[id(part)].values.cpu().numpy(), part.places, bound.card)
                for part in (cell.trained, cell.twins)
            )
            side = Side(model=f"{cell.factor}: {cell.value}", layers=list(cell.trained.models))
            stem = slug(label, cell.factor, str(cell.value))
            yield name, Matrix(
                rows=side,
                columns=side,
                values=run.write_array(stem, whole),
                n=made[id(cell.trained)].rows,
                details={
                    "untrained": run.write_array(slug(stem, "untrained"), fresh),
                    "null": run.write_array(slug(stem, "null"), null),
                },
                label=bound.card.label,
                about={
                    "kind": GRID, "measure": label, "factor": cell.factor, "value": cell.value, "seeds": cell.seeds,
                    "shapes": cell.shapes, "tested": float(observed), "p_family": p_family,
                    "card": make_card_record(bound),
                },
            )  # fmt: skip


def compare_by_closest_layers(
    values: Float[np.ndarray, "r r"], places: Sequence[slice], card: Card
) -> Float[np.ndarray, "m m"]:
    """The similarity of models: of every layer of both with the closest layer of the other, on average over the layers
    of each, then over both; without layers that have no value. places: of the layers of each model."""
    closer = values if card.larger_is_closer else -values
    made = np.empty((len(places), len(places)))
    for (i, row), (j, column) in combinations_with_replacement(enumerate(places), 2):
        best = [np.where(np.isnan(x), -np.inf, x).max(1) for x in (closer[row, column], closer[column, row])]
        made[i, j] = made[j, i] = sum(x[x > -np.inf].mean() if (x > -np.inf).any() else np.nan for x in best) / 2
    return made if card.larger_is_closer else -made


def _find_entry_seeds(where: str, entry: str, model: Mapping[str, AnySource]) -> dict[str, Source]:
    """The models of an entry. Raises BadInput for one that is not there, or that has no untrained twins."""
    entries = {label: getattr(source, "entry", "") or label for label, source in model.items()}
    if entry not in entries.values():
        raise BadInput(f"{where}: no such entry of model, got '{entry}'; {did_you_mean(entry, set(entries.values()))}")
    seeds: dict[str, Source] = {}
    for label in (label for label, name in entries.items() if name == entry):
        source = model[label]
        if not isinstance(source, Source):
            raise BadInput(f"model.{label}: stored activations have no untrained twin, got {entry}; use a model")
        name_errors(label, make_shape_key, source)
        seeds[label] = source
    return seeds


def _check_seeds(sizes: Mapping[str, tuple[int, int]], margin: float, alpha: float) -> None:
    """Raises BadInput where values, each corrected for the number of the others, would seldom be shown to be the same,
    or where nothing tells how models of a value vary. sizes: by value, the seeds of its base and its models; single
    models have no such test."""
    tested = {where: size for where, size in sizes.items() if size != (1, 1)}
    for where, (seeds, models) in tested.items():
        if wanted := find_needed(seeds, models, len(tested), margin, alpha):
            pairs = zip(wanted, (seeds, models), ("seeds of the base", "models of it"), strict=True)
            more = " and ".join(f"{count} {what}" for count, there, what in pairs if count > there)
            raise BadInput(
                f"{where}: too few to show that one of {len(tested)} values is the same at margin {margin:g} and alpha "
                f"{alpha:g}, got {models} models against {seeds} seeds of the base; {more} are needed"
            )


def _draw_untrained_twins(base: Models, others: Models, count: int) -> tuple[dict[str, Source], int]:
    """Untrained models in the shapes of the first model of each, and how many of them are in that of the base: all,
    where both shapes are the same."""
    firsts = [next(iter(seeds.items())) for seeds in (base, others)]
    if make_shape_key(firsts[0][1]) == make_shape_key(firsts[1][1]):
        firsts.pop()
    made = {
        f"untrained {label} {seed}": draw_untrained(source, seed) for label, source in firsts for seed in range(count)
    }
    return made, count
