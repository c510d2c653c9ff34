"""The similarity budget of a run: how much of a value is the token, what untrained models share, and what was learned.

`shares.py` has the estimand and the estimate. This file chooses the rows, layers and twins. The rows are a sample as
that of `extract.estimate=full`, read once more from the cache of activations, two layers at a time; untrained twins of
which the run has none are made from the models' configs, and run once. Shared neighbours have no parts that add up to
causes: of these it is counted which are of the row's own token.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, combinations, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repsim_cli.activations.places import list_row_identities
from repsim_cli.activations.readings import plan_readings
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.settings import WORDS, Extract
from repsim_cli.data.base import Sequences
from repsim_cli.engine import shares
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.corrections import correct_by_holm
from repsim_cli.engine.cost import Cost, estimate_products
from repsim_cli.engine.extraction import Extraction
from repsim_cli.engine.footprint import count_rows_per_comparison, estimate_passes_cost, stays_in_cache
from repsim_cli.engine.rows import Rows, open_rows
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.models.source import AnySource, Source
from repsim_cli.models.transformers import draw_untrained, make_shape_key
from repsim_cli.runs.content import BUDGET, BUDGET_COLUMNS, BUDGET_PARTS, BY_TOKEN, BY_TOKEN_COLUMNS, Table
from repsim_cli.runs.results import Run

CENTRED = "centred"  # rows, in the setting of measures that take them otherwise too
LINEAR, NEIGHBOURS = ("cka_unbiased", "cka"), "mutual_knn"
NOT_SPLIT = "the previous token: with it, a third of the rows has no partner"
PRODUCTS, NORMS = 20, 8  # of all rows with a covariance, of a pair of layers and of a layer
NOTED = ("models_run", "data")  # in the manifest, of the run itself


class LayerPair(NamedTuple):
    """Two layers of different models at the same depth, by their numbers among all."""

    first: int
    second: int


class BudgetSample(NamedTuple):
    """The rows: what is read, of every row its token and its document, from 0, and in how many batches neighbours are
    found."""

    read: Comparison
    tokens: np.ndarray
    documents: np.ndarray
    batches: int


def check(comparison: Comparison) -> None:
    """Raises BadInput where no value of the run can be split."""
    names, unit = [measure.name for measure in comparison.measures.values()], comparison.extract.unit
    if not has_linear_similarity(comparison) and NEIGHBOURS not in names:
        raise BadInput(
            f"significance.budget: splits {', '.join(LINEAR)} and {NEIGHBOURS}, got {', '.join(names)}; add one of them"
        )
    if unit not in ("token", *WORDS):
        raise BadInput(
            f"significance.budget: rows are tokens or words, got extract.unit={unit}; use extract=tokens "
            "(compare: --rows tokens)"
        )
    if not any(source.modality == "text" for source in comparison.live.values()):
        raise BadInput(
            f"significance.budget: nothing says of which token the rows of '{next(iter(comparison.models))}' are, got "
            "no model that reads text; leave it out"
        )
    if len(comparison.models) < 2 or comparison.within:
        got = "pairs within models" if comparison.within else ", ".join(comparison.models)
        raise BadInput(f"significance.budget: needs two models or more, got {got}; add one")
    twins = [extraction for extraction in (comparison, make_untrained_twins(comparison)) if extraction.live]
    if not all(map(stays_in_cache, twins)):
        raise BadInput(
            "significance.budget: activations are read again from the cache, got none that holds them; set cache=true, "
            "raise REPSIM_CACHE_GB, or read fewer layers or less text"
        )


def pair_layers_by_depth(comparison: Comparison) -> list[LayerPair]:
    """Pairs the layers of every two models that are equally deep among those of one hook point.

    Layers of equally many are paired in turn; else each of the first with that at the same share of the depth.
    """
    pairs = []
    for i, j in combinations(range(len(comparison.readings)), 2):
        ours, theirs = (_group_by_point(comparison, number) for number in (i, j))
        if not ours.keys() & theirs.keys():
            ours, theirs = ({"": list(chain.from_iterable(each.values()))} for each in (ours, theirs))
        for point in ours.keys() & theirs.keys():
            a, b = ours[point], theirs[point]
            step = (len(b) - 1) / max(len(a) - 1, 1)
            pairs += [LayerPair(layer, b[int(place * step + 0.5)]) for place, layer in enumerate(a)]
    return sorted(pairs, key=lambda pair: (_find_pair_models(comparison, pair), pair))


def _find_pair_models(comparison: Comparison, pair: LayerPair) -> tuple[int, int]:
    places = [place.stop for place in comparison.places]
    return int(np.searchsorted(places, pair.first, "right")), int(np.searchsorted(places, pair.second, "right"))


def _group_by_point(comparison: Comparison, number: int) -> dict[str, list[int]]:
    """The layers of a model by their hook point."""
    place, found = comparison.places[number], dict[str, list[int]]()
    for layer in range(place.start, place.stop):
        found.setdefault(comparison.layers[layer].name.partition("@")[0], []).append(layer)
    return found


def find_untrained_twin(models: Mapping[str, AnySource], label: str) -> str | None:
    """Names the untrained model of this shape that the run has; empty where one can be made; None where neither."""
    source = models[label]
    if not isinstance(source, Source) or not source.trained:
        return None
    try:
        shape = make_shape_key(source)
    except BadInput:
        return None
    for other, each in models.items():
        if isinstance(each, Source) and not each.trained and each.plain and make_shape_key(each) == shape:
            return other
    return ""


def has_linear_similarity(comparison: Comparison) -> bool:
    """Tells whether a linear similarity of centred rows is split."""
    return any(m.name in LINEAR and m.settings.get("rows", CENTRED) == CENTRED for m in comparison.measures.values())


def make_untrained_twins(comparison: Comparison) -> Extraction:
    """Makes an untrained twin of each trained model that has none in the run, under its label."""
    wanted = comparison.live if has_linear_similarity(comparison) else ()
    lacking = [label for label in wanted if find_untrained_twin(comparison.models, label) == ""]
    made = {label: draw_untrained(comparison.live[label], number) for number, label in enumerate(lacking)}
    return Extraction(
        models=made,
        readings=plan_readings(made, comparison.extract),
        data=comparison.data,
        devices={label: comparison.devices[label] for label in made},
        tokenizers={},
        extract=comparison.extract,
        hardware=comparison.hardware,
        seed=comparison.seed,
        cache=comparison.cache,
        total=comparison.total,
        whole=comparison.whole,
    )


def sample_budget_rows(comparison: Comparison, sequences: Mapping[str, Sequences]) -> BudgetSample:
    """Takes the rows of a comparison whose rows are clustered. Raises BadInput where their documents are too few."""
    read = replace(comparison, extract=_use_full(comparison.extract), groups=None)
    numbers = read.numbers(0)
    tokens = list_row_identities(next(iter(sequences.values())), read.extract)
    assert tokens is not None
    _, documents = np.unique(read.documents[numbers], return_inverse=True)
    if (count := documents.max(initial=-1) + 1) < shares.LEAST:
        raise BadInput(
            f"significance.budget: rows of {shares.LEAST} documents or more are needed, got {count}; give more text or "
            "more documents (of local text data.sample_by=paragraph makes one of each paragraph), or leave it out"
        )
    size = comparison.extract.batch_rows if comparison.extract.estimate == "per_batch" else len(numbers)
    return BudgetSample(
        read, np.unique(tokens[numbers], return_inverse=True)[1], documents, max(1, len(numbers) // size)
    )


def plan_budget(comparison: Comparison) -> str:
    """Says, for a plan, what will be split, and which models run for it."""
    made = list(make_untrained_twins(comparison).models)
    twins = f"an untrained twin is made and run of: {', '.join(made)}" if made else "no untrained twin is made"
    return f"{len(pair_layers_by_depth(comparison))} pairs of layers; {twins}"


def estimate_budget_cost(comparison: Comparison) -> Cost:
    """Estimates the cost of the passes of the untrained twins, and of the covariances of the layers.

    These are the covariances of every pair of layers, and of each layer with itself.
    """
    twins, rows = (
        make_untrained_twins(comparison),
        count_rows_per_comparison(replace(comparison, extract=_use_full(comparison.extract))),
    )
    widths = [(comparison.layers[a].width, comparison.layers[b].width) for a, b in pair_layers_by_depth(comparison)]
    cells = has_linear_similarity(comparison) * sum(PRODUCTS * a * b + NORMS * (a**2 + b**2) for a, b in widths)
    return (estimate_passes_cost(twins) if twins.models else Cost()) + estimate_products(
        2.0 * rows * cells, comparison.hardware
    )


def _use_full(extract: Extract) -> Extract:
    return replace(extract, estimate="full")


def compute_budget(
    run: Run, taken: BudgetSample, sequences: Mapping[str, Sequences]
) -> tuple[dict[str, Table], dict[str, Any]]:
    """Splits the values of all pairs of layers at the same depth: the tables, and what is known of them."""
    comparison, twins = taken.read, make_untrained_twins(taken.read)
    noted = deepcopy({key: run.manifest[key] for key in NOTED})
    by_parts = has_linear_similarity(comparison)
    split: list[list[Any]] = []
    shared: list[list[Any]] = []
    with ExitStack() as held:
        rows = held.enter_context(
            open_rows(run, comparison, sequences, identities=run.manifest["models"], diagnose=False)
        )
        fresh = None
        if twins.models:
            identities = {label: source.identity() for label, source in twins.models.items()}
            fresh = held.enter_context(open_rows(run, twins, sequences, identities=identities, diagnose=False))
        parts = Parts.make(taken, rows, fresh)
        for pair in run.progress(pair_layers_by_depth(comparison), label="budget", unit="pairs of layers"):
            given = _read_layer_samples(rows, pair)
            of = [comparison.layers[layer] for layer in pair]
            names = [*(layer.model for layer in of), *(layer.name for layer in of)]
            if by_parts:
                split.append([*names, *parts.row(pair, *(z - z.mean(0) for z in given))])
            for label, measure in comparison.measures.items():
                if measure.name == NEIGHBOURS:
                    shared.append([label, *names, *_average_neighbours(taken, measure, *given)])
    run.manifest.update(noted)
    _correct(split)
    lacking = sum(row[BUDGET_COLUMNS.index(shares.VALUE)] is None for row in split)
    if lacking:
        run.warn(f"significance.budget: {lacking} of {len(split)} pairs of layers have no variance over documents")
    tested = [row for row in split if row[BUDGET_COLUMNS.index(shares.VALUE)] is not None]
    if untested := sum(row[-1] is None for row in tested):
        run.warn(
            f"significance.budget: nothing is tested beyond the token in {untested} of {len(tested)} pairs of layers: "
            "rows of one token are all alike in a layer, or documents that follow each other are alike on both sides; "
            "give more documents"
        )
    tables = {
        **({BUDGET: Table(columns=BUDGET_COLUMNS, rows=split)} if split else {}),
        **({BY_TOKEN: Table(columns=BY_TOKEN_COLUMNS, rows=shared)} if shared else {}),
    }
    return tables, parts.about(by_parts)


def _correct(split: Sequence[list[Any]]) -> None:
    """Corrects the p values of every two models, the last of each row, for their number."""
    for _, rows in groupby(split, key=lambda row: row[:2]):
        tested = [row for row in rows if row[-1] is not None]
        for row, p in zip(tested, correct_by_holm(torch.tensor([row[-1] for row in tested])).tolist(), strict=True):
            row[-1] = p


def _read_layer_samples(rows: Rows, numbers: Sequence[int]) -> list[Tensor]:
    """Reads the sample of these layers."""
    (taken,) = rows.stream_layers(sorted(numbers), iter)
    return [x.cpu() for x in taken]


@dataclass(frozen=True)
class Parts:
    """How the linear similarity of a pair of layers is split.

    twins: of each model, the untrained model that stands beside it: the label of the run; empty where it is among those
    that were made; None where there is none. norms: of the layers so far.
    """

    taken: BudgetSample
    design: shares.Design
    rows: Rows
    fresh: Rows | None
    twins: Mapping[str, str | None]
    norms: dict[int, np.ndarray]

    @classmethod
    def make(cls, taken: BudgetSample, rows: Rows, fresh: Rows | None) -> "Parts":
        models = taken.read.models
        twins = {label: find_untrained_twin(models, label) for label in models}
        several = has_linear_similarity(taken.read) and any(twin is not None for twin in twins.values())
        return cls(taken, shares.make_design(taken.tokens, taken.documents, twins=several), rows, fresh, twins, {})

    def row(self, pair: LayerPair, x: Tensor, y: Tensor) -> list[float | None]:
        """The shares of BUDGET_PARTS, half of the width of their intervals, and p of the test beyond the token."""
        for layer, z in zip(pair, (x, y), strict=True):
            if layer not in self.norms:
                self.norms[layer] = shares.compute_squared_norm(self.design, z)
        features = self._features(pair)
        read = None if features is None else shares.read_out(self.design, x, y, features)
        parts = shares.split_shares(shares.compute_part_products(self.design, x, y), read)
        norms = self.norms[pair.first], self.norms[pair.second]
        found = shares.compute_part_shares(parts, norms, self.taken.read.significance.level)
        numbers = [found.get(part, NONE) for part in BUDGET_PARTS]
        tested = shares.compute_p_beyond(self.design, x, y)
        return [fill_nan(number) for number in (*chain.from_iterable(zip(*numbers, strict=True)), tested)]

    def _features(self, pair: LayerPair) -> Tensor | None:
        """The features that are read out, of the twins of both layers."""
        found: dict[tuple[str, int], Tensor] = {}
        for layer in pair:
            label = self.taken.read.layers[layer].model
            twin = self.twins[label]
            if twin is None:
                return None
            owner, rows = (twin, self.rows) if twin else (label, self.fresh)
            assert rows is not None
            number = self._find_layer(rows, owner, self.taken.read.layers[layer].name)
            if number is None:
                return None
            if (owner, number) not in found:
                (found[owner, number],) = _read_layer_samples(rows, [number])
        if self.design.features < len(found):
            return None
        return shares.compute_twin_features(self.design, [z - z.mean(0) for z in found.values()])

    @staticmethod
    def _find_layer(rows: Rows, model: str, name: str) -> int | None:
        """The number of a layer among those that are read."""
        known = [(layer.model, layer.name) for layer in rows.extraction.layers]
        return known.index((model, name)) if (model, name) in known else None

    def about(self, linear: bool) -> dict[str, Any]:
        """Describes the tables, as results.json keeps it. linear: whether a linear similarity is split."""
        said = {"": "made from its config", None: "none"}
        taken = {"rows": len(self.taken.tokens), "documents": int(self.taken.documents.max()) + 1}
        if not linear:
            return taken
        twins = {label: said.get(twin, twin) for label, twin in self.twins.items()}
        features = self.design.features if self.design.read else 0
        level = self.taken.read.significance.level
        return {**taken, "twins": twins, "features": features, "level": level, "not split": NOT_SPLIT}


NONE = shares.Share(math.nan, math.nan)


def fill_nan(number: float) -> float | None:
    """A number of a table, which has no NaN."""
    return number if math.isfinite(number) else None


def _average_neighbours(taken: BudgetSample, measure: Measure, x: Tensor, y: Tensor) -> list[float | None]:
    """Takes the mean of what `shares.compute_neighbour_shares` counts, over batches with the rows of a batch of the
    run; None where a layer has no neighbours, e.g. a constant one."""
    assert isinstance(measure, Pairwise)
    comparison, found = taken.read, []
    apart = comparison.pairs_of(measure) == "other_documents"
    for rows in np.array_split(np.arange(len(x)), taken.batches):
        documents = torch.from_numpy(np.unique(taken.documents[rows], return_inverse=True)[1])
        bound = measure.apart(documents) if apart and measure.apart is not None else measure
        assert isinstance(bound, Pairwise)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MeasureWarning)  # the run's own values have them
                first, second = (bound.prepare(z[rows]).lists.cpu().numpy() for z in (x, y))
        except Degenerate:
            return [None] * len(BY_TOKEN_COLUMNS[5:])
        others = len(rows) - (documents.bincount()[documents].numpy() if apart else 1)
        found.append(shares.compute_neighbour_shares(first, second, taken.tokens[rows], others))
    return np.mean(found, axis=0).tolist()
